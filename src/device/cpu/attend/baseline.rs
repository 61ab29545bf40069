//! The methods that Totara is compared with, on the same inner loops: one plain form each, for the benchmark and the
//! selftest only.
//!
//! All take the tree flattened: `tokens` K/V tokens one after the other in pages 0, 1, …, and a mask that says which row
//! sees which token. They read the whole tree for every row or every query, whatever the row sees.
//!
//! | method | parallel over | K/V read | written and read back |
//! |---|---|---|---|
//! | `medusa` (Cai et al. 2024) | heads, tokens or rows, pass by pass | once | scores `[heads][rows][tokens]`, four times |
//! | `specinfer` (Miao et al. 2024) | rows × K/V heads | once a row | nothing |
//! | `vanilla` | nothing | once a K/V head and 512 query rows | nothing |

use super::kernels::Kernels;
use super::{Attention, KvLayer, Lazy, PAGE_TOKENS, ParallelFor, Scratch, Shared, TILE_ROWS};
use crate::device::attend::WINDOW;
use std::ops::Range;

/// The flattened tree and its mask, `[rows]` in batch order.
#[derive(Clone, Copy)]
pub struct Flat<'a> {
    pub kv: KvLayer<'a>,
    pub tokens: usize,
    pub rows: usize,
}

impl Flat<'_> {
    /// Numbers between the rows of a dense mask or of scores: whole windows.
    pub fn stride(tokens: usize) -> usize {
        tokens.next_multiple_of(WINDOW)
    }

    fn windows(&self) -> usize {
        self.tokens.div_ceil(WINDOW)
    }

    fn seen(&self, window: usize) -> usize {
        (self.tokens - window * WINDOW).min(WINDOW)
    }
}

/// Whole-tree attention with a dense mask, unfused: scores, scaling, mask, softmax and the product with V are passes of
/// their own over `scores`. `mask [rows][stride]`: 0 where a row sees a token, -inf elsewhere.
pub fn medusa(
    attention: &Attention,
    flat: Flat<'_>,
    mask: &[f32],
    q: &[f32],
    scores: &mut Lazy<f32>,
    out: &mut [f32],
    parallel: ParallelFor<'_>,
) {
    let run = Run { attention, flat, q };
    let (g, d, kv_heads) = (attention.heads.group(), attention.heads.head_size, attention.heads.kv_heads);
    let stride = Flat::stride(flat.tokens);
    let per_head = flat.rows * g;
    assert!(mask.len() == flat.rows * stride && out.len() == q.len());
    scores.grow(kv_heads * per_head * stride);
    let sink = Shared(scores.as_mut_ptr());
    let row = |i: usize| {
        // SAFETY: in all passes a task takes windows, or rows, of one K/V head that no other task takes.
        unsafe { std::slice::from_raw_parts_mut(sink.get().add(i * stride), stride) }
    };
    parallel(kv_heads * flat.windows(), &|i| {
        let (kv_head, window) = (i / flat.windows(), i % flat.windows());
        attention.with_scratch(|scratch| {
            run.take_queries(kv_head, 0..flat.rows, 1.0, scratch);
            run.window_scores(kv_head, window, per_head, scratch);
            for r in 0..per_head {
                // SAFETY: this window of the row is this task's.
                let target = unsafe {
                    let at = (kv_head * per_head + r) * stride + window * WINDOW;
                    std::slice::from_raw_parts_mut(sink.get().add(at), WINDOW)
                };
                target.copy_from_slice(&scratch.scores[r * WINDOW..(r + 1) * WINDOW]);
            }
        });
    });
    let scale = std::f32::consts::LOG2_E / (d as f32).sqrt();
    parallel(kv_heads * per_head, &|i| row(i)[..flat.tokens].iter_mut().for_each(|s| *s *= scale));
    parallel(kv_heads * per_head, &|i| {
        let of = i % per_head / g;
        for (s, m) in row(i)[..flat.tokens].iter_mut().zip(&mask[of * stride..]) {
            *s += m;
        }
    });
    parallel(kv_heads * per_head, &|i| {
        let row = &mut row(i)[..flat.tokens];
        let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0);
        for s in row.iter() {
            max = if max >= *s { max } else { *s };
        }
        for s in row.iter_mut() {
            *s = super::kernels::exp2(*s - max);
            sum += *s;
        }
        row.iter_mut().for_each(|s| *s /= sum);
    });
    let target = Shared(out.as_mut_ptr());
    let step = (TILE_ROWS / g).max(1);
    let chunks = flat.rows.div_ceil(step);
    parallel(kv_heads * chunks, &|i| {
        let (kv_head, first) = (i / chunks, i % chunks * step);
        let rows = first..(first + step).min(flat.rows);
        let n = rows.len() * g;
        attention.with_scratch(|scratch| {
            run.clear(n, scratch);
            for window in 0..flat.windows() {
                for r in 0..n {
                    let from = &row(kv_head * per_head + first * g + r)[window * WINDOW..(window + 1) * WINDOW];
                    scratch.scores[r * WINDOW..(r + 1) * WINDOW].copy_from_slice(from);
                }
                run.window_values(kv_head, window, n, scratch);
            }
            scratch.own.rows(0..n, d).sum.fill(1.0);
            run.finish(kv_head, rows, scratch, &target);
        });
    });
}

/// Fused attention of every query over the whole tree; bit `t` of a row's words says whether it sees token `t`.
pub fn specinfer(
    attention: &Attention,
    flat: Flat<'_>,
    bits: &[u64],
    q: &[f32],
    out: &mut [f32],
    parallel: ParallelFor<'_>,
) {
    let run = Run { attention, flat, q };
    let (g, kv_heads) = (attention.heads.group(), attention.heads.kv_heads);
    assert!(bits.len() == flat.rows * flat.windows() && out.len() == q.len());
    let target = Shared(out.as_mut_ptr());
    parallel(flat.rows * kv_heads, &|i| {
        let (row, kv_head) = (i / kv_heads, i % kv_heads);
        attention.with_scratch(|scratch| {
            run.clear(g, scratch);
            run.take_queries(kv_head, row..row + 1, run.scale(), scratch);
            for window in 0..flat.windows() {
                let word = bits[row * flat.windows() + window];
                run.window_scores(kv_head, window, g, scratch);
                for (lane, s) in scratch.scores[..g * WINDOW].iter_mut().enumerate() {
                    if word >> (lane % WINDOW) & 1 == 0 {
                        *s = f32::NEG_INFINITY;
                    }
                }
                run.window_softmax(window, g, scratch);
                run.window_values(kv_head, window, g, scratch);
            }
            run.finish(kv_head, row..row + 1, scratch, &target);
        });
    });
}

/// One unit for everything on one core: the whole tree, all queries, a dense mask.
pub fn vanilla(attention: &Attention, flat: Flat<'_>, mask: &[f32], q: &[f32], out: &mut [f32]) {
    let run = Run { attention, flat, q };
    let g = attention.heads.group();
    let stride = Flat::stride(flat.tokens);
    assert!(mask.len() == flat.rows * stride && out.len() == q.len());
    let target = Shared(out.as_mut_ptr());
    attention.with_scratch(|scratch| {
        let step = (TILE_ROWS / g).max(1);
        for kv_head in 0..attention.heads.kv_heads {
            for first in (0..flat.rows).step_by(step) {
                let rows = first..(first + step).min(flat.rows);
                let n = rows.len() * g;
                run.clear(n, scratch);
                run.take_queries(kv_head, rows.clone(), run.scale(), scratch);
                for window in 0..flat.windows() {
                    run.window_scores(kv_head, window, n, scratch);
                    for (r, scores) in scratch.scores[..n * WINDOW].chunks_mut(WINDOW).enumerate() {
                        let mask = &mask[(first + r / g) * stride + window * WINDOW..];
                        scores[..flat.seen(window)].iter_mut().zip(mask).for_each(|(s, m)| *s += m);
                    }
                    run.window_softmax(window, n, scratch);
                    run.window_values(kv_head, window, n, scratch);
                }
                run.finish(kv_head, rows, scratch, &target);
            }
        }
    });
}

/// The steps that the methods have in common, over query rows `[rows · G]` of one K/V head.
struct Run<'a> {
    attention: &'a Attention,
    flat: Flat<'a>,
    q: &'a [f32],
}

impl Run<'_> {
    fn scale(&self) -> f32 {
        std::f32::consts::LOG2_E / (self.attention.heads.head_size as f32).sqrt()
    }

    fn kernels(&self) -> &'static Kernels {
        self.attention.kernels.of(self.flat.kv)
    }

    fn clear(&self, n: usize, scratch: &mut Scratch) {
        let d = self.attention.heads.head_size;
        scratch.scores.grow(n * WINDOW);
        scratch.tile.grow(WINDOW * d);
        scratch.own.clear(n, d);
    }

    fn take_queries(&self, kv_head: usize, rows: Range<usize>, scale: f32, scratch: &mut Scratch) {
        let (g, d, heads) = (self.attention.heads.group(), self.attention.heads.head_size, self.attention.heads.heads);
        let n = rows.len();
        scratch.q.grow(n * g * d);
        scratch.scores.grow(n * g * WINDOW);
        scratch.tile.grow(WINDOW * d);
        for (packed, row) in scratch.q.chunks_mut(g * d).zip(rows) {
            let from = row * heads * d + kv_head * g * d;
            packed.iter_mut().zip(&self.q[from..from + g * d]).for_each(|(a, b)| *a = b * scale);
        }
        self.kernels().queries(&mut scratch.q[..n * g * d], d);
    }

    fn page(&self, page: usize, kv_head: usize) -> usize {
        (page * self.attention.heads.kv_heads + kv_head) * 2 * PAGE_TOKENS * self.attention.heads.head_size
    }

    fn window_scores(&self, kv_head: usize, window: usize, n: usize, scratch: &mut Scratch) {
        let (kernels, d) = (self.kernels(), self.attention.heads.head_size);
        let seen = self.flat.seen(window);
        let pages = seen.div_ceil(PAGE_TOKENS);
        for page in 0..pages {
            let at = self.page(window * (WINDOW / PAGE_TOKENS) + page, kv_head);
            let tile = &mut scratch.tile[page * PAGE_TOKENS * d..][..PAGE_TOKENS * d];
            match self.flat.kv {
                KvLayer::F16(numbers) => {
                    let keys = &numbers[at..at + PAGE_TOKENS * d];
                    kernels.look_at_keys(keys, d, tile);
                    kernels.keys_f16(keys, d, tile);
                }
                KvLayer::F32(numbers) => kernels.keys_f32(&numbers[at..at + PAGE_TOKENS * d], d, tile),
            }
        }
        let keys = &scratch.tile[..pages * PAGE_TOKENS * d];
        kernels.scores(&scratch.q[..n * d], d, keys, 0..seen, &mut scratch.scores[..n * WINDOW], 0);
    }

    fn window_softmax(&self, window: usize, n: usize, scratch: &mut Scratch) {
        let d = self.attention.heads.head_size;
        let scores = &mut scratch.scores[..n * WINDOW];
        self.kernels().softmax(scores, self.flat.seen(window), d, scratch.own.rows(0..n, d));
    }

    fn window_values(&self, kv_head: usize, window: usize, n: usize, scratch: &mut Scratch) {
        let (kernels, d) = (self.kernels(), self.attention.heads.head_size);
        let seen = self.flat.seen(window);
        for first in (0..seen).step_by(PAGE_TOKENS) {
            let tokens = (seen - first).min(PAGE_TOKENS);
            let at = self.page((window * WINDOW + first) / PAGE_TOKENS, kv_head) + PAGE_TOKENS * d;
            let tile = &mut scratch.tile[first * d..(first + tokens) * d];
            match self.flat.kv {
                KvLayer::F16(numbers) => kernels.widen(&numbers[at..at + tokens * d], tile),
                KvLayer::F32(numbers) => tile.copy_from_slice(&numbers[at..at + tokens * d]),
            }
        }
        let weights = &scratch.scores[..n * WINDOW];
        kernels.values(weights, 0, &scratch.tile[..seen * d], d, scratch.own.rows(0..n, d).out);
    }

    /// Divides by the sums and writes the rows of this K/V head.
    fn finish(&self, kv_head: usize, rows: Range<usize>, scratch: &mut Scratch, target: &Shared) {
        let (g, d, heads) = (self.attention.heads.group(), self.attention.heads.head_size, self.attention.heads.heads);
        let own = scratch.own.rows(0..rows.len() * g, d);
        for (i, row) in rows.enumerate() {
            for head in 0..g {
                let from = i * g + head;
                let at = row * heads * d + (kv_head * g + head) * d;
                // SAFETY: a (row, head) is written by one task; `out` is as long as `q`.
                let out = unsafe { std::slice::from_raw_parts_mut(target.get().add(at), d) };
                let inverse = 1.0 / own.sum[from];
                out.iter_mut().zip(&own.out[from * d..]).for_each(|(o, v)| *o = v * inverse);
            }
        }
    }
}
