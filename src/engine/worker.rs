//! The engine's thread: packs one step after the other from all requests in flight.
//!
//! Each step takes the lanes in the order of their requests: first those that need one row (decoding), then those that
//! need more (prompts, and paths that lost their pages), so that a long prompt never holds up what is being written.
//! A lane first follows what is already in the tree, also what this very step adds: K/V of all rows is written before
//! any is read, so two equal prompts share every row. A path whose last token is in the tree too computes that one
//! token again for its logits, into the same place, or shares the row that writes it in this step.
//!
//! With `speculate` a decoding lane may have a draft: more rows of the same step, whose logits are taken one after the
//! other for as long as what is drawn was drafted (`speculate.rs`).
//!
//! Without room for a lane's pages, in this order: what nobody uses any more is evicted (the tree does that), branches
//! of lanes that are done and then claims of finished samples give way, a younger lane gives its pages away and waits,
//! the lane itself waits. Where nobody can go on, the oldest lane gets everything; if that is not enough it fails, with
//! the numbers.

mod room;
mod schedule;
mod step;

use super::batch::{Batch, LaneId};
use super::counters::Meter;
use super::follow::Follow;
use super::given::Given;
use super::hold::Holds;
use super::job::{Context, Job, Work};
use super::request::{Cost, Generate, Mode, Reply, Score, ScoreReply};
use super::sample::Sampler;
use super::sample::row::Asked;
use super::sampling::Sampling;
use super::speculate::placed::Placed;
use super::vocab::Vocab;
use super::{Limits, Message, Shown};
use crate::attention::Planner;
use crate::base::Error;
use crate::device::head::Said;
use crate::kv::tree::TokenTree;
use crate::kv::{PAGE_TOKENS, PageId};
use crate::model::llama::Llama;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often what the claims keep is shown while steps run.
const HELD_EVERY: Duration = Duration::from_millis(200);

pub struct Worker {
    llama: Llama,
    tree: TokenTree,
    planner: Planner,
    vocab: Arc<Vocab>,
    limits: Limits,
    /// Oldest first.
    jobs: Vec<Job>,
    holds: Holds,
    batch: Batch,
    /// Drafts that are rows of this step.
    drafts: Vec<(LaneId, Placed)>,
    /// What each wanted row was asked, and what the device said.
    asked: Vec<Asked>,
    said: Vec<Said>,
    meter: Meter,
    follow: Follow,
    shown: Arc<Mutex<Shown>>,
    /// Whether a claim was released since that was last made known.
    released: bool,
    /// Why the last step failed, if it did.
    lost: Option<Error>,
    /// When what the claims keep was shown last.
    held_shown: Instant,
}

impl Worker {
    pub fn new(
        llama: Llama,
        vocab: Arc<Vocab>,
        limits: Limits,
        back: Sender<Message>,
        shown: Arc<Mutex<Shown>>,
    ) -> Self {
        let tree = new_tree(&llama);
        let meter = Meter::new(llama.device().page_bytes(), limits.partial_row_bytes);
        Self {
            llama,
            tree,
            planner: Planner::with_parallel(limits.method, limits.parallel),
            vocab,
            limits,
            jobs: Vec::new(),
            holds: Holds::new(back),
            batch: Batch::default(),
            drafts: Vec::new(),
            asked: Vec::new(),
            said: Vec::new(),
            meter,
            follow: Follow::default(),
            shown,
            released: false,
            lost: None,
            held_shown: Instant::now(),
        }
    }

    /// Serves until it is told to stop. A panic fails every request, those in flight and those to come.
    pub fn serve(mut self, messages: &Receiver<Message>) {
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.run(messages))) else { return };
        let error =
            Error::fault(format!("the engine failed inside ({}); start the program again", panic_text(&*panic)));
        for job in &mut self.jobs {
            match &mut job.work {
                Work::Samples(samples) => samples.reply().fail(error.clone()),
                Work::Given(given) => given.fail(error.clone()),
            }
        }
        self.jobs.clear();
        while let Ok(message) = messages.recv() {
            match message {
                Message::Generate(_, mut reply) => reply.fail(error.clone()),
                // A receiver that is gone wants no answer.
                Message::Score(_, reply) => drop(reply.send(Err(error.clone()))),
                Message::Costs(_, reply) => drop(reply),
                Message::Check(reply) => drop(reply.send(Err(error.clone()))),
                Message::Release(_) | Message::Expect(..) => {}
                Message::Stop => return,
            }
        }
    }

    fn run(&mut self, messages: &Receiver<Message>) {
        loop {
            if self.jobs.is_empty() {
                // Nothing to do: sleep until asked. What was released meanwhile is shown first, once for all.
                let message = match messages.try_recv() {
                    Ok(message) => Ok(message),
                    Err(_) => {
                        self.make_known();
                        self.show_held(false);
                        messages.recv()
                    }
                };
                let Ok(message) = message else { return };
                if !self.take(message) {
                    return;
                }
            }
            let until = self.follow.until();
            while let Some(message) = self.follow.next(messages, until) {
                if !self.take(message) {
                    return;
                }
            }
            self.make_known();
            self.step();
            if self.jobs.is_empty() && cfg!(debug_assertions) {
                self.tree.check();
            }
        }
    }

    /// What was released is free for lanes that wait, and shown: once for all claims that were dropped together, of which a
    /// large tree has thousands.
    fn make_known(&mut self) {
        if std::mem::take(&mut self.released) {
            self.unpark();
            self.show();
        }
    }

    /// False: stop.
    fn take(&mut self, message: Message) -> bool {
        if matches!(message, Message::Generate(..) | Message::Score(..)) {
            self.follow.came();
        }
        match message {
            Message::Generate(request, reply) => self.take_generate(request, reply),
            Message::Score(request, reply) => match self.refuse(&request.prompt, request.longest()) {
                // A receiver that is gone wants no answer.
                Some(error) => drop(reply.send(Err(error))),
                None => self.take_score(request, reply),
            },
            // A receiver that is gone wants no answer.
            Message::Costs(requests, reply) => drop(reply.send(self.costs(&requests))),
            Message::Release(claim) => {
                self.holds.release(claim, &mut self.tree);
                self.released = true;
            }
            Message::Expect(soon, later) => self.expect(&soon, &later),
            Message::Check(reply) => {
                // Who asks sees what was given back before.
                self.make_known();
                self.tree.check();
                drop(reply.send(self.lost.clone().map_or(Ok(()), Err)));
            }
            Message::Stop => return false,
        }
        true
    }

    fn take_generate(&mut self, mut request: Generate, mut reply: Reply) {
        let sampler = match Sampler::new(&request.sampling) {
            Ok(sampler) => sampler,
            Err(error) => return reply.fail(error),
        };
        if let Some(error) = self.refuse(&request.prompt, 0) {
            return reply.fail(error);
        }
        if request.n == 0 {
            return reply.expect(0);
        }
        let prompt = Arc::clone(&request.prompt);
        let job = match (request.mode, request.listed.take()) {
            (Mode::Likeliest, Some(listed)) => {
                let (given, lanes) = Given::rank(request, listed, reply, &self.context());
                Job::new(&prompt, lanes, Work::Given(given))
            }
            _ => Job::new(&prompt, Vec::new(), Work::Samples(Sampling::new(request, sampler, reply))),
        };
        self.jobs.push(job);
    }

    fn take_score(&mut self, request: Score, reply: ScoreReply) {
        let prompt = Arc::clone(&request.prompt);
        let (given, lanes) = Given::score(request, reply);
        self.jobs.push(Job::new(&prompt, lanes, Work::Given(given)));
    }

    /// What each request would cost: of its prompt what neither the tree nor a prompt before it has, and at least one token,
    /// since the last one's logits are wanted.
    fn costs(&self, requests: &[Generate]) -> Vec<Cost> {
        let common = |a: &[u32], b: &[u32]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
        let one = |(at, request): (usize, &Generate)| {
            let before = requests[..at].iter().map(|other| common(&other.prompt, &request.prompt)).max().unwrap_or(0);
            let missing = request.prompt.len().saturating_sub(self.tree.found(&request.prompt).max(before)).max(1);
            Cost { fixed: (missing + request.ranked_tokens()) as u64, drawing: request.drawing() as u64 }
        };
        requests.iter().enumerate().map(one).collect()
    }

    /// Moves K/V as the search expects to need it. A branch that waits gives up what nobody else sees.
    fn expect(&mut self, soon: &[u64], later: &[u64]) {
        if self.llama.device().link().is_none() {
            return;
        }
        let (tree, holds) = (&self.tree, &self.holds);
        let branches = |claims: &[u64]| claims.iter().filter_map(|&claim| holds.branch(claim)).collect::<Vec<_>>();
        let soon: Vec<PageId> = branches(soon).into_iter().flat_map(|b| tree.slots(b)).map(|slot| slot.page).collect();
        let later: Vec<PageId> = branches(later).into_iter().flat_map(|b| tree.own_pages(b)).collect();
        self.llama.freed(&self.tree.take_freed());
        self.llama.expect(&soon, &later);
        self.show();
    }

    /// Why a prompt, with so many tokens after it, can never be served.
    fn refuse(&self, prompt: &[u32], more: usize) -> Option<Error> {
        let len = prompt.len() + more;
        let (limit, vocab) = (self.limits.context, self.limits.vocab);
        if prompt.is_empty() {
            return Some(Error::input("the prompt has no tokens: the model needs at least one to begin with"));
        }
        if let Some(id) = prompt.iter().find(|&&id| id as usize >= vocab) {
            return Some(Error::input(format!("token id {id} is not in the model's vocabulary of {vocab}")));
        }
        if len > limit {
            return Some(Error::input(format!(
                "the prompt has {len} tokens, more than the context of {limit}: shorten it, or use a model with a longer context"
            )));
        }
        (len.div_ceil(PAGE_TOKENS) > self.llama.device().pages()).then(|| self.no_room(len))
    }

    fn context(&mut self) -> Context<'_> {
        Context { tree: &mut self.tree, holds: &mut self.holds, vocab: &self.vocab, limit: self.limits.context }
    }

    /// One step, or the making of room for one.
    fn step(&mut self) {
        let began = Instant::now();
        for job in &mut self.jobs {
            if job.cancelled() {
                job.release(&mut self.tree);
            }
        }
        self.sweep();
        self.schedule();
        if self.batch.is_empty() {
            self.make_way();
        }
        if self.limits.speculate {
            self.draft();
        }
        if !self.batch.is_empty() {
            self.ask();
            match self.forward(began) {
                Ok(()) => {
                    self.lost = None;
                    // Who gets an answer may look at the counters at once, and sees those of the step it came from.
                    self.show();
                    self.hand_out();
                }
                Err(error) => {
                    self.fail_all(&error);
                    self.lost = Some(error);
                }
            }
        }
        let open = self.jobs.len();
        self.sweep();
        self.follow.ended(open - self.jobs.len(), began.elapsed());
        self.show();
    }

    fn show(&mut self) {
        let counters = self.meter.counters(&self.tree.stats(), self.llama.device());
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        (shown.counters, shown.stepped) = (counters, self.meter.stepped_at());
        drop(shown);
        if self.held_shown.elapsed() >= HELD_EVERY {
            self.show_held(true);
        }
    }

    /// O(claims and their own segments): too much for every step of a large tree. Where no step `runs`, nothing moves.
    fn show_held(&mut self, runs: bool) {
        let device = self.llama.device();
        let moving = device.moving().map(|shares| if runs { shares } else { vec![0.0; shares.len()] });
        let held = self.holds.held(&self.tree, device.here().as_deref(), moving.as_deref());
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).held = held;
        self.held_shown = Instant::now();
    }
}

fn new_tree(llama: &Llama) -> TokenTree {
    let mut tree = TokenTree::new(llama.device().pages());
    if llama.device().link().is_some() {
        tree.log_freed();
    }
    tree
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("no message").to_string()
}
