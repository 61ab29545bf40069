//! How a budget is shared out between what selection needs, and how many blocks gather.

use crate::base::size::Human;
use crate::base::{Error, Result};
use crate::device::Shape;
use crate::device::cuda::step::METHODS;
use crate::device::cuda::store::{Layout, layer_page_bytes};
use crate::device::speculation::{Look, Selection, Source, Speculation, partial_token_bytes};
use crate::kv::PAGE_TOKENS;
use crate::kv::residency::Eviction;

/// Blocks of the kernel that reads the host tier. Many bring rows sooner, but what they have on its way holds up what the step itself
/// reads, so that beside a step no fixed number is best.
const LINK_BLOCKS: [u32; 6] = [4, 6, 8, 10, 12, 16];

/// Shares of the transfers' time that steps waited: beyond the first more blocks gather, below the second fewer.
const MORE_WAITED: f64 = 0.08;
const LESS_WAITED: f64 = 0.02;

/// Steps after which one is heard of at the earliest.
const LATE: u8 = 2;

/// How many blocks gather, by how long the last steps waited for rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gatherers {
    at: usize,
    /// Steps that are passed over: begun before what was changed last could show.
    rest: u8,
}

impl Default for Gatherers {
    fn default() -> Self {
        Self { at: 2, rest: 0 }
    }
}

impl Gatherers {
    pub fn blocks(self) -> u32 {
        LINK_BLOCKS[self.at]
    }

    /// A step's transfers took so many seconds, and it waited so many for them.
    pub fn adapt(&mut self, took: f64, waited: f64) {
        if self.rest > 0 {
            self.rest -= 1;
            return;
        }
        let before = self.at;
        if waited > MORE_WAITED * took {
            self.at = (self.at + 1).min(LINK_BLOCKS.len() - 1);
        } else if waited < LESS_WAITED * took {
            self.at = self.at.saturating_sub(1);
        }
        if self.at != before {
            self.rest = LATE;
        }
    }
}

/// The card's tier of a method that selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    pub layout: Layout,
    pub whole_layers: usize,
    /// Frames for rows: those that stay, and the stage's.
    pub frames: usize,
    /// Whether rows stay from step to step, and whether frames know when they were used.
    pub keeps: bool,
    pub stamps: bool,
    /// Bytes of partial keys.
    pub partial: u64,
}

/// A frame's bytes beside the row: who has it and when it was used, and its place in the lists of what is brought.
const FRAME_BYTES: usize = 16;

/// Pages of a set and sets of a K/V head: each is a block's, and many are quicker, but none may hold what another lacks room for.
/// The most frames of a set that a row's state can tell.
const SET_PAGES: usize = 16;
const MOST_GROUPS: usize = 16;
const MOST_FRAMES: usize = 4095;

/// Pages that a block settles at once.
const TILE_PAGES: usize = 512;

/// Chunks of a K/V head at most, for any number of sets.
pub fn most_chunks(pages: usize) -> usize {
    pages.div_ceil(TILE_PAGES) + 2 * MOST_GROUPS
}

/// How frames are shared out between layers and the stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// Sets of a K/V head: every so many-th page belongs to one.
    pub groups: usize,
    /// Frames of a set, and of the stage.
    pub of_set: usize,
    pub stage: usize,
}

impl Split {
    /// Before anything is known: a sixth to the stage, or all where nothing stays.
    pub fn first(plan: &Plan, pages: usize, kv_heads: usize, layers: usize) -> Self {
        match plan.keeps {
            true => Self::of(plan.frames, plan.frames / 6, (pages, kv_heads, layers)),
            false => Self { groups: Self::groups(pages), of_set: 0, stage: plan.frames.max(1) },
        }
    }

    fn groups(pages: usize) -> usize {
        (pages / SET_PAGES).clamp(1, MOST_GROUPS)
    }

    /// Chunks of a set: so many pages are settled at once.
    pub fn tiles(&self, pages: usize) -> usize {
        pages.div_ceil(self.groups).div_ceil(TILE_PAGES)
    }

    /// What the stage may have of all frames: some are for rows to stay.
    fn most(frames: usize) -> usize {
        (frames - frames / 8).max(1)
    }

    fn of(frames: usize, stage: usize, (pages, kv_heads, layers): (usize, usize, usize)) -> Self {
        let stage = stage.clamp(1, Self::most(frames));
        let of_layer = frames.saturating_sub(stage) / layers.max(1);
        let groups = Self::groups(pages).min(of_layer / kv_heads).max(1);
        let slots = pages.div_ceil(groups) * PAGE_TOKENS;
        let of_set = (of_layer / (kv_heads * groups)).min(slots).min(MOST_FRAMES);
        Self { groups, of_set, stage: if of_set > 0 { stage } else { frames.max(1) } }
    }

    /// With a stage for what two layers wanted of it, one of them read while the other comes, where that is two thirds of all
    /// frames at most, else for what one did and an eighth more, as far as `most` goes; `None` where it has that, or nearly.
    pub fn grown(&self, frames: usize, wanted: usize, sizes: (usize, usize, usize)) -> Option<Self> {
        let (least, room) = match 2 * wanted + wanted / 16 <= frames / 3 * 2 {
            true => (2 * wanted, 2 * wanted + wanted / 16),
            false => (wanted + wanted / 16, wanted + wanted / 8),
        };
        (self.of_set > 0 && least > self.stage && self.stage < Self::most(frames))
            .then(|| Self::of(frames, room, sizes))
    }

    pub fn layer_frames(&self, kv_heads: usize) -> usize {
        self.groups * kv_heads * self.of_set
    }
}

/// Bytes of a row: K and V of one token and K/V head.
pub fn row_bytes(shape: &Shape) -> usize {
    4 * shape.head_size
}

/// Whole layers and columns of a selection that guesses.
pub fn guesses(selection: &Selection) -> Result<(&Speculation, Look)> {
    match &selection.source {
        Source::Partial(speculation, look) => Ok((speculation, *look)),
        _ => Err(Error::input(METHODS)),
    }
}

/// Bytes that the card's tier needs at least: partial keys of all pages, one arena, and two frames.
pub fn least_bytes(selection: &Selection, pages: usize, shape: &Shape) -> Result<u64> {
    Ok(partial_bytes(guesses(selection)?.0, pages, shape)
        + (pages * layer_page_bytes(shape) + 2 * (row_bytes(shape) + FRAME_BYTES)) as u64)
}

fn partial_bytes(speculation: &Speculation, pages: usize, shape: &Shape) -> u64 {
    let tokens = (shape.layers - speculation.whole_layers) * pages * PAGE_TOKENS * shape.kv_heads;
    (tokens * partial_token_bytes(speculation.columns)) as u64
}

/// Shares a budget out: partial keys, an arena for layers in turns, then whole layers of their own where half a layer is left
/// for rows, a second arena in turns where three are, and the rest to rows. They stay from step to step where what is known
/// of all of them takes no more than half of that.
pub fn plan(bytes: u64, selection: &Selection, pages: usize, shape: &Shape) -> Result<Plan> {
    let (speculation, _) = guesses(selection)?;
    let partial = partial_bytes(speculation, pages, shape);
    let layer = (pages * layer_page_bytes(shape)) as u64;
    let least = least_bytes(selection, pages, shape)?;
    if bytes < least {
        return Err(Error::limit(format!(
            "a device tier of {} cannot hold what must be there: {} for the partial keys of {pages} pages and a layer; \
             raise --kv-budget, or lower --ram-budget or --offload-ratio",
            Human(bytes),
            Human(least)
        )));
    }
    let mut left = bytes - partial - layer;
    let whole = speculation.whole_layers as u64 * layer;
    let resident = if left >= whole + layer / 2 { speculation.whole_layers } else { 0 };
    left -= resident as u64 * layer;
    let ring = if left >= 3 * layer { 2 } else { 1 };
    left -= (ring as u64 - 1) * layer;
    let most = selection.capacity.map_or(left, |size| size.of(left)).min(left);
    let (row, whole_layers) = (row_bytes(shape), speculation.whole_layers);
    let selecting = shape.layers - whole_layers;
    let states = (selecting * pages * PAGE_TOKENS * shape.kv_heads * 2) as u64;
    let keeps = selection.share && most >= 2 * states + (8 * selecting * shape.kv_heads * (row + FRAME_BYTES)) as u64;
    let layer_rows = pages * PAGE_TOKENS * shape.kv_heads;
    let frames = match keeps {
        true => ((most - states) as usize / (row + FRAME_BYTES)).min((selecting + 2) * layer_rows),
        false => (most as usize / (row + FRAME_BYTES)).clamp(2, 2 * layer_rows),
    };
    let stamps = matches!(selection.eviction, Eviction::Fifo | Eviction::Lru);
    Ok(Plan { layout: Layout::turns(shape.layers, resident, ring), whole_layers, frames, keeps, stamps, partial })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cuda::testing::{Never, shape};

    #[test]
    fn more_blocks_gather_while_steps_wait_and_fewer_where_they_do_not() {
        let mut gatherers = Gatherers::default();
        let first = gatherers.blocks();
        gatherers.adapt(1.0, 0.05);
        assert_eq!(gatherers.blocks(), first, "nearly all is hidden");
        gatherers.adapt(1.0, 0.2);
        let more = gatherers.blocks();
        assert!(more > first);
        (0..LATE).for_each(|_| gatherers.adapt(1.0, 0.2));
        assert_eq!(gatherers.blocks(), more, "these steps had begun before");
        (0..20).for_each(|_| gatherers.adapt(1.0, 1.0));
        assert_eq!(Some(&gatherers.blocks()), LINK_BLOCKS.last());
        (0..20).for_each(|_| gatherers.adapt(1.0, 0.0));
        assert_eq!(Some(&gatherers.blocks()), LINK_BLOCKS.first());
        gatherers.adapt(0.0, 0.0);
        assert_eq!(Some(&gatherers.blocks()), LINK_BLOCKS.first(), "nothing was brought");
    }

    #[test]
    fn a_budget_is_shared_out_and_never_exceeded() {
        let shape = shape();
        let pages = 10;
        let selection = |whole_layers, source| Selection {
            source,
            choose: Box::new(Never),
            whole_layers,
            share: true,
            eviction: Eviction::Counter,
            capacity: None,
        };
        let layer = (pages * layer_page_bytes(&shape)) as u64;
        for whole_layers in [1, 3] {
            let speculation = Speculation { whole_layers, columns: 20, layers: Vec::new(), shifts: Vec::new() };
            let selection = selection(whole_layers, Source::Partial(speculation, Look::Ahead));
            let (least, mut kept) = (least_bytes(&selection, pages, &shape).unwrap(), 0);
            assert!(plan(least - 1, &selection, pages, &shape).is_err());
            for bytes in (least..9 * layer).step_by(layer as usize / 7) {
                let plan = plan(bytes, &selection, pages, &shape).unwrap();
                let states = (shape.layers - whole_layers) * pages * PAGE_TOKENS * shape.kv_heads * 2;
                let rows = (plan.frames * row_bytes(&shape) + usize::from(plan.keeps) * states) as u64;
                let used = plan.partial + plan.layout.arenas() as u64 * layer + rows;
                assert!(used <= bytes && plan.frames > 1, "{plan:?} of {bytes}");
                kept += usize::from(plan.keeps);
                assert!(plan.layout.resident <= whole_layers && plan.layout.ring > 0, "{plan:?}");
            }
            assert!(kept > 0, "rows stay where there is room");
            assert_eq!(plan(9 * layer, &selection, pages, &shape).unwrap().layout.resident, whole_layers);
        }
        assert!(plan(1 << 40, &selection(1, Source::Exact), pages, &shape).is_err());
    }

    #[test]
    fn frames_are_shared_out_between_layers_and_stages() {
        for (frames, pages, kv_heads, layers) in
            [(2, 3, 1, 4), (100, 40, 2, 3), (5_000, 64, 1, 4), (200_000, 2000, 8, 31), (90_000, 90, 8, 2)]
        {
            let sizes = (pages, kv_heads, layers);
            let mut split = Split::of(frames, frames / 6, sizes);
            for wanted in [0, 1, frames / 7, frames / 5, frames / 2, frames, 10 * frames] {
                let before = split;
                if let Some(grown) = split.grown(frames, wanted, sizes) {
                    split = grown;
                    assert!(split.stage > before.stage, "{before:?} {split:?}");
                }
                assert!(split.stage >= wanted.min(Split::most(frames)) || split.of_set == 0, "{split:?} for {wanted}");
                let used = split.stage + layers * split.layer_frames(kv_heads);
                assert!(used <= frames && split.stage > 0 && split.groups <= pages, "{split:?} of {frames}");
                assert!(split.groups * split.tiles(pages) <= most_chunks(pages), "{split:?} of {pages}");
                assert!(split.of_set <= MOST_FRAMES && split.of_set <= pages.div_ceil(split.groups) * PAGE_TOKENS);
            }
        }
    }
}
