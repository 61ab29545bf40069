//! Which instruction sets this machine has, and how a kernel is run on one of them.

use super::lanes::Lanes;
use super::lanes::portable::Portable;
use std::fmt;

/// A kernel written over [`Lanes`]. `run` must be `#[inline(always)]`, so that it is compiled for each instruction set.
pub(crate) trait Kernel {
    type Output;
    fn run<L: Lanes>(self) -> Self::Output;
}

/// An instruction set that this machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Simd(Set);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Set {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx2Vnni,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// `Avx512`, and tiles for int8 products of several rows.
    #[cfg(target_arch = "x86_64")]
    Amx,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Simd {
    /// Plain code: every machine has it.
    pub const PORTABLE: Self = Self(Set::Portable);

    /// The best one here.
    pub fn best() -> Self {
        Self::available().pop().unwrap_or(Self::PORTABLE)
    }

    /// All that this machine has, best last.
    pub fn available() -> Vec<Self> {
        let mut found = vec![Self::PORTABLE];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
                found.push(Self(Set::Avx2));
                if is_x86_feature_detected!("avxvnni") {
                    found.push(Self(Set::Avx2Vnni));
                }
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
                {
                    found.push(Self(Set::Avx512));
                    if super::amx::available() {
                        found.push(Self(Set::Amx));
                    }
                }
            }
        }
        #[cfg(target_arch = "aarch64")]
        found.push(Self(Set::Neon));
        found
    }

    pub fn name(self) -> &'static str {
        match self.0 {
            Set::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2Vnni => "avx2-vnni",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => "avx512-vnni",
            #[cfg(target_arch = "x86_64")]
            Set::Amx => "amx-int8",
            #[cfg(target_arch = "aarch64")]
            Set::Neon => "neon",
        }
    }

    /// Whether int8 products of several rows go through tiles.
    pub(crate) fn has_tiles(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.0 == Set::Amx;
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Runs `kernel` compiled for this instruction set.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            Set::Portable => kernel.run::<Portable>(),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Simd` is only made by `available`, which has asked the machine for these features.
            Set::Avx2 => unsafe { x86::avx2(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Set::Avx2Vnni => unsafe { x86::avx2_vnni(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Set::Avx512 | Set::Amx => unsafe { x86::avx512(kernel) },
            #[cfg(target_arch = "aarch64")]
            Set::Neon => kernel.run::<super::lanes::neon::Neon>(),
        }
    }
}

impl fmt::Display for Simd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::lanes::{avx2::Avx2, avx512::Avx512};
    use super::Kernel;

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn avx2<K: Kernel>(kernel: K) -> K::Output {
        kernel.run::<Avx2<false>>()
    }

    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    pub fn avx2_vnni<K: Kernel>(kernel: K) -> K::Output {
        kernel.run::<Avx2<true>>()
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
    pub fn avx512<K: Kernel>(kernel: K) -> K::Output {
        kernel.run::<Avx512>()
    }
}
