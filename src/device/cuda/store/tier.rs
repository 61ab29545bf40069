//! The host tier: pinned memory, the two streams that move K/V between it and the card, and the events that order them.

use super::int4::Int4;
use super::layout::Held;
use super::speeds::Speeds;
use super::{Arena, Store};
use crate::base::Result;
use crate::device::cuda::driver::{Begin, Buffer, Function, Gpu, Launch, Mapped, Module};
use crate::device::cuda::ptx;
use crate::device::tiers::Link;
use cudarc::driver::CudaEvent;
use std::ffi::c_void;
use std::ops::Range;

/// Blocks and threads of kernels that read the host tier: they reach the link's speed, and slow others little.
const LINK_BLOCKS: u32 = 4;
const LINK_THREADS: u32 = 512;

pub(super) struct Kernels {
    pub(super) gather_pages: Function,
    pub(super) write_back: Function,
    _module: Module,
}

#[repr(C)]
pub(super) struct WriteBackArgs {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) from_slots: u64,
    pub(super) to_slots: u64,
    pub(super) kv_heads: u32,
    pub(super) pieces: u32,
}

/// What orders the streams at one arena.
pub(super) struct Order {
    /// The step's K/V is in it.
    pub(super) made: CudaEvent,
    /// The step's K/V has been read from it for the host tier.
    pub(super) written: CudaEvent,
    /// Attention has read it.
    pub(super) read: CudaEvent,
}

/// Times of one layer's fetch, and when the step came to need it.
pub(super) struct Fetched {
    pub(super) begun: CudaEvent,
    pub(super) done: CudaEvent,
    pub(super) wait: CudaEvent,
}

/// What one of two steps in flight fetches.
#[derive(Default)]
pub(super) struct Turn {
    pub(super) pages: Vec<u32>,
    /// Pages that begin with the step: whatever arena they are written in has all of them.
    pub(super) begun: Vec<u32>,
    pub(super) runs: Vec<Range<u32>>,
    /// Layers of `pages` that were brought.
    pub(super) brought: usize,
    /// Where the card finds `pages`, the rows' slots, and the numbers of the rows themselves.
    pub(super) list: u64,
    pub(super) slots: u64,
    pub(super) numbers: u64,
    pub(super) rows: u32,
    pub(super) gathers: bool,
    /// Layers from here on have no pages fetched, and the step's K/V is not among them: its rows select.
    pub(super) selects_from: usize,
    /// By layer without an arena of its own.
    pub(super) marks: Vec<Fetched>,
    /// Whether the marks of the fetch are set and not read yet, and whether those of waiting for it are: a step that fails may
    /// never come to that.
    pub(super) set: Vec<bool>,
    pub(super) waited: Vec<bool>,
    /// Whether a layer's K/V was made while its rows were on their way, which is when it came to need them.
    pub(super) made: Vec<bool>,
}

/// Where the step's K/V of a layer is written: memory laid out by slot, and each row's slot in it.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    pub kv: u64,
    pub slots: u64,
}

pub(super) struct Tier {
    pub(super) host: Mapped,
    /// Bytes of a layer of a page in the host tier, and what packs it where that has four bits a number.
    pub(super) page_bytes: usize,
    pub(super) int4: Option<Int4>,
    pub(super) down: Gpu,
    pub(super) up: Gpu,
    pub(super) kernels: Kernels,
    pub(super) speeds: Speeds,
    pub(super) order: Vec<Order>,
    /// The first layer without an arena of its own.
    pub(super) first: usize,
    /// The step has begun: what it tells is on the card.
    pub(super) entry: CudaEvent,
    pub(super) turns: [Turn; 2],
    pub(super) turn: usize,
    /// What the arenas that layers take turns in have now.
    pub(super) held: Vec<Held>,
    /// The step's K/V of selecting layers, in turns, and what orders it.
    pub(super) fresh: [Option<Buffer>; 2],
    pub(super) fresh_order: [Order; 2],
    pub(super) link: Link,
    /// Seconds that single rows took to be brought for the last step, and that it waited for them.
    pub(super) waited: Option<(f64, f64)>,
}

impl Store {
    pub(super) fn new_tier(&self, gpu: &Gpu, host: Mapped, budget_bytes: u64, int4: Option<Int4>) -> Result<Tier> {
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
            first: self.layout.resident,
            order: (0..self.layout.arenas()).map(order).collect::<Result<_>>()?,
            entry: ordering()?,
            turns: [turn()?, turn()?],
            turn: 0,
            held: (0..self.layout.ring).map(|_| Held::new(self.pages)).collect(),
            fresh: [None, None],
            fresh_order: [order(0)?, order(1)?],
            link,
            waited: None,
        };
        if self.layout.resident < self.layout.layers {
            tier.speeds = self.measure(&tier)?;
        }
        Ok(tier)
    }
}

impl Tier {
    /// Where pages come that an arena is to have: there, or where they are widened from.
    pub(super) fn arrives(&self, arena: &Arena) -> u64 {
        self.int4.as_ref().map_or(arena.kv.pointer(), |int4| int4.arrived.pointer())
    }

    /// Packs the step's K/V of a layer, rounds what attention will read of it, and has the records go to the host tier.
    pub(super) fn written_int4(&mut self, main: &Gpu, (layer, pages): (usize, usize), target: Target) -> Result<()> {
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
    pub(super) fn copy_pages(&self, to: u64, first: usize, runs: &[Range<u32>]) -> Result<()> {
        runs.iter().try_for_each(|run| {
            let at = run.start as usize * self.page_bytes;
            // SAFETY: the place has as many pages as a layer of the host tier; `fetch` ordered what wrote them.
            unsafe { self.host.send(&self.down, first + at, to + at as u64, run.len() * self.page_bytes) }
        })
    }

    /// The same by a kernel, which reads the pages' numbers at `list`.
    pub(super) fn gather_pages(&self, to: u64, first: usize, list: u64, pages: usize) -> Result<()> {
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

    pub(super) fn collect(&mut self, turn: usize) -> Result<()> {
        let turn = &mut self.turns[turn];
        let (mut rows, mut rows_waited) = (0.0, 0.0);
        for (layer, ((marks, set), waited)) in
            (self.first..).zip(turn.marks.iter().zip(&mut turn.set).zip(&mut turn.waited))
        {
            let waited = std::mem::take(waited);
            if !std::mem::take(set) {
                continue;
            }
            let took = self.down.microseconds(&marks.begun, &marks.done)? * 1e-6;
            let waited = match waited {
                true => (self.down.microseconds(&marks.wait, &marks.done)? * 1e-6).clamp(0.0, took),
                false => 0.0,
            };
            self.link.fetch_seconds += took;
            self.link.waited_seconds += waited;
            if layer >= turn.selects_from {
                (rows, rows_waited) = (rows + took, rows_waited + waited);
            }
        }
        if rows > 0.0 {
            self.waited = Some((rows, rows_waited));
        }
        Ok(())
    }
}
