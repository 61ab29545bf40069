//! The thought tree: what the user sees. Built only from events, by the controller and by every reader alike.

use super::event::{Author, Event, ScorePart};
use crate::lm::Usage;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A thought's number, in order of growth; the root is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u32);

impl NodeId {
    pub const ROOT: Self = Self(0);

    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl std::fmt::Display for NodeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "#{}", self.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// May still be expanded.
    Open,
    /// Was expanded, or cannot be.
    Closed,
    Pruned,
    /// Kept by the user whatever happens.
    Pinned,
    /// A whole answer that the puzzle's check found right.
    Answer,
}

/// A thought.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    pub parent: Option<NodeId>,
    pub children: Vec<NodeId>,
    /// Distance from the root.
    pub depth: usize,
    pub text: String,
    pub score: Option<f64>,
    pub parts: Vec<ScorePart>,
    pub status: Status,
    /// Why it is pruned, closed or an answer.
    pub why: Option<String>,
    pub by: Author,
    pub logprob: Option<f64>,
    pub token_logprobs: Vec<f32>,
    pub usage: Usage,
    /// How often it was asked for proposals.
    pub expansions: u32,
    /// The thoughts it was merged from; empty where it was made from its parent alone.
    pub sources: Vec<NodeId>,
    /// How often its state was proposed again and merged into it.
    pub repeats: u32,
    /// Simulations that went through it.
    pub visits: u64,
    /// The sum of what they backed up.
    pub backed_up: f64,
}

impl Node {
    /// Whether the search may still go on from here.
    pub fn is_live(&self) -> bool {
        matches!(self.status, Status::Open | Status::Pinned)
    }

    /// The mean of what was backed up through it.
    pub fn value(&self) -> Option<f64> {
        (self.visits > 0).then(|| self.backed_up / self.visits as f64)
    }
}

/// Nodes by number; a parent always comes before its children.
#[derive(Debug, Clone, PartialEq)]
pub struct ThoughtTree {
    nodes: Vec<Node>,
    /// Open and pinned ones: what a step of a search looks at, which may be far fewer than all.
    live: BTreeSet<NodeId>,
    deepest: usize,
    /// What all replies cost so far.
    spent: Usage,
}

impl Default for ThoughtTree {
    fn default() -> Self {
        let root = Node {
            parent: None,
            children: Vec::new(),
            depth: 0,
            text: String::new(),
            score: None,
            parts: Vec::new(),
            status: Status::Open,
            why: None,
            by: Author::Model,
            logprob: None,
            token_logprobs: Vec::new(),
            usage: Usage::default(),
            expansions: 0,
            sources: Vec::new(),
            repeats: 0,
            visits: 0,
            backed_up: 0.0,
        };
        Self { nodes: vec![root], live: BTreeSet::from([NodeId::ROOT]), deepest: 0, spent: Usage::default() }
    }
}

impl ThoughtTree {
    /// Applies one event. Events that are not about the tree leave it as it is; events that do not fit it (a record
    /// edited by hand) are refused with the reason, and leave it as it is too.
    pub fn apply(&mut self, event: &Event) -> Result<(), String> {
        match event {
            Event::Grown { node, parent, text, by, logprob, token_logprobs, usage } => {
                if node.index() != self.nodes.len() {
                    return Err(format!("thought {node} grows where {} is next", self.nodes.len()));
                }
                let depth =
                    self.get(*parent).ok_or_else(|| format!("thought {node} has no parent {parent}"))?.depth + 1;
                self.nodes.push(Node {
                    parent: Some(*parent),
                    children: Vec::new(),
                    depth,
                    text: text.clone(),
                    score: None,
                    parts: Vec::new(),
                    status: Status::Open,
                    why: None,
                    by: *by,
                    logprob: *logprob,
                    token_logprobs: token_logprobs.clone(),
                    usage: *usage,
                    expansions: 0,
                    sources: Vec::new(),
                    repeats: 0,
                    visits: 0,
                    backed_up: 0.0,
                });
                self.nodes[parent.index()].children.push(*node);
                self.live.insert(*node);
                self.deepest = self.deepest.max(depth);
            }
            Event::Expanded { node, .. } => self.get_mut(*node)?.expansions += 1,
            Event::Scored { node, score, parts } => {
                let node = self.get_mut(*node)?;
                node.score = Some(*score);
                node.parts = parts.clone();
            }
            Event::Dropped { same_as: Some(node), .. } => self.get_mut(*node)?.repeats += 1,
            Event::Merged { node, sources } => {
                // A source comes before what is made of it, so that following sources ends.
                if sources.iter().any(|source| source >= node) {
                    return Err(format!("thought {node} is merged from thoughts that came after it"));
                }
                self.get_mut(*node)?.sources = sources.clone();
            }
            Event::Replied { usage, .. } => self.spent += *usage,
            Event::Visited { node, value } => {
                self.get_mut(*node)?;
                let mut at = Some(*node);
                while let Some(id) = at {
                    let node = self.get_mut(id)?;
                    node.visits += 1;
                    node.backed_up += value;
                    at = node.parent;
                }
            }
            Event::Status { node: id, status, why } => {
                let node = self.get_mut(*id)?;
                node.status = *status;
                node.why = why.clone();
                match node.is_live() {
                    true => self.live.insert(*id),
                    false => self.live.remove(id),
                };
            }
            Event::Edited { node, text } => {
                let node = self.get_mut(*node)?;
                node.text = text.clone();
                node.by = Author::User;
                node.logprob = None;
                node.token_logprobs.clear();
                node.score = None;
                node.parts.clear();
                node.expansions = 0;
            }
            _ => {}
        }
        Ok(())
    }

    /// What the replies of all requests cost so far.
    pub fn spent(&self) -> Usage {
        self.spent
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Never: the root is always there.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub fn get(&self, node: NodeId) -> Option<&Node> {
        self.nodes.get(node.index())
    }

    fn get_mut(&mut self, node: NodeId) -> Result<&mut Node, String> {
        self.nodes.get_mut(node.index()).ok_or_else(|| format!("there is no thought {node}"))
    }

    /// The node; panics where there is none, which is a caller's mistake.
    pub fn node(&self, node: NodeId) -> &Node {
        &self.nodes[node.index()]
    }

    /// Those of [`Self::iter`] that are live.
    pub fn live(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.live.iter().map(|&id| (id, self.node(id)))
    }

    /// Levels of thoughts so far.
    pub fn deepest(&self) -> usize {
        self.deepest
    }

    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().enumerate().map(|(i, n)| (NodeId(i as u32), n))
    }

    /// `node` and everything below it, in order of growth within each family.
    pub fn subtree(&self, node: NodeId) -> Vec<NodeId> {
        let mut found = vec![node];
        let mut at = 0;
        while at < found.len() {
            found.extend_from_slice(&self.node(found[at]).children);
            at += 1;
        }
        found
    }

    /// From the root (excluded) to `node` (included).
    pub fn path(&self, node: NodeId) -> Vec<NodeId> {
        let mut path = Vec::new();
        let mut at = node;
        while let Some(parent) = self.node(at).parent {
            path.push(at);
            at = parent;
        }
        path.reverse();
        path
    }

    /// The thoughts of the path, joined as they were generated.
    pub fn path_text(&self, node: NodeId) -> String {
        self.path(node).iter().map(|&n| self.node(n).text.as_str()).collect()
    }
}
