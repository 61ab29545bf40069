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
mod deal;
mod even;
mod flat;
mod merge;
mod tiles;

use super::Method;
use crate::device::attend::AttendWork;
use crate::device::cuda::work::{CudaPlan, ITEM_ROWS, Machine};
use cut::{Cuts, Draft};
use flat::Flat;
use merge::Numbering;
use std::sync::Arc;

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
    let (mut drafts, mut plan) = (Drafts::default(), CudaPlan::default());
    drafts.cut(&mut Flat::new(tree, rows), machine, cutting, &mut plan);
    plan
}

/// Plans a step of the engine from the work that its planner made of the token tree. At most [`MAX_ROWS`] rows.
pub fn step(work: &AttendWork, machine: &Machine, cutting: Cutting) -> Arc<CudaPlan> {
    StepPlanner::new(cutting).plan(work, machine)
}

/// Plans the steps of an engine. Trying every way of cutting costs `auto` far more than one plan does, and the best way
/// changes slowly: while the tree stays about the same, the way that won last is taken again.
#[derive(Debug, Clone)]
pub struct StepPlanner {
    cutting: Cutting,
    /// The way that won, and what for.
    won: Option<(Way, Size)>,
    flat: Flat,
    drafts: Drafts,
    /// The last plan, written over where nobody else holds it.
    plan: Arc<CudaPlan>,
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
        Self { cutting, won: None, flat: Flat::default(), drafts: Drafts::default(), plan: Arc::default() }
    }

    /// At most [`MAX_ROWS`] rows. A plan that the caller has let go of by the next step lends it its memory.
    pub fn plan(&mut self, work: &AttendWork, machine: &Machine) -> Arc<CudaPlan> {
        assert!(work.rows() <= MAX_ROWS, "a step has at most {MAX_ROWS} rows");
        let Self { cutting, won, flat, drafts, plan } = self;
        if Arc::get_mut(plan).is_none() {
            *plan = Arc::default();
        }
        let to = Arc::make_mut(plan);
        flat.read(work);
        let size = Size::of(work);
        match won.filter(|(_, then)| then.is_like(size)) {
            Some((way, _)) => drafts.again(way, flat, machine, to),
            None => *won = drafts.cut(flat, machine, *cutting, to).map(|way| (way, size)),
        }
        plan.clone()
    }
}

/// The draft that is best so far, one that may be better, and room to make them in.
#[derive(Debug, Clone, Default)]
struct Drafts {
    best: Draft,
    trial: Draft,
    cuts: Cuts,
    borders: Vec<u32>,
    last: Vec<u32>,
    numbering: Numbering,
}

impl Drafts {
    /// Plans `flat`; the way that won where there are several.
    fn cut(&mut self, flat: &mut Flat, machine: &Machine, cutting: Cutting, plan: &mut CudaPlan) -> Option<Way> {
        let Self { best: draft, borders, .. } = self;
        lend(plan, draft);
        let mut won = None;
        match cutting {
            Cutting::Auto => won = Some(self.auto(flat, machine)),
            Cutting::Flatten => draft.flatten(flat, machine),
            Cutting::Node => draft.nodes(flat, machine, None),
            Cutting::NodeChunk => draft.nodes(flat, machine, Some(machine.even_chunk(flat))),
            Cutting::Radix => Way::QUERIES.draft(flat, machine, borders, draft),
            Cutting::SpecInfer => draft.masked(flat, machine),
            Cutting::Vanilla => draft.single(flat, machine),
        }
        self.numbering.finish(flat, &mut self.best, plan);
        won
    }

    /// Plans `flat` the way that won before.
    fn again(&mut self, way: Way, flat: &mut Flat, machine: &Machine, plan: &mut CudaPlan) {
        let Self { best: draft, borders, numbering, .. } = self;
        lend(plan, draft);
        way.draft(flat, machine, borders, draft);
        numbering.finish(flat, draft, plan);
    }

    /// Tries a few block heights and CTA counts, and keeps the quickest by the model; of equally quick ones the first.
    fn auto(&mut self, flat: &mut Flat, machine: &Machine) -> Way {
        let Self { best, trial, cuts, borders, last, .. } = self;
        let tallest = (ITEM_ROWS / machine.group).max(1);
        let mut won: Option<Way> = None;
        let mut quickest = u64::MAX;
        last.clear();
        for height in [tallest, tallest / 2, tallest / 4, tallest / 8, 1].map(|h| h.max(1)) {
            flat.borders(height, borders);
            if borders == last || trial.bound(flat, machine, borders) >= quickest {
                continue;
            }
            trial.block(flat, machine, borders);
            trial.cut_evenly(machine, ctas(machine, true));
            trial.cuts.price_merge(machine);
            std::mem::swap(&mut trial.cuts, cuts);
            trial.cut_evenly(machine, ctas(machine, false));
            trial.cuts.price_merge(machine);
            let halved = cuts.nanoseconds < trial.nanoseconds();
            if halved {
                std::mem::swap(&mut trial.cuts, cuts);
            }
            if trial.nanoseconds() < quickest {
                quickest = trial.nanoseconds();
                won = Some(Way::Even { height, halved });
                std::mem::swap(best, trial);
            }
            std::mem::swap(last, borders);
        }
        // Blocks that fit the CTAs so well that none need be cut.
        let rows = flat.rows();
        let fits = (1..=4).map(|waves| rows.div_ceil(machine.ctas() * waves).max(1));
        for height in fits.filter(|&height| height <= tallest) {
            flat.borders(height, borders);
            if trial.bound(flat, machine, borders) >= quickest {
                continue;
            }
            trial.whole(flat, machine, borders);
            if trial.nanoseconds() < quickest {
                quickest = trial.nanoseconds();
                won = Some(Way::Whole { height });
                std::mem::swap(best, trial);
            }
        }
        won.unwrap_or_else(|| {
            *best = Draft::default();
            Way::QUERIES
        })
    }
}

/// The tiles of a plan that is about to be written over are the draft's to write over.
fn lend(plan: &mut CudaPlan, draft: &mut Draft) {
    std::mem::swap(&mut plan.tiles, &mut draft.tiles.tiles);
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

    fn draft(self, flat: &mut Flat, machine: &Machine, borders: &mut Vec<u32>, draft: &mut Draft) {
        match self {
            Self::Even { height, halved } => {
                flat.borders(height, borders);
                draft.block(flat, machine, borders);
                draft.cut_evenly(machine, ctas(machine, halved));
            }
            Self::Whole { height } => {
                flat.borders(height, borders);
                draft.whole(flat, machine, borders);
            }
        }
    }
}

fn ctas(machine: &Machine, halved: bool) -> u32 {
    if halved { machine.ctas().div_ceil(2) } else { machine.ctas() }
}

#[cfg(test)]
mod tests;
