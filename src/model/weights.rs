//! From named tensors to the device's weights, with every shape checked against the description.
//!
//! Nothing is copied: a matrix stays a range of the mapped file. Norms become f32. Refuses missing tensors, wrong shapes,
//! types that cannot be computed with, and biases.

use super::config::Config;
use super::gguf::types;
use crate::base::text::{counted, sanitize_line};
use crate::base::{Error, Result};
use crate::device::weight::{Bytes, LayerWeights, Weight, Weights};
use candle_core::quantized::GgmlDType;
use half::{bf16, f16};
use memmap2::Mmap;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// A tensor as it lies in a file; `range` is inside `file` and has exactly the bytes its type and dimensions need.
pub struct Stored<'a> {
    /// `None`: a type that cannot be computed with.
    pub kind: Option<GgmlDType>,
    pub kind_name: String,
    /// Outermost first: a matrix is `[rows, cols]`.
    pub dims: &'a [usize],
    pub file: &'a Arc<Mmap>,
    pub range: Range<usize>,
}

/// Whatever holds named tensors.
pub trait Tensors {
    /// For messages: a file or a folder.
    fn place(&self) -> String;
    fn names(&self) -> Vec<&str>;
    fn tensor(&self, name: &str) -> Option<Stored<'_>>;
}

/// How a source names Llama's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    Gguf,
    Hf,
}

impl Naming {
    fn embed(self) -> &'static str {
        match self {
            Self::Gguf => "token_embd.weight",
            Self::Hf => "model.embed_tokens.weight",
        }
    }

    fn norm(self) -> &'static str {
        match self {
            Self::Gguf => "output_norm.weight",
            Self::Hf => "model.norm.weight",
        }
    }

    fn output(self) -> &'static str {
        match self {
            Self::Gguf => "output.weight",
            Self::Hf => "lm_head.weight",
        }
    }

    /// A layer's tensor; `part` is GGUF's name of it.
    fn layer(self, layer: usize, part: &str) -> String {
        match self {
            Self::Gguf => format!("blk.{layer}.{part}.weight"),
            Self::Hf => {
                let part = match part {
                    "attn_norm" => "input_layernorm",
                    "attn_q" => "self_attn.q_proj",
                    "attn_k" => "self_attn.k_proj",
                    "attn_v" => "self_attn.v_proj",
                    "attn_output" => "self_attn.o_proj",
                    "ffn_norm" => "post_attention_layernorm",
                    "ffn_gate" => "mlp.gate_proj",
                    "ffn_up" => "mlp.up_proj",
                    "ffn_down" => "mlp.down_proj",
                    other => other,
                };
                format!("model.layers.{layer}.{part}.weight")
            }
        }
    }
}

/// Gathers a whole model's weights.
pub fn load(source: &dyn Tensors, naming: Naming, config: &Config) -> Result<Weights> {
    gather(source, naming, config).map_err(|e| e.context(source.place()))
}

fn gather(source: &dyn Tensors, naming: Naming, config: &Config) -> Result<Weights> {
    if let Some(bias) = source.names().into_iter().find(|n| n.ends_with(".bias")) {
        return Err(Error::input(format!("has a bias (tensor `{}`), which is not supported", sanitize_line(bias))));
    }
    let shape = &config.shape;
    // A model of which only the first layers run writes nonsense, and nothing else would tell why.
    let beyond = naming.layer(shape.layers, "attn_norm");
    if source.tensor(&beyond).is_some() {
        return Err(Error::input(format!(
            "tensor `{beyond}` is there, but the description says {}: it is of another model",
            counted(shape.layers as u64, "layer", "layers")
        )));
    }
    let (hidden, feed_forward) = (shape.hidden, shape.feed_forward);
    let (q, kv) = (shape.heads * shape.head_size, shape.kv_heads * shape.head_size);
    let layers = (0..shape.layers).map(|layer| {
        let matrix = |part: &str, rows, cols| matrix(source, &naming.layer(layer, part), rows, cols);
        Ok(LayerWeights {
            attn_norm: vector(source, &naming.layer(layer, "attn_norm"), hidden)?,
            wq: matrix("attn_q", q, hidden)?,
            wk: matrix("attn_k", kv, hidden)?,
            wv: matrix("attn_v", kv, hidden)?,
            wo: matrix("attn_output", hidden, q)?,
            mlp_norm: vector(source, &naming.layer(layer, "ffn_norm"), hidden)?,
            gate: matrix("ffn_gate", feed_forward, hidden)?,
            up: matrix("ffn_up", feed_forward, hidden)?,
            down: matrix("ffn_down", hidden, feed_forward)?,
        })
    });
    let layers = layers.collect::<Result<Vec<_>>>()?;
    let output = match (config.tied, source.tensor(naming.output())) {
        (Some(true), _) | (None, None) => None,
        (_, Some(_)) => Some(matrix(source, naming.output(), shape.vocab, hidden)?),
        (Some(false), None) => {
            return Err(Error::input(format!(
                "tensor `{}` is missing, and config.json does not say that it is tied to the token embedding \
                 (tie_word_embeddings)",
                naming.output()
            )));
        }
    };
    Ok(Weights {
        shape: shape.clone(),
        embed: matrix(source, naming.embed(), shape.vocab, hidden)?,
        layers,
        norm: vector(source, naming.norm(), hidden)?,
        output,
    })
}

/// How many tensors are of each type, by type name, the most frequent first.
pub fn type_counts<'a>(kinds: impl Iterator<Item = &'a str>) -> Vec<(String, usize)> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for kind in kinds {
        *counts.entry(kind).or_default() += 1;
    }
    let mut counts: Vec<(String, usize)> = counts.into_iter().map(|(k, n)| (k.to_string(), n)).collect();
    counts.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    counts
}

fn find<'a>(source: &'a dyn Tensors, name: &str) -> Result<(Stored<'a>, GgmlDType)> {
    let tensor = source.tensor(name).ok_or_else(|| Error::input(format!("tensor `{name}` is missing")))?;
    match tensor.kind {
        Some(kind) => Ok((tensor, kind)),
        None => Err(Error::input(format!(
            "tensor `{name}` is of type {}, which is not supported; supported: {}",
            tensor.kind_name,
            types::usable_names()
        ))),
    }
}

/// A matrix `[rows, cols]`, left where it is.
fn matrix(source: &dyn Tensors, name: &str, rows: usize, cols: usize) -> Result<Weight> {
    let (tensor, kind) = find(source, name)?;
    if tensor.dims != [rows, cols] {
        return Err(Error::input(format!(
            "tensor `{name}` has shape {:?}, but the description needs [{rows}, {cols}]",
            tensor.dims
        )));
    }
    if !cols.is_multiple_of(kind.block_size()) {
        return Err(Error::input(format!(
            "tensor `{name}` has rows of {cols} numbers, no multiple of {}'s block of {}",
            tensor.kind_name,
            kind.block_size()
        )));
    }
    Ok(Weight { kind, rows, cols, bytes: bytes_of(&tensor, kind) })
}

/// The tensor's bytes in the map; copied only where a file's header leaves plain numbers unaligned.
fn bytes_of(tensor: &Stored<'_>, kind: GgmlDType) -> Bytes {
    let align = match kind {
        GgmlDType::F32 => 4,
        _ => 2,
    };
    let bytes = &tensor.file[tensor.range.clone()];
    if bytes.as_ptr().addr().is_multiple_of(align) {
        Bytes::Mapped { file: tensor.file.clone(), range: tensor.range.clone() }
    } else {
        Bytes::Owned(bytes.into())
    }
}

/// A vector of `len` numbers as f32.
fn vector(source: &dyn Tensors, name: &str, len: usize) -> Result<Vec<f32>> {
    let (tensor, _) = find(source, name)?;
    if tensor.dims != [len] {
        return Err(Error::input(format!(
            "tensor `{name}` has shape {:?}, but the description needs [{len}]",
            tensor.dims
        )));
    }
    numbers(&tensor).map_err(|e| e.context(format!("tensor `{name}`")))
}

/// A small tensor of plain numbers as f32.
pub fn numbers(tensor: &Stored<'_>) -> Result<Vec<f32>> {
    let bytes = &tensor.file[tensor.range.clone()];
    let two = |pair: &[u8]| u16::from_le_bytes([pair[0], pair[1]]);
    let values: Vec<f32> = match tensor.kind {
        Some(GgmlDType::F32) => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        Some(GgmlDType::F16) => bytes.chunks_exact(2).map(|b| f16::from_bits(two(b)).to_f32()).collect(),
        Some(GgmlDType::BF16) => bytes.chunks_exact(2).map(|b| bf16::from_bits(two(b)).to_f32()).collect(),
        _ => return Err(Error::input(format!("is of type {}; F32, F16 or BF16 is needed", tensor.kind_name))),
    };
    if values.iter().any(|v| !v.is_finite()) {
        return Err(Error::input("holds a value that is not a number: the file is damaged"));
    }
    Ok(values)
}

#[cfg(test)]
mod tests;
