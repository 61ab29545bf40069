//! A model driven by hand: steps that the caller packs, with the engine's own batch and plan, and where the time went.
//!
//! One step is `clear`, then `push` and `want_last` for each run of tokens, then `forward`; `row` gives what was wanted, by
//! its number, as samplers see it, and `logits` all of it where `want` asked for that. Nothing is sampled, evicted on purpose or shared beyond what the caller forks.

use crate::attention::Planner;
use crate::base::{Error, Result};
use crate::device::attend::Io;
use crate::device::head::{Ask, HeadRow, Said, Want};
use crate::device::tiers::Link;
use crate::device::{Step, Times};
use crate::engine::Limits;
use crate::engine::batch::Batch;
use crate::engine::sample::row::{Asked, Row};
use crate::engine::speculate::Node;
use crate::engine::speculate::placed::Placed;
use crate::kv::tree::{BranchId, TokenTree};
use crate::kv::{PAGE_TOKENS, PageId};
use crate::model::llama::Llama;
use std::time::Instant;

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

/// A model with an empty memory, and the step that is being packed.
pub struct Run<'a> {
    pub tree: TokenTree,
    /// Summed over all steps; `total` and `host` are the caller's to add, but for [`fill`](Self::fill).
    pub split: Split,
    llama: &'a mut Llama,
    planner: Planner,
    batch: Batch,
    said: Vec<Said>,
    /// Whether all logits are wanted of every row.
    all: bool,
    vocab: usize,
    /// Of the last step, for one layer.
    io: Io,
}

impl<'a> Run<'a> {
    pub fn new(llama: &'a mut Llama, limits: &Limits) -> Self {
        let tree = TokenTree::new(llama.device().pages());
        Self::with_tree(llama, limits, tree)
    }

    /// Goes on with a tree whose K/V the model's device has.
    pub fn with_tree(llama: &'a mut Llama, limits: &Limits, mut tree: TokenTree) -> Self {
        if llama.device().link().is_some() {
            tree.log_freed();
        }
        Self {
            tree,
            split: Split::default(),
            planner: Planner::with_parallel(limits.method, limits.parallel),
            llama,
            batch: Batch::default(),
            said: Vec::new(),
            all: false,
            vocab: limits.vocab,
            io: Io::default(),
        }
    }

    /// Begins a step.
    pub fn clear(&mut self) {
        self.batch.clear();
        self.all = false;
    }

    /// Appends tokens to a branch and to the step.
    pub fn push(&mut self, branch: BranchId, tokens: &[u32]) -> Result<()> {
        let first = self.tree.len(branch);
        let appended = self.tree.append(branch, tokens, &mut self.batch.slots);
        appended.map_err(|e| Error::limit(format!("{e}: raise --kv-budget, or measure fewer branches")))?;
        self.batch.push(branch, first, tokens);
        Ok(())
    }

    /// Has all rows of the step select what they attend to, as in decoding (for a device that does that).
    pub fn select_all(&mut self) {
        self.batch.selects.fill(true);
    }

    /// Appends a draft after `trunk`'s last token, which is in the step already; its nodes' logits are wanted.
    pub fn draft(&mut self, trunk: BranchId, draft: &[Node]) -> Placed {
        Placed::place(&mut self.tree, &mut self.batch, trunk, draft)
    }

    /// What one more row costs on this device, as a share of a step's fixed cost.
    pub fn row_cost(&self) -> f64 {
        self.llama.device().row_cost()
    }

    /// Tells the device that the first of these branches write next, and that the others wait.
    pub fn expect(&mut self, soon: impl Iterator<Item = BranchId>, later: impl Iterator<Item = BranchId>) {
        let soon: Vec<PageId> = soon.flat_map(|b| self.tree.slots(b)).map(|slot| slot.page).collect();
        let later: Vec<PageId> = later.flat_map(|b| self.tree.own_pages(b)).collect();
        self.llama.freed(&self.tree.take_freed());
        self.llama.expect(&soon, &later);
    }

    /// Asks for what a sampler needs of the row that was added last.
    pub fn want_last(&mut self) {
        self.batch.wanted.push(self.batch.len() - 1);
    }

    /// Asks for all logits of row `row` of the step, and with it of all that are wanted.
    pub fn want(&mut self, row: usize) {
        self.batch.wanted.push(row);
        self.all = true;
    }

    /// Rows of the step so far.
    pub fn rows(&self) -> usize {
        self.batch.len()
    }

    /// `[wanted][vocab]` of the last step, where all logits were wanted.
    pub fn logits(&self) -> impl Iterator<Item = &[f32]> {
        self.said.iter().filter_map(Said::logits)
    }

    /// What was wanted first, second, … of the last step, for a sampler without a temperature.
    pub fn row(&mut self, wanted: usize) -> Row<'_> {
        static NOTHING: Asked = Asked { tokens: Vec::new(), more: true, temperature: None };
        Row::said(&self.said[wanted], &NOTHING, self.vocab, self.llama, wanted)
    }

    /// Tokens and rows that attention moved in the last step, for one layer.
    pub fn io(&self) -> Io {
        self.io
    }

    /// What crossed the link between the tiers of K/V so far; `None` where all of it is on the device.
    pub fn link(&self) -> Option<Link> {
        self.llama.device().link()
    }

    /// K/V bytes that attention read in the last step, over all layers.
    pub fn kv_bytes(&self) -> u64 {
        self.io.kv_tokens * self.llama.device().page_bytes() as u64 / PAGE_TOKENS as u64
    }

    /// Appends tokens in steps of up to `rows` without wanting logits, and waits for them.
    pub fn fill(&mut self, branch: BranchId, tokens: &[u32], rows: usize) -> Result<()> {
        for chunk in tokens.chunks(rows) {
            let began = Instant::now();
            self.clear();
            self.push(branch, chunk)?;
            self.split.host += began.elapsed().as_secs_f64();
            self.forward()?;
            self.split.total += began.elapsed().as_secs_f64();
        }
        let began = Instant::now();
        self.finish()?;
        self.split.total += began.elapsed().as_secs_f64();
        Ok(())
    }

    /// Waits for steps without logits, which may still be under way.
    pub fn finish(&mut self) -> Result<()> {
        let before = self.llama.device().times();
        self.llama.finish()?;
        self.took_since(before);
        Ok(())
    }

    /// Plans and runs the step.
    pub fn forward(&mut self) -> Result<()> {
        self.llama.freed(&self.tree.take_freed());
        let Batch { tokens, positions, slots, rows, wanted, selects, .. } = &self.batch;
        let before = self.llama.device().times();
        let planning = Instant::now();
        let work = self.planner.plan(&self.tree, rows);
        self.split.plan += planning.elapsed().as_secs_f64();
        let io = work.io;
        let want = if self.all { Want::All } else { Want::Glance(Ask::PLAIN) };
        let heads: Vec<HeadRow<'_>> = wanted.iter().map(|&row| HeadRow { row, want }).collect();
        self.said.clear();
        self.llama.forward(&Step { tokens, positions, slots, work, selects }, &heads, &mut self.said)?;
        self.io = self.llama.device().attend_io(io);
        self.took_since(before);
        Ok(())
    }

    fn took_since(&mut self, before: Times) {
        let after = self.llama.device().times();
        self.split.attention += after.attention - before.attention;
        self.split.products += after.products - before.products;
        self.split.plan += after.planning - before.planning;
    }
}
