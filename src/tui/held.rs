//! Which thoughts keep K/V: by a claim of their own, or because a branch below them passes through them.

use crate::lm::HeldKv;
use crate::search::tree::{NodeId, ThoughtTree};
use std::collections::{HashMap, HashSet};

/// What a thought keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeps {
    /// A claim of its own.
    Own(HeldKv),
    /// None of its own, but what is below it keeps the K/V of its path.
    Below,
    /// What there may still be of it goes when its pages are wanted.
    Nothing,
}

#[derive(Debug, Clone, Default)]
pub struct Held {
    own: HashMap<NodeId, HeldKv>,
    below: HashSet<NodeId>,
}

impl Held {
    /// Takes the place of what was known. O(thoughts on the paths of the claims).
    pub fn set(&mut self, tree: &ThoughtTree, thoughts: &[(NodeId, HeldKv)]) {
        self.own = thoughts.iter().copied().filter(|(node, _)| tree.get(*node).is_some()).collect();
        self.below.clear();
        for &node in self.own.keys() {
            let mut above = tree.node(node).parent;
            while let Some(at) = above
                && self.below.insert(at)
            {
                above = tree.node(at).parent;
            }
        }
    }

    pub fn of(&self, node: NodeId) -> Keeps {
        match self.own.get(&node) {
            Some(&held) => Keeps::Own(held),
            None if self.below.contains(&node) => Keeps::Below,
            None => Keeps::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::event::Event;
    use crate::tui::testing::{grown, run_of};

    #[test]
    fn a_claim_shows_on_its_thought_and_on_the_way_to_it() {
        let kv = |tokens, own| HeldKv { tokens, own, here: None, moving: None };
        let mut run = run_of(&[grown(1, 0, "a"), grown(2, 1, "b"), grown(3, 0, "c")]);
        run.apply(&Event::Held { thoughts: vec![(NodeId(2), kv(30, 4)), (NodeId(99), kv(1, 1))] }, 0.0);
        let keeps = |run: &crate::tui::run_state::RunState| (0..4).map(|i| run.held.of(NodeId(i))).collect::<Vec<_>>();
        assert_eq!(keeps(&run), [Keeps::Below, Keeps::Below, Keeps::Own(kv(30, 4)), Keeps::Nothing]);
        run.apply(&Event::Held { thoughts: Vec::new() }, 0.0);
        assert_eq!(keeps(&run), [Keeps::Nothing; 4]);
    }
}
