//! Exact attention scores over the host tier: for the exactness meter, for H2O's running sums, and for benchmarks.

use super::attend::KvLayer;
use crate::device::tiers::Run;
use crate::kv::PAGE_TOKENS;
use half::slice::HalfFloatSliceExt;

/// `into[token]` = q·k / sqrt(d) for the first `past` tokens of a path, for one query `[d]`.
pub fn scores(
    cold: KvLayer<'_>,
    (kv_heads, kv_head): (usize, usize),
    runs: &[Run],
    past: usize,
    q: &[f32],
    into: &mut [f32],
) {
    let d = q.len();
    let scale = 1.0 / (d as f32).sqrt();
    let mut widened = vec![0f32; PAGE_TOKENS * d];
    for run in runs.iter().take_while(|run| (run.start as usize) < past) {
        let (start, len) = (run.start as usize, (run.len as usize).min(past - run.start as usize));
        let first = ((run.page as usize * kv_heads + kv_head) * 2 * PAGE_TOKENS + start % PAGE_TOKENS) * d;
        let keys = match cold {
            KvLayer::F16(numbers) => {
                numbers[first..first + len * d].convert_to_f32_slice(&mut widened[..len * d]);
                &widened[..len * d]
            }
            KvLayer::F32(numbers) => &numbers[first..first + len * d],
        };
        for (out, key) in into[start..start + len].iter_mut().zip(keys.chunks_exact(d)) {
            *out = dot(key, q) * scale;
        }
    }
}

/// A sum in eight chains, so that it can be done eight numbers at a time.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0f32; 8];
    let (a, b) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = a.remainder().iter().zip(b.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a.zip(b) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f32>() + rest
}

/// Turns scores into weights that sum to 1.
pub fn softmax(scores: &mut [f32]) {
    let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut total = 0.0;
    for s in scores.iter_mut() {
        *s = (*s - top).exp();
        total += *s;
    }
    scores.iter_mut().for_each(|s| *s /= total);
}
