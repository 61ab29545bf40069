//! How fast the ways to fetch pages are on this machine: copies of runs, or a kernel that reads the host tier in place.

use super::Store;
use super::tier::Tier;
use crate::base::{Error, Result};
use std::ops::Range;

/// Bytes that the ways to fetch are measured with.
const MEASURED_BYTES: usize = 32 << 20;

/// Places of the host tier that they come from.
const MEASURED_PARTS: usize = 8;

/// Pages that are copied one by one to see what a copy costs by itself.
const MEASURED_COPIES: usize = 64;

/// How fast the ways to fetch are, as measured when the tier was made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speeds {
    /// Seconds that a copy takes by itself, and a byte of it.
    pub copy: f64,
    pub copy_byte: f64,
    /// A byte of the kernel that reads the host tier in place.
    pub gather_byte: f64,
}

impl Speeds {
    /// Whether the kernel is quicker than so many copies.
    pub fn gathers(&self, copies: usize, bytes: usize) -> bool {
        self.gather_byte * (bytes as f64) < self.copy * copies as f64 + self.copy_byte * bytes as f64
    }
}

impl Store {
    /// Times both ways to fetch, into the last arena, with what a first step would overwrite.
    pub(super) fn measure(&self, tier: &Tier) -> Result<Speeds> {
        let Some(arena) = self.arenas.last() else { return Err(Error::fault("a tier without arenas")) };
        let page_bytes = tier.page_bytes;
        let to = tier.arrives(arena);
        let pages = (MEASURED_BYTES / page_bytes).clamp(1, self.pages);
        // Steps of 7 pages: not neighbours, as the pages of a tree may be.
        let list: Vec<u32> = (0..pages).map(|i| (i * 7 % self.pages) as u32).collect();
        let list_there = tier.down.upload(&list)?;
        let [begun, done] = [tier.down.new_mark()?, tier.down.new_mark()?];
        let time = |work: &dyn Fn() -> Result<()>| -> Result<f64> {
            let mut best = f64::INFINITY;
            for _ in 0..3 {
                tier.down.set_mark(&begun)?;
                work()?;
                tier.down.set_mark(&done)?;
                tier.down.wait()?;
                best = best.min(tier.down.microseconds(&begun, &done)? * 1e-6);
            }
            Ok(best)
        };
        let copies = MEASURED_COPIES.min(pages);
        // From all over the host tier: on a machine with several memory nodes one part may be farther than another.
        let all = (0..pages as u32).collect::<Vec<_>>();
        let (layers, parts) = (self.layout.layers, MEASURED_PARTS.min(pages));
        let first = |part: usize| part * layers / parts * self.pages * page_bytes;
        let part = |i: usize| (i * pages / parts) as u32..((i + 1) * pages / parts) as u32;
        let whole = time(&|| (0..parts).try_for_each(|i| tier.copy_pages(to, first(i), &[part(i)])))?;
        let single: Vec<Range<u32>> = all[..copies].iter().map(|&page| page..page + 1).collect();
        let apart = time(&|| tier.copy_pages(to, 0, &single))?;
        let gather = time(&|| tier.gather_pages(to, first(parts / 2), list_there.pointer(), pages))?;
        let bytes = (pages * page_bytes) as f64;
        let copy_byte = whole / bytes;
        let copy = (apart - (copies * page_bytes) as f64 * copy_byte).max(0.0) / copies as f64;
        Ok(Speeds { copy, copy_byte, gather_byte: gather / bytes })
    }

    /// Fetches by the kernel or by copies from now on, whatever is quicker: for tests of both.
    pub fn fetch_by_kernel(&mut self, kernel: bool) {
        if let Some(tier) = &mut self.tier {
            tier.speeds.copy = if kernel { f64::INFINITY } else { 0.0 };
            (tier.speeds.copy_byte, tier.speeds.gather_byte) = (0.0, f64::MIN_POSITIVE);
        }
    }

    /// `copy 52.1 GB/s and 2.1 us each, gather 49.8 GB/s`; `None` where nothing is fetched.
    pub fn speeds(&self) -> Option<String> {
        let Speeds { copy, copy_byte, gather_byte } = self.tier.as_ref()?.speeds;
        let speed = |byte: f64| 1e-9 / byte;
        (copy_byte > 0.0).then(|| {
            let (copied, gathered) = (speed(copy_byte), speed(gather_byte));
            format!("copies {copied:.1} GB/s and {:.1} us each, gather {gathered:.1} GB/s", copy * 1e6)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_small_copies_are_left_to_the_kernel() {
        let speeds = Speeds { copy: 3e-6, copy_byte: 1.0 / 55e9, gather_byte: 1.0 / 50e9 };
        assert!(!speeds.gathers(1, 64 << 20) && speeds.gathers(500, 500 << 16));
    }
}
