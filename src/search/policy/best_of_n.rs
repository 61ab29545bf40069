//! Best of n: n whole answers are sampled, scored, and the best one is the answer.
//!
//! Source: Cobbe et al., Training Verifiers to Solve Math Word Problems (arXiv 2110.14168): candidates ranked by a
//! verifier. The puzzle's own check is asked once, of the chosen answer, so that the result is what a user without a checker
//! would get. With `checker: whole` among the evaluators the verifier is perfect, and this is pass@n.

use super::{Plan, Step, end, expandable, rank};
use crate::search::tree::{NodeId, ThoughtTree};

pub fn next(tree: &ThoughtTree, plan: &Plan) -> Step {
    if expandable(tree.node(NodeId::ROOT), plan) {
        return Step::Expand(vec![NodeId::ROOT]);
    }
    match choice(tree) {
        Some(node) => Step::Choose { node, why: format!("the best of {}", proposed(tree)) },
        None => end(tree, plan),
    }
}

/// The answer with the highest score.
pub fn choice(tree: &ThoughtTree) -> Option<NodeId> {
    candidates(tree).min_by(|&a, &b| rank(tree, a, b))
}

/// Whole answers that were not pruned.
pub(super) fn candidates(tree: &ThoughtTree) -> impl Iterator<Item = NodeId> {
    tree.node(NodeId::ROOT).children.iter().copied().filter(|id| tree.node(*id).is_live())
}

/// Answers that were proposed, repeated ones counted.
pub(super) fn proposed(tree: &ThoughtTree) -> u32 {
    tree.node(NodeId::ROOT).children.iter().map(|id| 1 + tree.node(*id).repeats).sum()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{expanded, ids, plan, set, tree};
    use super::*;
    use crate::search::event::Reason;
    use crate::search::policy::next as policy_next;
    use crate::search::tree::Status;
    use crate::strategy::Policy;

    #[test]
    fn the_best_answer_is_chosen_once() {
        let plan = plan(Policy::BestOfN);
        assert_eq!(policy_next(&tree(&[]), &plan), Step::Expand(ids(&[0])));
        let mut grown = tree(&[(0, 0.2, 0.0), (0, 0.9, 0.0), (0, 0.5, 0.0)]);
        expanded(&mut grown, &[0]);
        assert_eq!(policy_next(&grown, &plan), Step::Choose { node: NodeId(2), why: "the best of 3".into() });
        set(&mut grown, 2, Status::Pruned);
        assert!(matches!(policy_next(&grown, &plan), Step::Choose { node: NodeId(3), .. }));
        set(&mut grown, 1, Status::Pruned);
        set(&mut grown, 3, Status::Pruned);
        assert_eq!(policy_next(&grown, &plan), Step::End(Reason::AllPruned { depth: 1 }));
    }
}
