//! AVX-512 with VNNI: one register a vector, `vpdpbusd` for the products.

use super::Lanes;
use std::arch::x86_64::*;

/// avx512f, avx512bw, avx512vl, avx512vnni, fma, f16c.
#[derive(Clone, Copy)]
pub struct Avx512;

// SAFETY: the instructions used are those named above; the trait's callers have checked for them.
#[expect(clippy::undocumented_unsafe_blocks, reason = "each function is one instruction under the trait's contract")]
unsafe impl Lanes for Avx512 {
    type F = __m512;
    type I = __m512i;
    type B = __m512i;

    /// `vpdpbusd` takes unsigned weights, so signed ones are moved up by 128.
    const SIGNED_BIAS: i32 = 128;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::F) {
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::F {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self::F {
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast())))) }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Self::F {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self::F {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn abs(a: Self::F) -> Self::F {
        unsafe { _mm512_abs_ps(a) }
    }
    #[inline(always)]
    unsafe fn exp2_shifted(shifted: Self::F) -> Self::F {
        unsafe {
            let biased = _mm512_add_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }
    #[inline(always)]
    unsafe fn store_rounded(p: *mut i8, v: Self::F) -> i32 {
        unsafe {
            let rounded = _mm512_cvtps_epi32(v);
            _mm_storeu_si128(p.cast(), _mm512_cvtsepi32_epi8(rounded));
            _mm512_reduce_add_epi32(rounded)
        }
    }
    #[inline(always)]
    unsafe fn splat_int(x: i32) -> Self::I {
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    unsafe fn to_float(v: Self::I) -> Self::F {
        unsafe { _mm512_cvtepi32_ps(v) }
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> Self::B {
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn bits<const SHIFT: i32>(b: Self::B, mask: u8) -> Self::B {
        unsafe {
            let count = _mm_cvtsi32_si128(SHIFT);
            _mm512_and_si512(_mm512_srl_epi16(b, count), _mm512_set1_epi8(mask as i8))
        }
    }
    #[inline(always)]
    unsafe fn or_shifted<const SHIFT: i32>(a: Self::B, b: Self::B) -> Self::B {
        unsafe { _mm512_or_si512(a, _mm512_sll_epi16(b, _mm_cvtsi32_si128(SHIFT))) }
    }
    #[inline(always)]
    unsafe fn set_where(a: Self::B, which: u64, bit: u8) -> Self::B {
        unsafe { _mm512_or_si512(a, _mm512_maskz_set1_epi8(which, bit as i8)) }
    }
    #[inline(always)]
    unsafe fn widen<const K: i32>(b: Self::B) -> Self::F {
        unsafe {
            let up = _mm512_sll_epi32(b, _mm_cvtsi32_si128(24 - 8 * K));
            _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(up))
        }
    }
    #[inline(always)]
    unsafe fn dot_small(acc: Self::I, w: Self::B, x: *const i8) -> Self::I {
        unsafe { _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(x.cast::<i32>().read_unaligned())) }
    }
    #[inline(always)]
    unsafe fn prepare_signed(w: Self::B) -> Self::B {
        unsafe { _mm512_xor_si512(w, _mm512_set1_epi8(-128)) }
    }
    #[inline(always)]
    unsafe fn dot_signed(acc: Self::I, w: Self::B, x: *const i8) -> Self::I {
        unsafe { Self::dot_small(acc, w, x) }
    }
}
