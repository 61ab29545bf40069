//! The inner loops with NEON, for aarch64. Untested on such a machine: they passed the selftest of attention under
//! emulation only. Float16 numbers are converted one by one, as stable Rust has no vector conversion for them.

use super::kernels::{EXP2, EXP2_LOWEST, Kernels, MergeTile, ScoreTile, SoftmaxTile, ValueTile, weights};
use super::portable;
use crate::device::attend::WINDOW;
use crate::kv::PAGE_TOKENS;
use std::arch::aarch64::*;

pub(super) static KERNELS: Kernels = Kernels {
    name: "neon",
    tolerance: super::kernels::FLOAT32,
    of_f32: None,
    integers: None,
    queries: super::kernels::as_they_are,
    look_at_keys: super::kernels::nothing,
    keys_f16: portable::keys_f16,
    keys_f32: portable::keys_f32,
    widen: portable::widen,
    scores,
    softmax,
    values,
    merge,
};

/// Rows of one register tile: 4 × 4 accumulators, 4 vectors of K or V.
const ROWS: usize = 4;

unsafe fn scores(t: &ScoreTile) {
    let mut row = 0;
    while row < t.rows {
        for page in 0..t.pages {
            // SAFETY: the caller checked all lengths of the tile; `row + R` never exceeds `rows`.
            unsafe {
                match t.rows - row {
                    1 => score_tile::<1>(t, row, page),
                    2 => score_tile::<2>(t, row, page),
                    3 => score_tile::<3>(t, row, page),
                    _ => score_tile::<ROWS>(t, row, page),
                }
            }
        }
        row += ROWS;
    }
}

unsafe fn score_tile<const R: usize>(t: &ScoreTile, row: usize, page: usize) {
    // SAFETY: rows `row..row + R` of q and of the window, one page of K.
    unsafe {
        let mut sums = [[vdupq_n_f32(0.0); 4]; R];
        let q = t.q.add(row * t.d);
        let keys = t.keys.add(page * t.d * PAGE_TOKENS);
        for k in 0..t.d {
            let keys: [float32x4_t; 4] = std::array::from_fn(|i| vld1q_f32(keys.add(k * PAGE_TOKENS + 4 * i)));
            for (r, sums) in sums.iter_mut().enumerate() {
                let q = *q.add(r * t.d + k);
                for (sum, key) in sums.iter_mut().zip(keys) {
                    *sum = vfmaq_n_f32(*sum, key, q);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            let mut lanes = [0f32; PAGE_TOKENS];
            for (i, sum) in sums.iter().enumerate() {
                vst1q_f32(lanes.as_mut_ptr().add(4 * i), *sum);
            }
            for (lane, sum) in (page * PAGE_TOKENS..).zip(lanes) {
                if (t.lo..t.hi).contains(&lane) {
                    *t.out.add((row + r) * WINDOW + lane) = sum;
                }
            }
        }
    }
}

/// 2^x for x at most 0, as `kernels::exp2`.
unsafe fn exp2(x: float32x4_t) -> float32x4_t {
    // SAFETY: NEON is part of aarch64.
    unsafe {
        let low = vdupq_n_f32(EXP2_LOWEST);
        let small = vcltq_f32(x, low);
        // `vmaxq` keeps NaN.
        let x = vmaxq_f32(low, x);
        let whole = vrndnq_f32(x);
        let f = vsubq_f32(x, whole);
        let mut p = vdupq_n_f32(EXP2[0]);
        for c in &EXP2[1..] {
            p = vfmaq_f32(vdupq_n_f32(*c), p, f);
        }
        let p = vfmaq_f32(vdupq_n_f32(1.0), p, f);
        let power = vshlq_n_s32::<23>(vaddq_s32(vcvtnq_s32_f32(whole), vdupq_n_s32(127)));
        let y = vmulq_f32(p, vreinterpretq_f32_s32(power));
        vbslq_f32(small, vdupq_n_f32(0.0), y)
    }
}

unsafe fn softmax(t: &SoftmaxTile) {
    for row in 0..t.rows {
        // SAFETY: a window of 64 scores, a state and `d` numbers for each row, as the caller checked.
        unsafe {
            let (max, sum) = (&mut *t.max.add(row), &mut *t.sum.add(row));
            let factor = softmax_row(t.scores.add(row * WINDOW), t.seen, max, sum);
            // A NaN factor must reach the output.
            if factor != 1.0 {
                for k in (row * t.d..(row + 1) * t.d).step_by(4) {
                    vst1q_f32(t.out.add(k), vmulq_n_f32(vld1q_f32(t.out.add(k)), factor));
                }
            }
        }
    }
}

unsafe fn merge(t: &MergeTile) {
    for row in 0..t.rows {
        // SAFETY: states and `d` numbers for each row on both sides, as the caller checked.
        unsafe {
            let Some((a, b, max)) = weights(*t.left_max.add(row), *t.max.add(row)) else { continue };
            *t.max.add(row) = max;
            *t.sum.add(row) = a * *t.left_sum.add(row) + b * *t.sum.add(row);
            for k in (row * t.d..(row + 1) * t.d).step_by(4) {
                let right = vmulq_n_f32(vld1q_f32(t.out.add(k)), b);
                vst1q_f32(t.out.add(k), vfmaq_n_f32(right, vld1q_f32(t.left.add(k)), a));
            }
        }
    }
}

/// The factor for what was summed before: 1 where that is nothing.
unsafe fn softmax_row(scores: *mut f32, seen: usize, max: &mut f32, sum: &mut f32) -> f32 {
    // SAFETY: a window of 64 scores; NEON is part of aarch64.
    unsafe {
        let all = std::slice::from_raw_parts_mut(scores, WINDOW);
        all[seen..].fill(f32::NEG_INFINITY);
        let mut top = vdupq_n_f32(f32::NEG_INFINITY);
        for i in 0..WINDOW / 4 {
            top = vmaxq_f32(top, vld1q_f32(scores.add(4 * i)));
        }
        let top = vmaxvq_f32(top).max(*max);
        let base = if top == f32::NEG_INFINITY { 0.0 } else { top };
        let mut added = vdupq_n_f32(0.0);
        for i in 0..WINDOW / 4 {
            let weight = exp2(vsubq_f32(vld1q_f32(scores.add(4 * i)), vdupq_n_f32(base)));
            added = vaddq_f32(added, weight);
            vst1q_f32(scores.add(4 * i), weight);
        }
        let nothing = *max == base || *max == f32::NEG_INFINITY;
        let factor = if nothing { 1.0 } else { super::kernels::exp2(*max - base) };
        let total = vaddvq_f32(added);
        *sum = *sum * factor + total;
        *max = if total.is_nan() { f32::NAN } else { top };
        factor
    }
}

unsafe fn values(t: &ValueTile) {
    let mut row = 0;
    while row < t.rows {
        let mut k = 0;
        while k < t.d {
            // SAFETY: the caller checked all lengths of the tile; `d` is a multiple of 8.
            unsafe {
                match (t.rows - row, t.d - k) {
                    (1, 8) => value_tile::<1, 2>(t, row, k),
                    (1, _) => value_tile::<1, 4>(t, row, k),
                    (2, 8) => value_tile::<2, 2>(t, row, k),
                    (2, _) => value_tile::<2, 4>(t, row, k),
                    (3, 8) => value_tile::<3, 2>(t, row, k),
                    (3, _) => value_tile::<3, 4>(t, row, k),
                    (_, 8) => value_tile::<ROWS, 2>(t, row, k),
                    (_, _) => value_tile::<ROWS, 4>(t, row, k),
                }
            }
            k += 16;
        }
        row += ROWS;
    }
}

unsafe fn value_tile<const R: usize, const C: usize>(t: &ValueTile, row: usize, k: usize) {
    // SAFETY: rows `row..row + R`, dimensions `k..k + 4·C`.
    unsafe {
        let mut sums = [[vdupq_n_f32(0.0); C]; R];
        let out = t.out.add(row * t.d + k);
        let weights = t.weights.add(row * WINDOW);
        for (r, sums) in sums.iter_mut().enumerate() {
            for (c, sum) in sums.iter_mut().enumerate() {
                *sum = vld1q_f32(out.add(r * t.d + 4 * c));
            }
        }
        for token in 0..t.tokens {
            let values: [float32x4_t; C] = std::array::from_fn(|c| vld1q_f32(t.values.add(token * t.d + k + 4 * c)));
            for (r, sums) in sums.iter_mut().enumerate() {
                let weight = *weights.add(r * WINDOW + token);
                for (sum, value) in sums.iter_mut().zip(values) {
                    *sum = vfmaq_n_f32(*sum, value, weight);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (c, sum) in sums.iter().enumerate() {
                vst1q_f32(out.add(r * t.d + 4 * c), *sum);
            }
        }
    }
}
