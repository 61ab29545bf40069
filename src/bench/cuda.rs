//! Tree attention measured on a CUDA card: what `bench attention --device cuda` runs.
//!
//! K/V buffers rotate so that the L2 cache does not serve them. Every row of the result was compared with a float64
//! reference in the same run, after the timed launches; a number that is not finite fails. Three clocks, said in the row:
//! a captured graph of L layers with distinct K/V (time a layer), a captured graph of one call after a flush of the
//! L2 cache, and events around launches without a graph.

use crate::attention::Method;
use crate::attention::cuda_plan::{self, Cutting, Node, Row, Tree};
use crate::base::{Error, Result};
use crate::device::cuda::attend::{AttendKernel, HeadShape, KvLayout, LoadedPlan, Number};
use crate::device::cuda::driver::{Buffer, Gpu};
use crate::device::cuda::measure::{Bench, Dense, Paths};
use crate::device::cuda::work::{CudaPlan, TILE};

/// Warm-up replays before the timed ones.
const WARM_UP: usize = 3;
/// Bytes written between calls of the one-call clock: four times the L2 cache of an H200.
const FLUSH_BYTES: usize = 256 << 20;
/// Layers of distinct K/V at most; fewer where they would not fit.
const MOST_LAYERS: usize = 32;
/// Most of a result's relative error, in the Euclidean norm, at 11 and at 8 bits of mantissa.
const F16_ERROR: f64 = 2e-3;
const BF16_ERROR: f64 = 1.5e-2;

/// The clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// A graph of so many layers with distinct K/V.
    Layers(usize),
    /// A graph of one call, L2 cache flushed before.
    OneCall,
    /// Launches one after another, without a graph.
    Launches(usize),
}

impl Clock {
    pub fn describe(self) -> String {
        match self {
            Self::Layers(n) => format!("graph of {n} layers"),
            Self::OneCall => "graph of one call, cold L2".into(),
            Self::Launches(n) => format!("events over {n} launches"),
        }
    }
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct CudaAttention {
    pub tree: String,
    /// Parents (earlier nodes) and tokens.
    pub nodes: Vec<(Option<u32>, u32)>,
    /// Nodes from whose last token a query looks, in batch order.
    pub queries: Vec<u32>,
    pub shape: HeadShape,
    pub paged: bool,
    pub clock: Clock,
    pub repeats: usize,
}

/// One method's result; bytes are of one layer.
#[derive(Debug, Clone, PartialEq)]
pub struct CudaRow {
    pub method: Method,
    pub tree: String,
    pub median_us: f64,
    pub least_us: f64,
    pub most_us: f64,
    /// K/V bytes of the union of all paths.
    pub unique_bytes: u64,
    /// K/V bytes copied into shared memory: those of device memory and those that the L2 cache serves again.
    pub kv_bytes: u64,
    /// Partial results written and read; for `medusa` scores and weights.
    pub partial_bytes: u64,
    pub mask_bytes: u64,
    /// Queries read and outputs written.
    pub query_bytes: u64,
    /// Relative error against the reference.
    pub error: f64,
    /// Largest difference of a number.
    pub largest: f64,
}

/// Bytes a second of a device-to-device copy, read and written bytes counted.
pub fn copy_bandwidth(gpu: &Gpu) -> Result<f64> {
    let bytes = 2usize << 30;
    let (from, to) = (gpu.zeros(bytes)?, gpu.zeros(bytes)?);
    let mut times = Vec::new();
    for _ in 0..7 {
        let start = gpu.mark()?;
        gpu.copy(to.pointer(), from.pointer(), bytes)?;
        let end = gpu.mark()?;
        gpu.wait()?;
        times.push(gpu.microseconds(&start, &end)?);
    }
    Ok(2.0 * bytes as f64 / (median(&mut times) * 1e-6))
}

/// Microseconds that a kernel takes to read `bytes` once, cold, by the same clock.
pub fn cold_read(gpu: &Gpu, bytes: u64, clock: Clock, repeats: usize) -> Result<f64> {
    let bench = Bench::new(gpu)?;
    let stride = (bytes as usize).next_multiple_of(4096);
    let layers = layers_that_fit(gpu, stride)?;
    let pool = gpu.zeros(stride * layers)?;
    let sink = gpu.zeros(16)?;
    let mut times = time(gpu, clock, layers, repeats, |layer| {
        bench.read(gpu, pool.pointer() + (layer * stride) as u64, bytes as usize, &sink)
    })?;
    Ok(median(&mut times))
}

/// Measures each method on one tree; the first one that cannot be right or does not fit is an error.
pub fn attention(gpu: &Gpu, options: &CudaAttention, methods: &[Method]) -> Result<Vec<CudaRow>> {
    let kernel = AttendKernel::new(gpu, options.shape, None)?;
    let bench = Bench::new(gpu)?;
    methods.iter().map(|&method| one(gpu, options, &kernel, &bench, method)).collect()
}

fn one(gpu: &Gpu, o: &CudaAttention, kernel: &AttendKernel, bench: &Bench, method: Method) -> Result<CudaRow> {
    let ready = Ready::new(gpu, o, kernel, bench, method, Laid::of(o, method), MOST_LAYERS, false)?;
    let mut times = time(gpu, o.clock, ready.layers, o.repeats, |layer| ready.launch(layer))?;
    let (error, largest) = ready.error()?;
    let most = most_error(o.shape.number);
    if error.is_nan() || error > most {
        let (name, tree) = (method.name(), &o.tree);
        return Err(Error::fault(format!(
            "{name} on {tree} differs from the reference by {error:.1e} (at most {most:.1e})"
        )));
    }

    let Ready { plan, rows, .. } = &ready;
    let token = o.shape.kv_bytes();
    let moves = plan.moves;
    let row_bytes = u64::from(o.shape.heads * o.shape.head_size) * 2;
    let keys = plan.tiles.len() as u64 * TILE as u64;
    let medusa = method == Method::Medusa;
    // Medusa: scores written, read and written with the mask, read twice for the softmax; weights written and read.
    let scores = u64::from(*rows) * u64::from(o.shape.heads) * keys * (5 * 4 + 2 * 2);
    let partial = 2 * moves.partials * u64::from(o.shape.heads) * (u64::from(o.shape.head_size) + 1) * 4;
    Ok(CudaRow {
        method,
        tree: o.tree.clone(),
        least_us: times.iter().copied().fold(f64::INFINITY, f64::min),
        most_us: times.iter().copied().fold(0.0, f64::max),
        median_us: median(&mut times),
        unique_bytes: moves.unique * token,
        kv_bytes: if medusa {
            2 * moves.unique * token * u64::from((rows * o.shape.group()).div_ceil(64)) / 2
        } else {
            moves.tokens * token
        },
        partial_bytes: if medusa { scores } else { partial },
        mask_bytes: if medusa {
            u64::from(rows * o.shape.heads) * keys * 4
        } else {
            plan.tiles.len() as u64 * u64::from(o.shape.kv_heads) * 288
        },
        query_bytes: (if medusa { u64::from(*rows) } else { moves.query_rows } + u64::from(*rows)) * row_bytes,
        error,
        largest,
    })
}

/// Most of a result's relative error.
fn most_error(number: Number) -> f64 {
    if number == Number::F16 { F16_ERROR } else { BF16_ERROR }
}

/// A method on a tree, all in device memory.
struct Ready<'a> {
    gpu: &'a Gpu,
    kernel: &'a AttendKernel,
    bench: &'a Bench,
    paged: bool,
    laid: Laid,
    plan: CudaPlan,
    rows: u32,
    /// K/V of `layers` layers, `stride` bytes apart.
    pool: Buffer,
    stride: usize,
    layers: usize,
    q: Buffer,
    out: Buffer,
    loaded: LoadedPlan,
    dense: Option<Dense>,
}

impl<'a> Ready<'a> {
    /// `fault`: what the first tile holds is hidden from all rows.
    #[expect(clippy::too_many_arguments, reason = "what a launch takes, and how much of it")]
    fn new(
        gpu: &'a Gpu,
        o: &CudaAttention,
        kernel: &'a AttendKernel,
        bench: &'a Bench,
        method: Method,
        laid: Laid,
        most_layers: usize,
        fault: bool,
    ) -> Result<Self> {
        let cutting = match method {
            Method::Flatten | Method::Medusa => Cutting::Flatten,
            Method::FlashDecoding => Cutting::Radix,
            Method::SpecInfer => Cutting::SpecInfer,
            Method::Vanilla => Cutting::Vanilla,
            Method::Auto | Method::Node | Method::NodeChunk | Method::Radix => Cutting::of(method),
        };
        let tree = Tree { nodes: &laid.nodes, slots: &laid.slots, paged: o.paged };
        let mut plan = cuda_plan::plan(tree, &laid.rows, kernel.machine(), cutting);
        if fault {
            plan.tiles[0].rows = [0; TILE];
            (plan.tiles[0].some, plan.tiles[0].all) = ([u16::MAX, 0], [u16::MAX, 0]);
        }
        let rows = laid.rows.len() as u32;
        let numbers = rows as usize * (o.shape.heads * o.shape.head_size) as usize;
        let stride = (laid.total as usize * o.shape.kv_bytes() as usize).next_multiple_of(4096);
        let layers = layers_that_fit(gpu, stride)?.min(most_layers);
        let pool = gpu.alloc(stride * layers)?;
        bench.fill(gpu, &pool, o.shape.number, 1, 1.0)?;
        let (q, out) = (gpu.alloc(numbers * 2)?, gpu.alloc(numbers * 2)?);
        bench.fill(gpu, &q, o.shape.number, 77, 3.0)?;
        gpu.set(&out, 0xff)?;
        let loaded = kernel.load(gpu, &plan)?;
        let dense = match method {
            Method::Medusa => Some(Dense::new(gpu, kernel, plan.tiles.len() as u32, rows, &dense_mask(&plan))?),
            _ => None,
        };
        let paged = o.paged;
        Ok(Self { gpu, kernel, bench, paged, laid, plan, rows, pool, stride, layers, q, out, loaded, dense })
    }

    fn kv(&self, layer: usize) -> KvLayout {
        let at = self.pool.pointer() + ((layer % self.layers) * self.stride) as u64;
        let half = u64::from(self.laid.total) * self.kernel.shape.kv_bytes() / 2;
        if self.paged { KvLayout::Paged { at } } else { KvLayout::Flat { k: at, v: at + half } }
    }

    fn launch(&self, layer: usize) -> Result<()> {
        let (gpu, kv) = (self.gpu, self.kv(layer));
        match &self.dense {
            Some(dense) => dense.launch(gpu, self.kernel, &self.loaded, &self.q, kv, &self.out),
            None => {
                let kv = self.kernel.view(gpu, kv, self.laid.total)?;
                self.kernel.launch(gpu, &self.loaded, &self.q, &kv, &self.out, self.kernel.earliest(&self.loaded))
            }
        }
    }

    /// Relative error and largest difference of one more launch.
    fn error(&self) -> Result<(f64, f64)> {
        let layer = self.layers - 1;
        self.gpu.set(&self.out, 0xff)?;
        self.launch(layer)?;
        let paths = self.laid.paths(self.gpu)?;
        let shape = self.kernel.shape;
        let numbers = self.rows as usize * (shape.heads * shape.head_size) as usize;
        let truth = self.gpu.alloc(numbers * 4)?;
        let Self { gpu, kernel, loaded, q, out, .. } = self;
        self.bench.reference(gpu, kernel, loaded, q, self.kv(layer), &paths, self.rows, &truth)?;
        let truth: Vec<f32> = gpu.download(&truth, numbers)?;
        let got: Vec<u16> = gpu.download(out, numbers)?;
        Ok(difference(shape.number, &got, &truth))
    }
}

/// Relative difference in the Euclidean norm, and the largest of a number.
fn difference(number: Number, got: &[u16], truth: &[f32]) -> (f64, f64) {
    let (mut wrong, mut all, mut largest) = (0.0f64, 0.0f64, 0.0f64);
    for (&bits, &y) in got.iter().zip(truth) {
        let x = match number {
            Number::F16 => half::f16::from_bits(bits).to_f64(),
            Number::Bf16 => half::bf16::from_bits(bits).to_f64(),
        };
        let difference = x - f64::from(y);
        wrong += difference * difference;
        all += f64::from(y) * f64::from(y);
        largest = if difference.is_finite() { largest.max(difference.abs()) } else { f64::NAN };
    }
    ((wrong / all).sqrt(), largest)
}

/// The tree laid out in slots.
struct Laid {
    nodes: Vec<Node>,
    slots: Vec<u32>,
    rows: Vec<Row>,
    /// Slots in all, a multiple of 16.
    total: u32,
}

impl Laid {
    /// As a method has it: paths of their own where it shares nothing.
    fn of(o: &CudaAttention, method: Method) -> Self {
        Self::new(o, method == Method::FlashDecoding)
    }

    /// `copies`: every query's path as a run of its own, as an unpaged cache without sharing holds it.
    fn new(o: &CudaAttention, copies: bool) -> Self {
        let shared = o.nodes.clone();
        let (lengths, queries) = if copies {
            let path = |&leaf: &u32| {
                let (mut tokens, mut at) = (0, Some(leaf));
                while let Some(i) = at {
                    tokens += shared[i as usize].1;
                    at = shared[i as usize].0;
                }
                (None, tokens)
            };
            (o.queries.iter().map(path).collect(), (0..o.queries.len() as u32).collect())
        } else {
            (shared.clone(), o.queries.clone())
        };
        let (mut nodes, mut slots, mut total) = (Vec::new(), Vec::new(), 0u32);
        for &(parent, len) in &lengths {
            nodes.push(Node { parent, first: slots.len() as u32, len });
            slots.extend(total..total + len);
            total += len;
            if o.paged {
                total = total.next_multiple_of(16);
            }
        }
        let rows = queries.iter().map(|&n| Row { node: n, offset: lengths[n as usize].1.saturating_sub(1) }).collect();
        Self { nodes, slots, rows, total: total.next_multiple_of(16).max(16) }
    }

    fn paths(&self, gpu: &Gpu) -> Result<Paths> {
        let (mut first, mut runs) = (vec![0u32], Vec::new());
        for row in &self.rows {
            let (mut path, mut at) = (Vec::new(), Some(row.node));
            while let Some(i) = at {
                let node = self.nodes[i as usize];
                let len = if i == row.node { node.len.min(row.offset + 1) } else { node.len };
                path.push([node.first, len]);
                at = node.parent;
            }
            runs.extend(path.into_iter().rev().flatten());
            first.push(runs.len() as u32 / 2);
        }
        Ok(Paths { first: gpu.upload(&first)?, runs: gpu.upload(&runs)?, slots: gpu.upload(&self.slots)? })
    }
}

/// 0 where a work row sees a token, -inf elsewhere; work rows are put into batch order.
fn dense_mask(plan: &CudaPlan) -> Vec<f32> {
    let keys = plan.tiles.len() * TILE;
    let mut mask = vec![f32::NEG_INFINITY; plan.batch_row.len() * keys];
    for (work, &batch) in plan.batch_row.iter().enumerate() {
        for (t, tile) in plan.tiles.iter().enumerate() {
            for (k, &rows) in tile.rows.iter().enumerate() {
                if (rows & 0xffff..rows >> 16).contains(&(work as u32)) {
                    mask[batch as usize * keys + t * TILE + k] = 0.0;
                }
            }
        }
    }
    mask
}

/// Layers of distinct K/V that fit into half of the free memory.
fn layers_that_fit(gpu: &Gpu, bytes: usize) -> Result<usize> {
    let (free, _) = gpu.memory()?;
    match free / 2 / bytes.max(1) {
        0 => Err(Error::limit(format!("{bytes} bytes of K/V do not fit into half of the card's {free} free bytes"))),
        layers => Ok(layers.min(MOST_LAYERS)),
    }
}

/// Microseconds of each repeat, by the clock, a layer.
fn time(
    gpu: &Gpu,
    clock: Clock,
    layers: usize,
    repeats: usize,
    launch: impl Fn(usize) -> Result<()>,
) -> Result<Vec<f64>> {
    let mut times = Vec::with_capacity(repeats);
    let flush = gpu.alloc(FLUSH_BYTES)?;
    let graphs = match clock {
        Clock::Layers(n) => vec![gpu.capture(|| (0..n).try_for_each(&launch))?],
        Clock::OneCall => (0..layers.min(8)).map(|l| gpu.capture(|| launch(l))).collect::<Result<_>>()?,
        Clock::Launches(_) => Vec::new(),
    };
    for i in 0..repeats + WARM_UP {
        if clock == Clock::OneCall {
            gpu.set(&flush, i as u8)?;
        }
        let start = gpu.mark()?;
        let calls = match clock {
            Clock::Layers(n) => {
                graphs[0].replay()?;
                n
            }
            Clock::OneCall => {
                graphs[i % graphs.len()].replay()?;
                1
            }
            Clock::Launches(n) => {
                (0..n).try_for_each(&launch)?;
                n
            }
        };
        let end = gpu.mark()?;
        gpu.wait()?;
        if i >= WARM_UP {
            times.push(gpu.microseconds(&start, &end)? / calls as f64);
        }
    }
    Ok(times)
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

pub mod selftest;
#[cfg(test)]
mod tests;
