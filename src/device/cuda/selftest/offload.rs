//! K/V in two tiers against all of it on the card: the same texts and the same bytes, again and again.

use super::{NUMBERS, Planning, logits, path, small};
use crate::base::Result;
use crate::base::rng::stream;
use crate::device::attend::AttendWork;
use crate::device::cuda::driver::Gpu;
use crate::device::cuda::step::{CudaDevice, CudaOptions, page_bytes};
use crate::device::selftest::Row;
use crate::device::speculation::Fetch;
use crate::device::weight::Weights;
use crate::device::{Device, RopeLayout};
use rand::Rng;

const LAYERS: usize = 5;
const PAGES: usize = 64;

/// Runs of the stress test.
const RUNS: usize = 50;

/// A prompt, and tokens that are written one at a time.
const PROMPT: usize = 333;
const WRITTEN: usize = 20;

/// A path whose pages are no neighbours, shifted so that runs lie in other pages.
fn scattered(first: usize, rows: usize, shift: usize) -> AttendWork {
    let mut work = path(first, rows);
    work.pages.iter_mut().for_each(|page| *page = ((*page as usize * 7 + shift) % PAGES) as u32);
    work
}

/// The greedy text after a prompt, with the logits of its last step.
fn text(device: &mut CudaDevice, prompt: &[u32], shift: usize) -> Result<(Vec<u32>, Vec<f32>)> {
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

fn card(ordinal: usize, weights: Weights, planning: Planning, tier: Option<u64>) -> Result<CudaDevice> {
    CudaDevice::new(Gpu::open(ordinal)?, weights, CudaOptions { pages: PAGES, rows: PROMPT, planning, tier })
}

/// Greedy texts, logits and all K/V with a device tier of two, three and all layers against everything on the card, bit
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
                let mut random = stream(14, "cuda selftest", &[run as u64]);
                let mut prompt: Vec<u32> = (0..PROMPT).map(|_| random.random_range(0..vocab)).collect();
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
        for (layers, what) in [(3, "three layers"), (LAYERS as u64, "all layers")] {
            check(what, 2, &|device, _| device.refetch(Some((layers * layer, Fetch::Full)), &[]))?;
        }
    }
    Ok(table)
}
