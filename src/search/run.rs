//! A running search, as a front end holds it.

use super::controller::Controller;
use super::event::{Command, Event, Limits, Outcome};
use super::record::Recorder;
use crate::base::{Error, Result};
use crate::lm::Lm;
use crate::strategy::Strategy;
use crate::task::Puzzle;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Events up, commands down. Dropping it ends the run.
pub struct RunHandle {
    pub events: mpsc::UnboundedReceiver<Event>,
    pub commands: mpsc::UnboundedSender<Command>,
}

/// What to search, how, and with what.
pub struct RunSpec {
    pub puzzle: Arc<dyn Puzzle>,
    pub strategy: Arc<Strategy>,
    pub lm: Arc<dyn Lm>,
    pub seed: u64,
    /// Wait for `Resume` or `Step` before the first step.
    pub paused: bool,
    /// Limits that take the place of the strategy's own, one by one.
    pub limits: Limits,
    /// Where the run is recorded; `None`: nowhere.
    pub record: Option<Recorder>,
    /// What another run did before this one goes on; `None`: begin at the beginning.
    pub before: Option<Before>,
}

/// The beginning of a recorded run that another one takes up: its record is lost to nobody, the new run's record holds
/// these events too.
#[derive(Debug, Clone, PartialEq)]
pub struct Before {
    /// The recorded run's id.
    pub from: String,
    /// Whole steps only: see [`super::record::whole_steps`].
    pub events: Vec<Event>,
    /// What is worth telling about how it was taken up.
    pub notes: Vec<String>,
}

/// Starts a run on the current tokio runtime.
///
/// # Errors
/// There is no current runtime; the strategy does not fit the puzzle: another task, a count that cannot be worked out, a prompt that does not render.
pub fn start(spec: RunSpec) -> Result<RunHandle> {
    let runtime = tokio::runtime::Handle::try_current()
        .map_err(|_| Error::fault("a search was started outside of a tokio runtime; enter one first"))?;
    let (event_sender, events) = mpsc::unbounded_channel();
    let (commands, command_receiver) = mpsc::unbounded_channel();
    let controller = Controller::new(spec, event_sender, command_receiver)?;
    runtime.spawn(controller.run());
    Ok(RunHandle { events, commands })
}

/// Runs a search to its end without a front end and tells every event on the way.
///
/// # Errors
/// Those of [`start`], and a run that went away without an end.
pub async fn solve(spec: RunSpec, mut on_event: impl FnMut(&Event)) -> Result<Outcome> {
    let mut handle = start(spec)?;
    while let Some(event) = handle.events.recv().await {
        on_event(&event);
        if let Event::Ended { outcome } = event {
            return Ok(outcome);
        }
    }
    Err(Error::fault("the search stopped without an end; this is a fault of the program"))
}
