//! AVX2, FMA and F16C: two registers a vector. With AVX-VNNI the products are one instruction, else three.

use super::Lanes;
use std::arch::x86_64::*;

/// avx2, fma, f16c; and avxvnni where `VNNI`.
#[derive(Clone, Copy)]
pub struct Avx2<const VNNI: bool>;

#[inline(always)]
unsafe fn dot<const VNNI: bool>(acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
    // SAFETY: under the trait's contract.
    unsafe {
        if VNNI {
            _mm256_dpbusd_avx_epi32(acc, w, x)
        } else {
            // At most 2 · 127 · 127 (or 2 · 128 · 127) a pair: the 16-bit sums cannot saturate.
            let pairs = _mm256_maddubs_epi16(w, x);
            _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }
}

#[inline(always)]
unsafe fn four(x: *const i8) -> __m256i {
    // SAFETY: the caller gives four codes.
    unsafe { _mm256_set1_epi32(x.cast::<i32>().read_unaligned()) }
}

// SAFETY: the instructions used are those named above; the trait's callers have checked for them.
#[expect(clippy::undocumented_unsafe_blocks, reason = "each function is a few instructions under the trait's contract")]
unsafe impl<const VNNI: bool> Lanes for Avx2<VNNI> {
    type F = [__m256; 2];
    type I = [__m256i; 2];
    type B = [__m256i; 2];

    /// Signed products go through |w| and x with the sign of w.
    const SIGNED_BIAS: i32 = 0;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::F) {
        unsafe {
            _mm256_storeu_ps(p, v[0]);
            _mm256_storeu_ps(p.add(8), v[1]);
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::F {
        unsafe { [_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast()))] }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self::F {
        unsafe {
            let (a, b) = (_mm_loadu_si128(p.cast()), _mm_loadu_si128(p.add(8).cast()));
            let (a, b) = (_mm256_cvtepu16_epi32(a), _mm256_cvtepu16_epi32(b));
            [_mm256_castsi256_ps(_mm256_slli_epi32::<16>(a)), _mm256_castsi256_ps(_mm256_slli_epi32::<16>(b))]
        }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Self::F {
        unsafe {
            let (a, b) = (_mm_loadl_epi64(p.cast()), _mm_loadl_epi64(p.add(8).cast()));
            [_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(a)), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(b))]
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self::F {
        unsafe {
            let (a, b) = (_mm_loadl_epi64(p.cast()), _mm_loadl_epi64(p.add(8).cast()));
            [_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(a)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b))]
        }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        unsafe { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        unsafe { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        unsafe { [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn abs(a: Self::F) -> Self::F {
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            [_mm256_andnot_ps(sign, a[0]), _mm256_andnot_ps(sign, a[1])]
        }
    }
    #[inline(always)]
    unsafe fn exp2_shifted(shifted: Self::F) -> Self::F {
        unsafe {
            let bias = _mm256_set1_epi32(127);
            let a = _mm256_add_epi32(_mm256_castps_si256(shifted[0]), bias);
            let b = _mm256_add_epi32(_mm256_castps_si256(shifted[1]), bias);
            [_mm256_castsi256_ps(_mm256_slli_epi32::<23>(a)), _mm256_castsi256_ps(_mm256_slli_epi32::<23>(b))]
        }
    }
    #[inline(always)]
    unsafe fn store_rounded(p: *mut i8, v: Self::F) -> i32 {
        unsafe {
            let (a, b) = (_mm256_cvtps_epi32(v[0]), _mm256_cvtps_epi32(v[1]));
            // Packing works inside 128-bit halves: bring the four groups of four back into order.
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(a, b));
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(p.cast(), bytes);
            let eight = _mm256_add_epi32(a, b);
            let four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256::<1>(eight));
            let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
            _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two)))
        }
    }
    #[inline(always)]
    unsafe fn splat_int(x: i32) -> Self::I {
        unsafe { [_mm256_set1_epi32(x); 2] }
    }
    #[inline(always)]
    unsafe fn to_float(v: Self::I) -> Self::F {
        unsafe { [_mm256_cvtepi32_ps(v[0]), _mm256_cvtepi32_ps(v[1])] }
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> Self::B {
        unsafe { [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())] }
    }
    #[inline(always)]
    unsafe fn bits<const SHIFT: i32>(b: Self::B, mask: u8) -> Self::B {
        unsafe {
            let count = _mm_cvtsi32_si128(SHIFT);
            let mask = _mm256_set1_epi8(mask as i8);
            [
                _mm256_and_si256(_mm256_srl_epi16(b[0], count), mask),
                _mm256_and_si256(_mm256_srl_epi16(b[1], count), mask),
            ]
        }
    }
    #[inline(always)]
    unsafe fn or_shifted<const SHIFT: i32>(a: Self::B, b: Self::B) -> Self::B {
        unsafe {
            let count = _mm_cvtsi32_si128(SHIFT);
            [_mm256_or_si256(a[0], _mm256_sll_epi16(b[0], count)), _mm256_or_si256(a[1], _mm256_sll_epi16(b[1], count))]
        }
    }
    #[inline(always)]
    unsafe fn set_where(a: Self::B, which: u64, bit: u8) -> Self::B {
        unsafe {
            // Byte i of a register takes bit i of its 32: spread the mask's bytes, then test one bit in each.
            let spread = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
            let each = _mm256_set1_epi64x(0x8040_2010_0804_0201u64 as i64);
            let value = _mm256_set1_epi8(bit as i8);
            let (low, high) = (_mm256_set1_epi32(which as i32), _mm256_set1_epi32((which >> 32) as i32));
            let (low, high) = (_mm256_shuffle_epi8(low, spread), _mm256_shuffle_epi8(high, spread));
            let low = _mm256_cmpeq_epi8(_mm256_and_si256(low, each), each);
            let high = _mm256_cmpeq_epi8(_mm256_and_si256(high, each), each);
            [_mm256_or_si256(a[0], _mm256_and_si256(low, value)), _mm256_or_si256(a[1], _mm256_and_si256(high, value))]
        }
    }
    #[inline(always)]
    unsafe fn widen<const K: i32>(b: Self::B) -> Self::F {
        unsafe {
            let count = _mm_cvtsi32_si128(24 - 8 * K);
            let (a, b) = (_mm256_sll_epi32(b[0], count), _mm256_sll_epi32(b[1], count));
            [_mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(a)), _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(b))]
        }
    }
    #[inline(always)]
    unsafe fn dot_small(acc: Self::I, w: Self::B, x: *const i8) -> Self::I {
        unsafe {
            let x = four(x);
            [dot::<VNNI>(acc[0], w[0], x), dot::<VNNI>(acc[1], w[1], x)]
        }
    }
    #[inline(always)]
    unsafe fn prepare_signed(w: Self::B) -> Self::B {
        w
    }
    #[inline(always)]
    unsafe fn dot_signed(acc: Self::I, w: Self::B, x: *const i8) -> Self::I {
        unsafe {
            let x = four(x);
            [
                dot::<VNNI>(acc[0], _mm256_abs_epi8(w[0]), _mm256_sign_epi8(x, w[0])),
                dot::<VNNI>(acc[1], _mm256_abs_epi8(w[1]), _mm256_sign_epi8(x, w[1])),
            ]
        }
    }
}
