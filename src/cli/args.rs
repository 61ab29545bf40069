//! The command line as types. The words are the contract's; others script against them.

mod bench;
mod runs;

pub use bench::*;
pub use runs::*;

use crate::base::size::Size;
use crate::offload;
use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Tokens of a path or a text, at most: no context is longer, and sums of a few of them cannot overflow.
const MOST_TOKENS: u64 = 1 << 24;

/// A whole number within a range. Amounts go into allocations and loops before anything else looks at them, so that a
/// mistyped one is refused with the range it should be in.
fn within(range: RangeInclusive<u64>) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(range)
}

#[derive(Debug, Parser)]
#[command(name = "totara", version, about = "Tree-search reasoning on a local Llama model", propagate_version = true)]
#[command(after_help = "Without a command: the start screen on a terminal, else as `totara solve --no-tui`.")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub screen: ScreenArgs,
    #[command(flatten)]
    pub common: Common,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Solve one puzzle, on the screen or without it
    Solve(SolveArgs),
    /// Solve many puzzles with several strategies, without a screen
    Eval(EvalArgs),
    /// Compare what batches show, with intervals, tests and plots
    Report(ReportArgs),
    /// Watch a recorded run again
    Replay(ReplayArgs),
    /// Check strategy and task files
    Check(CheckArgs),
    /// Print the JSON Schema of strategy files, or of task files
    Schema(SchemaArgs),
    /// Strategies: what is there, as text to start from
    #[command(subcommand)]
    Strategy(StrategyCommand),
    /// Tasks: kinds of puzzles
    #[command(subcommand)]
    Task(TaskCommand),
    /// Models: what is there, and getting one
    #[command(subcommand)]
    Model(ModelCommand),
    /// Continue a text with the same engine
    Complete(CompleteArgs),
    /// Measure kernels and engine
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Look at device, memory, terminal and cache; check the kernels
    Doctor(DoctorArgs),
}

/// Flags of every command that uses a model.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model and engine")]
pub struct Common {
    /// A known name, a GGUF file, a safetensors folder, random:SHAPE, scripted:FILE or random-proposer
    #[arg(long, global = true, value_name = "MODEL")]
    pub model: Option<String>,
    /// A further folder in which models lie
    #[arg(long, global = true, value_name = "DIR")]
    pub model_dir: Option<PathBuf>,
    /// A chat template that stands in for the model's own
    #[arg(long, global = true, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// Where the arithmetic is done: auto, cpu or cuda[:N]; eval takes cuda:all, an engine on each card
    #[arg(long, global = true, default_value = "auto", value_name = "DEVICE")]
    pub device: String,
    /// Threads of the CPU device [default: available cores]
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Seed of generated puzzles and of the sampler
    #[arg(long, global = true, default_value_t = 0, value_name = "N")]
    pub seed: u64,
    /// How attention is split: auto, deft-flatten, deft-node, deft-node-chunk or radix
    #[arg(long, global = true, default_value = "auto", value_name = "METHOD")]
    pub attention: String,
    /// K/V memory on the device: bytes, KiB/MiB/GiB, or a share of what is free
    #[arg(long, global = true, value_name = "SIZE")]
    pub kv_budget: Option<Size>,
    /// K/V memory of the host tier, with --offload
    #[arg(long, global = true, value_name = "SIZE")]
    pub ram_budget: Option<Size>,
    #[command(flatten)]
    pub offload: OffloadArgs,
    /// Number type of activations in products; with f32 attention's scores are float32 too
    #[arg(long, global = true, value_enum, default_value_t = Activations::Int8)]
    pub activations: Activations,
    /// Draft tokens from the text so far and verify several in one step; texts stay the same
    #[arg(long, global = true, value_enum, default_value_t = Speculate::None)]
    pub speculate: Speculate,
    /// One JSON object a line on standard output
    #[arg(long, global = true)]
    pub json: bool,
    /// Nothing on standard error but errors
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// More on standard error
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// K/V beyond what the device holds (docs/offload.md).
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "K/V offload")]
pub struct OffloadArgs {
    /// What is fetched from the host tier: none, full, int4, h2o, infinigen or infinigen-tree [default: the strategy's, or none]
    #[arg(long, global = true, value_name = "METHOD")]
    pub offload: Option<offload::Method>,
    /// What the strategy says, which counts without --offload; other flags change single values of it.
    #[arg(skip)]
    pub of_strategy: Option<offload::Options>,
    /// Fetch tokens whose expected score is within this of the largest; inf: as many as --offload-max-fetch [default: 4]
    #[arg(long, global = true, value_name = "X")]
    pub offload_alpha: Option<f32>,
    /// Share of a key's columns that scores are guessed by [default: 0.75]
    #[arg(long, global = true, value_name = "X")]
    pub offload_ratio: Option<f64>,
    /// Share of its path that a token may fetch in a layer [default: 0.2]
    #[arg(long, global = true, value_name = "X")]
    pub offload_max_fetch: Option<f32>,
    /// Device memory that fetched rows may take [default: what the budget leaves]
    #[arg(long, global = true, value_name = "SIZE")]
    pub offload_capacity: Option<Size>,
    /// Which fetched rows go for others [default: counter]
    #[arg(long, global = true, value_enum)]
    pub offload_eviction: Option<Eviction>,
    /// Whose query guesses a layer's scores: that of a layer ahead, of half a layer ahead, or the same layer's [default: ahead on
    /// a card, half on the CPU]
    #[arg(long, global = true, value_enum)]
    pub offload_look: Option<Look>,
    /// First layers that attend to everything [default: measured once per model]
    #[arg(long, global = true, value_name = "N")]
    pub offload_whole_layers: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Eviction {
    Counter,
    Fifo,
    Lru,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Look {
    Ahead,
    Half,
    Same,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Activations {
    Int8,
    F32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Speculate {
    None,
    /// Prompt look-up: what stood after the same tokens before
    Ngram,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Screen")]
pub struct ScreenArgs {
    /// Leave the mouse to the terminal
    #[arg(long, global = true)]
    pub no_mouse: bool,
    /// Draw with ASCII characters only
    #[arg(long, global = true)]
    pub ascii: bool,
    /// Colours: light or dark background, or none (NO_COLOR is honoured)
    #[arg(long, global = true, value_enum)]
    pub theme: Option<Theme>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Theme {
    Light,
    Dark,
    None,
}

#[derive(Debug, Clone, Args)]
pub struct SchemaArgs {
    /// The schema of task files, not of strategies
    #[arg(long)]
    pub task: bool,
}

#[derive(Debug, Clone, Args)]
pub struct CheckArgs {
    /// Strategy and task files
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
}

#[derive(Debug, Clone, Subcommand)]
pub enum StrategyCommand {
    /// Name, task and first line of each built-in strategy
    List,
    /// The YAML text of a built-in strategy
    Show {
        /// As `strategy list` names it
        name: String,
        /// The task it is for, where several have a strategy of that name
        #[arg(long)]
        task: Option<String>,
    },
    /// Write a commented strategy file to start from
    New {
        /// The new file; one that is there stays as it is
        file: PathBuf,
    },
}

#[derive(Debug, Clone, Subcommand)]
pub enum TaskCommand {
    /// The kinds of puzzles
    List,
    /// What a task takes and offers to prompts
    Show {
        /// As `task list` names it, or a task's file
        #[arg(value_name = "NAME|FILE")]
        name: String,
    },
    /// Write a commented task file to start from
    New {
        /// The new file; one that is there stays as it is
        file: PathBuf,
    },
}

#[derive(Debug, Clone, Subcommand)]
pub enum ModelCommand {
    /// Models in the cache, in --model-dir and in the Hugging Face cache
    List,
    /// Fetch a model into the cache
    Pull {
        /// A known name, or hf:owner/repo/file where that is built in
        name: Option<String>,
    },
    /// What a model is made of
    Info,
    /// Token ids of a text
    Tokenize {
        /// The text to cut into tokens
        #[arg(long, allow_hyphen_values = true)]
        text: String,
    },
}

#[derive(Debug, Clone, Args)]
pub struct DoctorArgs {
    /// Run every kernel of this build against its reference
    #[arg(long)]
    pub selftest: bool,
}
