//! What the selftests of layers that select have in common: a model of these heads, K/V of all slots as the card keeps it, and how
//! a step's own K/V comes to its place.

use crate::base::Result;
use crate::base::rng::stream;
use crate::device::attend::AttendWork;
use crate::device::cuda::attend::{AttendKernel, HeadShape, Number};
use crate::device::cuda::driver::{Buffer, Gpu};
use crate::device::cuda::selftest::path;
use crate::device::cuda::staging::Staging;
use crate::device::cuda::store::{Store, Target};
use crate::device::speculation::Basis;
use crate::device::{Rope, RopeLayout, Shape};
use crate::kv::{PAGE_TOKENS, PageId, Slot};
use half::{bf16, f16};
use rand::Rng;

pub const LAYERS: usize = 3;

/// Layers of these heads; nothing but K/V and attention is made of them.
pub fn shape(heads: usize, kv_heads: usize, head_size: usize) -> Shape {
    Shape {
        layers: LAYERS,
        hidden: 64,
        heads,
        kv_heads,
        head_size,
        feed_forward: 64,
        vocab: 64,
        context: 1024,
        norm_eps: 1e-5,
        rope: Rope { theta: 1e4, factors: None, layout: RopeLayout::Interleaved },
    }
}

pub fn kernel(gpu: &Gpu, number: Number, shape: &Shape) -> Result<AttendKernel> {
    let [heads, kv_heads, head_size] = [shape.heads, shape.kv_heads, shape.head_size].map(|n| n as u32);
    AttendKernel::new(gpu, HeadShape { heads, kv_heads, head_size, number }, None)
}

/// A basis for each layer: what it guesses is no matter.
pub fn bases(random: &mut impl Rng, shape: &Shape, columns: usize) -> Vec<Basis> {
    let mut numbers = |count: usize| (0..count).map(|_| random.random::<f32>() - 0.5).collect();
    let (kv_heads, d) = (shape.kv_heads, shape.head_size);
    let mut basis =
        |_| Basis { columns, numbers: numbers(kv_heads * columns * d), centre: numbers(kv_heads * columns) };
    (0..shape.layers).map(&mut basis).collect()
}

/// Random numbers up to `size` as the card keeps them.
pub fn draw_bits(random: &mut impl Rng, number: Number, n: usize, size: f32) -> Vec<u16> {
    let mut draw = || (random.random::<f32>() * 2.0 - 1.0) * size;
    match number {
        Number::F16 => (0..n).map(|_| f16::from_f32(draw()).to_bits()).collect(),
        Number::Bf16 => (0..n).map(|_| bf16::from_f32(draw()).to_bits()).collect(),
    }
}

pub fn bits(number: Number, case: u64, n: usize) -> Vec<u16> {
    draw_bits(&mut stream(15, "cuda selftest", &[case]), number, n, 1.0)
}

pub fn slot(i: usize) -> Slot {
    Slot { page: PageId((i / PAGE_TOKENS) as u32), offset: (i % PAGE_TOKENS) as u8 }
}

/// Where K (0) or V (1) of a slot and head begins in a layer, in rows of d numbers.
pub fn line(kv_heads: usize, slot: usize, head: usize, value: usize) -> usize {
    ((slot / 16 * kv_heads + head) * 2 + value) * 16 + slot % 16
}

/// The larger error; NaN stays.
pub fn worse(worst: f64, error: f64) -> f64 {
    if worst.is_nan() || worst > error { worst } else { error }
}

/// The store begins a step that writes these slots and reads nothing: their numbers on the card.
pub fn begin_writing(gpu: &Gpu, store: &mut Store, slots: &[usize], selects_from: Option<usize>) -> Result<Buffer> {
    let numbers: Vec<u32> = slots.iter().map(|&s| s as u32).collect();
    let there = gpu.upload(&numbers)?;
    let places: Vec<Slot> = slots.iter().map(|&s| slot(s)).collect();
    store.plan(&path(0, 0), &places, selects_from)?;
    store.begin(gpu, [0, there.pointer(), 0])?;
    Ok(there)
}

/// The store begins the step of `work`, whose rows are written at `own`, with what was staged for others before: where the
/// step's copy begins, and where `own` lies.
pub fn begin_step(
    gpu: &Gpu,
    store: &mut Store,
    staging: &mut Staging,
    (work, own): (&AttendWork, &[usize]),
    selects_from: Option<usize>,
) -> Result<[u64; 2]> {
    let slots: Vec<Slot> = own.iter().map(|&s| slot(s)).collect();
    let fetched = staging.push(store.plan(work, &slots, selects_from)?);
    let own_at = staging.push(&own.iter().map(|&s| s as u32).collect::<Vec<_>>());
    let numbers = staging.push(&(0..own.len() as u32).collect::<Vec<_>>());
    let base = staging.send(gpu, false)?;
    store.begin(gpu, [fetched, own_at, numbers].map(|at| base + at))?;
    Ok([base, base + own_at])
}

/// Copies K/V of a layer from slots of `kv` to slots of the target, as a step's kernels would have made it there.
pub fn place(
    gpu: &Gpu,
    shape: &Shape,
    kv: &Buffer,
    target: Target,
    rows: impl Iterator<Item = (usize, usize)>,
) -> Result<()> {
    let (kv_heads, bytes) = (shape.kv_heads, shape.head_size * 2);
    for (from, to) in rows {
        for at in 0..2 * kv_heads {
            let [from, to] = [from, to].map(|slot| (line(kv_heads, slot, at / 2, at % 2) * bytes) as u64);
            gpu.copy(target.kv + to, kv.pointer() + from, bytes)?;
        }
    }
    Ok(())
}
