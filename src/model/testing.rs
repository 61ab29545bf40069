//! Helpers of this module's tests: where shared cases and the real model lie, and a small valid GGUF model.

use super::gguf::write::Writer;
use crate::base::testing;
use candle_core::quantized::GgmlDType;
use std::path::PathBuf;

/// The folder of shared cases; a skip line and `None` where it is absent.
pub fn cases() -> Option<PathBuf> {
    testing::shared("a test of models").map(|shared| shared.join("cases"))
}

/// The default model's file; a skip line and `None` where it is absent, unless it is required.
pub fn real_model() -> Option<PathBuf> {
    testing::real_model("a test of models")
}

/// Numbers that look random and repeat on every run.
pub fn numbers(count: usize, seed: u64) -> Vec<f32> {
    use rand::Rng;
    let mut stream = crate::base::rng::stream(seed, "test numbers", &[]);
    (0..count).map(|_| stream.random_range(-1.0f32..1.0)).collect()
}

pub const HIDDEN: usize = 256;
pub const FEED_FORWARD: usize = 512;
pub const VOCAB: usize = 259 + 5;

/// Keys of a small Llama model with a SentencePiece vocabulary of bytes and a few pieces.
pub fn small_keys() -> Writer {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    tokens.extend((0..=255).map(|b| format!("<0x{b:02X}>")));
    tokens.extend(["\u{2581}", "a", "b", "ab", "\u{2581}ab"].map(String::from));
    let mut kinds = vec![2, 3, 3];
    kinds.extend([6; 256]);
    kinds.extend([1; 5]);
    let mut scores = vec![0.0; 259];
    scores.extend([-4.0, -3.0, -5.0, -1.0, -2.0]);
    Writer::default()
        .text("general.architecture", "llama")
        .u32("llama.context_length", 128)
        .u32("llama.embedding_length", HIDDEN as u32)
        .u32("llama.block_count", 1)
        .u32("llama.feed_forward_length", FEED_FORWARD as u32)
        .u32("llama.attention.head_count", 4)
        .u32("llama.attention.head_count_kv", 2)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        .u32("llama.vocab_size", VOCAB as u32)
        .text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", &tokens)
        .f32s("tokenizer.ggml.scores", &scores)
        .i32s("tokenizer.ggml.token_type", &kinds)
        .u32("tokenizer.ggml.bos_token_id", 1)
        .u32("tokenizer.ggml.eos_token_id", 2)
        .u32("tokenizer.ggml.unknown_token_id", 0)
}

/// A small Llama model with matrices of `kind`.
pub fn small_model(kind: GgmlDType) -> Writer {
    let kv = HIDDEN / 2;
    let ones = vec![1.0f32; HIDDEN];
    let matrix = |w: Writer, name: &str, rows: usize, cols: usize| {
        w.tensor(name, &[rows, cols], &numbers(rows * cols, (rows + name.len()) as u64), kind)
    };
    let mut w = matrix(small_keys(), "token_embd.weight", VOCAB, HIDDEN);
    w = w.tensor("output_norm.weight", &[HIDDEN], &ones, GgmlDType::F32);
    w = w.tensor("blk.0.attn_norm.weight", &[HIDDEN], &ones, GgmlDType::F32);
    w = w.tensor("blk.0.ffn_norm.weight", &[HIDDEN], &ones, GgmlDType::F32);
    w = matrix(w, "blk.0.attn_q.weight", HIDDEN, HIDDEN);
    w = matrix(w, "blk.0.attn_k.weight", kv, HIDDEN);
    w = matrix(w, "blk.0.attn_v.weight", kv, HIDDEN);
    w = matrix(w, "blk.0.attn_output.weight", HIDDEN, HIDDEN);
    w = matrix(w, "blk.0.ffn_gate.weight", FEED_FORWARD, HIDDEN);
    w = matrix(w, "blk.0.ffn_up.weight", FEED_FORWARD, HIDDEN);
    matrix(w, "blk.0.ffn_down.weight", HIDDEN, FEED_FORWARD)
}

/// Writes bytes under a name in a new folder, which is removed with the first value.
pub fn file(name: &str, bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    (dir, path)
}
