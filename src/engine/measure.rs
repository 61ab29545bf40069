//! Decoding measured without requests: a prompt, branches on it, and steps of one token a branch, with the same plan,
//! batch and sampler that the engine uses. For `totara bench decode`.

use super::Limits;
use super::batch::Batch;
use super::sample::Sampler;
use crate::attention::Planner;
use crate::base::rng::stream;
use crate::base::{Error, Result};
use crate::device::{HeadRow, Step, Times};
use crate::kv::PAGE_TOKENS;
use crate::kv::tree::{BranchId, TokenTree};
use crate::model::llama::Llama;
use rand::Rng;
use std::time::{Duration, Instant};

/// What is decoded. Tokens are drawn at random from the seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spec {
    /// Tokens all branches share.
    pub prompt: usize,
    pub branches: usize,
    /// Tokens each branch has of its own before the first measured step.
    pub own: usize,
    /// Measured steps.
    pub steps: usize,
    pub seed: u64,
}

/// Seconds, and what they went to.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Split {
    pub total: f64,
    pub attention: f64,
    pub products: f64,
    pub plan: f64,
    /// Token tree, sampling and packing.
    pub host: f64,
}

impl Split {
    /// Norms, rotations, the launch of threads: what is left.
    pub fn rest(&self) -> f64 {
        (self.total - self.attention - self.products - self.plan - self.host).max(0.0)
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Measured {
    pub prefill: Split,
    pub prefill_tokens: usize,
    /// All measured steps together.
    pub decode: Split,
    pub decode_tokens: usize,
    /// K/V bytes one step read at the end, over all layers.
    pub kv_bytes_per_step: u64,
}

impl Spec {
    /// Pages the whole takes: each branch begins a page of its own.
    pub fn pages(&self) -> usize {
        let own = self.own + self.steps;
        self.prompt.div_ceil(PAGE_TOKENS) + self.branches * (own.div_ceil(PAGE_TOKENS) + 1)
    }
}

/// Runs a spec on a model with an empty memory.
pub fn decode(llama: &mut Llama, limits: &Limits, spec: &Spec) -> Result<Measured> {
    if spec.prompt == 0 || spec.branches == 0 || spec.steps == 0 {
        return Err(Error::input("bench decode wants at least one prompt token, one branch and one step"));
    }
    let longest = spec.prompt + spec.own + spec.steps;
    if longest > limits.context {
        return Err(Error::limit(format!(
            "bench decode with paths of {longest} tokens does not fit the model's context of {}",
            limits.context
        )));
    }
    let mut run = Run {
        tree: TokenTree::new(llama.device().pages()),
        planner: Planner::with_parallel(limits.method, limits.parallel),
        llama,
        batch: Batch::default(),
        logits: Vec::new(),
        split: Split::default(),
        kv_tokens: 0,
    };
    let mut random = stream(spec.seed, "bench decode", &[]);
    let mut tokens = |n: usize| -> Vec<u32> { (0..n).map(|_| random.random_range(0..limits.vocab as u32)).collect() };
    let trunk = run.tree.open();
    run.fill(trunk, &tokens(spec.prompt), limits.step_rows)?;
    let prefill = std::mem::take(&mut run.split);

    let branches: Vec<BranchId> = (0..spec.branches).map(|_| run.tree.fork(trunk)).collect();
    for &branch in &branches {
        run.fill(branch, &tokens(spec.own), limits.step_rows)?;
    }
    let mut next = tokens(spec.branches);
    let sampler = Sampler::greedy();
    run.split = Split::default();
    for _ in 0..spec.steps {
        let began = Instant::now();
        run.batch.clear();
        for (&branch, &token) in branches.iter().zip(&next) {
            run.push(branch, &[token])?;
            run.batch.wanted.push(run.batch.len() - 1);
        }
        run.split.host += began.elapsed().as_secs_f64();
        run.forward()?;
        let sampling = Instant::now();
        for (token, logits) in next.iter_mut().zip(&run.logits) {
            *token = sampler.pick(logits, None, &[], &mut stream(spec.seed, "greedy", &[]))?.token;
        }
        run.split.host += sampling.elapsed().as_secs_f64();
        run.split.total += began.elapsed().as_secs_f64();
    }
    let page_bytes = run.llama.device().page_bytes() as u64;
    Ok(Measured {
        prefill,
        prefill_tokens: spec.prompt,
        decode: run.split,
        decode_tokens: spec.branches * spec.steps,
        kv_bytes_per_step: run.kv_tokens * page_bytes / PAGE_TOKENS as u64,
    })
}

struct Run<'a> {
    llama: &'a mut Llama,
    tree: TokenTree,
    planner: Planner,
    batch: Batch,
    logits: Vec<Vec<f32>>,
    split: Split,
    /// K/V tokens a layer read in the last step.
    kv_tokens: u64,
}

impl Run<'_> {
    fn push(&mut self, branch: BranchId, tokens: &[u32]) -> Result<()> {
        let first = self.tree.len(branch);
        let appended = self.tree.append(branch, tokens, &mut self.batch.slots);
        appended.map_err(|e| Error::limit(format!("{e}: raise --kv-budget, or measure fewer branches")))?;
        self.batch.push(branch, first, tokens);
        Ok(())
    }

    /// Appends tokens in chunks without wanting logits.
    fn fill(&mut self, branch: BranchId, tokens: &[u32], rows: usize) -> Result<()> {
        for chunk in tokens.chunks(rows) {
            let began = Instant::now();
            self.batch.clear();
            self.push(branch, chunk)?;
            self.split.host += began.elapsed().as_secs_f64();
            self.forward()?;
            self.split.total += began.elapsed().as_secs_f64();
        }
        // Steps without logits may still be under way.
        let began = Instant::now();
        let before = self.llama.device().times();
        self.llama.finish()?;
        self.took_since(before);
        self.split.total += began.elapsed().as_secs_f64();
        Ok(())
    }

    fn took_since(&mut self, before: Times) {
        let after = self.llama.device().times();
        self.split.attention += after.attention - before.attention;
        self.split.products += after.products - before.products;
    }

    fn forward(&mut self) -> Result<()> {
        let Batch { tokens, positions, slots, rows, wanted, .. } = &self.batch;
        let before = self.llama.device().times();
        let planning = Instant::now();
        let work = self.planner.plan(&self.tree, rows);
        let planned: Duration = planning.elapsed();
        self.kv_tokens = work.io.kv_tokens;
        let heads: Vec<HeadRow<'_>> = wanted.iter().map(|&row| HeadRow { row, allowed: None }).collect();
        self.logits.clear();
        self.llama.forward(&Step { tokens, positions, slots, work }, &heads, &mut self.logits)?;
        self.split.plan += planned.as_secs_f64();
        self.took_since(before);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;

    #[test]
    fn a_spec_takes_no_more_pages_than_it_says_and_counts_its_tokens() {
        let spec = Spec { prompt: 50, branches: 5, own: 7, steps: 4, seed: 1 };
        let (mut llama, limits, script) = testing::llama(spec.pages());
        let measured = decode(&mut llama, &limits, &spec).unwrap();
        assert_eq!((measured.prefill_tokens, measured.decode_tokens), (50, 20));
        assert_eq!(script.lock().unwrap().steps, [50, 7, 7, 7, 7, 7, 5, 5, 5, 5]);
        assert!(measured.kv_bytes_per_step > 0);
        let (mut small, limits, _) = testing::llama(4);
        assert!(decode(&mut small, &limits, &spec).unwrap_err().message().contains("--kv-budget"));
        assert!(decode(&mut small, &limits, &Spec { steps: 0, ..spec }).is_err());
    }
}
