//! The kernels of this machine against plain f64 arithmetic on dequantised numbers: what `totara doctor --selftest` runs.

use super::cpu::input::{Norm, Quantised};
use super::cpu::lanes::LANES;
use super::cpu::pack::Packed;
use super::cpu::pool::Pool;
use super::cpu::product::{Input, Scratch};
use super::cpu::simd::Simd;
use super::weight::{Bytes, Weight};
use crate::base::Result;
use crate::base::rng::stream;
use candle_core::quantized::GgmlDType;
use rand::Rng;

/// Every type a weight may have.
pub const KINDS: [GgmlDType; 15] = [
    GgmlDType::Q4_0,
    GgmlDType::Q4_1,
    GgmlDType::Q5_0,
    GgmlDType::Q5_1,
    GgmlDType::Q8_0,
    GgmlDType::Q8_1,
    GgmlDType::Q2K,
    GgmlDType::Q3K,
    GgmlDType::Q4K,
    GgmlDType::Q5K,
    GgmlDType::Q6K,
    GgmlDType::Q8K,
    GgmlDType::F16,
    GgmlDType::BF16,
    GgmlDType::F32,
];

/// Error, relative to `Σ |w·x|` of the output, below which a kernel is right: f32 sums of a few thousand terms.
const LIMIT: f64 = 2e-6;

/// One kernel on one shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// `avx512-vnni q4_1 x int8`.
    pub kernel: String,
    /// `48x576, 37 rows`.
    pub shape: String,
    /// Largest error, relative to the sum of magnitudes.
    pub max_error: f64,
    pub ok: bool,
}

/// Runs every product kernel that this machine can run. With `fault`, one stored byte of every packed source is changed
/// after the reference was made from it, and every row must come out wrong: a check of the check.
pub fn products(fault: bool) -> Result<Vec<Row>> {
    let pool = Pool::new(1)?;
    let mut table = Vec::new();
    for (case, kind) in KINDS.into_iter().enumerate() {
        let (rows, cols, count) = (40, 2 * kind.block_size().max(288 / 2), 11);
        let mut random = stream(7, "selftest", &[case as u64]);
        let mut draw = |n: usize| -> Vec<f32> { (0..n).map(|_| random.random::<f32>() * 2.0 - 1.0).collect() };
        let mut weight = Weight::quantise(kind, rows, cols, &draw(rows * cols))?;
        let x = draw(count * cols);
        let numbers = weight.dequantise()?;
        if fault {
            weight = spoilt(&weight);
        }
        let packed = Packed::new(&weight, &pool)?;
        for simd in Simd::available() {
            for int8 in [true, false] {
                if int8 && packed.form.is_float() {
                    continue;
                }
                let max_error = product_error(simd, &packed, &numbers, &x, int8);
                let name = format!("{kind:?}").to_lowercase();
                table.push(Row {
                    kernel: format!("{simd} {name} x {}", if int8 { "int8" } else { "f32" }),
                    shape: format!("{rows}x{cols}, {count} rows"),
                    max_error,
                    ok: max_error <= LIMIT,
                });
            }
        }
    }
    Ok(table)
}

/// The same matrix with one bit of its first row's last code changed.
fn spoilt(weight: &Weight) -> Weight {
    let mut bytes = weight.bytes.as_slice().to_vec();
    // Somewhere among the codes of the first block whatever its type, and a high bit of a plain number.
    let at = match weight.kind {
        GgmlDType::F16 | GgmlDType::BF16 => 1,
        GgmlDType::F32 => 3,
        kind => kind.type_size() / 2,
    };
    bytes[at] ^= 0x44;
    Weight { bytes: Bytes::Owned(bytes.into()), ..weight.clone() }
}

/// Largest error of `packed · x` against `numbers`, the matrix as f32, relative to the sum of the magnitudes. `x` is
/// `[count, cols]`; int8 products are compared with the quantised activations, so that the kernel alone is judged.
pub fn product_error(simd: Simd, packed: &Packed, numbers: &[f32], x: &[f32], int8: bool) -> f64 {
    let (rows, cols) = (packed.rows, packed.cols);
    let count = x.len() / cols;
    let mut codes = Quantised::default();
    let mut seen = x.to_vec();
    if int8 {
        codes.shape(count, cols);
        for (row, x) in x.chunks_exact(cols).enumerate() {
            Norm { x, weight: None, row, numbers: None, codes: Some(codes.writer()) }.run(simd);
        }
        for (i, seen) in seen.iter_mut().enumerate() {
            let (row, col) = (i / cols, i % cols);
            let (codes, meta) = codes.block(col / 32);
            *seen = codes[row * 32 + col % 32] as f32 * meta[row].scale;
        }
    }
    let input = if int8 { Input::Codes(&codes) } else { Input::Numbers(x) };
    let mut scratch = Scratch::default();
    let mut worst = 0f64;
    for t in 0..packed.tiles() {
        scratch.prepare(simd, packed, t, input, count);
        scratch.tile(simd, packed, t, input, 0..count, 0);
        for row in 0..count {
            for lane in 0..LANES.min(rows - t * LANES) {
                let weights = &numbers[(t * LANES + lane) * cols..][..cols];
                let (mut exact, mut size) = (0f64, 1e-30f64);
                for (&w, &x) in weights.iter().zip(&seen[row * cols..]) {
                    exact += w as f64 * x as f64;
                    size += (w as f64 * x as f64).abs();
                }
                let error = (scratch.sums[0][row * LANES + lane] as f64 - exact).abs() / size;
                // Not `f64::max`: a NaN must stay.
                worst = if worst.is_nan() || worst > error { worst } else { error };
            }
        }
    }
    worst
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_right_and_a_fault_is_seen() {
        for row in products(false).unwrap() {
            assert!(row.ok, "{row:?}");
        }
        for row in products(true).unwrap() {
            assert!(!row.ok, "{row:?}");
        }
    }
}
