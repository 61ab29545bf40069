//! The controller carries out what a policy decides: it asks the model, grows and prunes the tree, spends the budgets,
//! obeys the user, and tells everyone by events. It decides nothing about the search by itself.
//!
//! | file | what |
//! |---|---|
//! | `begin.rs` | what a run is made from: plans, rules, limits |
//! | `prompt.rs` | renders prompts; few-shot examples shrink to the context |
//! | `generate.rs` | expands thoughts: proposals from the model, a list, or chance |
//! | `grow.rs` | a proposal becomes a thought, or is dropped; terminal states are checked |
//! | `score.rs` | carries out the evaluators |
//! | `given.rs` | log-probabilities of given texts, for evaluators |
//! | `part.rs` | parts of a puzzle, split and merged |
//! | `command.rs` | runs the programs that score thoughts |
//! | `steer.rs`, `undo.rs` | the user's commands; taking them back |
//! | `take_up.rs` | a recorded run goes on |
//! | `flight.rs`, `wait.rs` | requests that run at the same time; waiting for them while commands are obeyed |
//! | `memory.rs` | what the model is told of the tree, and what is told of its memory |
//! | `budget.rs`, `afford.rs` | counts, limits and the clock; what can be sent within the token budget |
//! | `finish.rs` | the outcome |
//!
//! Every change of the tree is an event first: [`Controller::emit`] applies it to the controller's own tree, records it
//! and sends it, so a tree rebuilt from the record is the controller's.

mod afford;
mod begin;
mod budget;
mod command;
mod finish;
mod flight;
pub mod generate;
mod given;
mod grow;
mod memory;
mod part;
mod prompt;
mod score;
mod steer;
mod take_up;
#[cfg(test)]
mod tests;
mod undo;
mod wait;

use super::event::{Command, Event, Outcome, Reason};
use super::policy::memory::Memory;
use super::policy::{self, Plan, Step};
use super::record::Recorder;
use super::run::Before;
use super::tree::{NodeId, ThoughtTree};
use crate::base::{Error, ErrorKind};
use crate::lm::{Constraint, HeldKv, Hold, Likelihood, Lm};
use crate::strategy::{Constrain, Generate, Strategy};
use crate::task::{Puzzle, Verdict};
use budget::Ledger;
use finish::Standing;
use grow::Fate;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use steer::Order;
use tokio::sync::mpsc;
use tokio::time::Interval;
use undo::Undo;

/// How often the counters of memory and speed are told.
const COUNTERS_EVERY: Duration = Duration::from_millis(250);

/// One run.
pub struct Controller {
    puzzle: Arc<dyn Puzzle>,
    strategy: Arc<Strategy>,
    lm: Arc<dyn Lm>,
    seed: u64,
    /// The puzzle's part of every random stream.
    puzzle_part: u64,
    /// The plan of the last stage, and those of the stages before it.
    plan: Plan,
    stages: Vec<Plan>,
    /// What the plans' expressions gave before.
    memory: Memory,
    /// The stage that was told last, from 0.
    stage: usize,
    /// What proposals are held to where the puzzle does not say it, compiled.
    rules: Vec<(Constrain, Arc<dyn Constraint>)>,
    /// The prompts' inputs that the whole puzzle gives: its examples are made up once, not for every prompt.
    inputs: Value,
    tree: ThoughtTree,
    standing: Standing,
    ledger: Ledger,
    /// Who was first in a state of the puzzle.
    states: HashMap<String, NodeId>,
    /// Claims on the K/V of live branches.
    holds: HashMap<NodeId, Hold>,
    /// What was told of it last.
    held_told: Vec<(NodeId, HeldKv)>,
    /// What the device had to tell, and was told.
    device_note: Option<String>,
    /// Token ids of thoughts as the model produced them, while their text is unchanged.
    ids: HashMap<NodeId, Tokens>,
    /// Whole answers, checked once each.
    checked: BTreeMap<NodeId, Verdict>,
    /// Proposals for each expanded thought, if the user set another number than the strategy.
    breadth: Option<usize>,
    temperature: Option<f32>,
    /// What the user ordered and is not done yet.
    orders: VecDeque<Order>,
    undo: Vec<Undo>,
    paused: bool,
    /// Policy steps left before the run pauses again.
    steps: usize,
    /// What is being merged: the sources of what grows below a thought.
    merging: HashMap<NodeId, Vec<NodeId>>,
    /// The thought that the strategy chose as its answer.
    chosen: Option<NodeId>,
    /// Why the run ends after this step. What runs is still waited for, so that its cost is counted.
    ending: Option<Reason>,
    /// Whether what runs is called off instead.
    hurry: bool,
    requests: u64,
    /// Replies of judges that could not be read.
    unreadable: u64,
    /// Why some thought was not expanded for lack of K/V memory.
    starved: Option<String>,
    /// What became of the proposals of the thought that was expanded last.
    fate: Fate,
    /// Few-shot examples that were left out, as last told.
    examples_told: Option<usize>,
    record: Option<Recorder>,
    /// What is told again before the run goes on.
    before: Option<Before>,
    events: mpsc::UnboundedSender<Event>,
    commands: mpsc::UnboundedReceiver<Command>,
    ticker: Interval,
    /// Thoughts were pruned, and nothing has been written since.
    pruned: bool,
}

/// Token ids of the first `len` bytes of a thought's text.
struct Tokens {
    ids: Arc<[u32]>,
    len: usize,
}

impl Controller {
    /// Runs to the end and tells the outcome; hands the tree back for whoever wants to look at it.
    pub async fn run(mut self) -> (Outcome, ThoughtTree) {
        self.states.insert(self.puzzle.state_key(""), NodeId::ROOT);
        match self.before.take() {
            Some(before) => self.take_up(before),
            None => {
                self.emit(Event::Started {
                    task: self.puzzle.task().to_string(),
                    puzzle: self.puzzle.id().to_string(),
                    title: self.puzzle.title(),
                    strategy: self.strategy.name.clone(),
                    model: self.lm.info().name.clone(),
                    seed: self.seed,
                    budget: self.ledger.limits,
                    among_allowed: self.lm.info().masks
                        && self.strategy.constrains()
                        && self.strategy.likelihood() == Likelihood::Allowed,
                });
                if self.paused {
                    self.emit(Event::Paused);
                }
            }
        }
        let reason = loop {
            // With a model that answers at once nothing else here would ever wait, and nobody could steer.
            tokio::task::yield_now().await;
            while let Ok(command) = self.commands.try_recv() {
                self.obey(command);
            }
            if self.commands.is_closed() && self.commands.is_empty() {
                self.stop(Reason::Quit);
            }
            if let Some(reason) = self.ending.take() {
                break reason;
            }
            if let Some(order) = self.orders.pop_front() {
                self.carry_out(order).await;
                self.progress();
                continue;
            }
            if self.paused && self.steps == 0 {
                self.ledger.clock.pause();
                self.wait().await;
                continue;
            }
            if let Some(reason) = self.step().await {
                break reason;
            }
            self.progress();
            if self.paused && self.steps > 0 {
                self.steps -= 1;
                if self.steps == 0 {
                    self.emit(Event::Paused);
                }
            }
        };
        self.holds.clear();
        match self.unreadable {
            0 => {}
            1 => self.note("1 reply of a judge could not be read"),
            many => self.note(format!("{many} replies of judges could not be read")),
        }
        if reason == Reason::Exhausted
            && let Some(why) = self.fate.all_dropped()
        {
            self.note(format!("nothing was left to expand because {why}"));
        }
        self.progress();
        let mut outcome = self.outcome(reason);
        self.check_model(&mut outcome.reason).await;
        // The model has answered, so that it has let go of what was given back before.
        self.tell_memory();
        self.emit(Event::Ended { outcome: outcome.clone() });
        (outcome, self.tree)
    }

    /// One step of the policy; the reason where it was the last.
    async fn step(&mut self) -> Option<Reason> {
        let (stage, step) = policy::next_of(&self.tree, &self.stages, &self.plan, &mut self.memory);
        if stage > self.stage {
            // An earlier stage may have work again (a thought to score, one that the user reopened); that is no news.
            self.note(format!("stage {} of {} begins", stage + 1, self.stages.len() + 1));
            self.stage = stage;
        }
        match step {
            // What memory kept from growing was not exhausted.
            Step::End(Reason::Exhausted) if self.starved.is_some() => {
                return self.starved.take().map(|detail| Reason::Memory { detail });
            }
            Step::End(reason) => return Some(reason),
            Step::Prune(low) => {
                for (node, why) in low {
                    self.prune(node, &why);
                }
            }
            Step::Evaluate(nodes) => self.evaluate(&nodes).await,
            Step::Visit(visits) => {
                for (node, value) in visits {
                    self.emit(Event::Visited { node, value });
                }
            }
            Step::Split(parts) => {
                if let Err(error) = self.split(parts) {
                    self.fail(&error);
                }
            }
            Step::Merge(pairs) => match self.ledger.used_up() {
                Some(reason) => return Some(reason),
                None => self.merge(&pairs).await,
            },
            Step::Choose { node, why } => return Some(self.choose(node, why)),
            Step::Expand(nodes) => match self.ledger.used_up() {
                Some(reason) => return Some(reason),
                None => {
                    self.foretell(&nodes);
                    self.expand(&nodes).await;
                }
            },
        }
        self.ending.take()
    }

    /// How a thought is made, or was: by its level.
    fn generate_of(&self, level: usize) -> &Generate {
        self.strategy.generate_at(level)
    }

    /// What thoughts of a level are held to, where the puzzle does not say it.
    fn rule_of(&self, level: usize) -> Option<&Arc<dyn Constraint>> {
        let constrain = &self.generate_of(level).constrain;
        self.rules.iter().find(|(known, _)| known == constrain).map(|(_, rule)| rule)
    }

    /// Applies, records and sends an event.
    fn emit(&mut self, event: Event) {
        if let Err(why) = self.tree.apply(&event) {
            // The controller makes the events itself, so this is its own mistake.
            debug_assert!(false, "{why}");
        }
        self.standing.note(&event);
        let failed = self.record.as_mut().and_then(|record| record.write(&event).err());
        // A front end that has gone away is noticed where commands are read.
        let _ = self.events.send(event);
        if let Some(error) = failed {
            self.record = None;
            self.note(format!("this run is not recorded from here on: {error}"));
        }
    }

    fn note(&mut self, text: impl Into<String>) {
        self.emit(Event::Note { text: text.into() });
    }

    fn progress(&mut self) {
        let best = self.best();
        self.emit(Event::Progress {
            depth: self.tree.live().map(|(_, n)| n.depth).max().unwrap_or(self.tree.deepest()),
            frontier: self.tree.live().count(),
            best,
            best_score: best.and_then(|id| self.tree.node(id).score).unwrap_or(0.0),
            thoughts: self.ledger.thoughts,
            usage: self.ledger.usage,
            seconds: self.seconds(),
        });
    }

    fn seconds(&self) -> f64 {
        round(self.ledger.clock.elapsed().as_secs_f64())
    }

    /// Ends the run at once.
    fn stop(&mut self, reason: Reason) {
        self.ending.get_or_insert(reason);
        self.hurry = true;
    }

    /// Ends the run because nothing of a step could be served.
    fn fail(&mut self, error: &Error) {
        let detail = error.message().to_string();
        self.ending.get_or_insert(match error.kind() {
            ErrorKind::Limit => Reason::Memory { detail },
            ErrorKind::Input => Reason::Refused { message: detail },
            ErrorKind::Fault => Reason::Failed { message: detail },
        });
    }

    /// Ends the run because the strategy asks for what cannot be made of it.
    fn refuse(&mut self, error: &Error) {
        self.ending.get_or_insert(Reason::Refused { message: error.message().to_string() });
    }
}

/// Twelve significant digits: a number that JSON carries exactly whoever reads it, so that a tree from a record equals
/// the one that ran.
fn round(value: f64) -> f64 {
    if value.is_finite() { format!("{value:.11e}").parse().unwrap_or(value) } else { f64::from(f32::MIN) }
}

/// JSON has no infinities: an impossible token's log-probability becomes the lowest number there is.
fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { f32::MIN }
}
