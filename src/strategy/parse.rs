//! Reads a strategy file into a [`Strategy`], reporting everything that is wrong with it at once, each at its place.
//!
//! What a scalar means is decided here, by the field it stands in: a text field keeps what was typed (`no`, `~`, `0755`),
//! a number field takes decimal numbers only, a boolean field `true` and `false` only.

use super::fault::{Fault, Severity, Span, to_result};
use super::read::Reader;
use super::source::Home;
use super::yaml::{self, Node, Value};
use super::{
    Budget, Constrain, Count, Evaluator, Generate, GenerateKind, Policy, PromptSource, Search, Strategy, Thought,
    prompt,
};
use crate::base::{Error, Result};
use crate::lm::{Format, Sampling};
use prompt::Role;
use std::collections::BTreeMap;
use std::path::Path;

/// What reading a file gave: all faults, and the strategy where none of them is an error.
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed {
    pub strategy: Option<Strategy>,
    pub faults: Vec<Fault>,
}

/// Reads a strategy from a file; warnings are dropped ([`super::check`] shows them).
pub fn read_file(path: &Path) -> Result<Strategy> {
    let parsed = parse_file(path)?;
    to_result(&parsed.faults)?;
    parsed.strategy.ok_or_else(|| Error::fault(format!("{}: could not be read", path.display())))
}

/// Reads a file with all its faults; an error only where the file itself cannot be read.
pub fn parse_file(path: &Path) -> Result<Parsed> {
    let name = path.display().to_string();
    let text = super::source::read_text(path).map_err(|what| Error::input(format!("strategy {name}: {what}")))?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(parse(&text, &name, &Home::Folder(folder.to_path_buf())))
}

/// Reads a strategy's text. `origin` stands in messages.
pub fn parse(text: &str, origin: &str, home: &Home) -> Parsed {
    let (root, problems) = yaml::load(text);
    let mut faults: Vec<Fault> = problems
        .into_iter()
        .map(|problem| Fault::new(Severity::Error, origin, text, problem.span, problem.message))
        .collect();
    let Some(root) = root else { return Parsed { strategy: None, faults } };
    let mut reader = Reader::new(origin, text, home);
    let strategy = read_strategy(&mut reader, &root);
    faults.append(&mut reader.faults);
    faults.sort_by_key(|fault| (fault.file != origin, fault.span.line, fault.span.column));
    let failed = faults.iter().any(|fault| fault.severity == Severity::Error);
    Parsed { strategy: strategy.filter(|_| !failed), faults }
}

fn read_strategy(r: &mut Reader, root: &Node) -> Option<Strategy> {
    let top = r.fields(root, "", "a strategy")?;
    match r.need(&top, "version") {
        Some(node) => {
            let version = r.whole(node, "version", 0);
            if version.is_some_and(|version| version != 1) {
                r.error(node.span, "this version is not known; this Totara reads version 1");
            }
        }
        None => return None,
    }
    let name = r.need(&top, "name").and_then(|node| r.text(node, "name")).unwrap_or_default();
    let about = top.get("about").and_then(|node| r.text(node, "about")).unwrap_or_default();
    let task = top.get("task").and_then(|node| r.task(node));
    r.task = task.clone();
    let search = r.need(&top, "search").and_then(|node| read_search(r, node));
    let generate = r.need(&top, "generate").and_then(|node| read_generate(r, node));
    let evaluate = top.get("evaluate").map(|node| read_evaluators(r, node)).unwrap_or_default();
    let budget = top.get("budget").map(|node| read_budget(r, node)).unwrap_or_default();
    let strategy = Strategy {
        name,
        about,
        task,
        search: search?,
        generate: generate?,
        evaluate,
        budget,
        text: r.source.to_string(),
        origin: r.origin.to_string(),
    };
    super::lint::lint(r, &strategy, &top);
    Some(strategy)
}

fn read_search(r: &mut Reader, node: &Node) -> Option<Search> {
    let fields = r.fields(node, "search", "`search`")?;
    let policy = r.need(&fields, "policy").and_then(|node| match &node.value {
        // `policy: {bfs: {}}` is the long form, for policies with settings of their own.
        Value::Map(entries) if entries.len() == 1 => {
            let policy = r.one_of_name(&entries[0].key, entries[0].key_span, "policy", POLICIES)?;
            match &entries[0].value.value {
                Value::Map(settings) if settings.is_empty() => Some(policy),
                Value::Scalar { text, style: yaml::Style::Plain } if text.is_empty() => Some(policy),
                _ => r.refuse(entries[0].value.span, format!("policy `{}` has no settings of its own", entries[0].key)),
            }
        }
        _ => r.one_of(node, "policy", POLICIES),
    });
    Some(Search {
        policy: policy?,
        depth: fields.get("depth").and_then(|node| r.count(node, "depth")).unwrap_or(Count::Number(1)),
        keep: fields.get("keep").and_then(|node| r.count(node, "keep")).unwrap_or(Count::Number(1)),
        prune_below: fields.get("prune_below").and_then(|node| r.number(node, "prune_below", 0.0, 1.0)).unwrap_or(0.0),
        children: fields.get("children").and_then(|node| r.count(node, "children")),
    })
}

const POLICIES: &[(&str, Policy)] = &[("bfs", Policy::Bfs), ("dfs", Policy::Dfs)];

const FORMATS: &[(&str, Format)] = &[("completion", Format::Completion), ("chat", Format::Chat)];

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
        Some(PromptSource { origin: r.origin.to_string(), text: String::new() })
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
        n: fields.get("n").and_then(|node| r.count(node, "n")).unwrap_or(Count::Number(1)),
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
        return r.refuse(node.span, "`constrain` holds one of `regex` and `choice`");
    }
    if let Some(node) = fields.get("regex") {
        let text = r.text(node, "regex")?;
        // The engine matches from the beginning on, so that is how it is tried here too.
        return match regex::RegexBuilder::new(&text).size_limit(1 << 20).build() {
            Ok(_) => Some(Constrain::Regex(text)),
            Err(error) => {
                let detail = error.to_string();
                let last = detail.lines().last().unwrap_or_default().trim().to_string();
                r.refuse(node.span, format!("this is no regular expression: {last}"))
            }
        };
    }
    let node = fields.get("choice")?;
    let choices = r.texts(node, "choice");
    if choices.is_empty() {
        return r.refuse(node.span, "`choice` needs at least one text");
    }
    Some(Constrain::Choice(choices))
}

fn read_evaluators(r: &mut Reader, node: &Node) -> Vec<Evaluator> {
    let Value::List(items) = &node.value else {
        r.error(node.span, "`evaluate` is a list; write each evaluator on a line that begins with `- `");
        return Vec::new();
    };
    items.iter().filter_map(|item| read_evaluator(r, item)).flatten().collect()
}

/// `Some(None)` for an evaluator that is switched off.
fn read_evaluator(r: &mut Reader, node: &Node) -> Option<Option<Evaluator>> {
    if let Value::Scalar { text, .. } = &node.value {
        return match text.as_str() {
            "logprob" => Some(Some(Evaluator::Logprob)),
            "checker" | "value" | "vote" => {
                r.refuse(node.span, format!("`{text}` needs a value, such as `- checker: partial`"))
            }
            _ => {
                let names: Vec<(&str, ())> = super::keys::names("evaluate").map(|name| (name, ())).collect();
                r.one_of(node, "evaluator", &names);
                None
            }
        };
    }
    let fields = r.fields(node, "evaluate", "an evaluator")?;
    if let Value::Map(entries) = &node.value
        && entries.len() != 1
    {
        let span = entries.get(1).map_or(node.span, |entry| entry.key_span);
        return r.refuse(span, "one evaluator an item; begin the next one on its own line with `- `");
    }
    if let Some(node) = fields.get("checker") {
        let partial = r.one_of(node, "checker", &[("partial", true), ("whole", false)])?;
        return Some(Some(Evaluator::Checker { partial }));
    }
    if let Some(node) = fields.get("logprob") {
        return Some(r.boolean(node, "logprob")?.then_some(Evaluator::Logprob));
    }
    if let Some(value) = fields.get("value") {
        let fields = r.fields(value, "evaluate.value", "`value`")?;
        let prompt = r.need(&fields, "prompt").and_then(|node| r.prompt(node, Role::Value));
        let labels = fields.get("labels").map(|node| read_labels(r, node));
        let scale = fields.get("scale").map(|node| read_scale(r, node));
        if labels.is_some() == scale.is_some() {
            return r.refuse(
                value.span,
                "`value` holds one of `labels`, such as `{sure: 20, likely: 1}`, and `scale`, such as `[0, 10]`",
            );
        }
        let labels = labels.unwrap_or_else(|| Some(BTreeMap::new()));
        let scale = scale.map_or(Some(None), |scale| scale.map(Some));
        let asked = read_asked(r, &fields);
        return Some(Some(Evaluator::Value {
            prompt: prompt?,
            format: asked.format,
            n: asked.n,
            labels: labels?,
            scale: scale?,
            max_tokens: asked.max_tokens,
            temperature: asked.temperature,
        }));
    }
    let node = fields.get("vote")?;
    let fields = r.fields(node, "evaluate.vote", "`vote`")?;
    let prompt = r.need(&fields, "prompt").and_then(|node| r.prompt(node, Role::Vote));
    let asked = read_asked(r, &fields);
    Some(Some(Evaluator::Vote {
        prompt: prompt?,
        format: asked.format,
        n: asked.n,
        max_tokens: asked.max_tokens,
        temperature: asked.temperature,
    }))
}

/// What value and vote have in common.
struct Asked {
    n: usize,
    format: Option<Format>,
    max_tokens: usize,
    temperature: f32,
}

fn read_asked(r: &mut Reader, fields: &super::read::Fields<'_>) -> Asked {
    Asked {
        n: fields.get("n").and_then(|node| r.whole(node, "n", 1)).unwrap_or(1) as usize,
        format: fields.get("format").and_then(|node| r.one_of(node, "format", FORMATS)),
        max_tokens: fields.get("max_tokens").and_then(|node| r.whole(node, "max_tokens", 1)).unwrap_or(32) as usize,
        temperature: fields.get("temperature").and_then(|node| r.number(node, "temperature", 0.0, 1e6)).unwrap_or(0.0)
            as f32,
    }
}

fn read_labels(r: &mut Reader, node: &Node) -> Option<BTreeMap<String, f64>> {
    let Value::Map(entries) = &node.value else {
        return r.refuse(
            node.span,
            "`labels` is a map of what the model may say, such as `{sure: 20, likely: 1, impossible: 0.001}`",
        );
    };
    let mut labels = BTreeMap::new();
    for entry in entries {
        if entry.key.trim().is_empty() {
            return r.refuse(entry.key_span, "a label must not be blank");
        }
        if let Some(weight) = r.number(&entry.value, "a label's weight", 0.0, 1e9) {
            labels.insert(entry.key.clone(), weight);
        }
    }
    if !labels.values().any(|weight| *weight > 0.0) {
        return r.refuse(node.span, "at least one label needs a weight above 0");
    }
    Some(labels)
}

fn read_scale(r: &mut Reader, node: &Node) -> Option<(f64, f64)> {
    let what = "`scale` is a list of its two ends, the lower one first, such as `[0, 10]`";
    let Value::List(ends) = &node.value else { return r.refuse(node.span, what) };
    let [low, high] = ends.as_slice() else { return r.refuse(node.span, what) };
    let low = r.number(low, "an end of the scale", -1e9, 1e9);
    let high = r.number(high, "an end of the scale", -1e9, 1e9);
    let (low, high) = (low?, high?);
    if low < high { Some((low, high)) } else { r.refuse(node.span, what) }
}

fn read_budget(r: &mut Reader, node: &Node) -> Budget {
    let Some(fields) = r.fields(node, "budget", "`budget`") else { return Budget::default() };
    Budget {
        tokens: fields.get("tokens").and_then(|node| r.whole(node, "tokens", 1)),
        thoughts: fields.get("thoughts").and_then(|node| r.whole(node, "thoughts", 1)),
        seconds: fields.get("seconds").and_then(|node| r.number(node, "seconds", 0.001, 1e9)),
    }
}

/// The place of a key, or of the map where it is not there.
pub(super) fn place(fields: &super::read::Fields<'_>, name: &str) -> Span {
    fields.key_span(name).unwrap_or(fields.span)
}
