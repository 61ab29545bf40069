//! The user's commands. A command takes effect at once, in the middle of a step too; what needs the model (expand, rescore)
//! is queued and done before the policy's next step.

use super::Controller;
use super::grow::Proposal;
use crate::lm::Finish;
use crate::search::event::{Author, Command, Event, Reason};
use crate::search::tree::{NodeId, Status};
use crate::strategy::{Evaluator, MOST_AT_ONCE};

/// What is done as soon as nothing else runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Order {
    Expand(NodeId),
    Rescore(NodeId),
}

impl Order {
    pub(super) fn node(self) -> NodeId {
        match self {
            Self::Expand(node) | Self::Rescore(node) => node,
        }
    }

    pub(super) fn command(self) -> Command {
        match self {
            Self::Expand(node) => Command::Expand { node },
            Self::Rescore(node) => Command::Rescore { node },
        }
    }
}

impl Controller {
    pub(super) fn obey(&mut self, command: Command) {
        let _ = self.obey_during(command);
    }

    /// Obeys, and tells which thoughts' running requests have lost their purpose.
    pub(super) fn obey_during(&mut self, command: Command) -> Vec<NodeId> {
        if let Command::SetTemperature { temperature } = command
            && !(temperature.is_finite() && temperature >= 0.0)
        {
            // Told and not recorded as an act: JSON has no NaN, and the record must be readable.
            self.note(format!("temperature {temperature} is not 0 or a positive number"));
            return Vec::new();
        }
        self.emit(Event::Act { command: command.clone() });
        let undo = match &command {
            // What is ordered changes nothing before it is begun.
            Command::Expand { .. } | Command::Rescore { .. } => None,
            other => self.undo_of(other),
        };
        // A refused act is answered by a note at once: that is how a reader of the record tells it from the others.
        match self.do_act(command) {
            Ok(gone) => {
                self.undo.extend(undo);
                gone
            }
            Err(why) => {
                self.note(why);
                Vec::new()
            }
        }
    }

    fn do_act(&mut self, command: Command) -> Result<Vec<NodeId>, String> {
        if let Some(node) = command.node()
            && self.tree.get(node).is_none()
        {
            return Err(format!("there is no thought {node}"));
        }
        match command {
            Command::Pause => {
                if !self.paused {
                    // The clock goes on until the step that runs has ended.
                    self.paused = true;
                    self.emit(Event::Paused);
                }
                self.steps = 0;
            }
            Command::Resume => {
                if self.paused {
                    self.paused = false;
                    self.ledger.clock.resume();
                    self.emit(Event::Resumed);
                }
                self.steps = 0;
            }
            Command::Step => {
                self.paused = true;
                self.steps += 1;
                self.ledger.clock.resume();
            }
            Command::Expand { node } if self.checked.contains_key(&node) => {
                return Err(format!("thought {node} is a whole answer and cannot be expanded"));
            }
            Command::Expand { node } => self.orders.push_back(Order::Expand(node)),
            Command::Prune { node } => return self.prune_by_hand(node),
            Command::Pin { node } => self.pin(node)?,
            Command::Unpin { node } => self.unpin(node)?,
            Command::Edit { node, text } => return self.edit(node, text),
            Command::Add { parent, text } => self.add(parent, text)?,
            Command::Rescore { node } if node == NodeId::ROOT => return Err("the puzzle itself has no score".into()),
            Command::Rescore { node } => self.orders.push_back(Order::Rescore(node)),
            Command::SetBreadth { n } => {
                self.breadth = Some(n.clamp(1, MOST_AT_ONCE));
                self.tell_settings();
            }
            Command::SetTemperature { temperature } => {
                self.temperature = Some(temperature);
                self.tell_settings();
            }
            Command::SetBudget { limits } => {
                self.ledger.limits = limits;
                self.tell_settings();
            }
            Command::Undo => self.take_back()?,
            Command::Quit => self.stop(Reason::Quit),
        }
        Ok(Vec::new())
    }

    /// Does what was ordered.
    pub(super) async fn carry_out(&mut self, order: Order) {
        match order {
            Order::Expand(node) => {
                self.begin(order);
                // What is reopened counts as visited: its way up must not hide what will grow below it.
                for id in self.tree.path(node) {
                    let at = self.tree.node(id);
                    if at.status == Status::Pruned {
                        let status = if id == node || at.expansions == 0 { Status::Open } else { Status::Closed };
                        self.set(id, status, Some("reopened by the user"));
                    }
                }
                if let Some(reason) = self.ledger.used_up() {
                    self.ending.get_or_insert(reason);
                } else {
                    self.expand(&[node]).await;
                }
            }
            Order::Rescore(node) => {
                self.begin(order);
                let at = self.tree.node(node);
                // A vote compares, so all that were compared are asked about again.
                let votes = self.strategy.evaluate_at(at.depth).iter().any(|e| matches!(e, Evaluator::Vote { .. }));
                let depth = at.depth;
                let live = |status| matches!(status, Status::Open | Status::Pinned);
                let beside = self.tree.iter().filter(|(_, n)| votes && n.depth == depth && live(n.status));
                let mut nodes: Vec<NodeId> = beside.map(|(id, _)| id).collect();
                if !nodes.contains(&node) {
                    nodes.push(node);
                }
                if !live(self.tree.node(node).status) {
                    self.note(format!("thought {node} is not open, so it keeps its score"));
                    return;
                }
                self.evaluate(&nodes).await;
            }
        }
    }

    /// Tells that what was ordered is being done now, which is when it is known what that takes to undo.
    fn begin(&mut self, order: Order) {
        let command = order.command();
        self.undo.extend(self.undo_of(&command));
        self.emit(Event::Begun { command });
    }

    fn prune_by_hand(&mut self, node: NodeId) -> Result<Vec<NodeId>, String> {
        if node == NodeId::ROOT {
            return Err("the puzzle itself cannot be pruned; leave the search instead".into());
        }
        if self.tree.node(node).status == Status::Pinned {
            return Err(format!("thought {node} is pinned; unpin it first"));
        }
        let pruned = self.prune(node, "pruned by the user");
        self.orders.retain(|order| !pruned.contains(&order.node()));
        Ok(pruned)
    }

    fn pin(&mut self, node: NodeId) -> Result<(), String> {
        if node == NodeId::ROOT
            || matches!(self.tree.node(node).status, Status::Answer | Status::Pinned)
            || self.checked.contains_key(&node)
        {
            return Err(format!("thought {node} needs no pin"));
        }
        self.set(node, Status::Pinned, Some("pinned by the user"));
        Ok(())
    }

    fn unpin(&mut self, node: NodeId) -> Result<(), String> {
        let at = self.tree.node(node);
        if at.status != Status::Pinned {
            return Err(format!("thought {node} is not pinned"));
        }
        let status = if at.expansions > 0 { Status::Closed } else { Status::Open };
        self.set(node, status, None);
        Ok(())
    }

    fn edit(&mut self, node: NodeId, text: String) -> Result<Vec<NodeId>, String> {
        if node == NodeId::ROOT || text.trim().is_empty() {
            return Err("the puzzle itself cannot be edited, and a thought cannot be empty".into());
        }
        let mut gone = vec![node];
        for child in self.tree.node(node).children.clone() {
            gone.extend(self.prune(child, "the thought above it was edited"));
        }
        self.rewrite(node, text);
        Ok(gone)
    }

    /// Replaces a thought's text and judges it anew.
    pub(super) fn rewrite(&mut self, node: NodeId, text: String) {
        let below = self.tree.subtree(node);
        self.states.retain(|_, first| !below.contains(first));
        self.orders.retain(|order| !below.contains(&order.node()));
        for id in below {
            self.ids.remove(&id);
            self.holds.remove(&id);
        }
        self.checked.remove(&node);
        self.emit(Event::Edited { node, text });
        if self.tree.node(node).status != Status::Pinned {
            self.set(node, Status::Open, None);
        }
        let state = self.puzzle.state_key(&self.answer_of(node));
        self.states.entry(state).or_insert(node);
        self.look_at(node, &Finish::End);
    }

    fn add(&mut self, parent: NodeId, text: String) -> Result<(), String> {
        if self.checked.contains_key(&parent) {
            return Err(format!("thought {parent} is a whole answer; nothing follows it"));
        }
        if self.tree.node(parent).status == Status::Pruned {
            return Err(format!("thought {parent} is pruned; expand or pin it first"));
        }
        match self.propose(parent, Proposal::text(text, Author::User)) {
            Some(_) => Ok(()),
            None => Err("the thought was not added: it is empty, known already, or over the limit".into()),
        }
    }

    /// What is set by hand now. A reader cannot know it from the acts alone: an `Undo` does not say what it takes back.
    pub(super) fn tell_settings(&mut self) {
        let (breadth, temperature, limits) = (self.breadth, self.temperature, self.ledger.limits);
        self.emit(Event::Settings { breadth, temperature, limits });
    }

    fn set(&mut self, node: NodeId, status: Status, why: Option<&str>) {
        self.emit(Event::Status { node, status, why: why.map(String::from) });
    }
}
