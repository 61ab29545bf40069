//! What is asked of the engine, in token ids, and what it answers.
//!
//! `lm` re-exports the answers: search sees the same types whoever plays the model. Nothing here computes.

use super::constraint::Constraint;
use crate::base::{Error, Result};
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

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

/// What the log-probabilities of a request's tokens are of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Likelihood {
    /// Of the unmodified distribution, which takes the logits of the whole vocabulary.
    #[default]
    Model,
    /// Of the tokens that the constraint allows, or that listed texts go on with: where these are few, no other logits
    /// are computed.
    Allowed,
}

/// Which random stream a sample draws from: independent of batching, threads and order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamKey {
    pub seed: u64,
    pub puzzle: u64,
    /// The thought that is expanded, or scored.
    pub node: u64,
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

/// Counts of one request, in the contract's words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Prompt tokens forwarded (cache misses).
    pub prompt: u64,
    pub sampled: u64,
    /// Tokens forwarded only to be scored, drafted tokens that were not accepted among them.
    pub scored: u64,
    /// What a service without sharing would bill: the full prompt of every request and its output.
    pub logical: u64,
    /// Steps in which tokens were drafted, drafted tokens, and those of them that were accepted (`--speculate`).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub drafts: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub drafted: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub accepted: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Usage {
    /// `tokens` of the contract: what the model computed.
    pub fn tokens(&self) -> u64 {
        self.prompt + self.sampled + self.scored
    }

    /// Tokens that a step with a draft brought on average, the drawn one included; `None` where nothing was drafted.
    pub fn accepted_length(&self) -> Option<f64> {
        (self.drafts > 0).then(|| (self.accepted + self.drafts) as f64 / self.drafts as f64)
    }
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.prompt += other.prompt;
        self.sampled += other.sampled;
        self.scored += other.scored;
        self.logical += other.logical;
        self.drafts += other.drafts;
        self.drafted += other.drafted;
        self.accepted += other.accepted;
    }
}

/// What a request would compute if it were sent now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Prompt tokens that are not cached, and tokens of listed texts.
    pub fixed: u64,
    /// Samples that each draw up to `max_tokens` besides.
    pub drawing: u64,
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
    /// No K/V memory was left for this branch; the numbers, and the flag that gives it more.
    NoMemory(String),
    /// This branch could not go on (NaN logits, a constraint that no token fits).
    Failed(String),
}

/// One finished sample.
#[derive(Clone)]
pub struct Completion {
    /// Without end token and stop string.
    pub text: String,
    /// Token ids of `text`, if the model has tokens.
    pub ids: Arc<[u32]>,
    /// Natural-log probability of each of `ids` before temperature and penalty, of what the request's [`Likelihood`] says.
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

#[derive(Debug, Clone)]
pub struct Scores {
    /// For each continuation, the natural-log probability of each of its tokens.
    pub logprobs: Vec<Vec<f32>>,
    pub usage: Usage,
}

/// Samples of one prompt, in token ids.
#[derive(Clone)]
pub struct Generate {
    /// The whole prompt, BOS included. Not empty.
    pub prompt: Arc<[u32]>,
    pub mode: Mode,
    pub n: usize,
    pub sampling: Sampling,
    pub max_tokens: usize,
    pub stop: Vec<String>,
    pub constraint: Option<Arc<dyn Constraint>>,
    /// For [`Mode::Likeliest`]: every complete text with its token ids, where the constraint lists them.
    pub listed: Option<Vec<Listed>>,
    pub likelihood: Likelihood,
    pub key: StreamKey,
}

/// A text and how it is spelled in tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub text: String,
    pub ids: Vec<u32>,
}

impl Generate {
    /// Tokens that are forwarded beside the prompt's without being sampled: those of listed texts that are ranked.
    pub fn ranked_tokens(&self) -> usize {
        match (self.mode, &self.listed) {
            (Mode::Likeliest, Some(listed)) => super::given::Given::forwarded(listed),
            _ => 0,
        }
    }

    /// Samples that draw tokens, each at most `max_tokens`.
    pub fn drawing(&self) -> usize {
        if self.mode == Mode::Likeliest && self.listed.is_some() { 0 } else { self.n }
    }
}

/// Continuations of one prompt to be scored, in token ids.
pub struct Score {
    /// The whole prompt, BOS included. Not empty.
    pub prompt: Arc<[u32]>,
    pub continuations: Vec<Vec<u32>>,
}

/// The way back to who asked for samples. Every sample ends with one `Done`, or the whole with one `Failed`: a reply
/// dropped with samples still open (the engine's thread died) says so by itself, so that nobody waits for ever.
pub(super) struct Reply {
    updates: mpsc::UnboundedSender<Update>,
    open: usize,
}

impl Reply {
    pub(super) fn new(updates: mpsc::UnboundedSender<Update>) -> Self {
        Self { updates, open: 1 }
    }

    /// How many samples will come.
    pub(super) fn expect(&mut self, samples: usize) {
        self.open = samples;
    }

    pub(super) fn text(&self, sample: usize, text: String, logprob: f32) {
        let _ = self.updates.send(Update::Text { sample, text, logprob });
    }

    pub(super) fn done(&mut self, sample: usize, completion: Completion) {
        self.open = self.open.saturating_sub(1);
        let _ = self.updates.send(Update::Done { sample, completion });
    }

    pub(super) fn fail(&mut self, error: Error) {
        self.open = 0;
        let _ = self.updates.send(Update::Failed(error));
    }

    pub(super) fn cancelled(&self) -> bool {
        self.updates.is_closed()
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.open > 0 {
            self.fail(Error::fault("the engine stopped before this request was finished"));
        }
    }
}

/// The way back to who asked for scores.
pub(super) type ScoreReply = oneshot::Sender<Result<Scores>>;

impl Score {
    /// Tokens of the longest continuation.
    pub fn longest(&self) -> usize {
        self.continuations.iter().map(Vec::len).max().unwrap_or(0)
    }
}
