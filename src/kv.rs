//! K/V memory as bookkeeping: pages and the token tree. Integers only: no floats, no device, no input or output.

pub mod pages;
pub mod residency;
pub mod tree;

pub use tree::{BranchId, KvStats, NoPages, SegmentId, TokenTree};

/// Tokens a page holds. A page holds K and V of 16 consecutive absolute positions of a path, for all layers; a position
/// `p` always sits at offset `p % 16` of its page.
pub const PAGE_TOKENS: usize = 16;

/// A page of the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u32);

/// Where one token's K/V lives: the same for every layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot {
    pub page: PageId,
    pub offset: u8,
}

/// Pages that hold the absolute positions `start..end` of one segment, whose first page holds `start`.
pub fn pages_of(start: u32, end: u32) -> usize {
    if end <= start { 0 } else { end.div_ceil(PAGE_TOKENS as u32) as usize - start as usize / PAGE_TOKENS }
}
