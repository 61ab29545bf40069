//! The one seam between the model and the hardware: the few operations a step needs.
//!
//! Everything above is the same code for CPU and CUDA. `n` rows are the packed query tokens of one step, from all live
//! branches; `H` = hidden, `Q` = heads × head size, `KV` = K/V heads × head size, `F` = feed-forward size, `V` = vocabulary.
//!
//! | operation | reads | writes |
//! |---|---|---|
//! | `begin` | token ids `[n]`, positions `[n]`, K/V slots `[n]`, attention work | `x [n, H]` = embedding rows |
//! | `attn_in(l)` | `x` | `q [n, Q]`; K/V arena at each row's slot: `norm`, three products, RoPE |
//! | `attend(l)` | `q`, K/V arena through the work's units | `o [n, Q]` |
//! | `attn_out(l)` | `o`, `x` | `x += Wo·o` |
//! | `mlp(l)` | `x` | `x += Wdown·(silu(Wgate·n) ∘ (Wup·n))`, `n = norm(x)` |
//! | `head` | `x` at the wanted rows | logits `[wanted, V]`, of some tokens only, or in short ([`head`]) |

pub mod attend;
mod check;
pub mod cpu;
pub mod cuda;
pub mod head;
pub mod picks;
pub mod selftest;
pub mod speculation;
pub mod tiers;
pub mod weight;

use crate::base::{Error, Result};
use crate::kv::{PageId, Slot};
use attend::{AttendWork, Io};
use head::{HeadRow, Said};
use speculation::{Fetch, Look, partial_token_bytes};
use tiers::Link;

/// Sizes of a Llama model.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_size: usize,
    pub feed_forward: usize,
    pub vocab: usize,
    /// Positions the model was made for.
    pub context: usize,
    pub norm_eps: f32,
    pub rope: Rope,
}

impl Shape {
    /// K/V numbers (not bytes) of one token over all layers.
    pub fn kv_numbers_per_token(&self) -> usize {
        2 * self.layers * self.kv_heads * self.head_size
    }
}

/// Rotary position embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    pub theta: f32,
    /// Divisor of each of the `head_size / 2` frequencies (Llama 3.1 scaling, `rope_freqs.weight`); `None` is all ones.
    pub factors: Option<Vec<f32>>,
    pub layout: RopeLayout,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeLayout {
    /// Pairs (2i, 2i + 1): how GGUF stores Llama's permuted weights.
    Interleaved,
    /// Pairs (i, i + d/2): how safetensors from Transformers store them.
    Halves,
}

/// One packed step.
pub struct Step<'a> {
    pub tokens: &'a [u32],
    pub positions: &'a [u32],
    /// Where each row's K/V is written.
    pub slots: &'a [Slot],
    pub work: &'a AttendWork,
    /// Rows that select what they attend to where the device does that (`tiers`); none where it is shorter.
    pub selects: &'a [bool],
}

/// Seconds by kind of work, since the device was made.
#[derive(Debug, Clone, Copy, Default)]
pub struct Times {
    pub attention: f64,
    pub products: f64,
    /// The processor's own part of a step on a card: its plan, and packing what the card is told.
    pub planning: f64,
}

/// What a step needs of the hardware. Methods are called in the order of the table, once a layer.
pub trait Device: Send {
    /// `cpu avx512-vnni, 2 threads`, `cuda:0 NVIDIA H200`.
    fn describe(&self) -> String;
    /// What a user should know that was found out while it ran, once it was.
    fn note(&self) -> Option<&str> {
        None
    }
    /// Bytes of one K/V page over all layers.
    fn page_bytes(&self) -> usize;
    /// Pages of the arena.
    fn pages(&self) -> usize;
    /// Rows of a step at which prompts are read about as fast as they can be; more make others wait.
    fn step_rows(&self) -> usize {
        256
    }
    /// What one more row of a small step costs, as a share of what a step without rows would: weights are read once for
    /// all rows, so it is far below 1. Speculation drafts by it.
    fn row_cost(&self) -> f64 {
        0.25
    }
    /// Threads that attention's work is to be planned for. A device that makes a plan of its own out of it, as a card does,
    /// needs it whole: as for one.
    fn attend_threads(&self) -> usize {
        1
    }
    /// What attention of the last step moved, where it was `planned` to move so much: a device that makes a plan of its own out
    /// of the work knows better.
    fn attend_io(&self, planned: Io) -> Io {
        planned
    }
    /// Numbers of a partial result beside its values: maximum and sum, unless they are told as one.
    fn partial_sums(&self) -> usize {
        2
    }
    fn begin(&mut self, step: &Step<'_>) -> Result<()>;
    fn attn_in(&mut self, layer: usize) -> Result<()>;
    fn attend(&mut self, layer: usize, work: &AttendWork) -> Result<()>;
    fn attn_out(&mut self, layer: usize) -> Result<()>;
    fn mlp(&mut self, layer: usize) -> Result<()>;
    /// What is wanted of each row's logits, appended to `out` in order.
    fn head(&mut self, wanted: &[HeadRow<'_>], out: &mut Vec<Said>) -> Result<()>;
    /// All logits of the row that was number `wanted` of the last `head`, where that gave a glance.
    fn fetch(&mut self, wanted: usize, out: &mut Vec<f32>) -> Result<()> {
        let _ = out;
        Err(Error::fault(format!("logits of row {wanted} of a step are asked for, which the device did not keep")))
    }
    /// Waits until everything asked for so far is done; `times` is complete then. `head` does so too.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
    /// What is known so far: a device may lag some steps behind.
    fn times(&self) -> Times;
    /// Whose queries had better guess what a selecting layer reads: a layer ahead, where transfers pass behind computation.
    fn usual_look(&self) -> Look {
        Look::Ahead
    }
    /// Bytes of a token's partial keys for one K/V head.
    fn partial_token_bytes(&self, columns: usize) -> usize {
        partial_token_bytes(columns)
    }
    /// Begins anew with a device tier of so many bytes that fetches so, or with everything on the device; what is in memory
    /// at `slots` stays.
    fn refetch(&mut self, _tier: Option<(u64, Fetch)>, _slots: &[Slot]) -> Result<()> {
        Err(Error::input("this device holds all of K/V: use --device cpu"))
    }
    /// Pages whose tokens are gone, told before the step that may use them again.
    fn freed(&mut self, _pages: &[PageId]) {}
    /// What the search expects: rows will see the first of these pages in its next steps, and none will see the others for
    /// a while. Told between steps; takes the place of what was told before.
    fn expect(&mut self, _soon: &[PageId], _later: &[PageId]) {}
    /// What crossed the link between the tiers of K/V; `None` where all of it is on the device. Seconds may be without those of the
    /// last step until [`finish`](Self::finish).
    fn link(&self) -> Option<Link> {
        None
    }
    /// Of each page the share of its K/V, over all layers, that is on the device now; `None` where all of it is.
    fn here(&self) -> Option<Vec<f32>> {
        None
    }
    /// Of each page the share of its K/V, over all layers, that crossed the link in the last step: brought for it, or
    /// gone with a paused branch. `None` where all of K/V is on the device.
    fn moving(&self) -> Option<Vec<f32>> {
        None
    }
}
