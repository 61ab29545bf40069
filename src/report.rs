//! What batches show: solved rates, errors and costs side by side, compared on the same puzzles, with intervals.
//!
//! | file | what |
//! |---|---|
//! | `read.rs`, `got.rs` | folders of `totara eval`, whole or in shards, and of Graph of Thoughts |
//! | `stats.rs` | intervals and tests, each with its source |
//! | `tables.rs` | groups, pairs, curves: the numbers |
//! | `text.rs`, `chart.rs`, `page.rs` | the same numbers as Markdown, CSV and JSON, as SVG, as one HTML page |
//!
//! An *arm* is what is compared: a strategy with its settings, on a model, with a seed and a budget. Refused: folders in
//! which one name stands for different things (another strategy text, other weights, a puzzle that asks something else).
//! Told and counted once: a row that is there twice. Nothing is written into the folders that are read.

pub mod chart;
mod got;
pub mod page;
pub mod read;
pub mod stats;
pub mod tables;
pub mod text;

use crate::search::event::Limits;
use std::collections::BTreeSet;

/// A puzzle's result under one arm. `None`: the source does not know.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub arm: usize,
    pub task: String,
    pub size: usize,
    pub id: String,
    pub solved: bool,
    pub error_score: Option<f64>,
    pub thoughts: Option<f64>,
    /// Computed.
    pub tokens: Option<f64>,
    pub logical_tokens: Option<f64>,
    pub seconds: Option<f64>,
}

/// Where an arm's rows come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    Totara,
    GraphOfThoughts,
}

/// What is compared with what.
#[derive(Debug, Clone, PartialEq)]
pub struct Arm {
    pub origin: Origin,
    pub strategy: String,
    pub settings: String,
    pub model: String,
    pub seed: Option<u64>,
    pub limits: Limits,
}

/// A folder that was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    pub folder: String,
    pub origin: Origin,
    pub rows: usize,
    /// Rows that it will have once it is done; `None` where it does not say.
    pub expected: Option<usize>,
    /// The command line that made it, where it is known.
    pub command: String,
}

/// Everything that was read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Collected {
    pub sources: Vec<Source>,
    pub arms: Vec<Arm>,
    pub entries: Vec<Entry>,
    /// Worth knowing: duplicates, shards that are missing.
    pub notes: Vec<String>,
    /// What is wrong in the folders: torn and unreadable lines.
    pub faults: Vec<String>,
}

impl Collected {
    /// What the arms are called: the strategy, and of the rest what tells arms apart.
    pub fn labels(&self) -> Vec<String> {
        let own = || self.arms.iter().filter(|arm| arm.origin == Origin::Totara);
        let models = self.arms.iter().map(|arm| &arm.model).collect::<BTreeSet<_>>().len() > 1;
        let seeds = own().map(|arm| arm.seed).collect::<BTreeSet<_>>().len() > 1;
        let budgets = own().map(|arm| budget(&arm.limits)).collect::<BTreeSet<_>>().len() > 1;
        let label = |arm: &Arm| {
            let mut label = arm.strategy.clone();
            let mut add = |wanted: bool, text: String| {
                if wanted && !text.is_empty() {
                    label.push_str(&format!(" · {text}"));
                }
            };
            add(true, arm.settings.clone());
            add(models, arm.model.clone());
            add(budgets, budget(&arm.limits));
            add(seeds, arm.seed.map(|seed| format!("seed {seed}")).unwrap_or_default());
            add(arm.origin == Origin::GraphOfThoughts, "Graph of Thoughts".into());
            label
        };
        self.arms.iter().map(label).collect()
    }
}

/// A budget in words; nothing where the strategy's own holds.
pub fn budget(limits: &Limits) -> String {
    let mut parts = Vec::new();
    if let Some(tokens) = limits.tokens {
        parts.push(format!("{tokens} tokens"));
    }
    if let Some(thoughts) = limits.thoughts {
        parts.push(format!("{thoughts} thoughts"));
    }
    if let Some(seconds) = limits.seconds {
        parts.push(format!("{seconds} s"));
    }
    if parts.is_empty() { String::new() } else { format!("≤ {}", parts.join(", ")) }
}

#[cfg(test)]
mod tests;
