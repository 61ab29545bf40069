//! Items: blocks of rows against the tiles their rows see, cut evenly over the CTAs.

use super::even::EvenCuts;
use super::flat::{Flat, Sweep};
use super::tiles::{Brief, Tiles};
use crate::device::cuda::work::{Item, Machine, TILE};
use std::ops::Range;

/// Tiles with few rows get an item of their own (warps then share a tile's keys) when there are at least so many.
pub const SPLIT_TILES: usize = 2;

/// A plan before partials are numbered. Keeps its buffers, so that a step's plan is drafted where the last one was: fresh
/// memory costs more than all that is written into it.
#[derive(Debug, Clone, Default)]
pub struct Draft {
    pub tiles: Tiles,
    pub blocks: Blocks,
    pub cuts: Cuts,
}

/// What of a draft depends on how its tiles are cut.
#[derive(Debug, Clone, Default)]
pub struct Cuts {
    pub items: Vec<Item>,
    /// After each CTA's items, how many there are.
    pub ctas: Vec<u32>,
    /// How many items see each row.
    pub shares: Vec<u32>,
    /// Estimated time.
    pub nanoseconds: u64,
}

/// Blocks of rows, each against the tokens its rows see.
#[derive(Debug, Clone, Default)]
pub struct Blocks {
    pub rows: Vec<Range<u32>>,
    /// Of each block, where its tiles end.
    pub ends: Vec<usize>,
    /// Of each tile, what it costs.
    pub costs: Vec<u64>,
    sweep: Sweep,
    even: EvenCuts,
}

pub fn item(group: u32, rows: Range<u32>, tile: usize, tiles: usize) -> Item {
    let packed = (rows.end - rows.start) * group;
    let kind = match packed {
        0..=16 => 0,
        17..=32 => 1,
        33..=64 => 2,
        _ => 3,
    };
    Item {
        row: rows.start,
        rows: rows.end - rows.start,
        tile: tile as u32,
        tiles: tiles as u32,
        partial: u32::MAX,
        kind,
        unused: [0; 2],
    }
}

/// Rows of `within` that see any token of the tiles.
pub fn seen(tiles: &[Brief], within: &Range<u32>) -> Range<u32> {
    let start = tiles.iter().map(|t| u32::from(t.some[0])).min().unwrap_or(0).max(within.start);
    let end = tiles.iter().map(|t| u32::from(t.some[1])).max().unwrap_or(0).min(within.end);
    start..end.max(start)
}

impl Draft {
    /// Less than any cut of these blocks takes: what is quicker anyhow need not be looked at.
    pub fn bound(&mut self, flat: &Flat, machine: &Machine, borders: &[u32]) -> u64 {
        let sweep = &mut self.blocks.sweep;
        sweep.begin();
        let tokens = |w: &[u32]| sweep.block(flat, &(w[0]..w[1])).map(|run| u64::from(run.len)).sum::<u64>();
        borders.windows(2).map(tokens).sum::<u64>() / TILE as u64 * machine.least_tile() / u64::from(machine.ctas())
    }

    /// Begins anew, with the tiles that the rows between each two borders see.
    pub fn block(&mut self, flat: &Flat, machine: &Machine, borders: &[u32]) {
        let Self { tiles, blocks: Blocks { rows, ends, costs, sweep, .. }, .. } = self;
        rows.clear();
        rows.extend(borders.windows(2).map(|w| w[0]..w[1]));
        ends.clear();
        costs.clear();
        tiles.clear();
        sweep.begin();
        let prices = machine.tile_prices();
        for rows in rows.iter() {
            let first = tiles.len();
            tiles.push(flat, sweep.stretches(flat, rows));
            let price = |t: &Brief| prices.of(t, rows.clone(), u32::from(t.some[0]) < rows.start);
            costs.extend(tiles.briefs[first..].iter().map(price));
            ends.push(tiles.len());
        }
        tiles.end();
    }

    /// The sequence of all blocks' tiles cut into at most `ctas` runs such that the dearest costs least.
    pub fn cut_evenly(&mut self, machine: &Machine, ctas: u32) {
        let Self { tiles, blocks, cuts } = self;
        cuts.clear();
        let tallest = blocks.rows.iter().map(|r| r.end - r.start).max().unwrap_or(0);
        cuts.nanoseconds = blocks.even.cut(&blocks.costs, &blocks.ends, ctas as usize, machine.item(tallest));
        let mut block = 0;
        for run in blocks.even.runs() {
            let mut at = run.start;
            while at < run.end {
                while blocks.ends[block] <= at {
                    block += 1;
                }
                let end = blocks.ends[block].min(run.end);
                cuts.split(machine, &tiles.briefs, &blocks.rows[block], at..end);
                at = end;
            }
            cuts.end_cta();
        }
        cuts.share(blocks.rows.last().map_or(0, |r| r.end));
    }

    pub fn nanoseconds(&self) -> u64 {
        self.cuts.nanoseconds
    }
}

impl Cuts {
    pub fn clear(&mut self) {
        self.items.clear();
        self.ctas.clear();
        self.shares.clear();
        self.nanoseconds = 0;
    }

    /// One CTA's tiles of one block as one item, or where it pays neighbouring tiles with few rows as items of their own, in
    /// which the warps share the rows and split the keys.
    fn split(&mut self, machine: &Machine, tiles: &[Brief], block: &Range<u32>, run: Range<usize>) {
        if !machine.splits() {
            self.items.push(item(machine.group, seen(&tiles[run.clone()], block), run.start, run.len()));
            return;
        }
        let slim = |rows: &Range<u32>| (rows.end - rows.start) * machine.group <= machine.narrow();
        let first = self.items.len();
        // The part that is open: its tiles, the rows that see them, whether these are few.
        let mut open: Option<(Range<usize>, Range<u32>, bool)> = None;
        let close = |items: &mut Vec<Item>, (part, rows, _): (Range<usize>, Range<u32>, bool)| {
            let new = item(machine.group, rows, part.start, part.len());
            match items[first..].last_mut() {
                // A part too short to be worth an item joins the one before.
                Some(last) if part.len() < SPLIT_TILES || (last.tiles as usize) < SPLIT_TILES => {
                    let rows = last.row.min(new.row)..(last.row + last.rows).max(new.row + new.rows);
                    *last = item(machine.group, rows, last.tile as usize, (last.tiles + new.tiles) as usize);
                }
                _ => items.push(new),
            }
        };
        for t in run {
            let rows = seen(&tiles[t..t + 1], block);
            let few = slim(&rows);
            let together = open.as_ref().map(|(_, r, _)| r.start.min(rows.start)..r.end.max(rows.end));
            match (&mut open, together) {
                (Some((part, all, true)), Some(both)) if few && slim(&both) => (part.end, *all) = (t + 1, both),
                (Some((part, all, false)), Some(both)) if !few => (part.end, *all) = (t + 1, both),
                _ => {
                    if let Some(part) = open.replace((t..t + 1, rows, few)) {
                        close(&mut self.items, part);
                    }
                }
            }
        }
        if let Some(part) = open {
            close(&mut self.items, part);
        }
    }

    pub fn end_cta(&mut self) {
        self.ctas.push(self.items.len() as u32);
    }

    /// Counts the items that see each row.
    pub fn share(&mut self, rows: u32) {
        // Where items begin and end, then their sums. A sum is never negative, and neither order of adding matters.
        self.shares.clear();
        self.shares.resize(rows as usize + 1, 0);
        for item in &self.items {
            let (first, end) = (item.row as usize, (item.row + item.rows) as usize);
            self.shares[first] = self.shares[first].wrapping_add(1);
            self.shares[end] = self.shares[end].wrapping_sub(1);
        }
        let mut sum = 0u32;
        for share in &mut self.shares {
            sum = sum.wrapping_add(*share);
            *share = sum;
        }
        self.shares.truncate(rows as usize);
    }

    /// Whether rows of the item have other items too.
    pub fn is_partial(&self, item: &Item) -> bool {
        self.shares[item.row as usize..(item.row + item.rows) as usize].iter().any(|&n| n > 1)
    }

    /// Adds what merging takes to the estimate.
    pub fn price_merge(&mut self, machine: &Machine) {
        let rows = self.shares.iter().filter(|&&n| n > 1).count() as u64;
        let longest = self.shares.iter().max().map_or(0, |&n| u64::from(n));
        self.nanoseconds += machine.merge(rows, longest);
    }
}
