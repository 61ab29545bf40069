//! Acts on the search: what can be asked of it now is sent, and what cannot says why.

use crate::search::event::Command;
use crate::search::tree::{NodeId, Status};
use crate::tui::app::{App, Effect};
use crate::tui::field::Field;
use crate::tui::keys::Action;
use crate::tui::popup::Popup;

impl App {
    pub(super) fn steer(&mut self, action: Action, node: NodeId) {
        let Some(run) = &self.run else { return };
        if !run.is_running() {
            let again = self.keys.key(Action::Banner);
            self.say(format!("the search has ended ({again} shows the result)"));
            return;
        }
        let thought = run.state.tree.node(node);
        let is_root = thought.parent.is_none();
        let text = thought.text.clone();
        let (paused, pinned) = (run.state.paused, thought.status == Status::Pinned);
        match action {
            Action::Pause => self.command(if paused { Command::Resume } else { Command::Pause }),
            Action::Step => self.command(Command::Step),
            Action::Expand => self.command(Command::Expand { node }),
            Action::Undo => self.command(Command::Undo),
            Action::Add => self.popup = Some(Popup::Add { parent: node, field: Field::lines("") }),
            _ if is_root => self.say("the root is the puzzle itself; choose a thought below it"),
            Action::Prune => self.command(Command::Prune { node }),
            Action::Pin => self.command(if pinned { Command::Unpin { node } } else { Command::Pin { node } }),
            Action::Rescore => self.command(Command::Rescore { node }),
            Action::Edit => self.popup = Some(Popup::Edit { node, field: Field::lines(unended(&text)) }),
            _ => {}
        }
    }

    /// A text that the user typed, with the line's end that a thought like this one has: the field does not show it.
    pub(super) fn ended_as(&self, like: NodeId, text: String) -> String {
        let ended = |text: &str| text[unended(text).len()..].to_string();
        match self.run.as_ref().and_then(|run| run.state.tree.get(like)) {
            Some(thought) if !text.ends_with('\n') => text + &ended(&thought.text),
            _ => text,
        }
    }

    /// Sends a command to the search; the picture changes when the search answers with its events.
    pub fn command(&mut self, command: Command) {
        if self.is_running() {
            self.effect(Effect::Send(command));
        } else {
            self.say("the search has ended");
        }
    }

    pub(super) fn mark(&mut self) {
        let Some(run) = &mut self.run else { return };
        let here = run.tree.selected();
        match run.marked {
            None => {
                run.marked = Some(here);
                let key = self.keys.key(Action::Mark).to_string();
                self.say(format!("{here} marked; {key} on another thought compares the two"));
            }
            Some(there) if there == here => run.marked = None,
            Some(there) => self.popup = Some(Popup::Compare { a: there, b: here, top: 0 }),
        }
    }
}

/// A thought's text without the line's end that belongs to it as a step (as in game24).
fn unended(text: &str) -> &str {
    text.trim_end_matches(['\n', '\r'])
}
