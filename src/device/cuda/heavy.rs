//! H2O on the card (`kernels/heavy.cu`): what tokens have had of attention stays there, and so does what follows from it; no
//! layer is waited for by the processor. The rules are those of `device/cpu/heavy.rs`.
//!
//! What a path still has is known before a step, so the union of that is gathered from the host tier a layer ahead, into one of
//! two stages that layers take turns in; what has no frame is read in place. Weights are needed for the sums, so attention is
//! made of them: scores, weights, their product with V.
//!
//! In a step in which other rows attend to everything, or in which a row sees another's token, all pages come to the layer's
//! arena, and everything is read there. Rows that attend to everything add to the sums as well.

use super::attend::Number;
use super::driver::{Buffer, Function, Gpu, Launch, Module, grid};
use super::ptx;
use super::runs::RunArgs;
use super::staging::Staging;
use super::store::{Store, Target};
use crate::base::Result;
use crate::device::Shape;
use crate::device::attend::AttendWork;
use crate::device::tiers::{Link, Paths};
use crate::kv::{PAGE_TOKENS, Slot};
use cudarc::driver::CudaEvent;
use std::collections::HashMap;
use std::ops::Range;

mod plan;

pub use plan::{Plan, plan};

/// Bytes of weights that are worked on at once, and of lists that are made a layer ahead.
const WEIGHT_BYTES: usize = 128 << 20;
const LIST_BYTES: usize = 256 << 20;

/// Bytes to work in, above those of any step, for steps of `rows` rows at up to `positions` tokens.
pub fn work_bytes(rows: usize, positions: usize) -> u64 {
    (rows * positions * 4 + WEIGHT_BYTES + 2 * LIST_BYTES) as u64
}

/// Blocks and threads that read the host tier: they reach the link's speed, and slow others little.
const LINK_BLOCKS: usize = 16;
const LINK_THREADS: u32 = 512;

/// Tokens of a block of `score_kept`.
const TILE: usize = 64;

struct Kernels {
    spread_paths: Function,
    begin_sums: Function,
    list_kept: Function,
    gather_kept: Function,
    score_kept: Function,
    keep_heavy: Function,
    sum_kept: Function,
    weigh_all: Function,
    add_all: Function,
    _module: Module,
}

/// What a layer's rows still have, and where it lies; two layers in turns.
struct Kept {
    stage: Buffer,
    frame_of: Buffer,
    total: Buffer,
    items: Buffer,
    lists: Option<Buffer>,
    counts: Option<Buffer>,
    /// The lists are made; attention has read what came of them.
    ready: CudaEvent,
    read: CudaEvent,
}

/// `Heavy` of the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
struct HeavyArgs {
    q: u64,
    out: u64,
    sums: u64,
    runs: u64,
    slot_of: u64,
    batch_row: u64,
    positions: u64,
    budgets: u64,
    lists: u64,
    counts: u64,
    weights: u64,
    keys: u64,
    frame_of: u64,
    total: u64,
    items: u64,
    stage: u64,
    layer: u64,
    own: u64,
    own_slots: u64,
    told: u64,
    rows: u32,
    run_count: u32,
    group: u32,
    kv_heads: u32,
    head_size: u32,
    slots: u32,
    stride: u32,
    capacity: u32,
    whole: u32,
    scale: f32,
}

/// Rows of the step that runs.
#[derive(Default)]
struct Rows {
    /// Where the card finds them; offsets until the step's copy is sent.
    batch_row: u64,
    positions: u64,
    budgets: u64,
    runs: u64,
    run_count: usize,
    count: usize,
    stride: usize,
    parts: Vec<(Range<usize>, bool)>,
    /// Whether all rows let tokens go and none sees another's: what they have is known before the step.
    ahead: bool,
}

#[derive(Default)]
struct Room {
    slot_of: Option<Buffer>,
    weights: Option<Buffer>,
    keys: Option<Buffer>,
}

pub struct Heavy {
    /// Share of a path that is kept.
    keep: f32,
    whole_layers: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_size: usize,
    slots: usize,
    frames: usize,
    kernels: Kernels,
    /// `[layer][kv_head][slot]`, float32.
    sums: Buffer,
    kept: [Kept; 2],
    rows: Rows,
    room: Room,
    paths: Paths,
    /// Counts of the kernels on the card, and as last read.
    told: Buffer,
    heard: [u64; 4],
}

impl Heavy {
    pub fn new(
        gpu: &Gpu,
        number: Number,
        shape: &Shape,
        pages: usize,
        (plan, keep, whole_layers): (&Plan, f32, usize),
    ) -> Result<Self> {
        let Shape { layers, heads, kv_heads, head_size, .. } = *shape;
        let slots = pages * PAGE_TOKENS;
        let module = gpu.load(ptx::heavy(number))?;
        let f = |name| module.function(name, 0);
        let kernels = Kernels {
            spread_paths: f("spread_paths")?,
            begin_sums: f("begin_sums")?,
            list_kept: f("list_kept")?,
            gather_kept: f("gather_kept")?,
            score_kept: f("score_kept")?,
            keep_heavy: f("keep_heavy")?,
            sum_kept: f("sum_kept")?,
            weigh_all: f("weigh_all")?,
            add_all: f("add_all")?,
            _module: module,
        };
        let kept = || -> Result<Kept> {
            Ok(Kept {
                stage: gpu.zeros(plan.frames * 4 * head_size)?,
                frame_of: gpu.zeros(kv_heads * slots * 4)?,
                total: gpu.zeros(4)?,
                items: gpu.zeros(plan.frames * 4)?,
                lists: None,
                counts: None,
                ready: gpu.new_order()?,
                read: gpu.new_order()?,
            })
        };
        Ok(Self {
            keep,
            whole_layers,
            layers,
            heads,
            kv_heads,
            head_size,
            slots,
            frames: plan.frames,
            kernels,
            sums: gpu.zeros((layers - whole_layers) * kv_heads * slots * 4)?,
            kept: [kept()?, kept()?],
            rows: Rows::default(),
            room: Room::default(),
            paths: Paths::default(),
            told: gpu.zeros(32)?,
            heard: [0; 4],
        })
    }

    /// The layers that select, where what is read of them need not be whole pages.
    pub fn selects_from(&self) -> Option<usize> {
        self.rows.ahead.then_some(self.whole_layers)
    }

    /// Whether tokens are let go in this layer.
    pub fn selects(&self, layer: usize) -> bool {
        self.rows.count > 0 && (self.whole_layers..self.layers).contains(&layer)
    }

    /// A step's work, and which of its batch rows let tokens go; what the card must know of them goes with the step's copy.
    pub fn begin(&mut self, work: &AttendWork, slots: &[Slot], selects: &[bool], staging: &mut Staging) {
        let evicts: Vec<bool> =
            work.order.iter().map(|&row| selects.get(row as usize).copied().unwrap_or(false)).collect();
        self.paths.read(work);
        let n = work.rows();
        let stride = work.positions.iter().max().map_or(4, |&p| (p as usize + 1).next_multiple_of(4));
        let most = (WEIGHT_BYTES / (self.heads * stride * 4)).max(1);
        let mut runs = Vec::new();
        for row in 0..n {
            let of = self.paths.row(row).iter();
            runs.extend(of.map(|run| RunArgs::of(row, run)));
        }
        let listed = n * self.kv_heads * stride * 4;
        let ahead = n > 0 && evicts.iter().all(|&e| e) && listed <= LIST_BYTES && !self.see_each_other(work, slots);
        let budget = |&p: &u32| (f64::from(p) * f64::from(self.keep)).ceil() as u32;
        let budgets: Vec<u32> = work.positions.iter().map(budget).collect();
        self.rows = Rows {
            batch_row: staging.push(&work.order),
            positions: staging.push(&work.positions),
            budgets: staging.push(&budgets),
            run_count: runs.len(),
            runs: staging.push(&runs),
            count: n,
            stride,
            parts: plan::parts(&evicts, most),
            ahead,
        };
    }

    /// Whether a row's path has a token before it that is made in this step.
    fn see_each_other(&self, work: &AttendWork, slots: &[Slot]) -> bool {
        let mut made: HashMap<u32, Vec<u32>> = HashMap::new();
        for slot in slots {
            made.entry(slot.page.0).or_default().push(u32::from(slot.offset));
        }
        let sees = |row: usize| {
            let position = work.positions[row];
            self.paths.row(row).iter().any(|run| {
                let first = run.start % PAGE_TOKENS as u32;
                // The row's own token is the last of its path.
                let own = u32::from(run.start + run.len == position + 1);
                let before = first..first + run.len - own;
                made.get(&run.page).is_some_and(|offsets| offsets.iter().any(|offset| before.contains(offset)))
            })
        };
        (0..work.rows()).any(sees)
    }

    /// The step's copy begins at `base`: takes the room for its rows, and has what the first layer's rows have gathered.
    pub fn placed(&mut self, gpu: &Gpu, store: &mut Store, base: u64) -> Result<()> {
        let rows = &mut self.rows;
        if rows.count == 0 {
            return Ok(());
        }
        for at in [&mut rows.batch_row, &mut rows.positions, &mut rows.budgets, &mut rows.runs] {
            *at += base;
        }
        // Paths grow with every step, and the room for them seldom: taking memory waits for the card.
        let (n, stride) = (rows.count, rows.stride.next_multiple_of(512));
        let part = rows.parts.iter().map(|(rows, _)| rows.len()).max().unwrap_or(0);
        let listed = if rows.ahead { n } else { part };
        let room = &mut self.room;
        gpu.grow(&mut room.slot_of, n * stride * 4)?;
        gpu.grow(&mut room.weights, part * self.heads * stride * 4)?;
        gpu.grow(&mut room.keys, self.kv_heads * stride * 4)?;
        for kept in &mut self.kept {
            gpu.grow(&mut kept.lists, listed * self.kv_heads * stride * 4)?;
            gpu.grow(&mut kept.counts, listed * self.kv_heads * 4)?;
        }
        let args = self.args(self.whole_layers, 0..n, true);
        let threads = self.rows.run_count * PAGE_TOKENS;
        self.run(gpu, self.kernels.spread_paths, grid(threads.div_ceil(256), 1, 1, 256), args)?;
        self.prepare(gpu, store, self.whole_layers)
    }

    fn run(&self, gpu: &Gpu, kernel: Function, launch: Launch, mut args: HeavyArgs) -> Result<()> {
        // SAFETY: these kernels take one `Heavy`; its buffers were sized by `placed` for the step's rows, and slots were
        // checked against the pages.
        unsafe { gpu.launch(kernel, launch, &mut [(&raw mut args).cast()]) }
    }

    /// `listed`: the lists are of all rows of the step, not of these alone.
    fn args(&self, layer: usize, rows: Range<usize>, listed: bool) -> HeavyArgs {
        let (kept, stride) = (&self.kept[layer % 2], self.rows.stride);
        let at = |room: &Option<Buffer>, first: usize| room.as_ref().map_or(0, |b| b.pointer() + first as u64 * 4);
        let (first, first_list) = (rows.start, if listed { rows.start } else { 0 });
        let layer_sums = (layer - self.whole_layers) * self.kv_heads * self.slots * 4;
        HeavyArgs {
            q: 0,
            out: 0,
            sums: self.sums.pointer() + layer_sums as u64,
            runs: self.rows.runs,
            slot_of: at(&self.room.slot_of, first * stride),
            batch_row: self.rows.batch_row + first as u64 * 4,
            positions: self.rows.positions + first as u64 * 4,
            budgets: self.rows.budgets + first as u64 * 4,
            lists: at(&kept.lists, first_list * self.kv_heads * stride),
            counts: at(&kept.counts, first_list * self.kv_heads),
            weights: at(&self.room.weights, 0),
            keys: at(&self.room.keys, 0),
            frame_of: 0,
            total: kept.total.pointer(),
            items: kept.items.pointer(),
            stage: kept.stage.pointer(),
            layer: 0,
            own: 0,
            own_slots: 0,
            told: self.told.pointer(),
            rows: rows.len() as u32,
            run_count: self.rows.run_count as u32,
            group: (self.heads / self.kv_heads) as u32,
            kv_heads: self.kv_heads as u32,
            head_size: self.head_size as u32,
            slots: self.slots as u32,
            stride: stride as u32,
            capacity: self.frames as u32,
            whole: 0,
            scale: 1.0 / (self.head_size as f32).sqrt(),
        }
    }

    /// Lists what the rows still have of a layer, and has it gathered, where that can be done ahead.
    pub fn prepare(&self, gpu: &Gpu, store: &mut Store, layer: usize) -> Result<()> {
        if !self.rows.ahead || !self.selects(layer) {
            return Ok(());
        }
        let kept = &self.kept[layer % 2];
        gpu.set(&kept.frame_of, 0xff)?;
        gpu.set(&kept.total, 0)?;
        let mut args = self.args(layer, 0..self.rows.count, true);
        (args.frame_of, args.layer) = (kept.frame_of.pointer(), store.host(layer));
        self.run(gpu, self.kernels.list_kept, grid(self.rows.count, self.kv_heads, 1, 1024), args)?;
        gpu.set_mark(&kept.ready)?;
        store.begin_rows(layer, [&kept.ready, &kept.read], |down| {
            self.run(down, self.kernels.gather_kept, grid(LINK_BLOCKS, 1, 1, LINK_THREADS), args)
        })?;
        store.end_rows(layer)
    }

    /// Attention of the rows of a layer that let tokens go, and what all rows add to the sums; `own` is where the step's K/V
    /// lies.
    pub fn attend(
        &mut self,
        gpu: &Gpu,
        store: &mut Store,
        layer: usize,
        [q, out]: [u64; 2],
        own: Target,
    ) -> Result<()> {
        let (k, kept, ahead) = (&self.kernels, &self.kept[layer % 2], self.rows.ahead);
        let (kv, frame_of) = match ahead {
            true => {
                store.arrive(gpu, layer)?;
                (store.host(layer), kept.frame_of.pointer())
            }
            false => (store.arena(layer), 0),
        };
        let args = |rows: Range<usize>| HeavyArgs {
            q,
            out,
            layer: kv,
            frame_of,
            own: own.kv,
            own_slots: own.slots,
            ..self.args(layer, rows, ahead)
        };
        self.run(gpu, k.begin_sums, grid(self.rows.count, 1, 1, 32), args(0..self.rows.count))?;
        let (kv_heads, stride, fours) = (self.kv_heads, self.rows.stride, (self.heads / self.kv_heads).div_ceil(4));
        for (rows, evicts) in &self.rows.parts {
            let (n, args) = (rows.len(), args(rows.clone()));
            let scores = grid(stride.div_ceil(TILE), kv_heads, n * fours, 256);
            if *evicts {
                if !ahead {
                    self.run(gpu, k.list_kept, grid(n, kv_heads, 1, 1024), args)?;
                }
                self.run(gpu, k.score_kept, scores, args)?;
                self.run(gpu, k.keep_heavy, grid(kv_heads, 1, 1, 1024), args)?;
                self.run(gpu, k.sum_kept, grid(n, kv_heads, fours, 256), args)?;
            } else {
                self.run(gpu, k.score_kept, scores, HeavyArgs { whole: 1, ..args })?;
                self.run(gpu, k.weigh_all, grid(n, self.heads, 1, 256), args)?;
                self.run(gpu, k.add_all, grid(stride.div_ceil(256), kv_heads, 1, 256), args)?;
            }
        }
        gpu.set_mark(&kept.read)
    }

    /// Reads what the kernels counted; waits for the step.
    pub fn collect(&mut self, gpu: &Gpu) -> Result<()> {
        let heard: Vec<u64> = gpu.download(&self.told, 4)?;
        self.heard.copy_from_slice(&heard);
        Ok(())
    }

    /// Adds to what the store counts. What is read in place comes by halves: K for the scores, V for what is kept.
    pub fn count(&self, link: &mut Link) {
        let [attended, past, brought, halves] = self.heard;
        link.attended += attended;
        link.past += past;
        link.fetches += brought + halves.div_ceil(2);
        link.to_device_bytes += (2 * brought + halves) * 2 * self.head_size as u64;
    }

    /// Bytes of the card's tier that are not arenas.
    pub fn bytes(&self, plan: &Plan) -> u64 {
        plan.beside + 2 * (plan.frames * plan.frame_bytes) as u64
    }

    /// What tokens have had in a layer, `[kv_head][slot]`, below 0 where they are gone, for the selftest; waits for the stream.
    pub fn sums(&self, gpu: &Gpu, layer: usize) -> Result<Vec<f32>> {
        let n = self.kv_heads * self.slots;
        let all: Vec<f32> = gpu.download(&self.sums, (self.layers - self.whole_layers) * n)?;
        Ok(all[(layer - self.whole_layers) * n..][..n].to_vec())
    }
}
