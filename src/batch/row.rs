//! A row of results: one puzzle under one strategy.

use crate::lm::Counters;
use crate::search::event::{Outcome, Reason};
use crate::strategy::Strategy;
use crate::task::Puzzle;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What makes a row the same row.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub task: String,
    pub id: String,
    pub strategy: String,
}

/// Bytes that one run moved; `None` where that is not known, or not known of one run among several.
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
    /// Numbers to sort, elements to find.
    #[serde(default)]
    pub size: usize,
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
    pub fn new(puzzle: &dyn Puzzle, strategy: &Strategy, outcome: &Outcome, traffic: Traffic) -> Self {
        Self {
            task: puzzle.task().to_string(),
            id: puzzle.id().to_string(),
            strategy: strategy.name.clone(),
            solved: outcome.solved,
            error_score: outcome.error_score,
            answer: outcome.answer.clone(),
            thoughts: outcome.thoughts,
            tokens: outcome.usage.tokens(),
            logical_tokens: outcome.usage.logical,
            seconds: outcome.seconds,
            reason: outcome.reason.to_string(),
            size: puzzle.len(),
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
        Key { task: self.task.clone(), id: self.id.clone(), strategy: self.strategy.clone() }
    }
}
