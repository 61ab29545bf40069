//! What a text may become, and the token masks that follow from it.
//!
//! A [`Constraint`] speaks about text. A [`Mask`] is found by walking the vocabulary's byte trie along the bytes that
//! may follow, so only what is viable is visited: digits one by one, merged digits, a token with a leading space and a
//! token that crosses the end of the text into a stop string all come out of the same walk. A token may end inside a
//! character if the character can still become a viable one.

use super::grammar::{Grammar, Machine};
pub use super::text::Stops;
use super::text::whole_characters;
use super::vocab::{Node, Vocab};
use std::collections::HashMap;
use std::sync::Arc;

/// At most this many of the characters that a few bytes can become are tried, evenly spread. Two bytes of three and
/// three bytes of four are tried in full; for less of a character a constraint that allows only rare ones of a block may
/// find a lone byte refused (tokens that hold more of the character are still judged each by itself).
const PROBES: u32 = 256;

/// What a text may still become. Works on text, so one constraint serves any vocabulary.
pub trait Constraint: Send + Sync {
    /// Judges the text generated so far (only this request's text, not the prompt).
    fn judge(&self, text: &str) -> Judgement;

    /// What a beginning of a text is, where that can be told of every byte, also inside a character: masks are then exact, and
    /// found once for all texts of one place. Of every text, or of none.
    fn stand(&self, _text: &[u8]) -> Option<Standing> {
        None
    }

    /// Every complete text, where there are few enough to list.
    fn choices(&self) -> Option<Vec<String>> {
        None
    }

    /// The regular expression of which complete texts are whole matches, where it is one.
    fn pattern(&self) -> Option<String> {
        None
    }

    /// The grammar that texts are held to, where it is one: masks are then found by its parser.
    fn grammar(&self) -> Option<&Grammar> {
        None
    }

    /// Whether `judge` should mask tokens (true), or only end a text that became wrong (false).
    fn masks(&self) -> bool {
        true
    }

    /// Whether every text this allows is ASCII. A mask is found much faster where it is said.
    fn ascii(&self) -> bool {
        false
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    /// No continuation can make this right, and why.
    Dead(String),
    /// May go on.
    Open { complete: bool },
    /// Right and finished: nothing may follow.
    Closed,
}

/// Where the beginning of a text stands. Neither complete nor open: nothing can make it right any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    pub complete: bool,
    /// Something may follow.
    pub open: bool,
    /// Whatever may follow a text may follow all texts of this place.
    pub place: u64,
}

/// The tokens that may come next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mask {
    /// Ascending; `ends` included.
    pub allowed: Vec<u32>,
    /// Those that end the text and write nothing of it: end tokens, and tokens that begin a stop string where the text
    /// is complete. Ascending.
    pub ends: Vec<u32>,
}

/// A constraint applied to one request: finds masks, and remembers them for texts that several samples share.
pub struct Ruler {
    rule: Arc<dyn Constraint>,
    /// Ascending, each once.
    choices: Option<Vec<String>>,
    stops: Stops,
    /// By text, or by place where the rule tells it.
    masks: HashMap<Vec<u8>, Arc<Mask>>,
    /// The grammar's parser, from the first mask on; `None` where it cannot be made.
    machine: Option<Option<Box<Machine>>>,
}

/// Masks remembered at most.
const REMEMBERED: usize = 256;

impl Ruler {
    pub fn new(rule: Arc<dyn Constraint>, stops: Stops) -> Self {
        let mut choices = if rule.masks() { rule.choices() } else { None };
        if let Some(choices) = &mut choices {
            choices.sort_unstable();
            choices.dedup();
        }
        Self { rule, choices, stops, masks: HashMap::new(), machine: None }
    }

    pub fn masks(&self) -> bool {
        self.rule.masks()
    }

    pub fn judge(&self, text: &str) -> Judgement {
        self.rule.judge(text)
    }

    /// Whether `text` (raw bytes) is right and finished.
    pub fn closed(&self, text: &[u8]) -> bool {
        let Ok(text) = std::str::from_utf8(text) else { return false };
        match &self.choices {
            Some(choices) => beginning_with(choices, text.as_bytes()) == [text],
            None => self.rule.judge(text) == Judgement::Closed,
        }
    }

    /// The mask after `text` (raw bytes of the sample so far).
    pub fn mask(&mut self, vocab: &Vocab, text: &[u8]) -> Arc<Mask> {
        let place = self.standing(text).map(|standing| standing.place.to_le_bytes());
        let key = place.as_ref().map_or(text, |place| place.as_slice());
        if let Some(mask) = self.masks.get(key) {
            return Arc::clone(mask);
        }
        let mask = Arc::new(self.find_by_grammar(vocab, text).unwrap_or_else(|| self.find(vocab, text)));
        if self.masks.len() >= REMEMBERED {
            self.masks.clear();
        }
        self.masks.insert(key.to_vec(), Arc::clone(&mask));
        mask
    }

    fn standing(&self, text: &[u8]) -> Option<Standing> {
        if self.choices.is_some() { None } else { self.rule.stand(text) }
    }

    /// `None`: the constraint is no grammar.
    fn find_by_grammar(&mut self, vocab: &Vocab, text: &[u8]) -> Option<Mask> {
        let grammar = self.rule.grammar()?;
        let machine = self.machine.get_or_insert_with(|| {
            let machine = vocab.lexicon().and_then(|lexicon| grammar.machine(lexicon));
            machine.ok().map(Box::new)
        });
        Some(match machine {
            Some(machine) => machine.mask(vocab, &self.stops, text),
            None => Mask { allowed: Vec::new(), ends: Vec::new() },
        })
    }

    fn find(&self, vocab: &Vocab, text: &[u8]) -> Mask {
        let tries = self.choices.is_none() && self.rule.stand(text).is_none();
        let mut walk =
            Walk { vocab, ruler: self, tries, bytes: text.to_vec(), viable: Vec::new(), crossing: Vec::new() };
        // Half a character was allowed before, so it is not judged again here.
        let complete = whole_characters(text) == text.len()
            && match walk.state() {
                State::Dead | State::Inside => return Mask { allowed: Vec::new(), ends: Vec::new() },
                State::Whole { complete, .. } => complete,
            };
        walk.below(&vocab.root());
        let Walk { mut viable, crossing, .. } = walk;
        viable.sort_unstable();
        let mut ends = Vec::new();
        if complete {
            ends = ending_tokens(vocab, &self.stops);
            ends.retain(|id| viable.binary_search(id).is_err());
        }
        let mut allowed = [viable, crossing, ends.clone()].concat();
        allowed.sort_unstable();
        allowed.dedup();
        Mask { allowed, ends }
    }

    fn state(&self, bytes: &[u8]) -> State {
        let whole = whole_characters(bytes);
        if let Some(Standing { complete, open, .. }) = self.standing(bytes) {
            return match (complete || open, whole < bytes.len()) {
                (false, _) => State::Dead,
                (true, true) => State::Inside,
                (true, false) => State::Whole { complete, more: open },
            };
        }
        let Ok(text) = std::str::from_utf8(&bytes[..whole]) else { return State::Dead };
        match &self.choices {
            Some(choices) => match (beginning_with(choices, bytes), whole < bytes.len()) {
                ([], _) => State::Dead,
                (_, true) => State::Inside,
                (open @ [first, ..], false) => {
                    let complete = first == text;
                    State::Whole { complete, more: open.len() > usize::from(complete) }
                }
            },
            None if whole < bytes.len() => {
                if self.rule.ascii() || !self.may_become(text, &bytes[whole..]) {
                    State::Dead
                } else {
                    State::Inside
                }
            }
            None => match self.rule.judge(text) {
                Judgement::Dead(_) => State::Dead,
                Judgement::Open { complete } => State::Whole { complete, more: true },
                Judgement::Closed => State::Whole { complete: true, more: false },
            },
        }
    }

    /// Whether the beginning of a character may become one that is viable after `text`.
    fn may_become(&self, text: &str, beginning: &[u8]) -> bool {
        let (low, high) = characters(beginning);
        let step = ((high - low + 1) / PROBES).max(1);
        let mut candidate = text.to_string();
        (low..=high).step_by(step as usize).filter_map(char::from_u32).any(|c| {
            candidate.truncate(text.len());
            candidate.push(c);
            !matches!(self.rule.judge(&candidate), Judgement::Dead(_))
        })
    }
}

/// Those of the ascending `choices` that begin with `bytes`.
fn beginning_with<'a>(choices: &'a [String], bytes: &[u8]) -> &'a [String] {
    let from = choices.partition_point(|choice| choice.as_bytes() < bytes);
    let those = choices[from..].partition_point(|choice| choice.as_bytes().starts_with(bytes));
    &choices[from..from + those]
}

/// What a text of raw bytes is to a constraint.
enum State {
    Dead,
    /// Ends inside a character that may become viable.
    Inside,
    Whole {
        complete: bool,
        more: bool,
    },
}

/// One walk down the trie.
struct Walk<'a> {
    vocab: &'a Vocab,
    ruler: &'a Ruler,
    /// Whether beginnings of characters are judged by trying what they may become.
    tries: bool,
    /// The sample's bytes, and those of the path walked.
    bytes: Vec<u8>,
    viable: Vec<u32>,
    /// Tokens that finish the text and hold a whole stop string after it.
    crossing: Vec<u32>,
}

impl Walk<'_> {
    fn state(&self) -> State {
        self.ruler.state(&self.bytes)
    }

    fn below(&mut self, node: &Node) {
        for (byte, child) in self.vocab.children(node) {
            if self.ruler.rule.ascii() && !byte.is_ascii() {
                continue;
            }
            self.bytes.push(byte);
            match self.state() {
                // Part of a character, of which not all was tried: what tokens make of it is judged where it is whole.
                State::Dead if self.tries && whole_characters(&self.bytes) < self.bytes.len() => {
                    self.below(&child);
                }
                State::Dead => {}
                State::Inside => {
                    self.viable.extend_from_slice(self.vocab.here(&child));
                    self.below(&child);
                }
                State::Whole { complete, more } => {
                    self.viable.extend_from_slice(self.vocab.here(&child));
                    if complete {
                        for stop in self.ruler.stops.iter() {
                            stop_tokens(self.vocab, &child, stop, false, &mut self.crossing);
                        }
                    }
                    if more {
                        self.below(&child);
                    }
                }
            }
            self.bytes.pop();
        }
    }
}

/// Tokens that end a complete text and write nothing of it: end tokens, and those that begin a stop string. Ascending.
pub fn ending_tokens(vocab: &Vocab, stops: &Stops) -> Vec<u32> {
    let mut ends = vocab.ends().to_vec();
    for stop in stops.iter() {
        stop_tokens(vocab, &vocab.root(), stop, true, &mut ends);
    }
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// Tokens that from `node` on hold the whole `stop` (and whatever follows it), or with `part` also those that end inside it.
fn stop_tokens(vocab: &Vocab, node: &Node, stop: &str, part: bool, tokens: &mut Vec<u32>) {
    let mut node = node.clone();
    for &byte in stop.as_bytes() {
        let Some(next) = vocab.child(&node, byte) else { return };
        node = next;
        if part {
            tokens.extend_from_slice(vocab.here(&node));
        }
    }
    tokens.extend_from_slice(vocab.below(&node));
}

/// The first and last code point that begin with these bytes (the beginning of a character, not all of it).
fn characters(beginning: &[u8]) -> (u32, u32) {
    let (width, lead) = match beginning[0] {
        b @ 0xC0..=0xDF => (2, b & 0x1F),
        b @ 0xE0..=0xEF => (3, b & 0x0F),
        b => (4, b & 0x07),
    };
    let smallest = [0x80, 0x800, 0x1_0000][width - 2];
    let known = beginning[1..].iter().fold(u32::from(lead), |code, &b| code << 6 | u32::from(b & 0x3F));
    let open = 6 * (width - beginning.len()) as u32;
    ((known << open).max(smallest), (known << open | ((1 << open) - 1)).min(0x10_FFFF))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let merged = vocab(&[
            b"", b"1", b"2", b"3", b"12", b"123", b"1234", b"21", b"
",
        ]);
        for listed in [true, false] {
            let rule = texts(&["12", "123", "3"], listed);
            check(&single, &rule, &[], "", &[b"1", b"3"], &[]);
            check(&single, &rule, &[], "1", &[b"2"], &[]);
            check(&single, &rule, &[], "12", &[b"<end>", b"3"], &["<end>"]);
            check(&merged, &rule, &[], "", &[b"1", b"3", b"12", b"123"], &[]);
            check(
                &merged,
                &rule,
                &["
"],
                "12",
                &[
                    b"<end>", b"3", b"
",
                ],
                &[
                    "<end>", "
",
                ],
            );
            check(&merged, &rule, &[], "2", &[], &[]);
        }
    }

    #[test]
    fn tokens_may_cross_the_end_into_a_stop_string() {
        let vocab = vocab(&[
            b"", b"7", b"7
", b"7

", b"
", b"

x", b" 7", b"7,",
        ]);
        for listed in [true, false] {
            let rule = texts(&["7", "77"], listed);
            check(
                &vocab,
                &rule,
                &["

"],
                "",
                &[
                    b"7", b"7

",
                ],
                &[],
            );
            check(
                &vocab,
                &rule,
                &["

"],
                "7",
                &[
                    b"<end>", b"7", b"7

", b"
", b"

x",
                ],
                &[
                    "<end>", "
", "

x",
                ],
            );
            check(
                &vocab,
                &rule,
                &["
"],
                "",
                &[
                    b"7", b"7
", b"7

",
                ],
                &[],
            );
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
        let vocab =
            vocab(&[b"", &smile[..1], &smile[..2], &smile[1..], &smile[2..], smile, &[0xC3], b"a", b"b", b"ab"]);
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
}
