//! Strategies: YAML files that script a search. Data only; `search` carries them out.
//!
//! The types here are what search reads; `strategy/parse.rs` reads them from YAML with located errors,
//! `strategy/library.rs` holds the embedded ones, `strategy/prompt.rs` renders prompts, `strategy/check.rs` reports on
//! files, and `strategy/schema.rs` describes the format to editors.

pub mod check;
pub mod fault;
mod keys;
pub mod library;
mod lint;
pub mod parse;
pub mod prompt;
mod read;
pub mod schema;
mod source;
#[cfg(test)]
mod tests;
mod yaml;

pub use library::load;

use std::collections::BTreeMap;

/// A checked strategy.
#[derive(Debug, Clone, PartialEq)]
pub struct Strategy {
    pub name: String,
    /// One line, shown in lists.
    pub about: String,
    /// `None`: any task.
    pub task: Option<String>,
    pub search: Search,
    pub generate: Generate,
    /// Scores multiply; none at all: every thought scores 1.
    pub evaluate: Vec<Evaluator>,
    pub budget: Budget,
    /// The YAML text as read, for the record.
    pub text: String,
    /// Where it came from, for messages: a path, or `built-in NAME`.
    pub origin: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Search {
    pub policy: Policy,
    /// Levels of thoughts below the root.
    pub depth: Count,
    /// Breadth-first: how many thoughts of a level live on.
    pub keep: Count,
    /// Thoughts that score below this are pruned.
    pub prune_below: f64,
    /// Depth-first: how many children of one thought are followed before it is given up; `None`: all.
    pub children: Option<Count>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Policy {
    /// Generate, evaluate, keep the best `keep` of each level.
    Bfs,
    /// Best child first, backtracking where a thought scores below `prune_below`.
    Dfs,
}

/// A number, or a template over the puzzle's inputs (`"{{ puzzle.len }}"`).
#[derive(Debug, Clone, PartialEq)]
pub enum Count {
    Number(usize),
    Template(String),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Generate {
    pub kind: GenerateKind,
    /// Proposals for each expanded thought.
    pub n: Count,
    pub prompt: PromptSource,
    /// `None`: chat where the model has a template.
    pub format: Option<crate::lm::Format>,
    pub constrain: Constrain,
    pub sampling: crate::lm::Sampling,
    pub max_tokens: Count,
    pub stop: Vec<String>,
    /// Whether a thought is one step of an answer, or a whole answer.
    pub thought: Thought,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GenerateKind {
    /// n samples.
    Sample,
    /// The n likeliest under the constraint.
    Likeliest,
    /// One reply that lists proposals, one a line.
    Propose,
    /// n random ones of what the puzzle allows (the control).
    Random,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thought {
    Step,
    Answer,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Constrain {
    None,
    /// What the puzzle still allows.
    Puzzle,
    Regex(String),
    Choice(Vec<String>),
}

/// A prompt's template text and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptSource {
    pub origin: String,
    pub text: String,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Evaluator {
    /// The puzzle's own check, of a beginning or of a whole answer.
    Checker { partial: bool },
    /// Ask the model for a label; labels have weights; the mean of n replies, as a share of the largest weight. With
    /// `scale`, ask for a number between its ends instead; the mean place on it, from 0 to 1.
    Value {
        prompt: PromptSource,
        format: Option<crate::lm::Format>,
        n: usize,
        /// Empty where there is a scale.
        labels: BTreeMap<String, f64>,
        scale: Option<(f64, f64)>,
        max_tokens: usize,
        temperature: f32,
    },
    /// Ask the model which of a level's thoughts is best; the share of votes.
    Vote { prompt: PromptSource, format: Option<crate::lm::Format>, n: usize, max_tokens: usize, temperature: f32 },
    /// The probability of the thought's text: exp(mean log-probability of its tokens).
    Logprob,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Budget {
    pub tokens: Option<u64>,
    pub thoughts: Option<u64>,
    pub seconds: Option<f64>,
}
