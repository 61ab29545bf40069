//! Reads `evaluate`: the list of evaluators.

use super::FORMATS;
use crate::lm::Format;
use crate::strategy::keys;
use crate::strategy::prompt::Role;
use crate::strategy::read::{Fields, Reader};
use crate::strategy::yaml::{Node, Value};
use crate::strategy::{Evaluator, MOST_AT_ONCE};
use std::collections::BTreeMap;

pub fn read(r: &mut Reader, node: &Node) -> Vec<Evaluator> {
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
            "checker" => r.refuse(node.span, "`checker` needs a value: `- checker: partial` or `- checker: whole`"),
            "value" | "vote" | "yes_no" => {
                r.refuse(node.span, format!("`{text}` needs settings, such as `- {text}: {{prompt: …}}`"))
            }
            "command" => r.refuse(node.span, "`command` needs a program: `- command: [\"python3\", \"score.py\"]`"),
            _ => {
                let names: Vec<(&str, ())> = keys::names("evaluate").map(|name| (name, ())).collect();
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
    if let Some(node) = fields.get("yes_no") {
        return read_yes_no(r, node).map(Some);
    }
    if let Some(node) = fields.get("command") {
        let (run, seconds) = r.command(node, "evaluate.command")?;
        return Some(Some(Evaluator::Command { run, seconds }));
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

fn read_yes_no(r: &mut Reader, node: &Node) -> Option<Evaluator> {
    let fields = r.fields(node, "evaluate.yes_no", "`yes_no`")?;
    let prompt = r.need(&fields, "prompt").and_then(|node| r.prompt(node, Role::Value));
    let format = fields.get("format").and_then(|node| r.one_of(node, "format", FORMATS));
    let mut spellings = |name: &'static str, usual: [&str; 4]| match fields.get(name) {
        Some(node) => match r.texts(node, name) {
            texts if texts.is_empty() => r.refuse(node.span, format!("`{name}` needs at least one text")),
            texts => Some(texts),
        },
        None => Some(usual.map(String::from).to_vec()),
    };
    let yes = spellings("yes", [" Yes", " yes", "Yes", "yes"]);
    let no = spellings("no", [" No", " no", "No", "no"]);
    let (yes, no) = (yes?, no?);
    let all: Vec<&String> = yes.iter().chain(&no).collect();
    for (at, text) in all.iter().enumerate() {
        let longer = all.iter().enumerate().find(|(other, long)| *other != at && long.starts_with(text.as_str()));
        if let Some((_, longer)) = longer {
            let what = if text == longer {
                format!("`{text}` stands twice among the answers")
            } else {
                format!(
                    "the answer `{longer}` begins with the answer `{text}`, so that its probability would count twice"
                )
            };
            return r.refuse(node.span, what);
        }
    }
    Some(Evaluator::YesNo { prompt: prompt?, format, yes, no })
}

/// What value and vote have in common.
struct Asked {
    n: usize,
    format: Option<Format>,
    max_tokens: usize,
    temperature: f32,
}

fn read_asked(r: &mut Reader, fields: &Fields<'_>) -> Asked {
    Asked {
        n: fields.get("n").and_then(|node| r.whole_to(node, "n", 1, MOST_AT_ONCE as u64)).unwrap_or(1) as usize,
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
