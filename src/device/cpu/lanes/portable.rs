//! The reference: plain arrays, no instruction set beyond the target's own.

use super::{LANES, Lanes};

#[derive(Clone, Copy)]
pub struct Portable;

#[inline(always)]
fn map(f: impl Fn(usize) -> f32) -> [f32; LANES] {
    std::array::from_fn(f)
}

// SAFETY: uses nothing that the target may lack.
unsafe impl Lanes for Portable {
    type F = [f32; LANES];
    type I = [i32; LANES];
    type B = [u8; 64];

    const SIGNED_BIAS: i32 = 0;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        // SAFETY: the caller gives 16 numbers.
        unsafe { p.cast::<Self::F>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::F) {
        // SAFETY: the caller gives room for 16 numbers.
        unsafe { p.cast::<Self::F>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::F {
        // SAFETY: the caller gives 16 numbers.
        let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        map(|i| half::f16::from_bits(bits[i]).to_f32())
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self::F {
        // SAFETY: the caller gives 16 numbers.
        let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        map(|i| f32::from_bits((bits[i] as u32) << 16))
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Self::F {
        // SAFETY: the caller gives 16 bytes.
        let bytes = unsafe { p.cast::<[u8; LANES]>().read_unaligned() };
        map(|i| bytes[i] as f32)
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self::F {
        // SAFETY: the caller gives 16 bytes.
        let bytes = unsafe { p.cast::<[i8; LANES]>().read_unaligned() };
        map(|i| bytes[i] as f32)
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        map(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        map(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        map(|i| a[i] - b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        map(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        map(|i| a[i] / b[i])
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        map(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        map(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn abs(a: Self::F) -> Self::F {
        map(|i| a[i].abs())
    }
    #[inline(always)]
    unsafe fn exp2_shifted(shifted: Self::F) -> Self::F {
        map(|i| f32::from_bits(shifted[i].to_bits().wrapping_add(127) << 23))
    }
    #[inline(always)]
    unsafe fn store_rounded(p: *mut i8, v: Self::F) -> i32 {
        let rounded: [i8; LANES] = std::array::from_fn(|i| v[i].round_ties_even() as i8);
        // SAFETY: the caller gives room for 16 bytes.
        unsafe { p.cast::<[i8; LANES]>().write_unaligned(rounded) };
        rounded.iter().map(|&x| x as i32).sum()
    }
    #[inline(always)]
    unsafe fn splat_int(x: i32) -> Self::I {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn to_float(v: Self::I) -> Self::F {
        map(|i| v[i] as f32)
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> Self::B {
        // SAFETY: the caller gives 64 bytes.
        unsafe { p.cast::<Self::B>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn bits<const SHIFT: i32>(b: Self::B, mask: u8) -> Self::B {
        b.map(|x| (x >> SHIFT) & mask)
    }
    #[inline(always)]
    unsafe fn or_shifted<const SHIFT: i32>(a: Self::B, b: Self::B) -> Self::B {
        std::array::from_fn(|i| a[i] | (b[i] << SHIFT))
    }
    #[inline(always)]
    unsafe fn set_where(a: Self::B, which: u64, bit: u8) -> Self::B {
        std::array::from_fn(|i| if which >> i & 1 == 1 { a[i] | bit } else { a[i] })
    }
    #[inline(always)]
    unsafe fn widen<const K: i32>(b: Self::B) -> Self::F {
        map(|i| b[4 * i + K as usize] as i8 as f32)
    }
    #[inline(always)]
    unsafe fn dot_small(acc: Self::I, w: Self::B, x: *const i8) -> Self::I {
        // SAFETY: the caller gives four codes.
        let x = unsafe { x.cast::<[i8; 4]>().read_unaligned() };
        std::array::from_fn(|i| acc[i] + (0..4).map(|k| w[4 * i + k] as i8 as i32 * x[k] as i32).sum::<i32>())
    }
    #[inline(always)]
    unsafe fn prepare_signed(w: Self::B) -> Self::B {
        w
    }
    #[inline(always)]
    unsafe fn dot_signed(acc: Self::I, w: Self::B, x: *const i8) -> Self::I {
        // SAFETY: as the caller promises.
        unsafe { Self::dot_small(acc, w, x) }
    }
}
