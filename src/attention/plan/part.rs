//! A part of the plan: some rows that share a parent node, or all rows, made from the tree.

use super::{Node, PAGE, Tail};
use crate::attention::QueryRow;
use crate::device::attend::{BLOCK, Piece, Unit};
use crate::kv::{SegmentId, TokenTree, pages_of};
use std::ops::Range;

/// Where a part is to stand in the plan: what comes before it there.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Base {
    pub by_query: bool,
    pub node: u32,
    pub row: u32,
    pub page: u32,
    pub unit: u32,
    /// Pieces before those of the part's own units, and before those that go into the parent's last unit.
    pub piece: u32,
    pub joined: u32,
}

/// The node below which a part hangs, among the plan's.
#[derive(Clone, Copy)]
pub(super) struct Under<'a> {
    pub nodes: &'a [Node],
    pub parent: Option<u32>,
}

/// All indices are those of the plan.
#[derive(Debug, Clone, Default)]
pub(super) struct Part {
    pub nodes: Vec<Node>,
    pub tails: Vec<Tail>,
    /// As in [`crate::device::attend::AttendWork`].
    pub order: Vec<u32>,
    pub positions: Vec<u32>,
    pub pages: Vec<u32>,
    pub units: Vec<Unit>,
    pub pieces: Vec<Piece>,
    /// Pieces for the last unit of the node above.
    pub joined: Vec<Piece>,
    /// Unit of each piece, in the order in which pieces are found: 0 is the one of the node above, then the part's own.
    found: Vec<(u32, Piece)>,
    /// For each piece found that ends rows' paths, its place in `found` and the node.
    ends: Vec<(u32, u32)>,
    starts: Vec<u32>,
    stack: Vec<u32>,
}

impl Part {
    pub fn clear(&mut self) {
        self.nodes.clear();
        self.tails.clear();
        self.order.clear();
        self.positions.clear();
        self.pages.clear();
        self.units.clear();
        self.pieces.clear();
        self.joined.clear();
    }

    /// Plans the rows `which` (indices into `rows`), whose paths all run through the node above.
    pub fn build(
        &mut self,
        tree: &TokenTree,
        rows: &[QueryRow],
        which: impl ExactSizeIterator<Item = u32> + Clone,
        under: Under<'_>,
        base: Base,
        collect: &mut Collect,
    ) {
        let top = under.parent.map_or(SegmentId::ROOT, |p| under.nodes[p as usize].segment);
        collect.gather(tree, rows, which.clone(), top);
        self.place_nodes(collect, under, base);
        self.place_rows(rows, which, collect, base);
        self.list_pages(tree, base);
        self.found.clear();
        self.ends.clear();
        if base.by_query {
            self.group_by_query(rows, under, base);
        } else {
            self.group_by_kv(under, base);
        }
        self.place_pieces(base);
    }

    /// Nodes in depth-first order, with their subtrees' sizes and rows.
    fn place_nodes(&mut self, collect: &mut Collect, under: Under<'_>, base: Base) {
        let Collect { found, first_root, stack, .. } = collect;
        stack.clear();
        let mut root = *first_root;
        while let Some(r) = root {
            stack.push(r);
            root = found[r as usize].next_sibling;
        }
        stack.reverse();
        let mut row = base.row;
        while let Some(at) = stack.pop() {
            let f = &mut found[at as usize];
            f.node = self.nodes.len() as u32;
            let (parent, own_rows) = (f.parent, f.own_rows);
            let mut node = Node {
                segment: f.segment,
                parent: under.parent,
                size: 1,
                start: f.start,
                end: f.end,
                own_rows,
                rows: (row, row + own_rows),
                first_page: 0,
                first_unit: 0,
                last_unit: 0,
            };
            row += own_rows;
            let (from, mut child) = (stack.len(), f.first_child);
            if let Some(p) = parent {
                node.parent = Some(base.node + found[p as usize].node);
            }
            self.nodes.push(node);
            while let Some(c) = child {
                stack.push(c);
                child = found[c as usize].next_sibling;
            }
            stack[from..].reverse();
        }
        for at in (0..self.nodes.len()).rev() {
            let Node { parent, size, rows, .. } = self.nodes[at];
            if let Some(p) = parent.and_then(|p| p.checked_sub(base.node)) {
                let p = &mut self.nodes[p as usize];
                p.size += size;
                p.rows.1 = p.rows.1.max(rows.1);
            }
        }
    }

    fn place_rows(&mut self, rows: &[QueryRow], which: impl ExactSizeIterator<Item = u32>, c: &Collect, base: Base) {
        self.order.resize(which.len(), 0);
        self.starts.clear();
        self.starts.extend(self.nodes.iter().map(|n| n.rows.0 - base.row));
        for (row, &found) in which.zip(&c.ends) {
            let at = &mut self.starts[c.found[found as usize].node as usize];
            self.order[*at as usize] = row;
            *at += 1;
        }
        for n in self.nodes.iter().filter(|n| n.own_rows > 1) {
            let first = (n.rows.0 - base.row) as usize;
            self.order[first..first + n.own_rows as usize].sort_by_key(|&row| rows[row as usize].position);
        }
        self.positions.extend(self.order.iter().map(|&row| rows[row as usize].position));
    }

    fn list_pages(&mut self, tree: &TokenTree, base: Base) {
        for n in &mut self.nodes {
            n.first_page = base.page + self.pages.len() as u32;
            let pages = &tree.segment_pages(n.segment)[..pages_of(n.start, n.end)];
            self.pages.extend(pages.iter().map(|p| p.0));
            if n.size == 1 {
                // Room for the pages into which the tail grows inside its last block; any page stands in until then.
                let room = pages_of(n.start, n.end.next_multiple_of(BLOCK as u32)) - pages.len();
                self.pages.extend(std::iter::repeat_n(pages[0].0, room));
            }
        }
    }

    /// One unit for each block and each segment that holds the block's first position; all rows below share it.
    fn group_by_kv(&mut self, under: Under<'_>, base: Base) {
        for at in 0..self.nodes.len() {
            let n = self.nodes[at];
            let above = match n.parent.map(|p| p.checked_sub(base.node)) {
                Some(Some(p)) => self.nodes[p as usize].last_unit,
                Some(None) => under.nodes[n.parent.map_or(0, |p| p as usize)].last_unit,
                None => 0,
            };
            let first_unit = base.unit + self.units.len() as u32;
            let mut unit = above;
            for (block, range) in blocks(n.start, n.end) {
                let piece = self.piece(&n, range, base);
                if piece.start == block * BLOCK as u32 {
                    unit = base.unit + self.units.len() as u32;
                    self.units.push(Unit { block, pieces: 0..0, rows: piece.rows.clone() });
                }
                // A unit of a node above is before the part's.
                self.found.push(((unit + 1).saturating_sub(base.unit), piece));
            }
            if n.own_rows > 0 {
                self.ends.push((self.found.len() as u32 - 1, base.node + at as u32));
            }
            (self.nodes[at].first_unit, self.nodes[at].last_unit) = (first_unit, unit);
        }
    }

    /// One unit for each block of each branch that has rows in a node; its pieces are those of the path alone.
    fn group_by_query(&mut self, rows: &[QueryRow], under: Under<'_>, base: Base) {
        for node in 0..self.nodes.len() {
            let Node { rows: (from, _), own_rows, .. } = self.nodes[node];
            let mut first = from - base.row;
            let end = first + own_rows;
            while first < end {
                let branch = |row: u32| rows[self.order[row as usize] as usize].branch;
                let same = (first + 1..end).find(|&row| branch(row) != branch(first)).unwrap_or(end);
                self.query_units(node, first..same, under, base);
                self.ends.push((self.found.len() as u32 - 1, base.node + node as u32));
                first = same;
            }
        }
    }

    /// The units of the rows `group` (counted in the part), which are neighbours in `node`.
    fn query_units(&mut self, node: usize, group: Range<u32>, under: Under<'_>, base: Base) {
        let first_unit = self.units.len() as u32;
        let positions = &self.positions[group.start as usize..group.end as usize];
        let end = positions[positions.len() - 1] + 1;
        let group = base.row + group.start..base.row + group.end;
        for (block, _) in blocks(0, end) {
            let from = positions.partition_point(|&p| p < block * BLOCK as u32);
            self.units.push(Unit { block, pieces: 0..0, rows: group.start + from as u32..group.end });
        }
        // The path, root first, so that ancestors' pieces come first.
        let above = |at: u32| match at.checked_sub(base.node) {
            Some(own) => &self.nodes[own as usize],
            None => &under.nodes[at as usize],
        };
        let mut stack = std::mem::take(&mut self.stack);
        stack.clear();
        let mut at = Some(base.node + node as u32);
        while let Some(id) = at {
            stack.push(id);
            at = above(id).parent;
        }
        while let Some(id) = stack.pop() {
            let n = match id.checked_sub(base.node) {
                Some(own) => self.nodes[own as usize],
                None => under.nodes[id as usize],
            };
            for (block, range) in blocks(n.start, n.end.min(end)) {
                let mut piece = self.piece(&n, range, base);
                // Nodes on the way are seen whole.
                let from = if id == base.node + node as u32 { piece.rows.start } else { group.start };
                piece.rows = from.max(group.start)..group.end;
                self.found.push((1 + first_unit + block, piece));
            }
        }
        self.stack = stack;
    }

    /// The part `range` of node `n`, which lies in one block.
    fn piece(&self, n: &Node, range: Range<u32>, base: Base) -> Piece {
        let blind = if n.own_rows == 0 {
            0
        } else {
            let first = (n.rows.0 - base.row) as usize;
            self.positions[first..first + n.own_rows as usize].partition_point(|&p| p < range.start) as u32
        };
        Piece {
            start: range.start,
            len: range.end - range.start,
            first_page: n.first_page + (range.start / PAGE - n.start / PAGE),
            rows: n.rows.0 + blind..n.rows.1,
        }
    }

    /// Sorts the pieces found by unit, keeping their order, and tells the units.
    fn place_pieces(&mut self, base: Base) {
        self.starts.clear();
        self.starts.resize(self.units.len() + 2, 0);
        for (unit, _) in &self.found {
            self.starts[*unit as usize + 1] += 1;
        }
        for unit in 0..=self.units.len() {
            self.starts[unit + 1] += self.starts[unit];
        }
        let joined = self.starts[1];
        for (unit, own) in self.units.iter_mut().enumerate() {
            own.pieces = base.piece + self.starts[unit + 1]..base.piece + self.starts[unit + 2];
        }
        let nothing = Piece { start: 0, len: 0, first_page: 0, rows: 0..0 };
        self.joined.resize(joined as usize, nothing.clone());
        self.pieces.resize(self.found.len() - joined as usize, nothing);
        let mut ends = self.ends.iter().peekable();
        for (i, (unit, piece)) in self.found.drain(..).enumerate() {
            let at = &mut self.starts[unit as usize];
            let index = if unit == 0 {
                self.joined[*at as usize] = piece;
                base.joined + *at
            } else {
                self.pieces[(*at - joined) as usize] = piece;
                base.piece + *at
            };
            // Nodes come in the order of their rows, so a tail a row is in the rows' order.
            if let Some(&(_, node)) = ends.next_if(|(end, _)| *end == i as u32) {
                self.tails.push(Tail { node, piece: index });
            }
            *at += 1;
        }
    }
}

/// A segment found on rows' paths, with links.
#[derive(Debug, Clone, Copy)]
struct Found {
    segment: SegmentId,
    parent: Option<u32>,
    first_child: Option<u32>,
    last_child: Option<u32>,
    next_sibling: Option<u32>,
    start: u32,
    end: u32,
    own_rows: u32,
    /// Its place in depth-first order.
    node: u32,
}

/// Finds the segments on rows' paths.
#[derive(Debug, Clone, Default)]
pub(super) struct Collect {
    found: Vec<Found>,
    first_root: Option<u32>,
    /// Of each row, the segment in which it ends.
    ends: Vec<u32>,
    marks: Marks,
    by_segment: Vec<(SegmentId, u32)>,
    stack: Vec<u32>,
}

/// A number for some of the tree's segments, forgotten all at once.
#[derive(Debug, Clone, Default)]
pub(super) struct Marks {
    of: Vec<(u32, u32)>,
    epoch: u32,
}

impl Marks {
    /// Forgets all; room for numbers below `bound`.
    pub fn begin(&mut self, bound: usize) {
        self.epoch = self.epoch.wrapping_add(1);
        if self.epoch == 0 {
            // Stamps of a wrapped count would look new.
            self.of.clear();
            self.epoch = 1;
        }
        self.of.resize(bound.max(self.of.len()), (0, 0));
    }

    pub fn set(&mut self, index: usize, number: u32) {
        self.of[index] = (self.epoch, number);
    }

    pub fn get(&self, index: usize) -> Option<u32> {
        self.of.get(index).and_then(|&(epoch, number)| (epoch == self.epoch).then_some(number))
    }
}

impl Collect {
    /// The segments on the paths of the rows `which` below `top`, siblings in the order of their numbers.
    fn gather(&mut self, tree: &TokenTree, rows: &[QueryRow], which: impl Iterator<Item = u32>, top: SegmentId) {
        self.found.clear();
        self.ends.clear();
        self.marks.begin(tree.segment_bound());
        for row in which.map(|row| rows[row as usize]) {
            let len = tree.len(row.branch);
            assert!((row.position as usize) < len, "a row at position {} lies outside a branch of {len}", row.position);
            let mut segment = tree.end_segment(row.branch);
            while tree.span(segment).start > row.position {
                segment = tree.parent(segment).expect("position 0 lies in a segment");
            }
            let at = self.path(tree, segment, top);
            let f = &mut self.found[at as usize];
            f.own_rows += 1;
            f.end = f.end.max(row.position + 1);
            self.ends.push(at);
        }
        self.link(tree.segment_bound());
    }

    /// `segment`, found with its ancestors up to `top` where it is new.
    fn path(&mut self, tree: &TokenTree, segment: SegmentId, top: SegmentId) -> u32 {
        if let Some(known) = self.marks.get(segment.index()) {
            return known;
        }
        let (mut at, bottom) = (segment, self.found.len() as u32);
        loop {
            let (span, id) = (tree.span(at), self.found.len() as u32);
            self.marks.set(at.index(), id);
            self.found.push(Found {
                segment: at,
                parent: None,
                first_child: None,
                last_child: None,
                next_sibling: None,
                start: span.start,
                // A node with something below it is seen whole; the one the walk began with, up to its rows.
                end: if at == segment { span.start } else { span.end },
                own_rows: 0,
                node: 0,
            });
            let Some(up) = tree.parent(at).filter(|&p| p != top) else { break };
            if let Some(known) = self.marks.get(up.index()) {
                self.found[id as usize].parent = Some(known);
                self.found[known as usize].end = tree.span(up).end;
                break;
            }
            self.found[id as usize].parent = Some(id + 1);
            at = up;
        }
        bottom
    }

    /// Lists children and roots by the numbers of their segments.
    fn link(&mut self, bound: usize) {
        self.first_root = None;
        let mut last_root = None;
        if bound <= 8 * self.found.len() {
            for segment in 0..bound {
                if let Some(at) = self.marks.get(segment) {
                    self.append(at, &mut last_root);
                }
            }
            return;
        }
        let mut by_segment = std::mem::take(&mut self.by_segment);
        by_segment.clear();
        by_segment.extend(self.found.iter().enumerate().map(|(at, f)| (f.segment, at as u32)));
        by_segment.sort_unstable();
        for &(_, at) in &by_segment {
            self.append(at, &mut last_root);
        }
        self.by_segment = by_segment;
    }

    /// Makes `at` the last child of its parent, or the last root.
    fn append(&mut self, at: u32, last_root: &mut Option<u32>) {
        let before = match self.found[at as usize].parent {
            Some(p) => {
                let p = &mut self.found[p as usize];
                p.first_child.get_or_insert(at);
                p.last_child.replace(at)
            }
            None => {
                self.first_root.get_or_insert(at);
                last_root.replace(at)
            }
        };
        if let Some(before) = before {
            self.found[before as usize].next_sibling = Some(at);
        }
    }
}

/// The blocks that `start..end` touches, each with the part inside.
fn blocks(start: u32, end: u32) -> impl Iterator<Item = (u32, Range<u32>)> {
    let block = BLOCK as u32;
    let numbers = if end > start { start / block..(end - 1) / block + 1 } else { 0..0 };
    numbers.map(move |b| (b, start.max(b * block)..end.min((b + 1) * block)))
}
