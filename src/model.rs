//! Llama models: where they come from, their weights, tokenizer and chat template, and the forward pass.

pub mod llama;
#[cfg(test)]
pub mod reference;
