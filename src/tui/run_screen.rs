//! The run screen's state: a run, and how it is looked at.

use super::Choice;
use super::layout::{Pane, Wishes};
use super::replay::Replay;
use super::run_state::RunState;
use super::tree_view::{Follow, TreeView};
use crate::search::tree::NodeId;

/// A search in the thoughts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Find {
    pub text: String,
    /// Thoughts that match, in order of growth, when it was last counted.
    pub matches: Vec<NodeId>,
    /// How many thoughts had been looked at by then.
    looked_at: usize,
}

#[derive(Clone)]
pub struct RunScreen {
    pub state: RunState,
    pub tree: TreeView,
    pub wishes: Wishes,
    /// First line seen of the thought.
    pub thought_top: usize,
    /// Lines the log is scrolled back by.
    pub log_back: usize,
    pub marked: Option<NodeId>,
    pub find: Find,
    /// What was chosen; `None` in a replay.
    pub choice: Option<Choice>,
    pub replay: Option<Replay>,
    /// Whether the split is being dragged.
    pub dragging: bool,
    /// The thought that `thought_top` belongs to.
    thought_of: NodeId,
}

impl RunScreen {
    pub fn live(choice: Choice) -> Self {
        Self::new(Some(choice), None)
    }

    pub fn replay(replay: Replay) -> Self {
        Self::new(None, Some(replay))
    }

    fn new(choice: Option<Choice>, replay: Option<Replay>) -> Self {
        let wishes = Wishes {
            zoom: None,
            hidden: 0,
            tree_percent: 55,
            tree_percent_of_three: 42,
            focus: Pane::Tree,
            time_bar: replay.is_some(),
        };
        Self {
            state: RunState::default(),
            tree: TreeView::default(),
            wishes,
            thought_top: 0,
            log_back: 0,
            marked: None,
            find: Find::default(),
            choice,
            replay,
            dragging: false,
            thought_of: NodeId::ROOT,
        }
    }

    /// Whether a search is running that leaving would end.
    pub fn is_running(&self) -> bool {
        self.replay.is_none() && self.state.outcome.is_none()
    }

    /// Lets go of everything that is not there any more; scroll positions stay.
    pub fn refresh(&mut self) {
        self.marked = self.marked.filter(|m| self.state.tree.get(*m).is_some());
        self.tree.refresh(&self.state);
    }

    /// Brings selections and scroll positions in line with the run and the sizes of the panes (inside their borders).
    pub fn settle(&mut self, tree_height: usize) {
        self.refresh();
        self.tree.settle(&self.state, tree_height);
        if self.thought_of != self.tree.selected() {
            self.thought_of = self.tree.selected();
            self.thought_top = 0;
        }
        self.log_back = self.log_back.min(self.state.log.len().saturating_sub(1));
    }

    /// Starts a search in the thoughts and goes to the first match from the selection on.
    pub fn start_find(&mut self, text: &str, from: NodeId) {
        self.find = Find { text: text.to_lowercase(), matches: Vec::new(), looked_at: 0 };
        if text.is_empty() {
            self.tree.go(&self.state, from);
            return;
        }
        if let Some(node) = text.strip_prefix('#').and_then(|n| n.trim().parse().ok()).map(NodeId) {
            self.tree.go(&self.state, node);
            return;
        }
        self.look_at_all();
        let next = self.find.matches.iter().find(|m| **m >= from).or(self.find.matches.first());
        if let Some(&node) = next {
            self.tree.follow = Follow::Stay;
            self.tree.go(&self.state, node);
        }
    }

    /// Goes to the next or previous match, round the end. False where there is none.
    pub fn find_again(&mut self, forward: bool) -> bool {
        self.look_at_all();
        let at = self.tree.selected();
        let matches = &self.find.matches;
        let next = if forward {
            matches.iter().find(|m| **m > at).or(matches.first())
        } else {
            matches.iter().rev().find(|m| **m < at).or(matches.last())
        };
        let Some(&node) = next else { return false };
        self.tree.follow = Follow::Stay;
        self.tree.go(&self.state, node);
        true
    }

    /// Adds the matches among thoughts that grew since the last look. O(new thoughts).
    fn look_at_all(&mut self) {
        let tree = &self.state.tree;
        if self.find.text.is_empty() || self.find.text.starts_with('#') {
            return;
        }
        if self.find.looked_at > tree.len() {
            self.find.looked_at = 0;
            self.find.matches.clear();
        }
        for index in self.find.looked_at..tree.len() {
            let id = NodeId(index as u32);
            if tree.node(id).text.to_lowercase().contains(&self.find.text) {
                self.find.matches.push(id);
            }
        }
        self.find.looked_at = tree.len();
    }
}
