//! What the tree tells about itself: lengths, tokens, places, statistics, and the segments as a plan reads them.

use super::{Branch, BranchId, KvStats, SegmentId, TokenTree};
use crate::kv::{PageId, Slot};

impl TokenTree {
    /// Tokens of `b`.
    pub fn len(&self, b: BranchId) -> usize {
        self.branch(b).len as usize
    }

    pub fn is_empty(&self, b: BranchId) -> bool {
        self.len(b) == 0
    }

    pub fn tokens(&self, b: BranchId) -> Vec<u32> {
        let Branch { segment, len } = self.branch(b);
        let mut tokens = vec![0; len as usize];
        self.walk_up(segment, len, |s, end| {
            tokens[s.start as usize..end as usize].copy_from_slice(&s.tokens[..(end - s.start) as usize]);
        });
        tokens
    }

    /// Where the K/V of each of `b`'s tokens lives.
    pub fn slots(&self, b: BranchId) -> Vec<Slot> {
        let Branch { segment, len } = self.branch(b);
        let mut slots = vec![Slot { page: PageId(0), offset: 0 }; len as usize];
        self.walk_up(segment, len, |s, end| {
            for p in s.start..end {
                slots[p as usize] = s.slot(p);
            }
        });
        slots
    }

    /// Tokens that no other branch sees. O(segments that are `b`'s alone).
    pub fn own_tokens(&self, b: BranchId) -> usize {
        let Branch { segment, len } = self.branch(b);
        let (mut at, mut end, mut own) = (segment, len, 0);
        while at != SegmentId::ROOT {
            let s = self.seg(at);
            // A branch that passes sees all of the segment; one that ends in it sees the beginning.
            let passing = s.live as usize - s.ends.len() - usize::from(at != segment);
            let seen = s.ends.iter().filter(|&&e| e != b).map(|&e| self.branch(e).len).max();
            if passing > 0 {
                break;
            }
            own += end - seen.unwrap_or(s.start).clamp(s.start, end);
            if seen.is_some() {
                break;
            }
            (at, end) = (s.parent, s.start);
        }
        own as usize
    }

    /// Pages that hold only what no other branch sees, in order of the path. O(path).
    pub fn own_pages(&self, b: BranchId) -> Vec<PageId> {
        let slots = self.slots(b);
        let (others, own) = slots.split_at(slots.len() - self.own_tokens(b));
        let shared = others.last().map(|slot| slot.page);
        let mut pages: Vec<PageId> = own.iter().map(|slot| slot.page).filter(|page| Some(*page) != shared).collect();
        pages.dedup();
        pages
    }

    pub fn stats(&self) -> KvStats {
        KvStats {
            pages: self.pages.len(),
            free_pages: self.pages.free_pages(),
            live_pages: self.pages.live_pages(),
            cached_pages: self.pages.cached_pages(),
            branches: self.branches.len() - self.free_branches.len(),
            segments: self.segments.len() - self.free_segments.len() - 1,
            live_tokens: self.live_tokens,
            cached_tokens: self.tokens - self.live_tokens,
            path_tokens: self.branches.iter().flatten().map(|b| b.len as usize).sum(),
            evicted_tokens: self.evicted_tokens,
            lookup_tokens: self.lookup_tokens,
            hit_tokens: self.hit_tokens,
        }
    }

    /// The segment in which `b` ends.
    pub fn end_segment(&self, b: BranchId) -> SegmentId {
        self.branch(b).segment
    }

    /// Whether the next `append` to `b` makes its segment longer instead of beginning a new one.
    pub fn grows_in_place(&self, b: BranchId) -> bool {
        let Branch { segment, len } = self.branch(b);
        self.segment_grows(segment, len)
    }

    /// How many changes were noted so far: what [`Self::changes_since`] counts from.
    pub fn changes(&self) -> u64 {
        self.changes.count()
    }

    /// The segments that were made, cut, joined or shortened since `count` changes were noted, with repetitions; `None`
    /// where that is too long ago. A leaf that grows by `append` is none of it, nor are branches that come, go and move.
    pub fn changes_since(&self, count: u64) -> Option<&[SegmentId]> {
        self.changes.since(count)
    }

    pub fn parent(&self, id: SegmentId) -> Option<SegmentId> {
        (id != SegmentId::ROOT).then(|| self.seg(id).parent)
    }

    /// Absolute positions `start..end` of a segment.
    pub fn span(&self, id: SegmentId) -> std::ops::Range<u32> {
        let s = self.seg(id);
        s.start..s.end()
    }

    /// Pages of a segment; the first holds its first position.
    pub fn segment_pages(&self, id: SegmentId) -> &[PageId] {
        &self.seg(id).pages
    }

    /// Upper bound of [`SegmentId::index`], for tables by segment.
    pub fn segment_bound(&self) -> usize {
        self.segments.len()
    }
}
