//! The products: one tile of 16 weight rows times any number of activation rows.
//!
//! An output number is one chain: over blocks in ascending order (int8), or over columns in ascending order (float). The
//! chain is the same for 1 row and for 300, alone or beside others, on any thread and instruction set, so a row's result
//! depends on that row only. Weights are read once for all rows; rows are swept under a tile that stays in registers
//! (int8: eight vectors, one block) or in the first-level cache (float).

mod float;
mod int8;

#[cfg(target_arch = "x86_64")]
use super::amx::{self, Unpacked};
use super::form::Form;
#[cfg(target_arch = "x86_64")]
use super::form::{Format, with_format};
use super::input::{Quantised, grow};
use super::lanes::{LANES, prefetch};
use super::pack::Packed;
use super::simd::Simd;
use float::{Dequantise, Float};
use int8::Int8;
use std::ops::Range;

/// Rows that a task sweeps at a time: their sums (64 bytes a row and tile) stay in the first-level cache.
pub const SWEEP: usize = 128;

/// What a product reads.
#[derive(Clone, Copy)]
pub enum Input<'a> {
    /// `[rows, cols]`.
    Numbers(&'a [f32]),
    Codes(&'a Quantised),
}

/// A worker's scratch.
#[derive(Default)]
pub struct Scratch {
    /// A dequantised tile, `[col][lane]`.
    numbers: Vec<f32>,
    /// A tile for tile registers.
    #[cfg(target_arch = "x86_64")]
    unpacked: Unpacked,
    /// Sums `[row][lane]` of up to two tiles.
    pub sums: [Vec<f32>; 2],
}

/// Rows from which tile registers win over single rows, although they always multiply 16.
const TILE_ROWS: usize = 12;

impl Scratch {
    /// Brings tile `t` into the form that products of `rows` rows of `input` read; call before [`Scratch::tile`], once for
    /// each tile.
    pub fn prepare(&mut self, simd: Simd, weight: &Packed, t: usize, input: Input<'_>, rows: usize) {
        match input {
            Input::Numbers(_) if !weight.form.is_float() => {
                grow(&mut self.numbers, weight.cols * LANES);
                simd.run(Dequantise { weight, t, out: &mut self.numbers });
            }
            #[cfg(target_arch = "x86_64")]
            Input::Codes(_) if goes_through_tiles(simd, weight, rows) => {
                // SAFETY: a set with tiles has AVX-512 with VNNI as well.
                with_format!(weight.form, F => unsafe { self.unpacked.fill::<F>(weight, t) }, else {});
            }
            _ => {}
        }
    }

    /// `sums[which][r] = tile · row`, for the rows in `rows` (r counts from 0), after `prepare` with as many rows or more.
    pub fn tile(&mut self, simd: Simd, weight: &Packed, t: usize, input: Input<'_>, rows: Range<usize>, which: usize) {
        let sums = &mut self.sums[which];
        grow(sums, rows.len() * LANES);
        match input {
            #[cfg(target_arch = "x86_64")]
            Input::Codes(input) if goes_through_tiles(simd, weight, rows.len()) => {
                // A last group of few rows is cheaper one by one.
                let few = if rows.len() % amx::ROWS < TILE_ROWS { rows.len() % amx::ROWS } else { 0 };
                let whole = rows.start..rows.end - few;
                let (sums, rest) = sums.split_at_mut(whole.len() * LANES);
                let last = Int8 { weight, t, input, rows: whole.end..rows.end, sums: rest };
                // SAFETY: as in `prepare`.
                with_format!(weight.form, F => unsafe { self.unpacked.multiply::<F>(weight, input, whole, sums) }, else {});
                if few > 0 {
                    simd.run(last);
                }
            }
            Input::Codes(input) => simd.run(Int8 { weight, t, input, rows, sums }),
            Input::Numbers(x) => simd.run(Float { weight, t, numbers: &self.numbers, x, rows, sums }),
        }
    }
}

/// Whether tile registers multiply: a choice of speed only, the numbers are the same.
#[cfg(target_arch = "x86_64")]
fn goes_through_tiles(simd: Simd, weight: &Packed, rows: usize) -> bool {
    simd.has_tiles() && rows >= TILE_ROWS && with_format!(weight.form, F => !F::HALVES, else false)
}

/// While block `block` of `tile` is treated, fetches that share of the tile behind it, which is treated next: with one row,
/// a product waits for nothing but memory.
#[inline(always)]
pub(super) fn prefetch_next(tile: &[u8], block: usize, blocks: usize) {
    let share = tile.len() / blocks;
    prefetch(tile.as_ptr().wrapping_add(tile.len() + block * share), share);
}

/// Row `row` of the matrix as numbers.
pub fn weight_row(simd: Simd, weight: &Packed, row: usize, scratch: &mut Scratch, out: &mut [f32]) {
    let (t, lane) = (row / LANES, row % LANES);
    let tile = weight.tile(t);
    let half = |col: usize| {
        let at = (col * LANES + lane) * 2;
        u16::from_le_bytes([tile[at], tile[at + 1]])
    };
    match weight.form {
        Form::F32 => {
            for (col, out) in out.iter_mut().enumerate() {
                let at = (col * LANES + lane) * 4;
                *out = f32::from_le_bytes([tile[at], tile[at + 1], tile[at + 2], tile[at + 3]]);
            }
        }
        Form::F16 => out.iter_mut().enumerate().for_each(|(c, out)| *out = half::f16::from_bits(half(c)).to_f32()),
        Form::Bf16 => out.iter_mut().enumerate().for_each(|(c, out)| *out = half::bf16::from_bits(half(c)).to_f32()),
        _ => {
            grow(&mut scratch.numbers, weight.cols * LANES);
            simd.run(Dequantise { weight, t, out: &mut scratch.numbers });
            for (col, out) in out.iter_mut().enumerate() {
                *out = scratch.numbers[col * LANES + lane];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::input::Norm;
    use super::super::pool::Pool;
    use super::*;
    use crate::base::rng::stream;
    use crate::device::selftest::{KINDS, product_error};
    use crate::device::weight::Weight;
    use candle_core::quantized::GgmlDType;
    use rand::Rng;

    fn random(n: usize, seed: u64) -> Vec<f32> {
        let mut random = stream(seed, "product", &[]);
        (0..n).map(|_| random.random::<f32>() * 2.0 - 1.0).collect()
    }

    fn packed(kind: GgmlDType, rows: usize, cols: usize, threads: usize) -> (Packed, Vec<f32>) {
        let weight = Weight::quantise(kind, rows, cols, &random(rows * cols, 1)).unwrap();
        (Packed::new(&weight, &Pool::new(threads).unwrap()).unwrap(), weight.dequantise().unwrap())
    }

    /// Products of all rows of `x`, `[count][weight rows]`.
    fn product(simd: Simd, weight: &Packed, x: &[f32], int8: bool) -> Vec<f32> {
        let count = x.len() / weight.cols;
        let mut codes = Quantised::default();
        if int8 {
            codes.shape(count, weight.cols);
            for (row, x) in x.chunks_exact(weight.cols).enumerate() {
                Norm { x, weight: None, row, numbers: None, codes: Some(codes.writer()) }.run(simd);
            }
        }
        let input = if int8 { Input::Codes(&codes) } else { Input::Numbers(x) };
        let mut scratch = Scratch::default();
        let mut out = vec![0f32; count * weight.rows];
        for t in 0..weight.tiles() {
            scratch.prepare(simd, weight, t, input, count);
            scratch.tile(simd, weight, t, input, 0..count, 0);
            for row in 0..count {
                for lane in 0..LANES.min(weight.rows - t * LANES) {
                    out[row * weight.rows + t * LANES + lane] = scratch.sums[0][row * LANES + lane];
                }
            }
        }
        out
    }

    fn bits(x: &[f32]) -> Vec<u32> {
        x.iter().map(|x| x.to_bits()).collect()
    }

    #[test]
    fn products_are_near_f64_on_many_shapes() {
        for (case, kind) in KINDS.into_iter().enumerate() {
            let shapes: &[(usize, usize, usize)] = match kind.block_size() {
                256 => &[(16, 256, 1), (33, 1536, 5), (5, 4096, 17)],
                _ => &[(16, 32, 1), (1, 64, 300), (35, 576, 7), (48, 1536, 33), (17, 4096, 2)],
            };
            for &(rows, cols, count) in shapes {
                let (packed, numbers) = packed(kind, rows, cols, 1 + case % 2);
                let x = random(count * cols, 2);
                for simd in Simd::available() {
                    for int8 in [true, false] {
                        if int8 && packed.form.is_float() {
                            continue;
                        }
                        let error = product_error(simd, &packed, &numbers, &x, int8);
                        assert!(error <= 3e-6, "{simd} {kind:?} {rows}x{cols}, {count} rows, int8 {int8}: {error}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_gives_the_same_bits_alone_and_among_others_on_every_instruction_set() {
        for kind in KINDS {
            let cols = kind.block_size().max(96);
            let (packed, _) = packed(kind, 37, cols, 1);
            let x = random(37 * cols, 3);
            for int8 in [true, false] {
                if int8 && packed.form.is_float() {
                    continue;
                }
                let all = product(Simd::PORTABLE, &packed, &x, int8);
                let turned: Vec<f32> = x[5 * cols..].iter().chain(&x[..5 * cols]).copied().collect();
                for simd in Simd::available() {
                    assert!(bits(&product(simd, &packed, &x, int8)) == bits(&all), "{simd} {kind:?} int8 {int8}");
                    let moved = product(simd, &packed, &turned, int8);
                    for row in 0..37 {
                        let expected = bits(&all[row * 37..(row + 1) * 37]);
                        let alone = product(simd, &packed, &x[row * cols..(row + 1) * cols], int8);
                        assert!(bits(&alone) == expected, "{simd} {kind:?} int8 {int8}, row {row} alone");
                        let place = (row + 32) % 37;
                        assert!(
                            bits(&moved[place * 37..(place + 1) * 37]) == expected,
                            "{simd} {kind:?}, row {row} moved"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn rows_of_the_matrix_come_back_as_candle_reads_them() {
        for kind in KINDS {
            let cols = kind.block_size().max(64);
            let (packed, numbers) = packed(kind, 21, cols, 1);
            for simd in Simd::available() {
                let mut out = vec![0f32; cols];
                for row in 0..21 {
                    weight_row(simd, &packed, row, &mut Scratch::default(), &mut out);
                    for (found, &expected) in out.iter().zip(&numbers[row * cols..]) {
                        assert!((found - expected).abs() <= 1e-6, "{simd} {kind:?} row {row}: {found} {expected}");
                    }
                }
            }
        }
    }
}
