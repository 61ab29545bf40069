//! What the attention operation is told to do: units of work over paged K/V.
//!
//! Rows stand in depth-first order of the token tree, so the rows that see a piece of K/V are always one range. A unit
//! covers one *block*: [`BLOCK`] absolute positions `[b·BLOCK, (b+1)·BLOCK)` of the paths of its rows, which all share
//! the block's first token; where paths part inside the block, its pieces have row ranges of their own:
//!
//! ```text
//! positions      512                 700      768
//! rows 0..3      [ piece 0: rows 0..3 ][ piece 1: row 0     ]
//!                                      [ piece 2: rows 1..3 ]     one unit: block 2, rows 0..3, three pieces
//! ```
//!
//! Every path has exactly one token at a position, so a row's scores in a block are dense whatever the shape of the tree.
//! The CPU cuts a block into windows of [`WINDOW`] positions, takes one softmax step a window and writes one partial a
//! block; the partials of a row merge in path order. Both cuts are fixed, so a row's arithmetic depends on its own path
//! alone: not on the tree around it, the other rows, the method or the threads.

use std::ops::Range;

/// Absolute positions between two softmax steps of a row.
pub const WINDOW: usize = 64;

/// Absolute positions of a path that one unit covers and one partial result stands for.
pub const BLOCK: usize = 256;

/// A run of K/V tokens of one segment, inside one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Absolute position of the first token, and how many.
    pub start: u32,
    pub len: u32,
    /// Index into [`AttendWork::pages`] of the page that holds `start`; the following pages follow.
    pub first_page: u32,
    /// Work rows (depth-first order) that see at least the first token of this piece; a row sees the tokens at positions
    /// up to its own. Rows that end inside the piece come first, by position.
    pub rows: Range<u32>,
}

/// The pieces of one block, for a range of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// Block number: positions `[block · BLOCK, …)`.
    pub block: u32,
    /// Indices into [`AttendWork::pieces`], ancestors first. Units that split one block by rows share its pieces, so a
    /// piece's rows may exceed the unit's.
    pub pieces: Range<u32>,
    /// Work rows; all of them see the block's first token.
    pub rows: Range<u32>,
}

/// One step's attention, the same for all layers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttendWork {
    /// For each work row (depth-first order) the batch row it stands for.
    pub order: Vec<u32>,
    /// Absolute position of each work row.
    pub positions: Vec<u32>,
    /// Page numbers of the arena, as the pieces refer to them.
    pub pages: Vec<u32>,
    pub pieces: Vec<Piece>,
    pub units: Vec<Unit>,
    /// Runs of units that one thread takes together.
    pub tasks: Vec<Range<u32>>,
    /// The partial of work row `r` and block `b` is number `partial_first[r] + b`; `partial_first[rows]` is their count.
    pub partial_first: Vec<u32>,
    pub io: Io,
}

impl AttendWork {
    pub fn rows(&self) -> usize {
        self.order.len()
    }

    pub fn partials(&self) -> usize {
        self.partial_first.last().map_or(0, |&n| n as usize)
    }
}

/// Tokens and rows this work moves, per layer; multiply by bytes a token and by layers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Io {
    /// K/V tokens read (with replicas).
    pub kv_tokens: u64,
    /// K/V tokens in the union of all paths: the least that could be read.
    pub unique_tokens: u64,
    /// What grouping by query would read: the sum of the rows' path lengths.
    pub radix_tokens: u64,
    /// Partial results written and read back (rows, each `heads × (head size + 2)` numbers).
    pub partial_rows: u64,
}
