//! The tree flattened depth-first: rows in order, and for every run of tokens the range of rows that see it.

use super::{Row, Tree};
use crate::device::attend::{AttendWork, Piece};
use crate::device::cuda::work::{GROUP, TILE, Tile};
use crate::kv::PAGE_TOKENS;
use std::ops::Range;

/// Tokens of one node that the same rows see.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// Index into the tree's slots.
    pub first: u32,
    pub len: u32,
    pub row: u32,
    pub row_end: u32,
    pub node: u32,
}

pub struct Flat<'a> {
    pub slots: &'a [u32],
    paged: bool,
    pub runs: Vec<Run>,
    /// For each work row, the batch row.
    pub order: Vec<u32>,
}

impl<'a> Flat<'a> {
    /// Linear in nodes and rows, but for the sort of a node's rows.
    pub fn new(tree: Tree<'a>, rows: &[Row]) -> Self {
        let n = tree.nodes.len();
        let mut own: Vec<Vec<u32>> = vec![Vec::new(); n];
        for (i, row) in rows.iter().enumerate() {
            own[row.node as usize].push(i as u32);
        }
        // Children as linked lists, in reverse so that the first child comes first off the stack.
        let mut head = vec![u32::MAX; n];
        let mut next = vec![u32::MAX; n];
        let mut roots = Vec::new();
        for (i, node) in tree.nodes.iter().enumerate() {
            match node.parent {
                Some(p) => {
                    debug_assert!((p as usize) < i, "parents stand before their children");
                    next[i] = head[p as usize];
                    head[p as usize] = i as u32;
                }
                None => roots.push(i as u32),
            }
        }
        let mut order = Vec::with_capacity(rows.len());
        let mut depth_first = Vec::with_capacity(n);
        let mut row_first = vec![0u32; n];
        let mut stack = Vec::new();
        for &root in roots.iter().rev() {
            stack.push(root);
        }
        while let Some(i) = stack.pop() {
            depth_first.push(i);
            row_first[i as usize] = order.len() as u32;
            own[i as usize].sort_by_key(|&r| rows[r as usize].offset);
            order.extend_from_slice(&own[i as usize]);
            let mut child = head[i as usize];
            while child != u32::MAX {
                stack.push(child);
                child = next[child as usize];
            }
        }
        // A subtree's rows end where those of its last descendant do.
        let mut row_end = vec![0u32; n];
        for &i in depth_first.iter().rev() {
            let i = i as usize;
            row_end[i] = row_end[i].max(row_first[i] + own[i].len() as u32);
            if let Some(p) = tree.nodes[i].parent {
                row_end[p as usize] = row_end[p as usize].max(row_end[i]);
            }
        }
        let mut runs = Vec::with_capacity(n);
        for &i in &depth_first {
            let node = &tree.nodes[i as usize];
            let (mut at, mut row) = (0, row_first[i as usize]);
            let end = row_end[i as usize];
            let mut push = |from: u32, to: u32, row: u32| {
                if to > from && row < end {
                    runs.push(Run { first: node.first + from, len: to - from, row, row_end: end, node: i });
                }
            };
            // Own rows see the node up to their offsets; all rows below see all of it.
            for &r in &own[i as usize] {
                let to = (rows[r as usize].offset + 1).min(node.len);
                push(at, to, row);
                at = at.max(to);
                row += 1;
            }
            push(at, node.len, row);
        }
        Self { slots: tree.slots, paged: tree.paged, runs, order }
    }

    /// Runs in depth-first order over slots of pages.
    pub fn of(slots: &'a [u32], runs: Vec<Run>, order: Vec<u32>) -> Self {
        Self { slots, paged: true, runs, order }
    }

    pub fn rows(&self) -> u32 {
        self.order.len() as u32
    }

    /// K/V tokens in the union of all paths.
    pub fn tokens(&self) -> u64 {
        self.runs.iter().map(|r| u64::from(r.len)).sum()
    }

    pub fn path_tokens(&self) -> u64 {
        self.runs.iter().map(|r| u64::from(r.len) * u64::from(r.row_end - r.row)).sum()
    }

    /// Borders of blocks of at most `height` rows, of about the same height, where neighbours share the fewest tokens.
    pub fn borders(&self, height: u32) -> Vec<u32> {
        let rows = self.rows();
        // Tokens that both row r - 1 and row r see.
        let mut shared = vec![0i64; rows as usize + 2];
        for run in &self.runs {
            if run.row_end - run.row > 1 {
                shared[run.row as usize + 1] += i64::from(run.len);
                shared[run.row_end as usize] -= i64::from(run.len);
            }
        }
        let mut sum = 0;
        for s in &mut shared {
            sum += *s;
            *s = sum;
        }
        let mut borders = vec![0];
        let mut at = 0;
        while at < rows {
            let left = rows - at;
            let blocks = left.div_ceil(height);
            let even = left.div_ceil(blocks);
            // Not so short that one block more is needed.
            let least = even.min((left - (blocks - 1) * height).max(even * 3 / 4)).max(1);
            let end = (least..=height.min(left))
                .map(|h| at + h)
                .min_by_key(|&e| (if e == rows { 0 } else { shared[e as usize] }, e.abs_diff(at + even)))
                .unwrap_or(rows);
            borders.push(end);
            at = end;
        }
        borders
    }

    /// Appends the tiles of the runs that any of `rows` sees. Groups of neighbours in memory are packed without gaps.
    pub fn tiles(&self, runs: &[Run], rows: Range<u32>, tiles: &mut Vec<Tile>) {
        let mut fill = TileFill { tile: EMPTY, len: 0, tiles };
        for run in runs {
            if run.row < rows.end && run.row_end > rows.start {
                let slots = &self.slots[run.first as usize..(run.first + run.len) as usize];
                let mut at = 0;
                while at < slots.len() {
                    // The longest stretch that goes on in one group.
                    let room = fill.room(slots[at], self.paged);
                    let limit = room.min(slots.len() - at);
                    let len = (1..limit).find(|&i| slots[at + i] != slots[at] + i as u32).unwrap_or(limit);
                    fill.push(slots[at], len, run);
                    at += len;
                }
            }
        }
        fill.flush();
    }
}

/// The runs of a step's work in depth-first order; their tokens' slots go to `slots`. Linear but for a sort.
///
/// A piece is cut by blocks of positions, which mean nothing here: pieces that go on with one another become one run.
pub fn runs(work: &AttendWork, slots: &mut Vec<u32>) -> Vec<Run> {
    const PAGE: u32 = PAGE_TOKENS as u32;
    let mut pieces: Vec<&Piece> = work.pieces.iter().collect();
    // A parent's rows begin where its first child's do, at lower positions.
    pieces.sort_by_key(|p| (p.rows.start, p.start));
    let mut runs: Vec<Run> = Vec::with_capacity(pieces.len());
    let (mut node, mut last): (u32, Option<&Piece>) = (0, None);
    for piece in pieces {
        let follows = last.is_some_and(|l| {
            l.start + l.len == piece.start
                && l.rows.end == piece.rows.end
                && l.first_page + (piece.start / PAGE - l.start / PAGE) == piece.first_page
        });
        if !follows {
            node += 1;
        }
        last = Some(piece);
        let first = slots.len() as u32;
        slots.extend((piece.start..piece.start + piece.len).map(|position| {
            let page = work.pages[(piece.first_page + position / PAGE - piece.start / PAGE) as usize];
            page * PAGE + position % PAGE
        }));
        let mut push = |from: u32, to: u32, row: u32| {
            if from >= to || row >= piece.rows.end {
                return;
            }
            match runs.last_mut() {
                Some(run)
                    if follows
                        && (run.row, run.row_end, run.first + run.len) == (row, piece.rows.end, first + from) =>
                {
                    run.len += to - from;
                }
                _ => runs.push(Run { first: first + from, len: to - from, row, row_end: piece.rows.end, node }),
            }
        };
        // Rows that end inside come first; each sees the tokens up to its own, all rows below see the rest too.
        let (mut at, mut row) = (0, piece.rows.start);
        while row < piece.rows.end && work.positions[row as usize] < piece.start + piece.len - 1 {
            let to = work.positions[row as usize] + 1 - piece.start;
            push(at, to, row);
            at = at.max(to);
            row += 1;
        }
        push(at, piece.len, row);
    }
    runs
}

const EMPTY: Tile =
    Tile { group: [0; TILE / GROUP], rows: [0; TILE], some: [u16::MAX, 0], all: [0, u16::MAX], whole: 0, unused: 0 };

/// Packs tokens into tiles.
struct TileFill<'t> {
    tile: Tile,
    len: usize,
    tiles: &'t mut Vec<Tile>,
}

impl TileFill<'_> {
    /// How many consecutive slots from `slot` on fit into the present group; begins a new group where `slot` is not the
    /// neighbour of the last token.
    fn room(&mut self, slot: u32, paged: bool) -> usize {
        let inside = self.len % GROUP;
        let page_room = if paged { GROUP - slot as usize % GROUP } else { GROUP };
        let follows = inside > 0
            && slot == self.tile.group[self.len / GROUP] + inside as u32
            && !(paged && (slot as usize).is_multiple_of(GROUP));
        if follows {
            return (GROUP - inside).min(page_room);
        }
        if inside > 0 {
            self.pad(GROUP - inside);
        }
        self.tile.group[self.len / GROUP] = slot;
        page_room
    }

    fn push(&mut self, slot: u32, len: usize, run: &Run) {
        debug_assert_eq!(slot, self.tile.group[self.len / GROUP] + (self.len % GROUP) as u32);
        self.tile.rows[self.len..self.len + len].fill(run.row | run.row_end << 16);
        let (first, end) = (run.row as u16, run.row_end as u16);
        self.tile.some = [self.tile.some[0].min(first), self.tile.some[1].max(end)];
        self.tile.all = [self.tile.all[0].max(first), self.tile.all[1].min(end)];
        self.advance(len);
    }

    fn pad(&mut self, len: usize) {
        self.tile.all = [u16::MAX, 0];
        self.advance(len);
    }

    fn advance(&mut self, len: usize) {
        self.len += len;
        if self.len == TILE {
            let first = self.tile.group[0];
            let follows = (0..TILE / GROUP).all(|g| self.tile.group[g] == first + (g * GROUP) as u32);
            self.tile.whole = u32::from(follows && self.tile.all[0] != u16::MAX);
            self.tiles.push(std::mem::replace(&mut self.tile, EMPTY));
            self.len = 0;
        }
    }

    /// Groups that stay empty repeat the first, so that every copy reads memory that exists.
    fn flush(mut self) {
        if self.len > 0 {
            for group in self.len.div_ceil(GROUP)..TILE / GROUP {
                self.tile.group[group] = self.tile.group[0];
            }
            self.tile.all = [u16::MAX, 0];
            self.tiles.push(self.tile);
        }
    }
}
