//! A GGUF file's description: the `llama.*` keys.

use super::{Config, SUPPORTED, check, factor, size};
use crate::base::text::sanitize_line;
use crate::base::{Error, Result};
use crate::device::{Rope, RopeLayout, Shape};
use crate::model::gguf::Gguf;
use crate::model::rope;
use crate::model::weights::{Tensors, numbers};

/// Reads the description; touches no weights but `rope_freqs.weight`.
pub fn read(file: &Gguf) -> Result<Config> {
    describe(file).map_err(|e| {
        let place = file.path().display().to_string();
        if e.message().starts_with(&place) { e } else { e.context(place) }
    })
}

fn describe(file: &Gguf) -> Result<Config> {
    let architecture = file.text("general.architecture")?.ok_or_else(|| {
        Error::input("key `general.architecture` is missing: this is no language model (a tokenizer or adapter alone?)")
    })?;
    if architecture != "llama" {
        return Err(Error::input(format!(
            "architecture `{}` is not supported; supported: {SUPPORTED}",
            sanitize_line(architecture)
        )));
    }
    if file.count("llama.expert_count")?.unwrap_or(0) > 1 {
        return Err(Error::input("this is a mixture of experts, which is not supported"));
    }
    let heads = count(file, "attention.head_count", 24)?;
    let hidden = count(file, "embedding_length", 24)?;
    let head_size = head_size(file, hidden, heads)?;
    let context = count(file, "context_length", 30)?;
    let vocab = match file.count("llama.vocab_size")? {
        Some(v) => size(v, "key `llama.vocab_size`", 24)?,
        None => file
            .tensor("token_embd.weight")
            .and_then(|t| t.dims.first().copied())
            .ok_or_else(|| Error::input("the size of the vocabulary is nowhere said"))?,
    };
    if let Some(window) = file.count("llama.attention.sliding_window")?
        && window > 0
        && window < context as u64
    {
        return Err(sliding_window(window, context));
    }
    let theta = file.number("llama.rope.freq_base")?.unwrap_or(10_000.0);
    let (scaled, rope_scaling) = scaling(file, head_size)?;
    let stored = match file.tensor("rope_freqs.weight") {
        Some(tensor) => Some(numbers(&tensor).map_err(|e| e.context("tensor `rope_freqs.weight`"))?),
        None => None,
    };
    let rope_scaling = rope_scaling.or_else(|| stored.as_ref().map(|_| "rope_freqs.weight".to_string()));
    let shape = Shape {
        layers: count(file, "block_count", 16)?,
        hidden,
        heads,
        kv_heads: kv_heads(file, heads)?,
        head_size,
        feed_forward: count(file, "feed_forward_length", 24)?,
        vocab,
        context,
        norm_eps: file.number("llama.attention.layer_norm_rms_epsilon")?.unwrap_or(1e-5) as f32,
        rope: Rope { theta: theta as f32, factors: rope::combine(stored, scaled), layout: RopeLayout::Interleaved },
    };
    check(&shape)?;
    let license = file.text("general.license")?.map(sanitize_line);
    Ok(Config { architecture: architecture.to_string(), shape, tied: None, rope_scaling, license })
}

pub(super) fn sliding_window(window: u64, context: usize) -> Error {
    Error::input(format!(
        "this model attends through a sliding window of {window} tokens (context {context}), which is not supported; \
         Mistral from version 0.2 on has none"
    ))
}

/// `llama.NAME`, which must be there. Some writers give one number a layer: all must agree.
fn count(file: &Gguf, name: &str, limit_bits: u32) -> Result<usize> {
    let key = format!("llama.{name}");
    let what = format!("key `{key}`");
    if let Some(crate::model::gguf::Value::Array(_)) = file.value(&key) {
        let values = file.numbers(&key)?.unwrap_or_default();
        return match values.first() {
            Some(&first) if values.iter().all(|v| *v == first) && first >= 0.0 => size(first as u64, &what, limit_bits),
            _ => Err(Error::input(format!("{what} differs from layer to layer, which is not supported"))),
        };
    }
    let value = file.count(&key)?.ok_or_else(|| Error::input(format!("{what} is missing")))?;
    size(value, &what, limit_bits)
}

fn kv_heads(file: &Gguf, heads: usize) -> Result<usize> {
    if file.value("llama.attention.head_count_kv").is_none() {
        return Ok(heads);
    }
    count(file, "attention.head_count_kv", 24)
}

/// Numbers a head has: said, or the hidden size shared evenly.
fn head_size(file: &Gguf, hidden: usize, heads: usize) -> Result<usize> {
    let key = file.count("llama.attention.key_length")?;
    let value = file.count("llama.attention.value_length")?;
    let size_of_head = match (key, value) {
        (Some(k), Some(v)) if k != v => {
            return Err(Error::input(format!("keys of {k} and values of {v} numbers differ, which is not supported")));
        }
        (Some(k), _) => size(k, "key `llama.attention.key_length`", 16)?,
        (None, Some(v)) => size(v, "key `llama.attention.value_length`", 16)?,
        (None, None) if hidden.is_multiple_of(heads) => hidden / heads,
        (None, None) => return Err(Error::input(format!("{hidden} hidden numbers are no multiple of {heads} heads"))),
    };
    match file.count("llama.rope.dimension_count")? {
        Some(rotated) if rotated != size_of_head as u64 => Err(Error::input(format!(
            "rotary embedding of {rotated} of {size_of_head} numbers a head is not supported"
        ))),
        _ => Ok(size_of_head),
    }
}

/// Divisors from the `llama.rope.scaling.*` keys, and the scheme's name.
fn scaling(file: &Gguf, head_size: usize) -> Result<(Option<Vec<f32>>, Option<String>)> {
    let legacy = file.number("llama.rope.scale_linear")?.filter(|f| *f != 1.0);
    let kind = file.text("llama.rope.scaling.type")?;
    let by = match kind {
        None | Some("none") => legacy,
        Some("linear") => {
            Some(factor(file.number("llama.rope.scaling.factor")?.or(legacy), "key `llama.rope.scaling.factor`")?)
        }
        Some(other) => {
            return Err(Error::input(format!(
                "rotary scaling `{}` is not supported; `linear` and the factors of `rope_freqs.weight` are",
                sanitize_line(other)
            )));
        }
    };
    match by {
        Some(f) => {
            let f = factor(Some(f), "key `llama.rope.scale_linear`")?;
            Ok((Some(rope::linear(f, head_size)), Some(format!("linear x{f}"))))
        }
        None => Ok((None, None)),
    }
}
