//! What a model's own description says, from either source, in one form: sizes, rotary scaling, ties, end tokens.
//!
//! Refuses what would be computed wrongly: other architectures, experts, biases, sliding windows shorter than the
//! context, rotary schemes that are not known. Sizes are bounded before anyone multiplies them.

pub mod gguf;
pub mod hf;

use crate::base::{Error, Result};
use crate::device::Shape;

/// The model families that are known, for messages.
pub const SUPPORTED: &str = "Llama 2, 3, 3.1 and later, TinyLlama, SmolLM2, Mistral (GGUF architecture `llama`; \
                             LlamaForCausalLM and MistralForCausalLM in a folder)";

/// A model's description.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// As the file names it.
    pub architecture: String,
    pub shape: Shape,
    /// Whether the output matrix is the token embedding; `None`: as the tensors show.
    pub tied: Option<bool>,
    /// Name of the rotary scaling, where there is one.
    pub rope_scaling: Option<String>,
    pub license: Option<String>,
}

/// A size from a file, between 1 and 2^24 (2^30 for a context), so that no product of two overflows.
fn size(value: u64, what: &str, limit_bits: u32) -> Result<usize> {
    if (1..=1u64 << limit_bits).contains(&value) {
        Ok(value as usize)
    } else {
        Err(Error::input(format!("{what} is {value}, which no model has (1 to {})", 1u64 << limit_bits)))
    }
}

/// Checks what must hold between sizes.
fn check(shape: &Shape) -> Result<()> {
    if !shape.heads.is_multiple_of(shape.kv_heads) {
        return Err(Error::input(format!(
            "{} heads cannot share {} K/V heads evenly: the description is wrong",
            shape.heads, shape.kv_heads
        )));
    }
    if !shape.head_size.is_multiple_of(2) {
        return Err(Error::input(format!("head size {} is odd, which rotary embedding cannot use", shape.head_size)));
    }
    if !(shape.norm_eps > 0.0 && shape.norm_eps < 1.0) {
        return Err(Error::input(format!("the norm's epsilon is {}, not between 0 and 1", shape.norm_eps)));
    }
    if !(shape.rope.theta >= 1.0 && shape.rope.theta.is_finite()) {
        return Err(Error::input(format!("the rotary base is {}, not a number from 1 on", shape.rope.theta)));
    }
    match &shape.rope.factors {
        Some(factors) if factors.len() != shape.head_size / 2 => Err(Error::input(format!(
            "{} rotary divisors for a head size of {} ({} are needed)",
            factors.len(),
            shape.head_size,
            shape.head_size / 2
        ))),
        Some(factors) if factors.iter().any(|f| !(f.is_finite() && *f > 0.0)) => {
            Err(Error::input("a rotary divisor is not a positive number"))
        }
        _ => Ok(()),
    }
}

/// A positive factor of a rotary scheme.
fn factor(value: Option<f64>, what: &str) -> Result<f64> {
    match value {
        Some(v) if v > 0.0 && v.is_finite() => Ok(v),
        Some(v) => Err(Error::input(format!("{what} is {v}, not a positive number"))),
        None => Err(Error::input(format!("{what} is missing"))),
    }
}
