//! The card's step kernels against plain arithmetic: products against f64 sums, whole small models against the CPU device
//! with exact activations. What `totara doctor --selftest` runs where a card is found.

pub mod graphs;
pub mod heavy;
pub mod int4;
pub mod keep;
pub mod offload;
pub mod select;
mod setting;

use super::attend::Number;
use super::blas::Blas;
use super::driver::{Buffer, Gpu};
use super::head::Head;
use super::matrix::{self, Matrix};
use super::product::Products;
use super::step::{CudaDevice, CudaOptions, Planning};
use crate::base::Result;
use crate::base::rng::stream;
use crate::device::attend::{AttendWork, BLOCK, Io, Piece, Unit};
use crate::device::cpu::arena::KvNumber;
use crate::device::cpu::simd::Simd;
use crate::device::cpu::{Activations, CpuDevice, CpuOptions};
use crate::device::head::{Ask, Glance, HeadRow, Said, TOP, Want};
use crate::device::selftest::Row;
use crate::device::weight::{LayerWeights, Weight, Weights};
use crate::device::{Device, Rope, RopeLayout, Shape, Step};
use crate::kv::{PAGE_TOKENS, PageId, Slot};
use candle_core::quantized::GgmlDType;
use half::{bf16, f16};
use rand::Rng;

/// Most of a sum's error against the sum of magnitudes: float32 sums of a few hundred terms.
const SUM_LIMIT: f64 = 2e-6;

const NUMBERS: [(Number, GgmlDType, &str, f64); 2] =
    [(Number::F16, GgmlDType::F16, "f16", 1.0 / 1024.0), (Number::Bf16, GgmlDType::BF16, "bf16", 1.0 / 128.0)];

fn widen(number: Number, bits: u16) -> f64 {
    match number {
        Number::F16 => f16::from_bits(bits).to_f64(),
        Number::Bf16 => bf16::from_bits(bits).to_f64(),
    }
}

fn draw(case: u64, n: usize) -> Vec<f32> {
    let mut random = stream(11, "cuda selftest", &[case]);
    (0..n).map(|_| random.random::<f32>() * 2.0 - 1.0).collect()
}

/// Products of every tile on sizes that fill none, and cuBLAS where it is found. `fault`: one weight is changed after the
/// reference was made, and every row must come out wrong.
pub fn products(gpu: &Gpu, fault: bool) -> Result<Vec<Row>> {
    const ROWS: usize = 208;
    const COLS: usize = 584;
    let mut table = Vec::new();
    for (number, kind, name, rounding) in NUMBERS {
        let own = Products::new(gpu, number, None)?;
        let blas = Products::new(gpu, number, Blas::find(gpu))?;
        let mut gate = Weight::quantise(kind, ROWS / 2, COLS, &draw(1, ROWS / 2 * COLS))?;
        let up = Weight::quantise(kind, ROWS / 2, COLS, &draw(2, ROWS / 2 * COLS))?;
        let exact: Vec<[f64; 2]> = matrix::numbers(&gate, number)?
            .iter()
            .zip(&matrix::numbers(&up, number)?)
            .map(|(&g, &u)| [widen(number, g), widen(number, u)])
            .collect();
        if fault {
            let mut changed = gate.dequantise()?;
            changed[5] += 1.0;
            gate = Weight::quantise(kind, ROWS / 2, COLS, &changed)?;
        }
        let w = Matrix::gated(gpu, &gate, &up, number)?;
        for n in [1usize, 13, 16, 29, 61, 125, 300] {
            let x = matrix::numbers(&Weight::quantise(kind, n, COLS, &draw(3, n * COLS))?, number)?;
            let x_there = gpu.upload(&x)?;
            let sums = Sums::new(&exact, &x, number, n, COLS);
            let shape = format!("{ROWS}x{COLS}, {n} rows");
            let mut row = |kernel: &str, max_error: f64, limit: f64| {
                let ok = max_error <= limit;
                table.push(Row { kernel: format!("cuda {kernel} {name}"), shape: shape.clone(), max_error, ok });
            };
            row("product", partial_error(gpu, &own, &w, &x_there, n, &sums)?, SUM_LIMIT);
            let out = gpu.zeros(n * ROWS)?;
            own.gated(gpu, &w, &x_there, n as u32, &out)?;
            row("gated product", sums.gated_error(&gpu.download(&out, n * ROWS / 2)?, number), rounding);
            if blas.by_blas(n as u32) {
                row("cuBLAS product", partial_error(gpu, &blas, &w, &x_there, n, &sums)?, SUM_LIMIT);
            }
        }
    }
    Ok(table)
}

fn partial_error(gpu: &Gpu, products: &Products, w: &Matrix, x: &Buffer, n: usize, sums: &Sums) -> Result<f64> {
    let rows = w.rows as usize;
    let all = products.splits(w, n as u32) as usize * n * rows;
    let part = gpu.zeros(all * 4)?;
    products.partial(gpu, w, x, n as u32, false, &part)?;
    let parts: Vec<f32> = gpu.download(&part, all)?;
    let mut found = vec![0f64; n * rows];
    for part in parts.chunks_exact(n * rows) {
        found.iter_mut().zip(part).for_each(|(sum, &p)| *sum += f64::from(p));
    }
    Ok(sums.error(&found))
}

/// Exact gates and ups of each row, with the sums of magnitudes.
struct Sums {
    features: usize,
    /// `[n][features]` of (gate, up).
    exact: Vec<[f64; 2]>,
    size: Vec<[f64; 2]>,
}

impl Sums {
    fn new(w: &[[f64; 2]], x: &[u16], number: Number, n: usize, cols: usize) -> Self {
        let features = w.len() / cols;
        let (mut exact, mut size) = (Vec::new(), Vec::new());
        for row in 0..n {
            let x: Vec<f64> = x[row * cols..(row + 1) * cols].iter().map(|&bits| widen(number, bits)).collect();
            for w in w.chunks_exact(cols) {
                let (mut sum, mut all) = ([0.0; 2], [1e-30; 2]);
                for (w, x) in w.iter().zip(&x) {
                    for i in 0..2 {
                        sum[i] += w[i] * x;
                        all[i] += (w[i] * x).abs();
                    }
                }
                exact.push(sum);
                size.push(all);
            }
        }
        Self { features, exact, size }
    }

    /// Of `found[n][2 × features]`, 8 gates and their 8 ups in turn; relative to the sums of magnitudes.
    fn error(&self, found: &[f64]) -> f64 {
        let mut worst = 0f64;
        for (at, (exact, size)) in self.exact.iter().zip(&self.size).enumerate() {
            let (row, feature) = (at / self.features, at % self.features);
            let first = row * 2 * self.features + feature / 8 * 16 + feature % 8;
            for i in 0..2 {
                let error = (found[first + 8 * i] - exact[i]).abs() / size[i];
                // Not `f64::max`: a NaN must stay.
                worst = if worst.is_nan() || worst > error { worst } else { error };
            }
        }
        worst
    }

    /// Of gated numbers, relative to their size (and to 1 where they are small).
    fn gated_error(&self, found: &[u16], number: Number) -> f64 {
        let mut worst = 0f64;
        for (&bits, [gate, up]) in found.iter().zip(&self.exact) {
            let exact = gate / (1.0 + (-gate).exp()) * up;
            let error = (widen(number, bits) - exact).abs() / exact.abs().max(1.0);
            worst = if worst.is_nan() || worst > error { worst } else { error };
        }
        worst
    }
}

/// What is told of logits against a full sort and float64 sums: random ones, ties, rising ones, rows of one number, and
/// rows with infinities and NaN. `fault`: the largest logit of each row is another one on the card.
pub fn heads(gpu: &Gpu, fault: bool) -> Result<Vec<Row>> {
    let mut table = Vec::new();
    for (vocab, rows) in [(100usize, 3usize), (1000, 1), (8193, 5), (49_152, 37), (128_256, 20)] {
        let mut head = Head::new(gpu, vocab)?;
        for (kind, name) in ["random", "tied", "rising", "equal", "infinite", "spoilt"].into_iter().enumerate() {
            let mut random = stream(13, "cuda selftest", &[vocab as u64, kind as u64]);
            let mut logit = |at: usize| match name {
                "random" => random.random::<f32>() * 30.0 - 20.0,
                "tied" => (random.random::<f32>() * 5.0).floor(),
                "rising" => at as f32 * 1e-4 - 3.0,
                "equal" => 0.25,
                "spoilt" if at == vocab / 3 => f32::NAN,
                "spoilt" => -1.0,
                _ if random.random_range(0..3) == 0 => random.random::<f32>(),
                _ => f32::NEG_INFINITY,
            };
            let logits: Vec<f32> = (0..rows * vocab).map(|at| logit(at % vocab)).collect();
            let mut there = logits.clone();
            if fault {
                there.chunks_exact_mut(vocab).for_each(|row| row[vocab / 3] = 1e3);
            }
            let asked: Vec<u32> = (0..50).map(|i| (i * 7919) % vocab as u32).collect();
            let temperatures = [1.0f32, 0.7, 1.6];
            let ask = |row: usize| Ask { tokens: &asked[row % 50..], temperature: temperatures[row % 3] };
            let wanted: Vec<HeadRow<'_>> = (0..rows)
                .map(|row| HeadRow { row, want: if row % 4 == 3 { Want::All } else { Want::Glance(ask(row)) } })
                .collect();
            let mut said = Vec::new();
            // SAFETY: the buffer has room for all logits.
            let upload = |_, to: &Buffer| unsafe { gpu.upload_to(to.pointer(), &there) };
            head.answer(gpu, &wanted, upload, || Ok(()), &mut said)?;
            let mut max_error = 0f64;
            for (row, (said, exact)) in said.iter().zip(logits.chunks_exact(vocab)).enumerate() {
                let error = match said {
                    Said::Logits(found) => different(found.len() == vocab),
                    // What is not a number must be seen in the sum; nothing else is looked at then.
                    Said::Glance(found) if name == "spoilt" => different(!found.total.is_finite()),
                    Said::Glance(found) => glance_error(found, exact, &ask(row)),
                };
                let mut fetched = Vec::new();
                head.fetch(gpu, row, &mut fetched)?;
                let same = fetched.iter().zip(exact).all(|(a, b)| a.to_bits() == b.to_bits()) && fetched.len() == vocab;
                let error = error + different(same);
                max_error = if max_error.is_nan() || max_error > error { max_error } else { error };
            }
            let ok = said.len() == rows && max_error <= 1e-5;
            table.push(Row {
                kernel: format!("cuda glance {name}"),
                shape: format!("{vocab}, {rows} rows"),
                max_error,
                ok,
            });
        }
    }
    Ok(table)
}

fn different(same: bool) -> f64 {
    if same { 0.0 } else { f64::INFINITY }
}

/// The error of the sums; infinite where tokens or their logits are others.
fn glance_error(found: &Glance, logits: &[f32], ask: &Ask<'_>) -> f64 {
    let mut all: Vec<(u32, f32)> = (0u32..).zip(logits.iter().copied()).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let best = f64::from(all[0].1);
    let warm = f64::from(ask.temperature);
    let sum = |warm: f64| all.iter().map(|&(_, logit)| ((f64::from(logit) - best) / warm).exp()).sum::<f64>();
    let asked: Vec<f32> = ask.tokens.iter().map(|&token| logits[token as usize]).collect();
    let sums = [sum(1.0), sum(warm)];
    all.truncate(TOP);
    let same = found.top == all && found.asked == asked;
    // Sums, since the larger of a number and NaN would be the number.
    (found.total - best - sums[0].ln()).abs() + (found.warm / sums[1] - 1.0).abs() + different(same)
}

/// Logits of small models on the card against the CPU device with exact activations, prompts and single rows after them,
/// both layouts of RoPE. `fault`: the card gets another first token.
pub fn steps(ordinal: usize, planning: impl Fn() -> Planning, fault: bool) -> Result<Vec<Row>> {
    let mut table = Vec::new();
    for (_, kind, name, rounding) in NUMBERS {
        for layout in [RopeLayout::Interleaved, RopeLayout::Halves] {
            let weights = small(kind, layout, 2)?;
            let vocab = weights.shape.vocab;
            let pages = 64;
            let cpu =
                CpuOptions { threads: 1, activations: Activations::F32, pages, kv: KvNumber::F32, simd: Simd::best() };
            let mut exact = CpuDevice::new(weights.clone(), cpu)?;
            let options = CudaOptions { pages, rows: 300, planning: planning(), tier: None, graphs: false };
            let mut card = CudaDevice::new(Gpu::open(ordinal)?, weights, options)?;
            let mut first = 0;
            for n in [40, 1, 13, 70, 300, 1] {
                let mut random = stream(12, "cuda selftest", &[n as u64]);
                let mut tokens: Vec<u32> = (0..n).map(|_| random.random_range(0..vocab as u32)).collect();
                let expected = logits(&mut exact, 2, &path(first, n), &tokens)?;
                if fault {
                    tokens[0] ^= 1;
                }
                let found = logits(&mut card, 2, &path(first, n), &tokens)?;
                first += n;
                let size = expected.iter().flatten().fold(0f64, |m, &x| m.max(f64::from(x).abs()));
                let mut max_error = 0f64;
                for (&a, &b) in expected.iter().flatten().zip(found.iter().flatten()) {
                    let error = f64::from(a - b).abs() / size;
                    max_error = if max_error.is_nan() || max_error > error { max_error } else { error };
                }
                // Roundings of two layers add up; a wrong token is far off.
                let ok = max_error <= 16.0 * rounding;
                let kernel = format!("cuda step {name} {layout:?}");
                table.push(Row { kernel, shape: format!("{n} rows at {}", first - n), max_error, ok });
            }
        }
    }
    Ok(table)
}

/// Layers of 3 heads of 64.
fn small(kind: GgmlDType, layout: RopeLayout, layers: usize) -> Result<Weights> {
    let shape = Shape {
        layers,
        hidden: 192,
        heads: 3,
        kv_heads: 1,
        head_size: 64,
        feed_forward: 328,
        vocab: 328,
        context: 1024,
        norm_eps: 1e-5,
        rope: Rope { theta: 10_000.0, factors: None, layout },
    };
    let mut case = 100;
    let mut matrix = |rows: usize, cols: usize| {
        case += 1;
        let scale = 1.7 / (cols as f32).sqrt();
        let numbers: Vec<f32> = draw(case, rows * cols).iter().map(|x| x * scale).collect();
        Weight::quantise(kind, rows, cols, &numbers)
    };
    let (h, f, q, kv) = (shape.hidden, shape.feed_forward, 192, 64);
    let embed = matrix(shape.vocab, h)?;
    let layers = (0..shape.layers)
        .map(|l| {
            Ok(LayerWeights {
                attn_norm: draw(l as u64, h).iter().map(|x| 1.0 + 0.5 * x).collect(),
                wq: matrix(q, h)?,
                wk: matrix(kv, h)?,
                wv: matrix(kv, h)?,
                wo: matrix(h, q)?,
                mlp_norm: draw(10 + l as u64, h).iter().map(|x| 1.0 + 0.5 * x).collect(),
                gate: matrix(f, h)?,
                up: matrix(f, h)?,
                down: matrix(h, f)?,
            })
        })
        .collect::<Result<_>>()?;
    Ok(Weights { shape, embed, layers, norm: vec![1.0; h], output: None })
}

/// Logits of the last five rows of a step that goes on with one path.
fn logits(device: &mut dyn Device, layers: usize, work: &AttendWork, tokens: &[u32]) -> Result<Vec<Vec<f32>>> {
    let n = tokens.len();
    let positions = &work.positions;
    let slot = |&p: &u32| Slot {
        page: PageId(work.pages[p as usize / PAGE_TOKENS]),
        offset: (p as usize % PAGE_TOKENS) as u8,
    };
    let slots: Vec<Slot> = positions.iter().map(slot).collect();
    // Where the device selects, the last row does, among others that do not where there are more.
    let selects: Vec<bool> = (1..=n).map(|row| row == n).collect();
    device.begin(&Step { tokens, positions, slots: &slots, work, selects: &selects })?;
    for layer in 0..layers {
        device.attn_in(layer)?;
        device.attend(layer, work)?;
        device.attn_out(layer)?;
        device.mlp(layer)?;
    }
    let wanted: Vec<HeadRow<'_>> = (n.saturating_sub(5)..n).map(HeadRow::all).collect();
    let mut out = Vec::new();
    device.head(&wanted, &mut out)?;
    Ok(out.iter().filter_map(Said::logits).map(<[f32]>::to_vec).collect())
}

/// Work of one path in pages 0, 1, …: the rows are its tokens from `first` on.
fn path(first: usize, rows: usize) -> AttendWork {
    let positions: Vec<u32> = (first as u32..).take(rows).collect();
    let (rows, block) = (rows as u32, BLOCK as u32);
    let tokens = positions.last().map_or(0, |p| p + 1);
    let mut work = AttendWork {
        order: (0..rows).collect(),
        positions: positions.clone(),
        pages: (0..tokens.div_ceil(PAGE_TOKENS as u32)).collect(),
        partial_first: vec![0],
        io: Io::default(),
        ..AttendWork::default()
    };
    for b in 0..tokens.div_ceil(block) {
        let start = b * block;
        let blind = positions.partition_point(|&p| p < start) as u32;
        let first_page = start / PAGE_TOKENS as u32;
        work.pieces.push(Piece { start, len: block.min(tokens - start), first_page, rows: blind..rows });
        work.units.push(Unit { block: b, pieces: b..b + 1, rows: blind..rows });
        work.tasks.push(b..b + 1);
    }
    let mut partials = 0;
    work.partial_first.extend(positions.iter().map(|p| {
        partials += p / block + 1;
        partials
    }));
    work
}
