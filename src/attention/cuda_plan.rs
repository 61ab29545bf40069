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
use cut::Draft;
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
    assert!(work.rows() <= MAX_ROWS, "a step has at most {MAX_ROWS} rows");
    let mut slots = Vec::new();
    let runs = flat::runs(work, &mut slots);
    cut(Flat::of(&slots, runs, work.order.clone()), machine, cutting)
}

fn cut(flat: Flat<'_>, machine: &Machine, cutting: Cutting) -> CudaPlan {
    let draft = match cutting {
        Cutting::Auto => auto(&flat, machine),
        Cutting::Flatten => Draft::flatten(&flat, machine),
        Cutting::Node => Draft::nodes(&flat, machine, None),
        Cutting::NodeChunk => Draft::nodes(&flat, machine, Some(machine.even_chunk(&flat))),
        Cutting::Radix => {
            let each: Vec<u32> = (0..=flat.rows()).collect();
            Draft::blocks(&flat, machine, &each, machine.ctas())
        }
        Cutting::SpecInfer => Draft::masked(&flat, machine),
        Cutting::Vanilla => Draft::single(&flat, machine),
    };
    draft.finish(flat)
}

/// Tries a few block heights and CTA counts, and keeps the quickest by the model.
fn auto(flat: &Flat<'_>, machine: &Machine) -> Draft {
    let mut best: Option<Draft> = None;
    let mut keep = |draft: Draft| {
        if best.as_ref().is_none_or(|b| draft.nanoseconds < b.nanoseconds) {
            best = Some(draft);
        }
    };
    let mut last = Vec::new();
    for height in [ITEM_ROWS, ITEM_ROWS / 2, ITEM_ROWS / 4, ITEM_ROWS / 8, 1] {
        let borders = flat.borders((height / machine.group).max(1));
        if borders != last {
            for ctas in [machine.ctas(), machine.ctas().div_ceil(2)] {
                keep(Draft::blocks(flat, machine, &borders, ctas));
            }
        }
        last = borders;
    }
    // Blocks that fit the CTAs so well that none need be cut: nothing to merge.
    let tallest = (ITEM_ROWS / machine.group).max(1);
    for waves in 1..=4 {
        let height = flat.rows().div_ceil(machine.ctas() * waves);
        if height <= tallest {
            keep(Draft::whole(flat, machine, &flat.borders(height.max(1))));
        }
    }
    best.unwrap_or_default()
}

#[cfg(test)]
mod tests;
