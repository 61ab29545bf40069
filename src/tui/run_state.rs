//! What is known of a run, built from its events alone; a live run and a replay feed it alike.
//!
//! It refuses to know about the screen: no sizes, no selection, no keys.

mod clock;
mod log;
mod pieces;
mod samples;

pub use clock::Series;
pub use log::{LogKind, LogLine};

use super::held::Held;
use super::prompts::Prompts;
use crate::lm::{Counters, Usage};
use crate::search::event::{Author, Event, Limits, Outcome, Purpose, Reason};
use crate::search::export::{Page, outcome_fact};
use crate::search::tree::{NodeId, Status, ThoughtTree};
use clock::COUNTERS_EVERY;
use log::{act_text, brief};
use pieces::{Pieces, Reply};
use std::collections::{HashMap, VecDeque};

/// Points of a sparkline that are kept.
const SERIES_LEN: usize = 300;
/// Bins of the histogram of scores, from 0 to 1.
const SCORE_BINS: usize = 20;

/// A sample that is being generated.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveSample {
    pub request: u64,
    pub sample: usize,
    pub node: NodeId,
    pub purpose: Purpose,
    pub text: String,
}

/// What the first event of a run told.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    pub task: String,
    pub puzzle: String,
    pub title: String,
    pub strategy: String,
    pub model: String,
    pub seed: u64,
    /// Whether probabilities of tokens are among what was allowed.
    pub among_allowed: bool,
}

/// How far the search is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Progress {
    pub depth: usize,
    pub frontier: usize,
    pub best: Option<NodeId>,
    pub best_score: f64,
    pub thoughts: u64,
    pub usage: Usage,
    pub seconds: f64,
}

#[derive(Debug, Clone)]
struct Asked {
    purpose: Purpose,
    left: usize,
}

#[derive(Debug, Clone, Default)]
pub struct RunState {
    pub header: Option<Header>,
    pub limits: Limits,
    pub tree: ThoughtTree,
    pub progress: Progress,
    pub paused: bool,
    pub outcome: Option<Outcome>,
    pub log: VecDeque<LogLine>,
    pub prompts: Prompts,
    /// Running samples, in order of their first token.
    pub live: Vec<LiveSample>,
    /// The thought that was expanded last: where the search is at work.
    pub working: Option<NodeId>,
    /// Breadth and temperature that the user set.
    pub set_by_hand: (Option<usize>, Option<f32>),
    pub replies: u64,
    pub dropped: u64,
    /// Which thoughts keep K/V.
    pub held: Held,
    /// What is shown of memory, link and speed.
    pub counters: Counters,
    pub speed: Series,
    /// Bytes a second over the link, each way.
    pub link_down: Series,
    pub link_up: Series,
    /// Counts up whenever rows of the tree come, go or change their place.
    pub shape: u64,
    asked: HashMap<u64, Asked>,
    pieces: HashMap<NodeId, Pieces>,
    /// What came back last, until its thought grows.
    reply: Option<Reply>,
    pending: Option<Counters>,
    shown_at: Option<f64>,
    /// When, on the reader's clock, the search last told its seconds; `None` while they stand still.
    told_at: Option<f64>,
    /// Seconds that have passed since then, as shown.
    since_told: f64,
    by_depth: Vec<u32>,
    /// Changes against the beginning, when there is one open thought, the root.
    statuses: [i64; 5],
    scores: [u32; SCORE_BINS],
}

impl RunState {
    /// Takes one event in. `now` is the reader's clock in seconds; only rates and throttling use it.
    pub fn apply(&mut self, event: &Event, now: f64) {
        let before = self.status_of(event);
        let score_before = self.score_of(event);
        if let Err(why) = self.tree.apply(event) {
            self.say(LogKind::Bad, format!("an event does not fit the tree: {why}"), None);
            return;
        }
        self.count_score(event, score_before);
        match event {
            Event::Started { task, puzzle, title, strategy, model, seed, budget, among_allowed } => {
                self.header = Some(Header {
                    task: task.clone(),
                    puzzle: puzzle.clone(),
                    title: title.clone(),
                    strategy: strategy.clone(),
                    model: model.clone(),
                    seed: *seed,
                    among_allowed: *among_allowed,
                });
                self.limits = *budget;
                self.told_at = Some(now);
                self.shape += 1;
                self.say(LogKind::Info, format!("started {strategy} on {task} {puzzle}"), None);
            }
            Event::Asked { request, node, purpose, samples, prompt } => {
                self.asked.insert(*request, Asked { purpose: *purpose, left: *samples });
                self.prompts.keep(*node, *purpose, prompt);
                if *purpose == Purpose::Generate && self.tree.get(*node).is_some() {
                    self.working = Some(*node);
                }
            }
            Event::Token { request, node, sample, text, .. } => self.token(*request, *node, *sample, text),
            Event::Replied { request, node, sample, text, pieces, piece_logprobs, .. } => {
                self.replied(*request, *sample);
                self.reply = Reply::new(*node, text, pieces, piece_logprobs);
            }
            Event::Dropped { parent, text, why, .. } => {
                self.dropped += 1;
                self.say(LogKind::Info, format!("dropped `{}`: {why}", brief(text)), Some(*parent));
            }
            Event::Grown { node, parent, text, by, token_logprobs, .. } => {
                self.grown(*node, *parent, text, token_logprobs);
                if *by == Author::User {
                    self.say(LogKind::Act, format!("{node} added by hand"), Some(*node));
                }
            }
            Event::Status { node, status, why } => {
                if let Some(before) = before
                    && before != *status
                {
                    self.statuses[before as usize] -= 1;
                    self.statuses[*status as usize] += 1;
                    self.shape += 1;
                }
                let reason = why.as_deref().map(|w| format!(": {w}")).unwrap_or_default();
                match status {
                    Status::Pruned => self.say(LogKind::Bad, format!("{node} pruned{reason}"), Some(*node)),
                    Status::Pinned => self.say(LogKind::Act, format!("{node} pinned{reason}"), Some(*node)),
                    Status::Answer => self.say(LogKind::Good, format!("{node} is an answer{reason}"), Some(*node)),
                    Status::Open | Status::Closed => {}
                }
            }
            Event::Expanded { .. } | Event::Visited { .. } | Event::Merged { .. } => {}
            Event::Edited { node, .. } => {
                self.pieces.remove(node);
                self.say(LogKind::Act, format!("{node} edited by hand"), Some(*node));
            }
            Event::Progress { depth, frontier, best, best_score, thoughts, usage, seconds } => {
                self.progress = Progress {
                    depth: *depth,
                    frontier: *frontier,
                    best: best.filter(|b| self.tree.get(*b).is_some()),
                    best_score: *best_score,
                    thoughts: *thoughts,
                    usage: *usage,
                    seconds: *seconds,
                };
                self.since_told = 0.0;
                self.told_at = self.told_at.map(|_| now);
            }
            Event::Counters { counters } => {
                self.pending = Some(counters.clone());
                self.tick(now);
            }
            Event::Held { thoughts } => self.held.set(&self.tree, thoughts),
            Event::Act { command } => {
                self.say(LogKind::Act, act_text(command), command.node());
            }
            Event::Settings { breadth, temperature, limits } => {
                self.limits = *limits;
                self.set_by_hand = (*breadth, *temperature);
            }
            Event::Continued { from, events } => {
                self.say(LogKind::Act, format!("goes on from event {events} of run {from}"), None);
            }
            Event::Paused => {
                self.paused = true;
                self.told_at = None;
                self.say(LogKind::Act, "paused".into(), None);
            }
            Event::Resumed => {
                self.paused = false;
                self.progress.seconds += std::mem::take(&mut self.since_told);
                self.told_at = Some(now);
                self.say(LogKind::Act, "resumed".into(), None);
            }
            Event::Note { text } => self.say(LogKind::Info, text.clone(), None),
            Event::Ended { outcome } => self.ended(outcome.clone(), now),
            // What else there is changes the tree alone, and that is done.
            _ => {}
        }
    }

    /// The tree as it is now, as a page for a file.
    pub fn page(&self) -> Page<'_> {
        let mut facts = Vec::new();
        let title = match &self.header {
            Some(h) => {
                facts.push(format!("{} on {}, seed {}", h.strategy, h.model, h.seed));
                h.title.clone()
            }
            None => "a search that has not started".into(),
        };
        facts.push(self.outcome.as_ref().map_or_else(
            || format!("{} thoughts so far, {} tokens", self.progress.thoughts, self.progress.usage.tokens()),
            outcome_fact,
        ));
        Page { title, facts, tree: &self.tree, best: self.best() }
    }

    /// The outcome of a run that did not get to tell its own.
    pub fn unfinished(&self, reason: Reason) -> Outcome {
        Outcome {
            solved: false,
            why: reason.to_string(),
            reason,
            node: self.progress.best,
            answer: None,
            answer_text: None,
            error_score: None,
            thoughts: self.progress.thoughts,
            proposals: self.replies,
            usage: self.progress.usage,
            seconds: self.progress.seconds,
            link: self.counters.link.filter(|link| link.device_budget_bytes > 0),
        }
    }

    /// Thoughts at each depth, the root's first.
    pub fn by_depth(&self) -> &[u32] {
        &self.by_depth
    }

    pub fn with_status(&self, status: Status) -> u64 {
        let root = i64::from(status == Status::Open);
        u64::try_from(self.statuses[status as usize] + root).unwrap_or(0)
    }

    /// The best thought: the answer where there is one.
    pub fn best(&self) -> Option<NodeId> {
        let answer = self.outcome.as_ref().and_then(|o| o.node).filter(|n| self.tree.get(*n).is_some());
        answer.or(self.progress.best)
    }

    /// Scored thoughts by score, in equal bins.
    pub fn by_score(&self) -> &[u32] {
        &self.scores
    }

    fn score_of(&self, event: &Event) -> Option<f64> {
        match event {
            Event::Scored { node, .. } | Event::Edited { node, .. } => self.tree.get(*node)?.score,
            _ => None,
        }
    }

    /// Moves a thought from its old bin to its new one; an edited thought may have lost its score.
    fn count_score(&mut self, event: &Event, before: Option<f64>) {
        if matches!(event, Event::Scored { .. } | Event::Edited { .. }) {
            if let Some(old) = before {
                self.scores[score_bin(old)] -= 1;
            }
            if let Some(new) = self.score_of(event) {
                self.scores[score_bin(new)] += 1;
            }
        }
    }

    fn status_of(&self, event: &Event) -> Option<Status> {
        match event {
            Event::Status { node, .. } => self.tree.get(*node).map(|n| n.status),
            _ => None,
        }
    }

    fn ended(&mut self, outcome: Outcome, now: f64) {
        let kind = if outcome.solved { LogKind::Good } else { LogKind::Bad };
        self.say(kind, format!("ended: {}", outcome.reason), outcome.node);
        self.progress.thoughts = outcome.thoughts;
        self.progress.usage = outcome.usage;
        self.progress.seconds = outcome.seconds;
        self.told_at = None;
        self.since_told = 0.0;
        self.outcome = Some(outcome);
        self.paused = false;
        self.live.clear();
        self.asked.clear();
        self.reply = None;
        self.shape += 1;
        self.shown_at = self.shown_at.map(|at| at.min(now - COUNTERS_EVERY));
        self.tick(now);
    }
}

/// A score that is no number counts as 0, so that every scored thought is in one bin.
fn score_bin(score: f64) -> usize {
    ((score.clamp(0.0, 1.0) * SCORE_BINS as f64) as usize).min(SCORE_BINS - 1)
}
