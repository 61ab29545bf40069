//! What the machine can do at most, measured beside the kernels: copying memory, and float32 multiply-adds.

use crate::device::cpu::attend::ParallelFor;
use std::time::Instant;

/// Bytes of each half of the copy: beyond most last-level caches.
pub const COPY_BYTES: usize = 256 << 20;
const COPIES: usize = 3;

/// Bytes a second read plus written by copying a buffer of `bytes` on `threads` threads; the best of three.
pub fn copy_bandwidth(threads: usize, bytes: usize, parallel: ParallelFor<'_>) -> f64 {
    let from = vec![1u8; bytes];
    let mut to = vec![0u8; bytes];
    let target = to.as_mut_ptr() as usize;
    let part = bytes / threads.max(1);
    let mut best = f64::INFINITY;
    for _ in 0..COPIES {
        let start = Instant::now();
        parallel(threads, &|i| {
            let from = &from[i * part..(i + 1) * part];
            // SAFETY: the parts are disjoint ranges of `to`, which outlives the call and is not read during it.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), (target + i * part) as *mut u8, part) };
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    std::hint::black_box(&to);
    2.0 * (part * threads) as f64 / best
}

/// Float32 multiply-adds a second on `threads` threads with the widest vectors the kernels use; the best of three.
pub fn multiply_adds(threads: usize, parallel: ParallelFor<'_>) -> f64 {
    let mut best = 0f64;
    for _ in 0..3 {
        let start = Instant::now();
        parallel(threads, &|_| {
            std::hint::black_box(chains());
        });
        best = best.max((ROUNDS * adds_a_round() * threads) as f64 / start.elapsed().as_secs_f64());
    }
    best
}

const ROUNDS: usize = 4_000_000;
/// Independent chains: enough for two units with a latency of five cycles.
const CHAINS: usize = 12;

#[cfg(target_arch = "x86_64")]
fn adds_a_round() -> usize {
    if is_x86_feature_detected!("avx512f") {
        CHAINS * 16
    } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        CHAINS * 8
    } else {
        CHAINS
    }
}

#[cfg(target_arch = "x86_64")]
fn chains() -> f32 {
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the feature is there.
        unsafe { chains_512() }
    } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: the features are there.
        unsafe { chains_256() }
    } else {
        chains_plain()
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn adds_a_round() -> usize {
    CHAINS
}

#[cfg(not(target_arch = "x86_64"))]
fn chains() -> f32 {
    chains_plain()
}

fn chains_plain() -> f32 {
    let (a, b) = std::hint::black_box((0.999f32, 0.002f32));
    let mut sums = std::hint::black_box([1f32; CHAINS]);
    for _ in 0..ROUNDS {
        sums.iter_mut().for_each(|s| *s = *s * a + b);
    }
    sums.iter().sum()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn chains_512() -> f32 {
    use std::arch::x86_64::*;
    let (a, b) = std::hint::black_box((_mm512_set1_ps(0.999), _mm512_set1_ps(0.002)));
    let mut sums = std::hint::black_box([_mm512_set1_ps(1.0); CHAINS]);
    for _ in 0..ROUNDS {
        for s in &mut sums {
            *s = _mm512_fmadd_ps(*s, a, b);
        }
    }
    sums.into_iter().map(|s| _mm512_reduce_add_ps(s)).sum()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn chains_256() -> f32 {
    use std::arch::x86_64::*;
    let (a, b) = std::hint::black_box((_mm256_set1_ps(0.999), _mm256_set1_ps(0.002)));
    let mut sums = std::hint::black_box([_mm256_set1_ps(1.0); CHAINS]);
    for _ in 0..ROUNDS {
        for s in &mut sums {
            *s = _mm256_fmadd_ps(*s, a, b);
        }
    }
    sums.into_iter().map(|s| _mm_cvtss_f32(_mm256_castps256_ps128(s))).sum()
}
