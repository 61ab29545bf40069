//! Tree attention on the CPU: carries out an [`AttendWork`] over one layer's paged K/V.
//!
//! Parallel over (task, K/V head), then over rows for the merge. In a unit the `G` query heads of a K/V head times the
//! rows are the rows of one tile (GQA packing); K is turned to `[d][16]` and V widened to float32 once a window and used
//! by all rows. A window: scores (one chain of multiply-adds over `d` each), one online-softmax step a row, values added
//! in position order. No sum is ever split by anything but position, so a row's bits depend on its own path alone.
//!
//! Bytes read: K/V once a unit (rows beyond [`TILE_ROWS`] take the block again from the cache), q once and one partial
//! of `d + 2` numbers written and read a (row, query head, block). Refused: head sizes that are not multiples of 8.

use crate::base::{Error, Result};
use crate::device::attend::{AttendWork, BLOCK, Unit, WINDOW};
use crate::kv::PAGE_TOKENS;
use half::f16;
use std::ops::Range;
use std::sync::Mutex;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub mod baseline;
pub mod kernels;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

use kernels::Kernels;

/// Query rows times heads that one pass over a unit's K/V serves: bounds the scratch to what a core's cache holds.
const TILE_ROWS: usize = 512;

/// Runs `f(0)`, …, `f(n - 1)` in any order on any threads and returns when all are done.
pub type ParallelFor<'a> = &'a dyn Fn(usize, &(dyn Fn(usize) + Sync));

/// On the calling thread.
pub fn serial(n: usize, f: &(dyn Fn(usize) + Sync)) {
    (0..n).for_each(f);
}

/// K and V of one layer, `[page][kv_head][K|V][16][d]`.
#[derive(Debug, Clone, Copy)]
pub enum KvLayer<'a> {
    F16(&'a [f16]),
    F32(&'a [f32]),
}

impl KvLayer<'_> {
    fn len(&self) -> usize {
        match self {
            Self::F16(numbers) => numbers.len(),
            Self::F32(numbers) => numbers.len(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_size: usize,
}

impl Heads {
    /// Query heads of one K/V head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Numbers of one page of one layer.
    pub fn page_numbers(&self) -> usize {
        self.kv_heads * 2 * PAGE_TOKENS * self.head_size
    }
}

/// What one thread works in.
#[derive(Debug, Default)]
struct Scratch {
    /// `[rows · G][d]`, scaled.
    q: Vec<f32>,
    /// `[rows · G][WINDOW]`.
    scores: Vec<f32>,
    /// `[rows · G][d]`, and the running maximum (base 2) and sum.
    out: Vec<f32>,
    max: Vec<f32>,
    sum: Vec<f32>,
    /// One window of K, `[4 pages][d][16]`, or of V, `[64][d]`.
    tile: Vec<f32>,
}

/// The attention of one model on the CPU; keeps its buffers.
pub struct Attention {
    heads: Heads,
    kernels: &'static Kernels,
    partials: Vec<f32>,
    scratch: Mutex<Vec<Scratch>>,
}

impl Attention {
    /// With the fastest kernels of this machine.
    pub fn new(heads: Heads) -> Result<Self> {
        Self::with_kernels(heads, kernels::best())
    }

    pub fn with_kernels(heads: Heads, kernels: &'static Kernels) -> Result<Self> {
        let Heads { heads: h, kv_heads, head_size } = heads;
        if head_size == 0 || !head_size.is_multiple_of(8) {
            return Err(Error::input(format!("head size {head_size} is not a multiple of 8")));
        }
        if kv_heads == 0 || h == 0 || !h.is_multiple_of(kv_heads) {
            return Err(Error::input(format!("{h} query heads cannot share {kv_heads} K/V heads evenly")));
        }
        Ok(Self { heads, kernels, partials: Vec::new(), scratch: Mutex::new(Vec::new()) })
    }

    /// `out[n, heads·d]` = attention of `q[n, heads·d]` over `kv`, batch rows as `work.order` says.
    ///
    /// Panics where a slice is too short for the work: the caller sized them from the same numbers.
    pub fn run(&mut self, work: &AttendWork, kv: KvLayer<'_>, q: &[f32], out: &mut [f32], parallel: ParallelFor<'_>) {
        let Heads { heads, kv_heads, head_size } = self.heads;
        let width = heads * head_size;
        assert!(q.len() >= work.rows() * width && out.len() >= work.rows() * width, "q and out hold the work's rows");
        let pages = work.pages.iter().max().map_or(0, |&p| p as usize + 1);
        assert!(kv.len() >= pages * self.heads.page_numbers(), "the arena holds the work's pages");
        let stride = head_size + 2;
        self.partials.resize((work.partials() * heads * stride).max(self.partials.len()), 0.0);
        let sink = Shared(self.partials.as_mut_ptr());
        let job = Job { heads: self.heads, kernels: self.kernels, work, kv, q };
        let pool = &self.scratch;
        parallel(work.tasks.len() * kv_heads, &|i| {
            let task = &work.tasks[i / kv_heads];
            let mut scratch = pool.lock().map_or_else(|_| Scratch::default(), |mut p| p.pop().unwrap_or_default());
            for unit in &work.units[task.start as usize..task.end as usize] {
                job.unit(unit, i % kv_heads, &mut scratch, &sink);
            }
            if let Ok(mut pool) = pool.lock() {
                pool.push(scratch);
            }
        });
        let partials = &self.partials;
        let target = Shared(out.as_mut_ptr());
        // Merging is short: chunks of rows keep the threads' overhead below it.
        let chunk = work.rows().div_ceil(16).max(1);
        parallel(work.rows().div_ceil(chunk), &|c| {
            for row in c * chunk..((c + 1) * chunk).min(work.rows()) {
                let blocks = work.partial_first[row] as usize..work.partial_first[row + 1] as usize;
                for head in 0..heads {
                    let at = work.order[row] as usize * width + head * head_size;
                    // SAFETY: every (row, head) is a range of its own inside `out`, whose length was checked.
                    let out = unsafe { std::slice::from_raw_parts_mut(target.get().add(at), head_size) };
                    merge(blocks.clone().map(|b| &partials[(b * heads + head) * stride..][..stride]), out);
                }
            }
        });
    }
}

/// A pointer that threads write through, each to places of its own.
struct Shared(*mut f32);

// SAFETY: the tasks of one `run` write disjoint ranges: a (row, block, head) belongs to one unit and K/V head.
unsafe impl Sync for Shared {}

impl Shared {
    fn get(&self) -> *mut f32 {
        self.0
    }
}

/// `out` = the partials `[d numbers, maximum (base 2), sum]` of one row and head, merged in order.
///
/// With M the largest maximum, `out = Σ 2^(m_i - M) o_i / Σ 2^(m_i - M) l_i`. A part in which everything was masked has
/// m = -inf and l = 0 and adds exactly nothing; where all are such, `out` is zero.
fn merge<'a>(partials: impl Iterator<Item = &'a [f32]> + Clone, out: &mut [f32]) {
    let d = out.len();
    // A NaN maximum wins, so that it shows.
    let max = partials.clone().map(|p| p[d]).fold(f32::NEG_INFINITY, |a, b| if a >= b { a } else { b });
    out.fill(0.0);
    if max == f32::NEG_INFINITY {
        return;
    }
    let mut sum = 0.0;
    for p in partials {
        let weight = kernels::exp2(p[d] - max);
        sum += weight * p[d + 1];
        for (o, v) in out.iter_mut().zip(p) {
            *o += weight * v;
        }
    }
    let inverse = 1.0 / sum;
    for o in out {
        *o *= inverse;
    }
}

/// What all units of a run share.
struct Job<'a> {
    heads: Heads,
    kernels: &'static Kernels,
    work: &'a AttendWork,
    kv: KvLayer<'a>,
    q: &'a [f32],
}

/// The part of a piece that lies in one window, and the work rows that see some of it.
struct Part {
    start: u32,
    end: u32,
    first_page: usize,
    rows: Range<usize>,
}

impl Job<'_> {
    fn unit(&self, unit: &Unit, kv_head: usize, scratch: &mut Scratch, sink: &Shared) {
        let step = (TILE_ROWS / self.heads.group()).max(1);
        let (mut from, end) = (unit.rows.start as usize, unit.rows.end as usize);
        while from < end {
            let rows = from..(from + step).min(end);
            from = rows.end;
            self.rows(unit, kv_head, rows.clone(), scratch);
            self.store(unit, kv_head, rows, scratch, sink);
        }
    }

    /// Fills `scratch.out`, `max` and `sum` for the work rows `rows`.
    fn rows(&self, unit: &Unit, kv_head: usize, rows: Range<usize>, scratch: &mut Scratch) {
        let (g, d) = (self.heads.group(), self.heads.head_size);
        let n = rows.len() * g;
        grow(&mut scratch.q, n * d);
        grow(&mut scratch.scores, n * WINDOW);
        grow(&mut scratch.out, n * d);
        grow(&mut scratch.max, n);
        grow(&mut scratch.sum, n);
        grow(&mut scratch.tile, WINDOW * d);
        scratch.out[..n * d].fill(0.0);
        scratch.max[..n].fill(f32::NEG_INFINITY);
        scratch.sum[..n].fill(0.0);
        // Scores come out as powers of two: exp(s / sqrt(d)) = 2^(s · log2(e) / sqrt(d)).
        let scale = std::f32::consts::LOG2_E / (d as f32).sqrt();
        for (packed, row) in scratch.q.chunks_mut(g * d).zip(rows.clone()) {
            let from = self.work.order[row] as usize * self.heads.heads * d + kv_head * g * d;
            for (a, b) in packed.iter_mut().zip(&self.q[from..from + g * d]) {
                *a = b * scale;
            }
        }
        for window in 0..BLOCK / WINDOW {
            let first = unit.block * BLOCK as u32 + (window * WINDOW) as u32;
            if !self.scores(unit, kv_head, first, &rows, scratch) {
                break;
            }
            self.softmax(first, &rows, scratch);
            self.values(unit, kv_head, first, &rows, scratch);
        }
    }

    /// The parts of the unit's pieces in the window that begins at `first`, for `rows`.
    fn parts<'s>(&'s self, unit: &Unit, first: u32, rows: &'s Range<usize>) -> impl Iterator<Item = Part> + 's {
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
            for page in 0..pages {
                let at = self.page(part.first_page + page, kv_head);
                let tile = &mut scratch.tile[page * PAGE_TOKENS * d..][..PAGE_TOKENS * d];
                match self.kv {
                    KvLayer::F16(numbers) => self.kernels.keys_f16(&numbers[at..at + PAGE_TOKENS * d], d, tile),
                    KvLayer::F32(numbers) => self.kernels.keys_f32(&numbers[at..at + PAGE_TOKENS * d], d, tile),
                }
            }
            let row = (part.rows.start - rows.start) * g;
            let n = part.rows.len() * g;
            let column = (part.start / PAGE * PAGE - first) as usize;
            self.kernels.scores(
                &scratch.q[row * d..(row + n) * d],
                d,
                &scratch.tile[..pages * PAGE_TOKENS * d],
                lanes.start as usize..lanes.end as usize,
                &mut scratch.scores[row * WINDOW..(row + n) * WINDOW],
                column,
            );
        }
        reached
    }

    /// Turns the window's scores into weights against the new running maximum, and scales what was summed before.
    fn softmax(&self, first: u32, rows: &Range<usize>, scratch: &mut Scratch) {
        let (g, d) = (self.heads.group(), self.heads.head_size);
        for row in rows.clone() {
            let Some(seen) = (self.work.positions[row] + 1).checked_sub(first).filter(|&n| n > 0) else { continue };
            for i in (row - rows.start) * g..(row - rows.start + 1) * g {
                let scores = &mut scratch.scores[i * WINDOW..(i + 1) * WINDOW];
                let n = (seen as usize).min(WINDOW);
                let factor = self.kernels.softmax(scores, n, &mut scratch.max[i], &mut scratch.sum[i]);
                // A NaN factor must reach the output.
                if factor != 1.0 {
                    scratch.out[i * d..(i + 1) * d].iter_mut().for_each(|o| *o *= factor);
                }
            }
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
                let at = self.page(page, kv_head) + (PAGE_TOKENS + offset) * d;
                let tile = &mut scratch.tile[filled * d..(filled + n) * d];
                match self.kv {
                    KvLayer::F16(numbers) => self.kernels.widen(&numbers[at..at + n * d], tile),
                    KvLayer::F32(numbers) => tile.copy_from_slice(&numbers[at..at + n * d]),
                }
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
        let (from, to) = (rows.start * g, rows.end * g);
        self.kernels.values(
            &scratch.scores[from * WINDOW..to * WINDOW],
            column,
            &scratch.tile[..tokens * d],
            d,
            &mut scratch.out[from * d..to * d],
        );
    }

    fn store(&self, unit: &Unit, kv_head: usize, rows: Range<usize>, scratch: &Scratch, sink: &Shared) {
        let (g, d, heads) = (self.heads.group(), self.heads.head_size, self.heads.heads);
        for (i, row) in rows.enumerate() {
            let partial = self.work.partial_first[row] as usize + unit.block as usize;
            for head in 0..g {
                let from = i * g + head;
                let at = (partial * heads + kv_head * g + head) * (d + 2);
                // SAFETY: this (row, block, head) is written by this unit and K/V head alone, inside `partials`, which
                // was sized from `partial_first`.
                let target = unsafe { std::slice::from_raw_parts_mut(sink.get().add(at), d + 2) };
                target[..d].copy_from_slice(&scratch.out[from * d..(from + 1) * d]);
                target[d] = scratch.max[from];
                target[d + 1] = scratch.sum[from];
            }
        }
    }

    /// Index of the first number of K of a page (as the pieces number them) and head.
    fn page(&self, index: usize, kv_head: usize) -> usize {
        (self.work.pages[index] as usize * self.heads.kv_heads + kv_head) * 2 * PAGE_TOKENS * self.heads.head_size
    }
}

const PAGE: u32 = PAGE_TOKENS as u32;

fn grow(buffer: &mut Vec<f32>, len: usize) {
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
}
