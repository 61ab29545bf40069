//! Hostile and damaged files are refused quickly, with a message that says what is wrong and where.

use super::write::{Writer, string};
use super::*;
use crate::base::testing::thread_time;
use crate::model::testing::{cases, file, small_model};
use candle_core::quantized::GgmlDType;
use proptest::prelude::*;
use std::time::Duration;

fn refused(bytes: &[u8]) -> String {
    let (_dir, path) = file("case.gguf", bytes);
    match Gguf::open(&path) {
        Ok(_) => panic!("taken: {bytes:?}"),
        Err(e) => e.message().to_string(),
    }
}

#[test]
fn the_shared_hostile_files_are_refused_within_a_second() {
    let Some(cases) = cases() else { return };
    let check = |name: &str, parts: &[&str]| {
        let start = thread_time();
        let error = Gguf::open(&cases.join("A").join(name)).map(|_| ()).unwrap_err();
        let took = thread_time() - start;
        assert!(took < Duration::from_secs(1), "{name} took {took:?}");
        assert_eq!(error.exit_code(), 2);
        for part in parts.iter().chain(&[name]) {
            assert!(error.message().contains(part), "{name}: {error}");
        }
    };
    check("01_huge_string.gguf", &["57 bytes", "left"]);
    check("01_under_cap_string.gguf", &["57 bytes", "left"]);
    check("01_huge_array.gguf", &["69 bytes", "elements"]);
    check("01_huge_tensor_count.gguf", &["tensor count", "24 bytes"]);
    check("01_nested_array.gguf", &["arrays inside arrays"]);
    check("03_truncated.gguf", &["102560 bytes", "download is incomplete"]);
    check("03_truncated_header.gguf", &["900 bytes", "incomplete"]);
    check("03_empty.gguf", &["0 bytes", "incomplete"]);
    check("03_html_page.gguf", &["web page"]);
}

#[test]
fn values_of_all_types_are_read() {
    let writer = Writer::default()
        .text("text", "a \u{4e2d}")
        .u32("u32", 7)
        .f32("f32", 0.5)
        .flag("flag", true)
        .raw("i8", 1, &[0xff])
        .raw("u16", 2, &[1, 1])
        .raw("i64", 11, &(-3i64).to_le_bytes())
        .raw("f64", 12, &2.5f64.to_le_bytes())
        .texts("texts", &["x", "", "yz"])
        .i32s("i32s", &[-1, 2])
        .f32s("f32s", &[1.5]);
    for version in [2, 3] {
        let mut writer = writer.clone();
        writer.version = Some(version);
        let (_dir, path) = file("values.gguf", &writer.bytes());
        let read = Gguf::open(&path).unwrap();
        assert_eq!(read.version(), version);
        assert_eq!(read.text("text").unwrap(), Some("a \u{4e2d}"));
        assert_eq!(read.count("u32").unwrap(), Some(7));
        assert_eq!(read.count("u16").unwrap(), Some(257));
        assert_eq!(read.number("f32").unwrap(), Some(0.5));
        assert_eq!(read.number("f64").unwrap(), Some(2.5));
        assert_eq!(read.number("i8").unwrap(), Some(-1.0));
        assert_eq!(read.flag("flag").unwrap(), Some(true));
        assert_eq!(read.texts("texts").unwrap(), Some(vec!["x", "", "yz"]));
        assert_eq!(read.numbers("i32s").unwrap(), Some(vec![-1.0, 2.0]));
        assert_eq!(read.numbers("f32s").unwrap(), Some(vec![1.5]));
        assert_eq!(read.text("none").unwrap(), None);
        for wrong in [read.text("u32").map(|_| ()), read.count("i64").map(|_| ()), read.flag("u32").map(|_| ())] {
            assert!(wrong.unwrap_err().message().contains("values.gguf: key `"));
        }
        assert!(read.texts("i32s").is_err() && read.numbers("texts").is_err());
    }
}

#[test]
fn nested_arrays_are_walked_over_without_recursion() {
    let array = |element: u32, len: u64| [&element.to_le_bytes()[..], &len.to_le_bytes()].concat();
    // [[1, 2], ["a"], []] and a key behind it.
    let mut nested = array(9, 3);
    nested.extend([array(0, 2), vec![1, 2], array(8, 1), string("a"), array(9, 0)].concat());
    let writer = Writer::default().raw("nested", 9, &nested).u32("behind", 5);
    let (_dir, path) = file("nested.gguf", &writer.bytes());
    assert_eq!(Gguf::open(&path).unwrap().count("behind").unwrap(), Some(5));
    let mut deep = Vec::new();
    for _ in 0..9 {
        deep.extend(array(9, 1));
    }
    deep.extend(array(0, 0));
    assert!(refused(&Writer::default().raw("deep", 9, &deep).bytes()).contains("arrays inside arrays"));
}

#[test]
fn wrong_headers_are_refused_by_what_is_wrong() {
    let check = |bytes: &[u8], part: &str| {
        let message = refused(bytes);
        assert!(message.contains(part), "{message}");
    };
    check(b"GGML\x03\0\0\0", "does not begin with the letters GGUF");
    check(b"GGUF\x01\0\0\0", "version 1");
    check(b"GGUF\0\0\0\x03", "big-endian");
    check(b"GGUF\x09\0\0\0", "version 9");
    check(b"GGUF\x03\0", "ends in the middle of its header");
    let one = Writer::default();
    check(&one.clone().u32("a", 1).u32("a", 2).bytes(), "key `a` is there twice");
    check(&one.clone().raw("a", 77, &[0]).bytes(), "unknown type (number 77)");
    check(&one.clone().u32("general.alignment", 3).bytes(), "alignment");
    let with = |dims: &[u64], id: u32, bytes: usize| one.clone().raw_tensor("t", dims, id, vec![0; bytes]).bytes();
    check(&with(&[], 0, 4), "0 dimensions");
    check(&with(&[1, 1, 1, 1, 1], 0, 4), "5 dimensions");
    check(&with(&[0], 0, 4), "impossible dimension (0)");
    check(&with(&[1 << 40, 1 << 40], 0, 4), "impossible dimension");
    check(&with(&[33], 2, 36), "no multiple of Q4_0's block of 32");
    check(&with(&[4], 5, 16), "unknown type (number 5)");
    check(&with(&[5], 0, 16), "download is incomplete");
    check(&with(&[1 << 60], 8, 34), "download is incomplete");
    let twice = one.clone().raw_tensor("t", &[1], 0, vec![0; 4]).raw_tensor("t", &[1], 0, vec![0; 4]);
    check(&twice.bytes(), "tensor `t` is there twice");
    // The second tensor's offset, the last number of the header, is moved onto the first.
    let mut overlap = one.raw_tensor("t", &[9], 0, vec![0; 36]).raw_tensor("u", &[9], 0, vec![0; 36]).bytes();
    let at = overlap.windows(8).rposition(|w| w == 64u64.to_le_bytes()).unwrap();
    overlap[at] = 0;
    check(&overlap, "on top of each other");
    overlap[at] = 33;
    check(&overlap, "no multiple of the alignment");
}

#[test]
fn every_truncation_is_refused() {
    let whole = small_model(GgmlDType::Q8_0).bytes();
    let header = whole.windows(16).position(|w| w == b"output_norm.weig").unwrap();
    let (_dir, path) = file("whole.gguf", &whole);
    assert!(Gguf::open(&path).is_ok());
    for len in (0..header).step_by(97).chain([whole.len() - 1, whole.len() / 2]) {
        let message = refused(&whole[..len]);
        assert!(message.contains("incomplete") || len < 4, "{len}: {message}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// A file with some wrong bytes is read or refused; whatever is read lies inside the file.
    #[test]
    fn mutations_never_panic(changes in prop::collection::vec((0usize..8000, any::<u8>()), 1..8)) {
        let mut bytes = small_model(GgmlDType::Q4_0).bytes();
        for (at, value) in changes {
            bytes[at] = value;
        }
        let (_dir, path) = file("mutated.gguf", &bytes);
        if let Ok(read) = Gguf::open(&path) {
            for tensor in read.tensors() {
                prop_assert!(tensor.range.end <= bytes.len());
            }
        }
        // The whole way up: description, weights, tokenizer.
        let _ = crate::model::open(&path.display().to_string(), &Default::default());
    }

    #[test]
    fn random_bytes_never_panic(tail in prop::collection::vec(any::<u8>(), 0..200), version in 0u32..5) {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(version.to_le_bytes());
        bytes.extend(tail);
        let (_dir, path) = file("random.gguf", &bytes);
        let _ = Gguf::open(&path);
    }
}
