//! A folder's description: Transformers' `config.json`.
//!
//! Own serde rather than candle's `LlamaConfig`, which has no head size, no linear scaling, no way to tell an unknown
//! scheme's name, and takes a wrong field for a missing one.

use super::{Config, SUPPORTED, check, factor, size};
use crate::base::text::sanitize_line;
use crate::base::{Error, Result};
use crate::device::{Rope, RopeLayout, Shape};
use crate::model::rope::{self, Llama3};
use serde::Deserialize;
use serde_json::Value;

/// Characters of a wrong value that its message shows.
const SHOWN: usize = 40;

#[derive(Deserialize)]
struct Raw {
    #[serde(default)]
    architectures: Vec<String>,
    model_type: Option<String>,
    hidden_size: Option<u64>,
    intermediate_size: Option<u64>,
    num_hidden_layers: Option<u64>,
    num_attention_heads: Option<u64>,
    num_key_value_heads: Option<u64>,
    head_dim: Option<u64>,
    vocab_size: Option<u64>,
    max_position_embeddings: Option<u64>,
    rms_norm_eps: Option<f64>,
    rope_theta: Option<f64>,
    rope_scaling: Option<Scaling>,
    /// The newer place of both rotary fields.
    rope_parameters: Option<Scaling>,
    tie_word_embeddings: Option<bool>,
    hidden_act: Option<String>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    sliding_window: Option<u64>,
    quantization_config: Option<Value>,
    bos_token_id: Option<Value>,
    eos_token_id: Option<Value>,
}

#[derive(Deserialize, Clone)]
struct Scaling {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
}

/// A description and the token ids it names.
pub struct HfConfig {
    pub config: Config,
    pub bos: Option<u32>,
    pub ends: Vec<u32>,
}

/// Reads the text of a `config.json`.
pub fn read(text: &str) -> Result<HfConfig> {
    if !text.trim_start().is_empty() && !text.trim_start().starts_with('{') {
        return Err(Error::input("is not a description of a model: a JSON object is needed"));
    }
    let raw: Raw = serde_json::from_str(text).map_err(|e| Error::input(format!("cannot be read: {e}")))?;
    let architecture = architecture(&raw)?;
    refuse_unsupported(&raw)?;
    let (rope_scaling, shape) = shape(&raw)?;
    if let Some(window) = raw.sliding_window
        && window < shape.context as u64
    {
        return Err(super::gguf::sliding_window(window, shape.context));
    }
    check(&shape)?;
    Ok(HfConfig {
        config: Config {
            architecture,
            shape,
            tied: Some(raw.tie_word_embeddings.unwrap_or(false)),
            rope_scaling,
            license: None,
        },
        bos: token_ids("bos_token_id", raw.bos_token_id.as_ref(), false)?.first().copied(),
        ends: token_ids("eos_token_id", raw.eos_token_id.as_ref(), true)?,
    })
}

/// The token ids that a description gives under `key`: one number, or where `several` also a list; none where the key is
/// absent or null. An id that is passed over would have texts run on past their end.
pub fn token_ids(key: &str, value: Option<&Value>, several: bool) -> Result<Vec<u32>> {
    let values = match value {
        None | Some(Value::Null) => &[],
        Some(Value::Array(list)) if several => list.as_slice(),
        Some(one) => std::slice::from_ref(one),
    };
    let one = |value: &Value| {
        value.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| {
            let form = if several { "a number or a list of numbers" } else { "a number" };
            let shown: String = sanitize_line(&value.to_string()).chars().take(SHOWN).collect();
            Error::input(format!("`{key}` has `{shown}`, which is no token id: write {form}, or remove the key"))
        })
    };
    values.iter().map(one).collect()
}

fn architecture(raw: &Raw) -> Result<String> {
    let known = |name: &str| matches!(name, "LlamaForCausalLM" | "MistralForCausalLM");
    if let Some(name) = raw.architectures.iter().find(|a| known(a)) {
        return Ok(name.clone());
    }
    if raw.architectures.is_empty() {
        match raw.model_type.as_deref() {
            Some("llama") => return Ok("LlamaForCausalLM".to_string()),
            Some("mistral") => return Ok("MistralForCausalLM".to_string()),
            _ => {}
        }
    }
    let named = raw.architectures.first().or(raw.model_type.as_ref());
    let named = named.map_or("(none named)".to_string(), |n| sanitize_line(n));
    Err(Error::input(format!("architecture `{named}` is not supported; supported: {SUPPORTED}")))
}

fn refuse_unsupported(raw: &Raw) -> Result<()> {
    if raw.attention_bias == Some(true) || raw.mlp_bias == Some(true) {
        return Err(Error::input("its products have biases (attention_bias or mlp_bias), which is not supported"));
    }
    if let Some(act) = raw.hidden_act.as_deref()
        && act != "silu"
        && act != "swish"
    {
        return Err(Error::input(format!("activation `{}` is not supported; `silu` is", sanitize_line(act))));
    }
    if let Some(quantisation) = &raw.quantization_config {
        let method = quantisation.get("quant_method").and_then(Value::as_str).unwrap_or("unknown");
        return Err(Error::input(format!(
            "its weights are quantised in a form that is not supported (`{}`): take the plain model, or a GGUF file",
            sanitize_line(method)
        )));
    }
    Ok(())
}

fn shape(raw: &Raw) -> Result<(Option<String>, Shape)> {
    let need = |value: Option<u64>, name: &str, bits: u32| match value {
        Some(v) => size(v, &format!("field `{name}`"), bits),
        None => Err(Error::input(format!("field `{name}` is missing"))),
    };
    let hidden = need(raw.hidden_size, "hidden_size", 24)?;
    let heads = need(raw.num_attention_heads, "num_attention_heads", 24)?;
    let head_size = match raw.head_dim {
        Some(d) => size(d, "field `head_dim`", 16)?,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => return Err(Error::input(format!("hidden_size {hidden} is no multiple of {heads} heads"))),
    };
    let context = need(raw.max_position_embeddings, "max_position_embeddings", 30)?;
    let scaling = raw.rope_parameters.clone().or_else(|| raw.rope_scaling.clone());
    let theta = raw.rope_theta.or(scaling.as_ref().and_then(|s| s.rope_theta)).unwrap_or(10_000.0);
    let (factors, rope_scaling) = match &scaling {
        Some(s) => factors(s, theta, head_size)?,
        None => (None, None),
    };
    let shape = Shape {
        layers: need(raw.num_hidden_layers, "num_hidden_layers", 16)?,
        hidden,
        heads,
        kv_heads: match raw.num_key_value_heads {
            Some(n) => size(n, "field `num_key_value_heads`", 24)?,
            None => heads,
        },
        head_size,
        feed_forward: need(raw.intermediate_size, "intermediate_size", 24)?,
        vocab: need(raw.vocab_size, "vocab_size", 24)?,
        context,
        norm_eps: raw.rms_norm_eps.unwrap_or(1e-6) as f32,
        rope: Rope { theta: theta as f32, factors, layout: RopeLayout::Halves },
    };
    Ok((rope_scaling, shape))
}

fn factors(scaling: &Scaling, theta: f64, head_size: usize) -> Result<(Option<Vec<f32>>, Option<String>)> {
    let place = |name: &str| format!("rotary scaling's `{name}`");
    match scaling.rope_type.as_deref() {
        None | Some("default") => Ok((None, None)),
        Some("linear") => {
            let by = factor(scaling.factor, &place("factor"))?;
            Ok((Some(rope::linear(by, head_size)), Some(format!("linear x{by}"))))
        }
        Some("llama3") => {
            let scheme = Llama3 {
                factor: factor(scaling.factor, &place("factor"))?,
                low_freq_factor: factor(scaling.low_freq_factor, &place("low_freq_factor"))?,
                high_freq_factor: factor(scaling.high_freq_factor, &place("high_freq_factor"))?,
                original_context: factor(
                    scaling.original_max_position_embeddings,
                    &place("original_max_position_embeddings"),
                )?,
            };
            if scheme.high_freq_factor <= scheme.low_freq_factor {
                return Err(Error::input("rotary scaling's `high_freq_factor` is not above its `low_freq_factor`"));
            }
            Ok((Some(scheme.factors(theta, head_size)), Some(format!("llama3 x{}", scheme.factor))))
        }
        Some(other) => Err(Error::input(format!(
            "rotary scaling `{}` is not supported; `linear` and `llama3` are",
            sanitize_line(other)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-5"#;

    fn with(more: &str) -> Result<HfConfig> {
        read(&format!("{BASE}{more}}}"))
    }

    #[test]
    fn what_cannot_be_computed_is_refused_by_name() {
        let check = |more: &str, part: &str| match with(more) {
            Ok(_) => panic!("{more} was taken"),
            Err(e) => assert!(e.message().contains(part), "{more}: {e}"),
        };
        check(r#", "rope_scaling": {"type": "yarn", "factor": 4}"#, "`yarn`");
        check(r#", "rope_scaling": {"rope_type": "llama3", "factor": 8}"#, "low_freq_factor");
        check(r#", "rope_scaling": {"rope_type": "linear", "factor": 0}"#, "positive");
        check(r#", "sliding_window": 128"#, "sliding window of 128");
        check(r#", "attention_bias": true"#, "biases");
        check(r#", "mlp_bias": true"#, "biases");
        check(r#", "hidden_act": "gelu""#, "gelu");
        check(r#", "quantization_config": {"quant_method": "awq"}"#, "awq");
        check(r#", "head_dim": 7"#, "odd");
        check(r#", "rope_theta": 0"#, "rotary base");
        check(r#", "head_dim": 0"#, "head_dim");
        for no_object in ["[]", "5", "\"x\""] {
            assert!(read(no_object).is_err_and(|e| e.message().contains("a JSON object is needed")), "{no_object}");
        }
        let refused = read(r#"{"architectures": ["ZebraForCausalLM"]}"#).map(|_| ()).unwrap_err();
        assert!(refused.message().contains("ZebraForCausalLM") && refused.message().contains("LlamaForCausalLM"));
        assert!(read(r#"{"hidden_size": "many"}"#).is_err());
        assert!(read(r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 64}"#).is_err());
    }

    #[test]
    fn scaling_and_overrides_are_taken() {
        let base = with("").unwrap().config;
        assert_eq!((base.shape.head_size, base.shape.kv_heads, base.tied), (16, 2, Some(false)));
        assert_eq!(base.shape.rope, Rope { theta: 10_000.0, factors: None, layout: RopeLayout::Halves });
        assert_eq!(with(r#", "head_dim": 32"#).unwrap().config.shape.head_size, 32);
        assert!(with(r#", "sliding_window": 256"#).is_ok());
        assert!(with(r#", "sliding_window": null"#).is_ok());
        let linear = with(r#", "rope_scaling": {"type": "linear", "factor": 2.0}"#).unwrap().config;
        assert_eq!(linear.shape.rope.factors, Some(vec![2.0; 8]));
        let llama3 = with(
            r#", "rope_parameters": {"rope_theta": 500000.0, "rope_type": "llama3", "factor": 8.0,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}"#,
        )
        .unwrap()
        .config;
        assert_eq!(llama3.shape.rope.theta, 500_000.0);
        let factors = llama3.shape.rope.factors.unwrap();
        assert_eq!((factors[0], factors[7]), (1.0, 8.0));
    }

    #[test]
    fn end_tokens_are_a_number_or_a_list() {
        assert_eq!(with(r#", "eos_token_id": 2"#).unwrap().ends, vec![2]);
        assert_eq!(with(r#", "eos_token_id": [2, 308]"#).unwrap().ends, vec![2, 308]);
        assert_eq!(with(r#", "bos_token_id": 1"#).unwrap().bos, Some(1));
        let none = with(r#", "bos_token_id": null, "eos_token_id": null"#).unwrap();
        assert_eq!((none.bos, none.ends), (None, vec![]));
        assert_eq!(with(r#", "eos_token_id": []"#).unwrap().ends, Vec::<u32>::new());
    }

    #[test]
    fn ids_that_are_none_are_refused() {
        for value in ["\"2\"", "-1", "2.5", "4294967296", "true", "{\"id\": 2}", "[2, \"x\"]", "[2, null]", "[[2]]"] {
            let error = with(&format!(", \"eos_token_id\": {value}")).map(|_| ()).unwrap_err();
            assert!(error.message().contains("`eos_token_id` has `"), "{value}: {error}");
            assert!(error.message().contains("remove the key"), "{value}: {error}");
            let error = with(&format!(", \"bos_token_id\": {value}")).map(|_| ()).unwrap_err();
            assert!(error.message().contains("`bos_token_id` has `"), "{value}: {error}");
        }
        assert!(with(r#", "bos_token_id": [1]"#).is_err());
    }
}
