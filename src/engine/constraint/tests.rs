//! Masks of constraints over small vocabularies, against what they must allow.

use super::ruler::characters;
use super::*;
use crate::engine::vocab::Vocab;
use std::sync::Arc;

/// Allows texts by a plain predicate over (text) -> judgement.
struct Rule<F>(F, Option<Vec<String>>, bool);

impl<F: Fn(&str) -> Judgement + Send + Sync> Constraint for Rule<F> {
    fn judge(&self, text: &str) -> Judgement {
        (self.0)(text)
    }

    fn choices(&self) -> Option<Vec<String>> {
        self.1.clone()
    }

    fn ascii(&self) -> bool {
        self.2
    }
}

/// Exactly these texts, listed or only judged.
fn texts(texts: &[&str], listed: bool) -> Arc<dyn Constraint> {
    let texts: Vec<String> = texts.iter().map(|t| t.to_string()).collect();
    let list = listed.then(|| texts.clone());
    let judge = move |text: &str| {
        let more = texts.iter().any(|t| t.len() > text.len() && t.starts_with(text));
        match (texts.iter().any(|t| t == text), more) {
            (true, false) => Judgement::Closed,
            (complete, true) => Judgement::Open { complete },
            (false, false) => Judgement::Dead("not listed".into()),
        }
    };
    Arc::new(Rule(judge, list, false))
}

fn vocab(pieces: &[&[u8]]) -> Vocab {
    Vocab::new(pieces.iter().map(|p| p.to_vec()).collect(), vec![0])
}

/// Allowed and ending tokens after `text`, as their bytes; the end token as `<end>`.
fn check(vocab: &Vocab, rule: &Arc<dyn Constraint>, stops: &[&str], text: &str, allowed: &[&[u8]], ends: &[&str]) {
    let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
    let mut ruler = Ruler::new(Arc::clone(rule), Stops::new(&stops));
    let mask = ruler.mask(vocab, text.as_bytes());
    let show = |ids: &[u32]| -> Vec<Vec<u8>> {
        ids.iter().map(|&id| if id == 0 { b"<end>".to_vec() } else { vocab.bytes(id).to_vec() }).collect()
    };
    assert_eq!(show(&mask.allowed), allowed.iter().map(|b| b.to_vec()).collect::<Vec<_>>(), "{text:?}");
    assert_eq!(show(&mask.ends), ends.iter().map(|e| e.as_bytes().to_vec()).collect::<Vec<_>>(), "{text:?}");
    assert!(ruler.mask(vocab, text.as_bytes()) == mask);
}

#[test]
fn digits_come_one_by_one_or_merged() {
    let single = vocab(&[b"", b"1", b"2", b"3", b" ", b"a"]);
    let merged = vocab(&[b"", b"1", b"2", b"3", b"12", b"123", b"1234", b"21", b"\n"]);
    for listed in [true, false] {
        let rule = texts(&["12", "123", "3"], listed);
        check(&single, &rule, &[], "", &[b"1", b"3"], &[]);
        check(&single, &rule, &[], "1", &[b"2"], &[]);
        check(&single, &rule, &[], "12", &[b"<end>", b"3"], &["<end>"]);
        check(&merged, &rule, &[], "", &[b"1", b"3", b"12", b"123"], &[]);
        check(&merged, &rule, &["\n"], "12", &[b"<end>", b"3", b"\n"], &["<end>", "\n"]);
        check(&merged, &rule, &[], "2", &[], &[]);
    }
}

#[test]
fn tokens_may_cross_the_end_into_a_stop_string() {
    let vocab = vocab(&[b"", b"7", b"7\n", b"7\n\n", b"\n", b"\n\nx", b" 7", b"7,"]);
    for listed in [true, false] {
        let rule = texts(&["7", "77"], listed);
        check(&vocab, &rule, &["\n\n"], "", &[b"7", b"7\n\n"], &[]);
        check(&vocab, &rule, &["\n\n"], "7", &[b"<end>", b"7", b"7\n\n", b"\n", b"\n\nx"], &["<end>", "\n", "\n\nx"]);
        check(&vocab, &rule, &["\n"], "", &[b"7", b"7\n", b"7\n\n"], &[]);
        check(&vocab, &texts(&[" 7"], listed), &[], "", &[b" 7"], &[]);
    }
}

#[test]
fn characters_split_over_tokens_stay_reachable() {
    let smile = "😁".as_bytes();
    let vocab = vocab(&[b"", &smile[..1], &smile[..2], &smile[1..], &smile[2..], smile, &[0xC3], b"a", &[0x9F]]);
    for listed in [true, false] {
        let rule = texts(&["😁", "😂"], listed);
        let lone: &[&[u8]] = &[&smile[..1], &smile[..2], smile];
        // Two bytes of four have 4,096 ways on; listed texts are exact, judged ones may refuse a lone part.
        check(&vocab, &rule, &[], "", if listed { lone } else { &lone[2..] }, &[]);
        let mut ruler = Ruler::new(Arc::clone(&rule), Stops::default());
        assert_eq!(ruler.mask(&vocab, &smile[..2]).allowed, [4]);
    }
    let any: Arc<dyn Constraint> = Arc::new(Rule(|_: &str| Judgement::Open { complete: false }, None, false));
    check(&vocab, &any, &[], "", &[&smile[..1], &smile[..2], smile, &[0xC3], b"a"], &[]);
    let ascii: Arc<dyn Constraint> = Arc::new(Rule(|_: &str| Judgement::Open { complete: true }, None, true));
    check(&vocab, &ascii, &[], "", &[b"<end>", b"a"], &["<end>"]);
}

#[test]
fn beginnings_of_characters_have_their_ranges() {
    assert_eq!(characters(&[0xC3]), (0xC0, 0xFF));
    assert_eq!(characters(&[0xE0]), (0x800, 0xFFF));
    assert_eq!(characters(&[0xE2, 0x82]), (0x2080, 0x20BF));
    assert_eq!(characters(&[0xF0]), (0x1_0000, 0x3_FFFF));
    assert_eq!(characters(&[0xF4]), (0x10_0000, 0x10_FFFF));
}

/// A rule that tells of every byte: one of these texts.
struct Bytes(Vec<&'static str>);

impl Constraint for Bytes {
    fn judge(&self, _: &str) -> Judgement {
        unreachable!("bytes are told of")
    }

    fn stand(&self, text: &[u8]) -> Option<Standing> {
        let rest: Vec<&str> = self.0.iter().copied().filter(|t| t.as_bytes().starts_with(text)).collect();
        let open = rest.iter().any(|t| t.len() > text.len());
        let complete = rest.iter().any(|t| t.len() == text.len());
        // Texts of one length go on alike, as far as they go on at all.
        Some(Standing { complete, open, place: text.len() as u64 })
    }
}

#[test]
fn rules_that_tell_of_every_byte_have_exact_masks_by_place() {
    let smile = "😁".as_bytes();
    let vocab = vocab(&[b"", &smile[..1], &smile[..2], &smile[1..], &smile[2..], smile, &[0xC3], b"a", b"b", b"ab"]);
    let rule: Arc<dyn Constraint> = Arc::new(Bytes(vec!["😁", "😂a"]));
    check(&vocab, &rule, &[], "", &[&smile[..1], &smile[..2], smile], &[]);
    let rule: Arc<dyn Constraint> = Arc::new(Bytes(vec!["ab", "bb"]));
    let mut ruler = Ruler::new(rule, Stops::default());
    let first = ruler.mask(&vocab, b"a");
    assert_eq!(first.allowed, [8]);
    assert!(Arc::ptr_eq(&first, &ruler.mask(&vocab, b"b")), "one mask for a place");
}

#[test]
fn choices_are_found_however_they_are_listed() {
    let vocab = vocab(&[b"", b"a", b"b", b"ab", b"abc", b"c"]);
    let rule = texts(&["b", "abc", "a", "a", "abc"], true);
    check(&vocab, &rule, &[], "", &[b"a", b"b", b"ab", b"abc"], &[]);
    check(&vocab, &rule, &[], "a", &[b"<end>", b"b"], &["<end>"]);
    let ruler = Ruler::new(rule, Stops::default());
    assert!(ruler.closed(b"abc") && ruler.closed(b"b") && !ruler.closed(b"a") && !ruler.closed(b"ab"));
}
