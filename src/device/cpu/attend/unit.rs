//! One block of K/V for its rows: K is turned to `[d][16]` and V widened to float32 once a window and used by all rows. A
//! window: scores (one chain of multiply-adds over `d` each), one online-softmax step a row, values added in position
//! order. Tables with loops for it take integers instead, whose sums are exact in any order (`integers`).

use super::ahead::STEP;
use super::{BLOCK, Heads, Kernels, Kv, KvLayer, Lazy, PAGE_TOKENS, Scratch, Sink, TILE_ROWS, WINDOW, Wave};
use crate::device::attend::{AttendWork, Unit};
use crate::device::picks::Picks;
use half::f16;
use std::ops::Range;

/// Packed rows fewer than these wait for each page by itself.
const FEW: usize = 16;

/// What all units of a run share.
pub(super) struct Job<'a> {
    pub heads: Heads,
    pub kernels: &'static Kernels,
    pub work: &'a AttendWork,
    pub wave: &'a Wave<'a>,
    pub q: &'a [f32],
    pub sink: Sink<'a>,
}

/// The part of a piece that lies in one window, and the work rows that see some of it.
#[derive(Debug)]
pub(super) struct Part {
    pub start: u32,
    pub end: u32,
    pub first_page: usize,
    pub rows: Range<usize>,
}

impl Job<'_> {
    /// The units of a task for one K/V head.
    pub fn task(&self, task: &Range<u32>, kv_head: usize, scratch: &mut Scratch) {
        let units = &self.wave.units[task.start as usize..task.end as usize];
        let first = units.iter().map(|u| u.rows.start).min().unwrap_or(0) as usize;
        let end = units.iter().map(|u| u.rows.end).max().unwrap_or(0) as usize;
        scratch.chain.begin(first..end, self.heads.group(), self.heads.head_size);
        scratch.q_of = None;
        scratch.ahead.begin();
        for i in 0..units.len() {
            self.unit(units, i, kv_head, scratch);
        }
        self.finish_task(kv_head, scratch);
    }

    /// Unit `at` of a task's.
    fn unit(&self, units: &[Unit], at: usize, kv_head: usize, scratch: &mut Scratch) {
        let unit = &units[at];
        let step = (TILE_ROWS / self.heads.group()).max(1);
        let (mut from, end) = (unit.rows.start as usize, unit.rows.end as usize);
        while from < end {
            let rows = from..(from + step).min(end);
            from = rows.end;
            self.rows(units, at, kv_head, rows.clone(), scratch);
            self.keep(unit.block, kv_head, rows, scratch);
        }
    }

    /// Fills `scratch.own` for the work rows `rows`.
    fn rows(&self, units: &[Unit], at: usize, kv_head: usize, rows: Range<usize>, scratch: &mut Scratch) {
        let unit = &units[at];
        let (g, d) = (self.heads.group(), self.heads.head_size);
        let n = rows.len() * g;
        scratch.q.grow(n * d);
        scratch.scores.grow(n * WINDOW);
        scratch.tile.grow(WINDOW * d);
        scratch.own.clear(n, d);
        if scratch.q_of.replace(rows.clone()) != Some(rows.clone()) {
            // Scores come out as powers of two: exp(s / sqrt(d)) = 2^(s · log2(e) / sqrt(d)).
            let scale = std::f32::consts::LOG2_E / (d as f32).sqrt();
            for (packed, row) in scratch.q.chunks_mut(g * d).zip(rows.clone()) {
                let from = self.work.order[row] as usize * self.heads.heads * d + kv_head * g * d;
                for (a, b) in packed.iter_mut().zip(&self.q[from..from + g * d]) {
                    *a = b * scale;
                }
            }
            self.kernels.queries(&mut scratch.q[..n * d], d);
        }
        for window in 0..BLOCK / WINDOW {
            let first = unit.block * BLOCK as u32 + (window * WINDOW) as u32;
            self.look_ahead(units, (at, window), kv_head, n, &mut scratch.ahead);
            if !self.scores(unit, kv_head, first, &rows, scratch) {
                break;
            }
            if let Some(table) = self.kernels.integers {
                self.count(table, unit, kv_head, first, &rows, scratch);
                continue;
            }
            self.softmax(first, &rows, scratch);
            self.values(unit, kv_head, first, &rows, scratch);
        }
    }

    /// The parts of the unit's pieces in the window that begins at `first`, for `rows`.
    pub(super) fn parts<'s>(
        &'s self,
        unit: &Unit,
        first: u32,
        rows: &'s Range<usize>,
    ) -> impl Iterator<Item = Part> + 's {
        let pieces = &self.work.pieces[unit.pieces.start as usize..unit.pieces.end as usize];
        pieces.iter().filter_map(move |p| {
            let (start, end) = (p.start.max(first), (p.start + p.len).min(first + WINDOW as u32));
            let (from, to) = (rows.start.max(p.rows.start as usize), rows.end.min(p.rows.end as usize));
            if start >= end || from >= to {
                return None;
            }
            // Rows that end before this part come first among the piece's rows.
            let from = from + self.work.positions[from..to].partition_point(|&position| position < start);
            let first_page = p.first_page as usize + (start / PAGE - p.start / PAGE) as usize;
            (from < to).then_some(Part { start, end, first_page, rows: from..to })
        })
    }

    /// Scores of one window; false where no row reaches it.
    fn scores(&self, unit: &Unit, kv_head: usize, first: u32, rows: &Range<usize>, scratch: &mut Scratch) -> bool {
        let (g, d) = (self.heads.group(), self.heads.head_size);
        let mut reached = false;
        for part in self.parts(unit, first, rows) {
            reached = true;
            let lanes = part.start % PAGE..part.start % PAGE + (part.end - part.start);
            let pages = lanes.end.div_ceil(PAGE) as usize;
            // Few rows would wait for each page by itself; with many, requests go between the pages.
            let together = if part.rows.len() * g < FEW { pages } else { 1 };
            for page in 0..pages {
                scratch.ahead.ask();
                if page % together == 0 {
                    let first = part.first_page + page;
                    let tile = &mut scratch.tile[page * PAGE_TOKENS * d..];
                    self.look_at_keys(first..first + together, kv_head, tile);
                }
                let tile = &mut scratch.tile[page * PAGE_TOKENS * d..][..PAGE_TOKENS * d];
                self.keys(part.first_page + page, kv_head, tile, &mut scratch.gathered);
            }
            let column = (part.start / PAGE * PAGE - first) as usize;
            let (mut row, end) = ((part.rows.start - rows.start) * g, (part.rows.end - rows.start) * g);
            while row < end {
                scratch.ahead.ask();
                let to = (row + STEP).min(end);
                self.kernels.scores(
                    &scratch.q[row * d..to * d],
                    d,
                    &scratch.tile[..pages * PAGE_TOKENS * d],
                    lanes.start as usize..lanes.end as usize,
                    &mut scratch.scores[row * WINDOW..to * WINDOW],
                    column,
                );
                row = to;
            }
        }
        if let Kv::Rows { picks, .. } = self.wave.kv {
            self.mask(first, kv_head, rows, picks, scratch);
        }
        reached
    }

    /// Before [`Self::keys`], where pages lie whole; what is gathered is looked at there.
    fn look_at_keys(&self, pages: Range<usize>, kv_head: usize, tile: &mut [f32]) {
        let Kv::Pages { kv: KvLayer::F16(numbers), pages: owned } = self.wave.kv else { return };
        let n = PAGE_TOKENS * self.heads.head_size;
        for (page, tile) in owned[pages].iter().zip(tile.chunks_exact_mut(n)) {
            let at = (*page as usize * self.heads.kv_heads + kv_head) * 2 * n;
            self.kernels.look_at_keys(&numbers[at..at + n], self.heads.head_size, tile);
        }
    }

    /// K of one page and head (as the pieces number pages), turned to `[d][16]`. Tokens that are not there are zeros.
    fn keys(&self, index: usize, kv_head: usize, tile: &mut [f32], gathered: &mut (Lazy<f16>, Lazy<f32>)) {
        let d = self.heads.head_size;
        let n = PAGE_TOKENS * d;
        match self.wave.kv {
            Kv::Pages { kv, pages } => {
                let at = (pages[index] as usize * self.heads.kv_heads + kv_head) * 2 * n;
                match kv {
                    KvLayer::F16(numbers) => self.kernels.keys_f16(&numbers[at..at + n], d, tile),
                    KvLayer::F32(numbers) => self.kernels.keys_f32(&numbers[at..at + n], d, tile),
                }
            }
            Kv::Rows { rows, places, pages, .. } => {
                let first = (pages[index] as usize * self.heads.kv_heads + kv_head) * PAGE_TOKENS;
                let places = &places[first..first + PAGE_TOKENS];
                match rows {
                    KvLayer::F16(numbers) => {
                        gathered.0.grow(n);
                        gather(numbers, places, 0, d, &mut gathered.0[..n]);
                        self.kernels.look_at_keys(&gathered.0[..n], d, tile);
                        self.kernels.keys_f16(&gathered.0[..n], d, tile);
                    }
                    KvLayer::F32(numbers) => {
                        gathered.1.grow(n);
                        gather(numbers, places, 0, d, &mut gathered.1[..n]);
                        self.kernels.keys_f32(&gathered.1[..n], d, tile);
                    }
                }
            }
        }
    }

    /// Takes the tokens of a window that a row did not pick out of its sight.
    fn mask(&self, first: u32, kv_head: usize, rows: &Range<usize>, picks: &Picks, scratch: &mut Scratch) {
        let g = self.heads.group();
        for (i, row) in rows.clone().enumerate() {
            let word = picks.word(row, first as usize / WINDOW, kv_head);
            if word == u64::MAX {
                continue;
            }
            for scores in scratch.scores[i * g * WINDOW..(i + 1) * g * WINDOW].chunks_exact_mut(WINDOW) {
                for (lane, score) in scores.iter_mut().enumerate() {
                    if word >> lane & 1 == 0 {
                        *score = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }

    /// Turns the window's scores into weights against the new running maximum, and scales what was summed before.
    fn softmax(&self, first: u32, rows: &Range<usize>, scratch: &mut Scratch) {
        let d = self.heads.head_size;
        self.alike(first, rows, |packed, seen| {
            let scores = &mut scratch.scores[packed.start * WINDOW..packed.end * WINDOW];
            self.kernels.softmax(scores, seen, d, scratch.own.rows(packed, d));
        });
    }

    /// Neighbours that see as much of the window that begins at `first`, as packed rows, and how much; not those that see nothing.
    pub(super) fn alike(&self, first: u32, rows: &Range<usize>, mut each: impl FnMut(Range<usize>, usize)) {
        let g = self.heads.group();
        let seen = |row: usize| (self.work.positions[row] + 1).saturating_sub(first).min(WINDOW as u32) as usize;
        let mut row = rows.start;
        while row < rows.end {
            let n = seen(row);
            let end = (row + 1..rows.end).find(|&r| seen(r) != n).unwrap_or(rows.end);
            if n > 0 {
                each((row - rows.start) * g..(end - rows.start) * g, n);
            }
            row = end;
        }
    }

    fn values(&self, unit: &Unit, kv_head: usize, first: u32, rows: &Range<usize>, scratch: &mut Scratch) {
        let (g, d) = (self.heads.group(), self.heads.head_size);
        for part in self.parts(unit, first, rows) {
            let tokens = (part.end - part.start) as usize;
            let mut filled = 0;
            while filled < tokens {
                let offset = (part.start as usize + filled) % PAGE_TOKENS;
                let n = (PAGE_TOKENS - offset).min(tokens - filled);
                let page = part.first_page + (part.start as usize % PAGE_TOKENS + filled) / PAGE_TOKENS;
                let tile = &mut scratch.tile[filled * d..(filled + n) * d];
                scratch.ahead.ask();
                self.fill_values(page, kv_head, offset, tile);
                filled += n;
            }
            // Rows that end inside the part: each with the tokens it sees. The others: all together.
            let positions = &self.work.positions[part.rows.clone()];
            let whole = part.rows.start + positions.partition_point(|&p| p + 1 < part.end);
            let column = (part.start - first) as usize;
            for row in part.rows.start..whole {
                let seen = (self.work.positions[row] + 1 - part.start) as usize;
                self.add_values(row - rows.start..row + 1 - rows.start, column, seen, g, d, scratch);
            }
            if whole < part.rows.end {
                self.add_values(whole - rows.start..part.rows.end - rows.start, column, tokens, g, d, scratch);
            }
        }
    }

    fn add_values(&self, rows: Range<usize>, column: usize, tokens: usize, g: usize, d: usize, scratch: &mut Scratch) {
        let (mut row, end) = (rows.start * g, rows.end * g);
        while row < end {
            scratch.ahead.ask();
            let to = (row + STEP).min(end);
            self.kernels.values(
                &scratch.scores[row * WINDOW..to * WINDOW],
                column,
                &scratch.tile[..tokens * d],
                d,
                scratch.own.rows(row..to, d).out,
            );
            row = to;
        }
    }

    /// V of the tokens from `offset` on of one page and head. Tokens that are not there are zeros.
    fn fill_values(&self, index: usize, kv_head: usize, offset: usize, tile: &mut [f32]) {
        let d = self.heads.head_size;
        let fill = |kv: KvLayer<'_>, at: usize, tile: &mut [f32]| match kv {
            KvLayer::F16(numbers) => self.kernels.widen(&numbers[at..at + tile.len()], tile),
            KvLayer::F32(numbers) => tile.copy_from_slice(&numbers[at..at + tile.len()]),
        };
        match self.wave.kv {
            Kv::Pages { kv, pages } => {
                let first = (pages[index] as usize * self.heads.kv_heads + kv_head) * 2 * PAGE_TOKENS;
                fill(kv, (first + PAGE_TOKENS + offset) * d, tile);
            }
            Kv::Rows { rows, places, pages, .. } => {
                let first = (pages[index] as usize * self.heads.kv_heads + kv_head) * PAGE_TOKENS + offset;
                for (tile, place) in tile.chunks_exact_mut(d).zip(&places[first..]) {
                    match place.checked_sub(1) {
                        Some(frame) => fill(rows, (2 * frame as usize + 1) * d, tile),
                        None => tile.fill(0.0),
                    }
                }
            }
        }
    }
}

/// K (`which` 0) or V (1) of a page's tokens side by side, zeros for those that have no frame.
pub(super) fn gather<T: Copy + Default>(numbers: &[T], places: &[u32], which: usize, d: usize, into: &mut [T]) {
    for (into, place) in into.chunks_exact_mut(d).zip(places) {
        match place.checked_sub(1) {
            Some(frame) => into.copy_from_slice(&numbers[(2 * frame as usize + which) * d..][..d]),
            None => into.fill(T::default()),
        }
    }
}

const PAGE: u32 = PAGE_TOKENS as u32;
