//! K/V asked for before it is needed: while many rows work with a window, the next one is fetched, some lines at a time
//! (a core waits for no more than a few dozen at once). Pages lie anywhere, so the processor's own prefetching ends with
//! each of them. Cold K/V read by 60 rows: a fifth of the time less; with few rows there is no time to fetch in.

use super::unit::Job;
use super::{BLOCK, Kv, KvLayer, PAGE_TOKENS, WINDOW};
use crate::device::attend::Unit;
use crate::device::cpu::lanes::prefetch;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Packed rows from which on there is time to fetch.
const ROWS: usize = 16;

/// Packed rows that work between two requests: whole register tiles of every table of kernels.
pub(super) const STEP: usize = 12;

/// Lines that are still to be asked for, as addresses, the next one last.
#[derive(Debug, Default)]
pub(super) struct Ahead(Vec<usize>);

impl Ahead {
    /// Asks for one `parts`th of the lines.
    pub fn ask(&mut self, parts: usize) {
        let left = self.0.len() - self.0.len().div_ceil(parts.max(1));
        for line in self.0.drain(left..) {
            prefetch(std::ptr::with_exposed_provenance(line), LINE);
        }
    }

    fn list<T>(&mut self, numbers: &[T]) {
        let from = numbers.as_ptr().expose_provenance();
        self.0.extend((from..from + size_of_val(numbers)).step_by(LINE));
    }
}

impl Job<'_> {
    /// Lists the K/V of the window after the one that begins at `first` in `unit`, or of the first one of `next`, where
    /// `rows` packed rows leave time for it.
    pub(super) fn look_ahead(
        &self,
        (unit, next): (&Unit, Option<&Unit>),
        first: u32,
        kv_head: usize,
        rows: usize,
        ahead: &mut Ahead,
    ) {
        ahead.0.clear();
        if rows < ROWS {
            return;
        }
        let after = first + WINDOW as u32;
        if !after.is_multiple_of(BLOCK as u32) {
            self.list(unit, after, kv_head, ahead);
        } else if let Some(next) = next {
            self.list(next, next.block * BLOCK as u32, kv_head, ahead);
        }
        ahead.0.reverse();
    }

    fn list(&self, unit: &Unit, first: u32, kv_head: usize, ahead: &mut Ahead) {
        // Rows that were picked lie side by side already.
        let Kv::Pages { kv, pages: owned } = self.wave.kv else { return };
        let numbers = 2 * PAGE_TOKENS * self.heads.head_size;
        for part in self.parts(unit, first, &(unit.rows.start as usize..unit.rows.end as usize)) {
            let pages = (part.end - 1) as usize / PAGE_TOKENS - part.start as usize / PAGE_TOKENS + 1;
            for page in &owned[part.first_page..][..pages] {
                let at = (*page as usize * self.heads.kv_heads + kv_head) * numbers;
                match kv {
                    KvLayer::F16(kv) => ahead.list(&kv[at..at + numbers]),
                    KvLayer::F32(kv) => ahead.list(&kv[at..at + numbers]),
                }
            }
        }
    }
}
