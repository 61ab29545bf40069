//! The inner loops with AVX-512 (F, BW, DQ): a page of 16 positions is one vector of scores, a row's window four of them.

use super::kernels::{EXP2_LOWEST, Kernels, MergeTile, ScoreTile, SoftmaxTile, ValueTile, weights};
use crate::device::attend::WINDOW;
use crate::kv::PAGE_TOKENS;
use half::f16;
use std::arch::x86_64::*;

pub(super) static KERNELS: Kernels = Kernels {
    name: "avx512",
    tolerance: super::kernels::FLOAT32,
    of_f32: None,
    integers: None,
    queries: super::kernels::as_they_are,
    look_at_keys: super::kernels::nothing,
    keys_f16,
    keys_f32: super::avx2::keys_f32,
    widen,
    scores,
    softmax,
    values,
    merge,
};

/// Calls `tile::<R, …>` for all rows: 6 at a time (6 × 4 accumulators, 4 vectors of K or V and one broadcast are 29 of 32
/// registers), and those that are left over together.
macro_rules! row_tiles {
    ($rows:expr, $row:ident, $tile:ident, [$($generic:tt),*], ($($arg:expr),*)) => {{
        let mut $row = 0;
        while $row < $rows {
            match $rows - $row {
                1 => $tile::<1 $(, $generic)*>($($arg),*),
                2 => $tile::<2 $(, $generic)*>($($arg),*),
                3 => $tile::<3 $(, $generic)*>($($arg),*),
                4 => $tile::<4 $(, $generic)*>($($arg),*),
                5 => $tile::<5 $(, $generic)*>($($arg),*),
                _ => $tile::<6 $(, $generic)*>($($arg),*),
            }
            $row += 6;
        }
    }};
}
pub(super) use row_tiles;

#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn keys_f16(keys: *const f16, d: usize, out: *mut f32) {
    let mut k = 0;
    while k + 16 <= d {
        // SAFETY: tokens 0..16 and dimensions k..k+16 lie inside `[16][d]`, and their transpose inside `[d][16]`.
        unsafe { keys_16(keys.add(k).cast(), d, out.add(k * PAGE_TOKENS)) };
        k += 16;
    }
    if k < d {
        // SAFETY: eight dimensions are left.
        unsafe { super::avx2::keys_f16_8(keys.add(k).cast(), d, out.add(k * PAGE_TOKENS)) };
    }
}

/// 16 tokens by 16 dimensions. Vector i holds token i, dimensions 0..8, token i + 8, dimensions 0..8, and the same of
/// dimensions 8..16; an 8 × 8 transpose inside the lanes of 128 bits then leaves the 16 tokens of one dimension in each
/// half.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn keys_16(keys: *const u16, d: usize, out: *mut f32) {
    // A loop and not `from_fn`: a closure with these features is not inlined through a function without them.
    let mut z = [_mm512_setzero_si512(); 8];
    for (i, z) in z.iter_mut().enumerate() {
        // SAFETY: the caller vouches for 16 rows of 16 numbers at stride `d`.
        unsafe {
            let (low, high) = (keys.add(i * d), keys.add((i + 8) * d));
            *z = _mm512_castsi128_si512(_mm_loadu_si128(low.cast()));
            *z = _mm512_inserti32x4::<1>(*z, _mm_loadu_si128(high.cast()));
            *z = _mm512_inserti32x4::<2>(*z, _mm_loadu_si128(low.add(8).cast()));
            *z = _mm512_inserti32x4::<3>(*z, _mm_loadu_si128(high.add(8).cast()));
        }
    }
    let a: [__m512i; 8] = [
        _mm512_unpacklo_epi16(z[0], z[1]),
        _mm512_unpackhi_epi16(z[0], z[1]),
        _mm512_unpacklo_epi16(z[2], z[3]),
        _mm512_unpackhi_epi16(z[2], z[3]),
        _mm512_unpacklo_epi16(z[4], z[5]),
        _mm512_unpackhi_epi16(z[4], z[5]),
        _mm512_unpacklo_epi16(z[6], z[7]),
        _mm512_unpackhi_epi16(z[6], z[7]),
    ];
    let b: [__m512i; 8] = [
        _mm512_unpacklo_epi32(a[0], a[2]),
        _mm512_unpackhi_epi32(a[0], a[2]),
        _mm512_unpacklo_epi32(a[1], a[3]),
        _mm512_unpackhi_epi32(a[1], a[3]),
        _mm512_unpacklo_epi32(a[4], a[6]),
        _mm512_unpackhi_epi32(a[4], a[6]),
        _mm512_unpacklo_epi32(a[5], a[7]),
        _mm512_unpackhi_epi32(a[5], a[7]),
    ];
    for i in 0..4 {
        for (j, c) in
            [_mm512_unpacklo_epi64(b[i], b[i + 4]), _mm512_unpackhi_epi64(b[i], b[i + 4])].into_iter().enumerate()
        {
            let k = 2 * i + j;
            // SAFETY: dimensions k and k + 8 of the 16.
            unsafe {
                _mm512_storeu_ps(out.add(k * PAGE_TOKENS), _mm512_cvtph_ps(_mm512_castsi512_si256(c)));
                let upper = _mm512_extracti64x4_epi64::<1>(c);
                _mm512_storeu_ps(out.add((k + 8) * PAGE_TOKENS), _mm512_cvtph_ps(upper));
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn widen(numbers: *const f16, n: usize, out: *mut f32) {
    let numbers: *const u16 = numbers.cast();
    let mut i = 0;
    while i + 16 <= n {
        // SAFETY: both hold `n` numbers.
        unsafe { _mm512_storeu_ps(out.add(i), _mm512_cvtph_ps(_mm256_loadu_si256(numbers.add(i).cast()))) };
        i += 16;
    }
    if i < n {
        // SAFETY: eight are left.
        unsafe {
            let wide = _mm512_cvtph_ps(_mm256_castsi128_si256(_mm_loadu_si128(numbers.add(i).cast())));
            _mm512_mask_storeu_ps(out.add(i), 0xff, wide);
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn scores(t: &ScoreTile) {
    // SAFETY: the caller checked all lengths of the tile; the tiles below stay inside it.
    unsafe {
        match t.pages {
            1 => row_tiles!(t.rows, row, score_tile, [1], (t, row)),
            2 => row_tiles!(t.rows, row, score_tile, [2], (t, row)),
            3 => row_tiles!(t.rows, row, score_tile, [3], (t, row)),
            _ => row_tiles!(t.rows, row, score_tile, [4], (t, row)),
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn score_tile<const R: usize, const P: usize>(t: &ScoreTile, row: usize) {
    let mut sums = [[_mm512_setzero_ps(); P]; R];
    // SAFETY: rows `row..row + R` of q and of the window, `P` pages of K.
    unsafe {
        let q = t.q.add(row * t.d);
        for k in 0..t.d {
            let mut keys = [_mm512_setzero_ps(); P];
            for (page, key) in keys.iter_mut().enumerate() {
                *key = _mm512_loadu_ps(t.keys.add((page * t.d + k) * PAGE_TOKENS));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let q = _mm512_set1_ps(*q.add(r * t.d + k));
                for (sum, key) in sums.iter_mut().zip(keys) {
                    *sum = _mm512_fmadd_ps(q, key, *sum);
                }
            }
        }
        let lanes = (u64::MAX << t.lo) & (u64::MAX >> (64 - t.hi));
        for (r, sums) in sums.iter().enumerate() {
            for (page, sum) in sums.iter().enumerate() {
                let mask = (lanes >> (page * PAGE_TOKENS)) as u16;
                _mm512_mask_storeu_ps(t.out.add((row + r) * WINDOW + page * PAGE_TOKENS), mask, *sum);
            }
        }
    }
}

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
unsafe fn softmax(t: &SoftmaxTile) {
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
        let mask = if d - k >= 16 { u16::MAX } else { 0xff };
        // SAFETY: `d` numbers, a multiple of 8; the last vector is masked to what is left.
        unsafe {
            let scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, out.add(k)), factor);
            _mm512_mask_storeu_ps(out.add(k), mask, scaled);
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn merge(t: &MergeTile) {
    for row in 0..t.rows {
        // SAFETY: states and `d` numbers for each row on both sides, as the caller checked.
        unsafe {
            let Some((a, b, max)) = weights(*t.left_max.add(row), *t.max.add(row)) else { continue };
            *t.max.add(row) = max;
            *t.sum.add(row) = a * *t.left_sum.add(row) + b * *t.sum.add(row);
            let (a, b) = (_mm512_set1_ps(a), _mm512_set1_ps(b));
            for k in (0..t.d).step_by(16) {
                let mask = if t.d - k >= 16 { u16::MAX } else { 0xff };
                let at = row * t.d + k;
                let right = _mm512_mul_ps(b, _mm512_maskz_loadu_ps(mask, t.out.add(at)));
                let both = _mm512_fmadd_ps(a, _mm512_maskz_loadu_ps(mask, t.left.add(at)), right);
                _mm512_mask_storeu_ps(t.out.add(at), mask, both);
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn values(t: &ValueTile) {
    // SAFETY: the caller checked all lengths of the tile; the tiles below stay inside it.
    unsafe { row_tiles!(t.rows, row, value_rows, [], (t, row)) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn value_rows<const R: usize>(t: &ValueTile, row: usize) {
    let mut k = 0;
    // SAFETY: dimensions `k..` up to `d`; the last vector is masked to what is left.
    unsafe {
        while k + 64 <= t.d {
            value_tile::<R, 4>(t, row, k, u16::MAX);
            k += 64;
        }
        if k + 32 <= t.d {
            value_tile::<R, 2>(t, row, k, u16::MAX);
            k += 32;
        }
        while k < t.d {
            value_tile::<R, 1>(t, row, k, if t.d - k >= 16 { u16::MAX } else { 0xff });
            k += 16;
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn value_tile<const R: usize, const C: usize>(t: &ValueTile, row: usize, k: usize, mask: u16) {
    let mut sums = [[_mm512_setzero_ps(); C]; R];
    // SAFETY: rows `row..row + R`, dimensions `k..k + 16·C` under the mask.
    unsafe {
        let out = t.out.add(row * t.d + k);
        let weights = t.weights.add(row * WINDOW);
        for (r, sums) in sums.iter_mut().enumerate() {
            for (c, sum) in sums.iter_mut().enumerate() {
                *sum = _mm512_maskz_loadu_ps(mask, out.add(r * t.d + 16 * c));
            }
        }
        for token in 0..t.tokens {
            let mut values = [_mm512_setzero_ps(); C];
            for (c, value) in values.iter_mut().enumerate() {
                *value = _mm512_maskz_loadu_ps(mask, t.values.add(token * t.d + k + 16 * c));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let weight = _mm512_set1_ps(*weights.add(r * WINDOW + token));
                for (sum, value) in sums.iter_mut().zip(values) {
                    *sum = _mm512_fmadd_ps(weight, value, *sum);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (c, sum) in sums.iter().enumerate() {
                _mm512_mask_storeu_ps(out.add(r * t.d + 16 * c), mask, *sum);
            }
        }
    }
}
