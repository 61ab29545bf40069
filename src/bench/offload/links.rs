//! Bytes over the link, and time, of steps of a tree: a prompt and branches on it that grow by a token a step.
//!
//! The branches' tokens are drawn once from the model itself, with everything on the device; every method then reads the
//! same tokens, so that trees, steps and what attention sees are alike.

use super::{Bench, Case};
use crate::base::rng::stream;
use crate::base::size::Human;
use crate::base::{Error, Result};
use crate::engine::measure::Run;
use crate::engine::request::Sampling;
use crate::engine::sample::Sampler;
use crate::engine::sample::row::Row as LogitRow;
use crate::kv::tree::BranchId;
use crate::lm::engine::EngineOptions;
use crate::model::Model;
use crate::model::tokenizer::Special;
use crate::offload::Method;
use serde::Serialize;
use std::fmt;
use std::time::Instant;

/// Steps before the measured ones, in which caches fill.
const WARM: usize = 8;

/// Steps after which the next group of branches has its turn.
const TURN: usize = 6;

#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// Tokens that all branches share, from the beginning of a text.
    pub prompt: usize,
    pub branches: usize,
    /// Tokens each branch has of its own before the first step.
    pub own: usize,
    /// These come from the text after the prompt; else they are drawn as the others are.
    pub own_text: bool,
    pub steps: usize,
    /// Into how many groups branches are divided that take turns, as in a depth-first search; 1: all write in every step. With
    /// more, methods that keep something are measured twice: without and with being told who waits.
    pub turns: usize,
    /// The device tier, as a share of the tree's K/V at the end.
    pub budget: f64,
    pub seed: u64,
}

impl Spec {
    fn pages(&self) -> usize {
        use crate::kv::PAGE_TOKENS;
        let own = self.own + WARM + self.steps;
        self.prompt.div_ceil(PAGE_TOKENS) + self.branches * (own.div_ceil(PAGE_TOKENS) + 1)
    }

    fn tokens(&self) -> usize {
        self.prompt + self.branches * (self.own + WARM + self.steps)
    }

    /// Tokens that one method's measurement puts through the model.
    fn measured_tokens(&self) -> usize {
        let stepped = |step| (self.turn(step)..self.branches).step_by(self.turns).len();
        self.prompt + self.branches * self.own + (0..WARM + self.steps).map(stepped).sum::<usize>()
    }

    /// The group whose turn a step is.
    fn turn(&self, step: usize) -> usize {
        step / TURN % self.turns
    }

    fn check(&self, context: usize) -> Result<()> {
        let longest = self.prompt + self.own + WARM + self.steps;
        if self.turns == 0 || self.turns > self.branches {
            return Err(Error::input(format!("--turns {}: give 1 to {}, the branches", self.turns, self.branches)));
        }
        if self.prompt == 0 || self.branches == 0 || self.steps == 0 || !(self.budget > 0.0 && self.budget <= 1.0) {
            return Err(Error::input(
                "bench offload wants a prompt, a branch, a step, and a budget above 0 up to 100 %",
            ));
        }
        if longest > context {
            return Err(Error::limit(format!("paths of {longest} tokens do not fit the model's context of {context}")));
        }
        Ok(())
    }
}

/// One method's row; per step where it does not say otherwise.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Row {
    pub method: String,
    /// Bytes of the device tier; 0 for `none`, which has everything there.
    pub kv_budget: u64,
    pub link_bytes_per_step: u64,
    pub to_device_bytes_per_step: u64,
    pub to_host_bytes_per_step: u64,
    /// Tokens that the step's rows attended to, a layer and K/V head.
    pub rows_read_per_layer: f64,
    /// Not measured here; see `--quality`.
    pub perplexity: Option<f64>,
    /// Bytes to the device against those of `full`, and of `infinigen`, where they were measured before.
    pub to_full: Option<f64>,
    pub to_infinigen: Option<f64>,
    pub hit_rate: Option<f64>,
    pub evictions_per_step: f64,
    /// Pages that left with branches that wait, and pages that came back before they were wanted.
    pub moved_out_per_step: f64,
    pub moved_back_per_step: f64,
    pub attended_share: Option<f64>,
    pub missed_mass: Option<f64>,
    pub device_peak_bytes: u64,
    /// Bytes a second to a card while something was on its way, and the share of that time in which it computed.
    pub link_bytes_per_s: Option<f64>,
    pub overlap: Option<f64>,
    pub tokens_per_s: f64,
    /// Seconds against those with everything on the device, where that (`none`) was measured before.
    pub times_resident: Option<f64>,
    pub tree: String,
    pub tree_bytes: u64,
}

/// Measures each case; a row is told as soon as it is there. `tick` hears how many of a tree's tokens are through the model,
/// of so many: once when they are drawn, and again for each row.
pub fn run(
    model: Model,
    options: &EngineOptions,
    (text, spec, cases): (&str, &Spec, &[Case]),
    tick: &mut dyn FnMut(usize, usize),
    tell: &mut dyn FnMut(&str, &Row) -> Result<()>,
) -> Result<()> {
    spec.check(model.weights.shape.context)?;
    let mut prompt = model.tokenizer.encode(text, Special::Text);
    let own = if spec.own_text { spec.own } else { 0 };
    if prompt.len() < spec.prompt + spec.branches * own {
        return Err(Error::input(format!(
            "the text has {} tokens, prompt and branches are to have {}",
            prompt.len(),
            spec.prompt + spec.branches * own
        )));
    }
    let given: Vec<Vec<u32>> = (0..spec.branches).map(|b| prompt[spec.prompt + b * own..][..own].to_vec()).collect();
    prompt.truncate(spec.prompt);
    let mut bench = Bench::load(model, options, cases, spec.pages())?;
    let tree_bytes = spec.tokens() as u64 * bench.token_bytes;
    let budget = (tree_bytes as f64 * spec.budget) as u64;
    let tree = format!("{} + {} x {}", spec.prompt, spec.branches, spec.own + WARM + spec.steps);
    let mut tree_of = Tree { prompt, tokens: given };
    tree_of.draw(&mut bench, spec, &mut Tokens { done: 0, total: spec.tokens() - 1, tick: &mut *tick })?;
    let (mut full, mut infinigen, mut resident) = (None, None, None);
    let moves = |case: &Case| if spec.turns > 1 && case.method != Method::None { &[false, true][..] } else { &[false] };
    for (case, &told) in cases.iter().flat_map(|case| moves(case).iter().map(move |told| (case, told))) {
        let method = bench.name(*case);
        let method = if told { format!("{method}, moves") } else { method };
        let mut row = Row { method, tree: tree.clone(), tree_bytes, ..Row::default() };
        if case.method == Method::None {
            bench.llama.refetch(None, &[])?;
        } else {
            let fetch = bench.fetch(*case, bench.options)?;
            row.kv_budget = budget;
            bench.llama.refetch(Some((budget, fetch)), &[])?;
        }
        bench.device = bench.llama.device().describe();
        let mut tokens = Tokens { done: 0, total: spec.measured_tokens(), tick: &mut *tick };
        tree_of.measure(&mut bench, (spec, told), &mut row, &mut tokens)?;
        row.times_resident = resident.map(|resident: f64| resident / row.tokens_per_s);
        match case.method {
            Method::Full => full = full.or(Some(row.to_device_bytes_per_step)),
            Method::None => (resident, row.times_resident) = (Some(row.tokens_per_s), Some(1.0)),
            Method::Infinigen => infinigen = infinigen.or(Some(row.to_device_bytes_per_step)),
            _ => {}
        }
        let against = |other: Option<u64>| other.map(|n| row.to_device_bytes_per_step as f64 / n.max(1) as f64);
        (row.to_full, row.to_infinigen) = (against(full), against(infinigen));
        tell(&bench.device, &row)?;
    }
    Ok(())
}

/// How many tokens are through the model, of how many.
struct Tokens<'a> {
    done: usize,
    total: usize,
    tick: &'a mut dyn FnMut(usize, usize),
}

impl Tokens<'_> {
    fn add(&mut self, tokens: usize) {
        self.done += tokens;
        (self.tick)(self.done, self.total);
    }

    /// Reads tokens into a branch, a step's at a time.
    fn fill(&mut self, run: &mut Run<'_>, branch: BranchId, tokens: &[u32], rows: usize) -> Result<()> {
        for chunk in tokens.chunks(rows) {
            run.fill(branch, chunk, rows)?;
            self.add(chunk.len());
        }
        Ok(())
    }
}

/// The tokens of the tree.
struct Tree {
    prompt: Vec<u32>,
    /// What each branch has after the prompt.
    tokens: Vec<Vec<u32>>,
}

impl Tree {
    /// Draws the branches' tokens from the model with everything on the device.
    fn draw(&mut self, bench: &mut Bench, spec: &Spec, through: &mut Tokens<'_>) -> Result<()> {
        bench.llama.refetch(None, &[])?;
        let rows = bench.limits.step_rows;
        let mut run = Run::new(&mut bench.llama, &bench.limits);
        let trunk = run.tree.open();
        let (last, rest) = self.prompt.split_last().ok_or_else(|| Error::fault("no prompt"))?;
        through.fill(&mut run, trunk, rest, rows)?;
        let branches: Vec<BranchId> = (0..spec.branches).map(|_| run.tree.fork(trunk)).collect();
        let sampler = Sampler::new(&Sampling { temperature: 1.0, ..Sampling::default() })?;
        let mut random: Vec<_> = (0..spec.branches).map(|b| stream(spec.seed, "branch", &[b as u64])).collect();
        let mut next = vec![*last; spec.branches];
        for ((branch, next), own) in branches.iter().zip(&mut next).zip(&self.tokens) {
            if let Some((newest, others)) = own.split_last() {
                through.fill(&mut run, *branch, &[&[*next], others].concat(), rows)?;
                *next = *newest;
            }
        }
        let given = self.tokens.first().map_or(0, Vec::len);
        for _ in given..spec.own + WARM + spec.steps {
            run.clear();
            for (row, (branch, token)) in branches.iter().zip(&next).enumerate() {
                run.push(*branch, &[*token])?;
                run.want(row);
            }
            run.forward()?;
            for (b, logits) in run.logits().enumerate() {
                next[b] = sampler.pick(&mut LogitRow::of(logits), None, &[], &mut random[b])?.token;
                self.tokens[b].push(next[b]);
            }
            through.add(branches.len());
        }
        Ok(())
    }

    /// The same tokens again, with the method that the device has now; the device is `told` which branches wait.
    fn measure(
        &self,
        bench: &mut Bench,
        (spec, told): (&Spec, bool),
        row: &mut Row,
        through: &mut Tokens<'_>,
    ) -> Result<()> {
        let (rows, layers) = (bench.limits.step_rows, bench.layers);
        let mut run = Run::new(&mut bench.llama, &bench.limits);
        let trunk = run.tree.open();
        through.fill(&mut run, trunk, &self.prompt, rows)?;
        let mut branches = Vec::new();
        for tokens in &self.tokens {
            let branch = run.tree.fork(trunk);
            through.fill(&mut run, branch, &tokens[..spec.own], rows)?;
            branches.push(branch);
        }
        let mut before = run.link().unwrap_or_default();
        let mut began = Instant::now();
        let (mut read, mut written) = (0, 0);
        let mut next = vec![spec.own; branches.len()];
        for step in 0..WARM + spec.steps {
            if step == WARM {
                (before, began, read, written) = (run.link().unwrap_or_default(), Instant::now(), 0, 0);
            }
            let turn = spec.turn(step);
            if told && step % TURN == 0 {
                let group = |own| (0..branches.len()).filter(move |b| (b % spec.turns == turn) == own);
                run.expect(group(true).map(|b| branches[b]), group(false).map(|b| branches[b]));
            }
            run.clear();
            for b in (turn..branches.len()).step_by(spec.turns) {
                run.push(branches[b], &self.tokens[b][next[b]..][..1])?;
                run.want_last();
                next[b] += 1;
                written += 1;
            }
            run.forward()?;
            read += run.io().unique_tokens;
            through.add(run.rows());
        }
        let seconds = began.elapsed().as_secs_f64();
        let after = run.link().unwrap_or_default();
        let steps = spec.steps as f64;
        let per_step = |bytes: u64| (bytes as f64 / steps) as u64;
        row.to_device_bytes_per_step = per_step(after.to_device_bytes - before.to_device_bytes);
        row.to_host_bytes_per_step = per_step(after.to_host_bytes - before.to_host_bytes);
        row.link_bytes_per_step = row.to_device_bytes_per_step + row.to_host_bytes_per_step;
        let (attended, past) = (after.attended - before.attended, after.past - before.past);
        let (hits, fetches) = (after.hits - before.hits, after.fetches - before.fetches);
        row.attended_share = (past > 0).then(|| attended as f64 / past as f64);
        let share = row.attended_share.unwrap_or(1.0);
        // Rows that select read a share of their paths; the others read each token of the tree once.
        row.rows_read_per_layer = match past {
            0 => read as f64 / steps,
            _ => past as f64 * share / (steps * (layers * bench_kv_heads(bench)) as f64),
        };
        row.hit_rate = (hits + fetches > 0).then(|| hits as f64 / (hits + fetches) as f64);
        row.evictions_per_step = (after.evictions - before.evictions) as f64 / steps;
        let samples = after.samples - before.samples;
        row.missed_mass = (samples > 0).then(|| (after.missed - before.missed) / samples as f64);
        row.device_peak_bytes = after.peak_bytes;
        let fetching = after.fetch_seconds - before.fetch_seconds;
        if fetching > 0.0 {
            let waited = after.waited_seconds - before.waited_seconds;
            row.link_bytes_per_s = Some((after.to_device_bytes - before.to_device_bytes) as f64 / fetching);
            row.overlap = Some((1.0 - waited / fetching).max(0.0));
        }
        row.moved_out_per_step = (after.moved_out - before.moved_out) as f64 / steps;
        row.moved_back_per_step = (after.moved_back - before.moved_back) as f64 / steps;
        row.tokens_per_s = f64::from(written) / seconds;
        Ok(())
    }
}

fn bench_kv_heads(bench: &Bench) -> usize {
    bench.limits.parallel.kv_heads
}

impl Row {
    pub const HEAD: &'static str = "method                  budget  to device   to host  x full  x infinigen   hits  read %  missed %  peak device   GB/s  hidden %    tok/s  x resident";
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ratio = |x: Option<f64>| x.map_or("-".into(), |x| format!("{x:.3}"));
        let percent = |x: Option<f64>| x.map_or("-".into(), |x| format!("{:.1}", 100.0 * x));
        write!(
            f,
            "{:<21} {:>8} {:>10} {:>9} {:>7} {:>12} {:>6} {:>7} {:>9} {:>12} {:>6} {:>9} {:>8.1} {:>11}",
            self.method,
            Human(self.kv_budget).to_string(),
            Human(self.to_device_bytes_per_step).to_string(),
            Human(self.to_host_bytes_per_step).to_string(),
            ratio(self.to_full),
            ratio(self.to_infinigen),
            percent(self.hit_rate),
            percent(self.attended_share),
            percent(self.missed_mass),
            Human(self.device_peak_bytes).to_string(),
            self.link_bytes_per_s.map_or("-".into(), |speed| format!("{:.1}", speed / 1e9)),
            percent(self.overlap),
            self.tokens_per_s,
            self.times_resident.map_or("-".into(), |times| format!("{times:.2}"))
        )
    }
}
