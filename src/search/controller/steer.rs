//! The user's commands and their undoing. A command takes effect at once, in the middle of a step too; what needs the
//! model (expand, rescore) is queued and done before the policy's next step.

use super::Controller;
use super::grow::Proposal;
use crate::lm::Finish;
use crate::search::event::{Author, Command, Event, Limits, Reason, ScorePart};
use crate::search::tree::{NodeId, Status};
use crate::strategy::Evaluator;

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
}

/// How to take back one act.
#[derive(Debug)]
pub enum Undo {
    Statuses(Vec<(NodeId, Status, Option<String>)>),
    Text {
        node: NodeId,
        text: String,
        statuses: Vec<(NodeId, Status, Option<String>)>,
    },
    Added(NodeId),
    /// Children that came after the first so many are pruned again.
    Expanded {
        node: NodeId,
        children: usize,
        statuses: Vec<(NodeId, Status, Option<String>)>,
    },
    Scored {
        node: NodeId,
        score: Option<f64>,
        parts: Vec<ScorePart>,
    },
    Breadth(Option<usize>),
    Temperature(Option<f32>),
    Budget(Limits),
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
        if let Some(node) = about(&command)
            && self.tree.get(node).is_none()
        {
            self.note(format!("there is no thought {node}"));
            return Vec::new();
        }
        match command {
            Command::Pause => {
                if !self.paused {
                    self.paused = true;
                    self.ledger.clock.pause();
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
            Command::Expand { node } => self.order_expansion(node),
            Command::Prune { node } => return self.prune_by_hand(node),
            Command::Pin { node } => self.pin(node),
            Command::Unpin { node } => self.unpin(node),
            Command::Edit { node, text } => return self.edit(node, text),
            Command::Add { parent, text } => self.add(parent, text),
            Command::Rescore { node } if node == NodeId::ROOT => self.note("the puzzle itself has no score"),
            Command::Rescore { node } => self.orders.push_back(Order::Rescore(node)),
            Command::SetBreadth { n } => {
                self.undo.push(Undo::Breadth(self.breadth));
                self.breadth = Some(n.max(1));
                self.tell_settings();
            }
            Command::SetTemperature { temperature } => {
                self.undo.push(Undo::Temperature(self.temperature));
                self.temperature = Some(temperature);
                self.tell_settings();
            }
            Command::SetBudget { limits } => {
                self.undo.push(Undo::Budget(self.ledger.limits));
                self.ledger.limits = limits;
                self.tell_settings();
            }
            Command::Undo => self.take_back(),
            Command::Quit => self.stop(Reason::Quit),
        }
        Vec::new()
    }

    /// Does what was ordered.
    pub(super) async fn carry_out(&mut self, order: Order) {
        match order {
            Order::Expand(node) => {
                let children = self.tree.node(node).children.len();
                let mut statuses = Vec::new();
                // What is reopened counts as visited: its way up must not hide what will grow below it.
                for id in self.tree.path(node) {
                    let at = self.tree.node(id);
                    if at.status == Status::Pruned {
                        statuses.push((id, at.status, at.why.clone()));
                        let status = if id == node || at.expansions == 0 { Status::Open } else { Status::Closed };
                        self.set(id, status, Some("reopened by the user"));
                    }
                }
                self.undo.push(Undo::Expanded { node, children, statuses });
                if let Some(reason) = self.ledger.used_up() {
                    self.ending.get_or_insert(reason);
                } else {
                    self.expand(&[node]).await;
                }
            }
            Order::Rescore(node) => {
                let at = self.tree.node(node);
                self.undo.push(Undo::Scored { node, score: at.score, parts: at.parts.clone() });
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
                    self.undo.pop();
                    return;
                }
                self.evaluate(&nodes).await;
            }
        }
    }

    fn order_expansion(&mut self, node: NodeId) {
        if self.checked.contains_key(&node) {
            self.note(format!("thought {node} is a whole answer and cannot be expanded"));
        } else {
            self.orders.push_back(Order::Expand(node));
        }
    }

    fn prune_by_hand(&mut self, node: NodeId) -> Vec<NodeId> {
        if node == NodeId::ROOT {
            self.note("the puzzle itself cannot be pruned; leave the search instead");
            return Vec::new();
        }
        if self.tree.node(node).status == Status::Pinned {
            self.note(format!("thought {node} is pinned; unpin it first"));
            return Vec::new();
        }
        let before = self.statuses(node);
        let pruned = self.prune(node, "pruned by the user");
        let changed = before.into_iter().filter(|(id, ..)| pruned.contains(id)).collect();
        self.orders.retain(|order| !pruned.contains(&order.node()));
        self.undo.push(Undo::Statuses(changed));
        pruned
    }

    fn pin(&mut self, node: NodeId) {
        let at = self.tree.node(node);
        if node == NodeId::ROOT
            || matches!(at.status, Status::Answer | Status::Pinned)
            || self.checked.contains_key(&node)
        {
            self.note(format!("thought {node} needs no pin"));
            return;
        }
        self.undo.push(Undo::Statuses(vec![(node, at.status, at.why.clone())]));
        self.set(node, Status::Pinned, Some("pinned by the user"));
    }

    fn unpin(&mut self, node: NodeId) {
        let at = self.tree.node(node);
        if at.status != Status::Pinned {
            self.note(format!("thought {node} is not pinned"));
            return;
        }
        self.undo.push(Undo::Statuses(vec![(node, at.status, at.why.clone())]));
        let status = if at.expansions > 0 { Status::Closed } else { Status::Open };
        self.set(node, status, None);
    }

    fn edit(&mut self, node: NodeId, text: String) -> Vec<NodeId> {
        if node == NodeId::ROOT || text.trim().is_empty() {
            self.note("the puzzle itself cannot be edited, and a thought cannot be empty");
            return Vec::new();
        }
        let statuses = self.statuses(node);
        let before = self.tree.node(node).text.clone();
        self.undo.push(Undo::Text { node, text: before, statuses });
        let mut gone = vec![node];
        for child in self.tree.node(node).children.clone() {
            gone.extend(self.prune(child, "the thought above it was edited"));
        }
        self.rewrite(node, text);
        gone
    }

    /// Replaces a thought's text and judges it anew.
    fn rewrite(&mut self, node: NodeId, text: String) {
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

    fn add(&mut self, parent: NodeId, text: String) {
        if self.checked.contains_key(&parent) {
            self.note(format!("thought {parent} is a whole answer; nothing follows it"));
            return;
        }
        if self.tree.node(parent).status == Status::Pruned {
            self.note(format!("thought {parent} is pruned; expand or pin it first"));
            return;
        }
        match self.propose(parent, Proposal::text(text, Author::User)) {
            Some(node) => self.undo.push(Undo::Added(node)),
            None => self.note("the thought was not added: it is empty, known already, or over the limit"),
        }
    }

    fn take_back(&mut self) {
        let Some(undo) = self.undo.pop() else {
            self.note("there is nothing to undo");
            return;
        };
        let sets = matches!(undo, Undo::Breadth(_) | Undo::Temperature(_) | Undo::Budget(_));
        match undo {
            Undo::Statuses(statuses) => self.restore(statuses),
            Undo::Text { node, text, statuses } => {
                self.rewrite(node, text);
                let checked = self.checked.contains_key(&node);
                self.restore(statuses.into_iter().filter(|(id, ..)| *id != node || !checked).collect());
            }
            Undo::Added(node) => {
                self.prune(node, "undone by the user");
            }
            Undo::Expanded { node, children, statuses } => {
                for child in self.tree.node(node).children.clone().into_iter().skip(children) {
                    self.prune(child, "undone by the user");
                }
                self.restore(statuses);
            }
            Undo::Scored { node, score, parts } => {
                if let Some(score) = score {
                    self.emit(Event::Scored { node, score, parts });
                }
            }
            Undo::Breadth(breadth) => self.breadth = breadth,
            Undo::Temperature(temperature) => self.temperature = temperature,
            Undo::Budget(limits) => self.ledger.limits = limits,
        }
        if sets {
            self.tell_settings();
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

    fn restore(&mut self, statuses: Vec<(NodeId, Status, Option<String>)>) {
        for (node, status, why) in statuses {
            self.emit(Event::Status { node, status, why });
        }
    }

    fn statuses(&self, node: NodeId) -> Vec<(NodeId, Status, Option<String>)> {
        let of = |id: NodeId| (id, self.tree.node(id).status, self.tree.node(id).why.clone());
        self.tree.subtree(node).into_iter().map(of).collect()
    }
}

/// The thought a command is about.
fn about(command: &Command) -> Option<NodeId> {
    match command {
        Command::Expand { node }
        | Command::Prune { node }
        | Command::Pin { node }
        | Command::Unpin { node }
        | Command::Edit { node, .. }
        | Command::Add { parent: node, .. }
        | Command::Rescore { node } => Some(*node),
        _ => None,
    }
}
