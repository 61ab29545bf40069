//! Cuts that deal whole units of items to the CTAs: `auto`'s blocks that fit, and what the comparison methods do.

use super::cut::{Cuts, Draft, SPLIT_TILES, item, seen};
use super::even::EvenCuts;
use super::flat::{Flat, Run};
use super::tiles::Brief;
use crate::device::cuda::work::{ITEM_ROWS, Item, Machine, TILE};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Items that one CTA takes together, priced.
#[derive(Default)]
struct Units {
    items: Vec<Item>,
    /// Of each unit, where its items end, and what they cost.
    ends: Vec<usize>,
    costs: Vec<u64>,
}

impl Units {
    fn end(&mut self, cost: u64) {
        self.ends.push(self.items.len());
        self.costs.push(cost);
    }

    fn items(&self, unit: usize) -> &[Item] {
        let first = unit.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.items[first..self.ends[unit]]
    }

    /// The rows `part` against the tiles `unit` as items, and what they cost: one for each run of tiles that they see;
    /// short gaps are read along, masked.
    fn push(&mut self, machine: &Machine, tiles: &[Brief], unit: Range<usize>, part: &Range<u32>) -> u64 {
        let prices = machine.tile_prices();
        let (mut cost, mut run, mut end) = (0, unit.start, unit.start);
        let mut rows = part.start..part.start;
        for t in unit.start..unit.end + 1 {
            let here = tiles.get(t).filter(|_| t < unit.end).map_or(0..0, |_| seen(&tiles[t..t + 1], part));
            if here.is_empty() && t < unit.end {
                continue;
            }
            if !rows.is_empty() && (t == unit.end || t - end > SPLIT_TILES) {
                let read = |t: &Brief| prices.of(t, part.clone(), u32::from(t.some[0]) < part.start);
                cost += machine.item(part.end - part.start) + tiles[run..end].iter().map(read).sum::<u64>();
                self.items.push(item(machine.group, rows.clone(), run, end - run));
                rows = part.start..part.start;
            }
            if rows.is_empty() {
                (run, rows) = (t, here);
            } else {
                rows = rows.start.min(here.start)..rows.end.max(here.end);
            }
            end = t + 1;
        }
        cost
    }
}

impl Cuts {
    /// The dearest units first, each to the idlest of at most `ctas`.
    fn deal(&mut self, units: &Units, ctas: u32, rows: u32) {
        self.clear();
        let mut order: Vec<u32> = (0..units.costs.len() as u32).collect();
        order.sort_by_key(|&unit| Reverse(units.costs[unit as usize]));
        let count = (ctas as usize).min(order.len()).max(1);
        let mut of: Vec<Vec<u32>> = vec![Vec::new(); count];
        let mut idle: BinaryHeap<_> = (0..count).map(|c| Reverse((0u64, c))).collect();
        for unit in order {
            if let Some(Reverse((load, c))) = idle.pop() {
                of[c].push(unit);
                let load = load + units.costs[unit as usize];
                self.nanoseconds = self.nanoseconds.max(load);
                idle.push(Reverse((load, c)));
            }
        }
        for own in of {
            for unit in own {
                self.items.extend_from_slice(units.items(unit as usize));
            }
            self.end_cta();
        }
        self.share(rows);
    }
}

impl Draft {
    /// DeFT-Flatten: even chunks of the flattened tree. Rows beyond an item's height are further items of the same CTA.
    pub fn flatten(&mut self, flat: &Flat, machine: &Machine) {
        self.all_tiles(flat);
        let chunk = (machine.even_chunk(flat) as usize / TILE).max(1);
        let tiles = self.tiles.len();
        let chunks: Vec<Range<usize>> = (0..tiles).step_by(chunk).map(|t| t..(t + chunk).min(tiles)).collect();
        self.deal(machine, &chunks, machine.ctas(), flat.rows());
    }

    /// DeFT-Node, and with `chunk` tokens DeFT-Node-Chunk.
    pub fn nodes(&mut self, flat: &Flat, machine: &Machine, chunk: Option<u32>) {
        let tiles = &mut self.tiles;
        tiles.clear();
        let mut units = Vec::new();
        for node in flat.runs.chunk_by(|a, b| a.node == b.node) {
            let first = tiles.len();
            tiles.push(flat, node.iter().map(Run::range));
            let step = chunk.map_or(tiles.len() - first, |c| (c as usize / TILE).max(1)).max(1);
            units.extend((first..tiles.len()).step_by(step).map(|t| t..(t + step).min(tiles.len())));
        }
        tiles.end();
        self.deal(machine, &units, machine.ctas(), flat.rows());
    }

    /// Blocks of rows, each whole in one CTA: no partials.
    pub fn whole(&mut self, flat: &Flat, machine: &Machine, borders: &[u32]) {
        self.block(flat, machine, borders);
        let (mut units, mut first) = (Units::default(), 0);
        for (rows, &end) in self.blocks.rows.iter().zip(&self.blocks.ends) {
            units.items.push(item(machine.group, rows.clone(), first, end - first));
            units.end(machine.item(0) + self.blocks.costs[first..end].iter().sum::<u64>());
            first = end;
        }
        self.cuts.deal(&units, machine.ctas(), flat.rows());
    }

    /// SpecInfer: every query against all tiles of the tree, masked.
    pub fn masked(&mut self, flat: &Flat, machine: &Machine) {
        self.all_tiles(flat);
        let Self { tiles, cuts, .. } = self;
        let (mut costs, mut ends, prices) = (Vec::new(), Vec::new(), machine.tile_prices());
        for row in 0..flat.rows() {
            costs.extend(tiles.briefs.iter().map(|tile| prices.of(tile, 0..1, row > 0)));
            ends.push(costs.len());
        }
        let mut even = EvenCuts::default();
        cuts.clear();
        cuts.nanoseconds = even.cut(&costs, &ends, machine.ctas() as usize, machine.item(1));
        let n = tiles.len().max(1);
        for run in even.runs() {
            let mut at = run.start;
            while at < run.end {
                let row = at / n;
                let end = run.end.min((row + 1) * n);
                cuts.items.push(item(machine.group, row as u32..row as u32 + 1, at - row * n, end - at));
                at = end;
            }
            cuts.end_cta();
        }
        cuts.share(flat.rows());
    }

    /// One CTA does all.
    pub fn single(&mut self, flat: &Flat, machine: &Machine) {
        self.all_tiles(flat);
        let all = 0..self.tiles.len();
        self.deal(machine, std::slice::from_ref(&all), 1, flat.rows());
    }

    /// The tiles of all runs.
    fn all_tiles(&mut self, flat: &Flat) {
        self.tiles.clear();
        self.tiles.push(flat, std::iter::once(0..flat.stretches.len()));
        self.tiles.end();
    }

    /// Deals units (runs of tiles, all rows that see them) to the CTAs.
    fn deal(&mut self, machine: &Machine, units: &[Range<usize>], ctas: u32, rows: u32) {
        let height = (ITEM_ROWS / machine.group).max(1);
        let briefs = &self.tiles.briefs;
        let mut priced = Units::default();
        for unit in units {
            let all = seen(&briefs[unit.clone()], &(0..rows));
            let blocks = (all.end - all.start).div_ceil(height).max(1);
            let step = (all.end - all.start).div_ceil(blocks).max(1);
            let (mut cost, mut row) = (0, all.start);
            while row < all.end {
                let part = row..(row + step).min(all.end);
                cost += priced.push(machine, briefs, unit.clone(), &part);
                row = part.end;
            }
            priced.end(cost);
        }
        self.cuts.deal(&priced, ctas, rows);
    }
}
