//! Which arena has what: integers only.

use crate::device::Shape;
use crate::device::attend::AttendWork;
use crate::kv::{PAGE_TOKENS, Slot};
use std::ops::Range;

/// Arenas that layers take turns in, where there is room: one is filled while the other is read.
const RING: usize = 2;

/// Which arena each layer's K/V lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    pub layers: usize,
    /// The first layers have an arena of their own.
    pub resident: usize,
    /// Arenas that the others take turns in.
    pub ring: usize,
}

impl Layout {
    pub fn whole(layers: usize) -> Self {
        Self { layers, resident: layers, ring: 0 }
    }

    /// As many layers resident as `arenas` leave; `None` where there is no arena.
    pub fn of(layers: usize, arenas: usize) -> Option<Self> {
        match arenas {
            0 => None,
            _ if arenas >= layers => Some(Self::whole(layers)),
            _ => Some(Self { layers, resident: arenas.saturating_sub(RING), ring: arenas.min(RING) }),
        }
    }

    /// The first layers resident, the others in turns.
    pub fn turns(layers: usize, resident: usize, ring: usize) -> Self {
        if resident >= layers { Self::whole(layers) } else { Self { layers, resident, ring: ring.max(1) } }
    }

    pub fn arenas(&self) -> usize {
        self.resident + self.ring
    }

    pub fn arena(&self, layer: usize) -> usize {
        if layer < self.resident { layer } else { self.resident + (layer - self.resident) % self.ring }
    }

    /// Layers that have no arena of their own.
    pub fn fetched(&self) -> Range<usize> {
        self.resident..self.layers
    }
}

/// Bytes of a layer of a page.
pub fn layer_page_bytes(shape: &Shape) -> usize {
    2 * PAGE_TOKENS * shape.kv_heads * shape.head_size * 2
}

/// Bytes that the card's tier needs at least, for a host tier of `pages` pages.
pub fn least_bytes(pages: usize, shape: &Shape) -> u64 {
    (pages * layer_page_bytes(shape)) as u64
}

/// Pages that a step's rows see and that were there before it, in order, once; `begun` in this step are not.
pub fn wanted_pages(work: &AttendWork, slots: &[Slot], pages: usize) -> Vec<u32> {
    let mut words = vec![0u64; pages.div_ceil(64)];
    work.pages.iter().for_each(|&page| words[page as usize / 64] |= 1 << (page % 64));
    let begun = slots.iter().filter(|slot| slot.offset == 0).map(|slot| slot.page.0);
    begun.for_each(|page| words[page as usize / 64] &= !(1 << (page % 64)));
    let mut wanted = Vec::with_capacity(work.pages.len());
    for (at, mut word) in (0u32..).zip(words) {
        while word != 0 {
            wanted.push(at * 64 + word.trailing_zeros());
            word &= word - 1;
        }
    }
    wanted
}

/// Runs of neighbours in rising numbers.
pub fn runs(pages: &[u32]) -> Vec<Range<u32>> {
    pages.chunk_by(|a, b| a + 1 == *b).map(|run| run[0]..run[0] + run.len() as u32).collect()
}

/// A layer's pages in an arena that others take too.
pub struct Held {
    layer: Option<usize>,
    pages: Vec<bool>,
    count: u64,
}

impl Held {
    pub fn new(pages: usize) -> Self {
        Self { layer: None, pages: vec![false; pages], count: 0 }
    }

    /// Layers from `first` on are written elsewhere: what is here of one is old.
    pub fn leave(&mut self, first: usize) {
        self.layer = self.layer.filter(|&layer| layer < first);
    }

    /// The step writes all of these pages there.
    pub fn begin(&mut self, pages: &[u32]) {
        pages.iter().for_each(|&page| self.pages[page as usize] = true);
    }

    /// Whether the arena has all these pages of a layer.
    pub fn has(&self, layer: usize, pages: &[u32]) -> bool {
        self.layer == Some(layer) && pages.iter().all(|&page| self.pages[page as usize])
    }

    /// Adds one to the numbers of the pages that the arena has.
    pub fn add(&self, pages: &mut [f32]) {
        let here = pages.iter_mut().zip(&self.pages).filter(|(_, here)| **here && self.layer.is_some());
        here.for_each(|(page, _)| *page += 1.0);
    }

    /// The arena has these pages of a layer, and of no other; how many went for them.
    pub fn hold(&mut self, layer: usize, pages: &[u32]) -> u64 {
        self.layer = Some(layer);
        self.pages.fill(false);
        pages.iter().for_each(|&page| self.pages[page as usize] = true);
        std::mem::replace(&mut self.count, pages.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::PageId;

    #[test]
    fn layers_that_take_turns_never_share_an_arena_with_a_neighbour() {
        for layers in 1..9 {
            for arenas in 0..12 {
                let Some(layout) = Layout::of(layers, arenas) else {
                    assert_eq!(arenas, 0, "one arena is enough for {layers} layers");
                    continue;
                };
                assert!(layout.arenas() <= arenas, "{layout:?} takes no more than {arenas}");
                for layer in 0..layers {
                    assert!(layout.arena(layer) < layout.arenas());
                    let alone = (0..layers).filter(|&l| layout.arena(l) == layout.arena(layer)).count() == 1;
                    assert!(layout.fetched().contains(&layer) || alone, "{layout:?} layer {layer}");
                    let shared = layer > 0 && layout.arena(layer) == layout.arena(layer - 1);
                    assert!(!shared || arenas == 1, "{layout:?} layer {layer}");
                }
            }
        }
    }

    #[test]
    fn pages_are_wanted_once_unless_they_begin_with_the_step() {
        let work = AttendWork { pages: vec![4, 5, 9, 4, 2, 7, 5, 8], ..AttendWork::default() };
        let slot = |page, offset| Slot { page: PageId(page), offset };
        let pages = wanted_pages(&work, &[slot(9, 3), slot(7, 0), slot(7, 1)], 10);
        assert_eq!(pages, [2, 4, 5, 8, 9]);
        let far = AttendWork { pages: vec![200, 63, 64, 127, 0, 128, 63], ..AttendWork::default() };
        assert_eq!(wanted_pages(&far, &[slot(128, 0)], 201), [0, 63, 64, 127, 200]);
        assert_eq!(runs(&pages), [2..3, 4..6, 8..10]);
        assert!(runs(&[]).is_empty());
    }

    #[test]
    fn an_arena_knows_which_layer_and_pages_it_has() {
        let mut held = Held::new(9);
        assert!(!held.has(0, &[]));
        assert_eq!(held.hold(2, &[1, 4]), 0);
        held.begin(&[7]);
        assert!(held.has(2, &[1, 7]) && !held.has(2, &[1, 5]) && !held.has(1, &[1]));
        let mut layers = [1.0; 9];
        held.add(&mut layers);
        assert_eq!(layers, [1.0, 2.0, 1.0, 1.0, 2.0, 1.0, 1.0, 2.0, 1.0]);
        assert_eq!(held.hold(3, &[5]), 2);
        assert!(held.has(3, &[5]) && !held.has(3, &[1]));
        held.leave(4);
        assert!(held.has(3, &[5]));
        held.leave(3);
        assert!(!held.has(3, &[5]));
    }
}
