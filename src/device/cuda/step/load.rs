//! A model taken to the card: sizes, weights, K/V, and the room that its steps work in.

use super::graphs::Graphs;
use super::launch::Kernels;
use super::marks::Marks;
use super::{CudaDevice, CudaOptions, Layer, Room, there};
use crate::base::Result;
use crate::device::check::{check_norm, check_shape, check_size};
use crate::device::cuda::attend::{AttendKernel, HeadShape, Number};
use crate::device::cuda::blas::Blas;
use crate::device::cuda::driver::{Begin, Gpu};
use crate::device::cuda::head::{self, Head};
use crate::device::cuda::heavy;
use crate::device::cuda::matrix::{self, Matrix, number_of};
use crate::device::cuda::product::Products;
use crate::device::cuda::staging::Staging;
use crate::device::cuda::store::Store;
use crate::device::cuda::work::Moves;
use crate::device::weight::{LayerWeights, Weight, Weights};
use crate::device::{RopeLayout, Shape, Times};
use crate::kv::PAGE_TOKENS;

/// Memory for kernels, plans, cuBLAS and what else the driver takes.
const SPARE_BYTES: usize = 512 << 20;

/// The number type of a model on the card: that of most of its weights.
pub fn number(weights: &Weights) -> Number {
    weights.layers.first().map_or(Number::F16, |layer| number_of(layer.wq.kind))
}

fn head_shape(shape: &Shape, number: Number) -> HeadShape {
    HeadShape { heads: shape.heads as u32, kv_heads: shape.kv_heads as u32, head_size: shape.head_size as u32, number }
}

/// Whether the card has kernels for a model of this shape; the error says for what it has them. Asked before weights are read.
pub fn check_model(gpu: &Gpu, shape: &Shape) -> Result<()> {
    matrix::check(shape)?;
    AttendKernel::new(gpu, head_shape(shape, Number::F16), None).map(drop)
}

/// Bytes of the weights on the card.
pub fn weight_bytes(weights: &Weights) -> u64 {
    let layers = weights.layers.iter().flat_map(|l| [&l.wq, &l.wk, &l.wv, &l.wo, &l.gate, &l.up, &l.down]);
    let all = layers.chain([&weights.embed]).chain(&weights.output);
    all.map(|w: &Weight| 2 * w.rows as u64 * w.cols as u64).sum()
}

/// Bytes of a K/V page over all layers.
pub fn page_bytes(shape: &Shape) -> u64 {
    (PAGE_TOKENS * shape.kv_numbers_per_token() * 2) as u64
}

/// Bytes to work in beside [`work_bytes`] where tokens are let go for good (`h2o`), at up to `positions` tokens.
pub fn heavy_bytes(rows: usize, positions: usize) -> u64 {
    heavy::work_bytes(rows, positions)
}

/// Bytes to work in, above weights and K/V, for steps of `rows` rows.
pub fn work_bytes(shape: &Shape, rows: usize) -> u64 {
    let width = shape.heads * shape.head_size;
    let row =
        6 * shape.hidden + 4 * width + 2 * shape.feed_forward + 4 * (2 * shape.feed_forward).max(2 * shape.hidden);
    (rows * row + head::work_bytes(shape.vocab, rows) + SPARE_BYTES) as u64
}

impl CudaDevice {
    /// Takes weights and K/V pages. Errors: sizes that do not fit each other or the kernels, too little memory.
    pub fn new(gpu: Gpu, weights: Weights, options: CudaOptions) -> Result<Self> {
        let number = number(&weights);
        let Weights { shape, embed, layers, norm, output } = weights;
        check_shape(&shape, layers.len())?;
        let attention = AttendKernel::new(&gpu, head_shape(&shape, number), None)?;
        let products = Products::new(&gpu, number, Blas::find(&gpu))?;
        let kernels = Kernels::load(&gpu, number, shape.hidden)?;
        let (h, f) = (shape.hidden, shape.feed_forward);
        let (q, kv) = (shape.heads * shape.head_size, shape.kv_heads * shape.head_size);
        let halves = (shape.rope.layout == RopeLayout::Halves).then_some(shape.head_size);
        let place = |l: usize, layer: LayerWeights| -> Result<Layer> {
            let sizes = [
                ("query weights", &layer.wq, q, h),
                ("key weights", &layer.wk, kv, h),
                ("value weights", &layer.wv, kv, h),
                ("attention output weights", &layer.wo, h, q),
                ("gate weights", &layer.gate, f, h),
                ("up weights", &layer.up, f, h),
                ("down weights", &layer.down, h, f),
            ];
            for (name, weight, rows, cols) in sizes {
                check_size(name, weight, rows, cols).map_err(|e| e.context(format!("layer {l}")))?;
            }
            let qkv = Matrix::projections(&gpu, [&layer.wq, &layer.wk, &layer.wv], number, halves)?;
            Ok(Layer {
                query: qkv.first_rows(q),
                qkv,
                attn_norm: gpu.upload(&check_norm(&format!("layer {l}: attention norm"), layer.attn_norm, h)?)?,
                o: Matrix::plain(&gpu, &layer.wo, number)?,
                mlp_norm: gpu.upload(&check_norm(&format!("layer {l}: feed-forward norm"), layer.mlp_norm, h)?)?,
                gate_up: Matrix::gated(&gpu, &layer.gate, &layer.up, number)?,
                down: Matrix::plain(&gpu, &layer.down, number)?,
            })
        };
        let layers = layers.into_iter().enumerate().map(|(l, layer)| place(l, layer)).collect::<Result<Vec<_>>>()?;
        check_size("token embedding", &embed, shape.vocab, h)?;
        let output = output
            .map(|w| {
                check_size("output weights", &w, shape.vocab, h)?;
                Matrix::plain(&gpu, &w, number)
            })
            .transpose()?;
        let frequencies: Vec<f64> = (0..shape.head_size / 2)
            .map(|i| {
                let factor = shape.rope.factors.as_ref().map_or(1.0, |f| f64::from(f[i]));
                f64::from(shape.rope.theta).powf(-2.0 * i as f64 / shape.head_size as f64) / factor
            })
            .collect();
        let mut device = Self {
            store: Store::new(&gpu, &attention, &shape, options.pages, options.tier)?,
            embed: Matrix::plain(&gpu, &embed, number)?,
            layers,
            norm: gpu.upload(&check_norm("output norm", norm, h)?)?,
            output,
            frequencies: gpu.upload(&frequencies)?,
            marks: [Marks::new(&gpu)?, Marks::new(&gpu)?],
            graphs: Graphs::new(&gpu, options.graphs)?,
            kernels,
            products,
            attention,
            planning: options.planning,
            moves: Moves::default(),
            number,
            selecting: None,
            watching: None,
            heavy: None,
            watched_pages: 0,
            watched_slots: Vec::new(),
            room: Room::default(),
            staging: Staging::default(),
            head: Head::new(&gpu, shape.vocab)?,
            begin: if gpu.overlaps() { Begin::Early } else { Begin::After },
            running: None,
            turn: 0,
            times: Times::default(),
            sorted: Vec::new(),
            shape,
            gpu,
        };
        device.warm(options.rows as u32)?;
        Ok(device)
    }

    /// Room for a step of so many rows.
    pub(super) fn fit(&mut self, rows: u32) -> Result<()> {
        let Self { shape, gpu, room, products, .. } = self;
        let (n, width, layer) = (rows as usize, shape.heads * shape.head_size, &self.layers[0]);
        gpu.grow(&mut room.x, n * shape.hidden * 4)?;
        gpu.grow(&mut room.normed, n * shape.hidden * 2)?;
        gpu.grow(&mut room.q, n * width * 2)?;
        gpu.grow(&mut room.o, n * width * 2)?;
        gpu.grow(&mut room.gated, n * shape.feed_forward * 2)?;
        let part = |w: &Matrix| products.splits(w, rows) as usize * n * w.rows as usize;
        let mut numbers = part(&layer.qkv).max(part(&layer.query)).max(part(&layer.o)).max(part(&layer.down));
        if products.by_blas(rows) {
            numbers = numbers.max(n * layer.gate_up.rows as usize);
        }
        gpu.grow(&mut room.part, numbers * 4).map(drop)
    }

    /// Takes the room for the largest steps, and has libraries load what they run them with: a first prompt need not wait.
    fn warm(&mut self, rows: u32) -> Result<()> {
        if !self.products.by_blas(rows) {
            return Ok(());
        }
        self.fit(rows)?;
        let Self { gpu, products, room, .. } = self;
        let (layer, part) = (&self.layers[0], there(&room.part)?);
        for (w, x) in [
            (&layer.qkv, &room.normed),
            (&layer.o, &room.o),
            (&layer.gate_up, &room.normed),
            (&layer.down, &room.gated),
        ] {
            products.partial(gpu, w, there(x)?, rows, true, part)?;
        }
        gpu.wait()
    }
}
