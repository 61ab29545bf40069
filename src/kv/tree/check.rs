//! All invariants of the token tree in one place, recomputed from the segments. Linear in segments, pages and branches:
//! cheap enough for the end of every run.

use super::{BranchId, SegmentId, TokenTree};
use crate::kv::pages_of;

impl TokenTree {
    /// Panics when an invariant is broken: page counts, who owns and who needs which page, parents and children, ends
    /// and counts of branches, what may be evicted, token totals.
    pub fn check(&self) {
        let mut owners = vec![0; self.pages.len()];
        let mut live_owners = vec![0; self.pages.len()];
        let (mut tokens, mut live_tokens, mut queued) = (0, 0, 0);
        for (index, s) in self.segments.iter().enumerate() {
            let id = SegmentId(index as u32);
            let Some(s) = s else {
                assert!(self.free_segments.contains(&id), "a missing segment's number is free");
                continue;
            };
            if id == SegmentId::ROOT {
                assert!(s.tokens.is_empty() && s.start == 0, "the root is empty");
            } else {
                assert!(!s.tokens.is_empty(), "a segment has tokens");
                let parent = self.seg(s.parent);
                assert_eq!(parent.end(), s.start, "a child starts where its parent ends");
                assert_eq!(parent.children.iter().filter(|c| **c == id).count(), 1, "a parent lists its child once");
            }
            let below: u32 = s.children.iter().map(|&c| self.seg(c).live).sum();
            assert_eq!(s.live, s.ends.len() as u32 + below, "branches here or below");
            let furthest = s.ends.iter().map(|&b| self.branch(b).len).max().unwrap_or(s.start);
            assert_eq!(s.live_end, if below > 0 { s.end() } else { furthest }, "live extent");
            assert_eq!(s.pages.len(), pages_of(s.start, s.end()), "pages cover the tokens");
            for page in &s.pages {
                owners[page.0 as usize] += 1;
            }
            for page in &s.pages[..pages_of(s.start, s.live_end)] {
                live_owners[page.0 as usize] += 1;
            }
            tokens += s.tokens.len();
            live_tokens += (s.live_end - s.start) as usize;
            let may_go = id != SegmentId::ROOT && s.children.is_empty() && s.end() > s.live_end;
            assert_eq!(
                s.queued,
                may_go.then_some(s.last_use),
                "what nobody needs waits for eviction, and nothing else"
            );
            if let Some(key) = s.queued {
                assert!(self.evictable.contains(&(key, id)));
                queued += 1;
            }
        }
        self.pages.check(&owners, &live_owners);
        assert_eq!(queued, self.evictable.len());
        assert_eq!((tokens, live_tokens), (self.tokens, self.live_tokens));
        let mut ends = 0;
        for (index, branch) in self.branches.iter().enumerate() {
            let b = BranchId(index as u32);
            let Some(branch) = branch else {
                assert!(self.free_branches.contains(&b), "a closed branch's number is free");
                continue;
            };
            let s = self.seg(branch.segment);
            assert_eq!(s.ends.iter().filter(|e| **e == b).count(), 1, "a branch is listed where it ends");
            let inside = s.start < branch.len && branch.len <= s.end();
            assert!(inside || branch.segment == SegmentId::ROOT && branch.len == 0, "a branch ends in its segment");
            ends += 1;
        }
        assert_eq!(ends, self.segments.iter().flatten().map(|s| s.ends.len()).sum::<usize>());
    }
}
