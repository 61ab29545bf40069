//! The outcome: the answer, or the best there is, and what it cost.

use super::Controller;
use crate::search::event::{Outcome, Reason};
use crate::search::policy::rank;
use crate::search::tree::{NodeId, Status};
use crate::strategy::Thought;
use std::cmp::Ordering;

impl Controller {
    /// The best thought so far: a right answer; else the whole answer with the fewest errors; else the best beginning
    /// that is not pruned, deeper ones before shallower ones of the same score; else the best pruned thought.
    pub(super) fn best(&self) -> Option<NodeId> {
        let class = |id: NodeId| {
            let node = self.tree.node(id);
            match node.status {
                Status::Answer => 0,
                _ if self.checked.contains_key(&id) && node.status != Status::Pruned => 1,
                Status::Pruned => 3,
                _ => 2,
            }
        };
        let depth = |id: NodeId| self.tree.node(id).depth;
        let score = |id: NodeId| self.tree.node(id).score.unwrap_or(-1.0);
        let better = |a: NodeId, b: NodeId| -> Ordering {
            class(a)
                .cmp(&class(b))
                .then_with(|| score(b).total_cmp(&score(a)))
                .then_with(|| depth(b).cmp(&depth(a)))
                .then_with(|| rank(&self.tree, a, b))
        };
        self.tree.iter().map(|(id, _)| id).filter(|id| *id != NodeId::ROOT).min_by(|&a, &b| better(a, b))
    }

    pub(super) fn outcome(&self, reason: Reason) -> Outcome {
        let node = self.best();
        let text = node.map(|id| match self.strategy.generate.thought {
            Thought::Answer => self.answer_in(&self.tree.node(id).text),
            Thought::Step => self.tree.path_text(id),
        });
        let verdict = match (node, &text) {
            (Some(id), Some(text)) => Some(self.checked.get(&id).cloned().unwrap_or_else(|| self.puzzle.check(text))),
            _ => None,
        };
        let solved = text.as_ref().is_some_and(|text| self.puzzle.solved(text));
        let mut why = verdict.as_ref().map_or_else(|| "no thought was grown".to_string(), |v| v.why.clone());
        if verdict.as_ref().is_some_and(|v| (v.error_score == 0) != solved) {
            why = format!("{why}; the data's own answer says otherwise");
        }
        Outcome {
            solved,
            reason,
            node,
            answer: verdict.as_ref().and_then(|v| v.answer.clone()),
            answer_text: text,
            error_score: verdict.map(|v| v.error_score),
            why,
            thoughts: self.ledger.thoughts,
            proposals: self.ledger.proposals,
            usage: self.ledger.usage,
            seconds: self.seconds(),
        }
    }
}
