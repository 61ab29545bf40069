//! Operations over all rows of a step: norms, projections with their epilogues, the gated pair of the feed-forward.
//!
//! Each operation is one job of the pool, cut into tasks of a few tiles (products) or rows (the rest). How it is cut never
//! changes a number.

use super::form::BLOCK;
use super::input::{Norm, Quantised, QuantisedWriter, grow};
use super::lanes::{LANES, Lanes, silu};
use super::pack::Packed;
use super::pool::Pool;
use super::product::{Input, SWEEP};
use super::shared::Shared;
use super::simd::{Kernel, Simd};
use super::{Activations, Worker};
use std::sync::{Mutex, PoisonError};

/// Rows of activations, as numbers, as codes, or both, whichever the weights they meet want.
#[derive(Default)]
pub struct Rows {
    numbers: Vec<f32>,
    codes: Quantised,
    rows: usize,
    cols: usize,
    wants: Wants,
}

/// Which forms of the activations are wanted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wants {
    pub numbers: bool,
    pub codes: bool,
}

impl Wants {
    /// Those of products with `weights`.
    pub fn of(activations: Activations, weights: &[&Packed]) -> Self {
        let coded = |w: &&Packed| activations == Activations::Int8 && !w.form.is_float();
        Self { numbers: weights.iter().any(|w| !coded(w)), codes: weights.iter().any(coded) }
    }
}

impl Rows {
    pub fn shape(&mut self, rows: usize, cols: usize, wants: Wants) {
        (self.rows, self.cols, self.wants) = (rows, cols, wants);
        if wants.numbers {
            grow(&mut self.numbers, rows * cols);
        }
        if wants.codes {
            self.codes.shape(rows, cols);
        }
    }

    pub fn input(&self, weight: &Packed) -> Input<'_> {
        debug_assert_eq!(weight.cols, self.cols, "columns of weights and activations");
        if self.wants.codes && !weight.form.is_float() {
            Input::Codes(&self.codes)
        } else {
            Input::Numbers(&self.numbers[..self.rows * self.cols])
        }
    }

    fn writer(&mut self) -> RowsWriter<'_> {
        RowsWriter {
            cols: self.cols,
            numbers: self.wants.numbers.then(|| Shared::new(&mut self.numbers)),
            codes: self.wants.codes.then(|| self.codes.writer()),
        }
    }
}

/// Lets tasks write different places of [`Rows`].
struct RowsWriter<'a> {
    cols: usize,
    numbers: Option<Shared<'a, f32>>,
    codes: Option<QuantisedWriter<'a>>,
}

/// One projection: `out[row] (+)= weight · row`, `out` is `[rows, weight.rows]`.
pub struct Projection<'a> {
    pub weight: &'a Packed,
    pub out: &'a mut [f32],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Epilogue {
    Store,
    Add,
}

/// What runs the operations.
pub struct Ops<'a> {
    pub simd: Simd,
    pub pool: &'a Pool,
    pub workers: &'a [Mutex<Worker>],
}

/// Rows a task of a row-wise operation treats: below that, handing them out costs more than doing them.
const ROWS_PER_TASK: usize = 4;

impl Ops<'_> {
    /// Norms (or takes as they are, without `weight`) the rows of `x` named by `pick`.
    pub fn norm(
        &mut self,
        x: &[f32],
        pick: impl Fn(usize) -> usize + Sync,
        weight: Option<(&[f32], f32)>,
        to: &mut Rows,
    ) {
        let (simd, rows, cols) = (self.simd, to.rows, to.cols);
        let to = to.writer();
        self.pool.run(rows.div_ceil(ROWS_PER_TASK), &|task, _| {
            for row in task * ROWS_PER_TASK..((task + 1) * ROWS_PER_TASK).min(rows) {
                let from = pick(row) * cols;
                // SAFETY: each row is one task's.
                let numbers = to.numbers.map(|n| unsafe { n.slice(row * cols..(row + 1) * cols) });
                Norm { x: &x[from..from + cols], weight, row, numbers, codes: to.codes }.run(simd);
            }
        });
    }

    /// All projections of the same rows, as one job.
    pub fn project<const N: usize>(&mut self, rows: &Rows, projections: [Projection<'_>; N], epilogue: Epilogue) {
        let (simd, workers, count) = (self.simd, self.workers, rows.rows);
        let mut ends = [0usize; N];
        let mut total = 0;
        for (end, p) in ends.iter_mut().zip(&projections) {
            total += p.weight.tiles();
            *end = total;
        }
        let outs = projections.map(|p| (p.weight, Shared::new(p.out)));
        let per_task = tiles_per_task(total, self.pool.threads());
        self.pool.run(total.div_ceil(per_task), &|task, worker| {
            let mut worker = lock(&workers[worker]);
            let scratch = &mut worker.scratch;
            for tile in task * per_task..((task + 1) * per_task).min(total) {
                let which = ends.iter().position(|&end| tile < end).unwrap_or(0);
                let (weight, out) = &outs[which];
                let t = tile + weight.tiles() - ends[which];
                let input = rows.input(weight);
                scratch.prepare(simd, weight, t, input, count);
                let lanes = LANES.min(weight.rows - t * LANES);
                for from in (0..count).step_by(SWEEP) {
                    let to = (from + SWEEP).min(count);
                    scratch.tile(simd, weight, t, input, from..to, 0);
                    for (row, sums) in (from..to).zip(scratch.sums[0].chunks_exact(LANES)) {
                        let at = row * weight.rows + t * LANES;
                        // SAFETY: each tile's columns are one task's.
                        let out = unsafe { out.slice(at..at + lanes) };
                        match epilogue {
                            Epilogue::Store => out.copy_from_slice(&sums[..lanes]),
                            Epilogue::Add => out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum),
                        }
                    }
                }
            }
        });
    }

    /// `to = silu(gate · row) ∘ (up · row)`.
    pub fn gated(&mut self, rows: &Rows, gate: &Packed, up: &Packed, to: &mut Rows) {
        let (simd, workers, count, cols) = (self.simd, self.workers, rows.rows, to.cols);
        let to = to.writer();
        let pairs = cols.div_ceil(BLOCK);
        let per_task = tiles_per_task(pairs, self.pool.threads());
        self.pool.run(pairs.div_ceil(per_task), &|task, worker| {
            let mut worker = lock(&workers[worker]);
            let Worker { scratch, gated } = &mut *worker;
            grow(gated, SWEEP * BLOCK);
            for pair in task * per_task..((task + 1) * per_task).min(pairs) {
                for from in (0..count).step_by(SWEEP) {
                    let end = (from + SWEEP).min(count);
                    for t in 2 * pair..(2 * pair + 2).min(gate.tiles()) {
                        for (which, weight) in [gate, up].into_iter().enumerate() {
                            let input = rows.input(weight);
                            scratch.prepare(simd, weight, t, input, count);
                            scratch.tile(simd, weight, t, input, from..end, which);
                        }
                        let [gate, up] = &scratch.sums;
                        simd.run(Gate { gate, up, rows: end - from, out: &mut gated[t % 2 * LANES..] });
                    }
                    simd.run(Put { gated: &gated[..], first: from, rows: end - from, block: pair, to: &to });
                }
            }
        });
    }
}

pub fn lock(worker: &Mutex<Worker>) -> std::sync::MutexGuard<'_, Worker> {
    // Scratch has no invariants: what a panic left behind is overwritten.
    worker.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Enough tasks that threads finish together, few enough that handing them out costs nothing.
pub fn tiles_per_task(tiles: usize, threads: usize) -> usize {
    if threads == 1 { tiles.max(1) } else { (tiles / (8 * threads)).max(1) }
}

/// `out[row][0..16] = silu(gate) · up`, rows of `out` 32 apart.
struct Gate<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    rows: usize,
    out: &'a mut [f32],
}

impl Kernel for Gate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        for row in 0..self.rows {
            let (gate, up) = (&self.gate[row * LANES..][..LANES], &self.up[row * LANES..][..LANES]);
            let out = &mut self.out[row * BLOCK..][..LANES];
            // SAFETY: the slices hold 16 numbers each.
            unsafe { L::store(out.as_mut_ptr(), L::mul(silu::<L>(L::load(gate.as_ptr())), L::load(up.as_ptr()))) };
        }
    }
}

/// Writes 32 columns of some rows into [`Rows`].
struct Put<'a> {
    gated: &'a [f32],
    first: usize,
    rows: usize,
    block: usize,
    to: &'a RowsWriter<'a>,
}

impl Kernel for Put<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        for (i, gated) in self.gated.chunks_exact(BLOCK).take(self.rows).enumerate() {
            let row = self.first + i;
            if let Some(numbers) = self.to.numbers {
                let from = self.block * BLOCK;
                let len = BLOCK.min(self.to.cols - from);
                let at = row * self.to.cols + from;
                // SAFETY: each block of columns is one task's.
                unsafe { numbers.slice(at..at + len) }.copy_from_slice(&gated[..len]);
            }
            if let Some(codes) = self.to.codes {
                // SAFETY: `gated` holds 32 numbers; each block is one task's.
                unsafe { codes.put::<L>(self.block, row, gated.as_ptr()) };
            }
        }
    }
}
