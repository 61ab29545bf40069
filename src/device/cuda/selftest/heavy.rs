//! H2O: its kernels against a plain reference over the steps of a tree, the least tier against a roomy one bit for bit, and
//! whole models against the CPU device with the same method.

use super::offload::{LAYERS, PAGES, RUNS, card, on_cpu, prompt, text};
use super::select::Choosing;
use super::setting::{begin_step, begin_writing, draw_bits, kernel, line, place, shape, slot, worse};
use super::{NUMBERS, Planning, draw, logits, path, small, widen};
use crate::base::Result;
use crate::base::rng::stream;
use crate::device::attend::{AttendWork, Piece, Unit};
use crate::device::cuda::attend::Number;
use crate::device::cuda::driver::Gpu;
use crate::device::cuda::heavy::{Heavy, plan};
use crate::device::cuda::staging::Staging;
use crate::device::cuda::step::page_bytes;
use crate::device::cuda::store::{Store, Target, layer_page_bytes};
use crate::device::selftest::Row;
use crate::device::speculation::{Fetch, Selection, Source};
use crate::device::tiers::Paths;
use crate::device::{Device, RopeLayout};
use crate::kv::residency::Eviction;
use crate::kv::{PAGE_TOKENS, Slot};

/// Pages of the kernels' check, and the layer that is looked at; the one before it is whole.
const MANY: usize = 97;
const LAYER: usize = 1;

/// Tokens that all rows share.
const SHARED: usize = 304;

fn heavy(keep: f32, whole_layers: usize, choosing: Choosing<'_>) -> Selection {
    let choose = choosing(f32::INFINITY, keep);
    Selection {
        source: Source::Heavy { keep },
        choose,
        whole_layers,
        share: true,
        eviction: Eviction::Counter,
        capacity: None,
    }
}

/// A trunk of `SHARED` tokens, and branches of `own` tokens with the given numbers of rows at their ends; and for each row its
/// own slot. Pages are no neighbours.
fn tree(own: usize, ends: &[usize]) -> (AttendWork, Vec<usize>) {
    let mut work = AttendWork { pages: (0..(SHARED / PAGE_TOKENS) as u32).collect(), ..AttendWork::default() };
    let rows: usize = ends.iter().sum();
    let all = 0..rows as u32;
    work.pieces.push(Piece { start: 0, len: SHARED as u32, first_page: 0, rows: all.clone() });
    work.units.push(Unit { block: 0, pieces: 0..1, rows: all });
    // Every branch has pages of its own for a hundred tokens.
    for (branch, &end) in ends.iter().enumerate() {
        let (first_page, first) = (work.pages.len() as u32, work.positions.len() as u32);
        let pages = SHARED / PAGE_TOKENS + branch * 7;
        work.pages.extend((0..own.div_ceil(PAGE_TOKENS)).map(|page| (pages + page) as u32));
        work.positions.extend((0..end).map(|i| (SHARED + own - end + i) as u32));
        let (rows, piece) = (first..first + end as u32, work.pieces.len() as u32);
        work.pieces.push(Piece { start: SHARED as u32, len: own as u32, first_page, rows: rows.clone() });
        work.units.push(Unit { block: 1, pieces: piece..piece + 1, rows });
    }
    work.pages.iter_mut().for_each(|page| *page = *page * 7 % MANY as u32);
    // Batch rows stand the other way round.
    work.order = (0..rows as u32).rev().collect();
    let mut paths = Paths::default();
    paths.read(&work);
    let own = |row: usize| {
        let last = paths.row(row).last().map_or(0, |run| run.page * 16 + run.start % 16 + run.len - 1);
        (work.order[row] as usize, last as usize)
    };
    let mut slots = vec![0; rows];
    (0..rows).map(own).for_each(|(batch, slot)| slots[batch] = slot);
    (work, slots)
}

struct Case {
    number: Number,
    heads: usize,
    kv_heads: usize,
    d: usize,
    keep: f32,
    /// Bytes of the card's tier, in layers.
    layers: u64,
}

/// `fault`: what is compared with has other queries.
pub fn kernels(gpu: &Gpu, choosing: Choosing<'_>, fault: bool) -> Result<Vec<Row>> {
    let mut table = Vec::new();
    for (number, _, name, rounding) in NUMBERS {
        for (heads, kv_heads, d, keep, layers) in
            [(6, 2, 64, 0.3, 8), (5, 1, 128, 0.2, 2), (8, 2, 80, 0.11, 3), (9, 3, 96, 1.0, 2), (14, 2, 64, 0.5, 8)]
        {
            let case = Case { number, heads, kv_heads, d, keep, layers };
            let [attention, sums] = check(gpu, &case, choosing, fault)?;
            let shape = format!("{heads}/{kv_heads} x {d}, {keep} kept, {layers} layers");
            for (kernel, max_error, limit) in [("h2o attention", attention, 4.0 * rounding), ("h2o sums", sums, 1e-3)] {
                let kernel = format!("cuda {kernel} {name}");
                table.push(Row { kernel, shape: shape.clone(), max_error, ok: max_error <= limit });
            }
        }
    }
    Ok(table)
}

/// The largest errors of attention and of sums over some steps; a token that is gone and should not be is infinitely wrong.
fn check(gpu: &Gpu, case: &Case, choosing: Choosing<'_>, fault: bool) -> Result<[f64; 2]> {
    let Case { number, heads, kv_heads, d, keep, layers } = *case;
    let shape = shape(heads, kv_heads, d);
    let attention = kernel(gpu, number, &shape)?;
    let bytes = layers * (MANY * layer_page_bytes(&shape)) as u64;
    let selection = heavy(keep, LAYER, choosing);
    let plan = plan(bytes, &selection, MANY, &shape)?;
    let mut store = Store::new(gpu, &attention, &shape, MANY, Some(bytes))?;
    store.retier(gpu, &attention, (Some(bytes), Some(plan.layout)), false)?;
    let mut heavy = Heavy::new(gpu, number, &shape, MANY, (&plan, keep, LAYER))?;

    // K/V of all slots, as if one step had made it.
    let mut random = stream(20, "cuda selftest", &[d as u64, heads as u64]);
    let mut bits = |n: usize, size: f32| draw_bits(&mut random, number, n, size);
    let kv = bits(MANY * layer_page_bytes(&shape) / 2, 2.0);
    let there = gpu.upload(&kv)?;
    let every: Vec<usize> = (0..MANY * PAGE_TOKENS).collect();
    let every_there = begin_writing(gpu, &mut store, &every, Some(LAYER))?;
    let from = Target { kv: there.pointer(), slots: every_there.pointer() };
    store.written(gpu, LAYER, from, |_| Ok(()))?;
    store.wait()?;

    let mut know = Know {
        case,
        kv: kv.iter().map(|&bits| widen(number, bits)).collect(),
        sums: vec![Some(0.0); kv_heads * MANY * PAGE_TOKENS],
    };
    let (mut worst, mut worst_sum) = (0f64, 0f64);
    let mut staging = Staging::default();
    // Prompts among branches, branches alone, branches of which one has several tokens.
    for (step, ends) in
        [vec![1, 40, 1], vec![1; 5], vec![1; 5], vec![1; 4], vec![1, 3, 1], vec![1; 5]].iter().enumerate()
    {
        let (work, own) = tree(50 + step, ends);
        let rows = own.len();
        // Of the first step the middle branch attends to everything.
        let selects: Vec<bool> = (0..rows).map(|batch| step > 0 || batch == 0 || batch + 1 == rows).collect();
        let slots: Vec<Slot> = own.iter().map(|&i| slot(i)).collect();
        staging.clear();
        heavy.begin(&work, &slots, &selects, &mut staging);
        let [base, own_at] = begin_step(gpu, &mut store, &mut staging, (&work, &own), heavy.selects_from())?;
        heavy.placed(gpu, &mut store, base)?;
        store.arrive(gpu, 0)?;
        store.read(gpu, 0)?;
        let target = store.target(gpu, LAYER, own_at)?;
        let apart = heavy.selects_from().is_some();
        let placed = own.iter().enumerate().map(|(batch, &slot)| (slot, if apart { batch } else { slot }));
        place(gpu, &shape, &there, target, placed)?;
        let mut q = bits(rows * heads * d, 1.0);
        let q_there = gpu.upload(&q)?;
        let out = gpu.zeros(q.len() * 2)?;
        heavy.attend(gpu, &mut store, LAYER, [q_there.pointer(), out.pointer()], target)?;
        store.arrive(gpu, LAYER + 1)?;
        let out: Vec<u16> = gpu.download(&out, q.len())?;
        let sums = heavy.sums(gpu, LAYER)?;
        store.wait()?;
        if fault {
            q.iter_mut().for_each(|bits| *bits ^= 0x8000);
        }
        let q: Vec<f64> = q.iter().map(|&bits| widen(number, bits)).collect();
        let expected = know.step(&work, &own, &selects, &q, &sums);
        for batch in (0..rows).filter(|&batch| selects[batch]) {
            let at = batch * heads * d..(batch + 1) * heads * d;
            for (&found, expected) in out[at.clone()].iter().zip(&expected[at]) {
                worst = worse(worst, (widen(number, found) - expected).abs());
            }
        }
        for (&found, sum) in sums.iter().zip(&know.sums) {
            let error = match sum {
                Some(sum) if found >= 0.0 => (f64::from(found) - sum).abs(),
                None if found < 0.0 => 0.0,
                _ => f64::INFINITY,
            };
            worst_sum = worse(worst_sum, error);
        }
    }
    Ok([worst, worst_sum])
}

/// The same in plain arithmetic.
struct Know<'a> {
    case: &'a Case,
    /// By slot, as in a layer.
    kv: Vec<f64>,
    /// `[kv_head][slot]`; `None` once gone.
    sums: Vec<Option<f64>>,
}

impl Know<'_> {
    /// Outputs `[batch rows][heads][d]` of a step. Tokens whose sums are nearly the bound go as the card's `found` sums have it.
    fn step(&mut self, work: &AttendWork, own: &[usize], selects: &[bool], q: &[f64], found: &[f32]) -> Vec<f64> {
        let Case { heads, kv_heads, d, keep, .. } = *self.case;
        let (slots, group) = (MANY * PAGE_TOKENS, heads / kv_heads);
        let mut paths = Paths::default();
        paths.read(work);
        let mut out = vec![0.0; q.len()];
        for head in 0..kv_heads {
            for &slot in own {
                self.sums[head * slots + slot] = Some(0.0);
            }
            for row in 0..work.rows() {
                let (batch, position) = (work.order[row] as usize, work.positions[row]);
                let path: Vec<usize> = paths
                    .row(row)
                    .iter()
                    .flat_map(|run| (0..run.len).map(move |i| (run.page * 16 + run.start % 16 + i) as usize))
                    .collect();
                let has = |sums: &[Option<f64>]| -> Vec<usize> {
                    path.iter().copied().filter(|&slot| sums[head * slots + slot].is_some()).collect()
                };
                let mut kept = has(&self.sums);
                let budget = (f64::from(position) * f64::from(keep)).ceil() as usize;
                let past = kept.len() - 1;
                if selects[batch] && past > budget {
                    let mut old: Vec<(f64, usize, usize)> = kept[..past - budget / 2]
                        .iter()
                        .enumerate()
                        .map(|(age, &slot)| (self.sums[head * slots + slot].unwrap_or(0.0), age, slot))
                        .collect();
                    old.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
                    let bound = old[past - budget - 1].0;
                    let near = |sum: f64| bound > 0.0 && (sum - bound).abs() <= 1e-4 * bound;
                    let stays = |slot: usize| found[head * slots + slot] >= 0.0;
                    // Stable: the order stays but among those near the bound.
                    let (first, last) = (old.partition_point(|x| !near(x.0) && x.0 < bound), old.len());
                    let end = old[first..last].iter().take_while(|x| near(x.0)).count();
                    old[first..first + end].sort_by_key(|x| stays(x.2));
                    for (_, _, slot) in &old[..past - budget] {
                        self.sums[head * slots + slot] = None;
                    }
                    kept = has(&self.sums);
                }
                let number = |slot: usize, value: usize| {
                    let at = line(kv_heads, slot, head, value) * d;
                    &self.kv[at..at + d]
                };
                for g in head * group..(head + 1) * group {
                    let at = (batch * heads + g) * d;
                    let dot = |slot: &usize| -> f64 {
                        number(*slot, 0).iter().zip(&q[at..at + d]).map(|(a, b)| a * b).sum::<f64>() / (d as f64).sqrt()
                    };
                    let scores: Vec<f64> = kept.iter().map(dot).collect();
                    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let all: f64 = scores.iter().map(|s| (s - top).exp()).sum();
                    for (&slot, score) in kept.iter().zip(&scores) {
                        let weight = (score - top).exp() / all;
                        out[at..at + d].iter_mut().zip(number(slot, 1)).for_each(|(out, v)| *out += weight * v);
                        if let Some(sum) = &mut self.sums[head * slots + slot] {
                            *sum += weight;
                        }
                    }
                }
            }
        }
        out
    }
}

/// Greedy texts, logits and all K/V with tiers of two and three layers against a tier that has room for everything, bit for bit
/// over many runs; and logits against the CPU device with the same method, as a share of what the method changes there.
/// `fault`: another prompt.
pub fn tiers(ordinal: usize, planning: impl Fn() -> Planning, choosing: Choosing<'_>, fault: bool) -> Result<Vec<Row>> {
    let mut table = Vec::new();
    for (_, kind, name, _) in NUMBERS {
        let weights = small(kind, RopeLayout::Halves, LAYERS)?;
        let shape = weights.shape.clone();
        let (layer, vocab) = (page_bytes(&shape) * PAGES as u64 / LAYERS as u64, shape.vocab as u32);
        let fetch = |whole_layers: usize| Fetch::Selected(heavy(0.3, whole_layers, choosing));
        let mut roomy = card(ordinal, weights.clone(), planning(), Some(2 * layer))?;
        let mut least = card(ordinal, weights.clone(), planning(), Some(2 * layer))?;
        let mut wrong = 0;
        for run in 0..RUNS {
            // What is gone stays gone: every few runs begin anew.
            if run % 10 == 0 {
                let whole = run / 10 % 2;
                roomy.refetch(Some((u64::MAX >> 8, fetch(whole))), &[])?;
                least.refetch(Some((layer * 5 / 4 + run as u64 / 10 % 3 * layer, fetch(whole))), &[])?;
            }
            let mut prompt = prompt(21, run, vocab);
            let expected = text(&mut roomy, &prompt, run)?;
            prompt[0] ^= u32::from(fault);
            let found = text(&mut least, &prompt, run)?;
            wrong += usize::from(found != expected || least.kv()? != roomy.kv()?);
        }
        let (kernel, what) = (format!("cuda offload h2o {name}"), format!("{RUNS} runs"));
        table.push(Row { kernel, shape: what, max_error: wrong as f64, ok: wrong == 0 });

        let [mut exact, mut kept] = [on_cpu(&weights, Fetch::Full)?, on_cpu(&weights, fetch(0))?];
        least.refetch(Some((layer * 3 / 2, fetch(0))), &[])?;
        let (mut moved, mut error, mut first) = (0f64, 0f64, 0);
        for n in [200, 1, 1, 1, 40, 1, 1, 1, 1] {
            let ids = draw(950 + first as u64, n);
            let mut tokens: Vec<u32> = ids.iter().map(|x| ((x.abs() * vocab as f32) as u32).min(vocab - 1)).collect();
            let work = path(first, n);
            let [exact, kept] =
                [&mut exact as &mut dyn Device, &mut kept].map(|device| logits(device, LAYERS, &work, &tokens));
            tokens[0] ^= u32::from(fault && first == 0);
            let found = logits(&mut least, LAYERS, &work, &tokens)?;
            first += n;
            let rows = exact?.into_iter().zip(kept?).zip(found);
            for ((exact, kept), found) in rows.skip(if n == 1 { 0 } else { 4 }) {
                for ((e, k), f) in exact.iter().zip(&kept).zip(&found) {
                    moved += f64::from(e - k).abs();
                    error += f64::from(f - k).abs();
                }
            }
        }
        let max_error = error / moved;
        let (kernel, what) = (format!("cuda h2o as on the CPU {name}"), "of what it changes".to_string());
        table.push(Row { kernel, shape: what, max_error, ok: max_error <= 0.5 });
    }
    Ok(table)
}
