//! Which units go together as one task of a thread, by estimated cost; and for `auto`, which units are split by rows.
//!
//! The cost of a unit, in multiples of one (query row, K/V token) pair: every token of a piece is converted once, which
//! takes about as long as [`CONVERT`] rows do with it, and every row that sees it costs one.

use super::{Parallel, Planner};
use crate::attention::Method;
use crate::device::attend::{AttendWork, Unit};
use std::ops::Range;

/// Reading, converting and transposing a K/V token against one query row's use of it; measured with
/// `totara bench attention` at head size 64 and 128.
const CONVERT: u64 = 4;

/// Tasks wanted for each thread, so that the last one does not leave the others waiting long.
const TASKS_PER_THREAD: u64 = 6;

impl Planner {
    pub(super) fn make_tasks(&mut self) {
        let Self { method, parallel, work, nodes, split, blocks, .. } = self;
        match method {
            Method::Node => {
                work.tasks.clear();
                let ends = nodes.iter().skip(1).map(|n| n.first_unit).chain([work.units.len() as u32]);
                let units = nodes.iter().zip(ends).map(|(n, end)| n.first_unit..end);
                work.tasks.extend(units.filter(|units| !units.is_empty()));
            }
            Method::Auto => {
                *split = split_wide_units(work, *parallel);
                even_tasks(work, *parallel);
            }
            Method::NodeChunk => {
                work.tasks.clear();
                work.tasks.extend((0..work.units.len() as u32).map(|u| u..u + 1));
            }
            _ => even_tasks(work, *parallel),
        }
        work.io.partial_rows = work.handed_over(blocks);
    }
}

/// Tokens of `unit`, and (row, token) pairs.
fn size(work: &AttendWork, unit: &Unit) -> (u64, u64) {
    let mut tokens = 0;
    let mut pairs = 0;
    for piece in &work.pieces[unit.pieces.start as usize..unit.pieces.end as usize] {
        let rows = shared(&piece.rows, &unit.rows);
        if rows > 0 {
            tokens += u64::from(piece.len);
            pairs += rows * u64::from(piece.len);
        }
    }
    (tokens, pairs)
}

fn shared(a: &Range<u32>, b: &Range<u32>) -> u64 {
    u64::from(a.end.min(b.end).saturating_sub(a.start.max(b.start)))
}

fn cost((tokens, pairs): (u64, u64), group: u64) -> u64 {
    tokens * CONVERT + pairs * group
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
    let costs: Vec<u64> = work.units.iter().map(|u| cost(size(work, u), parallel.group as u64)).collect();
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

/// What the busiest thread has to do in percent of an even share, where tasks go in order to whoever is free.
fn unevenness(work: &AttendWork, parallel: Parallel) -> u64 {
    let mut threads = vec![0u64; parallel.threads.max(1)];
    for task in &work.tasks {
        let units = &work.units[task.start as usize..task.end as usize];
        let cost: u64 = units.iter().map(|u| cost(size(work, u), parallel.group as u64)).sum();
        for _ in 0..parallel.kv_heads {
            if let Some(free) = threads.iter_mut().min() {
                *free += cost;
            }
        }
    }
    let (most, all) = (threads.iter().max().copied().unwrap_or(0), threads.iter().sum::<u64>().max(1));
    100 * most * threads.len() as u64 / all
}

/// Splits by rows the units that alone cost more than a task should, where every part still does more work with its
/// K/V than it takes to bring it: a part reads the K/V of its rows again, and the counts say so. Where the threads are
/// as good as even without it, all stay whole. False where there are units enough and nothing was looked at.
fn split_wide_units(work: &mut AttendWork, parallel: Parallel) -> bool {
    let group = parallel.group as u64;
    if work.units.len() as u64 * parallel.kv_heads as u64 >= parallel.threads as u64 * TASKS_PER_THREAD {
        return false;
    }
    even_tasks(work, parallel);
    if unevenness(work, parallel) <= EVEN {
        return true;
    }
    let total: u64 = work.units.iter().map(|u| cost(size(work, u), group)).sum();
    let wanted = wanted_cost(total, parallel);
    let mut units = Vec::with_capacity(work.units.len());
    for unit in &work.units {
        let whole = size(work, unit);
        let rows = u64::from(unit.rows.end - unit.rows.start);
        let parts = cost(whole, group).div_ceil(wanted).min(rows * group / (2 * CONVERT)).clamp(1, rows.max(1)) as u32;
        let mut read = 0;
        for part in 0..parts {
            let at = |i: u32| unit.rows.start + (rows * u64::from(i) / u64::from(parts)) as u32;
            let piece = Unit { rows: at(part)..at(part + 1), ..unit.clone() };
            read += size(work, &piece).0;
            units.push(piece);
        }
        work.io.kv_tokens += read - whole.0;
    }
    work.units = units;
    true
}
