//! Room in the arena: how far each segment is needed, what may be evicted, and the eviction itself.

use super::{Branch, BranchId, NoPages, SegmentId, TokenTree};
use crate::kv::{PAGE_TOKENS, pages_of};

impl TokenTree {
    /// Brings `id`'s live extent and its place in the eviction queue up to date with its branches and children.
    pub(super) fn refresh(&mut self, id: SegmentId) {
        let s = self.seg(id);
        let end = if s.live as usize > s.ends.len() {
            s.end()
        } else {
            s.ends.iter().map(|&b| self.branch(b).len).max().unwrap_or(s.start).max(s.start)
        };
        self.set_live_end(id, end);
        let s = self.seg(id);
        let wanted = (id != SegmentId::ROOT && s.children.is_empty() && s.end() > s.live_end).then_some(s.last_use);
        if s.queued != wanted {
            self.dequeue(id);
            if let Some(key) = wanted {
                self.evictable.insert((key, id));
            }
            self.seg_mut(id).queued = wanted;
        }
    }

    pub(super) fn set_live_end(&mut self, id: SegmentId, end: u32) {
        let s = self.segments[id.index()].as_mut().expect("the segment exists");
        let (old, new) = (pages_of(s.start, s.live_end), pages_of(s.start, end));
        for &page in &s.pages[old.min(new)..new] {
            self.pages.need(page);
        }
        for &page in &s.pages[new.min(old)..old] {
            self.pages.spare(page);
        }
        self.live_tokens = self.live_tokens + end as usize - s.live_end as usize;
        s.live_end = end;
    }

    pub(super) fn dequeue(&mut self, id: SegmentId) {
        if let Some(key) = self.seg_mut(id).queued.take() {
            self.evictable.remove(&(key, id));
        }
    }

    /// Drops the tokens of the leaf `id` from `end` on; a leaf left empty goes, and its parent may become evictable.
    pub(super) fn trim(&mut self, id: SegmentId, end: u32) {
        let s = self.segments[id.index()].as_mut().expect("the segment exists");
        assert!(s.children.is_empty() && end >= s.live_end && end >= s.start, "only what nobody needs is dropped");
        self.tokens -= (s.end() - end) as usize;
        s.tokens.truncate((end - s.start) as usize);
        for page in s.pages.drain(pages_of(s.start, end)..) {
            self.pages.give(page);
        }
        self.changes.note(id);
        if end > s.start {
            self.refresh(id);
            return;
        }
        assert!(s.live == 0, "an empty segment has no branch");
        let parent = s.parent;
        self.dequeue(id);
        self.segments[id.index()] = None;
        self.free_segments.push(id);
        self.seg_mut(parent).children.retain(|&c| c != id);
        self.refresh(parent);
    }

    pub(super) fn available(&self) -> usize {
        self.pages.free_pages() + self.pages.cached_pages()
    }

    /// Pages that `append` of `added` tokens takes with the tree as it is now.
    fn pages_needed(&self, segment: SegmentId, len: u32, added: u32) -> usize {
        let s = self.seg(segment);
        if self.segment_grows(segment, len) {
            pages_of(s.start, len + added) - s.pages.len()
        } else {
            pages_of(len, len + added)
        }
    }

    /// Evicts until `added` tokens fit behind `b`, or refuses and leaves everything as it was.
    pub(super) fn make_room(&mut self, b: BranchId, added: u32) -> Result<(), NoPages> {
        let Branch { segment, len } = self.branch(b);
        let mut needed = self.pages_needed(segment, len, added);
        if needed <= self.pages.free_pages() {
            return Ok(());
        }
        // Once everything cached is gone a branch that nobody else passes grows in place, which may take a page less.
        let s = self.seg(segment);
        let alone = segment != SegmentId::ROOT && s.live_end == len && s.live as usize == s.ends.len();
        let least = if alone { pages_of(s.start, len + added) - pages_of(s.start, len) } else { needed };
        let free = self.available();
        if least > free {
            return Err(NoPages { needed: least, free });
        }
        while needed > self.pages.free_pages() {
            self.evict_page();
            needed = self.pages_needed(segment, len, added);
        }
        Ok(())
    }

    /// Drops the last page of the least recently used leaf, or what of it no branch needs.
    fn evict_page(&mut self) {
        let &(_, id) = self.evictable.first().expect("cached pages belong to an evictable leaf");
        let s = self.seg(id);
        let boundary = (s.end() - 1) / PAGE_TOKENS as u32 * PAGE_TOKENS as u32;
        let end = boundary.max(s.live_end).max(s.start);
        self.evicted_tokens += u64::from(s.end() - end);
        self.trim(id, end);
    }
}
