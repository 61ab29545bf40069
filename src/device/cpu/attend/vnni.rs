//! Scores by products of 16-bit integers (AVX-512 VNNI): an instruction does twice the multiply-adds of one in float32. All
//! other loops but those of values (`vnni_values`) are those of `avx512`.
//!
//! A query and a key are scaled to a norm of [`NORM`] each and rounded to integers. Their product then stays below 2^31
//! (Cauchy-Schwarz) and is exact: only the rounding of the two is lost, about 1.3e-5 of |q|·|k| (a tenth of what storing K as
//! float16 loses). A vector's integers depend on it alone, so a row's bits do not depend on its company. A NaN is in its
//! vector's norm, and through it in each of its scores.
//!
//! In the places of the float32 numbers lie: of a query `d / 2` words of two numbers and its scale; of a page of K
//! `[d / 2][16]` words, 16 scales and their inverses. Those are found for all pages of a window before any page is turned: a page alone
//! would wait for its roots and quotients.

use super::avx512::{self, row_tiles};
use super::kernels::{Kernels, ScoreTile};
use crate::device::attend::WINDOW;
use crate::kv::PAGE_TOKENS;
use half::f16;
use std::arch::x86_64::*;

pub(super) static KERNELS: Kernels = Kernels {
    name: "avx512-vnni",
    // Of random inputs; one weight far above 63 others loses more (`vnni_values`).
    tolerance: 2e-4,
    queries,
    look_at_keys,
    keys_f16,
    scores,
    integers: Some(&super::vnni_values::INTEGERS),
    of_f32: Some(&avx512::KERNELS),
    ..avx512::KERNELS
};

/// The largest 16-bit integer. Rounding makes a norm longer by at most √d / 2.
const NORM: f32 = 32767.0;

/// Added to a number below 2^15, this leaves the nearest integer in the sum's low 16 bits.
pub(super) const ROUND: f32 = 1.5 * (1 << 23) as f32;

/// Up to 16 of the `n` numbers at `numbers`, zeros behind them; `n` is a multiple of 8.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn widen_16(numbers: *const u16, n: usize) -> __m512 {
    // SAFETY: reads 16 or 8 numbers, and there are as many.
    unsafe {
        match n {
            0 => _mm512_setzero_ps(),
            8 => _mm512_cvtph_ps(_mm256_zextsi128_si256(_mm_loadu_si128(numbers.cast()))),
            _ => _mm512_cvtph_ps(_mm256_loadu_si256(numbers.cast())),
        }
    }
}

/// Integers of 32 numbers, in order: `low` and `high` times `inverse`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn round(low: __m512, high: __m512, inverse: __m512) -> __m512i {
    let even = _mm512_set_epi16(
        62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8,
        6, 4, 2, 0,
    );
    let low = _mm512_castps_si512(_mm512_fmadd_ps(low, inverse, _mm512_set1_ps(ROUND)));
    let high = _mm512_castps_si512(_mm512_fmadd_ps(high, inverse, _mm512_set1_ps(ROUND)));
    _mm512_permutex2var_epi16(low, even, high)
}

/// What vectors of these norms are multiplied with, and what their integers stand for; nothing of a vector of zeros.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn scales(norms: __m512) -> (__m512, __m512) {
    let some = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(norms, _mm512_setzero_ps());
    let inverse = _mm512_maskz_div_ps(some, _mm512_set1_ps(NORM), norms);
    (inverse, _mm512_mul_ps(norms, _mm512_set1_ps(1.0 / NORM)))
}

#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn queries(q: *mut f32, rows: usize, d: usize) {
    for row in 0..rows {
        // SAFETY: rows of `d` numbers, a multiple of 8; the masks end at the row's end. What is written lies before what is
        // still to be read: 16 words for 32 numbers.
        unsafe {
            let q = q.add(row * d);
            let load = |k: usize| match d.saturating_sub(k) {
                0 => _mm512_setzero_ps(),
                8 => _mm512_maskz_loadu_ps(0xff, q.add(k)),
                _ => _mm512_loadu_ps(q.add(k)),
            };
            let mut squares = _mm512_setzero_ps();
            for k in (0..d).step_by(16) {
                let x = load(k);
                squares = _mm512_fmadd_ps(x, x, squares);
            }
            let (inverse, scale) = scales(_mm512_sqrt_ps(_mm512_set1_ps(_mm512_reduce_add_ps(squares))));
            for k in (0..d).step_by(32) {
                let words = round(load(k), load(k + 16), inverse);
                let mask = u16::MAX >> (16 - ((d - k) / 2).min(16));
                _mm512_mask_storeu_epi32(q.add(k / 2).cast(), mask, words);
            }
            *q.add(d / 2) = _mm512_cvtss_f32(scale);
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn look_at_keys(keys: *const f16, d: usize, out: *mut f32) {
    let keys: *const u16 = keys.cast();
    let whole = d - d % 32;
    let mut squares = [_mm512_setzero_ps(); PAGE_TOKENS];
    // SAFETY: numbers 0..d of 16 tokens; 16 scales and 16 inverses behind `[d / 2][16]` words are at most `[d][16]` numbers.
    unsafe {
        for k in (0..whole).step_by(32) {
            add_squares::<32>(keys.add(k), d, &mut squares);
        }
        let rest = keys.wrapping_add(whole);
        match d - whole {
            0 => {}
            8 => add_squares::<8>(rest, d, &mut squares),
            16 => add_squares::<16>(rest, d, &mut squares),
            _ => add_squares::<24>(rest, d, &mut squares),
        }
        let (inverse, scale) = scales(_mm512_sqrt_ps(across_add(squares)));
        let out = out.add(d / 2 * PAGE_TOKENS);
        _mm512_storeu_ps(out, scale);
        _mm512_storeu_ps(out.add(PAGE_TOKENS), inverse);
    }
}

#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn keys_f16(keys: *const f16, d: usize, out: *mut f32) {
    let keys: *const u16 = keys.cast();
    let whole = d - d % 32;
    // SAFETY: as above; `look_at_keys` left the inverses there, behind all words.
    unsafe {
        let inverses = out.add((d / 2 + 1) * PAGE_TOKENS).cast_const();
        for k in (0..whole).step_by(32) {
            words::<32>(keys.add(k), d, inverses, out.add(k / 2 * PAGE_TOKENS));
        }
        let (rest, out) = (keys.wrapping_add(whole), out.add(whole / 2 * PAGE_TOKENS));
        match d - whole {
            0 => {}
            8 => words::<8>(rest, d, inverses, out),
            16 => words::<16>(rest, d, inverses, out),
            _ => words::<24>(rest, d, inverses, out),
        }
    }
}

/// The squares of `N` numbers, at most 32, of each of 16 tokens at stride `d`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn add_squares<const N: usize>(keys: *const u16, d: usize, squares: &mut [__m512; PAGE_TOKENS]) {
    for (token, squares) in squares.iter_mut().enumerate() {
        let at = keys.wrapping_add(token * d);
        // SAFETY: the caller vouches for the numbers; behind the last nothing is read.
        let (low, high) = unsafe { (widen_16(at, N), widen_16(at.wrapping_add(16), N.saturating_sub(16))) };
        *squares = _mm512_fmadd_ps(high, high, _mm512_fmadd_ps(low, low, *squares));
    }
}

/// `N` numbers, at most 32, of each of 16 tokens at stride `d`, times the tokens' inverses, as words `[N / 2][16]`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn words<const N: usize>(keys: *const u16, d: usize, inverses: *const f32, out: *mut f32) {
    let mut words = [_mm512_setzero_si512(); PAGE_TOKENS];
    for (token, words) in words.iter_mut().enumerate() {
        let at = keys.wrapping_add(token * d);
        // SAFETY: as above, and 16 inverses.
        let (low, high, inverse) =
            unsafe { (widen_16(at, N), widen_16(at.wrapping_add(16), N.saturating_sub(16)), *inverses.add(token)) };
        *words = round(low, high, _mm512_set1_ps(inverse));
    }
    transpose(&mut words);
    for (i, words) in words.iter().take(N / 2).enumerate() {
        // SAFETY: the caller vouches for `N / 2` words of 16 tokens.
        unsafe { _mm512_storeu_si512(out.add(i * PAGE_TOKENS).cast(), *words) };
    }
}

/// Lane i of the result is the sum of vector i, all by the same tree.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn across_add(v: [__m512; 16]) -> __m512 {
    let mut quarters = [_mm512_setzero_ps(); 4];
    for (v, quarter) in v.chunks_exact(4).zip(&mut quarters) {
        let ab = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1])));
        let cd = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3])));
        let (low, high) = (_mm512_unpacklo_pd(ab, cd), _mm512_unpackhi_pd(ab, cd));
        *quarter = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
    }
    let [a, b, c, d] = quarters;
    let halves = |a, b| _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
    let (ab, cd) = (halves(a, b), halves(c, d));
    _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xdd>(ab, cd))
}

/// Word j of vector i to word i of vector j.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn transpose(rows: &mut [__m512i; 16]) {
    let mut four = [_mm512_setzero_si512(); 16];
    for i in (0..16).step_by(4) {
        let [a, b, c, d] = [rows[i], rows[i + 1], rows[i + 2], rows[i + 3]];
        let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
        (four[i], four[i + 1]) = (_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
        let (ab, cd) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
        (four[i + 2], four[i + 3]) = (_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    }
    // `four[4 i + c]` holds the words 4 L + c of the vectors 4 i..4 i + 4 in its quarter L.
    for c in 0..4 {
        let [p, q, r, s] = [four[c], four[4 + c], four[8 + c], four[12 + c]];
        let (even, even_2) = (_mm512_shuffle_i32x4::<0x88>(p, q), _mm512_shuffle_i32x4::<0x88>(r, s));
        let (odd, odd_2) = (_mm512_shuffle_i32x4::<0xdd>(p, q), _mm512_shuffle_i32x4::<0xdd>(r, s));
        rows[c] = _mm512_shuffle_i32x4::<0x88>(even, even_2);
        rows[8 + c] = _mm512_shuffle_i32x4::<0xdd>(even, even_2);
        rows[4 + c] = _mm512_shuffle_i32x4::<0x88>(odd, odd_2);
        rows[12 + c] = _mm512_shuffle_i32x4::<0xdd>(odd, odd_2);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
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
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn score_tile<const R: usize, const P: usize>(t: &ScoreTile, row: usize) {
    let mut sums = [[_mm512_setzero_si512(); P]; R];
    let page = t.d * PAGE_TOKENS;
    // SAFETY: rows `row..row + R` of q and of the window, `P` pages of K, each as this table's loops left it.
    unsafe {
        let q: *const i32 = t.q.add(row * t.d).cast();
        for k in 0..t.d / 2 {
            let mut keys = [_mm512_setzero_si512(); P];
            for (p, key) in keys.iter_mut().enumerate() {
                *key = _mm512_loadu_si512(t.keys.add(p * page + k * PAGE_TOKENS).cast());
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let q = _mm512_set1_epi32(*q.add(r * t.d + k));
                for (sum, key) in sums.iter_mut().zip(keys) {
                    // The saturating one, although nothing ever saturates: the compiler makes two instructions of the other.
                    *sum = _mm512_dpwssds_epi32(*sum, q, key);
                }
            }
        }
        let lanes = (u64::MAX << t.lo) & (u64::MAX >> (64 - t.hi));
        for (r, sums) in sums.iter().enumerate() {
            let of_query = _mm512_set1_ps(*t.q.add((row + r) * t.d + t.d / 2));
            for (p, sum) in sums.iter().enumerate() {
                let of_keys = _mm512_loadu_ps(t.keys.add(p * page + t.d / 2 * PAGE_TOKENS));
                let score = _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(*sum), of_keys), of_query);
                let mask = (lanes >> (p * PAGE_TOKENS)) as u16;
                _mm512_mask_storeu_ps(t.out.add((row + r) * WINDOW + p * PAGE_TOKENS), mask, score);
            }
        }
    }
}
