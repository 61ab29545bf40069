//! Breadth-first search over thoughts: generate, evaluate, keep the best b of each level.
//!
//! Source: Yao et al., Tree of Thoughts (arXiv 2305.10601), Algorithm 1. Differences: a thought may be pruned by a
//! threshold too, pinned thoughts live on beside the best b, and a whole answer is checked and never expanded.
//!
//! The level worked on is the shallowest one that still has thoughts to expand, so a thought that the user adds or
//! reopens higher up is caught up first.

use super::{Plan, Step, end, expandable, rank};
use crate::search::tree::{NodeId, Status, ThoughtTree};
use std::cmp::Ordering;

pub fn next(tree: &ThoughtTree, plan: &Plan) -> Step {
    level(tree, plan, |a, b| rank(tree, a, b))
}

/// The step for the shallowest level that waits: prune what is behind the best, else expand the level, best first.
pub(super) fn level(tree: &ThoughtTree, plan: &Plan, order: impl Fn(NodeId, NodeId) -> Ordering) -> Step {
    let waiting: Vec<NodeId> = tree.live().filter(|(_, n)| expandable(n, plan)).map(|(id, _)| id).collect();
    let Some(depth) = waiting.iter().map(|&id| tree.node(id).depth).min() else {
        return end(tree, plan);
    };
    let mut level: Vec<NodeId> = waiting.into_iter().filter(|&id| tree.node(id).depth == depth).collect();
    level.sort_by(|&a, &b| order(a, b));

    // Pinned thoughts do not take a place of the best b.
    let keep = plan.keep_at(depth);
    let mut places = keep;
    let mut surplus = Vec::new();
    for &id in &level {
        if tree.node(id).status == Status::Pinned {
            continue;
        }
        if places > 0 {
            places -= 1;
        } else {
            surplus.push((id, format!("not among the best {keep} of level {depth}")));
        }
    }
    if surplus.is_empty() { Step::Expand(level) } else { Step::Prune(surplus) }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{expanded, ids, plan, set, tree};
    use super::*;
    use crate::search::event::Reason;
    use crate::search::policy::next as policy_next;
    use crate::strategy::Policy;

    #[test]
    fn the_root_comes_first_then_the_best_of_each_level() {
        let plan = plan(Policy::Bfs);
        assert_eq!(policy_next(&tree(&[]), &plan), Step::Expand(vec![NodeId::ROOT]));

        let mut grown = tree(&[(0, 0.2, 0.0), (0, 0.9, 0.0), (0, 0.5, 0.0)]);
        expanded(&mut grown, &[0]);
        assert_eq!(
            policy_next(&grown, &plan),
            Step::Prune(vec![(NodeId(1), "not among the best 2 of level 1".into())])
        );
        set(&mut grown, 1, Status::Pruned);
        assert_eq!(policy_next(&grown, &plan), Step::Expand(ids(&[2, 3])));
    }

    #[test]
    fn whole_answers_are_not_expanded() {
        let plan = plan(Policy::Bfs);
        let mut grown = tree(&[(0, 0.5, 0.0), (0, 0.4, 0.0)]);
        expanded(&mut grown, &[0]);
        set(&mut grown, 1, Status::Closed);
        assert_eq!(policy_next(&grown, &plan), Step::Expand(ids(&[2])));
        set(&mut grown, 2, Status::Answer);
        assert_eq!(policy_next(&grown, &plan), Step::End(Reason::Exhausted));
    }

    #[test]
    fn a_pinned_thought_lives_on_beside_the_best() {
        let plan = plan(Policy::Bfs);
        let mut grown = tree(&[(0, 0.2, 0.0), (0, 0.9, 0.0), (0, 0.5, 0.0)]);
        expanded(&mut grown, &[0]);
        set(&mut grown, 1, Status::Pinned);
        assert_eq!(policy_next(&grown, &plan), Step::Expand(ids(&[2, 3, 1])));
        expanded(&mut grown, &[1, 2, 3]);
        assert_eq!(policy_next(&grown, &plan), Step::End(Reason::Exhausted), "expanded once, though still pinned");
    }

    #[test]
    fn a_thought_reopened_higher_up_is_caught_up_first() {
        let plan = plan(Policy::Bfs);
        let mut grown = tree(&[(0, 0.9, 0.0), (0, 0.8, 0.0), (1, 0.7, 0.0)]);
        expanded(&mut grown, &[0, 1]);
        assert_eq!(policy_next(&grown, &plan), Step::Expand(ids(&[2])));
    }
}
