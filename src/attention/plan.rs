//! The planner: from the token tree and a step's rows to units of work.
//!
//! Only segments on the rows' paths are looked at. The plan is a pure function of tree, set of rows, method and
//! [`Parallel`]: siblings stand in the order of their segments' numbers, so the order of the batch does not matter. The
//! planner keeps its buffers, so a step allocates nothing once it has seen one of its size. A planner serves one tree.
//!
//! | step | cost |
//! |---|---|
//! | made anew | linear in rows, segments on their paths, pages and blocks of those segments |
//! | branches grew by a token (`plan/follow.rs`) | linear in rows |
//! | some forked, ended or moved as well | planning of those subtrees (`plan/part.rs`), and the numbers of what stands behind them in depth-first order move (`plan/splice.rs`) |

use super::{Method, QueryRow};
use crate::device::attend::{AttendWork, BLOCK, Io};
use crate::kv::{SegmentId, TokenTree};
use std::ops::Range;

mod follow;
mod part;
mod splice;
mod tasks;

use follow::Follow;
use part::{Base, Collect, Part, Under};

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

/// A segment on some row's path. Nodes stand in depth-first order, so a subtree is a range of them, and so are its rows,
/// its pages and the units that begin in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Node {
    segment: SegmentId,
    parent: Option<u32>,
    /// Nodes of the subtree.
    size: u32,
    /// Absolute positions that rows here or below see.
    start: u32,
    end: u32,
    own_rows: u32,
    /// Work rows: own ones first, then those below.
    rows: (u32, u32),
    first_page: u32,
    /// Units that begin in nodes before this one; only where grouped by K/V, as the next.
    first_unit: u32,
    /// The unit of the node's last block, in which children that start inside that block go on.
    last_unit: u32,
}

/// The end of a row's path in the plan: index of the node, and of the last piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tail {
    node: u32,
    piece: u32,
}

#[derive(Debug, Clone)]
pub struct Planner {
    method: Method,
    parallel: Parallel,
    work: AttendWork,
    nodes: Vec<Node>,
    /// One for each row, in their order, where every row is alone at the end of its path.
    tails: Vec<Tail>,
    collect: Collect,
    part: Part,
    follow: Follow,
    /// Blocks of each row of a task.
    blocks: Vec<Range<u32>>,
    /// Whether `auto` split units by rows.
    split: bool,
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
            tails: Vec::new(),
            collect: Collect::default(),
            part: Part::default(),
            follow: Follow::default(),
            blocks: Vec::new(),
            split: false,
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
        if !self.follow(tree, rows) {
            self.anew(tree, rows);
            self.count();
            self.make_tasks();
        }
        self.remember(tree, rows);
        &self.work
    }

    /// Whether rows share units with all that see the same K/V.
    fn groups_by_kv(&self) -> bool {
        matches!(self.method, Method::Auto | Method::Flatten | Method::Node | Method::NodeChunk)
    }

    fn anew(&mut self, tree: &TokenTree, rows: &[QueryRow]) {
        self.part.clear();
        let base = Base { by_query: !self.groups_by_kv(), ..Base::default() };
        let all = 0..rows.len() as u32;
        self.part.build(tree, rows, all, Under { nodes: &[], parent: None }, base, &mut self.collect);
        let (work, part) = (&mut self.work, &mut self.part);
        std::mem::swap(&mut self.nodes, &mut part.nodes);
        std::mem::swap(&mut self.tails, &mut part.tails);
        std::mem::swap(&mut work.order, &mut part.order);
        std::mem::swap(&mut work.positions, &mut part.positions);
        std::mem::swap(&mut work.pages, &mut part.pages);
        std::mem::swap(&mut work.units, &mut part.units);
        std::mem::swap(&mut work.pieces, &mut part.pieces);
        work.partial_first.clear();
        self.number_partials(0);
    }

    /// The partials of the rows from `row` on.
    fn number_partials(&mut self, row: usize) {
        let AttendWork { positions, partial_first, .. } = &mut self.work;
        partial_first.truncate(row + 1);
        if partial_first.is_empty() {
            partial_first.push(0);
        }
        let mut partials = partial_first[row];
        partial_first.extend(positions[row..].iter().map(|p| {
            partials += p / BLOCK as u32 + 1;
            partials
        }));
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

#[cfg(test)]
mod tests;
