//! Decoding measured without requests: a prompt, branches on it, and steps of one token a branch, with the same plan,
//! batch and sampler that the engine uses. For `totara bench decode`; what `bench trace` and `bench perplexity` need of
//! it is in `run.rs`.

mod run;

pub use run::{Run, Split};

use super::Limits;
use super::sample::Sampler;
use crate::base::rng::stream;
use crate::base::{Error, Result};
use crate::kv::PAGE_TOKENS;
use crate::kv::tree::BranchId;
use crate::model::llama::Llama;
use rand::Rng;
use std::time::Instant;

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
    let mut run = Run::new(llama, limits);
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
        run.clear();
        for (&branch, &token) in branches.iter().zip(&next) {
            run.push(branch, &[token])?;
            run.want_last();
        }
        run.split.host += began.elapsed().as_secs_f64();
        run.forward()?;
        let sampling = Instant::now();
        for (token, logits) in next.iter_mut().zip(run.logits()) {
            *token = sampler.pick(logits, None, &[], &mut stream(spec.seed, "greedy", &[]))?.token;
        }
        run.split.host += sampling.elapsed().as_secs_f64();
        run.split.total += began.elapsed().as_secs_f64();
    }
    Ok(Measured {
        prefill,
        prefill_tokens: spec.prompt,
        decode: run.split,
        decode_tokens: spec.branches * spec.steps,
        kv_bytes_per_step: run.kv_bytes(),
    })
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
