//! How a budget is shared out between what selection needs, and how many blocks gather.

use crate::base::size::Human;
use crate::base::{Error, Result};
use crate::device::Shape;
use crate::device::cuda::step::METHODS;
use crate::device::cuda::store::{Layout, layer_page_bytes};
use crate::device::speculation::{Look, Selection, Source, Speculation, partial_token_bytes};
use crate::kv::PAGE_TOKENS;

/// Blocks that the kernel which reads the host tier is tried with. As few as reach the link's speed within
/// a twentieth are best, since the step has the others.
pub const LINK_BLOCKS: [u32; 4] = [4, 8, 16, 32];

/// The card's tier of a method that selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    pub layout: Layout,
    /// Frames of each of the two stages.
    pub frames: usize,
    /// Bytes of partial keys.
    pub partial: u64,
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

/// Bytes that the card's tier needs at least: partial keys of all pages, one arena, and a frame in each stage.
pub fn least_bytes(selection: &Selection, pages: usize, shape: &Shape) -> Result<u64> {
    Ok(partial_bytes(guesses(selection)?.0, pages, shape)
        + (pages * layer_page_bytes(shape) + 2 * row_bytes(shape)) as u64)
}

fn partial_bytes(speculation: &Speculation, pages: usize, shape: &Shape) -> u64 {
    let tokens = (shape.layers - speculation.whole_layers) * pages * PAGE_TOKENS * shape.kv_heads;
    (tokens * partial_token_bytes(speculation.columns)) as u64
}

/// Shares a budget out: partial keys, an arena for layers in turns, then whole layers of their own where half a layer is left
/// for the stages, a second arena in turns where the stages have all they can use, and the rest to the stages.
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
    let most = selection.capacity.map_or(left, |size| size.of(left)).min(left).min(2 * layer);
    let frames = ((most / 2) as usize / row_bytes(shape)).max(1);
    Ok(Plan { layout: Layout::turns(shape.layers, resident, ring), frames, partial })
}

/// The fewest blocks that are within a twentieth of the quickest.
pub fn fewest(times: &[(u32, f64)]) -> u32 {
    let best = times.iter().map(|t| t.1).fold(f64::INFINITY, f64::min);
    times.iter().find(|t| t.1 <= 1.05 * best).map_or(LINK_BLOCKS[0], |t| t.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::picks::{Asked, Choose, Room as PickRoom};
    use crate::device::{Rope, RopeLayout};
    use crate::kv::residency::Eviction;

    struct Never;

    impl Choose for Never {
        fn choose(&self, _: &Asked<'_>, _: &mut PickRoom, _: &mut [u64]) {}
    }

    #[test]
    fn as_few_blocks_gather_as_are_quick_enough() {
        assert_eq!(fewest(&[(4, 9.0), (8, 5.2), (16, 5.0), (32, 5.1)]), 8);
        assert_eq!(fewest(&[(4, 5.0), (8, 5.0)]), 4);
    }

    #[test]
    fn a_budget_is_shared_out_and_never_exceeded() {
        let shape = Shape {
            layers: 8,
            hidden: 256,
            heads: 8,
            kv_heads: 2,
            head_size: 64,
            feed_forward: 512,
            vocab: 100,
            context: 1024,
            norm_eps: 1e-5,
            rope: Rope { theta: 1e4, factors: None, layout: RopeLayout::Halves },
        };
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
            let speculation = Speculation { whole_layers, columns: 20, layers: Vec::new() };
            let selection = selection(whole_layers, Source::Partial(speculation, Look::Ahead));
            let least = least_bytes(&selection, pages, &shape).unwrap();
            assert!(plan(least - 1, &selection, pages, &shape).is_err());
            for bytes in (least..9 * layer).step_by(layer as usize / 7) {
                let plan = plan(bytes, &selection, pages, &shape).unwrap();
                let stages = 2 * (plan.frames * row_bytes(&shape)) as u64;
                let used = plan.partial + plan.layout.arenas() as u64 * layer + stages;
                assert!(used <= bytes && plan.frames > 0, "{plan:?} of {bytes}");
                assert!(plan.layout.resident <= whole_layers && plan.layout.ring > 0, "{plan:?}");
            }
            assert_eq!(plan(9 * layer, &selection, pages, &shape).unwrap().layout.resident, whole_layers);
        }
        assert!(plan(1 << 40, &selection(1, Source::Exact), pages, &shape).is_err());
    }
}
