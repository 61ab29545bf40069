//! Depth-first search over thoughts: the best child first, backtracking where nothing worth following is left.
//!
//! Source: Yao et al., Tree of Thoughts (arXiv 2305.10601), Algorithm 2: children sorted by value, those below the
//! threshold pruned (the step before this one), the rest followed in order. `children` bounds how many of one thought's
//! children are followed before it is given up; the paper's crosswords use 5.

use super::{Plan, Step, concerns, end, expandable, promising, rank};
use crate::search::tree::{NodeId, Status, ThoughtTree};

pub fn next(tree: &ThoughtTree, plan: &Plan) -> Step {
    let surplus = surplus(tree, plan);
    if !surplus.is_empty() {
        return Step::Prune(surplus);
    }
    match first(tree, plan, &promising(tree, plan), NodeId::ROOT) {
        Some(id) => Step::Expand(vec![id]),
        None => end(tree, plan),
    }
}

/// Where the search goes on if `node`, which is being expanded, leads nowhere. O(thoughts).
pub fn backtrack(tree: &ThoughtTree, plan: &Plan, node: NodeId) -> Option<NodeId> {
    let promising = promising(tree, plan);
    let mut below = node;
    while let Some(parent) = tree.node(below).parent {
        if let Some(next) = best_child(tree, &promising, parent, Some(below)) {
            return first(tree, plan, &promising, next);
        }
        below = parent;
    }
    None
}

/// The first thought to be expanded, from `at` on: down, always into the best family member below which something is left,
/// so that what is better is followed to its end before what is worse.
fn first(tree: &ThoughtTree, plan: &Plan, promising: &[bool], mut at: NodeId) -> Option<NodeId> {
    while promising[at.index()] {
        if expandable(tree.node(at), plan) {
            return Some(at);
        }
        at = best_child(tree, promising, at, None)?;
    }
    None
}

/// The best child below which something is left, other than `passed`.
fn best_child(tree: &ThoughtTree, promising: &[bool], of: NodeId, passed: Option<NodeId>) -> Option<NodeId> {
    let open = |id: &NodeId| promising[id.index()] && tree.node(*id).status != Status::Pruned && Some(*id) != passed;
    tree.node(of).children.iter().copied().filter(open).min_by(|&a, &b| rank(tree, a, b))
}

/// Open thoughts that stand behind the best `children` of their parent. Those already followed count as followed.
fn surplus(tree: &ThoughtTree, plan: &Plan) -> Vec<(NodeId, String)> {
    let Some(most) = plan.children else { return Vec::new() };
    let most = most.max(1);
    let mut surplus = Vec::new();
    for (_, parent) in tree.iter() {
        let waiting = |id: &NodeId| tree.node(*id).status == Status::Open && tree.node(*id).expansions == 0;
        let followed = parent.children.iter().filter(|id| tree.node(**id).expansions > 0).count();
        let mut open: Vec<NodeId> = parent.children.iter().copied().filter(waiting).collect();
        open.retain(|id| concerns(tree.node(*id), plan));
        open.sort_by(|&a, &b| rank(tree, a, b));
        let behind = open.into_iter().skip(most.saturating_sub(followed));
        surplus.extend(behind.map(|id| (id, format!("only the best {most} of its siblings are followed"))));
    }
    surplus.sort_by_key(|(id, _)| *id);
    surplus
}

#[cfg(test)]
mod tests {
    use super::super::tests::{expanded, ids, plan, set, tree};
    use super::*;
    use crate::search::event::Reason;
    use crate::search::policy::next as policy_next;
    use crate::strategy::Policy;

    #[test]
    fn the_best_child_is_followed_down_before_its_siblings() {
        let plan = plan(Policy::Dfs);
        let mut grown = tree(&[(0, 0.4, 0.0), (0, 0.9, 0.0), (2, 0.1, 0.0)]);
        expanded(&mut grown, &[0, 2]);
        assert_eq!(policy_next(&grown, &plan), Step::Expand(ids(&[3])), "deeper first, although it scores less");
        assert_eq!(backtrack(&grown, &plan, NodeId(3)), Some(NodeId(1)));
        assert_eq!(backtrack(&grown, &plan, NodeId(1)), Some(NodeId(3)));
        expanded(&mut grown, &[3]);
        assert_eq!(policy_next(&grown, &plan), Step::Expand(ids(&[1])), "then back to the sibling");
        expanded(&mut grown, &[1]);
        assert_eq!(policy_next(&grown, &plan), Step::End(Reason::Exhausted));
    }

    #[test]
    fn a_pruned_thought_hides_what_is_below_it() {
        let plan = plan(Policy::Dfs);
        let mut grown = tree(&[(0, 0.4, 0.0), (0, 0.9, 0.0), (2, 0.8, 0.0)]);
        expanded(&mut grown, &[0, 2]);
        set(&mut grown, 2, Status::Pruned);
        assert_eq!(policy_next(&grown, &plan), Step::Expand(ids(&[1])));
    }

    #[test]
    fn only_the_best_children_are_followed() {
        let mut plan = plan(Policy::Dfs);
        plan.children = Some(2);
        let mut grown = tree(&[(0, 0.4, 0.0), (0, 0.9, 0.0), (0, 0.8, 0.0)]);
        expanded(&mut grown, &[0]);
        let why = "only the best 2 of its siblings are followed".to_string();
        assert_eq!(policy_next(&grown, &plan), Step::Prune(vec![(NodeId(1), why)]));
        set(&mut grown, 1, Status::Pruned);
        expanded(&mut grown, &[2]);
        assert_eq!(policy_next(&grown, &plan), Step::Expand(ids(&[3])), "the second of the two");
    }

    #[test]
    fn a_path_of_many_thousand_thoughts_does_not_overflow_the_stack() {
        let mut plan = plan(Policy::Dfs);
        plan.depth = usize::MAX;
        let thoughts: Vec<(u32, f64, f64)> = (0..20_000).map(|parent| (parent, 0.5, 0.0)).collect();
        let mut grown = tree(&thoughts);
        expanded(&mut grown, &(0..20_000).collect::<Vec<u32>>());
        assert_eq!(policy_next(&grown, &plan), Step::Expand(ids(&[20_000])));
    }
}
