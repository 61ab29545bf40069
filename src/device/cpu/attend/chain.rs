//! How the blocks of a row become its result: a fixed binary tree, whoever computes which blocks.
//!
//! The tree stands over block numbers: a node of 2^l blocks begins at a multiple of 2^l and is its two halves merged; of
//! what lies beyond the row's last block nothing is there, and a node with one half is that half. Seven blocks:
//!
//! ```text
//!         0..7
//!      0..4      4..7          A task with blocks 0..5 has 0..4 and 4..5 in the end and hands these two over; one with
//!    0..2 2..4 4..6  6..7      5..7 has 5..6 and 6..7. Merging 4..5 with 5..6, that with 6..7, and 0..4 with what comes
//!    0 1  2 3  4 5  6          out is what one task with all seven would have done.
//! ```
//!
//! So the bits of a row are those of its own path, and what neighbouring blocks in one task give is merged in the thread's
//! cache, as a binary counter carries.

use super::unit::Job;
use super::{BLOCK, Heads, Lazy, Scratch};
use crate::device::cpu::attend::kernels::{Kernels, States};
use crate::device::cpu::lanes::prefetch;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Partial results of packed rows: numbers `[rows][d]` not yet divided by their sums, maxima (base 2), sums.
#[derive(Debug, Default)]
pub(super) struct Held {
    out: Lazy<f32>,
    max: Lazy<f32>,
    sum: Lazy<f32>,
}

impl Held {
    fn grow(&mut self, rows: usize, d: usize) {
        self.out.grow(rows * d);
        self.max.grow(rows);
        self.sum.grow(rows);
    }

    /// `rows` rows that have seen nothing.
    pub fn clear(&mut self, rows: usize, d: usize) {
        self.grow(rows, d);
        self.out[..rows * d].fill(0.0);
        self.max[..rows].fill(f32::NEG_INFINITY);
        self.sum[..rows].fill(0.0);
    }

    pub fn rows(&mut self, rows: Range<usize>, d: usize) -> States<'_> {
        let numbers = rows.start * d..rows.end * d;
        States { out: &mut self.out[numbers], max: &mut self.max[rows.clone()], sum: &mut self.sum[rows] }
    }
}

fn copy(from: &States<'_>, to: &mut States<'_>) {
    to.out.copy_from_slice(from.out);
    to.max.copy_from_slice(from.max);
    to.sum.copy_from_slice(from.sum);
}

/// The nodes that a task has of each of its rows, and which blocks it has seen.
#[derive(Debug, Default)]
pub(super) struct Chain {
    /// First work row; packed rows and numbers of each.
    first: usize,
    group: usize,
    d: usize,
    /// Blocks of each row so far: neighbours, in order.
    blocks: Vec<Range<u32>>,
    /// Level l: the nodes of 2^l blocks that wait for their right sibling, `[rows · group]`. A row has at most one a level.
    levels: Vec<Held>,
}

impl Chain {
    pub fn begin(&mut self, rows: Range<usize>, group: usize, d: usize) {
        self.blocks.clear();
        self.blocks.resize(rows.len(), 0..0);
        (self.first, self.group, self.d) = (rows.start, group, d);
        for level in &mut self.levels {
            level.grow(rows.len() * group, d);
        }
    }

    /// Takes the node of 2^`level` blocks at `start`, the next of row `i`. What cannot wait here, because its left sibling
    /// is another task's, stays in `own` and is told: start and level.
    fn add(&mut self, kernels: &Kernels, i: usize, start: u32, level: usize, own: States<'_>) -> Option<(u32, usize)> {
        let (mut start, mut level, packed) = (start, level, i * self.group..(i + 1) * self.group);
        if self.blocks[i].is_empty() {
            self.blocks[i] = start..start;
        }
        self.blocks[i].end = start + (1 << level);
        while start >> level & 1 == 1 {
            let sibling = start - (1 << level);
            if sibling < self.blocks[i].start {
                return Some((start, level));
            }
            let right = States { out: &mut *own.out, max: &mut *own.max, sum: &mut *own.sum };
            kernels.merge(self.levels[level].rows(packed.clone(), self.d), right, self.d);
            (start, level) = (sibling, level + 1);
        }
        while self.levels.len() <= level {
            let mut held = Held::default();
            held.grow(self.blocks.len() * self.group, self.d);
            self.levels.push(held);
        }
        copy(&own, &mut self.levels[level].rows(packed, self.d));
        None
    }

    /// Takes a block of all rows at once, without copying it, where they all have had the same blocks and it can wait here:
    /// `own` is another's memory then. False, and nothing done, where it cannot.
    fn add_all(&mut self, kernels: &Kernels, block: u32, own: &mut Held) -> bool {
        let Some(before) = self.blocks.first().cloned() else { return false };
        if self.blocks.iter().any(|blocks| *blocks != before) {
            return false;
        }
        let from = if before.is_empty() { block } else { before.start };
        // Halves of nodes end here as often as the number of blocks has ones at its end.
        let level = block.trailing_ones() as usize;
        let start = block & (u32::MAX << level);
        if start < from {
            return false;
        }
        while self.levels.len() <= level {
            self.levels.push(Held::default());
        }
        let packed = 0..self.blocks.len() * self.group;
        for held in &mut self.levels[..level] {
            kernels.merge(held.rows(packed.clone(), self.d), own.rows(packed.clone(), self.d), self.d);
        }
        std::mem::swap(&mut self.levels[level], own);
        self.blocks.fill(from..block + 1);
        true
    }

    /// Levels and starts of the nodes of row `i` that wait, the last blocks first.
    fn waiting(&self, i: usize) -> impl Iterator<Item = (usize, u32)> + use<> {
        let Range { start: from, end } = self.blocks[i];
        let levels = (0..u32::BITS as usize).filter(move |level| end >> level & 1 == 1);
        levels.map(move |level| (level, end & (u32::MAX << level << 1))).take_while(move |&(_, start)| start >= from)
    }

    /// Merges all nodes of row `i`, from the last to the first.
    fn fold(&mut self, kernels: &Kernels, i: usize) -> States<'_> {
        let packed = i * self.group..(i + 1) * self.group;
        let mut waiting = self.waiting(i);
        let lowest = waiting.next().map_or(0, |(level, _)| level);
        for (level, _) in waiting {
            let (low, high) = self.levels.split_at_mut(level);
            let (left, right) = (high[0].rows(packed.clone(), self.d), low[lowest].rows(packed.clone(), self.d));
            kernels.merge(left, right, self.d);
        }
        self.levels[lowest].rows(packed, self.d)
    }
}

impl Job<'_> {
    /// Takes the block just computed of the work rows `rows` into the chain.
    pub(super) fn keep(&self, block: u32, kv_head: usize, rows: Range<usize>, scratch: &mut Scratch) {
        let (g, d) = (self.heads.group(), self.heads.head_size);
        if rows.len() == scratch.chain.blocks.len() && scratch.chain.add_all(self.kernels, block, &mut scratch.own) {
            return;
        }
        for (i, row) in rows.enumerate() {
            let at = row - scratch.chain.first;
            let own = scratch.own.rows(i * g..(i + 1) * g, d);
            if let Some((start, level)) = scratch.chain.add(self.kernels, at, block, 0, own) {
                self.hand_over(row, kv_head, start, level, scratch.own.rows(i * g..(i + 1) * g, d));
            }
        }
    }

    /// Writes the rows whose blocks were all in this task, and hands the nodes of the others over.
    pub(super) fn finish_task(&self, kv_head: usize, scratch: &mut Scratch) {
        let chain = &mut scratch.chain;
        let (g, d) = (self.heads.group(), self.heads.head_size);
        for i in 0..chain.blocks.len() {
            let row = chain.first + i;
            if chain.blocks[i].is_empty() {
                continue;
            }
            if chain.blocks[i] == (0..self.blocks(row)) {
                self.write(row, kv_head * g, chain.fold(self.kernels, i));
                continue;
            }
            for (level, start) in chain.waiting(i) {
                let node = chain.levels[level].rows(i * g..(i + 1) * g, d);
                self.hand_over(row, kv_head, start, level, node);
            }
        }
    }

    fn blocks(&self, row: usize) -> u32 {
        self.work.positions[row] / BLOCK as u32 + 1
    }

    fn hand_over(&self, row: usize, kv_head: usize, start: u32, level: usize, node: States<'_>) {
        let (heads, g, d) = (self.heads.heads, self.heads.group(), self.heads.head_size);
        let partial = self.work.partial_first[row] as usize + start as usize;
        let at = partial * heads + kv_head * g;
        // SAFETY: this (row, block, head) is written by this task and K/V head alone, inside the memory that was sized from
        // `partial_first`, and read after all tasks have ended.
        let mut to = unsafe {
            States {
                out: self.sink.out.part(at * d, g * d),
                max: self.sink.max.part(at, g),
                sum: self.sink.sum.part(at, g),
            }
        };
        copy(&node, &mut to);
        // The tasks of the other K/V heads say the same. Who finds it said does not write: the line is every thread's.
        if self.sink.spans[partial].load(Ordering::Relaxed) == 0 {
            self.sink.spans[partial].store(level as u8 + 1, Ordering::Relaxed);
        }
        if !self.sink.handed_over.load(Ordering::Relaxed) {
            self.sink.handed_over.store(true, Ordering::Release);
        }
    }

    /// Merges what was handed over of a row, all heads that hand over together, and writes it.
    pub(super) fn merge(&self, row: usize, scratch: &mut Scratch) {
        let (heads, d) = (self.heads.heads, self.heads.head_size);
        let first = self.work.partial_first[row] as usize;
        let from = self.wave.whole_heads as usize * self.heads.group();
        scratch.own.grow(heads - from, d);
        scratch.chain.begin(row..row + 1, heads - from, d);
        let (mut block, blocks) = (0, self.blocks(row));
        self.fetch(first..first + blocks as usize, from);
        while block < blocks {
            let partial = first + block as usize;
            let Some(level) = self.sink.spans[partial].load(Ordering::Relaxed).checked_sub(1) else { return };
            // SAFETY: all tasks have ended, and nobody writes any more.
            let node = unsafe {
                States {
                    out: self.sink.out.part((partial * heads + from) * d, (heads - from) * d),
                    max: self.sink.max.part(partial * heads + from, heads - from),
                    sum: self.sink.sum.part(partial * heads + from, heads - from),
                }
            };
            // A row's first blocks are here, so nothing is told back.
            scratch.chain.add(self.kernels, 0, block, usize::from(level), node);
            block += 1 << level;
        }
        self.write(row, from, scratch.chain.fold(self.kernels, 0));
    }

    /// Asks for what was handed over of a row, heads `from..`: it lies in other cores' caches, and each merge waits for the one
    /// before it.
    fn fetch(&self, partials: Range<usize>, from: usize) {
        let Heads { heads, head_size: d, .. } = self.heads;
        let mut partial = partials.start;
        while partial < partials.end {
            let Some(level) = self.sink.spans[partial].load(Ordering::Relaxed).checked_sub(1) else { return };
            let at = partial * heads + from;
            prefetch(self.sink.out.get().wrapping_add(at * d).cast(), (heads - from) * d * size_of::<f32>());
            for states in [&self.sink.max, &self.sink.sum] {
                prefetch(states.get().wrapping_add(at).cast(), (heads - from) * size_of::<f32>());
            }
            partial += 1 << level;
        }
    }

    /// Divides by the sums: the results of heads `head..` of a row. Where everything was masked: zeros.
    fn write(&self, row: usize, head: usize, node: States<'_>) {
        let (heads, d) = (self.heads.heads, self.heads.head_size);
        let at = (self.work.order[row] as usize * heads + head) * d;
        // SAFETY: every (row, head) is a range of its own inside `out`, whose length was checked.
        let out = unsafe { self.sink.target.part(at, node.max.len() * d) };
        let states = node.max.iter().zip(node.sum.iter());
        for ((out, numbers), (&max, &sum)) in out.chunks_mut(d).zip(node.out.chunks(d)).zip(states) {
            if max == f32::NEG_INFINITY {
                out.fill(0.0);
                continue;
            }
            let inverse = 1.0 / sum;
            out.iter_mut().zip(numbers).for_each(|(o, v)| *o = v * inverse);
        }
    }
}
