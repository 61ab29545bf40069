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

use super::batch::{Batch, LaneId};
use super::counters::Meter;
use super::follow::Follow;
use super::given::Given;
use super::hold::Holds;
use super::job::{Context, Job, Lane, Role, Work};
use super::request::{Cost, Generate, Mode, Reply, Score, ScoreReply};
use super::sample::Sampler;
use super::sample::row::{Asked, Row};
use super::sampling::Sampling;
use super::speculate::placed::Placed;
use super::speculate::{Load, MOST_NODES};
use super::vocab::Vocab;
use super::{Limits, Message, Shown};
use crate::attention::Planner;
use crate::base::size::Human;
use crate::base::{Error, Result};
use crate::device::Step;
use crate::device::head::{HeadRow, Said};
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

    fn no_room(&self, tokens: usize) -> Error {
        let (pages, bytes) = (self.llama.device().pages(), self.llama.device().page_bytes());
        let needed = tokens.div_ceil(PAGE_TOKENS);
        Error::limit(format!(
            "no K/V memory: a path of {tokens} tokens needs {needed} pages ({}), there are {pages} ({}); raise {}",
            Human((needed * bytes) as u64),
            Human((pages * bytes) as u64),
            self.limits.budget_flag,
        ))
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

    /// Rows for as many lanes as fit.
    fn schedule(&mut self) {
        self.batch.clear();
        for job in &mut self.jobs {
            for lane in &mut job.lanes {
                lane.in_step = false;
            }
        }
        for single in [true, false] {
            let mut rows = self.limits.step_rows;
            if !single && !self.batch.is_empty() {
                rows = self.batch.len() + self.limits.mixed_rows;
            }
            for job in 0..self.jobs.len() {
                for lane in 0..self.jobs[job].lanes.len() {
                    let id = LaneId { job, lane };
                    let left = rows.saturating_sub(self.batch.len());
                    if left > 0 && self.is_ready(id) && (self.todo(id) == 1) == single {
                        self.bring_on(id, left);
                    }
                }
            }
        }
    }

    /// Drafts for lanes that decode, as far as more rows make tokens come faster. Lanes that share a row share its draft
    /// too: the others find its tokens in the tree.
    fn draft(&mut self) {
        let mut load = Load::new(self.batch.len(), self.llama.device().row_cost());
        let first = |&(at, (wanted, _)): &(usize, &(usize, LaneId))| {
            self.batch.wanting[..at].iter().all(|(before, _)| before != wanted)
        };
        let lanes: Vec<LaneId> =
            self.batch.wanting.iter().enumerate().filter(first).map(|(_, &(_, lane))| lane).collect();
        for id in lanes {
            let most = MOST_NODES.min(self.limits.step_rows.saturating_sub(self.batch.len()));
            let Job { lanes, work, .. } = &mut self.jobs[id.job];
            let Lane { path, role, branch, usage, .. } = &mut lanes[id.lane];
            let (Work::Samples(samples), Role::Sample(sample), Some(branch)) = (work, role, *branch) else { continue };
            let context = Context {
                tree: &mut self.tree,
                holds: &mut self.holds,
                vocab: &self.vocab,
                limit: self.limits.context,
            };
            let draft = samples.draft(sample, path, &mut load, most, &context);
            if draft.is_empty() {
                continue;
            }
            let placed = Placed::place(&mut self.tree, &mut self.batch, branch, &draft);
            usage.drafts += u64::from(!placed.is_empty());
            usage.drafted += placed.len() as u64;
            // Until they are accepted.
            usage.scored += placed.len() as u64;
            self.drafts.push((id, placed));
        }
    }

    /// Whether a lane may have rows in this step: nodes of given texts wait for their prompt.
    fn is_ready(&self, id: LaneId) -> bool {
        let job = &self.jobs[id.job];
        let lane = &job.lanes[id.lane];
        let prompt_there =
            id.lane == 0 || job.started || matches!(job.work, Work::Samples(_)) || self.todo_of(&job.lanes[0]) == 0;
        !lane.done && !lane.parked && !lane.in_step && prompt_there
    }

    fn todo(&self, id: LaneId) -> usize {
        self.todo_of(&self.jobs[id.job].lanes[id.lane])
    }

    /// Tokens of the path that its branch does not have yet.
    fn todo_of(&self, lane: &Lane) -> usize {
        lane.path.len() - lane.branch.map_or(0, |branch| self.tree.len(branch))
    }

    /// Follows the lane's path in the tree and adds up to `rows` rows to the step. False: no room.
    fn bring_on(&mut self, id: LaneId, rows: usize) -> bool {
        let job = &mut self.jobs[id.job];
        let from_prompt = (id.lane > 0).then(|| job.lanes[0].branch).flatten();
        let lane = &mut job.lanes[id.lane];
        let branch = *lane.branch.get_or_insert_with(|| match from_prompt {
            Some(prompt) if matches!(lane.role, Role::Node(_)) => self.tree.fork(prompt),
            _ => self.tree.open(),
        });
        let mut len = self.tree.len(branch);
        let found = self.tree.advance(branch, &lane.path[len..]);
        len += found;
        if id.lane == 0 && !job.started {
            self.meter.looked_up(if job.looked_up { 0 } else { lane.path.len() }, found);
            job.looked_up = true;
        }
        let path_len = lane.path.len();
        if len == path_len {
            // All of it is there. Its logits are not: they come from the row that writes the last token.
            let slot = self.tree.slots(branch)[len - 1];
            let row = self.batch.writer(slot).unwrap_or_else(|| {
                self.batch.slots.push(slot);
                self.batch.push(branch, len - 1, &lane.path[len - 1..]);
                lane.count(1, true);
                self.batch.len() - 1
            });
            lane.in_step = true;
            self.batch.want(row, id);
            return true;
        }
        let chunk = rows.min(path_len - len);
        while self
            .tree
            .append(branch, &self.jobs[id.job].lanes[id.lane].path[len..len + chunk], &mut self.batch.slots)
            .is_err()
        {
            if !self.give_way_to(id) {
                return false;
            }
        }
        let lane = &mut self.jobs[id.job].lanes[id.lane];
        self.batch.push(branch, len, &lane.path[len..len + chunk]);
        lane.in_step = true;
        let last = len + chunk == path_len;
        lane.count(chunk, last);
        if last {
            self.batch.want(self.batch.len() - 1, id);
        }
        true
    }

    /// Frees what a lane may take from others. False: nothing more.
    fn give_way_to(&mut self, id: LaneId) -> bool {
        let done =
            self.jobs.iter_mut().flat_map(|job| &mut job.lanes).find(|l| l.done && !l.in_step && l.branch.is_some());
        if let Some(branch) = done.and_then(|lane| lane.branch.take()) {
            self.tree.release(branch);
            return true;
        }
        if self.holds.give_way(&mut self.tree) {
            return true;
        }
        for job in (id.job..self.jobs.len()).rev() {
            let oldest = if job == id.job { id.lane + 1 } else { 0 };
            for lane in (oldest..self.jobs[job].lanes.len()).rev() {
                let lane = &mut self.jobs[job].lanes[lane];
                if lane.in_step || lane.branch.is_none_or(|branch| self.tree.is_empty(branch)) {
                    continue;
                }
                if let Some(branch) = lane.branch.take() {
                    self.tree.release(branch);
                    lane.parked = true;
                    return true;
                }
            }
        }
        false
    }

    /// Nobody had room: the oldest lane gets everything, or fails.
    fn make_way(&mut self) {
        self.unpark();
        let mut lanes =
            (0..self.jobs.len()).flat_map(|job| (0..self.jobs[job].lanes.len()).map(move |lane| LaneId { job, lane }));
        let Some(oldest) = lanes.find(|&id| self.is_ready(id)) else { return };
        for (at, job) in self.jobs.iter_mut().enumerate() {
            for (lane_at, lane) in job.lanes.iter_mut().enumerate() {
                if (LaneId { job: at, lane: lane_at }) != oldest
                    && let Some(branch) = lane.branch.take()
                {
                    self.tree.release(branch);
                    lane.parked = !lane.done;
                }
            }
        }
        while self.holds.give_way(&mut self.tree) {}
        if self.bring_on(oldest, self.limits.step_rows) {
            return;
        }
        // Pages are lost where a path shares only a part of one with what was there before. Nobody else is left in the
        // tree, so a new one wastes nothing.
        let path_len = self.jobs[oldest.job].lanes[oldest.lane].path.len();
        let fits = path_len.div_ceil(PAGE_TOKENS) <= self.llama.device().pages();
        self.jobs[oldest.job].lanes[oldest.lane].branch = None;
        self.forget_tree();
        if !fits || !self.bring_on(oldest, self.limits.step_rows) {
            let error = self.no_room(path_len);
            let mut context = Context {
                tree: &mut self.tree,
                holds: &mut self.holds,
                vocab: &self.vocab,
                limit: self.limits.context,
            };
            self.jobs[oldest.job].give_up(oldest.lane, error, &mut context);
            self.unpark();
        }
    }

    /// Begins with an empty tree; no lane may have a branch.
    fn forget_tree(&mut self) {
        self.meter.forgot(&self.tree.stats());
        self.holds.forget();
        self.tree = new_tree(&self.llama);
        self.planner = Planner::with_parallel(self.limits.method, self.limits.parallel);
    }

    fn unpark(&mut self) {
        for lane in self.jobs.iter_mut().flat_map(|job| &mut job.lanes) {
            lane.parked = false;
        }
    }

    /// Finds out what will be looked at of the wanted rows' logits. Rows of drafts are asked for their temperature only:
    /// what a constraint allows after them is not known before they are accepted.
    fn ask(&mut self) {
        self.asked.resize_with(self.batch.wanted.len(), Asked::default);
        self.asked.iter_mut().for_each(Asked::clear);
        for &(at, LaneId { job, lane }) in &self.batch.wanting {
            self.jobs[job].asks(lane, &self.vocab, &mut self.asked[at]);
        }
        for (LaneId { job, .. }, placed) in &self.drafts {
            let Work::Samples(samples) = &self.jobs[*job].work else { continue };
            for node in 0..placed.len() {
                self.asked[placed.wanted(node)].temperature = samples.temperature();
            }
        }
    }

    fn forward(&mut self, began: Instant) -> Result<()> {
        self.llama.freed(&self.tree.take_freed());
        let Batch { tokens, positions, slots, rows, wanted, selects, .. } = &self.batch;
        let planning = Instant::now();
        let work = self.planner.plan(&self.tree, rows);
        self.meter.planned(planning.elapsed(), &work.io);
        let heads: Vec<HeadRow<'_>> =
            wanted.iter().zip(&self.asked).map(|(&row, asked)| HeadRow { row, want: asked.want() }).collect();
        self.said.clear();
        let step = Step { tokens, positions, slots, work, selects };
        self.llama.forward(&step, &heads, &mut self.said)?;
        self.meter.stepped(began, tokens.len(), self.llama.device().times());
        Ok(())
    }

    /// Hands the logits to who wanted them.
    fn hand_out(&mut self) {
        let wanting = std::mem::take(&mut self.batch.wanting);
        let mut drafts = std::mem::take(&mut self.drafts).into_iter().peekable();
        // A job's lanes change place only when its prompt's logits come, which are the only ones it waits for then.
        for &(at, LaneId { job, lane }) in &wanting {
            self.meter.sampled(matches!(self.jobs[job].work, Work::Samples(_)));
            let mut context = Context {
                tree: &mut self.tree,
                holds: &mut self.holds,
                vocab: &self.vocab,
                limit: self.limits.context,
            };
            let mut row = Row::said(&self.said[at], &self.asked[at], self.limits.vocab, &mut self.llama, at);
            self.jobs[job].take_logits(lane, &mut row, &mut context);
            if let Some((_, placed)) = drafts.next_if(|(id, _)| *id == LaneId { job, lane }) {
                self.verify(LaneId { job, lane }, placed);
            }
        }
        self.batch.wanting = wanting;
    }

    /// Goes on along a draft for as long as the tokens that are drawn were drafted, then lets go of it.
    fn verify(&mut self, id: LaneId, placed: Placed) {
        let (mut at, mut accepted) = (None, 0);
        loop {
            let lane = &mut self.jobs[id.job].lanes[id.lane];
            let (Role::Sample(sample), Some(branch), Some(&drawn)) = (&mut lane.role, lane.branch, lane.path.last())
            else {
                // It ended.
                break;
            };
            placed.learn(&mut sample.luck, at, drawn);
            let Some(node) = placed.child(at, drawn) else { break };
            lane.branch = Some(placed.take_over(&mut self.tree, branch, node));
            lane.usage.scored -= 1;
            lane.usage.accepted += 1;
            accepted += 1;
            at = Some(node);
            self.meter.sampled(true);
            let mut context = Context {
                tree: &mut self.tree,
                holds: &mut self.holds,
                vocab: &self.vocab,
                limit: self.limits.context,
            };
            let wanted = placed.wanted(node);
            let (said, asked) = (&self.said[wanted], &self.asked[wanted]);
            let mut row = Row::said(said, asked, self.limits.vocab, &mut self.llama, wanted);
            self.jobs[id.job].take_logits(id.lane, &mut row, &mut context);
        }
        if !placed.is_empty() {
            self.meter.verified(placed.len(), accepted);
        }
        placed.release(&mut self.tree);
        if let Some(branch) = self.jobs[id.job].lanes[id.lane].branch {
            self.tree.join(branch);
        }
    }

    /// Removes finished jobs; whoever waited for pages may try again.
    fn sweep(&mut self) {
        let mut ended = false;
        for job in &mut self.jobs {
            if job.finished() {
                job.release(&mut self.tree);
                ended = true;
            }
            ended |= job.lanes.iter().any(|lane| lane.done && lane.in_step);
        }
        self.jobs.retain(|job| !job.finished());
        if ended {
            self.unpark();
        }
    }

    /// The device failed in the middle of a step: what the tree says of K/V is not true any more.
    fn fail_all(&mut self, error: &Error) {
        for job in &mut self.jobs {
            job.fail(error.clone(), &mut self.tree);
        }
        self.jobs.clear();
        self.drafts.clear();
        self.forget_tree();
    }

    fn show(&mut self) {
        let counters = self.meter.counters(&self.tree.stats(), self.llama.device().link());
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
