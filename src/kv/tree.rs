//! The token tree: what the model remembers, as a radix forest of token runs over pages.
//!
//! A *segment* is a run of tokens with one parent; the root segment is empty and always there. A *branch* is a handle on
//! one path: the segment it ends in and its length. A branch may end inside a segment; only a different continuation
//! splits it. Tokens that no branch needs stay *cached* until their pages are wanted: the least recently used leaf goes
//! first, page by page from its end, in a fixed order. What a branch can see is never evicted.
//!
//! ```text
//! positions   0         16        32   36   40
//! prompt      [ page 7 ][ page 2 ][ page 5..)            segment 1, positions 0..36
//! branch a                         ....[ 5 ..)           segment 2 (36..40) after a split at 36: shares page 5
//! branch b                         ....[ page 9 ..)      segment 3 (36..): a page of its own, offsets 0..4 unused
//! ```
//!
//! Two branches that append the same tokens get siblings that begin alike; `advance` follows the longer match.
//! Costs: `append` of one token is constant; `fork`, `release`, `advance`, `truncate` are linear in the segments of the
//! path, a split in the tokens of its segment.

use super::pages::Pages;
use super::{PAGE_TOKENS, PageId, Slot, pages_of};
use std::collections::BTreeSet;
use std::fmt;

mod changes;
mod check;
#[cfg(any(test, fuzzing))]
pub mod model;
mod room;
mod segment;
#[cfg(test)]
mod tests;
mod view;

use changes::Changes;
use segment::Segment;

/// A live path of the tree. Valid from `open` or `fork` until `release` or `drop_branch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BranchId(u32);

impl BranchId {
    /// Numbers of branches that are gone are used again.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A run of tokens with one parent. Numbers are used again after a segment is gone; see [`TokenTree::changes_since`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentId(pub(crate) u32);

impl SegmentId {
    pub const ROOT: Self = Self(0);

    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// `append` wanted more pages than are free or cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoPages {
    pub needed: usize,
    /// Pages that could be had: free ones, and cached ones by eviction.
    pub free: usize,
}

impl fmt::Display for NoPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "K/V memory is full: {} pages of {PAGE_TOKENS} tokens needed, {} can be had", self.needed, self.free)
    }
}

impl std::error::Error for NoPages {}

/// Pages and tokens now; lookups and evictions since the tree was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KvStats {
    pub pages: usize,
    pub free_pages: usize,
    pub live_pages: usize,
    pub cached_pages: usize,
    pub branches: usize,
    pub segments: usize,
    /// Tokens that some branch sees, each counted once.
    pub live_tokens: usize,
    /// Tokens kept for whoever asks next.
    pub cached_tokens: usize,
    /// Sum of the branches' lengths: what would be stored without sharing.
    pub path_tokens: usize,
    pub evicted_tokens: u64,
    /// Tokens asked for by `advance`, and how many of them were there.
    pub lookup_tokens: u64,
    pub hit_tokens: u64,
}

#[derive(Debug, Clone, Copy)]
struct Branch {
    segment: SegmentId,
    len: u32,
}

#[derive(Debug, Clone)]
pub struct TokenTree {
    pages: Pages,
    segments: Vec<Option<Segment>>,
    free_segments: Vec<SegmentId>,
    branches: Vec<Option<Branch>>,
    free_branches: Vec<BranchId>,
    /// Leaves that end past what branches need, the least recently used first.
    evictable: BTreeSet<(u64, SegmentId)>,
    clock: u64,
    changes: Changes,
    tokens: usize,
    live_tokens: usize,
    evicted_tokens: u64,
    lookup_tokens: u64,
    hit_tokens: u64,
}

impl TokenTree {
    /// An empty tree over `pages` pages of the arena.
    pub fn new(pages: usize) -> Self {
        Self {
            pages: Pages::new(pages),
            segments: vec![Some(Segment::root())],
            free_segments: Vec::new(),
            branches: Vec::new(),
            free_branches: Vec::new(),
            evictable: BTreeSet::new(),
            clock: 0,
            changes: Changes::default(),
            tokens: 0,
            live_tokens: 0,
            evicted_tokens: 0,
            lookup_tokens: 0,
            hit_tokens: 0,
        }
    }

    /// Notes from now on which pages become free, for a device that keeps some of them nearer than others.
    pub fn log_freed(&mut self) {
        self.pages.log_freed();
    }

    /// Pages that became free since this was asked last; some may hold other tokens by now.
    pub fn take_freed(&mut self) -> Vec<PageId> {
        self.pages.take_freed()
    }

    /// An empty branch.
    pub fn open(&mut self) -> BranchId {
        self.enter(SegmentId::ROOT, 0)
    }

    /// Another branch on the same path.
    pub fn fork(&mut self, b: BranchId) -> BranchId {
        let Branch { segment, len } = self.branch(b);
        self.enter(segment, len)
    }

    /// Moves `b` along tokens already in the tree as far as they equal `ids`; how many matched.
    pub fn advance(&mut self, b: BranchId, ids: &[u32]) -> usize {
        let Branch { segment, len } = self.branch(b);
        let (target, matched) = self.longest_match(segment, len, ids);
        self.lookup_tokens += ids.len() as u64;
        self.hit_tokens += matched as u64;
        if matched > 0 {
            self.seg_mut(segment).remove_end(b);
            let mut below = target;
            while below != segment {
                let s = self.seg_mut(below);
                s.live += 1;
                below = s.parent;
            }
            self.seg_mut(target).ends.push(b);
            self.branches[b.0 as usize] = Some(Branch { segment: target, len: len + matched as u32 });
            self.touch(target, segment);
        }
        matched
    }

    /// How many of `ids` a new branch would find here. Changes nothing, so that asking has no effect on what is evicted.
    pub fn found(&self, ids: &[u32]) -> usize {
        self.longest_match(SegmentId::ROOT, 0, ids).1
    }

    /// Appends new tokens to `b` and their places, in order, to `slots`. Evicts cached pages as needed; all or nothing.
    pub fn append(&mut self, b: BranchId, ids: &[u32], slots: &mut Vec<Slot>) -> Result<(), NoPages> {
        if ids.is_empty() {
            return Ok(());
        }
        let added = u32::try_from(ids.len()).map_err(|_| NoPages { needed: usize::MAX, free: self.available() })?;
        self.make_room(b, added)?;
        let Branch { segment, len } = self.branch(b);
        let target = if self.segment_grows(segment, len) { segment } else { self.new_child(b) };
        let end = len + added;
        let s = self.segments[target.index()].as_mut().expect("the branch's segment exists");
        s.tokens.extend_from_slice(ids);
        while s.pages.len() < pages_of(s.start, end) {
            s.pages.push(self.pages.take().expect("room was made"));
        }
        slots.extend((len..end).map(|p| s.slot(p)));
        self.tokens += ids.len();
        self.branches[b.0 as usize] = Some(Branch { segment: target, len: end });
        self.refresh(target);
        Ok(())
    }

    /// Ends `b`; its tokens stay cached until evicted.
    pub fn release(&mut self, b: BranchId) {
        let Branch { segment, .. } = self.branch(b);
        self.seg_mut(segment).remove_end(b);
        let mut at = segment;
        loop {
            self.seg_mut(at).live -= 1;
            if at == SegmentId::ROOT {
                break;
            }
            at = self.seg(at).parent;
        }
        self.branches[b.0 as usize] = None;
        self.free_branches.push(b);
        self.touch(segment, SegmentId::ROOT);
    }

    /// Shortens `b` to `len` tokens and frees at once those of the others that nobody else uses and nothing follows.
    /// Panics where `len` exceeds the branch's.
    pub fn truncate(&mut self, b: BranchId, len: usize) {
        let Branch { segment, len: old_len } = self.branch(b);
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        assert!(len <= old_len, "a branch of {old_len} tokens is truncated to {len}");
        if len == old_len {
            return;
        }
        self.seg_mut(segment).remove_end(b);
        let mut target = segment;
        while target != SegmentId::ROOT && len <= self.seg(target).start {
            let s = self.seg_mut(target);
            s.live -= 1;
            target = s.parent;
        }
        self.seg_mut(target).ends.push(b);
        self.branches[b.0 as usize] = Some(Branch { segment: target, len });
        self.touch(segment, target);
        let (mut at, mut used) = (segment, old_len);
        while at != SegmentId::ROOT && self.seg(at).children.is_empty() && used == self.seg(at).end() {
            let s = self.seg(at);
            let (start, parent, keep) = (s.start, s.parent, s.live_end.max(len).max(s.start));
            self.trim(at, keep);
            if keep > start {
                break;
            }
            (at, used) = (parent, start);
        }
    }

    /// Ends `b` and frees at once its tokens past the first `keep` that nobody else uses: what pruning calls, so that a
    /// pruned branch's pages go before any other.
    pub fn drop_branch(&mut self, b: BranchId, keep: usize) {
        self.truncate(b, keep.min(self.len(b)));
        self.release(b);
    }

    /// Joins the segment in which `b` ends with those above it from which nothing else goes on any more, as far as their
    /// pages run on: what a fork that is gone again (a draft, say) left of one run of tokens. Linear in what is joined.
    pub fn join(&mut self, b: BranchId) {
        loop {
            let id = self.branch(b).segment;
            if id == SegmentId::ROOT || !self.join_parent(id) {
                return;
            }
        }
    }

    /// Appends `id` to its parent where it is the only child and their pages run on; false where not.
    fn join_parent(&mut self, id: SegmentId) -> bool {
        let s = self.seg(id);
        let (above, start) = (s.parent, s.start);
        let parent = self.seg(above);
        let runs_on = start.is_multiple_of(PAGE_TOKENS as u32) || parent.pages.last() == s.pages.first();
        if above == SegmentId::ROOT || parent.children.len() != 1 || !runs_on {
            return false;
        }
        for part in [id, above] {
            self.dequeue(part);
            self.set_live_end(part, self.seg(part).start);
        }
        let Some(mut child) = self.segments[id.index()].take() else { return false };
        self.free_segments.push(id);
        if !start.is_multiple_of(PAGE_TOKENS as u32) {
            self.pages.give(child.pages.remove(0));
        }
        for &below in &child.children {
            self.seg_mut(below).parent = above;
        }
        for &end in &child.ends {
            self.branches[end.0 as usize] = Some(Branch { segment: above, len: self.branch(end).len });
        }
        let parent = self.seg_mut(above);
        parent.tokens.append(&mut child.tokens);
        parent.pages.append(&mut child.pages);
        parent.ends.append(&mut child.ends);
        parent.children = child.children;
        parent.last_use = parent.last_use.max(child.last_use);
        self.refresh(above);
        self.changes.note(id);
        self.changes.note(above);
        true
    }

    fn branch(&self, b: BranchId) -> Branch {
        self.branches.get(b.0 as usize).copied().flatten().expect("the branch is open")
    }

    fn seg(&self, id: SegmentId) -> &Segment {
        self.segments[id.index()].as_ref().expect("the segment exists")
    }

    fn seg_mut(&mut self, id: SegmentId) -> &mut Segment {
        self.segments[id.index()].as_mut().expect("the segment exists")
    }

    fn enter(&mut self, segment: SegmentId, len: u32) -> BranchId {
        let branch = Some(Branch { segment, len });
        let b = match self.free_branches.pop() {
            Some(b) => {
                self.branches[b.0 as usize] = branch;
                b
            }
            None => {
                self.branches.push(branch);
                BranchId(self.branches.len() as u32 - 1)
            }
        };
        self.seg_mut(segment).ends.push(b);
        let mut at = segment;
        loop {
            self.seg_mut(at).live += 1;
            self.refresh(at);
            if at == SegmentId::ROOT {
                break;
            }
            at = self.seg(at).parent;
        }
        b
    }

    /// Calls `f(segment, end)` from the path's last segment to its first; `end` is where the path leaves the segment.
    fn walk_up(&self, segment: SegmentId, len: u32, mut f: impl FnMut(&Segment, u32)) {
        let (mut at, mut end) = (segment, len);
        while at != SegmentId::ROOT {
            let s = self.seg(at);
            f(s, end);
            (at, end) = (s.parent, s.start);
        }
    }

    /// The furthest place that `ids` lead to from position `len` of `segment`, and how many of them matched.
    fn longest_match(&self, segment: SegmentId, len: u32, ids: &[u32]) -> (SegmentId, usize) {
        let mut best = (segment, 0);
        let mut open = vec![(segment, len, 0)];
        while let Some((at, position, before)) = open.pop() {
            let s = self.seg(at);
            let rest = &s.tokens[(position - s.start) as usize..];
            let matched = before + rest.iter().zip(&ids[before..]).take_while(|(a, b)| a == b).count();
            if matched > best.1 {
                best = (at, matched);
            }
            if matched < ids.len() && matched == before + rest.len() {
                // Siblings may begin alike; the first of the longest matches wins, so the last is looked at first.
                for &child in s.children.iter().rev() {
                    let c = self.seg(child);
                    if c.tokens.first() == Some(&ids[matched]) {
                        open.push((child, c.start, matched));
                    }
                }
            }
        }
        best
    }

    pub(super) fn segment_grows(&self, segment: SegmentId, len: u32) -> bool {
        let s = self.seg(segment);
        segment != SegmentId::ROOT && s.end() == len && s.children.is_empty()
    }

    /// A new segment below `b`'s end, which splits the segment there if it goes on; `b` moves into it.
    fn new_child(&mut self, b: BranchId) -> SegmentId {
        let Branch { segment, len } = self.branch(b);
        let parent = if self.seg(segment).end() > len { self.split(segment, len) } else { segment };
        let child = self.add_segment(Segment::below(parent, len));
        self.seg_mut(parent).children.push(child);
        self.seg_mut(parent).remove_end(b);
        let clock = self.clock;
        let c = self.seg_mut(child);
        c.ends.push(b);
        c.live = 1;
        c.last_use = clock;
        self.branches[b.0 as usize] = Some(Branch { segment: child, len });
        self.refresh(parent);
        child
    }

    /// Cuts `id` before the absolute position `at`; the new head is returned, `id` keeps the tail.
    fn split(&mut self, id: SegmentId, at: u32) -> SegmentId {
        self.dequeue(id);
        self.set_live_end(id, self.seg(id).start);
        let (parent, head, shared) = self.seg_mut(id).split_off_head(at);
        if let Some(page) = shared {
            self.pages.share(page);
        }
        let head = self.add_segment(head);
        self.seg_mut(head).children.push(id);
        self.seg_mut(id).parent = head;
        let slot = self.seg_mut(parent).children.iter_mut().find(|c| **c == id).expect("a parent lists its child");
        *slot = head;
        let ends = std::mem::take(&mut self.seg_mut(id).ends);
        for b in ends {
            let len = self.branch(b).len;
            let to = if len <= at { head } else { id };
            self.seg_mut(to).ends.push(b);
            self.branches[b.0 as usize] = Some(Branch { segment: to, len });
        }
        let moved = self.seg(head).ends.len() as u32;
        self.seg_mut(id).live -= moved;
        self.refresh(id);
        self.refresh(head);
        self.changes.note(id);
        head
    }

    fn add_segment(&mut self, segment: Segment) -> SegmentId {
        let id = match self.free_segments.pop() {
            Some(id) => {
                self.segments[id.index()] = Some(segment);
                id
            }
            None => {
                self.segments.push(Some(segment));
                SegmentId(self.segments.len() as u32 - 1)
            }
        };
        self.changes.note(id);
        id
    }

    /// Marks the path from `from` up to `to` as just used.
    fn touch(&mut self, from: SegmentId, to: SegmentId) {
        self.clock += 1;
        let clock = self.clock;
        let mut at = from;
        loop {
            self.dequeue(at);
            self.seg_mut(at).last_use = clock;
            self.refresh(at);
            if at == to || at == SegmentId::ROOT {
                break;
            }
            at = self.seg(at).parent;
        }
    }
}
