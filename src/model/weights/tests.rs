//! Every type that can be computed with is loaded without a copy; every wrong shape is refused by name.

use super::*;
use crate::device::weight::Bytes;
use crate::model::gguf::Gguf;
use crate::model::gguf::write::Writer;
use crate::model::testing::{HIDDEN, file, numbers, small_model};
use candle_core::Device;
use candle_core::quantized::{QStorage, QTensor};

fn load_file(writer: &Writer) -> Result<Weights> {
    let (_dir, path) = file("model.gguf", &writer.bytes());
    let gguf = Gguf::open(&path)?;
    let config = crate::model::config::gguf::read(&gguf)?;
    load(&gguf, Naming::Gguf, &config)
}

#[test]
fn every_type_is_loaded_from_the_map_as_candle_wrote_it() {
    for block in types::TYPES.iter() {
        let Some(kind) = block.kind else { continue };
        // candle writes no Q8_1; its bytes are read like the others'.
        if kind == GgmlDType::Q8_1 {
            continue;
        }
        let weights = load_file(&small_model(kind)).unwrap();
        let wq = &weights.layers[0].wq;
        assert_eq!((wq.kind, wq.rows, wq.cols), (kind, HIDDEN, HIDDEN));
        assert!(matches!(wq.bytes, Bytes::Mapped { .. }), "{} was copied", block.name);
        let values = numbers(HIDDEN * HIDDEN, (HIDDEN + "blk.0.attn_q.weight".len()) as u64);
        let storage = QStorage::from_data(wq.bytes.as_slice().into(), &Device::Cpu, kind).unwrap();
        let read = QTensor::new(storage, (HIDDEN, HIDDEN)).unwrap().dequantize(&Device::Cpu).unwrap();
        let read = read.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let off = values.iter().zip(&read).map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max);
        // Two bits a number are the coarsest.
        let allowed = if kind == GgmlDType::Q2K { 0.6 } else { 0.3 };
        assert!(off < allowed, "{}: off by {off}", block.name);
    }
}

#[test]
fn missing_wrong_and_unknown_tensors_are_refused_by_name() {
    let good = small_model(GgmlDType::F32);
    assert!(load_file(&good).is_ok());
    let check = |writer: Writer, parts: &[&str]| {
        let error = load_file(&writer).map(|_| ()).unwrap_err();
        for part in parts.iter().chain(&["model.gguf"]) {
            assert!(error.message().contains(part), "{error}");
        }
    };
    let name = "blk.0.attn_k.weight";
    let without = || good.clone().without_tensor(name);
    check(without(), &[name, "missing"]);
    check(
        without().tensor(name, &[HIDDEN, HIDDEN], &vec![0.0; HIDDEN * HIDDEN], GgmlDType::F32),
        &[name, "[128, 256]"],
    );
    check(without().raw_tensor(name, &[256, 128], 20, vec![0; 128 * 8 * 18]), &[name, "IQ4_NL", "Q4_1"]);
    let further = good.clone().tensor("blk.1.attn_norm.weight", &[HIDDEN], &vec![1.0; HIDDEN], GgmlDType::F32);
    check(further, &["blk.1.attn_norm.weight", "says 1 layer:"]);
    let norm = "output_norm.weight";
    check(good.clone().without_tensor(norm).tensor(norm, &[HIDDEN], &vec![f32::NAN; HIDDEN], GgmlDType::F32), &[norm]);
    check(good.clone().without_tensor(norm).tensor(norm, &[1, HIDDEN], &vec![1.0; HIDDEN], GgmlDType::F32), &[norm]);
    check(good.clone().tensor("blk.0.attn_q.bias", &[HIDDEN], &vec![0.0; HIDDEN], GgmlDType::F32), &["attn_q.bias"]);
    check(good.clone().without("llama.embedding_length").u32("llama.embedding_length", 512), &["[512]"]);
    check(good.clone().without("llama.block_count").u32("llama.block_count", 2), &["blk.1."]);
    check(good.clone().without("llama.attention.head_count").u32("llama.attention.head_count", 3), &["256", "3"]);
    check(good.clone().without("llama.attention.head_count_kv").u32("llama.attention.head_count_kv", 3), &["K/V"]);
    check(good.clone().without("llama.block_count").u32("llama.block_count", 0), &["block_count` is 0"]);
    check(good.clone().without("llama.block_count").u32("llama.block_count", u32::MAX), &["no model has"]);
    check(good.clone().u32("llama.expert_count", 8), &["mixture of experts"]);
    check(good.clone().u32("llama.attention.sliding_window", 64), &["sliding window of 64"]);
    check(good.clone().u32("llama.rope.dimension_count", 32), &["32 of 64"]);
    check(good.clone().text("llama.rope.scaling.type", "yarn"), &["`yarn`"]);
    check(good.clone().without("general.architecture"), &["general.architecture"]);
}

#[test]
fn rotary_factors_come_from_the_tensor_and_from_the_keys() {
    let factors: Vec<f32> = (0..32).map(|i| 1.0 + i as f32).collect();
    let good = small_model(GgmlDType::F32).tensor("rope_freqs.weight", &[32], &factors, GgmlDType::F32);
    assert_eq!(load_file(&good).unwrap().shape.rope.factors, Some(factors.clone()));
    let linear = good.text("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 2.0);
    let doubled: Vec<f32> = factors.iter().map(|f| 2.0 * f).collect();
    assert_eq!(load_file(&linear).unwrap().shape.rope.factors, Some(doubled));
    let wrong = small_model(GgmlDType::F32).tensor("rope_freqs.weight", &[16], &factors[..16], GgmlDType::F32);
    assert!(load_file(&wrong).map(|_| ()).unwrap_err().message().contains("16 rotary divisors"));
}

#[test]
fn an_absent_output_matrix_is_the_embedding() {
    let tied = small_model(GgmlDType::Q8_0);
    assert!(load_file(&tied).unwrap().output.is_none());
    let rows = crate::model::testing::VOCAB;
    let untied = tied.tensor("output.weight", &[rows, HIDDEN], &numbers(rows * HIDDEN, 1), GgmlDType::Q4_0);
    assert_eq!(load_file(&untied).unwrap().output.map(|o| (o.rows, o.kind)), Some((rows, GgmlDType::Q4_0)));
}
