//! The products: one tile of 16 weight rows times any number of activation rows.
//!
//! An output number is one chain: over blocks in ascending order (int8), or over columns in ascending order (float). The
//! chain is the same for 1 row and for 300, alone or beside others, on any thread and instruction set, so a row's result
//! depends on that row only. Weights are read once for all rows; rows are swept under a tile that stays in registers
//! (int8: eight vectors, one block) or in the first-level cache (float).

#[cfg(target_arch = "x86_64")]
use super::amx::Unpacked;
use super::form::{BLOCK, Form, Format, Places, codes, scales, with_format};
use super::input::{BlockMeta, Quantised, grow};
use super::lanes::{LANES, Lanes};
use super::pack::Packed;
use super::simd::{Kernel, Simd};
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
const TILE_ROWS: usize = 4;

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
                // SAFETY: as in `prepare`.
                with_format!(weight.form, F => unsafe { self.unpacked.multiply::<F>(weight, input, rows, sums) }, else {});
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

struct Int8<'a> {
    weight: &'a Packed,
    t: usize,
    input: &'a Quantised,
    rows: Range<usize>,
    sums: &'a mut [f32],
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
            for block in 0..weight.cols / BLOCK {
                // What is read a few blocks from now, or by the next tile.
                (match F::LOW {
                    8 => L::prefetch::<8>,
                    4 => L::prefetch::<4>,
                    _ => L::prefetch::<2>,
                })(tile.as_ptr().wrapping_add(block * 64 * F::LOW + AHEAD));
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

/// Bytes between what is being multiplied and what is fetched for later: a few hundred nanoseconds of work for one row.
const AHEAD: usize = 4096;

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

/// A quantised tile as numbers `[col][lane]`.
struct Dequantise<'a> {
    weight: &'a Packed,
    t: usize,
    out: &'a mut [f32],
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

struct Float<'a> {
    weight: &'a Packed,
    t: usize,
    /// The tile's numbers, where it is quantised.
    numbers: &'a [f32],
    x: &'a [f32],
    rows: Range<usize>,
    sums: &'a mut [f32],
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
