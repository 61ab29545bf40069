//! The inner loops with AVX2, FMA and F16C: a page of 16 positions is two vectors of scores.

use super::kernels::{EXP2, EXP2_LOWEST, Kernels, MergeTile, ScoreTile, SoftmaxTile, ValueTile, weights};
use crate::device::attend::WINDOW;
use crate::kv::PAGE_TOKENS;
use half::f16;
use std::arch::x86_64::*;

pub(super) static KERNELS: Kernels = Kernels {
    name: "avx2",
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

/// Rows of one register tile: 6 × 2 accumulators, 2 vectors of K or V and one broadcast are 15 of 16 registers.
const ROWS: usize = 6;

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn keys_f16(keys: *const f16, d: usize, out: *mut f32) {
    for k in (0..d).step_by(8) {
        // SAFETY: tokens 0..16 and dimensions k..k+8 lie inside `[16][d]`, and their transpose inside `[d][16]`.
        unsafe { keys_f16_8(keys.add(k).cast(), d, out.add(k * PAGE_TOKENS)) };
    }
}

/// 16 tokens by 8 dimensions at stride `d` to `[8][16]`, as two 8 × 8 transposes of 16-bit numbers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn keys_f16_8(keys: *const u16, d: usize, out: *mut f32) {
    for half in 0..2 {
        let mut z = [_mm_setzero_si128(); 8];
        for (i, z) in z.iter_mut().enumerate() {
            // SAFETY: the caller vouches for 16 rows of 8 numbers.
            *z = unsafe { _mm_loadu_si128(keys.add((half * 8 + i) * d).cast()) };
        }
        let a = [
            _mm_unpacklo_epi16(z[0], z[1]),
            _mm_unpackhi_epi16(z[0], z[1]),
            _mm_unpacklo_epi16(z[2], z[3]),
            _mm_unpackhi_epi16(z[2], z[3]),
            _mm_unpacklo_epi16(z[4], z[5]),
            _mm_unpackhi_epi16(z[4], z[5]),
            _mm_unpacklo_epi16(z[6], z[7]),
            _mm_unpackhi_epi16(z[6], z[7]),
        ];
        let b = [
            _mm_unpacklo_epi32(a[0], a[2]),
            _mm_unpackhi_epi32(a[0], a[2]),
            _mm_unpacklo_epi32(a[1], a[3]),
            _mm_unpackhi_epi32(a[1], a[3]),
            _mm_unpacklo_epi32(a[4], a[6]),
            _mm_unpackhi_epi32(a[4], a[6]),
            _mm_unpacklo_epi32(a[5], a[7]),
            _mm_unpackhi_epi32(a[5], a[7]),
        ];
        for i in 0..4 {
            for (j, c) in
                [_mm_unpacklo_epi64(b[i], b[i + 4]), _mm_unpackhi_epi64(b[i], b[i + 4])].into_iter().enumerate()
            {
                // SAFETY: dimension 2i + j of the 8, tokens 8·half..8·half + 8.
                unsafe { _mm256_storeu_ps(out.add((2 * i + j) * PAGE_TOKENS + half * 8), _mm256_cvtph_ps(c)) };
            }
        }
    }
}

/// `[16][d]` to `[d][16]`, in 4 × 4 blocks.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn keys_f32(keys: *const f32, d: usize, out: *mut f32) {
    for k in (0..d).step_by(4) {
        for token in (0..PAGE_TOKENS).step_by(4) {
            // SAFETY: a 4 × 4 block inside `[16][d]`, and its transpose inside `[d][16]`.
            unsafe {
                let mut z = [_mm_setzero_ps(); 4];
                for (i, z) in z.iter_mut().enumerate() {
                    *z = _mm_loadu_ps(keys.add((token + i) * d + k));
                }
                let (a, b) = (_mm_unpacklo_ps(z[0], z[1]), _mm_unpackhi_ps(z[0], z[1]));
                let (c, e) = (_mm_unpacklo_ps(z[2], z[3]), _mm_unpackhi_ps(z[2], z[3]));
                let columns = [_mm_movelh_ps(a, c), _mm_movehl_ps(c, a), _mm_movelh_ps(b, e), _mm_movehl_ps(e, b)];
                for (i, column) in columns.into_iter().enumerate() {
                    _mm_storeu_ps(out.add((k + i) * PAGE_TOKENS + token), column);
                }
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn widen(numbers: *const f16, n: usize, out: *mut f32) {
    let numbers: *const u16 = numbers.cast();
    for i in (0..n).step_by(8) {
        // SAFETY: both hold `n` numbers, a multiple of 8.
        unsafe { _mm256_storeu_ps(out.add(i), _mm256_cvtph_ps(_mm_loadu_si128(numbers.add(i).cast()))) };
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
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
                    4 => score_tile::<4>(t, row, page),
                    5 => score_tile::<5>(t, row, page),
                    _ => score_tile::<ROWS>(t, row, page),
                }
            }
        }
        row += ROWS;
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn score_tile<const R: usize>(t: &ScoreTile, row: usize, page: usize) {
    let mut sums = [[_mm256_setzero_ps(); 2]; R];
    // SAFETY: rows `row..row + R` of q and of the window, one page of K.
    unsafe {
        let q = t.q.add(row * t.d);
        let keys = t.keys.add(page * t.d * PAGE_TOKENS);
        for k in 0..t.d {
            let keys = [_mm256_loadu_ps(keys.add(k * PAGE_TOKENS)), _mm256_loadu_ps(keys.add(k * PAGE_TOKENS + 8))];
            for (r, sums) in sums.iter_mut().enumerate() {
                let q = _mm256_set1_ps(*q.add(r * t.d + k));
                for (sum, key) in sums.iter_mut().zip(keys) {
                    *sum = _mm256_fmadd_ps(q, key, *sum);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (half, sum) in sums.iter().enumerate() {
                let lane = page * PAGE_TOKENS + half * 8;
                let out = t.out.add((row + r) * WINDOW + lane);
                _mm256_maskstore_ps(out, lanes_between(t.lo, t.hi, lane), *sum);
            }
        }
    }
}

/// All bits set in the lanes i of 8 with `lo <= first + i < hi`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn lanes_between(lo: usize, hi: usize, first: usize) -> __m256i {
    let lane = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first as i32));
    let below = _mm256_cmpgt_epi32(_mm256_set1_epi32(hi as i32), lane);
    _mm256_and_si256(below, _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(lo as i32 - 1)))
}

/// 2^x for x at most 0, as `kernels::exp2`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn exp2(x: __m256) -> __m256 {
    let low = _mm256_set1_ps(EXP2_LOWEST);
    let small = _mm256_cmp_ps::<_CMP_LT_OQ>(x, low);
    // The second operand is what comes out where one is a NaN.
    let x = _mm256_max_ps(low, x);
    let whole = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x);
    let f = _mm256_sub_ps(x, whole);
    let mut p = _mm256_set1_ps(EXP2[0]);
    for c in &EXP2[1..] {
        p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(*c));
    }
    let p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0));
    let power = _mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127)));
    _mm256_andnot_ps(small, _mm256_mul_ps(p, _mm256_castsi256_ps(power)))
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn softmax(t: &SoftmaxTile) {
    for row in 0..t.rows {
        // SAFETY: a window of 64 scores, a state and `d` numbers for each row, as the caller checked.
        unsafe {
            let (max, sum) = (&mut *t.max.add(row), &mut *t.sum.add(row));
            let factor = softmax_row(t.scores.add(row * WINDOW), t.seen, max, sum);
            // A NaN factor must reach the output.
            if factor != 1.0 {
                let wide = _mm256_set1_ps(factor);
                for k in (row * t.d..(row + 1) * t.d).step_by(8) {
                    _mm256_storeu_ps(t.out.add(k), _mm256_mul_ps(_mm256_loadu_ps(t.out.add(k)), wide));
                }
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn merge(t: &MergeTile) {
    for row in 0..t.rows {
        // SAFETY: states and `d` numbers for each row on both sides, as the caller checked.
        unsafe {
            let Some((a, b, max)) = weights(*t.left_max.add(row), *t.max.add(row)) else { continue };
            *t.max.add(row) = max;
            *t.sum.add(row) = a * *t.left_sum.add(row) + b * *t.sum.add(row);
            let (a, b) = (_mm256_set1_ps(a), _mm256_set1_ps(b));
            for k in (row * t.d..(row + 1) * t.d).step_by(8) {
                let right = _mm256_mul_ps(b, _mm256_loadu_ps(t.out.add(k)));
                _mm256_storeu_ps(t.out.add(k), _mm256_fmadd_ps(a, _mm256_loadu_ps(t.left.add(k)), right));
            }
        }
    }
}

/// The factor for what was summed before: 1 where that is nothing.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn softmax_row(scores: *mut f32, seen: usize, max: &mut f32, sum: &mut f32) -> f32 {
    let mut s = [_mm256_setzero_ps(); 8];
    for (i, s) in s.iter_mut().enumerate() {
        let seen = _mm256_castsi256_ps(lanes_between(0, seen, 8 * i));
        // SAFETY: a window of 64 scores.
        let all = unsafe { _mm256_loadu_ps(scores.add(8 * i)) };
        *s = _mm256_blendv_ps(_mm256_set1_ps(f32::NEG_INFINITY), all, seen);
    }
    let mut tops = [0f32; 8];
    let mut top = s[0];
    for s in &s[1..] {
        top = _mm256_max_ps(top, *s);
    }
    // SAFETY: eight numbers.
    unsafe { _mm256_storeu_ps(tops.as_mut_ptr(), top) };
    let top = tops.iter().fold(*max, |a, &b| a.max(b));
    // A NaN score may be lost in the maximum; it comes back as its own weight and in the sum.
    let base = if top == f32::NEG_INFINITY { 0.0 } else { top };
    let mut added = _mm256_setzero_ps();
    for (i, s) in s.iter().enumerate() {
        let weight = exp2(_mm256_sub_ps(*s, _mm256_set1_ps(base)));
        added = _mm256_add_ps(added, weight);
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(scores.add(8 * i), weight) };
    }
    let mut sums = [0f32; 8];
    // SAFETY: eight numbers.
    unsafe { _mm256_storeu_ps(sums.as_mut_ptr(), added) };
    let nothing = *max == base || *max == f32::NEG_INFINITY;
    let factor = if nothing { 1.0 } else { super::kernels::exp2(*max - base) };
    let total = sums.iter().sum::<f32>();
    *sum = *sum * factor + total;
    *max = if total.is_nan() { f32::NAN } else { top };
    factor
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn values(t: &ValueTile) {
    let mut row = 0;
    while row < t.rows {
        // SAFETY: the caller checked all lengths of the tile; `row + R` never exceeds `rows`.
        unsafe {
            match t.rows - row {
                1 => value_rows::<1>(t, row),
                2 => value_rows::<2>(t, row),
                3 => value_rows::<3>(t, row),
                4 => value_rows::<4>(t, row),
                5 => value_rows::<5>(t, row),
                _ => value_rows::<ROWS>(t, row),
            }
        }
        row += ROWS;
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn value_rows<const R: usize>(t: &ValueTile, row: usize) {
    let mut k = 0;
    // SAFETY: dimensions `k..` up to `d`, a multiple of 8.
    unsafe {
        while k + 16 <= t.d {
            value_tile::<R, 2>(t, row, k);
            k += 16;
        }
        if k < t.d {
            value_tile::<R, 1>(t, row, k);
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn value_tile<const R: usize, const C: usize>(t: &ValueTile, row: usize, k: usize) {
    let mut sums = [[_mm256_setzero_ps(); C]; R];
    // SAFETY: rows `row..row + R`, dimensions `k..k + 8·C`.
    unsafe {
        let out = t.out.add(row * t.d + k);
        let weights = t.weights.add(row * WINDOW);
        for (r, sums) in sums.iter_mut().enumerate() {
            for (c, sum) in sums.iter_mut().enumerate() {
                *sum = _mm256_loadu_ps(out.add(r * t.d + 8 * c));
            }
        }
        for token in 0..t.tokens {
            let mut values = [_mm256_setzero_ps(); C];
            for (c, value) in values.iter_mut().enumerate() {
                *value = _mm256_loadu_ps(t.values.add(token * t.d + k + 8 * c));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let weight = _mm256_set1_ps(*weights.add(r * WINDOW + token));
                for (sum, value) in sums.iter_mut().zip(values) {
                    *sum = _mm256_fmadd_ps(weight, value, *sum);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (c, sum) in sums.iter().enumerate() {
                _mm256_storeu_ps(out.add(r * t.d + 8 * c), *sum);
            }
        }
    }
}
