//! Rows that stay on the card (`kernels/keep.cu`) against a plain account of the same rules, over steps in which rows come, go,
//! are written anew, are freed and are expected; attention from wherever they lie; and the weight that it missed.

use super::select::Choosing;
use super::setting::{LAYERS, bases, begin_step, begin_writing, bits, kernel, line, place, shape, worse};
use super::{NUMBERS, path, widen};
use crate::base::Result;
use crate::base::rng::stream;
use crate::base::size::Size;
use crate::device::Shape;
use crate::device::cuda::attend::Number;
use crate::device::cuda::driver::{Buffer, Gpu};
use crate::device::cuda::selecting::{Inspected, Plan, Selecting, plan};
use crate::device::cuda::staging::Staging;
use crate::device::cuda::store::{Store, Target, layer_page_bytes};
use crate::device::selftest::Row;
use crate::device::speculation::{Look, Selection, Source, Speculation};
use crate::device::tiers::{Link, Moves};
use crate::kv::residency::Eviction;
use crate::kv::{PAGE_TOKENS, PageId};
use rand::Rng;
use std::collections::BTreeSet;

mod account;

use account::Account;

const PAGES: usize = 40;
const SLOTS: usize = PAGES * PAGE_TOKENS;
const WHOLE: usize = 1;
/// Rows of a step, and the first one's position.
const ROWS: usize = 3;
const FIRST: usize = 400;
const STEPS: usize = 30;

struct Case {
    number: Number,
    heads: usize,
    kv_heads: usize,
    d: usize,
    eviction: Eviction,
    max_fetch: f32,
    /// Bytes for rows, as so many rows of K/V.
    rows: usize,
}

/// `fault`: the account misses a row that is wanted, and what is compared with are other keys and values.
pub fn run(gpu: &Gpu, choosing: Choosing<'_>, fault: bool) -> Result<Vec<Row>> {
    let mut table = Vec::new();
    for (number, _, name, rounding) in NUMBERS {
        for (heads, kv_heads, d) in [(6, 2, 64), (9, 3, 128), (3, 3, 80)] {
            for (eviction, max_fetch, rows) in [
                (Eviction::Counter, 0.3, 700),
                (Eviction::Counter, 0.1, 1_600),
                (Eviction::Fifo, 0.2, 900),
                (Eviction::Lru, 0.2, 900),
                (Eviction::Lru, 1.0, 6_000),
            ] {
                let case = Case { number, heads, kv_heads, d, eviction, max_fetch, rows };
                let [wrong, attend, missed] = check(gpu, &case, choosing, fault)?;
                let shape = format!("{heads}/{kv_heads} x {d}, {eviction:?} {rows}, {max_fetch}, {STEPS} steps");
                for (kernel, max_error, limit) in [
                    ("kept rows", wrong, 0.0),
                    ("attention to kept rows", attend, 2.0 * rounding),
                    ("missed weight", missed, 1e-4),
                ] {
                    let kernel = format!("cuda {kernel} {name}");
                    table.push(Row { kernel, shape: shape.clone(), max_error, ok: max_error <= limit });
                }
            }
        }
    }
    Ok(table)
}

/// What a test changes between steps, on the card and in the account.
struct Bed<'a> {
    gpu: &'a Gpu,
    case: &'a Case,
    shape: Shape,
    store: Store,
    selecting: Selecting,
    /// K/V of all slots by layer, here and there.
    kv: Vec<Vec<u16>>,
    there: Vec<Buffer>,
    accounts: Vec<Account>,
    moves: Moves,
    /// Rows of the layer that was settled last which had no frame of their own.
    passed: usize,
}

fn check(gpu: &Gpu, case: &Case, choosing: Choosing<'_>, fault: bool) -> Result<[f64; 3]> {
    let Case { number, heads, kv_heads, d, .. } = *case;
    let shape = shape(heads, kv_heads, d);
    let columns = d / 2;
    let mut random = stream(18, "cuda selftest", &[d as u64, case.rows as u64]);
    let layers = bases(&mut random, &shape, columns);
    let selection = Selection {
        source: Source::Partial(Speculation { whole_layers: WHOLE, columns, layers, shifts: vec![] }, Look::Same),
        choose: choosing(2.5, case.max_fetch),
        whole_layers: WHOLE,
        share: true,
        eviction: case.eviction,
        capacity: Some(Size::Bytes((case.rows * 4 * d) as u64)),
    };
    let attention = kernel(gpu, number, &shape)?;
    let bytes = 6 * (PAGES * layer_page_bytes(&shape)) as u64;
    let mut store = Store::new(gpu, &attention, &shape, PAGES, Some(bytes))?;
    let plan: Plan = plan(bytes, &selection, PAGES, &shape)?;
    store.retier(gpu, &attention, (Some(bytes), Some(plan.layout)), false)?;
    let selecting = Selecting::new(gpu, number, &shape, PAGES, (&plan, &selection))?;
    let numbers = PAGES * layer_page_bytes(&shape) / 2;
    let kv: Vec<Vec<u16>> = (0..LAYERS as u64).map(|l| bits(number, 1_000 * l + d as u64, numbers)).collect();
    let there = kv.iter().map(|kv| gpu.upload(kv)).collect::<Result<_>>()?;
    let account = |_| Account::new(selecting.keeping().split(), kv_heads, case.eviction);
    let accounts = (WHOLE..LAYERS).map(account).collect();
    let mut bed = Bed { gpu, case, shape, store, selecting, kv, there, accounts, moves: Moves::new(PAGES), passed: 0 };
    bed.write(&(0..SLOTS).collect::<Vec<_>>())?;

    let mut errors = [if plan.keeps { 0.0 } else { f64::INFINITY }, 0.0, 0.0];
    let base = bits(number, 98, ROWS * heads * d);
    for step in 0..STEPS {
        bed.change(step)?;
        // Every step asks for about the same, but for some heads.
        let mut q = base.clone();
        let other = bits(number, 5_000 + step as u64, q.len());
        for (to, from) in q.chunks_exact_mut(d).zip(other.chunks_exact(d)) {
            if from[0] % 3 == 0 {
                to.copy_from_slice(from);
            }
        }
        let found = bed.step(step as u32 + 1, &q, fault)?;
        for (worst, error) in errors.iter_mut().zip(found) {
            *worst = worse(*worst, error);
        }
    }
    Ok(errors)
}

impl Bed<'_> {
    /// The step's or other K/V of these slots is made anew, in all layers.
    fn write(&mut self, slots: &[usize]) -> Result<()> {
        let at = begin_writing(self.gpu, &mut self.store, slots, None)?;
        for layer in WHOLE..LAYERS {
            let from = Target { kv: self.there[layer].pointer(), slots: at.pointer() };
            self.store.written(self.gpu, layer, from, |_| Ok(()))?;
            self.selecting.put(self.gpu, layer, from, at.pointer(), slots.len())?;
        }
        self.gpu.wait()?;
        self.store.wait()
    }

    /// Between steps: slots written anew, pages freed, pages expected.
    fn change(&mut self, step: usize) -> Result<()> {
        let mut random = stream(19, "cuda selftest", &[step as u64]);
        let Case { number, kv_heads, d, .. } = *self.case;
        let mut page = || random.random_range(0..PAGES as u32);
        match step % 5 {
            1 => {
                let page = page() as usize;
                let slots: Vec<usize> = (page * PAGE_TOKENS..(page + 1) * PAGE_TOKENS).step_by(3).collect();
                for layer in WHOLE..LAYERS {
                    let fresh = bits(number, 7_000 + (step * LAYERS + layer) as u64, slots.len() * kv_heads * 2 * d);
                    let mut rows = fresh.chunks_exact(d);
                    for &slot in &slots {
                        for at in 0..2 * kv_heads {
                            let to = line(kv_heads, slot, at / 2, at % 2) * d;
                            let row = rows.next().unwrap_or_default();
                            self.kv[layer][to..to + d].copy_from_slice(row);
                        }
                    }
                    self.there[layer] = self.gpu.upload(&self.kv[layer])?;
                }
                self.write(&slots)?;
                for account in &mut self.accounts {
                    slots.iter().for_each(|&slot| (0..kv_heads).for_each(|head| account.drop(head, slot, false)));
                }
            }
            2 => {
                let pages = [page(), page()];
                self.selecting.freed(&pages.map(PageId));
                self.moves.forget(&pages);
                self.forget(&pages, false);
            }
            3 | 4 => {
                let pages: Vec<u32> = (0..12).map(|_| page()).collect();
                let (soon, later) = if step % 5 == 3 { pages.split_at(3) } else { pages.split_at(9) };
                let ids = |pages: &[u32]| pages.iter().map(|&page| PageId(page)).collect::<Vec<_>>();
                self.selecting.expect(self.gpu, &self.store, &ids(soon), &ids(later));
                let (out, back) = self.moves.expect(soon.iter().copied(), later.iter().copied());
                self.forget(&out, true);
                self.accounts.iter_mut().for_each(|account| account.bring_back(&back, kv_heads));
            }
            _ => {}
        }
        Ok(())
    }

    fn forget(&mut self, pages: &[u32], keeps_uses: bool) {
        for account in &mut self.accounts {
            for slot in pages.iter().flat_map(|&p| p as usize * PAGE_TOKENS..(p as usize + 1) * PAGE_TOKENS) {
                (0..self.case.kv_heads).for_each(|head| account.drop(head, slot, keeps_uses));
            }
        }
    }

    /// A step of rows that go on with one path in scattered pages; the errors of the account, of attention and of the sample.
    fn step(&mut self, step: u32, q: &[u16], fault: bool) -> Result<[f64; 3]> {
        let Case { number, heads, kv_heads, d, .. } = *self.case;
        let gpu = self.gpu;
        let mut work = path(FIRST, ROWS);
        work.pages.iter_mut().for_each(|page| *page = *page * 7 % PAGES as u32);
        let slot_of = |p: usize| work.pages[p / PAGE_TOKENS] as usize * PAGE_TOKENS + p % PAGE_TOKENS;
        let own: Vec<usize> = work.positions.iter().map(|&p| slot_of(p as usize)).collect();
        let mut staging = Staging::default();
        staging.clear();
        self.selecting.begin(&work, &[], &[true; ROWS], &mut staging);
        let (out, _) = self.moves.step(&work.pages);
        self.forget(&out, true);
        let selects_from = self.selecting.selects_from();
        let [base, own_at] = begin_step(gpu, &mut self.store, &mut staging, (&work, &own), selects_from)?;
        self.selecting.placed(gpu, base)?;
        let q_there = gpu.upload(q)?;
        let out_there = gpu.zeros(q.len() * 2)?;
        let q: Vec<f64> = q.iter().map(|&b| widen(number, b)).collect();
        let mut errors = [0.0; 3];
        for layer in WHOLE..LAYERS {
            let target = self.store.target(gpu, layer, own_at)?;
            let rows = own.iter().enumerate().map(|(row, &slot)| (slot, row));
            place(gpu, &self.shape, &self.there[layer], target, rows)?;
            let before = self.link(gpu)?;
            self.selecting.choose(gpu, &mut self.store, layer, q_there.pointer())?;
            self.selecting.attend(gpu, &mut self.store, layer, [q_there.pointer(), out_there.pointer()], target)?;
            let out: Vec<u16> = gpu.download(&out_there, q.len())?;
            let seen = self.selecting.inspect(gpu, layer)?;
            let mut wanted = BTreeSet::new();
            for (at, &count) in seen.counts.iter().enumerate().take(ROWS * kv_heads) {
                let list = &seen.lists[at * seen.list_stride..][..count as usize];
                wanted.extend(list.iter().map(|&slot| (at % kv_heads, slot as usize)));
            }
            if fault {
                wanted.pop_first();
            }
            let account = &mut self.accounts[layer - WHOLE];
            let (hits, misses, evictions) = (account.hits, account.misses, account.evictions);
            account.passed = 0;
            account.settle(&wanted, step, kv_heads);
            let (state, holders) = self.selecting.keeping().inspect(gpu, layer)?;
            let mut wrong = account.differences(&state, &holders);
            let (pool, [first, _]) = (self.selecting.keeping().pool(gpu)?, self.selecting.keeping().places(layer).1);
            for (frame, held) in account.frames.iter().enumerate() {
                let Some((slot, _)) = held else { continue };
                let head = frame / account.split.of_set / account.split.groups;
                let row = &pool[(first as usize + frame) * 2 * d..][..2 * d];
                for part in 0..2 {
                    let at = line(kv_heads, *slot, head, part) * d;
                    wrong += usize::from(row[part * d..(part + 1) * d] != self.kv[layer][at..at + d]);
                }
            }
            let (hits, misses) = (account.hits - hits, account.misses - misses);
            let evictions = account.evictions - evictions;
            let stage = account.split.stage;
            let room = if seen.in_parts { stage } else { stage.saturating_sub(self.passed) };
            self.passed = account.passed;
            let after = self.link(gpu)?;
            wrong += usize::from(after.hits - before.hits != hits || after.evictions - before.evictions != evictions);
            // What is read in place is counted by the rows that read it.
            let fetches = after.fetches - before.fetches;
            wrong += usize::from(fetches < misses || (self.passed <= room && fetches != misses));
            let split = self.selecting.keeping().split();
            if split != self.accounts[0].split {
                let new = |_| Account::new(split, kv_heads, self.case.eviction);
                self.accounts = (WHOLE..LAYERS).map(new).collect();
            }
            let mut kv: Vec<f64> = self.kv[layer].iter().map(|&b| widen(number, b)).collect();
            if fault {
                kv.iter_mut().enumerate().for_each(|(i, x)| *x += (i % 7) as f64);
            }
            let know = Know { case: self.case, kv: &kv, q: &q, seen: &seen, own: &own };
            errors[0] += wrong as f64;
            errors[1] = worse(errors[1], know.attention(&out));
            let (sampled, head, row) = self.selecting.sampled_now();
            let samples = if sampled == layer { heads / kv_heads } else { 0 };
            let same = after.samples - before.samples == samples as u64;
            let exact = if samples == 0 { 0.0 } else { know.missed(row, head, &slot_of) };
            let error = (after.missed - before.missed - exact).abs();
            errors[2] = worse(errors[2], if same { error } else { f64::INFINITY });
        }
        let mut here = vec![0; PAGES];
        for row in self.accounts.iter().flat_map(|account| account.rows.iter().enumerate()) {
            here[row.0 % SLOTS / PAGE_TOKENS] += u32::from(row.1.1.is_some());
        }
        errors[0] += f64::from(u8::from(here != self.selecting.keeping().rows_here(gpu)?));
        Ok(errors)
    }

    fn link(&mut self, gpu: &Gpu) -> Result<Link> {
        self.selecting.collect(gpu)?;
        let mut link = Link::default();
        self.selecting.count(&mut link);
        Ok(link)
    }
}

struct Know<'a> {
    case: &'a Case,
    kv: &'a [f64],
    q: &'a [f64],
    seen: &'a Inspected,
    own: &'a [usize],
}

impl Know<'_> {
    /// Weights, not normed, that a row's query head gives to slots.
    fn weights(&self, row: usize, head: usize, slots: impl Iterator<Item = usize>) -> Vec<f64> {
        let Case { heads, kv_heads, d, .. } = *self.case;
        let query = &self.q[(row * heads + head) * d..][..d];
        let weight = |slot: usize| {
            let at = line(kv_heads, slot, head * kv_heads / heads, 0) * d;
            let dot: f64 = self.kv[at..at + d].iter().zip(query).map(|(a, b)| a * b).sum();
            (dot / (d as f64).sqrt()).exp()
        };
        slots.map(weight).collect()
    }

    fn attended(&self, row: usize, kv_head: usize) -> Vec<usize> {
        let at = row * self.case.kv_heads + kv_head;
        let list = &self.seen.lists[at * self.seen.list_stride..][..self.seen.counts[at] as usize];
        list.iter().map(|&slot| slot as usize).chain([self.own[row]]).collect()
    }

    fn attention(&self, out: &[u16]) -> f64 {
        let Case { number, heads, kv_heads, d, .. } = *self.case;
        let mut worst = 0f64;
        for row in 0..ROWS {
            for head in 0..heads {
                let kv_head = head * kv_heads / heads;
                let slots = self.attended(row, kv_head);
                let weights = self.weights(row, head, slots.iter().copied());
                let total: f64 = weights.iter().sum();
                for i in 0..d {
                    let value = |slot: &usize| self.kv[line(kv_heads, *slot, kv_head, 1) * d + i];
                    let exact = slots.iter().zip(&weights).map(|(slot, w)| w * value(slot)).sum::<f64>() / total;
                    worst = worse(worst, (widen(number, out[(row * heads + head) * d + i]) - exact).abs());
                }
            }
        }
        worst
    }

    /// What a row's heads of one K/V head missed, summed.
    fn missed(&self, row: usize, kv_head: usize, slot_of: &dyn Fn(usize) -> usize) -> f64 {
        let group = self.case.heads / self.case.kv_heads;
        let of_head = |head| {
            let sum = |slots: Vec<f64>| slots.iter().sum::<f64>();
            let all = sum(self.weights(row, head, (0..=FIRST + row).map(slot_of)));
            1.0 - sum(self.weights(row, head, self.attended(row, kv_head).into_iter())) / all
        };
        (kv_head * group..(kv_head + 1) * group).map(of_head).sum()
    }
}
