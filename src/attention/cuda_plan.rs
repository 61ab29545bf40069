//! The plan of one attention step for the CUDA kernel (`kernels/attend.cu`): which CTA reads which K/V for which rows.
//!
//! A pure function of tree, query rows and machine; integers only, no device. The tree is flattened depth-first, rows
//! stand in depth-first order, and so every K/V token is seen by one range of rows. What the methods differ in is how
//! the (rows × tokens) area is cut into items:
//!
//! | method | item |
//! |---|---|
//! | `auto` | rows in blocks that end at subtree borders; each block's tokens cut where the cost model says, evenly over the CTAs |
//! | `deft-flatten` | even chunks of the flattened tree, for all rows that see a token of the chunk |
//! | `deft-node` | one node |
//! | `deft-node-chunk` | a node cut into chunks of the same length as flatten's |
//! | `radix` | one query's path, cut evenly |
//! | `specinfer` | one query against the whole tree, masked |
//! | `vanilla` | everything in one CTA a K/V head |
//!
//! `flash-decoding` is `radix` on a forest of contiguous copies of the paths. One block of all rows is grouping by K/V,
//! one block a query is grouping by query: `auto` chooses between them, and everything between, by estimated time.
//!
//! Refuses nothing: a row sees at least its own token, so every row has an item.

mod cost;
mod cut;
mod flat;

use super::Method;
use crate::device::attend::AttendWork;
use crate::device::cuda::work::{CudaPlan, ITEM_ROWS, Machine};
use cut::{Blocks, Draft};
use flat::Flat;

/// Query rows of one step: row ranges are 16-bit.
pub const MAX_ROWS: usize = 65_535;

/// A run of tokens with one parent; parents stand before their children.
#[derive(Debug, Clone, Copy)]
pub struct Node {
    pub parent: Option<u32>,
    /// Index of the first token's slot in [`Tree::slots`]; the others follow.
    pub first: u32,
    pub len: u32,
}

/// The K/V tokens that exist. A slot names where a token's K/V lies.
#[derive(Debug, Clone, Copy)]
pub struct Tree<'a> {
    pub nodes: &'a [Node],
    pub slots: &'a [u32],
    /// Only slots of one page (16 of them) are neighbours in memory; unpaged, all consecutive slots are.
    pub paged: bool,
}

/// A query: it sees its node's tokens up to `offset`, and all its ancestors' tokens.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    pub node: u32,
    pub offset: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cutting {
    Auto,
    Flatten,
    Node,
    NodeChunk,
    Radix,
    SpecInfer,
    Vanilla,
}

impl Cutting {
    /// How a live method cuts; the comparison methods cut as `auto`.
    pub fn of(method: Method) -> Self {
        match method {
            Method::Flatten => Self::Flatten,
            Method::Node => Self::Node,
            Method::NodeChunk => Self::NodeChunk,
            Method::Radix => Self::Radix,
            Method::Auto | Method::FlashDecoding | Method::Medusa | Method::SpecInfer | Method::Vanilla => Self::Auto,
        }
    }
}

/// Plans one step. At most [`MAX_ROWS`] rows.
pub fn plan(tree: Tree<'_>, rows: &[Row], machine: &Machine, cutting: Cutting) -> CudaPlan {
    assert!(rows.len() <= MAX_ROWS, "a step has at most {MAX_ROWS} rows");
    cut(Flat::new(tree, rows), machine, cutting)
}

/// Plans a step of the engine from the work that its planner made of the token tree. At most [`MAX_ROWS`] rows.
pub fn step(work: &AttendWork, machine: &Machine, cutting: Cutting) -> CudaPlan {
    StepPlanner::new(cutting).plan(work, machine)
}

/// Plans the steps of an engine. Trying every way of cutting costs `auto` far more than one plan does, and the best way
/// changes slowly: while the tree stays about the same, the way that won last is taken again.
#[derive(Debug, Clone)]
pub struct StepPlanner {
    cutting: Cutting,
    /// The way that won, and what for.
    won: Option<(Way, Size)>,
}

/// What of a step the choice of a way depends on most.
#[derive(Debug, Clone, Copy)]
struct Size {
    rows: u64,
    /// Tokens in the union of all paths, and on all paths.
    unique: u64,
    paths: u64,
}

/// Tokens that each row may have grown by before all ways are tried again.
const GROWTH: u64 = 64;

impl Size {
    fn of(work: &AttendWork) -> Self {
        Self { rows: work.rows() as u64, unique: work.io.unique_tokens, paths: work.io.radix_tokens }
    }

    /// Whether a step is about as large as this one: an eighth more or less, or grown by [`GROWTH`] tokens a row.
    fn is_like(&self, now: Self) -> bool {
        let near = |then: u64, now: u64, growth: u64| (then - then / 8..=then + growth.max(then / 8)).contains(&now);
        let growth = GROWTH * self.rows;
        near(self.rows, now.rows, 0) && near(self.unique, now.unique, growth) && near(self.paths, now.paths, growth)
    }
}

impl StepPlanner {
    pub fn new(cutting: Cutting) -> Self {
        Self { cutting, won: None }
    }

    /// At most [`MAX_ROWS`] rows.
    pub fn plan(&mut self, work: &AttendWork, machine: &Machine) -> CudaPlan {
        assert!(work.rows() <= MAX_ROWS, "a step has at most {MAX_ROWS} rows");
        let flat = Flat::of(work);
        if self.cutting != Cutting::Auto {
            return cut(flat, machine, self.cutting);
        }
        let size = Size::of(work);
        if let Some((way, _)) = self.won.filter(|(_, then)| then.is_like(size)) {
            return way.draft(&flat, machine).finish(flat);
        }
        let (way, draft) = auto(&flat, machine);
        self.won = Some((way, size));
        draft.finish(flat)
    }
}

fn cut(flat: Flat, machine: &Machine, cutting: Cutting) -> CudaPlan {
    let draft = match cutting {
        Cutting::Auto => auto(&flat, machine).1,
        Cutting::Flatten => Draft::flatten(&flat, machine),
        Cutting::Node => Draft::nodes(&flat, machine, None),
        Cutting::NodeChunk => Draft::nodes(&flat, machine, Some(machine.even_chunk(&flat))),
        Cutting::Radix => Way::QUERIES.draft(&flat, machine),
        Cutting::SpecInfer => Draft::masked(&flat, machine),
        Cutting::Vanilla => Draft::single(&flat, machine),
    };
    draft.finish(flat)
}

/// One way of cutting: blocks of at most so many rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Each block's tokens cut evenly over the CTAs, or over half of them.
    Even { height: u32, halved: bool },
    /// Each block whole in one CTA: nothing to merge.
    Whole { height: u32 },
}

impl Way {
    /// Grouping by query: what `radix` does.
    const QUERIES: Self = Self::Even { height: 1, halved: false };

    fn draft(self, flat: &Flat, machine: &Machine) -> Draft {
        match self {
            Self::Even { height, halved } => {
                let blocks = Blocks::new(flat, machine, &flat.borders(height));
                let cuts = blocks.even(machine, ctas(machine, halved));
                blocks.draft(cuts)
            }
            Self::Whole { height } => Draft::whole(flat, machine, &flat.borders(height)),
        }
    }
}

fn ctas(machine: &Machine, halved: bool) -> u32 {
    if halved { machine.ctas().div_ceil(2) } else { machine.ctas() }
}

/// Tries a few block heights and CTA counts, and keeps the quickest by the model; of equally quick ones the first.
fn auto(flat: &Flat, machine: &Machine) -> (Way, Draft) {
    let tallest = (ITEM_ROWS / machine.group).max(1);
    let mut best: Option<(Way, Draft)> = None;
    let quickest = |best: &Option<(Way, Draft)>| best.as_ref().map_or(u64::MAX, |(_, draft)| draft.nanoseconds());
    let mut last = Vec::new();
    for height in [tallest, tallest / 2, tallest / 4, tallest / 8, 1].map(|h| h.max(1)) {
        let borders = flat.borders(height);
        if borders == last || Blocks::bound(flat, machine, &borders) >= quickest(&best) {
            continue;
        }
        let blocks = Blocks::new(flat, machine, &borders);
        let [all, half] = [false, true].map(|halved| blocks.even(machine, ctas(machine, halved)));
        let (halved, cuts) = if half.nanoseconds < all.nanoseconds { (true, half) } else { (false, all) };
        if cuts.nanoseconds < quickest(&best) {
            best = Some((Way::Even { height, halved }, blocks.draft(cuts)));
        }
        last = borders;
    }
    // Blocks that fit the CTAs so well that none need be cut.
    let fits = (1..=4).map(|waves| flat.rows().div_ceil(machine.ctas() * waves).max(1));
    for height in fits.filter(|&height| height <= tallest) {
        if Blocks::bound(flat, machine, &flat.borders(height)) >= quickest(&best) {
            continue;
        }
        let way = Way::Whole { height };
        let draft = way.draft(flat, machine);
        if draft.nanoseconds() < quickest(&best) {
            best = Some((way, draft));
        }
    }
    best.unwrap_or_else(|| (Way::QUERIES, Draft::default()))
}

#[cfg(test)]
mod tests;
