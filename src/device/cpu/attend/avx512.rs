//! The inner loops with AVX-512 (F, BW, DQ): a page of 16 positions is one vector of scores, a row's window four of them.

use super::avx512_softmax::softmax;
use super::kernels::{Kernels, MergeTile, ScoreTile, ValueTile, weights};
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

/// Calls `tile::<R, C>(…, k, mask)` for all dimensions: C vectors of 16 at a time, 4 as long as there are, the last masked to
/// what is left.
macro_rules! dimension_tiles {
    ($d:expr, $tile:ident, $r:ident, ($($arg:expr),*)) => {{
        let (d, mut k) = ($d, 0);
        while k + 64 <= d {
            $tile::<$r, 4>($($arg,)* k, u16::MAX);
            k += 64;
        }
        if k + 32 <= d {
            $tile::<$r, 2>($($arg,)* k, u16::MAX);
            k += 32;
        }
        while k < d {
            $tile::<$r, 1>($($arg,)* k, lanes_left(d - k));
            k += 16;
        }
    }};
}
pub(super) use dimension_tiles;

/// The lanes of a vector of 16 of which `numbers`, a multiple of 8, are left.
#[inline]
pub(super) fn lanes_left(numbers: usize) -> u16 {
    if numbers >= 16 { u16::MAX } else { 0xff }
}

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
                let mask = lanes_left(t.d - k);
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
    // SAFETY: dimensions up to `d`; the last vector is masked to what is left.
    unsafe { dimension_tiles!(t.d, value_tile, R, (t, row)) }
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
