//! From a draft to the kernel's plan: partials get their numbers, and rows the lists of theirs.

use super::cut::Draft;
use super::flat::Flat;
use crate::device::cuda::work::{CudaPlan, Moves};

/// Room to number partials in.
#[derive(Debug, Clone, Default)]
pub struct Numbering {
    /// Of each row, how many partials it has; then the place of its next one.
    lists: Vec<u32>,
    /// Items that write partials: first tile, first row, rows, first partial.
    cut: Vec<(u32, u32, u32, u32)>,
}

impl Numbering {
    /// Numbers the partials and lists each row's. The draft's tiles become the plan's, which is written over; the ones that
    /// the plan had are the draft's to write over.
    pub fn finish(&mut self, flat: &Flat, draft: &mut Draft, plan: &mut CudaPlan) {
        let Self { lists, cut } = self;
        let Draft { tiles, cuts, .. } = draft;
        let mut partials = 0;
        lists.clear();
        lists.resize(flat.rows() as usize, 0);
        cut.clear();
        plan.items.clear();
        for &(mut item) in &cuts.items {
            if cuts.is_partial(&item) {
                item.partial = partials;
                // Path order within a row: items by their first tile.
                cut.push((item.tile, item.row, item.rows, partials));
                partials += item.rows;
                lists[item.row as usize..(item.row + item.rows) as usize].iter_mut().for_each(|n| *n += 1);
            }
            plan.items.push(item);
        }
        cut.sort_unstable();
        plan.merge_row.clear();
        plan.merge_first.clear();
        let mut next = 0;
        for (r, list) in lists.iter_mut().enumerate() {
            if *list > 0 {
                plan.merge_row.push(r as u32);
                plan.merge_first.push(next);
                next += std::mem::replace(list, next);
            }
        }
        plan.merge_first.push(next);
        plan.merge.clear();
        plan.merge.resize(next as usize, 0);
        for &(_, row, count, first) in cut.iter() {
            for (i, at) in lists[row as usize..(row + count) as usize].iter_mut().enumerate() {
                plan.merge[*at as usize] = first + i as u32;
                *at += 1;
            }
        }
        plan.cta_items.clear();
        plan.cta_items.push(0);
        plan.cta_items.extend_from_slice(&cuts.ctas);
        plan.batch_row.clone_from(&flat.order);
        std::mem::swap(&mut plan.tiles, &mut tiles.tiles);
        plan.moves = Moves {
            tokens: plan.items.iter().map(|i| tiles.tokens(i.tile, i.tiles)).sum(),
            unique: flat.tokens(),
            paths: flat.path_tokens(),
            partials: u64::from(partials),
            query_rows: plan.items.iter().map(|i| u64::from(i.rows)).sum(),
        };
    }
}
