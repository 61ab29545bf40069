//! What search needs from a language model, whoever plays it: our engine, a script, or chance.
//!
//! Everything is asked in text and answered in text with token counts; a thought that is continued hands back its token
//! ids (`Part::Tokens`), so that an engine can go on without tokenising again. Calls never block: they return a channel,
//! and dropping the channel cancels the request.

pub mod endpoint;
pub mod engine;
pub mod pattern;
pub mod random;
pub mod scripted;

pub use crate::engine::constraint::{Constraint, Judgement, Standing};
pub use crate::engine::counters::{Counters, HeldKv, IoCounters, KvCounters, LinkCounters, SpeedCounters};
pub use crate::engine::grammar::{Form as GrammarForm, Grammar};
pub use crate::engine::request::{
    Completion, Cost, Finish, Hold, Likelihood, Mode, Sampling, Scores, StreamKey, Update, Usage,
};

pub use crate::kv::PAGE_TOKENS;

use crate::base::Result;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// How a prompt is to be presented to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// The text as it stands (with one BOS where the model wants one).
    Completion,
    /// As `Completion`, with the names of control tokens parsed: for a prompt that the user typed whole (`complete`).
    #[serde(skip)]
    Raw,
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
    pub likelihood: Likelihood,
    pub key: StreamKey,
}

/// Log-probabilities of given continuations after a prompt, without sampling.
#[derive(Clone)]
pub struct Score {
    pub prompt: Prompt,
    pub continuations: Vec<String>,
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
    /// Whether constraints are masks over its tokens, so that log-probabilities may be of the allowed ones.
    pub masks: bool,
    /// `cpu avx512`, `cuda:0 NVIDIA H200`, `script`, `chance`, …
    pub device: String,
}

/// A language model, as search sees it.
pub trait Lm: Send + Sync {
    fn info(&self) -> &Info;

    /// How many tokens a text has; `None` where the model cannot tell.
    fn count_tokens(&self, prompt: &Prompt) -> Option<usize>;

    fn generate(&self, request: Generate) -> mpsc::UnboundedReceiver<Update>;

    /// What each of these would cost if they were sent now, in this order: what keeps a run within its token budget. Exact
    /// while nobody else uses the model; by default every prompt counts in full. A closed channel: the model is gone.
    fn costs(&self, requests: &[&Generate]) -> oneshot::Receiver<Vec<Cost>> {
        let full = |request: &&Generate| Cost {
            fixed: self.count_tokens(&request.prompt).unwrap_or(0) as u64,
            drawing: request.n as u64,
        };
        let (sender, receiver) = oneshot::channel();
        // The receiver is at hand, so this cannot fail.
        let _ = sender.send(requests.iter().map(full).collect());
        receiver
    }

    fn score(&self, request: Score) -> oneshot::Receiver<Result<Scores>>;

    fn counters(&self) -> Counters;

    /// Whether the model is still sound, asked at the end of every run: an error ends what else it was to do. A closed
    /// channel: the model is gone.
    fn check(&self) -> oneshot::Receiver<Result<()>> {
        let (sender, receiver) = oneshot::channel();
        // The receiver is at hand, so this cannot fail.
        let _ = sender.send(Ok(()));
        receiver
    }

    /// What each of these claims keeps; `None` where the model cannot tell.
    fn held(&self, holds: &[&Hold]) -> Vec<Option<HeldKv>> {
        vec![None; holds.len()]
    }

    /// Which claims' branches go on next, and which wait for a while, so that K/V can move before it is wanted. A hint: it
    /// changes no result.
    fn expect(&self, _soon: &[&Hold], _later: &[&Hold]) {}
}
