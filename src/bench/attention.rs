//! `totara bench attention`: time and bytes of one layer's attention, by tree and method, on the CPU.
//!
//! Every method runs on the same tree, numbers, threads and inner loops; each is checked against the float64 reference
//! in the same run. Methods take turns, and copies of the K/V take turns, so that the last-level cache serves none of
//! them twice in a row. Planning is timed apart: a step plans once for all layers.

use crate::attention::contender::Contender;
use crate::attention::sample::{Arena, Number};
use crate::attention::{Method, Parallel};
use crate::base::size::{self, Human};
use crate::base::{Error, Result};
use crate::device::cpu::attend::baseline::Flat;
use crate::device::cpu::attend::kernels::{self, Kernels};
use crate::device::cpu::attend::{Heads, ParallelFor};
use crate::device::cpu::pool::Pool;
use crate::device::cuda::work::{Kernel, Machine};
use crate::kv::PAGE_TOKENS;
use serde::Serialize;
use std::io::Write;
use std::time::{Duration, Instant};

pub mod deft;
pub mod peak;
pub mod planning;
pub mod recorded;

pub mod trees;

use planning::{PlanTimes, plan_times};
use trees::Shape;

#[derive(Debug, Clone)]
pub struct Options {
    /// As [`Shape::read`] takes them.
    pub trees: Vec<String>,
    pub heads: Heads,
    pub number: Number,
    pub methods: Vec<Method>,
    pub threads: usize,
    /// Time to spend on a tree and method, about; at least [`LEAST_RUNS`] runs are made.
    pub seconds: f64,
    /// One JSON object a line instead of the table.
    pub json: bool,
}

/// One row of the result: the contract's fields, then what else was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    pub method: String,
    pub tree: String,
    pub median_us: f64,
    /// K/V bytes read.
    pub kv_bytes: u64,
    /// Partial results written and read back.
    pub partial_bytes: u64,
    /// Half of the runs lie between these.
    pub quartiles_us: [f64; 2],
    pub mask_bytes: u64,
    pub query_and_output_bytes: u64,
    pub queries: usize,
    /// K/V bytes over the time, as a share of the measured copy bandwidth (read + write).
    pub share_of_copy: f64,
    /// Useful multiply-adds over the time, as a share of the measured peak.
    pub share_of_peak: f64,
    /// radix's median over this one.
    pub times_radix: Option<f64>,
    #[serde(flatten)]
    pub planning: PlanTimes,
    /// The same for a card of 132 multiprocessors, with the cutting for it; of methods that an engine may use there.
    pub card_planning: Option<PlanTimes>,
    pub max_error: f64,
    pub kernels: &'static str,
    pub runs: usize,
}

const LEAST_RUNS: usize = 9;
const WARM_UP_RUNS: usize = 2;
/// A run after which its end is told, not only that of its round.
const LONG_RUN: Duration = Duration::from_millis(100);
/// Outputs lie in -1..1; a whole path of thousands of tokens in float32.
const TOLERANCE: f64 = 2e-5;
/// Rows compared with the reference, spread over the tree.
const CHECKED_ROWS: usize = 16;

/// Measures and writes to `out`; `tick` hears how many runs of a tree are done, of at least so many. An error where a method's
/// result differs from the reference.
pub fn run(options: &Options, out: &mut dyn Write, tick: &mut dyn FnMut(usize, usize)) -> Result<Vec<Row>> {
    let shapes: Vec<Shape> = options.trees.iter().map(|spec| Shape::read(spec)).collect::<Result<_>>()?;
    for shape in &shapes {
        room(shape, options)?;
    }
    // The engine's own threads: they stay awake between calls, as in a step.
    let pool = Pool::new(options.threads)?;
    let parallel = |n: usize, f: &(dyn Fn(usize) + Sync)| pool.run(n, &|task, _| f(task));
    let limits = Limits {
        copy: peak::copy_bandwidth(options.threads, peak::COPY_BYTES, &parallel),
        adds: peak::multiply_adds(options.threads, &parallel),
    };
    let Heads { heads, kv_heads, head_size } = options.heads;
    if !options.json {
        writeln!(
            out,
            "{heads} query / {kv_heads} K/V heads of {head_size}, {}, {} threads, kernels {}; copy {:.1} GB/s, peak {:.1} G multiply-adds/s",
            options.number.name(),
            options.threads,
            table(options).name,
            limits.copy / 1e9,
            limits.adds / 1e9
        )?;
    }
    let mut all = Vec::new();
    for shape in &shapes {
        let rows = measure(options, shape, &limits, &parallel, tick)?;
        write_rows(options, shape, &rows, out)?;
        let tolerance = table(options).tolerance.max(TOLERANCE);
        if let Some(bad) = rows.iter().find(|r| r.max_error.is_nan() || r.max_error > tolerance) {
            return Err(Error::fault(format!("{} on {} is off by {:e}", bad.method, bad.tree, bad.max_error)));
        }
        all.extend(rows);
    }
    Ok(all)
}

/// The card for which plans are timed where none is asked for: an H200's kernel and multiprocessors.
fn card(heads: Heads) -> Machine {
    Machine {
        kernel: Kernel::Hopper,
        resident: 132,
        kv_heads: heads.kv_heads as u32,
        group: heads.group() as u32,
        head_size: heads.head_size as u32,
    }
}

struct Limits {
    copy: f64,
    adds: f64,
}
/// Refuses a tree that needs more memory than is free: an allocation that fails ends the program.
fn room(shape: &Shape, options: &Options) -> Result<()> {
    let (needed, free) = (needed_bytes(shape, options), size::free_ram().unwrap_or(u64::MAX));
    if needed > free {
        let (tree, needed, free) = (&shape.name, Human(needed), Human(free));
        return Err(Error::limit(format!(
            "tree {tree} needs {needed} with these heads and methods, and {free} is free: take fewer tokens, smaller heads, or \
             --method with fewer"
        )));
    }
    Ok(())
}

/// Memory of a measurement at its height, about: every method is made ready before any is timed, and its K/V is there once as
/// it is made and once more at least in turn-taking copies.
fn needed_bytes(shape: &Shape, options: &Options) -> u64 {
    let Heads { heads, kv_heads, head_size } = options.heads;
    let token = (2 * kv_heads * head_size * options.number.bytes()) as u64;
    let (rows, float) = (shape.queries() as u64, size_of::<f32>() as u64);
    let page = PAGE_TOKENS as u64;
    let tokens = shape.tokens() as u64;
    let ends = shape.path_lengths();
    let queries = || shape.nodes.iter().zip(&ends).filter(|(node, _)| node.query).map(|(_, &end)| end as u64);
    let times = |a: u64, b: u64| a.saturating_mul(b);
    // A node begins and ends within a page.
    let arena = times(tokens.saturating_add(2 * page * shape.nodes.len() as u64), token);
    // Dense methods have the whole tree as one run.
    let flat = times(tokens.saturating_add(page), token);
    let scores = times(rows, times(Flat::stride(shape.tokens()) as u64, float));
    let own = |method: &Method| match method {
        Method::FlashDecoding => times(2, times(queries().fold(page * rows, u64::saturating_add), token)),
        Method::Medusa => times(2, flat).saturating_add(times(scores, 1 + heads as u64)),
        Method::SpecInfer | Method::Vanilla => times(2, flat).saturating_add(scores),
        _ => 0,
    };
    // The reference reads the longest path in float32.
    let path = times(queries().max().unwrap_or(0), (2 * kv_heads * head_size) as u64 * float);
    let parts = [times(2, arena), path, times(rows, 2 * (heads * head_size) as u64 * float)];
    options.methods.iter().map(own).chain(parts).fold(0, u64::saturating_add)
}

struct Entry {
    contender: Contender,
    /// Which set of copies it reads.
    arenas: usize,
    times: Vec<f64>,
    max_error: f64,
}

/// The kernels that serve K/V of this storage.
fn table(options: &Options) -> &'static Kernels {
    match options.number {
        Number::F16 => kernels::best(),
        Number::F32 => kernels::best().of_f32(),
    }
}

fn measure(
    options: &Options,
    shape: &Shape,
    limits: &Limits,
    parallel: ParallelFor<'_>,
    tick: &mut dyn FnMut(usize, usize),
) -> Result<Vec<Row>> {
    let heads = options.heads;
    let (sample, rows) = shape.build(heads, options.number, 0)?;
    let q = sample.queries(&rows);
    let mut out = vec![f32::NAN; q.len()];
    let how = Parallel { threads: options.threads, kv_heads: heads.kv_heads, group: heads.group() };
    let mut entries = Vec::new();
    let mut sets: Vec<Vec<Arena>> = vec![copies(&sample.arena)];
    for &method in &options.methods {
        let contender = Contender::new(method, kernels::best(), &sample, &rows, how)?;
        let own = !std::ptr::eq(contender.arena(&sample), &sample.arena);
        let arenas = if own { sets.len() } else { 0 };
        if own {
            sets.push(copies(contender.arena(&sample)));
        }
        entries.push(Entry { contender, arenas, times: Vec::new(), max_error: 0.0 });
    }
    let step = rows.len().div_ceil(CHECKED_ROWS);
    let n = entries.len();
    let mut done = 0;
    tick(done, n * (WARM_UP_RUNS + LEAST_RUNS));
    for e in &mut entries {
        for run in 0..WARM_UP_RUNS {
            let set = &sets[e.arenas];
            out.fill(f32::NAN);
            e.contender.run(&set[run % set.len()], &q, &mut out, parallel);
            done += 1;
            tick(done, n * (WARM_UP_RUNS + LEAST_RUNS));
        }
        e.max_error = sample.error(&rows, &out, (0..rows.len()).step_by(step));
        if out.iter().any(|x| x.is_nan()) {
            e.max_error = f64::NAN;
        }
    }
    let start = Instant::now();
    let mut round = 0usize;
    let seconds = options.seconds * n as f64;
    while round < LEAST_RUNS || start.elapsed().as_secs_f64() < seconds {
        // As many rounds as the time will hold at this pace.
        let rounds = (round as f64 * seconds / start.elapsed().as_secs_f64().max(1e-6)) as usize;
        let total = n * (WARM_UP_RUNS + rounds.max(LEAST_RUNS).max(round + 1));
        // Rounds begin with each in turn and go both ways, so that no method always follows the same other one; and none
        // reads the copy that the one before it brought into a cache.
        for k in 0..n {
            let turn = if round.is_multiple_of(2) { k } else { n - 1 - k };
            let e = &mut entries[(round / 2 + turn) % n];
            let set = &sets[e.arenas];
            let copy = &set[(round * n + k) % set.len()];
            let began = Instant::now();
            e.contender.run(copy, &q, &mut out, parallel);
            let took = began.elapsed();
            e.times.push(took.as_secs_f64() * 1e6);
            done += 1;
            // What tells of it is not to come between short runs.
            if k + 1 == n || took >= LONG_RUN {
                tick(done, total);
            }
        }
        round += 1;
    }
    let pairs: u64 = rows.iter().map(|r| u64::from(r.position) + 1).sum();
    let adds = (2 * pairs * (heads.heads * heads.head_size) as u64) as f64;
    let mut results: Vec<Row> = Vec::new();
    for e in &mut entries {
        let [low, median, high] = quartiles(&mut e.times);
        let io = e.contender.io.bytes(&heads, options.number.bytes());
        let method = e.contender.method;
        let planning = plan_times(method, how, shape, None)?;
        let card = card(heads);
        let card_planning =
            method.is_live().then(|| plan_times(method, Parallel::default(), shape, Some(&card))).transpose()?;
        results.push(Row {
            method: e.contender.method.to_string(),
            tree: shape.name.clone(),
            median_us: median,
            kv_bytes: io.kv,
            partial_bytes: io.partial,
            quartiles_us: [low, high],
            mask_bytes: io.mask,
            query_and_output_bytes: io.query_and_output,
            queries: rows.len(),
            share_of_copy: io.kv as f64 / (median * 1e-6) / limits.copy,
            share_of_peak: adds / (median * 1e-6) / limits.adds,
            times_radix: None,
            planning,
            card_planning,
            max_error: e.max_error,
            kernels: table(options).name,
            runs: round,
        });
    }
    tick(done, done);
    let radix = results.iter().find(|r| r.method == Method::Radix.name()).map(|r| r.median_us);
    for r in &mut results {
        r.times_radix = radix.map(|radix| radix / r.median_us);
    }
    Ok(results)
}

/// Copies of the K/V that together exceed the last-level cache twice, as far as memory allows.
fn copies(arena: &Arena) -> Vec<Arena> {
    let bytes = match arena {
        Arena::F16(numbers) => numbers.len() * 2,
        Arena::F32(numbers) => numbers.len() * 4,
    };
    let room = size::free_ram().unwrap_or(1 << 30) as usize / 8;
    let wanted = (2 * last_level_cache()).min(room);
    vec![arena.clone(); (wanted / bytes.max(1)).clamp(1, 64)]
}

/// Bytes of the largest cache that the system tells of; 32 MiB where it tells none.
fn last_level_cache() -> usize {
    let read = |i| std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{i}/size")).ok();
    let sizes = (0..5).filter_map(read).filter_map(|t| t.trim().trim_end_matches('K').parse::<usize>().ok());
    sizes.max().map_or(32 << 20, |kib| kib << 10)
}

/// The quartiles; zeros for nothing.
fn quartiles(times: &mut [f64]) -> [f64; 3] {
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times.get(((times.len() as f64 - 1.0) * share).round() as usize).copied().unwrap_or(0.0);
    [at(0.25), at(0.5), at(0.75)]
}

fn write_rows(options: &Options, shape: &Shape, rows: &[Row], out: &mut dyn Write) -> Result<()> {
    if options.json {
        for row in rows {
            let line = serde_json::to_string(row).map_err(|e| Error::fault(e.to_string()))?;
            writeln!(out, "{line}")?;
        }
        return Ok(());
    }
    let name = crate::base::text::sanitize_line(&shape.name);
    writeln!(out, "\n{name}: {} queries, {} tokens in {} nodes", shape.queries(), shape.tokens(), shape.nodes.len())?;
    writeln!(
        out,
        "{:<16}{:>10}{:>18}{:>10}{:>10}{:>8}{:>8}{:>9}  max error",
        "method", "median us", "half between", "K/V", "partial", "copy", "peak", "x radix"
    )?;
    for r in rows {
        writeln!(
            out,
            "{:<16}{:>10.0}{:>18}{:>10}{:>10}{:>7.0}%{:>7.0}%{:>9}  {:.1e}",
            r.method,
            r.median_us,
            format!("{:.0} - {:.0}", r.quartiles_us[0], r.quartiles_us[1]),
            Human(r.kv_bytes),
            Human(r.partial_bytes),
            100.0 * r.share_of_copy,
            100.0 * r.share_of_peak,
            r.times_radix.map_or("-".into(), |x| format!("{x:.2}")),
            r.max_error
        )?;
    }
    writeln!(
        out,
        "{:<16}{:>10}{:>10}{:>10}{:>10}{:>12}{:>10}{:>10}{:>10}",
        "planning, us", "anew", "grown", "forked", "pruned", "card: anew", "grown", "forked", "pruned"
    )?;
    for r in rows {
        let PlanTimes { anew, grown, forked, pruned } = r.planning;
        write!(out, "{:<16}{anew:>10.1}{grown:>10.1}{forked:>10.1}{pruned:>10.1}", r.method)?;
        match r.card_planning {
            Some(PlanTimes { anew, grown, forked, pruned }) => {
                writeln!(out, "{anew:>12.1}{grown:>10.1}{forked:>10.1}{pruned:>10.1}")?;
            }
            None => writeln!(out, "{:>12}{:>10}{:>10}{:>10}", "-", "-", "-", "-")?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(trees: &[&str], seconds: f64) -> Options {
        Options {
            trees: trees.iter().map(|t| (*t).to_string()).collect(),
            heads: Heads { heads: 9, kv_heads: 3, head_size: 64 },
            number: Number::F16,
            methods: Method::ALL.to_vec(),
            threads: 2,
            seconds,
            json: false,
        }
    }

    #[test]
    fn a_small_run_has_a_row_a_method_with_the_contracts_fields() {
        // Two have one query, which every fork of the planning's steps meets.
        let mut o = options(&["1,3/40,9", "random:3", "1/10", "1,1/20,5"], 0.0);
        o.json = true;
        o.heads = Heads { heads: 3, kv_heads: 1, head_size: 8 };
        let (mut text, mut told) = (Vec::new(), Vec::new());
        let rows = run(&o, &mut text, &mut |done, total| told.push((done, total))).unwrap();
        assert_eq!(rows.len(), 4 * Method::ALL.len());
        for line in String::from_utf8(text).unwrap().lines() {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            for field in ["method", "tree", "median_us", "kv_bytes", "partial_bytes"] {
                assert!(!row[field].is_null(), "{field} in {line}");
            }
        }
        let flatten = rows.iter().find(|r| r.method == "deft-flatten").unwrap();
        assert_eq!(flatten.kv_bytes, (40 + 3 * 9) * 2 * 8 * 2);
        // Every tree's count begins at nothing and ends at its end.
        let counts: Vec<_> = told.split(|&(done, _)| done == 0).skip(1).collect();
        assert_eq!(counts.len(), 4);
        assert!(counts.iter().all(|count| count.last().is_some_and(|(done, total)| done == total)), "{told:?}");
        assert!(told.iter().all(|&(done, total)| done <= total), "{told:?}");
    }

    #[test]
    fn a_tree_whose_methods_copies_do_not_fit_is_refused_though_its_kv_would() {
        // 100 paths through one trunk: copies of the paths are 100 times the tree.
        let mut o = options(&[], 0.0);
        o.heads = Heads { heads: 64, kv_heads: 64, head_size: 1024 };
        let shape = Shape::read("1,100/4000,1").unwrap();
        let needed = |methods: &[Method]| needed_bytes(&shape, &Options { methods: methods.to_vec(), ..o.clone() });
        let alone = needed(&[Method::Flatten]);
        let token = 2 * 64 * 1024 * 2;
        assert!(alone >= 2 * 4100 * token && alone < 6 * 4100 * token, "{alone}");
        assert!(needed(&[Method::Flatten, Method::FlashDecoding]) > alone + 2 * 100 * 4000 * token);
        let medusa = needed(&[Method::Flatten, Method::Medusa]);
        assert!(medusa > alone + 2 * 4100 * token + 64 * 100 * 4100 * 4, "{medusa}");
        let error = room(&Shape::read("1,20000/400000,1").unwrap(), &Options { methods: Method::ALL.to_vec(), ..o });
        let error = error.unwrap_err();
        assert!(error.message().contains("--method"), "{error}");
    }
}
