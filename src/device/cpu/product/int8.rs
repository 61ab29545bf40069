//! Products of int8 activations: eight vectors of a tile's block stay in registers while rows are swept under them.

use super::prefetch_next;
use crate::device::cpu::form::{BLOCK, Format, Places, codes, scales, with_format};
use crate::device::cpu::input::{BlockMeta, Quantised};
use crate::device::cpu::lanes::{LANES, Lanes};
use crate::device::cpu::pack::Packed;
use crate::device::cpu::simd::Kernel;
use std::ops::Range;

/// `sums[r] = tile · row` for the rows in `rows`.
pub(super) struct Int8<'a> {
    pub(super) weight: &'a Packed,
    pub(super) t: usize,
    pub(super) input: &'a Quantised,
    pub(super) rows: Range<usize>,
    pub(super) sums: &'a mut [f32],
}

impl Kernel for Int8<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        with_format!(self.weight.form, F => self.sweep::<L, F>(), else panic!("float weights take float activations"));
    }
}

impl Int8<'_> {
    #[inline(always)]
    fn sweep<L: Lanes, F: Format>(self) {
        let Self { weight, t, input, rows, sums } = self;
        let places = Places::of::<F>(weight.cols);
        let tile = weight.tile(t);
        assert!(tile.len() >= places.bytes && sums.len() >= rows.len() * LANES && rows.end <= input.rows);
        // SAFETY: the tile has its places, every block has `input.rows` rows of 32 codes, `sums` has 16 numbers a row
        // (all asserted); the instruction set is the caller's.
        unsafe {
            let blocks = weight.cols / BLOCK;
            for block in 0..blocks {
                prefetch_next(tile, block, blocks);
                let mut w = codes::<L, F>(tile.as_ptr(), &places, block);
                if F::SIGNED {
                    for w in &mut w {
                        *w = L::prepare_signed(*w);
                    }
                }
                let first = scales::<L, F>(tile.as_ptr(), &places, block, 0);
                let second = if F::HALVES { scales::<L, F>(tile.as_ptr(), &places, block, 1) } else { first };
                let (x, meta) = input.block(block);
                let step = BlockStep::<L> {
                    w,
                    scales: [first, second],
                    x: x.as_ptr().add(rows.start * BLOCK),
                    meta: meta.as_ptr().add(rows.start),
                    sums: sums.as_mut_ptr(),
                    first: block == 0,
                };
                let mut at = 0;
                while at + 4 <= rows.len() {
                    step.rows::<F, 4>(at);
                    at += 4;
                }
                while at < rows.len() {
                    step.rows::<F, 1>(at);
                    at += 1;
                }
            }
        }
    }
}

/// One block of a tile, and where the rows' codes and sums of that block begin.
struct BlockStep<L: Lanes> {
    w: [L::B; 8],
    /// Scale and minimum of each half.
    scales: [(L::F, L::F); 2],
    x: *const i8,
    meta: *const BlockMeta,
    sums: *mut f32,
    /// Sums begin with this block.
    first: bool,
}

impl<L: Lanes> BlockStep<L> {
    /// Adds the block to the sums of rows `at..at + R`. Several rows at once, so that their chains overlap.
    #[inline(always)]
    unsafe fn rows<F: Format, const R: usize>(&self, at: usize) {
        // SAFETY: as `Int8::sweep`, which keeps `at + R` within the rows.
        unsafe {
            let x = self.x.add(at * BLOCK);
            let meta = self.meta.add(at);
            let out = self.sums.add(at * LANES);
            let mut sums = [L::splat(0.0); R];
            if !self.first {
                for (r, sum) in sums.iter_mut().enumerate() {
                    *sum = L::load(out.add(r * LANES));
                }
            }
            for (half, &(scale, minimum)) in self.scales.iter().enumerate().take(1 + usize::from(F::HALVES)) {
                let mut dots = [L::splat_int(0); R];
                for (r, dot) in dots.iter_mut().enumerate() {
                    let sums = (*meta.add(r)).sums;
                    let bias = if F::SIGNED { L::SIGNED_BIAS } else { F::BIAS };
                    *dot = L::splat_int(-bias * if F::HALVES { sums[half] } else { sums[0] + sums[1] });
                }
                let groups = if F::HALVES { 4 * half..4 * half + 4 } else { 0..8 };
                for (g, &w) in self.w.iter().enumerate().skip(groups.start).take(groups.len()) {
                    for (r, dot) in dots.iter_mut().enumerate() {
                        let x = x.add(r * BLOCK + 4 * g);
                        *dot = if F::SIGNED { L::dot_signed(*dot, w, x) } else { L::dot_small(*dot, w, x) };
                    }
                }
                for (r, sum) in sums.iter_mut().enumerate() {
                    let meta = &*meta.add(r);
                    *sum = L::fma(L::to_float(dots[r]), L::mul(scale, L::splat(meta.scale)), *sum);
                    if F::MINIMUM {
                        let part = if F::HALVES { meta.scale * meta.sums[half] as f32 } else { meta.scaled_sum };
                        *sum = L::fma(minimum, L::splat(part), *sum);
                    }
                }
            }
            for (r, sum) in sums.into_iter().enumerate() {
                L::store(out.add(r * LANES), sum);
            }
        }
    }
}
