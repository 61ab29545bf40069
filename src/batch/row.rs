//! A row of results: one puzzle under one strategy.

use crate::lm::Counters;
use crate::search::event::{Outcome, Reason};
use crate::task::Puzzle;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What makes a row the same row.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub task: String,
    /// Data files of other sizes use the same ids.
    pub size: usize,
    pub id: String,
    pub strategy: String,
    pub model: String,
    pub settings: String,
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "puzzle {} of {} {} under `{}`", self.id, self.task, self.size, self.strategy)?;
        if !self.settings.is_empty() {
            write!(f, " with {}", self.settings)?;
        }
        if self.model.is_empty() { Ok(()) } else { write!(f, " on {}", self.model) }
    }
}

/// Bytes that one run moved; `None` where that is not known, or several runs shared an engine: its steps read a page once for
/// all of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// K/V bytes that attention read.
    pub kv_bytes: Option<u64>,
    /// Bytes over the link between the memories, both ways.
    pub link_bytes: Option<u64>,
}

impl Traffic {
    pub fn between(before: &Counters, after: &Counters) -> Self {
        let io = |c: &Counters| c.io.map(|io| io.kv_bytes);
        let link = |c: &Counters| c.link.map(|link| link.to_device_bytes + link.to_host_bytes);
        let moved = |a: Option<u64>, b: Option<u64>| Some(b?.saturating_sub(a.unwrap_or(0)));
        Self { kv_bytes: moved(io(before), io(after)), link_bytes: moved(link(before), link(after)) }
    }
}

/// The contract's fields first, then what else is known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub task: String,
    pub id: String,
    pub strategy: String,
    pub solved: bool,
    pub error_score: Option<u64>,
    pub answer: Option<Value>,
    pub thoughts: u64,
    pub tokens: u64,
    pub logical_tokens: u64,
    pub seconds: f64,
    /// In words, such as `solved` or `limit of 500 thoughts reached`.
    pub reason: String,
    /// The model's name as given, of a path its last part.
    #[serde(default)]
    pub model: String,
    /// The strategy's variables that were set, `width=3, depth=2`; empty where none were.
    #[serde(default)]
    pub settings: String,
    /// Numbers to sort, elements to find.
    #[serde(default)]
    pub size: usize,
    /// A digest of what the puzzle asks: rows of one id with different digests are of different puzzles.
    #[serde(default)]
    pub puzzle: String,
    #[serde(default)]
    pub proposals: u64,
    #[serde(default)]
    pub prompt_tokens: u64,
    #[serde(default)]
    pub sampled_tokens: u64,
    #[serde(default)]
    pub scored_tokens: u64,
    /// The answer, or the best thought, as the model wrote it.
    #[serde(default)]
    pub answer_text: Option<String>,
    /// Whether the same command gives the same row; not where the clock ended the run.
    #[serde(default)]
    pub reproducible: bool,
    #[serde(flatten)]
    pub traffic: Traffic,
}

impl Row {
    pub fn new(key: Key, puzzle: &dyn Puzzle, outcome: &Outcome, traffic: Traffic) -> Self {
        Self {
            task: key.task,
            id: key.id,
            strategy: key.strategy,
            model: key.model,
            settings: key.settings,
            puzzle: digest(puzzle),
            solved: outcome.solved,
            error_score: outcome.error_score,
            answer: outcome.answer.clone(),
            thoughts: outcome.thoughts,
            tokens: outcome.usage.tokens(),
            logical_tokens: outcome.usage.logical,
            seconds: outcome.seconds,
            reason: outcome.reason.to_string(),
            size: key.size,
            proposals: outcome.proposals,
            prompt_tokens: outcome.usage.prompt,
            sampled_tokens: outcome.usage.sampled,
            scored_tokens: outcome.usage.scored,
            answer_text: outcome.answer_text.clone(),
            reproducible: !matches!(outcome.reason, Reason::Seconds { .. }),
            traffic,
        }
    }

    pub fn key(&self) -> Key {
        Key {
            task: self.task.clone(),
            size: self.size,
            id: self.id.clone(),
            strategy: self.strategy.clone(),
            model: self.model.clone(),
            settings: self.settings.clone(),
        }
    }
}

/// What a puzzle asks, in 16 hexadecimal digits; its solved examples are the task's own and do not count.
pub fn digest(puzzle: &dyn Puzzle) -> String {
    let mut asked = puzzle.inputs();
    if let Some(asked) = asked.get_mut("puzzle").and_then(Value::as_object_mut) {
        asked.remove("examples");
    }
    format!("{:016x}", crate::base::rng::part(&asked.to_string()))
}

/// A model's name for tables: of a path its last part, else the name as given.
pub fn model_name(spec: &str) -> String {
    let path = std::path::Path::new(spec);
    let last = path.file_name().and_then(|name| name.to_str());
    match last {
        Some(last) if path.is_absolute() || path.exists() => last.to_string(),
        _ => spec.to_string(),
    }
}
