//! The merge is SentencePiece's: against its definition spelled out, and against ranked BPE where the two must agree.

use super::*;
use proptest::prelude::*;

/// Pieces with scores, then byte tokens from 1000 on.
fn spm(pieces: &[(&str, f32)]) -> Spm {
    let mut spm = Spm::new(true, Some(9));
    for (id, (text, score)) in pieces.iter().enumerate() {
        spm.add_piece(text, 10 + id as u32, *score, false);
    }
    for byte in 0..=u8::MAX {
        spm.add_byte(byte, 1000 + u32::from(byte));
    }
    spm
}

fn encode(spm: &Spm, text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    spm.encode(text, false, &mut ids);
    ids
}

/// The definition: again and again, the best-scored neighbouring pair, the leftmost of equals.
fn by_definition(spm: &Spm, text: &str) -> Vec<u32> {
    let mut runs: Vec<String> = text.chars().map(|c| if c == ' ' { SPACE } else { c }.to_string()).collect();
    loop {
        let mut best: Option<(f32, usize)> = None;
        for at in 0..runs.len().saturating_sub(1) {
            if let Some(piece) = spm.pieces.get(&format!("{}{}", runs[at], runs[at + 1]))
                && best.is_none_or(|(score, _)| piece.score > score)
            {
                best = Some((piece.score, at));
            }
        }
        let Some((_, at)) = best else { break };
        let right = runs.remove(at + 1);
        runs[at].push_str(&right);
    }
    let spell = |run: &String| match spm.pieces.get(run) {
        Some(piece) => vec![piece.id],
        None => run.bytes().map(|b| 1000 + u32::from(b)).collect(),
    };
    runs.iter().flat_map(spell).collect()
}

const PIECES: [(&str, f32); 12] = [
    ("a", -10.0),
    ("b", -11.0),
    ("c", -12.0),
    ("\u{2581}", -13.0),
    ("ab", -3.0),
    ("bc", -2.0),
    ("abc", -6.0),
    ("aa", -5.0),
    ("aaa", -5.0),
    ("\u{2581}a", -4.0),
    ("\u{2581}ab", -4.5),
    ("\u{e9}", -14.0),
];

#[test]
fn scores_decide_and_not_the_longest_piece() {
    let spm = spm(&PIECES);
    // bc (-2) before ab (-3); then a + bc = abc (-6).
    assert_eq!(encode(&spm, "abc"), vec![16]);
    // Unigram would take the cheapest sum (ab, c: -15; abc: -6); merging cannot leave "b" behind here: bc, then abc.
    assert_eq!(encode(&spm, "abcb"), vec![16, 11]);
    // Equal scores: aa at the left first, then (aa, a) = aaa.
    assert_eq!(encode(&spm, "aaaa"), vec![18, 10]);
    assert_eq!(encode(&spm, " ab"), vec![20]);
    assert_eq!(encode(&spm, ""), Vec::<u32>::new());
    // No piece: one token a byte.
    assert_eq!(encode(&spm, "\u{1f600}"), vec![1240, 1159, 1152, 1128]);
}

#[test]
fn a_space_is_put_before_a_beginning_only() {
    let spm = spm(&PIECES);
    let mut ids = Vec::new();
    spm.encode("ab", true, &mut ids);
    assert_eq!(ids, vec![20]);
    assert_eq!(encode(&spm, "ab"), vec![14]);
    ids.clear();
    spm.encode("", true, &mut ids);
    assert!(ids.is_empty());
}

#[test]
fn unused_pieces_are_passed_through_and_split_again() {
    let mut spm = spm(&[("a", -5.0), ("b", -5.0), ("c", -5.0), ("abc", -3.0)]);
    spm.add_piece("ab", 99, -1.0, true);
    assert_eq!(encode(&spm, "ab"), vec![10, 11], "not given out");
    assert_eq!(encode(&spm, "abc"), vec![13], "but on the way to abc");
}

#[test]
fn without_byte_tokens_the_unknown_token_stands_in() {
    let mut spm = Spm::new(false, Some(0));
    spm.add_piece("a", 1, 0.0, false);
    assert_eq!(encode(&spm, "a\u{4e2d}a"), vec![1, 0, 1]);
    assert!(spm.covers_everything());
    assert!(!Spm::new(false, None).covers_everything());
}

proptest! {
    #[test]
    fn the_queue_gives_what_the_definition_gives(text in "[abc \u{e9}\u{4e2d}]{0,40}") {
        let spm = spm(&PIECES);
        prop_assert_eq!(encode(&spm, &text), by_definition(&spm, &text));
    }

    /// With scores as ranks, all different, and every split of a piece a merge (as Transformers converts such models),
    /// ranked BPE of the library gives the same pieces.
    #[test]
    fn ranked_bpe_agrees_where_scores_differ(text in "[abd]{0,30}", order in Just(()).prop_perturb(|(), mut r| r.random::<u64>())) {
        use rand::seq::SliceRandom;
        use tokenizers::models::bpe::{BPE, Vocab};
        use tokenizers::Model;
        // No piece overlaps itself, so one rank a piece is enough.
        let mut joined = vec!["ab", "bd", "da", "abd", "bda", "dab"];
        joined.shuffle(&mut crate::base::rng::stream(order, "order", &[]));
        let mut pieces: Vec<(&str, f32)> = vec![("a", -100.0), ("b", -101.0), ("d", -102.0)];
        pieces.extend(joined.iter().enumerate().map(|(rank, p)| (*p, -(rank as f32))));
        let spm = spm(&pieces);
        let vocab: Vocab = pieces.iter().enumerate().map(|(id, (p, _))| ((*p).to_string(), 10 + id as u32)).collect();
        let mut merges = Vec::new();
        for piece in &joined {
            for at in 1..piece.len() {
                let (l, r) = piece.split_at(at);
                if vocab.contains_key(l) && vocab.contains_key(r) {
                    merges.push((l.to_string(), r.to_string()));
                }
            }
        }
        let bpe = BPE::builder().vocab_and_merges(vocab, merges).build().unwrap();
        let expected: Vec<u32> = bpe.tokenize(&text).unwrap().iter().map(|t| t.id).collect();
        prop_assert_eq!(encode(&spm, &text), expected);
    }
}
