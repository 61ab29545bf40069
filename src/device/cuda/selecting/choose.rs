//! A layer's choice, and what is brought for it.

use super::args::{GatherArgs, SelectArgs};
use super::{STAGE_WANTED, Selecting};
use crate::base::Result;
use crate::device::cuda::driver::{Buffer, Function, Gpu, Launch, grid};
use crate::device::cuda::store::Store;
use crate::kv::PAGE_TOKENS;

/// Threads of a block that reads the host tier.
const LINK_THREADS: u32 = 512;

impl Selecting {
    /// Chooses what the rows attend to in a layer by queries `q [batch rows][heads][d]`, and has it brought where the layer's
    /// pages are not.
    pub fn choose(&mut self, gpu: &Gpu, store: &mut Store, layer: usize, q: u64) -> Result<()> {
        if let Some((took, waited)) = store.take_waited() {
            self.gatherers.adapt(took, waited);
        }
        let k = &self.kernels;
        let chosen = &self.chosen[layer % 2];
        let run = |f: Function, launch: Launch, mut args: SelectArgs| {
            // SAFETY: these kernels take one `Select`; its buffers were sized by `placed` for the step's rows.
            unsafe { gpu.launch(f, launch, &mut [(&raw mut args).cast()]) }
        };
        let (n, chunk) = (self.rows.count, self.chunk());
        for first in (0..n).step_by(chunk) {
            let rows = first..(first + chunk).min(n);
            let (args, count) = (self.args(layer, rows.clone(), q), rows.len());
            run(k.project_queries, grid(count, self.kv_heads, 1, 256), args)?;
            if !self.rows.expanded {
                run(k.expand, grid((args.run_count as usize * PAGE_TOKENS).div_ceil(256), 1, 1, 256), args)?;
            }
            run(k.score, grid((args.run_count as usize).div_ceil(8), self.kv_heads, 1, 256), args)?;
            run(k.head_tops, grid(count, self.heads, 1, 512), args)?;
            run(k.pick, grid(count, self.kv_heads, 1, 1024), args)?;
        }
        self.rows.expanded = true;
        if !self.rows.all {
            return Ok(());
        }
        self.keeping.settle(gpu, layer, [chosen, &self.chosen[(layer + 1) % 2]], self.told.pointer())?;
        gpu.set_mark(&chosen.ready)?;
        self.bring(store, layer)
    }

    /// Has what a layer lacks brought: at once, but for what comes to frames of the stage that the layer before has. That comes
    /// once the attention of that layer is launched and done; where the stage had room for two layers so far, nothing is
    /// brought then, and what has no room after all is read in place.
    fn bring(&mut self, store: &mut Store, layer: usize) -> Result<()> {
        let wanted = self.heard[STAGE_WANTED];
        let in_parts = wanted == 0 || 2 * wanted > self.keeping.split().stage as u64;
        self.chosen[layer % 2].in_parts = in_parts;
        let (chosen, host) = (&self.chosen[layer % 2], store.host(layer));
        store.begin_rows(layer, [&chosen.ready, &chosen.read], |down| self.gather(down, host, layer, false))?;
        if !in_parts {
            return store.end_rows(layer);
        }
        self.late_rows = Some(layer);
        if layer == self.whole_layers || self.attended == Some(layer - 1) {
            self.bring_late(store, layer)
        } else {
            Ok(())
        }
    }

    /// Has the rest of a layer brought, if that is still to be done: the attention of the layer before is launched.
    pub(super) fn bring_late(&mut self, store: &mut Store, layer: usize) -> Result<()> {
        if self.late_rows != Some(layer) {
            return Ok(());
        }
        self.late_rows = None;
        let (before, host) = (&self.chosen[(layer + 1) % 2], store.host(layer));
        store.more_rows(&before.read, |down| self.gather(down, host, layer, true))?;
        store.end_rows(layer)
    }

    /// Launches what gathers a layer's rows from where they lie in the host tier.
    fn gather(&self, down: &Gpu, host: u64, layer: usize, late: bool) -> Result<()> {
        let chosen = &self.chosen[layer % 2];
        let (pool, [_, stage]) = self.keeping.places(layer);
        let mut gather = GatherArgs {
            host,
            pool,
            total: chosen.total(),
            brought: chosen.brought.as_ref().map_or(0, Buffer::pointer),
            told: self.told.pointer(),
            capacity: self.keeping.split().stage as u32,
            kv_heads: self.kv_heads as u32,
            pieces: (self.head_size / 8) as u32,
            own: self.keeping.own(),
            stage,
            turned: (layer % 2) as u32,
            chunks: chosen.chunks.pointer(),
            chunk_count: self.keeping.chunks() as u32,
            late: u32::from(late),
        };
        let gather = (&raw mut gather).cast();
        if self.share {
            let launch = grid(self.gatherers.blocks() as usize, 1, 1, LINK_THREADS);
            // SAFETY: the kernel takes one `Gather`.
            return unsafe { down.launch(self.kernels.gather_rows, launch, &mut [gather]) };
        }
        let SelectArgs { mut lists, mut counts, mut bits, mut list_stride, mut pages, .. } =
            self.args(layer, 0..self.rows.count, 0);
        let mut starts = chosen.starts.pointer();
        let parameters = &mut [
            gather,
            (&raw mut lists).cast(),
            (&raw mut counts).cast(),
            (&raw mut bits).cast(),
            (&raw mut starts).cast(),
            (&raw mut list_stride).cast(),
            (&raw mut pages).cast(),
        ];
        // SAFETY: the kernel takes one `Gather` and these six.
        unsafe { down.launch(self.kernels.gather_alone, grid(self.rows.count, self.kv_heads, 1, 256), parameters) }
    }
}
