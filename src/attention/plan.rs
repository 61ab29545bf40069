//! The planner: from the token tree and a step's rows to units of work.
//!
//! Only segments on the rows' paths are looked at. The plan is a pure function of tree, rows, method and [`Parallel`];
//! the planner keeps its buffers, so a step allocates nothing once it has seen one of its size. Cost: linear in rows,
//! segments on their paths, and pages and blocks of those segments; linear in rows alone where a decode step only grew
//! the tails (`plan/grow.rs`). A planner serves one tree.

use super::{Method, QueryRow};
use crate::device::attend::{AttendWork, BLOCK, Io, Piece, Unit};
use crate::kv::{SegmentId, TokenTree, pages_of};
use std::ops::Range;

mod grow;
mod tasks;

/// How much runs at once, for the methods that balance: a task is done once for each K/V head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parallel {
    pub threads: usize,
    pub kv_heads: usize,
    /// Query heads of one K/V head.
    pub group: usize,
}

impl Default for Parallel {
    fn default() -> Self {
        Self { threads: 1, kv_heads: 1, group: 1 }
    }
}

/// A segment on some row's path.
#[derive(Debug, Clone, Copy)]
struct Node {
    segment: SegmentId,
    parent: Option<u32>,
    first_child: Option<u32>,
    last_child: Option<u32>,
    next_sibling: Option<u32>,
    /// Absolute positions that rows here or below see.
    start: u32,
    end: u32,
    own_rows: u32,
    /// Work rows: own ones first, then those below.
    rows: (u32, u32),
    first_page: u32,
    /// The unit of the node's last block, in which children that start inside that block go on.
    last_unit: u32,
}

#[derive(Debug, Clone)]
pub struct Planner {
    method: Method,
    parallel: Parallel,
    work: AttendWork,
    nodes: Vec<Node>,
    /// For each segment number, the epoch in which it was last seen and its node.
    seen: Vec<(u32, u32)>,
    epoch: u32,
    /// Node of each batch row.
    row_nodes: Vec<u32>,
    preorder: Vec<u32>,
    stack: Vec<u32>,
    /// Unit of each piece, in the order in which pieces are found.
    found: Vec<(u32, Piece)>,
    starts: Vec<u32>,
    /// First unit of each node that begins blocks, for `deft-node`.
    node_units: Vec<u32>,
    /// For each piece found that ends a row's path, its place in `found` and the row's node; then, by work row, the
    /// placed piece.
    ends: Vec<(u32, u32)>,
    tails: Vec<grow::Tail>,
    /// Blocks of each row of a task.
    blocks: Vec<Range<u32>>,
    /// Whether `auto` split units by rows.
    split: bool,
    /// The rows and the tree's shape of the last plan.
    rows: Vec<QueryRow>,
    shape_version: u64,
}

impl Planner {
    /// For one of [`Method::LIVE`]; the comparison methods have no units and plan as `radix`.
    pub fn new(method: Method) -> Self {
        Self::with_parallel(method, Parallel::default())
    }

    pub fn with_parallel(method: Method, parallel: Parallel) -> Self {
        Self {
            method,
            parallel,
            work: AttendWork::default(),
            nodes: Vec::new(),
            seen: Vec::new(),
            epoch: 0,
            row_nodes: Vec::new(),
            preorder: Vec::new(),
            stack: Vec::new(),
            found: Vec::new(),
            starts: Vec::new(),
            node_units: Vec::new(),
            ends: Vec::new(),
            tails: Vec::new(),
            blocks: Vec::new(),
            split: false,
            rows: Vec::new(),
            shape_version: 0,
        }
    }

    pub fn method(&self) -> Method {
        self.method
    }

    /// The plan of the last step.
    pub fn work(&self) -> &AttendWork {
        &self.work
    }

    /// Plans a step. Panics where a row lies outside its branch.
    pub fn plan(&mut self, tree: &TokenTree, rows: &[QueryRow]) -> &AttendWork {
        if self.grow(tree, rows) {
            return &self.work;
        }
        self.collect_nodes(tree, rows);
        self.order_rows(rows);
        self.list_pages(tree);
        match self.method {
            Method::Auto | Method::Flatten | Method::Node | Method::NodeChunk => self.group_by_kv(),
            _ => self.group_by_query(rows),
        }
        self.count();
        self.make_tasks();
        self.remember(tree, rows);
        &self.work
    }

    /// Nodes for all segments on the rows' paths, linked in the order in which the rows first reach them.
    fn collect_nodes(&mut self, tree: &TokenTree, rows: &[QueryRow]) {
        self.nodes.clear();
        self.row_nodes.clear();
        self.epoch = self.epoch.wrapping_add(1);
        if self.epoch == 0 {
            // Stamps of a wrapped count would look new.
            self.seen.clear();
            self.epoch = 1;
        }
        self.seen.resize(tree.segment_bound().max(self.seen.len()), (0, 0));
        for row in rows {
            let len = tree.len(row.branch);
            assert!((row.position as usize) < len, "a row at position {} lies outside a branch of {len}", row.position);
            let mut segment = tree.end_segment(row.branch);
            while tree.span(segment).start > row.position {
                segment = tree.parent(segment).expect("position 0 lies in a segment");
            }
            let node = self.node(tree, segment);
            let n = &mut self.nodes[node as usize];
            n.own_rows += 1;
            n.end = n.end.max(row.position + 1);
            self.row_nodes.push(node);
        }
    }

    /// The node of `segment`, made with its ancestors where it is new.
    fn node(&mut self, tree: &TokenTree, segment: SegmentId) -> u32 {
        let (epoch, known) = self.seen[segment.index()];
        if epoch == self.epoch {
            return known;
        }
        let (mut at, bottom) = (segment, self.nodes.len() as u32);
        loop {
            let span = tree.span(at);
            let id = self.nodes.len() as u32;
            self.seen[at.index()] = (self.epoch, id);
            self.nodes.push(Node {
                segment: at,
                parent: None,
                first_child: None,
                last_child: None,
                next_sibling: None,
                start: span.start,
                // A node with something below it is seen whole; the one the walk began with, up to its rows.
                end: if at == segment { span.start } else { span.end },
                own_rows: 0,
                rows: (0, 0),
                first_page: 0,
                last_unit: 0,
            });
            let parent = tree.parent(at).filter(|&p| p != SegmentId::ROOT);
            let Some(up) = parent else { break };
            let (epoch, known) = self.seen[up.index()];
            let parent = if epoch == self.epoch { known } else { id + 1 };
            self.nodes[id as usize].parent = Some(parent);
            if epoch == self.epoch {
                self.adopt(known, id, tree.span(up).end);
                break;
            }
            at = up;
        }
        // Links inside the new chain, which runs from the bottom up.
        for id in bottom + 1..self.nodes.len() as u32 {
            let n = &mut self.nodes[id as usize];
            n.first_child = Some(id - 1);
            n.last_child = Some(id - 1);
        }
        bottom
    }

    fn adopt(&mut self, parent: u32, child: u32, end: u32) {
        let p = &mut self.nodes[parent as usize];
        p.end = end;
        match p.last_child.replace(child) {
            Some(last) => self.nodes[last as usize].next_sibling = Some(child),
            None => p.first_child = Some(child),
        }
    }

    /// Depth-first order of nodes and rows; each node's range of rows.
    fn order_rows(&mut self, rows: &[QueryRow]) {
        self.preorder.clear();
        // Trees of the forest in the order in which the rows first reach them.
        self.stack.clear();
        self.stack.extend((0..self.nodes.len() as u32).filter(|&n| self.nodes[n as usize].parent.is_none()));
        self.stack.reverse();
        while let Some(node) = self.stack.pop() {
            self.preorder.push(node);
            let from = self.stack.len();
            let mut child = self.nodes[node as usize].first_child;
            while let Some(c) = child {
                self.stack.push(c);
                child = self.nodes[c as usize].next_sibling;
            }
            self.stack[from..].reverse();
        }
        let mut next = 0;
        for &node in &self.preorder {
            let n = &mut self.nodes[node as usize];
            n.rows = (next, next + n.own_rows);
            next += n.own_rows;
        }
        for &node in self.preorder.iter().rev() {
            let Node { parent, rows, .. } = self.nodes[node as usize];
            if let Some(p) = parent {
                let end = &mut self.nodes[p as usize].rows.1;
                *end = (*end).max(rows.1);
            }
        }
        let work = &mut self.work;
        work.order.clear();
        work.order.resize(rows.len(), 0);
        self.starts.clear();
        self.starts.extend(self.nodes.iter().map(|n| n.rows.0));
        for (row, &node) in self.row_nodes.iter().enumerate() {
            let at = &mut self.starts[node as usize];
            work.order[*at as usize] = row as u32;
            *at += 1;
        }
        for n in self.nodes.iter().filter(|n| n.own_rows > 1) {
            let own = &mut work.order[n.rows.0 as usize..(n.rows.0 + n.own_rows) as usize];
            own.sort_by_key(|&row| rows[row as usize].position);
        }
        work.positions.clear();
        work.positions.extend(work.order.iter().map(|&row| rows[row as usize].position));
        work.partial_first.clear();
        work.partial_first.push(0);
        let mut partials = 0;
        work.partial_first.extend(work.positions.iter().map(|p| {
            partials += p / BLOCK as u32 + 1;
            partials
        }));
    }

    fn list_pages(&mut self, tree: &TokenTree) {
        self.work.pages.clear();
        for &node in &self.preorder {
            let n = &mut self.nodes[node as usize];
            n.first_page = self.work.pages.len() as u32;
            let pages = &tree.segment_pages(n.segment)[..pages_of(n.start, n.end)];
            self.work.pages.extend(pages.iter().map(|p| p.0));
            if n.first_child.is_none() {
                // Room for the pages into which the tail grows inside its last block; any page stands in until then.
                let room = pages_of(n.start, n.end.next_multiple_of(BLOCK as u32)) - pages.len();
                self.work.pages.extend(std::iter::repeat_n(pages[0].0, room));
            }
        }
    }

    /// One unit for each block and each segment that holds the block's first position; all rows below share it.
    fn group_by_kv(&mut self) {
        self.work.units.clear();
        self.node_units.clear();
        self.found.clear();
        self.ends.clear();
        for i in 0..self.preorder.len() {
            let node = self.preorder[i] as usize;
            let n = self.nodes[node];
            let mut unit = n.parent.map_or(0, |p| self.nodes[p as usize].last_unit);
            let mut begins = false;
            for (block, range) in blocks(n.start, n.end) {
                let piece = self.piece(&n, range);
                if piece.start == block * BLOCK as u32 {
                    unit = self.work.units.len() as u32;
                    if !std::mem::replace(&mut begins, true) {
                        self.node_units.push(unit);
                    }
                    self.work.units.push(Unit { block, pieces: 0..0, rows: piece.rows.clone() });
                }
                self.found.push((unit, piece));
            }
            if n.own_rows > 0 {
                self.ends.push((self.found.len() as u32 - 1, node as u32));
            }
            self.nodes[node].last_unit = unit;
        }
        self.place_pieces();
    }

    /// One unit for each block of each branch that has rows in a node; its pieces are those of the path alone.
    fn group_by_query(&mut self, rows: &[QueryRow]) {
        self.work.units.clear();
        self.found.clear();
        self.ends.clear();
        for i in 0..self.preorder.len() {
            let node = self.preorder[i];
            let Node { rows: (from, _), own_rows, .. } = self.nodes[node as usize];
            let mut first = from;
            while first < from + own_rows {
                let branch = |row: u32| rows[self.work.order[row as usize] as usize].branch;
                let mut end = first + 1;
                while end < from + own_rows && branch(end) == branch(first) {
                    end += 1;
                }
                self.query_units(node, first..end);
                self.ends.push((self.found.len() as u32 - 1, node));
                first = end;
            }
        }
        self.place_pieces();
    }

    /// The units of the rows `group`, which are neighbours in `node`.
    fn query_units(&mut self, node: u32, group: Range<u32>) {
        let first_unit = self.work.units.len() as u32;
        let positions = &self.work.positions;
        let end = positions[group.end as usize - 1] + 1;
        for (block, _) in blocks(0, end) {
            let from =
                positions[group.start as usize..group.end as usize].partition_point(|&p| p < block * BLOCK as u32);
            self.work.units.push(Unit { block, pieces: 0..0, rows: group.start + from as u32..group.end });
        }
        // The path, root first, so that ancestors' pieces come first.
        self.stack.clear();
        let mut at = Some(node);
        while let Some(id) = at {
            self.stack.push(id);
            at = self.nodes[id as usize].parent;
        }
        while let Some(id) = self.stack.pop() {
            let n = self.nodes[id as usize];
            for (block, range) in blocks(n.start, n.end.min(end)) {
                let mut piece = self.piece(&n, range);
                let unit = first_unit + block;
                piece.rows = piece.rows.start.max(group.start)..piece.rows.end.min(group.end);
                self.found.push((unit, piece));
            }
        }
    }

    /// The part `range` of node `n`, which lies in one block.
    fn piece(&self, n: &Node, range: Range<u32>) -> Piece {
        let own = &self.work.positions[n.rows.0 as usize..(n.rows.0 + n.own_rows) as usize];
        let blind = own.partition_point(|&p| p < range.start) as u32;
        Piece {
            start: range.start,
            len: range.end - range.start,
            first_page: n.first_page + (range.start / PAGE - n.start / PAGE),
            rows: n.rows.0 + blind..n.rows.1,
        }
    }

    /// Sorts the pieces found by unit, keeping their order, and tells the units.
    fn place_pieces(&mut self) {
        let work = &mut self.work;
        self.starts.clear();
        self.starts.resize(work.units.len() + 1, 0);
        for (unit, _) in &self.found {
            self.starts[*unit as usize + 1] += 1;
        }
        for unit in 0..work.units.len() {
            self.starts[unit + 1] += self.starts[unit];
            work.units[unit].pieces = self.starts[unit]..self.starts[unit + 1];
        }
        work.pieces.clear();
        work.pieces.resize(self.found.len(), Piece { start: 0, len: 0, first_page: 0, rows: 0..0 });
        self.tails.clear();
        let mut ends = self.ends.iter().peekable();
        for (i, (unit, piece)) in self.found.drain(..).enumerate() {
            let at = &mut self.starts[unit as usize];
            work.pieces[*at as usize] = piece;
            // Nodes come in the order of their rows, so a tail a row is in the rows' order.
            if let Some(&(_, node)) = ends.next_if(|(end, _)| *end == i as u32) {
                self.tails.push(grow::Tail { node, piece: *at });
            }
            *at += 1;
        }
    }

    /// What the work reads. Rows that `make_tasks` splits off read their pieces again and are counted there; so is what
    /// tasks hand over.
    fn count(&mut self) {
        let work = &mut self.work;
        work.io = Io {
            kv_tokens: work.pieces.iter().map(|p| u64::from(p.len)).sum(),
            unique_tokens: self.nodes.iter().map(|n| u64::from(n.end - n.start)).sum(),
            radix_tokens: work.positions.iter().map(|&p| u64::from(p) + 1).sum(),
            partial_rows: 0,
        };
    }
}

const PAGE: u32 = crate::kv::PAGE_TOKENS as u32;

/// The blocks that `start..end` touches, each with the part inside.
fn blocks(start: u32, end: u32) -> impl Iterator<Item = (u32, Range<u32>)> {
    let block = BLOCK as u32;
    let numbers = if end > start { start / block..(end - 1) / block + 1 } else { 0..0 };
    numbers.map(move |b| (b, start.max(b * block)..end.min((b + 1) * block)))
}
