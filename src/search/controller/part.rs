//! Parts of a puzzle: what a Graph of Thoughts splits, solves apart and merges. Everywhere else the part is the puzzle.

use super::Controller;
use crate::base::{Error, Result};
use crate::search::evaluate::Part;
use crate::search::event::{Author, Event};
use crate::search::policy::graph;
use crate::search::tree::{NodeId, Status};
use crate::strategy::{Operation, Policy};
use crate::task::{self, Puzzle};
use std::sync::Arc;

impl Controller {
    fn operations(&self) -> &[Operation] {
        match &self.plan.policy {
            Policy::Graph(operations) => operations,
            _ => &[],
        }
    }

    /// The parts that a thought is a solution of, as a key; empty for the whole puzzle where it is not split.
    pub(super) fn problem(&self, node: NodeId) -> Vec<NodeId> {
        match self.operations() {
            [] => Vec::new(),
            operations => graph::problem(&self.tree, node, operations),
        }
    }

    /// Whether a thought is about the whole puzzle.
    pub(super) fn whole(&self, node: NodeId) -> bool {
        let parts = self.problem(node).len();
        parts == 0 || (parts == self.tree.node(NodeId::ROOT).children.len() && self.tree.node(node).depth > 1)
    }

    /// The puzzle that a thought is a solution of.
    pub(super) fn puzzle_of(&self, node: NodeId) -> Arc<dyn Puzzle> {
        if self.whole(node) { self.puzzle.clone() } else { self.puzzle_of_parts(&self.problem(node)) }
    }

    /// The puzzle that thoughts below these sources solve.
    pub(super) fn puzzle_of_sources(&self, sources: &[NodeId]) -> Arc<dyn Puzzle> {
        let mut parts: Vec<NodeId> = sources.iter().flat_map(|&source| self.problem(source)).collect();
        parts.sort_unstable();
        parts.dedup();
        if parts.len() == self.tree.node(NodeId::ROOT).children.len() {
            return self.puzzle.clone();
        }
        self.puzzle_of_parts(&parts)
    }

    fn puzzle_of_parts(&self, parts: &[NodeId]) -> Arc<dyn Puzzle> {
        let texts: Vec<String> = parts.iter().map(|&part| self.tree.node(part).text.clone()).collect();
        let joined = if let [one] = texts.as_slice() { Some(one.clone()) } else { self.puzzle.join(&texts) };
        let parsed = joined.and_then(|input| task::by_name(self.puzzle.task()).ok()?.parse(&input).ok());
        // What the task split it can join and read again; a part that the user edited may be unreadable, and is then
        // judged as the whole.
        parsed.unwrap_or_else(|| self.puzzle.clone())
    }

    /// Grows the puzzle's parts below the root.
    pub(super) fn split(&mut self, parts: usize) -> Result<()> {
        let inputs = self.puzzle.split(parts).ok_or_else(|| {
            Error::input(format!("this {} puzzle cannot be split into {parts} parts", self.puzzle.task()))
        })?;
        let proposals = inputs.len() as u64;
        for input in inputs {
            let node = NodeId(self.tree.len() as u32);
            self.ledger.proposals += 1;
            self.ledger.thoughts += 1;
            self.emit(Event::Grown {
                node,
                parent: NodeId::ROOT,
                text: input,
                by: Author::Model,
                logprob: None,
                token_logprobs: Vec::new(),
                usage: Default::default(),
            });
            self.emit_score(node, &[Part::of("split", 1.0, "a part of the puzzle")]);
        }
        self.emit(Event::Expanded { node: NodeId::ROOT, proposals });
        self.emit(Event::Status { node: NodeId::ROOT, status: Status::Closed, why: None });
        Ok(())
    }

    /// Asks for merged solutions of each pair; they grow below the first and name both.
    pub(super) async fn merge(&mut self, pairs: &[(NodeId, NodeId)]) {
        self.merging = pairs.iter().map(|&(first, second)| (first, vec![first, second])).collect();
        let first: Vec<NodeId> = pairs.iter().map(|&(first, _)| first).collect();
        self.expand(&first).await;
        self.merging.clear();
        if self.ending.is_some() {
            return;
        }
        for &(_, second) in pairs {
            self.emit(Event::Expanded { node: second, proposals: 0 });
            if self.tree.node(second).status == Status::Open {
                let why = Some("merged with the part before it".to_string());
                self.emit(Event::Status { node: second, status: Status::Closed, why });
            }
            self.holds.remove(&second);
        }
    }
}
