//! What a policy's expressions gave before. A step of a search changes a few thoughts, and an expression is a function of its
//! values: where a thought's values are those of the last step, so is the result, and only the others are worked out. Nothing
//! here decides anything: with a fresh memory every step is the same.

use super::values;
use crate::search::tree::{NodeId, ThoughtTree};
use crate::strategy::{Expression, Values};
use std::collections::HashMap;

/// Results by expression.
#[derive(Default)]
pub struct Memory {
    numbers: HashMap<String, Known<f64>>,
    truths: HashMap<String, Known<bool>>,
}

/// One expression's results by thought.
struct Known<T> {
    /// The values that it needs.
    names: Vec<&'static str>,
    /// Those values, thought after thought.
    values: Vec<Option<f64>>,
    /// What they gave; the outer `None`: it was not worked out yet.
    results: Vec<Option<Option<T>>>,
}

impl Memory {
    /// As [`Expression::numbers`] of these thoughts' values. O(thoughts), with little for each.
    pub fn numbers(
        &mut self,
        expression: &Expression,
        tree: &ThoughtTree,
        ids: &[NodeId],
    ) -> Result<Vec<Option<f64>>, String> {
        known(&mut self.numbers, expression).of(tree, ids, |rows| expression.numbers(rows))
    }

    /// As [`Expression::truths`] of these thoughts' values. O(thoughts), with little for each.
    pub fn truths(
        &mut self,
        expression: &Expression,
        tree: &ThoughtTree,
        ids: &[NodeId],
    ) -> Result<Vec<Option<bool>>, String> {
        known(&mut self.truths, expression).of(tree, ids, |rows| expression.truths(rows))
    }
}

fn known<'a, T>(all: &'a mut HashMap<String, Known<T>>, expression: &Expression) -> &'a mut Known<T> {
    all.entry(expression.text().to_string()).or_insert_with(|| {
        let needed = expression.names();
        let names = values::names().into_iter().filter(|name| needed.iter().any(|needed| needed == name)).collect();
        Known { names, values: Vec::new(), results: Vec::new() }
    })
}

impl<T: Copy> Known<T> {
    fn of(
        &mut self,
        tree: &ThoughtTree,
        ids: &[NodeId],
        work_out: impl FnOnce(&[Values]) -> Result<Vec<Option<T>>, String>,
    ) -> Result<Vec<Option<T>>, String> {
        let Self { names, values, results } = self;
        let width = names.len();
        values.resize(tree.len() * width, None);
        results.resize(tree.len(), None);
        let table = values::table(tree, ids, names);
        let row = |at: usize| &table[at * width..(at + 1) * width];
        let place = |at: usize| ids[at].index() * width..(ids[at].index() + 1) * width;
        // Numbers that are none are equal too, and a zero is not its negative.
        let same = |a: &[Option<f64>], b: &[Option<f64>]| {
            a.iter().zip(b).all(|(a, b)| a.map(f64::to_bits) == b.map(f64::to_bits))
        };
        let is_new = |&at: &usize| results[ids[at].index()].is_none() || !same(&values[place(at)], row(at));
        let new: Vec<usize> = (0..ids.len()).filter(is_new).collect();
        if !new.is_empty() {
            let named = |at: &usize| names.iter().zip(row(*at)).filter_map(|(name, value)| Some((*name, (*value)?)));
            let rows: Vec<Values> = new.iter().map(|at| named(at).collect()).collect();
            for (&at, result) in new.iter().zip(work_out(&rows)?) {
                values[place(at)].copy_from_slice(row(at));
                results[ids[at].index()] = Some(result);
            }
        }
        Ok(ids.iter().map(|id| results[id.index()].flatten()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{plan, tree};
    use super::*;
    use crate::base::rng::stream;
    use crate::search::event::{Author, Event, ScorePart};
    use crate::search::policy::{Plan, Step, next, next_by};
    use crate::search::tree::Status;
    use crate::strategy::{Policy, Scope};
    use rand::Rng;

    fn expression(text: &str) -> Expression {
        Expression::new(text, Scope::Thought).unwrap()
    }

    /// Something that may happen to a tree: growth, scores, edits, prunings.
    fn happen(tree: &mut ThoughtTree, random: &mut impl Rng) {
        let node = NodeId(random.random_range(0..tree.len() as u32));
        let any = |random: &mut dyn rand::RngCore| f64::from(random.next_u32() % 8) / 8.0;
        let event = match random.random_range(0..9) {
            0..4 => Event::Grown {
                node: NodeId(tree.len() as u32),
                parent: node,
                text: "t".repeat(random.random_range(0..4)),
                by: Author::Model,
                logprob: random.random_bool(0.8).then(|| -any(random)),
                token_logprobs: Vec::new(),
                usage: Default::default(),
            },
            4 | 5 if node != NodeId::ROOT => {
                let parts =
                    vec![ScorePart { evaluator: "checker".into(), value: Some(any(random)), detail: String::new() }];
                Event::Scored { node, score: if random.random_bool(0.05) { f64::NAN } else { any(random) }, parts }
            }
            6 => Event::Expanded { node, proposals: 1 },
            7 => Event::Visited { node, value: any(random) },
            8 if node != NodeId::ROOT => {
                let status = [Status::Open, Status::Pruned, Status::Pinned, Status::Closed][random.random_range(0..4)];
                Event::Status { node, status, why: None }
            }
            _ if node != NodeId::ROOT => Event::Edited { node, text: "edited".into() },
            _ => return,
        };
        tree.apply(&event).unwrap();
    }

    #[test]
    fn every_step_is_that_of_a_fresh_memory() {
        let best_first = |priority: &str, width| Plan {
            depth: 9,
            ..plan(Policy::BestFirst { priority: expression(priority), width })
        };
        let mut plans = vec![
            best_first("score + 0.1 * depth", 2),
            best_first("path_logprob + 2 * path_score - parent_score", 1),
            best_first("rank + siblings + value - visits", 3),
            best_first("best - score + 0.001 * thoughts", 1),
            best_first("errors + length", 1),
        ];
        plans.push(Plan { prune: Some(expression("score < 0.4 * best")), ..best_first("logprob", 1) });
        plans.push(Plan { accept: Some(expression("score > 0.8 and depth > 1")), ..plan(Policy::Bfs) });
        let mut random = stream(6, "memory", &[]);
        let mut steps = std::collections::BTreeSet::new();
        for plan in &plans {
            let (mut grown, mut memory) = (tree(&[]), Memory::default());
            for _ in 0..400 {
                happen(&mut grown, &mut random);
                // Thoughts without a score would be scored and nothing else.
                let unscored: Vec<NodeId> =
                    grown.live().filter(|(id, n)| *id != NodeId::ROOT && n.score.is_none()).map(|(id, _)| id).collect();
                for node in unscored {
                    let score = f64::from(random.random_range(0..9u8)) / 9.0;
                    grown.apply(&Event::Scored { node, score, parts: Vec::new() }).unwrap();
                }
                let step = next_by(&grown, plan, &mut memory);
                // Numbers that are none equal nothing.
                assert_eq!(format!("{step:?}"), format!("{:?}", next(&grown, plan)));
                steps.insert(match step {
                    Step::Expand(_) => "expand",
                    Step::Prune(_) => "prune",
                    Step::Choose { .. } => "choose",
                    _ => "other",
                });
            }
        }
        assert!(["expand", "prune", "choose"].iter().all(|kind| steps.contains(kind)), "{steps:?}");
    }

    #[test]
    fn a_table_has_the_values_of_each_thought() {
        let mut random = stream(7, "table", &[]);
        let mut grown = tree(&[]);
        (0..300).for_each(|_| happen(&mut grown, &mut random));
        let ids: Vec<NodeId> = grown.iter().map(|(id, _)| id).collect();
        let names = values::names();
        let table = values::table(&grown, &ids, &names);
        let run = values::run(&grown);
        for (row, &id) in table.chunks(names.len()).zip(&ids) {
            let exact = values::thought(&grown, id, &run);
            let found: Values = names.iter().zip(row).filter_map(|(name, value)| Some((*name, (*value)?))).collect();
            assert_eq!(format!("{found:?}"), format!("{exact:?}"));
        }
    }

    #[test]
    fn only_what_changed_is_worked_out_again() {
        let grown = tree(&[(0, 0.5, -1.0), (0, 0.25, -1.0), (1, 0.5, -2.0)]);
        let ids: Vec<NodeId> = (1..4).map(NodeId).collect();
        let mut known = Known { names: vec!["score"], values: Vec::new(), results: Vec::new() };
        let mut worked = Vec::new();
        let mut ask = |tree: &ThoughtTree| {
            let found = known.of(tree, &ids, |rows| {
                worked.push(rows.len());
                Ok(rows.iter().map(|row| Some(row[0].1)).collect())
            });
            assert_eq!(found.unwrap(), ids.iter().map(|&id| tree.node(id).score).collect::<Vec<_>>());
        };
        ask(&grown);
        ask(&grown);
        let mut changed = grown.clone();
        changed.apply(&Event::Scored { node: NodeId(2), score: 0.75, parts: Vec::new() }).unwrap();
        ask(&changed);
        assert_eq!(worked, [3, 1]);
    }
}
