//! `totara doctor --selftest`: every kernel of this build that this machine can run, against its reference.

use super::cards;
use crate::attention;
use crate::attention::cuda_plan::{self, Cutting};
use crate::attention::selftest::growing;
use crate::base::text::sanitize_line;
use crate::base::{Error, Result};
use crate::bench;
use crate::cli::args::Common;
use crate::cli::out;
use crate::device::cuda::driver::Gpu;
use crate::device::cuda::selftest as cuda;
use crate::device::cuda::step::Planning;
use crate::device::picks::Choose;
use crate::device::selftest::{self, Row};
use crate::offload::select::Select;
use serde_json::json;

/// Names that a fault may be told by: the processor's kernels, and the card's by the check that runs them.
const PROCESSOR: &[&str] = &["cpu"];
const PRODUCTS: &[&str] = &["product", "gated_product"];
const HEADS: &[&str] = &["glance_chunk", "glance_row", "asked"];
const ATTENTION: &[&str] = &["attend_tree"];
const STEPS: &[&str] = &["embed", "residual_norm", "rotate", "gate"];
const PAGES: &[&str] = &["gather_pages", "write_back"];
const INT4: &[&str] = &["pack_int4", "unpack_int4", "write_records"];
const SELECT: &[&str] = &[
    "put_partial",
    "project_queries",
    "expand",
    "score",
    "head_tops",
    "pick",
    "gather_rows",
    "attend_picked",
    "merge_picked",
    "gather_alone",
];
const KEEP: &[&str] = &["settle", "forget", "bring_back", "count_here", "sample_full", "sample_missed"];
const HEAVY: &[&str] = &[
    "spread_paths",
    "begin_sums",
    "list_kept",
    "gather_kept",
    "score_kept",
    "keep_heavy",
    "sum_kept",
    "weigh_all",
    "add_all",
];
const CHECKS: &[&[&str]] = &[PROCESSOR, PRODUCTS, HEADS, ATTENTION, STEPS, PAGES, INT4, SELECT, KEEP, HEAVY];

/// What is falsified, so that the check itself can be checked.
enum Fault {
    None,
    All,
    /// What is checked with this kernel.
    Kernel(String),
}

impl Fault {
    /// `TOTARA_SELFTEST_FAULT`: `1`, or a kernel's name.
    fn read() -> Result<Self> {
        match std::env::var("TOTARA_SELFTEST_FAULT") {
            Err(_) => Ok(Self::None),
            Ok(all) if all == "1" => Ok(Self::All),
            Ok(name) if CHECKS.iter().any(|kernels| kernels.contains(&name.as_str())) => Ok(Self::Kernel(name)),
            Ok(name) => Err(Error::input(format!(
                "TOTARA_SELFTEST_FAULT `{}` is no kernel; there are 1 (all), {}",
                sanitize_line(&name),
                CHECKS.concat().join(", ")
            ))),
        }
    }

    fn hits(&self, kernels: &[&str]) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Kernel(name) => kernels.contains(&name.as_str()),
        }
    }
}

/// One line of the selftest: kernel, shape, largest error, whether it is right.
type Line = (String, String, f64, bool);

/// Tells of lines as they come: what is found out stays where a later check cannot go on.
#[derive(Default)]
struct Told {
    json: bool,
    lines: usize,
    wrong: usize,
}

impl Told {
    fn rows(&mut self, rows: Vec<Row>) -> Result<()> {
        rows.into_iter().try_for_each(|r| self.line((r.kernel, r.shape, r.max_error, r.ok)))
    }

    fn line(&mut self, (kernel, shape, max_error, ok): Line) -> Result<()> {
        self.lines += 1;
        self.wrong += usize::from(!ok);
        if self.json {
            return out::json(&json!({"kernel": kernel, "shape": shape, "max_error": max_error, "ok": ok}));
        }
        let verdict = if ok { "ok" } else { "WRONG" };
        out::line(&format!("{kernel:<36} {shape:<28} {max_error:>10.2e}  {verdict}"))
    }
}

pub fn run(common: &Common) -> Result<u8> {
    let fault = Fault::read()?;
    let mut told = Told { json: common.json, ..Told::default() };
    told.rows(selftest::products(fault.hits(PROCESSOR))?)?;
    match cards(common) {
        Ok(ordinal) => card(ordinal, &fault, &mut told)?,
        Err(e) if common.quiet => drop(e),
        Err(e) => out::tell(&format!("the CUDA kernels are skipped: {e}")),
    }
    for c in attention::selftest::run(fault.hits(PROCESSOR))? {
        told.line((format!("{} attention {}", c.kernels, c.method), c.shape, c.max_error, c.ok))?;
    }
    if !common.quiet {
        out::tell(&format!("{} kernels and shapes, {} wrong", told.lines, told.wrong));
    }
    Ok(u8::from(told.wrong > 0))
}

/// All kernels of a card.
fn card(ordinal: usize, fault: &Fault, told: &mut Told) -> Result<()> {
    let gpu = Gpu::open(ordinal)?;
    let planning = || -> Planning { Box::new(|work, machine| cuda_plan::step(work, machine, Cutting::Auto)) };
    let choosing = |alpha, max_fetch| -> Box<dyn Choose> { Box::new(Select { alpha, max_fetch, random: false }) };
    told.rows(cuda::products(&gpu, fault.hits(PRODUCTS))?)?;
    told.rows(cuda::heads(&gpu, fault.hits(HEADS))?)?;
    told.rows(bench::cuda::selftest::run(&gpu, fault.hits(ATTENTION))?)?;
    told.rows(cuda::steps(ordinal, planning, fault.hits(STEPS))?)?;
    let trees = [(1, 300, 5, 150), (2, 40, 20, 150), (3, 700, 1, 80)]
        .map(|(seed, prompt, branches, steps)| growing::steps(seed, prompt, branches, steps));
    let trees = trees.into_iter().collect::<Result<Vec<_>>>()?;
    told.rows(cuda::graphs::run(ordinal, planning, &trees, fault.hits(STEPS))?)?;
    told.rows(cuda::offload::full(ordinal, planning, fault.hits(PAGES))?)?;
    told.rows(cuda::int4::kernels(&gpu, fault.hits(INT4))?)?;
    told.rows(cuda::int4::tiers(ordinal, planning, fault.hits(INT4))?)?;
    told.rows(cuda::select::run(&gpu, &choosing, fault.hits(SELECT))?)?;
    told.rows(cuda::keep::run(&gpu, &choosing, fault.hits(KEEP))?)?;
    told.rows(cuda::offload::selected(ordinal, planning, &choosing, fault.hits(SELECT))?)?;
    told.rows(cuda::heavy::kernels(&gpu, &choosing, fault.hits(HEAVY))?)?;
    told.rows(cuda::heavy::tiers(ordinal, planning, &choosing, fault.hits(HEAVY))?)?;
    Ok(())
}
