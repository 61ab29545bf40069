//! Exact attention scores over the host tier: for the exactness meter, for H2O's running sums, and for benchmarks.

use super::attend::KvLayer;
use crate::device::tiers::Run;
use crate::kv::PAGE_TOKENS;

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
    for run in runs.iter().take_while(|run| (run.start as usize) < past) {
        let tokens = (run.len as usize).min(past - run.start as usize);
        let first = ((run.page as usize * kv_heads + kv_head) * 2 * PAGE_TOKENS
            + run.start as usize % PAGE_TOKENS)
            * d;
        let out = &mut into[run.start as usize..run.start as usize + tokens];
        for (i, out) in out.iter_mut().enumerate() {
            let key = first + i * d..first + (i + 1) * d;
            let sum: f32 = match cold {
                KvLayer::F16(numbers) => numbers[key].iter().zip(q).map(|(k, q)| k.to_f32() * q).sum(),
                KvLayer::F32(numbers) => numbers[key].iter().zip(q).map(|(k, q)| k * q).sum(),
            };
            *out = sum * scale;
        }
    }
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
