//! K/V asked for before it is needed: while rows work with a window, what the task reads next is fetched, some lines at a
//! time (a core waits for no more than a few dozen at once). Pages lie anywhere, so the processor's own prefetching ends with
//! each of them. The lead is longer than a window: a prompt's rows have time to fetch in, and the branches behind it, whose few
//! rows have less, find part of their K/V there.

use super::unit::Job;
use super::{BLOCK, Kv, KvLayer, PAGE_TOKENS, WINDOW};
use crate::device::attend::Unit;
use crate::device::cpu::lanes::prefetch;
use std::collections::VecDeque;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Packed rows that work between two requests: whole register tiles of every table of kernels.
pub(super) const STEP: usize = 12;

/// Bytes asked for and not used yet: a quarter of what a core's second cache holds, which the rows share. Half and three
/// quarters of it take as long; a sixteenth, a hundredth longer.
const LEAD: usize = 256 << 10;

/// Lines that one request asks for at most; with 48 a core waits for its own requests.
const BURST: usize = 32;

const WINDOWS: usize = BLOCK / WINDOW;

/// What is still to be asked for, in the order in which the task reads it. Windows are numbered through the task's units.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Addresses of K and V of one page and head, and the window that reads them.
    pages: VecDeque<(usize, usize)>,
    page_lines: usize,
    /// Lines of the first of them that were asked for.
    asked: usize,
    /// Lines a request.
    burst: usize,
    /// Windows that have begun, and the pages of each that is listed and has not.
    begun: usize,
    listed: VecDeque<usize>,
    waiting: usize,
}

impl Ahead {
    /// Before the first window of a task.
    pub fn begin(&mut self) {
        self.pages.clear();
        self.listed.clear();
        (self.asked, self.burst, self.begun, self.waiting) = (0, 0, 0, 0);
    }

    /// Window `number` begins: its pages are the task's business now. `list` adds the addresses of a later window's pages,
    /// of `page_lines` lines each, until there are enough for the lead; false where there is no such window.
    fn window(&mut self, number: usize, page_lines: usize, mut list: impl FnMut(usize, &mut dyn FnMut(usize)) -> bool) {
        self.page_lines = page_lines;
        while self.begun <= number {
            self.begun += 1;
            self.waiting -= self.listed.pop_front().unwrap_or(0);
        }
        while self.pages.front().is_some_and(|&(_, window)| window <= number) {
            self.pages.pop_front();
            self.asked = 0;
        }
        while self.waiting * page_lines * LINE < LEAD {
            let (window, before) = (self.begun + self.listed.len(), self.pages.len());
            let Self { pages, .. } = self;
            if !list(window, &mut |page| pages.push_back((page, window))) {
                break;
            }
            self.listed.push_back(self.pages.len() - before);
            self.waiting += self.pages.len() - before;
        }
    }

    /// Asks for the next few lines.
    pub fn ask(&mut self) {
        let mut left = self.burst;
        while let Some((from, lines)) = self.take(left) {
            prefetch(std::ptr::with_exposed_provenance(from), lines * LINE);
            left -= lines;
        }
    }

    /// At most `most` lines, one after another: the address of the first, and how many. None where there are none left.
    fn take(&mut self, most: usize) -> Option<(usize, usize)> {
        let &(page, _) = self.pages.front().filter(|_| most > 0)?;
        let (from, lines) = (page + self.asked * LINE, most.min(self.page_lines - self.asked));
        self.asked += lines;
        if self.asked == self.page_lines {
            self.pages.pop_front();
            self.asked = 0;
        }
        Some((from, lines))
    }
}

impl Job<'_> {
    /// `rows` packed rows begin with window `window` of unit `at` of a task: what follows it is asked for meanwhile.
    pub(super) fn look_ahead(
        &self,
        units: &[Unit],
        (at, window): (usize, usize),
        kv_head: usize,
        rows: usize,
        ahead: &mut Ahead,
    ) {
        // Rows that were picked lie side by side already.
        let Kv::Pages { kv, pages: owned } = self.wave.kv else { return };
        let numbers = 2 * PAGE_TOKENS * self.heads.head_size;
        let bytes = numbers * if matches!(kv, KvLayer::F16(_)) { 2 } else { 4 };
        ahead.window(at * WINDOWS + window, bytes / LINE, |later, page| {
            let Some(unit) = units.get(later / WINDOWS) else { return false };
            let first = (unit.block as usize * BLOCK + later % WINDOWS * WINDOW) as u32;
            for part in self.parts(unit, first, &(unit.rows.start as usize..unit.rows.end as usize)) {
                let pages = (part.end - 1) as usize / PAGE_TOKENS - part.start as usize / PAGE_TOKENS + 1;
                for of in &owned[part.first_page..][..pages] {
                    let at = (*of as usize * self.heads.kv_heads + kv_head) * numbers;
                    page(match kv {
                        KvLayer::F16(kv) => kv[at..at + numbers].as_ptr().expose_provenance(),
                        KvLayer::F32(kv) => kv[at..at + numbers].as_ptr().expose_provenance(),
                    });
                }
            }
            true
        });
        // A request with every page of K and of V, and with every few rows of either product.
        let requests = 2 * (WINDOW / PAGE_TOKENS + rows.div_ceil(STEP));
        let lines = ahead.pages.len() * ahead.page_lines - ahead.asked;
        ahead.burst = lines.div_ceil(requests).min(BURST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Windows of 30 pages of 64 lines each, page p of window w at `(w · 100 + p) · 4096`; `asks[n]` lines are taken in window n.
    fn taken(windows: usize, asks: &[usize]) -> Vec<usize> {
        let mut ahead = Ahead::default();
        ahead.begin();
        let mut all = Vec::new();
        for (number, &lines) in asks.iter().enumerate() {
            ahead.window(number, 64, |window, page| {
                let there = window < windows;
                (0..30).filter(|_| there).for_each(|p| page((window * 100 + p) * 4096));
                there
            });
            let mut left = lines;
            while let Some((from, lines)) = ahead.take(left) {
                all.extend((0..lines).map(|i| from + i * LINE));
                left -= lines;
            }
        }
        all
    }

    #[test]
    fn what_follows_is_asked_for_once_in_order_and_no_further_than_the_lead() {
        let line = |window: usize, i: usize| (window * 100 + i / 64) * 4096 + i % 64 * LINE;
        let lead = (LEAD / 4096).next_multiple_of(30) * 64;
        let first: Vec<usize> = (0..lead).map(|i| line(1 + i / (30 * 64), i % (30 * 64))).collect();
        assert_eq!(taken(100, &[usize::MAX]), first);
        // A slow one skips what has begun meanwhile.
        let slow = taken(100, &[70, 10, 5]);
        let expected: Vec<usize> =
            (0..70).map(|i| line(1, i)).chain((0..10).map(|i| line(2, i))).chain((0..5).map(|i| line(3, i))).collect();
        assert_eq!(slow, expected);
        // A quick one waits for the lead to move.
        let quick = taken(100, &[usize::MAX, usize::MAX]);
        assert_eq!(quick.len(), lead + 30 * 64);
        assert_eq!(quick[lead], line(1 + lead / (30 * 64), 0));
        // Nothing follows the last window.
        assert_eq!(taken(2, &[usize::MAX, usize::MAX]).len(), 30 * 64);
    }
}
