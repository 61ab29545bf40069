//! What search needs from a language model, whoever plays it: our engine, a script, or chance.
//!
//! Everything is asked in text and answered in text with token counts; a thought that is continued hands back its token
//! ids (`Part::Tokens`), so that an engine can go on without tokenising again. Calls never block: they return a channel,
//! and dropping the channel cancels the request.

pub mod random;
pub mod scripted;

use crate::base::{Error, Result};
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// How a prompt is to be presented to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// The text as it stands (with one BOS where the model wants one).
    Completion,
    /// One user turn through the model's chat template; tail parts continue the assistant's turn.
    Chat,
}

/// A rendered prompt: a fixed part, and the thoughts it continues.
#[derive(Debug, Clone)]
pub struct Prompt {
    pub format: Format,
    /// Special tokens written in this text are *not* parsed: it may hold a puzzle's or a reply's text.
    pub text: String,
    /// What comes after it, in order: earlier thoughts of the path.
    pub tail: Vec<Part>,
}

/// A piece of a prompt's tail.
#[derive(Debug, Clone)]
pub enum Part {
    Text(String),
    /// Text whose token ids are known because the same model produced it.
    Tokens {
        text: String,
        ids: Arc<[u32]>,
    },
}

impl Part {
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Tokens { text, .. } => text,
        }
    }
}

impl Prompt {
    pub fn completion(text: impl Into<String>) -> Self {
        Self { format: Format::Completion, text: text.into(), tail: Vec::new() }
    }

    /// The whole text, as a reader would see it (without the chat template).
    pub fn full_text(&self) -> String {
        let mut text = self.text.clone();
        for part in &self.tail {
            text.push_str(part.text());
        }
        text
    }
}

/// How the next token is drawn. `temperature` 0 (and anything so small that it overflows) is the argmax.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    pub temperature: f32,
    /// Keep the k likeliest; `None` or 0 keeps all.
    pub top_k: Option<usize>,
    /// Keep the smallest set whose probabilities sum to at least p; at least one token always stays.
    pub top_p: Option<f32>,
    /// Keep tokens with at least this share of the likeliest one's probability.
    pub min_p: Option<f32>,
    /// Divides positive and multiplies negative logits of tokens already in the text; 1 is off.
    pub repetition_penalty: f32,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: None, top_p: None, min_p: None, repetition_penalty: 1.0 }
    }
}

/// Which random stream a sample draws from: independent of batching, threads and order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamKey {
    pub seed: u64,
    pub puzzle: u64,
    /// The thought that is expanded, or scored.
    pub node: u64,
}

/// Several samples of one prompt.
#[derive(Clone)]
pub struct Generate {
    pub prompt: Prompt,
    pub mode: Mode,
    pub n: usize,
    pub sampling: Sampling,
    pub max_tokens: usize,
    /// The text ends before the first of these; none of it is kept.
    pub stop: Vec<String>,
    pub constraint: Option<Arc<dyn Constraint>>,
    pub key: StreamKey,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// n independent samples.
    Sample,
    /// The n likeliest different texts under the constraint, best first, each ranked by the product of its tokens'
    /// probabilities (renormalised under the constraint). Exact where the constraint lists its texts
    /// ([`Constraint::choices`]); elsewhere the n likeliest first tokens, each continued greedily.
    Likeliest,
}

/// What a text may still become. Works on text, so one constraint serves any vocabulary.
pub trait Constraint: Send + Sync {
    /// Judges the text generated so far (only this request's text, not the prompt).
    fn judge(&self, text: &str) -> Judgement;

    /// Every complete text, where there are few enough to list.
    fn choices(&self) -> Option<Vec<String>> {
        None
    }

    /// Whether `judge` should mask tokens (true), or only end a text that became wrong (false).
    fn masks(&self) -> bool {
        true
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    /// No continuation can make this right, and why.
    Dead(String),
    /// May go on.
    Open { complete: bool },
    /// Right and finished: nothing may follow.
    Closed,
}

/// Counts of one request, in the contract's words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Prompt tokens forwarded (cache misses).
    pub prompt: u64,
    pub sampled: u64,
    /// Tokens forwarded only to be scored.
    pub scored: u64,
    /// What a service without sharing would bill: the full prompt of every request and its output.
    pub logical: u64,
}

impl Usage {
    /// `tokens` of the contract: what the model computed.
    pub fn tokens(&self) -> u64 {
        self.prompt + self.sampled + self.scored
    }
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.prompt += other.prompt;
        self.sampled += other.sampled;
        self.scored += other.scored;
        self.logical += other.logical;
    }
}

/// Why a text ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// An end token, or the constraint was complete and closed.
    End,
    /// A stop string.
    Stop(String),
    /// `max_tokens`.
    Length,
    /// The context is full; the limit in tokens.
    Context(usize),
    /// Provably wrong: cut in the middle of its text.
    Refuted(String),
    /// This branch could not go on (NaN logits, no K/V memory left).
    Failed(String),
}

/// One finished sample.
#[derive(Clone)]
pub struct Completion {
    /// Without end token and stop string.
    pub text: String,
    /// Token ids of `text`, if the model has tokens.
    pub ids: Arc<[u32]>,
    /// Natural-log probability of each of `ids`, under the unmodified distribution (before temperature and masks).
    pub logprobs: Vec<f32>,
    /// Natural-log probability of the text under the constraint's mask (equals the sum of `logprobs` without one).
    pub masked_logprob: f64,
    pub finish: Finish,
    /// This sample's share; the prompt is counted on the first sample that needed it.
    pub usage: Usage,
    /// Keeps this branch's K/V from being evicted while it is held. `None` where the model keeps no K/V.
    pub hold: Option<Hold>,
}

/// A claim on a branch's K/V, given back on drop.
#[derive(Clone)]
pub struct Hold(pub Arc<dyn Any + Send + Sync>);

/// What comes back while a request runs. Every sample ends with exactly one `Done`.
pub enum Update {
    /// A piece of complete characters of sample `sample`.
    Text {
        sample: usize,
        text: String,
        logprob: f32,
    },
    Done {
        sample: usize,
        completion: Completion,
    },
    /// The request as a whole cannot be served (prompt longer than the context, no memory, engine gone).
    Failed(Error),
}

/// Log-probabilities of given continuations after a prompt, without sampling.
#[derive(Clone)]
pub struct Score {
    pub prompt: Prompt,
    pub continuations: Vec<String>,
}

#[derive(Debug, Clone)]
pub struct Scores {
    /// For each continuation, the natural-log probability of each of its tokens.
    pub logprobs: Vec<Vec<f32>>,
    pub usage: Usage,
}

/// What the screen shows of memory, link and speed. Whatever a model cannot tell is `None`, and shown as not known.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    pub kv: Option<KvCounters>,
    pub io: Option<IoCounters>,
    pub link: Option<LinkCounters>,
    pub speed: Option<SpeedCounters>,
}

/// K/V memory at this moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvCounters {
    pub pages_total: u64,
    pub pages_live: u64,
    pub pages_cached: u64,
    pub page_bytes: u64,
    /// Tokens stored in live segments, each once.
    pub tokens_stored: u64,
    /// Tokens of all live paths added up: what would be stored without sharing.
    pub tokens_logical: u64,
    pub evicted_pages: u64,
    /// Prompt tokens found in the cache, and looked up, since the start.
    pub prefix_hits: u64,
    pub prefix_lookups: u64,
}

/// Bytes attention moved since the start, counted from the plans (all layers).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoCounters {
    /// K/V bytes read.
    pub kv_bytes: u64,
    /// What grouping by query (Radix) would have read.
    pub radix_bytes: u64,
    pub partial_bytes: u64,
}

/// Bytes over the link between the tiers since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkCounters {
    pub to_device_bytes: u64,
    pub to_host_bytes: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SpeedCounters {
    pub steps: u64,
    pub rows: u64,
    pub sampled: u64,
    /// Seconds spent in steps, and what they went to.
    pub step_seconds: f64,
    pub attention_seconds: f64,
    pub products_seconds: f64,
    pub plan_seconds: f64,
    /// Tokens a second over the last moments (rows forwarded, prompt included).
    pub tokens_per_second: f64,
}

/// What is known of the model in front.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Info {
    /// As the user named it.
    pub name: String,
    /// SHA-256 of the weights file(s), where there is one.
    pub checksum: Option<String>,
    /// Tokens it can see; `None`: no limit known.
    pub context: Option<usize>,
    pub chat_template: bool,
    /// `cpu avx512`, `cuda:0 NVIDIA H200`, `script`, `chance`, …
    pub device: String,
}

/// A language model, as search sees it.
pub trait Lm: Send + Sync {
    fn info(&self) -> &Info;

    /// How many tokens a text has; `None` where the model cannot tell.
    fn count_tokens(&self, prompt: &Prompt) -> Option<usize>;

    fn generate(&self, request: Generate) -> mpsc::UnboundedReceiver<Update>;

    fn score(&self, request: Score) -> oneshot::Receiver<Result<Scores>>;

    fn counters(&self) -> Counters;
}
