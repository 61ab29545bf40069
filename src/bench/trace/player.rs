//! Plays one recorded run on a model: which branch makes a token when is the record's, what it costs is counted.

use crate::base::{Error, Result};
use crate::bench::attention::deft::{Run as Recorded, Speculative};
use crate::engine::measure::{Run, Split};
use crate::engine::sample::Sampler;
use crate::engine::speculate::Node;
use crate::kv::tree::BranchId;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use std::time::Instant;

/// Sums while a recording is replayed.
#[derive(Default)]
pub(super) struct Sums {
    pub(super) iterations: u64,
    pub(super) tokens: u64,
    pub(super) prefill: f64,
    pub(super) decode: Split,
    pub(super) kv_bytes: u64,
    pub(super) radix_bytes: u64,
    pub(super) partial_bytes: u64,
}

/// One recorded run while it is replayed.
pub(super) struct Player<'a, 'b> {
    pub(super) run: Run<'a>,
    pub(super) random: ChaCha8Rng,
    pub(super) vocab: u32,
    pub(super) context: usize,
    pub(super) rows: usize,
    pub(super) partial_row_bytes: u64,
    pub(super) sums: &'b mut Sums,
    pub(super) tick: &'b mut dyn FnMut(),
}

impl Player<'_, '_> {
    fn made_up(&mut self, tokens: usize) -> Vec<u32> {
        (0..tokens).map(|_| self.random.random_range(0..self.vocab)).collect()
    }

    fn fits(&self, path: usize) -> Result<()> {
        if path <= self.context {
            return Ok(());
        }
        Err(Error::limit(format!(
            "a recorded path of {path} tokens does not fit the model's context of {}: take a model with a longer one, \
             or fewer --steps",
            self.context
        )))
    }

    /// Reads a prompt, or what of one comes after `branch`.
    fn prefill(&mut self, branch: BranchId, tokens: usize) -> Result<()> {
        let ids = self.made_up(tokens);
        self.run.split = Split::default();
        self.run.fill(branch, &ids, self.rows)?;
        self.sums.prefill += self.run.split.total;
        self.run.split = Split::default();
        Ok(())
    }

    pub(super) fn reasoning(&mut self, recorded: &Recorded, iterations: usize) -> Result<()> {
        let nodes = recorded.nodes();
        let mut branches: Vec<Option<BranchId>> = vec![None; nodes.len()];
        let mut next = self.made_up(nodes.len());
        // Children that did not begin yet.
        let mut waiting = vec![0usize; nodes.len()];
        let mut lengths = Vec::with_capacity(nodes.len());
        for node in nodes {
            let made = (iterations as i64).min(node.end) - node.start + 1;
            let above: usize = node.parent.map_or(0, |parent| lengths[parent]);
            lengths.push(above + usize::try_from(made).unwrap_or(0));
            if let Some(parent) = node.parent {
                waiting[parent] += 1;
                if nodes[parent].end >= node.start {
                    return Err(Error::input("a recorded branch begins before the one above it ends"));
                }
            }
        }
        self.fits(lengths.iter().copied().max().unwrap_or(0))?;
        let sampler = Sampler::greedy();
        for t in 0..=iterations as i64 {
            let began = Instant::now();
            self.run.clear();
            let mut rows = Vec::new();
            for (at, node) in nodes.iter().enumerate() {
                if branches[at].is_none() && (node.start == t || (t == 0 && node.start < 0)) {
                    let branch = match node.parent {
                        Some(parent) => {
                            waiting[parent] -= 1;
                            let above =
                                branches[parent].ok_or_else(|| Error::fault("a branch began without its parent"))?;
                            self.run.tree.fork(above)
                        }
                        None => self.run.tree.open(),
                    };
                    branches[at] = Some(branch);
                    if t == 0 {
                        // Everything up to iteration 0 is the prompt.
                        self.prefill(branch, (node.end.min(0) - node.start + 1) as usize)?;
                    }
                }
                if t > 0
                    && node.start <= t
                    && t <= node.end
                    && let Some(branch) = branches[at]
                {
                    self.run.push(branch, &next[at..=at])?;
                    self.run.want_last();
                    rows.push(at);
                }
            }
            for (at, node) in nodes.iter().enumerate() {
                // Its path is in the step through its children from now on.
                if node.end < t
                    && waiting[at] == 0
                    && let Some(branch) = branches[at].take()
                {
                    self.run.tree.release(branch);
                    // Never begun again.
                    waiting[at] = usize::MAX;
                }
            }
            if t == 0 {
                continue;
            }
            if !rows.is_empty() {
                self.run.split.host += began.elapsed().as_secs_f64();
                self.run.forward()?;
                let sampling = Instant::now();
                for (wanted, &at) in rows.iter().enumerate() {
                    next[at] = sampler.pick(&mut self.run.row(wanted), None, &[], &mut self.random)?.token;
                }
                self.run.split.host += sampling.elapsed().as_secs_f64();
            }
            self.iterated(began, rows.len());
        }
        self.ended()
    }

    pub(super) fn speculative(&mut self, record: &Speculative, accepted: &[usize], prompt: usize) -> Result<()> {
        let mut depths: Vec<usize> = Vec::with_capacity(record.parents.len());
        for parent in &record.parents {
            depths.push(1 + parent.map_or(0, |parent| depths[parent]));
        }
        let deepest = depths.iter().copied().max().unwrap_or(0);
        let longest = prompt + accepted.iter().sum::<usize>() + deepest;
        self.fits(longest)?;
        let mut trunk = self.run.tree.open();
        self.prefill(trunk, prompt.saturating_sub(1))?;
        let mut last = self.made_up(1)[0];
        let sampler = Sampler::greedy();
        for &accepted in accepted {
            // One of the accepted tokens is the one that is drawn anew.
            let kept = accepted.saturating_sub(1);
            let path_end = match kept {
                0 => None,
                kept => Some(depths.iter().position(|&depth| depth == kept).ok_or_else(|| {
                    Error::input(format!("{accepted} tokens were accepted of a tree {deepest} tokens deep"))
                })?),
            };
            let began = Instant::now();
            self.run.clear();
            self.run.push(trunk, &[last])?;
            self.run.want_last();
            let guess = |(&parent, token): (&Option<usize>, u32)| Node { token, parent, matched: 1 };
            let draft: Vec<Node> = record.parents.iter().zip(self.made_up(record.parents.len())).map(guess).collect();
            let placed = self.run.draft(trunk, &draft);
            if placed.len() < draft.len() {
                return Err(Error::limit("no K/V memory for the token tree: raise --kv-budget"));
            }
            self.run.split.host += began.elapsed().as_secs_f64();
            self.run.forward()?;
            let sampling = Instant::now();
            let mut wanted = 0;
            if let Some(node) = path_end {
                trunk = placed.take_over(&mut self.run.tree, trunk, node);
                wanted = placed.wanted(node);
            }
            last = sampler.pick(&mut self.run.row(wanted), None, &[], &mut self.random)?.token;
            placed.release(&mut self.run.tree);
            self.run.tree.join(trunk);
            self.run.split.host += sampling.elapsed().as_secs_f64();
            self.iterated(began, draft.len() + 1);
        }
        self.ended()
    }

    fn iterated(&mut self, began: Instant, rows: usize) {
        self.run.split.total += began.elapsed().as_secs_f64();
        self.sums.iterations += 1;
        self.sums.tokens += rows as u64;
        if rows > 0 {
            let io = self.run.io();
            self.sums.kv_bytes += self.run.kv_bytes();
            self.sums.radix_bytes += self.run.kv_bytes() / io.kv_tokens.max(1) * io.radix_tokens;
            self.sums.partial_bytes += 2 * io.partial_rows * self.partial_row_bytes;
        }
        (self.tick)();
    }

    fn ended(&mut self) -> Result<()> {
        self.run.finish()?;
        let Split { total, attention, products, plan, host } = self.run.split;
        let sum = &mut self.sums.decode;
        sum.total += total;
        sum.attention += attention;
        sum.products += products;
        sum.plan += plan;
        sum.host += host;
        Ok(())
    }
}
