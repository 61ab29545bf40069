//! How fast the CPU's products are, and how near to what the instruction set allows.

use crate::base::Result;
use crate::base::rng::stream;
use crate::device::cpu::Activations;
use crate::device::cpu::lanes::Lanes;
use crate::device::cpu::ops::{Epilogue, Ops, Projection, Rows, Wants};
use crate::device::cpu::pack::Packed;
use crate::device::cpu::pool::Pool;
use crate::device::cpu::simd::{Kernel, Simd};
use crate::device::weight::Weight;
use candle_core::quantized::GgmlDType;
use rand::Rng;
use std::hint::black_box;
use std::sync::Mutex;
use std::time::Instant;

/// One measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct Speed {
    pub simd: String,
    pub kind: String,
    pub activations: Activations,
    /// Weight rows and columns, and activation rows.
    pub shape: (usize, usize, usize),
    /// Thousand millions of multiply-adds a second, all threads together, weights in the cache.
    pub giga_macs: f64,
    /// Share of what the same threads reach with the same instruction and nothing else to do.
    pub share: f64,
}

/// Multiplies a `[rows, cols]` matrix of each of `kinds` by each number of activation rows in `counts`.
pub fn measure(
    simd: Simd,
    threads: usize,
    kinds: &[GgmlDType],
    (rows, cols): (usize, usize),
    counts: &[usize],
) -> Result<Vec<Speed>> {
    let pool = Pool::new(threads)?;
    let workers: Vec<_> = (0..threads).map(|_| Mutex::default()).collect();
    let mut random = stream(1, "products", &[]);
    let mut draw = |n: usize| -> Vec<f32> { (0..n).map(|_| random.random::<f32>() - 0.5).collect() };
    let peak = [true, false].map(|int8| peak(simd, &pool, int8));
    let mut table = Vec::new();
    for &kind in kinds {
        let packed = Packed::new(&Weight::quantise(kind, rows, cols, &draw(rows * cols))?, &pool)?;
        for activations in [Activations::Int8, Activations::F32] {
            if activations == Activations::Int8 && packed.form.is_float() {
                continue;
            }
            for &count in counts {
                let x = draw(count * cols);
                let mut out = vec![0f32; count * rows];
                let mut input = Rows::default();
                let mut ops = Ops { simd, pool: &pool, workers: &workers };
                input.shape(count, cols, Wants::of(activations, &[&packed]));
                ops.norm(&x, |row| row, None, &mut input);
                let macs = (rows * cols * count) as f64;
                let mut project =
                    || ops.project(&input, [Projection { weight: &packed, out: &mut out }], Epilogue::Store);
                let giga_macs = macs / seconds(&mut project) / 1e9;
                table.push(Speed {
                    simd: simd.to_string(),
                    kind: format!("{kind:?}").to_lowercase(),
                    activations,
                    shape: (rows, cols, count),
                    giga_macs,
                    share: giga_macs / peak[usize::from(activations == Activations::F32)],
                });
            }
        }
    }
    Ok(table)
}

/// Seconds of one call: the best of several short runs, since other programs can only make it slower.
fn seconds(f: &mut dyn FnMut()) -> f64 {
    f();
    let mut best = f64::INFINITY;
    let mut calls = 1u32;
    let began = Instant::now();
    while began.elapsed().as_secs_f64() < 0.15 {
        let start = Instant::now();
        (0..calls).for_each(|_| f());
        let each = start.elapsed().as_secs_f64() / f64::from(calls);
        best = best.min(each);
        calls = ((0.003 / each) as u32).clamp(1, 100_000);
    }
    best
}

/// Thousand millions of multiply-adds a second of all threads, from registers alone.
fn peak(simd: Simd, pool: &Pool, int8: bool) -> f64 {
    let tasks = pool.threads();
    let mut run = || pool.run(tasks, &|_, _| simd.run(Peak { int8 }));
    let macs = if int8 { 4.0 } else { 1.0 } * (16 * Peak::CHAINS * Peak::ROUNDS * tasks) as f64;
    macs / seconds(&mut run) / 1e9
}

struct Peak {
    int8: bool,
}

impl Peak {
    const CHAINS: usize = 12;
    const ROUNDS: usize = 5000;
}

impl Kernel for Peak {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let codes = black_box([3u8; 64]);
        let four = black_box([1i8; 4]);
        // SAFETY: the arrays hold what the loads take.
        unsafe {
            if self.int8 {
                let w = L::load_bytes(codes.as_ptr());
                let mut sums = [L::splat_int(0); Self::CHAINS];
                for _ in 0..Self::ROUNDS {
                    for sum in &mut sums {
                        *sum = L::dot_small(*sum, w, four.as_ptr());
                    }
                }
                black_box(sums.map(|s| L::to_float(s)));
            } else {
                let (a, b) = (L::splat(black_box(0.5)), L::splat(black_box(0.25)));
                let mut sums = [a; Self::CHAINS];
                for _ in 0..Self::ROUNDS {
                    for sum in &mut sums {
                        *sum = L::fma(*sum, a, b);
                    }
                }
                black_box(sums);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_measurement_has_a_row_for_each_case() {
        let kinds = [GgmlDType::Q4_1, GgmlDType::F16];
        let table = measure(Simd::best(), 2, &kinds, (32, 64), &[1, 3]).unwrap();
        assert_eq!(table.len(), 2 * 2 + 2);
        assert!(table.iter().all(|s| s.giga_macs > 0.0 && s.share > 0.0));
    }
}
