//! Values by products of 16-bit integers (AVX-512 VNNI), as `vnni` does scores.
//!
//! A token's V is scaled so that its largest number is [`VALUE`], and rounded. A row's weights are multiplied with the scales
//! of their tokens and rounded as well, on a scale of the row's own and of the window, by which they are at most 32,767 and
//! their sum at most [`SUM`]. The window's sums then fit 32 bits and are exact, so they do not depend on the parts in which
//! a window is taken, nor a row's bits on its company. Four times as much is left to the weights as to V: many tokens of like
//! weight would be rounded most. What is lost of a token's number is at most 6.1e-5 of its largest one (float16 loses up to 4.9e-4 of
//! each number: less of those below an eighth of the largest), and of each weight half of 3.8e-6 of their sum or of
//! 3.1e-5 of the largest, whichever is more: at worst, where 63 tokens lie just below half of that, together 9.6e-4 of the sum.
//! A NaN or an infinity of V is a NaN in all numbers of the rows that see its token.
//!
//! In the places of a row's 64 weights lie 32 words of two and at [`SCALE`] what 1 stands for; of V's pages words of two tokens,
//! `[8][d]`.

use super::avx512::{dimension_tiles, lanes_left, row_tiles};
use super::avx512_softmax::{self, TOGETHER, across_add, across_max, step};
use super::integer_kernels::{IntegerTile, Integers, Lanes, WeightTile};
use super::vnni::{ROUND, round, widen_16};
use crate::device::attend::WINDOW;
use crate::kv::PAGE_TOKENS;
use half::f16;
use std::arch::x86_64::*;

pub(super) static INTEGERS: Integers = Integers { look_at_values, turn_values, weights, values };

/// The largest number of a token's V.
const VALUE: f32 = 8191.0;

/// The largest sum of a row's weights in a window; rounding makes it longer by at most 32. Times [`VALUE`] it stays below 2^31.
const SUM: f32 = 262_100.0;

const _: () = assert!((SUM as i64 + 33) * VALUE as i64 <= i32::MAX as i64);

/// Below this a window's weights count as zero.
const LOWEST: f32 = 1e-30;

/// Where a row's scale lies, behind its words.
const SCALE: usize = WINDOW / 2;

#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn look_at_values(values: *const f16, d: usize, lanes: Lanes, scales: *mut f32, inverses: *mut f32) {
    let values: *const i16 = values.cast();
    let mut largest = [_mm512_setzero_si512(); PAGE_TOKENS];
    let whole = d - d % 32;
    for k in (0..whole).step_by(32) {
        for (token, largest) in largest.iter_mut().enumerate() {
            // SAFETY: numbers 0..d of 16 tokens.
            *largest = larger(*largest, unsafe { _mm512_loadu_si512(values.add(token * d + k).cast()) });
        }
    }
    if whole < d {
        let mask = (1 << (d - whole)) - 1;
        for (token, largest) in largest.iter_mut().enumerate() {
            // SAFETY: as above; the mask ends at the token's end.
            *largest = larger(*largest, unsafe { _mm512_maskz_loadu_epi16(mask, values.add(token * d + whole)) });
        }
    }
    let largest = _mm512_cvtph_ps(across_max_u16(&largest));
    let seen = ((1u32 << lanes.end) - (1 << lanes.start)) as u16;
    let some = _mm512_mask_cmp_ps_mask::<_CMP_NEQ_UQ>(seen, largest, _mm512_setzero_ps());
    // SAFETY: 16 numbers each.
    unsafe {
        _mm512_storeu_ps(scales, _mm512_maskz_mul_ps(some, largest, _mm512_set1_ps(1.0 / VALUE)));
        _mm512_storeu_ps(inverses, _mm512_maskz_div_ps(some, _mm512_set1_ps(VALUE), largest));
    }
}

/// The larger sizes: without their signs the bits of float16 are in the order of its numbers, NaN last.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn larger(sizes: __m512i, numbers: __m512i) -> __m512i {
    _mm512_max_epu16(sizes, _mm512_and_si512(numbers, _mm512_set1_epi16(i16::MAX)))
}

/// Lane i of the result is the largest number of vector i.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn across_max_u16(v: &[__m512i; 16]) -> __m256i {
    let mut halves = [_mm512_setzero_si512(); 2];
    for (v, half) in v.chunks_exact(8).zip(&mut halves) {
        let mut fours = [_mm512_setzero_si512(); 2];
        for (v, four) in v.chunks_exact(4).zip(&mut fours) {
            let ab = _mm512_max_epu16(_mm512_unpacklo_epi16(v[0], v[1]), _mm512_unpackhi_epi16(v[0], v[1]));
            let cd = _mm512_max_epu16(_mm512_unpacklo_epi16(v[2], v[3]), _mm512_unpackhi_epi16(v[2], v[3]));
            *four = _mm512_max_epu16(_mm512_unpacklo_epi32(ab, cd), _mm512_unpackhi_epi32(ab, cd));
        }
        let [a, b] = fours;
        *half = _mm512_max_epu16(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    }
    // Each half holds eight vectors' numbers in each of its quarters.
    let [a, b] = halves;
    let both = _mm512_max_epu16(_mm512_shuffle_i64x2::<0x44>(a, b), _mm512_shuffle_i64x2::<0xee>(a, b));
    let (even, odd) = (_mm512_shuffle_i64x2::<0x88>(both, both), _mm512_shuffle_i64x2::<0xdd>(both, both));
    _mm512_castsi512_si256(_mm512_max_epu16(even, odd))
}

#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn turn_values(values: *const f16, d: usize, lanes: Lanes, inverses: *const f32, out: *mut f32) {
    let values: *const u16 = values.cast();
    for token in (0..PAGE_TOKENS).step_by(2) {
        // SAFETY: two tokens of `d` numbers, two inverses, and `d` words.
        unsafe {
            let (values, out) = (values.add(token * d), out.add(token / 2 * d));
            let inverses = [*inverses.add(token), *inverses.add(token + 1)];
            let seen = [token, token + 1].map(|token| (lanes.start..lanes.end).contains(&token));
            match seen {
                [true, true] => pair::<true, true>(values, d, inverses, out),
                [true, false] => pair::<true, false>(values, d, inverses, out),
                [false, true] => pair::<false, true>(values, d, inverses, out),
                [false, false] => {}
            }
        }
    }
}

/// Words of two tokens' numbers, zeros of one that is not seen.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pair<const A: bool, const B: bool>(values: *const u16, d: usize, inverses: [f32; 2], out: *mut f32) {
    let whole = d - d % 16;
    // SAFETY: as the caller's; eight numbers may be left in the end.
    unsafe {
        for k in (0..whole).step_by(16) {
            pair_16::<A, B, 16>(values.add(k), d, inverses, out.add(k), u16::MAX);
        }
        if whole < d {
            pair_16::<A, B, 8>(values.add(whole), d, inverses, out.add(whole), 0xff);
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pair_16<const A: bool, const B: bool, const N: usize>(
    values: *const u16,
    d: usize,
    inverses: [f32; 2],
    out: *mut f32,
    mask: u16,
) {
    // SAFETY: the caller vouches for `N` numbers of each token and the words under the mask.
    unsafe {
        let (a, b) = (widen_16(values, if A { N } else { 0 }), widen_16(values.add(d), if B { N } else { 0 }));
        let a = _mm512_fmadd_ps(a, _mm512_set1_ps(inverses[0]), _mm512_set1_ps(ROUND));
        let b = _mm512_fmadd_ps(b, _mm512_set1_ps(inverses[1]), _mm512_set1_ps(ROUND));
        let b = _mm512_slli_epi32::<16>(_mm512_castps_si512(b));
        let words = _mm512_mask_blend_epi16(0xaaaa_aaaa, _mm512_castps_si512(a), b);
        _mm512_mask_storeu_epi32(out.cast(), mask, words);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq")]
unsafe fn weights(t: &WeightTile) {
    for first in (0..t.softmax.rows).step_by(TOGETHER) {
        // SAFETY: as of `softmax`, and 64 scales of each row.
        unsafe {
            match t.softmax.rows - first {
                1 => weight_rows::<1>(t, first),
                2 => weight_rows::<2>(t, first),
                3 => weight_rows::<3>(t, first),
                _ => weight_rows::<TOGETHER>(t, first),
            }
        }
    }
}

/// One online-softmax step of rows `first..first + R`, and their weights to integers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq")]
unsafe fn weight_rows<const R: usize>(t: &WeightTile, first: usize) {
    let lanes = avx512_softmax::lanes(t.softmax.seen);
    // SAFETY: as the caller's.
    unsafe {
        step::<R>(&t.softmax, first, |weights| {
            let (mut tops, mut sums) = ([_mm512_setzero_ps(); TOGETHER], [_mm512_setzero_ps(); TOGETHER]);
            for (row, w) in weights.iter_mut().enumerate() {
                let scales = t.scales.add((first + row) / t.group * WINDOW);
                for (i, w) in w.iter_mut().enumerate() {
                    // Of what a row does not see the scale may be anything.
                    let scales = _mm512_loadu_ps(scales.add(16 * i));
                    *w = _mm512_maskz_mul_ps((lanes >> (16 * i)) as u16, *w, scales);
                }
                tops[row] = _mm512_max_ps(_mm512_max_ps(w[0], w[1]), _mm512_max_ps(w[2], w[3]));
                sums[row] = _mm512_add_ps(_mm512_add_ps(w[0], w[1]), _mm512_add_ps(w[2], w[3]));
            }
            let by_largest = _mm_mul_ps(across_max(tops), _mm_set1_ps(1.0 / 32767.0));
            // Of a NaN and a number the second operand comes out, and the sum has all NaNs.
            let scale = _mm_max_ps(by_largest, _mm_mul_ps(across_add(sums), _mm_set1_ps(1.0 / SUM)));
            // True for a NaN.
            let some = _mm_cmpnlt_ps(scale, _mm_set1_ps(LOWEST));
            let inverse = _mm512_zextps128_ps512(_mm_and_ps(some, _mm_div_ps(_mm_set1_ps(1.0), scale)));
            let mut scales = [0f32; TOGETHER];
            _mm_storeu_ps(scales.as_mut_ptr(), _mm_and_ps(some, scale));
            for (row, w) in weights.iter().enumerate() {
                let inverse = _mm512_permutexvar_ps(_mm512_set1_epi32(row as i32), inverse);
                let out = t.softmax.scores.add((first + row) * WINDOW);
                _mm512_storeu_si512(out.cast(), round(w[0], w[1], inverse));
                _mm512_storeu_si512(out.add(16).cast(), round(w[2], w[3], inverse));
                *out.add(SCALE) = scales[row];
            }
        });
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn values(t: &IntegerTile) {
    // SAFETY: the caller checked all lengths of the tile; the tiles below stay inside it.
    unsafe { row_tiles!(t.rows, row, value_rows, [], (t, row)) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn value_rows<const R: usize>(t: &IntegerTile, row: usize) {
    // SAFETY: dimensions up to `d`; the last vector is masked to what is left.
    unsafe { dimension_tiles!(t.d, value_tile, R, (t, row)) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn value_tile<const R: usize, const C: usize>(t: &IntegerTile, row: usize, k: usize, mask: u16) {
    let mut sums = [[_mm512_setzero_si512(); C]; R];
    // SAFETY: rows `row..row + R`, dimensions `k..k + 16·C` under the mask.
    unsafe {
        let kept = t.sums.map(|sums| sums.add(row * t.d + k));
        if let Some(kept) = kept {
            for (r, sums) in sums.iter_mut().enumerate() {
                for (c, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm512_maskz_loadu_epi32(mask, kept.add(r * t.d + 16 * c));
                }
            }
        }
        let weights: *const i32 = t.weights.add(row * WINDOW).cast();
        for pair in t.pairs.start..t.pairs.end {
            let mut values = [_mm512_setzero_si512(); C];
            for (c, value) in values.iter_mut().enumerate() {
                *value = _mm512_maskz_loadu_epi32(mask, t.values.add(pair * t.d + k + 16 * c).cast());
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let weights = _mm512_set1_epi32(*weights.add(r * WINDOW + t.column / 2 + pair));
                for (sum, value) in sums.iter_mut().zip(values) {
                    // The saturating one, as in `vnni`.
                    *sum = _mm512_dpwssds_epi32(*sum, weights, value);
                }
            }
        }
        let Some(out) = t.out else {
            if let Some(kept) = kept {
                for (r, sums) in sums.iter().enumerate() {
                    for (c, sum) in sums.iter().enumerate() {
                        _mm512_mask_storeu_epi32(kept.add(r * t.d + 16 * c), mask, *sum);
                    }
                }
            }
            return;
        };
        for (r, sums) in sums.iter().enumerate() {
            let scale = _mm512_set1_ps(*t.weights.add((row + r) * WINDOW + SCALE));
            for (c, sum) in sums.iter().enumerate() {
                let out = out.add((row + r) * t.d + k + 16 * c);
                let both = _mm512_fmadd_ps(_mm512_cvtepi32_ps(*sum), scale, _mm512_maskz_loadu_ps(mask, out));
                _mm512_mask_storeu_ps(out, mask, both);
            }
        }
    }
}
