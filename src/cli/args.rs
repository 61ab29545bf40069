//! The command line as types. The words are the contract's; others script against them.

use crate::base::size::Size;
use crate::offload;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

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
    /// Check strategy files
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
    /// Number type of activations in products
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
    /// What the strategy says, which counts without --offload.
    #[arg(skip)]
    pub of_strategy: Option<offload::Options>,
    /// Fetch tokens whose expected score is within this of the largest; inf: as many as --offload-max-fetch
    #[arg(long, global = true, default_value_t = offload::Options::default().alpha, value_name = "X")]
    pub offload_alpha: f32,
    /// Share of a key's columns that scores are guessed by
    #[arg(long, global = true, default_value_t = offload::Options::default().ratio, value_name = "X")]
    pub offload_ratio: f64,
    /// Share of its path that a token may fetch in a layer
    #[arg(long, global = true, default_value_t = offload::Options::default().max_fetch, value_name = "X")]
    pub offload_max_fetch: f32,
    /// Device memory that fetched rows may take [default: what the budget leaves]
    #[arg(long, global = true, value_name = "SIZE")]
    pub offload_capacity: Option<Size>,
    /// Which fetched rows go for others
    #[arg(long, global = true, value_enum, default_value_t = Eviction::Counter)]
    pub offload_eviction: Eviction,
    /// Whose query guesses a layer's scores: that of a layer ahead, of half a layer ahead, or the same layer's
    #[arg(long, global = true, value_enum, default_value_t = Look::Ahead)]
    pub offload_look: Look,
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
        name: String,
        /// The task it is for, where several have a strategy of that name
        #[arg(long)]
        task: Option<String>,
    },
    /// Write a commented strategy file to start from
    New { file: PathBuf },
}

#[derive(Debug, Clone, Subcommand)]
pub enum TaskCommand {
    /// The kinds of puzzles
    List,
    /// What a task takes and offers to prompts
    Show {
        #[arg(value_name = "NAME|FILE")]
        name: String,
    },
    /// Write a commented task file to start from
    New { file: PathBuf },
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
        #[arg(long, allow_hyphen_values = true)]
        text: String,
    },
}

#[derive(Debug, Clone, Args)]
pub struct CompleteArgs {
    /// The text to continue: text, @FILE, or - for standard input
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: String,
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_hyphen_values = true)]
    pub temperature: f32,
    #[arg(long, value_name = "N")]
    pub top_k: Option<usize>,
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub top_p: Option<f32>,
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub min_p: Option<f32>,
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_hyphen_values = true)]
    pub repetition_penalty: f32,
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub max_tokens: usize,
    /// End before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Put the prompt through the model's chat template as one user turn
    #[arg(long)]
    pub chat: bool,
    /// Samples of the same prompt
    #[arg(long, short, value_name = "N", default_value_t = 1)]
    pub n: usize,
}

#[derive(Debug, Clone, Subcommand)]
pub enum BenchCommand {
    /// Tree attention: methods side by side on the same tree
    Attention(BenchAttentionArgs),
    /// Decode and prefill speed of the engine
    Decode(BenchDecodeArgs),
    /// Bytes that attention reads over recorded runs, by way of grouping (computed, not timed)
    Recorded(BenchRecordedArgs),
    /// The CPU's quantised products
    Products(BenchProductsArgs),
    /// Frames of the screen over a large tree, drawn into memory
    Screen(BenchScreenArgs),
    /// Replay recorded trees on the model: seconds, bytes read and host time, by method
    Trace(BenchTraceArgs),
    /// How well the model predicts a text (compare --activations f32 and int8)
    Perplexity(BenchPerplexityArgs),
    /// K/V offload: bytes over the link and time on a tree, or (--quality) perplexity, method by method
    Offload(BenchOffloadArgs),
}

#[derive(Debug, Clone, Args)]
pub struct BenchAttentionArgs {
    /// Nodes per level / tokens per level, a tree file, a recording, or random:SEED; may be given several times
    #[arg(long, default_value = "1,20/4000,100", value_name = "TREE")]
    pub tree: Vec<String>,
    /// Query heads / K/V heads
    #[arg(long, default_value = "9/3", value_name = "Q/KV")]
    pub heads: String,
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub head_size: usize,
    /// f16 or f32 on the CPU, f16 or bf16 on CUDA
    #[arg(long, default_value = "f16", value_name = "TYPE")]
    pub dtype: String,
    /// Methods, separated by commas [default: all]
    #[arg(long, value_delimiter = ',', value_name = "METHOD")]
    pub method: Vec<String>,
    /// CPU: seconds to spend on each tree and method, about
    #[arg(long, default_value_t = 1.0, value_name = "S")]
    pub seconds: f64,
    /// CUDA: layers in the captured graph; 1 is one call with a cold L2 cache, 0 is launches without a graph
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub graph_layers: usize,
    /// CUDA: contiguous K/V in place of pages
    #[arg(long)]
    pub unpaged: bool,
}

#[derive(Debug, Clone, Args)]
pub struct BenchRecordedArgs {
    /// Folder of recorded trees (.json)
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Query heads / K/V heads
    #[arg(long, default_value = "32/8", value_name = "Q/KV")]
    pub heads: String,
    #[arg(long, default_value_t = 128, value_name = "N")]
    pub head_size: usize,
    #[arg(long, default_value_t = 32, value_name = "N")]
    pub layers: usize,
}

#[derive(Debug, Clone, Args)]
pub struct BenchProductsArgs {
    /// Rows of the weight matrix
    #[arg(long, default_value_t = 1536, value_name = "N")]
    pub rows: usize,
    /// Columns of the weight matrix
    #[arg(long, default_value_t = 576, value_name = "N")]
    pub cols: usize,
    /// Activation rows
    #[arg(long, default_value = "1,10,32,128", value_delimiter = ',', value_name = "N,N")]
    pub counts: Vec<usize>,
}

#[derive(Debug, Clone, Args)]
pub struct BenchScreenArgs {
    /// Thoughts of the tree
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub thoughts: u32,
    /// Columns and rows
    #[arg(long, value_name = "WxH", default_value = "200x50")]
    pub size: String,
    /// Frames of each kind
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub frames: u32,
}

#[derive(Debug, Clone, Args)]
pub struct BenchTraceArgs {
    /// Recorded trees: reasoning runs or token trees, as DeFT's repository has them
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Methods, separated by commas [default: what --attention says]
    #[arg(long, value_delimiter = ',', value_name = "METHOD")]
    pub method: Vec<String>,
    /// Recorded runs of each file, from the first
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub runs: usize,
    /// Iterations of each run [default: all]
    #[arg(long, value_name = "N")]
    pub steps: Option<usize>,
    /// Tokens before a recorded token tree, which does not tell them
    #[arg(long, default_value_t = 1000, value_name = "N")]
    pub prompt: usize,
}

#[derive(Debug, Clone, Args)]
pub struct BenchPerplexityArgs {
    /// The text: a file, or - for standard input
    #[arg(long, value_name = "FILE")]
    pub text: String,
    /// Windows, from the beginning of the text
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub windows: usize,
    /// Tokens of a window
    #[arg(long, default_value_t = 2048, value_name = "N")]
    pub window: usize,
    /// Tokens scored at the end of each window
    #[arg(long, default_value_t = 1024, value_name = "N")]
    pub score: usize,
}

#[derive(Debug, Clone, Args)]
pub struct BenchOffloadArgs {
    /// The text that prompts and windows are taken from: a file, or - for standard input
    #[arg(long, value_name = "FILE")]
    pub text: String,
    /// Methods, also random (the control) and oracle (exact scores) [default: all]
    #[arg(long, value_delimiter = ',', value_name = "METHOD")]
    pub method: Vec<offload::Method>,
    /// Tokens of the shared prompt
    #[arg(long, default_value_t = 1024, value_name = "N")]
    pub prompt: usize,
    /// Branches that share it
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub branches: usize,
    /// Tokens each branch has of its own before the first measured step
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub own: usize,
    /// Take those from the text after the prompt instead of drawing them
    #[arg(long)]
    pub own_text: bool,
    /// Measured steps, after a few in which caches fill
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub steps: usize,
    /// Branches take turns in so many groups, as in a depth-first search; methods are measured without and with being told who
    /// waits
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub turns: usize,
    /// The device tier, percent of the tree's K/V at the end: partial keys, whole layers and fetched rows together
    #[arg(long, default_value_t = 20.0, value_name = "PERCENT")]
    pub budget: f64,
    /// Measure perplexity over windows of the text instead
    #[arg(long)]
    pub quality: bool,
    /// With --quality: percent of the past that selecting layers attend to
    #[arg(long, value_delimiter = ',', default_values_t = [5.0, 10.0, 20.0, 50.0], value_name = "PERCENT")]
    pub shares: Vec<f64>,
    /// With --quality: infinigen one layer ahead, half a layer ahead, and by the layer's own query
    #[arg(long)]
    pub looks: bool,
    /// With --quality: windows, from the beginning of the text
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub windows: usize,
    /// With --quality: tokens of a window
    #[arg(long, default_value_t = 2048, value_name = "N")]
    pub window: usize,
    /// With --quality: tokens scored at the end of each window
    #[arg(long, default_value_t = 1024, value_name = "N")]
    pub score: usize,
}

#[derive(Debug, Clone, Args)]
pub struct BenchDecodeArgs {
    /// Tokens of the shared prompt
    #[arg(long, default_value_t = 1024)]
    pub prompt: usize,
    /// Branches that share it
    #[arg(long, default_value = "1,10,20,32", value_delimiter = ',')]
    pub branches: Vec<usize>,
    /// Tokens of its own that each branch has before the first measured step
    #[arg(long, default_value_t = 0)]
    pub own: usize,
    /// Tokens decoded on each branch
    #[arg(long, default_value_t = 32)]
    pub steps: usize,
    /// Whether a card replays steps of a shape that came before, as it does elsewhere
    #[arg(long, default_value = "on", value_enum)]
    pub graphs: Switch,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

#[derive(Debug, Clone, Args)]
pub struct DoctorArgs {
    /// Run every kernel of this build against its reference
    #[arg(long)]
    pub selftest: bool,
}
