//! How long the plan of a step takes for a card: the engine's two planners one after the other, as a step runs them.

use crate::attention::cuda_plan::{Cutting, StepPlanner};
use crate::attention::sample::{Number, Sample};
use crate::attention::{Method, Planner};
use crate::base::{Error, Result};
use crate::bench::attention::trees::Shape;
use crate::device::cpu::attend::Heads;
use crate::device::cuda::work::Machine;
use std::hint::black_box;
use std::time::Instant;

/// Decode steps over which the next plan is timed.
const STEPS: u32 = 40;

/// Microseconds for a plan from nothing, and for the next one after every branch grew by a token; medians. For a live
/// method.
pub fn plan_times(method: Method, shape: &Shape, machine: &Machine) -> Result<(f64, f64)> {
    // The plan does not look at the K/V: the smallest there is, with room for the steps.
    let tiny = Heads { heads: 1, kv_heads: 1, head_size: 8 };
    let room = shape.queries() * (STEPS as usize / 16 + 2);
    let (Sample { mut tree, .. }, mut rows) = shape.build(tiny, Number::F16, room)?;
    let (mut fresh, mut next) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let start = Instant::now();
        let mut planner = Planner::new(method);
        black_box(StepPlanner::new(Cutting::of(method)).plan(planner.plan(&tree, &rows), machine));
        fresh.push(start.elapsed().as_secs_f64() * 1e6);
    }
    let (mut planner, mut cuda) = (Planner::new(method), StepPlanner::new(Cutting::of(method)));
    for step in 0..STEPS {
        for row in &mut rows {
            // Queries inside the tree, as a token tree has, stay where they are.
            if tree.grows_in_place(row.branch) {
                tree.append(row.branch, &[step], &mut Vec::new()).map_err(|e| Error::fault(e.to_string()))?;
                row.position += 1;
            }
        }
        let start = Instant::now();
        black_box(cuda.plan(planner.plan(&tree, &rows), machine));
        next.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok((super::median(&mut fresh), super::median(&mut next)))
}
