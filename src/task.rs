//! Kinds of puzzles: how an instance is made, read, shown to a model, and checked.
//!
//! A task refuses to search or to ask a model: it is data and pure functions.

use crate::base::Result;
use crate::lm::Constraint;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// A kind of puzzle.
pub trait Task: Send + Sync {
    /// `sorting`, `set-intersection`, …
    fn name(&self) -> &'static str;
    /// One line for lists.
    fn about(&self) -> &'static str;
    /// Name of the strategy used when none is given.
    fn default_strategy(&self) -> &'static str;
    /// What `--input` takes, as text with an example; shown when an input is refused.
    fn input_forms(&self) -> &'static str;
    /// An example input that its shipped default strategy can run on.
    fn example(&self) -> &'static str;
    /// Names of the template inputs its puzzles offer (`puzzle` is always there), each with a line about it.
    fn inputs(&self) -> &'static [(&'static str, &'static str)];
    /// A seeded instance of a size.
    fn generate(&self, size: usize, seed: u64) -> Result<Arc<dyn Puzzle>>;
    /// An instance typed in by the user.
    fn parse(&self, input: &str) -> Result<Arc<dyn Puzzle>>;
    /// All instances of a data file (CSV or JSON lines), in order.
    fn read_data(&self, path: &Path) -> Result<Vec<Arc<dyn Puzzle>>>;
}

/// One instance. Answers and thoughts are text; what they mean is the puzzle's business.
pub trait Puzzle: Send + Sync {
    fn task(&self) -> &'static str;
    /// Unique in its source: the data file's id, `seed-size` for generated ones, `input` for typed ones.
    fn id(&self) -> &str;
    /// How a person reads it, on one line.
    fn title(&self) -> String;
    /// Values for templates: an object with the names of [`Task::inputs`].
    fn inputs(&self) -> Value;
    /// How many steps a step-by-step answer takes (numbers to sort, elements to find).
    fn len(&self) -> usize;
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Judges a whole answer. Never looks at the data file's answer column.
    fn check(&self, answer: &str) -> Verdict;
    /// Judges the beginning of an answer.
    fn check_partial(&self, prefix: &str) -> Partial;
    /// Whether the answer matches the data file's own answer column (the contract's `solved`). Where there is no such
    /// column it is the puzzle's own check.
    fn solved(&self, answer: &str) -> bool;
    /// What the next step may be after `prefix` (the thoughts of the path, joined): each choice is one whole step.
    fn next_steps(&self, prefix: &str) -> Vec<String>;
    /// Text-level constraint for a whole answer that continues `prefix`.
    fn answer_constraint(&self, prefix: &str) -> Arc<dyn Constraint>;
    /// Two prefixes with the same key are the same state: duplicates are merged by it.
    fn state_key(&self, prefix: &str) -> String;
}

/// What the puzzle says of a whole answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// 0 is right. A stated large number where the text cannot be read.
    pub error_score: u64,
    /// The answer as read: a JSON array for list tasks; `None` where it could not be read.
    pub answer: Option<Value>,
    /// One line: what is wrong, or that it is right.
    pub why: String,
}

impl Verdict {
    /// 1 / (1 + error_score).
    pub fn score(&self) -> f64 {
        1.0 / (1.0 + self.error_score as f64)
    }
}

/// What the puzzle says of a beginning.
#[derive(Debug, Clone, PartialEq)]
pub enum Partial {
    /// Could still become right. `complete`: it is a whole answer.
    Possible { score: f64, complete: bool },
    /// Provably wrong, with the errors so far.
    Wrong { score: f64, why: String },
}
