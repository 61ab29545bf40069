//! The outcome: the answer, or the best there is, and what it cost.

use super::Controller;
use crate::search::event::{Event, Outcome, Reason};
use crate::search::policy::{self, rank};
use crate::search::tree::{NodeId, Status};
use crate::strategy::{Policy, Thought};
use std::cmp::Ordering;
use std::collections::BTreeSet;

/// The best thought as of the last look, and the thoughts that have changed since: another look costs what has changed, and
/// not what the tree has grown to.
#[derive(Default)]
pub struct Standing {
    best: Option<NodeId>,
    changed: BTreeSet<NodeId>,
}

impl Standing {
    /// Notes what an event changes.
    pub fn note(&mut self, event: &Event) {
        match event {
            Event::Grown { node, .. }
            | Event::Scored { node, .. }
            | Event::Status { node, .. }
            | Event::Edited { node, .. } => {
                self.changed.insert(*node);
            }
            _ => {}
        }
    }
}

impl Controller {
    /// The best thought so far, from what has changed since the last look where that is enough.
    pub(super) fn best(&mut self) -> Option<NodeId> {
        let changed = std::mem::take(&mut self.standing.changed);
        // What a policy chooses, and what is about the whole puzzle, may change with any thought.
        let local =
            self.chosen.is_none() && !self.plan.policy.chooses() && !matches!(self.plan.policy, Policy::Graph(_));
        let known = self.standing.best.filter(|best| local && !changed.contains(best));
        let best = match known {
            Some(best) => {
                let others = changed.into_iter().filter(|id| *id != NodeId::ROOT);
                others.fold(best, |best, other| if self.better(None, other, best).is_lt() { other } else { best })
            }
            None => self.best_of_all()?,
        };
        debug_assert_eq!(Some(best), self.best_of_all(), "what has changed is enough to know");
        self.standing.best = Some(best);
        Some(best)
    }

    /// The best thought so far: a right answer; else the whole answer with the fewest errors; else the best beginning
    /// that is not pruned, deeper ones before shallower ones of the same score; else the best pruned thought.
    fn best_of_all(&self) -> Option<NodeId> {
        if self.chosen.is_some() {
            return self.chosen;
        }
        let choice = policy::choice(&self.tree, &self.plan.policy);
        let thoughts = self.tree.iter().map(|(id, _)| id).filter(|id| *id != NodeId::ROOT);
        thoughts.min_by(|&a, &b| self.better(choice, a, b))
    }

    /// Which of two thoughts stands higher, where the policy would choose `choice`.
    fn better(&self, choice: Option<NodeId>, a: NodeId, b: NodeId) -> Ordering {
        let class = |id: NodeId| {
            let node = self.tree.node(id);
            match node.status {
                Status::Answer => 0,
                _ if Some(id) == choice => 0,
                _ if self.checked.contains_key(&id) && node.status != Status::Pruned => 1,
                Status::Pruned => 3,
                _ => 2,
            }
        };
        let depth = |id: NodeId| self.tree.node(id).depth;
        // A solution of the whole puzzle is better than one of a part.
        let part = |id: NodeId| !self.whole(id);
        let score = |id: NodeId| self.tree.node(id).score.unwrap_or(-1.0);
        class(a)
            .cmp(&class(b))
            .then_with(|| part(a).cmp(&part(b)))
            .then_with(|| score(b).total_cmp(&score(a)))
            .then_with(|| depth(b).cmp(&depth(a)))
            .then_with(|| rank(&self.tree, a, b))
    }

    /// Ends the search with a thought that the strategy chose; only now the puzzle judges it.
    pub(super) fn choose(&mut self, node: NodeId, why: String) -> Reason {
        let verdict = self.puzzle.check(&self.answer_of(node));
        let right = verdict.error_score == 0;
        let status = if right { Status::Answer } else { Status::Closed };
        self.emit(Event::Status { node, status, why: Some(format!("{}; chosen: {why}", verdict.why)) });
        self.checked.insert(node, verdict);
        self.chosen = Some(node);
        if right { Reason::Solved } else { Reason::Stopped { why: format!("{node} was chosen: {why}") } }
    }

    /// The answer that a thought stands for: its own text, or the steps of its path.
    pub(super) fn answer_of(&self, node: NodeId) -> String {
        let at = self.tree.node(node);
        match self.generate_of(at.depth).thought {
            Thought::Answer => self.answer_in(at.depth, &at.text),
            Thought::Step => self.tree.path_text(node),
        }
    }

    pub(super) fn outcome(&mut self, reason: Reason) -> Outcome {
        let node = self.best();
        let text = node.map(|id| self.answer_of(id));
        let verdict = match (node, &text) {
            (Some(id), Some(text)) => Some(self.checked.get(&id).cloned().unwrap_or_else(|| self.puzzle.check(text))),
            _ => None,
        };
        let solved = text.as_ref().is_some_and(|text| self.puzzle.solved(text));
        let mut why = verdict.as_ref().map_or_else(|| "no thought was grown".to_string(), |v| v.why.clone());
        if verdict.as_ref().is_some_and(|v| (v.error_score == 0) != solved) {
            why = format!("{why}; the data's own answer says otherwise");
        }
        // A whole answer that no evaluator was asked about may still be right.
        let ended_early = matches!(reason, Reason::Quit | Reason::Refused { .. } | Reason::Failed { .. });
        let reason = if solved && !ended_early { Reason::Solved } else { reason };
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
            link: self.lm.counters().link.filter(|link| link.device_budget_bytes > 0),
        }
    }
}
