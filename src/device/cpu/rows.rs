//! Frames for single rows of K/V: K and V of one token and K/V head of one layer, `[frame][K|V][d]`.

use super::arena::KvNumber;
use super::attend::KvLayer;
use crate::base::lazy::Lazy;
use crate::kv::PAGE_TOKENS;
use crate::kv::residency::{Eviction, Pinned, Residency};
use half::f16;
use std::ops::Range;

enum Numbers {
    F16(Lazy<f16>),
    F32(Lazy<f32>),
}

pub struct RowFrames {
    pub residency: Residency,
    numbers: Numbers,
    pages: usize,
    kv_heads: usize,
    head_size: usize,
}

/// A row by its place in the host tier.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub layer: usize,
    pub page: usize,
    pub kv_head: usize,
    pub offset: usize,
}

impl RowFrames {
    /// Room for `frames` rows of `layers` layers.
    pub fn new(
        number: KvNumber,
        frames: usize,
        [layers, pages, kv_heads, head_size]: [usize; 4],
        eviction: Eviction,
    ) -> Self {
        let numbers = match number {
            KvNumber::F16 => Numbers::F16(Lazy::zeros(frames * 2 * head_size)),
            KvNumber::F32 => Numbers::F32(Lazy::zeros(frames * 2 * head_size)),
        };
        let residency = Residency::new(layers * pages * kv_heads * PAGE_TOKENS, frames, eviction);
        Self { residency, numbers, pages, kv_heads, head_size }
    }

    pub fn row_bytes(&self) -> usize {
        2 * self.head_size
            * match self.numbers {
                Numbers::F16(_) => KvNumber::F16.bytes(),
                Numbers::F32(_) => KvNumber::F32.bytes(),
            }
    }

    /// How many of these layers of a page are here: each row counts as its share of one.
    pub fn layers_here(&self, layers: Range<usize>, page: usize) -> f32 {
        let rows = self.kv_heads * PAGE_TOKENS;
        let here = |layer| {
            let first = self.item(Place { layer, page, kv_head: 0, offset: 0 }) as usize;
            self.residency.places(first..first + rows).iter().filter(|&&place| place > 0).count()
        };
        layers.map(here).sum::<usize>() as f32 / rows as f32
    }

    /// Gives rows back until at most `frames` are here, and the memory of the other frames; how many went.
    pub fn limit(&mut self, frames: usize) -> usize {
        let went = self.residency.limit(frames);
        if self.residency.touched() > frames {
            let d = 2 * self.head_size;
            let moved = self.residency.compact(frames);
            let moved = moved.into_iter().map(|(from, to)| (from as usize * d, to as usize * d));
            match &mut self.numbers {
                Numbers::F16(numbers) => {
                    moved.for_each(|(from, to)| numbers.copy_within(from..from + d, to));
                    numbers.give_back(self.residency.touched() * d);
                }
                Numbers::F32(numbers) => {
                    moved.for_each(|(from, to)| numbers.copy_within(from..from + d, to));
                    numbers.give_back(self.residency.touched() * d);
                }
            }
        }
        went
    }

    fn item(&self, place: Place) -> u32 {
        let Place { layer, page, kv_head, offset } = place;
        (((layer * self.pages + page) * self.kv_heads + kv_head) * PAGE_TOKENS + offset) as u32
    }

    /// Gives a row a frame until the next release, with its content from `cold` (its layer) where it was not here.
    pub fn bring(&mut self, place: Place, cold: KvLayer<'_>) -> Pinned {
        let pinned = self.residency.pin(self.item(place));
        if let Pinned::New { frame, .. } = pinned {
            self.copy(frame, place, cold);
        }
        pinned
    }

    /// Copies a row into the frame that it has.
    pub fn copy(&mut self, frame: u32, place: Place, cold: KvLayer<'_>) {
        let d = self.head_size;
        let from = ((place.page * self.kv_heads + place.kv_head) * 2 * PAGE_TOKENS + place.offset) * d;
        let (k, v, to) = (from..from + d, from + PAGE_TOKENS * d..from + (PAGE_TOKENS + 1) * d, frame as usize * 2 * d);
        match (&mut self.numbers, cold) {
            (Numbers::F16(numbers), KvLayer::F16(cold)) => {
                numbers[to..to + d].copy_from_slice(&cold[k]);
                numbers[to + d..to + 2 * d].copy_from_slice(&cold[v]);
            }
            (Numbers::F32(numbers), KvLayer::F32(cold)) => {
                numbers[to..to + d].copy_from_slice(&cold[k]);
                numbers[to + d..to + 2 * d].copy_from_slice(&cold[v]);
            }
            _ => unreachable!("both tiers were made for the same numbers"),
        }
    }

    /// Frees what the rows of a page have, in all layers; how many had a frame.
    pub fn give_page(&mut self, layers: Range<usize>, page: usize) -> usize {
        let mut given = 0;
        for layer in layers {
            for kv_head in 0..self.kv_heads {
                for offset in 0..PAGE_TOKENS {
                    given += usize::from(self.residency.give(self.item(Place { layer, page, kv_head, offset })));
                }
            }
        }
        given
    }

    /// The frames' numbers, and for each (page, head, token) of a layer its frame plus 1, or 0.
    pub fn layer(&self, layer: usize) -> (KvLayer<'_>, &[u32]) {
        let n = self.pages * self.kv_heads * PAGE_TOKENS;
        let numbers = match &self.numbers {
            Numbers::F16(numbers) => KvLayer::F16(numbers),
            Numbers::F32(numbers) => KvLayer::F32(numbers),
        };
        (numbers, self.residency.places(layer * n..(layer + 1) * n))
    }
}
