//! The log: what happened, a line each.

use super::RunState;
use crate::search::event::Command;
use crate::search::tree::NodeId;
use crate::tui::text::{display_line, grouped, shorten};

/// Lines of the log that are kept.
const LOG_LINES: usize = 1000;

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

impl RunState {
    pub(super) fn say(&mut self, kind: LogKind, text: String, node: Option<NodeId>) {
        if self.log.len() == LOG_LINES {
            self.log.pop_front();
        }
        self.log.push_back(LogLine { kind, text, node });
    }
}

pub(super) fn brief(text: &str) -> String {
    let line = display_line(text);
    shorten(&line, 24, "~").into_owned()
}

/// A steering act as a log line.
pub(super) fn act_text(command: &Command) -> String {
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
