//! A recorded run goes on: its events are told again, and what the controller keeps beside the tree is worked out from
//! them, the undoing of the user's acts included. The K/V of its thoughts is computed anew when it is asked for.

use super::Controller;
use super::steer::Order;
use super::undo::Undo;
use crate::base::{Error, Result};
use crate::search::event::{Command, Event, Limits};
use crate::search::run::Before;
use crate::search::tree::{NodeId, Status, ThoughtTree};
use crate::strategy::MOST_AT_ONCE;

/// Refuses events that do not make a tree, or that no run begins with.
pub fn check(before: &Before) -> Result<()> {
    if !matches!(before.events.first(), Some(Event::Started { .. })) {
        return Err(Error::input(format!("run {} had not begun; start it anew", before.from)));
    }
    let mut tree = ThoughtTree::default();
    for event in &before.events {
        tree.apply(event).map_err(|why| Error::input(format!("run {}: {why}", before.from)))?;
    }
    Ok(())
}

/// The limits that held last.
pub fn limits(events: &[Event]) -> Option<Limits> {
    events.iter().rev().find_map(|event| match event {
        Event::Settings { limits, .. } => Some(*limits),
        Event::Started { budget, .. } => Some(*budget),
        _ => None,
    })
}

/// What an act does beside the tree, once it is seen not to have been refused.
enum Pending {
    Undoable(Undo),
    TakeBack,
    Order(Order),
}

impl Controller {
    pub(super) fn take_up(&mut self, before: Before) {
        let Before { from, events, notes } = before;
        // While the events are told again the limits are those of their time.
        let limits = std::mem::take(&mut self.ledger.limits);
        let mut pending: Option<Pending> = None;
        let mut acted = false;
        let count = events.len();
        // What the screen showed of memory and link is not so any more.
        let events = events.into_iter().filter(|event| !event.is_for_screen());
        let mut was_paused = false;
        let mut seconds = 0.0;
        let mut orders: Vec<Order> = Vec::new();
        let mut events = events.peekable();
        while let Some(event) = events.next() {
            let sources = match events.peek() {
                Some(Event::Merged { sources, .. }) => sources.clone(),
                _ => Vec::new(),
            };
            match pending.take().filter(|_| !is_refusal(&event)) {
                Some(Pending::Undoable(undo)) => self.undo.push(undo),
                Some(Pending::TakeBack) => drop(self.undo.pop()),
                Some(Pending::Order(order)) => orders.push(order),
                None => {}
            }
            match &event {
                Event::Started { budget, .. } => self.ledger.limits = *budget,
                Event::Grown { parent, text, .. } => {
                    let (node, state) = (NodeId(self.tree.len() as u32), self.state_of(*parent, text, &sources));
                    self.states.entry(state).or_insert(node);
                    self.ledger.thoughts += 1;
                    self.ledger.proposals += 1;
                }
                Event::Dropped { .. } => self.ledger.proposals += 1,
                Event::Replied { usage, .. } => self.ledger.usage += *usage,
                Event::Asked { request, .. } => self.requests = self.requests.max(request + 1),
                Event::Settings { breadth, temperature, limits } => {
                    self.breadth = breadth.map(|n| n.clamp(1, MOST_AT_ONCE));
                    self.temperature = *temperature;
                    self.ledger.limits = *limits;
                    if !acted {
                        self.forget_budgets();
                    }
                }
                Event::Progress { seconds: passed, .. } => seconds = *passed,
                Event::Paused => was_paused = true,
                Event::Resumed => was_paused = false,
                Event::Act { command } => {
                    pending = match command {
                        Command::Expand { node } => Some(Pending::Order(Order::Expand(*node))),
                        Command::Rescore { node } => Some(Pending::Order(Order::Rescore(*node))),
                        Command::Undo => Some(Pending::TakeBack),
                        other => self.undo_of(other).map(Pending::Undoable),
                    }
                }
                Event::Begun { command } => {
                    self.undo.extend(self.undo_of(command));
                    if let Some(at) = orders.iter().position(|order| order.command() == *command) {
                        orders.remove(at);
                    }
                }
                Event::Status { node, status: Status::Pruned, .. } => orders.retain(|order| order.node() != *node),
                _ => {}
            }
            acted = matches!(event, Event::Act { .. });
            let edited = if let Event::Edited { node, .. } = &event { Some(*node) } else { None };
            self.emit(event);
            if let Some(node) = edited {
                let below = self.tree.subtree(node);
                self.states.retain(|_, first| !below.contains(first));
                orders.retain(|order| !below.contains(&order.node()));
                let state = self.puzzle.state_key(&self.answer_of(node));
                self.states.entry(state).or_insert(node);
            }
        }
        // An act that came last was cut off from what it did; an order of it is still to be done.
        if let Some(Pending::Order(order)) = pending {
            orders.push(order);
        }
        for id in (1..self.tree.len() as u32).map(NodeId) {
            if let Some(verdict) = self.whole_answer(id) {
                self.checked.insert(id, verdict);
            }
        }
        self.ledger.clock.add(seconds);
        orders.retain(|order| self.tree.get(order.node()).is_some() && !self.checked.contains_key(&order.node()));
        self.orders.extend(orders);
        self.emit(Event::Continued { from, events: count });
        for note in notes {
            self.note(note);
        }
        if std::mem::replace(&mut self.ledger.limits, limits) != limits {
            self.forget_budgets();
            self.tell_settings();
        }
        match (was_paused, self.paused) {
            (false, true) => self.emit(Event::Paused),
            (true, false) => self.emit(Event::Resumed),
            _ => {}
        }
    }

    /// Limits that were given anew with the command are no act: undoing an older act must not bring back what was before
    /// them.
    fn forget_budgets(&mut self) {
        self.undo.retain(|undo| !matches!(undo, Undo::Budget(_)));
    }
}

/// How the search answers an act that it refuses; a proposal that is no thought is told as dropped first.
fn is_refusal(event: &Event) -> bool {
    matches!(event, Event::Note { .. } | Event::Dropped { .. })
}

#[cfg(test)]
mod tests;
