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
//! The CPU cuts a block into windows of [`WINDOW`] positions, takes one softmax step a window and has one partial result
//! a block; a row's blocks are merged by a fixed binary tree over their numbers. Both cuts and the tree are fixed, so a
//! row's arithmetic depends on its own path alone: not on the tree around it, the other rows, the method or the threads.

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
    /// Runs of units that one thread takes together, in the order in which they are given out; a row's blocks in a task are
    /// neighbours.
    pub tasks: Vec<Range<u32>>,
    /// The first K/V heads, each of which one thread takes through all units; the tasks are for the others.
    pub whole_heads: u32,
    /// What begins with block `b` of work row `r` is partial number `partial_first[r] + b`; `partial_first[rows]` is their
    /// count.
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

    /// Partial rows of each K/V head that tasks write for others to read. A row whose blocks lie in one task has none; of the blocks a..b of
    /// one in several, a task hands over the aligned runs of 2^l blocks that make them up. `blocks` is room to work in.
    pub fn handed_over(&self, blocks: &mut Vec<Range<u32>>) -> u64 {
        let mut count = 0;
        for task in &self.tasks {
            let units = &self.units[task.start as usize..task.end as usize];
            let first = units.iter().map(|u| u.rows.start).min().unwrap_or(0);
            let end = units.iter().map(|u| u.rows.end).max().unwrap_or(0);
            blocks.clear();
            blocks.resize((end - first) as usize, 0..0);
            for unit in units {
                for own in &mut blocks[(unit.rows.start - first) as usize..(unit.rows.end - first) as usize] {
                    let start = if own.end == 0 { unit.block } else { own.start };
                    *own = start..unit.block + 1;
                }
            }
            for (own, &position) in blocks.iter().zip(&self.positions[first as usize..]) {
                if *own != (0..position / BLOCK as u32 + 1) {
                    count += aligned_runs(own.clone());
                }
            }
        }
        count
    }
}

/// Runs of 2^l numbers, each beginning at a multiple of its length, that make up `range`; as few as can be.
fn aligned_runs(Range { mut start, end }: Range<u32>) -> u64 {
    let mut runs = 0;
    while start < end {
        let aligned = if start == 0 { u32::BITS - 1 } else { start.trailing_zeros() };
        start += 1 << aligned.min((end - start).ilog2());
        runs += 1;
    }
    runs
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
    /// Partial results written and read back (rows of one K/V head, each its query heads × (head size + 2) numbers).
    pub partial_rows: u64,
}

#[cfg(test)]
mod tests {
    use super::aligned_runs;

    #[test]
    fn aligned_runs_are_as_few_as_can_be() {
        let runs = [(0..0, 0), (0..1, 1), (0..8, 1), (0..7, 3), (1..4, 2), (1..8, 3), (3..9, 3), (5..6, 1), (6..8, 1)];
        for (range, expected) in runs {
            assert_eq!(aligned_runs(range.clone()), expected, "{range:?}");
        }
    }
}
