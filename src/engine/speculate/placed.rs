//! A draft in the token tree and in the step: its K/V places, its rows, and the way back out.
//!
//! A node that goes on from the end of its parent's branch grows that branch; any other node forks. So a draft without
//! alternatives is one branch, and the rows of a step see exactly their own path, as all rows do.

use super::{Luck, Node};
use crate::engine::batch::Batch;
use crate::kv::tree::{BranchId, TokenTree};

/// A draft whose nodes are rows of the step that is being made.
pub struct Placed {
    nodes: Vec<PlacedNode>,
    branches: Vec<BranchId>,
    /// Tokens of the path, its last one included.
    path_len: usize,
}

#[derive(Debug, Clone, Copy)]
struct PlacedNode {
    node: Node,
    /// Index into the step's wanted logits.
    wanted: usize,
    /// Index into `branches`, and tokens of the branch up to this node.
    branch: usize,
    len: usize,
}

impl Placed {
    /// Puts a draft after the end of `trunk`, whose last token has its row already. Nodes for which there is no room are
    /// left out.
    pub fn place(tree: &mut TokenTree, batch: &mut Batch, trunk: BranchId, draft: &[Node]) -> Self {
        let path_len = tree.len(trunk);
        let mut placed = Self { nodes: Vec::new(), branches: Vec::new(), path_len };
        // Where each node of the draft went.
        let mut places: Vec<Option<usize>> = Vec::with_capacity(draft.len());
        for &node in draft {
            let at = match node.parent {
                None => placed.add(tree, batch, trunk, None, node),
                Some(parent) => places[parent].and_then(|parent| placed.add(tree, batch, trunk, Some(parent), node)),
            };
            places.push(at);
        }
        placed
    }

    fn add(
        &mut self,
        tree: &mut TokenTree,
        batch: &mut Batch,
        trunk: BranchId,
        parent: Option<usize>,
        node: Node,
    ) -> Option<usize> {
        let above = parent.map(|parent| self.nodes[parent]);
        let len = above.map_or(self.path_len, |above| above.len);
        let grown = above.map(|above| above.branch).filter(|&branch| tree.len(self.branches[branch]) == len);
        let branch = grown.unwrap_or_else(|| {
            let fork = tree.fork(above.map_or(trunk, |above| self.branches[above.branch]));
            tree.truncate(fork, len);
            self.branches.push(fork);
            self.branches.len() - 1
        });
        tree.append(self.branches[branch], &[node.token], &mut batch.slots).ok()?;
        batch.push(self.branches[branch], len, &[node.token]);
        batch.wanted.push(batch.len() - 1);
        self.nodes.push(PlacedNode {
            node: Node { parent, ..node },
            wanted: batch.wanted.len() - 1,
            branch,
            len: len + 1,
        });
        Some(self.nodes.len() - 1)
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Drafted nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The node for `token` after `parent` (`None`: the path's end), where it was drafted.
    pub fn child(&self, parent: Option<usize>, token: u32) -> Option<usize> {
        self.nodes.iter().position(|at| at.node.parent == parent && at.node.token == token)
    }

    /// Tells `luck` how the guesses after `parent` did, the best one first, now that `drawn` came there.
    pub fn learn(&self, luck: &mut Luck, parent: Option<usize>, drawn: u32) {
        for node in self.nodes.iter().map(|at| at.node).filter(|node| node.parent == parent) {
            luck.learn(node.matched, node.token == drawn);
            if node.token == drawn {
                return;
            }
        }
    }

    /// Index of a node's logits among the step's wanted ones.
    pub fn wanted(&self, node: usize) -> usize {
        self.nodes[node].wanted
    }

    /// The branch of an accepted node, in place of `before`, which ended at its parent.
    pub fn take_over(&self, tree: &mut TokenTree, before: BranchId, node: usize) -> BranchId {
        let PlacedNode { branch, len, .. } = self.nodes[node];
        let fork = tree.fork(self.branches[branch]);
        tree.truncate(fork, len);
        tree.release(before);
        fork
    }

    /// Lets go of the draft: tokens that no other branch took over are freed at once.
    pub fn release(self, tree: &mut TokenTree) {
        for branch in self.branches {
            tree.drop_branch(branch, self.path_len);
        }
    }
}
