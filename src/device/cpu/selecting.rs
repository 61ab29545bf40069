//! Attention over selected rows: guess the scores, choose, bring what was chosen, attend to that alone.
//!
//! What a row attends to is chosen from its own path (`device::picks`). Only what is fetched is shared: where the
//! selection says so, a row of K/V comes once for all queries that want it and stays in its frame until others need it.
//! Rows that come many at a time (a prompt) attend to everything, through the same frames.

use super::arena::{Arena, KvNumber};
use super::attend::{Attention, Kv, KvLayer, ParallelFor, Wave};
use super::exact;
use super::heavy::Heavy;
use super::partial::PartialKeys;
use super::rows::{Place, RowFrames};
use super::shared::Shared;
use crate::device::Shape;
use crate::device::attend::{AttendWork, Piece, Unit, WINDOW};
use crate::device::picks::{Asked, Picks, Room, pick_all};
use crate::device::speculation::{Look, Selection, Source};
use crate::device::tiers::{Link, Moving, Paths, Waves};
use crate::kv::residency::Pinned;
use crate::kv::{PAGE_TOKENS, Slot};
use half::slice::HalfFloatSliceExt;
use std::ops::Range;
use std::time::Instant;

pub struct Selecting {
    selection: Selection,
    partial: Option<PartialKeys>,
    heavy: Option<Heavy>,
    rows: RowFrames,
    paths: Paths,
    /// Whether each work row selects; the others attend to everything.
    selects: Vec<bool>,
    picks: Picks,
    waves: Waves,
    heads: usize,
    kv_heads: usize,
    head_size: usize,
    layers: usize,
    /// Steps with selecting rows: which layer and head is compared with full attention goes by it.
    steps: usize,
}

/// One layer's part in a step.
pub struct Layer<'a> {
    pub layer: usize,
    pub work: &'a AttendWork,
    pub cold: KvLayer<'a>,
    /// `[rows][heads · d]`, the layer's own and those of the look ahead.
    pub q: &'a [f32],
    pub guess: &'a [f32],
}

impl Selecting {
    /// `frames` rows at most.
    pub fn new(selection: Selection, number: KvNumber, frames: usize, pages: usize, shape: &Shape) -> Self {
        let Shape { heads, kv_heads, head_size, layers, .. } = *shape;
        let partial = match &selection.source {
            Source::Partial(speculation, _) => Some(PartialKeys::new(speculation, pages, kv_heads, head_size)),
            _ => None,
        };
        let heavy = match selection.source {
            Source::Heavy { keep } => Some(Heavy::new(keep, layers, pages, kv_heads)),
            _ => None,
        };
        let sizes = [layers, pages, kv_heads, head_size];
        let rows = RowFrames::new(number, frames, sizes, selection.eviction);
        Self {
            selection,
            partial,
            heavy,
            rows,
            paths: Paths::default(),
            selects: Vec::new(),
            picks: Picks::default(),
            waves: Waves::default(),
            heads,
            kv_heads,
            head_size,
            layers,
            steps: 0,
        }
    }

    pub fn layers(&self) -> usize {
        self.layers
    }

    /// How many layers of a page are here: each row counts as its share of one.
    pub fn layers_here(&self, page: usize) -> f32 {
        self.rows.layers_here(self.selection.whole_layers..self.layers, page)
    }

    pub fn whole_layers(&self) -> usize {
        self.selection.whole_layers
    }

    /// Keeps partial keys of tokens that the host tier has already.
    pub fn adopt(&mut self, slots: &[Slot], cold: &Arena, parallel: ParallelFor<'_>) {
        let Some(partial) = &mut self.partial else { return };
        slots.iter().for_each(|slot| partial.take_page(slot.page.0 as usize));
        let (d, n) = (self.head_size, slots.len() * self.kv_heads);
        let mut keys = vec![0f32; n * d];
        for layer in self.selection.whole_layers..self.layers {
            for (i, key) in keys.chunks_exact_mut(d).enumerate() {
                let (slot, kv_head) = (slots[i / self.kv_heads], i % self.kv_heads);
                let run = (slot.page.0 as usize * self.kv_heads + kv_head) * 2 * PAGE_TOKENS;
                let from = (run + slot.offset as usize) * d;
                match cold.layer(layer) {
                    KvLayer::F16(numbers) => numbers[from..from + d].convert_to_f32_slice(key),
                    KvLayer::F32(numbers) => key.copy_from_slice(&numbers[from..from + d]),
                }
            }
            partial.put(layer, slots, &keys, parallel);
        }
    }

    /// Whose queries choose in `layer`, which says when they are wanted.
    pub fn look(&self, layer: usize) -> Look {
        match self.selection.source {
            Source::Partial(_, look) if layer >= self.selection.whole_layers && layer < self.layers => look,
            _ => Look::Same,
        }
    }

    /// See [`Speculation::shift`](crate::device::speculation::Speculation::shift).
    pub fn shift(&self, layer: usize) -> &[f32] {
        match &self.selection.source {
            Source::Partial(speculation, look) => speculation.shift(layer, *look),
            _ => &[],
        }
    }

    pub fn row_bytes(&self) -> usize {
        self.rows.row_bytes()
    }

    pub fn held_bytes(&self) -> usize {
        self.rows.residency.held() * self.rows.row_bytes()
    }

    /// Bytes of partial keys; those of a step's pages are counted from its beginning.
    pub fn partial_bytes(&self) -> usize {
        self.partial.as_ref().map_or(0, PartialKeys::held_bytes)
    }

    /// Gives rows back until their frames take at most `bytes`; how many went.
    pub fn limit(&mut self, bytes: u64) -> usize {
        let frames = usize::try_from(bytes / self.rows.row_bytes() as u64).unwrap_or(usize::MAX);
        self.rows.limit(frames)
    }

    /// How many rows of the page had a frame.
    pub fn give_page(&mut self, page: usize) -> usize {
        self.rows.give_page(self.selection.whole_layers..self.layers, page)
    }

    /// A step's work, and which of its batch rows select.
    pub fn begin(&mut self, work: &AttendWork, selects: &[bool]) {
        self.selects.clear();
        self.selects.extend(work.order.iter().map(|&row| selects.get(row as usize).copied().unwrap_or(false)));
        self.paths.read(work);
        if let Some(partial) = &mut self.partial {
            work.pages.iter().for_each(|&page| partial.take_page(page as usize));
        }
        self.steps += usize::from(self.selects.contains(&true));
    }

    /// K (after RoPE, `[rows][kv_heads · d]`) and V of these slots were made on the device.
    pub fn written(&mut self, layer: usize, slots: &[Slot], k: &[f32], cold: KvLayer<'_>, parallel: ParallelFor<'_>) {
        if let Some(partial) = &mut self.partial {
            partial.put(layer, slots, k, parallel);
        }
        if let Some(heavy) = &mut self.heavy {
            heavy.written(layer, slots);
        }
        'slots: for slot in slots {
            for kv_head in 0..self.kv_heads {
                let place = Place { layer, page: slot.page.0 as usize, kv_head, offset: slot.offset as usize };
                match self.rows.bring(place, cold) {
                    Pinned::Found(frame) => self.rows.copy(frame, place, cold),
                    Pinned::New { .. } => {}
                    // What has no room now is fetched when it is wanted.
                    Pinned::Full => break 'slots,
                }
            }
        }
        // They stay until their step has read them, where that leaves enough for the others.
        let room = self.rows.residency.room();
        if self.rows.residency.pinned() + crate::device::attend::BLOCK * self.kv_heads > room {
            self.rows.residency.release();
        }
    }

    pub fn attend(
        &mut self,
        at: &Layer<'_>,
        attention: &mut Attention,
        out: &mut [f32],
        parallel: ParallelFor<'_>,
        (link, moving): (&mut Link, &mut Moving),
    ) {
        self.choose(at, parallel);
        self.count(at, link);
        let work = at.work;
        let frames = self.rows.residency.room().saturating_sub(self.rows.residency.pinned());
        let mut waves = std::mem::take(&mut self.waves);
        waves.plan(work, frames, &mut |unit| {
            let mut rows = 0;
            self.wanted(work, unit, |_, _, _, word| rows += word.count_ones() as usize);
            rows
        });
        attention.begin(work);
        let mut handed_over = false;
        let whole_heads = waves.whole_heads(work);
        for wave in &waves.waves {
            let (began, before) = (Instant::now(), link.fetches);
            for unit in waves.units_of(wave) {
                self.bring(at, unit, link, moving);
            }
            link.transferred(before, began);
            let (rows, places) = self.rows.layer(at.layer);
            let tasks = &waves.tasks[wave.start as usize..wave.end as usize];
            let kv = Kv::Rows { rows, places, pages: &work.pages, picks: &self.picks };
            handed_over |=
                attention.tasks(work, &Wave { units: &waves.units, tasks, whole_heads, kv }, at.q, out, parallel);
            self.rows.residency.release();
        }
        self.waves = waves;
        if handed_over {
            attention.merge(work, whole_heads, out, parallel);
        }
        if !self.selection.share {
            self.rows.residency.clear();
        }
    }

    /// Fills the picks of all rows.
    fn choose(&mut self, at: &Layer<'_>, parallel: ParallelFor<'_>) {
        self.picks.shape(&at.work.positions, self.kv_heads);
        if let Some(heavy) = &mut self.heavy {
            let (group, kv_heads, selects) = (self.heads / self.kv_heads, self.kv_heads, &self.selects);
            let (first, words) = self.picks.parts();
            let words = Shared::new(words);
            let tell = |row: usize, kv_head: usize, tokens: &[u32]| {
                for &token in tokens {
                    let word = first[row] + token as usize / WINDOW * kv_heads + kv_head;
                    // SAFETY: a head's words are one task's.
                    let word = unsafe { words.slice(word..word + 1) };
                    word[0] |= 1 << (token as usize % WINDOW);
                }
            };
            heavy.attend(at, (&self.paths, selects), group, &tell, parallel);
            let (first, words) = self.picks.parts();
            for (row, _) in self.selects.iter().enumerate().filter(|(_, selects)| !**selects) {
                pick_all(&mut words[first[row]..first[row + 1]], kv_heads, at.work.positions[row]);
            }
            return;
        }
        let mut picks = std::mem::take(&mut self.picks);
        let (first, words) = picks.parts();
        let (this, words) = (&*self, Shared::new(words));
        parallel(this.selects.len(), &|row| {
            // SAFETY: every row's words are one task's.
            let words = unsafe { words.slice(first[row]..first[row + 1]) };
            this.choose_row(at, row, words);
        });
        self.picks = picks;
    }

    fn choose_row(&self, at: &Layer<'_>, row: usize, words: &mut [u64]) {
        let position = at.work.positions[row];
        if !self.selects[row] {
            return pick_all(words, self.kv_heads, position);
        }
        let (group, d, past) = (self.heads / self.kv_heads, self.head_size, position as usize);
        let mut scores = vec![0f32; self.heads * past];
        let from = match self.look(at.layer) {
            Look::Same => at.q,
            Look::Ahead | Look::Half => at.guess,
        };
        let row_q = &from[at.work.order[row] as usize * self.heads * d..][..self.heads * d];
        let mut columns = Vec::new();
        for (head, q) in row_q.chunks_exact(d).enumerate() {
            let kv_head = head / group;
            let into = &mut scores[head * past..(head + 1) * past];
            match &self.partial {
                Some(partial) => {
                    partial.query(at.layer, kv_head, q, &mut columns);
                    let scale = 1.0 / (d as f32).sqrt();
                    columns.iter_mut().for_each(|c| *c *= scale);
                    partial.scores(at.layer, kv_head, self.paths.row(row), past, &columns, into);
                }
                None => {
                    exact::scores(at.cold, (self.kv_heads, kv_head), self.paths.row(row), past, q, into);
                }
            }
        }
        let asked = Asked { layer: at.layer, position, kv_heads: self.kv_heads, group, scores: &scores };
        self.selection.choose.choose(&asked, &mut Room::default(), words);
    }

    /// What was chosen, and now and then what full attention would have seen beside it.
    fn count(&self, at: &Layer<'_>, link: &mut Link) {
        let (group, d) = (self.heads / self.kv_heads, self.head_size);
        let selecting = self.layers - self.selection.whole_layers;
        // Neighbouring steps look at other layers, and after a round of them at another head.
        let sampled = self.selection.whole_layers + self.steps % selecting == at.layer;
        let sampled_head = self.steps / selecting % self.kv_heads;
        for row in (0..self.selects.len()).filter(|&row| self.selects[row]) {
            let position = at.work.positions[row];
            for kv_head in 0..self.kv_heads {
                link.past += u64::from(position);
                link.attended += u64::from(self.picks.count(row, kv_head)) - 1;
                if !sampled || kv_head != sampled_head {
                    continue;
                }
                let mut weights = vec![0f32; position as usize + 1];
                for g in 0..group {
                    let q = (at.work.order[row] as usize * self.heads + kv_head * group + g) * d;
                    let runs = self.paths.row(row);
                    let q = &at.q[q..q + d];
                    exact::scores(at.cold, (self.kv_heads, kv_head), runs, position as usize + 1, q, &mut weights);
                    exact::softmax(&mut weights);
                    let missed = |(t, w): (usize, &f32)| {
                        let word = self.picks.word(row, t / WINDOW, kv_head);
                        if word >> (t % WINDOW) & 1 == 1 { 0.0 } else { f64::from(*w) }
                    };
                    link.samples += 1;
                    link.missed += weights.iter().enumerate().map(missed).sum::<f64>();
                }
            }
        }
    }

    /// Tells of every piece of a unit, window and K/V head the tokens that its rows picked.
    fn wanted(&self, work: &AttendWork, unit: &Unit, mut tell: impl FnMut(&Piece, usize, usize, u64)) {
        for piece in &work.pieces[unit.pieces.start as usize..unit.pieces.end as usize] {
            for (window, mask) in window_masks(piece) {
                for kv_head in 0..self.kv_heads {
                    let rows = piece.rows.start.max(unit.rows.start)..piece.rows.end.min(unit.rows.end);
                    let word = rows.fold(0, |w, row| w | self.picks.word(row as usize, window, kv_head)) & mask;
                    if word != 0 {
                        tell(piece, window, kv_head, word);
                    }
                }
            }
        }
    }

    /// Brings what the rows of a unit picked.
    fn bring(&mut self, at: &Layer<'_>, unit: &Unit, link: &mut Link, moving: &mut Moving) {
        let mut wanted = Vec::new();
        self.wanted(at.work, unit, |piece, window, kv_head, word| wanted.push((piece.clone(), window, kv_head, word)));
        let bytes = self.rows.row_bytes() as u64;
        for (piece, window, kv_head, mut word) in wanted {
            let rows = piece.rows.start.max(unit.rows.start)..piece.rows.end.min(unit.rows.end);
            while word != 0 {
                let bit = word.trailing_zeros() as usize;
                word &= word - 1;
                let token = window * WINDOW + bit;
                let entry = piece.first_page as usize + token / PAGE_TOKENS - piece.start as usize / PAGE_TOKENS;
                let page = at.work.pages[entry] as usize;
                let place = Place { layer: at.layer, page, kv_head, offset: token % PAGE_TOKENS };
                let pinned = self.rows.bring(place, at.cold);
                let alone = if self.selection.share { 0 } else { self.wanting(at, rows.clone(), token, kv_head) };
                match pinned {
                    // Each row by itself: the row of K/V crosses as often as it is wanted.
                    Pinned::Found(frame) | Pinned::New { frame, .. } if alone > 0 => {
                        let again = if matches!(pinned, Pinned::Found(_)) { alone } else { alone - 1 };
                        (0..again).for_each(|_| self.rows.copy(frame, place, at.cold));
                        link.fetches += alone;
                        link.to_device_bytes += alone * bytes;
                        moving.add(page, 1);
                    }
                    Pinned::Found(_) => link.hits += 1,
                    Pinned::New { evicted, .. } => {
                        link.fetches += 1;
                        link.evictions += u64::from(evicted);
                        link.to_device_bytes += bytes;
                        moving.add(page, 1);
                    }
                    Pinned::Full => unreachable!("a wave costs no more than there are frames"),
                }
            }
        }
    }

    /// Selecting rows that picked a token, other than the one whose own it is.
    fn wanting(&self, at: &Layer<'_>, rows: Range<u32>, token: usize, kv_head: usize) -> u64 {
        let wants = |&row: &usize| {
            let picked = self.picks.word(row, token / WINDOW, kv_head) >> (token % WINDOW) & 1 == 1;
            self.selects[row] && picked && at.work.positions[row] as usize != token
        };
        (rows.start as usize..rows.end as usize).filter(wants).count() as u64
    }
}

/// Windows that a piece touches, each with the bits of the tokens inside.
fn window_masks(piece: &Piece) -> impl Iterator<Item = (usize, u64)> + use<> {
    let (start, end) = (piece.start as usize, (piece.start + piece.len) as usize);
    (start / WINDOW..end.div_ceil(WINDOW)).map(move |window| {
        let first = window * WINDOW;
        let (from, to) = (start.max(first) - first, end.min(first + WINDOW) - first);
        (window, u64::MAX << from & u64::MAX >> (WINDOW - to))
    })
}

/// Bytes that selecting layers need on the device beside frames, for `pages` pages.
pub fn partial_bytes(selection: &Selection, pages: usize, shape: &Shape) -> u64 {
    match &selection.source {
        Source::Partial(speculation, _) => {
            let layers = shape.layers - selection.whole_layers;
            (layers * pages * super::partial::page_bytes(shape.kv_heads, speculation.columns)) as u64
        }
        _ => 0,
    }
}

/// Rows of a block of one path: what a wave needs at least.
pub fn least_rows(shape: &Shape) -> usize {
    crate::device::attend::BLOCK * shape.kv_heads
}

/// A row's bytes in an arena.
pub fn row_bytes(arena: &Arena, shape: &Shape) -> usize {
    arena.layer_page_bytes() / (PAGE_TOKENS * shape.kv_heads)
}
