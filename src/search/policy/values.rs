//! The named values that a strategy's expressions see, worked out from the tree.
//!
//! `strategy/expression.rs` lists them with what they mean; a test holds the two against each other.

use super::rank;
use crate::search::tree::{Node, NodeId, Status, ThoughtTree};
use crate::strategy::{Scope, Values};

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

/// Values of one thought, with those of the run, each worked out by itself.
#[cfg(test)]
pub fn thought(tree: &ThoughtTree, id: NodeId, run: &Values) -> Values {
    let of_path = |of: fn(&Node) -> Option<f64>| tree.path(id).into_iter().map(move |at| of(tree.node(at)));
    let value = |name: &str| match name {
        "path_score" => of_path(|node| node.score).product(),
        "path_logprob" => of_path(|node| node.logprob).sum(),
        name => one(tree, id, name, run),
    };
    names().into_iter().filter_map(|name| Some((name, value(name)?))).collect()
}

/// The value of that name, of those that are no sum over the path; `None` where the thought has none. O(1), a rank O(siblings).
fn one(tree: &ThoughtTree, id: NodeId, name: &str, run: &Values) -> Option<f64> {
    let node = tree.node(id);
    match name {
        "score" => node.score,
        "depth" => Some(node.depth as f64),
        "errors" => {
            let checked = node.parts.iter().find(|part| part.evaluator == "checker").and_then(|part| part.value);
            // The checker's score is 1 / (1 + errors).
            checked.filter(|v| *v > 0.0).map(|v| (1.0 / v - 1.0).round())
        }
        "length" => Some(node.text.chars().count() as f64),
        "logprob" => node.logprob,
        "parent_score" if node.parent? == NodeId::ROOT => Some(1.0),
        "parent_score" => tree.node(node.parent?).score,
        "rank" => {
            let family = tree.node(node.parent?).children.iter();
            Some((family.filter(|&&other| other != id && rank(tree, other, id).is_lt()).count() + 1) as f64)
        }
        "repeats" => Some(f64::from(node.repeats)),
        "siblings" => Some((tree.node(node.parent?).children.len() - 1) as f64),
        "value" => node.value(),
        "visits" => Some(node.visits as f64),
        _ => run.iter().find(|(known, _)| *known == name).map(|&(_, value)| value),
    }
}

/// All names.
pub fn names() -> Vec<&'static str> {
    Scope::Thought.names()
}

/// The values of these names for each of these thoughts, thought after thought. O(thoughts) beside the ranks.
pub fn table(tree: &ThoughtTree, ids: &[NodeId], names: &[&'static str]) -> Vec<Option<f64>> {
    let run = if names.iter().any(|name| Scope::Run.names().contains(name)) { run(tree) } else { Vec::new() };
    // Sums over paths are those of the parents with one more.
    let sums = |name: &'static str, of: fn(&Node) -> Option<f64>, none: f64, join: fn(f64, f64) -> f64| {
        let mut sums: Vec<Option<f64>> = Vec::new();
        for (_, node) in tree.iter().filter(|_| names.contains(&name)) {
            sums.push(match node.parent {
                None => Some(none),
                Some(parent) => sums[parent.index()].zip(of(node)).map(|(above, own)| join(above, own)),
            });
        }
        sums
    };
    let nothing = std::iter::empty::<f64>;
    let scores = sums("path_score", |node| node.score, nothing().product(), |above, own| above * own);
    let logprobs = sums("path_logprob", |node| node.logprob, nothing().sum(), |above, own| above + own);
    let value = |id: NodeId, name: &str| match name {
        "path_score" => scores[id.index()],
        "path_logprob" => logprobs[id.index()],
        name => one(tree, id, name, &run),
    };
    ids.iter().flat_map(|&id| names.iter().map(move |name| (id, *name))).map(|(id, name)| value(id, name)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;
    use crate::search::event::{Event, ScorePart};

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
