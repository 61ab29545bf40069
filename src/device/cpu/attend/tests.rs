//! The inner loops alone, on every instruction set of this machine.

use super::kernels::{self, EXP2_LOWEST, States, exp2};
use super::{Held, WINDOW};
use crate::base::rng;
use crate::kv::PAGE_TOKENS;
use half::f16;
use rand::Rng;

/// Rows with made-up partial results, none of them 0; wholly masked ones where `masked`.
fn held(rows: usize, d: usize, masked: bool, stream: u64) -> Held {
    let mut random = rng::stream(stream, "partials", &[]);
    let mut held = Held::default();
    held.clear(rows, d);
    if !masked {
        let States { out, max, sum } = held.rows(0..rows, d);
        out.iter_mut().for_each(|x| *x = random.random_range(0.1..1.0));
        max.iter_mut().for_each(|x| *x = random.random_range(-5.0..5.0));
        sum.iter_mut().for_each(|x| *x = random.random_range(0.5..64.0));
    }
    held
}

fn bits(held: &mut Held, rows: usize, d: usize) -> Vec<u32> {
    let States { out, max, sum } = held.rows(0..rows, d);
    out.iter().chain(max.iter()).chain(sum.iter()).map(|x| x.to_bits()).collect()
}

#[test]
fn a_wholly_masked_part_adds_exactly_nothing() {
    for table in kernels::available() {
        for (rows, d) in [(1, 8), (5, 64), (7, 80), (13, 128)] {
            for (left_masked, right_masked) in [(false, true), (true, false), (true, true)] {
                let (mut left, mut right) = (held(rows, d, left_masked, 1), held(rows, d, right_masked, 2));
                let expected = bits(if left_masked { &mut right } else { &mut left }, rows, d);
                table.merge(left.rows(0..rows, d), right.rows(0..rows, d), d);
                let name = table.name;
                assert_eq!(bits(&mut right, rows, d), expected, "{name}: {left_masked} {right_masked}, {rows} rows");
            }
        }
    }
}

#[test]
fn a_masked_window_changes_no_state_and_leaves_no_nan() {
    for table in kernels::available() {
        for (masked, seen) in [(true, WINDOW), (false, WINDOW), (true, 5)] {
            let (rows, d) = (7, 64);
            let mut state = held(rows, d, masked, 3);
            let before = bits(&mut state, rows, d);
            let mut scores = vec![f32::NEG_INFINITY; rows * WINDOW];
            table.softmax(&mut scores, seen, d, state.rows(0..rows, d));
            assert!(scores.iter().all(|&w| w == 0.0), "{}: a weight of something masked", table.name);
            assert_eq!(bits(&mut state, rows, d), before, "{}: masked {masked}, {seen} seen", table.name);
        }
    }
}

/// Whatever else is in the call: register tiles are of several rows, and the last one is cut.
#[test]
fn a_row_s_bits_do_not_depend_on_the_rows_beside_it() {
    let d = 72;
    let mut random = rng::stream(4, "rows", &[]);
    let mut draw = |n: usize| -> Vec<f32> { (0..n).map(|_| random.random_range(-1.0..1.0)).collect() };
    let (q, keys, values) = (draw(13 * d), draw(WINDOW * d), draw(WINDOW * d));
    let keys: Vec<f16> = keys.into_iter().map(f16::from_f32).collect();
    for table in kernels::available() {
        let (q, keys) = forms(table, &q, &keys, d);
        let run = |rows: std::ops::Range<usize>| {
            let n = rows.len();
            let (mut scores, mut state) = (vec![0.0; n * WINDOW], held(n, d, true, 0));
            table.scores(&q[rows.start * d..rows.end * d], d, &keys, 0..WINDOW, &mut scores, 0);
            table.softmax(&mut scores, WINDOW, d, state.rows(0..n, d));
            table.values(&scores, 0, &values, d, state.rows(0..n, d).out);
            state
        };
        let mut all = run(0..13);
        for n in 1..13 {
            for first in [0, 13 - n] {
                let States { out, max, sum } = all.rows(first..first + n, d);
                let expected: Vec<u32> = out.iter().chain(max.iter()).chain(sum.iter()).map(|x| x.to_bits()).collect();
                assert_eq!(bits(&mut run(first..first + n), n, d), expected, "{}: {n} rows from {first}", table.name);
            }
        }
    }
}

/// Queries and pages of keys as the table's `scores` takes them.
fn forms(table: &kernels::Kernels, q: &[f32], keys: &[f16], d: usize) -> (Vec<f32>, Vec<f32>) {
    let (mut q, mut out) = (q.to_vec(), vec![0.0; keys.len()]);
    table.queries(&mut q, d);
    for (out, page) in out.chunks_mut(PAGE_TOKENS * d).zip(keys.chunks(PAGE_TOKENS * d)) {
        table.look_at_keys(page, d, out);
        table.keys_f16(page, d, out);
    }
    (q, out)
}

/// Of what a table does in integers the error is a share of |q|·|k|, whatever the sizes of either, and a token's or a query's
/// own: large ones beside small ones take nothing from them.
#[test]
fn scores_are_right_to_a_small_share_of_both_norms() {
    for d in [8, 16, 24, 40, 64, 72, 80, 96, 128] {
        let mut random = rng::stream(5, "scores", &[d as u64]);
        let rows = 9;
        let mut draw = |size: f32| -> Vec<f32> { (0..d).map(|_| size * random.random_range(-1f32..1.0)).collect() };
        let sizes = [1.0, 1e-3, 300.0, 0.0, 1.0, 1e-6, 7e3, 0.1, 2.0];
        let q: Vec<f32> = (0..rows).flat_map(|row| draw(sizes[row])).collect();
        let mut keys: Vec<f16> = (0..WINDOW).flat_map(|token| draw(sizes[token % 9])).map(f16::from_f32).collect();
        // One number alone in its vector, and one among small ones.
        keys[5 * d..6 * d].fill(f16::ZERO);
        keys[5 * d + 3] = f16::from_f32(-2.5);
        keys[7 * d + d - 1] = f16::from_f32(900.0);
        for table in kernels::available() {
            let (q_form, keys_form) = forms(table, &q, &keys, d);
            let mut scores = vec![f32::NAN; rows * WINDOW];
            table.scores(&q_form, d, &keys_form, 0..WINDOW, &mut scores, 0);
            for (i, &score) in scores.iter().enumerate() {
                let (q, k) = (&q[i / WINDOW * d..][..d], &keys[i % WINDOW * d..][..d]);
                let k: Vec<f64> = k.iter().map(|x| x.to_f64()).collect();
                let exact: f64 = q.iter().zip(&k).map(|(&a, b)| f64::from(a) * b).sum();
                let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
                let norms = norm(&mut q.iter().map(|&x| f64::from(x))) * norm(&mut k.iter().copied());
                let error = (f64::from(score) - exact).abs();
                assert!(!(error.is_nan() || error > 8e-5 * norms), "{} {d} {i}: {score} is not {exact}", table.name);
            }
        }
    }
}

#[test]
fn a_nan_in_a_query_or_a_key_is_in_each_of_its_scores_and_in_no_other() {
    let d = 40;
    for table in kernels::available() {
        let (mut q, mut keys) = (vec![0.5; 7 * d], vec![f16::ONE; WINDOW * d]);
        q[2 * d + 17] = f32::NAN;
        keys[33 * d + 39] = f16::NAN;
        let (q, keys) = forms(table, &q, &keys, d);
        let mut scores = vec![0.0; 7 * WINDOW];
        table.scores(&q, d, &keys, 0..WINDOW, &mut scores, 0);
        for (i, score) in scores.iter().enumerate() {
            let spoilt = i / WINDOW == 2 || i % WINDOW == 33;
            assert_eq!(score.is_nan(), spoilt, "{}: {i}: {score}", table.name);
        }
    }
}

#[test]
fn powers_of_two_are_right_to_2e_7_and_exact_at_the_ends() {
    for i in 0..200_000 {
        let x = i as f32 * (EXP2_LOWEST / 200_000.0);
        let (found, exact) = (f64::from(exp2(x)), f64::from(x).exp2());
        let error = ((found - exact) / exact).abs();
        assert!(!(error.is_nan() || error > 2e-7), "2^{x} = {found}, not {exact}");
    }
    assert_eq!((exp2(0.0), exp2(f32::NEG_INFINITY), exp2(EXP2_LOWEST - 1.0)), (1.0, 0.0, 0.0));
    assert!(exp2(f32::NAN).is_nan());
}

#[test]
fn weights_are_powers_of_two_in_every_table() {
    for table in kernels::available() {
        for step in 0..2000 {
            // The first score is the largest; the last ones give nothing.
            let mut scores: Vec<f32> = (0..WINDOW).map(|i| -((i * 2000 + step) as f32) / 1000.0).collect();
            scores[0] = 0.0;
            let given = scores.clone();
            let mut state = held(1, 8, true, 0);
            table.softmax(&mut scores, WINDOW, 8, state.rows(0..1, 8));
            for (&x, &found) in given.iter().zip(&scores) {
                let exact = if x < EXP2_LOWEST { 0.0 } else { f64::from(x).exp2() };
                let error = (f64::from(found) - exact).abs();
                assert!(!(error.is_nan() || error > 2e-7 * exact), "{}: 2^{x} = {found}, not {exact}", table.name);
            }
        }
    }
}
