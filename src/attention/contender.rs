//! Any method made ready to run on a sample tree: what the selftest and the benchmark compare.

use super::io::MethodIo;
use super::sample::{Arena, Sample};
use super::{Method, Parallel, Planner, QueryRow};
use crate::base::Result;
use crate::base::lazy::Lazy;
use crate::device::attend::AttendWork;
use crate::device::cpu::attend::baseline::{self, Flat};
use crate::device::cpu::attend::kernels::Kernels;
use crate::device::cpu::attend::{Attention, ParallelFor};
use crate::kv::{PAGE_TOKENS, PageId, Slot};

pub struct Contender {
    pub method: Method,
    pub io: MethodIo,
    attention: Attention,
    kind: Kind,
    /// The method's own copy of the K/V; `None` where it reads the tree's pages.
    own: Option<Arena>,
}

enum Kind {
    Planned(AttendWork),
    /// Over the tree flattened depth-first.
    Flat {
        tokens: usize,
        rows: usize,
        mask: Mask,
        scores: Lazy<f32>,
    },
}

enum Mask {
    /// `[rows][stride]`: 0 or -inf.
    Dense(Vec<f32>),
    /// A bit a token, 64 a word.
    Bits(Vec<u64>),
}

impl Contender {
    pub fn new(
        method: Method,
        kernels: &'static Kernels,
        sample: &Sample,
        rows: &[QueryRow],
        parallel: Parallel,
    ) -> Result<Self> {
        let attention = Attention::with_kernels(sample.heads, kernels)?;
        let mut planner = Planner::with_parallel(method, parallel);
        let mut work = planner.plan(&sample.tree, rows).clone();
        let (kind, own) = match method {
            Method::FlashDecoding => {
                let arena = contiguous(sample, &mut work);
                (Kind::Planned(work), Some(arena))
            }
            Method::Medusa | Method::SpecInfer | Method::Vanilla => {
                let flat = Planner::new(Method::NodeChunk).plan(&sample.tree, rows).clone();
                let (arena, mask) = flatten(sample, &flat, method);
                let tokens = flat.io.unique_tokens as usize;
                (Kind::Flat { tokens, rows: rows.len(), mask, scores: Lazy::default() }, Some(arena))
            }
            _ => (Kind::Planned(work), None),
        };
        let io = match &kind {
            Kind::Planned(work) => MethodIo::planned(work, &sample.heads),
            Kind::Flat { tokens, rows, .. } => MethodIo::flat(method, *tokens, *rows, &sample.heads),
        };
        Ok(Self { method, io, attention, kind, own })
    }

    /// The K/V that `run` reads: a copy of the method's own, or the sample's.
    pub fn arena<'a>(&'a self, sample: &'a Sample) -> &'a Arena {
        self.own.as_ref().unwrap_or(&sample.arena)
    }

    /// `out [rows][heads · d]`; `arena` is [`Self::arena`] or a copy of it.
    pub fn run(&mut self, arena: &Arena, q: &[f32], out: &mut [f32], parallel: ParallelFor<'_>) {
        match &mut self.kind {
            Kind::Planned(work) => self.attention.run(work, arena.layer(), q, out, parallel),
            Kind::Flat { tokens, rows, mask, scores } => {
                let flat = Flat { kv: arena.layer(), tokens: *tokens, rows: *rows };
                match mask {
                    Mask::Bits(bits) => baseline::specinfer(&self.attention, flat, bits, q, out, parallel),
                    Mask::Dense(mask) if self.method == Method::Medusa => {
                        baseline::medusa(&self.attention, flat, mask, q, scores, out, parallel);
                    }
                    Mask::Dense(mask) => baseline::vanilla(&self.attention, flat, mask, q, out),
                }
            }
        }
    }
}

/// Copies every path into pages of its own, one after the other, and points the work at them.
fn contiguous(sample: &Sample, work: &mut AttendWork) -> Arena {
    let mut pages = Vec::new();
    let mut arena_pages = 0;
    let mut copies = Vec::new();
    for unit in &work.units {
        // A block's pieces in path order; a page that two pieces share is one page of the copy.
        let mut last: Option<u32> = None;
        for piece in &mut work.pieces[unit.pieces.start as usize..unit.pieces.end as usize] {
            let first = piece.first_page;
            let fresh = pages.len() as u32;
            for (i, page) in (piece.start / PAGE..=(piece.start + piece.len - 1) / PAGE).enumerate() {
                let from = work.pages[first as usize + i];
                if last != Some(page) {
                    arena_pages += 1;
                    last = Some(page);
                }
                pages.push(arena_pages - 1);
                let (start, end) = (piece.start.max(page * PAGE), (piece.start + piece.len).min((page + 1) * PAGE));
                copies.push((from, arena_pages - 1, start % PAGE..start % PAGE + (end - start)));
            }
            piece.first_page = fresh;
        }
    }
    let mut arena = Arena::new(arena_pages as usize, &sample.heads, sample.number);
    for (from, to, offsets) in copies {
        for offset in offsets {
            let slot = |page| Slot { page: PageId(page), offset: offset as u8 };
            copy_token(sample, slot(from), slot(to), &mut arena);
        }
    }
    work.pages = pages;
    arena
}

/// The tree's tokens in the order of the plan's pieces, and which row sees which.
fn flatten(sample: &Sample, work: &AttendWork, method: Method) -> (Arena, Mask) {
    let tokens = work.io.unique_tokens as usize;
    let (rows, stride) = (work.rows(), Flat::stride(tokens));
    let mut arena = Arena::new(tokens.div_ceil(PAGE_TOKENS), &sample.heads, sample.number);
    let mut seen = vec![f32::NEG_INFINITY; rows * stride];
    let mut at = 0;
    for piece in &work.pieces {
        for position in piece.start..piece.start + piece.len {
            let page = work.pages[(piece.first_page + position / PAGE - piece.start / PAGE) as usize];
            let from = Slot { page: PageId(page), offset: (position % PAGE) as u8 };
            let to = Slot { page: PageId((at / PAGE_TOKENS) as u32), offset: (at % PAGE_TOKENS) as u8 };
            copy_token(sample, from, to, &mut arena);
            for row in piece.rows.clone().filter(|&r| work.positions[r as usize] >= position) {
                seen[work.order[row as usize] as usize * stride + at] = 0.0;
            }
            at += 1;
        }
    }
    let mask = if method == Method::SpecInfer {
        let word = |lanes: &[f32]| lanes.iter().enumerate().map(|(i, &m)| u64::from(m == 0.0) << i).sum();
        Mask::Bits(seen.chunks(64).map(word).collect())
    } else {
        Mask::Dense(seen)
    };
    (arena, mask)
}

fn copy_token(sample: &Sample, from: Slot, to: Slot, arena: &mut Arena) {
    let d = sample.heads.head_size;
    for head in 0..sample.heads.kv_heads {
        for half in [0, PAGE_TOKENS * d] {
            let (from, to) = (sample.index(from, head) + half, sample.index(to, head) + half);
            match (&sample.arena, &mut *arena) {
                (Arena::F16(a), Arena::F16(b)) => b[to..to + d].copy_from_slice(&a[from..from + d]),
                (Arena::F32(a), Arena::F32(b)) => b[to..to + d].copy_from_slice(&a[from..from + d]),
                _ => unreachable!("copies are stored as the sample is"),
            }
        }
    }
}

const PAGE: u32 = PAGE_TOKENS as u32;
