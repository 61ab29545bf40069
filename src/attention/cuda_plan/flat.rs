//! The tree flattened depth-first: rows in order, and for every run of tokens the range of rows that see it.

use super::{Row, Tree};
use crate::device::attend::{AttendWork, Piece};
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
pub struct Stretch {
    pub slot: u32,
    pub len: u32,
    /// Rows that see it: first, and end in the upper half.
    pub sees: u32,
}

#[derive(Debug, Clone, Default)]
pub struct Flat {
    pub paged: bool,
    /// Those of the runs, in their order.
    pub stretches: Vec<Stretch>,
    pub runs: Vec<Run>,
    /// For each work row, the batch row.
    pub order: Vec<u32>,
    /// Pieces of a step's work by first row and position, to be sorted.
    sorted: Vec<(u64, u32)>,
    /// Of each row, the tokens that it and the row before see.
    shared: Vec<i64>,
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
        let mut flat = Self { paged: tree.paged, runs: Vec::with_capacity(n), order, ..Self::default() };
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

    /// Becomes a step's work. A piece is cut by blocks of positions, which mean nothing here: pieces that go on with one
    /// another become one run. Linear but for a sort, of which little is to be done.
    pub fn read(&mut self, work: &AttendWork) {
        self.paged = true;
        self.order.clone_from(&work.order);
        self.runs.clear();
        self.stretches.clear();
        // A parent's rows begin where its first child's do, at lower positions.
        let place = |at: u32| {
            let piece = &work.pieces[at as usize];
            (u64::from(piece.rows.start) << 32 | u64::from(piece.start), at)
        };
        let mut sorted = std::mem::take(&mut self.sorted);
        let pieces = work.pieces.len();
        if sorted.len() == pieces {
            // The order of the last step, which holds where branches only grew.
            sorted.iter_mut().for_each(|piece| *piece = place(piece.1));
        } else {
            sorted.clear();
            sorted.extend((0..pieces as u32).map(place));
        }
        if !sorted.is_sorted() {
            sorted.sort();
        }
        let (mut node, mut last): (u32, Option<&Piece>) = (0, None);
        for &(_, at) in &sorted {
            let piece = &work.pieces[at as usize];
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
                if !(goes_on && self.runs.last().is_some_and(|r| (r.row, r.row_end) == (row, piece.rows.end))) {
                    self.begin(row..piece.rows.end, node);
                }
                goes_on = false;
                self.pages(work, piece, from..to, row | piece.rows.end << 16);
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
        self.sorted = sorted;
    }

    fn begin(&mut self, rows: Range<u32>, node: u32) {
        let first = self.stretches.len() as u32;
        self.runs.push(Run { first, stretches: 0, len: 0, row: rows.start, row_end: rows.end, node });
    }

    /// Tokens of `piece` to the last run, page by page.
    fn pages(&mut self, work: &AttendWork, piece: &Piece, tokens: Range<u32>, sees: u32) {
        let (at, end) = (piece.start + tokens.start, piece.start + tokens.end);
        let page_of = |position: u32| (piece.first_page + position - piece.start / PAGE) as usize;
        let pages = &work.pages[page_of(at / PAGE)..page_of(end.div_ceil(PAGE))];
        // Whole pages first, all by one pattern; then the first and the last as they are.
        let before = self.stretches.len();
        self.stretches.extend(pages.iter().map(|page| Stretch { slot: page * PAGE, len: PAGE, sees }));
        if let Some(first) = self.stretches.get_mut(before) {
            first.slot += at % PAGE;
            first.len -= at % PAGE;
        }
        if let Some(last) = self.stretches.last_mut() {
            last.len -= end.next_multiple_of(PAGE) - end;
        }
        if let Some(run) = self.runs.last_mut() {
            run.stretches += (self.stretches.len() - before) as u32;
            run.len += tokens.end - tokens.start;
        }
    }

    /// `slots` to the last run, neighbours together.
    fn consecutive(&mut self, slots: &[u32]) {
        let mut at = 0;
        while at < slots.len() {
            let goes_on =
                |i: usize| slots[i] == slots[at] + (i - at) as u32 && !(self.paged && slots[i].is_multiple_of(PAGE));
            let end = (at + 1..slots.len()).find(|&i| !goes_on(i)).unwrap_or(slots.len());
            let len = (end - at) as u32;
            if let Some(run) = self.runs.last_mut() {
                self.stretches.push(Stretch { slot: slots[at], len, sees: run.row | run.row_end << 16 });
                run.stretches += 1;
                run.len += len;
            }
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
    pub fn borders(&mut self, height: u32, borders: &mut Vec<u32>) {
        let rows = self.rows();
        // Tokens that both row r - 1 and row r see.
        let shared = &mut self.shared;
        shared.clear();
        shared.resize(rows as usize + 2, 0);
        for run in &self.runs {
            if run.row_end - run.row > 1 {
                shared[run.row as usize + 1] += i64::from(run.len);
                shared[run.row_end as usize] -= i64::from(run.len);
            }
        }
        let mut sum = 0;
        for s in shared.iter_mut() {
            sum += *s;
            *s = sum;
        }
        borders.clear();
        borders.push(0);
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
    }
}

/// Goes through blocks of rows in order, and tells which runs any row of each sees.
#[derive(Debug, Clone, Default)]
pub struct Sweep {
    /// Runs that a row of the last block saw.
    open: Vec<u32>,
    next: usize,
}

impl Sweep {
    /// Back to before the first block.
    pub fn begin(&mut self) {
        self.open.clear();
        self.next = 0;
    }

    /// The runs, in depth-first order. They begin in the order of their rows, so the others need not be looked at.
    pub fn block<'f>(&mut self, flat: &'f Flat, rows: &Range<u32>) -> impl Iterator<Item = &'f Run> + use<'_, 'f> {
        self.open.retain(|&r| flat.runs[r as usize].row_end > rows.start);
        while flat.runs.get(self.next).is_some_and(|r| r.row < rows.end) {
            self.open.push(self.next as u32);
            self.next += 1;
        }
        self.open.iter().map(|&r| &flat.runs[r as usize])
    }

    /// The stretches of these runs: few ranges, since what lies in one block alone is one.
    pub fn stretches(&mut self, flat: &Flat, rows: &Range<u32>) -> impl Iterator<Item = Range<usize>> {
        let mut runs = self.block(flat, rows).map(Run::range).peekable();
        std::iter::from_fn(move || {
            let mut range = runs.next()?;
            while let Some(next) = runs.next_if(|next| next.start == range.end) {
                range.end = next.end;
            }
            Some(range)
        })
    }
}

impl Run {
    /// Its stretches.
    pub fn range(&self) -> Range<usize> {
        self.first as usize..(self.first + self.stretches) as usize
    }
}

const PAGE: u32 = PAGE_TOKENS as u32;
