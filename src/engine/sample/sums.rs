//! Sums of exponentials over a vocabulary, and its largest logits: what is done for every token drawn.

use crate::base::{Error, Result};

/// Numbers that are treated side by side, each in a sum of its own: the order of the additions, and with it every bit,
/// is the same whatever the instruction set.
const LANES: usize = 16;

/// ln Σ exp(logit): the vocabulary is read for every token drawn. The exponentials are float32 (relative error below
/// 1e-6), the sums float64. An error where a logit is NaN, or all of them are infinite.
pub fn log_sum_exp(logits: &[f32]) -> Result<f64> {
    let best = largest(logits);
    if !best.is_finite() {
        return finish_sum(f64::NAN, f64::NAN);
    }
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 was found at run time.
        return finish_sum(f64::from(best), unsafe { exp_sum_avx2(logits, best, 1.0) });
    }
    finish_sum(f64::from(best), exp_sum(logits, best, 1.0))
}

/// The largest logit; NaN where one is NaN.
pub fn largest(logits: &[f32]) -> f32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 was found at run time.
        return unsafe { largest_avx2(logits) };
    }
    largest_lanes(logits)
}

/// [`largest_lanes`], compiled for wider instructions: the same bits.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn largest_avx2(logits: &[f32]) -> f32 {
    largest_lanes(logits)
}

#[inline(always)]
fn largest_lanes(logits: &[f32]) -> f32 {
    let (chunks, rest) = logits.as_chunks::<LANES>();
    let mut best = [f32::NEG_INFINITY; LANES];
    // Stays 0 as long as there are only numbers.
    let mut wrong = [0u32; LANES];
    for chunk in chunks {
        for lane in 0..LANES {
            best[lane] = if chunk[lane] > best[lane] { chunk[lane] } else { best[lane] };
            wrong[lane] |= u32::from(chunk[lane].is_nan());
        }
    }
    if wrong.iter().any(|&wrong| wrong > 0) || rest.iter().any(|logit| logit.is_nan()) {
        return f32::NAN;
    }
    best.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max)
}

/// [`exp_sum`], compiled for wider instructions: the same bits, since nothing is fused or put in another order.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn exp_sum_avx2(logits: &[f32], best: f32, scale: f32) -> f64 {
    exp_sum(logits, best, scale)
}

/// Σ exp((logit - best) · scale).
#[inline(always)]
fn exp_sum(logits: &[f32], best: f32, scale: f32) -> f64 {
    let (chunks, rest) = logits.as_chunks::<LANES>();
    let mut sums = [0f64; LANES];
    for chunk in chunks {
        for (sum, &logit) in sums.iter_mut().zip(chunk) {
            *sum += f64::from(exp_of_negative((logit - best) * scale));
        }
    }
    let tail: f64 = rest.iter().map(|&logit| f64::from(exp_of_negative((logit - best) * scale))).sum();
    sums.iter().sum::<f64>() + tail
}

/// e^x for x from 0 down, without a branch: 2^n times a Taylor polynomial on half a power of two either side (Cody and
/// Waite's reduction). Below -87 the result stays at e^-87, which adds nothing to a sum that holds e^0.
#[inline(always)]
fn exp_of_negative(x: f32) -> f32 {
    /// Adding and taking off 1.5 · 2^23 rounds to a whole number.
    const ROUND: f32 = 12_582_912.0;
    let x = x.max(-87.0);
    let n = (x * std::f32::consts::LOG2_E + ROUND) - ROUND;
    let r = x - n * 0.693_359_4 - n * -2.121_944_4e-4;
    let tail = 0.5 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0 + r * (1.0 / 720.0))));
    (1.0 + r * (1.0 + r * tail)) * f32::from_bits(((n as i32 + 127) as u32) << 23)
}

/// [`log_sum_exp`] of a few, with float64 exponentials.
pub fn log_sum_exp_of_few(logits: &[f32]) -> Result<f64> {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - best).exp()).sum();
    finish_sum(f64::from(best), sum)
}

/// Σ exp((logit - best) / temperature), where `best` is the largest of numbers.
pub fn warm_sum(logits: &[f32], best: f32, temperature: f32) -> f64 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 was found at run time.
        return unsafe { exp_sum_avx2(logits, best, temperature.recip()) };
    }
    exp_sum(logits, best, temperature.recip())
}

/// The `n` largest with their places, largest first, equal ones by place. None of them may be NaN.
pub fn largest_of(logits: &[f32], n: usize) -> Vec<(u32, f32)> {
    let better = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if n == 0 {
        return Vec::new();
    }
    let mut found: Vec<(u32, f32)> = Vec::with_capacity(2 * n);
    // What n found ones reach; another as large stands behind them.
    let mut bar = None;
    for (place, &logit) in (0u32..).zip(logits) {
        if bar.is_some_and(|bar| logit <= bar) {
            continue;
        }
        // 0 and -0 are equal.
        found.push((place, logit + 0.0));
        if found.len() == 2 * n {
            found.select_nth_unstable_by(n - 1, better);
            found.truncate(n);
            bar = Some(found[n - 1].1);
        }
    }
    found.sort_unstable_by(better);
    found.truncate(n);
    found
}

fn finish_sum(best: f64, sum: f64) -> Result<f64> {
    let total = best + sum.ln();
    if total.is_finite() {
        Ok(total)
    } else {
        Err(Error::fault("the model's logits are not numbers (NaN or infinite) at this token"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fast_exponential_is_exact_enough_and_nan_is_never_lost() {
        for i in 0..100_000 {
            let x = -i as f32 * 8.6e-4;
            let (fast, exact) = (f64::from(exp_of_negative(x)), f64::from(x).exp());
            assert!((fast / exact - 1.0).abs() < 1e-6, "{x}: {fast} {exact}");
        }
        assert_eq!(exp_of_negative(0.0), 1.0);
        let mut logits: Vec<f32> = (0..1003).map(|i| ((i * 7919) % 1000) as f32 * 0.02 - 9.0).collect();
        let exact = logits.iter().map(|&l| f64::from(l).exp()).sum::<f64>().ln();
        assert!((log_sum_exp(&logits).unwrap() - exact).abs() < 1e-6);
        for at in [0, 17, 1002] {
            for wrong in [f32::NAN, f32::INFINITY] {
                let right = std::mem::replace(&mut logits[at], wrong);
                assert!(log_sum_exp(&logits).is_err(), "{wrong} at {at}");
                logits[at] = f32::NEG_INFINITY;
                assert!(log_sum_exp(&logits).is_ok());
                logits[at] = right;
            }
        }
        assert!(log_sum_exp(&[f32::NEG_INFINITY; 40]).is_err());
        assert!(log_sum_exp(&[]).is_err());
    }

    #[test]
    fn the_largest_are_those_of_a_full_sort_and_warm_sums_are_exact() {
        for (n, kinds) in [(1usize, 3u32), (7, 2), (7, 400), (128, 5), (128, 5000), (5000, 60)] {
            let logits: Vec<f32> =
                (0..3001u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 7) % kinds).map(|k| k as f32 - 9.5).collect();
            let mut all: Vec<(u32, f32)> = (0u32..).zip(logits.iter().copied()).collect();
            all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            all.truncate(n);
            assert_eq!(largest_of(&logits, n), all, "{n} of {kinds} kinds");
            let best = largest(&logits);
            for temperature in [0.3f32, 1.0, 1.7] {
                let exact: f64 = logits.iter().map(|&l| (f64::from(l - best) / f64::from(temperature)).exp()).sum();
                let found = warm_sum(&logits, best, temperature);
                assert!((found / exact - 1.0).abs() < 1e-5, "{found} {exact} at {temperature}");
            }
        }
        assert_eq!(largest_of(&[-0.0, 0.0], 1), [(0, 0.0)]);
        assert!(largest_of(&[], 3).is_empty());
    }
}
