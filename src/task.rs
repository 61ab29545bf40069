//! Kinds of puzzles: how an instance is made, read, shown to a model, and checked.
//!
//! A task refuses to search or to ask a model: it is data and pure functions.

pub mod constrain;
pub mod csv;
pub mod data;
pub mod doc_merge;
pub mod game24;
pub mod keyword_counting;
pub mod list;
pub mod number;
pub mod rational;
pub mod reference;
pub mod set_intersection;
pub mod sorting;
#[cfg(test)]
mod tests;

use crate::base::nearest::hint;
use crate::base::{Error, Result};
use crate::lm::Constraint;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// All tasks, the default one first.
pub fn all() -> &'static [&'static dyn Task] {
    &[
        &sorting::Sorting,
        &set_intersection::SetIntersection,
        &game24::Game24,
        &keyword_counting::KeywordCounting,
        &doc_merge::DocMerge,
    ]
}

/// The task of this name; the error names the nearest one and lists all.
pub fn by_name(name: &str) -> Result<&'static dyn Task> {
    let names = || all().iter().map(|task| task.name());
    all().iter().copied().find(|task| task.name() == name).ok_or_else(|| {
        let known = names().collect::<Vec<_>>().join(", ");
        Error::input(format!("there is no task `{name}`{}; known: {known}", hint(name, names())))
    })
}

/// Numbers a puzzle may have. Far above what any model's context holds; it keeps a mistyped size from filling the memory.
const MAX_SIZE: usize = 100_000;

fn check_size(task: &str, size: usize) -> Result<()> {
    match size {
        0 => Err(Error::input(format!("a {task} puzzle of size 0 has nothing to do; give a size of at least 1"))),
        1..=MAX_SIZE => Ok(()),
        _ => Err(Error::input(format!("a {task} puzzle of size {size} is too large; give at most {MAX_SIZE}"))),
    }
}

/// `items` in `parts` runs whose lengths differ by one at most; `None` where there are fewer items than parts.
fn cut<T>(items: &[T], parts: usize) -> Option<Vec<&[T]>> {
    if parts == 0 || items.len() < parts {
        return None;
    }
    let at = |part: usize| part * items.len() / parts;
    Some((0..parts).map(|part| &items[at(part)..at(part + 1)]).collect())
}

/// How many solved examples a puzzle offers to templates: 16, fewer where each is very long.
fn example_count(size: usize) -> usize {
    (16_384 / size.max(1)).clamp(1, 16)
}

/// A kind of puzzle.
pub trait Task: Send + Sync {
    /// `sorting`, `set-intersection`, …
    fn name(&self) -> &str;
    /// One line for lists.
    fn about(&self) -> &str;
    /// Name of the strategy used when none is given.
    fn default_strategy(&self) -> &str;
    /// What `--input` takes, as text with an example; shown when an input is refused.
    fn input_forms(&self) -> &str;
    /// An example input that its shipped default strategy can run on.
    fn example(&self) -> &str;
    /// Names of the template inputs its puzzles offer (`puzzle` is always there), each with a line about it.
    fn inputs(&self) -> Vec<(&str, &str)>;
    /// The size of a generated puzzle where none is given.
    fn default_size(&self) -> usize {
        8
    }
    /// A seeded instance of a size.
    fn generate(&self, size: usize, seed: u64) -> Result<Arc<dyn Puzzle>>;
    /// An instance typed in by the user.
    fn parse(&self, input: &str) -> Result<Arc<dyn Puzzle>>;
    /// All instances of a data file (CSV or JSON lines), in order.
    fn read_data(&self, path: &Path) -> Result<Vec<Arc<dyn Puzzle>>>;
}

/// One instance. Answers and thoughts are text; what they mean is the puzzle's business.
pub trait Puzzle: Send + Sync {
    fn task(&self) -> &str;
    /// Unique in its source: the data file's id, `seed-size` for generated ones, `input` for typed ones.
    fn id(&self) -> &str;
    /// How a person reads it, on one line.
    fn title(&self) -> String;
    /// Values for templates: an object with the names of [`Task::inputs`].
    fn inputs(&self) -> Value;
    /// How many steps a step-by-step answer takes at most (numbers to sort, values of the first set); at least 1.
    fn len(&self) -> usize;
    /// What `--sizes` counts, and results are grouped by: numbers, sentences, documents.
    fn size(&self) -> usize {
        self.len()
    }
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
    /// Inputs of exactly so many smaller puzzles of the same task that together make up this one; `None` where it cannot be
    /// cut like that.
    fn split(&self, _parts: usize) -> Option<Vec<String>> {
        None
    }
    /// The input of the puzzle whose parts, from [`Puzzle::split`] and neighbours, these are.
    fn join(&self, parts: &[String]) -> Option<String> {
        parts.first().filter(|_| parts.len() == 1).cloned()
    }
    /// Two prefixes with the same key are the same state: duplicates are merged by it.
    fn state_key(&self, prefix: &str) -> String;
    /// Why no continuation of this unfinished whole answer can be right; `None` while it still can. Unlike
    /// [`Puzzle::check_partial`] it may end in the middle of a value, and follows no order of steps. A text that does not
    /// read as the beginning of a bare answer (a chain of thought) is never refuted.
    fn refute(&self, text: &str) -> Option<String>;
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
