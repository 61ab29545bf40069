//! H2O (NeurIPS 2023): of every path a fixed share is kept, half of it the newest tokens, the rest those that had the
//! most attention so far. What goes is gone for good, for all branches that pass it.

use super::attend::{KvLayer, ParallelFor};
use super::exact;
use super::selecting::Layer;
use super::shared::Shared;
use crate::device::tiers::{Paths, Run};
use crate::kv::{PAGE_TOKENS, Slot};

pub struct Heavy {
    keep: f32,
    pages: usize,
    kv_heads: usize,
    /// Attention that each token has had, `[layer][kv_head][page][16]`; `None` once it is gone.
    sums: Vec<Option<f32>>,
}

/// A row of a step: its path and query heads.
struct Row<'a> {
    runs: &'a [Run],
    position: usize,
    /// Whether its path is first brought down to its share.
    evicts: bool,
    /// `[group][d]`.
    queries: &'a [f32],
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
        let (pages, kv_heads) = (self.pages, self.kv_heads);
        let sums = self.layer(layer);
        for slot in slots {
            for kv_head in 0..kv_heads {
                sums[(kv_head * pages + slot.page.0 as usize) * PAGE_TOKENS + slot.offset as usize] = Some(0.0);
            }
        }
    }

    /// Tells of each row and K/V head the tokens that are left of its path, its own included, and adds up their attention.
    /// Rows go one after the other, since what one of them lets go is gone for the next.
    pub fn attend(
        &mut self,
        at: &Layer<'_>,
        (paths, selects): (&Paths, &[bool]),
        group: usize,
        tell: &(dyn Fn(usize, usize, &[u32]) + Sync),
        parallel: ParallelFor<'_>,
    ) {
        let (keep, pages, kv_heads) = (self.keep, self.pages, self.kv_heads);
        let d = at.cold.numbers() / (pages * kv_heads * 2 * PAGE_TOKENS);
        let sums = Shared::new(self.layer(at.layer));
        let n = pages * PAGE_TOKENS;
        parallel(kv_heads, &|kv_head| {
            // SAFETY: each head's sums are one task's.
            let sums = unsafe { sums.slice(kv_head * n..(kv_head + 1) * n) };
            for (row, &evicts) in selects.iter().enumerate() {
                let q = (at.work.order[row] as usize * kv_heads + kv_head) * group * d;
                let row_of = Row {
                    runs: paths.row(row),
                    position: at.work.positions[row] as usize,
                    evicts,
                    queries: &at.q[q..q + group * d],
                };
                tell(row, kv_head, &attend_row(sums, keep, at.cold, (kv_heads, kv_head), &row_of));
            }
        });
    }
}

/// The tokens that one head still has of a row's path.
fn attend_row(
    sums: &mut [Option<f32>],
    keep: f32,
    cold: KvLayer<'_>,
    (kv_heads, kv_head): (usize, usize),
    row: &Row<'_>,
) -> Vec<u32> {
    let d = cold.numbers() / (sums.len() * kv_heads * 2);
    let places = || {
        row.runs.iter().flat_map(|run| {
            let first = run.page as usize * PAGE_TOKENS + run.start as usize % PAGE_TOKENS;
            (0..run.len as usize).map(move |i| (run.start + i as u32, first + i))
        })
    };
    let mut kept: Vec<(u32, usize)> = places().filter(|&(_, place)| sums[place].is_some()).collect();
    // The own token is last, and stays.
    let budget = (row.position as f64 * f64::from(keep)).ceil() as usize;
    let past = kept.len().saturating_sub(1);
    if row.evicts && past > budget {
        let mut old = kept[..past - budget / 2].to_vec();
        let gone = past - budget;
        let had = |place: usize| sums[place].unwrap_or(0.0);
        old.select_nth_unstable_by(gone - 1, |a, b| had(a.1).total_cmp(&had(b.1)).then(a.0.cmp(&b.0)));
        for &(_, place) in &old[..gone] {
            sums[place] = None;
        }
        kept.retain(|&(_, place)| sums[place].is_some());
    }
    let mut all = vec![0.0; row.position + 1];
    let mut weights = Vec::new();
    for q in row.queries.chunks_exact(d) {
        exact::scores(cold, (kv_heads, kv_head), row.runs, all.len(), q, &mut all);
        weights.clear();
        weights.extend(kept.iter().map(|&(token, _)| all[token as usize]));
        exact::softmax(&mut weights);
        for (&(_, place), w) in kept.iter().zip(&weights) {
            if let Some(sum) = &mut sums[place] {
                *sum += w;
            }
        }
    }
    kept.into_iter().map(|(token, _)| token).collect()
}
