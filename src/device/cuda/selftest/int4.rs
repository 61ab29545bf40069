//! K/V in four bits: the kernels number for number against the CPU's rounding, a host tier of it against everything on the
//! card bit for bit, and whole models against the CPU device with the same method.

use super::offload::{LAYERS, PAGES, RUNS, card, on_cpu, prompt, text};
use super::{NUMBERS, Planning, draw, logits, path, small};
use crate::base::Result;
use crate::base::rng::stream;
use crate::device::cpu::int4;
use crate::device::cuda::attend::Number;
use crate::device::cuda::driver::Gpu;
use crate::device::cuda::step::page_bytes;
use crate::device::cuda::store::Target;
use crate::device::cuda::store::int4::{Packing, least_bytes};
use crate::device::selftest::Row;
use crate::device::speculation::Fetch;
use crate::device::{Device, RopeLayout};
use crate::kv::PAGE_TOKENS;
use half::{bf16, f16};
use rand::Rng;
use rand::seq::SliceRandom;

/// Pages of the kernels' check.
const FEW: usize = 9;

fn wide(number: Number, bits: u16) -> f32 {
    match number {
        Number::F16 => f16::from_bits(bits).to_f32(),
        Number::Bf16 => bf16::from_bits(bits).to_f32(),
    }
}

fn narrow(number: Number, x: f32) -> u16 {
    match number {
        Number::F16 => f16::from_f32(x).to_bits(),
        Number::Bf16 => bf16::from_f32(x).to_bits(),
    }
}

/// Packing with rounding in place, and widening what was written to other slots, against [`int4::round`]: numbers that differ.
/// `fault`: the card has another number.
pub fn kernels(gpu: &Gpu, fault: bool) -> Result<Vec<Row>> {
    let mut table = Vec::new();
    for (number, _, name, _) in NUMBERS {
        for (kv_heads, d, rows) in [(1usize, 64usize, 57usize), (3, 80, 16), (2, 96, 1), (8, 128, 130)] {
            let mut random = stream(18, "cuda selftest", &[d as u64, kv_heads as u64]);
            let token = 2 * kv_heads * d;
            // By slot as a layer has it. Rows of all sizes, and some of one number.
            let mut kv: Vec<u16> = Vec::with_capacity(FEW * PAGE_TOKENS * token);
            for row in 0..FEW * PAGE_TOKENS * 2 * kv_heads {
                let size = [1.0f32, 1e-4, 300.0, 0.0][row % 4];
                kv.extend((0..d).map(|_| narrow(number, 0.5 + size * (random.random::<f32>() * 3.0 - 1.0))));
            }
            let mut slots: Vec<u32> = (0..(FEW * PAGE_TOKENS) as u32).collect();
            slots.shuffle(&mut random);
            slots.truncate(rows);
            let mut expected = kv.clone();
            let at = |slot: u32, run: usize| {
                ((slot as usize / PAGE_TOKENS * 2 * kv_heads + run) * PAGE_TOKENS + slot as usize % PAGE_TOKENS) * d
            };
            for (&slot, run) in slots.iter().flat_map(|slot| (0..2 * kv_heads).map(move |run| (slot, run))) {
                let row = &mut expected[at(slot, run)..][..d];
                let mut numbers: Vec<f32> = row.iter().map(|&bits| wide(number, bits)).collect();
                int4::round(&mut numbers);
                row.iter_mut().zip(numbers).for_each(|(bits, x)| *bits = narrow(number, x));
            }
            if fault {
                kv[at(slots[0], 0)] = narrow(number, 1e3);
            }
            let packing = Packing::new(gpu, number, kv_heads, d)?;
            let (there, slots_there) = (gpu.upload(&kv)?, gpu.upload(&slots)?);
            let numbers = gpu.upload(&(0..rows as u32).collect::<Vec<_>>())?;
            let fresh = gpu.zeros(rows.div_ceil(PAGE_TOKENS) * packing.page_bytes())?;
            let tier = gpu.zeros(FEW * packing.page_bytes())?;
            let pages: Vec<u32> = (0..FEW as u32).rev().collect();
            let (pages_there, widened) = (gpu.upload(&pages)?, gpu.zeros(kv.len() * 2)?);
            let of = |kv: u64, slots: u64| Target { kv, slots };
            let records = of(fresh.pointer(), numbers.pointer());
            packing.pack(gpu, of(there.pointer(), slots_there.pointer()), records, rows as u32, true)?;
            packing.write(gpu, records, of(tier.pointer(), slots_there.pointer()), rows as u32)?;
            packing.unpack(gpu, tier.pointer(), widened.pointer(), (pages_there.pointer(), FEW))?;
            let rounded: Vec<u16> = gpu.download(&there, kv.len())?;
            let widened: Vec<u16> = gpu.download(&widened, kv.len())?;
            let shape = format!("{kv_heads} x {d}, {rows} rows");
            let mut row = |kernel: &str, wrong: usize| {
                let kernel = format!("cuda {kernel} {name}");
                table.push(Row { kernel, shape: shape.clone(), max_error: wrong as f64, ok: wrong == 0 });
            };
            row("pack_int4", rounded.iter().zip(&expected).filter(|(a, b)| a != b).count());
            // A slot that was not written has a record of zeros.
            let (mut left, mut wrong) = (vec![0u16; kv.len()], 0);
            for (&slot, run) in slots.iter().flat_map(|slot| (0..2 * kv_heads).map(move |run| (slot, run))) {
                let at = at(slot, run);
                left[at..at + d].copy_from_slice(&expected[at..at + d]);
            }
            wrong += widened.iter().zip(&left).filter(|(a, b)| a != b).count();
            row("unpack_int4 write_records", wrong);
        }
    }
    Ok(table)
}

/// Greedy texts, logits and all records with tiers of one to three layers against all layers on the card; and logits against
/// the CPU device with the same method, as a share of what the method changes there. `fault`: the tier reads another prompt.
pub fn tiers(ordinal: usize, planning: impl Fn() -> Planning, fault: bool) -> Result<Vec<Row>> {
    let mut table = Vec::new();
    for (_, kind, name, _) in NUMBERS {
        let weights = small(kind, RopeLayout::Halves, LAYERS)?;
        let shape = weights.shape.clone();
        let (layer, vocab) = (page_bytes(&shape) * PAGES as u64 / LAYERS as u64, shape.vocab as u32);
        let least = least_bytes(PAGES, &shape);
        let mut whole = card(ordinal, weights.clone(), planning(), Some(2 * layer))?;
        whole.refetch(Some((least + LAYERS as u64 * layer, Fetch::Int4)), &[])?;
        let mut tiered = card(ordinal, weights.clone(), planning(), Some(2 * layer))?;
        let mut wrong = 0;
        for run in 0..RUNS {
            if run % 10 == 0 {
                tiered.refetch(Some((least + run as u64 / 10 % 3 * layer, Fetch::Int4)), &[])?;
            }
            tiered.fetch_by_kernel(run % 2 == 0);
            let mut prompt = prompt(19, run, vocab);
            let expected = text(&mut whole, &prompt, run)?;
            prompt[0] ^= u32::from(fault);
            let found = text(&mut tiered, &prompt, run)?;
            wrong += usize::from(found != expected || tiered.kv()? != whole.kv()?);
        }
        let shape = format!("one to three layers, {RUNS} runs");
        table.push(Row { kernel: format!("cuda offload int4 {name}"), shape, max_error: wrong as f64, ok: wrong == 0 });

        let [mut exact, mut rounded] = [on_cpu(&weights, Fetch::Full)?, on_cpu(&weights, Fetch::Int4)?];
        tiered.refetch(Some((least, Fetch::Int4)), &[])?;
        let (mut moved, mut error, mut first) = (0f64, 0f64, 0);
        for n in [40, 1, 70, 1, 13] {
            let ids = draw(900 + n as u64, n);
            let mut tokens: Vec<u32> = ids.iter().map(|x| ((x.abs() * vocab as f32) as u32).min(vocab - 1)).collect();
            let work = path(first, n);
            let all =
                [&mut exact as &mut dyn Device, &mut rounded].map(|device| logits(device, LAYERS, &work, &tokens));
            let [exact, rounded] = all;
            tokens[0] ^= u32::from(fault && first == 0);
            let found = logits(&mut tiered, LAYERS, &work, &tokens)?;
            first += n;
            for ((exact, rounded), found) in exact?.iter().zip(&rounded?).zip(&found) {
                for ((e, r), f) in exact.iter().zip(rounded).zip(found) {
                    moved += f64::from(e - r).abs();
                    error += f64::from(f - r).abs();
                }
            }
        }
        // Numbers that are rounded a little differently fall to another of the sixteen now and then.
        let max_error = error / moved;
        let ok = max_error <= 0.75;
        table.push(Row {
            kernel: format!("cuda int4 as on the CPU {name}"),
            shape: "of what it changes".into(),
            max_error,
            ok,
        });
    }
    Ok(table)
}
