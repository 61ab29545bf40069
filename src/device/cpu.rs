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
//! | `pool`, `shared` | threads |
//!
//! A row's result is a function of its own path: no number depends on the other rows of a step, on threads, or on the
//! instruction set. Nothing is allocated in a step once the largest one has been seen, except the logits handed out.

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

use super::attend::AttendWork;
use super::head::{HeadRow, Said};
use super::weight::{Weight, Weights};
use super::{Device, Shape, Step, Times};
use crate::base::size::Human;
use crate::base::{Error, Result};
use crate::device::speculation::{Fetch, Look, Seen, Watched, Watching};
use crate::device::tiers::Link;
use crate::kv::{PAGE_TOKENS, PageId, Slot};
use arena::{Arena, KvNumber};
use attend::{Attention, Heads};
use hot::Hot;
use ops::{Epilogue, Ops, Projection, Rows, Wants, lock};
use pack::Packed;
use pool::Pool;
use product::{Scratch, weight_row};
use rope::RopeTable;
use selecting::Layer as LayerAt;
use shared::Shared;
use simd::Simd;
use std::sync::Mutex;
use std::time::Instant;

/// Precision of the activations in products with quantised weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activations {
    /// Blocks of 32 in int8: fast; log-probabilities move by up to about 0.5.
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
            if (weight.rows, weight.cols) != (rows, cols) {
                return Err(Error::input(format!(
                    "{name} is [{}, {}], not the [{rows}, {cols}] that the model's sizes ask for",
                    weight.rows, weight.cols
                )));
            }
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
        let embed = pack("token embedding", &embed, shape.vocab, h)?;
        let output = output.map(|w| pack("output weights", &w, shape.vocab, h)).transpose()?;
        Ok(Self {
            embed,
            layers: packed,
            norm: check_norm("output norm", norm, h)?,
            output,
            attention: Attention::new(Heads {
                heads: shape.heads,
                kv_heads: shape.kv_heads,
                head_size: shape.head_size,
            })?,
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

    /// When the queries of `layer` are to be guessed.
    fn look(&self, layer: usize) -> Look {
        let wanted = self.hot.as_ref().map_or(Look::Same, |hot| hot.look(layer));
        if self.watching.is_some() && wanted == Look::Same { Look::Ahead } else { wanted }
    }

    /// Guesses the queries of `layer` from `x` as it is now.
    fn guess(&mut self, layer: usize) {
        let Self { shape, options, layers, hot, watching, rope, pool, workers, state, .. } = self;
        let shift = match watching {
            Some(watching) => watching.shifts.get(layer).map_or(&[][..], |shift| shift),
            None => hot.as_ref().map_or(&[][..], |hot| hot.shift(layer)),
        };
        let n = state.positions.len();
        let width = shape.heads * shape.head_size;
        let Some(Layer { attn_norm, wq, .. }) = layers.get(layer) else { return };
        let State { x, shifted, guessed, rows, positions, .. } = state;
        if !shift.is_empty() {
            shifted.clear();
            shifted.extend(x[..n * shape.hidden].iter().zip(shift.iter().cycle()).map(|(x, shift)| x + shift));
        }
        let x = if shift.is_empty() { x } else { shifted };
        let mut ops = Ops { simd: options.simd, pool, workers };
        rows.shape(n, shape.hidden, Wants::of(options.activations, &[wq]));
        ops.norm(x, |row| row, Some((attn_norm, shape.norm_eps)), rows);
        input::grow(guessed, n * width);
        ops.project(rows, [Projection { weight: wq, out: &mut guessed[..] }], Epilogue::Store);
        let q = Shared::new(guessed);
        pool.run(n.div_ceil(8), &|task, _| {
            for (row, &position) in positions.iter().enumerate().skip(task * 8).take(8) {
                // SAFETY: each row is one task's.
                rope.turn(unsafe { q.slice(row * width..(row + 1) * width) }, position);
            }
        });
    }

    /// Bytes of the packed weights.
    pub fn weight_bytes(&self) -> usize {
        let layers = self.layers.iter().map(|l| {
            [&l.wq, &l.wk, &l.wv, &l.wo, &l.gate, &l.up, &l.down].into_iter().map(Packed::bytes).sum::<usize>()
        });
        self.embed.bytes() + self.output.as_ref().map_or(0, Packed::bytes) + layers.sum::<usize>()
    }
}

pub(super) fn check_shape(shape: &Shape, layers: usize) -> Result<()> {
    let refuse = |what: String| Err(Error::input(format!("this model cannot be run: {what}")));
    let Shape { heads, kv_heads, head_size, .. } = *shape;
    if layers != shape.layers {
        return refuse(format!("{} layers are announced and {layers} given", shape.layers));
    }
    if [shape.layers, shape.hidden, shape.vocab, shape.feed_forward, heads, kv_heads, head_size].contains(&0) {
        return refuse("one of its sizes is 0".into());
    }
    if !heads.is_multiple_of(kv_heads) {
        return refuse(format!("{heads} heads do not share {kv_heads} K/V heads evenly"));
    }
    if !head_size.is_multiple_of(2) {
        return refuse(format!("a head size of {head_size} is odd"));
    }
    if shape.rope.factors.as_ref().is_some_and(|f| f.len() != head_size / 2) {
        return refuse(format!("RoPE factors do not number {}", head_size / 2));
    }
    Ok(())
}

pub(super) fn check_norm(name: &str, weight: Vec<f32>, hidden: usize) -> Result<Vec<f32>> {
    if weight.len() == hidden {
        return Ok(weight);
    }
    Err(Error::input(format!("{name} has {} numbers, not {hidden}", weight.len())))
}

impl Watched for CpuDevice {
    fn watch(&mut self, watching: Option<Watching>) -> Result<()> {
        self.watching = watching;
        Ok(())
    }
}

impl Device for CpuDevice {
    fn describe(&self) -> String {
        let threads = self.pool.threads();
        format!("cpu {}, {threads} thread{}", self.options.simd, if threads == 1 { "" } else { "s" })
    }

    fn page_bytes(&self) -> usize {
        self.arena.page_bytes()
    }

    fn partial_token_bytes(&self, columns: usize) -> usize {
        partial::token_bytes(columns)
    }

    /// A copy in line passes behind nothing, so that guessing earlier gains nothing, and is worse.
    fn usual_look(&self) -> Look {
        Look::Half
    }

    fn pages(&self) -> usize {
        self.arena.pages()
    }

    fn begin(&mut self, step: &Step<'_>) -> Result<()> {
        let start = Instant::now();
        let (n, h) = (step.tokens.len(), self.shape.hidden);
        let state = &mut self.state;
        check_step(step, &self.shape, self.arena.pages(), &mut state.sorted)?;
        state.positions.clear();
        state.positions.extend_from_slice(step.positions);
        state.slots.clear();
        state.slots.extend_from_slice(step.slots);
        if let Some(hot) = &mut self.hot {
            hot.begin(step.work, step.selects, &self.arena);
        }
        if let Some(&last) = step.positions.iter().max() {
            self.rope.reach(last);
        }
        input::grow(&mut state.x, n * h);
        let (embed, workers, simd, x) = (&self.embed, &self.workers, self.options.simd, Shared::new(&mut state.x));
        self.pool.run(n.div_ceil(8), &|task, worker| {
            let mut worker = lock(&workers[worker]);
            for row in task * 8..(task * 8 + 8).min(n) {
                // SAFETY: each row is one task's.
                let x = unsafe { x.slice(row * h..(row + 1) * h) };
                weight_row(simd, embed, step.tokens[row] as usize, &mut worker.scratch, x);
            }
        });
        self.times.products += start.elapsed().as_secs_f64();
        Ok(())
    }

    fn attn_in(&mut self, layer: usize) -> Result<()> {
        let start = Instant::now();
        std::mem::swap(&mut self.state.guess, &mut self.state.guessed);
        if self.look(layer + 1) == Look::Ahead {
            self.guess(layer + 1);
        }
        let Self { shape, options, layers, arena, hot, watching, rope, pool, workers, state, .. } = self;
        let (n, h) = (state.positions.len(), shape.hidden);
        let (width, kv_width) = (shape.heads * shape.head_size, shape.kv_heads * shape.head_size);
        let Layer { attn_norm, wq, wk, wv, .. } = &layers[layer];
        let State { x, q, k, v, rows, positions, slots, .. } = state;
        let mut ops = Ops { simd: options.simd, pool, workers };
        rows.shape(n, h, Wants::of(options.activations, &[wq, wk, wv]));
        ops.norm(x, |row| row, Some((attn_norm, shape.norm_eps)), rows);
        input::grow(q, n * width);
        input::grow(k, n * kv_width);
        input::grow(v, n * kv_width);
        let projections = [
            Projection { weight: wq, out: &mut q[..] },
            Projection { weight: wk, out: &mut k[..] },
            Projection { weight: wv, out: &mut v[..] },
        ];
        ops.project(rows, projections, Epilogue::Store);
        let (turned, keys, writer) = (Shared::new(q), Shared::new(k), arena.writer(layer));
        pool.run(n.div_ceil(8), &|task, _| {
            for row in task * 8..(task * 8 + 8).min(n) {
                // SAFETY: each row, and each slot (`begin` refuses doubles), is one task's.
                unsafe {
                    rope.turn(turned.slice(row * width..(row + 1) * width), positions[row]);
                    let k = keys.slice(row * kv_width..(row + 1) * kv_width);
                    rope.turn(k, positions[row]);
                    writer.put(slots[row], k, &v[row * kv_width..(row + 1) * kv_width]);
                }
            }
        });
        let State { q, k, guess, slots, .. } = state;
        if let Some(watching) = watching {
            let guess = if layer == 0 { &[] } else { &guess[..n * width] };
            (watching.watcher)(&Seen { layer, x: &x[..n * h], q: &q[..n * width], guess, k: &k[..n * kv_width] });
        }
        if let Some(hot) = hot {
            let parallel = |tasks: usize, f: &(dyn Fn(usize) + Sync)| pool.run(tasks, &|task, _| f(task));
            hot.written(layer, slots, &k[..n * kv_width], arena, &parallel);
        }
        self.times.products += start.elapsed().as_secs_f64();
        Ok(())
    }

    fn attend(&mut self, layer: usize, work: &AttendWork) -> Result<()> {
        let start = Instant::now();
        let Self { shape, arena, hot, attention, pool, state, .. } = self;
        let numbers = state.positions.len() * shape.heads * shape.head_size;
        input::grow(&mut state.o, numbers);
        let parallel = |tasks: usize, f: &(dyn Fn(usize) + Sync)| pool.run(tasks, &|task, _| f(task));
        let (q, o) = (&state.q[..numbers], &mut state.o[..numbers]);
        match hot {
            Some(hot) => {
                let layer = LayerAt { layer, work, cold: arena.layer(layer), q, guess: &state.guess };
                hot.attend(&layer, arena, attention, o, &parallel);
            }
            None => attention.run(work, arena.layer(layer), q, o, &parallel),
        }
        self.times.attention += start.elapsed().as_secs_f64();
        Ok(())
    }

    fn attn_out(&mut self, layer: usize) -> Result<()> {
        let start = Instant::now();
        let Self { shape, options, layers, pool, workers, state, .. } = self;
        let wo = &layers[layer].wo;
        let State { x, o, rows, positions, .. } = state;
        let mut ops = Ops { simd: options.simd, pool, workers };
        rows.shape(positions.len(), shape.heads * shape.head_size, Wants::of(options.activations, &[wo]));
        ops.norm(o, |row| row, None, rows);
        ops.project(rows, [Projection { weight: wo, out: x }], Epilogue::Add);
        if self.look(layer + 1) == Look::Half {
            self.guess(layer + 1);
        }
        self.times.products += start.elapsed().as_secs_f64();
        Ok(())
    }

    fn mlp(&mut self, layer: usize) -> Result<()> {
        let start = Instant::now();
        let Self { shape, options, layers, pool, workers, state, .. } = self;
        let Layer { mlp_norm, gate, up, down, .. } = &layers[layer];
        let State { x, rows, gated, positions, .. } = state;
        let mut ops = Ops { simd: options.simd, pool, workers };
        rows.shape(positions.len(), shape.hidden, Wants::of(options.activations, &[gate, up]));
        ops.norm(x, |row| row, Some((mlp_norm, shape.norm_eps)), rows);
        gated.shape(positions.len(), shape.feed_forward, Wants::of(options.activations, &[down]));
        ops.gated(rows, gate, up, gated);
        ops.project(gated, [Projection { weight: down, out: x }], Epilogue::Add);
        self.times.products += start.elapsed().as_secs_f64();
        Ok(())
    }

    fn head(&mut self, wanted: &[HeadRow<'_>], out: &mut Vec<Said>) -> Result<()> {
        let start = Instant::now();
        let Self { shape, options, norm, output, embed, pool, workers, state, .. } = self;
        check_head(wanted, state.positions.len(), shape.vocab)?;
        let weight = output.as_ref().unwrap_or(embed);
        let rows = &mut state.rows;
        rows.shape(wanted.len(), shape.hidden, Wants::of(options.activations, &[weight]));
        let mut ops = Ops { simd: options.simd, pool, workers };
        ops.norm(&state.x, |i| wanted[i].row, Some((norm, shape.norm_eps)), rows);
        head::logits(&mut ops, weight, rows, wanted, out);
        self.times.products += start.elapsed().as_secs_f64();
        Ok(())
    }

    fn times(&self) -> Times {
        self.times
    }

    fn link(&self) -> Option<Link> {
        self.hot.as_ref().map(Hot::link)
    }

    fn here(&self) -> Option<Vec<f32>> {
        self.hot.as_ref().map(Hot::here)
    }

    fn moving(&self) -> Option<Vec<f32>> {
        self.hot.as_ref().map(Hot::moving)
    }

    fn refetch(&mut self, tier: Option<(u64, Fetch)>, slots: &[Slot]) -> Result<()> {
        self.hot = None;
        if let Some((bytes, fetch)) = tier {
            let least = hot::least_bytes(&fetch, self.arena.pages(), &self.shape, self.options.kv.bytes());
            if bytes < least {
                let (bytes, least) = (Human(bytes), Human(least));
                return Err(Error::limit(format!(
                    "a device tier of {bytes} cannot hold the {least} that must be there; raise --kv-budget (--budget of \
                     `bench offload`), or lower --offload-ratio"
                )));
            }
            self.offload(bytes, fetch)?;
        }
        let Self { hot, arena, pool, .. } = self;
        let parallel = |tasks: usize, f: &(dyn Fn(usize) + Sync)| pool.run(tasks, &|task, _| f(task));
        if let Some(hot) = hot {
            hot.adopt(slots, arena, &parallel);
        }
        Ok(())
    }

    fn freed(&mut self, pages: &[PageId]) {
        if let Some(hot) = &mut self.hot {
            hot.freed(pages);
        }
    }

    fn expect(&mut self, soon: &[PageId], later: &[PageId]) {
        if let Some(hot) = &mut self.hot {
            hot.expect(soon, later, &self.arena);
        }
    }
}

/// Refuses rows and tokens that are not there: faults of the caller.
pub(super) fn check_head(wanted: &[HeadRow<'_>], rows: usize, vocab: usize) -> Result<()> {
    if let Some(bad) = wanted.iter().find(|w| w.row >= rows) {
        return Err(Error::fault(format!("logits of row {} of a step of {rows} are asked for", bad.row)));
    }
    if wanted.iter().any(|w| w.named().iter().any(|&id| id as usize >= vocab)) {
        return Err(Error::fault(format!("logits of a token outside the vocabulary of {vocab} are asked for")));
    }
    Ok(())
}

/// Refuses what would read or write outside its place: those are faults of the caller, not of a user.
pub(super) fn check_step(step: &Step<'_>, shape: &Shape, pages: usize, sorted: &mut Vec<u64>) -> Result<()> {
    let Step { tokens, positions, slots, work, .. } = *step;
    let n = tokens.len();
    let fault = |what: String| Err(Error::fault(format!("a step that cannot be run: {what}")));
    if positions.len() != n || slots.len() != n || work.order.len() != n || work.positions.len() != n {
        return fault(format!(
            "{n} tokens, {} positions, {} slots, {} rows of work",
            positions.len(),
            slots.len(),
            work.order.len()
        ));
    }
    if let Some(&bad) = tokens.iter().find(|&&t| t as usize >= shape.vocab) {
        return fault(format!("token {bad} of a vocabulary of {}", shape.vocab));
    }
    if let Some(&bad) = positions.iter().find(|&&p| p as usize >= shape.context) {
        return fault(format!("position {bad} of a context of {}", shape.context));
    }
    sorted.clear();
    for (slot, &position) in slots.iter().zip(positions) {
        if slot.page.0 as usize >= pages || slot.offset as usize != position as usize % PAGE_TOKENS {
            return fault(format!("{slot:?} for position {position}, with {pages} pages"));
        }
        sorted.push(u64::from(slot.page.0) << 8 | u64::from(slot.offset));
    }
    sorted.sort_unstable();
    if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        return fault("one K/V slot is written twice".into());
    }
    if let Some(&bad) = work.pages.iter().find(|&&p| p as usize >= pages) {
        return fault(format!("page {bad} of {pages} is to be read"));
    }
    sorted.clear();
    sorted.extend(work.order.iter().map(|&r| u64::from(r)));
    sorted.sort_unstable();
    if sorted.iter().enumerate().any(|(i, &r)| i as u64 != r) {
        return fault("its work does not name every row once".into());
    }
    Ok(())
}
