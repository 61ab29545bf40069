//! A recorded run goes on: its events are told again, and what the controller keeps beside the tree is worked out from
//! them. The acts of before cannot be undone any more, and the K/V of its thoughts is computed anew when it is asked for.

use super::Controller;
use super::steer::Order;
use crate::base::{Error, Result};
use crate::search::event::{Command, Event, Limits};
use crate::search::run::Before;
use crate::search::tree::{NodeId, Status, ThoughtTree};

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

impl Controller {
    pub(super) fn take_up(&mut self, before: Before) {
        let Before { from, events, notes } = before;
        let known = limits(&events);
        let count = events.len();
        let mut was_paused = false;
        let mut seconds = 0.0;
        let mut orders: Vec<Order> = Vec::new();
        let mut events = events.into_iter().peekable();
        while let Some(event) = events.next() {
            let sources = match events.peek() {
                Some(Event::Merged { sources, .. }) => sources.clone(),
                _ => Vec::new(),
            };
            match &event {
                Event::Grown { parent, text, .. } => {
                    let (node, state) = (NodeId(self.tree.len() as u32), self.state_of(*parent, text, &sources));
                    self.states.entry(state).or_insert(node);
                    self.ledger.thoughts += 1;
                    self.ledger.proposals += 1;
                }
                Event::Dropped { .. } => self.ledger.proposals += 1,
                Event::Replied { usage, .. } => self.ledger.usage += *usage,
                Event::Asked { request, .. } => self.requests = self.requests.max(request + 1),
                Event::Settings { breadth, temperature, .. } => {
                    self.breadth = *breadth;
                    self.temperature = *temperature;
                }
                Event::Progress { seconds: passed, .. } => seconds = *passed,
                Event::Paused => was_paused = true,
                Event::Resumed => was_paused = false,
                Event::Act { command: Command::Expand { node } } => orders.push(Order::Expand(*node)),
                Event::Act { command: Command::Rescore { node } } => orders.push(Order::Rescore(*node)),
                Event::Expanded { node, .. } => orders.retain(|order| *order != Order::Expand(*node)),
                Event::Scored { node, .. } => orders.retain(|order| *order != Order::Rescore(*node)),
                Event::Status { node, status: Status::Pruned, .. } => orders.retain(|order| order.node() != *node),
                _ => {}
            }
            let edited = if let Event::Edited { node, .. } = &event { Some(*node) } else { None };
            self.emit(event);
            if let Some(node) = edited {
                let below = self.tree.subtree(node);
                self.states.retain(|_, first| !below.contains(first));
                let state = self.puzzle.state_key(&self.answer_of(node));
                self.states.entry(state).or_insert(node);
            }
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
        if known != Some(self.ledger.limits) {
            self.tell_settings();
        }
        match (was_paused, self.paused) {
            (false, true) => self.emit(Event::Paused),
            (true, false) => self.emit(Event::Resumed),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
