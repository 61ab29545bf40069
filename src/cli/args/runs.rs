//! Flags of what runs a model on puzzles and texts, and of what looks at such runs: solve, eval, report, replay, complete.

use super::within;
use crate::strategy::MOST_AT_ONCE;
use clap::Args;
use std::path::PathBuf;

/// Where a puzzle comes from.
#[derive(Debug, Clone, Args)]
pub struct PuzzleArgs {
    /// Kind of puzzle: a built-in task, or a task file of your own
    #[arg(long, default_value = "sorting", value_name = "TASK|FILE")]
    pub task: String,
    /// The puzzle itself: text, @FILE, or - for standard input
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with_all = ["size", "data"])]
    pub input: Option<String>,
    /// Generate a puzzle of this size from --seed
    #[arg(long, value_name = "N", conflicts_with = "data")]
    pub size: Option<usize>,
    /// Take the puzzle from a data file (CSV or JSON lines)
    #[arg(long, value_name = "FILE", requires = "id")]
    pub data: Option<PathBuf>,
    /// Which puzzle of --data
    #[arg(long, value_name = "ID", requires = "data")]
    pub id: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub struct SolveArgs {
    #[command(flatten)]
    pub puzzle: PuzzleArgs,
    /// A built-in strategy's name, or a YAML file [default: the task's own]
    #[arg(long, value_name = "NAME|FILE")]
    pub strategy: Option<String>,
    #[command(flatten)]
    pub language: LanguageArgs,
    /// No screen: progress on standard error, the answer on standard output
    #[arg(long)]
    pub no_tui: bool,
    /// Go on with a recorded run (an id, a file, or `last`) from its last whole step, as after a lost connection
    #[arg(long = "continue", value_name = "RUN", conflicts_with_all = ["input", "size", "data", "task"])]
    pub continued: Option<String>,
    /// Record the run into this file [default: the state folder]
    #[arg(long, value_name = "FILE", conflicts_with = "no_record")]
    pub record: Option<PathBuf>,
    /// Do not record the run
    #[arg(long)]
    pub no_record: bool,
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    #[command(flatten)]
    pub limits: LimitArgs,
}

/// What a strategy is told and allowed.
#[derive(Debug, Clone, Default, Args)]
pub struct LanguageArgs {
    /// Set a variable of the strategy (its `vars`); may be given several times
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Let the strategy run programs (`evaluate: - command: …`)
    #[arg(long)]
    pub allow_commands: bool,
}

/// Bounds that stand in for the strategy's own.
#[derive(Debug, Clone, Default, Args)]
pub struct LimitArgs {
    /// Stop after this many computed tokens
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<u64>,
    /// Stop after this many thoughts
    #[arg(long, value_name = "N")]
    pub max_thoughts: Option<u64>,
    /// Stop after this many seconds
    #[arg(long, value_name = "S")]
    pub max_seconds: Option<f64>,
}

/// A serving engine in the place of our own.
#[derive(Debug, Clone, Default, Args)]
pub struct EndpointArgs {
    /// Run on an OpenAI-compatible server (SGLang, vLLM, llama.cpp's); --model is its name of the model, the key comes from
    /// TOTARA_API_KEY
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    /// Give a request to the endpoint up after so many seconds [default: 600]
    #[arg(long, value_name = "S", requires = "endpoint", allow_hyphen_values = true)]
    pub endpoint_timeout: Option<f64>,
}

#[derive(Debug, Clone, Args)]
pub struct EvalArgs {
    /// The whole matrix as YAML: puzzles, strategies, models, settings, budget (docs/evaluation.md)
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "task", "data", "sizes", "count", "first", "strategy", "models", "set", "vary", "max_tokens", "max_thoughts", "max_seconds",
    ])]
    pub plan: Option<PathBuf>,
    /// Kind of puzzle: a built-in task, or a task file of your own
    #[arg(long, default_value = "sorting", value_name = "TASK|FILE")]
    pub task: String,
    /// Puzzles from a data file (CSV or JSON lines)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sizes", "count"])]
    pub data: Option<PathBuf>,
    /// Only the first so many of the puzzles
    #[arg(long, value_name = "N")]
    pub first: Option<usize>,
    /// Sizes of generated puzzles [default: the task's own]
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub sizes: Vec<usize>,
    /// Generated puzzles of each size
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub count: usize,
    /// Strategies, by name or file
    #[arg(long, value_name = "NAME|FILE", required_unless_present = "plan", num_args = 1..)]
    pub strategy: Vec<String>,
    /// Models, one after another, in place of --model
    #[arg(long, value_name = "MODEL", num_args = 1..)]
    pub models: Vec<String>,
    #[command(flatten)]
    pub language: LanguageArgs,
    /// Run each of these values of a strategy's variable; several make each combination
    #[arg(long, value_name = "NAME=VALUE,VALUE")]
    pub vary: Vec<String>,
    /// Folder of the results
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Puzzles in flight at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub parallel: u16,
    /// Go on where an earlier run into the same folder stopped
    #[arg(long)]
    pub resume: bool,
    /// Record every run into the folder's events/
    #[arg(long)]
    pub records: bool,
    /// Only the i-th of n parts of the puzzles
    #[arg(long, value_name = "i/n")]
    pub shard: Option<String>,
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    #[command(flatten)]
    pub limits: LimitArgs,
}

#[derive(Debug, Clone, Args)]
pub struct ReportArgs {
    /// Folders of `totara eval`, its shards, or result folders of Graph of Thoughts
    #[arg(value_name = "DIR", required = true)]
    pub folders: Vec<PathBuf>,
    /// Write the page, the plots, Markdown, CSV and JSON into this folder
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub struct ReplayArgs {
    /// A run's id, a record file, or `last`
    #[arg(value_name = "RUN", default_value = "last")]
    pub run: String,
    /// Print the tree as text instead of showing it
    #[arg(long)]
    pub no_tui: bool,
    /// Write the tree into this file instead: .svg, .html (folds, needs nothing else) or .txt
    #[arg(long, value_name = "FILE")]
    pub export: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub struct CompleteArgs {
    /// The text to continue: text, @FILE, or - for standard input
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: String,
    /// How far from the likeliest token it may stray; 0: never
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_hyphen_values = true)]
    pub temperature: f32,
    /// Sample from the N likeliest tokens only
    #[arg(long, value_name = "N")]
    pub top_k: Option<usize>,
    /// Sample from the likeliest tokens that make up this share of probability
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub top_p: Option<f32>,
    /// Sample from tokens at least this likely, as a share of the likeliest one's probability
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub min_p: Option<f32>,
    /// How much less likely a token gets that is there already; 1: not at all
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_hyphen_values = true)]
    pub repetition_penalty: f32,
    /// Tokens of an answer at most
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = within(1..=u64::MAX))]
    pub max_tokens: usize,
    /// End before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Put the prompt through the model's chat template as one user turn
    #[arg(long)]
    pub chat: bool,
    /// Samples of the same prompt
    #[arg(long, short, value_name = "N", default_value_t = 1, value_parser = within(1..=MOST_AT_ONCE as u64))]
    pub n: usize,
}
