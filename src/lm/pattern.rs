//! A regular expression as a constraint: at every beginning of a text it knows whether the whole can still match.
//!
//! The pattern runs as a lazy deterministic automaton (regex-automata), anchored at both ends of the text, with all
//! alternatives kept alive: `a|ab` allows `ab`, although a search that prefers the leftmost alternative would stop at `a`.
//! A state from which nothing matches any more is dead, so a mask never leads into a dead end.
//!
//! Refused: look-around and back-references (no automaton has them), word boundaries that depend on Unicode, and
//! patterns that need too much memory. O(bytes) to judge a text.

use super::{Constraint, Judgement};
use regex_automata::hybrid::LazyStateID;
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson;
use regex_automata::{Anchored, Input, MatchKind};
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

/// Bytes the compiled pattern may take.
const SIZE: usize = 4 << 20;
/// Bytes of automaton states kept; beyond it they are worked out anew.
const CACHE: usize = 8 << 20;
/// States looked at to find out whether a pattern is ASCII.
const LOOKED_AT: usize = 512;

/// A compiled pattern.
pub struct Pattern {
    text: String,
    dfa: DFA,
    /// States found so far; shared, because the same few texts are judged again and again.
    known: Mutex<Known>,
    ascii: bool,
}

/// What was found out about states. It lives as long as the automaton's cache is not cleared, which renumbers them.
struct Known {
    cache: Cache,
    clears: usize,
    ends: HashMap<LazyStateID, End>,
}

/// What may come after a state.
#[derive(Clone, Copy)]
struct End {
    /// The text matches as it stands.
    complete: bool,
    /// Something may follow.
    open: bool,
}

impl Pattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// What is wrong with it, in one line.
    pub fn new(text: &str) -> Result<Self, String> {
        let config = DFA::config().match_kind(MatchKind::All).cache_capacity(CACHE).skip_cache_capacity_check(true);
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
        let known = Known { cache: dfa.create_cache(), clears: 0, ends: HashMap::new() };
        let mut pattern = Self { text: text.to_string(), dfa, known: Mutex::new(known), ascii: false };
        pattern.ascii = pattern.is_ascii();
        Ok(pattern)
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

    /// Whether the text up to this state matches.
    fn complete(&self, cache: &mut Cache, state: LazyStateID) -> bool {
        self.dfa.next_eoi_state(cache, state).is_ok_and(|end| end.is_match())
    }

    /// Whether this state belongs to the beginning of a match. The automaton tells a match one byte late, so that a state after
    /// that byte is not dead yet, although nothing can follow.
    fn alive(&self, cache: &mut Cache, state: LazyStateID) -> bool {
        !state.is_dead()
            && !state.is_quit()
            && (self.complete(cache, state)
                || self
                    .bytes(0..=u8::MAX)
                    .into_iter()
                    .any(|byte| self.dfa.next_state(cache, state, byte).is_ok_and(|next| !next.is_dead())))
    }

    fn end(&self, known: &mut Known, state: LazyStateID) -> End {
        if known.cache.clear_count() != known.clears {
            known.clears = known.cache.clear_count();
            known.ends.clear();
        }
        if let Some(end) = known.ends.get(&state) {
            return *end;
        }
        let cache = &mut known.cache;
        let complete = self.complete(cache, state);
        let open = self.bytes(0..=u8::MAX).into_iter().any(|byte| {
            let next = self.dfa.next_state(cache, state, byte);
            next.is_ok_and(|next| self.alive(cache, next))
        });
        let end = End { complete, open };
        // A cache that was cleared meanwhile has renumbered the state.
        if known.cache.clear_count() == known.clears {
            known.ends.insert(state, end);
        }
        end
    }

    /// Whether no byte beyond ASCII is possible anywhere; `false` where that would take long to find out.
    fn is_ascii(&self) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let cache = &mut known.cache;
        let Some(start) = self.start(cache) else { return false };
        let (low, high) = (self.bytes(0..=0x7f), self.bytes(0x80..=u8::MAX));
        let (mut seen, mut waiting) = (HashSet::from([start]), vec![start]);
        while let Some(state) = waiting.pop() {
            let mut follow = |byte: &u8| {
                let next = self.dfa.next_state(cache, state, *byte).ok()?;
                self.alive(cache, next).then_some(next)
            };
            if seen.len() > LOOKED_AT || high.iter().any(|byte| follow(byte).is_some()) {
                return false;
            }
            waiting.extend(low.iter().filter_map(follow).filter(|next| seen.insert(*next)));
        }
        true
    }
}

impl Constraint for Pattern {
    fn judge(&self, text: &str) -> Judgement {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = &mut *known;
        let dead = || Judgement::Dead(format!("cannot match the pattern {} any more", self.text));
        let Some(mut state) = self.start(&mut known.cache) else { return dead() };
        for byte in text.bytes() {
            match self.dfa.next_state(&mut known.cache, state, byte) {
                Ok(next) if !next.is_dead() && !next.is_quit() => state = next,
                _ => return dead(),
            }
        }
        match self.end(known, state) {
            End { complete: true, open: false } => Judgement::Closed,
            End { complete: false, open: false } => dead(),
            End { complete, open: true } => Judgement::Open { complete },
        }
    }

    fn ascii(&self) -> bool {
        self.ascii
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
    fn ascii_patterns_are_known_as_such() {
        for (pattern, ascii) in
            [("[0-9]+( [0-9]+)*", true), ("yes|no", true), (".*", false), (r"\d", false), ("é", false)]
        {
            assert_eq!(Pattern::new(pattern).unwrap().ascii(), ascii, "{pattern}");
        }
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
}
