//! What a tile costs, in nanoseconds of one CTA. Constants measured on the H200
//! (docs/attention-h200.md); on another card they keep their proportions, which is all the cuts depend on.

use super::flat::Flat;
use super::tiles::Brief;
use crate::device::cuda::work::{Kernel, Machine, TILE};
use std::ops::Range;

/// Nanoseconds of one CTA, at head size 128.
struct Costs {
    /// A tile read from device memory.
    device: u64,
    /// The same found in the L2 cache, because another block of rows read it.
    cached: u64,
    /// Packed rows of one pass over a tile on the tensor cores, and what a pass costs.
    pass_rows: u32,
    pass: u64,
    /// A tile whose rows leave most warps idle still takes this long.
    least: u64,
    /// Starting an item: descriptors, queries, writing partials.
    item: u64,
}

const AMPERE: Costs = Costs { device: 2000, cached: 1400, pass_rows: 16, pass: 500, least: 1000, item: 1500 };
const HOPPER: Costs = Costs { device: 850, cached: 750, pass_rows: 64, pass: 450, least: 750, item: 2500 };

/// The barrier before the merge.
const MEET: u64 = 1200;
/// One more partial in a row's list.
const LISTED: u64 = 50;

impl Machine {
    /// CTAs for each K/V head.
    pub fn ctas(&self) -> u32 {
        (self.resident / self.kv_heads).max(1)
    }

    fn costs(&self) -> &'static Costs {
        match self.kernel {
            Kernel::Ampere => &AMPERE,
            Kernel::Hopper => &HOPPER,
        }
    }

    pub fn item(&self) -> u64 {
        self.costs().item
    }

    /// Packed rows up to which several warps share the rows and split the keys.
    pub fn narrow(&self) -> u32 {
        self.costs().pass_rows
    }

    /// Whether neighbouring tiles with few rows are worth an item of their own: an item costs the Hopper kernel more than
    /// its warps gain by sharing those rows.
    pub fn splits(&self) -> bool {
        self.kernel == Kernel::Ampere
    }

    /// What any tile costs.
    pub fn least_tile(&self) -> u64 {
        self.costs().least.min(self.costs().cached) * u64::from(self.head_size) / 128
    }

    /// One tile against those of `rows` that see it.
    pub fn tile(&self, tile: &Brief, rows: Range<u32>, cached: bool) -> u64 {
        let costs = self.costs();
        let seen = (u32::from(tile.some[1]).min(rows.end)).saturating_sub(u32::from(tile.some[0]).max(rows.start));
        let read = if cached { costs.cached } else { costs.device };
        let packed = seen * self.group;
        // Most tiles take one pass, and dividing takes longer than all else here.
        let passes =
            u64::from(if packed <= costs.pass_rows { packed.min(1) } else { packed.div_ceil(costs.pass_rows) });
        read.max(passes * costs.pass).max(costs.least) * u64::from(self.head_size) / 128
    }

    /// Writing and reading `partials` query rows for all heads, spread over the card, and walking the longest row's list.
    /// Fitted to 80 measured plans, with what a tile and an item cost.
    pub fn merge(&self, partials: u64, longest: u64) -> u64 {
        if partials == 0 {
            return 0;
        }
        let bytes = 2 * partials * u64::from(self.group * self.kv_heads) * (u64::from(self.head_size) + 1) * 4;
        MEET + bytes / 2600 + longest * LISTED
    }

    /// DeFT's chunk: the flattened tree cut into as many chunks as there are CTAs, a multiple of the tile.
    pub fn even_chunk(&self, flat: &Flat) -> u32 {
        let tokens = flat.tokens().div_ceil(u64::from(self.ctas())) as u32;
        tokens.next_multiple_of(TILE as u32)
    }
}
