//! A whole Llama step on the card: eight launches a layer, nothing waited for until logits are fetched.
//!
//! | operation | launches |
//! |---|---|
//! | `begin` | one copy of all that the step tells, then `embed` |
//! | `attn_in` | `residual_norm` (adds what the layer before left), product q/k/v, `rotate` (writes K/V) |
//! | `attend` | tree attention |
//! | `attn_out` | product, whose splits the next norm adds to `x` |
//! | `mlp` | `residual_norm`, product with gating, product, again left to the next norm |
//! | `head` | `residual_norm` of the wanted rows, product, then what is told of them (`head.rs`), one copy back |
//!
//! On Hopper and newer a launch begins while the one before it ends, and products ask for their first weights then.
//!
//! `x` is float32; all else that kernels hand on is of the device's 16-bit number type. Products of many rows go to cuBLAS
//! where it is found. Head sizes are those of the attention kernels.

use super::attend::{AttendKernel, HeadShape, LoadedPlan, Number, PlanPlaces};
use super::blas::Blas;
use super::driver::{Begin, Buffer, Function, Gpu, Launch, Module};
use super::head::{self, Head};
use super::matrix::{Matrix, number_of};
use super::product::Products;
use super::ptx;
use super::selecting::{self, Selecting};
use super::staging::Staging;
use super::store::{Store, Target};
use super::work::{CudaPlan, Machine};
use crate::base::{Error, Result};
use crate::device::attend::AttendWork;
use crate::device::cpu::{check_head, check_norm, check_shape, check_step};
use crate::device::head::{HeadRow, Said};
use crate::device::speculation::{Fetch, Look, Watcher};
use crate::device::tiers::Link;
use crate::device::weight::{LayerWeights, Weight, Weights};
use crate::device::{Device, RopeLayout, Shape, Step, Times};
use crate::kv::{PAGE_TOKENS, Slot};
use cudarc::driver::CudaEvent;
use std::ffi::c_void;
use std::time::Instant;

mod guess;

/// Rows of a step: enough for prompts to be bound by arithmetic.
pub const STEP_ROWS: usize = 1024;
/// Memory for kernels, plans, cuBLAS and what else the driver takes.
const SPARE_BYTES: usize = 512 << 20;

/// What a card is told that cannot do what it is asked.
pub const METHODS: &str =
    "this way of --offload is built for --device cpu alone; a card has none, full, infinigen and infinigen-tree";

/// Turns a step's attention into the kernel's plan; a part of `attention`, which stands above the device.
pub type Planning = Box<dyn FnMut(&AttendWork, &Machine) -> CudaPlan + Send>;

pub struct CudaOptions {
    /// K/V pages of 16 tokens.
    pub pages: usize,
    /// Rows of the largest steps.
    pub rows: usize,
    pub planning: Planning,
    /// Bytes of the card that K/V may take, where all of it lies in a host tier of `pages` pages; `None`: it is on the card.
    pub tier: Option<u64>,
}

struct Layer {
    attn_norm: Buffer,
    qkv: Matrix,
    /// The rows of `qkv` that make queries.
    query: Matrix,
    o: Matrix,
    mlp_norm: Buffer,
    gate_up: Matrix,
    down: Matrix,
}

/// Kernels of `step.cu`.
struct Kernels {
    embed: Function,
    norm: Function,
    rotate: Function,
    gate: Function,
    _module: Module,
}

/// What the operations of a step pass on to each other; grows, never shrinks.
#[derive(Default)]
struct Room {
    /// `[n, H]`, float32.
    x: Option<Buffer>,
    /// Norms `[n, H]`.
    normed: Option<Buffer>,
    q: Option<Buffer>,
    o: Option<Buffer>,
    /// Norms and queries of a layer that is guessed, as `normed` and `q`.
    guess_normed: Option<Buffer>,
    guess: Option<Buffer>,
    /// Gated `[n, F]`.
    gated: Option<Buffer>,
    /// Split products `[splits][n][rows]`, float32.
    part: Option<Buffer>,
    part_o: Option<Buffer>,
    part_lse: Option<Buffer>,
}

/// The step that is running.
struct Running {
    n: u32,
    plan: LoadedPlan,
    positions: u64,
    slots: u64,
    /// Splits in `part` that `x` still lacks.
    owed: u32,
    /// Where the present layer's K/V is written.
    target: Target,
}

/// Times of one step, read when the step after the next begins, or when somebody waits anyway.
struct Marks {
    whole: [CudaEvent; 2],
    /// Attention of the middle layer stands for all: more marks would hold the stream up.
    attention: [CudaEvent; 2],
    set: bool,
}

pub struct CudaDevice {
    gpu: Gpu,
    shape: Shape,
    number: Number,
    kernels: Kernels,
    products: Products,
    attention: AttendKernel,
    planning: Planning,
    store: Store,
    /// What rows attend to is chosen.
    selecting: Option<Selecting>,
    watcher: Option<Watcher>,
    /// Pages up to the last that the step writes, where somebody watches.
    watched_pages: usize,
    watched_slots: Vec<u32>,
    embed: Matrix,
    layers: Vec<Layer>,
    norm: Buffer,
    /// `None`: tied to `embed`.
    output: Option<Matrix>,
    /// `[d / 2]`, float64.
    frequencies: Buffer,
    room: Room,
    staging: Staging,
    head: Head,
    /// When the small kernels begin.
    begin: Begin,
    running: Option<Running>,
    marks: [Marks; 2],
    turn: usize,
    times: Times,
    sorted: Vec<u64>,
}

/// The number type of a model on the card: that of most of its weights.
pub fn number(weights: &Weights) -> Number {
    weights.layers.first().map_or(Number::F16, |layer| number_of(layer.wq.kind))
}

fn head_shape(shape: &Shape, number: Number) -> HeadShape {
    HeadShape { heads: shape.heads as u32, kv_heads: shape.kv_heads as u32, head_size: shape.head_size as u32, number }
}

/// Whether the card has kernels for a model's heads; the error says which it has.
pub fn check_heads(gpu: &Gpu, shape: &Shape) -> Result<()> {
    AttendKernel::new(gpu, head_shape(shape, Number::F16), None).map(drop)
}

/// Bytes of the weights on the card.
pub fn weight_bytes(weights: &Weights) -> u64 {
    let layers = weights.layers.iter().flat_map(|l| [&l.wq, &l.wk, &l.wv, &l.wo, &l.gate, &l.up, &l.down]);
    let all = layers.chain([&weights.embed]).chain(&weights.output);
    all.map(|w: &Weight| 2 * w.rows as u64 * w.cols as u64).sum()
}

/// Bytes of a K/V page over all layers.
pub fn page_bytes(shape: &Shape) -> u64 {
    (PAGE_TOKENS * shape.kv_numbers_per_token() * 2) as u64
}

/// Bytes to work in, above weights and K/V, for steps of `rows` rows.
pub fn work_bytes(shape: &Shape, rows: usize) -> u64 {
    let width = shape.heads * shape.head_size;
    let row =
        6 * shape.hidden + 4 * width + 2 * shape.feed_forward + 4 * (2 * shape.feed_forward).max(2 * shape.hidden);
    (rows * row + head::work_bytes(shape.vocab, rows) + SPARE_BYTES) as u64
}

impl CudaDevice {
    /// Takes weights and K/V pages. Errors: sizes that do not fit each other or the kernels, too little memory.
    pub fn new(gpu: Gpu, weights: Weights, options: CudaOptions) -> Result<Self> {
        let number = number(&weights);
        let Weights { shape, embed, layers, norm, output } = weights;
        check_shape(&shape, layers.len())?;
        let attention = AttendKernel::new(&gpu, head_shape(&shape, number), None)?;
        let products = Products::new(&gpu, number, Blas::find(&gpu))?;
        let module = gpu.load(ptx::step(number, gpu.overlaps()))?;
        let kernels = Kernels {
            embed: module.function("embed", 0)?,
            norm: module.function("residual_norm", shape.hidden as u32 * 4)?,
            rotate: module.function("rotate", 0)?,
            gate: module.function("gate", 0)?,
            _module: module,
        };
        let (h, f) = (shape.hidden, shape.feed_forward);
        let (q, kv) = (shape.heads * shape.head_size, shape.kv_heads * shape.head_size);
        let halves = (shape.rope.layout == RopeLayout::Halves).then_some(shape.head_size);
        let place = |l: usize, layer: LayerWeights| -> Result<Layer> {
            let sizes = [
                ("query weights", &layer.wq, q, h),
                ("key weights", &layer.wk, kv, h),
                ("value weights", &layer.wv, kv, h),
                ("attention output weights", &layer.wo, h, q),
                ("gate weights", &layer.gate, f, h),
                ("up weights", &layer.up, f, h),
                ("down weights", &layer.down, h, f),
            ];
            for (name, weight, rows, cols) in sizes {
                check_size(name, weight, rows, cols).map_err(|e| e.context(format!("layer {l}")))?;
            }
            let qkv = Matrix::projections(&gpu, [&layer.wq, &layer.wk, &layer.wv], number, halves)?;
            Ok(Layer {
                query: qkv.first_rows(q),
                qkv,
                attn_norm: gpu.upload(&check_norm(&format!("layer {l}: attention norm"), layer.attn_norm, h)?)?,
                o: Matrix::plain(&gpu, &layer.wo, number)?,
                mlp_norm: gpu.upload(&check_norm(&format!("layer {l}: feed-forward norm"), layer.mlp_norm, h)?)?,
                gate_up: Matrix::gated(&gpu, &layer.gate, &layer.up, number)?,
                down: Matrix::plain(&gpu, &layer.down, number)?,
            })
        };
        let layers = layers.into_iter().enumerate().map(|(l, layer)| place(l, layer)).collect::<Result<Vec<_>>>()?;
        check_size("token embedding", &embed, shape.vocab, h)?;
        let output = output
            .map(|w| {
                check_size("output weights", &w, shape.vocab, h)?;
                Matrix::plain(&gpu, &w, number)
            })
            .transpose()?;
        let frequencies: Vec<f64> = (0..shape.head_size / 2)
            .map(|i| {
                let factor = shape.rope.factors.as_ref().map_or(1.0, |f| f64::from(f[i]));
                f64::from(shape.rope.theta).powf(-2.0 * i as f64 / shape.head_size as f64) / factor
            })
            .collect();
        let marks = || -> Result<Marks> {
            Ok(Marks {
                whole: [gpu.new_mark()?, gpu.new_mark()?],
                attention: [gpu.new_mark()?, gpu.new_mark()?],
                set: false,
            })
        };
        let mut device = Self {
            store: Store::new(&gpu, &attention, &shape, options.pages, options.tier)?,
            embed: Matrix::plain(&gpu, &embed, number)?,
            layers,
            norm: gpu.upload(&check_norm("output norm", norm, h)?)?,
            output,
            frequencies: gpu.upload(&frequencies)?,
            marks: [marks()?, marks()?],
            kernels,
            products,
            attention,
            planning: options.planning,
            number,
            selecting: None,
            watcher: None,
            watched_pages: 0,
            watched_slots: Vec::new(),
            room: Room::default(),
            staging: Staging::default(),
            head: Head::new(&gpu, shape.vocab)?,
            begin: if gpu.overlaps() { Begin::Early } else { Begin::After },
            running: None,
            turn: 0,
            times: Times::default(),
            sorted: Vec::new(),
            shape,
            gpu,
        };
        device.warm(options.rows as u32)?;
        Ok(device)
    }

    /// All K/V, `[layer][page][kv_head][K|V][16][d]`, once what was asked for is done.
    pub fn kv(&mut self) -> Result<Vec<u8>> {
        self.finish()?;
        self.store.bytes(&self.gpu)
    }

    /// See [`Store::fetch_by_kernel`].
    pub fn fetch_by_kernel(&mut self, kernel: bool) {
        self.store.fetch_by_kernel(kernel);
    }

    /// Bytes of weights that a step reads: all matrices, the embedding only where it is the output matrix too.
    pub fn step_weight_bytes(&self) -> usize {
        let layer = |l: &Layer| l.qkv.bytes() + l.o.bytes() + l.gate_up.bytes() + l.down.bytes();
        self.layers.iter().map(layer).sum::<usize>() + self.output.as_ref().unwrap_or(&self.embed).bytes()
    }

    /// Room for a step of so many rows.
    fn fit(&mut self, rows: u32) -> Result<()> {
        let Self { shape, gpu, room, products, .. } = self;
        let (n, width, layer) = (rows as usize, shape.heads * shape.head_size, &self.layers[0]);
        gpu.grow(&mut room.x, n * shape.hidden * 4)?;
        gpu.grow(&mut room.normed, n * shape.hidden * 2)?;
        gpu.grow(&mut room.q, n * width * 2)?;
        gpu.grow(&mut room.o, n * width * 2)?;
        gpu.grow(&mut room.gated, n * shape.feed_forward * 2)?;
        let part = |w: &Matrix| products.splits(w, rows) as usize * n * w.rows as usize;
        let mut numbers = part(&layer.qkv).max(part(&layer.query)).max(part(&layer.o)).max(part(&layer.down));
        if products.by_blas(rows) {
            numbers = numbers.max(n * layer.gate_up.rows as usize);
        }
        gpu.grow(&mut room.part, numbers * 4).map(drop)
    }

    /// Takes the room for the largest steps, and has libraries load what they run them with: a first prompt need not wait.
    fn warm(&mut self, rows: u32) -> Result<()> {
        if !self.products.by_blas(rows) {
            return Ok(());
        }
        self.fit(rows)?;
        let Self { gpu, products, room, .. } = self;
        let (layer, part) = (&self.layers[0], there(&room.part)?);
        for (w, x) in [
            (&layer.qkv, &room.normed),
            (&layer.o, &room.o),
            (&layer.gate_up, &room.normed),
            (&layer.down, &room.gated),
        ] {
            products.partial(gpu, w, there(x)?, rows, true, part)?;
        }
        gpu.wait()
    }

    /// A norm of all rows: adds what `part` holds to `x`.
    fn norm_args(&mut self, weight: u64) -> Result<NormArgs> {
        let running = running(&mut self.running)?;
        Ok(NormArgs {
            x: there(&self.room.x)?.pointer(),
            part: self.room.part.as_ref().map_or(0, Buffer::pointer),
            weight,
            rows: 0,
            out: there(&self.room.normed)?.pointer(),
            hidden: self.shape.hidden as u32,
            n: running.n,
            splits: running.owed,
            eps: self.shape.norm_eps,
        })
    }

    fn normed(&mut self, weight: u64) -> Result<()> {
        let args = self.norm_args(weight)?;
        running(&mut self.running)?.owed = 0;
        let rows = args.n;
        args.launch(&self.gpu, self.kernels.norm, 0, rows, self.begin)
    }

    /// Reads what is known of the link, once the step is done.
    fn collect_link(&mut self) -> Result<()> {
        self.store.collect()?;
        self.selecting.as_mut().map_or(Ok(()), |selecting| selecting.collect(&self.gpu))
    }

    /// Waits for a step's marks and adds its times.
    fn collect(&mut self, turn: usize) -> Result<()> {
        let marks = &mut self.marks[turn];
        if !std::mem::take(&mut marks.set) {
            return Ok(());
        }
        let whole = self.gpu.microseconds(&marks.whole[0], &marks.whole[1])? * 1e-6;
        let one = self.gpu.microseconds(&marks.attention[0], &marks.attention[1])? * 1e-6;
        let attention = (one * self.shape.layers as f64).min(whole);
        self.times.attention += attention;
        self.times.products += whole - attention;
        Ok(())
    }
}

fn check_size(name: &str, weight: &Weight, rows: usize, cols: usize) -> Result<()> {
    if (weight.rows, weight.cols) == (rows, cols) {
        return Ok(());
    }
    Err(Error::input(format!(
        "{name} is [{}, {}], not the [{rows}, {cols}] that the model's sizes ask for",
        weight.rows, weight.cols
    )))
}

fn running(step: &mut Option<Running>) -> Result<&mut Running> {
    step.as_mut().ok_or_else(|| Error::fault("an operation outside a step on the GPU"))
}

fn there(room: &Option<Buffer>) -> Result<&Buffer> {
    room.as_ref().ok_or_else(|| Error::fault("an operation outside a step on the GPU"))
}

#[repr(C)]
struct NormArgs {
    x: u64,
    part: u64,
    weight: u64,
    rows: u64,
    out: u64,
    hidden: u32,
    n: u32,
    splits: u32,
    eps: f32,
}

#[repr(C)]
struct RotateArgs {
    part: u64,
    frequencies: u64,
    positions: u64,
    slots: u64,
    q: u64,
    kv: u64,
    n: u32,
    splits: u32,
    heads: u32,
    kv_heads: u32,
    head_size: u32,
}

impl NormArgs {
    /// `rows`: the address of `blocks` row numbers, or 0 for the first `blocks` rows.
    fn launch(mut self, gpu: &Gpu, kernel: Function, rows: u64, blocks: u32, begin: Begin) -> Result<()> {
        self.rows = rows;
        let launch = Launch {
            grid: (blocks, 1, 1),
            threads: (self.hidden / 4).next_multiple_of(32).clamp(32, 512),
            shared_bytes: self.hidden * 4,
            begin,
        };
        // SAFETY: the kernel takes one `Norm`; its buffers have n rows.
        unsafe { gpu.launch(kernel, launch, &mut [(&raw mut self).cast()]) }
    }
}

impl Marks {
    fn end(&mut self, gpu: &Gpu) -> Result<()> {
        self.set = true;
        gpu.set_mark(&self.whole[1])
    }
}

impl Device for CudaDevice {
    fn describe(&self) -> String {
        let number = match self.number {
            Number::F16 => "f16",
            Number::Bf16 => "bf16",
        };
        let blas = if self.products.has_blas() { ", cuBLAS" } else { "" };
        let link = self.store.speeds().map_or(String::new(), |speeds| format!(", link: {speeds}"));
        format!("cuda:{} {}, {number}{blas}{link}", self.gpu.ordinal, self.gpu.name)
    }

    fn page_bytes(&self) -> usize {
        page_bytes(&self.shape) as usize
    }

    fn pages(&self) -> usize {
        self.store.pages()
    }

    fn step_rows(&self) -> usize {
        STEP_ROWS
    }

    fn row_cost(&self) -> f64 {
        // Measured with Llama-3-8B: a step of 20 rows takes little longer than one of 1.
        0.02
    }

    fn begin(&mut self, step: &Step<'_>) -> Result<()> {
        check_step(step, &self.shape, self.store.pages(), &mut self.sorted)?;
        self.gpu.bind()?;
        self.turn ^= 1;
        // The step before last is over then, and its place in the staging memory free.
        self.collect(self.turn)?;
        let planning = Instant::now();
        let n = step.tokens.len();
        let plan = (self.planning)(step.work, self.attention.machine());

        self.staging.clear();
        let slots: Vec<u32> = step.slots.iter().map(|s| s.page.0 * PAGE_TOKENS as u32 + u32::from(s.offset)).collect();
        let tokens = self.staging.push(step.tokens);
        let positions = self.staging.push(step.positions);
        let slots_of = slots;
        let slots = self.staging.push(&slots_of);
        let barrier = self.staging.push_zeros(self.attention.barrier_bytes());
        let items = self.staging.push(&plan.items);
        let cta_items = self.staging.push(&plan.cta_items);
        let tiles = self.staging.push(&plan.tiles);
        let batch_row = self.staging.push(&plan.batch_row);
        let merge_row = self.staging.push(&plan.merge_row);
        let merge_first = self.staging.push(&plan.merge_first);
        let merge = self.staging.push(&plan.merge);
        let mut selects_from = None;
        if let Some(selecting) = &mut self.selecting {
            selecting.begin(step.work, step.selects, &mut self.staging);
            selects_from = selecting.selects_from();
        }
        let fetched = self.staging.push(self.store.plan(step.work, step.slots, selects_from)?);
        let numbers = self.staging.push(&(0..n as u32).collect::<Vec<_>>());
        if self.watcher.is_some() {
            self.watched_pages = step.slots.iter().map(|slot| slot.page.0 as usize + 1).max().unwrap_or(0);
            self.watched_slots = slots_of.clone();
        }
        self.times.planning += planning.elapsed().as_secs_f64();
        self.fit(n as u32)?;
        let gpu = &self.gpu;
        let base = self.staging.send(gpu)?;

        let (part_o, part_lse) = self.attention.partial_bytes(&plan);
        let places = PlanPlaces {
            part_o: gpu.grow(&mut self.room.part_o, part_o)?.pointer(),
            part_lse: gpu.grow(&mut self.room.part_lse, part_lse)?.pointer(),
            barrier: base + barrier,
            items: base + items,
            cta_items: base + cta_items,
            tiles: base + tiles,
            batch_row: base + batch_row,
            merge_row: base + merge_row,
            merge_first: base + merge_first,
            merge: base + merge,
        };
        let (rows, x) = (n as u32, there(&self.room.x)?.pointer());
        self.running = Some(Running {
            n: rows,
            plan: self.attention.place(&plan, places),
            positions: base + positions,
            slots: base + slots,
            owed: 0,
            target: Target { kv: 0, slots: 0 },
        });
        gpu.set_mark(&self.marks[self.turn].whole[0])?;
        self.store.begin(gpu, [fetched, slots, numbers].map(|at| base + at))?;
        if let Some(selecting) = &mut self.selecting {
            selecting.placed(gpu, base)?;
        }
        let (mut table, mut tokens, mut x, mut hidden) =
            (self.embed.buffer.pointer(), base + tokens, x, self.shape.hidden as u32);
        let mut parameters: [*mut c_void; 4] =
            [(&raw mut table).cast(), (&raw mut tokens).cast(), (&raw mut x).cast(), (&raw mut hidden).cast()];
        let launch = Launch { grid: (rows, 1, 1), threads: 256, shared_bytes: 0, begin: Begin::After };
        // SAFETY: the kernel's four parameters; tokens were checked against the vocabulary.
        unsafe { gpu.launch(self.kernels.embed, launch, &mut parameters) }
    }

    fn attn_in(&mut self, layer: usize) -> Result<()> {
        self.normed(self.layers[layer].attn_norm.pointer())?;
        let mut guess = Vec::new();
        if self.watcher.is_some() {
            if layer > 0 {
                let n = running(&mut self.running)?.n as usize;
                guess = self.numbers(there(&self.room.guess)?, n * self.shape.heads * self.shape.head_size)?;
            }
            if layer + 1 < self.layers.len() {
                self.guess(layer + 1)?;
            }
        }
        self.look_ahead(layer + 1, Look::Ahead)?;
        let Self { gpu, layers, products, room, shape, store, selecting, .. } = self;
        let running = running(&mut self.running)?;
        let Layer { qkv, .. } = &layers[layer];
        let part = there(&room.part)?;
        let splits = products.partial(gpu, qkv, there(&room.normed)?, running.n, false, part)?;
        let target = store.target(gpu, layer, running.slots)?;
        running.target = target;
        let mut args = RotateArgs {
            part: part.pointer(),
            frequencies: self.frequencies.pointer(),
            positions: running.positions,
            slots: target.slots,
            q: there(&room.q)?.pointer(),
            kv: target.kv,
            n: running.n,
            splits,
            heads: shape.heads as u32,
            kv_heads: shape.kv_heads as u32,
            head_size: shape.head_size as u32,
        };
        let launch = Launch {
            grid: (running.n, (qkv.rows / 2).div_ceil(256), 1),
            threads: 256,
            shared_bytes: 0,
            begin: store.begin_writing(self.begin),
        };
        // SAFETY: the kernel takes one `Rotate`; slots were checked against the pages.
        unsafe { gpu.launch(self.kernels.rotate, launch, &mut [(&raw mut args).cast()])? };
        store.written(gpu, layer, target)?;
        if let Some(selecting) = selecting {
            selecting.put(gpu, layer, target, running.slots, running.n as usize)?;
            if selecting.look(layer) == Some(Look::Same) {
                selecting.choose(gpu, store, layer, there(&room.q)?.pointer())?;
            }
        }
        if self.watcher.is_some() { self.tell(layer, &guess) } else { Ok(()) }
    }

    fn attend(&mut self, layer: usize, _: &AttendWork) -> Result<()> {
        let Self { gpu, layers, room, store, selecting, .. } = self;
        let running = running(&mut self.running)?;
        let marks = (layer == layers.len() / 2).then_some(&self.marks[self.turn].attention);
        if let Some([before, _]) = marks {
            gpu.set_mark(before)?;
        }
        let (q, o) = (there(&room.q)?, there(&room.o)?);
        let selecting = selecting.as_mut().filter(|selecting| selecting.selects(layer));
        if selecting.as_ref().is_none_or(|selecting| selecting.selects_from().is_none()) {
            let begin = self.attention.earliest(&running.plan);
            self.attention.launch(gpu, &running.plan, q, store.view(layer), o, begin)?;
        }
        if let Some(selecting) = selecting {
            selecting.attend(gpu, store, layer, [q.pointer(), o.pointer()], running.target)?;
        }
        marks.map_or(Ok(()), |[_, after]| gpu.set_mark(after))?;
        store.read(gpu, layer)
    }

    fn attn_out(&mut self, layer: usize) -> Result<()> {
        let Self { gpu, layers, products, room, .. } = self;
        let running = running(&mut self.running)?;
        let part = there(&room.part)?;
        running.owed = products.partial(gpu, &layers[layer].o, there(&room.o)?, running.n, false, part)?;
        Ok(())
    }

    fn mlp(&mut self, layer: usize) -> Result<()> {
        self.normed(self.layers[layer].mlp_norm.pointer())?;
        self.look_ahead(layer + 1, Look::Half)?;
        let Self { gpu, layers, products, room, shape, .. } = self;
        let running = running(&mut self.running)?;
        let Layer { gate_up, down, .. } = &layers[layer];
        let (normed, gated, part) = (there(&room.normed)?, there(&room.gated)?, there(&room.part)?);
        if products.by_blas(running.n) {
            products.partial(gpu, gate_up, normed, running.n, true, part)?;
            let features = shape.feed_forward as u32;
            let (mut y, mut out, mut features, mut all) =
                (part.pointer(), gated.pointer(), features, u64::from(features) * u64::from(running.n));
            let mut parameters: [*mut c_void; 4] =
                [(&raw mut y).cast(), (&raw mut out).cast(), (&raw mut features).cast(), (&raw mut all).cast()];
            let launch =
                Launch { grid: (all.div_ceil(256) as u32, 1, 1), threads: 256, shared_bytes: 0, begin: self.begin };
            // SAFETY: the kernel's four parameters, of n rows each.
            unsafe { gpu.launch(self.kernels.gate, launch, &mut parameters)? };
        } else {
            products.gated(gpu, gate_up, normed, running.n, gated)?;
        }
        running.owed = products.partial(gpu, down, gated, running.n, false, part)?;
        if layer + 1 == self.layers.len() {
            self.marks[self.turn].end(&self.gpu)?;
        }
        Ok(())
    }

    fn head(&mut self, wanted: &[HeadRow<'_>], out: &mut Vec<Said>) -> Result<()> {
        check_head(wanted, running(&mut self.running)?.n as usize, self.shape.vocab)?;
        let norm = self.norm_args(self.norm.pointer())?;
        let Self { gpu, kernels, products, room, marks, turn, begin, .. } = self;
        let (weight, count) = (self.output.as_ref().unwrap_or(&self.embed), wanted.len() as u32);
        let marks = &mut marks[*turn];
        self.head.answer(
            gpu,
            wanted,
            |rows, logits| {
                norm.launch(gpu, kernels.norm, rows, count, *begin)?;
                products.partial(gpu, weight, there(&room.normed)?, count, true, logits).map(drop)
            },
            || marks.end(gpu),
            out,
        )?;
        (0..2).try_for_each(|turn| self.collect(turn))?;
        self.collect_link()
    }

    fn fetch(&mut self, wanted: usize, out: &mut Vec<f32>) -> Result<()> {
        self.head.fetch(&self.gpu, wanted, out)
    }

    fn finish(&mut self) -> Result<()> {
        self.gpu.wait()?;
        self.store.wait()?;
        (0..2).try_for_each(|turn| self.collect(turn))?;
        self.collect_link()
    }

    fn times(&self) -> Times {
        self.times
    }

    fn refetch(&mut self, tier: Option<(u64, Fetch)>, slots: &[Slot]) -> Result<()> {
        self.finish()?;
        let Self { gpu, shape, attention, store, .. } = self;
        let keep = !slots.is_empty();
        self.selecting = None;
        let (bytes, selection) = match tier {
            None => return store.retier(gpu, attention, (None, None), keep),
            Some((bytes, Fetch::Full)) => return store.retier(gpu, attention, (Some(bytes), None), keep),
            Some((_, Fetch::Int4)) => return Err(Error::input(METHODS)),
            Some((bytes, Fetch::Selected(selection))) => (bytes, selection),
        };
        let pages = store.pages();
        let plan = selecting::plan(bytes, &selection, pages, shape)?;
        store.retier(gpu, attention, (Some(bytes), Some(plan.layout)), keep)?;
        let mut selecting = Selecting::new(gpu, self.number, shape, pages, (&plan, &selection))?;
        selecting.measure(gpu, store)?;
        store.add_peak(selecting.bytes(&plan));
        selecting.adopt(gpu, store, slots)?;
        self.selecting = Some(selecting);
        Ok(())
    }

    fn link(&self) -> Option<Link> {
        let mut link = self.store.link()?;
        if let Some(selecting) = &self.selecting {
            selecting.count(&mut link);
        }
        Some(link)
    }

    fn here(&self) -> Option<Vec<f32>> {
        self.store.here()
    }
}
