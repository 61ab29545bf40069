//! H2O (NeurIPS 2023): of every path a fixed share is kept, half of it the newest tokens, the rest those that had the
//! most attention so far. What goes is gone for good, for all branches that pass it.

use super::exact;
use super::attend::KvLayer;
use crate::device::tiers::Paths;
use crate::kv::{PAGE_TOKENS, Slot};

pub struct Heavy {
    keep: f32,
    pages: usize,
    kv_heads: usize,
    /// Attention of each (layer, page, head, token) so far; `None` once it is gone.
    sums: Vec<Option<f32>>,
}

/// One head's part of it, for one layer.
struct Head<'a> {
    sums: &'a mut [Option<f32>],
    kv_heads: usize,
    kv_head: usize,
}

impl Head<'_> {
    fn at(&mut self, page: u32, token: u32) -> &mut Option<f32> {
        let index = (page as usize * self.kv_heads + self.kv_head) * PAGE_TOKENS + token as usize % PAGE_TOKENS;
        &mut self.sums[index]
    }
}

impl Heavy {
    pub fn new(keep: f32, layers: usize, pages: usize, kv_heads: usize) -> Self {
        Self { keep, pages, kv_heads, sums: vec![Some(0.0); layers * pages * kv_heads * PAGE_TOKENS] }
    }

    fn layer(&mut self, layer: usize) -> &mut [Option<f32>] {
        let n = self.pages * self.kv_heads * PAGE_TOKENS;
        &mut self.sums[layer * n..(layer + 1) * n]
    }

    /// These slots hold new tokens.
    pub fn written(&mut self, layer: usize, slots: &[Slot]) {
        let kv_heads = self.kv_heads;
        let sums = self.layer(layer);
        for slot in slots {
            for kv_head in 0..kv_heads {
                *(Head { sums: &mut *sums, kv_heads, kv_head }).at(slot.page.0, u32::from(slot.offset)) = Some(0.0);
            }
        }
    }

    /// The tokens of `row`'s path that one head still has, its own included, into `kept`; their attention is added up.
    /// `evict`: the path is first brought down to its share.
    pub fn attend(
        &mut self,
        (layer, cold): (usize, KvLayer<'_>),
        (paths, row, kv_head): (&Paths, usize, usize),
        (position, evict): (u32, bool),
        queries: &[f32],
        kept: &mut Vec<u32>,
    ) {
        let (keep, kv_heads) = (self.keep, self.kv_heads);
        let d = cold.len() / (self.pages * kv_heads * 2 * PAGE_TOKENS);
        let mut head = Head { sums: self.layer(layer), kv_heads, kv_head };
        let runs = paths.row(row);
        kept.clear();
        let mut sums = Vec::new();
        for (token, page) in paths.tokens(row) {
            if let Some(sum) = *head.at(page, token) {
                kept.push(token);
                sums.push((sum, token, page));
            }
        }
        // The own token is last, and stays.
        let budget = (f64::from(position) * f64::from(keep)).ceil() as usize;
        let past = sums.len().saturating_sub(1);
        if evict && past > budget {
            let old = past.saturating_sub(budget / 2);
            sums.truncate(old);
            let gone = past - budget;
            sums.select_nth_unstable_by(gone - 1, |a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            for &(_, token, page) in &sums[..gone] {
                *head.at(page, token) = None;
                if let Ok(at) = kept.binary_search(&token) {
                    kept.remove(at);
                }
            }
        }
        let mut all = vec![0.0; position as usize + 1];
        let mut weights = Vec::new();
        for q in queries.chunks_exact(d) {
            exact::scores(cold, (kv_heads, kv_head), runs, all.len(), q, &mut all);
            weights.clear();
            weights.extend(kept.iter().map(|&t| all[t as usize]));
            exact::softmax(&mut weights);
            let mut next = kept.iter().zip(&weights).peekable();
            for (token, page) in paths.tokens(row) {
                if let Some((_, w)) = next.next_if(|(t, _)| **t == token)
                    && let Some(sum) = head.at(page, token)
                {
                    *sum += w;
                }
            }
        }
    }
}
