//! Monte-Carlo tree search: select by UCT, expand, simulate, back up.
//!
//! Source: Kocsis and Szepesvári, Bandit based Monte-Carlo Planning (2006), for UCT; Hao et al., Reasoning with Language
//! Model is Planning with World Model (arXiv 2305.14992) and Zhou et al., LATS (arXiv 2310.04406), for thoughts.
//!
//! - *Select*: from the root, the child with the highest `Q + c * sqrt(ln N(parent) / N)`, where N counts the simulations
//!   through a thought and Q is the mean of what they gave; one without a simulation comes first. Subtrees in which nothing
//!   can be expanded any more are left out: another visit to a thought whose value is known teaches nothing.
//! - *Expand*: all proposals at once.
//! - *Simulate*: by value (the default), every new thought's own score is one simulation each, which is leaf parallelisation
//!   (Cazenave and Jouandeau, 2007). With `rollout: true` the best new thought is followed down by its best child to the end, as
//!   RAP does, and the score there is the one simulation; the thoughts of a rollout stay in the tree.
//! - *Back up*: `Event::Visited`, added up along the path. The counts stand in the tree, so a recorded search can be taken
//!   up again. A pruned thought backs up 0.
//!
//! It ends after `simulations`, or when nothing is left to expand. O(thoughts) a step.

use super::{Plan, Step, end, expandable, promising, rank};
use crate::search::event::Reason;
use crate::search::tree::{Node, NodeId, Status, ThoughtTree};
use crate::strategy::Mcts;

pub fn next(tree: &ThoughtTree, plan: &Plan, settings: &Mcts) -> Step {
    if let Some(step) = simulate(tree, plan, settings) {
        return step;
    }
    let done = tree.node(NodeId::ROOT).visits;
    if done >= settings.simulations as u64 {
        return Step::End(Reason::Stopped { why: format!("{done} simulations are done") });
    }
    match select(tree, plan, settings.c) {
        Some(leaf) => Step::Expand(vec![leaf]),
        None => end(tree, plan),
    }
}

/// What the newest expansion still needs before the next selection.
fn simulate(tree: &ThoughtTree, plan: &Plan, settings: &Mcts) -> Option<Step> {
    if !settings.rollout {
        let fresh = |(_, n): &(NodeId, &Node)| n.parent.is_some() && n.visits == 0 && simulated(n);
        let visits: Vec<(NodeId, f64)> = tree.iter().filter(fresh).map(|(id, n)| (id, worth(n))).collect();
        return (!visits.is_empty()).then_some(Step::Visit(visits));
    }
    // A rollout is under way where none of an expanded thought's children was visited; the newest one goes on.
    let family = tree
        .iter()
        .filter(|(_, n)| n.expansions > 0 && !n.children.is_empty())
        .filter(|(_, n)| n.children.iter().all(|&child| tree.node(child).visits == 0))
        .max_by_key(|(_, n)| n.children.last().copied())?;
    let best = family.1.children.iter().copied().min_by(|&a, &b| {
        let pruned = |id: NodeId| tree.node(id).status == Status::Pruned;
        pruned(a).cmp(&pruned(b)).then_with(|| rank(tree, a, b))
    })?;
    let node = tree.node(best);
    if expandable(node, plan) { Some(Step::Expand(vec![best])) } else { Some(Step::Visit(vec![(best, worth(node))])) }
}

/// Whether a thought's value is known: it has a score, or was given up.
fn simulated(node: &Node) -> bool {
    node.score.is_some() || node.status == Status::Pruned
}

fn worth(node: &Node) -> f64 {
    match node.status {
        Status::Pruned => 0.0,
        _ => node.score.filter(|s| !s.is_nan()).unwrap_or(0.0),
    }
}

/// The leaf that UCT leads to; `None` where nothing can be expanded.
fn select(tree: &ThoughtTree, plan: &Plan, c: f64) -> Option<NodeId> {
    let promising = promising(tree, plan);
    let mut at = NodeId::ROOT;
    while promising[at.index()] {
        let node = tree.node(at);
        if expandable(node, plan) {
            return Some(at);
        }
        let all = (node.visits.max(1) as f64).ln();
        let uct = |id: NodeId| {
            let child = tree.node(id);
            child.value().map_or(f64::INFINITY, |mean| mean + c * (all / child.visits as f64).sqrt())
        };
        let open = |id: &NodeId| {
            promising[id.index()] && (tree.node(*id).is_live() || tree.node(*id).status == Status::Closed)
        };
        at = node
            .children
            .iter()
            .copied()
            .filter(open)
            .min_by(|&a, &b| uct(b).total_cmp(&uct(a)).then_with(|| rank(tree, a, b)))?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::tests::{expanded, ids, plan, set, tree};
    use super::*;
    use crate::search::event::Event;
    use crate::search::policy::next as policy_next;
    use crate::strategy::Policy;

    fn mcts(c: f64, simulations: usize, rollout: bool) -> Plan {
        plan(Policy::Mcts(Mcts { c, simulations, rollout }))
    }

    /// Does what the policy wants until it expands or ends.
    fn back_up(tree: &mut ThoughtTree, plan: &Plan) -> Step {
        loop {
            match policy_next(tree, plan) {
                Step::Visit(visits) => {
                    for (node, value) in visits {
                        tree.apply(&Event::Visited { node, value }).unwrap();
                    }
                }
                step => return step,
            }
        }
    }

    #[test]
    fn new_thoughts_are_backed_up_once_and_uct_selects() {
        let plan = mcts(1.4, 100, false);
        assert_eq!(policy_next(&tree(&[]), &plan), Step::Expand(ids(&[0])));
        let mut grown = tree(&[(0, 0.9, 0.0), (0, 0.3, 0.0)]);
        expanded(&mut grown, &[0]);
        assert_eq!(policy_next(&grown, &plan), Step::Visit(vec![(NodeId(1), 0.9), (NodeId(2), 0.3)]));
        assert_eq!(back_up(&mut grown, &plan), Step::Expand(ids(&[1])));
        let root = grown.node(NodeId::ROOT);
        assert_eq!((root.visits, root.value()), (2, Some(0.6)));
    }

    #[test]
    fn disappointment_and_curiosity_lead_elsewhere() {
        // Below #1 (0.9) both children are bad: its mean falls to 0.3, and #2 is due at any c.
        let mut grown = tree(&[(0, 0.9, 0.0), (0, 0.35, 0.0), (1, 0.0, 0.0), (1, 0.0, 0.0)]);
        expanded(&mut grown, &[0, 1]);
        assert_eq!(back_up(&mut grown, &mcts(0.0, 100, false)), Step::Expand(ids(&[2])));
        assert_eq!(grown.node(NodeId(1)).visits, 3);
        // Below #1 they are good: greed stays there, curiosity does not.
        let mut grown = tree(&[(0, 0.6, 0.0), (0, 0.4, 0.0), (1, 0.6, 0.0), (1, 0.6, 0.0)]);
        expanded(&mut grown, &[0, 1]);
        assert_eq!(back_up(&mut grown.clone(), &mcts(0.0, 100, false)), Step::Expand(ids(&[3])));
        assert_eq!(back_up(&mut grown, &mcts(5.0, 100, false)), Step::Expand(ids(&[2])));
    }

    #[test]
    fn pruned_thoughts_back_up_nothing_and_are_not_entered() {
        let mut grown = tree(&[(0, 0.9, 0.0), (0, 0.3, 0.0), (1, 0.8, 0.0)]);
        expanded(&mut grown, &[0, 1]);
        set(&mut grown, 1, Status::Pruned);
        set(&mut grown, 3, Status::Pruned);
        assert_eq!(back_up(&mut grown, &mcts(1.4, 100, false)), Step::Expand(ids(&[2])));
        assert_eq!(grown.node(NodeId(1)).backed_up, 0.0);
    }

    #[test]
    fn it_ends_after_its_simulations_or_when_all_is_known() {
        let mut grown = tree(&[(0, 0.9, 0.0), (0, 0.3, 0.0)]);
        expanded(&mut grown, &[0]);
        assert!(matches!(back_up(&mut grown.clone(), &mcts(1.4, 2, false)), Step::End(Reason::Stopped { .. })));
        expanded(&mut grown, &[1, 2]);
        assert_eq!(back_up(&mut grown, &mcts(1.4, 100, false)), Step::End(Reason::Exhausted));
    }

    #[test]
    fn a_rollout_follows_the_best_child_to_the_end_and_counts_once() {
        let plan = mcts(1.4, 100, true);
        let mut grown = tree(&[(0, 0.9, 0.0), (0, 0.3, 0.0)]);
        expanded(&mut grown, &[0]);
        assert_eq!(policy_next(&grown, &plan), Step::Expand(ids(&[1])));
        let mut grown = tree(&[(0, 0.9, 0.0), (0, 0.3, 0.0), (1, 0.2, 0.0), (1, 0.4, 0.0), (4, 0.7, 0.0)]);
        expanded(&mut grown, &[0, 1, 4]);
        assert_eq!(policy_next(&grown, &plan), Step::Visit(vec![(NodeId(5), 0.7)]), "depth 3 is the end");
        assert_eq!(back_up(&mut grown, &plan), Step::Expand(ids(&[2])), "no simulation went there yet");
        assert_eq!(grown.node(NodeId::ROOT).visits, 1);
    }
}
