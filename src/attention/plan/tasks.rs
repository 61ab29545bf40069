//! Which units go together as one task of a thread, by estimated cost; and for `auto`, which units are split by rows.
//!
//! The cost of a unit, in multiples of one (query row, K/V token) pair: every token of a piece is converted once, which
//! takes about as long as [`CONVERT`] rows do with it, every row that sees it costs one, and a piece is begun once a
//! window.
//!
//! Where rows share units, most K/V heads are a thread's own, whole, and hand nothing over; the rest are cut into tasks that
//! become smaller and smaller, so that the threads end together. Three heads, two threads:
//!
//! ```text
//! thread 0   [ head 0                          ][ head 2, blocks 0..4 ][ 7..9 ][10 ]
//! thread 1   [ head 1                            ][ head 2, blocks 4..7 ][ 9 ][ 11 ]
//! ```

use super::{Parallel, Planner};
use crate::attention::Method;
use crate::device::attend::{AttendWork, Unit, WINDOW};
use std::cmp::Reverse;
use std::ops::Range;

/// Reading, converting and transposing a K/V token against one query row's use of it; measured with
/// `totara bench attention` at head size 64 and 128.
const CONVERT: u64 = 4;

/// What it takes to begin with a piece in a window, its rows in a place of their own.
const BEGIN: u64 = 100;

/// Tasks wanted for each thread, so that the last one does not leave the others waiting long.
const TASKS_PER_THREAD: u64 = 6;

/// The least that a task of a cut head costs, as a part of what a thread does in all.
const LEAST: u64 = 24;

impl Planner {
    pub(super) fn make_tasks(&mut self) {
        let Self { method, parallel, work, nodes, split, blocks, .. } = self;
        work.whole_heads = 0;
        match method {
            Method::Node => {
                work.tasks.clear();
                let ends = nodes.iter().skip(1).map(|n| n.first_unit).chain([work.units.len() as u32]);
                let units = nodes.iter().zip(ends).map(|(n, end)| n.first_unit..end);
                work.tasks.extend(units.filter(|units| !units.is_empty()));
            }
            Method::Auto => {
                let costs = costs(work, *parallel);
                share_out(work, *parallel, &costs);
                *split = false;
                if few_units(work, *parallel) && unevenness(work, *parallel, &costs) > EVEN {
                    let whole = work.units.len();
                    split_wide_units(work, *parallel, &costs);
                    *split = work.units.len() > whole;
                    share_out(work, *parallel, &self::costs(work, *parallel));
                }
            }
            Method::Flatten => share_out(work, *parallel, &costs(work, *parallel)),
            Method::NodeChunk => {
                work.tasks.clear();
                work.tasks.extend((0..work.units.len() as u32).map(|u| u..u + 1));
            }
            _ => even_tasks(work, *parallel),
        }
        let cut = (parallel.kv_heads as u64).saturating_sub(u64::from(work.whole_heads));
        work.io.partial_rows = if cut == 0 { 0 } else { cut * work.handed_over(blocks) };
    }
}

/// What a unit has to do for its rows.
#[derive(Default)]
struct Size {
    tokens: u64,
    /// (row, token) pairs.
    pairs: u64,
    /// Pieces, each once a window.
    begun: u64,
}

fn size(work: &AttendWork, unit: &Unit) -> Size {
    let mut size = Size::default();
    for piece in &work.pieces[unit.pieces.start as usize..unit.pieces.end as usize] {
        let rows = shared(&piece.rows, &unit.rows);
        if rows > 0 {
            size.tokens += u64::from(piece.len);
            size.pairs += rows * u64::from(piece.len);
            size.begun += u64::from((piece.start % WINDOW as u32 + piece.len).div_ceil(WINDOW as u32));
        }
    }
    size
}

fn shared(a: &Range<u32>, b: &Range<u32>) -> u64 {
    u64::from(a.end.min(b.end).saturating_sub(a.start.max(b.start)))
}

fn cost(size: &Size, group: u64) -> u64 {
    size.tokens * CONVERT + size.pairs * group + size.begun * BEGIN
}

fn costs(work: &AttendWork, parallel: Parallel) -> Vec<u64> {
    work.units.iter().map(|u| cost(&size(work, u), parallel.group as u64)).collect()
}

/// The cost a task should have: the whole over the wanted number of tasks a K/V head. Where the heads alone keep the
/// threads busy there is one, and nothing is handed over.
fn wanted_cost(total: u64, parallel: Parallel) -> u64 {
    let tasks = (parallel.threads as u64 * TASKS_PER_THREAD / parallel.kv_heads.max(1) as u64).max(1);
    total.div_ceil(tasks).max(1)
}

/// Percent of an even share that the busiest thread may have before units are split.
const EVEN: u64 = 110;

/// Joins neighbouring units until a task reaches the wanted cost.
fn even_tasks(work: &mut AttendWork, parallel: Parallel) {
    work.tasks.clear();
    let costs = costs(work, parallel);
    let wanted = wanted_cost(costs.iter().sum(), parallel);
    let (mut first, mut open) = (0, 0);
    for (i, cost) in costs.iter().enumerate() {
        if open > 0 && open + cost > wanted {
            work.tasks.push(first..i as u32);
            (first, open) = (i as u32, 0);
        }
        open += cost;
    }
    if first < work.units.len() as u32 {
        work.tasks.push(first..work.units.len() as u32);
    }
}

/// K/V heads that threads take whole: as many for each. What is left, less than the threads could take, is cut, and so is a
/// head a thread where they are few: threads are never quite as fast as each other.
fn whole_heads(Parallel { threads, kv_heads, .. }: Parallel) -> usize {
    let threads = threads.max(1);
    let even = kv_heads.is_multiple_of(threads) && kv_heads >= 4 * threads;
    if threads == 1 || even { kv_heads } else { kv_heads.saturating_sub(1) / threads * threads }
}

/// Heads that are a thread's own, and tasks for the others, the most work first.
fn share_out(work: &mut AttendWork, parallel: Parallel, costs: &[u64]) {
    let whole = whole_heads(parallel);
    let (threads, heads, cut) =
        (parallel.threads.max(1) as u64, parallel.kv_heads as u64, (parallel.kv_heads - whole) as u64);
    work.whole_heads = whole as u32;
    work.tasks.clear();
    let end = work.units.len() as u32;
    if cut == 0 {
        work.tasks.extend((end > 0).then_some(0..end));
        return;
    }
    let mut left: u64 = costs.iter().sum();
    let least = left * heads / (threads * LEAST);
    let (mut first, mut open) = (0, 0);
    for (i, cost) in costs.iter().enumerate() {
        // Half of what each thread has left: the next ones make up for whatever this one takes longer.
        let wanted = (left * cut / (2 * threads)).max(least);
        if open > 0 && open + cost > wanted {
            // A task that ends where large nodes of the rows' merging do hands over few (`chain`).
            let (mut cut, mut rest) = (i, 0);
            for (j, cost) in costs.iter().enumerate().take(i).skip(first + 1).rev() {
                rest += cost;
                if 2 * (open - rest) < wanted {
                    break;
                }
                if work.units[j].block.trailing_zeros() > work.units[cut].block.trailing_zeros() {
                    cut = j;
                }
            }
            work.tasks.push(first as u32..cut as u32);
            left -= costs[first..cut].iter().sum::<u64>();
            (first, open) = (cut, costs[cut..i].iter().sum());
        }
        open += cost;
    }
    let first = first as u32;
    work.tasks.extend((first < end).then_some(first..end));
    work.tasks.sort_by_cached_key(|t| Reverse(costs[t.start as usize..t.end as usize].iter().sum::<u64>()));
}

/// What the busiest thread has to do in percent of an even share, where tasks go in order to whoever is free.
fn unevenness(work: &AttendWork, parallel: Parallel, costs: &[u64]) -> u64 {
    let mut threads = vec![0u64; parallel.threads.max(1)];
    let mut give = |cost: u64| {
        if let Some(free) = threads.iter_mut().min() {
            *free += cost;
        }
    };
    for _ in 0..work.whole_heads {
        give(costs.iter().sum());
    }
    for task in &work.tasks {
        let cost = costs[task.start as usize..task.end as usize].iter().sum();
        for _ in work.whole_heads as usize..parallel.kv_heads {
            give(cost);
        }
    }
    let (most, all) = (threads.iter().max().copied().unwrap_or(0), threads.iter().sum::<u64>().max(1));
    100 * most * threads.len() as u64 / all
}

/// Whether units are so few that threads may be uneven with them whole.
fn few_units(work: &AttendWork, parallel: Parallel) -> bool {
    (work.units.len() * parallel.kv_heads) < parallel.threads * TASKS_PER_THREAD as usize
}

/// Splits by rows the units that alone cost more than a task should, where every part still does more work with its
/// K/V than it takes to bring it: a part reads the K/V of its rows again, and the counts say so.
fn split_wide_units(work: &mut AttendWork, parallel: Parallel, costs: &[u64]) {
    let group = parallel.group as u64;
    let wanted = wanted_cost(costs.iter().sum(), parallel);
    let mut units = Vec::with_capacity(work.units.len());
    for (unit, cost) in work.units.iter().zip(costs) {
        let whole = size(work, unit);
        let rows = u64::from(unit.rows.end - unit.rows.start);
        let parts = cost.div_ceil(wanted).min(rows * group / (2 * CONVERT)).clamp(1, rows.max(1)) as u32;
        let mut read = 0;
        for part in 0..parts {
            let at = |i: u32| unit.rows.start + (rows * u64::from(i) / u64::from(parts)) as u32;
            let piece = Unit { rows: at(part)..at(part + 1), ..unit.clone() };
            read += size(work, &piece).tokens;
            units.push(piece);
        }
        work.io.kv_tokens += read - whole.tokens;
    }
    work.units = units;
}
