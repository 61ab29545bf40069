//! Warnings: a strategy that can be read but probably does not do what was meant.

use super::parse::place;
use super::read::{Fields, Reader};
use super::yaml::{Node, Value};
use super::{Count, Evaluator, GenerateKind, Operation, Policy, PromptSource, Strategy, Thought, prompt};

/// Reports what looks unintended, each at its key.
pub fn lint(r: &mut Reader, strategy: &Strategy, top: &Fields<'_>) {
    if strategy.about.is_empty() {
        r.warn(
            place(top, "name"),
            "there is no `about`: lists show the comment line that the file begins with, if there is one",
        );
    }
    let budget = strategy.budget;
    if budget == super::Budget::default() {
        r.warn(place(top, "budget"), "there is no `budget`: a run ends only when the search does");
    }
    let search = Section::of(top, "search");
    let policy = &strategy.search.policy;
    let stages = || std::iter::once(policy).chain(strategy.stages.iter().map(|stage| &stage.search.policy));
    if !stages().any(|policy| *policy == Policy::Dfs) && search.has("children") {
        r.warn(search.at("children"), "`children` is used by dfs only");
    }
    if !stages().any(Policy::keeps) && search.has("keep") {
        r.warn(search.at("keep"), "`keep` is used by bfs, beam and graph only");
    }
    let generate = Section::of(top, "generate");
    let g = &strategy.generate;
    let several = g.n != Count::Number(1);
    if g.kind == GenerateKind::Sample && several && g.sampling.temperature == 0.0 {
        r.warn(
            generate.at("n"),
            "several samples at temperature 0 are all the same; set `temperature`, or use `kind: likeliest`",
        );
    }
    if g.kind == GenerateKind::Likeliest && generate.has("temperature") {
        r.warn(generate.at("temperature"), "`temperature` does not change which proposals are the likeliest");
    }
    if g.kind == GenerateKind::Random {
        for name in ["prompt", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "stop", "max_tokens"] {
            if generate.has(name) {
                r.warn(generate.at(name), format!("`{name}` is not used by `kind: random`"));
            }
        }
    } else if !shows_puzzle(&g.prompt, &r.puzzle_inputs()) {
        r.warn(generate.at("prompt"), "this prompt never shows the puzzle (`{{ puzzle.input }}`)");
    }
    let improves = strategy.improves() || policy.chooses() || matches!(policy, Policy::Graph(_));
    if g.thought == Thought::Answer && strategy.search.depth != Count::Number(1) && !improves {
        r.warn(
            search.at("depth"),
            "with `thought: answer` every thought is a whole answer, so levels below the first repeat it",
        );
    }
    let ranked = several && strategy.evaluate.is_empty() && strategy.score.is_none() && policy.keeps();
    if ranked && strategy.search.keep != strategy.generate.n {
        r.warn(place(top, "generate"), "nothing is evaluated: all thoughts score 1, and the first ones are kept");
    }
    for (level, missing) in blind(strategy) {
        let key = if strategy.stages.is_empty() { "levels" } else { "stages" };
        let at = if top.get(key).is_some() { place(top, key) } else { generate.at("prompt") };
        r.warn(at, format!("the prompt of level {level} never shows {missing}: what was found before is lost there"));
    }
    for evaluator in strategy.evaluators() {
        match evaluator {
            Evaluator::Value { prompt, .. } | Evaluator::YesNo { prompt, .. }
                if !prompt::uses(prompt, "thought") && !prompt::uses(prompt, "path") =>
            {
                r.warn(
                    place(top, "evaluate"),
                    format!(
                        "the {} prompt shows neither `thought` nor `path`: every thought gets the same answer",
                        evaluator.name()
                    ),
                );
            }
            Evaluator::Vote { prompt, .. } if !prompt::uses(prompt, "thoughts") => {
                r.warn(
                    place(top, "evaluate"),
                    "the vote prompt never shows `thoughts`: there is nothing to choose from",
                );
            }
            _ => {}
        }
    }
}

/// Levels of whole answers that go on from earlier ones and do not show them, each with the input that would.
fn blind(strategy: &Strategy) -> Vec<(usize, &'static str)> {
    let shows = |level: usize, names: &[&str]| {
        let generate = strategy.generate_at(level);
        generate.kind == GenerateKind::Random
            || generate.thought == Thought::Step
            || names.iter().any(|name| prompt::uses(&generate.prompt, name))
    };
    if let Policy::Graph(operations) = &strategy.search.policy {
        let needs = operations.iter().zip(1..).filter_map(|(operation, level)| match operation {
            Operation::Aggregate if !shows(level, &["thoughts"]) => Some((level, "`thoughts`")),
            Operation::Improve if !shows(level, &["thought", "path"]) => Some((level, "`thought`")),
            _ => None,
        });
        return needs.collect();
    }
    // Of the levels that have no settings of their own the first stands for all.
    let last = strategy.staged_levels().max(strategy.levels.len()) + 1;
    let deepest = match strategy.search.depth {
        Count::Number(depth) => depth + strategy.staged_levels(),
        Count::Template(_) => last,
    };
    if !strategy.improves() {
        return Vec::new();
    }
    let below = (2..=last.min(deepest)).filter(|&level| !shows(level, &["thought", "path"]));
    below.map(|level| (level, "`thought`")).collect()
}

fn shows_puzzle(prompt: &PromptSource, inputs: &[String]) -> bool {
    let about = |name: &&String| {
        name.starts_with("puzzle.")
            && !["puzzle.len", "puzzle.form", "puzzle.lead", "puzzle.examples"].contains(&name.as_str())
    };
    inputs.iter().filter(about).any(|name| prompt::uses(prompt, name))
}

/// A section's keys, for their places.
struct Section<'n> {
    node: Option<&'n Node>,
    fallback: super::fault::Span,
}

impl<'n> Section<'n> {
    fn of(top: &Fields<'n>, name: &str) -> Self {
        Self { node: top.get(name), fallback: place(top, name) }
    }

    fn find(&self, name: &str) -> Option<super::fault::Span> {
        match &self.node?.value {
            Value::Map(entries) => entries.iter().find(|entry| entry.key == name).map(|entry| entry.key_span),
            _ => None,
        }
    }

    fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    fn at(&self, name: &str) -> super::fault::Span {
        self.find(name).unwrap_or(self.fallback)
    }
}
