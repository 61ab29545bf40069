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
//! Steps of a shape that came before are replayed as one graph (`step/graphs.rs`).
//!
//! On Hopper and newer a launch begins while the one before it ends, and products ask for their first weights then.
//!
//! `x` is float32; all else that kernels hand on is of the device's 16-bit number type. Products of many rows go to cuBLAS
//! where it is found. Head sizes are those of the attention kernels.

use self::graphs::Graphs;
use self::launch::{Kernels, NormArgs};
use self::marks::Marks;
use super::attend::{AttendKernel, LoadedPlan, Number, PlanPlaces};
use super::driver::{Begin, Buffer, Gpu};
use super::head::Head;
use super::heavy::{self, Heavy};
use super::matrix::Matrix;
use super::product::Products;
use super::selecting::{self, Selecting};
use super::staging::Staging;
use super::store::{Store, Target};
use super::work::{CudaPlan, Machine, Moves};
use crate::base::{Error, Result};
use crate::device::attend::{AttendWork, Io};
use crate::device::check::{check_head, check_step};
use crate::device::head::{HeadRow, Said};
use crate::device::speculation::{Fetch, Source, Watcher};
use crate::device::tiers::Link;
use crate::device::{Device, Shape, Step, Times};
use crate::kv::{PAGE_TOKENS, PageId, Slot};
use std::sync::Arc;
use std::time::Instant;

mod graphs;
mod guess;
mod launch;
mod layer;
mod load;
mod marks;

pub use load::{check_model, heavy_bytes, number, page_bytes, weight_bytes, work_bytes};

/// Rows of a step: enough for prompts to be bound by arithmetic.
pub const STEP_ROWS: usize = 1024;

/// What a card is told that cannot do what it is asked.
pub const METHODS: &str = "this way of --offload goes by exact scores of all tokens, which --device cpu alone has";

/// Turns a step's attention into the kernel's plan; a part of `attention`, which stands above the device. Whoever plans
/// writes the next plan over this one where the step has let go of it.
pub type Planning = Box<dyn FnMut(&AttendWork, &Machine) -> Arc<CudaPlan> + Send>;

pub struct CudaOptions {
    /// K/V pages of 16 tokens.
    pub pages: usize,
    /// Rows of the largest steps.
    pub rows: usize,
    pub planning: Planning,
    /// Bytes of the card that K/V may take, where all of it lies in a host tier of `pages` pages; `None`: it is on the card.
    pub tier: Option<u64>,
    /// Whether steps that come again are captured and replayed.
    pub graphs: bool,
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
    tokens: u64,
    positions: u64,
    slots: u64,
    /// Splits in `part` that `x` still lacks.
    owed: u32,
    /// Where the present layer's K/V is written.
    target: Target,
    /// A graph ran all layers.
    replayed: bool,
}

pub struct CudaDevice {
    gpu: Gpu,
    /// Gone before the kernels that they run.
    graphs: Graphs,
    shape: Shape,
    number: Number,
    kernels: Kernels,
    products: Products,
    attention: AttendKernel,
    planning: Planning,
    /// What the last step's plan moves.
    moves: Moves,
    store: Store,
    /// What rows attend to is chosen.
    selecting: Option<Selecting>,
    /// Who is told what layers see, and what is added for guesses meanwhile.
    watching: Option<(Watcher, Vec<Buffer>)>,
    /// What rows attend to is what they kept.
    heavy: Option<Heavy>,
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

impl CudaDevice {
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

    /// Shares of pages, of their layers in the store and of those that `rows` knows.
    fn per_page(&self, mut layers: Vec<f32>, rows: impl Fn(&Selecting) -> Option<Vec<f32>>) -> Option<Vec<f32>> {
        if let Some(selecting) = &self.selecting {
            layers.iter_mut().zip(rows(selecting)?).for_each(|(all, rows)| *all += rows);
        }
        let most = self.shape.layers as f32;
        layers.iter_mut().for_each(|share| *share = (*share / most).min(1.0));
        Some(layers)
    }

    /// Reads what kernels counted of rows, once the step is done.
    fn collect_rows(&mut self) -> Result<()> {
        self.heavy.as_mut().map_or(Ok(()), |heavy| heavy.collect(&self.gpu))?;
        self.selecting.as_mut().map_or(Ok(()), |selecting| selecting.collect(&self.gpu))
    }
}

fn running(step: &mut Option<Running>) -> Result<&mut Running> {
    step.as_mut().ok_or_else(|| Error::fault("an operation outside a step on the GPU"))
}

fn there(room: &Option<Buffer>) -> Result<&Buffer> {
    room.as_ref().ok_or_else(|| Error::fault("an operation outside a step on the GPU"))
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

    fn note(&self) -> Option<&str> {
        self.graphs.refused()
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

    fn attend_io(&self, planned: Io) -> Io {
        let Moves { tokens, partials, .. } = self.moves;
        Io { kv_tokens: tokens, partial_rows: partials * self.shape.kv_heads as u64, ..planned }
    }

    fn partial_sums(&self) -> usize {
        // The logarithm of the sum, with the maximum in it.
        1
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
        self.moves = plan.moves;

        self.staging.clear();
        let slots: Vec<u32> = step.slots.iter().map(|s| s.page.0 * PAGE_TOKENS as u32 + u32::from(s.offset)).collect();
        let tokens = self.staging.push(step.tokens);
        let positions = self.staging.push(step.positions);
        let slots_of = slots;
        let slots = self.staging.push(&slots_of);
        let barrier = self.staging.push_zeros(self.attention.barrier_bytes());
        let items = self.staging.push_roomy(&plan.items);
        let cta_items = self.staging.push_roomy(&plan.cta_items);
        let tiles = self.staging.push_roomy(&plan.tiles);
        let batch_row = self.staging.push(&plan.batch_row);
        let merge_row = self.staging.push_roomy(&plan.merge_row);
        let merge_first = self.staging.push_roomy(&plan.merge_first);
        let merge = self.staging.push_roomy(&plan.merge);
        let mut selects_from = None;
        if let Some(selecting) = &mut self.selecting {
            selecting.begin(step.work, step.slots, step.selects, &mut self.staging);
            selects_from = selecting.selects_from();
        }
        if let Some(heavy) = &mut self.heavy {
            heavy.begin(step.work, step.slots, step.selects, &mut self.staging);
            selects_from = heavy.selects_from();
        }
        let fetched = self.staging.push(self.store.plan(step.work, step.slots, selects_from)?);
        let numbers = self.staging.push(&(0..n as u32).collect::<Vec<_>>());
        if self.watching.is_some() {
            self.watched_pages = step.slots.iter().map(|slot| slot.page.0 as usize + 1).max().unwrap_or(0);
            self.watched_slots = slots_of.clone();
        }
        self.times.planning += planning.elapsed().as_secs_f64();
        self.fit(n as u32)?;
        let gpu = &self.gpu;
        let base = self.staging.send(gpu, self.store.link().is_some())?;

        let (part_o, part_lse) = self.attention.partial_bytes(&plan);
        let places = PlanPlaces {
            part_o: gpu.grow(&mut self.room.part_o, part_o.next_power_of_two())?.pointer(),
            part_lse: gpu.grow(&mut self.room.part_lse, part_lse.next_power_of_two())?.pointer(),
            barrier: base + barrier,
            items: base + items,
            cta_items: base + cta_items,
            tiles: base + tiles,
            batch_row: base + batch_row,
            merge_row: base + merge_row,
            merge_first: base + merge_first,
            merge: base + merge,
        };
        self.running = Some(Running {
            n: n as u32,
            plan: self.attention.place(&plan, places),
            tokens: base + tokens,
            positions: base + positions,
            slots: base + slots,
            owed: 0,
            target: Target { kv: 0, slots: 0 },
            replayed: false,
        });
        let graph = self.find_graph()?;
        let gpu = &self.gpu;
        self.marks[self.turn].graphed = false;
        gpu.set_mark(&self.marks[self.turn].whole[0])?;
        self.store.begin(gpu, [fetched, slots, numbers].map(|at| base + at))?;
        if let Some(selecting) = &mut self.selecting {
            selecting.placed(gpu, base)?;
        }
        if let Some(heavy) = &mut self.heavy {
            heavy.placed(gpu, &mut self.store, base)?;
        }
        match graph {
            Some(graph) => self.replay(graph),
            None => self.embed(),
        }
    }

    fn attn_in(&mut self, layer: usize) -> Result<()> {
        if running(&mut self.running)?.replayed { Ok(()) } else { self.queries(layer) }
    }

    fn attend(&mut self, layer: usize, _: &AttendWork) -> Result<()> {
        if running(&mut self.running)?.replayed { Ok(()) } else { self.attention(layer) }
    }

    fn attn_out(&mut self, layer: usize) -> Result<()> {
        if running(&mut self.running)?.replayed { Ok(()) } else { self.output(layer) }
    }

    fn mlp(&mut self, layer: usize) -> Result<()> {
        if !running(&mut self.running)?.replayed {
            self.feed_forward(layer)?;
        }
        if layer + 1 == self.layers.len() { self.marks[self.turn].end(&self.gpu) } else { Ok(()) }
    }

    fn head(&mut self, wanted: &[HeadRow<'_>], out: &mut Vec<Said>) -> Result<()> {
        check_head(wanted, running(&mut self.running)?.n as usize, self.shape.vocab)?;
        let norm = self.norm_args(self.norm.pointer())?;
        let Self { gpu, kernels, products, room, marks, turn, begin, store, .. } = self;
        let (weight, count) = (self.output.as_ref().unwrap_or(&self.embed), wanted.len() as u32);
        let marks = &mut marks[*turn];
        self.head.answer(
            gpu,
            wanted,
            |rows, logits| {
                kernels.norm(gpu, NormArgs { rows, ..norm }, count, *begin)?;
                products.partial(gpu, weight, there(&room.normed)?, count, true, logits).map(drop)
            },
            || {
                marks.end(gpu)?;
                // What the host can do while the card goes on.
                store.collect_before()
            },
            out,
        )?;
        (0..2).try_for_each(|turn| self.collect(turn))?;
        self.collect_rows()
    }

    fn fetch(&mut self, wanted: usize, out: &mut Vec<f32>) -> Result<()> {
        self.head.fetch(&self.gpu, wanted, out)
    }

    fn finish(&mut self) -> Result<()> {
        self.gpu.wait()?;
        self.store.wait()?;
        (0..2).try_for_each(|turn| self.collect(turn))?;
        self.store.collect()?;
        self.collect_rows()
    }

    fn times(&self) -> Times {
        self.times
    }

    fn refetch(&mut self, tier: Option<(u64, Fetch)>, slots: &[Slot]) -> Result<()> {
        self.finish()?;
        let Self { gpu, shape, attention, store, .. } = self;
        let keep_kv = !slots.is_empty();
        (self.selecting, self.heavy) = (None, None);
        self.graphs.clear();
        let (bytes, selection) = match tier {
            None => return store.retier(gpu, attention, (None, None), keep_kv),
            Some((bytes, Fetch::Full)) => return store.retier(gpu, attention, (Some(bytes), None), keep_kv),
            Some((bytes, Fetch::Int4)) => return store.retier_int4(gpu, attention, bytes, keep_kv),
            Some((bytes, Fetch::Selected(selection))) => (bytes, selection),
        };
        let pages = store.pages();
        if let Source::Heavy { keep } = selection.source {
            let plan = heavy::plan(bytes, &selection, pages, shape)?;
            store.retier(gpu, attention, (Some(bytes), Some(plan.layout)), keep_kv)?;
            let heavy = Heavy::new(gpu, self.number, shape, pages, (&plan, keep, selection.whole_layers))?;
            store.add_peak(heavy.bytes(&plan));
            self.heavy = Some(heavy);
            return Ok(());
        }
        let plan = selecting::plan(bytes, &selection, pages, shape)?;
        store.retier(gpu, attention, (Some(bytes), Some(plan.layout)), keep_kv)?;
        let selecting = Selecting::new(gpu, self.number, shape, pages, (&plan, &selection))?;
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
        if let Some(heavy) = &self.heavy {
            heavy.count(&mut link);
        }
        Some(link)
    }

    fn here(&self) -> Option<Vec<f32>> {
        self.per_page(self.store.layers_here()?, |selecting| selecting.layers_here(&self.gpu))
    }

    fn moving(&self) -> Option<Vec<f32>> {
        self.per_page(self.store.layers_moved()?, |selecting| selecting.layers_moved(&self.gpu))
    }

    fn freed(&mut self, pages: &[PageId]) {
        if let Some(selecting) = &mut self.selecting {
            selecting.freed(pages);
        }
    }

    fn expect(&mut self, soon: &[PageId], later: &[PageId]) {
        if let Some(selecting) = &mut self.selecting {
            selecting.expect(&self.gpu, &self.store, soon, later);
        }
    }
}
