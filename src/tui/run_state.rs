//! What is known of a run, built from its events alone; a live run and a replay feed it alike.
//!
//! It refuses to know about the screen: no sizes, no selection, no keys.

use super::prompts::Prompts;
use super::text::grouped;
use crate::lm::{Counters, Usage};
use crate::search::event::{Author, Command, Event, Limits, Outcome, Purpose, Reason};
use crate::search::tree::{NodeId, Status, ThoughtTree};
use std::collections::{HashMap, VecDeque};

/// Lines of the log that are kept.
const LOG_LINES: usize = 1000;
/// Points of a sparkline that are kept.
const SERIES_LEN: usize = 300;
/// Pieces of ended samples that still wait for their thought.
const WAITING_SAMPLES: usize = 256;
/// Bins of the histogram of scores, from 0 to 1.
const SCORE_BINS: usize = 20;
/// Counters are shown at most this often, in seconds.
const COUNTERS_EVERY: f64 = 0.25;

/// The clock on the screen goes on by itself in steps of so many seconds.
const CLOCK_STEP: f64 = 1.0;

/// A text piece and its natural-log probability.
pub type TokenPiece = (String, f32);

/// A sample that is being generated.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveSample {
    pub request: u64,
    pub sample: usize,
    pub node: NodeId,
    pub purpose: Purpose,
    pub text: String,
    pub pieces: Vec<TokenPiece>,
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

/// How a log line is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogKind {
    Info,
    Act,
    Good,
    Bad,
}

#[derive(Debug, Clone, PartialEq)]
pub struct LogLine {
    pub kind: LogKind,
    pub text: String,
    pub node: Option<NodeId>,
}

/// The newest values of something, oldest first.
#[derive(Debug, Clone, Default)]
pub struct Series {
    values: VecDeque<f64>,
}

impl Series {
    fn push(&mut self, value: f64) {
        if self.values.len() == SERIES_LEN {
            self.values.pop_front();
        }
        self.values.push_back(value);
    }

    /// At most the newest `n`, oldest first.
    pub fn newest(&self, n: usize) -> Vec<f64> {
        self.values.iter().skip(self.values.len().saturating_sub(n)).copied().collect()
    }
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
    pub replies: u64,
    pub dropped: u64,
    /// What is shown of memory, link and speed.
    pub counters: Counters,
    pub speed: Series,
    /// Bytes a second over the link, each way.
    pub link_down: Series,
    pub link_up: Series,
    /// Counts up whenever rows of the tree come, go or change their place.
    pub shape: u64,
    asked: HashMap<u64, Asked>,
    pieces: HashMap<NodeId, Vec<TokenPiece>>,
    waiting: VecDeque<(NodeId, String, Vec<TokenPiece>)>,
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
            Event::Started { task, puzzle, title, strategy, model, seed, budget } => {
                self.header = Some(Header {
                    task: task.clone(),
                    puzzle: puzzle.clone(),
                    title: title.clone(),
                    strategy: strategy.clone(),
                    model: model.clone(),
                    seed: *seed,
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
            Event::Token { request, node, sample, text, logprob } => {
                self.token(*request, *node, *sample, text, *logprob);
            }
            Event::Replied { request, node, sample, text, .. } => self.replied(*request, *node, *sample, text),
            Event::Dropped { parent, text, why, .. } => {
                self.dropped += 1;
                self.say(LogKind::Info, format!("dropped `{}`: {why}", brief(text)), Some(*parent));
            }
            Event::Grown { node, parent, text, by, token_logprobs, .. } => {
                self.grown(*node, *parent, text, token_logprobs.len());
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
            Event::Act { command } => {
                if let Command::SetBudget { limits } = command {
                    self.limits = *limits;
                }
                self.say(LogKind::Act, act_text(command), act_node(command));
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

    /// Shows counters that came too soon after the last ones. True where something changed.
    pub fn tick(&mut self, now: f64) -> bool {
        let clock = self.tick_clock(now);
        self.tick_counters(now) || clock
    }

    /// Seconds the search has run, pauses left out: as it told them, and what has passed since.
    pub fn seconds(&self) -> f64 {
        self.progress.seconds + self.since_told
    }

    fn tick_clock(&mut self, now: f64) -> bool {
        let Some(at) = self.told_at else { return false };
        let steps = ((now - at) / CLOCK_STEP).floor().max(0.0) * CLOCK_STEP;
        let moved = steps > self.since_told;
        self.since_told = self.since_told.max(steps);
        moved
    }

    fn tick_counters(&mut self, now: f64) -> bool {
        if self.pending.is_none() || self.shown_at.is_some_and(|at| now < at + COUNTERS_EVERY) {
            return false;
        }
        let Some(new) = self.pending.take() else { return false };
        if let (Some(old), Some(new), Some(at)) = (self.counters.link, new.link, self.shown_at)
            && now > at
        {
            let rate = |new: u64, old: u64| new.saturating_sub(old) as f64 / (now - at);
            self.link_down.push(rate(new.to_device_bytes, old.to_device_bytes));
            self.link_up.push(rate(new.to_host_bytes, old.to_host_bytes));
        }
        if let Some(speed) = new.speed {
            self.speed.push(speed.tokens_per_second);
        }
        self.counters = new;
        self.shown_at = Some(now);
        true
    }

    /// When [`Self::tick`] next has something to do.
    pub fn wake_at(&self) -> Option<f64> {
        let clock = self.told_at.map(|at| at + self.since_told + CLOCK_STEP);
        let counters = self.pending.as_ref().and(self.shown_at).map(|at| at + COUNTERS_EVERY);
        clock.into_iter().chain(counters).min_by(f64::total_cmp)
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
        }
    }

    /// Text pieces of a thought with their probabilities, where its tokens were seen live.
    pub fn pieces(&self, node: NodeId) -> Option<&[TokenPiece]> {
        self.pieces.get(&node).map(Vec::as_slice)
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

    fn token(&mut self, request: u64, node: NodeId, sample: usize, text: &str, logprob: f32) {
        if self.tree.get(node).is_none() {
            return;
        }
        let found = self.live.iter().position(|l| l.request == request && l.sample == sample);
        let at = found.unwrap_or_else(|| {
            let purpose = self.asked.get(&request).map_or(Purpose::Generate, |a| a.purpose);
            self.live.push(LiveSample { request, sample, node, purpose, text: String::new(), pieces: Vec::new() });
            self.shape += 1;
            self.live.len() - 1
        });
        let live = &mut self.live[at];
        live.text.push_str(text);
        live.pieces.push((text.to_string(), logprob));
    }

    fn replied(&mut self, request: u64, node: NodeId, sample: usize, text: &str) {
        self.replies += 1;
        let generated = self.asked.get(&request).is_none_or(|a| a.purpose == Purpose::Generate);
        if let Some(at) = self.live.iter().position(|l| l.request == request && l.sample == sample) {
            let live = self.live.remove(at);
            self.shape += 1;
            if generated {
                if self.waiting.len() == WAITING_SAMPLES {
                    self.waiting.pop_front();
                }
                self.waiting.push_back((node, text.to_string(), live.pieces));
            }
        }
        if let Some(asked) = self.asked.get_mut(&request) {
            asked.left = asked.left.saturating_sub(1);
            if asked.left == 0 {
                self.asked.remove(&request);
            }
        }
    }

    fn grown(&mut self, node: NodeId, parent: NodeId, text: &str, tokens: usize) {
        let depth = self.tree.node(node).depth;
        if self.by_depth.is_empty() {
            self.by_depth.push(1);
        }
        if self.by_depth.len() <= depth {
            self.by_depth.resize(depth + 1, 0);
        }
        self.by_depth[depth] += 1;
        self.statuses[Status::Open as usize] += 1;
        self.shape += 1;
        // The reply may have been trimmed on its way to a thought; its tokens are those of the whole reply.
        let found = self.waiting.iter().position(|(from, reply, pieces)| {
            *from == parent && (reply == text || (pieces.len() == tokens && reply.contains(text)))
        });
        if let Some((_, _, pieces)) = found.and_then(|at| self.waiting.remove(at)) {
            self.pieces.insert(node, pieces);
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
        self.waiting.clear();
        self.shape += 1;
        self.shown_at = self.shown_at.map(|at| at.min(now - COUNTERS_EVERY));
        self.tick(now);
    }

    fn say(&mut self, kind: LogKind, text: String, node: Option<NodeId>) {
        if self.log.len() == LOG_LINES {
            self.log.pop_front();
        }
        self.log.push_back(LogLine { kind, text, node });
    }
}

/// A score that is no number counts as 0, so that every scored thought is in one bin.
fn score_bin(score: f64) -> usize {
    ((score.clamp(0.0, 1.0) * SCORE_BINS as f64) as usize).min(SCORE_BINS - 1)
}

fn brief(text: &str) -> String {
    let line = super::text::display_line(text);
    super::text::shorten(&line, 24, "~").into_owned()
}

fn act_node(command: &Command) -> Option<NodeId> {
    match command {
        Command::Expand { node }
        | Command::Prune { node }
        | Command::Pin { node }
        | Command::Unpin { node }
        | Command::Edit { node, .. }
        | Command::Rescore { node }
        | Command::Add { parent: node, .. } => Some(*node),
        _ => None,
    }
}

/// A steering act as a log line.
fn act_text(command: &Command) -> String {
    let limit = |name: &str, n: Option<String>| n.map_or(format!("no limit of {name}"), |n| format!("{n} {name}"));
    match command {
        Command::Pause => "you: pause".into(),
        Command::Resume => "you: resume".into(),
        Command::Step => "you: one step".into(),
        Command::Expand { node } => format!("you: expand {node}"),
        Command::Prune { node } => format!("you: prune {node} and below"),
        Command::Pin { node } => format!("you: pin {node}"),
        Command::Unpin { node } => format!("you: unpin {node}"),
        Command::Edit { node, text } => format!("you: edit {node} to `{}`", brief(text)),
        Command::Add { parent, text } => format!("you: add `{}` under {parent}", brief(text)),
        Command::Rescore { node } => format!("you: rescore {node}"),
        Command::SetBreadth { n } => format!("you: breadth {n}"),
        Command::SetTemperature { temperature } => format!("you: temperature {temperature}"),
        Command::SetBudget { limits } => format!(
            "you: budget {}, {}, {}",
            limit("tokens", limits.tokens.map(grouped)),
            limit("thoughts", limits.thoughts.map(grouped)),
            limit("seconds", limits.seconds.map(|s| s.to_string())),
        ),
        Command::Undo => "you: undo".into(),
        Command::Quit => "you: quit".into(),
    }
}
