//! The device tier of the CPU: a hot arena over the cold one that holds everything.
//!
//! The link is a copy between the two, so that the whole of offloading runs, is tested and is counted without a card.
//! Attention reads the hot arena alone: frames for pages of layers that are read whole, and frames for single rows of
//! layers that select (`selecting.rs`). Both come out of one budget, from which partial keys of the pages that have tokens
//! are taken first; whole layers may have all that is left but a row's block, and the rows have what those leave.

use super::arena::Arena;
use super::attend::{Attention, Kv, ParallelFor, Wave};
use super::selecting::{self, Layer, Selecting};
use crate::base::Result;
use crate::device::Shape;
use crate::device::attend::AttendWork;
use crate::device::speculation::{Fetch, Look};
use crate::device::tiers::{LEAST_PAGES, Link, Moves, Moving, Waves, page_entries};
use crate::kv::residency::{Eviction, Pinned, Residency};
use crate::kv::{PAGE_TOKENS, PageId, Slot};
use std::time::Instant;

pub struct Hot {
    arena: Arena,
    residency: Residency,
    int4: bool,
    /// Pages and layers of the cold arena.
    pages: usize,
    layers: usize,
    waves: Waves,
    /// For each page entry of the work its frame; set for the wave that runs.
    frames: Vec<u32>,
    selecting: Option<Selecting>,
    moves: Moves,
    moving: Moving,
    /// Rows of a page in one layer.
    page_rows: usize,
    /// Rows' frames that must be left to them.
    least_rows_bytes: u64,
    link: Link,
}

/// Bytes that the device tier needs at least: partial keys for all pages of the host tier, and frames for a row's block
/// of one layer.
pub fn least_bytes(fetch: &Fetch, pages: usize, shape: &Shape, number_bytes: usize) -> u64 {
    let row = 2 * shape.head_size * number_bytes;
    let page = PAGE_TOKENS * shape.kv_heads * row;
    let frames = LEAST_PAGES.min(pages * shape.layers) * page;
    match fetch {
        Fetch::Full | Fetch::Int4 => frames as u64,
        Fetch::Selected(selection) => {
            let whole = if selection.whole_layers > 0 { frames } else { 0 };
            let rows = selecting::least_rows(shape) * row;
            selecting::partial_bytes(selection, pages, shape) + (whole + rows) as u64
        }
    }
}

impl Hot {
    /// A tier of `bytes`; at least [`least_bytes`], which the caller has made sure of.
    pub fn new(cold: &Arena, shape: &Shape, bytes: u64, fetch: Fetch) -> Result<Self> {
        let page_bytes = cold.layer_page_bytes() as u64;
        let count = |bytes: u64, each: u64| usize::try_from(bytes / each).unwrap_or(usize::MAX);
        let int4 = matches!(fetch, Fetch::Int4);
        let (selecting, layers) = match fetch {
            Fetch::Full | Fetch::Int4 => (None, cold.layers()),
            Fetch::Selected(selection) => {
                let (whole, row_bytes) = (selection.whole_layers, selecting::row_bytes(cold, shape) as u64);
                let room = bytes.saturating_sub(selecting::partial_bytes(&selection, cold.pages(), shape));
                let least = selecting::least_rows(shape) as u64 * row_bytes;
                let most = selection.capacity.map_or(bytes, |size| size.of(room).max(least).min(room));
                let selected = (cold.layers() - whole) * cold.pages() * PAGE_TOKENS * shape.kv_heads;
                let rows = count(most, row_bytes).min(selected);
                (Some(Selecting::new(selection, cold.number(), rows, cold.pages(), shape)), whole)
            }
        };
        let least_rows_bytes = selecting.as_ref().map_or(0, |s| (selecting::least_rows(shape) * s.row_bytes()) as u64);
        let frames = count(bytes.saturating_sub(least_rows_bytes), page_bytes).min(layers * cold.pages());
        // Pages of whole layers are read in turn, again and again: any order but the newest first would keep none of them
        // until its turn comes again.
        let residency = Residency::new(layers * cold.pages(), frames, Eviction::Newest);
        let page_rows = shape.kv_heads * PAGE_TOKENS;
        Ok(Self {
            arena: cold.frames(frames)?,
            residency,
            int4,
            pages: cold.pages(),
            layers: cold.layers(),
            waves: Waves::default(),
            frames: Vec::new(),
            selecting,
            moves: Moves::new(cold.pages()),
            moving: Moving::new(cold.pages(), cold.layers() * page_rows),
            page_rows,
            least_rows_bytes,
            link: Link { budget_bytes: bytes, ..Link::default() },
        })
    }

    pub fn link(&self) -> Link {
        self.link
    }

    /// Of each page the share of its K/V, over all layers, that is here. O(pages and rows).
    pub fn here(&self) -> Vec<f32> {
        let whole = self.whole_layers();
        let layers = self.selecting.as_ref().map_or(self.layers, Selecting::layers);
        let share = |page: usize| {
            let pages = (0..whole).filter(|layer| self.residency.find((layer * self.pages + page) as u32).is_some());
            let rows = self.selecting.as_ref().map_or(0.0, |selecting| selecting.layers_here(page));
            (pages.count() as f32 + rows) / layers as f32
        };
        (0..self.pages).map(share).collect()
    }

    /// Of each page the share that crossed the link in the last step.
    pub fn moving(&self) -> Vec<f32> {
        self.moving.shares()
    }

    /// When the queries of `layer` are wanted.
    pub fn look(&self, layer: usize) -> Look {
        self.selecting.as_ref().map_or(Look::Same, |s| s.look(layer))
    }

    /// What is added to `x` where the queries of `layer` are guessed from it.
    pub fn shift(&self, layer: usize) -> &[f32] {
        self.selecting.as_ref().map_or(&[], |s| s.shift(layer))
    }

    /// Pages whose tokens are gone: their frames are free before any other has to go.
    pub fn freed(&mut self, pages: &[PageId]) {
        let pages: Vec<u32> = pages.iter().map(|page| page.0).collect();
        self.moves.forget(&pages);
        for page in pages {
            self.give(page);
        }
    }

    /// Pages that no row will see for a while leave now, those that rows will see soon come back before they do.
    pub fn expect(&mut self, soon: &[PageId], later: &[PageId], cold: &Arena) {
        let (out, back) = self.moves.expect(soon.iter().map(|page| page.0), later.iter().map(|page| page.0));
        self.moving.begin();
        self.move_pages(&out, &back, cold);
    }

    fn move_pages(&mut self, out: &[u32], back: &[u32], cold: &Arena) {
        for &page in out {
            let rows = self.give(page);
            self.moving.add(page as usize, rows);
        }
        self.link.moved_out += out.len() as u64;
        self.link.moved_back += back.len() as u64;
        self.bring_back(back, cold);
    }

    /// Pages of paused branches come back whole, where layers are read whole and there is room without evicting others.
    fn bring_back(&mut self, pages: &[u32], cold: &Arena) {
        let (began, before) = (Instant::now(), self.link.fetches);
        for &page in pages {
            for layer in 0..self.whole_layers() {
                let item = (layer * self.pages) as u32 + page;
                if self.residency.held() == self.residency.room() || self.residency.find(item).is_some() {
                    continue;
                }
                if let Pinned::New { frame, .. } = self.residency.pin(item) {
                    self.copy_page(frame, cold, layer, page as usize);
                    self.link.fetches += 1;
                    self.link.to_device_bytes += self.link_bytes(cold.layer_page_bytes()) as u64;
                    self.moving.add(page as usize, self.page_rows);
                }
            }
        }
        self.residency.release();
        self.link.transferred(before, began);
    }

    /// Frees the frames of a page; how many rows lay there.
    fn give(&mut self, page: u32) -> usize {
        let mut rows = 0;
        for layer in 0..self.whole_layers() {
            if self.residency.give((layer * self.pages) as u32 + page) {
                rows += self.page_rows;
            }
        }
        rows + self.selecting.as_mut().map_or(0, |selecting| selecting.give_page(page as usize))
    }

    fn whole_layers(&self) -> usize {
        self.selecting.as_ref().map_or(self.layers, Selecting::whole_layers)
    }

    /// Tokens that the host tier has already are known from now on.
    pub fn adopt(&mut self, slots: &[Slot], cold: &Arena, parallel: ParallelFor<'_>) {
        if let Some(selecting) = &mut self.selecting {
            selecting.adopt(slots, cold, parallel);
        }
        self.share_room();
    }

    /// Groups a step's work.
    pub fn begin(&mut self, work: &AttendWork, selects: &[bool], cold: &Arena) {
        let (out, back) = self.moves.step(&work.pages);
        self.moving.begin();
        if let Some(selecting) = &mut self.selecting {
            selecting.begin(work, selects);
            self.share_room();
        }
        self.move_pages(&out, &back, cold);
        if self.whole_layers() > 0 {
            self.waves.plan(work, self.residency.room(), &mut |unit| page_entries(work, unit).count());
        }
    }

    /// K and V of these slots were written in the cold arena, with keys `k [rows][kv_heads · d]`: they crossed the link
    /// upwards. Pages that are here or that begin in this step are here as written.
    pub fn written(&mut self, layer: usize, slots: &[Slot], k: &[f32], cold: &Arena, parallel: ParallelFor<'_>) {
        self.link.to_host_bytes += (slots.len() * self.link_bytes(cold.layer_page_bytes() / PAGE_TOKENS)) as u64;
        if layer >= self.whole_layers()
            && let Some(selecting) = &mut self.selecting
        {
            selecting.written(layer, slots, k, cold.layer(layer), parallel);
            self.note_peak();
            return;
        }
        for (i, slot) in slots.iter().enumerate() {
            let (page, item) = (slot.page.0 as usize, (layer * self.pages) as u32 + slot.page.0);
            // Once a run of slots of one page, when its last one is reached.
            if slots.get(i + 1).is_some_and(|next| next.page == slot.page) {
                continue;
            }
            let begun = slots[..=i].iter().rev().take_while(|s| s.page == slot.page).any(|s| s.offset == 0);
            let frame = match self.residency.find(item) {
                Some(frame) => Some(frame),
                None if begun => match self.residency.pin(item) {
                    Pinned::New { frame, evicted } => {
                        self.link.evictions += u64::from(evicted);
                        Some(frame)
                    }
                    Pinned::Found(_) | Pinned::Full => None,
                },
                None => None,
            };
            if let Some(frame) = frame {
                self.copy_page(frame, cold, layer, page);
            }
        }
        self.residency.release();
        self.share_room();
    }

    /// Attention of one layer, a wave after the other.
    pub fn attend(
        &mut self,
        at: &Layer<'_>,
        cold: &Arena,
        attention: &mut Attention,
        out: &mut [f32],
        parallel: ParallelFor<'_>,
    ) {
        let (layer, work) = (at.layer, at.work);
        if layer >= self.whole_layers()
            && let Some(selecting) = &mut self.selecting
        {
            selecting.attend(at, attention, out, parallel, (&mut self.link, &mut self.moving));
            self.note_peak();
            return;
        }
        attention.begin(work);
        self.frames.clear();
        self.frames.resize(work.pages.len(), 0);
        let waves = std::mem::take(&mut self.waves);
        let mut handed_over = false;
        let whole_heads = waves.whole_heads(work);
        for wave in &waves.waves {
            let (began, before) = (Instant::now(), self.link.fetches);
            for unit in waves.units_of(wave) {
                for entry in page_entries(work, unit) {
                    self.bring(layer, entry, work.pages[entry], cold);
                }
            }
            self.link.transferred(before, began);
            self.share_room();
            let tasks = &waves.tasks[wave.start as usize..wave.end as usize];
            let kv = Kv::Pages { kv: self.arena.layer(0), pages: &self.frames };
            handed_over |=
                attention.tasks(work, &Wave { units: &waves.units, tasks, whole_heads, kv }, at.q, out, parallel);
            self.residency.release();
        }
        self.waves = waves;
        if handed_over {
            attention.merge(work, whole_heads, out, parallel);
        }
    }

    fn bring(&mut self, layer: usize, entry: usize, page: u32, cold: &Arena) {
        self.frames[entry] = match self.residency.pin((layer * self.pages) as u32 + page) {
            Pinned::Found(frame) => {
                self.link.hits += 1;
                frame
            }
            Pinned::New { frame, evicted } => {
                self.copy_page(frame, cold, layer, page as usize);
                self.link.fetches += 1;
                self.link.evictions += u64::from(evicted);
                self.link.to_device_bytes += self.link_bytes(cold.layer_page_bytes()) as u64;
                self.moving.add(page as usize, self.page_rows);
                frame
            }
            Pinned::Full => unreachable!("a wave costs no more than there are frames"),
        };
    }

    fn copy_page(&mut self, frame: u32, cold: &Arena, layer: usize, page: usize) {
        self.arena.copy_page(frame as usize, cold, layer, page);
        if self.int4 {
            self.arena.round_to_int4(frame as usize);
        }
    }

    /// What so many bytes of K/V are on the link.
    fn link_bytes(&self, bytes: usize) -> usize {
        if self.int4 { self.arena.int4_bytes(bytes) } else { bytes }
    }

    /// Frames have what partial keys leave, and rows what pages do not hold of it.
    fn share_room(&mut self) {
        let page_bytes = self.arena.layer_page_bytes() as u64;
        if let Some(selecting) = &mut self.selecting {
            let room = self.link.budget_bytes.saturating_sub(selecting.partial_bytes() as u64);
            let most = room.saturating_sub(self.least_rows_bytes) / page_bytes;
            self.link.evictions += self.residency.limit(usize::try_from(most).unwrap_or(usize::MAX)) as u64;
            let pages = self.residency.held() as u64 * page_bytes;
            self.link.evictions += selecting.limit(room.saturating_sub(pages)) as u64;
        }
        // What pages that left had is memory that others have room for.
        if self.residency.touched() > self.residency.held() {
            let held = self.residency.held();
            for (from, to) in self.residency.compact(held) {
                self.arena.move_page(from as usize, to as usize);
            }
            self.arena.give_back(self.residency.touched());
        }
        self.note_peak();
    }

    fn note_peak(&mut self) {
        let pages = self.residency.held() * self.arena.layer_page_bytes();
        let beside = self.selecting.as_ref().map_or(0, |s| s.partial_bytes() + s.held_bytes());
        self.link.peak_bytes = self.link.peak_bytes.max((pages + beside) as u64);
    }
}
