//! How long the plan of a step takes, as a search needs them: from nothing, after a decode step, and after steps before
//! which a branch forked or was pruned, anywhere in the tree. For a card with the cutting for it, as a step runs them.

use super::{LEAST_RUNS, quartiles};
use crate::attention::cuda_plan::{Cutting, StepPlanner};
use crate::attention::sample::{Number, Sample};
use crate::attention::{Method, Parallel, Planner, QueryRow};
use crate::base::{Error, Result, rng};
use crate::bench::attention::trees::Shape;
use crate::device::cpu::attend::Heads;
use crate::device::cuda::work::Machine;
use crate::kv::{PAGE_TOKENS, TokenTree};
use rand::Rng;
use serde::Serialize;
use std::hint::black_box;
use std::time::Instant;

/// Decode steps over which each kind of next plan is timed.
const NEXT_PLANS: u32 = 64;

/// Microseconds of planning; medians.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PlanTimes {
    /// The whole plan from nothing.
    #[serde(rename = "plan_us")]
    pub anew: f64,
    /// The next one after every branch grew by a token.
    #[serde(rename = "next_plan_us")]
    pub grown: f64,
    /// After one forked too, and after one was pruned too.
    #[serde(rename = "fork_plan_us")]
    pub forked: f64,
    #[serde(rename = "prune_plan_us")]
    pub pruned: f64,
}

/// What plans the steps of a run: for the CPU, or for a card.
struct Plans<'m> {
    planner: Planner,
    card: Option<(StepPlanner, &'m Machine)>,
}

impl Plans<'_> {
    fn plan(&mut self, tree: &TokenTree, rows: &[QueryRow]) -> f64 {
        let start = Instant::now();
        let work = self.planner.plan(tree, rows);
        match &mut self.card {
            Some((cuts, machine)) => drop(black_box(cuts.plan(work, machine))),
            None => drop(black_box(work)),
        }
        start.elapsed().as_secs_f64() * 1e6
    }
}

/// For `machine` where one is given, else for the CPU. A live method, or one that the CPU plans as `radix`.
pub fn plan_times(method: Method, how: Parallel, shape: &Shape, machine: Option<&Machine>) -> Result<PlanTimes> {
    // The plan does not look at the K/V: the smallest there is, with room for the steps.
    let tiny = Heads { heads: 1, kv_heads: 1, head_size: 8 };
    // A fork begins pages anew on both sides; where few branches fork again and again, these are on the path of the one left.
    let room = (shape.queries() + 1) * (4 * NEXT_PLANS as usize / PAGE_TOKENS + 4) + 2 * NEXT_PLANS as usize;
    let (Sample { mut tree, .. }, mut rows) = shape.build(tiny, Number::F16, room)?;
    let cuts = || machine.map(|m| (StepPlanner::new(Cutting::of(method)), m));
    // One planner for all: its buffers have the size that a running engine's have.
    let mut plans = Plans { planner: Planner::with_parallel(method, how), card: None };
    let (mut fresh, mut grown, mut forked, mut pruned) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..LEAST_RUNS {
        plans.card = None;
        plans.plan(&tree, &[]);
        plans.card = cuts();
        fresh.push(plans.plan(&tree, &rows));
    }
    let mut random = rng::stream(0, "bench-plans", &[]);
    let mut token = 0;
    for _ in 0..NEXT_PLANS {
        for kind in 0..3 {
            let at = random.random_range(0..rows.len());
            if kind == 1 {
                rows.push(QueryRow { branch: tree.fork(rows[at].branch), position: rows[at].position });
            } else if kind == 2 {
                tree.drop_branch(rows.swap_remove(at).branch, 0);
            }
            let new = if kind == 1 { rows.len() - 1 } else { rows.len() };
            for (i, row) in rows.iter_mut().enumerate() {
                // Queries inside the tree, as a token tree has, stay where they are.
                if i == new || tree.grows_in_place(row.branch) {
                    token += 1;
                    tree.append(row.branch, &[token], &mut Vec::new()).map_err(|e| Error::fault(e.to_string()))?;
                    row.position += 1;
                }
            }
            let times = [&mut grown, &mut forked, &mut pruned];
            times[kind].push(plans.plan(&tree, &rows));
        }
    }
    let middle = |times: &mut Vec<f64>| quartiles(times)[1];
    Ok(PlanTimes {
        anew: middle(&mut fresh),
        grown: middle(&mut grown),
        forked: middle(&mut forked),
        pruned: middle(&mut pruned),
    })
}
