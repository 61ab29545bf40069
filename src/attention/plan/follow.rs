//! The next plan of a decode step, made from the last one. Where every branch grew by one token in place, only the tails
//! differ. Where some forked, ended or moved as well, the subtrees that hold them are taken out and planned again. The
//! result is what planning anew gives (tested).

use super::part::{Marks, Under};
use super::{PAGE, Planner, Tail};
use crate::attention::{Method, QueryRow};
use crate::device::attend::BLOCK;
use crate::kv::{SegmentId, TokenTree};

/// Subtrees taken out or put in one by one; where more changed, the plan is made anew.
const MOST_CHANGES: usize = 12;

/// What the last plan was made of, and room to compare.
#[derive(Debug, Clone, Default)]
pub(super) struct Follow {
    /// The rows; empty where the plan cannot be followed.
    rows: Vec<QueryRow>,
    /// The tree's changes until then.
    changes: u64,
    segments: Marks,
    branches: Marks,
    /// For each batch row of the last plan, its work row.
    place: Vec<u32>,
    /// For each work row of the last plan, the batch row that it is now.
    now: Vec<Option<u32>>,
    /// How many of the work rows before each are kept.
    kept: Vec<u32>,
    /// Rows to be planned, each with the segment below which all is new.
    new: Vec<(SegmentId, u32)>,
    /// Nodes whose subtrees go.
    gone: Vec<u32>,
}

impl Follow {
    /// Whether the next plan may be made from the last one.
    pub fn is_ready(&self) -> bool {
        !self.rows.is_empty()
    }
}

impl Planner {
    /// Brings the last plan up to date where little happened; false where it has to be made anew.
    pub(super) fn follow(&mut self, tree: &TokenTree, rows: &[QueryRow]) -> bool {
        let Some(changes) = tree.changes_since(self.follow.changes) else { return false };
        if rows.is_empty() || !self.follow.is_ready() {
            return false;
        }
        if changes.is_empty() && self.grow(tree, rows) {
            return true;
        }
        if !self.compare(tree, rows, changes) {
            return false;
        }
        for w in 0..self.follow.now.len() {
            if let Some(row) = self.follow.now[w] {
                self.work.order[w] = row;
                self.grow_row(tree, w, rows[row as usize].position);
            }
        }
        while let Some(node) = self.follow.gone.pop() {
            self.part.clear();
            self.splice(&self.subtree(node));
        }
        let new = std::mem::take(&mut self.follow.new);
        for group in new.chunk_by(|a, b| a.0 == b.0) {
            let top = group[0].0;
            let above = tree.parent(top).filter(|&p| p != SegmentId::ROOT);
            let parent = above.and_then(|p| self.nodes.iter().position(|n| n.segment == p)).map(|p| p as u32);
            let place = self.gap(parent, top, tree.span(top).start);
            self.part.clear();
            let under = Under { nodes: &self.nodes, parent };
            let which = group.iter().map(|&(_, row)| row);
            self.part.build(tree, rows, which, under, place.base(!self.groups_by_kv()), &mut self.collect);
            self.splice(&place);
        }
        self.follow.new = new;
        self.count();
        self.make_tasks();
        true
    }

    /// Grows the last plan by a token a row where that is all that happened.
    fn grow(&mut self, tree: &TokenTree, rows: &[QueryRow]) -> bool {
        let grew = |(row, old): (&QueryRow, &QueryRow)| {
            row.branch == old.branch
                && row.position == old.position + 1
                && !row.position.is_multiple_of(BLOCK as u32)
                && tree.len(row.branch) == row.position as usize + 1
        };
        let last = &self.follow.rows;
        if last.len() != rows.len() || !rows.iter().zip(last).all(grew) {
            return false;
        }
        for (w, tail) in self.tails.iter().enumerate() {
            let row = rows[self.work.order[w] as usize];
            if self.nodes[tail.node as usize].segment != tree.end_segment(row.branch) {
                return false;
            }
        }
        for w in 0..rows.len() {
            self.grow_row(tree, w, rows[self.work.order[w] as usize].position);
        }
        let grown = rows.len() as u64;
        let io = &mut self.work.io;
        io.kv_tokens += grown;
        io.unique_tokens += grown;
        io.radix_tokens += grown;
        self.make_tasks();
        true
    }

    /// Moves the end of a row on to `position`, by a token at most and inside its block.
    fn grow_row(&mut self, tree: &TokenTree, row: usize, position: u32) {
        let (work, tail) = (&mut self.work, self.tails[row]);
        work.pieces[tail.piece as usize].len += position - work.positions[row];
        work.positions[row] = position;
        let n = &mut self.nodes[tail.node as usize];
        n.end = position + 1;
        let page = position / PAGE - n.start / PAGE;
        work.pages[(n.first_page + page) as usize] = tree.segment_pages(n.segment)[page as usize].0;
    }

    /// Finds what differs from the last plan: rows that go on, subtrees that go, rows that are new. False where that is
    /// too much.
    fn compare(&mut self, tree: &TokenTree, rows: &[QueryRow], changes: &[SegmentId]) -> bool {
        let Self { follow, nodes, tails, work, .. } = self;
        let Follow { rows: last, segments, branches, place, now, kept, new, gone, .. } = follow;
        segments.begin(tree.segment_bound());
        for (i, n) in nodes.iter().enumerate() {
            segments.set(n.segment.index(), i as u32);
        }
        place.resize(last.len(), 0);
        for (w, &row) in work.order.iter().enumerate() {
            place[row as usize] = w as u32;
        }
        branches.begin(last.iter().chain(rows).map(|r| r.branch.index() + 1).max().unwrap_or(0));
        for (row, &w) in last.iter().zip(place.iter()) {
            branches.set(row.branch.index(), w);
        }
        // Whoever ends below a segment that changed is planned again.
        now.clear();
        now.resize(last.len(), None);
        kept.clear();
        kept.resize(last.len() + 1, 1);
        for n in changes.iter().filter_map(|c| segments.get(c.index())).map(|n| &nodes[n as usize]) {
            kept[n.rows.0 as usize..n.rows.1 as usize].fill(0);
        }
        new.clear();
        for (i, row) in rows.iter().enumerate() {
            if tree.len(row.branch) != row.position as usize + 1 {
                return false;
            }
            let stays = |w: usize| {
                let grown = row.position.wrapping_sub(work.positions[w]);
                let same_block = grown == 0 || (grown == 1 && !row.position.is_multiple_of(BLOCK as u32));
                let same_node = nodes[tails[w].node as usize].segment == tree.end_segment(row.branch);
                kept[w] == 1 && now[w].is_none() && same_block && same_node
            };
            match branches.get(row.branch.index()).map(|w| w as usize).filter(|&w| stays(w)) {
                Some(w) => now[w] = Some(i as u32),
                None => new.push((SegmentId::ROOT, i as u32)),
            }
        }
        let mut count = 0;
        for (w, kept) in kept.iter_mut().enumerate() {
            *kept = count;
            count += u32::from(now.get(w).is_some_and(Option::is_some));
        }
        let keeps = |node: u32| {
            let (from, to) = nodes[node as usize].rows;
            kept[from as usize] < kept[to as usize]
        };
        gone.clear();
        let mut w = 0;
        while w < now.len() {
            if now[w].is_some() {
                w += 1;
                continue;
            }
            let mut top = tails[w].node;
            while let Some(p) = nodes[top as usize].parent.filter(|&p| !keeps(p)) {
                top = p;
            }
            gone.push(top);
            w = nodes[top as usize].rows.1 as usize;
        }
        for (top, row) in new.iter_mut() {
            *top = tree.end_segment(rows[*row as usize].branch);
            let known = |segment: SegmentId| segments.get(segment.index()).filter(|&n| keeps(n));
            if known(*top).is_some() {
                return false;
            }
            while let Some(up) = tree.parent(*top).filter(|&p| p != SegmentId::ROOT) {
                match known(up) {
                    // Below a leaf: its own row and its pages change too.
                    Some(n) if nodes[n as usize].size == 1 => return false,
                    Some(_) => break,
                    None => *top = up,
                }
            }
        }
        new.sort_unstable();
        let groups = new.chunk_by(|a, b| a.0 == b.0).count();
        count > 0 && gone.len() + groups <= MOST_CHANGES && new.len() <= rows.len() / 2 + MOST_CHANGES
    }

    /// Remembers what the next step is compared with, or that it must be planned anew.
    pub(super) fn remember(&mut self, tree: &TokenTree, rows: &[QueryRow]) {
        let alone = |t: &Tail| {
            let n = &self.nodes[t.node as usize];
            n.size == 1 && n.own_rows == 1
        };
        let split = self.method == Method::Auto && self.split;
        self.follow.rows.clear();
        if !split && self.tails.len() == rows.len() && self.tails.iter().all(alone) {
            self.follow.rows.extend_from_slice(rows);
        }
        self.follow.changes = tree.changes();
    }
}
