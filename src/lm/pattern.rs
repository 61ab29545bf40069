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
use std::collections::HashSet;
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
    cache: Mutex<Cache>,
    ascii: bool,
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
            let detail = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            let last = detail.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
            let remedy = if text.contains("\\b") { "; write (?-u:\\b) for a word boundary" } else { "" };
            format!("this is no regular expression for a constraint: {}{remedy}", last.trim())
        })?;
        let cache = Mutex::new(dfa.create_cache());
        let mut pattern = Self { text: text.to_string(), dfa, cache, ascii: false };
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

    /// Whether something may follow after this state.
    fn goes_on(&self, cache: &mut Cache, state: LazyStateID) -> bool {
        (0..=u8::MAX).any(|byte| self.dfa.next_state(cache, state, byte).is_ok_and(|next| !next.is_dead()))
    }

    /// Whether no byte beyond ASCII is possible anywhere; `false` where that would take long to find out.
    fn is_ascii(&self) -> bool {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let cache = &mut *cache;
        let Some(start) = self.start(cache) else { return false };
        let (mut seen, mut waiting) = (HashSet::from([start]), vec![start]);
        while let Some(state) = waiting.pop() {
            for byte in 0..=u8::MAX {
                let Ok(next) = self.dfa.next_state(cache, state, byte) else { return false };
                if next.is_dead() {
                    continue;
                }
                if byte >= 0x80 || seen.len() > LOOKED_AT {
                    return false;
                }
                if seen.insert(next) {
                    waiting.push(next);
                }
            }
        }
        true
    }
}

impl Constraint for Pattern {
    fn judge(&self, text: &str) -> Judgement {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let cache = &mut *cache;
        let dead = || Judgement::Dead(format!("cannot match the pattern {} any more", self.text));
        let Some(mut state) = self.start(cache) else { return dead() };
        for byte in text.bytes() {
            match self.dfa.next_state(cache, state, byte) {
                Ok(next) if !next.is_dead() && !next.is_quit() => state = next,
                _ => return dead(),
            }
        }
        let complete = self.dfa.next_eoi_state(cache, state).is_ok_and(|end| end.is_match());
        match (complete, self.goes_on(cache, state)) {
            (true, false) => Judgement::Closed,
            (false, false) => dead(),
            (complete, true) => Judgement::Open { complete },
        }
    }

    fn ascii(&self) -> bool {
        self.ascii
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
