//! The outcome: the answer, or the best there is, and what it cost.

use super::Controller;
use crate::search::event::{Event, Outcome, Reason};
use crate::search::policy::{self, rank};
use crate::search::tree::{NodeId, Status};
use crate::strategy::Thought;
use std::cmp::Ordering;

impl Controller {
    /// The best thought so far: a right answer; else the whole answer with the fewest errors; else the best beginning
    /// that is not pruned, deeper ones before shallower ones of the same score; else the best pruned thought.
    pub(super) fn best(&self) -> Option<NodeId> {
        if self.chosen.is_some() {
            return self.chosen;
        }
        let choice = policy::choice(&self.tree, &self.plan.policy);
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
        let better = |a: NodeId, b: NodeId| -> Ordering {
            class(a)
                .cmp(&class(b))
                .then_with(|| part(a).cmp(&part(b)))
                .then_with(|| score(b).total_cmp(&score(a)))
                .then_with(|| depth(b).cmp(&depth(a)))
                .then_with(|| rank(&self.tree, a, b))
        };
        self.tree.iter().map(|(id, _)| id).filter(|id| *id != NodeId::ROOT).min_by(|&a, &b| better(a, b))
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

    pub(super) fn outcome(&self, reason: Reason) -> Outcome {
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
