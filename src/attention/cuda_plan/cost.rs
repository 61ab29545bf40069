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
    /// A tile whose rows leave most warps idle still takes this long, and this long where the block has more rows than a
    /// pass: the Hopper kernel then gives a tile to both warpgroups in place of every other tile to each.
    least: u64,
    least_of_tall: u64,
    /// A tile takes as long as so many columns more would, whatever the head size.
    columns: u32,
    /// Starting an item: descriptors, queries, writing rows.
    item: u64,
    /// What a packed row written as a partial adds to it, in picoseconds.
    partial: u64,
    /// A packed row to merge, of one CTA: its warps merge a row each, at the same time.
    merged: u64,
}

// Tiles and items of an earlier fit; merging is the Hopper kernel's code with half the warps a CTA.
const AMPERE: Costs = Costs {
    device: 2000,
    cached: 1400,
    pass_rows: 16,
    pass: 500,
    least: 1000,
    least_of_tall: 1000,
    columns: 0,
    item: 1500,
    partial: 0,
    merged: 410,
};
const HOPPER: Costs = Costs {
    device: 950,
    cached: 840,
    pass_rows: 64,
    pass: 550,
    least: 840,
    least_of_tall: 1040,
    columns: 60,
    item: 2050,
    partial: 7000,
    merged: 205,
};

/// The barrier before the merge.
const MEET: u64 = 1200;
/// One more partial in a row's list.
const LISTED: u64 = 138;

/// What tiles cost on a machine.
#[derive(Debug, Clone, Copy)]
pub struct TilePrices {
    device: u64,
    cached: u64,
    pass: u64,
    least: u64,
    least_of_tall: u64,
    pass_rows: u32,
    group: u32,
}

impl TilePrices {
    /// One tile against those of `rows`, a block's, that see it.
    pub fn of(&self, tile: &Brief, rows: Range<u32>, cached: bool) -> u64 {
        let seen = (u32::from(tile.some[1]).min(rows.end)).saturating_sub(u32::from(tile.some[0]).max(rows.start));
        let tall = (rows.end - rows.start) * self.group > self.pass_rows;
        let least = if tall { self.least_of_tall } else { self.least };
        let read = if cached { self.cached } else { self.device };
        let packed = seen * self.group;
        // Most tiles take one pass, and dividing takes longer than all else here.
        let passes = u64::from(if packed <= self.pass_rows { packed.min(1) } else { packed.div_ceil(self.pass_rows) });
        read.max(passes * self.pass).max(least)
    }
}

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

    /// An item of which so many query rows are partial, besides its tiles.
    pub fn item(&self, partial: u32) -> u64 {
        self.costs().item + self.costs().partial * u64::from(partial * self.group) / 1000
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

    pub fn tile_prices(&self) -> TilePrices {
        let costs = self.costs();
        let columns = u64::from(costs.columns);
        let sized = |cost: u64| cost * (u64::from(self.head_size) + columns) / (128 + columns);
        TilePrices {
            device: sized(costs.device),
            cached: sized(costs.cached),
            pass: sized(costs.pass),
            least: sized(costs.least),
            least_of_tall: sized(costs.least_of_tall),
            pass_rows: costs.pass_rows,
            group: self.group,
        }
    }

    /// What any tile costs.
    pub fn least_tile(&self) -> u64 {
        let prices = self.tile_prices();
        prices.least.min(prices.cached)
    }

    /// Merging `rows` query rows for all heads, spread over the card, and walking the longest row's list.
    /// Fitted to 1,700 measured plans of the Hopper kernel, with what its tiles and items cost.
    pub fn merge(&self, rows: u64, longest: u64) -> u64 {
        if rows == 0 {
            return 0;
        }
        let packed = rows * u64::from(self.group * self.kv_heads);
        MEET + packed * self.costs().merged / u64::from(self.resident) + longest * LISTED
    }

    /// DeFT's chunk: the flattened tree cut into as many chunks as there are CTAs, a multiple of the tile.
    pub fn even_chunk(&self, flat: &Flat) -> u32 {
        let tokens = flat.tokens().div_ceil(u64::from(self.ctas())) as u32;
        tokens.next_multiple_of(TILE as u32)
    }
}
