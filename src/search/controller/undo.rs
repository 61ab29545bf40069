//! Taking acts back. What an act will change is noted before it is done, from the tree and the settings alone; a run that is
//! taken up notes the acts of its record in the same way, so that they can be undone there too.

use super::Controller;
use crate::search::event::{Command, Event, Limits, ScorePart};
use crate::search::tree::{NodeId, Status};

/// How to take back one act.
#[derive(Debug, Clone, PartialEq)]
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
    /// What takes back an act that is about to be done; `None` where there is nothing to take back. Whether the act is
    /// refused is not asked here.
    pub(super) fn undo_of(&self, command: &Command) -> Option<Undo> {
        let of = |id: NodeId| (id, self.tree.node(id).status, self.tree.node(id).why.clone());
        let known = |node: &NodeId| self.tree.get(*node).is_some().then_some(*node);
        match command {
            Command::Prune { node } => {
                let changed: Vec<_> = self.prunable(known(node)?).into_iter().map(of).collect();
                (!changed.is_empty()).then_some(Undo::Statuses(changed))
            }
            Command::Pin { node } | Command::Unpin { node } => Some(Undo::Statuses(vec![of(known(node)?)])),
            Command::Edit { node, .. } => {
                let statuses = self.tree.subtree(known(node)?).into_iter().map(of).collect();
                Some(Undo::Text { node: *node, text: self.tree.node(*node).text.clone(), statuses })
            }
            Command::Add { .. } => Some(Undo::Added(NodeId(self.tree.len() as u32))),
            Command::Expand { node } => {
                let path = self.tree.path(known(node)?).into_iter();
                let statuses = path.map(of).filter(|(_, status, _)| *status == Status::Pruned).collect();
                Some(Undo::Expanded { node: *node, children: self.tree.node(*node).children.len(), statuses })
            }
            Command::Rescore { node } => {
                let at = self.tree.node(known(node)?);
                let live = matches!(at.status, Status::Open | Status::Pinned);
                live.then(|| Undo::Scored { node: *node, score: at.score, parts: at.parts.clone() })
            }
            Command::SetBreadth { .. } => Some(Undo::Breadth(self.breadth)),
            Command::SetTemperature { .. } => Some(Undo::Temperature(self.temperature)),
            Command::SetBudget { .. } => Some(Undo::Budget(self.ledger.limits)),
            Command::Pause | Command::Resume | Command::Step | Command::Undo | Command::Quit => None,
        }
    }

    /// Takes back the newest act that has not been taken back.
    pub(super) fn take_back(&mut self) -> Result<(), String> {
        let undo = self.undo.pop().ok_or("there is nothing to undo")?;
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
        Ok(())
    }

    fn restore(&mut self, statuses: Vec<(NodeId, Status, Option<String>)>) {
        for (node, status, why) in statuses {
            self.emit(Event::Status { node, status, why });
        }
    }
}
