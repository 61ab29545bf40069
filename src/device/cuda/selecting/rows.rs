//! The rows of a step that select: what the card is told of them, and the room they work in.

use super::Selecting;
use super::args::SelectArgs;
use crate::base::Result;
use crate::device::attend::AttendWork;
use crate::device::cuda::driver::{Buffer, Gpu};
use crate::device::cuda::runs::RunArgs;
use crate::device::cuda::staging::Staging;
use crate::kv::{PAGE_TOKENS, Slot};
use std::ops::Range;

/// Bytes of scores that are worked on at once; more rows come after one another.
const SCORE_BYTES: usize = 128 << 20;

/// No slot of a page.
pub(super) const UNWRITTEN: u8 = u8::MAX;

/// Selecting rows of the step that runs.
#[derive(Default)]
pub struct Rows {
    /// Where the card finds them; offsets until the step's copy is sent.
    pub batch_row: u64,
    pub positions: u64,
    pub caps: u64,
    pub runs: u64,
    pub count: usize,
    /// Of every row its position, and the end of its runs.
    pub at: Vec<u32>,
    pub run_ends: Vec<usize>,
    pub stride: usize,
    pub list_stride: usize,
    /// Whether all rows of the step select.
    pub all: bool,
    /// Whether `slot_of` is filled.
    pub expanded: bool,
}

impl Selecting {
    /// A step's work, and which of its batch rows, written at `slots`, select; what the card must know of them goes with the
    /// step's copy. A row that sees another one of the same step (a draft) attends to everything, since nobody can choose or
    /// fetch what is not written yet.
    pub fn begin(&mut self, work: &AttendWork, slots: &[Slot], selects: &[bool], staging: &mut Staging) {
        for slot in slots {
            let first = &mut self.written[slot.page.0 as usize];
            *first = slot.offset.min(*first);
        }
        let selecting = |row: u32| selects.get(row as usize).copied().unwrap_or(false);
        let mut rows: Vec<usize> = (0..work.rows()).filter(|&row| selecting(work.order[row])).collect();
        if !rows.is_empty() {
            self.paths.read(work);
        }
        rows.retain(|&row| !self.sees(row, work.positions[row]));
        slots.iter().for_each(|slot| self.written[slot.page.0 as usize] = UNWRITTEN);
        self.keeping.begin(&work.pages, &mut |pages| staging.push(pages));
        (self.attended, self.late_rows) = (None, None);
        self.rows = Rows { count: rows.len(), all: rows.len() == work.rows(), ..Rows::default() };
        if rows.is_empty() {
            return;
        }
        self.steps += 1;
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
            runs.extend(of.map(|run| RunArgs::of(i % chunk, run)));
            self.rows.run_ends.push(runs.len());
        }
        self.rows.batch_row = staging.push(&batch_row);
        self.rows.positions = staging.push(&positions);
        self.rows.at = positions;
        self.rows.caps = staging.push(&caps);
        self.rows.runs = staging.push(&runs);
    }

    /// Whether a row's path has a token of this step before the row's own.
    fn sees(&self, row: usize, position: u32) -> bool {
        self.paths.row(row).iter().any(|run| {
            let end = (run.start + run.len).min(position);
            let first = run.start / PAGE_TOKENS as u32 * PAGE_TOKENS as u32;
            let offset = self.written[run.page as usize];
            offset != UNWRITTEN && (run.start..end).contains(&(first + u32::from(offset)))
        })
    }

    /// The step's copy begins at `base`: takes the room for its rows.
    pub fn placed(&mut self, gpu: &Gpu, base: u64) -> Result<()> {
        if let Some(error) = self.late.take() {
            return Err(error);
        }
        self.keeping.start(gpu, base)?;
        let rows = &mut self.rows;
        if rows.count == 0 {
            return Ok(());
        }
        for at in [&mut rows.batch_row, &mut rows.positions, &mut rows.caps, &mut rows.runs] {
            *at += base;
        }
        // Paths grow with every step, and the room for them seldom: taking memory waits for the card.
        let (n, stride, list) = (rows.count, rows.stride.next_multiple_of(512), rows.list_stride.next_multiple_of(128));
        let chunk = self.chunk().min(n);
        let room = &mut self.room;
        gpu.grow(&mut room.projected, chunk * self.heads * self.columns.next_multiple_of(2) * 4)?;
        gpu.grow(&mut room.scores, chunk * self.heads * stride * 4)?;
        gpu.grow(&mut room.tops, chunk * self.heads * 4)?;
        gpu.grow(&mut room.within, chunk * self.heads * 4)?;
        gpu.grow(&mut room.keys, chunk * self.kv_heads * stride * 4)?;
        gpu.grow(&mut room.slot_of, n * stride * 4)?;
        gpu.grow(&mut room.sums, n * self.heads * 8)?;
        for chosen in &mut self.chosen {
            gpu.grow(&mut chosen.lists, n * self.kv_heads * list * 4)?;
            gpu.grow(&mut chosen.counts, n * self.kv_heads * 4)?;
        }
        Ok(())
    }

    /// Rows whose scores are worked on at once.
    pub(super) fn chunk(&self) -> usize {
        (SCORE_BYTES / (self.heads * self.rows.stride * 4)).max(1)
    }

    pub(super) fn args(&self, layer: usize, rows: Range<usize>, q: u64) -> SelectArgs {
        let (own, chosen, room) = (&self.layers[layer - self.whole_layers], &self.chosen[layer % 2], &self.room);
        let at = |room: &Option<Buffer>, first: usize| room.as_ref().map_or(0, |b| b.pointer() + first as u64 * 4);
        let runs = rows.start.checked_sub(1).map_or(0, |row| self.rows.run_ends[row])..self.rows.run_ends[rows.end - 1];
        let first = rows.start;
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
            bits: chosen.bits.pointer(),
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
            all: u32::from(self.rule.alpha.is_infinite()),
            clears: u32::from(rows.start == 0),
        }
    }
}
