//! Strategies: YAML files that script a search. Data only; `search` carries them out.
//!
//! The types here are what search reads; `strategy/parse.rs` reads them from YAML with located errors, after
//! `strategy/compose.rs` has put several files together; `strategy/expression.rs` holds rules and priorities,
//! `strategy/library.rs` holds the embedded ones, `strategy/prompt.rs` renders prompts, `strategy/check.rs` reports on
//! files, and `strategy/schema.rs` describes the format to editors.

pub mod check;
mod compose;
pub mod estimate;
pub mod expression;
pub mod fault;
mod keys;
pub mod library;
mod lint;
pub mod own;
pub mod parse;
pub mod prompt;
mod read;
pub mod schema;
pub mod source;
#[cfg(test)]
mod tests;
mod yaml;

pub use expression::{Expression, Scope, Values};
pub use library::{LoadOptions, load, load_with};
pub use own::{AnyTask, OwnTask};

use crate::lm::pattern::Pattern;
use crate::lm::{Constraint, Grammar, GrammarForm, Likelihood};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A checked strategy.
#[derive(Debug, Clone, PartialEq)]
pub struct Strategy {
    pub name: String,
    /// One line, shown in lists.
    pub about: String,
    /// `None`: any task.
    pub task: Option<String>,
    /// The task, where it is the user's own.
    pub own: Option<OwnTask>,
    pub search: Search,
    pub generate: Generate,
    /// Scores multiply; none at all: every thought scores 1.
    pub evaluate: Vec<Evaluator>,
    /// What the score is made of its parts; `None`: their product.
    pub score: Option<Expression>,
    /// What differs at the first levels, from level 1 on.
    pub levels: Vec<Level>,
    /// Stages before the last one; the last one is `search`, `generate` and `evaluate`.
    pub stages: Vec<Stage>,
    /// Values of its own, `vars.NAME` in templates.
    pub vars: BTreeMap<String, String>,
    pub budget: Budget,
    /// How K/V beyond the device's memory is fetched, where the strategy says so.
    pub offload: Option<crate::offload::Options>,
    /// The YAML text as read, for the record.
    pub text: String,
    /// Other files that it is made of (`extends`, `include`), for the record.
    pub parts: Vec<PromptSource>,
    /// Where it came from, for messages: a path, or `built-in NAME`.
    pub origin: String,
}

impl Strategy {
    /// The stage before the last one that makes the thoughts of a level, with its first level.
    fn stage_of(&self, level: usize) -> Option<(usize, &Stage)> {
        let mut first = 1;
        for stage in &self.stages {
            if (first..first + stage.depth).contains(&level) {
                return Some((first, stage));
            }
            first += stage.depth;
        }
        None
    }

    /// Levels of the stages before the last one.
    pub fn staged_levels(&self) -> usize {
        self.stages.iter().map(|stage| stage.depth).sum()
    }

    /// How the thoughts of a level are searched.
    pub fn search_at(&self, level: usize) -> &Search {
        self.stage_of(level).map_or(&self.search, |(_, stage)| &stage.search)
    }

    /// A level whose thoughts are judged as those of `level`, the same for all that may be judged together.
    pub fn judged_as(&self, level: usize) -> usize {
        let own = level.checked_sub(1).and_then(|at| self.levels.get(at)?.evaluate.as_ref());
        match (own, self.stage_of(level)) {
            (Some(_), _) => level,
            (None, Some((first, _))) => first,
            (None, None) => usize::MAX,
        }
    }

    /// Whether a whole answer may be followed by a better one.
    pub fn improves(&self) -> bool {
        !self.levels.is_empty() || !self.stages.is_empty()
    }

    /// How thoughts of a level are made; level 1 is the first below the root.
    pub fn generate_at(&self, level: usize) -> &Generate {
        if let Some((_, stage)) = self.stage_of(level) {
            return &stage.generate;
        }
        let own = level.checked_sub(1).and_then(|at| self.levels.get(at)?.generate.as_ref());
        own.unwrap_or(&self.generate)
    }

    /// The task that it is for, where it says one.
    pub fn kind(&self) -> Option<AnyTask> {
        match &self.own {
            Some(own) => Some(AnyTask::Own(own.clone())),
            None => crate::task::by_name(self.task.as_deref()?).ok().map(AnyTask::BuiltIn),
        }
    }

    /// Every prompt: those that make thoughts, then those that judge them.
    pub fn prompts(&self) -> impl Iterator<Item = &PromptSource> {
        let judges = self.evaluators().filter_map(Evaluator::prompt);
        self.generators().map(|generate| &generate.prompt).chain(judges)
    }

    /// A puzzle's template inputs with the strategy's own values added.
    pub fn inputs(&self, mut puzzle: serde_json::Value) -> serde_json::Value {
        if let serde_json::Value::Object(map) = &mut puzzle
            && !self.vars.is_empty()
        {
            let vars = self.vars.iter().map(|(name, text)| (name.clone(), var_value(text)));
            map.insert("vars".into(), serde_json::Value::Object(vars.collect()));
        }
        puzzle
    }

    /// How thoughts of a level are scored.
    pub fn evaluate_at(&self, level: usize) -> &[Evaluator] {
        if let Some((_, stage)) = self.stage_of(level) {
            return &stage.evaluate;
        }
        let own = level.checked_sub(1).and_then(|at| self.levels.get(at)?.evaluate.as_ref());
        own.unwrap_or(&self.evaluate)
    }

    /// What the log-probabilities of its thoughts' tokens are of: nobody but the evaluator `logprob` looks at tokens that
    /// were not allowed.
    pub fn likelihood(&self) -> Likelihood {
        let whole = self.evaluators().any(|evaluator| matches!(evaluator, Evaluator::Logprob));
        if whole { Likelihood::Model } else { Likelihood::Allowed }
    }

    /// Whether it holds thoughts to something while they are made.
    pub fn constrains(&self) -> bool {
        self.generators().any(|generate| generate.constrain != Constrain::None)
    }

    /// Whether chance in the model's place has something to choose from, in some level at least: a list, a pattern, or what
    /// the puzzle refutes.
    pub fn leaves_chance_a_choice(&self) -> bool {
        let refuted = self.evaluators().any(|evaluator| matches!(evaluator, Evaluator::Checker { partial: true }));
        self.generators().any(|generate| match generate.kind {
            GenerateKind::Random => true,
            GenerateKind::Propose => false,
            GenerateKind::Sample | GenerateKind::Likeliest => generate.constrain != Constrain::None || refuted,
        })
    }

    /// The evaluators of all levels.
    pub fn evaluators(&self) -> impl Iterator<Item = &Evaluator> {
        let levels = self.levels.iter().filter_map(|level| level.evaluate.as_ref()).flatten();
        self.evaluate.iter().chain(levels).chain(self.stages.iter().flat_map(|stage| &stage.evaluate))
    }

    /// Every way thoughts are made in some level.
    pub fn generators(&self) -> impl Iterator<Item = &Generate> {
        let levels = self.levels.iter().filter_map(|level| level.generate.as_ref());
        std::iter::once(&self.generate).chain(levels).chain(self.stages.iter().map(|stage| &stage.generate))
    }
}

/// A value as templates see it: a number where it reads as one.
fn var_value(text: &str) -> serde_json::Value {
    let number = text.parse::<i64>().map(serde_json::Value::from);
    let number = number.or_else(|_| text.parse::<f64>().map(serde_json::Value::from));
    number.ok().filter(|value| value.is_number()).unwrap_or_else(|| serde_json::Value::from(text))
}

/// A stage before the last one: so many levels of the tree, searched in their own way.
#[derive(Debug, Clone, PartialEq)]
pub struct Stage {
    pub depth: usize,
    pub search: Search,
    pub generate: Generate,
    pub evaluate: Vec<Evaluator>,
}

/// A level's own settings; what it does not name is as everywhere.
#[derive(Debug, Clone, PartialEq)]
pub struct Level {
    pub generate: Option<Generate>,
    pub evaluate: Option<Vec<Evaluator>>,
    pub keep: Option<Count>,
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
    /// A thought for which this holds is pruned.
    pub prune: Option<Expression>,
    /// A thought for which this holds is the answer.
    pub accept: Option<Expression>,
    /// Once this holds, the search ends.
    pub stop: Option<Expression>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Policy {
    /// Generate, evaluate, keep the best `keep` of each level.
    Bfs,
    /// Best child first, backtracking where a thought scores below `prune_below`.
    Dfs,
    /// As breadth-first, with paths ranked as a whole: `likelihood` is the weight of the log-probability, 0 to 1.
    Beam { likelihood: f64 },
    /// The thoughts with the highest priority, wherever they stand; `width` at a time.
    BestFirst { priority: Expression, width: usize },
    /// Monte-Carlo tree search.
    Mcts(Mcts),
    /// Graph of Thoughts: one operation a level.
    Graph(Vec<Operation>),
    /// n whole answers, the best one is chosen.
    BestOfN,
    /// n whole answers, the one most agree on is chosen.
    SelfConsistency,
}

impl Policy {
    /// Whether it chooses one of several whole answers by itself, without the puzzle's check.
    pub fn chooses(&self) -> bool {
        matches!(self, Self::BestOfN | Self::SelfConsistency)
    }

    /// Whether `keep` counts.
    pub fn keeps(&self) -> bool {
        matches!(self, Self::Bfs | Self::Beam { .. } | Self::Graph(_))
    }
}

/// What a level of a Graph of Thoughts does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Cut the puzzle into so many parts.
    Split(usize),
    /// Solve.
    Generate,
    /// Merge neighbours.
    Aggregate,
    /// Make better.
    Improve,
}

/// Settings of Monte-Carlo tree search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mcts {
    /// Weight of curiosity in UCT.
    pub c: f64,
    /// The search ends after this many.
    pub simulations: usize,
    /// Whether a simulation goes down to the end of an answer; else a new thought's own score is its value.
    pub rollout: bool,
}

/// Proposals, replies or votes that are asked for at once, at most: each takes memory before the first is there, and none
/// of them ends before all have begun.
pub const MOST_AT_ONCE: usize = 10_000;

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
    /// A JSON schema or a grammar.
    Grammar(GrammarForm),
}

impl Constrain {
    /// The constraint that it is by itself, compiled; `None` where there is none, or where it depends on the puzzle.
    ///
    /// # Errors
    /// What is wrong with it, in one line.
    pub fn rule(&self) -> std::result::Result<Option<Arc<dyn Constraint>>, String> {
        Ok(match self {
            Self::None | Self::Puzzle | Self::Choice(_) => None,
            Self::Regex(text) => Some(Arc::new(Pattern::new(text)?)),
            Self::Grammar(form) => Some(Arc::new(Grammar::new(form.clone())?)),
        })
    }
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
    /// How likely the model would answer yes and not no, read from the logits.
    YesNo {
        prompt: PromptSource,
        format: Option<crate::lm::Format>,
        /// Spellings; none is the beginning of another.
        yes: Vec<String>,
        no: Vec<String>,
    },
    /// A program that reads a thought as JSON and writes a score.
    Command {
        /// The program and its arguments.
        run: Vec<String>,
        /// Given up after this long.
        seconds: f64,
    },
}

impl Evaluator {
    /// What it is called in a score's parts and in `score`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Checker { .. } => "checker",
            Self::Value { .. } => "value",
            Self::Vote { .. } => "vote",
            Self::Logprob => "logprob",
            Self::YesNo { .. } => "yes_no",
            Self::Command { .. } => "command",
        }
    }

    /// What it shows the model, where it does.
    pub fn prompt(&self) -> Option<&PromptSource> {
        match self {
            Self::Value { prompt, .. } | Self::Vote { prompt, .. } | Self::YesNo { prompt, .. } => Some(prompt),
            Self::Checker { .. } | Self::Logprob | Self::Command { .. } => None,
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Budget {
    pub tokens: Option<u64>,
    pub thoughts: Option<u64>,
    pub seconds: Option<f64>,
    /// Bytes of K/V that may live at the same time.
    pub kv: Option<u64>,
}
