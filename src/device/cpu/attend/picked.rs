//! Attention over picked tokens against its plain definition. Only tests.

use super::{Attention, Heads, Kv, KvLayer, Wave, kernels, serial};
use crate::base::rng::stream;
use crate::device::attend::{AttendWork, BLOCK, Piece, Unit};
use crate::device::picks::{Picks, pick};
use crate::kv::PAGE_TOKENS;
use half::f16;
use rand::Rng;

/// One branch of `len` tokens whose last `rows` tokens are the step's rows, a task a unit; page `i` is number `pages - 1 - i`.
fn work(len: usize, rows: usize) -> AttendWork {
    let (pages, first) = (len.div_ceil(PAGE_TOKENS), len - rows);
    let mut work = AttendWork {
        order: (0..rows as u32).rev().collect(),
        positions: (first as u32..len as u32).collect(),
        pages: (0..pages as u32).rev().collect(),
        ..AttendWork::default()
    };
    work.partial_first.push(0);
    for position in &work.positions {
        let last = work.partial_first.last().copied().unwrap_or(0);
        work.partial_first.push(last + position / BLOCK as u32 + 1);
    }
    for block in 0..len.div_ceil(BLOCK) {
        let start = block * BLOCK;
        let seen = (start.saturating_sub(first)) as u32..rows as u32;
        let len = (BLOCK.min(len - start)) as u32;
        work.pieces.push(Piece {
            start: start as u32,
            len,
            first_page: (start / PAGE_TOKENS) as u32,
            rows: seen.clone(),
        });
        let n = block as u32;
        work.units.push(Unit { block: n, pieces: n..n + 1, rows: seen });
        work.tasks.push(n..n + 1);
    }
    work
}

#[test]
fn picked_attention_is_its_plain_definition_and_reads_nothing_else() {
    let mut random = stream(11, "picked", &[]);
    for case in 0..30 {
        let (kv_heads, group, d) =
            (random.random_range(1..4), random.random_range(1..4), 8 * random.random_range(1..5));
        let heads = Heads { heads: kv_heads * group, kv_heads, head_size: d };
        let len = random.random_range(1..700usize);
        let rows = random.random_range(1..=len.min(20));
        let work = work(len, rows);
        let width = heads.heads * d;
        let q: Vec<f32> = (0..rows * width).map(|_| random.random_range(-2.0..2.0)).collect();
        // K and V of each token and head; `[frame][K|V][d]` for those that somebody picked, in a random order of frames.
        // Numbers that float16 has.
        let kv: Vec<f32> =
            (0..len * kv_heads * 2 * d).map(|_| f16::from_f32(random.random_range(-2.0..2.0)).to_f32()).collect();
        let share = random.random_range(0.0..1.0f64);
        let mut picks = Picks::default();
        picks.shape(&work.positions, kv_heads);
        let mut places = vec![0u32; work.pages.len() * kv_heads * PAGE_TOKENS];
        let mut frames: Vec<f32> = Vec::new();
        let mut picked = vec![vec![vec![false; len]; kv_heads]; rows];
        for (row, &position) in work.positions.iter().enumerate() {
            for kv_head in 0..kv_heads {
                for token in 0..=position as usize {
                    if token != position as usize && !random.random_bool(share) {
                        continue;
                    }
                    picked[row][kv_head][token] = true;
                    let (first, words) = picks.parts();
                    pick(&mut words[first[row]..first[row + 1]], kv_heads, kv_head, token);
                    let page = work.pages[token / PAGE_TOKENS] as usize;
                    let place = &mut places[(page * kv_heads + kv_head) * PAGE_TOKENS + token % PAGE_TOKENS];
                    if *place == 0 {
                        frames.extend(&kv[(token * kv_heads + kv_head) * 2 * d..][..2 * d]);
                        *place = (frames.len() / (2 * d)) as u32;
                    }
                }
            }
        }
        let half_frames: Vec<f16> = frames.iter().map(|&x| f16::from_f32(x)).collect();
        let tables = kernels::available();
        let table = tables[case % tables.len()];
        let of = |frames| {
            let mut attention = Attention::with_kernels(heads, table).unwrap();
            let mut out = vec![f32::NAN; rows * width];
            let kv = Kv::Rows { rows: frames, places: &places, pages: &work.pages, picks: &picks };
            attention.begin(&work);
            let wave = Wave { units: &work.units, tasks: &work.tasks, whole_heads: 0, kv };
            if attention.tasks(&work, &wave, &q, &mut out, &serial) {
                attention.merge(&work, 0, &mut out, &serial);
            }
            out
        };
        let outs = [of(KvLayer::F32(&frames)), of(KvLayer::F16(&half_frames))];
        for (row, &batch) in work.order.iter().enumerate() {
            for head in 0..heads.heads {
                let at = batch as usize * width + head * d;
                let kv_of = |token: usize| &kv[(token * kv_heads + head / group) * 2 * d..][..2 * d];
                let tokens: Vec<usize> = (0..len).filter(|&t| picked[row][head / group][t]).collect();
                let score = |t: usize| {
                    let sum: f64 = (0..d).map(|i| f64::from(q[at + i]) * f64::from(kv_of(t)[i])).sum();
                    (sum / (d as f64).sqrt()).exp()
                };
                let total: f64 = tokens.iter().map(|&t| score(t)).sum();
                for i in 0..d {
                    let value = tokens.iter().map(|&t| score(t) * f64::from(kv_of(t)[d + i])).sum::<f64>() / total;
                    // Queries and keys twice as large as those that the tables' tolerances are for.
                    for (out, tolerance) in outs.iter().zip([2e-5, (8.0 * table.tolerance).max(2e-5)]) {
                        let error = (f64::from(out[at + i]) - value).abs();
                        let name = table.name;
                        assert!(
                            error <= tolerance,
                            "{name} {case}, row {row}, head {head}: {} is not {value}",
                            out[at + i]
                        );
                    }
                }
            }
        }
    }
}
