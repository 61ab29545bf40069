//! The engine: one thread that owns the model, its K/V memory and the attention plan, and serves everyone's requests.
//!
//! Requests are token ids ([`request`]); answers go up by channel while they grow. What belongs together:
//!
//! | file | what |
//! |---|---|
//! | `worker.rs` | the thread: packs, plans and runs steps, makes room, fails what cannot be served |
//! | `job.rs`, `batch.rs`, `hold.rs` | a request's lanes, a step's rows, claims on finished branches |
//! | `sampling.rs`, `given.rs` | what becomes of logits: samples that grow, given texts that are ranked or scored |
//! | `sample.rs`, `constraint.rs`, `text.rs`, `trie.rs`, `vocab.rs` | pure parts: draw, mask, stop strings, tree of texts, bytes of tokens |
//! | `speculate.rs` | drafts of several tokens, verified in one step |
//! | `measure.rs` | decoding measured without requests, for `bench decode` |
//!
//! It knows no prompts, templates or puzzles: that is `lm`. On the CPU a sample depends on its path and its stream alone,
//! whoever else is in the step, whatever was cached, and however its prompt was cut (contract.md, Same result).

mod batch;
pub mod constraint;
pub mod counters;
mod follow;
mod given;
pub mod grammar;
mod hold;
mod job;
pub mod measure;
pub mod request;
pub mod sample;
mod sampling;
pub mod speculate;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod text;
mod trie;
pub mod vocab;
mod worker;

use crate::attention::{Method, Parallel};
use crate::base::{Error, Result};
use crate::device::Shape;
use crate::model::llama::Llama;
use counters::{Counters, HeldKv};
use request::{Cost, Generate, Hold, Reply, Score, ScoreReply, Scores, Update};
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;
use tokio::sync::{mpsc, oneshot};
use vocab::Vocab;
use worker::Worker;

/// Limits and choices of the engine.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Tokens a path may have.
    pub context: usize,
    /// Rows of a step.
    pub step_rows: usize,
    /// Prompt rows of a step in which others decode: what keeps a long prompt from holding them up.
    pub mixed_rows: usize,
    pub vocab: usize,
    /// Bytes of one row of a K/V head's partial attention results, over all layers (for the counters).
    pub partial_row_bytes: usize,
    pub method: Method,
    pub parallel: Parallel,
    /// The flag that says how many pages there are.
    pub budget_flag: &'static str,
    /// Whether tokens are drafted from the text so far, and verified together.
    pub speculate: bool,
}

impl Limits {
    pub fn new(shape: &Shape, method: Method, threads: usize) -> Self {
        Self {
            context: shape.context,
            step_rows: 256,
            mixed_rows: 64,
            vocab: shape.vocab,
            partial_row_bytes: partial_row_bytes(shape, 2),
            method,
            parallel: Parallel { threads, kv_heads: shape.kv_heads, group: shape.heads / shape.kv_heads },
            budget_flag: "--kv-budget",
            speculate: false,
        }
    }
}

/// Bytes of a row of a K/V head's partial results, over all layers, with so many numbers beside the values.
pub fn partial_row_bytes(shape: &Shape, sums: usize) -> usize {
    shape.layers * (shape.heads / shape.kv_heads) * (shape.head_size + sums) * size_of::<f32>()
}

/// What the engine's thread is told.
enum Message {
    Generate(Generate, Reply),
    Score(Score, ScoreReply),
    /// What each of these would cost now, given those before it in the list.
    Costs(Vec<Generate>, oneshot::Sender<Vec<Cost>>),
    /// A claim on a finished branch was dropped.
    Release(u64),
    /// Claims whose branches go on soon, and those that wait.
    Expect(Vec<u64>, Vec<u64>),
    /// Whether the engine is sound.
    Check(oneshot::Sender<Result<()>>),
    Stop,
}

/// What the engine's thread tells about itself.
#[derive(Default)]
struct Shown {
    counters: Counters,
    /// When the last step ended.
    stepped: Option<Instant>,
    /// What each claim keeps, by its number.
    held: HashMap<u64, HeldKv>,
}

impl Shown {
    /// What the counters are now: an engine that rests computes nothing, whatever it did last.
    fn counters(&self, now: Instant) -> Counters {
        let mut counters = self.counters.clone();
        let rests = self.stepped.is_none_or(|at| now.saturating_duration_since(at) > counters::MOMENTS);
        if let Some(speed) = counters.speed.as_mut().filter(|_| rests) {
            speed.tokens_per_second = 0.0;
        }
        counters
    }
}

/// A running engine. Dropping it ends the thread; requests in flight then fail.
pub struct Engine {
    messages: Sender<Message>,
    shown: Arc<Mutex<Shown>>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    pub fn start(llama: Llama, vocab: Arc<Vocab>, limits: Limits) -> Result<Self> {
        let (messages, inbox): (Sender<Message>, Receiver<Message>) = channel();
        let shown = Arc::new(Mutex::new(Shown::default()));
        let worker = Worker::new(llama, vocab, limits, messages.clone(), Arc::clone(&shown));
        let thread = std::thread::Builder::new()
            .name("engine".into())
            .spawn(move || worker.serve(&inbox))
            .map_err(|e| Error::fault(format!("the engine's thread cannot be started: {e}")))?;
        Ok(Self { messages, shown, thread: Some(thread) })
    }

    /// Asks for samples. Never blocks; dropping the receiver cancels.
    pub fn generate(&self, request: Generate) -> mpsc::UnboundedReceiver<Update> {
        let (sender, receiver) = mpsc::unbounded_channel();
        // A refused message drops the reply, which says by itself that the engine is gone.
        drop(self.messages.send(Message::Generate(request, Reply::new(sender))));
        receiver
    }

    /// Asks for log-probabilities. Never blocks; dropping the receiver cancels. A closed channel: the engine is gone.
    pub fn score(&self, request: Score) -> oneshot::Receiver<Result<Scores>> {
        let (sender, receiver) = oneshot::channel();
        // A refused message drops the sender, which closes the channel.
        drop(self.messages.send(Message::Score(request, sender)));
        receiver
    }

    /// What each of these would cost now, given those before it in the list. A closed channel: the engine is gone.
    pub fn costs(&self, requests: Vec<Generate>) -> oneshot::Receiver<Vec<Cost>> {
        let (sender, receiver) = oneshot::channel();
        // A refused message drops the sender, which closes the channel.
        drop(self.messages.send(Message::Costs(requests, sender)));
        receiver
    }

    /// Whether the engine is sound: its last step went well, and every page of K/V is free, in use or cached, with the right
    /// owners. Answered between two steps. A closed channel: the engine is gone.
    pub fn check(&self) -> oneshot::Receiver<Result<()>> {
        let (sender, receiver) = oneshot::channel();
        // A refused message drops the sender, which closes the channel.
        drop(self.messages.send(Message::Check(sender)));
        receiver
    }

    /// Tells which claims' branches go on next, and which wait: where K/V has two tiers it moves accordingly before it is
    /// asked for. It changes no result.
    pub fn expect(&self, soon: &[&Hold], later: &[&Hold]) {
        let claims = |holds: &[&Hold]| holds.iter().filter_map(|hold| hold::claim_of(hold)).collect();
        // An engine that is gone moves nothing.
        drop(self.messages.send(Message::Expect(claims(soon), claims(later))));
    }

    /// The newest counters: who has an answer sees those of the step that it came from, or newer ones.
    pub fn counters(&self) -> Counters {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).counters(Instant::now())
    }

    /// What these claims keep, as of some tenths of a second ago; `None` for one that gave way or is another engine's.
    pub fn held(&self, holds: &[&Hold]) -> Vec<Option<HeldKv>> {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        holds.iter().map(|hold| shown.held.get(&hold::claim_of(hold)?).copied()).collect()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // A thread that is gone needs no telling.
        let _ = self.messages.send(Message::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
