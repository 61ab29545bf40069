//! Rows of the host tier that stay on the card from step to step (`kernels/keep.cu`).
//!
//! ```text
//! pool    [layer 1: set 0 | set 1 | …][layer 2: …] … [stage: even layers → … ← odd layers]
//! ```
//!
//! A selecting layer has frames of its own, in sets that a block each settles: of a step's rows those that are here are found,
//! and the others come for rows that are wanted less. What comes beside them is brought to the stage, for this layer alone.
//! Layers fill it from either end in turns, so that one is brought while the one before is read; where the two would meet,
//! the rest is brought once attention has read the layer before.
//! Nothing here is told of a row that is written anew: `put_partial`, which sees every new key, drops what was kept of its
//! slot, so that no row is ever served for another one's sake.
//!
//! Frames are shared out between the stage and layers as steps turn out (`Split`): the stage is to have all that does not stay,
//! since attention reads the rest from the host tier in place, each row for itself.

use super::Chosen;
use super::args::{BringBackArgs, KeepArgs, KeptArgs};
use super::plan::{Plan, Split, row_bytes};
use crate::base::Result;
use crate::device::Shape;
use crate::device::cuda::driver::{Buffer, Function, Gpu, Module, grid};
use crate::device::cuda::ptx;
use crate::device::cuda::store::Store;
use crate::device::tiers::Moves;
use crate::kv::PAGE_TOKENS;
use crate::kv::residency::Eviction;

/// Threads of a block that settles a set.
const SETTLERS: u32 = 512;

struct Kernels {
    settle: Function,
    forget: Function,
    bring_back: Function,
    count_here: Function,
    _module: Module,
}

/// What is known of rows and frames. Shapes are those of `kernels/keep.cuh`, a layer after the other.
struct Tables {
    state: Buffer,
    holders: Buffer,
    stamps: Option<Buffer>,
}

/// Pages whose rows go before a step, where the card finds them; offsets until the step's copy is sent.
#[derive(Default)]
struct Leaving {
    gone: (u64, usize),
    paused: (u64, usize),
}

pub struct Keeping {
    kernels: Kernels,
    split: Split,
    frames: usize,
    pages: usize,
    kv_heads: usize,
    head_size: usize,
    /// The first layer that selects, and how many do.
    first_layer: usize,
    layers: usize,
    eviction: Eviction,
    pool: Buffer,
    tables: Option<Tables>,
    /// By page: rows that crossed the link in this step; rows that are here.
    moved: Buffer,
    here: Buffer,
    step: u32,
    moves: Moves,
    gone: Vec<u32>,
    leaving: Leaving,
    pub moved_out: u64,
    pub moved_back: u64,
}

impl Keeping {
    pub fn new(gpu: &Gpu, shape: &Shape, pages: usize, (plan, eviction): (&Plan, Eviction)) -> Result<Self> {
        let Plan { frames, keeps, layout, .. } = *plan;
        let (kv_heads, layers) = (shape.kv_heads, shape.layers - plan.whole_layers);
        debug_assert_eq!(layout.layers, shape.layers);
        let tables = || -> Result<Tables> {
            Ok(Tables {
                state: gpu.zeros(layers * pages * PAGE_TOKENS * kv_heads * 2)?,
                holders: gpu.zeros(frames * 4)?,
                stamps: plan.stamps.then(|| gpu.zeros(frames * 4)).transpose()?,
            })
        };
        let module = gpu.load(ptx::KEEP)?;
        let f = |name| module.function(name, 0);
        Ok(Self {
            split: Split::first(plan, pages, kv_heads, layers),
            frames,
            pages,
            kv_heads,
            head_size: shape.head_size,
            first_layer: plan.whole_layers,
            layers,
            eviction,
            pool: gpu.zeros(frames * row_bytes(shape))?,
            tables: keeps.then(tables).transpose()?,
            moved: gpu.zeros(pages * 4)?,
            here: gpu.zeros(pages * 4)?,
            step: 0,
            moves: Moves::new(pages),
            gone: Vec::new(),
            leaving: Leaving::default(),
            moved_out: 0,
            moved_back: 0,
            kernels: Kernels {
                settle: f("settle")?,
                forget: f("forget")?,
                bring_back: f("bring_back")?,
                count_here: f("count_here")?,
                _module: module,
            },
        })
    }

    /// Where rows lie: the pool, and its first frames of a layer and of the stage.
    pub fn places(&self, layer: usize) -> (u64, [u32; 2]) {
        let own = self.split.layer_frames(self.kv_heads);
        let frames = [(layer - self.first_layer) * own, self.layers * own];
        (self.pool.pointer(), frames.map(|frame| frame as u32))
    }

    /// Chunks that a layer's rows of the stage are told in.
    pub fn chunks(&self) -> usize {
        self.split.tiles(self.pages) * self.split.groups * self.kv_heads
    }

    /// Frames of a layer.
    pub fn own(&self) -> u32 {
        self.split.layer_frames(self.kv_heads) as u32
    }

    pub fn split(&self) -> Split {
        self.split
    }

    /// Frames that one layer may have brought at once.
    pub fn brought_at_most(&self) -> usize {
        self.split.stage + self.split.layer_frames(self.kv_heads)
    }

    /// What the kernels know of a layer.
    pub fn kept(&self, layer: usize) -> KeptArgs {
        let own = (layer - self.first_layer) as u64;
        let rows = (self.pages * PAGE_TOKENS * self.kv_heads) as u64;
        let tables = self.tables.as_ref();
        let frames = own * self.split.layer_frames(self.kv_heads) as u64 * 4;
        KeptArgs {
            state: tables.map_or(0, |t| t.state.pointer() + own * rows * 2),
            holders: tables.map_or(0, |t| t.holders.pointer() + frames),
            stamps: tables.and_then(|t| t.stamps.as_ref()).map_or(0, |b| b.pointer() + frames),
            kv_heads: self.kv_heads as u32,
            pages: self.pages as u32,
            groups: self.split.groups as u32,
            frames: self.split.of_set as u32,
            eviction: match self.eviction {
                Eviction::Counter | Eviction::Newest => 0,
                Eviction::Fifo => 1,
                Eviction::Lru => 2,
            },
        }
    }

    /// A step sees these pages: those that nobody saw for long leave with it, and those that are gone for good.
    pub fn begin(&mut self, pages: &[u32], push: &mut dyn FnMut(&[u32]) -> u64) {
        self.step += 1;
        self.leaving = Leaving::default();
        if self.tables.is_none() {
            return;
        }
        let (paused, _) = self.moves.step(pages);
        self.moved_out += paused.len() as u64;
        let gone = std::mem::take(&mut self.gone);
        self.leaving = Leaving { gone: (push(&gone), gone.len()), paused: (push(&paused), paused.len()) };
    }

    /// The step's copy begins at `base`: what leaves does so now.
    pub fn start(&mut self, gpu: &Gpu, base: u64) -> Result<()> {
        gpu.set(&self.moved, 0)?;
        let Leaving { gone, paused } = std::mem::take(&mut self.leaving);
        self.forget(gpu, base + gone.0, gone.1, true)?;
        self.forget(gpu, base + paused.0, paused.1, false)
    }

    fn forget(&self, gpu: &Gpu, list: u64, pages: usize, gone: bool) -> Result<()> {
        if pages == 0 || self.tables.is_none() {
            return Ok(());
        }
        let (mut kept, mut list, mut gone) = (self.kept(self.first_layer), list, u32::from(gone));
        let (mut sets, mut moved) = ((self.split.groups * self.kv_heads) as u32, self.moved.pointer());
        let launch = grid(pages, self.layers, 1, 128);
        let parameters = &mut [
            (&raw mut kept).cast(),
            (&raw mut list).cast(),
            (&raw mut gone).cast(),
            (&raw mut sets).cast(),
            (&raw mut moved).cast(),
        ];
        // SAFETY: the kernel's five parameters; pages of the list were checked against those that both tiers have.
        unsafe { gpu.launch(self.kernels.forget, launch, parameters) }
    }

    /// Pages whose tokens are gone.
    pub fn freed(&mut self, pages: impl Iterator<Item = u32>) {
        let first = self.gone.len();
        self.gone.extend(pages.filter(|&page| (page as usize) < self.pages));
        self.moves.forget(&self.gone[first..]);
    }

    /// Rows of pages that nobody will see for a while leave now; those of pages that are seen soon, which were wanted before,
    /// come back where frames are free.
    pub fn expect(
        &mut self,
        gpu: &Gpu,
        store: &Store,
        told: u64,
        (soon, later): (impl Iterator<Item = u32>, impl Iterator<Item = u32>),
    ) -> Result<()> {
        if self.tables.is_none() {
            return Ok(());
        }
        let there = |page: &u32| (*page as usize) < self.pages;
        let (out, back) = self.moves.expect(soon.filter(there), later.filter(there));
        self.moved_out += out.len() as u64;
        self.moved_back += back.len() as u64;
        gpu.set(&self.moved, 0)?;
        if out.is_empty() && back.is_empty() {
            return Ok(());
        }
        let (out_there, back_there) = (gpu.upload(&out)?, gpu.upload(&back)?);
        self.forget(gpu, out_there.pointer(), out.len(), false)?;
        self.bring_back(gpu, store, back_there.pointer(), (back.len(), told))?;
        // The lists are freed here.
        gpu.wait()
    }

    fn bring_back(&self, gpu: &Gpu, store: &Store, list: u64, (pages, told): (usize, u64)) -> Result<()> {
        let sets = self.split.groups * self.kv_heads;
        if pages == 0 || self.split.of_set == 0 {
            return Ok(());
        }
        let mut args = BringBackArgs {
            kept: self.kept(self.first_layer),
            list,
            host: store.host(self.first_layer),
            pool: self.pool.pointer(),
            moved: self.moved.pointer(),
            told,
            layer_pieces: (self.pages * PAGE_TOKENS * self.kv_heads * self.head_size / 4) as u64,
            listed: pages as u32,
            layer_sets: sets as u32,
            pieces: (self.head_size / 8) as u32,
            step: self.step,
        };
        let launch = grid(sets, self.layers, 1, SETTLERS);
        // SAFETY: the kernel takes one `BringBack`; the host tier has all pages of all layers.
        unsafe { gpu.launch(self.kernels.bring_back, launch, &mut [(&raw mut args).cast()]) }
    }

    /// Gives what was chosen for a layer frames, and lists what is to be brought; `before`: what was chosen for the layer before.
    pub fn settle(&self, gpu: &Gpu, layer: usize, [chosen, before]: [&Chosen; 2], told: u64) -> Result<()> {
        let (_, [first, stage]) = self.places(layer);
        let mut args = KeepArgs {
            bits: chosen.bits.pointer(),
            starts: chosen.starts.pointer(),
            kept: self.kept(layer),
            total: chosen.total(),
            other: before.total() + 4,
            brought: chosen.brought.as_ref().map_or(0, Buffer::pointer),
            chunks: chosen.chunks.pointer(),
            moved: self.moved.pointer(),
            told,
            first,
            stage,
            capacity: self.split.stage as u32,
            turned: (layer % 2) as u32,
            own: self.own(),
            tiles: self.split.tiles(self.pages) as u32,
            step: self.step,
        };
        let launch = grid(self.split.groups * self.kv_heads, 1, 1, SETTLERS);
        // SAFETY: the kernel takes one `Keep`; the list has room for all frames that a layer may use.
        unsafe { gpu.launch(self.kernels.settle, launch, &mut [(&raw mut args).cast()]) }
    }

    /// A layer asked for so many frames of the stage: gives it what it lacks. What was kept is forgotten then, since it lies
    /// elsewhere from now on. True where something changed.
    pub fn adapt(&mut self, gpu: &Gpu, stage_wanted: usize) -> Result<bool> {
        let Some(split) = self.split.grown(self.frames, stage_wanted, (self.pages, self.kv_heads, self.layers)) else {
            return Ok(false);
        };
        self.split = split;
        if let Some(Tables { state, holders, .. }) = &self.tables {
            gpu.set(state, 0)?;
            gpu.set(holders, 0)?;
        }
        Ok(true)
    }

    /// Rows of each page that are here, over all layers that select; waits for the stream.
    pub fn rows_here(&self, gpu: &Gpu) -> Result<Vec<u32>> {
        if self.tables.is_none() {
            return Ok(vec![0; self.pages]);
        }
        let (mut kept, mut layers, mut here) = (self.kept(self.first_layer), self.layers as u32, self.here.pointer());
        let launch = grid(self.pages, 1, 1, 128);
        let parameters = &mut [(&raw mut kept).cast(), (&raw mut layers).cast(), (&raw mut here).cast()];
        // SAFETY: the kernel's three parameters.
        unsafe { gpu.launch(self.kernels.count_here, launch, parameters)? };
        gpu.download(&self.here, self.pages)
    }

    /// Rows of each page that crossed the link in the last step, or left; waits for the stream.
    pub fn rows_moved(&self, gpu: &Gpu) -> Result<Vec<u32>> {
        gpu.download(&self.moved, self.pages)
    }

    /// Bytes of the card's tier that rows take.
    pub fn bytes(&self) -> u64 {
        let tables = |t: &Tables| t.state.bytes() + t.holders.bytes() + t.stamps.as_ref().map_or(0, Buffer::bytes);
        (self.pool.bytes() + self.tables.as_ref().map_or(0, tables)) as u64
    }

    /// The tables of a layer, for the selftest: states `[kv_head][page][16]` and holders `[set][frames]`; waits for the stream.
    pub fn inspect(&self, gpu: &Gpu, layer: usize) -> Result<(Vec<u16>, Vec<u32>)> {
        let (own, rows) = (layer - self.first_layer, self.pages * PAGE_TOKENS * self.kv_heads);
        let frames = self.split.layer_frames(self.kv_heads);
        let Some(tables) = &self.tables else { return Ok((Vec::new(), Vec::new())) };
        let state = gpu.download::<u16>(&tables.state, (own + 1) * rows)?.split_off(own * rows);
        let holders = gpu.download::<u32>(&tables.holders, (own + 1) * frames)?.split_off(own * frames);
        Ok((state, holders))
    }

    /// The pool's numbers, for the selftest; waits for the stream.
    pub fn pool(&self, gpu: &Gpu) -> Result<Vec<u16>> {
        gpu.download(&self.pool, self.pool.bytes() / 2)
    }
}
