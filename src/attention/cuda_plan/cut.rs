//! Items: the (rows × tiles) area of each method, cut and dealt to the CTAs, and the partials that must be merged.

use super::flat::Flat;
use crate::device::cuda::work::{CudaPlan, ITEM_ROWS, Item, Machine, Moves, TILE, Tile};
use std::ops::Range;

/// Tiles with few rows get an item of their own (warps then share a tile's keys) when there are at least so many.
const SPLIT_TILES: usize = 2;

/// A plan before partials are numbered.
#[derive(Default)]
pub struct Draft {
    tiles: Vec<Tile>,
    /// Items of each CTA.
    ctas: Vec<Vec<Item>>,
    group: u32,
    /// Estimated time.
    pub nanoseconds: u64,
}

fn item(group: u32, rows: Range<u32>, tile: usize, tiles: usize) -> Item {
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
fn seen(tiles: &[Tile], within: &Range<u32>) -> Range<u32> {
    let start = tiles.iter().map(|t| u32::from(t.some[0])).min().unwrap_or(0).max(within.start);
    let end = tiles.iter().map(|t| u32::from(t.some[1])).max().unwrap_or(0).min(within.end);
    start..end.max(start)
}

/// The runs of the unit's tiles that `rows` see; short gaps are read along, masked.
fn seen_runs(tiles: &[Tile], unit: Range<usize>, rows: &Range<u32>) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for t in unit {
        if !seen(&tiles[t..t + 1], rows).is_empty() {
            match runs.last_mut() {
                Some(run) if t - run.end <= SPLIT_TILES => run.end = t + 1,
                _ => runs.push(t..t + 1),
            }
        }
    }
    runs
}

impl Draft {
    /// Blocks of rows (`borders`), each against the tokens its rows see; the sequence of all blocks' tiles is cut into
    /// at most `ctas` runs such that the dearest costs least.
    pub fn blocks(flat: &Flat<'_>, machine: &Machine, borders: &[u32], ctas: u32) -> Self {
        let mut tiles = Vec::new();
        let mut block_of = Vec::new();
        let mut costs = Vec::new();
        let blocks: Vec<Range<u32>> = borders.windows(2).map(|w| w[0]..w[1]).collect();
        for (b, rows) in blocks.iter().enumerate() {
            let first = tiles.len();
            flat.tiles(&flat.runs, rows.clone(), &mut tiles);
            for tile in &tiles[first..] {
                costs.push(machine.tile(tile, rows.clone(), u32::from(tile.some[0]) < rows.start));
                block_of.push(b);
            }
        }
        let (cuts, dearest) = even_cuts(&costs, &block_of, ctas as usize, machine.item());
        let mut draft = Self { ctas: Vec::with_capacity(cuts.len()), group: machine.group, ..Self::default() };
        for cut in cuts {
            let mut items = Vec::new();
            let mut at = cut.start;
            while at < cut.end {
                let block = block_of[at];
                let end = (at..cut.end).find(|&t| block_of[t] != block).unwrap_or(cut.end);
                draft.split(machine, &tiles, &blocks[block], at..end, &mut items);
                at = end;
            }
            draft.ctas.push(items);
        }
        draft.tiles = tiles;
        let (partials, longest) = draft.partials(flat.rows());
        draft.nanoseconds = dearest + machine.merge(partials, longest);
        draft
    }

    /// One CTA's tiles of one block: neighbouring tiles with few rows make items of their own, in which the warps share the
    /// rows and split the keys.
    fn split(&self, machine: &Machine, tiles: &[Tile], block: &Range<u32>, run: Range<usize>, items: &mut Vec<Item>) {
        let narrow = |rows: &Range<u32>| (rows.end - rows.start) * self.group <= machine.narrow();
        let mut parts: Vec<(Range<usize>, bool)> = Vec::new();
        for t in run {
            let slim = narrow(&seen(&tiles[t..t + 1], block));
            match parts.last_mut() {
                Some((part, true)) if slim && narrow(&seen(&tiles[part.start..t + 1], block)) => part.end = t + 1,
                Some((part, false)) if !slim => part.end = t + 1,
                _ => parts.push((t..t + 1, slim)),
            }
        }
        // A part too short to be worth an item joins the one before.
        let mut joined: Vec<Range<usize>> = Vec::new();
        for (part, _) in parts {
            match joined.last_mut() {
                Some(last) if part.len() < SPLIT_TILES || last.len() < SPLIT_TILES => last.end = part.end,
                _ => joined.push(part),
            }
        }
        for part in joined {
            let rows = seen(&tiles[part.clone()], block);
            items.push(item(self.group, rows, part.start, part.len()));
        }
    }

    /// DeFT-Flatten: even chunks of the flattened tree. Rows beyond an item's height are further items of the same CTA.
    pub fn flatten(flat: &Flat<'_>, machine: &Machine) -> Self {
        let mut tiles = Vec::new();
        flat.tiles(&flat.runs, 0..flat.rows(), &mut tiles);
        let chunk = (machine.even_chunk(flat) as usize / TILE).max(1);
        let chunks: Vec<Range<usize>> =
            (0..tiles.len()).step_by(chunk).map(|t| t..(t + chunk).min(tiles.len())).collect();
        Self::dealt(machine, tiles, &chunks, flat.rows())
    }

    /// DeFT-Node, and with `chunk` tokens DeFT-Node-Chunk.
    pub fn nodes(flat: &Flat<'_>, machine: &Machine, chunk: Option<u32>) -> Self {
        let mut tiles = Vec::new();
        let mut units = Vec::new();
        let mut at = 0;
        while at < flat.runs.len() {
            let node = flat.runs[at].node;
            let end = (at..flat.runs.len()).find(|&r| flat.runs[r].node != node).unwrap_or(flat.runs.len());
            let first = tiles.len();
            flat.tiles(&flat.runs[at..end], 0..flat.rows(), &mut tiles);
            let step = chunk.map_or(tiles.len() - first, |c| (c as usize / TILE).max(1)).max(1);
            units.extend((first..tiles.len()).step_by(step).map(|t| t..(t + step).min(tiles.len())));
            at = end;
        }
        Self::dealt(machine, tiles, &units, flat.rows())
    }

    /// Blocks of rows, each whole in one CTA: no partials.
    pub fn whole(flat: &Flat<'_>, machine: &Machine, borders: &[u32]) -> Self {
        let mut tiles = Vec::new();
        let mut priced = Vec::new();
        for w in borders.windows(2) {
            let (rows, first) = (w[0]..w[1], tiles.len());
            flat.tiles(&flat.runs, rows.clone(), &mut tiles);
            let cost: u64 =
                tiles[first..].iter().map(|t| machine.tile(t, rows.clone(), u32::from(t.some[0]) < rows.start)).sum();
            priced.push((cost + machine.item(), vec![item(machine.group, rows, first, tiles.len() - first)]));
        }
        Self::deal(machine, tiles, priced)
    }

    /// SpecInfer: every query against all tiles of the tree, masked.
    pub fn masked(flat: &Flat<'_>, machine: &Machine) -> Self {
        let mut tiles = Vec::new();
        flat.tiles(&flat.runs, 0..flat.rows(), &mut tiles);
        let mut costs = Vec::new();
        let mut block_of = Vec::new();
        for row in 0..flat.rows() as usize {
            for tile in &tiles {
                costs.push(machine.tile(tile, 0..1, row > 0));
                block_of.push(row);
            }
        }
        let (cuts, dearest) = even_cuts(&costs, &block_of, machine.ctas() as usize, machine.item());
        let mut ctas = Vec::with_capacity(cuts.len());
        for cut in cuts {
            let mut items = Vec::new();
            let mut at = cut.start;
            while at < cut.end {
                let row = block_of[at];
                let end = cut.end.min((row + 1) * tiles.len());
                items.push(item(machine.group, row as u32..row as u32 + 1, at - row * tiles.len(), end - at));
                at = end;
            }
            ctas.push(items);
        }
        Self { tiles, ctas, group: machine.group, nanoseconds: dearest }
    }

    /// One CTA does all.
    pub fn single(flat: &Flat<'_>, machine: &Machine) -> Self {
        let mut tiles = Vec::new();
        flat.tiles(&flat.runs, 0..flat.rows(), &mut tiles);
        let all = 0..tiles.len();
        let mut draft = Self::dealt(machine, tiles, std::slice::from_ref(&all), flat.rows());
        draft.ctas.truncate(1);
        draft
    }

    /// Deals units (runs of tiles, all rows that see them) to the CTAs.
    fn dealt(machine: &Machine, tiles: Vec<Tile>, units: &[Range<usize>], rows: u32) -> Self {
        let height = (ITEM_ROWS / machine.group).max(1);
        let priced = units
            .iter()
            .map(|unit| {
                let all = seen(&tiles[unit.clone()], &(0..rows));
                let blocks = (all.end - all.start).div_ceil(height).max(1);
                let step = (all.end - all.start).div_ceil(blocks).max(1);
                let mut cost = 0;
                let mut items = Vec::new();
                let mut row = all.start;
                while row < all.end {
                    let part = row..(row + step).min(all.end);
                    for run in seen_runs(&tiles, unit.clone(), &part) {
                        let read = |t: &Tile| machine.tile(t, part.clone(), u32::from(t.some[0]) < part.start);
                        cost += machine.item() + tiles[run.clone()].iter().map(read).sum::<u64>();
                        items.push(item(machine.group, seen(&tiles[run.clone()], &part), run.start, run.len()));
                    }
                    row = part.end;
                }
                (cost, items)
            })
            .collect();
        Self::deal(machine, tiles, priced)
    }

    /// The dearest first, each to the idlest CTA.
    fn deal(machine: &Machine, tiles: Vec<Tile>, mut priced: Vec<(u64, Vec<Item>)>) -> Self {
        priced.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
        let count = (machine.ctas() as usize).min(priced.len()).max(1);
        let mut ctas = vec![Vec::new(); count];
        let mut idle: std::collections::BinaryHeap<_> = (0..count).map(|c| std::cmp::Reverse((0u64, c))).collect();
        let mut dearest = 0;
        for (cost, items) in priced {
            if let Some(std::cmp::Reverse((load, c))) = idle.pop() {
                ctas[c].extend(items);
                dearest = dearest.max(load + cost);
                idle.push(std::cmp::Reverse((load + cost, c)));
            }
        }
        Self { tiles, ctas, group: machine.group, nanoseconds: dearest }
    }

    /// How many items see each row.
    fn shares(&self, rows: u32) -> Vec<u32> {
        let mut count = vec![0i32; rows as usize + 1];
        for item in self.ctas.iter().flatten() {
            count[item.row as usize] += 1;
            count[(item.row + item.rows) as usize] -= 1;
        }
        let mut sum = 0;
        count
            .iter()
            .map(|c| {
                sum += c;
                sum as u32
            })
            .collect()
    }

    /// Partial rows, and the most that one row has.
    fn partials(&self, rows: u32) -> (u64, u64) {
        let shares = self.shares(rows);
        let cut = |i: &&Item| (i.row..i.row + i.rows).any(|r| shares[r as usize] > 1);
        let partials = self.ctas.iter().flatten().filter(cut).map(|i| u64::from(i.rows)).sum();
        (partials, shares.iter().max().map_or(0, |&n| u64::from(n)))
    }

    /// Numbers the partials and lists each row's.
    pub fn finish(mut self, flat: Flat<'_>) -> CudaPlan {
        let rows = flat.rows();
        let shares = self.shares(rows);
        let mut partials = 0;
        let mut lists = vec![0u32; rows as usize + 1];
        // Path order within a row: items by their first tile.
        let mut cut: Vec<(u32, u32, u32, u32)> = Vec::new();
        for item in self.ctas.iter_mut().flatten() {
            if (item.row..item.row + item.rows).any(|r| shares[r as usize] > 1) {
                item.partial = partials;
                cut.push((item.tile, item.row, item.rows, partials));
                partials += item.rows;
                for r in item.row..item.row + item.rows {
                    lists[r as usize] += 1;
                }
            }
        }
        cut.sort_unstable();
        let mut plan = CudaPlan { tiles: std::mem::take(&mut self.tiles), ..CudaPlan::default() };
        let mut place = vec![0u32; rows as usize];
        for r in 0..rows {
            if lists[r as usize] > 0 {
                plan.merge_row.push(r);
                plan.merge_first.push(plan.merge.len() as u32);
                place[r as usize] = plan.merge.len() as u32;
                plan.merge.resize(plan.merge.len() + lists[r as usize] as usize, 0);
            }
        }
        plan.merge_first.push(plan.merge.len() as u32);
        for (_, row, count, first) in cut {
            for i in 0..count {
                let at = &mut place[(row + i) as usize];
                plan.merge[*at as usize] = first + i;
                *at += 1;
            }
        }
        let valid = |t: &Tile| t.rows.iter().filter(|&&r| r != 0).count() as u64;
        let filled: Vec<u64> = plan.tiles.iter().map(valid).collect();
        plan.cta_items.push(0);
        for items in &self.ctas {
            plan.items.extend_from_slice(items);
            plan.cta_items.push(plan.items.len() as u32);
        }
        plan.moves = Moves {
            tokens: plan
                .items
                .iter()
                .map(|i| filled[i.tile as usize..(i.tile + i.tiles) as usize].iter().sum::<u64>())
                .sum(),
            unique: flat.tokens(),
            paths: flat.path_tokens(),
            partials: u64::from(partials),
            query_rows: plan.items.iter().map(|i| u64::from(i.rows)).sum(),
        };
        plan.batch_row = flat.order;
        plan
    }
}

/// Cuts a sequence of costs into at most `parts` runs so that the dearest run is as cheap as can be; entering a new block
/// costs an item. Binary search on the capacity, `O(n log(sum))`.
fn even_cuts(costs: &[u64], block_of: &[usize], parts: usize, item: u64) -> (Vec<Range<usize>>, u64) {
    let fill = |capacity: u64, keep: bool| {
        let (mut cuts, mut count, mut load, mut start) = (Vec::new(), 0, 0, 0);
        for t in 0..costs.len() {
            let enter = if t == start || block_of[t] != block_of[t - 1] { item } else { 0 };
            if t > start && load + enter + costs[t] > capacity {
                if keep {
                    cuts.push(start..t);
                }
                count += 1;
                start = t;
                load = item + costs[t];
            } else {
                load += enter + costs[t];
            }
        }
        if keep && start < costs.len() {
            cuts.push(start..costs.len());
        }
        (cuts, count + 1)
    };
    let total: u64 = costs.iter().sum::<u64>() + item * (costs.len() as u64 + 1);
    let mut low = (costs.iter().copied().max().unwrap_or(0) + item).max(costs.iter().sum::<u64>() / parts as u64);
    let mut high = total;
    while low < high {
        let middle = low + (high - low) / 2;
        if fill(middle, false).1 <= parts { high = middle } else { low = middle + 1 }
    }
    (fill(low, true).0, low)
}
