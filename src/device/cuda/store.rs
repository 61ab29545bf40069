//! Where a layer's K/V lies on the card: in an arena of its own, or, where not all of K/V fits there, in one of two (or in the
//! only one) that layers take turns in, filled from the host tier while the layers before are computed.
//!
//! ```text
//! host tier (pinned)   [layer 0][layer 1][layer 2][layer 3][layer 4] …       every page of every layer
//! card                 [layer 0][   2, 4, …      ][   1, 3, …      ]         one resident, two in turns
//! ```
//!
//! An arena has a place for every page of the host tier, at the same number, so that one attention plan serves all layers.
//! Three streams: the step's own (`main`), `down` for what the card fetches, `up` for new K/V, which is written through to
//! the host tier at once. Events order them:
//!
//! - a fetch into an arena waits for the attention and the write-back that read it last;
//! - K/V of the step is written into an arena only after the fetch for that layer (it may lie on a fetched page);
//! - a write-back waits for the rows it writes; a step begins after the last one of the step before.
//!
//! Where a step's rows select what they attend to (`selecting.rs`), no pages of the selecting layers are fetched, so that an
//! arena that layers take turns in keeps what it has of a layer that is read whole. The step's
//! own K/V then lies in a small memory beside the arenas, again two in turns.

use super::attend::{AttendKernel, KvLayout, KvView};
use super::driver::{Begin, Buffer, Function, Gpu, Launch, Mapped, Module};
use super::ptx;
use crate::base::size::Human;
use crate::base::{Error, Result};
use crate::device::Shape;
use crate::device::attend::AttendWork;
use crate::device::tiers::Link;
use crate::kv::{PAGE_TOKENS, Slot};
use cudarc::driver::CudaEvent;
use std::ffi::c_void;
use std::ops::Range;

pub mod int4;
mod layout;

use int4::{Int4, Packing};
use layout::{Held, Speeds, runs, wanted_pages};
pub use layout::{Layout, layer_page_bytes, least_bytes};

/// Blocks and threads of kernels that read the host tier: they reach the link's speed, and slow others little.
const LINK_BLOCKS: u32 = 4;
const LINK_THREADS: u32 = 512;

/// Bytes that the ways to fetch are measured with.
const MEASURED_BYTES: usize = 32 << 20;

/// Places of the host tier that they come from.
const MEASURED_PARTS: usize = 8;

/// Pages that are copied one by one to see what a copy costs by itself.
const MEASURED_COPIES: usize = 64;

struct Kernels {
    gather_pages: Function,
    write_back: Function,
    _module: Module,
}

#[repr(C)]
struct WriteBackArgs {
    from: u64,
    to: u64,
    from_slots: u64,
    to_slots: u64,
    kv_heads: u32,
    pieces: u32,
}

struct Arena {
    kv: Buffer,
    view: KvView,
}

/// What orders the streams at one arena.
struct Order {
    /// The step's K/V is in it.
    made: CudaEvent,
    /// The step's K/V has been read from it for the host tier.
    written: CudaEvent,
    /// Attention has read it.
    read: CudaEvent,
}

/// Times of one layer's fetch, and when the step came to need it.
struct Fetched {
    begun: CudaEvent,
    done: CudaEvent,
    wait: CudaEvent,
}

/// What one of two steps in flight fetches.
#[derive(Default)]
struct Turn {
    pages: Vec<u32>,
    /// Pages that begin with the step: whatever arena they are written in has all of them.
    begun: Vec<u32>,
    runs: Vec<Range<u32>>,
    /// Layers of `pages` that were brought.
    brought: usize,
    /// Where the card finds `pages`, the rows' slots, and the numbers of the rows themselves.
    list: u64,
    slots: u64,
    numbers: u64,
    rows: u32,
    gathers: bool,
    /// Layers from here on have no pages fetched, and the step's K/V is not among them: its rows select.
    selects_from: usize,
    /// By layer without an arena of its own.
    marks: Vec<Fetched>,
    /// Whether the marks of the fetch are set and not read yet, and whether those of waiting for it are: a step that fails may
    /// never come to that.
    set: Vec<bool>,
    waited: Vec<bool>,
    /// Whether a layer's K/V was made while its rows were on their way, which is when it came to need them.
    made: Vec<bool>,
}

/// Where the step's K/V of a layer is written: memory laid out by slot, and each row's slot in it.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    pub kv: u64,
    pub slots: u64,
}

struct Tier {
    host: Mapped,
    /// Bytes of a layer of a page in the host tier, and what packs it where that has four bits a number.
    page_bytes: usize,
    int4: Option<Int4>,
    down: Gpu,
    up: Gpu,
    kernels: Kernels,
    speeds: Speeds,
    order: Vec<Order>,
    /// The step has begun: what it tells is on the card.
    entry: CudaEvent,
    turns: [Turn; 2],
    turn: usize,
    /// What the arenas that layers take turns in have now.
    held: Vec<Held>,
    /// The step's K/V of selecting layers, in turns, and what orders it.
    fresh: [Option<Buffer>; 2],
    fresh_order: [Order; 2],
    link: Link,
}

/// All K/V that the card has.
pub struct Store {
    layout: Layout,
    arenas: Vec<Arena>,
    pages: usize,
    kv_heads: usize,
    layer_page_bytes: usize,
    tier: Option<Tier>,
}

impl Store {
    /// Everything on the card, or what `bytes` hold of it, and all of it in a host tier.
    pub fn new(gpu: &Gpu, attention: &AttendKernel, shape: &Shape, pages: usize, bytes: Option<u64>) -> Result<Self> {
        let mut store = Self {
            layout: Layout::whole(shape.layers),
            arenas: Vec::new(),
            pages,
            kv_heads: shape.kv_heads,
            layer_page_bytes: layer_page_bytes(shape),
            tier: None,
        };
        store.take(gpu, attention, store.layout_for(bytes)?)?;
        if let Some(bytes) = bytes {
            let host = Mapped::new(gpu, shape.layers * store.layer_bytes())?;
            store.tier = Some(store.new_tier(gpu, host, bytes, None)?);
        }
        Ok(store)
    }

    /// Bytes of one layer of all pages.
    fn layer_bytes(&self) -> usize {
        self.pages * self.layer_page_bytes
    }

    fn layout_for(&self, bytes: Option<u64>) -> Result<Layout> {
        let (layers, layer_bytes) = (self.layout.layers, self.layer_bytes());
        let Some(bytes) = bytes else { return Ok(Layout::whole(layers)) };
        let arenas = usize::try_from(bytes / layer_bytes as u64).unwrap_or(usize::MAX);
        Layout::of(layers, arenas).ok_or_else(|| {
            Error::limit(format!(
                "a device tier of {} cannot hold what must be there: {} for a layer of {} pages; raise --kv-budget or lower \
                 --ram-budget",
                Human(bytes),
                Human(layer_bytes as u64),
                self.pages
            ))
        })
    }

    /// Takes the arenas of a layout; the old ones go first, since both may not fit.
    fn take(&mut self, gpu: &Gpu, attention: &AttendKernel, layout: Layout) -> Result<()> {
        self.arenas.clear();
        let arena = |_| -> Result<Arena> {
            // Zeros: what no row has written yet must be finite where a tile reads past a path's end.
            let kv = gpu.zeros(self.layer_bytes())?;
            let slots = (self.pages * PAGE_TOKENS) as u32;
            Ok(Arena { view: attention.view(gpu, KvLayout::Paged { at: kv.pointer() }, slots)?, kv })
        };
        self.arenas = (0..layout.arenas()).map(arena).collect::<Result<_>>()?;
        self.layout = layout;
        Ok(())
    }

    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Begins anew with another device tier, or with everything on the card. What is in memory stays where `keep` says so.
    /// `layout`: other than as many whole layers as fit the budget.
    pub fn retier(
        &mut self,
        gpu: &Gpu,
        attention: &AttendKernel,
        (bytes, layout): (Option<u64>, Option<Layout>),
        keep: bool,
    ) -> Result<()> {
        let layer_bytes = self.layer_bytes();
        let layout = layout.map_or_else(|| self.layout_for(bytes), Ok)?;
        self.wait()?;
        gpu.wait()?;
        let host = match self.tier.take() {
            Some(Tier { host, int4: None, .. }) => host,
            Some(Tier { host: packed, int4: Some(int4), .. }) => {
                let host = Mapped::new(gpu, layout.layers * layer_bytes)?;
                if keep {
                    self.widen(gpu, &int4.packing, &packed, 0..layout.layers, &|layer| {
                        host.pointer() + (layer * layer_bytes) as u64
                    })?;
                }
                host
            }
            None => {
                let mut host = Mapped::new(gpu, layout.layers * layer_bytes)?;
                for (layer, arena) in self.arenas.iter().enumerate().filter(|_| keep) {
                    host.fetch(gpu, layer * layer_bytes, &arena.kv, layer_bytes)?;
                }
                host
            }
        };
        self.take(gpu, attention, layout)?;
        for (layer, arena) in self.arenas.iter().enumerate().filter(|(at, _)| keep && *at < layout.resident) {
            // SAFETY: an arena has room for a layer; nothing writes the host tier now.
            unsafe { host.send(gpu, layer * layer_bytes, arena.kv.pointer(), layer_bytes)? };
        }
        gpu.wait()?;
        self.tier = bytes.map(|bytes| self.new_tier(gpu, host, bytes, None)).transpose()?;
        Ok(())
    }

    /// Begins anew with a host tier of four bits a number. What is in memory stays, rounded, where `keep` says so.
    pub fn retier_int4(&mut self, gpu: &Gpu, attention: &AttendKernel, bytes: u64, keep: bool) -> Result<()> {
        let number = attention.shape.number;
        let packing = Packing::new(gpu, number, self.kv_heads, attention.shape.head_size as usize)?;
        let (page_bytes, layers) = (packing.page_bytes(), self.layout.layers);
        let packed_bytes = self.pages * page_bytes;
        let layout = self.layout_for(Some(bytes.saturating_sub(packed_bytes as u64)))?;
        if keep && self.tier.as_ref().is_none_or(|tier| tier.int4.is_none()) {
            self.retier(gpu, attention, (Some(bytes), None), true)?;
        }
        self.wait()?;
        gpu.wait()?;
        let host = match self.tier.take() {
            Some(Tier { host, int4: Some(_), .. }) => host,
            exact => {
                let packed = Mapped::new(gpu, layers * packed_bytes)?;
                if let Some(exact) = exact.filter(|_| keep) {
                    let slots: Vec<u32> = (0..(self.pages * PAGE_TOKENS) as u32).collect();
                    let slots_there = gpu.upload(&slots)?;
                    let at = |memory: &Mapped, layer_bytes: usize, layer: usize| Target {
                        kv: memory.pointer() + (layer * layer_bytes) as u64,
                        slots: slots_there.pointer(),
                    };
                    for layer in 0..layers {
                        let from = at(&exact.host, self.layer_bytes(), layer);
                        packing.pack(gpu, from, at(&packed, packed_bytes, layer), slots.len() as u32, false)?;
                    }
                    gpu.wait()?;
                }
                packed
            }
        };
        self.take(gpu, attention, layout)?;
        if keep {
            self.widen(gpu, &packing, &host, 0..layout.resident, &|layer| self.at(layer))?;
        }
        let int4 = Int4 { packing, arrived: gpu.zeros(packed_bytes)?, fresh: [None, None] };
        gpu.wait()?;
        self.tier = Some(self.new_tier(gpu, host, bytes, Some(int4))?);
        Ok(())
    }

    /// Widens all pages of some layers of a packed host tier, and waits.
    fn widen(
        &self,
        gpu: &Gpu,
        packing: &Packing,
        packed: &Mapped,
        layers: Range<usize>,
        to: &dyn Fn(usize) -> u64,
    ) -> Result<()> {
        let pages = gpu.upload(&(0..self.pages as u32).collect::<Vec<_>>())?;
        for layer in layers {
            let from = packed.pointer() + (layer * self.pages * packing.page_bytes()) as u64;
            packing.unpack(gpu, from, to(layer), (pages.pointer(), self.pages))?;
        }
        gpu.wait()
    }

    fn new_tier(&self, gpu: &Gpu, host: Mapped, budget_bytes: u64, int4: Option<Int4>) -> Result<Tier> {
        let beside = int4.as_ref().map_or(0, |int4| int4.arrived.bytes());
        let peak_bytes = (self.arenas.len() * self.layer_bytes() + beside) as u64;
        let link = Link { budget_bytes, peak_bytes, ..Link::default() };
        let module = gpu.load(ptx::OFFLOAD)?;
        let kernels = Kernels {
            gather_pages: module.function("gather_pages", 0)?,
            write_back: module.function("write_back", 0)?,
            _module: module,
        };
        let (mark, ordering) = (|| gpu.new_mark(), || gpu.new_order());
        let order = |_| Ok(Order { made: ordering()?, written: ordering()?, read: ordering()? });
        let fetched = |_| Ok(Fetched { begun: mark()?, done: mark()?, wait: mark()? });
        let turn = || -> Result<Turn> {
            let marks = self.layout.fetched().map(fetched).collect::<Result<Vec<_>>>()?;
            let unset = vec![false; marks.len()];
            Ok(Turn { set: unset.clone(), made: unset.clone(), waited: unset, marks, ..Turn::default() })
        };
        let mut tier = Tier {
            host,
            page_bytes: int4.as_ref().map_or(self.layer_page_bytes, |int4| int4.packing.page_bytes()),
            int4,
            down: gpu.beside()?,
            up: gpu.beside()?,
            kernels,
            speeds: Speeds { copy: 0.0, copy_byte: 0.0, gather_byte: 0.0 },
            order: (0..self.layout.arenas()).map(order).collect::<Result<_>>()?,
            entry: ordering()?,
            turns: [turn()?, turn()?],
            turn: 0,
            held: (0..self.layout.ring).map(|_| Held::new(self.pages)).collect(),
            fresh: [None, None],
            fresh_order: [order(0)?, order(1)?],
            link,
        };
        if self.layout.resident < self.layout.layers {
            tier.speeds = self.measure(&tier)?;
        }
        Ok(tier)
    }

    /// Times both ways to fetch, into the last arena, with what a first step would overwrite.
    fn measure(&self, tier: &Tier) -> Result<Speeds> {
        let Some(arena) = self.arenas.last() else { return Err(Error::fault("a tier without arenas")) };
        let page_bytes = tier.page_bytes;
        let to = tier.arrives(arena);
        let pages = (MEASURED_BYTES / page_bytes).clamp(1, self.pages);
        // Steps of 7 pages: not neighbours, as the pages of a tree may be.
        let list: Vec<u32> = (0..pages).map(|i| (i * 7 % self.pages) as u32).collect();
        let list_there = tier.down.upload(&list)?;
        let [begun, done] = [tier.down.new_mark()?, tier.down.new_mark()?];
        let time = |work: &dyn Fn() -> Result<()>| -> Result<f64> {
            let mut best = f64::INFINITY;
            for _ in 0..3 {
                tier.down.set_mark(&begun)?;
                work()?;
                tier.down.set_mark(&done)?;
                tier.down.wait()?;
                best = best.min(tier.down.microseconds(&begun, &done)? * 1e-6);
            }
            Ok(best)
        };
        let copies = MEASURED_COPIES.min(pages);
        // From all over the host tier: on a machine with several memory nodes one part may be farther than another.
        let all = (0..pages as u32).collect::<Vec<_>>();
        let (layers, parts) = (self.layout.layers, MEASURED_PARTS.min(pages));
        let first = |part: usize| part * layers / parts * self.pages * page_bytes;
        let part = |i: usize| (i * pages / parts) as u32..((i + 1) * pages / parts) as u32;
        let whole = time(&|| (0..parts).try_for_each(|i| tier.copy_pages(to, first(i), &[part(i)])))?;
        let single: Vec<Range<u32>> = all[..copies].iter().map(|&page| page..page + 1).collect();
        let apart = time(&|| tier.copy_pages(to, 0, &single))?;
        let gather = time(&|| tier.gather_pages(to, first(parts / 2), list_there.pointer(), pages))?;
        let bytes = (pages * page_bytes) as f64;
        let copy_byte = whole / bytes;
        let copy = (apart - (copies * page_bytes) as f64 * copy_byte).max(0.0) / copies as f64;
        Ok(Speeds { copy, copy_byte, gather_byte: gather / bytes })
    }

    /// Fetches by the kernel or by copies from now on, whatever is quicker: for tests of both.
    pub fn fetch_by_kernel(&mut self, kernel: bool) {
        if let Some(tier) = &mut self.tier {
            tier.speeds.copy = if kernel { f64::INFINITY } else { 0.0 };
            (tier.speeds.copy_byte, tier.speeds.gather_byte) = (0.0, f64::MIN_POSITIVE);
        }
    }

    /// `copy 52.1 GB/s and 2.1 us each, gather 49.8 GB/s`; `None` where nothing is fetched.
    pub fn speeds(&self) -> Option<String> {
        let Speeds { copy, copy_byte, gather_byte } = self.tier.as_ref()?.speeds;
        let speed = |byte: f64| 1e-9 / byte;
        (copy_byte > 0.0).then(|| {
            let (copied, gathered) = (speed(copy_byte), speed(gather_byte));
            format!("copies {copied:.1} GB/s and {:.1} us each, gather {gathered:.1} GB/s", copy * 1e6)
        })
    }

    fn at(&self, layer: usize) -> u64 {
        self.arenas[self.layout.arena(layer)].kv.pointer()
    }

    /// The memory that a layer's pages are read from on the card.
    pub fn arena(&self, layer: usize) -> u64 {
        self.at(layer)
    }

    /// A layer of the host tier, as kernels find it; 0 where there is none.
    pub fn host(&self, layer: usize) -> u64 {
        self.tier.as_ref().map_or(0, |tier| tier.host.pointer() + (layer * self.layer_bytes()) as u64)
    }

    /// The first pages of a layer on the card, once the stream is done.
    pub fn download(&self, gpu: &Gpu, layer: usize, pages: usize) -> Result<Vec<u16>> {
        gpu.download(&self.arenas[self.layout.arena(layer)].kv, pages * self.layer_page_bytes / 2)
    }

    /// Counts memory of the card's tier beside the arenas.
    pub fn add_peak(&mut self, bytes: u64) {
        if let Some(tier) = &mut self.tier {
            tier.link.peak_bytes += bytes;
        }
    }

    pub fn view(&self, layer: usize) -> &KvView {
        &self.arenas[self.layout.arena(layer)].view
    }

    /// Whether kernels that write K/V may begin before the one before them ends: not where they wait for a fetch.
    pub fn begin_writing(&self, early: Begin) -> Begin {
        if self.tier.is_some() { Begin::After } else { early }
    }

    /// What the step's rows need of the host tier: numbers to be put on the card, for [`begin`](Self::begin). All rows select
    /// what they attend to in the layers from `selects_from` on.
    pub fn plan(&mut self, work: &AttendWork, slots: &[Slot], selects_from: Option<usize>) -> Result<&[u32]> {
        let resident = self.layout.resident;
        let selects_from = selects_from.unwrap_or(self.layout.layers);
        let fetches = resident < selects_from;
        let Some(tier) = &mut self.tier else { return Ok(&[]) };
        tier.turn ^= 1;
        // Its marks are to be set again.
        tier.collect(tier.turn)?;
        let turn = &mut tier.turns[tier.turn];
        let pages = wanted_pages(work, slots);
        turn.selects_from = selects_from;
        turn.begun = slots.iter().filter(|slot| slot.offset == 0).map(|slot| slot.page.0).collect();
        tier.link.hits += (pages.len() * resident.min(selects_from)) as u64;
        turn.pages = if fetches { pages } else { Vec::new() };
        turn.runs = runs(&turn.pages);
        turn.gathers = tier.speeds.gathers(turn.runs.len(), turn.pages.len() * tier.page_bytes);
        turn.rows = slots.len() as u32;
        turn.brought = 0;
        turn.made.fill(false);
        Ok(&turn.pages)
    }

    /// The step begins; `list`, `slots` and `numbers` are where its pages' and rows' places and 0, 1, … are on the card.
    pub fn begin(&mut self, main: &Gpu, [list, slots, numbers]: [u64; 3]) -> Result<()> {
        let (layout, page_bytes) = (self.layout, self.layer_page_bytes);
        let Some(tier) = &mut self.tier else { return Ok(()) };
        let turn = &mut tier.turns[tier.turn];
        (turn.list, turn.slots, turn.numbers) = (list, slots, numbers);
        let selects_from = turn.selects_from;
        if selects_from < layout.layers {
            let bytes = (turn.rows as usize).div_ceil(PAGE_TOKENS) * page_bytes;
            tier.fresh.iter_mut().try_for_each(|fresh| main.grow(fresh, bytes).map(drop))?;
            tier.held.iter_mut().for_each(|held| held.leave(selects_from));
        }
        if let Some(Int4 { packing, fresh, .. }) = &mut tier.int4 {
            let bytes = (turn.rows as usize).div_ceil(PAGE_TOKENS) * packing.page_bytes();
            fresh.iter_mut().try_for_each(|fresh| main.grow(fresh, bytes).map(drop))?;
        }
        // What tells of the last step is free for another only when all of it is done.
        for last in tier.fresh_order.iter().chain(tier.order.get(layout.arena(layout.layers - 1))) {
            main.wait_for(&last.written)?;
        }
        main.set_mark(&tier.entry)?;
        tier.down.wait_for(&tier.entry)?;
        for layer in (layout.resident..selects_from).take(layout.ring) {
            self.fetch(layer)?;
        }
        Ok(())
    }

    /// Fills a layer's arena once what read it last is done.
    fn fetch(&mut self, layer: usize) -> Result<()> {
        let layout = self.layout;
        let Some(tier) = &mut self.tier else { return Ok(()) };
        let first = layer * self.pages * tier.page_bytes;
        let turn = &tier.turns[tier.turn];
        let at = layout.arena(layer);
        let (arena, order, pages) = (&self.arenas[at], &tier.order[at], turn.pages.len());
        let held = &mut tier.held[at - layout.resident];
        if held.has(layer, &turn.pages) {
            tier.link.hits += pages as u64;
            held.begin(&turn.begun);
            return Ok(());
        }
        tier.link.evictions += held.hold(layer, &turn.pages);
        held.begin(&turn.begun);
        tier.down.wait_for(&order.read)?;
        tier.down.wait_for(&order.written)?;
        if pages == 0 {
            return Ok(());
        }
        let marks = &turn.marks[layer - layout.resident];
        tier.down.set_mark(&marks.begun)?;
        let to = tier.arrives(arena);
        match turn.gathers {
            true => tier.gather_pages(to, first, turn.list, pages)?,
            false => tier.copy_pages(to, first, &turn.runs)?,
        }
        if let Some(Int4 { packing, .. }) = &tier.int4 {
            packing.unpack(&tier.down, to, arena.kv.pointer(), (turn.list, pages))?;
        }
        tier.down.set_mark(&marks.done)?;
        let turn = &mut tier.turns[tier.turn];
        turn.set[layer - layout.resident] = true;
        turn.brought += 1;
        tier.link.fetches += pages as u64;
        tier.link.to_device_bytes += (pages * tier.page_bytes) as u64;
        Ok(())
    }

    /// Has the stream of fetches bring single rows of a layer by what `launch` puts there: once the choice is `ready` and what
    /// was brought to the same place before has been `read`. More may follow until [`end_rows`](Self::end_rows).
    pub fn begin_rows(
        &mut self,
        layer: usize,
        [ready, read]: [&CudaEvent; 2],
        launch: impl FnOnce(&Gpu) -> Result<()>,
    ) -> Result<()> {
        let Some((tier, at)) = self.tier.as_mut().zip(layer.checked_sub(self.layout.resident)) else { return Ok(()) };
        tier.down.wait_for(ready)?;
        tier.down.wait_for(read)?;
        tier.down.set_mark(&tier.turns[tier.turn].marks[at].begun)?;
        launch(&tier.down)
    }

    /// The last rows of a layer, once what was brought to their place before has been `read`.
    pub fn end_rows(&mut self, layer: usize, read: &CudaEvent, launch: impl FnOnce(&Gpu) -> Result<()>) -> Result<()> {
        let Some((tier, at)) = self.tier.as_mut().zip(layer.checked_sub(self.layout.resident)) else { return Ok(()) };
        tier.down.wait_for(read)?;
        launch(&tier.down)?;
        let turn = &mut tier.turns[tier.turn];
        tier.down.set_mark(&turn.marks[at].done)?;
        turn.set[at] = true;
        Ok(())
    }

    /// Where the step's K/V of a layer goes, once nothing reads it any more; for a layer whose pages are fetched, once they
    /// are there.
    pub fn target(&mut self, main: &Gpu, layer: usize, slots: u64) -> Result<Target> {
        if let Some(tier) = &self.tier
            && layer >= tier.turns[tier.turn].selects_from
        {
            main.wait_for(&tier.fresh_order[layer % 2].written)?;
            let kv = tier.fresh[layer % 2].as_ref().map_or(0, Buffer::pointer);
            return Ok(Target { kv, slots: tier.turns[tier.turn].numbers });
        }
        self.arrive(main, layer)?;
        Ok(Target { kv: self.at(layer), slots })
    }

    /// Has the step go on only once what is fetched of a layer is there.
    pub fn arrive(&mut self, main: &Gpu, layer: usize) -> Result<()> {
        let Some((tier, at)) = self.tier.as_mut().zip(layer.checked_sub(self.layout.resident)) else { return Ok(()) };
        let turn = &mut tier.turns[tier.turn];
        if !turn.set[at] {
            return Ok(());
        }
        turn.waited[at] = true;
        let marks = &turn.marks[at];
        if !std::mem::take(&mut turn.made[at]) {
            main.set_mark(&marks.wait)?;
        }
        main.wait_for(&marks.done)
    }

    /// The step's K/V of a layer is there: it goes to the host tier too, and `also` launches what else is made of it beside the
    /// step, for the next one.
    pub fn written(
        &mut self,
        main: &Gpu,
        layer: usize,
        target: Target,
        also: impl FnOnce(&Gpu) -> Result<()>,
    ) -> Result<()> {
        let layer_bytes = self.layer_bytes();
        let token_bytes = self.layer_page_bytes / PAGE_TOKENS;
        let Some(tier) = &mut self.tier else { return Ok(()) };
        if tier.int4.is_some() {
            return tier.written_int4(main, (layer, self.pages), target);
        }
        let turn = &mut tier.turns[tier.turn];
        let (order, made) = match layer.checked_sub(self.layout.resident).filter(|_| layer >= turn.selects_from) {
            // It is all that the step makes before it needs the layer's rows.
            Some(at) => {
                turn.made[at] = true;
                (&tier.fresh_order[layer % 2], &turn.marks[at].wait)
            }
            None => {
                let order = &tier.order[self.layout.arena(layer)];
                (order, &order.made)
            }
        };
        main.set_mark(made)?;
        tier.up.wait_for(made)?;
        let mut args = WriteBackArgs {
            from: target.kv,
            to: tier.host.pointer() + (layer * layer_bytes) as u64,
            from_slots: target.slots,
            to_slots: turn.slots,
            kv_heads: self.kv_heads as u32,
            pieces: (token_bytes / self.kv_heads / 2 / 16) as u32,
        };
        let launch = Launch { grid: (turn.rows, 1, 1), threads: 256, shared_bytes: 0, begin: Begin::After };
        // SAFETY: the kernel takes one `WriteBack`; slots were checked against the pages that both tiers have.
        unsafe { tier.up.launch(tier.kernels.write_back, launch, &mut [(&raw mut args).cast()])? };
        also(&tier.up)?;
        tier.up.set_mark(&order.written)?;
        tier.link.to_host_bytes += (turn.rows as usize * token_bytes) as u64;
        Ok(())
    }

    /// Attention of a layer has been launched: what comes after the next layer can be fetched once that is done.
    pub fn read(&mut self, main: &Gpu, layer: usize) -> Result<()> {
        let Some(tier) = &self.tier else { return Ok(()) };
        let fetched = self.layout.resident..tier.turns[tier.turn].selects_from;
        if !fetched.contains(&layer) {
            return Ok(());
        }
        main.set_mark(&tier.order[self.layout.arena(layer)].read)?;
        let next = layer + self.layout.ring;
        if fetched.contains(&next) { self.fetch(next) } else { Ok(()) }
    }

    /// Adds the times of steps that are done; waits for what is not.
    pub fn collect(&mut self) -> Result<()> {
        let Some(tier) = &mut self.tier else { return Ok(()) };
        (0..2).try_for_each(|turn| tier.collect(turn))
    }

    /// Waits until the host tier has all that was written.
    pub fn wait(&self) -> Result<()> {
        self.tier.as_ref().map_or(Ok(()), |tier| {
            tier.up.wait()?;
            tier.down.wait()
        })
    }

    pub fn link(&self) -> Option<Link> {
        self.tier.as_ref().map(|tier| tier.link)
    }

    /// Of each page how many of its layers are here; `None` where all are.
    pub fn layers_here(&self) -> Option<Vec<f32>> {
        let tier = self.tier.as_ref()?;
        let mut layers = vec![self.layout.resident as f32; self.pages];
        tier.held.iter().for_each(|held| held.add(&mut layers));
        Some(layers)
    }

    /// Of each page how many of its layers were brought for the last step; `None` where all are here.
    pub fn layers_moved(&self) -> Option<Vec<f32>> {
        let tier = self.tier.as_ref()?;
        let turn = &tier.turns[tier.turn];
        let mut layers = vec![0.0; self.pages];
        turn.pages.iter().for_each(|&page| layers[page as usize] += turn.brought as f32);
        Some(layers)
    }

    /// All K/V, `[layer][page]`, once the stream is done: of the host tier, or of the card where there is none.
    pub fn bytes(&self, gpu: &Gpu) -> Result<Vec<u8>> {
        self.wait()?;
        match &self.tier {
            Some(tier) => Ok(tier.host.bytes().to_vec()),
            None => {
                let arena = |arena: &Arena| gpu.download::<u8>(&arena.kv, arena.kv.bytes());
                Ok(self.arenas.iter().map(arena).collect::<Result<Vec<_>>>()?.concat())
            }
        }
    }
}

impl Tier {
    /// Where pages come that an arena is to have: there, or where they are widened from.
    fn arrives(&self, arena: &Arena) -> u64 {
        self.int4.as_ref().map_or(arena.kv.pointer(), |int4| int4.arrived.pointer())
    }

    /// Packs the step's K/V of a layer, rounds what attention will read of it, and has the records go to the host tier.
    fn written_int4(&mut self, main: &Gpu, (layer, pages): (usize, usize), target: Target) -> Result<()> {
        let Some(Int4 { packing, fresh, .. }) = &self.int4 else { return Ok(()) };
        let (turn, order) = (&self.turns[self.turn], &self.fresh_order[layer % 2]);
        let kv = fresh[layer % 2].as_ref().map_or(0, Buffer::pointer);
        let records = Target { kv, slots: turn.numbers };
        main.wait_for(&order.written)?;
        packing.pack(main, target, records, turn.rows, true)?;
        main.set_mark(&order.made)?;
        self.up.wait_for(&order.made)?;
        let kv = self.host.pointer() + (layer * pages * self.page_bytes) as u64;
        packing.write(&self.up, records, Target { kv, slots: turn.slots }, turn.rows)?;
        self.up.set_mark(&order.written)?;
        self.link.to_host_bytes += (turn.rows as usize * packing.token_bytes()) as u64;
        Ok(())
    }

    /// Copies runs of pages of what begins at `first` of the host tier.
    fn copy_pages(&self, to: u64, first: usize, runs: &[Range<u32>]) -> Result<()> {
        runs.iter().try_for_each(|run| {
            let at = run.start as usize * self.page_bytes;
            // SAFETY: the place has as many pages as a layer of the host tier; `fetch` ordered what wrote them.
            unsafe { self.host.send(&self.down, first + at, to + at as u64, run.len() * self.page_bytes) }
        })
    }

    /// The same by a kernel, which reads the pages' numbers at `list`.
    fn gather_pages(&self, to: u64, first: usize, list: u64, pages: usize) -> Result<()> {
        let (mut host, mut to, mut list) = (self.host.pointer() + first as u64, to, list);
        let (mut count, mut pieces) = (pages as u32, (self.page_bytes / 16) as u32);
        let mut parameters: [*mut c_void; 5] = [
            (&raw mut host).cast(),
            (&raw mut to).cast(),
            (&raw mut list).cast(),
            (&raw mut count).cast(),
            (&raw mut pieces).cast(),
        ];
        let launch = Launch { grid: (LINK_BLOCKS, 1, 1), threads: LINK_THREADS, shared_bytes: 0, begin: Begin::After };
        // SAFETY: the kernel's five parameters; pages were checked against those that both tiers have.
        unsafe { self.down.launch(self.kernels.gather_pages, launch, &mut parameters) }
    }

    fn collect(&mut self, turn: usize) -> Result<()> {
        let turn = &mut self.turns[turn];
        for ((marks, set), waited) in turn.marks.iter().zip(&mut turn.set).zip(&mut turn.waited) {
            let waited = std::mem::take(waited);
            if !std::mem::take(set) {
                continue;
            }
            let took = self.down.microseconds(&marks.begun, &marks.done)?;
            self.link.fetch_seconds += took * 1e-6;
            if waited {
                self.link.waited_seconds += self.down.microseconds(&marks.wait, &marks.done)?.clamp(0.0, took) * 1e-6;
            }
        }
        Ok(())
    }
}
