//! The rows of one step: packed query tokens of all branches, whoever asked for them.

use crate::attention::QueryRow;
use crate::kv::Slot;
use crate::kv::tree::BranchId;

/// Rows in the order in which they were added; logits are wanted of some.
#[derive(Default)]
pub struct Batch {
    pub tokens: Vec<u32>,
    pub positions: Vec<u32>,
    pub slots: Vec<Slot>,
    pub rows: Vec<QueryRow>,
    /// Rows whose logits are wanted, ascending, with whose they are.
    pub wanted: Vec<(usize, LaneId)>,
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
        self.wanted.clear();
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
        for (position, &token) in (first as u32..).zip(tokens) {
            self.tokens.push(token);
            self.positions.push(position);
            self.rows.push(QueryRow { branch, position });
        }
        assert!(self.slots.len() == self.tokens.len(), "the token tree gives one slot a token");
    }

    /// Asks for the logits of the newest row.
    pub fn want(&mut self, lane: LaneId) {
        self.wanted.push((self.tokens.len() - 1, lane));
    }
}
