//! The named values that a strategy's expressions see, worked out from the tree.
//!
//! `strategy/expression.rs` lists them with what they mean; a test holds the two against each other.

use super::rank;
use crate::search::tree::{NodeId, Status, ThoughtTree};
use crate::strategy::Values;

/// Values of the run. O(thoughts).
pub fn run(tree: &ThoughtTree) -> Values {
    let thoughts = || tree.iter().filter(|(id, _)| *id != NodeId::ROOT);
    let scores = thoughts().filter(|(_, n)| n.status != Status::Pruned).filter_map(|(_, n)| n.score);
    let best = scores.filter(|s| !s.is_nan()).fold(0.0, f64::max);
    let open = tree.live().filter(|(_, n)| n.expansions == 0).count();
    vec![
        ("best", best),
        ("deepest", tree.deepest() as f64),
        ("open", open as f64),
        ("thoughts", (tree.len() - 1) as f64),
        ("tokens", tree.spent().tokens() as f64),
    ]
}

/// Values of one thought, with those of the run. O(depth + siblings).
pub fn thought(tree: &ThoughtTree, id: NodeId, run: &Values) -> Values {
    let node = tree.node(id);
    let mut values = run.clone();
    values.push(("depth", node.depth as f64));
    values.push(("length", node.text.chars().count() as f64));
    values.push(("repeats", f64::from(node.repeats)));
    values.push(("visits", node.visits as f64));
    values.extend(node.score.map(|score| ("score", score)));
    values.extend(node.logprob.map(|logprob| ("logprob", logprob)));
    values.extend(node.value().map(|value| ("value", value)));
    let checked = node.parts.iter().find(|part| part.evaluator == "checker").and_then(|part| part.value);
    // The checker's score is 1 / (1 + errors).
    values.extend(checked.filter(|v| *v > 0.0).map(|v| ("errors", (1.0 / v - 1.0).round())));
    if let Some(parent) = node.parent {
        let above = tree.node(parent);
        values.push(("siblings", (above.children.len() - 1) as f64));
        let before = above.children.iter().filter(|&&other| other != id && rank(tree, other, id).is_lt()).count();
        values.push(("rank", (before + 1) as f64));
        let parent_score = if parent == NodeId::ROOT { Some(1.0) } else { above.score };
        values.extend(parent_score.map(|score| ("parent_score", score)));
    }
    let path = tree.path(id);
    let scores: Option<f64> = path.iter().map(|&at| tree.node(at).score).product();
    values.extend(scores.map(|score| ("path_score", score)));
    let logprobs: Option<f64> = path.iter().map(|&at| tree.node(at).logprob).sum();
    values.extend(logprobs.map(|logprob| ("path_logprob", logprob)));
    values
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;
    use crate::search::event::{Event, ScorePart};
    use crate::strategy::Scope;

    #[test]
    fn every_listed_value_is_there_and_no_other() {
        let mut grown = tree(&[(0, 0.9, -1.0), (0, 0.8, -2.0), (1, 0.5, -3.0)]);
        let parts = vec![ScorePart { evaluator: "checker".into(), value: Some(0.25), detail: String::new() }];
        grown.apply(&Event::Scored { node: NodeId(3), score: 0.25, parts }).unwrap();
        grown.apply(&Event::Visited { node: NodeId(3), value: 0.5 }).unwrap();
        let found = thought(&grown, NodeId(3), &run(&grown));
        let mut names: Vec<&str> = found.iter().map(|(name, _)| *name).collect();
        let mut listed = Scope::Thought.names();
        names.sort_unstable();
        listed.sort_unstable();
        assert_eq!(names, listed);
        let value = |name: &str| found.iter().find(|(n, _)| *n == name).unwrap().1;
        assert_eq!((value("errors"), value("depth"), value("length")), (3.0, 2.0, 2.0));
        assert!((value("path_score") - 0.225).abs() < 1e-12);
        assert_eq!((value("path_logprob"), value("parent_score")), (-4.0, 0.9));
        assert_eq!((value("visits"), value("value"), value("best")), (1.0, 0.5, 0.9));
        let second = thought(&grown, NodeId(2), &run(&grown));
        assert!(second.contains(&("rank", 2.0)) && second.contains(&("siblings", 1.0)));
        assert!(!second.iter().any(|(name, _)| *name == "errors" || *name == "value"));
    }
}
