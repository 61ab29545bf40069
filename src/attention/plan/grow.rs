//! The next plan of a plain decode step: every branch grew by one token in place, nothing forked or ended. Then only the
//! tails differ, and the plan is brought up to date in time linear in the rows; the result is what planning anew gives
//! (tested).

use super::{PAGE, Planner};
use crate::attention::{Method, QueryRow};
use crate::device::attend::BLOCK;
use crate::kv::TokenTree;

/// The end of a row's path in the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tail {
    /// Index of the node, and of the last piece.
    pub node: u32,
    pub piece: u32,
}

impl Planner {
    /// Grows the last plan by a token a row where that is all that happened; false where it has to be made anew.
    pub(super) fn grow(&mut self, tree: &TokenTree, rows: &[QueryRow]) -> bool {
        // An entry a row was noted only where every row is alone at the end of its path.
        if rows.is_empty()
            || self.tails.len() != rows.len()
            || self.rows.len() != rows.len()
            || self.shape_version != tree.shape_version()
        {
            return false;
        }
        let grew = |(row, old): (&QueryRow, &QueryRow)| {
            row.branch == old.branch
                && row.position == old.position + 1
                && !row.position.is_multiple_of(BLOCK as u32)
                && tree.len(row.branch) == row.position as usize + 1
        };
        if !rows.iter().zip(&self.rows).all(grew) {
            return false;
        }
        for (r, tail) in self.tails.iter().enumerate() {
            let work = &mut self.work;
            let position = rows[work.order[r] as usize].position;
            work.positions[r] = position;
            work.pieces[tail.piece as usize].len += 1;
            let n = &mut self.nodes[tail.node as usize];
            n.end = position + 1;
            let page = position / PAGE - n.start / PAGE;
            work.pages[(n.first_page + page) as usize] = tree.segment_pages(n.segment)[page as usize].0;
        }
        let grown = rows.len() as u64;
        let io = &mut self.work.io;
        io.kv_tokens += grown;
        io.unique_tokens += grown;
        io.radix_tokens += grown;
        self.rows.clear();
        self.rows.extend_from_slice(rows);
        self.make_tasks();
        true
    }

    /// Remembers what `grow` compares with, or that it must not.
    pub(super) fn remember(&mut self, tree: &TokenTree, rows: &[QueryRow]) {
        let alone = |t: &Tail| {
            let n = &self.nodes[t.node as usize];
            n.own_rows == 1 && n.first_child.is_none()
        };
        let split = self.method == Method::Auto && self.split;
        if split || self.tails.len() != rows.len() || !self.tails.iter().all(alone) {
            self.tails.clear();
        }
        self.shape_version = tree.shape_version();
        self.rows.clear();
        self.rows.extend_from_slice(rows);
    }
}
