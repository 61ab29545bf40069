//! Attention row by row, straight from the work's pieces: slow, plain, in f64. The tree kernel is measured against it.

use super::arena::KvLayer;
use super::pool::Pool;
use super::shared::Shared;
use crate::device::Shape;
use crate::device::attend::AttendWork;
use crate::kv::PAGE_TOKENS;

/// `out[row] = softmax(q·Kᵀ / √d)·V` over the tokens each row sees; `q` and `out` are `[rows][heads][head size]`, in batch
/// order. A row that sees nothing gives zeros.
pub fn attend(work: &AttendWork, kv: KvLayer<'_>, q: &[f32], out: &mut [f32], shape: &Shape, pool: &mut Pool) {
    let (d, width) = (shape.head_size, shape.heads * shape.head_size);
    let out = Shared::new(out);
    pool.run(work.order.len(), &|r, _| {
        let batch_row = work.order[r] as usize;
        // SAFETY: the order names each batch row once.
        let out = unsafe { out.slice(batch_row * width..(batch_row + 1) * width) };
        let q = &q[batch_row * width..(batch_row + 1) * width];
        let tokens = tokens(work, r as u32);
        for head in 0..shape.heads {
            let kv_head = head / (shape.heads / shape.kv_heads);
            let q = &q[head * d..(head + 1) * d];
            let at = |&(page, offset): &(usize, usize), which: usize, i: usize| {
                let at = (((page * shape.kv_heads + kv_head) * 2 + which) * PAGE_TOKENS + offset) * d + i;
                match kv {
                    KvLayer::F16(all) => all[at].to_f64(),
                    KvLayer::F32(all) => all[at] as f64,
                }
            };
            let scores: Vec<f64> = tokens
                .iter()
                .map(|token| (0..d).map(|i| q[i] as f64 * at(token, 0, i)).sum::<f64>() / (d as f64).sqrt())
                .collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let total: f64 = weights.iter().sum();
            for (i, out) in out[head * d..(head + 1) * d].iter_mut().enumerate() {
                let sum: f64 = tokens.iter().zip(&weights).map(|(token, w)| w * at(token, 1, i)).sum();
                *out = if tokens.is_empty() { 0.0 } else { (sum / total) as f32 };
            }
        }
    });
}

/// (page, offset) of every token that work row `r` sees, by position.
fn tokens(work: &AttendWork, r: u32) -> Vec<(usize, usize)> {
    let last = work.positions[r as usize];
    let mut seen: Vec<(u32, usize)> = Vec::new();
    for unit in work.units.iter().filter(|unit| unit.rows.contains(&r)) {
        for piece in &work.pieces[unit.pieces.start as usize..unit.pieces.end as usize] {
            if !piece.rows.contains(&r) {
                continue;
            }
            for position in (piece.start..piece.start + piece.len).take_while(|&p| p <= last) {
                let page =
                    piece.first_page as usize + position as usize / PAGE_TOKENS - piece.start as usize / PAGE_TOKENS;
                seen.push((position, work.pages[page] as usize));
            }
        }
    }
    seen.sort_unstable();
    seen.into_iter().map(|(position, page)| (page, position as usize % PAGE_TOKENS)).collect()
}
