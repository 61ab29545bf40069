//! What the attention operation is told to do: units of work over paged K/V, and the order in which partials merge.
//!
//! Rows stand in depth-first order of the token tree, so the rows that see a piece of K/V are always one range. On the
//! CPU a unit covers one *window*: [`WINDOW`] absolute positions `[w·WINDOW, (w+1)·WINDOW)` of the paths of its rows.
//! Every path has exactly one token at a position, so a unit's scores are a dense `rows × WINDOW` matrix whatever the
//! shape of the tree, and a row's arithmetic depends on its own path only.

use std::ops::Range;

/// Absolute positions of a path that one unit covers.
pub const WINDOW: usize = 64;

/// A run of K/V tokens of one segment, inside one window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Absolute position of the first token, and how many.
    pub start: u32,
    pub len: u32,
    /// Index into [`AttendWork::pages`] of the page that holds `start`; the following pages follow.
    pub first_page: u32,
    /// Work rows (depth-first order) that see at least the first token of this piece; a row sees the tokens at positions
    /// up to its own.
    pub rows: Range<u32>,
}

/// The pieces of one window, for a range of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// Window number: positions `[window · WINDOW, …)`.
    pub window: u32,
    /// Indices into [`AttendWork::pieces`], ancestors first.
    pub pieces: Range<u32>,
    pub rows: Range<u32>,
    /// Partial of the unit's first row; the others follow.
    pub first_partial: u32,
}

/// One step's attention, the same for all layers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AttendWork {
    /// For each work row (depth-first order) the batch row it stands for.
    pub order: Vec<u32>,
    /// Absolute position of each work row.
    pub positions: Vec<u32>,
    /// Page numbers of the arena, as the pieces refer to them.
    pub pages: Vec<u32>,
    pub pieces: Vec<Piece>,
    pub units: Vec<Unit>,
    /// For each work row, its partials in path order: `merge[merge_first[r]..merge_first[r + 1]]`.
    pub merge_first: Vec<u32>,
    pub merge: Vec<u32>,
    /// Partials in all: one a (unit, row).
    pub partials: u32,
    pub io: Io,
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
    /// Partial results written and read back (rows, each `heads × (head size + 1)` numbers).
    pub partial_rows: u64,
}
