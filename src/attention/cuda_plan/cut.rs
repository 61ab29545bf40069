//! Items: the (rows × tiles) area of each method, cut and dealt to the CTAs, and the partials that must be merged.

use super::flat::{Flat, Sweep, Tiles};
use crate::device::cuda::work::{CudaPlan, ITEM_ROWS, Item, Machine, Moves, TILE, Tile};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Tiles with few rows get an item of their own (warps then share a tile's keys) when there are at least so many.
const SPLIT_TILES: usize = 2;

/// A plan before partials are numbered.
#[derive(Default)]
pub struct Draft {
    tiles: Tiles,
    cuts: Cuts,
}

/// What of a draft depends on how its tiles are cut.
#[derive(Default)]
pub struct Cuts {
    items: Vec<Item>,
    /// After each CTA's items, how many there are.
    ctas: Vec<u32>,
    /// How many items see each row.
    shares: Vec<u32>,
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

/// Blocks of rows, each against the tokens its rows see, before they are cut.
pub struct Blocks {
    tiles: Tiles,
    /// Of each tile: its block, and what it costs.
    of: Vec<u32>,
    costs: Vec<u64>,
    rows: Vec<Range<u32>>,
}

impl Blocks {
    /// Less than any cut of these blocks takes: what is quicker anyhow need not be looked at.
    pub fn bound(flat: &Flat, machine: &Machine, borders: &[u32]) -> u64 {
        let mut sweep = Sweep::default();
        let tokens = |w: &[u32]| sweep.block(flat, &(w[0]..w[1])).map(|run| u64::from(run.len)).sum::<u64>();
        borders.windows(2).map(tokens).sum::<u64>() / TILE as u64 * machine.least_tile() / u64::from(machine.ctas())
    }

    pub fn new(flat: &Flat, machine: &Machine, borders: &[u32]) -> Self {
        let (mut tiles, mut of, mut costs) = (Tiles::default(), Vec::new(), Vec::new());
        let rows: Vec<Range<u32>> = borders.windows(2).map(|w| w[0]..w[1]).collect();
        tiles.reserve(flat, rows.len());
        let mut sweep = Sweep::default();
        for (b, rows) in rows.iter().enumerate() {
            let first = tiles.len();
            flat.tiles(sweep.block(flat, rows), &mut tiles);
            let price = |t: &Tile| machine.tile(t, rows.clone(), u32::from(t.some[0]) < rows.start);
            costs.extend(tiles.tiles[first..].iter().map(price));
            of.resize(tiles.len(), b as u32);
        }
        Self { tiles, of, costs, rows }
    }

    /// The sequence of all blocks' tiles cut into at most `ctas` runs such that the dearest costs least.
    pub fn even(&self, machine: &Machine, ctas: u32) -> Cuts {
        let (cuts, dearest) = even_cuts(&self.costs, &self.of, ctas as usize, machine.item());
        let mut draft = Cuts { nanoseconds: dearest, ..Cuts::default() };
        for cut in cuts {
            let mut at = cut.start;
            while at < cut.end {
                let block = self.of[at];
                let end = at + self.of[at..cut.end].partition_point(|&b| b == block);
                draft.split(machine, &self.tiles.tiles, &self.rows[block as usize], at..end);
                at = end;
            }
            draft.end_cta();
        }
        draft.share(self.rows.last().map_or(0, |r| r.end));
        let (partials, longest) = draft.partials();
        draft.nanoseconds += machine.merge(partials, longest);
        draft
    }

    pub fn draft(self, cuts: Cuts) -> Draft {
        Draft { tiles: self.tiles, cuts }
    }
}

impl Cuts {
    /// One CTA's tiles of one block as one item, or where it pays neighbouring tiles with few rows as items of their own, in
    /// which the warps share the rows and split the keys.
    fn split(&mut self, machine: &Machine, tiles: &[Tile], block: &Range<u32>, run: Range<usize>) {
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

    fn end_cta(&mut self) {
        self.ctas.push(self.items.len() as u32);
    }

    fn share(&mut self, rows: u32) {
        let mut change = vec![0i32; rows as usize + 1];
        for item in &self.items {
            change[item.row as usize] += 1;
            change[(item.row + item.rows) as usize] -= 1;
        }
        let mut sum = 0;
        self.shares.extend(change[..rows as usize].iter().map(|c| {
            sum += c;
            sum as u32
        }));
    }

    /// Whether rows of the item have other items too.
    fn is_partial(&self, item: &Item) -> bool {
        self.shares[item.row as usize..(item.row + item.rows) as usize].iter().any(|&n| n > 1)
    }

    /// Partial rows, and the most that one row has.
    fn partials(&self) -> (u64, u64) {
        let partials = self.items.iter().filter(|i| self.is_partial(i)).map(|i| u64::from(i.rows)).sum();
        (partials, self.shares.iter().max().map_or(0, |&n| u64::from(n)))
    }

    /// The dearest units first, each to the idlest of at most `ctas`.
    fn deal(units: &Units, ctas: u32, rows: u32) -> Self {
        let mut order: Vec<u32> = (0..units.costs.len() as u32).collect();
        order.sort_by_key(|&unit| Reverse(units.costs[unit as usize]));
        let count = (ctas as usize).min(order.len()).max(1);
        let mut of: Vec<Vec<u32>> = vec![Vec::new(); count];
        let mut idle: BinaryHeap<_> = (0..count).map(|c| Reverse((0u64, c))).collect();
        let mut cuts = Self { items: Vec::with_capacity(units.items.len()), ..Self::default() };
        for unit in order {
            if let Some(Reverse((load, c))) = idle.pop() {
                of[c].push(unit);
                let load = load + units.costs[unit as usize];
                cuts.nanoseconds = cuts.nanoseconds.max(load);
                idle.push(Reverse((load, c)));
            }
        }
        for own in of {
            for unit in own {
                cuts.items.extend_from_slice(units.items(unit as usize));
            }
            cuts.end_cta();
        }
        cuts.share(rows);
        cuts
    }
}

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
    fn push(&mut self, machine: &Machine, tiles: &[Tile], unit: Range<usize>, part: &Range<u32>) -> u64 {
        let (mut cost, mut run, mut end) = (0, unit.start, unit.start);
        let mut rows = part.start..part.start;
        for t in unit.start..unit.end + 1 {
            let here = tiles.get(t).filter(|_| t < unit.end).map_or(0..0, |_| seen(&tiles[t..t + 1], part));
            if here.is_empty() && t < unit.end {
                continue;
            }
            if !rows.is_empty() && (t == unit.end || t - end > SPLIT_TILES) {
                let read = |t: &Tile| machine.tile(t, part.clone(), u32::from(t.some[0]) < part.start);
                cost += machine.item() + tiles[run..end].iter().map(read).sum::<u64>();
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

impl Draft {
    /// DeFT-Flatten: even chunks of the flattened tree. Rows beyond an item's height are further items of the same CTA.
    pub fn flatten(flat: &Flat, machine: &Machine) -> Self {
        let tiles = flat.all_tiles();
        let chunk = (machine.even_chunk(flat) as usize / TILE).max(1);
        let chunks: Vec<Range<usize>> =
            (0..tiles.len()).step_by(chunk).map(|t| t..(t + chunk).min(tiles.len())).collect();
        Self::dealt(machine, tiles, &chunks, machine.ctas(), flat.rows())
    }

    /// DeFT-Node, and with `chunk` tokens DeFT-Node-Chunk.
    pub fn nodes(flat: &Flat, machine: &Machine, chunk: Option<u32>) -> Self {
        let mut tiles = Tiles::default();
        let mut units = Vec::new();
        for node in flat.runs.chunk_by(|a, b| a.node == b.node) {
            let first = tiles.len();
            flat.tiles(node.iter(), &mut tiles);
            let step = chunk.map_or(tiles.len() - first, |c| (c as usize / TILE).max(1)).max(1);
            units.extend((first..tiles.len()).step_by(step).map(|t| t..(t + step).min(tiles.len())));
        }
        Self::dealt(machine, tiles, &units, machine.ctas(), flat.rows())
    }

    /// Blocks of rows, each whole in one CTA: no partials.
    pub fn whole(flat: &Flat, machine: &Machine, borders: &[u32]) -> Self {
        let Blocks { tiles, of, costs, rows } = Blocks::new(flat, machine, borders);
        let (mut units, mut at) = (Units::default(), 0);
        for (b, rows) in rows.into_iter().enumerate() {
            let first = std::mem::replace(&mut at, of.partition_point(|&o| o as usize <= b));
            units.items.push(item(machine.group, rows, first, at - first));
            units.end(machine.item() + costs[first..at].iter().sum::<u64>());
        }
        Self { tiles, cuts: Cuts::deal(&units, machine.ctas(), flat.rows()) }
    }

    /// SpecInfer: every query against all tiles of the tree, masked.
    pub fn masked(flat: &Flat, machine: &Machine) -> Self {
        let tiles = flat.all_tiles();
        let mut costs = Vec::new();
        let mut block_of = Vec::new();
        for row in 0..flat.rows() {
            costs.extend(tiles.tiles.iter().map(|tile| machine.tile(tile, 0..1, row > 0)));
            block_of.resize(costs.len(), row);
        }
        let (runs, nanoseconds) = even_cuts(&costs, &block_of, machine.ctas() as usize, machine.item());
        let mut cuts = Cuts { nanoseconds, ..Cuts::default() };
        let n = tiles.len().max(1);
        for run in runs {
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
        Self { tiles, cuts }
    }

    /// One CTA does all.
    pub fn single(flat: &Flat, machine: &Machine) -> Self {
        let tiles = flat.all_tiles();
        let all = 0..tiles.len();
        Self::dealt(machine, tiles, std::slice::from_ref(&all), 1, flat.rows())
    }

    /// Deals units (runs of tiles, all rows that see them) to the CTAs.
    fn dealt(machine: &Machine, tiles: Tiles, units: &[Range<usize>], ctas: u32, rows: u32) -> Self {
        let height = (ITEM_ROWS / machine.group).max(1);
        let mut priced = Units::default();
        for unit in units {
            let all = seen(&tiles.tiles[unit.clone()], &(0..rows));
            let blocks = (all.end - all.start).div_ceil(height).max(1);
            let step = (all.end - all.start).div_ceil(blocks).max(1);
            let (mut cost, mut row) = (0, all.start);
            while row < all.end {
                let part = row..(row + step).min(all.end);
                cost += priced.push(machine, &tiles.tiles, unit.clone(), &part);
                row = part.end;
            }
            priced.end(cost);
        }
        let cuts = Cuts::deal(&priced, ctas, rows);
        Self { tiles, cuts }
    }

    pub fn nanoseconds(&self) -> u64 {
        self.cuts.nanoseconds
    }

    /// Numbers the partials and lists each row's.
    pub fn finish(self, flat: Flat) -> CudaPlan {
        let rows = flat.rows();
        let Self { tiles: Tiles { tiles, tokens }, mut cuts } = self;
        let mut partials = 0;
        let mut lists = vec![0u32; rows as usize];
        // Path order within a row: items by their first tile.
        let mut cut: Vec<(u32, u32, u32, u32)> = Vec::new();
        for i in 0..cuts.items.len() {
            let item = cuts.items[i];
            if cuts.is_partial(&item) {
                cuts.items[i].partial = partials;
                cut.push((item.tile, item.row, item.rows, partials));
                partials += item.rows;
                lists[item.row as usize..(item.row + item.rows) as usize].iter_mut().for_each(|n| *n += 1);
            }
        }
        cut.sort_unstable();
        let mut plan = CudaPlan { tiles, items: cuts.items, ..CudaPlan::default() };
        // From here on a row's list stands for the place of its next partial.
        let mut next = 0;
        for (r, list) in lists.iter_mut().enumerate() {
            if *list > 0 {
                plan.merge_row.push(r as u32);
                plan.merge_first.push(next);
                next += std::mem::replace(list, next);
            }
        }
        plan.merge_first.push(next);
        plan.merge.resize(next as usize, 0);
        for (_, row, count, first) in cut {
            for (i, at) in lists[row as usize..(row + count) as usize].iter_mut().enumerate() {
                plan.merge[*at as usize] = first + i as u32;
                *at += 1;
            }
        }
        plan.cta_items.push(0);
        plan.cta_items.extend(cuts.ctas);
        let read =
            |i: &Item| tokens[i.tile as usize..(i.tile + i.tiles) as usize].iter().map(|&t| u64::from(t)).sum::<u64>();
        plan.moves = Moves {
            tokens: plan.items.iter().map(read).sum(),
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
/// costs an item. Binary search on the capacity, and for each on the end of each run: `O(n + parts log(dearest) log(n))`.
fn even_cuts(costs: &[u64], block_of: &[u32], parts: usize, item: u64) -> (Vec<Range<usize>>, u64) {
    // What the tiles up to each cost, and the blocks entered on the way. A run from `start` to `t` takes an item and
    // `costs[start] + sums[t] - sums[start]`.
    let mut sums = Vec::with_capacity(costs.len());
    let mut sum = 0;
    for t in 0..costs.len() {
        sum += costs[t] + if t > 0 && block_of[t] != block_of[t - 1] { item } else { 0 };
        sums.push(sum);
    }
    // The runs that a capacity gives; false where they are too many.
    let fill = |capacity: u64, cuts: &mut Vec<Range<usize>>| {
        cuts.clear();
        let mut start = 0;
        while start < costs.len() {
            if cuts.len() == parts {
                return false;
            }
            let most = (capacity + sums[start]).saturating_sub(item + costs[start]);
            let end = start + 1 + sums[start + 1..].partition_point(|&sum| sum <= most);
            cuts.push(start..end);
            start = end;
        }
        true
    };
    let mut cuts = Vec::with_capacity(parts);
    let (sum, dearest) = (costs.iter().sum::<u64>(), costs.iter().copied().max().unwrap_or(0));
    let entries = block_of.chunk_by(|a, b| a == b).count() as u64;
    let mut low = (dearest + item).max(sum / parts as u64);
    // A run ends where the next tile does not fit, so all but the last take more than the capacity less a tile and an item.
    let high = (sum + item * (entries + parts as u64)) / parts as u64 + dearest + 2 * item;
    let mut high = high.max(low);
    while low < high {
        let middle = low + (high - low) / 2;
        if fill(middle, &mut cuts) { high = middle } else { low = middle + 1 }
    }
    fill(low, &mut cuts);
    (cuts, low)
}
