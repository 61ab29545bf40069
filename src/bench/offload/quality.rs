//! What a selection costs: perplexity and greedy agreement over windows of a text, at the same share of attended tokens.
//!
//! Each window's first tokens are read in full, once; every method then scores the rest from there on a branch of its own,
//! each row selecting as in decoding. H2O reads the first tokens itself, since it has to have seen their attention.

use super::{Bench, Case};
use crate::base::{Error, Result};
use crate::bench::perplexity::{self, Perplexity, Take, Windows};
use crate::device::tiers::Link;
use crate::engine::measure::Run;
use crate::kv::tree::BranchId;
use crate::kv::{PAGE_TOKENS, Slot};
use crate::lm::engine::EngineOptions;
use crate::model::Model;
use crate::offload::{Method, Options};
use serde::Serialize;
use std::fmt;

#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    pub text: perplexity::Spec,
    /// Shares of the past that selecting layers attend to.
    pub shares: Vec<f64>,
    pub methods: Vec<Case>,
}

/// One method at one share.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    pub method: String,
    /// Device bytes for a window's K/V: those of whole layers, partial keys, and the rows of one step's selection.
    pub kv_budget: u64,
    /// The same as a share of all K/V, and how it is made up.
    pub device_share: f64,
    pub whole_share: f64,
    pub partial_share: f64,
    pub whole_layers: usize,
    /// Mean share of past tokens attended, in the layers that select.
    pub attended_share: f64,
    pub perplexity: f64,
    /// Percent above the perplexity of `full`.
    pub above_full: f64,
    /// Share of the scored positions whose likeliest token is that of `full`.
    pub agreement: f64,
    /// Mean attention weight that selecting rows missed.
    pub missed_mass: Option<f64>,
    pub tokens: usize,
    pub link_bytes_per_step: u64,
    pub rows_read_per_layer: f64,
}

/// A method at a share while windows are scored.
#[derive(Clone)]
struct Config {
    case: Case,
    share: f64,
    whole_layers: usize,
    found: Perplexity,
    agreed: usize,
    link: Link,
}

/// Measures all; rows come when all windows are done.
pub fn run(
    model: Model,
    options: &EngineOptions,
    text: &str,
    spec: &Spec,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<(String, Vec<Row>)> {
    let windows = Windows::of(text, &model.tokenizer, &spec.text)?;
    let window = spec.text.window;
    if window > model.weights.shape.context {
        return Err(Error::limit(format!("a window of {window} tokens does not fit the model's context")));
    }
    // A branch for each method's tokens at a time, beside what all share.
    let pages = 2 * window.div_ceil(PAGE_TOKENS) + 2;
    let mut bench = Bench::load(model, options, &spec.methods, pages)?;
    let mut configs = Vec::new();
    for &case in &spec.methods {
        let whole_layers = if case.method.selects() { bench.whole_layers() } else { bench.layers };
        let shares: &[f64] = if case.method.selects() { &spec.shares } else { &[1.0] };
        configs.extend(shares.iter().map(|&share| Config {
            case,
            share,
            whole_layers,
            found: Perplexity::default(),
            agreed: 0,
            link: Link::default(),
        }));
    }
    // What a card has kept in four bits is not exact again: nothing comes after that.
    configs.sort_by_key(|config| config.case.method == Method::Int4);
    let total = windows.tokens() * (configs.len() + 1);
    let (mut done, mut full) = (0, Perplexity::default());
    for window in windows.each() {
        let mut best = Vec::new();
        let (found, slots, branch, tree) = {
            bench.llama.refetch(None, &[])?;
            let mut run = Run::new(&mut bench.llama, &bench.limits);
            let branch = run.tree.open();
            let first = window.first();
            let rows = bench.limits.step_rows;
            run.fill(branch, &window.ids()[..first - 1], rows)?;
            let slots = run.tree.slots(branch);
            let found = score(&mut run, &window, branch, rows, false, &mut best)?;
            (found, slots, branch, run.tree)
        };
        full.add(found);
        done += found.tokens;
        progress(done, total);
        let mut tree = tree;
        tree.truncate(branch, window.first() - 1);
        for config in &mut configs {
            tree = config.window(&mut bench, &window, (tree, branch, &slots), &best)?;
            done += found.tokens;
            progress(done, total);
        }
    }
    let rows = configs.iter().map(|config| config.row(&bench, full, spec)).collect();
    Ok((bench.device, rows))
}

/// Scores a window's last tokens on `branch`, which holds those before; the likeliest token of each position goes to `best`.
fn score(
    run: &mut Run<'_>,
    window: &Windows,
    branch: BranchId,
    rows: usize,
    selects: bool,
    best: &mut Vec<usize>,
) -> Result<Perplexity> {
    let mut forward = |ids: &[u32], first: usize, take: &mut Take<'_>| {
        let ids = &ids[..ids.len() - 1];
        for from in (first - 1..ids.len()).step_by(rows) {
            let to = (from + rows).min(ids.len());
            run.clear();
            run.push(branch, &ids[from..to])?;
            if selects {
                run.select_all();
            }
            (0..to - from).for_each(|row| run.want(row));
            run.forward()?;
            for logits in run.logits() {
                best.extend(logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(id, _)| id));
                take(logits)?;
            }
        }
        Ok(())
    };
    perplexity::measure(window, &mut forward, &mut |_| {})
}

impl Config {
    /// Scores one window, and gives the tree back as it was.
    fn window(
        &mut self,
        bench: &mut Bench,
        window: &Windows,
        (tree, branch, slots): (crate::kv::TokenTree, BranchId, &[Slot]),
        best: &[usize],
    ) -> Result<crate::kv::TokenTree> {
        let options = Options { alpha: f32::INFINITY, max_fetch: self.share as f32, capacity: None, ..bench.options };
        let fetch = bench.fetch(self.case, options)?;
        let roomy = u64::MAX >> 8;
        bench.llama.refetch(Some((roomy, fetch)), slots)?;
        let rows = bench.limits.step_rows;
        let mut run = Run::with_tree(&mut bench.llama, &bench.limits, tree);
        let mut own = Vec::new();
        let found = if self.case.method == Method::H2o {
            let alone = run.tree.open();
            run.fill(alone, &window.ids()[..window.first() - 1], rows)?;
            let found = score(&mut run, window, alone, rows, true, &mut own)?;
            run.tree.drop_branch(alone, 0);
            found
        } else {
            let found = score(&mut run, window, branch, rows, self.case.method.selects(), &mut own)?;
            run.tree.truncate(branch, window.first() - 1);
            found
        };
        self.found.add(found);
        self.agreed += own.iter().zip(best).filter(|(a, b)| a == b).count();
        let link = run.link().unwrap_or_default();
        self.link.attended += link.attended;
        self.link.past += link.past;
        self.link.samples += link.samples;
        self.link.missed += link.missed;
        self.link.to_device_bytes += link.to_device_bytes;
        self.link.to_host_bytes += link.to_host_bytes;
        Ok(run.tree)
    }

    fn row(&self, bench: &Bench, full: Perplexity, spec: &Spec) -> Row {
        let Self { case, share, whole_layers, found, agreed, link } = self;
        let layers = bench.layers as f64;
        let whole_share = *whole_layers as f64 / layers;
        let attended_share = if link.past > 0 { link.attended as f64 / link.past as f64 } else { *share };
        let partial_share = if case.method.speculates() { bench.partial_share * (1.0 - whole_share) } else { 0.0 };
        let device_share = whole_share + partial_share + attended_share * (1.0 - whole_share);
        let bytes = spec.text.window as u64 * bench.token_bytes;
        Row {
            method: bench.name(*case),
            kv_budget: (device_share * bytes as f64) as u64,
            device_share,
            whole_share,
            partial_share,
            whole_layers: *whole_layers,
            attended_share,
            perplexity: found.value(),
            above_full: 100.0 * (found.value() / full.value() - 1.0),
            agreement: *agreed as f64 / found.tokens.max(1) as f64,
            missed_mass: (link.samples > 0).then(|| link.missed / link.samples as f64),
            tokens: found.tokens,
            link_bytes_per_step: (link.to_device_bytes + link.to_host_bytes) / found.tokens.max(1) as u64,
            rows_read_per_layer: attended_share * (spec.text.window as f64 - spec.text.score as f64 / 2.0),
        }
    }
}

impl Row {
    pub const HEAD: &'static str = "method                  read %  perplexity  above full %  same token %  missed %  whole  device %  = whole + partial + rows";
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missed = self.missed_mass.map_or("-".into(), |x| format!("{:.1}", 100.0 * x));
        let rows = self.device_share - self.whole_share - self.partial_share;
        write!(
            f,
            "{:<23} {:>6.1} {:>11.4} {:>13.2} {:>13.1} {:>9} {:>6} {:>9.1}    {:>4.1} + {:>4.1} + {:>4.1}",
            self.method,
            100.0 * self.attended_share,
            self.perplexity,
            self.above_full,
            100.0 * self.agreement,
            missed,
            self.whole_layers,
            100.0 * self.device_share,
            100.0 * self.whole_share,
            100.0 * self.partial_share,
            100.0 * rows
        )
    }
}
