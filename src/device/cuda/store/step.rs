//! What a step fetches and writes back. Three streams: the step's own (`main`), `down` for what the card fetches, `up` for new
//! K/V, which is written through to the host tier at once. Events order them:
//!
//! - a fetch into an arena waits for the attention and the write-back that read it last;
//! - K/V of the step is written into an arena only after the fetch for that layer (it may lie on a fetched page);
//! - a write-back waits for the rows it writes; a step begins after the last one of the step before.
//!
//! Where a step's rows select what they attend to (`selecting.rs`), no pages of the selecting layers are fetched, so that an
//! arena that layers take turns in keeps what it has of a layer that is read whole. The step's
//! own K/V then lies in a small memory beside the arenas, again two in turns.

use super::Store;
use super::int4::Int4;
use super::layout::{runs, wanted_pages};
use super::tier::{Target, WriteBackArgs};
use crate::base::Result;
use crate::device::attend::AttendWork;
use crate::device::cuda::driver::{Begin, Buffer, Gpu, Launch};
use crate::kv::{PAGE_TOKENS, Slot};
use cudarc::driver::CudaEvent;

impl Store {
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
        let pages = wanted_pages(work, slots, self.pages);
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
    /// was brought to the same place before has been `read`. [`more_rows`](Self::more_rows) may follow, and
    /// [`end_rows`](Self::end_rows) must.
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

    /// More rows, once what was brought to their place before has been `read`.
    pub fn more_rows(&self, read: &CudaEvent, launch: impl FnOnce(&Gpu) -> Result<()>) -> Result<()> {
        let Some(tier) = &self.tier else { return Ok(()) };
        tier.down.wait_for(read)?;
        launch(&tier.down)
    }

    /// No more rows of a layer come.
    pub fn end_rows(&mut self, layer: usize) -> Result<()> {
        let Some((tier, at)) = self.tier.as_mut().zip(layer.checked_sub(self.layout.resident)) else { return Ok(()) };
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
}
