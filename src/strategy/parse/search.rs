//! Reads `search`: the policy with its own settings, and what all policies share.

use crate::strategy::expression::{Expression, Scope};
use crate::strategy::read::Reader;
use crate::strategy::yaml::{Node, Style, Value};
use crate::strategy::{Count, Mcts, Operation, Policy, Search};

/// Names of the policies.
pub const NAMES: &[(&str, Kind)] = &[
    ("bfs", Kind::Bfs),
    ("dfs", Kind::Dfs),
    ("beam", Kind::Beam),
    ("best-first", Kind::BestFirst),
    ("mcts", Kind::Mcts),
    ("graph", Kind::Graph),
    ("best-of-n", Kind::BestOfN),
    ("self-consistency", Kind::SelfConsistency),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Bfs,
    Dfs,
    Beam,
    BestFirst,
    Mcts,
    Graph,
    BestOfN,
    SelfConsistency,
}

pub fn read(r: &mut Reader, node: &Node) -> Option<Search> {
    let fields = r.fields(node, "search", "`search`")?;
    let policy = r.need(&fields, "policy").and_then(|node| read_policy(r, node));
    let mut depth = fields.get("depth").and_then(|node| r.count(node, "depth")).unwrap_or(Count::Number(1));
    if let Some(Policy::Graph(operations)) = &policy {
        if let Some(node) = fields.get("depth") {
            r.error(node.span, "the depth of `graph` is the number of its operations; leave `depth` out");
        }
        depth = Count::Number(operations.len());
    }
    Some(Search {
        policy: policy?,
        depth,
        keep: fields.get("keep").and_then(|node| r.count(node, "keep")).unwrap_or(Count::Number(1)),
        prune_below: fields.get("prune_below").and_then(|node| r.number(node, "prune_below", 0.0, 1.0)).unwrap_or(0.0),
        children: fields.get("children").and_then(|node| r.count(node, "children")),
        prune: fields.get("prune").and_then(|node| r.expression(node, "prune", Scope::Thought)),
        accept: fields.get("accept").and_then(|node| r.expression(node, "accept", Scope::Thought)),
        stop: fields.get("stop").and_then(|node| r.expression(node, "stop", Scope::Run)),
    })
}

/// A plain name, or one name with its settings: `{mcts: {c: 1.4}}`.
fn read_policy(r: &mut Reader, node: &Node) -> Option<Policy> {
    let nothing = Node { value: Value::Map(Vec::new()), span: node.span };
    let (kind, settings) = match &node.value {
        Value::Map(entries) if entries.len() == 1 => {
            let entry = &entries[0];
            let kind = r.one_of_name(&entry.key, entry.key_span, "policy", NAMES)?;
            let settings = match &entry.value.value {
                Value::Scalar { text, style: Style::Plain } if text.is_empty() => &nothing,
                _ => &entry.value,
            };
            (kind, settings)
        }
        _ => (r.one_of(node, "policy", NAMES)?, &nothing),
    };
    if let (Kind::Bfs | Kind::Dfs | Kind::BestOfN | Kind::SelfConsistency, Value::Map(entries)) =
        (kind, &settings.value)
        && let Some(entry) = entries.first()
    {
        return r
            .refuse(entry.key_span, "this policy has no settings of its own; those of `search` stand beside `policy`");
    }
    Some(match kind {
        Kind::Bfs => Policy::Bfs,
        Kind::Dfs => Policy::Dfs,
        Kind::BestOfN => Policy::BestOfN,
        Kind::SelfConsistency => Policy::SelfConsistency,
        Kind::Beam => {
            let fields = r.fields(settings, "search.policy.beam", "`beam`")?;
            let likelihood = fields.get("likelihood").and_then(|node| r.number(node, "likelihood", 0.0, 1.0));
            Policy::Beam { likelihood: likelihood.unwrap_or(0.0) }
        }
        Kind::BestFirst => {
            let fields = r.fields(settings, "search.policy.best-first", "`best-first`")?;
            let priority = match fields.get("priority") {
                Some(node) => r.expression(node, "priority", Scope::Thought)?,
                None => Expression::new("score", Scope::Thought).ok()?,
            };
            let width = fields.get("width").and_then(|node| r.whole(node, "width", 1)).unwrap_or(1);
            Policy::BestFirst { priority, width: width as usize }
        }
        Kind::Graph => {
            let fields = r.fields(settings, "search.policy.graph", "`graph`")?;
            let node = r.need(&fields, "operations")?;
            Policy::Graph(read_operations(r, node)?)
        }
        Kind::Mcts => {
            let fields = r.fields(settings, "search.policy.mcts", "`mcts`")?;
            let simulations = fields.get("simulations").and_then(|node| r.whole(node, "simulations", 1));
            Policy::Mcts(Mcts {
                c: fields.get("c").and_then(|node| r.number(node, "c", 0.0, 1e6)).unwrap_or(std::f64::consts::SQRT_2),
                simulations: simulations.unwrap_or(50) as usize,
                rollout: fields.get("rollout").and_then(|node| r.boolean(node, "rollout")).unwrap_or(false),
            })
        }
    })
}

/// `[{split: 4}, generate, aggregate, aggregate, improve]`.
fn read_operations(r: &mut Reader, node: &Node) -> Option<Vec<Operation>> {
    const KNOWN: &[(&str, Operation)] =
        &[("generate", Operation::Generate), ("aggregate", Operation::Aggregate), ("improve", Operation::Improve)];
    let Value::List(items) = &node.value else {
        return r.refuse(node.span, "`operations` is a list such as `[{split: 4}, generate, aggregate, aggregate]`");
    };
    let mut operations = Vec::new();
    let mut parts = 1u64;
    for (at, item) in items.iter().enumerate() {
        let operation = match &item.value {
            Value::Map(_) => {
                let fields = r.fields(item, "search.policy.graph.operations", "an operation")?;
                let node = r.need(&fields, "split")?;
                parts = r.whole(node, "split", 2)?;
                if !parts.is_power_of_two() || parts > 1024 {
                    return r.refuse(
                        node.span,
                        "`split` is 2, 4, 8 or another power of two up to 1024: parts are merged in pairs",
                    );
                }
                if at > 0 {
                    return r.refuse(item.span, "`split` is the first operation");
                }
                Operation::Split(parts as usize)
            }
            _ => r.one_of(item, "operation", KNOWN)?,
        };
        if operation == Operation::Aggregate {
            if parts == 1 {
                return r.refuse(item.span, "there is one part left here, and nothing to merge");
            }
            parts /= 2;
        }
        operations.push(operation);
    }
    let first = operations.iter().find(|operation| !matches!(operation, Operation::Split(_)));
    if first != Some(&Operation::Generate) {
        return r.refuse(node.span, "there is no solution to merge or improve yet; begin with `generate`");
    }
    if parts > 1 {
        return r.refuse(node.span, format!("{parts} parts are left in the end; add `aggregate` until there is one"));
    }
    Some(operations)
}
