//! Self-consistency: n whole answers are sampled, and the one that most of them agree on is the answer.
//!
//! Source: Wang et al., Self-Consistency Improves Chain of Thought Reasoning in Language Models (arXiv 2203.11171). Answers
//! agree where the puzzle says that they are the same state, however they are worded; a repeated state is merged into the
//! first thought that had it and counted there (`repeats`). With evaluators a vote weighs as much as its thought's score.
//! The puzzle's own check is asked once, of the chosen answer. Ties go to the higher rank.

use super::best_of_n::{candidates, proposed};
use super::{Plan, Step, end, expandable, rank};
use crate::search::tree::{NodeId, ThoughtTree};

pub fn next(tree: &ThoughtTree, plan: &Plan) -> Step {
    if expandable(tree.node(NodeId::ROOT), plan) {
        return Step::Expand(vec![NodeId::ROOT]);
    }
    match choice(tree) {
        Some(node) => {
            let votes = 1 + tree.node(node).repeats;
            Step::Choose { node, why: format!("{votes} of {} answers agree", proposed(tree)) }
        }
        None => end(tree, plan),
    }
}

/// The answer with the most votes.
pub fn choice(tree: &ThoughtTree) -> Option<NodeId> {
    let votes = |id: NodeId| {
        let node = tree.node(id);
        f64::from(1 + node.repeats) * node.score.filter(|s| !s.is_nan()).unwrap_or(0.0)
    };
    candidates(tree).min_by(|&a, &b| votes(b).total_cmp(&votes(a)).then_with(|| rank(tree, a, b)))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{expanded, plan, tree};
    use super::*;
    use crate::search::event::Event;
    use crate::search::policy::next as policy_next;
    use crate::strategy::Policy;

    fn repeat(tree: &mut ThoughtTree, node: u32) {
        let event = Event::Dropped {
            parent: NodeId::ROOT,
            text: String::new(),
            why: String::new(),
            same_as: Some(NodeId(node)),
        };
        tree.apply(&event).unwrap();
    }

    #[test]
    fn the_majority_wins_and_scores_weigh_votes() {
        let plan = plan(Policy::SelfConsistency);
        let mut grown = tree(&[(0, 1.0, 0.0), (0, 1.0, 0.0), (0, 1.0, 0.0)]);
        expanded(&mut grown, &[0]);
        repeat(&mut grown, 3);
        repeat(&mut grown, 3);
        repeat(&mut grown, 2);
        let why = "3 of 6 answers agree".to_string();
        assert_eq!(policy_next(&grown, &plan), Step::Choose { node: NodeId(3), why });

        let mut weighed = tree(&[(0, 0.9, 0.0), (0, 0.2, 0.0)]);
        expanded(&mut weighed, &[0]);
        repeat(&mut weighed, 2);
        assert_eq!(choice(&weighed), Some(NodeId(1)), "one vote of 0.9 against two of 0.2");
    }
}
