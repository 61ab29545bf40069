//! Activations as the products read them, and the operations that make them: norm and quantisation.
//!
//! A row's numbers are a function of that row alone: sums run over 16 lanes in one order, blocks are quantised one by one.

use super::form::BLOCK;
use super::lanes::{LANES, Lanes, largest, sum};
use super::shared::Shared;
use super::simd::{Kernel, Simd};

/// Scale and sums of 32 quantised numbers of a row.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct BlockMeta {
    /// A number is `scale · code`; NaN where a number was not finite, so that it stays visible in the results.
    pub scale: f32,
    /// `scale · Σ codes`, for the minima of the weights.
    pub scaled_sum: f32,
    /// Sums of the codes of each half.
    pub sums: [i32; 2],
}

/// Rows that may be read behind the last one.
const SPARE: usize = 16;

/// Rows in int8, blocks of 32: codes `[block][row][32]`, meta `[block][row]`, so that a tile of weights meets all rows of
/// a block in one sweep.
#[derive(Default)]
pub struct Quantised {
    pub rows: usize,
    codes: Vec<i8>,
    meta: Vec<BlockMeta>,
}

impl Quantised {
    /// Makes room for `rows` rows of `cols` columns (a multiple of 32). Old content is lost.
    pub fn shape(&mut self, rows: usize, cols: usize) {
        self.rows = rows;
        grow(&mut self.codes, rows * cols + SPARE * BLOCK);
        grow(&mut self.meta, rows * cols / BLOCK);
    }

    pub fn block(&self, block: usize) -> (&[i8], &[BlockMeta]) {
        let at = block * self.rows;
        (&self.codes[at * BLOCK..(at + self.rows) * BLOCK], &self.meta[at..at + self.rows])
    }

    /// Codes of block `block` from row `row` on, with room for 16 rows (those after the last mean nothing).
    pub fn codes_from(&self, block: usize, row: usize) -> &[i8] {
        &self.codes[(block * self.rows + row) * BLOCK..]
    }

    pub fn writer(&mut self) -> QuantisedWriter<'_> {
        QuantisedWriter { rows: self.rows, codes: Shared::new(&mut self.codes), meta: Shared::new(&mut self.meta) }
    }
}

/// Lets tasks write different (block, row) places of a [`Quantised`].
#[derive(Clone, Copy)]
pub struct QuantisedWriter<'a> {
    rows: usize,
    codes: Shared<'a, i8>,
    meta: Shared<'a, BlockMeta>,
}

impl QuantisedWriter<'_> {
    /// Quantises one block of one row.
    ///
    /// # Safety
    /// As [`Lanes`]; no two tasks write the same place; `x` holds 32 numbers.
    #[inline(always)]
    pub unsafe fn put<L: Lanes>(&self, block: usize, row: usize, x: *const f32) {
        let at = block * self.rows + row;
        // SAFETY: `x` has 32 numbers and the block 32 codes; places are disjoint as the caller promises.
        unsafe {
            let codes = self.codes.slice(at * BLOCK..(at + 1) * BLOCK);
            let (a, b) = (L::load(x), L::load(x.add(LANES)));
            let most = largest::<L>(L::max(L::abs(a), L::abs(b)));
            // Zero, or NaN where a number is infinite or NaN (which the maximum may lose).
            let zero = L::splat(0.0);
            let odd = sum::<L>(L::fma(a, zero, L::mul(b, zero)));
            let usable = most > 1e-30;
            let inverse = L::splat(if usable { 127.0 / most } else { 0.0 });
            let scale = if usable { most / 127.0 + odd } else { odd };
            let sums = [
                L::store_rounded(codes.as_mut_ptr(), L::mul(a, inverse)),
                L::store_rounded(codes.as_mut_ptr().add(LANES), L::mul(b, inverse)),
            ];
            let scaled_sum = scale * (sums[0] + sums[1]) as f32;
            self.meta.slice(at..at + 1)[0] = BlockMeta { scale, scaled_sum, sums };
        }
    }
}

/// Grows `v` to at least `len`; never shrinks, so that a step of a known size allocates nothing.
pub fn grow<T: Clone + Default>(v: &mut Vec<T>, len: usize) {
    if v.len() < len {
        v.resize(len, T::default());
    }
}

/// `x / sqrt(mean(x²) + eps) · weight`, then written as numbers, as codes, or both.
pub struct Norm<'a> {
    pub x: &'a [f32],
    /// `None`: the numbers are taken as they are.
    pub weight: Option<(&'a [f32], f32)>,
    pub row: usize,
    pub numbers: Option<&'a mut [f32]>,
    pub codes: Option<QuantisedWriter<'a>>,
}

impl Norm<'_> {
    /// Treats one row; its places in `codes` belong to the caller.
    pub fn run(self, simd: Simd) {
        simd.run(self);
    }
}

impl Kernel for Norm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let cols = self.x.len();
        let whole = cols / LANES * LANES;
        let x = self.x;
        let factor = self.weight.map(|(weight, eps)| {
            assert_eq!(weight.len(), cols, "norm weights");
            // SAFETY: reads stay below `whole`.
            let mut total = unsafe {
                let mut squares = L::splat(0.0);
                for i in (0..whole).step_by(LANES) {
                    let v = L::load(x.as_ptr().add(i));
                    squares = L::fma(v, v, squares);
                }
                sum::<L>(squares)
            };
            for &v in &x[whole..] {
                total = v.mul_add(v, total);
            }
            (weight, 1.0 / (total / cols as f32 + eps).sqrt())
        });
        // One block, or what is left of the row, at a time: it stays near between norm and quantisation.
        let mut numbers = self.numbers;
        for (block, from) in (0..cols).step_by(BLOCK).enumerate() {
            let len = BLOCK.min(cols - from);
            let mut buffer = [0f32; BLOCK];
            buffer[..len].copy_from_slice(&x[from..from + len]);
            if let Some((weight, factor)) = factor {
                if len == BLOCK {
                    // SAFETY: 32 numbers in each.
                    unsafe {
                        for i in [0, LANES] {
                            let v = L::mul(L::load(buffer.as_ptr().add(i)), L::splat(factor));
                            let v = L::mul(v, L::load(weight.as_ptr().add(from + i)));
                            L::store(buffer.as_mut_ptr().add(i), v);
                        }
                    }
                } else {
                    for (out, weight) in buffer[..len].iter_mut().zip(&weight[from..]) {
                        *out = *out * factor * weight;
                    }
                }
            }
            if let Some(numbers) = &mut numbers {
                numbers[from..from + len].copy_from_slice(&buffer[..len]);
            }
            if let Some(codes) = &self.codes {
                debug_assert_eq!(len, BLOCK, "quantised columns are a multiple of 32");
                // SAFETY: the buffer holds 32 numbers; the caller owns this row's places.
                unsafe { codes.put::<L>(block, self.row, buffer.as_ptr()) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantise(x: &[f32], simd: Simd) -> Quantised {
        let mut q = Quantised::default();
        q.shape(1, x.len());
        Norm { x, weight: None, row: 0, numbers: None, codes: Some(q.writer()) }.run(simd);
        q
    }

    #[test]
    fn codes_are_within_half_a_step_and_sums_are_right() {
        let x: Vec<f32> = (0..96).map(|i| ((i * 37 % 61) as f32 - 30.0) * if i < 64 { 0.01 } else { 3.0 }).collect();
        for simd in Simd::available() {
            let q = quantise(&x, simd);
            for block in 0..3 {
                let (codes, meta) = q.block(block);
                for (i, &code) in codes.iter().enumerate() {
                    let error = (code as f32 * meta[0].scale - x[32 * block + i]).abs();
                    assert!(error <= meta[0].scale * 0.5001, "{simd}: {error}");
                }
                let sum = |range: std::ops::Range<usize>| codes[range].iter().map(|&c| c as i32).sum::<i32>();
                assert_eq!(meta[0].sums, [sum(0..16), sum(16..32)]);
            }
        }
    }

    #[test]
    fn zeros_give_zeros_and_what_is_not_finite_gives_nan() {
        for simd in Simd::available() {
            let q = quantise(&[0.0; 32], simd);
            assert_eq!(q.block(0).1[0], BlockMeta::default());
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for at in [0, 5, 31] {
                    let mut x = [1.0; 32];
                    x[at] = bad;
                    assert!(quantise(&x, simd).block(0).1[0].scale.is_nan(), "{simd}: {bad} at {at}");
                }
            }
        }
    }
}
