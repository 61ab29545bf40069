//! Logits: the whole vocabulary for some rows, or a few tokens of others. A glance is the whole vocabulary here.

use super::lanes::LANES;
use super::ops::{Ops, Rows, lock, tiles_per_task};
use super::pack::Packed;
use super::product::SWEEP;
use super::shared::Shared;
use crate::device::head::{HeadRow, Said, Want};

/// Tokens of an allowed set that one task treats.
const CHUNK: usize = 32;

/// Appends the logits of each wanted row (row i of `rows`) to `out`. A logit is the same number whether the whole
/// vocabulary or only some tokens are asked for: both are made by the same product over its tile.
pub fn logits(ops: &mut Ops<'_>, weight: &Packed, rows: &Rows, wanted: &[HeadRow<'_>], out: &mut Vec<Said>) {
    let only = |w: &HeadRow<'_>| matches!(w.want, Want::Only(_));
    let numbers = |w: &HeadRow<'_>| if only(w) { w.named().len() } else { weight.rows };
    let mut logits: Vec<Vec<f32>> = wanted.iter().map(|w| vec![0f32; numbers(w)]).collect();
    let outs: Vec<Shared<'_, f32>> = logits.iter_mut().map(|o| Shared::new(o)).collect();
    let (simd, workers) = (ops.simd, ops.workers);
    let input = rows.input(weight);

    // Rows that want everything: each tile meets all of them.
    let full: Vec<usize> = (0..wanted.len()).filter(|&i| !only(&wanted[i])).collect();
    let ranges = ranges(&full);
    let tiles = if full.is_empty() { 0 } else { weight.tiles() };
    let per_task = tiles_per_task(tiles, ops.pool.threads());
    ops.pool.run(tiles.div_ceil(per_task), &|task, worker| {
        let scratch = &mut lock(&workers[worker]).scratch;
        for t in task * per_task..((task + 1) * per_task).min(tiles) {
            scratch.prepare(simd, weight, t, input, full.len());
            let lanes = LANES.min(weight.rows - t * LANES);
            for range in &ranges {
                for from in range.clone().step_by(SWEEP) {
                    let to = (from + SWEEP).min(range.end);
                    scratch.tile(simd, weight, t, input, from..to, 0);
                    for (row, sums) in (from..to).zip(scratch.sums[0].chunks_exact(LANES)) {
                        // SAFETY: each tile's tokens are one task's.
                        unsafe { outs[row].slice(t * LANES..t * LANES + lanes) }.copy_from_slice(&sums[..lanes]);
                    }
                }
            }
        }
    });

    // Rows that want a few tokens: only those tokens' tiles.
    let mut chunks: Vec<(usize, usize)> = Vec::new();
    for (i, row) in wanted.iter().enumerate() {
        chunks.extend((0..if only(row) { row.named().len() } else { 0 }).step_by(CHUNK).map(|from| (i, from)));
    }
    ops.pool.run(chunks.len(), &|task, worker| {
        let scratch = &mut lock(&workers[worker]).scratch;
        let (row, from) = chunks[task];
        let allowed = wanted[row].named();
        let allowed = &allowed[from..(from + CHUNK).min(allowed.len())];
        // SAFETY: each part of a row's logits is one task's.
        let out = unsafe { outs[row].slice(from..from + allowed.len()) };
        let mut have = None;
        for (out, &id) in out.iter_mut().zip(allowed) {
            let t = id as usize / LANES;
            if have != Some(t) {
                scratch.prepare(simd, weight, t, input, 1);
                scratch.tile(simd, weight, t, input, row..row + 1, 0);
                have = Some(t);
            }
            *out = scratch.sums[0][id as usize % LANES];
        }
    });
    drop(outs);
    out.extend(logits.into_iter().map(Said::Logits));
}

/// Ascending numbers as ranges.
fn ranges(numbers: &[usize]) -> Vec<std::ops::Range<usize>> {
    let mut ranges: Vec<std::ops::Range<usize>> = Vec::new();
    for &n in numbers {
        match ranges.last_mut() {
            Some(last) if last.end == n => last.end += 1,
            _ => ranges.push(n..n + 1),
        }
    }
    ranges
}
