//! A running search, as a front end holds it.

use super::event::{Command, Event};
use tokio::sync::mpsc;

/// Events up, commands down. Dropping it ends the run.
pub struct RunHandle {
    pub events: mpsc::UnboundedReceiver<Event>,
    pub commands: mpsc::UnboundedSender<Command>,
}
