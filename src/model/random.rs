//! `random:SHAPE[@TYPE]`: models of a real shape with seeded random weights, for benchmarks. No download.
//!
//! Weights are blocks of one random pool, repeated with a step that keeps rows different; scaled by the row length, so
//! that activations stay finite however many layers there are. They say nothing: use them to measure.

use super::config::Config;
use super::gguf::types::{self, BlockType};
use super::info::{Facts, ModelInfo};
use super::tokenizer::Tokenizer;
use super::{Model, rope};
use crate::base::text::sanitize_line;
use crate::base::{Error, Result, rng};
use crate::device::weight::{Bytes, LayerWeights, Weight, Weights};
use crate::device::{Rope, RopeLayout, Shape};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use half::{bf16, f16};
use rand::Rng;
use std::collections::HashMap;
use std::sync::Arc;

/// Blocks in a pool: a prime, so that rows of a power of two never begin at the same block soon.
const POOL_BLOCKS: usize = 4099;
/// Plain numbers in a pool of an unquantised type; a prime for the same reason.
const POOL_NUMBERS: usize = 131_101;

struct Sizes {
    name: &'static str,
    layers: usize,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    feed_forward: usize,
    vocab: usize,
    context: usize,
    theta: f32,
    /// Whether the output matrix is the embedding.
    tied: bool,
    /// Factor of Llama 3.1's rotary scaling.
    llama3_factor: Option<f64>,
}

#[rustfmt::skip]
const SHAPES: [Sizes; 7] = [
    Sizes { name: "llama3-8b", layers: 32, hidden: 4096, heads: 32, kv_heads: 8, feed_forward: 14336, vocab: 128_256, context: 131_072, theta: 500_000.0, tied: false, llama3_factor: Some(8.0) },
    Sizes { name: "llama2-7b", layers: 32, hidden: 4096, heads: 32, kv_heads: 32, feed_forward: 11008, vocab: 32_000, context: 4096, theta: 10_000.0, tied: false, llama3_factor: None },
    Sizes { name: "llama3.2-1b", layers: 16, hidden: 2048, heads: 32, kv_heads: 8, feed_forward: 8192, vocab: 128_256, context: 131_072, theta: 500_000.0, tied: true, llama3_factor: Some(32.0) },
    Sizes { name: "tinyllama-1.1b", layers: 22, hidden: 2048, heads: 32, kv_heads: 4, feed_forward: 5632, vocab: 32_000, context: 2048, theta: 10_000.0, tied: false, llama3_factor: None },
    Sizes { name: "smollm2-360m", layers: 32, hidden: 960, heads: 15, kv_heads: 5, feed_forward: 2560, vocab: 49_152, context: 8192, theta: 100_000.0, tied: true, llama3_factor: None },
    Sizes { name: "smollm2-135m", layers: 30, hidden: 576, heads: 9, kv_heads: 3, feed_forward: 1536, vocab: 49_152, context: 8192, theta: 100_000.0, tied: true, llama3_factor: None },
    Sizes { name: "tiny", layers: 2, hidden: 256, heads: 4, kv_heads: 2, feed_forward: 512, vocab: 320, context: 1024, theta: 10_000.0, tied: true, llama3_factor: None },
];

/// Makes the model that `spec` (what follows `random:`) names.
pub fn open(spec: &str, seed: u64) -> Result<Model> {
    let (sizes, block, kind) = parse(spec)?;
    let shape = shape(sizes);
    for cols in [shape.hidden, shape.feed_forward, shape.heads * shape.head_size] {
        if !cols.is_multiple_of(kind.block_size()) {
            return Err(Error::input(format!(
                "random:{spec}: rows of {cols} numbers are no multiple of {}'s block of {}: take another type",
                block.name,
                kind.block_size()
            )));
        }
    }
    let weights = weights(sizes, &shape, kind, seed)?;
    let tensors = tensor_sizes(&weights, block.name);
    let config = Config {
        architecture: "llama".to_string(),
        shape,
        tied: Some(sizes.tied),
        rope_scaling: sizes.llama3_factor.map(|f| format!("llama3 x{f}")),
        license: None,
    };
    let tokenizer = Tokenizer::bytes(config.shape.vocab);
    let facts = Facts {
        name: format!("random:{spec}"),
        path: None,
        format: "random",
        file_bytes: 0,
        tokenizer: tokenizer.kind().to_string(),
        chat_template: false,
    };
    let info = ModelInfo::new(&config, facts, &tensors);
    Ok(Model { info, weights, tokenizer, template: None, files: Vec::new() })
}

fn parse(spec: &str) -> Result<(&'static Sizes, &'static BlockType, GgmlDType)> {
    let (name, kind) = spec.split_once('@').unwrap_or((spec, "bf16"));
    let sizes = SHAPES.iter().find(|s| s.name.eq_ignore_ascii_case(name)).ok_or_else(|| {
        let names: Vec<&str> = SHAPES.iter().map(|s| s.name).collect();
        Error::input(format!("random:{}: no such shape; there are {}", sanitize_line(spec), names.join(", ")))
    })?;
    match types::by_name(kind).and_then(|block| block.kind.map(|kind| (block, kind))) {
        Some((block, kind)) => Ok((sizes, block, kind)),
        None => Err(Error::input(format!(
            "random:{}: no such type; there are {}",
            sanitize_line(spec),
            types::usable_names()
        ))),
    }
}

fn shape(sizes: &Sizes) -> Shape {
    let head_size = sizes.hidden / sizes.heads;
    let scheme = sizes.llama3_factor.map(|factor| rope::Llama3 {
        factor,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 8192.0,
    });
    Shape {
        layers: sizes.layers,
        hidden: sizes.hidden,
        heads: sizes.heads,
        kv_heads: sizes.kv_heads,
        head_size,
        feed_forward: sizes.feed_forward,
        vocab: sizes.vocab,
        context: sizes.context,
        norm_eps: 1e-5,
        rope: Rope {
            theta: sizes.theta,
            factors: scheme.map(|s| s.factors(f64::from(sizes.theta), head_size)),
            layout: RopeLayout::Halves,
        },
    }
}

fn weights(sizes: &Sizes, shape: &Shape, kind: GgmlDType, seed: u64) -> Result<Weights> {
    let mut maker = Maker { kind, seed, pools: HashMap::new(), made: 0 };
    let (hidden, feed_forward) = (shape.hidden, shape.feed_forward);
    let (q, kv) = (shape.heads * shape.head_size, shape.kv_heads * shape.head_size);
    let embed = maker.matrix(shape.vocab, hidden)?;
    let layers = (0..shape.layers).map(|_| {
        Ok(LayerWeights {
            attn_norm: vec![1.0; hidden],
            wq: maker.matrix(q, hidden)?,
            wk: maker.matrix(kv, hidden)?,
            wv: maker.matrix(kv, hidden)?,
            wo: maker.matrix(hidden, q)?,
            mlp_norm: vec![1.0; hidden],
            gate: maker.matrix(feed_forward, hidden)?,
            up: maker.matrix(feed_forward, hidden)?,
            down: maker.matrix(hidden, feed_forward)?,
        })
    });
    let layers = layers.collect::<Result<Vec<_>>>()?;
    let output = if sizes.tied { None } else { Some(maker.matrix(shape.vocab, hidden)?) };
    Ok(Weights { shape: shape.clone(), embed, layers, norm: vec![1.0; hidden], output })
}

struct Maker {
    kind: GgmlDType,
    seed: u64,
    /// Bytes of random blocks by row length.
    pools: HashMap<usize, Vec<u8>>,
    made: usize,
}

impl Maker {
    fn matrix(&mut self, rows: usize, cols: usize) -> Result<Weight> {
        let (kind, seed) = (self.kind, self.seed);
        let pool = match self.pools.entry(cols) {
            std::collections::hash_map::Entry::Occupied(pool) => pool.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => place.insert(pool(kind, cols, seed)?),
        };
        let unit = kind.type_size();
        let bytes = rows * cols / kind.block_size() * unit;
        // Each matrix begins elsewhere in the pool.
        let mut at = (self.made * 977 % (pool.len() / unit)) * unit;
        self.made += 1;
        let mut owned: Arc<[u8]> = std::iter::repeat_n(0u8, bytes).collect();
        let mut rest = Arc::get_mut(&mut owned).expect("just made, so not shared");
        while !rest.is_empty() {
            let count = rest.len().min(pool.len() - at);
            let (part, after) = rest.split_at_mut(count);
            part.copy_from_slice(&pool[at..at + count]);
            rest = after;
            at = 0;
        }
        Ok(Weight { kind, rows, cols, bytes: Bytes::Owned(owned) })
    }
}

/// Random blocks with a standard deviation of `1 / sqrt(cols)`.
fn pool(kind: GgmlDType, cols: usize, seed: u64) -> Result<Vec<u8>> {
    let numbers = if kind.block_size() == 1 { POOL_NUMBERS } else { POOL_BLOCKS * kind.block_size() };
    let mut stream = rng::stream(seed, "random weights", &[cols as u64]);
    // Uniform on [-w, w] has the deviation w / sqrt(3).
    let width = (3.0 / cols as f32).sqrt();
    let values: Vec<f32> = (0..numbers).map(|_| stream.random_range(-width..width)).collect();
    Ok(match kind {
        GgmlDType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        GgmlDType::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
        GgmlDType::BF16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
        _ => {
            let wrong = |e: candle_core::Error| Error::fault(format!("random weights: {e}"));
            let rows = Tensor::from_slice(&values, (1, numbers), &Device::Cpu).map_err(wrong)?;
            QTensor::quantize(&rows, kind).and_then(|t| t.data().map(|d| d.into_owned())).map_err(wrong)?
        }
    })
}

fn tensor_sizes(weights: &Weights, kind: &str) -> Vec<(String, u64)> {
    let mut sizes = Vec::new();
    let mut add = |w: &Weight| sizes.push((kind.to_string(), (w.rows * w.cols) as u64));
    add(&weights.embed);
    for layer in &weights.layers {
        for weight in [&layer.wq, &layer.wk, &layer.wv, &layer.wo, &layer.gate, &layer.up, &layer.down] {
            add(weight);
        }
    }
    if let Some(output) = &weights.output {
        add(output);
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_made_and_decodes_to_the_wanted_scale() {
        for block in types::TYPES.iter().filter(|t| t.kind.is_some()) {
            // candle writes no Q8_1 and reads no Q8_K back into numbers it could be tested with.
            let model = match open(&format!("tiny@{}", block.name), 1) {
                Ok(model) => model,
                Err(e) if block.name == "Q8_1" || block.name == "Q8_K" => {
                    assert!(e.message().contains("random weights"), "{e}");
                    continue;
                }
                Err(e) => panic!("{}: {e}", block.name),
            };
            let wq = &model.weights.layers[1].wq;
            assert_eq!(wq.bytes.as_slice().len(), 256 * 256 / wq.kind.block_size() * wq.kind.type_size());
            let storage =
                candle_core::quantized::QStorage::from_data(wq.bytes.as_slice().into(), &Device::Cpu, wq.kind).unwrap();
            let values = QTensor::new(storage, (256, 256)).unwrap().dequantize(&Device::Cpu).unwrap();
            let values = values.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let variance = values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
            assert!((variance * 256.0 - 1.0).abs() < 0.2, "{}: {variance}", block.name);
        }
    }

    #[test]
    fn shapes_have_the_sizes_of_the_models_they_are_named_after() {
        let check = |name: &str, millions: f64| {
            let sizes = SHAPES.iter().find(|s| s.name == name).unwrap();
            let (h, f) = (sizes.hidden, sizes.feed_forward);
            let kv = h / sizes.heads * sizes.kv_heads;
            let layer = 2 * h * h + 2 * h * kv + 3 * h * f + 2 * h;
            let embeds = if sizes.tied { 1 } else { 2 };
            let total = sizes.layers * layer + embeds * sizes.vocab * h + h;
            assert!((total as f64 / 1e6 - millions).abs() < millions * 0.001, "{name}: {total}");
        };
        check("llama3-8b", 8030.26);
        check("llama2-7b", 6738.42);
        check("llama3.2-1b", 1235.81);
        check("tinyllama-1.1b", 1100.05);
        check("smollm2-360m", 361.82);
        check("smollm2-135m", 134.52);
    }

    #[test]
    fn wrong_names_are_refused_with_the_right_ones() {
        let refused = |spec: &str| open(spec, 0).map(|_| ()).unwrap_err();
        assert!(refused("zebra").message().contains("llama3-8b"));
        assert!(refused("tiny@q9").message().contains("Q4_1"));
        assert!(refused("smollm2-135m@q4k").message().contains("block of 256"));
    }

    #[test]
    fn the_same_seed_gives_the_same_weights() {
        let bytes = |seed| open("tiny@q8_0", seed).unwrap().weights.layers[0].wk.bytes.as_slice().to_vec();
        assert_eq!(bytes(3), bytes(3));
        assert_ne!(bytes(3), bytes(4));
    }
}
