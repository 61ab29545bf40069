//! One request in flight: its lanes, and what becomes of their logits.
//!
//! A *lane* is a path of tokens that must be in the token tree so that the logits after its last token can be had. A
//! prompt, a sample that grows, an inner node of given texts and a path that lost its pages are all lanes: each step
//! brings some of them further, and what is already in the tree is never computed again.

use super::given::Given;
use super::hold::Holds;
use super::request::Usage;
use super::sample::row::{Asked, Row};
use super::sampling::{Sample, Sampling};
use super::vocab::Vocab;
use crate::base::Error;
use crate::kv::tree::{BranchId, TokenTree};

/// What jobs may touch while they take logits.
pub struct Context<'a> {
    pub tree: &'a mut TokenTree,
    pub holds: &'a mut Holds,
    pub vocab: &'a Vocab,
    /// Tokens a path may have.
    pub limit: usize,
}

/// A path to be brought into the tree.
pub struct Lane {
    /// `None`: not begun, or it gave its pages away.
    pub branch: Option<BranchId>,
    pub path: Vec<u32>,
    pub role: Role,
    /// Waits until some other lane ends, because it lost its pages.
    pub parked: bool,
    /// Its logits are not wanted any more.
    pub done: bool,
    /// Has rows in the step that is being made; its branch must stay.
    pub in_step: bool,
    /// Tokens forwarded for it.
    pub usage: Usage,
}

pub enum Role {
    /// The prompt.
    Root,
    Sample(Box<Sample>),
    /// An inner node of given texts.
    Node(usize),
}

impl Lane {
    pub fn new(path: Vec<u32>, role: Role) -> Self {
        let usage = Usage::default();
        Self { branch: None, path, role, parked: false, done: false, in_step: false, usage }
    }

    /// Counts `rows` forwarded tokens, the path's last one among them or not. A sampled token was counted when drawn.
    pub fn count(&mut self, rows: usize, last: bool) {
        let rows = rows as u64;
        match self.role {
            Role::Root => self.usage.prompt += rows,
            Role::Sample(_) => self.usage.prompt += rows - u64::from(last),
            Role::Node(_) => {
                self.usage.prompt += rows - u64::from(last);
                self.usage.scored += u64::from(last);
            }
        }
    }
}

/// A request in flight.
pub struct Job {
    /// Lane 0 begins as the prompt.
    pub lanes: Vec<Lane>,
    pub work: Work,
    /// The prompt's logits were taken.
    pub started: bool,
    /// The prompt was looked up in the tree.
    pub looked_up: bool,
}

pub enum Work {
    Samples(Sampling),
    Given(Given),
}

impl Job {
    pub fn new(prompt: &[u32], lanes: Vec<Lane>, work: Work) -> Self {
        let mut all = vec![Lane::new(prompt.to_vec(), Role::Root)];
        all.extend(lanes);
        Self { lanes: all, work, started: false, looked_up: false }
    }

    pub fn cancelled(&mut self) -> bool {
        match &mut self.work {
            Work::Samples(samples) => samples.reply().cancelled(),
            Work::Given(given) => given.cancelled(),
        }
    }

    pub fn finished(&self) -> bool {
        self.lanes.iter().all(|lane| lane.done)
    }

    /// What will be looked at of the logits after lane `lane`'s path, so that the device tells it at once.
    pub fn asks(&mut self, lane: usize, vocab: &Vocab, asked: &mut Asked) {
        match (&mut self.work, &self.lanes[lane].role) {
            (Work::Samples(samples), Role::Sample(sample)) => samples.asks(Some(sample), vocab, asked),
            (Work::Samples(samples), _) => samples.asks(None, vocab, asked),
            (Work::Given(given), role) => {
                given.asks(if let Role::Node(node) = role { *node } else { 0 }, asked);
            }
        }
    }

    /// Takes the logits after lane `lane`'s path.
    pub fn take_logits(&mut self, lane: usize, row: &mut Row<'_>, context: &mut Context<'_>) {
        let role = std::mem::replace(&mut self.lanes[lane].role, Role::Root);
        match (&mut self.work, role) {
            (Work::Samples(samples), Role::Sample(sample)) => {
                samples.next(&mut self.lanes[lane], *sample, row, context);
            }
            (Work::Samples(samples), _) => {
                self.started = true;
                let lanes = samples.start(&mut self.lanes[lane], row, context);
                self.lanes = lanes;
            }
            (Work::Given(given), role) => {
                let node = if let Role::Node(node) = role { node } else { 0 };
                self.started |= node == 0;
                self.lanes[lane].role = role;
                self.lanes[lane].done = true;
                given.fill(node, row, &mut self.lanes, context);
            }
        }
    }

    /// Lane `lane` can never be computed.
    pub fn give_up(&mut self, lane: usize, error: Error, context: &mut Context<'_>) {
        let role = std::mem::replace(&mut self.lanes[lane].role, Role::Root);
        match (&mut self.work, role) {
            (Work::Samples(samples), Role::Sample(sample)) => {
                samples.give_up(&mut self.lanes[lane], *sample, &error, context);
            }
            _ => self.fail(error, context.tree),
        }
    }

    /// Fails the whole request and lets go of its branches.
    pub fn fail(&mut self, error: Error, tree: &mut TokenTree) {
        match &mut self.work {
            Work::Samples(samples) => samples.reply().fail(error),
            Work::Given(given) => given.fail(error),
        }
        self.release(tree);
    }

    /// Ends all lanes and lets go of their branches.
    pub fn release(&mut self, tree: &mut TokenTree) {
        for lane in &mut self.lanes {
            lane.done = true;
            if let Some(branch) = lane.branch.take() {
                tree.release(branch);
            }
        }
    }
}
