//! A token tree with made-up K/V, for the selftest, the benchmark and tests: the numbers of a token are a function of
//! its path, as in a model, so the same path in another tree has the same K/V and the same query.

use super::QueryRow;
use super::reference::{self, Query};
use crate::base::lazy::Lazy;
use crate::device::attend::AttendWork;
use crate::device::cpu::attend::{Attention, Heads, KvLayer, ParallelFor};
use crate::kv::{BranchId, NoPages, PAGE_TOKENS, Slot, TokenTree};
use half::f16;

/// How K/V is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    F16,
    F32,
}

impl Number {
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::F32 => "f32",
        }
    }

    pub fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

/// K/V of one layer, `[page][kv_head][K|V][16][d]`, in large pages as the engine's is.
#[derive(Debug, Clone)]
pub enum Arena {
    F16(Lazy<f16>),
    F32(Lazy<f32>),
}

impl Arena {
    /// What nobody writes is NaN, so that reading it shows.
    pub fn new(pages: usize, heads: &Heads, number: Number) -> Self {
        let n = pages * heads.page_numbers();
        match number {
            Number::F16 => {
                let mut numbers = Lazy::in_large_pages(n);
                numbers.fill(f16::NAN);
                Self::F16(numbers)
            }
            Number::F32 => {
                let mut numbers = Lazy::in_large_pages(n);
                numbers.fill(f32::NAN);
                Self::F32(numbers)
            }
        }
    }

    pub fn layer(&self) -> KvLayer<'_> {
        match self {
            Self::F16(numbers) => KvLayer::F16(numbers),
            Self::F32(numbers) => KvLayer::F32(numbers),
        }
    }

    pub fn set(&mut self, i: usize, x: f32) {
        match self {
            Self::F16(numbers) => numbers[i] = f16::from_f32(x),
            Self::F32(numbers) => numbers[i] = x,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Sample {
    pub heads: Heads,
    pub number: Number,
    pub tree: TokenTree,
    pub arena: Arena,
}

/// Queries are larger than keys, so that some tokens weigh much more than others.
const QUERY_SCALE: f32 = 2.0;
const ROOT_PATH: u64 = 7;

impl Sample {
    pub fn new(pages: usize, heads: Heads, number: Number) -> Self {
        Self { heads, number, tree: TokenTree::new(pages), arena: Arena::new(pages, &heads, number) }
    }

    /// Appends tokens and writes their K/V.
    pub fn append(&mut self, b: BranchId, ids: &[u32]) -> Result<(), NoPages> {
        let mut path = path_of(&self.tree.tokens(b));
        let mut slots = Vec::new();
        self.tree.append(b, ids, &mut slots)?;
        for (&id, slot) in ids.iter().zip(slots) {
            path = step(path, id);
            self.write(slot, path);
        }
        Ok(())
    }

    /// Index in the arena of the first number of a token: K of one head, or V `PAGE_TOKENS · d` numbers further.
    pub fn index(&self, slot: Slot, kv_head: usize) -> usize {
        let d = self.heads.head_size;
        ((slot.page.0 as usize * self.heads.kv_heads + kv_head) * 2 * PAGE_TOKENS + usize::from(slot.offset)) * d
    }

    fn write(&mut self, slot: Slot, path: u64) {
        let d = self.heads.head_size;
        let n = self.heads.kv_heads * d;
        for head in 0..self.heads.kv_heads {
            let at = self.index(slot, head);
            for k in 0..d {
                self.arena.set(at + k, number(path, head * d + k));
                self.arena.set(at + PAGE_TOKENS * d + k, number(path, n + head * d + k));
            }
        }
    }

    /// `[rows][heads · d]`.
    pub fn queries(&self, rows: &[QueryRow]) -> Vec<f32> {
        let width = self.heads.heads * self.heads.head_size;
        let mut q = Vec::with_capacity(rows.len() * width);
        for row in rows {
            let path = !path_of(&self.tree.tokens(row.branch)[..=row.position as usize]);
            q.extend((0..width).map(|i| QUERY_SCALE * number(path, i)));
        }
        q
    }

    pub fn run(&self, attention: &mut Attention, work: &AttendWork, q: &[f32], parallel: ParallelFor<'_>) -> Vec<f32> {
        let mut out = vec![f32::NAN; work.rows() * self.heads.heads * self.heads.head_size];
        attention.run(work, self.arena.layer(), q, &mut out, parallel);
        out
    }

    /// `[heads · d]` of one row by the float64 reference.
    pub fn reference(&self, row: &QueryRow) -> Vec<f64> {
        let Heads { heads, kv_heads, head_size: d } = self.heads;
        let n = kv_heads * d;
        let q = self.queries(std::slice::from_ref(row));
        let mut path = ROOT_PATH;
        let tokens = self.tree.tokens(row.branch);
        let kv: Vec<Vec<f32>> = tokens[..=row.position as usize]
            .iter()
            .map(|&t| {
                path = step(path, t);
                (0..2 * n).map(|i| self.stored(number(path, i))).collect()
            })
            .collect();
        let query =
            Query { q: &q, keys: kv.iter().map(|t| &t[..n]).collect(), values: kv.iter().map(|t| &t[n..]).collect() };
        reference::attend(&query, heads, kv_heads, d).0
    }

    /// Largest difference of `out` (all rows) from the reference over the rows `which`; NaN where one is NaN.
    pub fn error(&self, rows: &[QueryRow], out: &[f32], which: impl Iterator<Item = usize>) -> f64 {
        let width = self.heads.heads * self.heads.head_size;
        let errors = which.map(|i| largest_difference(&out[i * width..(i + 1) * width], &self.reference(&rows[i])));
        errors.fold(0.0, |a, b| if a >= b || a.is_nan() { a } else { b })
    }

    fn stored(&self, x: f32) -> f32 {
        match self.number {
            Number::F16 => f16::from_f32(x).to_f32(),
            Number::F32 => x,
        }
    }
}

/// NaN where one is NaN.
pub fn largest_difference(found: &[f32], expected: &[f64]) -> f64 {
    let differences = found.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).abs());
    differences.fold(0.0, |a, b| if a >= b || a.is_nan() { a } else { b })
}

fn path_of(tokens: &[u32]) -> u64 {
    tokens.iter().fold(ROOT_PATH, |path, &t| step(path, t))
}

fn step(path: u64, token: u32) -> u64 {
    (path ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_add(u64::from(token) + 1)
}

/// A number in -1..1 for each path and index (SplitMix64; G. Steele, D. Lea, C. Flood, 2014).
fn number(path: u64, i: usize) -> f32 {
    let mut z = path.wrapping_add((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 40) as f32 / (1 << 23) as f32 - 1.0
}
