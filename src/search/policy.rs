//! Policies decide what a search does next; the controller does it.
//!
//! A policy is a pure function of the thought tree and the plan: the same tree gives the same step, whoever asks and in
//! whatever order replies came. It refuses to ask a model, to count a budget and to remember anything that it decides by: what
//! it must know (was this thought expanded? pruned? scored?) stands in the tree, so a recorded tree can be taken up again.
//! Results of expressions are kept beside their inputs ([`memory`]), so that a large tree is not worked out anew.
//!
//! A further policy is one file beside `bfs.rs` and one arm in [`next`].

pub mod beam;
pub mod best_first;
pub mod best_of_n;
pub mod bfs;
pub mod dfs;
pub mod graph;
pub mod mcts;
pub mod memory;
pub mod self_consistency;
pub mod values;

use super::event::Reason;
use super::tree::{Node, NodeId, Status, ThoughtTree};
use crate::strategy::{Expression, Policy};
use memory::Memory;
use std::cmp::Ordering;

/// A strategy's search settings with every count worked out for one puzzle.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub policy: Policy,
    /// The level that it goes on from: thoughts of this level and above are an earlier stage's. 0: the root.
    pub from: usize,
    /// Levels of thoughts below the root.
    pub depth: usize,
    /// Breadth-first: thoughts of a level that live on; at least 1.
    pub keep: usize,
    /// Thoughts that score below this are pruned; a score that is no number is below everything.
    pub prune_below: f64,
    /// Depth-first: how many children of a thought are followed; `None`: all.
    pub children: Option<usize>,
    /// What takes the place of `keep`, by level from 1.
    pub keep_by_level: Vec<Option<usize>>,
    /// A thought for which this holds is pruned.
    pub prune: Option<Expression>,
    /// A thought for which this holds is the answer.
    pub accept: Option<Expression>,
    /// Once this holds, the search ends.
    pub stop: Option<Expression>,
}

impl Plan {
    /// How many thoughts of a level live on; at least 1.
    pub fn keep_at(&self, depth: usize) -> usize {
        let own = depth.checked_sub(1).and_then(|at| self.keep_by_level.get(at).copied().flatten());
        own.unwrap_or(self.keep).max(1)
    }
}

/// What to do next.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Score these thoughts, compared with one another where an evaluator compares.
    Evaluate(Vec<NodeId>),
    /// Prune these thoughts, each with the reason.
    Prune(Vec<(NodeId, String)>),
    /// Ask for proposals below these thoughts, all at once.
    Expand(Vec<NodeId>),
    /// Cut the puzzle into so many parts, each a thought below the root.
    Split(usize),
    /// Ask for what two thoughts together make, for each pair.
    Merge(Vec<(NodeId, NodeId)>),
    /// Back up what simulations gave, each from its thought to the root.
    Visit(Vec<(NodeId, f64)>),
    /// End with this thought as the answer; the puzzle has the last word on it.
    Choose {
        node: NodeId,
        why: String,
    },
    End(Reason),
}

/// The next step of a search in stages, and which stage it belongs to, from 0. A stage goes on where the one before it has
/// nothing left to do; which one that is stands in the tree.
pub fn next_of(tree: &ThoughtTree, stages: &[Plan], last: &Plan, memory: &mut Memory) -> (usize, Step) {
    for (at, plan) in stages.iter().enumerate() {
        match next_by(tree, plan, memory) {
            Step::End(Reason::Exhausted | Reason::Depth { .. } | Reason::AllPruned { .. }) => {}
            step => return (at, step),
        }
    }
    (stages.len(), next_by(tree, last, memory))
}

/// The next step. Whatever the policy: thoughts without a score are scored first, then the strategy's rules are held
/// against the tree (stop, prune, accept). The memory is the run's own.
pub fn next_by(tree: &ThoughtTree, plan: &Plan, memory: &mut Memory) -> Step {
    if let Some(step) = settle(tree, plan) {
        return step;
    }
    match rules(tree, plan, memory) {
        Ok(None) => {}
        Ok(Some(step)) => return step,
        Err(message) => return Step::End(Reason::Refused { message }),
    }
    match &plan.policy {
        Policy::Bfs => bfs::next(tree, plan),
        Policy::Dfs => dfs::next(tree, plan),
        Policy::Beam { likelihood } => beam::next(tree, plan, *likelihood),
        Policy::BestFirst { priority, width } => best_first::next(tree, plan, priority, *width, memory),
        Policy::Mcts(settings) => mcts::next(tree, plan, settings),
        Policy::Graph(operations) => graph::next(tree, plan, operations),
        Policy::BestOfN => best_of_n::next(tree, plan),
        Policy::SelfConsistency => self_consistency::next(tree, plan),
    }
}

/// [`next_by`] with a fresh memory.
#[cfg(test)]
pub fn next(tree: &ThoughtTree, plan: &Plan) -> Step {
    next_by(tree, plan, &mut Memory::default())
}

/// Thoughts that are likely to be expanded after these, which are being expanded: what a policy knows of it beforehand. A
/// level's survivors go on together, so that only a search that goes back names others.
pub fn expected(tree: &ThoughtTree, plan: &Plan, expanding: &[NodeId]) -> Vec<NodeId> {
    match (&plan.policy, expanding) {
        (Policy::Dfs, &[node]) => dfs::backtrack(tree, plan, node).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// What a policy that chooses its own answer would choose now.
pub fn choice(tree: &ThoughtTree, policy: &Policy) -> Option<NodeId> {
    match policy {
        Policy::BestOfN => best_of_n::choice(tree),
        Policy::SelfConsistency => self_consistency::choice(tree),
        _ => None,
    }
}

/// Which of two thoughts is better: the higher score, then the higher log-probability, then the lower number. `Less` is
/// better, so that sorting puts the best first. A missing or undefined score or log-probability comes last.
pub fn rank(tree: &ThoughtTree, a: NodeId, b: NodeId) -> Ordering {
    let key = |value: Option<f64>| value.filter(|v| !v.is_nan()).unwrap_or(f64::NEG_INFINITY);
    let (left, right) = (tree.node(a), tree.node(b));
    key(right.score)
        .total_cmp(&key(left.score))
        .then_with(|| key(right.logprob).total_cmp(&key(left.logprob)))
        .then_with(|| a.cmp(&b))
}

/// Whether a policy may ask for proposals below it.
fn expandable(node: &Node, plan: &Plan) -> bool {
    node.is_live() && node.expansions == 0 && (plan.from..plan.depth).contains(&node.depth)
}

/// For each thought whether it, or something below it that no pruned thought hides, can be expanded. O(thoughts), without
/// a look at any text.
fn promising(tree: &ThoughtTree, plan: &Plan) -> Vec<bool> {
    let mut promising = vec![false; tree.len()];
    // A parent's number is lower than its children's.
    for at in (0..tree.len()).rev() {
        let node = tree.node(NodeId(at as u32));
        promising[at] |= expandable(node, plan);
        if let Some(parent) = node.parent.filter(|_| promising[at] && node.status != Status::Pruned) {
            promising[parent.index()] = true;
        }
    }
    promising
}

/// Whether a plan's rules are about a thought.
fn concerns(node: &Node, plan: &Plan) -> bool {
    node.depth > plan.from && (node.depth <= plan.depth)
}

fn settle(tree: &ThoughtTree, plan: &Plan) -> Option<Step> {
    let thoughts = || tree.live().filter(|(id, _)| *id != NodeId::ROOT);
    let unscored: Vec<NodeId> = thoughts().filter(|(_, n)| n.score.is_none()).map(|(id, _)| id).collect();
    if !unscored.is_empty() {
        return Some(Step::Evaluate(unscored));
    }
    let low: Vec<(NodeId, String)> = thoughts()
        .filter(|(_, n)| n.status == Status::Open && n.expansions == 0 && concerns(n, plan))
        .filter_map(|(id, n)| {
            let score = n.score?;
            // A score that is no number is below everything.
            let low = score.is_nan() || score < plan.prune_below;
            low.then(|| (id, format!("score {score:.3} is below {}", plan.prune_below)))
        })
        .collect();
    (!low.is_empty()).then_some(Step::Prune(low))
}

/// The strategy's own rules, in the order stop, prune, accept. A thought for which a rule has no result is left alone.
fn rules(tree: &ThoughtTree, plan: &Plan, memory: &mut Memory) -> Result<Option<Step>, String> {
    if plan.stop.is_none() && plan.prune.is_none() && plan.accept.is_none() {
        return Ok(None);
    }
    if let Some(stop) = &plan.stop
        && stop.truths(&[values::run(tree)])? == [Some(true)]
    {
        return Ok(Some(Step::End(Reason::Stopped { why: format!("`{}` holds", stop.text()) })));
    }
    let mut hold = |rule: &Expression, among: &dyn Fn(&Node) -> bool| -> Result<Vec<NodeId>, String> {
        let nodes: Vec<NodeId> = tree
            .iter()
            .filter(|(id, n)| *id != NodeId::ROOT && concerns(n, plan) && among(n))
            .map(|(id, _)| id)
            .collect();
        let truths = memory.truths(rule, tree, &nodes)?;
        Ok(nodes.into_iter().zip(truths).filter(|(_, holds)| *holds == Some(true)).map(|(id, _)| id).collect())
    };
    if let Some(prune) = &plan.prune {
        let low = hold(prune, &|n| n.status == Status::Open && n.expansions == 0)?;
        if !low.is_empty() {
            let why = format!("`{}` holds", prune.text());
            return Ok(Some(Step::Prune(low.into_iter().map(|id| (id, why.clone())).collect())));
        }
    }
    if let Some(accept) = &plan.accept {
        let good = hold(accept, &|n| n.is_live() || n.status == Status::Closed)?;
        if let Some(node) = good.into_iter().min_by(|&a, &b| rank(tree, a, b)) {
            return Ok(Some(Step::Choose { node, why: format!("`{}` holds", accept.text()) }));
        }
    }
    Ok(None)
}

/// Why a search with nothing left to expand ends.
fn end(tree: &ThoughtTree, plan: &Plan) -> Step {
    let deepest = tree.deepest();
    let mut level = tree.iter().filter(|(_, n)| n.depth == deepest);
    if deepest > 0 && level.all(|(_, n)| n.status == Status::Pruned) {
        return Step::End(Reason::AllPruned { depth: deepest });
    }
    if deepest >= plan.depth {
        return Step::End(Reason::Depth { depth: plan.depth });
    }
    Step::End(Reason::Exhausted)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::lm::Usage;
    use crate::search::event::{Author, Event};

    pub(crate) fn plan(policy: Policy) -> Plan {
        Plan {
            policy,
            from: 0,
            depth: 3,
            keep: 2,
            prune_below: 0.0,
            children: None,
            keep_by_level: Vec::new(),
            prune: None,
            accept: None,
            stop: None,
        }
    }

    /// Grows a tree from `(parent, score, logprob)` lines; a score of -1 leaves the thought unscored.
    pub(crate) fn tree(thoughts: &[(u32, f64, f64)]) -> ThoughtTree {
        let mut tree = ThoughtTree::default();
        for (i, &(parent, score, logprob)) in thoughts.iter().enumerate() {
            let node = NodeId(i as u32 + 1);
            let grown = Event::Grown {
                node,
                parent: NodeId(parent),
                text: format!("t{}", node.0),
                by: Author::Model,
                logprob: Some(logprob),
                token_logprobs: Vec::new(),
                usage: Usage::default(),
            };
            tree.apply(&grown).unwrap();
            if score >= 0.0 {
                tree.apply(&Event::Scored { node, score, parts: Vec::new() }).unwrap();
            }
        }
        tree
    }

    pub(crate) fn set(tree: &mut ThoughtTree, node: u32, status: Status) {
        tree.apply(&Event::Status { node: NodeId(node), status, why: None }).unwrap();
    }

    pub(crate) fn expanded(tree: &mut ThoughtTree, nodes: &[u32]) {
        for &node in nodes {
            tree.apply(&Event::Expanded { node: NodeId(node), proposals: 0 }).unwrap();
            if tree.node(NodeId(node)).status == Status::Open {
                set(tree, node, Status::Closed);
            }
        }
    }

    pub(crate) fn ids(nodes: &[u32]) -> Vec<NodeId> {
        nodes.iter().map(|&n| NodeId(n)).collect()
    }

    #[test]
    fn unscored_thoughts_are_scored_before_anything_else_and_low_ones_pruned() {
        for policy in [Policy::Bfs, Policy::Dfs] {
            let mut plan = plan(policy);
            let mut tree = tree(&[(0, 0.9, 0.0), (0, -1.0, 0.0)]);
            expanded(&mut tree, &[0]);
            assert_eq!(next(&tree, &plan), Step::Evaluate(ids(&[2])));
            tree.apply(&Event::Scored { node: NodeId(2), score: 0.2, parts: Vec::new() }).unwrap();
            plan.prune_below = 0.5;
            assert_eq!(next(&tree, &plan), Step::Prune(vec![(NodeId(2), "score 0.200 is below 0.5".into())]));
            set(&mut tree, 2, Status::Pinned);
            assert_eq!(
                next(&tree, &plan),
                Step::Expand(if plan.policy == Policy::Bfs { ids(&[1, 2]) } else { ids(&[1]) })
            );
        }
    }

    #[test]
    fn a_score_that_is_no_number_is_pruned_and_ranks_last() {
        let mut tree = tree(&[(0, 0.1, 0.0), (0, -1.0, 0.0)]);
        expanded(&mut tree, &[0]);
        tree.apply(&Event::Scored { node: NodeId(2), score: f64::NAN, parts: Vec::new() }).unwrap();
        assert_eq!(rank(&tree, NodeId(1), NodeId(2)), Ordering::Less);
        assert!(matches!(next(&tree, &plan(Policy::Bfs)), Step::Prune(low) if low[0].0 == NodeId(2)));
    }

    #[test]
    fn ties_go_to_the_higher_logprob_then_to_the_lower_number() {
        let tree = tree(&[(0, 0.5, -2.0), (0, 0.5, -1.0), (0, 0.5, -1.0), (0, 0.6, -9.0)]);
        let mut order = ids(&[1, 2, 3, 4]);
        order.sort_by(|&a, &b| rank(&tree, a, b));
        assert_eq!(order, ids(&[4, 2, 3, 1]));
    }

    #[test]
    fn the_strategys_rules_stop_prune_and_accept() {
        use crate::strategy::Scope;
        let rule = |text: &str, scope| Some(Expression::new(text, scope).unwrap());
        let mut grown = tree(&[(0, 0.9, 0.0), (0, 0.4, 0.0)]);
        expanded(&mut grown, &[0]);
        let with = |change: fn(&mut Plan, Option<Expression>), text: &str, scope| {
            let mut plan = plan(Policy::Bfs);
            change(&mut plan, rule(text, scope));
            next(&grown, &plan)
        };
        let pruned = with(|p, e| p.prune = e, "score < 0.5 * best", Scope::Thought);
        assert_eq!(pruned, Step::Prune(vec![(NodeId(2), "`score < 0.5 * best` holds".into())]));
        let accepted = with(|p, e| p.accept = e, "score >= 0.9", Scope::Thought);
        assert_eq!(accepted, Step::Choose { node: NodeId(1), why: "`score >= 0.9` holds".into() });
        let stopped = with(|p, e| p.stop = e, "thoughts >= 2", Scope::Run);
        assert_eq!(stopped, Step::End(Reason::Stopped { why: "`thoughts >= 2` holds".into() }));
        assert_eq!(with(|p, e| p.prune = e, "errors > 0", Scope::Thought), Step::Expand(ids(&[1, 2])));
        assert!(matches!(with(|p, e| p.stop = e, "thoughts", Scope::Run), Step::End(Reason::Refused { .. })));
    }

    /// Two levels breadth first, then depth first from the best thought of the second.
    #[test]
    fn a_stage_goes_on_where_the_one_before_has_nothing_left() {
        let first = Plan { depth: 2, keep: 2, ..plan(Policy::Bfs) };
        let last = Plan { from: 2, depth: 4, prune_below: 0.5, ..plan(Policy::Dfs) };
        let next = |tree: &ThoughtTree| next_of(tree, std::slice::from_ref(&first), &last, &mut Memory::default());
        assert_eq!(next(&tree(&[])), (0, Step::Expand(vec![NodeId::ROOT])));
        // A score of 0.3 is low for the last stage, and none of its business at level 1.
        let mut grown = tree(&[(0, 0.3, 0.0), (0, 0.9, 0.0), (1, 0.8, 0.0), (2, 0.6, 0.0)]);
        expanded(&mut grown, &[0]);
        assert_eq!(next(&grown), (0, Step::Expand(ids(&[2, 1]))));
        expanded(&mut grown, &[1, 2]);
        assert_eq!(next(&grown), (1, Step::Expand(ids(&[4]))), "the better branch of the tree first");
        let mut deeper = tree(&[(0, 0.3, 0.0), (0, 0.9, 0.0), (1, 0.8, 0.0), (2, 0.6, 0.0), (4, 0.2, 0.0)]);
        expanded(&mut deeper, &[0, 1, 2, 4]);
        assert!(matches!(next(&deeper), (1, Step::Prune(low)) if low[0].0 == NodeId(5)));
        set(&mut deeper, 5, Status::Pruned);
        assert_eq!(next(&deeper), (1, Step::Expand(ids(&[3]))));
        expanded(&mut deeper, &[3]);
        assert!(matches!(next(&deeper), (1, Step::End(_))));
        // What is reopened higher up is the first stage's again.
        let mut reopened = tree(&[(0, 0.3, 0.0), (0, 0.9, 0.0)]);
        expanded(&mut reopened, &[0, 2]);
        assert_eq!(next(&reopened).0, 0);
    }

    #[test]
    fn levels_may_keep_numbers_of_their_own() {
        let mut plan = plan(Policy::Bfs);
        plan.keep_by_level = vec![Some(5), None, Some(0)];
        assert_eq!([0, 1, 2, 3, 4].map(|depth| plan.keep_at(depth)), [2, 5, 2, 1, 2]);
    }

    #[test]
    fn the_reason_of_the_end_is_told_apart() {
        for policy in [Policy::Bfs, Policy::Dfs] {
            let plan = plan(policy);
            let check = |tree: &ThoughtTree, reason: Reason| assert_eq!(next(tree, &plan), Step::End(reason));

            let mut nothing = tree(&[]);
            expanded(&mut nothing, &[0]);
            check(&nothing, Reason::Exhausted);

            let mut pruned = tree(&[(0, 0.1, 0.0), (0, 0.1, 0.0)]);
            expanded(&mut pruned, &[0]);
            set(&mut pruned, 1, Status::Pruned);
            set(&mut pruned, 2, Status::Pruned);
            check(&pruned, Reason::AllPruned { depth: 1 });

            let mut deep = tree(&[(0, 0.5, 0.0), (1, 0.5, 0.0), (2, 0.5, 0.0)]);
            expanded(&mut deep, &[0, 1, 2]);
            check(&deep, Reason::Depth { depth: 3 });

            let mut dead_end = tree(&[(0, 0.5, 0.0)]);
            expanded(&mut dead_end, &[0, 1]);
            check(&dead_end, Reason::Exhausted);
        }
    }
}
