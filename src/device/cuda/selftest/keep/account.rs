//! The rules by which rows stay, as plainly as can be.

use super::{PAGES, SLOTS};
use crate::device::cuda::selecting::Split;
use crate::kv::PAGE_TOKENS;
use crate::kv::residency::Eviction;
use std::collections::BTreeSet;

/// Uses that are counted to.
const MOST_USES: u16 = 15;

/// One layer's rows as the rules have it.
pub struct Account {
    pub split: Split,
    pub eviction: Eviction,
    /// `[kv_head][slot]` of (uses, frame of the set), and `[set][frame]` of the slot there and a step.
    pub rows: Vec<(u16, Option<usize>)>,
    pub frames: Vec<Option<(usize, u32)>>,
    pub step: u32,
    pub hits: u64,
    pub evictions: u64,
    pub misses: u64,
    pub passed: usize,
}

impl Account {
    pub fn new(split: Split, kv_heads: usize, eviction: Eviction) -> Self {
        Self {
            split,
            eviction,
            rows: vec![(0, None); kv_heads * SLOTS],
            frames: vec![None; split.layer_frames(kv_heads)],
            step: 0,
            hits: 0,
            evictions: 0,
            misses: 0,
            passed: 0,
        }
    }

    pub fn set(&self, head: usize, slot: usize) -> usize {
        head * self.split.groups + slot / PAGE_TOKENS % self.split.groups
    }

    pub fn drop(&mut self, head: usize, slot: usize, keeps_uses: bool) {
        let set = self.set(head, slot);
        let row = &mut self.rows[head * SLOTS + slot];
        if let Some(frame) = row.1.take() {
            self.frames[set * self.split.of_set + frame] = None;
        }
        row.0 = if keeps_uses { row.0 } else { 0 };
    }

    pub fn give(&mut self, (head, slot): (usize, usize), frame: usize) {
        let set = self.set(head, slot);
        self.frames[set * self.split.of_set + frame] = Some((slot, self.step));
        self.rows[head * SLOTS + slot].1 = Some(frame);
    }

    /// A step wants these (head, slot).
    pub fn settle(&mut self, wanted: &BTreeSet<(usize, usize)>, step: u32, kv_heads: usize) {
        self.step = step;
        let of_set = self.split.of_set;
        for set in 0..kv_heads * self.split.groups {
            let own: Vec<(usize, usize)> = wanted.iter().copied().filter(|&(h, s)| self.set(h, s) == set).collect();
            let (head, mut worn) = (set / self.split.groups, false);
            let mut misses = Vec::new();
            for &(head, slot) in &own {
                let row = &mut self.rows[head * SLOTS + slot];
                row.0 = (row.0 + 1).min(MOST_USES);
                worn |= row.0 == MOST_USES;
                match row.1 {
                    Some(frame) => {
                        self.hits += 1;
                        if self.eviction == Eviction::Lru {
                            self.frames[set * of_set + frame] = Some((slot, step));
                        }
                    }
                    None => misses.push((row.0, slot)),
                }
            }
            // The most used first, then by number.
            misses.sort_by_key(|&(uses, slot)| (MOST_USES - uses, slot));
            let mut may_go: Vec<(i64, usize)> = Vec::new();
            for frame in 0..of_set {
                let rank = match self.frames[set * of_set + frame] {
                    None => -1,
                    Some((slot, _)) if own.contains(&(head, slot)) => continue,
                    Some((slot, _)) if self.eviction == Eviction::Counter => {
                        i64::from(self.rows[head * SLOTS + slot].0)
                    }
                    Some((_, since)) => i64::from(since),
                };
                may_go.push((rank, frame));
            }
            may_go.sort_unstable();
            let changes = misses
                .iter()
                .zip(&may_go)
                .take_while(|((uses, _), (rank, _))| self.eviction != Eviction::Counter || i64::from(*uses) > *rank);
            let k = changes.count();
            let mut frames: Vec<usize> = may_go[..k].iter().map(|&(_, frame)| frame).collect();
            let mut comes: Vec<usize> = misses[..k].iter().map(|&(_, slot)| slot).collect();
            frames.sort_unstable();
            comes.sort_unstable();
            for (frame, slot) in frames.into_iter().zip(comes) {
                if let Some((old, _)) = self.frames[set * of_set + frame] {
                    self.rows[head * SLOTS + old].1 = None;
                    self.evictions += 1;
                }
                self.give((head, slot), frame);
            }
            self.misses += misses.len() as u64;
            self.passed += misses.len() - k;
            if worn {
                let pages = (0..PAGES).filter(|page| self.set(head, page * PAGE_TOKENS) == set).collect::<Vec<_>>();
                for slot in pages.into_iter().flat_map(|page| page * PAGE_TOKENS..(page + 1) * PAGE_TOKENS) {
                    self.rows[head * SLOTS + slot].0 /= 2;
                }
            }
        }
    }

    /// Rows of these pages that were wanted take frames that are free.
    pub fn bring_back(&mut self, pages: &[u32], kv_heads: usize) {
        for set in 0..kv_heads * self.split.groups {
            let (head, first) = (set / self.split.groups, set * self.split.of_set);
            let free: Vec<usize> = (0..self.split.of_set).filter(|f| self.frames[first + f].is_none()).collect();
            let slots = pages.iter().flat_map(|&p| p as usize * PAGE_TOKENS..(p as usize + 1) * PAGE_TOKENS);
            let comes: Vec<usize> = slots
                .filter(|&slot| self.set(head, slot) == set && self.rows[head * SLOTS + slot].0 > 0)
                .filter(|&slot| self.rows[head * SLOTS + slot].1.is_none())
                .collect();
            comes.into_iter().zip(free).for_each(|(slot, frame)| self.give((head, slot), frame));
        }
    }

    /// Rows and frames that the card has otherwise.
    pub fn differences(&self, state: &[u16], holders: &[u32]) -> usize {
        let row = |&(uses, frame): &(u16, Option<usize>)| uses << 12 | frame.map_or(0, |f| f as u16 + 1);
        let frame = |frame: &Option<(usize, u32)>| frame.map_or(0, |(slot, _)| slot as u32 + 1);
        let rows = self.rows.iter().map(row).zip(state).filter(|(a, b)| a != *b).count();
        let frames = self.frames.iter().map(frame).zip(holders).filter(|(a, b)| a != *b).count();
        rows + frames + self.rows.len().abs_diff(state.len()) + self.frames.len().abs_diff(holders.len())
    }
}
