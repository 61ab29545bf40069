//! NEON: four registers a vector. Untested on an aarch64 machine: it gave the portable form's bits under emulation only.

use super::Lanes;
use std::arch::aarch64::*;

/// The base instruction set of aarch64.
#[derive(Clone, Copy)]
pub struct Neon;

#[inline(always)]
unsafe fn each<T: Copy, U>(a: [T; 4], f: impl Fn(T) -> U) -> [U; 4] {
    a.map(f)
}

#[inline(always)]
unsafe fn both<T: Copy, U: Copy, V>(a: [T; 4], b: [U; 4], f: impl Fn(T, U) -> V) -> [V; 4] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

// SAFETY: NEON is part of every aarch64 target.
#[expect(clippy::undocumented_unsafe_blocks, reason = "each function is a few instructions under the trait's contract")]
unsafe impl Lanes for Neon {
    type F = [float32x4_t; 4];
    type I = [int32x4_t; 4];
    type B = [uint8x16_t; 4];

    const SIGNED_BIAS: i32 = 0;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        unsafe { [vdupq_n_f32(x); 4] }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        unsafe { [0, 4, 8, 12].map(|at| vld1q_f32(p.add(at))) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::F) {
        unsafe {
            for (i, v) in v.into_iter().enumerate() {
                vst1q_f32(p.add(4 * i), v);
            }
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::F {
        unsafe {
            let bits = p.cast::<[u16; 16]>().read_unaligned();
            let wide = bits.map(|b| half::f16::from_bits(b).to_f32());
            Self::load(wide.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self::F {
        unsafe { [0, 4, 8, 12].map(|at| vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p.add(at))))) }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Self::F {
        unsafe {
            let bytes = vld1q_u8(p);
            let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_u8(vget_high_u8(bytes)));
            [
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))),
                vcvtq_f32_u32(vmovl_u16(vget_high_u16(low))),
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))),
                vcvtq_f32_u32(vmovl_u16(vget_high_u16(high))),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self::F {
        unsafe {
            let bytes = vld1q_s8(p);
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes)));
            [
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                vcvtq_f32_s32(vmovl_s16(vget_high_s16(high))),
            ]
        }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        unsafe { std::array::from_fn(|i| vfmaq_f32(c[i], a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        unsafe { both(a, b, |a, b| vaddq_f32(a, b)) }
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        unsafe { both(a, b, |a, b| vsubq_f32(a, b)) }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        unsafe { both(a, b, |a, b| vmulq_f32(a, b)) }
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        unsafe { both(a, b, |a, b| vdivq_f32(a, b)) }
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        unsafe { both(a, b, |a, b| vbslq_f32(vcgtq_f32(a, b), a, b)) }
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        unsafe { both(a, b, |a, b| vbslq_f32(vcltq_f32(a, b), a, b)) }
    }
    #[inline(always)]
    unsafe fn abs(a: Self::F) -> Self::F {
        unsafe { each(a, |a| vabsq_f32(a)) }
    }
    #[inline(always)]
    unsafe fn exp2_shifted(shifted: Self::F) -> Self::F {
        unsafe {
            each(shifted, |s| {
                let biased = vaddq_u32(vreinterpretq_u32_f32(s), vdupq_n_u32(127));
                vreinterpretq_f32_u32(vshlq_n_u32::<23>(biased))
            })
        }
    }
    #[inline(always)]
    unsafe fn store_rounded(p: *mut i8, v: Self::F) -> i32 {
        unsafe {
            let r = each(v, |v| vcvtnq_s32_f32(v));
            let low = vcombine_s16(vqmovn_s32(r[0]), vqmovn_s32(r[1]));
            let high = vcombine_s16(vqmovn_s32(r[2]), vqmovn_s32(r[3]));
            vst1q_s8(p, vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)));
            vaddvq_s32(vaddq_s32(vaddq_s32(r[0], r[1]), vaddq_s32(r[2], r[3])))
        }
    }
    #[inline(always)]
    unsafe fn splat_int(x: i32) -> Self::I {
        unsafe { [vdupq_n_s32(x); 4] }
    }
    #[inline(always)]
    unsafe fn to_float(v: Self::I) -> Self::F {
        unsafe { each(v, |v| vcvtq_f32_s32(v)) }
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> Self::B {
        unsafe { [0, 16, 32, 48].map(|at| vld1q_u8(p.add(at))) }
    }
    #[inline(always)]
    unsafe fn bits<const SHIFT: i32>(b: Self::B, mask: u8) -> Self::B {
        unsafe { each(b, |b| vandq_u8(vshlq_u8(b, vdupq_n_s8(-(SHIFT as i8))), vdupq_n_u8(mask))) }
    }
    #[inline(always)]
    unsafe fn or_shifted<const SHIFT: i32>(a: Self::B, b: Self::B) -> Self::B {
        unsafe { both(a, b, |a, b| vorrq_u8(a, vshlq_u8(b, vdupq_n_s8(SHIFT as i8)))) }
    }
    #[inline(always)]
    unsafe fn set_where(a: Self::B, which: u64, bit: u8) -> Self::B {
        unsafe {
            let each_bit = vld1_u8([1u8, 2, 4, 8, 16, 32, 64, 128].as_ptr());
            let tests = vcombine_u8(each_bit, each_bit);
            std::array::from_fn(|i| {
                let part = (which >> (16 * i)) as u16;
                let bytes = vcombine_u8(vdup_n_u8(part as u8), vdup_n_u8((part >> 8) as u8));
                vorrq_u8(a[i], vandq_u8(vtstq_u8(bytes, tests), vdupq_n_u8(bit)))
            })
        }
    }
    #[inline(always)]
    unsafe fn widen<const K: i32>(b: Self::B) -> Self::F {
        unsafe {
            each(b, |b| {
                let up = vshlq_s32(vreinterpretq_s32_u8(b), vdupq_n_s32(24 - 8 * K));
                vcvtq_f32_s32(vshrq_n_s32::<24>(up))
            })
        }
    }
    #[inline(always)]
    unsafe fn dot_small(acc: Self::I, w: Self::B, x: *const i8) -> Self::I {
        unsafe {
            let x = vreinterpretq_s8_s32(vdupq_n_s32(x.cast::<i32>().read_unaligned()));
            both(acc, w, |acc, w| {
                let w = vreinterpretq_s8_u8(w);
                let low = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)));
                let high = vpaddlq_s16(vmull_high_s8(w, x));
                vaddq_s32(acc, vpaddq_s32(low, high))
            })
        }
    }
    #[inline(always)]
    unsafe fn prepare_signed(w: Self::B) -> Self::B {
        w
    }
    #[inline(always)]
    unsafe fn dot_signed(acc: Self::I, w: Self::B, x: *const i8) -> Self::I {
        unsafe { Self::dot_small(acc, w, x) }
    }
}
