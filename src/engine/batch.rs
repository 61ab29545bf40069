//! The rows of one step: packed query tokens of all branches, whoever asked for them.

use crate::attention::QueryRow;
use crate::kv::Slot;
use crate::kv::tree::BranchId;
use std::collections::HashMap;

/// Rows in the order in which they were added; logits are wanted of some.
#[derive(Default)]
pub struct Batch {
    pub tokens: Vec<u32>,
    pub positions: Vec<u32>,
    pub slots: Vec<Slot>,
    pub rows: Vec<QueryRow>,
    /// Rows that came alone, and so select what they attend to where the device does that: what decodes or is drafted. A
    /// prompt's rows attend to everything.
    pub selects: Vec<bool>,
    /// Rows whose logits are wanted.
    pub wanted: Vec<usize>,
    /// Who wants them: an index into `wanted`, and the lane. Equal paths share a row.
    pub wanting: Vec<(usize, LaneId)>,
    /// The row that writes each slot of this step.
    writers: HashMap<Slot, usize>,
}

/// A lane by its place: the job, and the lane in it. Valid within one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LaneId {
    pub job: usize,
    pub lane: usize,
}

impl Batch {
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.slots.clear();
        self.rows.clear();
        self.selects.clear();
        self.wanted.clear();
        self.wanting.clear();
        self.writers.clear();
    }

    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Adds tokens of one branch from position `first` on. Their slots are already at the end of `slots`, where the
    /// token tree put them.
    pub fn push(&mut self, branch: BranchId, first: usize, tokens: &[u32]) {
        assert!(self.slots.len() == self.tokens.len() + tokens.len(), "the token tree gives one slot a token");
        for (position, &token) in (first as u32..).zip(tokens) {
            self.writers.insert(self.slots[self.tokens.len()], self.tokens.len());
            self.tokens.push(token);
            self.positions.push(position);
            self.rows.push(QueryRow { branch, position });
            self.selects.push(tokens.len() == 1);
        }
    }

    /// The row of this step that writes `slot`.
    pub fn writer(&self, slot: Slot) -> Option<usize> {
        self.writers.get(&slot).copied()
    }

    /// Asks for the logits of a row.
    pub fn want(&mut self, row: usize, lane: LaneId) {
        let at = self.wanted.iter().rposition(|&wanted| wanted == row).unwrap_or_else(|| {
            self.wanted.push(row);
            self.wanted.len() - 1
        });
        self.wanting.push((at, lane));
    }
}
