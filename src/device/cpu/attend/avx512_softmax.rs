//! One online-softmax step of a window of rows, four rows at a time. What becomes of the weights is the caller's: they are
//! stored as they are here, and as integers by `vnni_values`.

use super::avx512::lanes_left;
use super::kernels::{EXP2_LOWEST, SoftmaxTile};
use crate::device::attend::WINDOW;
use std::arch::x86_64::*;

/// 2^f on [0, 1] as 1 + f·P(f), highest power first: interpolated at the Chebyshev nodes of P. With the rounding of float32
/// within 7e-8 relative.
const EXP2: [f32; 6] =
    [2.081_791_5e-4, 1.269_216_6e-3, 9.652_195e-3, 5.549_602_2e-2, 2.402_272_1e-1, std::f32::consts::LN_2];

/// 2^x for x at most 0, exact where `kernels::exp2` is.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq")]
fn exp2(x: __m512) -> __m512 {
    // True for a NaN.
    let counts = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, _mm512_set1_ps(EXP2_LOWEST));
    // x - floor(x); the scaling by 2^floor(x) rounds x itself.
    let f = _mm512_reduce_ps::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(x);
    let mut p = _mm512_set1_ps(EXP2[0]);
    for c in &EXP2[1..] {
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(*c));
    }
    let p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0));
    _mm512_maskz_scalef_ps(counts, p, x)
}

/// Rows whose maxima and sums are reduced together: alone, a row would wait for each of its reductions.
pub(super) const TOGETHER: usize = 4;

#[target_feature(enable = "avx512f,avx512bw,avx512dq")]
pub(super) unsafe fn softmax(t: &SoftmaxTile) {
    for first in (0..t.rows).step_by(TOGETHER) {
        // SAFETY: a window of 64 scores, `d` numbers and a state for each row, as the caller checked.
        unsafe {
            match t.rows - first {
                1 => softmax_rows::<1>(t, first),
                2 => softmax_rows::<2>(t, first),
                3 => softmax_rows::<3>(t, first),
                _ => softmax_rows::<TOGETHER>(t, first),
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq")]
unsafe fn softmax_rows<const R: usize>(t: &SoftmaxTile, first: usize) {
    // SAFETY: as the caller's, and a window of 64 scores a row.
    unsafe {
        step::<R>(t, first, |weights| {
            for (row, weights) in weights.iter().enumerate() {
                for (i, weights) in weights.iter().enumerate() {
                    _mm512_storeu_ps(t.scores.add((first + row) * WINDOW + 16 * i), *weights);
                }
            }
        });
    }
}

/// The first lanes of a window.
#[inline]
pub(super) fn lanes(seen: usize) -> u64 {
    u64::MAX.checked_shr(64 - seen as u32).unwrap_or(0)
}

/// The step of rows `first..first + R`: their states go on, and `take` is told the weights.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq")]
pub(super) unsafe fn step<const R: usize>(t: &SoftmaxTile, first: usize, take: impl FnOnce(&mut [[__m512; 4]; R])) {
    let lanes = lanes(t.seen);
    let none = _mm512_set1_ps(f32::NEG_INFINITY);
    let (mut max, mut sum) = ([f32::NEG_INFINITY; TOGETHER], [0f32; TOGETHER]);
    let mut scores = [[none; 4]; R];
    let mut tops = [none; TOGETHER];
    for (row, s) in scores.iter_mut().enumerate() {
        // SAFETY: a state and a window of 64 scores a row.
        unsafe {
            (max[row], sum[row]) = (*t.max.add(first + row), *t.sum.add(first + row));
            for (i, s) in s.iter_mut().enumerate() {
                let at = t.scores.add((first + row) * WINDOW + 16 * i);
                *s = _mm512_mask_loadu_ps(none, (lanes >> (16 * i)) as u16, at);
            }
        }
        tops[row] = _mm512_max_ps(_mm512_max_ps(s[0], s[1]), _mm512_max_ps(s[2], s[3]));
    }
    // SAFETY: four numbers each.
    let (before, summed) = unsafe { (_mm_loadu_ps(max.as_ptr()), _mm_loadu_ps(sum.as_ptr())) };
    // Of a NaN and a number the second operand comes out. A NaN score may be lost in the maximum; it comes back as its
    // own weight and in the sum.
    let top = _mm_max_ps(before, across_max(tops));
    let masked = _mm_set1_ps(f32::NEG_INFINITY);
    let base = _mm_andnot_ps(_mm_cmpeq_ps(top, masked), top);

    let wide = _mm512_zextps128_ps512(base);
    let mut sums = [_mm512_setzero_ps(); TOGETHER];
    for (row, s) in scores.iter_mut().enumerate() {
        let base = _mm512_permutexvar_ps(_mm512_set1_epi32(row as i32), wide);
        for s in s.iter_mut() {
            *s = exp2(_mm512_sub_ps(*s, base));
        }
        sums[row] = _mm512_add_ps(_mm512_add_ps(s[0], s[1]), _mm512_add_ps(s[2], s[3]));
    }
    take(&mut scores);
    let added = across_add(sums);
    // What was summed before is scaled by 1 where it stands against the same maximum, or is nothing.
    let same = _mm_or_ps(_mm_cmpeq_ps(before, base), _mm_cmpeq_ps(before, masked));
    let factor = _mm512_castps512_ps128(exp2(_mm512_zextps128_ps512(_mm_sub_ps(before, base))));
    let factor = _mm_or_ps(_mm_and_ps(same, _mm_set1_ps(1.0)), _mm_andnot_ps(same, factor));
    let summed = _mm_add_ps(_mm_mul_ps(summed, factor), added);
    // All bits set are a NaN.
    let top = _mm_or_ps(top, _mm_cmpunord_ps(added, added));
    let mut factors = [1f32; TOGETHER];
    // SAFETY: four numbers each.
    unsafe {
        _mm_storeu_ps(max.as_mut_ptr(), top);
        _mm_storeu_ps(sum.as_mut_ptr(), summed);
        _mm_storeu_ps(factors.as_mut_ptr(), factor);
    }
    for row in 0..R {
        // SAFETY: a state and `d` numbers a row.
        unsafe {
            (*t.max.add(first + row), *t.sum.add(first + row)) = (max[row], sum[row]);
            // A NaN factor must reach the output.
            if factors[row] != 1.0 {
                scale(t.out.add((first + row) * t.d), t.d, factors[row]);
            }
        }
    }
}

/// The numbers of each of four vectors brought to one, vector i to lane i, all by the same tree.
macro_rules! across {
    ($name:ident, $op:ident) => {
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw")]
        pub(super) fn $name(v: [__m512; TOGETHER]) -> __m128 {
            let ab = $op(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
            let cd = $op(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
            let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
            let (low, high) = (_mm512_unpacklo_pd(ab, cd), _mm512_unpackhi_pd(ab, cd));
            let quarters = $op(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
            let halves = $op(quarters, _mm512_shuffle_f32x4::<0b01_00_11_10>(quarters, quarters));
            _mm512_castps512_ps128($op(halves, _mm512_shuffle_f32x4::<0b10_11_00_01>(halves, halves)))
        }
    };
}
across!(across_max, _mm512_max_ps);
across!(across_add, _mm512_add_ps);

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn scale(out: *mut f32, d: usize, factor: f32) {
    let factor = _mm512_set1_ps(factor);
    for k in (0..d).step_by(16) {
        let mask = lanes_left(d - k);
        // SAFETY: `d` numbers, a multiple of 8; the last vector is masked to what is left.
        unsafe {
            let scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, out.add(k)), factor);
            _mm512_mask_storeu_ps(out.add(k), mask, scaled);
        }
    }
}
