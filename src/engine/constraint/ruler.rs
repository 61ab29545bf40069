//! A constraint applied to one request, and the walk down the vocabulary's byte trie that finds its masks.

use super::{Constraint, Judgement, Mask, Standing, Stops};
use crate::engine::grammar::Machine;
use crate::engine::text::whole_characters;
use crate::engine::vocab::{Node, Vocab};
use std::collections::HashMap;
use std::sync::Arc;

/// At most this many of the characters that a few bytes can become are tried, evenly spread. Two bytes of three and
/// three bytes of four are tried in full; for less of a character a constraint that allows only rare ones of a block may
/// find a lone byte refused (tokens that hold more of the character are still judged each by itself).
const PROBES: u32 = 256;

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
pub(super) fn characters(beginning: &[u8]) -> (u32, u32) {
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
