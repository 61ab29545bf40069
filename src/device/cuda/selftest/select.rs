//! The kernels of attention over selected tokens against plain arithmetic on random shapes: partial keys, scores, the choice
//! (against the one that the CPU makes of the same scores), and attention to what was gathered or read in place.

use super::setting::{bases, begin_step, begin_writing, bits, kernel, line, place, shape, worse};
use super::{NUMBERS, path, widen};
use crate::base::Result;
use crate::base::rng::stream;
use crate::base::size::Size;
use crate::device::attend::WINDOW;
use crate::device::cuda::attend::Number;
use crate::device::cuda::driver::Gpu;
use crate::device::cuda::selecting::{Inspected, Selecting, plan};
use crate::device::cuda::staging::Staging;
use crate::device::cuda::store::{Store, Target, layer_page_bytes};
use crate::device::picks::{Asked, Choose, Room, windows};
use crate::device::selftest::Row;
use crate::device::speculation::{Basis, Look, Selection, Source, Speculation};
use crate::kv::PAGE_TOKENS;
use crate::kv::residency::Eviction;
use half::f16;

/// Makes a choice of an alpha and a share; a part of `offload`, which stands above the device.
pub type Choosing<'a> = &'a dyn Fn(f32, f32) -> Box<dyn Choose>;

const PAGES: usize = 40;
/// The layer that is looked at; the one before it is whole.
const LAYER: usize = 1;

struct Case {
    number: Number,
    heads: usize,
    kv_heads: usize,
    d: usize,
    columns: usize,
    alpha: f32,
    max_fetch: f32,
    /// Frames that the stages may take, in rows.
    frames: usize,
    share: bool,
    first: usize,
    rows: usize,
}

/// `fault`: what is compared with is another key, query and score.
pub fn run(gpu: &Gpu, choosing: Choosing<'_>, fault: bool) -> Result<Vec<Row>> {
    let mut table = Vec::new();
    for (number, _, name, rounding) in NUMBERS {
        for (i, (heads, kv_heads, d, columns)) in
            [(6, 2, 64, 20), (5, 1, 128, 39), (8, 2, 80, 1), (9, 3, 96, 95), (4, 4, 128, 128)].into_iter().enumerate()
        {
            for (alpha, max_fetch, frames, share) in
                [(1.5, 0.3, 10_000, true), (f32::INFINITY, 0.2, 70, true), (f32::INFINITY, 1.0, 300, false)]
            {
                let (first, rows) = ([530, 0, 17, 255, 400][i], [1, 3, 2, 5, 4][i]);
                let case = Case { number, heads, kv_heads, d, columns, alpha, max_fetch, frames, share, first, rows };
                let shape = format!(
                    "{heads}/{kv_heads} x {d}, {columns} columns, {rows} at {first}, {max_fetch}{}",
                    if share { "" } else { " each" }
                );
                let [partial, scores, picks, attend] = check(gpu, &case, choosing, fault)?;
                for (kernel, max_error, limit) in [
                    ("partial keys", partial, 0.51),
                    ("guessed scores", scores, 1e-4),
                    ("choice", picks, 0.0),
                    ("selected attention", attend, 2.0 * rounding),
                ] {
                    let kernel = format!("cuda {kernel} {name}");
                    table.push(Row { kernel, shape: shape.clone(), max_error, ok: max_error <= limit });
                }
            }
        }
    }
    Ok(table)
}

/// Errors of partial keys (in steps of four bits), of scores, of the choice (tokens that differ) and of attention.
fn check(gpu: &Gpu, case: &Case, choosing: Choosing<'_>, fault: bool) -> Result<[f64; 4]> {
    let Case { number, heads, kv_heads, d, columns, .. } = *case;
    let shape = shape(heads, kv_heads, d);
    let mut random = stream(16, "cuda selftest", &[d as u64, heads as u64]);
    let layers = bases(&mut random, &shape, columns);
    let selection = Selection {
        source: Source::Partial(
            Speculation { whole_layers: LAYER, columns, layers: layers.clone(), shifts: vec![] },
            Look::Same,
        ),
        choose: choosing(case.alpha, case.max_fetch),
        whole_layers: LAYER,
        share: case.share,
        eviction: Eviction::Counter,
        capacity: Some(Size::Bytes((2 * case.frames * 4 * d) as u64)),
    };
    let attention = kernel(gpu, number, &shape)?;
    let bytes = 6 * (PAGES * layer_page_bytes(&shape)) as u64;
    let mut store = Store::new(gpu, &attention, &shape, PAGES, Some(bytes))?;
    let plan = plan(bytes, &selection, PAGES, &shape)?;
    store.retier(gpu, &attention, (Some(bytes), Some(plan.layout)), false)?;
    let mut selecting = Selecting::new(gpu, number, &shape, PAGES, (&plan, &selection))?;

    // K/V of all slots, as if one step had made it.
    let kv = bits(number, d as u64, PAGES * layer_page_bytes(&shape) / 2);
    let there = gpu.upload(&kv)?;
    let every: Vec<usize> = (0..PAGES * PAGE_TOKENS).collect();
    let every_there = begin_writing(gpu, &mut store, &every, None)?;
    let from = Target { kv: there.pointer(), slots: every_there.pointer() };
    for layer in LAYER..shape.layers {
        store.written(gpu, layer, from, |_| Ok(()))?;
        selecting.put(gpu, layer, from, from.slots, every.len())?;
    }
    store.wait()?;

    // A step of rows that go on with one path in scattered pages.
    let mut work = path(case.first, case.rows);
    work.pages.iter_mut().for_each(|page| *page = *page * 7 % PAGES as u32);
    let slot_of = |p: usize| work.pages[p / PAGE_TOKENS] as usize * PAGE_TOKENS + p % PAGE_TOKENS;
    let own: Vec<usize> = work.positions.iter().map(|&p| slot_of(p as usize)).collect();
    let mut staging = Staging::default();
    staging.clear();
    selecting.begin(&work, &[], &vec![true; case.rows], &mut staging);
    let [base, own_at] = begin_step(gpu, &mut store, &mut staging, (&work, &own), selecting.selects_from())?;
    selecting.placed(gpu, base)?;
    let target = store.target(gpu, LAYER, own_at)?;
    place(gpu, &shape, &there, target, own.iter().enumerate().map(|(row, &slot)| (slot, row)))?;
    let mut q = bits(number, 99, case.rows * heads * d);
    let q_there = gpu.upload(&q)?;
    let out = gpu.zeros(q.len() * 2)?;
    selecting.choose(gpu, &mut store, LAYER, q_there.pointer())?;
    selecting.attend(gpu, &mut store, LAYER, [q_there.pointer(), out.pointer()], target)?;
    let out: Vec<u16> = gpu.download(&out, q.len())?;
    let mut seen = selecting.inspect(gpu, LAYER)?;

    let mut kv: Vec<f64> = kv.iter().map(|&b| widen(number, b)).collect();
    if fault {
        kv.iter_mut().for_each(|x| *x += 1.0);
        q.iter_mut().for_each(|x| *x ^= 0x8000);
        seen.scores.iter_mut().enumerate().for_each(|(i, score)| *score += (i % 2) as f32 * 1e3);
    }
    let q: Vec<f64> = q.iter().map(|&b| widen(number, b)).collect();
    let know = Know { case, kv: &kv, q: &q, seen: &seen, basis: &layers[LAYER] };
    Ok([know.partial(), know.scores(&slot_of), know.picks(&*selection.choose, &slot_of), know.attention(&own, &out)])
}

/// What the card had and made.
struct Know<'a> {
    case: &'a Case,
    /// By slot, as in a layer.
    kv: &'a [f64],
    q: &'a [f64],
    seen: &'a Inspected,
    basis: &'a Basis,
}

impl Know<'_> {
    /// K (0) or V (1) of a slot and head.
    fn row(&self, slot: usize, head: usize, value: usize) -> &[f64] {
        let Case { kv_heads, d, .. } = *self.case;
        let at = line(kv_heads, slot, head, value) * d;
        &self.kv[at..at + d]
    }

    /// The columns of a query or key.
    fn project(&self, head: usize, from: &[f64]) -> Vec<f64> {
        let Case { d, columns, .. } = *self.case;
        let own = &self.basis.numbers[head * columns * d..(head + 1) * columns * d];
        own.chunks_exact(d).map(|column| column.iter().zip(from).map(|(&a, b)| f64::from(a) * b).sum()).collect()
    }

    /// The columns that the card keeps of a key, and their step.
    fn kept(&self, slot: usize, head: usize) -> (Vec<f64>, f64) {
        let Case { kv_heads, columns, .. } = *self.case;
        let (at, offset) = (slot / 16 * kv_heads + head, slot % 16);
        let scale = f16::from_bits(self.seen.scales[at * 16 + offset]).to_f64();
        let code = |column: usize| {
            let two = self.seen.codes[(at * columns.div_ceil(2) + column / 2) * 16 + offset];
            f64::from(if column.is_multiple_of(2) { (two << 4) as i8 >> 4 } else { two as i8 >> 4 })
        };
        ((0..columns).map(|column| code(column) * scale).collect(), scale)
    }

    fn partial(&self) -> f64 {
        let mut worst = 0f64;
        for slot in 0..PAGES * PAGE_TOKENS {
            for head in 0..self.case.kv_heads {
                let (kept, scale) = self.kept(slot, head);
                let centre = self.basis.centre[head * self.case.columns..].iter();
                let exact =
                    self.project(head, self.row(slot, head, 0)).into_iter().zip(centre).map(|(x, &c)| x - f64::from(c));
                worst = kept.iter().zip(exact).fold(worst, |worst, (a, b)| worse(worst, (a - b).abs() / scale));
            }
        }
        worst
    }

    fn scores(&self, slot_of: &dyn Fn(usize) -> usize) -> f64 {
        let Case { heads, kv_heads, d, first, rows, .. } = *self.case;
        let mut worst = 0f64;
        for row in 0..rows {
            for head in 0..heads {
                let at = (row * heads + head) * d;
                let query = self.project(head * kv_heads / heads, &self.q[at..at + d]);
                for p in 0..first + row {
                    let (kept, _) = self.kept(slot_of(p), head * kv_heads / heads);
                    let exact: f64 = kept.iter().zip(&query).map(|(a, b)| a * b).sum::<f64>() / (d as f64).sqrt();
                    let size: f64 = kept.iter().zip(&query).map(|(a, b)| (a * b).abs()).sum::<f64>();
                    let found = f64::from(self.seen.scores[(row * heads + head) * self.seen.stride + p]);
                    worst = worse(worst, (found - exact).abs() / size.max(1e-3));
                }
            }
        }
        worst
    }

    /// Tokens that the card's choice has and the CPU's of the same scores has not, or the other way round.
    fn picks(&self, choose: &dyn Choose, slot_of: &dyn Fn(usize) -> usize) -> f64 {
        let Case { heads, kv_heads, first, rows, .. } = *self.case;
        let mut wrong = 0;
        for row in 0..rows {
            let past = first + row;
            let scores: Vec<f32> = (0..heads)
                .flat_map(|head| &self.seen.scores[(row * heads + head) * self.seen.stride..][..past])
                .copied()
                .collect();
            let mut words = vec![0u64; windows(past as u32) * kv_heads];
            let (position, group) = (past as u32, heads / kv_heads);
            let asked = Asked { layer: LAYER, position, kv_heads, group, scores: &scores };
            choose.choose(&asked, &mut Room::default(), &mut words);
            for head in 0..kv_heads {
                let has = |p: &usize| words[p / WINDOW * kv_heads + head] >> (p % WINDOW) & 1 == 1;
                let expected: Vec<u32> = (0..past).filter(has).map(|p| slot_of(p) as u32).collect();
                let at = row * kv_heads + head;
                let list = &self.seen.lists[at * self.seen.list_stride..][..self.seen.counts[at] as usize];
                wrong += expected.iter().filter(|slot| !list.contains(slot)).count();
                wrong += list.iter().filter(|slot| !expected.contains(slot)).count();
            }
        }
        wrong as f64
    }

    fn attention(&self, own: &[usize], out: &[u16]) -> f64 {
        let Case { number, heads, kv_heads, d, rows, .. } = *self.case;
        let mut worst = 0f64;
        for row in 0..rows {
            for head in 0..heads {
                let at = row * kv_heads + head * kv_heads / heads;
                let list = &self.seen.lists[at * self.seen.list_stride..][..self.seen.counts[at] as usize];
                let query = &self.q[(row * heads + head) * d..][..d];
                let slots: Vec<usize> = list.iter().map(|&slot| slot as usize).chain([own[row]]).collect();
                let dot = |slot: &usize| -> f64 {
                    let key = self.row(*slot, head * kv_heads / heads, 0);
                    key.iter().zip(query).map(|(a, b)| a * b).sum::<f64>() / (d as f64).sqrt()
                };
                let weights: Vec<f64> = slots.iter().map(|slot| dot(slot).exp()).collect();
                let total: f64 = weights.iter().sum();
                for i in 0..d {
                    let value = |slot: &usize| self.row(*slot, head * kv_heads / heads, 1)[i];
                    let exact = slots.iter().zip(&weights).map(|(slot, w)| w * value(slot)).sum::<f64>() / total;
                    worst = worse(worst, (widen(number, out[(row * heads + head) * d + i]) - exact).abs());
                }
            }
        }
        worst
    }
}
