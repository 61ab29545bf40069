//! Values by integers, on the tables that have them: against float64, in parts, and with a NaN. Only tests.

use super::integer_kernels::{Integers, Lanes};
use super::kernels;
use super::{Held, WINDOW};
use crate::base::rng;
use crate::kv::PAGE_TOKENS;
use half::f16;
use rand::Rng;
use std::ops::Range;
use std::slice::from_ref;

/// Of rows that see `seen` tokens of a window: results not yet divided, from a window taken in `parts`, each of which finds its
/// pages' other tokens spoilt.
fn run(table: &Integers, scores: &[f32], seen: usize, v: &[f16], d: usize, parts: &[Range<usize>]) -> Held {
    let rows = scores.len() / WINDOW;
    let mut held = Held::default();
    held.clear(rows, d);
    let (mut scores, mut scales, mut inverses) = (scores.to_vec(), [0.0; WINDOW], [0.0; WINDOW]);
    let pages = |part: &Range<usize>| part.start / PAGE_TOKENS..part.end.div_ceil(PAGE_TOKENS);
    let page = |part: &Range<usize>, page: usize| {
        let mut numbers = v[page * PAGE_TOKENS * d..][..PAGE_TOKENS * d].to_vec();
        for (token, numbers) in (page * PAGE_TOKENS..).zip(numbers.chunks_mut(d)) {
            if !part.contains(&token) {
                numbers.fill(f16::NAN);
            }
        }
        let first = page * PAGE_TOKENS;
        (numbers, Lanes { start: part.start.saturating_sub(first), end: (part.end - first).min(PAGE_TOKENS) })
    };
    let mut of_parts = Vec::new();
    for part in parts {
        let mut own = [0.0; WINDOW];
        for number in pages(part) {
            let (numbers, lanes) = page(part, number);
            let at = number * PAGE_TOKENS..(number + 1) * PAGE_TOKENS;
            table.look_at_values(&numbers, d, lanes, &mut own[at.clone()], &mut inverses[at]);
        }
        scales[part.clone()].copy_from_slice(&own[part.clone()]);
        of_parts.push(inverses);
    }
    let many: Vec<f32> = (0..rows).flat_map(|_| scales).collect();
    let scales = if parts.len() == 1 { (&scales[..], rows) } else { (&many[..], 1) };
    table.weights(&mut scores, seen, d, held.rows(0..rows, d), scales);
    let mut sums = vec![0; rows * d];
    for (part, inverses) in parts.iter().zip(of_parts) {
        let column = part.start / PAGE_TOKENS * PAGE_TOKENS;
        let mut tile = vec![f32::NAN; WINDOW / 2 * d];
        for number in pages(part) {
            let (numbers, lanes) = page(part, number);
            let at = number * PAGE_TOKENS;
            let tile = &mut tile[(at - column) / 2 * d..][..PAGE_TOKENS / 2 * d];
            table.turn_values(&numbers, d, lanes, &inverses[at..at + PAGE_TOKENS], tile);
        }
        let pairs = (part.start - column) / 2..(part.end - column).div_ceil(2);
        let (sums, out) = match parts.len() {
            1 => (None, Some(held.rows(0..rows, d).out)),
            _ => (Some(&mut sums[..]), None),
        };
        table.values(&scores, column, pairs, &tile, d, sums, out);
    }
    if parts.len() > 1 {
        table.values(&scores, 0, 0..0, &[], d, Some(&mut sums), Some(held.rows(0..rows, d).out));
    }
    held
}

fn tables() -> impl Iterator<Item = (&'static str, &'static Integers)> {
    kernels::available().into_iter().filter_map(|table| Some((table.name, table.integers?)))
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

/// Of few and many rows, of one score far above the others and of like ones, and of tokens large and small: the error is a share
/// of what the weights and the tokens' largest numbers give together. In parts and beside other rows the bits are the same.
#[test]
fn values_are_right_to_a_small_share_and_in_any_parts() {
    for (case, d) in [8, 16, 24, 40, 64, 72, 80, 96, 128].into_iter().enumerate() {
        let mut random = rng::stream(6, "values", &[d as u64]);
        let rows = 1 + 3 * case;
        let sizes = [1.0, 1e-3, 300.0, 0.0, 1.0, 1e-6, 7e3, 0.1, 2.0];
        let v: Vec<f16> = (0..WINDOW * d)
            .map(|i| {
                f16::from_f32(if case % 2 == 0 { 1.0 } else { sizes[i / d % 9] } * random.random_range(-1f32..1.0))
            })
            .collect();
        let scores: Vec<f32> = (0..rows * WINDOW)
            .map(|i| random.random_range(-0.1f32..0.0) * [1.0, 60.0, 200.0][i / WINDOW % 3] - 40.0)
            .collect();
        for seen in [1, 5, 16, 31, 64] {
            for (name, table) in tables() {
                let mut held = run(table, &scores, seen, &v, d, from_ref(&(0..seen)));
                let state = held.rows(0..rows, d);
                for row in 0..rows {
                    let scores = &scores[row * WINDOW..][..seen];
                    let weights: Vec<f64> =
                        scores.iter().map(|&s| (f64::from(s) - f64::from(state.max[row])).exp2()).collect();
                    let largest = |t: usize| v[t * d..(t + 1) * d].iter().map(|x| x.to_f64().abs()).fold(0.0, f64::max);
                    let share: f64 = weights.iter().enumerate().map(|(t, w)| w * largest(t)).sum();
                    for k in 0..d {
                        let exact: f64 = weights.iter().enumerate().map(|(t, w)| w * v[t * d + k].to_f64()).sum();
                        let error = (f64::from(state.out[row * d + k]) - exact).abs();
                        assert!(
                            !(error.is_nan() || error > 1.2e-4 * share),
                            "{name} {d} {row} {k}: off by {error} of {share}"
                        );
                    }
                }
                let whole = bits(state.out);
                for cuts in
                    [vec![0..seen / 2, seen / 2..seen], vec![0..seen / 3, seen / 3..seen / 3 + 1, seen / 3 + 1..seen]]
                {
                    let cuts: Vec<_> = cuts.into_iter().filter(|part| !part.is_empty()).collect();
                    let mut parts = run(table, &scores, seen, &v, d, &cuts);
                    assert_eq!(bits(parts.rows(0..rows, d).out), whole, "{name} {d} {seen}: {cuts:?}");
                }
                for row in [0, rows / 2, rows - 1] {
                    let mut alone = run(table, &scores[row * WINDOW..][..WINDOW], seen, &v, d, from_ref(&(0..seen)));
                    assert_eq!(bits(alone.rows(0..1, d).out), whole[row * d..][..d], "{name} {d} {seen}: row {row}");
                }
            }
        }
    }
}

/// The worst there is: 63 tokens whose weights lie just below half a unit of the largest, all rounded away.
#[test]
fn one_weight_far_above_many_loses_a_thousandth_at_most() {
    let d = 64;
    for (name, table) in tables() {
        let v = vec![f16::ONE; WINDOW * d];
        for below in [-15.5f32, -16.01, -16.1, -17.0, -20.0, -200.0, f32::NEG_INFINITY] {
            let mut scores = vec![below; WINDOW];
            scores[9] = 0.0;
            let mut held = run(table, &scores, WINDOW, &v, d, from_ref(&(0..WINDOW)));
            let exact = 1.0 + 63.0 * f64::from(below).exp2();
            for &x in held.rows(0..1, d).out.iter() {
                let error = (f64::from(x) - exact).abs();
                assert!(!(error.is_nan() || error > 9.7e-4 * exact), "{name}: {below}: {x} for {exact}");
            }
        }
        // A window that is masked whole, and tokens without any size.
        let mut held = run(table, &vec![f32::NEG_INFINITY; WINDOW], WINDOW, &v, d, from_ref(&(0..WINDOW)));
        assert!(held.rows(0..1, d).out.iter().all(|&x| x == 0.0), "{name}");
        let mut held = run(table, &vec![0.0; WINDOW], WINDOW, &vec![f16::ZERO; WINDOW * d], d, from_ref(&(0..WINDOW)));
        assert!(held.rows(0..1, d).out.iter().all(|&x| x == 0.0), "{name}");
        let mut held = run(table, &vec![0.0; WINDOW], WINDOW, &vec![f16::MAX; WINDOW * d], d, from_ref(&(0..WINDOW)));
        let exact = 64.0 * f16::MAX.to_f32();
        assert!(held.rows(0..1, d).out.iter().all(|&x| (x / exact - 1.0).abs() < 2e-4), "{name}");
    }
}

#[test]
fn a_nan_of_a_value_or_a_score_is_in_the_rows_that_see_it_and_in_no_other() {
    let d = 40;
    for (name, table) in tables() {
        let (mut v, mut scores) = (vec![f16::ONE; WINDOW * d], vec![-1.0; 7 * WINDOW]);
        v[33 * d + 39] = f16::NAN;
        scores[2 * WINDOW + 17] = f32::NAN;
        for (seen, cut) in [(33, None), (33, Some(20)), (64, None)] {
            let parts = [0..cut.unwrap_or(64), cut.unwrap_or(64)..64];
            let mut held = run(table, &scores, seen, &v, d, if cut.is_some() { &parts } else { &parts[..1] });
            for (i, &x) in held.rows(0..7, d).out.iter().enumerate() {
                let spoilt = i / d == 2 || seen > 33;
                assert_eq!(x.is_nan(), spoilt, "{name}: {seen} seen, row {}: {x}", i / d);
                assert!(spoilt || (x - seen as f32).abs() < 1.3e-4 * seen as f32, "{name}: {seen} seen, {x}");
            }
        }
    }
}
