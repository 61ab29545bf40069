//! Intervals and tests. Wilson's interval of a share stands in `batch::summary`.

use crate::base::rng;
use rand::Rng;

/// Resamples of a bootstrap interval.
const RESAMPLES: usize = 4000;

/// McNemar's exact test, two-sided: the probability that, of the puzzles which only one of two arms solved, so uneven a
/// split or a more uneven one came about by a fair coin. Source: McNemar (1947), in the exact binomial form.
/// `only_a`, `only_b`: puzzles solved by one of the two. 1 where there are none.
pub fn mcnemar(only_a: u64, only_b: u64) -> f64 {
    let n = only_a + only_b;
    let less = only_a.min(only_b);
    // Sum of C(n, k) / 2^n up to the smaller count, in logarithms so that large n does not overflow.
    let mut ln_term = -(n as f64) * std::f64::consts::LN_2;
    let mut tail = 0.0;
    for k in 0..=less {
        tail += ln_term.exp();
        ln_term += ((n - k) as f64 / (k + 1) as f64).ln();
    }
    (2.0 * tail).min(1.0)
}

/// Holm's correction for several tests at once (1979): each p as it counts among all of them, in the order given.
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&a, &b| p[a].total_cmp(&p[b]));
    let mut corrected = vec![1.0; p.len()];
    let mut least = 0.0f64;
    for (rank, &at) in order.iter().enumerate() {
        least = least.max(((p.len() - rank) as f64 * p[at]).min(1.0));
        corrected[at] = least;
    }
    corrected
}

/// A mean with its percentile bootstrap interval at 95 % (Efron, 1979): resamples drawn from a stream that `seed` and
/// `label` decide, so that the same rows always give the same interval. `None` of no values. O(4000 n).
pub fn bootstrap(values: &[f64], seed: u64, label: &str) -> Option<(f64, f64, f64)> {
    if values.is_empty() {
        return None;
    }
    let n = values.len();
    let mean = values.iter().sum::<f64>() / n as f64;
    if values.iter().all(|&v| v == values[0]) {
        return Some((mean, mean, mean));
    }
    let mut rng = rng::stream(seed, "bootstrap", &[rng::part(label)]);
    let one = |_| (0..n).map(|_| values[rng.random_range(0..n)]).sum::<f64>() / n as f64;
    let mut means: Vec<f64> = (0..RESAMPLES).map(one).collect();
    means.sort_by(f64::total_cmp);
    Some((mean, quantile(&means, 0.025), quantile(&means, 0.975)))
}

/// Of sorted values, with straight lines between them; at least one value.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = share * (sorted.len() - 1) as f64;
    let (low, part) = (at.floor() as usize, at.fract());
    let high = sorted[(low + 1).min(sorted.len() - 1)];
    sorted[low] + part * (high - sorted[low])
}

/// The mean of what is known; `None` where nothing is.
pub fn mean(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let (mut sum, mut n) = (0.0, 0u64);
    for value in values.flatten() {
        sum += value;
        n += 1;
    }
    (n > 0).then(|| sum / n as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64, by: f64) -> bool {
        (a - b).abs() <= by
    }

    #[test]
    fn mcnemar_is_the_binomial_tail() {
        // 2 * sum C(n, k) / 2^n, worked out with whole numbers.
        let check = |a, b, p: f64| assert!(near(mcnemar(a, b), p, 1e-12), "{a} {b}: {}", mcnemar(a, b));
        check(0, 0, 1.0);
        check(1, 1, 1.0);
        check(3, 3, 1.0);
        check(0, 5, 0.0625);
        check(1, 9, 22.0 / 1024.0);
        check(9, 1, 22.0 / 1024.0);
        check(6, 16, 2.0 * 110_056.0 / 4_194_304.0);
        // Large counts neither overflow nor vanish: the normal approximation without correction gives 0.0016.
        let p = mcnemar(900, 1040);
        assert!((0.001..0.002).contains(&p), "{p}");
    }

    #[test]
    fn holm_keeps_the_order_and_never_falls() {
        let check = |p: &[f64], expected: &[f64]| {
            assert!(holm(p).iter().zip(expected).all(|(a, b)| near(*a, *b, 1e-12)), "{:?}", holm(p));
        };
        check(&[0.01, 0.04, 0.03], &[0.03, 0.06, 0.06]);
        check(&[0.5], &[0.5]);
        check(&[0.9, 0.9], &[1.0, 1.0]);
        check(&[], &[]);
    }

    /// Against all resamples of three values, listed.
    #[test]
    fn the_bootstrap_interval_is_that_of_all_resamples() {
        let values = [0.0, 1.0, 5.0];
        let mut all = Vec::new();
        for a in values {
            for b in values {
                for c in values {
                    all.push((a + b + c) / 3.0);
                }
            }
        }
        all.sort_by(f64::total_cmp);
        let (mean, low, high) = bootstrap(&values, 1, "x").unwrap();
        assert!(near(mean, 2.0, 1e-12));
        // The quantiles of the exact distribution: 1 of 27 is below each end.
        assert!(near(low, all[0], 1e-9) && near(high, all[26], 1e-9), "{low} {high}");
        let (_, low, high) = bootstrap(&[3.0; 7], 1, "x").unwrap();
        assert_eq!((low, high), (3.0, 3.0));
        assert_eq!(bootstrap(&[], 1, "x"), None);
    }

    /// Of many values it comes near the normal interval of the mean, and it is the same each time.
    #[test]
    fn the_bootstrap_interval_is_near_the_normal_one() {
        let values: Vec<f64> = (0..400).map(|i| f64::from(i % 20)).collect();
        let sd = (values.iter().map(|v| (v - 9.5).powi(2)).sum::<f64>() / 400.0).sqrt();
        let half = 1.96 * sd / 20.0;
        let (mean, low, high) = bootstrap(&values, 7, "x").unwrap();
        assert!(near(mean, 9.5, 1e-9) && near(low, 9.5 - half, 0.06) && near(high, 9.5 + half, 0.06), "{low} {high}");
        assert_eq!(bootstrap(&values, 7, "x"), bootstrap(&values, 7, "x"));
        assert_ne!(bootstrap(&values, 7, "x"), bootstrap(&values, 8, "x"));
    }

    #[test]
    fn quantiles_lie_on_lines_between_values() {
        assert_eq!(quantile(&[1.0, 2.0, 4.0], 0.5), 2.0);
        assert_eq!(quantile(&[1.0, 2.0, 4.0], 0.75), 3.0);
        assert_eq!(quantile(&[3.0], 0.9), 3.0);
        assert_eq!(mean([Some(1.0), None, Some(3.0)].into_iter()), Some(2.0));
        assert_eq!(mean([None].into_iter()), None);
    }
}
