//! The controller against a script: each test is a short story of one run.
//!
//! - `growth`: how thoughts come about
//! - `judging`: evaluators carried out
//! - `endings`: limits, rules, failures, answers
//! - `budget`: the token budget binds, and what a run cost can be counted again from its events
//! - `steering`: the user's commands
//! - `record`: what a record gives back

mod budget;
mod endings;
mod fake;
mod growth;
mod judging;
mod record;
mod steering;

use crate::base::{Error, Result};
use crate::lm::random::RandomProposer;
use crate::lm::{Counters, Finish, Generate, Info, Lm, Prompt, Score, Scores, Update};
use crate::search::event::{Command, Event, Limits, Reason};
use crate::search::testing::{Spell, case_replies, recorder, run, run_steered, script, source, spec, strategy, value};
use crate::search::tree::{NodeId, Status};
use crate::strategy::{Constrain, Count, Evaluator, GenerateKind, Policy, Stage, Strategy, Thought};
use fake::{Endless, Fake, completion, says};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use tokio::sync::{mpsc, oneshot};

fn checked(policy: Policy) -> Strategy {
    Strategy { evaluate: vec![Evaluator::Checker { partial: true }], ..strategy(policy) }
}
