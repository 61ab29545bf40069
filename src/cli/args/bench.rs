//! Flags of `bench`.

use super::{MOST_TOKENS, within};
use crate::bench::perplexity;
use crate::offload;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

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
    /// Numbers of a head
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = within(8..=1024))]
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
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = within(0..=1000))]
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
    /// Numbers of a head
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = within(8..=1024))]
    pub head_size: usize,
    /// Layers that the bytes are counted over
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = within(1..=10_000))]
    pub layers: usize,
}

#[derive(Debug, Clone, Args)]
pub struct BenchProductsArgs {
    /// Rows of the weight matrix
    #[arg(long, default_value_t = 1536, value_name = "N", value_parser = within(1..=1 << 20))]
    pub rows: usize,
    /// Columns of the weight matrix
    #[arg(long, default_value_t = 576, value_name = "N", value_parser = within(1..=1 << 20))]
    pub cols: usize,
    /// Activation rows
    #[arg(long, default_value = "1,10,32,128", value_delimiter = ',', value_name = "N,N", value_parser = within(1..=1 << 20))]
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
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = within(1..=1_000_000))]
    pub runs: usize,
    /// Iterations of each run [default: all]
    #[arg(long, value_name = "N", value_parser = within(1..=MOST_TOKENS))]
    pub steps: Option<usize>,
    /// Tokens before a recorded token tree, which does not tell them
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = within(1..=MOST_TOKENS))]
    pub prompt: usize,
}

#[derive(Debug, Clone, Args)]
pub struct BenchPerplexityArgs {
    /// The text: a file, or - for standard input
    #[arg(long, value_name = "FILE")]
    pub text: String,
    #[command(flatten)]
    pub windows: WindowArgs,
}

/// Windows of a text whose ends are scored.
#[derive(Debug, Clone, Copy, Args)]
pub struct WindowArgs {
    /// Windows, from the beginning of the text
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = within(1..=MOST_TOKENS))]
    pub windows: usize,
    /// Tokens of a window
    #[arg(long, default_value_t = 2048, value_name = "N", value_parser = within(2..=MOST_TOKENS))]
    pub window: usize,
    /// Tokens scored at the end of each window
    #[arg(long, default_value_t = 1024, value_name = "N", value_parser = within(1..=MOST_TOKENS))]
    pub score: usize,
}

impl WindowArgs {
    pub fn spec(self) -> perplexity::Spec {
        let Self { windows, window, score } = self;
        perplexity::Spec { windows, window, score }
    }
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
    #[arg(long, default_value_t = 1024, value_name = "N", value_parser = within(1..=MOST_TOKENS))]
    pub prompt: usize,
    /// Branches that share it
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = within(1..=10_000))]
    pub branches: usize,
    /// Tokens each branch has of its own before the first measured step
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = within(0..=MOST_TOKENS))]
    pub own: usize,
    /// Take those from the text after the prompt instead of drawing them
    #[arg(long)]
    pub own_text: bool,
    /// Measured steps, after a few in which caches fill
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = within(1..=MOST_TOKENS))]
    pub steps: usize,
    /// Branches take turns in so many groups, as in a depth-first search; methods are measured without and with being told who
    /// waits
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = within(1..=10_000))]
    pub turns: usize,
    /// The device tier, percent of the tree's K/V at the end: partial keys, whole layers and fetched rows together
    #[arg(long, default_value_t = 20.0, value_name = "PERCENT")]
    pub budget: f64,
    /// Measure perplexity over windows of the text instead
    #[arg(long)]
    pub quality: bool,
    /// Percent of the past that selecting layers attend to
    #[arg(long, value_delimiter = ',', default_values_t = [5.0, 10.0, 20.0, 50.0], value_name = "PERCENT", help_heading = WITH_QUALITY)]
    pub shares: Vec<f64>,
    /// Measure infinigen one layer ahead, half a layer ahead, and by the layer's own query
    #[arg(long, help_heading = WITH_QUALITY)]
    pub looks: bool,
    #[command(flatten, next_help_heading = WITH_QUALITY)]
    pub windows: WindowArgs,
}

/// Where help lists the flags of `bench offload` that count with that one alone.
const WITH_QUALITY: &str = "With --quality";

#[derive(Debug, Clone, Args)]
pub struct BenchDecodeArgs {
    /// Tokens of the shared prompt
    #[arg(long, default_value_t = 1024, value_parser = within(1..=MOST_TOKENS))]
    pub prompt: usize,
    /// Branches that share it
    #[arg(long, default_value = "1,10,20,32", value_delimiter = ',', value_parser = within(1..=10_000))]
    pub branches: Vec<usize>,
    /// Tokens of its own that each branch has before the first measured step
    #[arg(long, default_value_t = 0, value_parser = within(0..=MOST_TOKENS))]
    pub own: usize,
    /// Tokens decoded on each branch
    #[arg(long, default_value_t = 32, value_parser = within(1..=MOST_TOKENS))]
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
