//! One segment of the token tree: its tokens, its pages, and who needs how much of it.

use super::{BranchId, SegmentId};
use crate::kv::{PAGE_TOKENS, PageId, Slot};

#[derive(Debug, Clone)]
pub(super) struct Segment {
    /// The root is its own parent.
    pub parent: SegmentId,
    pub children: Vec<SegmentId>,
    /// Absolute position of the first token.
    pub start: u32,
    pub tokens: Vec<u32>,
    /// The first page holds `start`; the following ones follow.
    pub pages: Vec<PageId>,
    /// Branches that end in this segment.
    pub ends: Vec<BranchId>,
    /// Branches that end here or below.
    pub live: u32,
    /// Positions up to here are seen by some branch; `start` where none is.
    pub live_end: u32,
    pub last_use: u64,
    /// The key under which the segment waits for eviction.
    pub queued: Option<u64>,
}

impl Segment {
    pub fn root() -> Self {
        Self::below(SegmentId::ROOT, 0)
    }

    /// An empty segment that continues `parent` at the absolute position `start`.
    pub fn below(parent: SegmentId, start: u32) -> Self {
        Self {
            parent,
            children: Vec::new(),
            start,
            tokens: Vec::new(),
            pages: Vec::new(),
            ends: Vec::new(),
            live: 0,
            live_end: start,
            last_use: 0,
            queued: None,
        }
    }

    pub fn end(&self) -> u32 {
        self.start + self.tokens.len() as u32
    }

    pub fn slot(&self, position: u32) -> Slot {
        let page = position as usize / PAGE_TOKENS - self.start as usize / PAGE_TOKENS;
        Slot { page: self.pages[page], offset: (position as usize % PAGE_TOKENS) as u8 }
    }

    pub fn remove_end(&mut self, b: BranchId) {
        let at = self.ends.iter().position(|&e| e == b).expect("a branch is listed where it ends");
        self.ends.swap_remove(at);
    }

    /// Gives the tokens before the absolute position `at` to a new head, which takes this segment's place: returns the
    /// old parent, the head (still without branches and children, but with their count) and the page that both now own.
    pub fn split_off_head(&mut self, at: u32) -> (SegmentId, Segment, Option<PageId>) {
        assert!(self.start < at && at < self.end(), "a split lies inside its segment");
        assert!(self.live_end == self.start, "the live extent is settled again after a split");
        let tail = self.tokens.split_off((at - self.start) as usize);
        let first = self.start as usize / PAGE_TOKENS;
        let tail_pages = self.pages[at as usize / PAGE_TOKENS - first..].to_vec();
        let mut head = Segment::below(self.parent, self.start);
        head.tokens = std::mem::replace(&mut self.tokens, tail);
        head.pages = std::mem::replace(&mut self.pages, tail_pages);
        head.pages.truncate((at as usize).div_ceil(PAGE_TOKENS) - first);
        head.live = self.live;
        head.last_use = self.last_use;
        self.start = at;
        self.live_end = at;
        let shared = (!(at as usize).is_multiple_of(PAGE_TOKENS)).then(|| self.pages[0]);
        (head.parent, head, shared)
    }
}
