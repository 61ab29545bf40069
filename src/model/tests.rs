//! Whole models: the shared tiny one in all its forms, the default one, and what is refused.

use super::testing::{cases, real_model};
use super::*;
use crate::device::RopeLayout;
use crate::device::weight::Bytes;

fn open_path(path: &Path) -> Result<Model> {
    open(&path.display().to_string(), &OpenOptions::default())
}

/// Case 5, and all other forms of the tiny model.
#[test]
fn the_tiny_model_loads_in_every_form() {
    let Some(cases) = cases() else { return };
    let check = |name: &str, layout: RopeLayout, tied: bool, files: usize| {
        let model = open_path(&cases.join(name)).unwrap();
        let shape = &model.weights.shape;
        assert_eq!((shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.head_size), (2, 32, 4, 2, 8));
        assert_eq!((shape.feed_forward, shape.vocab, shape.context), (64, 309, 256));
        assert_eq!((shape.norm_eps, shape.rope.theta, shape.rope.layout), (1e-5, 10_000.0, layout));
        assert_eq!((model.weights.output.is_none(), model.files.len()), (tied, files), "{name}");
        assert_eq!(model.weights.embed.bytes.as_slice().len(), 309 * 32 * 4);
        assert!(matches!(model.weights.embed.bytes, Bytes::Mapped { .. }));
        assert_eq!((model.tokenizer.vocab_len(), model.tokenizer.bos()), (309, Some(1)));
        assert_eq!(model.info.kv_bytes_per_token, 2 * 2 * 2 * 8 * 2);
        assert!(model.template.is_none());
        model.weights.embed.bytes.as_slice().to_vec()
    };
    let embeds = [
        check("A/05_tied_no_output.gguf", RopeLayout::Interleaved, true, 1),
        check("tiny/untied.gguf", RopeLayout::Interleaved, false, 1),
        check("tiny/hf", RopeLayout::Halves, true, 1),
        check("tiny/hf_sharded", RopeLayout::Halves, true, 2),
        check("tiny/hf/model.safetensors", RopeLayout::Halves, true, 1),
    ];
    assert!(embeds.windows(2).all(|w| w[0] == w[1]), "the same numbers in every form");
}

/// Cases 3 and 9, and other names that lead nowhere.
#[test]
fn what_cannot_be_opened_says_why() {
    let check = |spec: &str, parts: &[&str]| {
        let error = open(spec, &OpenOptions::default()).map(|_| ()).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{error}");
        for part in parts {
            assert!(error.message().contains(part), "{spec}: {error}");
        }
    };
    check("random:nothing", &["llama3-8b"]);
    check("smollm3-135m-instruct", &["did you mean `smollm2-135m-instruct`", "GGUF file"]);
    let empty = tempfile::tempdir().unwrap();
    check(&empty.path().display().to_string(), &["config.json"]);
    let Some(cases) = cases() else { return };
    let case = |name: &str| cases.join("A").join(name).display().to_string();
    check(&case("09_unknown_arch.gguf"), &["09_unknown_arch.gguf", "`zebra9`", "Llama", "Mistral"]);
    check(&case("03_truncated_hf"), &["106928", "115928", "incomplete"]);
    check(&case("03_truncated.gguf"), &["incomplete"]);
}

#[test]
fn the_default_model_is_described() {
    let Some(path) = real_model() else { return };
    let info = info(&path).unwrap();
    assert_eq!((info.layers, info.hidden, info.heads, info.kv_heads, info.head_size), (30, 576, 9, 3, 64));
    assert_eq!((info.feed_forward, info.vocab, info.context), (1536, 49152, 8192));
    assert_eq!(info.kv_bytes_per_token, 2 * 30 * 3 * 64 * 2);
    let types: Vec<(&str, usize)> = info.tensor_types.iter().map(|(t, n)| (t.as_str(), *n)).collect();
    assert_eq!(types, [("Q4_1", 210), ("F32", 61), ("Q8_0", 1)]);
    assert_eq!((info.license.as_deref(), info.chat_template), (Some("apache-2.0"), true));
    let shown = info.to_string();
    for part in ["134.5 million", "22.5 KiB", "8192 tokens", "byte-level BPE (smollm)", "210 Q4_1"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let model = open_path(&path).unwrap();
    assert!(model.weights.output.is_none());
    assert_eq!(model.weights.shape.rope.theta, 100_000.0);
    assert!(model.weights.layers.iter().all(|l| matches!(l.down.bytes, Bytes::Mapped { .. })));
    assert_eq!(model.checksum().unwrap().as_deref(), Some(store::KNOWN[0].sha256));
}

#[test]
fn a_given_template_replaces_a_broken_one() {
    let (dir, path) = testing::file(
        "broken.gguf",
        &testing::small_model(candle_core::quantized::GgmlDType::Q8_0)
            .text("tokenizer.chat_template", "{% nope %}")
            .bytes(),
    );
    let error = open_path(&path).map(|_| ()).unwrap_err();
    assert!(error.message().contains("line 1") && error.message().contains("--chat-template"), "{error}");
    let own = dir.path().join("own.jinja");
    std::fs::write(&own, "{{ messages[0].content }}!").unwrap();
    let options = OpenOptions { chat_template: Some(&own), ..OpenOptions::default() };
    let model = open(&path.display().to_string(), &options).unwrap();
    let ids = model.prompt_ids(Form::Chat, "ab", &[]).unwrap();
    assert_eq!(model.tokenizer.decode_from_start(&ids), "ab!");
    assert_eq!(ids[0], 1);
}

/// The engine's thread owns a model, and many threads encode.
#[test]
fn models_go_to_other_threads() {
    fn send<T: Send>() {}
    fn share<T: Send + Sync>() {}
    send::<Model>();
    share::<Tokenizer>();
    share::<ChatTemplate>();
}
