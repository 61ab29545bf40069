//! Decoding measured without requests: a prompt, branches on it, and steps of one token a branch, with the same plan,
//! batch and sampler that the engine uses. For `totara bench decode`; what `bench trace` and `bench perplexity` need of
//! it is in `run.rs`.

mod run;

pub use run::{Run, Split};

use super::Limits;
use super::sample::Sampler;
use super::speculate::{self, Load, Luck, MOST_NODES};
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
    /// Tokens decoded on each branch: as many steps, without drafts.
    pub steps: usize,
    pub seed: u64,
}

/// A branch that grows.
struct Growing {
    branch: BranchId,
    path: Vec<u32>,
    /// Tokens it has yet to make.
    left: usize,
    luck: Luck,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Measured {
    pub prefill: Split,
    pub prefill_tokens: usize,
    /// All measured steps together.
    pub decode: Split,
    pub decode_tokens: usize,
    /// Steps it took; fewer than tokens a branch where drafts were accepted.
    pub decode_steps: usize,
    /// Branches' steps with a draft, drafted tokens, and accepted ones.
    pub drafts: usize,
    pub drafted: usize,
    pub accepted: usize,
    /// K/V bytes one step read at the end, over all layers.
    pub kv_bytes_per_step: u64,
}

impl Spec {
    /// Pages the whole takes without drafts: the first branch goes on in the prompt's last page, the others begin pages of
    /// their own where that one is full to.
    pub fn pages(&self) -> usize {
        let tail = self.prompt % PAGE_TOKENS;
        let own = (tail + self.own + self.steps).div_ceil(PAGE_TOKENS);
        self.prompt.div_ceil(PAGE_TOKENS) + self.branches * own - usize::from(tail > 0)
    }
}

/// Runs a spec on a model with an empty memory. `tick` hears how many tokens are done, of how many.
pub fn decode(llama: &mut Llama, limits: &Limits, spec: &Spec, tick: &mut dyn FnMut(usize, usize)) -> Result<Measured> {
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
    let (pages, room) = (spec.pages(), llama.device().pages());
    if pages > room {
        return Err(Error::limit(format!(
            "bench decode takes {pages} pages of {PAGE_TOKENS} tokens, K/V memory has {room}: raise {}, or measure fewer branches",
            limits.budget_flag
        )));
    }
    let total = spec.prompt + spec.branches * (spec.own + spec.steps);
    let mut done = spec.prompt;
    tick(0, total);
    let mut run = Run::new(llama, limits);
    let mut random = stream(spec.seed, "bench decode", &[]);
    let mut tokens = |n: usize| -> Vec<u32> { (0..n).map(|_| random.random_range(0..limits.vocab as u32)).collect() };
    let trunk = run.tree.open();
    let prompt = tokens(spec.prompt);
    run.fill(trunk, &prompt, limits.step_rows)?;
    let prefill = std::mem::take(&mut run.split);

    let mut growing = Vec::with_capacity(spec.branches);
    for _ in 0..spec.branches {
        let branch = run.tree.fork(trunk);
        let own = tokens(spec.own);
        run.fill(branch, &own, limits.step_rows)?;
        let path = [&prompt[..], &own, &tokens(1)].concat();
        done += spec.own;
        tick(done, total);
        growing.push(Growing { branch, path, left: spec.steps, luck: Luck::default() });
    }
    run.split = Split::default();
    let mut found = Measured {
        prefill,
        prefill_tokens: spec.prompt,
        decode_tokens: spec.branches * spec.steps,
        ..Measured::default()
    };
    while growing.iter().any(|one| one.left > 0) {
        step(&mut run, limits, &mut growing, &mut found)?;
        tick(total - growing.iter().map(|one| one.left).sum::<usize>(), total);
    }
    found.decode = run.split;
    found.kv_bytes_per_step = run.kv_bytes();
    Ok(found)
}

/// One step of all branches that have tokens to make.
fn step(run: &mut Run<'_>, limits: &Limits, growing: &mut [Growing], found: &mut Measured) -> Result<()> {
    let began = Instant::now();
    run.clear();
    let mut active: Vec<&mut Growing> = growing.iter_mut().filter(|one| one.left > 0).collect();
    for one in &active {
        run.push(one.branch, &one.path[one.path.len() - 1..])?;
        run.want_last();
    }
    let mut placed = Vec::new();
    let mut load = Load::new(active.len(), run.row_cost());
    for one in active.iter().filter(|_| limits.speculate) {
        let most = MOST_NODES.min(limits.step_rows.saturating_sub(run.rows()));
        let draft = speculate::draft(&one.path, &one.luck, &mut load, most, one.left - 1, |_| true);
        let draft = run.draft(one.branch, &draft);
        found.drafts += usize::from(!draft.is_empty());
        found.drafted += draft.len();
        placed.push(draft);
    }
    run.split.host += began.elapsed().as_secs_f64();
    run.forward()?;
    let sampling = Instant::now();
    let sampler = Sampler::greedy();
    let mut random = stream(0, "greedy", &[]);
    let mut placed = placed.into_iter();
    for (at, one) in active.iter_mut().enumerate() {
        let draft = placed.next();
        let (mut wanted, mut node) = (at, None);
        loop {
            let token = sampler.pick(&mut run.row(wanted), None, &[], &mut random)?.token;
            one.path.push(token);
            one.left -= 1;
            let Some(draft) = draft.as_ref().filter(|_| one.left > 0) else { break };
            draft.learn(&mut one.luck, node, token);
            let Some(next) = draft.child(node, token) else { break };
            one.branch = draft.take_over(&mut run.tree, one.branch, next);
            (wanted, node) = (draft.wanted(next), Some(next));
            found.accepted += 1;
        }
        if let Some(draft) = draft {
            draft.release(&mut run.tree);
            run.tree.join(one.branch);
        }
    }
    found.decode_steps += 1;
    run.split.host += sampling.elapsed().as_secs_f64();
    run.split.total += began.elapsed().as_secs_f64();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;

    #[test]
    fn a_spec_takes_no_more_pages_than_it_says_and_counts_its_tokens() {
        let spec = Spec { prompt: 50, branches: 5, own: 7, steps: 4, seed: 1 };
        let (mut llama, limits, script) = testing::llama(spec.pages());
        let mut told = Vec::new();
        let measured = decode(&mut llama, &limits, &spec, &mut |done, total| told.push((done, total))).unwrap();
        assert!(told.is_sorted() && told.iter().all(|&(_, total)| total == 50 + 5 * 11), "{told:?}");
        assert!(told[0].0 == 0 && told[told.len() - 1].0 == 105 && told.len() == 1 + 5 + 4, "{told:?}");
        assert_eq!((measured.prefill_tokens, measured.decode_tokens), (50, 20));
        assert_eq!(script.lock().unwrap().steps, [50, 7, 7, 7, 7, 7, 5, 5, 5, 5]);
        assert_eq!((measured.decode_steps, measured.drafts), (4, 0));
        assert!(measured.kv_bytes_per_step > 0);
        let (mut small, limits, script) = testing::llama(spec.pages() - 1);
        assert!(decode(&mut small, &limits, &spec, &mut |_, _| {}).unwrap_err().message().contains("--kv-budget"));
        assert!(script.lock().unwrap().steps.is_empty(), "what does not fit is refused before anything is computed");
        assert!(decode(&mut small, &limits, &Spec { steps: 0, ..spec }, &mut |_, _| {}).is_err());
    }

    #[test]
    fn pages_are_counted_to_the_last_one() {
        for (prompt, branches, own, steps, pages) in
            [(48, 3, 12, 4, 6), (50, 3, 10, 4, 6), (50, 3, 10, 5, 9), (1, 4, 0, 15, 4), (64, 32, 0, 16, 36)]
        {
            let spec = Spec { prompt, branches, own, steps, seed: 2 };
            assert_eq!(spec.pages(), pages, "{spec:?}");
            let (mut llama, limits, _) = testing::llama(pages);
            decode(&mut llama, &limits, &spec, &mut |_, _| {}).unwrap();
        }
    }

    #[test]
    fn drafts_bring_the_same_texts_in_fewer_steps() {
        let spec = Spec { prompt: 30, branches: 2, own: 3, steps: 60, seed: 3 };
        let run = |speculate| {
            let (mut llama, mut limits, script) = testing::llama(200);
            limits.speculate = speculate;
            script.lock().unwrap().memory = Some(1);
            let measured = decode(&mut llama, &limits, &spec, &mut |_, _| {}).unwrap();
            let asked = script.lock().unwrap().asked.clone();
            (measured, asked)
        };
        let ((plain, texts), (drafted, same)) = (run(false), run(true));
        assert_eq!((plain.decode_steps, plain.decode_tokens), (60, 120));
        assert!(drafted.decode_tokens == 120 && drafted.decode_steps < 40 && drafted.accepted > 40, "{drafted:?}");
        // Every path up to the last 60 tokens of a branch was asked for in both; rejected guesses in one of them only.
        assert!(texts.iter().all(|path| same.contains(path)));
    }

    #[test]
    fn a_full_batch_drafts_nothing() {
        let drafted = |branches, row_cost| {
            let (mut llama, mut limits, script) = testing::llama(800);
            limits.speculate = true;
            {
                let mut script = script.lock().unwrap();
                (script.memory, script.row_cost) = (Some(1), Some(row_cost));
            }
            let spec = Spec { prompt: 30, branches, own: 3, steps: 100, seed: 3 };
            let measured = decode(&mut llama, &limits, &spec, &mut |_, _| {}).unwrap();
            (measured.drafted, measured.decode_steps)
        };
        // All branches end together, so the batch stays full.
        assert_eq!(drafted(40, 0.25), (0, 100));
        assert!(drafted(40, 1e-6).0 > 0 && drafted(1, 0.25).1 < 100);
    }
}
