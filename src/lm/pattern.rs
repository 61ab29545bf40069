//! A regular expression as a constraint: at every beginning of a text it knows whether the whole can still match.
//!
//! The pattern runs as a lazy deterministic automaton (regex-automata), anchored at both ends of the text, with all
//! alternatives kept alive: `a|ab` allows `ab`, although a search that prefers the leftmost alternative would stop at `a`.
//! A state from which nothing matches any more is dead, so a mask never leads into a dead end.
//!
//! Refused: look-around and back-references (no automaton has them), word boundaries that depend on Unicode, and
//! patterns that need too much memory. O(bytes) to judge a text, and of one that has its beginning in common with the one
//! before it, O(the other bytes): a mask judges thousands of texts that differ in their last token.

use super::{Constraint, Judgement, Standing};
use regex_automata::hybrid::LazyStateID;
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson;
use regex_automata::{Anchored, Input, MatchKind};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Bytes the compiled pattern may take.
const SIZE: usize = 4 << 20;
/// Bytes of automaton states kept; beyond it they are worked out anew.
const CACHE: usize = 8 << 20;
/// Characters of a pattern that a message shows.
const SHOWN: usize = 80;

/// A compiled pattern.
pub struct Pattern {
    text: String,
    dfa: DFA,
    /// States found so far; shared, because the same few texts are judged again and again.
    known: Mutex<Known>,
}

/// What was found out about states. It lives as long as the automaton's cache is not cleared, which renumbers them.
struct Known {
    cache: Cache,
    clears: usize,
    ends: HashMap<LazyStateID, Standing>,
    /// Places given so far; a number is never given twice, although states are renumbered.
    places: u64,
    /// The text that was judged last, as far as it went, and the state after each of its bytes.
    text: Vec<u8>,
    path: Vec<LazyStateID>,
}

impl Known {
    /// Forgets what is not true any more.
    fn settle(&mut self) {
        if self.cache.clear_count() != self.clears {
            self.clears = self.cache.clear_count();
            self.ends.clear();
            self.text.clear();
            self.path.clear();
        }
    }
}

/// A state, and the text that leads to it. A cache that is full is cleared, which renumbers all states: one from before would
/// be another one, or none.
struct At<'a> {
    text: &'a [u8],
    /// A byte after the text.
    then: Option<u8>,
    state: LazyStateID,
    /// How often the cache was cleared when it had this number.
    clears: usize,
}

impl Pattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// What is wrong with it, in one line.
    pub fn new(text: &str) -> Result<Self, String> {
        Self::with_cache(text, CACHE)
    }

    fn with_cache(text: &str, bytes: usize) -> Result<Self, String> {
        let config = DFA::config().match_kind(MatchKind::All).cache_capacity(bytes).skip_cache_capacity_check(true);
        let nfa = thompson::Config::new().nfa_size_limit(Some(SIZE));
        let dfa = DFA::builder().configure(config).thompson(nfa).build(text).map_err(|error| {
            let mut deepest: &dyn std::error::Error = &error;
            while let Some(source) = deepest.source() {
                deepest = source;
            }
            let detail = deepest.to_string();
            let last = detail.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
            let remedy = if text.contains("\\b") { "; write (?-u:\\b) for a word boundary" } else { "" };
            format!("this is no regular expression for a constraint: {}{remedy}", last.trim())
        })?;
        let known = Known {
            cache: dfa.create_cache(),
            clears: 0,
            ends: HashMap::new(),
            places: 0,
            text: Vec::new(),
            path: Vec::new(),
        };
        Ok(Self { text: text.to_string(), dfa, known: Mutex::new(known) })
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the whole text matches.
    pub fn matches(&self, text: &str) -> bool {
        matches!(self.judge(text), Judgement::Closed | Judgement::Open { complete: true })
    }

    fn start(&self, cache: &mut Cache) -> Option<LazyStateID> {
        self.dfa.start_state_forward(cache, &Input::new("").anchored(Anchored::Yes)).ok()
    }

    /// The bytes that the pattern tells apart, one of each kind.
    fn bytes(&self, range: std::ops::RangeInclusive<u8>) -> Vec<u8> {
        self.dfa.byte_classes().representatives(range).filter_map(|unit| unit.as_u8()).collect()
    }

    /// The state after one more byte; `None`: dead.
    fn step(&self, cache: &mut Cache, state: LazyStateID, byte: u8) -> Option<LazyStateID> {
        self.dfa.next_state(cache, state, byte).ok().filter(|next| !next.is_dead() && !next.is_quit())
    }

    /// The state of a place, walked to anew where it has another number by now.
    fn state(&self, cache: &mut Cache, at: &mut At<'_>) -> Option<LazyStateID> {
        if cache.clear_count() != at.clears {
            let mut state = self.start(cache)?;
            for &byte in at.text.iter().chain(&at.then) {
                state = self.step(cache, state, byte)?;
            }
            (at.state, at.clears) = (state, cache.clear_count());
        }
        Some(at.state)
    }

    fn next<'a>(&self, cache: &mut Cache, at: &mut At<'a>, byte: u8) -> Option<At<'a>> {
        let state = self.state(cache, at)?;
        let state = self.step(cache, state, byte)?;
        Some(At { text: at.text, then: Some(byte), state, clears: cache.clear_count() })
    }

    /// Whether the text up to there matches.
    fn complete(&self, cache: &mut Cache, at: &mut At<'_>) -> bool {
        let state = self.state(cache, at);
        state.is_some_and(|state| self.dfa.next_eoi_state(cache, state).is_ok_and(|end| end.is_match()))
    }

    /// Whether this is the beginning of a match. The automaton tells a match one byte late, so that a state after that byte is
    /// not dead yet, although nothing can follow.
    fn alive(&self, cache: &mut Cache, at: &mut At<'_>) -> bool {
        self.complete(cache, at)
            || self.bytes(0..=u8::MAX).into_iter().any(|byte| {
                let state = self.state(cache, at);
                state.is_some_and(|state| self.step(cache, state, byte).is_some())
            })
    }

    /// The state after `bytes`; `None`: they cannot be the beginning of a match.
    fn go_to(&self, known: &mut Known, bytes: &[u8]) -> Option<LazyStateID> {
        known.settle();
        let common = common(&known.text, bytes);
        known.text.truncate(common);
        known.path.truncate(common);
        let mut state = match known.path.last() {
            Some(&state) => state,
            None => self.start(&mut known.cache)?,
        };
        for &byte in &bytes[common..] {
            state = self.step(&mut known.cache, state, byte)?;
            // A cache that was cleared on the way has renumbered the states before this one.
            if known.cache.clear_count() == known.clears {
                known.text.push(byte);
                known.path.push(state);
            }
        }
        Some(state)
    }

    fn standing(&self, bytes: &[u8]) -> Standing {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = &mut *known;
        let Some(state) = self.go_to(known, bytes) else {
            return Standing { complete: false, open: false, place: 0 };
        };
        known.settle();
        if let Some(standing) = known.ends.get(&state) {
            return *standing;
        }
        let cache = &mut known.cache;
        let mut at = At { text: bytes, then: None, state, clears: known.clears };
        let complete = self.complete(cache, &mut at);
        let open = self
            .bytes(0..=u8::MAX)
            .into_iter()
            .any(|byte| self.next(cache, &mut at, byte).is_some_and(|mut next| self.alive(cache, &mut next)));
        known.places += 1;
        let standing = Standing { complete, open, place: known.places };
        // A cache that was cleared meanwhile has renumbered the state.
        if known.cache.clear_count() == known.clears {
            known.ends.insert(state, standing);
        }
        standing
    }
}

/// How many bytes two texts begin with in common.
fn common(a: &[u8], b: &[u8]) -> usize {
    const BLOCK: usize = 32;
    let blocks = a.chunks_exact(BLOCK).zip(b.chunks_exact(BLOCK)).take_while(|(a, b)| a == b).count() * BLOCK;
    blocks + a[blocks..].iter().zip(&b[blocks..]).take_while(|(a, b)| a == b).count()
}

impl Constraint for Pattern {
    fn judge(&self, text: &str) -> Judgement {
        match self.standing(text.as_bytes()) {
            Standing { complete: true, open: false, .. } => Judgement::Closed,
            Standing { complete, open: true, .. } => Judgement::Open { complete },
            Standing { complete: false, open: false, .. } => {
                let mut shown: String = self.text.chars().take(SHOWN).collect();
                if shown.len() < self.text.len() {
                    shown.push('…');
                }
                Judgement::Dead(format!("cannot match the pattern {shown} any more"))
            }
        }
    }

    fn stand(&self, text: &[u8]) -> Option<Standing> {
        Some(self.standing(text))
    }

    fn pattern(&self) -> Option<String> {
        Some(self.text.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(pattern: &str, text: &str) -> Judgement {
        Pattern::new(pattern).unwrap().judge(text)
    }

    #[test]
    fn beginnings_stay_open_while_the_whole_can_match() {
        let date = r"\[[0-9]{1,2}(, [0-9]{1,2})*\]";
        let open = |complete| Judgement::Open { complete };
        for (text, expected) in [
            ("", open(false)),
            ("[", open(false)),
            ("[1", open(false)),
            ("[12, 3", open(false)),
            ("[12, 3]", Judgement::Closed),
        ] {
            assert_eq!(judged(date, text), expected, "{text:?}");
        }
        for dead in ["x", "[]", "[123", "[1,2", "[1]x"] {
            assert!(matches!(judged(date, dead), Judgement::Dead(_)), "{dead:?}");
        }
        assert_eq!(judged("a|ab", "a"), open(true));
        assert_eq!(judged("a|ab", "ab"), Judgement::Closed);
        assert_eq!(judged("[0-9]+", "12"), open(true));
        assert_eq!(judged("^yes$", "yes"), Judgement::Closed);
        assert_eq!(judged("(?i)sure", "SuRe"), Judgement::Closed);
        assert_eq!(judged("é+", "éé"), open(true));
    }

    #[test]
    fn what_is_no_pattern_is_told() {
        for (pattern, part) in [("[", "unclosed"), (r"\bx", "(?-u:\\b)"), ("(?=x)", "look"), ("x{1000000}", "")] {
            let why = Pattern::new(pattern).err().unwrap();
            assert!(why.starts_with("this is no regular expression") && why.contains(part), "{why}");
        }
    }

    /// Against the search of the regex library: the same whole matches, and every beginning of a match is open.
    #[test]
    fn it_agrees_with_the_regex_library() {
        for pattern in ["(a|b)*abb", "[ab]{2,4}c?", "a(b|c)+|ca", "(ab?)*"] {
            let (own, regex) =
                (Pattern::new(pattern).unwrap(), regex::Regex::new(&format!("^(?:{pattern})$")).unwrap());
            let mut texts = vec![String::new()];
            for _ in 0..5 {
                let longer: Vec<String> =
                    texts.iter().flat_map(|t| ["a", "b", "c"].map(|c| format!("{t}{c}"))).collect();
                texts.extend(longer);
                texts.sort();
                texts.dedup();
            }
            for text in &texts {
                assert_eq!(own.matches(text), regex.is_match(text), "{pattern} {text}");
                if regex.is_match(text) {
                    assert!((0..=text.len()).all(|end| !matches!(own.judge(&text[..end]), Judgement::Dead(_))));
                }
            }
        }
    }

    fn alive(pattern: &Pattern, bytes: &[u8]) -> bool {
        let standing = pattern.standing(bytes);
        standing.complete || standing.open
    }

    #[test]
    fn halves_of_characters_are_alive_where_a_whole_one_is() {
        let patterns = ["é|ü|ab", "[а-яё]+", ".*", "[^é]", "[\u{800}-\u{8ff}\u{1f600}]x", "[0-9]+"];
        for pattern in patterns.map(|text| Pattern::new(text).unwrap()) {
            let mut halves = std::collections::BTreeMap::<Vec<u8>, bool>::new();
            // Every character of one to three bytes, and some of four.
            for c in (0..0x1_0000u32).chain((0x1_f000..0x2_0000).step_by(7)).filter_map(char::from_u32) {
                let text = c.to_string();
                let whole = alive(&pattern, text.as_bytes());
                assert_eq!(whole, !matches!(pattern.judge(&text), Judgement::Dead(_)));
                for end in 1..text.len() {
                    *halves.entry(text.as_bytes()[..end].to_vec()).or_default() |= whole;
                }
            }
            // Of four bytes not all were tried.
            for (half, expected) in halves.iter().filter(|(half, _)| half[0] < 0xf0) {
                assert_eq!(alive(&pattern, half), *expected, "{half:x?} under {}", pattern.text);
            }
        }
    }

    #[test]
    fn texts_of_one_place_go_on_alike_however_small_the_cache() {
        use rand::Rng;
        let mut random = crate::base::rng::stream(5, "places", &[]);
        let text = "(ab?|é[cd]{2,5}|(a|b|é)*c)+d?";
        let (roomy, tight) = (Pattern::new(text).unwrap(), Pattern::with_cache(text, 0).unwrap());
        let mut word = |most: usize| -> String {
            (0..random.random_range(0..=most)).map(|_| ['a', 'b', 'c', 'd', 'é'][random.random_range(0..5)]).collect()
        };
        let mut places = HashMap::<u64, String>::new();
        let mut met = 0;
        for _ in 0..4000 {
            let (text, more) = (word(9), word(3));
            let (one, other) = (roomy.standing(text.as_bytes()), tight.standing(text.as_bytes()));
            assert_eq!((one.complete, one.open), (other.complete, other.open), "{text}");
            for (pattern, place) in [(&roomy, one.place), (&tight, other.place + (1 << 40))] {
                let Some(before) = places.insert(place, text.clone()).filter(|before| *before != text) else {
                    continue;
                };
                let after = |text: &str| {
                    let standing = pattern.standing(format!("{text}{more}").as_bytes());
                    (standing.complete, standing.open)
                };
                assert_eq!(after(&before), after(&text), "{before} and {text}, then {more}");
                met += 1;
            }
        }
        let clears = tight.known.lock().unwrap().cache.clear_count();
        assert!(met > 1000 && clears > 10, "{met} texts met another one of their place, {clears} clears");
    }

    #[test]
    fn a_message_shows_the_beginning_of_a_long_pattern() {
        let long = format!("({})", vec!["abcdefgh"; 500].join("|"));
        let Judgement::Dead(why) = judged(&long, "x") else { panic!("x was taken") };
        assert!(why.chars().count() < 130 && why.contains('…'), "{why}");
    }
}
