//! Attention over selected tokens on the card (`kernels/select.cu`, `kernels/picked.cu`): guessed scores choose what a layer's rows attend to, the
//! union of that is gathered from the host tier beside the step, and attention reads it from where it lies.
//!
//! Everything that the choice needs stays on the card, so a step is launched without waiting for any layer. Rows that were
//! brought stay from step to step as far as frames go (`keep.rs`). Beside them there is a *stage*, frames for single rows of
//! K/V that layers take turns in: one comes while the one before is read. What finds no frame is read from the host tier in
//! place, so that any number of frames will do.
//!
//! In a step in which other rows attend to everything (a prompt's), all pages come anyway, and selecting rows read theirs
//! from the arena.

use super::attend::Number;
use super::driver::{Buffer, Function, Gpu, Module, grid};
use super::ptx;
use super::store::{Store, Target};
use crate::base::{Error, Result};
use crate::device::Shape;
use crate::device::picks::Rule;
use crate::device::speculation::{Look, Selection};
use crate::device::tiers::{Link, Paths};
use crate::kv::{PAGE_TOKENS, PageId, Slot};
use cudarc::driver::CudaEvent;

mod args;
mod attend;
mod choose;
pub mod keep;
mod plan;
mod rows;

use args::PutArgs;
use keep::Keeping;
use plan::{Gatherers, guesses, most_chunks};
pub use plan::{Plan, Split, plan};
use rows::{Rows, UNWRITTEN};

/// What the kernels count: `Told` of `kernels/keep.cuh`.
const TOLD: usize = 9;
const STAGE_WANTED: usize = 6;

struct Kernels {
    put_partial: Function,
    project_queries: Function,
    expand: Function,
    score: Function,
    head_tops: Function,
    pick: Function,
    gather_rows: Function,
    gather_alone: Function,
    attend_picked: Function,
    merge_picked: Function,
    sample_full: Function,
    sample_missed: Function,
    _modules: [Module; 2],
}

/// A selecting layer's basis `[kv_head][d][columns]` with its centre `[kv_head][columns]`, what is added for a guess
/// `[hidden]`, and partial keys.
struct Layer {
    basis: Buffer,
    centre: Buffer,
    shift: Option<Buffer>,
    codes: Buffer,
    scales: Buffer,
}

/// What was chosen for a layer, and where it lies.
pub struct Chosen {
    /// `[kv_head][page]`, then how many rows come to the layer's own frames, how many want one of the stage, and how many of the
    /// layer before did.
    pub bits: Buffer,
    pub starts: Buffer,
    words: usize,
    /// What is to be brought, and where to; and which of the stage's rows belong together.
    pub brought: Option<Buffer>,
    pub chunks: Buffer,
    lists: Option<Buffer>,
    counts: Option<Buffer>,
    /// Whether rows come to frames of the stage that the layer before has, once it is read.
    in_parts: bool,
    /// The choice is made; attention has read what came of it.
    ready: CudaEvent,
    read: CudaEvent,
}

impl Chosen {
    pub fn new(gpu: &Gpu, kv_heads: usize, pages: usize) -> Result<Self> {
        Ok(Self {
            bits: gpu.zeros((kv_heads * pages + 3) * 4)?,
            starts: gpu.zeros(kv_heads * pages * 4)?,
            words: kv_heads * pages,
            brought: None,
            chunks: gpu.zeros(kv_heads * most_chunks(pages) * 8)?,
            lists: None,
            counts: None,
            in_parts: false,
            ready: gpu.new_order()?,
            read: gpu.new_order()?,
        })
    }

    /// Room for so many rows to be brought.
    pub fn grow(&mut self, gpu: &Gpu, rows: usize) -> Result<()> {
        gpu.grow(&mut self.brought, rows * 8).map(drop)
    }

    /// Where the three numbers after the bits are.
    fn total(&self) -> u64 {
        self.bits.pointer() + self.words as u64 * 4
    }
}

/// Room to work in; grows, never shrinks.
#[derive(Default)]
struct Room {
    projected: Option<Buffer>,
    slot_of: Option<Buffer>,
    scores: Option<Buffer>,
    tops: Option<Buffer>,
    within: Option<Buffer>,
    keys: Option<Buffer>,
    /// Parts of attention, `[rows][heads][parts][2 + d]`.
    part: Option<Buffer>,
    /// Largest scores and sums of what rows attended to, `[rows][heads][2]`, and of the sample's parts.
    sums: Option<Buffer>,
    sampled: Option<Buffer>,
}

pub struct Selecting {
    rule: Rule,
    look: Look,
    whole_layers: usize,
    /// Whether what several rows want crosses the link once.
    share: bool,
    kernels: Kernels,
    layers: Vec<Layer>,
    columns: usize,
    heads: usize,
    kv_heads: usize,
    head_size: usize,
    pages: usize,
    keeping: Keeping,
    chosen: [Chosen; 2],
    rows: Rows,
    /// Of each page the first slot that the step writes.
    written: Vec<u8>,
    room: Room,
    paths: Paths,
    /// The layer whose attention was launched last in this step, and the one that rows are still to be brought for where those
    /// of the layer before lie.
    attended: Option<usize>,
    late_rows: Option<usize>,
    /// Counts of the kernels on the card, and as last read.
    told: Buffer,
    heard: [u64; TOLD],
    /// Steps with selecting rows: which layer, head and row is compared with full attention goes by it.
    steps: usize,
    /// Bytes that those comparisons read of the host tier.
    sampled_bytes: u64,
    /// What went wrong between steps, for the next one to tell.
    late: Option<Error>,
    gatherers: Gatherers,
    multiprocessors: usize,
}

/// What the kernels left of one layer, all rows being one chunk.
pub struct Inspected {
    /// `[page][kv_head][pairs][16]`, and `[page][kv_head][16]` in float16.
    pub codes: Vec<u8>,
    pub scales: Vec<u16>,
    /// `[rows][heads][stride]`.
    pub scores: Vec<f32>,
    pub stride: usize,
    /// `[rows][kv_heads]`, and that with `list_stride` slots each.
    pub counts: Vec<u32>,
    pub lists: Vec<u32>,
    pub list_stride: usize,
    /// Whether rows come to frames of the stage that the layer before has, once it is read.
    pub in_parts: bool,
}

impl Selecting {
    pub fn new(
        gpu: &Gpu,
        number: Number,
        shape: &Shape,
        pages: usize,
        (plan, selection): (&Plan, &Selection),
    ) -> Result<Self> {
        let (speculation, look) = guesses(selection)?;
        let rule = selection.choose.rule().ok_or_else(|| Error::input(super::step::METHODS))?;
        let Shape { heads, kv_heads, head_size, .. } = *shape;
        let (d, c) = (head_size, speculation.columns);
        let tokens = pages * PAGE_TOKENS * kv_heads;
        let layer = |l: usize| -> Result<Layer> {
            // Lanes of a warp stand for neighbouring columns.
            let mut turned = vec![0f32; kv_heads * d * c];
            for (at, number) in speculation.layers[l].numbers.iter().enumerate() {
                let (head, column, i) = (at / (c * d), at / d % c, at % d);
                turned[(head * d + i) * c + column] = *number;
            }
            Ok(Layer {
                basis: gpu.upload(&turned)?,
                centre: gpu.upload(&speculation.layers[l].centre)?,
                shift: Some(speculation.shift(l, look)).filter(|s| !s.is_empty()).map(|s| gpu.upload(s)).transpose()?,
                codes: gpu.zeros(tokens * c.div_ceil(2))?,
                scales: gpu.zeros(tokens * 2)?,
            })
        };
        let keeping = Keeping::new(gpu, shape, pages, (plan, selection.eviction))?;
        let chosen = || -> Result<Chosen> {
            let mut chosen = Chosen::new(gpu, kv_heads, pages)?;
            chosen.grow(gpu, keeping.brought_at_most())?;
            Ok(chosen)
        };
        let modules = [gpu.load(ptx::select(number))?, gpu.load(ptx::picked(number))?];
        let f = |name| modules[0].function(name, 0);
        let of_picked = |name| modules[1].function(name, 0);
        Ok(Self {
            rule,
            look,
            whole_layers: speculation.whole_layers,
            share: selection.share,
            layers: (speculation.whole_layers..shape.layers).map(layer).collect::<Result<_>>()?,
            columns: c,
            heads,
            kv_heads,
            head_size,
            pages,
            chosen: [chosen()?, chosen()?],
            keeping,
            rows: Rows::default(),
            written: vec![UNWRITTEN; pages],
            room: Room::default(),
            paths: Paths::default(),
            attended: None,
            late_rows: None,
            told: gpu.zeros(TOLD * 8)?,
            heard: [0; TOLD],
            steps: 0,
            sampled_bytes: 0,
            late: None,
            gatherers: Gatherers::default(),
            multiprocessors: gpu.multiprocessors as usize,
            kernels: Kernels {
                put_partial: f("put_partial")?,
                project_queries: f("project_queries")?,
                expand: f("expand")?,
                score: f("score")?,
                head_tops: f("head_tops")?,
                pick: f("pick")?,
                gather_rows: of_picked("gather_rows")?,
                gather_alone: of_picked("gather_alone")?,
                attend_picked: of_picked("attend_picked")?,
                merge_picked: of_picked("merge_picked")?,
                sample_full: of_picked("sample_full")?,
                sample_missed: of_picked("sample_missed")?,
                _modules: modules,
            },
        })
    }

    /// The layers that select, where all rows of the step do.
    pub fn selects_from(&self) -> Option<usize> {
        (self.rows.count > 0 && self.rows.all).then_some(self.whole_layers)
    }

    /// Whether rows of the step select in this layer.
    pub fn selects(&self, layer: usize) -> bool {
        self.rows.count > 0 && (self.whole_layers..self.whole_layers + self.layers.len()).contains(&layer)
    }

    /// Whose query guesses for a layer, where rows of the step select in it.
    pub fn look(&self, layer: usize) -> Option<Look> {
        self.selects(layer).then_some(self.look)
    }

    /// Where lies what is added to `x` where queries of a layer are guessed from it; 0: nowhere.
    pub fn shift(&self, layer: usize) -> u64 {
        let own = layer.checked_sub(self.whole_layers).and_then(|at| self.layers.get(at));
        own.and_then(|layer| layer.shift.as_ref()).map_or(0, Buffer::pointer)
    }

    /// Keeps partial keys of `rows` new tokens of a layer, which lie at `from` and belong to `slots`.
    pub fn put(&self, gpu: &Gpu, layer: usize, from: Target, slots: u64, rows: usize) -> Result<()> {
        let Some(own) = layer.checked_sub(self.whole_layers).and_then(|at| self.layers.get(at)) else { return Ok(()) };
        let mut args = PutArgs {
            kv: from.kv,
            from_slots: from.slots,
            to_slots: slots,
            basis: own.basis.pointer(),
            centre: own.centre.pointer(),
            codes: own.codes.pointer(),
            scales: own.scales.pointer(),
            kv_heads: self.kv_heads as u32,
            head_size: self.head_size as u32,
            columns: self.columns as u32,
            pairs: self.columns.div_ceil(2) as u32,
            kept: self.keeping.kept(layer),
        };
        // SAFETY: the kernel takes one `Put`; slots were checked against the pages.
        unsafe {
            gpu.launch(self.kernels.put_partial, grid(rows, self.kv_heads, 1, 256), &mut [(&raw mut args).cast()])
        }
    }

    /// Keeps partial keys of tokens that the host tier has already.
    pub fn adopt(&self, gpu: &Gpu, store: &Store, slots: &[Slot]) -> Result<()> {
        if slots.is_empty() {
            return Ok(());
        }
        let numbers: Vec<u32> = slots.iter().map(|s| s.page.0 * PAGE_TOKENS as u32 + u32::from(s.offset)).collect();
        let there = gpu.upload(&numbers)?;
        for layer in self.whole_layers..self.whole_layers + self.layers.len() {
            let from = Target { kv: store.host(layer), slots: there.pointer() };
            self.put(gpu, layer, from, there.pointer(), slots.len())?;
        }
        gpu.wait()
    }

    /// Reads what the kernels counted, and shares frames out anew where a stage was too small; waits for the step.
    pub fn collect(&mut self, gpu: &Gpu) -> Result<()> {
        let heard: Vec<u64> = gpu.download(&self.told, TOLD)?;
        self.heard.copy_from_slice(&heard);
        if self.keeping.adapt(gpu, usize::try_from(self.heard[STAGE_WANTED]).unwrap_or(usize::MAX))? {
            let rows = self.keeping.brought_at_most();
            self.chosen.iter_mut().try_for_each(|chosen| chosen.grow(gpu, rows))?;
        }
        Ok(())
    }

    /// Adds to what the store counts.
    pub fn count(&self, link: &mut Link) {
        let [attended, past, brought, in_place, hits, evictions, _, samples, missed] = self.heard;
        link.attended += attended;
        link.past += past;
        link.hits += hits;
        link.fetches += brought + in_place;
        link.evictions += evictions;
        link.to_device_bytes += (brought + in_place) * 4 * self.head_size as u64 + self.sampled_bytes;
        link.samples += samples;
        link.missed += missed as f64 / (1u64 << 32) as f64;
        link.moved_out += self.keeping.moved_out;
        link.moved_back += self.keeping.moved_back;
    }

    /// Rows that stay.
    pub fn keeping(&self) -> &Keeping {
        &self.keeping
    }

    /// Pages whose tokens are gone.
    pub fn freed(&mut self, pages: &[PageId]) {
        self.keeping.freed(pages.iter().map(|page| page.0));
    }

    /// Rows move as the search expects to need them; what goes wrong is told by the next step.
    pub fn expect(&mut self, gpu: &Gpu, store: &Store, soon: &[PageId], later: &[PageId]) {
        let pages = (soon.iter().map(|page| page.0), later.iter().map(|page| page.0));
        // What the last step drops of rows that are written anew may be under way.
        let moved = gpu
            .bind()
            .and_then(|()| store.wait())
            .and_then(|()| self.keeping.expect(gpu, store, self.told.pointer(), pages));
        self.late = self.late.take().or(moved.err());
    }

    /// Of each page how many of its layers are here as rows, each row as its share of one; `None` where the card does not
    /// answer, which the next step tells.
    pub fn layers_here(&self, gpu: &Gpu) -> Option<Vec<f32>> {
        self.layers_of(gpu.bind().and_then(|()| self.keeping.rows_here(gpu)))
    }

    /// The same of what crossed the link in the last step, or left.
    pub fn layers_moved(&self, gpu: &Gpu) -> Option<Vec<f32>> {
        self.layers_of(gpu.bind().and_then(|()| self.keeping.rows_moved(gpu)))
    }

    fn layers_of(&self, rows: Result<Vec<u32>>) -> Option<Vec<f32>> {
        let layer_rows = (self.kv_heads * PAGE_TOKENS) as f32;
        Some(rows.ok()?.into_iter().map(|rows| rows as f32 / layer_rows).collect())
    }

    /// What was made of a layer, for the selftest; waits for the stream.
    pub fn inspect(&self, gpu: &Gpu, layer: usize) -> Result<Inspected> {
        let (own, chosen) = (&self.layers[layer - self.whole_layers], &self.chosen[layer % 2]);
        let all =
            |buffer: &Option<Buffer>| buffer.as_ref().map_or(Ok(Vec::new()), |b| gpu.download::<u32>(b, b.bytes() / 4));
        let scores = self.room.scores.as_ref().map_or(Ok(Vec::new()), |b| gpu.download(b, b.bytes() / 4))?;
        Ok(Inspected {
            codes: gpu.download(&own.codes, own.codes.bytes())?,
            scales: gpu.download(&own.scales, own.scales.bytes() / 2)?,
            scores,
            stride: self.rows.stride,
            counts: all(&chosen.counts)?,
            lists: all(&chosen.lists)?,
            list_stride: self.rows.list_stride,
            in_parts: chosen.in_parts,
        })
    }

    /// Bytes of the card's tier that are not arenas.
    pub fn bytes(&self, plan: &Plan) -> u64 {
        plan.partial + self.keeping.bytes()
    }
}
