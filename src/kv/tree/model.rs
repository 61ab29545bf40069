//! The token tree against a naive model: every branch as a plain vector, and an arena whose slots remember which path
//! was written into them. Operations come from the tests, or from a fuzzer's bytes.

use super::*;
use crate::base::choices::Choices;
use std::collections::{HashMap, HashSet};

/// What a slot holds: the whole path up to its token, so that a page used again too early shows at once.
type Arena = HashMap<Slot, Vec<u32>>;

struct World {
    tree: TokenTree,
    arena: Arena,
    branches: Vec<(BranchId, Vec<u32>)>,
    /// Everything ever appended; complete only while nothing was evicted or truncated.
    history: Vec<Vec<u32>>,
    forgets: bool,
}

impl World {
    fn new(pages: usize) -> Self {
        let tree = TokenTree::new(pages);
        Self { tree, arena: Arena::new(), branches: Vec::new(), history: Vec::new(), forgets: false }
    }

    fn open(&mut self) {
        let b = self.tree.open();
        self.branches.push((b, Vec::new()));
    }

    fn append(&mut self, i: usize, ids: &[u32]) {
        let (b, path) = &mut self.branches[i];
        let before = self.tree.stats();
        let mut slots = Vec::new();
        match self.tree.append(*b, ids, &mut slots) {
            Ok(()) => {
                assert_eq!(slots.len(), ids.len());
                for (&id, slot) in ids.iter().zip(slots) {
                    assert_eq!(usize::from(slot.offset), path.len() % PAGE_TOKENS);
                    path.push(id);
                    self.arena.insert(slot, path.clone());
                }
                self.history.push(path.clone());
            }
            Err(no) => {
                assert!(no.needed > no.free);
                assert_eq!(no.free, before.free_pages + before.cached_pages);
                assert_eq!(self.tree.stats(), before, "a refused append changes nothing");
                assert!(slots.is_empty());
            }
        }
        self.forgets |= self.tree.stats().evicted_tokens > 0;
    }

    fn advance(&mut self, i: usize, ids: &[u32]) {
        let (b, path) = self.branches[i].clone();
        let matched = self.tree.advance(b, ids);
        let wanted: Vec<u32> = path.iter().chain(ids).copied().collect();
        let common = |other: &[u32]| {
            let n = wanted.iter().zip(other).take_while(|(a, b)| a == b).count();
            n.saturating_sub(path.len())
        };
        // From its own place in the tree: a sibling that began alike is another place, reachable only from its parent.
        if path.is_empty() {
            let at_least = self.branches.iter().map(|(_, p)| common(p)).max().unwrap_or(0);
            assert!(matched >= at_least, "{matched} matched, a live branch has {at_least}");
        }
        let at_most = self.history.iter().map(|p| common(p)).max().unwrap_or(0);
        assert!(matched <= at_most);
        if path.is_empty() && !self.forgets {
            assert_eq!(matched, at_most);
        }
        self.branches[i].1.extend_from_slice(&ids[..matched]);
    }

    fn check(&self) {
        self.tree.check();
        let stats = self.tree.stats();
        assert_eq!(stats.free_pages + stats.live_pages + stats.cached_pages, stats.pages);
        assert_eq!(stats.path_tokens, self.branches.iter().map(|(_, p)| p.len()).sum::<usize>());
        assert!(stats.live_tokens <= stats.path_tokens);
        for (b, path) in &self.branches {
            assert_eq!(self.tree.len(*b), path.len());
            let others: HashSet<Slot> =
                self.branches.iter().filter(|(o, _)| o != b).flat_map(|(o, _)| self.tree.slots(*o)).collect();
            let own = self.tree.slots(*b).iter().filter(|slot| !others.contains(slot)).count();
            assert_eq!(self.tree.own_tokens(*b), own, "tokens that nobody else sees");
            let theirs: HashSet<_> = others.iter().map(|slot| slot.page).collect();
            let mut pages: Vec<_> = self.tree.slots(*b).iter().map(|slot| slot.page).collect();
            pages.dedup();
            pages.retain(|page| !theirs.contains(page));
            assert_eq!(self.tree.own_pages(*b), pages, "pages that nobody else sees");
            assert_eq!(&self.tree.tokens(*b), path);
            for (p, slot) in self.tree.slots(*b).into_iter().enumerate() {
                assert_eq!(self.arena.get(&slot).map(Vec::as_slice), Some(&path[..=p]), "K/V of position {p}");
            }
        }
    }
}

#[derive(Debug, Clone)]
pub enum Op {
    Open,
    Fork(usize),
    Append(usize, Vec<u32>),
    /// Along another branch's path or the history, with a tail of its own.
    Advance(usize, usize, Vec<u32>),
    Release(usize),
    Truncate(usize, usize),
    Join(usize),
    Drop(usize, usize),
}

/// Operations as bytes spell them, on a small tree or a roomy one.
pub fn fuzz(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let pages = [4096, 1 + choices.below(14)][choices.below(2)];
    let mut ops = Vec::new();
    while !choices.is_done() && ops.len() < MOST_OPS {
        let (kind, branch) = (choices.below(21), choices.below(256));
        // Few different tokens, so that paths meet; more of them than a page has, so that runs end inside pages.
        let ids = |choices: &mut Choices<'_>| (0..1 + choices.below(40)).map(|_| choices.below(3) as u32).collect();
        ops.push(match kind {
            0 => Op::Open,
            1..4 => Op::Fork(branch),
            4..10 => Op::Append(branch, ids(&mut choices)),
            10..13 => Op::Advance(branch, choices.below(256), ids(&mut choices)),
            13..15 => Op::Release(branch),
            15..17 => Op::Truncate(branch, choices.below(1024)),
            17 => Op::Drop(branch, choices.below(1024)),
            _ => Op::Join(branch),
        });
    }
    run(pages, &ops);
}

/// Operations of one run: each is followed by a check of everything.
const MOST_OPS: usize = 80;

/// Carries operations out, checking everything after each.
pub fn run(pages: usize, ops: &[Op]) {
    let mut w = World::new(pages);
    w.open();
    for op in ops {
        let n = w.branches.len();
        match op {
            Op::Open => w.open(),
            _ if n == 0 => continue,
            Op::Fork(i) => {
                let (b, path) = w.branches[i % n].clone();
                let fork = w.tree.fork(b);
                w.branches.push((fork, path));
            }
            Op::Append(i, ids) => w.append(i % n, ids),
            Op::Advance(i, h, tail) => {
                let i = i % n;
                let mut ids = match w.history.get(h % w.history.len().max(1)) {
                    Some(past) => past.get(w.branches[i].1.len()..).unwrap_or(&[]).to_vec(),
                    None => Vec::new(),
                };
                ids.extend(tail);
                w.advance(i, &ids);
            }
            Op::Release(i) => {
                let (b, _) = w.branches.swap_remove(i % n);
                w.tree.release(b);
            }
            Op::Truncate(i, keep) => {
                let (b, path) = &mut w.branches[i % n];
                path.truncate(keep % (path.len() + 1));
                w.tree.truncate(*b, path.len());
                w.forgets = true;
            }
            Op::Join(i) => w.tree.join(w.branches[i % n].0),
            Op::Drop(i, keep) => {
                let (b, path) = w.branches.swap_remove(i % n);
                w.tree.drop_branch(b, keep % (path.len() + 1));
                w.forgets = true;
            }
        }
        w.check();
    }
    for (b, _) in std::mem::take(&mut w.branches) {
        w.tree.release(b);
    }
    w.check();
    let stats = w.tree.stats();
    assert_eq!((stats.branches, stats.live_pages, stats.live_tokens), (0, 0, 0));
}
