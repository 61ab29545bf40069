//! Graph of Thoughts: the puzzle is split, its parts are solved, and solutions are merged and improved.
//!
//! Source: Besta et al., Graph of Thoughts (arXiv 2308.09687). Each operation makes one level of thoughts:
//!
//! | operation | what it makes |
//! |---|---|
//! | `split` | the parts of the puzzle, each a smaller puzzle of the same task; the task cuts, not the model |
//! | `generate` | n solutions of each part |
//! | `aggregate` | n merged solutions of each two neighbouring parts |
//! | `improve` | n better versions of each solution |
//!
//! Scoring and keeping the best stand between them as everywhere: a solution is judged by the puzzle of its own part, and the
//! best `keep` of each part live on. A merged thought stands below the first of its two sources in the tree and names both
//! (`Node::sources`), so the tree stays a tree and the graph is in it. What a thought is a solution of follows from that:
//! [`problem`].
//!
//! Refused: merging three or more at once, and loops; an operation that is wanted again is written again.

use super::{Plan, Step, end, expandable, rank};
use crate::search::event::Reason;
use crate::search::tree::{NodeId, Status, ThoughtTree};
use crate::strategy::Operation;
use std::collections::BTreeMap;

pub fn next(tree: &ThoughtTree, plan: &Plan, operations: &[Operation]) -> Step {
    let waiting: Vec<NodeId> = tree.live().filter(|(_, n)| expandable(n, plan)).map(|(id, _)| id).collect();
    let Some(depth) = waiting.iter().map(|&id| tree.node(id).depth).min() else {
        return end(tree, plan);
    };
    let level: Vec<NodeId> = waiting.into_iter().filter(|&id| tree.node(id).depth == depth).collect();
    let Some(operation) = operations.get(depth) else { return end(tree, plan) };
    if let Operation::Split(parts) = operation {
        return Step::Split(*parts);
    }

    // The best of each part live on; the parts themselves all do.
    let mut parts: BTreeMap<Vec<NodeId>, Vec<NodeId>> = BTreeMap::new();
    for &id in &level {
        parts.entry(problem(tree, id, operations)).or_default().push(id);
    }
    let keep = plan.keep_at(depth);
    let mut surplus = Vec::new();
    for solutions in parts.values_mut() {
        solutions.sort_by(|&a, &b| rank(tree, a, b));
        let open = solutions.iter().filter(|id| tree.node(**id).status != Status::Pinned);
        surplus.extend(open.skip(keep).map(|&id| (id, format!("not among the best {keep} of its part"))));
    }
    if !surplus.is_empty() {
        surplus.sort_by_key(|(id, _)| *id);
        return Step::Prune(surplus);
    }
    if *operation != Operation::Aggregate {
        return Step::Expand(level);
    }
    let best: Vec<NodeId> = parts.values().filter_map(|solutions| solutions.first().copied()).collect();
    if best.len() % 2 == 1 {
        return Step::End(Reason::Stopped { why: format!("a part has no solution to merge at level {depth}") });
    }
    Step::Merge(best.chunks(2).map(|pair| (pair[0], pair[1])).collect())
}

/// The parts of the puzzle that a thought is about or a solution of, in order; empty for the whole puzzle before it is split.
pub fn problem(tree: &ThoughtTree, id: NodeId, operations: &[Operation]) -> Vec<NodeId> {
    let mut at = id;
    loop {
        let node = tree.node(at);
        let Some(parent) = node.parent else { return Vec::new() };
        if matches!(operations.get(node.depth - 1), Some(Operation::Split(_))) {
            return vec![at];
        }
        if !node.sources.is_empty() {
            let mut parts: Vec<NodeId> =
                node.sources.iter().flat_map(|&source| problem(tree, source, operations)).collect();
            parts.sort_unstable();
            parts.dedup();
            return parts;
        }
        at = parent;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{expanded, ids, plan, set, tree};
    use super::*;
    use crate::search::event::Event;
    use crate::search::policy::next as policy_next;
    use crate::strategy::Policy;

    const OPERATIONS: [Operation; 4] =
        [Operation::Split(2), Operation::Generate, Operation::Aggregate, Operation::Improve];

    fn got() -> Plan {
        let mut plan = plan(Policy::Graph(OPERATIONS.to_vec()));
        plan.depth = 4;
        plan.keep = 1;
        plan
    }

    #[test]
    fn parts_are_solved_merged_and_improved() {
        let plan = got();
        assert_eq!(policy_next(&tree(&[]), &plan), Step::Split(2));
        // Parts #1 and #2; solutions #3 and #4 of the first, #5 of the second.
        let mut grown = tree(&[(0, 1.0, 0.0), (0, 1.0, 0.0)]);
        expanded(&mut grown, &[0]);
        assert_eq!(policy_next(&grown, &plan), Step::Expand(ids(&[1, 2])));
        let mut grown = tree(&[(0, 1.0, 0.0), (0, 1.0, 0.0), (1, 0.3, 0.0), (1, 0.8, 0.0), (2, 0.5, 0.0)]);
        expanded(&mut grown, &[0, 1, 2]);
        let why = "not among the best 1 of its part".to_string();
        assert_eq!(policy_next(&grown, &plan), Step::Prune(vec![(NodeId(3), why)]));
        set(&mut grown, 3, Status::Pruned);
        assert_eq!(policy_next(&grown, &plan), Step::Merge(vec![(NodeId(4), NodeId(5))]));

        let thoughts = [(0, 1.0, 0.0), (0, 1.0, 0.0), (1, 0.8, 0.0), (2, 0.5, 0.0), (3, 0.5, 0.0), (3, 0.4, 0.0)];
        let mut grown = tree(&thoughts);
        expanded(&mut grown, &[0, 1, 2, 3, 4]);
        for node in [5, 6] {
            grown.apply(&Event::Merged { node: NodeId(node), sources: ids(&[3, 4]) }).unwrap();
        }
        assert_eq!(problem(&grown, NodeId(5), &OPERATIONS), ids(&[1, 2]));
        assert_eq!(problem(&grown, NodeId(4), &OPERATIONS), ids(&[2]));
        assert!(matches!(policy_next(&grown, &plan), Step::Prune(low) if low[0].0 == NodeId(6)));
        set(&mut grown, 6, Status::Pruned);
        assert_eq!(policy_next(&grown, &plan), Step::Expand(ids(&[5])));
    }

    #[test]
    fn a_part_without_a_solution_ends_the_search() {
        let mut grown = tree(&[(0, 1.0, 0.0), (0, 1.0, 0.0), (1, 0.3, 0.0)]);
        expanded(&mut grown, &[0, 1, 2]);
        assert!(matches!(policy_next(&grown, &got()), Step::End(Reason::Stopped { .. })));
    }
}
