//! Sixteen numbers at a time, in one arithmetic for every instruction set.
//!
//! A kernel is written once over [`Lanes`] and compiled once per instruction set ([`super::simd`]). Every operation here is
//! exact or correctly rounded (a fused multiply-add rounds once), so the same kernel gives the same bits on all of them:
//! the portable form is the reference of the others, and tests demand equality. Nothing here knows about matrices.

pub mod portable;

#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;
#[cfg(target_arch = "aarch64")]
pub mod neon;

/// Lanes in a vector; also the rows of a weight tile.
pub const LANES: usize = 16;

/// One instruction set.
///
/// # Safety
///
/// Every function may use instructions that the machine lacks: call them only below [`super::simd::Simd::run`], which has
/// checked. Pointers must be valid for the stated count of elements; no alignment is asked.
pub unsafe trait Lanes: Copy + 'static {
    /// 16 × f32.
    type F: Copy;
    /// 16 × i32.
    type I: Copy;
    /// 64 bytes: four consecutive codes for each of 16 lanes.
    type B: Copy;

    /// What `dot_signed` with a zero start gives too much, per unit of the sum of `x`: its users start at `-BIAS · Σx`.
    const SIGNED_BIAS: i32;

    unsafe fn splat(x: f32) -> Self::F;
    unsafe fn load(p: *const f32) -> Self::F;
    unsafe fn store(p: *mut f32, v: Self::F);
    unsafe fn load_f16(p: *const u16) -> Self::F;
    unsafe fn load_bf16(p: *const u16) -> Self::F;
    /// 16 unsigned, or signed, bytes as numbers.
    unsafe fn load_u8(p: *const u8) -> Self::F;
    unsafe fn load_i8(p: *const i8) -> Self::F;
    /// `a · b + c`, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a > b ? a : b`: a NaN in `b` stays.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// `a < b ? a : b`: a NaN in `b` stays.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn abs(a: Self::F) -> Self::F;
    /// 2ⁿ where `shifted` is `n + 1.5·2²³` and -126 <= n <= 127.
    unsafe fn exp2_shifted(shifted: Self::F) -> Self::F;
    /// Rounds to the nearest integer (ties to even), stores as bytes, gives their sum. |v| must round to at most 127.
    unsafe fn store_rounded(p: *mut i8, v: Self::F) -> i32;

    unsafe fn splat_int(x: i32) -> Self::I;
    unsafe fn to_float(v: Self::I) -> Self::F;

    unsafe fn load_bytes(p: *const u8) -> Self::B;
    /// Asks for `64 · COUNT` bytes to be brought near; any address will do, and nothing may come of it.
    #[inline(always)]
    fn prefetch<const COUNT: usize>(p: *const u8) {
        #[cfg(target_arch = "x86_64")]
        for line in 0..COUNT {
            // SAFETY: SSE is part of x86-64, and a prefetch never faults.
            unsafe {
                std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.wrapping_add(64 * line).cast())
            };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = p;
    }
    /// `(b >> SHIFT) & mask` in every byte.
    unsafe fn bits<const SHIFT: i32>(b: Self::B, mask: u8) -> Self::B;
    /// `a | b << SHIFT` in every byte; no bit may cross its byte.
    unsafe fn or_shifted<const SHIFT: i32>(a: Self::B, b: Self::B) -> Self::B;
    /// Sets `bit` in every byte whose bit in `which` is set.
    unsafe fn set_where(a: Self::B, which: u64, bit: u8) -> Self::B;
    /// Byte `k` (0..4) of each lane, as a signed number.
    unsafe fn widen<const K: i32>(b: Self::B) -> Self::F;
    /// Each lane gains `Σ w[k] · x[k]` over its four codes; codes at most 127, `x[0..4]` the same for all lanes.
    unsafe fn dot_small(acc: Self::I, w: Self::B, x: *const i8) -> Self::I;
    /// Brings signed codes into the form that `dot_signed` takes.
    unsafe fn prepare_signed(w: Self::B) -> Self::B;
    /// As `dot_small`, for prepared signed codes, plus `SIGNED_BIAS · Σx`; x at least -127.
    unsafe fn dot_signed(acc: Self::I, w: Self::B, x: *const i8) -> Self::I;
}

/// Sum of the lanes, in one fixed order: halves are folded onto each other.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub unsafe fn sum<L: Lanes>(v: L::F) -> f32 {
    let mut a = [0f32; LANES];
    // SAFETY: the array holds 16 numbers; the caller answers for the instruction set.
    unsafe { L::store(a.as_mut_ptr(), v) };
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            a[i] += a[i + width];
        }
        width /= 2;
    }
    a[0]
}

/// Largest lane. NaNs may be lost.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub unsafe fn largest<L: Lanes>(v: L::F) -> f32 {
    let mut a = [0f32; LANES];
    // SAFETY: as in `sum`.
    unsafe { L::store(a.as_mut_ptr(), v) };
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            a[i] = if a[i] > a[i + width] { a[i] } else { a[i + width] };
        }
        width /= 2;
    }
    a[0]
}

/// eˣ to about 2 ulp, x held to [-87.3, 88]; NaN stays NaN. Coefficients: Cephes `expf`.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub unsafe fn exp<L: Lanes>(x: L::F) -> L::F {
    // SAFETY: only arithmetic on values; the caller answers for the instruction set.
    unsafe {
        const SHIFT: f32 = 12_582_912.0;
        let x = L::min(L::splat(88.0), L::max(L::splat(-87.3), x));
        let shifted = L::fma(x, L::splat(std::f32::consts::LOG2_E), L::splat(SHIFT));
        let n = L::sub(shifted, L::splat(SHIFT));
        let r = L::fma(n, L::splat(-0.693_359_4), x);
        let r = L::fma(n, L::splat(2.121_944_4e-4), r);
        let mut p = L::splat(1.987_569_1e-4);
        for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
            p = L::fma(p, r, L::splat(c));
        }
        let p = L::fma(p, L::mul(r, r), L::add(r, L::splat(1.0)));
        L::mul(p, L::exp2_shifted(shifted))
    }
}

/// `g / (1 + e⁻ᵍ)`.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub unsafe fn silu<L: Lanes>(g: L::F) -> L::F {
    // SAFETY: only arithmetic on values; the caller answers for the instruction set.
    unsafe {
        let e = exp::<L>(L::sub(L::splat(0.0), g));
        L::div(g, L::add(L::splat(1.0), e))
    }
}

#[cfg(test)]
mod tests {
    use super::super::simd::{Kernel, Simd};
    use super::*;

    struct Functions<'a>(&'a [f32], &'a mut Vec<u32>);

    impl Kernel for Functions<'_> {
        type Output = ();

        #[inline(always)]
        fn run<L: Lanes>(self) {
            for x in self.0.chunks_exact(LANES) {
                // SAFETY: every chunk and every buffer holds 16 elements.
                unsafe {
                    let mut out = [0f32; LANES];
                    let v = L::load(x.as_ptr());
                    for f in [exp::<L>(v), silu::<L>(v), L::abs(v), L::max(v, L::splat(0.5)), L::min(v, L::splat(0.5))]
                    {
                        L::store(out.as_mut_ptr(), f);
                        self.1.extend(out.iter().map(|x| x.to_bits()));
                    }
                    let mut bytes = [0i8; LANES];
                    let clipped = L::min(L::splat(127.0), L::max(L::splat(-127.0), v));
                    self.1.push(L::store_rounded(bytes.as_mut_ptr(), clipped) as u32);
                    self.1.extend(bytes.iter().map(|&b| b as u32));
                    self.1.push(sum::<L>(v).to_bits());
                    self.1.push(largest::<L>(v).to_bits());
                }
            }
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let xs: Vec<f32> = (0..4096).map(|i| (i as f32 - 2048.0) * 0.0517 + 0.001 * (i % 7) as f32).collect();
        let run = |simd: Simd| {
            let mut out = Vec::new();
            simd.run(Functions(&xs, &mut out));
            out
        };
        let expected = run(Simd::PORTABLE);
        for simd in Simd::available() {
            assert!(run(simd) == expected, "{simd}");
        }
        for (chunk, x) in expected.chunks_exact(5 * LANES + LANES + 3).zip(xs.chunks_exact(LANES)) {
            for (lane, &x) in x.iter().enumerate() {
                let exact = (x.clamp(-87.3, 88.0) as f64).exp();
                let found = f32::from_bits(chunk[lane]) as f64;
                assert!(((found - exact) / exact).abs() < 3e-7, "exp({x}) = {found}, not {exact}");
            }
        }
    }

    #[test]
    fn nan_stays_nan() {
        for simd in Simd::available() {
            let mut out = Vec::new();
            simd.run(Functions(&[f32::NAN; LANES], &mut out));
            assert!(f32::from_bits(out[0]).is_nan() && f32::from_bits(out[LANES]).is_nan(), "{simd}");
        }
    }
}
