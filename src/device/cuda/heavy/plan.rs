//! How a budget is shared out for H2O, and in which parts a step's rows are worked on: integers only.

use crate::base::size::Human;
use crate::base::{Error, Result};
use crate::device::Shape;
use crate::device::cuda::store::{Layout, layer_page_bytes};
use crate::device::speculation::Selection;
use crate::kv::PAGE_TOKENS;
use std::ops::Range;

/// The card's tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    pub layout: Layout,
    /// Frames of each of the two stages, and bytes of one.
    pub frames: usize,
    pub frame_bytes: usize,
    /// Bytes of what tokens have had of attention, and of where they lie in the stages.
    pub beside: u64,
}

/// Bytes for every token of the host tier beside its K/V: a sum a layer that selects, and a frame's number a stage.
fn beside_bytes(whole_layers: usize, pages: usize, shape: &Shape) -> u64 {
    ((shape.layers - whole_layers + 2) * pages * PAGE_TOKENS * shape.kv_heads * 4) as u64
}

/// K and V of a token and K/V head, and its place in the list of what is brought.
fn frame_bytes(shape: &Shape) -> usize {
    4 * shape.head_size + 4
}

/// Shares a budget out: sums, an arena for layers in turns, then whole layers of their own where half a layer is left for the
/// stages, a second arena in turns where the stages have all they can use, and the rest to the stages.
pub fn plan(bytes: u64, selection: &Selection, pages: usize, shape: &Shape) -> Result<Plan> {
    let (beside, frame_bytes) = (beside_bytes(selection.whole_layers, pages, shape), frame_bytes(shape));
    let layer = (pages * layer_page_bytes(shape)) as u64;
    let least = beside + layer + 2 * frame_bytes as u64;
    if bytes < least {
        return Err(Error::limit(format!(
            "a device tier of {} cannot hold what must be there: {} for a layer of {pages} pages and what their tokens had \
             of attention; raise --kv-budget or lower --ram-budget",
            Human(bytes),
            Human(least)
        )));
    }
    let mut left = bytes - beside - layer;
    let whole = selection.whole_layers as u64 * layer;
    let resident = if left >= whole + layer / 2 { selection.whole_layers } else { 0 };
    left -= resident as u64 * layer;
    let ring = if left >= 3 * layer { 2 } else { 1 };
    left -= (ring as u64 - 1) * layer;
    let every = pages * PAGE_TOKENS * shape.kv_heads;
    let most = selection.capacity.map_or(left, |size| size.of(left)).min(left);
    let frames = usize::try_from(most / 2 / frame_bytes as u64).unwrap_or(every).clamp(1, every);
    Ok(Plan { layout: Layout::turns(shape.layers, resident, ring), frames, frame_bytes, beside })
}

/// Runs of rows that all let tokens go, or all do not, of at most `most` rows.
pub fn parts(evicts: &[bool], most: usize) -> Vec<(Range<usize>, bool)> {
    let mut parts = Vec::new();
    let mut first = 0;
    for run in evicts.chunk_by(|a, b| a == b) {
        let end = first + run.len();
        parts.extend((first..end).step_by(most).map(|from| (from..(from + most).min(end), run[0])));
        first = end;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cuda::testing::{Never, shape};
    use crate::device::speculation::Source;
    use crate::kv::residency::Eviction;

    #[test]
    fn parts_keep_the_order_of_rows_and_their_kind() {
        let evicts = [true, true, true, false, true, false, false];
        let expected = [(0..2, true), (2..3, true), (3..4, false), (4..5, true), (5..7, false)];
        assert_eq!(parts(&evicts, 2), expected);
        assert_eq!(parts(&[], 3), []);
    }

    #[test]
    fn a_budget_is_shared_out_and_never_exceeded() {
        let shape = shape();
        let pages = 10;
        let layer = (pages * layer_page_bytes(&shape)) as u64;
        for whole_layers in [0, 1, 3] {
            let selection = Selection {
                source: Source::Heavy { keep: 0.2 },
                choose: Box::new(Never),
                whole_layers,
                share: true,
                eviction: Eviction::Counter,
                capacity: None,
            };
            let least = beside_bytes(whole_layers, pages, &shape) + layer + 2 * frame_bytes(&shape) as u64;
            assert!(plan(least - 1, &selection, pages, &shape).is_err());
            for bytes in (least..9 * layer).step_by(layer as usize / 7) {
                let plan = plan(bytes, &selection, pages, &shape).unwrap();
                let stages = 2 * (plan.frames * plan.frame_bytes) as u64;
                let used = plan.beside + plan.layout.arenas() as u64 * layer + stages;
                assert!(used <= bytes && plan.frames > 0, "{plan:?} of {bytes}");
                assert!(plan.layout.resident <= whole_layers && plan.layout.ring > 0, "{plan:?}");
            }
            // Where there is room for all, a stage has all of a layer and no more.
            assert_eq!(plan(u64::MAX >> 8, &selection, pages, &shape).unwrap().frames, pages * PAGE_TOKENS * 2);
        }
    }
}
