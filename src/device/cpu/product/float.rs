//! Products of float activations: a tile as numbers, which stays in the first-level cache while rows are swept under it.

use super::prefetch_next;
use crate::device::cpu::form::{BLOCK, Form, Format, Places, codes, scales, with_format};
use crate::device::cpu::lanes::{LANES, Lanes};
use crate::device::cpu::pack::Packed;
use crate::device::cpu::simd::Kernel;
use std::ops::Range;

/// A quantised tile as numbers `[col][lane]`.
pub(super) struct Dequantise<'a> {
    pub(super) weight: &'a Packed,
    pub(super) t: usize,
    pub(super) out: &'a mut [f32],
}

impl Kernel for Dequantise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        with_format!(self.weight.form, F => self.sweep::<L, F>(), else panic!("only quantised tiles are dequantised"));
    }
}

impl Dequantise<'_> {
    #[inline(always)]
    fn sweep<L: Lanes, F: Format>(self) {
        let cols = self.weight.cols;
        let places = Places::of::<F>(cols);
        let tile = self.weight.tile(self.t);
        assert!(tile.len() >= places.bytes && self.out.len() >= cols * LANES);
        // SAFETY: the tile has its places, `out` has 16 numbers a column (asserted).
        unsafe {
            for block in 0..cols / BLOCK {
                prefetch_next(tile, block, cols / BLOCK);
                let w = codes::<L, F>(tile.as_ptr(), &places, block);
                for half in 0..2 {
                    let (scale, minimum) = scales::<L, F>(tile.as_ptr(), &places, block, half);
                    let bias = L::splat(-F::BIAS as f32);
                    for (g, &w) in w.iter().enumerate().skip(4 * half).take(4) {
                        let out = self.out.as_mut_ptr().add((block * BLOCK + 4 * g) * LANES);
                        let put = |k: usize, code: L::F| {
                            L::store(out.add(k * LANES), L::fma(L::add(code, bias), scale, minimum));
                        };
                        put(0, L::widen::<0>(w));
                        put(1, L::widen::<1>(w));
                        put(2, L::widen::<2>(w));
                        put(3, L::widen::<3>(w));
                    }
                }
            }
        }
    }
}

/// `sums[r] = tile · row` for the rows in `rows`.
pub(super) struct Float<'a> {
    pub(super) weight: &'a Packed,
    pub(super) t: usize,
    /// The tile's numbers, where it is quantised.
    pub(super) numbers: &'a [f32],
    pub(super) x: &'a [f32],
    pub(super) rows: Range<usize>,
    pub(super) sums: &'a mut [f32],
}

impl Kernel for Float<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let cols = self.weight.cols;
        assert!(self.sums.len() >= self.rows.len() * LANES && self.rows.end * cols <= self.x.len());
        let tile = self.weight.tile(self.t).as_ptr();
        let Self { weight, numbers, x, ref rows, sums, .. } = self;
        let rows = FloatRows { cols, x: x[rows.start * cols..].as_ptr(), count: rows.len(), sums: sums.as_mut_ptr() };
        // SAFETY: `load` reads column `col` of a tile that has `cols` of them; the asserted sizes cover the rest.
        unsafe {
            match weight.form {
                Form::F32 => rows.sweep::<L>(|col| L::load(tile.cast::<f32>().add(col * LANES))),
                Form::F16 => rows.sweep::<L>(|col| L::load_f16(tile.cast::<u16>().add(col * LANES))),
                Form::Bf16 => rows.sweep::<L>(|col| L::load_bf16(tile.cast::<u16>().add(col * LANES))),
                _ => {
                    assert!(numbers.len() >= cols * LANES);
                    rows.sweep::<L>(|col| L::load(numbers.as_ptr().add(col * LANES)));
                }
            }
        }
    }
}

/// `count` rows `x` of `cols` numbers, and 16 sums for each.
#[derive(Clone, Copy)]
struct FloatRows {
    cols: usize,
    x: *const f32,
    count: usize,
    sums: *mut f32,
}

impl FloatRows {
    /// # Safety
    /// As [`Lanes`]; `load` is valid for every column; the pointers cover `count` rows.
    #[inline(always)]
    unsafe fn sweep<L: Lanes>(self, load: impl Fn(usize) -> L::F + Copy) {
        let count = self.count;
        let mut at = 0;
        // SAFETY: `at + R <= count`, so rows and sums are inside.
        unsafe {
            while at + 8 <= count {
                self.rows_of::<L, 8>(at, load);
                at += 8;
            }
            while at + 2 <= count {
                self.rows_of::<L, 2>(at, load);
                at += 2;
            }
            if at < count {
                self.rows_of::<L, 1>(at, load);
            }
        }
    }

    /// Sums of `R` rows from row `at` on, each one chain over the columns.
    #[inline(always)]
    unsafe fn rows_of<L: Lanes, const R: usize>(self, at: usize, load: impl Fn(usize) -> L::F + Copy) {
        // SAFETY: as `sweep`; `at + R <= count`.
        unsafe {
            let x = self.x.add(at * self.cols);
            let mut sums = [L::splat(0.0); R];
            for col in 0..self.cols {
                let w = load(col);
                for (r, sum) in sums.iter_mut().enumerate() {
                    *sum = L::fma(w, L::splat(*x.add(r * self.cols + col)), *sum);
                }
            }
            for (r, sum) in sums.into_iter().enumerate() {
                L::store(self.sums.add((at + r) * LANES), sum);
            }
        }
    }
}
