//! Partial keys: of every token's key a few columns of a skewed basis, kept on the device to guess attention scores by.
//!
//! With an orthogonal `A`, `(qA)·(kA) = q·k`; the columns of `A` in which queries and keys are large carry most of it.
//! Layout `[layer][page][kv_head][16][columns]` in int8 with a scale a token and head: half of what float16 would take,
//! with an error far below that of leaving the other columns out.

use super::attend::ParallelFor;
use super::input::grow;
use super::shared::Shared;
use crate::base::lazy::Lazy;
use crate::device::speculation::{Basis, Speculation, partial_token_bytes};
use crate::kv::{PAGE_TOKENS, Slot};
use half::f16;

pub struct PartialKeys {
    /// First selecting layer; those before it have no partial keys.
    first: usize,
    layers: Vec<Basis>,
    pages: usize,
    kv_heads: usize,
    columns: usize,
    head_size: usize,
    codes: Lazy<i8>,
    scales: Lazy<f16>,
}

/// Bytes of a page's partial keys in one layer.
pub fn page_bytes(kv_heads: usize, columns: usize) -> usize {
    kv_heads * PAGE_TOKENS * partial_token_bytes(columns)
}

impl PartialKeys {
    pub fn new(speculation: &Speculation, pages: usize, kv_heads: usize, head_size: usize) -> Self {
        let (first, columns) = (speculation.whole_layers, speculation.columns);
        let layers = speculation.layers[first..].to_vec();
        let tokens = layers.len() * pages * kv_heads * PAGE_TOKENS;
        let (codes, scales) = (Lazy::zeros(tokens * columns), Lazy::zeros(tokens));
        Self { first, layers, pages, kv_heads, columns, head_size, codes, scales }
    }

    /// Tokens before (page, head) of a selecting layer.
    fn token(&self, layer: usize, page: usize, kv_head: usize) -> usize {
        (((layer - self.first) * self.pages + page) * self.kv_heads + kv_head) * PAGE_TOKENS
    }

    /// Keeps the columns of keys `k [rows][kv_heads · d]` (after RoPE) at their slots.
    pub fn put(&mut self, layer: usize, slots: &[Slot], k: &[f32], parallel: ParallelFor<'_>) {
        let (d, c) = (self.head_size, self.columns);
        let places: Vec<usize> = slots.iter().map(|s| self.token(layer, s.page.0 as usize, 0)).collect();
        let basis = &self.layers[layer - self.first];
        let (kv_heads, codes, scales) = (self.kv_heads, Shared::new(&mut self.codes), Shared::new(&mut self.scales));
        parallel(slots.len().div_ceil(8), &|task| {
            let mut numbers = vec![0f32; c];
            for row in task * 8..(task * 8 + 8).min(slots.len()) {
                for kv_head in 0..kv_heads {
                    let at = places[row] + kv_head * PAGE_TOKENS + slots[row].offset as usize;
                    let key = &k[(row * kv_heads + kv_head) * d..][..d];
                    basis.project(kv_head, key, &mut numbers);
                    let most = numbers.iter().fold(0f32, |a, b| a.max(b.abs()));
                    let scale = f16::from_f32(most / 127.0);
                    let inverse = if scale == f16::ZERO { 0.0 } else { 1.0 / scale.to_f32() };
                    // SAFETY: no slot is given twice, so every token of a head is one task's.
                    let (codes, scales) = unsafe { (codes.slice(at * c..(at + 1) * c), scales.slice(at..at + 1)) };
                    scales[0] = scale;
                    codes.iter_mut().zip(&numbers).for_each(|(code, n)| *code = (n * inverse).round() as i8);
                }
            }
        });
    }

    /// Columns of one query `[d]` of a head of `kv_head`.
    pub fn query(&self, layer: usize, kv_head: usize, q: &[f32], into: &mut Vec<f32>) {
        grow(into, self.columns);
        self.layers[layer - self.first].project(kv_head, q, &mut into[..self.columns]);
    }

    /// Expected score, not yet scaled, of a query's columns with a token's.
    pub fn score(&self, layer: usize, page: usize, kv_head: usize, offset: usize, query: &[f32]) -> f32 {
        let (at, c) = (self.token(layer, page, kv_head) + offset, self.columns);
        let codes = &self.codes[at * c..(at + 1) * c];
        let sum: f32 = codes.iter().zip(query).map(|(&code, q)| f32::from(code) * q).sum();
        sum * self.scales[at].to_f32()
    }
}
