//! Attention over selected tokens on the card (`kernels/select.cu`): guessed scores choose what a layer's rows attend to, the
//! union of that is gathered from the host tier beside the step, and attention reads it from where it lies.
//!
//! Everything that the choice needs stays on the card, so a step is launched without waiting for any layer. For each of two
//! layers in turn there is a *stage*, frames for single rows of K/V, and what tells where they lie: one is filled while the
//! other is read. What finds no frame is read from the host tier in place, so a stage may be as small as it likes.
//!
//! In a step in which other rows attend to everything (a prompt's), all pages come anyway, and selecting rows read theirs
//! from the arena.

use super::attend::Number;
use super::driver::{Begin, Buffer, Function, Gpu, Launch, Module};
use super::ptx;
use super::staging::Staging;
use super::store::{Store, Target};
use crate::base::{Error, Result};
use crate::device::Shape;
use crate::device::attend::AttendWork;
use crate::device::picks::Rule;
use crate::device::speculation::{Look, Selection};
use crate::device::tiers::{Link, Paths};
use crate::kv::{PAGE_TOKENS, Slot};
use cudarc::driver::CudaEvent;
use std::ops::Range;

mod args;
mod plan;

use args::{AttendArgs, GatherArgs, PutArgs, RunArgs, SelectArgs};
use plan::{LINK_BLOCKS, fewest, guesses, row_bytes};
pub use plan::{Plan, plan};

/// Bytes of scores that are worked on at once; more rows come after one another.
const SCORE_BYTES: usize = 128 << 20;

/// Threads of a block that reads the host tier.
const LINK_THREADS: u32 = 512;

/// Bytes that they are tried with.
const MEASURED_BYTES: usize = 16 << 20;

/// Blocks of attention that a card should have at least, by multiprocessors; parts of a row's tokens at most.
const ATTEND_BLOCKS: usize = 3;
const MOST_PARTS: usize = 16;

struct Kernels {
    put_partial: Function,
    project_queries: Function,
    expand: Function,
    score: Function,
    head_tops: Function,
    weigh: Function,
    pick: Function,
    place: Function,
    gather_rows: Function,
    gather_alone: Function,
    attend_picked: Function,
    merge_picked: Function,
    _module: Module,
}

/// A selecting layer's basis `[kv_head][d][columns]` and partial keys.
struct Layer {
    basis: Buffer,
    codes: Buffer,
    scales: Buffer,
}

/// What was chosen for a layer, and where it lies.
struct Chosen {
    stage: Buffer,
    items: Buffer,
    /// `[kv_head][page]`, then their total.
    bits: Buffer,
    starts: Buffer,
    lists: Option<Buffer>,
    counts: Option<Buffer>,
    /// The choice is made; attention has read what came of it.
    ready: CudaEvent,
    read: CudaEvent,
}

/// Selecting rows of the step that runs.
#[derive(Default)]
struct Rows {
    /// Where the card finds them; offsets until the step's copy is sent.
    batch_row: u64,
    positions: u64,
    caps: u64,
    runs: u64,
    count: usize,
    /// Of every row the end of its runs.
    run_ends: Vec<usize>,
    stride: usize,
    list_stride: usize,
    /// Whether all rows of the step select.
    all: bool,
    /// Whether `slot_of` is filled.
    expanded: bool,
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
    frames: usize,
    chosen: [Chosen; 2],
    rows: Rows,
    room: Room,
    paths: Paths,
    /// Counts of the kernels on the card, and as last read.
    told: Buffer,
    heard: [u64; 4],
    /// Blocks that gather.
    link_blocks: u32,
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
}

fn grid(x: usize, y: usize, z: usize, threads: u32) -> Launch {
    Launch { grid: (x as u32, y as u32, z as u32), threads, shared_bytes: 0, begin: Begin::After }
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
                codes: gpu.zeros(tokens * c.div_ceil(2))?,
                scales: gpu.zeros(tokens * 2)?,
            })
        };
        let chosen = || -> Result<Chosen> {
            Ok(Chosen {
                stage: gpu.zeros(plan.frames * row_bytes(shape))?,
                items: gpu.zeros(plan.frames * 4)?,
                bits: gpu.zeros((kv_heads * pages + 1) * 4)?,
                starts: gpu.zeros(kv_heads * pages * 4)?,
                lists: None,
                counts: None,
                ready: gpu.new_mark()?,
                read: gpu.new_mark()?,
            })
        };
        let module = gpu.load(ptx::select(number))?;
        let f = |name| module.function(name, 0);
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
            frames: plan.frames,
            chosen: [chosen()?, chosen()?],
            rows: Rows::default(),
            room: Room::default(),
            paths: Paths::default(),
            told: gpu.zeros(32)?,
            heard: [0; 4],
            link_blocks: LINK_BLOCKS[0],
            multiprocessors: gpu.multiprocessors as usize,
            kernels: Kernels {
                put_partial: f("put_partial")?,
                project_queries: f("project_queries")?,
                expand: f("expand")?,
                score: f("score")?,
                head_tops: f("head_tops")?,
                weigh: f("weigh")?,
                pick: f("pick")?,
                place: f("place")?,
                gather_rows: f("gather_rows")?,
                gather_alone: f("gather_alone")?,
                attend_picked: f("attend_picked")?,
                merge_picked: f("merge_picked")?,
                _module: module,
            },
        })
    }

    /// Finds out how many blocks gather best, from rows all over the first selecting layer.
    pub fn measure(&mut self, gpu: &Gpu, store: &Store) -> Result<()> {
        let slots = self.pages * PAGE_TOKENS;
        let count = self.frames.min(MEASURED_BYTES / (4 * self.head_size));
        // Every fifth token of a head after another, as choices lie.
        let items: Vec<u32> = (0..count)
            .map(|i| {
                let (at, head) = (i * 5 % slots, i * 5 / slots % self.kv_heads);
                (at * self.kv_heads + head) as u32
            })
            .collect();
        let (items, total, told) = (gpu.upload(&items)?, gpu.upload(&[count as u32])?, gpu.zeros(32)?);
        let [begun, done] = [gpu.new_mark()?, gpu.new_mark()?];
        let mut times = Vec::new();
        for blocks in LINK_BLOCKS {
            let mut best = f64::INFINITY;
            for _ in 0..3 {
                let mut args = GatherArgs {
                    host: store.host(self.whole_layers),
                    stage: self.chosen[0].stage.pointer(),
                    total: total.pointer(),
                    items: items.pointer(),
                    told: told.pointer(),
                    capacity: self.frames as u32,
                    kv_heads: self.kv_heads as u32,
                    pieces: (self.head_size / 8) as u32,
                };
                gpu.set_mark(&begun)?;
                let launch = grid(blocks as usize, 1, 1, LINK_THREADS);
                // SAFETY: the kernel takes one `Gather`; the stage has room for all items.
                unsafe { gpu.launch(self.kernels.gather_rows, launch, &mut [(&raw mut args).cast()])? };
                gpu.set_mark(&done)?;
                gpu.wait()?;
                best = best.min(gpu.microseconds(&begun, &done)?);
            }
            times.push((blocks, best));
        }
        self.link_blocks = fewest(&times);
        Ok(())
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

    /// A step's work, and which of its batch rows select; what the card must know of them goes with the step's copy.
    pub fn begin(&mut self, work: &AttendWork, selects: &[bool], staging: &mut Staging) {
        let selecting = |row: u32| selects.get(row as usize).copied().unwrap_or(false);
        let rows: Vec<usize> = (0..work.rows()).filter(|&row| selecting(work.order[row])).collect();
        self.rows = Rows { count: rows.len(), all: rows.len() == work.rows(), ..Rows::default() };
        if rows.is_empty() {
            return;
        }
        self.paths.read(work);
        let past = |row: usize| work.positions[row];
        let cap = |row: usize| (f64::from(past(row)) * f64::from(self.rule.max_fetch)).ceil() as u32;
        let (batch_row, positions): (Vec<u32>, Vec<u32>) = rows.iter().map(|&row| (work.order[row], past(row))).unzip();
        let caps: Vec<u32> = rows.iter().map(|&row| cap(row)).collect();
        self.rows.stride = positions.iter().max().map_or(4, |&p| (p as usize + 1).next_multiple_of(4));
        self.rows.list_stride = caps.iter().max().map_or(1, |&cap| cap.max(1) as usize);
        let chunk = self.chunk();
        let mut runs = Vec::new();
        for (i, &row) in rows.iter().enumerate() {
            let of = self.paths.row(row).iter();
            runs.extend(of.map(|run| RunArgs {
                row: (i % chunk) as u32,
                start: run.start,
                len: run.len,
                page: run.page,
            }));
            self.rows.run_ends.push(runs.len());
        }
        self.rows.batch_row = staging.push(&batch_row);
        self.rows.positions = staging.push(&positions);
        self.rows.caps = staging.push(&caps);
        self.rows.runs = staging.push(&runs);
    }

    /// The step's copy begins at `base`: takes the room for its rows.
    pub fn placed(&mut self, gpu: &Gpu, base: u64) -> Result<()> {
        let rows = &mut self.rows;
        if rows.count == 0 {
            return Ok(());
        }
        for at in [&mut rows.batch_row, &mut rows.positions, &mut rows.caps, &mut rows.runs] {
            *at += base;
        }
        let (n, stride, list) = (rows.count, rows.stride, rows.list_stride);
        let chunk = self.chunk().min(n);
        let room = &mut self.room;
        gpu.grow(&mut room.projected, chunk * self.heads * self.columns * 4)?;
        gpu.grow(&mut room.scores, chunk * self.heads * stride * 4)?;
        gpu.grow(&mut room.tops, chunk * self.heads * 4)?;
        gpu.grow(&mut room.within, chunk * self.heads * 4)?;
        gpu.grow(&mut room.keys, chunk * self.kv_heads * stride * 4)?;
        gpu.grow(&mut room.slot_of, n * stride * 4)?;
        for chosen in &mut self.chosen {
            gpu.grow(&mut chosen.lists, n * self.kv_heads * list * 4)?;
            gpu.grow(&mut chosen.counts, n * self.kv_heads * 4)?;
        }
        Ok(())
    }

    /// Rows whose scores are worked on at once.
    fn chunk(&self) -> usize {
        (SCORE_BYTES / (self.heads * self.rows.stride * 4)).max(1)
    }

    fn args(&self, layer: usize, rows: Range<usize>, q: u64) -> SelectArgs {
        let (own, chosen, room) = (&self.layers[layer - self.whole_layers], &self.chosen[layer % 2], &self.room);
        let at = |room: &Option<Buffer>, first: usize| room.as_ref().map_or(0, |b| b.pointer() + first as u64 * 4);
        let runs = rows.start.checked_sub(1).map_or(0, |row| self.rows.run_ends[row])..self.rows.run_ends[rows.end - 1];
        let (first, bits) = (rows.start, chosen.bits.pointer());
        SelectArgs {
            q,
            basis: own.basis.pointer(),
            codes: own.codes.pointer(),
            scales: own.scales.pointer(),
            projected: at(&room.projected, 0),
            runs: self.rows.runs + (runs.start * size_of::<RunArgs>()) as u64,
            slot_of: at(&room.slot_of, first * self.rows.stride),
            scores: at(&room.scores, 0),
            tops: at(&room.tops, 0),
            within: at(&room.within, 0),
            keys: at(&room.keys, 0),
            batch_row: self.rows.batch_row + first as u64 * 4,
            positions: self.rows.positions + first as u64 * 4,
            caps: self.rows.caps + first as u64 * 4,
            lists: at(&chosen.lists, first * self.kv_heads * self.rows.list_stride),
            counts: at(&chosen.counts, first * self.kv_heads),
            bits,
            starts: chosen.starts.pointer(),
            total: bits + (self.kv_heads * self.pages * 4) as u64,
            items: chosen.items.pointer(),
            told: self.told.pointer(),
            alpha: self.rule.alpha,
            scale: 1.0 / (self.head_size as f32).sqrt(),
            rows: rows.len() as u32,
            run_count: runs.len() as u32,
            group: (self.heads / self.kv_heads) as u32,
            kv_heads: self.kv_heads as u32,
            head_size: self.head_size as u32,
            columns: self.columns as u32,
            pairs: self.columns.div_ceil(2) as u32,
            pages: self.pages as u32,
            stride: self.rows.stride as u32,
            list_stride: self.rows.list_stride as u32,
            capacity: self.frames as u32,
            all: u32::from(self.rule.alpha.is_infinite()),
        }
    }

    /// Chooses what the rows attend to in a layer by queries `q [batch rows][heads][d]`, and has it brought where the layer's
    /// pages are not.
    pub fn choose(&mut self, gpu: &Gpu, store: &mut Store, layer: usize, q: u64) -> Result<()> {
        let k = &self.kernels;
        let chosen = &self.chosen[layer % 2];
        gpu.set(&chosen.bits, 0)?;
        let run = |f: Function, launch: Launch, mut args: SelectArgs| {
            // SAFETY: these kernels take one `Select`; its buffers were sized by `placed` for the step's rows.
            unsafe { gpu.launch(f, launch, &mut [(&raw mut args).cast()]) }
        };
        let (n, chunk) = (self.rows.count, self.chunk());
        for first in (0..n).step_by(chunk) {
            let rows = first..(first + chunk).min(n);
            let (args, count) = (self.args(layer, rows.clone(), q), rows.len());
            run(k.project_queries, grid(count, self.kv_heads, 1, 128), args)?;
            if !self.rows.expanded {
                run(k.expand, grid((args.run_count as usize * PAGE_TOKENS).div_ceil(256), 1, 1, 256), args)?;
            }
            run(k.score, grid((args.run_count as usize).div_ceil(8), self.kv_heads, 1, 256), args)?;
            run(k.head_tops, grid(count, self.heads, 1, 512), args)?;
            run(k.weigh, grid(self.rows.stride.div_ceil(1024), self.kv_heads, count, 256), args)?;
            run(k.pick, grid(count, self.kv_heads, 1, 1024), args)?;
        }
        let args = self.args(layer, 0..n, q);
        run(k.place, grid((self.kv_heads * self.pages).div_ceil(256), 1, 1, 256), args)?;
        gpu.set_mark(&chosen.ready)?;
        self.rows.expanded = true;
        if self.rows.all { self.bring(store, layer, &args) } else { Ok(()) }
    }

    /// Has the stage filled.
    fn bring(&self, store: &mut Store, layer: usize, args: &SelectArgs) -> Result<()> {
        let chosen = &self.chosen[layer % 2];
        let mut gather = GatherArgs {
            host: store.host(layer),
            stage: chosen.stage.pointer(),
            total: args.total,
            items: args.items,
            told: args.told,
            capacity: args.capacity,
            kv_heads: args.kv_heads,
            pieces: (self.head_size / 8) as u32,
        };
        let SelectArgs { mut lists, mut counts, mut bits, mut starts, mut list_stride, mut pages, .. } = *args;
        store.fetch_rows(layer, [&chosen.ready, &chosen.read], |down| {
            let gather = (&raw mut gather).cast();
            match self.share {
                // SAFETY: the kernel takes one `Gather`.
                true => unsafe {
                    down.launch(
                        self.kernels.gather_rows,
                        grid(self.link_blocks as usize, 1, 1, LINK_THREADS),
                        &mut [gather],
                    )
                },
                // SAFETY: the kernel takes one `Gather` and these six.
                false => unsafe {
                    down.launch(
                        self.kernels.gather_alone,
                        grid(self.rows.count, self.kv_heads, 1, 256),
                        &mut [
                            gather,
                            (&raw mut lists).cast(),
                            (&raw mut counts).cast(),
                            (&raw mut bits).cast(),
                            (&raw mut starts).cast(),
                            (&raw mut list_stride).cast(),
                            (&raw mut pages).cast(),
                        ],
                    )
                },
            }
        })
    }

    /// Attention of the selecting rows of a layer; `own` is where the step's K/V lies.
    pub fn attend(
        &mut self,
        gpu: &Gpu,
        store: &mut Store,
        layer: usize,
        [q, out]: [u64; 2],
        own: Target,
    ) -> Result<()> {
        let (n, fours) = (self.rows.count, (self.heads / self.kv_heads).div_ceil(4));
        // A part is worth it for tokens that a block takes at least twice.
        let wanted = (ATTEND_BLOCKS * self.multiprocessors).div_ceil(n * self.kv_heads * fours);
        let parts = wanted.min(self.rows.list_stride.div_ceil(64)).clamp(1, MOST_PARTS);
        let part = match parts {
            1 => 0,
            _ => gpu.grow(&mut self.room.part, n * self.heads * parts * (2 + self.head_size) * 4)?.pointer(),
        };
        let (chosen, args) = (&self.chosen[layer % 2], self.args(layer, 0..n, q));
        let (stage, kv) = match self.rows.all {
            true => {
                store.arrive(gpu, layer)?;
                (chosen.stage.pointer(), store.host(layer))
            }
            false => (0, store.arena(layer)),
        };
        let mut attend = AttendArgs {
            q,
            out,
            batch_row: args.batch_row,
            lists: args.lists,
            counts: args.counts,
            bits: args.bits,
            starts: args.starts,
            stage,
            layer: kv,
            own: own.kv,
            own_slots: own.slots,
            told: args.told,
            part,
            group: args.group,
            kv_heads: args.kv_heads,
            head_size: args.head_size,
            pages: args.pages,
            list_stride: args.list_stride,
            capacity: args.capacity,
            parts: parts as u32,
            scale_log2: std::f32::consts::LOG2_E * args.scale,
        };
        let launch = grid(n, self.kv_heads, fours * parts, 256);
        // SAFETY: the kernel takes one `Attend`; lists name slots that both tiers have.
        unsafe { gpu.launch(self.kernels.attend_picked, launch, &mut [(&raw mut attend).cast()])? };
        if parts > 1 {
            // SAFETY: likewise.
            unsafe {
                gpu.launch(self.kernels.merge_picked, grid(n, self.heads, 1, 64), &mut [(&raw mut attend).cast()])?
            };
        }
        gpu.set_mark(&chosen.read)
    }

    /// Keeps partial keys of `rows` new tokens of a layer, which lie at `from` and belong to `slots`.
    pub fn put(&self, gpu: &Gpu, layer: usize, from: Target, slots: u64, rows: usize) -> Result<()> {
        let Some(own) = layer.checked_sub(self.whole_layers).and_then(|at| self.layers.get(at)) else { return Ok(()) };
        let mut args = PutArgs {
            kv: from.kv,
            from_slots: from.slots,
            to_slots: slots,
            basis: own.basis.pointer(),
            codes: own.codes.pointer(),
            scales: own.scales.pointer(),
            kv_heads: self.kv_heads as u32,
            head_size: self.head_size as u32,
            columns: self.columns as u32,
            pairs: self.columns.div_ceil(2) as u32,
        };
        // SAFETY: the kernel takes one `Put`; slots were checked against the pages.
        unsafe { gpu.launch(self.kernels.put_partial, grid(rows, 1, 1, 128), &mut [(&raw mut args).cast()]) }
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

    /// Reads what the kernels counted; waits for the step.
    pub fn collect(&mut self, gpu: &Gpu) -> Result<()> {
        let heard: Vec<u64> = gpu.download(&self.told, 4)?;
        self.heard.copy_from_slice(&heard);
        Ok(())
    }

    /// Adds to what the store counts.
    pub fn count(&self, link: &mut Link) {
        let [attended, past, brought, in_place] = self.heard;
        link.attended += attended;
        link.past += past;
        link.fetches += brought + in_place;
        link.to_device_bytes += (brought + in_place) * 4 * self.head_size as u64;
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
        })
    }

    /// Bytes of the card's tier that are not arenas.
    pub fn bytes(&self, plan: &Plan) -> u64 {
        plan.partial + self.chosen.iter().map(|c| c.stage.bytes() as u64).sum::<u64>()
    }
}
