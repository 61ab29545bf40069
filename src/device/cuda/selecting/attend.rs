//! Attention of selecting rows, and now and then what it missed.

use super::Selecting;
use super::args::{AttendArgs, SampleArgs};
use crate::base::Result;
use crate::device::cuda::driver::{Buffer, Gpu, grid};
use crate::device::cuda::store::{Store, Target};

/// Blocks of attention that a card should have at least, by multiprocessors; parts of a row's tokens at most.
const ATTEND_BLOCKS: usize = 3;
const MOST_PARTS: usize = 16;

/// Warps of a block that samples, and its blocks at most: few are enough for the link.
const SAMPLERS: usize = 8;
const SAMPLE_BLOCKS: usize = 16;

impl Selecting {
    /// Attention of the selecting rows of a layer; `own` is where the step's K/V lies.
    pub fn attend(
        &mut self,
        gpu: &Gpu,
        store: &mut Store,
        layer: usize,
        [q, out]: [u64; 2],
        own: Target,
    ) -> Result<()> {
        // Rows that nobody had brought while the layer before was read.
        self.bring_late(store, layer)?;
        let (n, fours) = (self.rows.count, (self.heads / self.kv_heads).div_ceil(4));
        // A part is worth it for tokens that a block takes at least twice.
        let wanted = (ATTEND_BLOCKS * self.multiprocessors).div_ceil(n * self.kv_heads * fours);
        let parts = wanted.min(self.rows.list_stride.div_ceil(64)).clamp(1, MOST_PARTS);
        let part = match parts {
            1 => 0,
            _ => gpu.grow(&mut self.room.part, n * self.heads * parts * (2 + self.head_size) * 4)?.pointer(),
        };
        let (chosen, args) = (&self.chosen[layer % 2], self.args(layer, 0..n, q));
        let (pool, [first, stage]) = self.keeping.places(layer);
        let (pool, kv) = match self.rows.all {
            true => {
                store.arrive(gpu, layer)?;
                (pool, store.host(layer))
            }
            false => (0, store.arena(layer)),
        };
        let sums = self.room.sums.as_ref().map_or(0, Buffer::pointer);
        let mut attend = AttendArgs {
            q,
            out,
            batch_row: args.batch_row,
            lists: args.lists,
            counts: args.counts,
            bits: args.bits,
            starts: chosen.starts.pointer(),
            total: chosen.total(),
            pool,
            layer: kv,
            own: own.kv,
            own_slots: own.slots,
            told: args.told,
            part,
            sums,
            kept: self.keeping.kept(layer),
            first,
            stage,
            turned: (layer % 2) as u32,
            group: args.group,
            kv_heads: args.kv_heads,
            head_size: args.head_size,
            pages: args.pages,
            list_stride: args.list_stride,
            capacity: self.keeping.split().stage as u32,
            in_parts: u32::from(chosen.in_parts),
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
        gpu.set_mark(&chosen.read)?;
        self.attended = Some(layer);
        self.bring_late(store, layer + 1)?;
        match self.sampled_now() {
            (sampled, head, row) if sampled == layer => self.sample(gpu, store, layer, [q, kv], own, (row, head)),
            _ => Ok(()),
        }
    }

    /// The layer, K/V head and row of this step that is compared with full attention: neighbouring steps look at other layers and
    /// rows, and after a round of them at another head.
    pub fn sampled_now(&self) -> (usize, usize, usize) {
        let layers = self.layers.len();
        let (step, round) = (self.steps % layers, self.steps / layers);
        (self.whole_layers + step, round % self.kv_heads, (step + round) % self.rows.count.max(1))
    }

    /// Counts the weight that full attention of a row and K/V head gives to what the row did not attend to. `kv` is where the
    /// layer's K/V lies by slot, `own` where the step's does. Attention of the layer has been launched.
    fn sample(
        &mut self,
        gpu: &Gpu,
        store: &Store,
        layer: usize,
        [q, kv]: [u64; 2],
        own: Target,
        (row, head): (usize, usize),
    ) -> Result<()> {
        let (args, group) = (self.args(layer, row..row + 1, q), self.heads / self.kv_heads);
        let blocks = (args.run_count as usize).div_ceil(SAMPLERS).clamp(1, SAMPLE_BLOCKS);
        let part = gpu.grow(&mut self.room.sampled, group * blocks * 8)?.pointer();
        let position = self.rows.at[row];
        let mut sample = SampleArgs {
            q,
            batch_row: self.rows.batch_row,
            runs: args.runs,
            layer: kv,
            own: own.kv,
            own_slots: own.slots,
            sums: self.room.sums.as_ref().map_or(0, Buffer::pointer),
            part,
            told: args.told,
            row: row as u32,
            head: head as u32,
            position,
            run_count: args.run_count,
            group: group as u32,
            kv_heads: args.kv_heads,
            head_size: args.head_size,
            blocks: blocks as u32,
            scale_log2: std::f32::consts::LOG2_E * args.scale,
        };
        let launch = grid(blocks, group.div_ceil(4), 1, SAMPLERS as u32 * 32);
        // SAFETY: the kernels take one `Sample`; the row's runs name pages that both tiers have.
        unsafe {
            gpu.launch(self.kernels.sample_full, launch, &mut [(&raw mut sample).cast()])?;
            gpu.launch(self.kernels.sample_missed, grid(1, 1, 1, 32), &mut [(&raw mut sample).cast()])?;
        }
        if kv == store.host(layer) {
            self.sampled_bytes += (position as usize * group.div_ceil(4) * self.head_size * 2) as u64;
        }
        Ok(())
    }
}
