//! Claims on branches of finished samples, given back by dropping them wherever they went.
//!
//! A claim keeps a branch from being evicted; it gives way, oldest first, only where a running request would fail
//! otherwise. Its tokens are then recomputed when they are asked for again.

use super::Message;
use super::counters::HeldKv;
use super::request::Hold;
use crate::kv::tree::{BranchId, TokenTree};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// The worker's side: which branch each claim stands for, oldest first.
pub struct Holds {
    branches: BTreeMap<u64, BranchId>,
    next: u64,
    back: Sender<Message>,
}

/// The other side: tells the worker when the last clone is gone.
struct Claim {
    id: u64,
    back: Sender<Message>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // With the engine gone there is nothing to give back.
        let _ = self.back.send(Message::Release(self.id));
    }
}

/// The number of a claim on this engine's branches; `None`: another model's.
pub fn claim_of(hold: &Hold) -> Option<u64> {
    hold.0.downcast_ref::<Claim>().map(|claim| claim.id)
}

impl Holds {
    pub fn new(back: Sender<Message>) -> Self {
        Self { branches: BTreeMap::new(), next: 0, back }
    }

    /// Takes over `branch`.
    pub fn claim(&mut self, branch: BranchId) -> Hold {
        let id = self.next;
        self.next += 1;
        self.branches.insert(id, branch);
        Hold(Arc::new(Claim { id, back: self.back.clone() }))
    }

    /// What each claim keeps now. `here` and `moving`: the shares of each page that are on the device, and that cross the
    /// link; `None`: there is but one tier.
    pub fn held(&self, tree: &TokenTree, here: Option<&[f32]>, moving: Option<&[f32]>) -> HashMap<u64, HeldKv> {
        let held = |branch| {
            let slots = if here.is_some() { tree.slots(branch) } else { Vec::new() };
            let tokens_of =
                |shares: &[f32]| slots.iter().map(|slot| shares[slot.page.0 as usize]).sum::<f32>().round() as u32;
            let (tokens, own) = (tree.len(branch) as u32, tree.own_tokens(branch) as u32);
            HeldKv { tokens, own, here: here.map(tokens_of), moving: here.and(moving).map(tokens_of) }
        };
        self.branches.iter().map(|(&id, &branch)| (id, held(branch))).collect()
    }

    /// The branch that a claim stands for, unless it gave way.
    pub fn branch(&self, claim: u64) -> Option<BranchId> {
        self.branches.get(&claim).copied()
    }

    /// A claim was dropped.
    pub fn release(&mut self, id: u64, tree: &mut TokenTree) {
        if let Some(branch) = self.branches.remove(&id) {
            tree.release(branch);
        }
    }

    /// Breaks the oldest claim. False: there is none.
    pub fn give_way(&mut self, tree: &mut TokenTree) -> bool {
        let Some((_, branch)) = self.branches.pop_first() else { return false };
        tree.release(branch);
        true
    }

    /// The token tree is gone, and every claim with it.
    pub fn forget(&mut self) {
        self.branches.clear();
    }
}
