//! Best-first search: of all thoughts that wait, wherever they stand, the one with the highest priority is expanded next.
//!
//! Source: Hart, Nilsson and Raphael, A Formal Basis for the Heuristic Determination of Minimum Cost Paths (1968); Koh et
//! al., Tree Search for Language Model Agents (arXiv 2407.01476), for thoughts. The priority is an expression over the
//! thought's values: `score` is greedy best-first, `score - 0.01 * depth` or `path_logprob + 2 * score` weigh what a path
//! cost against what it promises, as A* does. Nothing is pruned, so the search goes back wherever that pays. `width`
//! thoughts are expanded at a time, for models that serve several at once.
//!
//! A thought for which the priority has no result (a value it needs is not there) comes after all others.

use super::memory::Memory;
use super::{Plan, Step, end, expandable, rank};
use crate::search::event::Reason;
use crate::search::tree::{NodeId, ThoughtTree};
use crate::strategy::Expression;

pub fn next(tree: &ThoughtTree, plan: &Plan, priority: &Expression, width: usize, memory: &mut Memory) -> Step {
    let waiting: Vec<NodeId> = tree.live().filter(|(_, n)| expandable(n, plan)).map(|(id, _)| id).collect();
    if waiting.is_empty() {
        return end(tree, plan);
    }
    if waiting.len() <= width.min(1) {
        return Step::Expand(waiting);
    }
    // The default is read from the tree.
    let scores = || Ok(waiting.iter().map(|&id| tree.node(id).score).collect());
    let is_score = priority.text().trim() == "score";
    let priorities = match if is_score { scores() } else { memory.numbers(priority, tree, &waiting) } {
        Ok(priorities) => priorities,
        Err(message) => return Step::End(Reason::Refused { message }),
    };
    let of = |priority: Option<f64>| priority.filter(|p| !p.is_nan()).unwrap_or(f64::NEG_INFINITY);
    let mut ordered: Vec<(f64, NodeId)> = priorities.into_iter().map(of).zip(waiting).collect();
    let better = |a: &(f64, NodeId), b: &(f64, NodeId)| b.0.total_cmp(&a.0).then_with(|| rank(tree, a.1, b.1));
    let width = width.clamp(1, ordered.len());
    // Of the many that wait a few are wanted: only those are sorted.
    ordered.select_nth_unstable_by(width - 1, better);
    ordered.truncate(width);
    ordered.sort_by(better);
    Step::Expand(ordered.into_iter().map(|(_, id)| id).collect())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{expanded, ids, plan, tree};
    use super::*;
    use crate::search::policy::next as policy_next;
    use crate::strategy::{Policy, Scope};

    fn by(priority: &str, width: usize) -> Plan {
        plan(Policy::BestFirst { priority: Expression::new(priority, Scope::Thought).unwrap(), width })
    }

    /// #1 (0.6) with child #3 (0.5), #2 (0.55).
    fn grown() -> ThoughtTree {
        let mut grown = tree(&[(0, 0.6, -1.0), (0, 0.55, -2.0), (1, 0.5, -0.5)]);
        expanded(&mut grown, &[0, 1]);
        grown
    }

    #[test]
    fn the_highest_priority_of_the_whole_tree_comes_next() {
        assert_eq!(policy_next(&tree(&[]), &by("score", 1)), Step::Expand(ids(&[0])));
        assert_eq!(policy_next(&grown(), &by("score", 1)), Step::Expand(ids(&[2])), "back to the first level");
        assert_eq!(policy_next(&grown(), &by("score + 0.1 * depth", 1)), Step::Expand(ids(&[3])));
        assert_eq!(policy_next(&grown(), &by("path_logprob", 1)), Step::Expand(ids(&[3])), "-1.5 against -2");
        assert_eq!(policy_next(&grown(), &by("score", 2)), Step::Expand(ids(&[2, 3])));
    }

    #[test]
    fn a_priority_without_a_result_comes_last_and_one_that_fails_ends_the_run() {
        assert_eq!(policy_next(&grown(), &by("errors", 1)), Step::Expand(ids(&[2])), "no checker: by rank");
        assert!(matches!(policy_next(&grown(), &by("score > 0.5", 1)), Step::End(Reason::Refused { .. })));
    }

    #[test]
    fn nothing_left_ends_the_search() {
        let mut done = grown();
        expanded(&mut done, &[2, 3]);
        assert_eq!(policy_next(&done, &by("score", 1)), Step::End(Reason::Exhausted));
    }
}
