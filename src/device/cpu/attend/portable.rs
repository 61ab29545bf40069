//! The inner loops in plain Rust: the fallback, and what the others are read against.

use super::kernels::{Kernels, MergeTile, ScoreTile, SoftmaxTile, ValueTile, exp2, weights};
use crate::device::attend::WINDOW;
use crate::kv::PAGE_TOKENS;
use half::f16;

pub(super) static KERNELS: Kernels = Kernels {
    name: "portable",
    tolerance: super::kernels::FLOAT32,
    of_f32: None,
    integers: None,
    queries: super::kernels::as_they_are,
    look_at_keys: super::kernels::nothing,
    keys_f16,
    keys_f32,
    widen,
    scores,
    softmax,
    values,
    merge,
};

/// The same with one loop that leaves a token out: what a selftest must find.
pub(super) static FAULTY: Kernels = Kernels { values: all_but_one, ..KERNELS };

unsafe fn all_but_one(t: &ValueTile) {
    let &ValueTile { weights, rows, values: numbers, tokens, d, out } = t;
    // SAFETY: a part of the tile whose lengths the caller checked.
    unsafe { values(&ValueTile { weights, rows, values: numbers, tokens: tokens - 1, d, out }) }
}

pub(super) unsafe fn keys_f16(keys: *const f16, d: usize, out: *mut f32) {
    for token in 0..PAGE_TOKENS {
        for k in 0..d {
            // SAFETY: the caller checked `[16][d]` and `[d][16]`.
            unsafe { *out.add(k * PAGE_TOKENS + token) = (*keys.add(token * d + k)).to_f32() };
        }
    }
}

pub(super) unsafe fn keys_f32(keys: *const f32, d: usize, out: *mut f32) {
    for token in 0..PAGE_TOKENS {
        for k in 0..d {
            // SAFETY: as above.
            unsafe { *out.add(k * PAGE_TOKENS + token) = *keys.add(token * d + k) };
        }
    }
}

pub(super) unsafe fn widen(numbers: *const f16, n: usize, out: *mut f32) {
    for i in 0..n {
        // SAFETY: the caller checked that both hold `n`.
        unsafe { *out.add(i) = (*numbers.add(i)).to_f32() };
    }
}

unsafe fn scores(t: &ScoreTile) {
    for row in 0..t.rows {
        for page in 0..t.pages {
            let mut sums = [0f32; PAGE_TOKENS];
            for k in 0..t.d {
                // SAFETY: inside `q [rows][d]` and `keys [pages][d][16]`, as the caller checked.
                let (q, keys) = unsafe {
                    let keys = t.keys.add((page * t.d + k) * PAGE_TOKENS);
                    (*t.q.add(row * t.d + k), std::slice::from_raw_parts(keys, PAGE_TOKENS))
                };
                for (sum, key) in sums.iter_mut().zip(keys) {
                    *sum += q * key;
                }
            }
            for (lane, sum) in (page * PAGE_TOKENS..).zip(sums) {
                if (t.lo..t.hi).contains(&lane) {
                    // SAFETY: inside the row's window.
                    unsafe { *t.out.add(row * WINDOW + lane) = sum };
                }
            }
        }
    }
}

unsafe fn softmax(t: &SoftmaxTile) {
    for row in 0..t.rows {
        // SAFETY: a window, a state and `d` numbers for each row, as the caller checked.
        let (scores, max, sum, out) = unsafe {
            (
                std::slice::from_raw_parts_mut(t.scores.add(row * WINDOW), WINDOW),
                &mut *t.max.add(row),
                &mut *t.sum.add(row),
                std::slice::from_raw_parts_mut(t.out.add(row * t.d), t.d),
            )
        };
        let top = scores[..t.seen].iter().fold(*max, |a, &b| if a >= b { a } else { b });
        let base = if top == f32::NEG_INFINITY { 0.0 } else { top };
        let mut added = 0.0;
        for s in &mut scores[..t.seen] {
            *s = exp2(*s - base);
            added += *s;
        }
        scores[t.seen..].fill(0.0);
        let factor = exp2(*max - base);
        *sum = *sum * factor + added;
        *max = if added.is_nan() { f32::NAN } else { top };
        out.iter_mut().for_each(|o| *o *= factor);
    }
}

unsafe fn merge(t: &MergeTile) {
    for row in 0..t.rows {
        // SAFETY: states and `d` numbers for each row on both sides, as the caller checked.
        unsafe {
            let Some((a, b, max)) = weights(*t.left_max.add(row), *t.max.add(row)) else { continue };
            *t.max.add(row) = max;
            *t.sum.add(row) = a * *t.left_sum.add(row) + b * *t.sum.add(row);
            for k in row * t.d..(row + 1) * t.d {
                *t.out.add(k) = a * *t.left.add(k) + b * *t.out.add(k);
            }
        }
    }
}

unsafe fn values(t: &ValueTile) {
    for row in 0..t.rows {
        // SAFETY: inside `out [rows][d]`, as the caller checked.
        let out = unsafe { std::slice::from_raw_parts_mut(t.out.add(row * t.d), t.d) };
        for token in 0..t.tokens {
            // SAFETY: inside the row's window and `values [tokens][d]`.
            let (weight, values) = unsafe {
                let values = std::slice::from_raw_parts(t.values.add(token * t.d), t.d);
                (*t.weights.add(row * WINDOW + token), values)
            };
            for (o, v) in out.iter_mut().zip(values) {
                *o += weight * v;
            }
        }
    }
}
