//! What there is to know of a model without reading its weights, for lists and for `model info`.

use super::config::Config;
use super::weights::type_counts;
use crate::base::size::Human;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

/// Serialises to the JSON that `model list --json` prints; `Display` is for people.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelInfo {
    /// As the user named it, or as a list shows it.
    pub name: String,
    /// `None`: made up in memory (`random:…`).
    pub path: Option<PathBuf>,
    /// `gguf`, `safetensors` or `random`.
    pub format: &'static str,
    pub architecture: String,
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_size: usize,
    pub feed_forward: usize,
    pub vocab: usize,
    /// Bytes of one token's keys and values over all layers in 16-bit numbers.
    pub kv_bytes_per_token: u64,
    /// Tokens it can see.
    pub context: usize,
    /// Tensor type and how many tensors are of it, the most frequent first.
    pub tensor_types: Vec<(String, usize)>,
    /// Numbers in all tensors.
    pub parameters: u64,
    pub file_bytes: u64,
    /// `byte-level BPE (smollm)`, `SentencePiece`, `tokenizer.json`, …
    pub tokenizer: String,
    pub chat_template: bool,
    pub rope_scaling: Option<String>,
    pub license: Option<String>,
}

/// What a source knows beyond its description.
pub struct Facts {
    pub name: String,
    pub path: Option<PathBuf>,
    pub format: &'static str,
    pub file_bytes: u64,
    pub tokenizer: String,
    pub chat_template: bool,
}

impl ModelInfo {
    /// `tensors`: type name and numbers of each.
    pub fn new(config: &Config, facts: Facts, tensors: &[(String, u64)]) -> Self {
        let shape = &config.shape;
        Self {
            name: facts.name,
            path: facts.path,
            format: facts.format,
            architecture: config.architecture.clone(),
            layers: shape.layers,
            hidden: shape.hidden,
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            head_size: shape.head_size,
            feed_forward: shape.feed_forward,
            vocab: shape.vocab,
            kv_bytes_per_token: 2 * shape.kv_numbers_per_token() as u64,
            context: shape.context,
            tensor_types: type_counts(tensors.iter().map(|(kind, _)| kind.as_str())),
            parameters: tensors.iter().map(|(_, n)| n).sum(),
            file_bytes: facts.file_bytes,
            tokenizer: facts.tokenizer,
            chat_template: facts.chat_template,
            rope_scaling: config.rope_scaling.clone(),
            license: config.license.clone(),
        }
    }
}

impl fmt::Display for ModelInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, value: String| writeln!(f, "{name:<16} {value}");
        line("name", self.name.clone())?;
        if let Some(path) = &self.path {
            line("path", path.display().to_string())?;
        }
        line("format", format!("{}, {}", self.format, Human(self.file_bytes)))?;
        line("architecture", self.architecture.clone())?;
        line("parameters", format!("{:.1} million", self.parameters as f64 / 1e6))?;
        line("layers", self.layers.to_string())?;
        line("hidden size", format!("{}, feed-forward {}", self.hidden, self.feed_forward))?;
        line("heads", format!("{} of {}, {} for K/V", self.heads, self.head_size, self.kv_heads))?;
        line("K/V per token", format!("{} (f16, all layers)", Human(self.kv_bytes_per_token)))?;
        line("context", format!("{} tokens", self.context))?;
        if let Some(scaling) = &self.rope_scaling {
            line("rotary scaling", scaling.clone())?;
        }
        let types: Vec<String> = self.tensor_types.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
        line("tensors", types.join(", "))?;
        line("tokenizer", format!("{}, {} tokens", self.tokenizer, self.vocab))?;
        line("chat template", if self.chat_template { "yes".into() } else { "no".into() })?;
        if let Some(license) = &self.license {
            line("license", license.clone())?;
        }
        Ok(())
    }
}
