//! Which rows of the tree there are, which one is selected, and which part is seen.
//!
//! The list of rows (eight bytes each) is made again only when the shape changes, in O(thoughts); scrolling and
//! drawing touch only the rows that are seen. The selection is a thought, not a row number, so it stays where it is while
//! the tree grows above it.

use super::run_state::RunState;
use crate::search::tree::{NodeId, Status, ThoughtTree};
use std::collections::HashSet;

/// One row: a thought, or a running sample under its thought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Row {
    Thought(NodeId),
    /// Index into [`RunState::live`] at the time the rows were made.
    Live(u32),
}

/// Where the selection goes by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// Nowhere.
    Stay,
    /// To the thought that is being expanded.
    Search,
    /// To the best thought.
    Best,
}

#[derive(Debug, Clone)]
pub struct TreeView {
    rows: Vec<Row>,
    selected: NodeId,
    /// Row of the selected thought.
    at: usize,
    top: usize,
    folded: HashSet<NodeId>,
    pub hide_pruned: bool,
    pub follow: Follow,
    /// Shape of the run and own changes that the rows were made from.
    made_from: Option<(u64, u64)>,
    changes: u64,
}

impl Default for TreeView {
    fn default() -> Self {
        Self {
            rows: vec![Row::Thought(NodeId::ROOT)],
            selected: NodeId::ROOT,
            at: 0,
            top: 0,
            folded: HashSet::new(),
            hide_pruned: false,
            follow: Follow::Search,
            made_from: None,
            changes: 0,
        }
    }
}

impl TreeView {
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub fn selected(&self) -> NodeId {
        self.selected
    }

    pub fn selected_row(&self) -> usize {
        self.at
    }

    pub fn top(&self) -> usize {
        self.top
    }

    pub fn is_folded(&self, node: NodeId) -> bool {
        self.folded.contains(&node)
    }

    /// Brings rows, selection and scroll position in line with the run and a pane of `height` rows.
    pub fn settle(&mut self, run: &RunState, height: usize) {
        self.refresh(run);
        self.keep_in_sight(&run.tree, height);
    }

    /// Brings rows and selection in line with the run; afterwards every row is of something that exists.
    pub fn refresh(&mut self, run: &RunState) {
        if run.tree.get(self.selected).is_none() {
            // A replay went back to before this thought.
            *self = Self { follow: self.follow, hide_pruned: self.hide_pruned, ..Self::default() };
        }
        let wanted = match self.follow {
            Follow::Stay => None,
            // Where the search ended is what it was made for: its answer, or the best it found.
            Follow::Search if run.outcome.is_some() => run.best(),
            Follow::Search => run.working,
            Follow::Best => run.best(),
        };
        if let Some(wanted) = wanted.filter(|wanted| *wanted != self.selected) {
            self.go(run, wanted);
        }
        if self.made_from != Some((run.shape, self.changes)) {
            self.make_rows(run);
            self.made_from = Some((run.shape, self.changes));
        }
    }

    fn keep_in_sight(&mut self, tree: &ThoughtTree, height: usize) {
        let height = height.max(1);
        let last_top = self.rows.len().saturating_sub(height);
        // A few rows of what comes next stay in sight around the selection.
        let margin = (height / 6).min(3);
        let mut low = self.at.saturating_sub(margin);
        let mut high = (self.at + margin).min(self.rows.len() - 1);
        if self.follow != Follow::Stay {
            high = high.max(self.last_row_below(tree, self.at).min(self.at + height - 1));
            low = low.min(self.at);
        }
        if high >= self.top + height {
            self.top = high + 1 - height;
        }
        if low < self.top {
            self.top = low;
        }
        self.top = self.top.min(last_top);
    }

    /// Moves the selection by rows; running samples are passed over.
    pub fn step(&mut self, by: isize) {
        self.follow = Follow::Stay;
        let last = self.rows.len() - 1;
        let target = self.at.saturating_add_signed(by).min(last);
        // The nearest thought in the direction of the move, else the nearest one back.
        let forward: Box<dyn Iterator<Item = usize>> =
            if by >= 0 { Box::new((target..=last).chain((0..target).rev())) } else { Box::new((0..=target).rev()) };
        for row in forward {
            if let Row::Thought(node) = self.rows[row] {
                self.at = row;
                self.selected = node;
                return;
            }
        }
    }

    pub fn first(&mut self) {
        self.step(isize::MIN);
    }

    pub fn last(&mut self) {
        self.step(isize::MAX);
    }

    /// Selects the thought of a row, as a click does.
    pub fn select_row(&mut self, row: usize, run: &RunState) {
        self.follow = Follow::Stay;
        match self.rows.get(row) {
            Some(Row::Thought(node)) => {
                self.selected = *node;
                self.at = row;
            }
            Some(Row::Live(i)) => {
                if let Some(live) = run.live.get(*i as usize) {
                    self.go(run, live.node);
                }
            }
            None => {}
        }
    }

    /// Selects a thought, unfolding what is above it.
    pub fn go(&mut self, run: &RunState, node: NodeId) {
        if run.tree.get(node).is_none() {
            return;
        }
        self.selected = node;
        let mut above = run.tree.node(node).parent;
        while let Some(parent) = above {
            self.folded.remove(&parent);
            above = run.tree.node(parent).parent;
        }
        self.changes += 1;
    }

    /// Left: folds an open thought, or goes to the parent.
    pub fn fold_or_parent(&mut self, run: &RunState) {
        self.follow = Follow::Stay;
        let node = run.tree.node(self.selected);
        if !node.children.is_empty() && self.folded.insert(self.selected) {
            self.changes += 1;
        } else if let Some(parent) = node.parent {
            self.go(run, parent);
        }
    }

    /// Right: unfolds a folded thought, or goes to the first child in sight.
    pub fn unfold_or_child(&mut self, run: &RunState) {
        self.follow = Follow::Stay;
        if self.folded.remove(&self.selected) {
            self.changes += 1;
        } else if let Some(Row::Thought(next)) = self.rows.get(self.at + 1)
            && run.tree.get(*next).is_some_and(|n| n.parent == Some(self.selected))
        {
            self.selected = *next;
            self.at += 1;
        }
    }

    pub fn toggle_fold(&mut self, run: &RunState) {
        if !self.folded.remove(&self.selected) && !run.tree.node(self.selected).children.is_empty() {
            self.folded.insert(self.selected);
        }
        self.changes += 1;
    }

    pub fn unfold_all(&mut self) {
        self.folded.clear();
        self.changes += 1;
    }

    /// Folds every child of the selected thought, so that one level is seen.
    pub fn fold_below(&mut self, run: &RunState) {
        for &child in &run.tree.node(self.selected).children {
            if !run.tree.node(child).children.is_empty() {
                self.folded.insert(child);
            }
        }
        self.changes += 1;
    }

    pub fn toggle_pruned(&mut self) {
        self.hide_pruned = !self.hide_pruned;
        self.changes += 1;
    }

    /// Scrolls without moving the selection further than the edge demands.
    pub fn scroll(&mut self, by: isize, height: usize) {
        self.follow = Follow::Stay;
        let last_top = self.rows.len().saturating_sub(height.max(1));
        self.top = self.top.saturating_add_signed(by).min(last_top);
        let margin = (height / 6).min(3);
        let low = if self.top == 0 { 0 } else { self.top + margin };
        let high =
            if self.top == last_top { self.rows.len() - 1 } else { self.top + height.saturating_sub(margin + 1) };
        if self.at < low {
            self.step((low - self.at) as isize);
        } else if self.at > high {
            self.step(-((self.at - high) as isize));
        }
    }

    /// Depth-first over what is unfolded. A pruned thought that is hidden hides what is below it; the puzzle itself always stands,
    /// so that there is a row to select.
    fn make_rows(&mut self, run: &RunState) {
        self.rows.clear();
        let tree = &run.tree;
        // Running samples by their thought; there are few.
        let mut stack = vec![NodeId::ROOT];
        // A thought whose children are all done is followed by its running samples: the marker says so.
        const MARK: u32 = 1 << 31;
        let busy: HashSet<NodeId> = run.live.iter().map(|l| l.node).collect();
        while let Some(id) = stack.pop() {
            if id.0 & MARK != 0 {
                let parent = NodeId(id.0 & !MARK);
                for (i, live) in run.live.iter().enumerate() {
                    if live.node == parent {
                        self.rows.push(Row::Live(i as u32));
                    }
                }
                continue;
            }
            let node = tree.node(id);
            if self.hide_pruned && node.status == Status::Pruned && id != self.selected && id != NodeId::ROOT {
                continue;
            }
            if id == self.selected {
                self.at = self.rows.len();
            }
            self.rows.push(Row::Thought(id));
            if self.folded.contains(&id) {
                continue;
            }
            if busy.contains(&id) {
                stack.push(NodeId(id.0 | MARK));
            }
            stack.extend(node.children.iter().rev());
        }
        // The selected thought was hidden with something above it: its nearest ancestor in sight takes over.
        if self.rows.get(self.at) != Some(&Row::Thought(self.selected)) {
            let seen: HashSet<Row> = self.rows.iter().copied().collect();
            while !seen.contains(&Row::Thought(self.selected)) {
                self.selected = tree.node(self.selected).parent.unwrap_or(NodeId::ROOT);
            }
            self.at = self.rows.iter().position(|r| *r == Row::Thought(self.selected)).unwrap_or(0);
        }
    }

    /// Last row among the children and running samples directly below a row.
    fn last_row_below(&self, tree: &ThoughtTree, row: usize) -> usize {
        let Some(Row::Thought(node)) = self.rows.get(row) else { return row };
        let depth = tree.node(*node).depth;
        let below = self.rows[row + 1..].iter().take_while(|r| match r {
            Row::Thought(n) => tree.node(*n).depth > depth,
            Row::Live(_) => true,
        });
        // Bounded: only as many rows as a pane can show matter.
        row + below.take(400).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tui::testing::{grown, run_of, status, token};

    fn labels(view: &TreeView) -> Vec<String> {
        view.rows()
            .iter()
            .map(|r| match r {
                Row::Thought(n) => n.to_string(),
                Row::Live(i) => format!("~{i}"),
            })
            .collect()
    }

    #[test]
    fn a_pruned_puzzle_is_not_hidden_and_takes_the_selection_over() {
        let run = run_of(&[grown(1, 0, "a"), grown(2, 1, "b"), status(0, Status::Pruned), status(1, Status::Pruned)]);
        let mut view = TreeView { follow: Follow::Stay, selected: NodeId(2), ..TreeView::default() };
        view.toggle_pruned();
        view.refresh(&run);
        assert_eq!((labels(&view), view.selected()), (vec!["#0".to_string()], NodeId::ROOT));
    }

    #[test]
    fn rows_follow_folds_and_running_samples_stand_last_below_their_thought() {
        let run =
            run_of(&[grown(1, 0, "a"), grown(2, 0, "b"), grown(3, 1, "c"), token(7, 1, 0, "x"), token(7, 0, 1, "y")]);
        let mut view = TreeView { follow: Follow::Stay, ..TreeView::default() };
        view.settle(&run, 10);
        assert_eq!(labels(&view), ["#0", "#1", "#3", "~0", "#2", "~1"]);
        view.go(&run, NodeId(1));
        view.settle(&run, 10);
        view.fold_or_parent(&run);
        view.settle(&run, 10);
        assert_eq!(labels(&view), ["#0", "#1", "#2", "~1"]);
        view.fold_or_parent(&run);
        assert_eq!(view.selected(), NodeId::ROOT);
        view.go(&run, NodeId(3));
        view.settle(&run, 10);
        assert_eq!(labels(&view), ["#0", "#1", "#3", "~0", "#2", "~1"]);
        assert_eq!(view.selected_row(), 2);
    }

    #[test]
    fn the_selection_stays_on_its_thought_while_rows_come_above_it() {
        let mut run = run_of(&[grown(1, 0, "a"), grown(2, 0, "b")]);
        let mut view = TreeView::default();
        view.settle(&run, 10);
        view.last();
        assert_eq!(view.selected(), NodeId(2));
        for i in 3..40 {
            run.apply(&grown(i, 1, "c"), 0.0);
        }
        view.settle(&run, 10);
        assert_eq!((view.selected(), view.selected_row()), (NodeId(2), 39));
        assert!((view.top()..view.top() + 10).contains(&view.selected_row()));
    }

    #[test]
    fn hidden_pruned_thoughts_give_the_selection_to_what_is_above() {
        let run = run_of(&[grown(1, 0, "a"), grown(2, 1, "b"), grown(3, 2, "c"), status(1, Status::Pruned)]);
        let mut view = TreeView { follow: Follow::Stay, ..TreeView::default() };
        view.go(&run, NodeId(3));
        view.settle(&run, 10);
        view.toggle_pruned();
        view.settle(&run, 10);
        assert_eq!((labels(&view), view.selected()), (vec!["#0".to_string()], NodeId::ROOT));
    }

    #[test]
    fn moves_pass_over_running_samples_and_stop_at_the_ends() {
        let run = run_of(&[grown(1, 0, "a"), token(7, 1, 0, "x"), grown(2, 0, "b"), token(8, 0, 0, "y")]);
        let mut view = TreeView { follow: Follow::Stay, ..TreeView::default() };
        view.settle(&run, 10);
        view.step(1);
        view.step(1);
        assert_eq!(view.selected(), NodeId(2));
        view.step(1);
        assert_eq!(view.selected(), NodeId(2));
        view.step(-1);
        assert_eq!(view.selected(), NodeId(1));
        view.first();
        assert_eq!(view.selected(), NodeId::ROOT);
    }
}
