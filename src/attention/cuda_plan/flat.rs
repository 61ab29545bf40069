//! The tree flattened depth-first: rows in order, and for every run of tokens the range of rows that see it.

use super::{Row, Tree};
use crate::device::attend::{AttendWork, Piece};
use crate::device::cuda::work::{GROUP, TILE, Tile};
use crate::kv::PAGE_TOKENS;
use std::ops::Range;

/// Tokens of one node that the same rows see.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// Stretches from this one on.
    first: u32,
    stretches: u32,
    pub len: u32,
    pub row: u32,
    pub row_end: u32,
    pub node: u32,
}

/// Tokens with consecutive slots, of one page where there are pages.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    slot: u32,
    len: u32,
}

pub struct Flat {
    paged: bool,
    stretches: Vec<Stretch>,
    pub runs: Vec<Run>,
    /// For each work row, the batch row.
    pub order: Vec<u32>,
}

impl Flat {
    /// Linear in nodes and rows, but for the sort of a node's rows.
    pub fn new(tree: Tree<'_>, rows: &[Row]) -> Self {
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
        let mut flat = Self { paged: tree.paged, stretches: Vec::new(), runs: Vec::with_capacity(n), order };
        for &i in &depth_first {
            let node = &tree.nodes[i as usize];
            let (mut at, mut row) = (0, row_first[i as usize]);
            let end = row_end[i as usize];
            let mut push = |from: u32, to: u32, row: u32| {
                if to > from && row < end {
                    flat.begin(row..end, i);
                    flat.consecutive(&tree.slots[(node.first + from) as usize..(node.first + to) as usize]);
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
        flat
    }

    /// A step's work. A piece is cut by blocks of positions, which mean nothing here: pieces that go on with one another
    /// become one run. Linear but for a sort, of which little is to be done.
    pub fn of(work: &AttendWork) -> Self {
        let (runs, stretches) = (Vec::with_capacity(work.pieces.len()), Vec::with_capacity(2 * work.pieces.len()));
        let mut flat = Self { paged: true, stretches, runs, order: work.order.clone() };
        let mut pieces: Vec<&Piece> = work.pieces.iter().collect();
        // A parent's rows begin where its first child's do, at lower positions.
        pieces.sort_by_key(|p| (p.rows.start, p.start));
        let (mut node, mut last): (u32, Option<&Piece>) = (0, None);
        for piece in pieces {
            let follows = last.is_some_and(|l| {
                l.start + l.len == piece.start
                    && l.rows.end == piece.rows.end
                    && l.first_page + (piece.start / PAGE - l.start / PAGE) == piece.first_page
            });
            node += u32::from(!follows);
            last = Some(piece);
            let mut goes_on = follows;
            let mut push = |from: u32, to: u32, row: u32| {
                if from >= to || row >= piece.rows.end {
                    return;
                }
                if !(goes_on && flat.runs.last().is_some_and(|r| (r.row, r.row_end) == (row, piece.rows.end))) {
                    flat.begin(row..piece.rows.end, node);
                }
                goes_on = false;
                flat.pages(work, piece, from..to);
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
        flat
    }

    fn begin(&mut self, rows: Range<u32>, node: u32) {
        let first = self.stretches.len() as u32;
        self.runs.push(Run { first, stretches: 0, len: 0, row: rows.start, row_end: rows.end, node });
    }

    /// Adds tokens to the last run.
    fn stretch(&mut self, slot: u32, len: u32) {
        self.stretches.push(Stretch { slot, len });
        if let Some(run) = self.runs.last_mut() {
            run.stretches += 1;
            run.len += len;
        }
    }

    /// Tokens of `piece` to the last run, page by page.
    fn pages(&mut self, work: &AttendWork, piece: &Piece, tokens: Range<u32>) {
        let (mut at, end) = (piece.start + tokens.start, piece.start + tokens.end);
        while at < end {
            let page = work.pages[(piece.first_page + at / PAGE - piece.start / PAGE) as usize];
            let next = (at + 1).next_multiple_of(PAGE).min(end);
            self.stretch(page * PAGE + at % PAGE, next - at);
            at = next;
        }
    }

    /// `slots` to the last run, neighbours together.
    fn consecutive(&mut self, slots: &[u32]) {
        let mut at = 0;
        while at < slots.len() {
            let goes_on =
                |i: usize| slots[i] == slots[at] + (i - at) as u32 && !(self.paged && slots[i].is_multiple_of(PAGE));
            let end = (at + 1..slots.len()).find(|&i| !goes_on(i)).unwrap_or(slots.len());
            self.stretch(slots[at], (end - at) as u32);
            at = end;
        }
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

    /// Appends the tiles of `runs`. Groups of neighbours in memory are packed without gaps.
    pub fn tiles<'r>(&self, runs: impl Iterator<Item = &'r Run>, tiles: &mut Tiles) {
        let mut fill = TileFill::new(tiles, self.paged);
        for run in runs {
            for &Stretch { slot, len } in &self.stretches[run.first as usize..(run.first + run.stretches) as usize] {
                let (mut slot, mut len) = (slot, len as usize);
                while len > 0 {
                    let part = fill.room(slot).min(len);
                    fill.push(slot, part, run);
                    (slot, len) = (slot + part as u32, len - part);
                }
            }
        }
        fill.flush();
    }

    /// The tiles of all runs.
    pub fn all_tiles(&self) -> Tiles {
        let mut tiles = Tiles::default();
        tiles.reserve(self, 1);
        self.tiles(self.runs.iter(), &mut tiles);
        tiles
    }
}

/// Goes through blocks of rows in order, and tells which runs any row of each sees.
#[derive(Default)]
pub struct Sweep {
    /// Runs that a row of the last block saw.
    open: Vec<u32>,
    next: usize,
}

impl Sweep {
    /// Runs in depth-first order. They begin in the order of their rows, so the others need not be looked at.
    pub fn block<'f>(&mut self, flat: &'f Flat, rows: &Range<u32>) -> impl Iterator<Item = &'f Run> + use<'_, 'f> {
        self.open.retain(|&r| flat.runs[r as usize].row_end > rows.start);
        while flat.runs.get(self.next).is_some_and(|r| r.row < rows.end) {
            self.open.push(self.next as u32);
            self.next += 1;
        }
        self.open.iter().map(|&r| &flat.runs[r as usize])
    }
}

const PAGE: u32 = PAGE_TOKENS as u32;

#[derive(Debug, Clone, Default)]
pub struct Tiles {
    pub tiles: Vec<Tile>,
    /// Tokens of each.
    pub tokens: Vec<u8>,
}

impl Tiles {
    /// Room for all tokens once, in `parts` parts.
    pub fn reserve(&mut self, flat: &Flat, parts: usize) {
        let tiles = flat.stretches.len().div_ceil(TILE / GROUP) + parts;
        self.tiles.reserve(tiles);
        self.tokens.reserve(tiles);
    }

    pub fn len(&self) -> usize {
        self.tiles.len()
    }
}

const EMPTY: Tile =
    Tile { group: [0; TILE / GROUP], rows: [0; TILE], some: [u16::MAX, 0], all: [u16::MAX, 0], whole: 0, unused: 0 };

/// Packs tokens into tiles.
struct TileFill<'t> {
    tiles: &'t mut Tiles,
    paged: bool,
    /// The tile that is being filled.
    tile: Tile,
    /// Rows that see any of its tokens, and all of them. Words of their own: narrow numbers that are written as halves and
    /// read as one would stall every run.
    some: [u32; 2],
    all: [u32; 2],
    tokens: u8,
    /// Tokens and gaps in the tile; none is where it is 0.
    len: usize,
}

impl<'t> TileFill<'t> {
    const SOME: [u32; 2] = [u32::MAX, 0];
    const ALL: [u32; 2] = [0, u32::MAX];

    fn new(tiles: &'t mut Tiles, paged: bool) -> Self {
        Self { tiles, paged, tile: EMPTY, some: Self::SOME, all: Self::ALL, tokens: 0, len: 0 }
    }

    /// How many consecutive slots from `slot` on fit into the present group; begins a new group where `slot` is not the
    /// neighbour of the last token.
    fn room(&mut self, slot: u32) -> usize {
        let inside = self.len % GROUP;
        let page_room = if self.paged { GROUP - slot as usize % GROUP } else { GROUP };
        if inside > 0 {
            if slot == self.tile.group[self.len / GROUP] + inside as u32
                && !(self.paged && (slot as usize).is_multiple_of(GROUP))
            {
                return (GROUP - inside).min(page_room);
            }
            self.leave_gap(GROUP - inside);
            self.advance(GROUP - inside);
        }
        self.tile.group[self.len / GROUP] = slot;
        page_room
    }

    /// `len` tokens from `slot` on, for which there is room.
    fn push(&mut self, slot: u32, len: usize, run: &Run) {
        let at = self.len;
        debug_assert_eq!(slot, self.tile.group[at / GROUP] + (at % GROUP) as u32);
        self.tile.rows[at..at + len].fill(run.row | run.row_end << 16);
        self.some = [self.some[0].min(run.row), self.some[1].max(run.row_end)];
        self.all = [self.all[0].max(run.row), self.all[1].min(run.row_end)];
        self.tokens += len as u8;
        self.advance(len);
    }

    /// No row sees all 64 tokens of a tile that holds fewer.
    fn leave_gap(&mut self, len: usize) {
        self.tile.rows[self.len..self.len + len].fill(0);
        self.all = [u32::from(u16::MAX), 0];
    }

    fn advance(&mut self, len: usize) {
        self.len += len;
        if self.len == TILE {
            let first = self.tile.group[0];
            let follows = (0..TILE / GROUP).all(|g| self.tile.group[g] == first + (g * GROUP) as u32);
            self.tile.whole = u32::from(follows && self.all[0] != u32::from(u16::MAX));
            self.end();
        }
    }

    fn end(&mut self) {
        // Row numbers are 16-bit (`MAX_ROWS`).
        (self.tile.some, self.tile.all) = (self.some.map(|row| row as u16), self.all.map(|row| row as u16));
        self.tiles.tiles.push(self.tile);
        self.tiles.tokens.push(self.tokens);
        // What the last tile leaves behind is written over: its tokens, gaps and groups.
        (self.some, self.all) = (Self::SOME, Self::ALL);
        (self.tokens, self.len) = (0, 0);
    }

    /// Groups that stay empty repeat the first, so that every copy reads memory that exists.
    fn flush(mut self) {
        if self.len > 0 {
            let first = self.tile.group[0];
            self.tile.group[self.len.div_ceil(GROUP)..].fill(first);
            self.tile.whole = 0;
            self.leave_gap(TILE - self.len);
            self.end();
        }
    }
}
