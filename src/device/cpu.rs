//! The CPU device: packed weights, int8 or float products, a paged K/V arena, a few hot threads.
//!
//! | file | what |
//! |---|---|
//! | `simd`, `lanes` | instruction sets, and one arithmetic over all of them |
//! | `form`, `pack` | weights in tiles of 16 rows |
//! | `input`, `product`, `ops` | activations, products, whole operations |
//! | `rope`, `arena`, `attend` | positions, K/V memory, attention |
//! | `hot`, `rows`, `int4` | the few pages and rows of K/V that attention may read, where not all of them |
//! | `selecting`, `partial`, `exact`, `heavy` | which of them a row reads |
//! | `step` | the operations of a step, in order |
//! | `pool`, `shared` | threads |
//!
//! A row's result is a function of its own path: no number depends on the other rows of a step or on threads. Products do
//! not depend on the instruction set; attention's scores do where they are products of integers (`attend/vnni.rs`). Nothing is allocated in a step once the largest one has been seen, except the logits handed out.

#[cfg(target_arch = "x86_64")]
mod amx;
pub mod arena;
pub mod attend;
mod exact;
pub(crate) mod form;
mod head;
mod heavy;
pub mod hot;
pub(crate) mod input;
pub mod int4;
pub(crate) mod lanes;
pub(crate) mod ops;
pub(crate) mod pack;
mod partial;
pub(crate) mod pool;
pub(crate) mod product;
pub(crate) mod rope;
mod rows;
mod selecting;
pub(crate) mod shared;
pub mod simd;
mod step;

use super::check::{check_norm, check_shape, check_size};
use super::weight::{Weight, Weights};
use super::{Shape, Times};
use crate::base::Result;
use crate::device::speculation::{Fetch, Watching};
use crate::kv::Slot;
use arena::{Arena, KvNumber};
use attend::{Attention, Heads, kernels};
use hot::Hot;
use ops::Rows;
use pack::Packed;
use pool::Pool;
use product::Scratch;
use rope::RopeTable;
use simd::Simd;
use std::sync::Mutex;

/// Precision of the activations in products with quantised weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activations {
    /// Blocks of 32 in int8, and attention's scores by int16 where the processor has VNNI: fast; log-probabilities move by up to about 0.5.
    Int8,
    /// f32 throughout.
    F32,
}

#[derive(Debug, Clone, Copy)]
pub struct CpuOptions {
    /// At least 1; see [`default_threads`].
    pub threads: usize,
    pub activations: Activations,
    /// K/V pages of 16 tokens.
    pub pages: usize,
    pub kv: KvNumber,
    /// Normally [`Simd::best`].
    pub simd: Simd,
}

/// The cores this process may use.
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// A worker's scratch.
#[derive(Default)]
pub struct Worker {
    scratch: Scratch,
    /// Gated sums `[row][32]` of one sweep.
    gated: Vec<f32>,
}

struct Layer {
    attn_norm: Vec<f32>,
    wq: Packed,
    wk: Packed,
    wv: Packed,
    wo: Packed,
    mlp_norm: Vec<f32>,
    gate: Packed,
    up: Packed,
    down: Packed,
}

/// What a step's operations pass on to each other.
#[derive(Default)]
struct State {
    positions: Vec<u32>,
    slots: Vec<Slot>,
    /// Residual stream `[n, H]`.
    x: Vec<f32>,
    q: Vec<f32>,
    /// Queries of this layer as guessed before it, and those of the next.
    guess: Vec<f32>,
    guessed: Vec<f32>,
    /// `x` with what is added to it for a guess.
    shifted: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    o: Vec<f32>,
    /// What the next products read.
    rows: Rows,
    /// What `down` reads.
    gated: Rows,
    /// To find a slot that is given twice.
    sorted: Vec<u64>,
}

pub struct CpuDevice {
    shape: Shape,
    options: CpuOptions,
    embed: Packed,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    /// `None`: tied to `embed`.
    output: Option<Packed>,
    arena: Arena,
    /// `None`: attention reads `arena` itself.
    hot: Option<Hot>,
    watching: Option<Watching>,
    attention: Attention,
    rope: RopeTable,
    pool: Pool,
    workers: Vec<Mutex<Worker>>,
    state: State,
    times: Times,
}

impl CpuDevice {
    /// Packs the weights and takes the K/V arena. Errors: sizes that do not fit each other, not enough memory.
    pub fn new(weights: Weights, options: CpuOptions) -> Result<Self> {
        let Weights { shape, embed, layers, norm, output } = weights;
        check_shape(&shape, layers.len())?;
        let pool = Pool::new(options.threads)?;
        let arena = Arena::new(options.kv, options.pages, shape.layers, shape.kv_heads, shape.head_size)?;
        let (h, q, kv) = (shape.hidden, shape.heads * shape.head_size, shape.kv_heads * shape.head_size);
        let pack = |name: &str, weight: &Weight, rows: usize, cols: usize| {
            check_size(name, weight, rows, cols)?;
            Packed::new(weight, &pool).map_err(|e| e.context(name))
        };
        let mut packed = Vec::with_capacity(layers.len());
        for (l, layer) in layers.into_iter().enumerate() {
            let norm = |name: &str, weight: Vec<f32>| check_norm(&format!("layer {l}: {name}"), weight, h);
            let pack =
                |name: &str, weight: Weight, rows, cols| pack(&format!("layer {l}: {name}"), &weight, rows, cols);
            packed.push(Layer {
                attn_norm: norm("attention norm", layer.attn_norm)?,
                wq: pack("query weights", layer.wq, q, h)?,
                wk: pack("key weights", layer.wk, kv, h)?,
                wv: pack("value weights", layer.wv, kv, h)?,
                wo: pack("attention output weights", layer.wo, h, q)?,
                mlp_norm: norm("feed-forward norm", layer.mlp_norm)?,
                gate: pack("gate weights", layer.gate, shape.feed_forward, h)?,
                up: pack("up weights", layer.up, shape.feed_forward, h)?,
                down: pack("down weights", layer.down, h, shape.feed_forward)?,
            });
        }
        // Scores and values are rounded to integers only where activations are.
        let rounded = options.activations == Activations::Int8 && packed.iter().any(|layer| !layer.wq.form.is_float());
        let scores = if rounded { kernels::best() } else { kernels::best().of_f32() };
        let heads = Heads { heads: shape.heads, kv_heads: shape.kv_heads, head_size: shape.head_size };
        let embed = pack("token embedding", &embed, shape.vocab, h)?;
        let output = output.map(|w| pack("output weights", &w, shape.vocab, h)).transpose()?;
        Ok(Self {
            embed,
            layers: packed,
            norm: check_norm("output norm", norm, h)?,
            output,
            attention: Attention::with_kernels(heads, scores)?,
            arena,
            hot: None,
            watching: None,
            rope: RopeTable::new(&shape.rope, shape.head_size),
            workers: (0..pool.threads()).map(|_| Mutex::default()).collect(),
            pool,
            shape,
            options,
            state: State::default(),
            times: Times::default(),
        })
    }

    /// Lets attention read K/V through a device tier of `bytes` alone, while the arena becomes the host tier.
    pub fn offload(&mut self, bytes: u64, fetch: Fetch) -> Result<()> {
        self.hot = Some(Hot::new(&self.arena, &self.shape, bytes, fetch)?);
        Ok(())
    }

    /// Bytes of the packed weights.
    pub fn weight_bytes(&self) -> usize {
        let layers = self.layers.iter().map(|l| {
            [&l.wq, &l.wk, &l.wv, &l.wo, &l.gate, &l.up, &l.down].into_iter().map(Packed::bytes).sum::<usize>()
        });
        self.embed.bytes() + self.output.as_ref().map_or(0, Packed::bytes) + layers.sum::<usize>()
    }
}
