//! Reads a strategy file into a [`Strategy`], reporting everything that is wrong with it at once, each at its place.
//!
//! What a scalar means is decided here, by the field it stands in: a text field keeps what was typed (`no`, `~`, `0755`),
//! a number field takes decimal numbers only, a boolean field `true` and `false` only.

mod evaluate;
mod search;
mod stages;

pub(super) use search::NAMES as POLICIES;

use super::compose::{Composed, compose, over_section, variables_in};
use super::expression::{Expression, Scope};
use super::fault::{Fault, Severity, Span, to_result};
use super::own::OwnTask;
use super::read::{Fields, Reader};
use super::source::Home;
use super::yaml::{Node, Style, Value};
use super::{
    Budget, Constrain, Count, Evaluator, Generate, GenerateKind, Level, Policy, PromptSource, Search, Stage, Strategy,
    Thought, prompt,
};
use crate::base::size::Size;
use crate::base::{Error, Result};
use crate::device::speculation::Look;
use crate::kv::residency::Eviction;
use crate::lm::{Format, GrammarForm, Sampling};
use crate::offload;
use crate::task::Task;
use prompt::Role;
use std::collections::BTreeSet;
use std::path::Path;

/// What reading a file gave: all faults, and the strategy where none of them is an error.
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed {
    pub strategy: Option<Strategy>,
    pub faults: Vec<Fault>,
}

/// Reads a strategy from a file, with values for its variables; warnings are dropped ([`super::check`] shows them).
pub fn read_file(path: &Path, set: &[(String, String)], own: Option<&OwnTask>) -> Result<Strategy> {
    let parsed = parse_file_with(path, set, own)?;
    to_result(&parsed.faults)?;
    parsed.strategy.ok_or_else(|| Error::fault(format!("{}: could not be read", path.display())))
}

/// Reads a file with all its faults; an error only where the file itself cannot be read.
pub fn parse_file(path: &Path) -> Result<Parsed> {
    parse_file_with(path, &[], None)
}

/// As [`parse_file`], with values for the strategy's variables, and the user's own task that it is to run on.
pub fn parse_file_with(path: &Path, set: &[(String, String)], own: Option<&OwnTask>) -> Result<Parsed> {
    let name = path.display().to_string();
    let text = super::source::read_text(path).map_err(|what| Error::input(format!("strategy {name}: {what}")))?;
    Ok(parse_for(&text, &name, &super::source::home_of(path), set, own))
}

/// Reads a strategy's text. `origin` stands in messages.
pub fn parse(text: &str, origin: &str, home: &Home) -> Parsed {
    parse_for(text, origin, home, &[], None)
}

/// As [`parse`], with values for the strategy's variables, and the user's own task that it is to run on.
pub fn parse_for(text: &str, origin: &str, home: &Home, set: &[(String, String)], own: Option<&OwnTask>) -> Parsed {
    let Composed { root, sources, vars, used, mut faults } = compose(text, origin, home, set);
    let Some(root) = root else { return Parsed { strategy: None, faults } };
    let mut reader = Reader::new(&sources, &vars);
    reader.inputs = own.map(|task| task.inputs().into_iter().map(|(name, _)| name.to_string()).collect());
    reader.own = own.cloned();
    let mut strategy = read_strategy(&mut reader, &root);
    if let Some(strategy) = strategy.as_mut().filter(|strategy| strategy.about.is_empty()) {
        strategy.about = first_comment(text).unwrap_or_default().to_string();
    }
    if let Some(strategy) = &strategy {
        unused(&mut reader, &root, strategy, &used);
    }
    faults.append(&mut reader.faults);
    let place = |file: &str| sources.iter().position(|source| source.origin == file).unwrap_or(usize::MAX);
    faults.sort_by_key(|fault| (place(&fault.file), fault.span.line, fault.span.column));
    let failed = faults.iter().any(|fault| fault.severity == Severity::Error);
    if failed {
        // What looks odd in a file that could not be read whole may be the error's doing (`budgte:` is no missing budget).
        faults.retain(|fault| fault.severity == Severity::Error);
    }
    Parsed { strategy: strategy.filter(|_| !failed), faults }
}

/// The first line of the comment that a file begins with; its words alone.
fn first_comment(text: &str) -> Option<&str> {
    let comments = text.lines().map(str::trim).take_while(|line| line.is_empty() || line.starts_with('#'));
    comments.map(|line| line.trim_start_matches('#').trim()).find(|line| !line.is_empty())
}

fn read_strategy(r: &mut Reader, root: &Node) -> Option<Strategy> {
    let top = r.fields(root, "", "a strategy")?;
    if let Some(node) = r.need(&top, "version")
        && r.whole(node, "version", 0).is_some_and(|version| version != 1)
    {
        r.error(node.span, "this version is not known; this Totara reads version 1");
    }
    let name = r.need(&top, "name").and_then(|node| r.text(node, "name")).unwrap_or_default();
    let about = top.get("about").and_then(|node| r.text(node, "about")).unwrap_or_default();
    let task = top.get("task").and_then(|node| r.task(node));
    r.task = task.clone();
    if task.as_deref().is_some_and(|name| r.own.as_ref().is_none_or(|own| own.name() != name)) {
        // What it is to run on is another task; that is told where the two meet.
        (r.inputs, r.own) = (None, None);
    }
    if let Some(node) = top.get("stages") {
        return stages::read(r, node, &top, stages::Head { name, about, task });
    }
    let search = r.need(&top, "search").and_then(|node| search::read(r, node));
    let generate = r.need(&top, "generate").and_then(|node| read_generate(r, node));
    let levels = top.get("levels").map(|node| read_levels(r, node, top.get("generate"))).unwrap_or_default();
    let evaluate = top.get("evaluate").map(|node| evaluate::read(r, node)).unwrap_or_default();
    let score = top.get("score").and_then(|node| read_score(r, node, &evaluate, &levels));
    let budget = top.get("budget").map(|node| read_budget(r, node)).unwrap_or_default();
    let head = stages::Head { name, about, task };
    let body = Body { search: search?, generate: generate?, levels, stages: Vec::new(), evaluate, score, budget };
    finish(r, &top, head, body)
}

/// What a strategy does.
struct Body {
    search: Search,
    generate: Generate,
    levels: Vec<Level>,
    stages: Vec<Stage>,
    evaluate: Vec<Evaluator>,
    score: Option<Expression>,
    budget: Budget,
}

/// The strategy, with what its keys together refuse, and what looks unintended.
fn finish(r: &mut Reader, top: &Fields<'_>, head: stages::Head, body: Body) -> Option<Strategy> {
    let stages::Head { name, about, task } = head;
    let Body { search, generate, levels, stages, evaluate, score, budget } = body;
    let offload = top.get("offload").and_then(|node| read_offload(r, node));
    let (own, parts) = r.sources.split_first()?;
    let strategy = Strategy {
        name,
        about,
        task,
        own: r.own.clone(),
        search,
        generate,
        levels,
        stages,
        evaluate,
        score,
        budget,
        offload,
        vars: r.vars.clone(),
        text: own.text.clone(),
        parts: parts.iter().map(|s| PromptSource { origin: s.origin.clone(), text: s.text.clone() }).collect(),
        origin: own.origin.clone(),
    };
    agree(r, &strategy, top);
    if strategy.own.as_ref().is_some_and(|own| !own.has_steps()) {
        let puzzle = |g: &Generate| {
            (g.constrain == Constrain::Puzzle || g.kind == GenerateKind::Random) && g.thought == Thought::Step
        };
        if strategy.generators().any(puzzle) {
            r.error(place(top, "generate"), "this task lists no `steps`, so there is nothing that the puzzle allows");
        }
    }
    super::lint::lint(r, &strategy, top);
    Some(strategy)
}

/// What two keys together refuse.
fn agree(r: &mut Reader, strategy: &Strategy, top: &Fields<'_>) {
    let graph = matches!(strategy.search.policy, Policy::Graph(_));
    if graph && strategy.generators().any(|generate| generate.thought != Thought::Answer) {
        r.error(place(top, "generate"), "with `graph` every thought is a whole solution; write `thought: answer`");
    }
    if strategy.search.policy.chooses() {
        if strategy.generators().any(|generate| generate.thought != Thought::Answer) {
            r.error(place(top, "generate"), "this policy chooses among whole answers; write `thought: answer`");
        }
        if strategy.search.depth != Count::Number(1) {
            r.error(place(top, "search"), "this policy has one level of whole answers; leave `depth` out");
        }
    }
    if let Count::Number(depth) = strategy.search.depth
        && strategy.levels.len() > depth
    {
        let what = format!("level {} is never reached: `depth` is {depth}", depth + 1);
        r.error(place(top, "levels"), what);
    }
}

/// Variables that nothing uses.
fn unused(r: &mut Reader, root: &Node, strategy: &Strategy, used: &BTreeSet<String>) {
    let Value::Map(entries) = &root.value else { return };
    let Some(vars) = entries.iter().find(|entry| entry.key == "vars") else { return };
    let Value::Map(vars) = &vars.value.value else { return };
    let mut texts: Vec<&str> = strategy.prompts().map(|prompt| prompt.text.as_str()).collect();
    for entry in entries.iter().filter(|entry| entry.key != "vars") {
        entry.value.texts(&mut texts);
    }
    let named = |name: &str| texts.iter().any(|text| variables_in(text).any(|used| used == name));
    for entry in vars {
        if !used.contains(&entry.key) && !named(&entry.key) {
            r.warn(entry.key_span, format!("the variable `{}` is not used", entry.key));
        }
    }
}

/// Each level's own settings; its `generate` changes the strategy's, key by key.
fn read_levels(r: &mut Reader, node: &Node, generate: Option<&Node>) -> Vec<Level> {
    let Value::List(items) = &node.value else {
        r.error(node.span, "`levels` is a list, the first level first; begin each with `- `");
        return Vec::new();
    };
    let mut levels = Vec::new();
    for item in items {
        let Some(fields) = r.fields(item, "levels", "a level") else { continue };
        let own = fields.get("generate").map(|own| match generate {
            Some(base) => over_section(base.clone(), own.clone()),
            None => own.clone(),
        });
        levels.push(Level {
            generate: own.and_then(|node| read_generate(r, &node)),
            evaluate: fields.get("evaluate").map(|node| evaluate::read(r, node)),
            keep: fields.get("keep").and_then(|node| r.count(node, "keep")),
        });
    }
    levels
}

/// What the score is made of: an expression over the evaluators that are there.
fn read_score(r: &mut Reader, node: &Node, evaluate: &[Evaluator], levels: &[Level]) -> Option<Expression> {
    let expression = r.expression(node, "score", Scope::Parts)?;
    let own = levels.iter().filter_map(|level| level.evaluate.as_deref());
    for evaluate in std::iter::once(evaluate).chain(own) {
        let there: Vec<&str> = evaluate.iter().map(Evaluator::name).collect();
        for name in expression.names() {
            if !there.contains(&name.as_str()) {
                r.error(node.span, format!("`score` names `{name}`, but there is no such evaluator in `evaluate`"));
            }
        }
        for (at, name) in there.iter().enumerate() {
            if there[..at].contains(name) {
                r.error(node.span, format!("`score` cannot tell two evaluators `{name}` apart"));
            }
        }
    }
    Some(expression)
}

pub(super) const FORMATS: &[(&str, Format)] = &[("completion", Format::Completion), ("chat", Format::Chat)];

fn read_generate(r: &mut Reader, node: &Node) -> Option<Generate> {
    let fields = r.fields(node, "generate", "`generate`")?;
    let kinds = &[
        ("sample", GenerateKind::Sample),
        ("likeliest", GenerateKind::Likeliest),
        ("propose", GenerateKind::Propose),
        ("random", GenerateKind::Random),
    ];
    let kind = match fields.get("kind") {
        Some(node) => r.one_of(node, "kind", kinds),
        None => Some(GenerateKind::Sample),
    };
    // Chance needs no words.
    let prompt = if kind == Some(GenerateKind::Random) && fields.get("prompt").is_none() {
        Some(PromptSource { origin: r.sources[node.span.file].origin.clone(), text: String::new() })
    } else {
        r.need(&fields, "prompt").and_then(|node| r.prompt(node, Role::Generate))
    };
    let number = |r: &mut Reader, name: &'static str, least: f64, most: f64| {
        fields.get(name).and_then(|node| r.number(node, name, least, most)).map(|value| value as f32)
    };
    let sampling = Sampling {
        temperature: number(r, "temperature", 0.0, 1e6).unwrap_or(0.0),
        top_k: fields.get("top_k").and_then(|node| r.whole(node, "top_k", 0)).map(|k| k as usize),
        top_p: number(r, "top_p", 0.0, 1.0),
        min_p: number(r, "min_p", 0.0, 1.0),
        repetition_penalty: number(r, "repetition_penalty", 0.01, 100.0).unwrap_or(1.0),
    };
    let thoughts = &[("step", Thought::Step), ("answer", Thought::Answer)];
    let constrain = fields.get("constrain").and_then(|node| read_constrain(r, node)).unwrap_or(Constrain::None);
    Some(Generate {
        kind: kind?,
        n: fields.get("n").and_then(|node| r.at_once(node, "n")).unwrap_or(Count::Number(1)),
        prompt: prompt?,
        format: fields.get("format").and_then(|node| r.one_of(node, "format", FORMATS)),
        constrain,
        sampling,
        max_tokens: fields.get("max_tokens").and_then(|node| r.count(node, "max_tokens")).unwrap_or(Count::Number(256)),
        stop: fields.get("stop").map(|node| r.texts(node, "stop")).unwrap_or_default(),
        thought: fields.get("thought").and_then(|node| r.one_of(node, "thought", thoughts)).unwrap_or(Thought::Step),
    })
}

fn read_constrain(r: &mut Reader, node: &Node) -> Option<Constrain> {
    let Value::Map(entries) = &node.value else {
        return r.one_of(node, "constrain", &[("none", Constrain::None), ("puzzle", Constrain::Puzzle)]);
    };
    let fields = r.fields(node, "generate.constrain", "`constrain`")?;
    if entries.len() != 1 {
        return r.refuse(node.span, "`constrain` holds one of `regex`, `choice`, `json_schema` and `grammar`");
    }
    if let Some(node) = fields.get("regex") {
        let text = r.text(node, "regex")?;
        return compiled(r, node, Constrain::Regex(text));
    }
    if let Some(node) = fields.get("json_schema") {
        let schema = r.json(node, "json_schema")?;
        if !schema.is_object() {
            return r.refuse(node.span, "a JSON schema is a map such as `{type: object, properties: {…}}`");
        }
        return compiled(r, node, Constrain::Grammar(GrammarForm::Json(schema)));
    }
    if let Some(node) = fields.get("grammar") {
        let text = r.text_or_file(node, "grammar")?;
        return compiled(r, node, Constrain::Grammar(GrammarForm::Lark(text)));
    }
    let node = fields.get("choice")?;
    let choices = r.texts(node, "choice");
    if choices.is_empty() {
        return r.refuse(node.span, "`choice` needs at least one text");
    }
    Some(Constrain::Choice(choices))
}

/// The constraint, where it compiles.
fn compiled(r: &mut Reader, node: &Node, constrain: Constrain) -> Option<Constrain> {
    match constrain.rule() {
        Ok(_) => Some(constrain),
        Err(why) => r.refuse(node.span, why),
    }
}

fn read_budget(r: &mut Reader, node: &Node) -> Budget {
    let Some(fields) = r.fields(node, "budget", "`budget`") else { return Budget::default() };
    Budget {
        tokens: fields.get("tokens").and_then(|node| r.whole(node, "tokens", 1)),
        thoughts: fields.get("thoughts").and_then(|node| r.whole(node, "thoughts", 1)),
        seconds: fields.get("seconds").and_then(|node| r.number(node, "seconds", 0.001, 1e9)),
        kv: fields.get("kv").and_then(|node| read_bytes(r, node)),
    }
}

/// Bytes of memory: `256MiB`.
fn read_bytes(r: &mut Reader, node: &Node) -> Option<u64> {
    let text = r.text(node, "kv")?;
    match text.parse::<Size>() {
        Ok(Size::Bytes(bytes)) if bytes > 0 => Some(bytes),
        Ok(_) => r.refuse(node.span, "`kv` is an amount of memory such as 256MiB, above 0 and no percentage"),
        Err(error) => r.refuse(node.span, format!("`kv`: {}", error.message())),
    }
}

fn read_offload(r: &mut Reader, node: &Node) -> Option<offload::Options> {
    let fields = r.fields(node, "offload", "`offload`")?;
    let methods = offload::Method::LIVE.map(|method| (method.name(), method));
    let evictions = &[("counter", Eviction::Counter), ("fifo", Eviction::Fifo), ("lru", Eviction::Lru)];
    let looks = &[("ahead", Look::Ahead), ("half", Look::Half), ("same", Look::Same)];
    let usual = offload::Options::default();
    let capacity = fields.get("capacity").and_then(|node| match r.text(node, "capacity")?.parse::<Size>() {
        Ok(size) => Some(size),
        Err(error) => r.refuse(node.span, error.message()),
    });
    let number = |r: &mut Reader, name: &'static str, most: f64| {
        fields.get(name).and_then(|node| r.number(node, name, 0.001, most))
    };
    // Without a bound: as the flag has it, or as YAML writes it.
    let endless = fields.get("alpha").is_some_and(
        |node| matches!(&node.value, Value::Scalar { text, style: Style::Plain } if text == "inf" || text == ".inf"),
    );
    let alpha = if endless { Some(f64::INFINITY) } else { number(r, "alpha", 1e6) };
    Some(offload::Options {
        method: r.need(&fields, "method").and_then(|node| r.one_of(node, "method", &methods))?,
        alpha: alpha.map_or(usual.alpha, |alpha| alpha as f32),
        ratio: number(r, "ratio", 1.0).unwrap_or(usual.ratio),
        max_fetch: number(r, "max_fetch", 1.0).map_or(usual.max_fetch, |share| share as f32),
        capacity,
        eviction: fields
            .get("eviction")
            .and_then(|node| r.one_of(node, "eviction", evictions))
            .unwrap_or(usual.eviction),
        look: fields.get("look").and_then(|node| r.one_of(node, "look", looks)),
        whole_layers: fields.get("whole_layers").and_then(|node| r.whole(node, "whole_layers", 0)).map(|n| n as usize),
    })
}

/// The place of a key, or of the map where it is not there.
pub(super) fn place(fields: &super::read::Fields<'_>, name: &str) -> Span {
    fields.key_span(name).unwrap_or(fields.span)
}
