//! Partial keys: of every token's key a few columns of a skewed basis, kept on the device to guess attention scores by.
//!
//! With an orthogonal `A`, `(qA)·(kA) = q·k`; the columns of `A` in which queries and keys are large carry most of it.
//! Layout `[layer][page][kv_head][columns / 2][16]`, two columns of a token in a byte, with a scale of a byte a token and head. Four
//! bits a number: twice the columns are worth more than twice the bits; and of what keys have more or less than the mean,
//! which is what tells them apart, so that the bits are not spent on what all of them share. A page's tokens are scored side by side.

use super::attend::ParallelFor;
use super::input::grow;
use super::shared::Shared;
use crate::base::lazy::Lazy;
use crate::device::speculation::{Basis, Speculation};
use crate::device::tiers::Run;
use crate::kv::{PAGE_TOKENS, Slot};

pub struct PartialKeys {
    /// First selecting layer; those before it have no partial keys.
    first: usize,
    layers: Vec<Basis>,
    pages: usize,
    kv_heads: usize,
    columns: usize,
    /// Bytes of a token's codes.
    pairs: usize,
    head_size: usize,
    /// The even column in the low half of a byte.
    codes: Lazy<u8>,
    /// Each a number of `steps`; 0 where all codes are.
    scales: Lazy<u8>,
    steps: [f32; 256],
    /// Pages that have or had tokens, and how many: the memory of others was never touched, and the lowest are taken first.
    used: Vec<bool>,
    held: usize,
}

/// Bytes of a token's partial keys for one K/V head: a number of four bits a column, and the scale.
pub fn token_bytes(columns: usize) -> usize {
    columns.div_ceil(2) + 1
}

/// Bytes of a page's partial keys in one layer.
pub fn page_bytes(kv_heads: usize, columns: usize) -> usize {
    kv_heads * PAGE_TOKENS * token_bytes(columns)
}

/// Scales are eighths of an octave, from 2^-20 to 2^12.
const EIGHTHS: f32 = 8.0;
const ONE: f32 = 160.0;

/// The scale by its number.
fn step(scale: u8) -> f32 {
    if scale == 0 { 0.0 } else { ((f32::from(scale) - ONE) / EIGHTHS).exp2() }
}

/// The number of the least scale in which 7 is at least `most`; that of the largest for more than it reaches.
fn scale_of(most: f32) -> u8 {
    if most > 0.0 { ((most / 7.0).log2().mul_add(EIGHTHS, ONE).ceil() as u8).max(1) } else { 0 }
}

impl PartialKeys {
    pub fn new(speculation: &Speculation, pages: usize, kv_heads: usize, head_size: usize) -> Self {
        let (first, columns) = (speculation.whole_layers, speculation.columns);
        let layers = speculation.layers[first..].to_vec();
        let tokens = layers.len() * pages * kv_heads * PAGE_TOKENS;
        let pairs = columns.div_ceil(2);
        let (codes, scales) = (Lazy::zeros(tokens * pairs), Lazy::zeros(tokens));
        let steps = std::array::from_fn(|scale| step(scale as u8));
        let used = vec![false; pages];
        Self { first, layers, pages, kv_heads, columns, pairs, head_size, codes, scales, steps, used, held: 0 }
    }

    /// Bytes of the pages that have or had tokens, over all layers.
    pub fn held_bytes(&self) -> usize {
        self.held * self.layers.len() * page_bytes(self.kv_heads, self.columns)
    }

    /// A page has tokens from now on.
    pub fn take_page(&mut self, page: usize) {
        self.held += usize::from(!std::mem::replace(&mut self.used[page], true));
    }

    /// Tokens before (page, head) of a selecting layer.
    fn token(&self, layer: usize, page: usize, kv_head: usize) -> usize {
        (((layer - self.first) * self.pages + page) * self.kv_heads + kv_head) * PAGE_TOKENS
    }

    /// Keeps the columns of keys `k [rows][kv_heads · d]` (after RoPE) at their slots.
    pub fn put(&mut self, layer: usize, slots: &[Slot], k: &[f32], parallel: ParallelFor<'_>) {
        let (d, c, pairs) = (self.head_size, self.columns, self.pairs);
        let places: Vec<usize> = slots.iter().map(|s| self.token(layer, s.page.0 as usize, 0)).collect();
        let basis = &self.layers[layer - self.first];
        let (kv_heads, codes, scales) = (self.kv_heads, Shared::new(&mut self.codes), Shared::new(&mut self.scales));
        parallel(slots.len().div_ceil(8), &|task| {
            let mut numbers = vec![0f32; c];
            for row in task * 8..(task * 8 + 8).min(slots.len()) {
                for kv_head in 0..kv_heads {
                    let at = places[row] + kv_head * PAGE_TOKENS + slots[row].offset as usize;
                    let key = &k[(row * kv_heads + kv_head) * d..][..d];
                    basis.project_key(kv_head, key, &mut numbers);
                    let most = numbers.iter().fold(0f32, |a, b| a.max(b.abs()));
                    let scale = scale_of(most);
                    let inverse = if scale == 0 { 0.0 } else { 1.0 / step(scale) };
                    // SAFETY: no slot is given twice, so every token of a head is one task's.
                    let own = unsafe { scales.slice(at..at + 1) };
                    own[0] = scale;
                    let first = at / PAGE_TOKENS * PAGE_TOKENS * pairs + at % PAGE_TOKENS;
                    let code = |n: &f32| (n * inverse).round().clamp(-7.0, 7.0) as i8 as u8 & 15;
                    for (pair, two) in numbers.chunks(2).enumerate() {
                        let at = first + pair * PAGE_TOKENS;
                        // SAFETY: as above.
                        let own = unsafe { codes.slice(at..at + 1) };
                        own[0] = code(&two[0]) | two.get(1).map_or(0, code) << 4;
                    }
                }
            }
        });
    }

    /// Columns of one query `[d]` of a head of `kv_head`.
    pub fn query(&self, layer: usize, kv_head: usize, q: &[f32], into: &mut Vec<f32>) {
        grow(into, self.columns);
        self.layers[layer - self.first].project(kv_head, q, &mut into[..self.columns]);
    }

    /// Expected scores of a query's columns with the first `past` tokens of a path.
    pub fn scores(&self, layer: usize, kv_head: usize, runs: &[Run], past: usize, query: &[f32], into: &mut [f32]) {
        for run in runs.iter().take_while(|run| (run.start as usize) < past) {
            let (start, len) = (run.start as usize, (run.len as usize).min(past - run.start as usize));
            let (at, offset) = (self.token(layer, run.page as usize, kv_head), start % PAGE_TOKENS);
            let codes = &self.codes[at * self.pairs..(at + PAGE_TOKENS) * self.pairs];
            let mut sums = [0f32; PAGE_TOKENS];
            for (codes, q) in codes.chunks_exact(PAGE_TOKENS).zip(query.chunks(2)) {
                let (even, odd) = (q[0], q.get(1).copied().unwrap_or(0.0));
                for (sum, &two) in sums.iter_mut().zip(codes) {
                    *sum += f32::from((two << 4) as i8 >> 4) * even + f32::from(two as i8 >> 4) * odd;
                }
            }
            let scales = &self.scales[at + offset..at + offset + len];
            for ((into, sum), &scale) in into[start..start + len].iter_mut().zip(&sums[offset..]).zip(scales) {
                *into = sum * self.steps[usize::from(scale)];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::stream;
    use crate::device::cpu::attend::serial;
    use crate::kv::PageId;
    use rand::Rng;

    #[test]
    fn a_scale_is_the_least_that_reaches_what_it_is_for() {
        assert_eq!((scale_of(0.0), scale_of(f32::NAN), step(0)), (0, 0, 0.0));
        assert_eq!((scale_of(f32::INFINITY), scale_of(1e-30)), (255, 1));
        for i in 0..2000 {
            let most = 1e-4 * 1.008f32.powi(i);
            let found = 7.0 * step(scale_of(most));
            assert!(found >= most * 0.9999 && found <= most * 1.0906, "{found} for {most}");
        }
    }

    #[test]
    fn scores_are_products_of_the_columns_up_to_the_rounding_of_four_bits() {
        let (kv_heads, d, columns, pages) = (2, 16, 5, 6);
        let mut random = stream(2, "partial keys", &[]);
        let mut numbers = |n: usize| -> Vec<f32> { (0..n).map(|_| random.random_range(-1.0..1.0)).collect() };
        let basis = || Basis { columns, numbers: vec![], centre: vec![] };
        let mut layers = vec![basis(); 3];
        layers.iter_mut().for_each(|l| l.numbers = numbers(kv_heads * columns * d));
        layers.iter_mut().for_each(|l| l.centre = numbers(kv_heads * columns));
        let speculation = Speculation { whole_layers: 1, columns, layers, shifts: vec![] };
        let mut partial = PartialKeys::new(&speculation, pages, kv_heads, d);
        // 40 tokens in pages 4, 1 and 5; then the same places again with other keys for some.
        let slot = |t: usize| Slot { page: PageId([4, 1, 5][t / 16]), offset: (t % 16) as u8 };
        let slots: Vec<Slot> = (0..40).map(slot).collect();
        let mut keys = numbers(40 * kv_heads * d);
        partial.put(2, &slots, &keys, &serial);
        let newer = numbers(7 * kv_heads * d);
        keys[9 * kv_heads * d..16 * kv_heads * d].copy_from_slice(&newer);
        partial.put(2, &slots[9..16], &newer, &serial);
        let runs: Vec<Run> = [(0, 16, 4), (16, 3, 1), (19, 13, 1), (32, 8, 5)]
            .map(|(start, len, page)| Run { start, len, page })
            .to_vec();
        for kv_head in 0..kv_heads {
            let q = numbers(d);
            let (mut query, mut scores) = (Vec::new(), vec![f32::NAN; 38]);
            partial.query(2, kv_head, &q, &mut query);
            partial.scores(2, kv_head, &runs, 38, &query, &mut scores);
            for (t, score) in scores.iter().enumerate() {
                let mut key = vec![0.0; columns];
                speculation.layers[2].project_key(kv_head, &keys[(t * kv_heads + kv_head) * d..][..d], &mut key);
                let exact: f32 = key.iter().zip(&query).map(|(a, b)| a * b).sum();
                let most = key.iter().fold(0f32, |a, b| a.max(b.abs()));
                let bound = query.iter().map(|q| q.abs()).sum::<f32>() * most / 12.8 + 1e-5;
                assert!((score - exact).abs() <= bound, "head {kv_head}, token {t}: {score}, not {exact}");
            }
        }
    }
}
