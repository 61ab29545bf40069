//! K/V in two tiers against all of it on the card: the same texts and the same bytes, again and again.

use super::select::Choosing;
use super::{NUMBERS, Planning, draw, logits, path, small};
use crate::base::Result;
use crate::base::rng::stream;
use crate::base::size::Size;
use crate::device::attend::AttendWork;
use crate::device::cpu::arena::KvNumber;
use crate::device::cpu::simd::Simd;
use crate::device::cpu::{Activations, CpuDevice, CpuOptions};
use crate::device::cuda::driver::Gpu;
use crate::device::cuda::step::{CudaDevice, CudaOptions, page_bytes};
use crate::device::selftest::Row;
use crate::device::speculation::{Basis, Fetch, Look, Selection, Source, Speculation};
use crate::device::weight::Weights;
use crate::device::{Device, RopeLayout, Shape};
use crate::kv::PageId;
use crate::kv::residency::Eviction;
use rand::Rng;

pub(super) const LAYERS: usize = 5;
pub(super) const PAGES: usize = 64;

/// Runs of the stress test.
pub(super) const RUNS: usize = 50;

/// A prompt, and tokens that are written one at a time.
pub(super) const PROMPT: usize = 333;
const WRITTEN: usize = 20;

/// The prompt of one run of a test.
pub(super) fn prompt(test: u64, run: usize, vocab: u32) -> Vec<u32> {
    let mut random = stream(test, "cuda selftest", &[run as u64]);
    (0..PROMPT).map(|_| random.random_range(0..vocab)).collect()
}

/// The CPU device with exact activations and a device tier that holds everything.
pub(super) fn on_cpu(weights: &Weights, fetch: Fetch) -> Result<CpuDevice> {
    let (activations, kv) = (Activations::F32, KvNumber::F16);
    let options = CpuOptions { threads: 1, activations, pages: PAGES, kv, simd: Simd::best() };
    let mut device = CpuDevice::new(weights.clone(), options)?;
    device.offload(64 << 20, fetch)?;
    Ok(device)
}

/// A path whose pages are no neighbours, shifted so that runs lie in other pages.
fn scattered(first: usize, rows: usize, shift: usize) -> AttendWork {
    let mut work = path(first, rows);
    work.pages.iter_mut().for_each(|page| *page = ((*page as usize * 7 + shift) % PAGES) as u32);
    work
}

/// The greedy text after a prompt, with the logits of its last step.
pub(super) fn text(device: &mut CudaDevice, prompt: &[u32], shift: usize) -> Result<(Vec<u32>, Vec<f32>)> {
    let (first, last) = prompt.split_at(prompt.len() - 1);
    logits(device, LAYERS, &scattered(0, first.len(), shift), first)?;
    let (mut next, mut text, mut all) = (last[0], Vec::new(), Vec::new());
    for step in 0..WRITTEN {
        all = logits(device, LAYERS, &scattered(first.len() + step, 1, shift), &[next])?.remove(0);
        let best = (0u32..).zip(&all).max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
        next = best.map_or(0, |(token, _)| token);
        text.push(next);
    }
    Ok((text, all))
}

pub(super) fn card(ordinal: usize, weights: Weights, planning: Planning, tier: Option<u64>) -> Result<CudaDevice> {
    CudaDevice::new(
        Gpu::open(ordinal)?,
        weights,
        CudaOptions { pages: PAGES, rows: PROMPT, planning, tier, graphs: true },
    )
}

/// Greedy texts, logits and all K/V with a device tier of one to all layers against everything on the card, bit
/// for bit, over many runs of one device. `fault`: the tiered device reads another prompt.
pub fn full(ordinal: usize, planning: impl Fn() -> Planning, fault: bool) -> Result<Vec<Row>> {
    let mut table = Vec::new();
    for (_, kind, name, _) in NUMBERS {
        let weights = small(kind, RopeLayout::Halves, LAYERS)?;
        let (layer, vocab) = (page_bytes(&weights.shape) * PAGES as u64 / LAYERS as u64, weights.shape.vocab as u32);
        let mut whole = card(ordinal, weights.clone(), planning(), None)?;
        let mut tiered = card(ordinal, weights, planning(), Some(2 * layer))?;
        let mut check = |what: &str, runs: usize, setup: &dyn Fn(&mut CudaDevice, usize) -> Result<()>| -> Result<()> {
            let mut wrong = 0;
            for run in 0..runs {
                let mut prompt = prompt(14, run, vocab);
                let expected = text(&mut whole, &prompt, run)?;
                if fault {
                    prompt[0] ^= 1;
                }
                setup(&mut tiered, run)?;
                let found = text(&mut tiered, &prompt, run)?;
                wrong += usize::from(found != expected || tiered.kv()? != whole.kv()?);
            }
            let kernel = format!("cuda offload full {name}");
            let shape = format!("{what}, {runs} runs");
            table.push(Row { kernel, shape, max_error: wrong as f64, ok: wrong == 0 });
            Ok(())
        };
        check("two layers, by copies", 3, &|device, _| {
            device.fetch_by_kernel(false);
            Ok(())
        })?;
        check("two layers, by the kernel", 3, &|device, _| {
            device.fetch_by_kernel(true);
            Ok(())
        })?;
        check("two layers, either", RUNS, &|device, run| {
            device.fetch_by_kernel(run % 2 == 0);
            Ok(())
        })?;
        for (layers, what) in [(1, "one layer"), (3, "three layers"), (LAYERS as u64, "all layers")] {
            check(what, 2, &|device, _| device.refetch(Some((layers * layer, Fetch::Full)), &[]))?;
        }
    }
    Ok(table)
}

/// A selection in some basis: what it guesses is no matter here.
fn selection(
    shape: &Shape,
    look: Look,
    (share, eviction, capacity): (bool, Eviction, Option<Size>),
    choosing: Choosing<'_>,
    (alpha, max_fetch): (f32, f32),
) -> Fetch {
    let (kv_heads, d, columns, whole_layers) = (shape.kv_heads, shape.head_size, shape.head_size / 4, 1);
    let basis = |layer: usize| Basis {
        columns,
        numbers: draw(700 + layer as u64, kv_heads * columns * d),
        centre: draw(800 + layer as u64, kv_heads * columns),
    };
    let layers = (0..shape.layers).map(basis).collect();
    let shifts = (0..shape.layers).map(|layer| draw(900 + layer as u64, shape.hidden)).collect();
    Fetch::Selected(Selection {
        source: Source::Partial(Speculation { whole_layers, columns, layers, shifts }, look),
        choose: choosing(alpha, max_fetch),
        whole_layers,
        share,
        eviction,
        capacity,
    })
}

/// Selecting methods: with everything selected the logits of everything on the card, within rounding; and the same texts,
/// logits and K/V whether rows fetch together or each by itself, over many runs with tiny budgets. `fault`: another prompt.
pub fn selected(
    ordinal: usize,
    planning: impl Fn() -> Planning,
    choosing: Choosing<'_>,
    fault: bool,
) -> Result<Vec<Row>> {
    let mut table = Vec::new();
    for (_, kind, name, rounding) in NUMBERS {
        let weights = small(kind, RopeLayout::Halves, LAYERS)?;
        let shape = weights.shape.clone();
        let (layer, vocab) = (page_bytes(&shape) * PAGES as u64 / LAYERS as u64, shape.vocab as u32);
        let mut whole = card(ordinal, weights.clone(), planning(), None)?;
        let mut tree = card(ordinal, weights.clone(), planning(), Some(layer))?;
        for look in [Look::Ahead, Look::Half, Look::Same] {
            // Four layers' bytes leave room for everything, two make some rows be read in place.
            for layers in [4, 2] {
                let all = (f32::INFINITY, 1.0);
                let everything = selection(&shape, look, (true, Eviction::Counter, None), choosing, all);
                tree.refetch(Some((layers * layer, everything)), &[])?;
                let prompt = prompt(17, layers as usize, vocab);
                let (expected, exact) = forced(&mut whole, &prompt, None)?;
                let mut changed = prompt.clone();
                changed[0] ^= u32::from(fault);
                let (_, found) = forced(&mut tree, &changed, Some(&expected))?;
                let size = exact.iter().fold(0f64, |most, &x| most.max(f64::from(x).abs()));
                let mut max_error = 0f64;
                for (&a, &b) in exact.iter().zip(&found) {
                    let error = f64::from(a - b).abs() / size;
                    max_error = if max_error.is_nan() || max_error > error { max_error } else { error };
                }
                let (kernel, shape) =
                    (format!("cuda offload all selected {name}"), format!("{look:?}, {layers} layers"));
                table.push(Row { kernel, shape, max_error, ok: max_error <= 16.0 * rounding });
            }
            let [mut tree, mut alone] = [
                card(ordinal, weights.clone(), planning(), Some(layer))?,
                card(ordinal, weights.clone(), planning(), Some(layer))?,
            ];
            let mut wrong = 0;
            for run in 0..RUNS {
                if run % 10 == 0 {
                    let bytes = [2, 3][run / 10 % 2] * layer;
                    // Rows stay by each order, where there is room for all that are wanted and where there is not.
                    let eviction = [Eviction::Counter, Eviction::Lru, Eviction::Fifo][run / 10 % 3];
                    let capacity = [None, Some(Size::Bytes(layer / 4))][run / 20 % 2];
                    for (device, share) in [(&mut tree, true), (&mut alone, false)] {
                        let rows = (share, eviction, capacity);
                        let fetch = selection(&shape, look, rows, choosing, (2.0, 0.3));
                        device.refetch(Some((bytes, fetch)), &[])?;
                    }
                }
                let mut prompt = prompt(17, run, vocab);
                let expected = text(&mut alone, &prompt, run)?;
                prompt[0] ^= u32::from(fault);
                let found = text(&mut tree, &prompt, run)?;
                wrong += usize::from(found != expected || tree.kv()? != alone.kv()?);
                // Half of the runs tell that the pages are free, the others write them anew; both are served what is true.
                if run % 2 == 1 {
                    tree.freed(&(0..PAGES as u32).map(PageId).collect::<Vec<_>>());
                }
            }
            let stayed = tree.link().is_some_and(|link| link.hits > 0 && link.samples > 0);
            wrong += usize::from(!stayed);
            let (kernel, shape) = (format!("cuda offload selected {name}"), format!("{look:?}, {RUNS} runs"));
            table.push(Row { kernel, shape, max_error: wrong as f64, ok: wrong == 0 });
        }
    }
    Ok(table)
}

/// The logits of the last step of a text: the greedy one, or the one given.
fn forced(device: &mut CudaDevice, prompt: &[u32], given: Option<&[u32]>) -> Result<(Vec<u32>, Vec<f32>)> {
    let Some(given) = given else { return text(device, prompt, 0) };
    let (first, last) = prompt.split_at(prompt.len() - 1);
    logits(device, LAYERS, &scattered(0, first.len(), 0), first)?;
    let mut all = Vec::new();
    for (step, &token) in last.iter().chain(given).take(WRITTEN).enumerate() {
        all = logits(device, LAYERS, &scattered(first.len() + step, 1, 0), &[token])?.remove(0);
    }
    Ok((given.to_vec(), all))
}
