//! Beam search: as breadth first, but a level is ranked by whole paths, so that a weak step is not forgotten once a strong
//! one follows it.
//!
//! Source: Xie et al., Self-Evaluation Guided Beam Search for Reasoning (arXiv 2305.00633), equation 4: the sum over the
//! steps of a path of `likelihood * ln P(step) + (1 - likelihood) * ln score(step)`. With `likelihood: 0` paths rank by the
//! product of their scores, with 1 by their probability alone (Lowerre, 1976). Differences: the best are kept without
//! sampling, and pinned thoughts live on beside them. O(thoughts of a level * depth).

use super::{Plan, Step, bfs, rank};
use crate::search::tree::{NodeId, ThoughtTree};

/// A score of 0 would end a path for good whatever follows; the logarithm is taken of at least this.
const LEAST: f64 = 1e-9;

pub fn next(tree: &ThoughtTree, plan: &Plan, likelihood: f64) -> Step {
    let sum = |id: NodeId| path_sum(tree, id, likelihood);
    bfs::level(tree, plan, |a, b| sum(b).total_cmp(&sum(a)).then_with(|| rank(tree, a, b)))
}

/// What a path is worth: 0 for the root, less for every doubt on the way.
fn path_sum(tree: &ThoughtTree, id: NodeId, likelihood: f64) -> f64 {
    let step = |id: &NodeId| {
        let node = tree.node(*id);
        let score = node.score.unwrap_or(0.0).max(LEAST).ln();
        // A step that nobody sampled (the user's own) counts as certain.
        let logprob = node.logprob.unwrap_or(0.0);
        likelihood * logprob + (1.0 - likelihood) * score
    };
    tree.path(id).iter().map(step).sum()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{expanded, ids, plan, tree};
    use super::*;
    use crate::search::policy::next as policy_next;
    use crate::strategy::Policy;

    /// Two paths: #1 (0.9) with #3 (0.5), and #2 (0.4) with #4 (0.8).
    fn grown() -> ThoughtTree {
        let mut grown = tree(&[(0, 0.9, -3.0), (0, 0.4, -1.0), (1, 0.5, -3.0), (2, 0.8, -1.0)]);
        expanded(&mut grown, &[0, 1, 2]);
        grown
    }

    #[test]
    fn paths_and_not_steps_are_ranked() {
        let mut plan = plan(Policy::Beam { likelihood: 0.0 });
        plan.keep = 1;
        let why = || "not among the best 1 of level 2".to_string();
        assert_eq!(policy_next(&grown(), &plan), Step::Prune(vec![(NodeId(4), why())]), "0.45 against 0.32");
        plan.policy = Policy::Bfs;
        assert_eq!(policy_next(&grown(), &plan), Step::Prune(vec![(NodeId(3), why())]), "0.5 against 0.8");
        plan.policy = Policy::Beam { likelihood: 1.0 };
        assert_eq!(policy_next(&grown(), &plan), Step::Prune(vec![(NodeId(3), why())]), "-6 against -2");
    }

    #[test]
    fn a_score_of_zero_is_far_behind_and_not_undefined() {
        let mut plan = plan(Policy::Beam { likelihood: 0.5 });
        plan.keep = 2;
        let mut zero = tree(&[(0, 0.0, 0.0), (0, 0.1, 0.0)]);
        expanded(&mut zero, &[0]);
        assert_eq!(policy_next(&zero, &plan), Step::Expand(ids(&[2, 1])));
    }
}
