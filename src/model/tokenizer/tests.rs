//! Ids against an independent engine, decoding piece by piece, and tokenizers that are refused.

use super::*;
use crate::model::gguf::write::Writer;
use crate::model::testing::{cases, file, real_model, small_model};
use candle_core::quantized::GgmlDType;
use proptest::prelude::*;
use serde_json::Value;
use std::fs;
use std::sync::OnceLock;

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn real() -> Option<&'static Tokenizer> {
    static REAL: OnceLock<Option<Tokenizer>> = OnceLock::new();
    REAL.get_or_init(|| {
        real_model().map(|p| Tokenizer::from_gguf(&crate::model::gguf::Gguf::open(&p).unwrap()).unwrap())
    })
    .as_ref()
}

fn stream(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let mut decoder = StreamDecoder::new(tokenizer);
    let mut text: String = ids.iter().map(|&id| decoder.push(id)).collect();
    text.push_str(&decoder.finish());
    text
}

#[test]
fn the_default_models_ids_are_those_of_the_independent_engine() {
    let (Some(cases), Some(tokenizer)) = (cases(), real()) else { return };
    let reference = json(&cases.join("reference/smollm2.json"));
    for case in reference["texts"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text, Special::Text), ids(&case["ids"]), "{text:?}");
        assert_eq!(tokenizer.encode(text, Special::Parse), ids(&case["ids_parse_special"]), "{text:?}");
        assert_eq!(tokenizer.decode(&ids(&case["ids"])), text);
        assert_eq!(stream(tokenizer, &ids(&case["ids"])), text);
    }
    for case in reference["prompts"].as_array().unwrap() {
        let prompt = case["prompt"].as_str().unwrap();
        assert_eq!(tokenizer.encode(prompt, Special::Parse), ids(&case["ids"]), "{prompt:?}");
    }
}

#[test]
fn the_default_models_control_tokens_are_parsed_only_when_asked() {
    let Some(tokenizer) = real() else { return };
    let turn = "<|im_start|>user\nhi<|im_end|>";
    let parsed = tokenizer.encode(turn, Special::Parse);
    assert_eq!((parsed[0], *parsed.last().unwrap()), (1, 2));
    let text = tokenizer.encode(turn, Special::Text);
    assert!(text.iter().all(|&id| !tokenizer.is_special(id)), "{text:?}");
    assert_eq!(tokenizer.decode(&text), turn, "text stays as it was");
    assert_eq!(tokenizer.decode(&parsed), "user\nhi", "control tokens have no text");
    assert!(tokenizer.is_end(2) && tokenizer.is_end(0) && !tokenizer.is_end(1));
    assert_eq!((tokenizer.bos(), tokenizer.bos_text(), tokenizer.vocab_len()), (None, "<|im_start|>", 49152));
    assert_eq!(tokenizer.kind(), "byte-level BPE (smollm)");
}

/// Case 14: a character split over tokens.
#[test]
fn streamed_stored_and_decoded_text_agree() {
    let Some(cases) = cases() else { return };
    let case = json(&cases.join("A/14_token_ids.json"));
    let gguf = crate::model::gguf::Gguf::open(&cases.join("tiny/untied.gguf")).unwrap();
    let both =
        [Tokenizer::from_folder(&cases.join("tiny/hf"), Some(1), &[2]).unwrap(), Tokenizer::from_gguf(&gguf).unwrap()];
    let (ids, text) = (ids(&case["ids"]), case["text"].as_str().unwrap());
    for tokenizer in &both {
        assert_eq!(stream(tokenizer, &ids), text);
        assert_eq!(tokenizer.decode(&ids), text);
        assert_eq!(tokenizer.encode_continued(text), ids);
        let mut decoder = StreamDecoder::new(tokenizer);
        let pieces: Vec<String> = ids.iter().map(|&id| decoder.push(id)).collect();
        assert_eq!(pieces, ["a", " ", "", "", "", "\u{1f600}", " ", "d", "", "\u{e9}"]);
        assert_eq!(decoder.finish(), "");
    }
    // The same vocabulary in two forms gives the same ids, with the space before a beginning.
    for text in ["", " ", "a b", "42 7 -3", "\u{1f600}x", "<s>a</s>", "two  spaces ", "line\nline"] {
        assert_eq!(both[0].encode(text, Special::Text), both[1].encode(text, Special::Text), "{text:?}");
        assert_eq!(both[0].encode(text, Special::Parse), both[1].encode(text, Special::Parse), "{text:?}");
        assert_eq!(both[0].encode_continued(text), both[1].encode_continued(text), "{text:?}");
        let ids = both[0].encode(text, Special::Text);
        assert_eq!(both[0].decode_from_start(&ids), text);
    }
    assert_eq!(both[0].encode("a", Special::Text), vec![259, 282]);
    assert_eq!(both[0].encode_continued("a"), vec![282]);
    assert_eq!(both[0].bos(), Some(1), "the post-processor adds it");
    assert_eq!(both[1].bos(), Some(1));
}

#[test]
fn unfinished_and_wrong_bytes_show_as_replacement_characters() {
    let bytes = Tokenizer::bytes(300);
    for wrong in [&b"ab\xf0\x9f"[..], b"\xff\xfeok", b"\xe4\xb8x", b"\xc3"] {
        let ids: Vec<u32> = wrong.iter().map(|&b| u32::from(b)).collect();
        let expected = String::from_utf8_lossy(wrong);
        assert_eq!(stream(&bytes, &ids), expected);
        assert_eq!(bytes.decode(&ids), expected);
    }
    assert_eq!(bytes.encode("a<s>\u{e9}", Special::Parse), vec![97, 256, 0xc3, 0xa9]);
    assert_eq!(bytes.encode("<s>", Special::Text), vec![60, 115, 62]);
    assert_eq!((bytes.vocab_len(), bytes.token_bytes(256), bytes.token_bytes(9999)), (300, &b""[..], &b""[..]));
    assert!(bytes.is_end(257));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn any_text_comes_back_and_streams_alike(text in "(\\PC| |\n|\t|<\\|im_end\\|>|[0-9]{1,4}){0,30}") {
        let Some(tokenizer) = real() else { return Ok(()) };
        let ids = tokenizer.encode(&text, Special::Text);
        // Bytes that the vocabulary lacks are left out.
        let single: std::collections::HashSet<&[u8]> = (0..49_152).map(|id| tokenizer.token_bytes(id)).collect();
        prop_assume!(text.bytes().all(|b| single.contains(&[b][..])));
        prop_assert_eq!(&tokenizer.decode(&ids), &text);
        prop_assert_eq!(&stream(tokenizer, &ids), &text);
        prop_assert!(ids.iter().all(|&id| !tokenizer.is_special(id)));
        prop_assert_eq!(&tokenizer.decode(&tokenizer.encode_continued(&text)), &text);
    }

    /// Whatever ids a model draws: streaming and decode-all agree.
    #[test]
    fn any_ids_stream_as_they_decode(ids in prop::collection::vec(0u32..49_200, 0..40)) {
        let Some(tokenizer) = real() else { return Ok(()) };
        prop_assert_eq!(stream(tokenizer, &ids), tokenizer.decode(&ids));
    }
}

fn refused_gguf(writer: Writer) -> String {
    let (_dir, path) = file("tok.gguf", &writer.bytes());
    let gguf = crate::model::gguf::Gguf::open(&path).unwrap();
    Tokenizer::from_gguf(&gguf).map(|_| ()).unwrap_err().message().to_string()
}

#[test]
fn broken_vocabularies_are_refused() {
    let good = || small_model(GgmlDType::F32);
    let check = |writer: Writer, part: &str| {
        let message = refused_gguf(writer);
        assert!(message.contains(part) && message.contains("tok.gguf"), "{message}");
    };
    check(good().without("tokenizer.ggml.model"), "tokenizer.ggml.model");
    check(good().without("tokenizer.ggml.model").text("tokenizer.ggml.model", "bert"), "`bert`");
    check(good().without("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens");
    check(good().without("tokenizer.ggml.scores"), "tokenizer.ggml.scores");
    check(good().without("tokenizer.ggml.scores").f32s("tokenizer.ggml.scores", &[1.0]), "1 elements for 264 tokens");
    check(good().without("tokenizer.ggml.eos_token_id").u32("tokenizer.ggml.eos_token_id", 999), "token 999 of 264");
    let gpt2 = || {
        let tokens: Vec<String> = (0..=255u8).map(|b| bpe::char_of(b).to_string()).chain(["ab".into()]).collect();
        Writer::default().text("tokenizer.ggml.model", "gpt2").texts("tokenizer.ggml.tokens", &tokens)
    };
    check(gpt2(), "tokenizer.ggml.merges");
    check(gpt2().texts("tokenizer.ggml.merges", &["a c"]), "merge 0");
    check(gpt2().texts("tokenizer.ggml.merges", &["a b"]).text("tokenizer.ggml.pre", "zebra"), "`zebra`");
    let (_dir, path) = file("ok.gguf", &gpt2().texts("tokenizer.ggml.merges", &["a b"]).bytes());
    let gguf = crate::model::gguf::Gguf::open(&path).unwrap();
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    assert_eq!(tokenizer.kind(), "byte-level BPE (default)");
    assert_eq!(tokenizer.encode("cab", Special::Text), vec![99, 256]);
}

#[test]
fn llama_3_cuts_and_ignores_merges() {
    let mut tokens: Vec<String> = (0..=255u8).map(|b| bpe::char_of(b).to_string()).collect();
    // "123" is a token that no merge makes.
    tokens.extend(["123", "\u{120}a", "<|begin_of_text|>", "<|eot_id|>"].map(String::from));
    let mut kinds = vec![1; 258];
    kinds.extend([3, 3]);
    let space = bpe::char_of(b' ');
    let writer = Writer::default()
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "llama-bpe")
        .texts("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &kinds)
        .texts("tokenizer.ggml.merges", &[format!("{space} a")])
        .u32("tokenizer.ggml.bos_token_id", 258)
        .u32("tokenizer.ggml.eos_token_id", 259);
    let (_dir, path) = file("llama3.gguf", &writer.bytes());
    let tokenizer = Tokenizer::from_gguf(&crate::model::gguf::Gguf::open(&path).unwrap()).unwrap();
    // Digits are cut in threes from the left; a whole cut that is a token is taken.
    assert_eq!(tokenizer.encode("1234", Special::Text), vec![256, u32::from(b'4')]);
    assert_eq!(tokenizer.encode(" a", Special::Text), vec![257]);
    assert_eq!(tokenizer.bos(), Some(258), "llama-bpe adds it where the file does not say");
    assert!(tokenizer.is_end(259));
}

/// `tiny/hf` in a folder of its own, with files added.
fn tiny_with(files: &[(&str, &str)]) -> Option<tempfile::TempDir> {
    let cases = cases()?;
    let dir = tempfile::tempdir().unwrap();
    for name in ["tokenizer.json", "config.json", "model.safetensors"] {
        fs::write(dir.path().join(name), fs::read(cases.join("tiny/hf").join(name)).unwrap()).unwrap();
    }
    for (name, text) in files {
        fs::write(dir.path().join(name), text).unwrap();
    }
    Some(dir)
}

/// Case 16: several end tokens.
#[test]
fn end_tokens_come_as_a_list_too() {
    let Some(cases) = cases() else { return };
    let list = fs::read_to_string(cases.join("A/16_generation_config.json")).unwrap();
    let Some(dir) = tiny_with(&[("generation_config.json", &list)]) else { return };
    let tokenizer = Tokenizer::from_folder(dir.path(), Some(1), &[2]).unwrap();
    assert_eq!(tokenizer.ends(), [2, 308]);
    assert_eq!(tokenizer.decode(&[282, 308]), "a", "the end's name is no text");
}

#[test]
fn ids_and_names_that_are_no_tokens_are_refused_with_their_file_and_key() {
    let check = |file: &str, text: &str, bos: Option<u32>, ends: &[u32], parts: [&str; 2]| {
        let Some(dir) = tiny_with(&[(file, text)]) else { return };
        let error = Tokenizer::from_folder(dir.path(), bos, ends).map(|_| ()).unwrap_err();
        let message = error.message();
        assert!(message.contains(file) && parts.iter().all(|part| message.contains(part)), "{text}: {message}");
    };
    let generation = "generation_config.json";
    check(generation, "{", None, &[], ["cannot be read", ""]);
    for (ids, part) in
        [("[7, 100000]", "token 100000"), ("[7, \"x\"]", "x"), ("-1", "`-1`"), ("\"2\"", "remove the key")]
    {
        check(generation, &format!("{{\"eos_token_id\": {ids}}}"), None, &[], ["eos_token_id", part]);
    }
    let config = fs::read_to_string(cases().unwrap_or_default().join("tiny/hf/config.json")).unwrap_or_default();
    check("config.json", &config, Some(309), &[2], ["`bos_token_id` names token 309", "has 309"]);
    check("config.json", &config, Some(1), &[2, 5000], ["`eos_token_id` names token 5000", "remove the key"]);
    let tokenizer = "tokenizer_config.json";
    check(tokenizer, r#"{"eos_token": "<nope>"}"#, None, &[], ["`eos_token`", "<nope>"]);
    check(tokenizer, r#"{"bos_token": {"content": "<nope>"}}"#, None, &[], ["`bos_token`", "<nope>"]);
    check(tokenizer, r#"{"eos_token": 2}"#, None, &[], ["`eos_token`", "neither"]);
    check(tokenizer, r#"{"add_bos_token": "yes"}"#, None, &[], ["`add_bos_token`", "neither"]);
}

#[test]
fn hostile_tokenizer_files_are_refused() {
    let check = |text: &str, part: &str| {
        let Some(dir) = tiny_with(&[("tokenizer.json", text)]) else { return };
        let error = Tokenizer::from_folder(dir.path(), None, &[]).map(|_| ()).unwrap_err();
        assert!(error.message().contains(part) && error.message().contains("tokenizer.json"), "{text}: {error}");
    };
    let with = |model: &str, more: &str| {
        format!(r#"{{"added_tokens": [], "decoder": {{"type": "ByteFallback"}}, "model": {model}{more}}}"#)
    };
    check("[]", "JSON object");
    check("{}", "no `model`");
    check(&with(r#"{"type": "Unigram"}"#, ""), "`Unigram`");
    check(&with(r#"{"type": "BPE", "vocab": {}, "merges": []}"#, ""), "no vocabulary");
    check(&with(r#"{"type": "BPE", "vocab": {"a": 0}}"#, ""), "no list of merges");
    // A merge longer than every token makes the library write beyond its buffer.
    check(&with(r#"{"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]}"#, ""), "merge 0");
    check(&with(r#"{"type": "BPE", "vocab": {"a": 4000000000}, "merges": []}"#, ""), "no possible id");
    check(
        &with(r###"{"type": "BPE", "vocab": {"a": 0}, "merges": [], "continuing_subword_prefix": "##"}"###, ""),
        "prefix",
    );
    check(r#"{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}"#, "decoder");
    check(
        &with(r#"{"type": "BPE", "vocab": {"a": 0}, "merges": []}"#, r#", "pre_tokenizer": {"type": "Nope"}"#),
        "used",
    );
    // Found by fuzzing: the library panics on a name that its template does not declare.
    for declared in [
        r#"{}"#,
        r#"{"0<s>": {"id": "<s>", "ids": [0], "tokens": ["a"]}}"#,
        r#"{"<s>": {"id": "<s>", "ids": [0, 0], "tokens": ["a"]}}"#,
    ] {
        let template = format!(
            r#"{{"type": "TemplateProcessing", "single": [{{"SpecialToken": {{"id": "<s>", "type_id": 0}}}}, {{"Sequence": {{"id": "A", "type_id": 0}}}}], "pair": [], "special_tokens": {declared}}}"#
        );
        let model = r#"{"type": "BPE", "vocab": {"a": 0}, "merges": []}"#;
        check(&with(model, &format!(r#", "post_processor": {template}"#)), "`<s>`");
        let nested = format!(r#", "post_processor": {{"type": "Sequence", "processors": [{template}]}}"#);
        check(&with(model, &nested), "`<s>`");
    }
    // And on a second text in the template for one.
    for second in ["B", "C", ""] {
        let template = format!(
            r#"{{"type": "TemplateProcessing", "single": [{{"Sequence": {{"id": "{second}", "type_id": 0}}}}], "pair": [], "special_tokens": {{}}}}"#
        );
        let model = r#"{"type": "BPE", "vocab": {"a": 0}, "merges": []}"#;
        check(&with(model, &format!(r#", "post_processor": {template}"#)), &format!("a text `{second}`"));
    }
    check(&"[".repeat(100_000), "cannot be read");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn mutated_tokenizer_files_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5)) {
        let Some(cases) = cases() else { return Ok(()) };
        let mut bytes = fs::read(cases.join("tiny/hf/tokenizer.json")).unwrap();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("tokenizer.json"), &bytes).unwrap();
        if let Ok(tokenizer) = Tokenizer::from_folder(dir.path(), Some(1), &[2]) {
            let ids = tokenizer.encode("a b 12 \u{1f600} <s>", Special::Parse);
            tokenizer.decode(&ids);
        }
    }
}
