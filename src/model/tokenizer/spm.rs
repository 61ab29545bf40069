//! SentencePiece's BPE as its authors define it: of all neighbouring pairs whose join is a piece, merge the one with the
//! best score, the leftmost of equals, until none is left; then spell what is no piece in byte tokens.
//!
//! This is not BPE with ranked merge pairs (equal scores must fall to the leftmost pair, whatever way a piece splits) and
//! not Unigram (which maximises a sum). Source: `bpe_model.cc` of sentencepiece; llama.cpp's `llm_tokenizer_spm` agrees
//! but for control tokens, which text must never become.
//! O(n log n) in the text's length.

use std::collections::{BinaryHeap, HashMap};

/// U+2581, which stands for a space in pieces.
pub const SPACE: char = '\u{2581}';

/// Pieces with scores.
pub struct Spm {
    pieces: HashMap<String, Piece>,
    /// Tokens of single bytes.
    bytes: [Option<u32>; 256],
    unknown: Option<u32>,
    /// Whether a text gets a space before it.
    space_prefix: bool,
}

#[derive(Clone, Copy)]
struct Piece {
    id: u32,
    score: f32,
    /// A piece that merging may pass through but that is not to be given out.
    unused: bool,
}

/// A run of the text; merged ones have length 0 and stay in the list.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    len: usize,
    before: Option<usize>,
    after: Option<usize>,
}

struct Pair {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of both when the pair was noted; it is stale once they differ.
    len: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.score.total_cmp(&other.score).then_with(|| other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Pair {}

impl Spm {
    pub fn new(space_prefix: bool, unknown: Option<u32>) -> Self {
        Self { pieces: HashMap::new(), bytes: [None; 256], unknown, space_prefix }
    }

    pub fn add_piece(&mut self, text: &str, id: u32, score: f32, unused: bool) {
        self.pieces.insert(text.to_string(), Piece { id, score, unused });
    }

    pub fn add_byte(&mut self, byte: u8, id: u32) {
        self.bytes[byte as usize] = Some(id);
    }

    /// Whether every text has ids: each byte has a token, or there is an unknown token.
    pub fn covers_everything(&self) -> bool {
        self.unknown.is_some() || self.bytes.iter().all(Option::is_some)
    }

    /// Appends the ids of `text`. `start`: the text begins something, and gets its space.
    pub fn encode(&self, text: &str, start: bool, ids: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        let mut escaped = String::with_capacity(text.len() + text.len() / 4 + 3);
        if start && self.space_prefix {
            escaped.push(SPACE);
        }
        escaped.extend(text.chars().map(|c| if c == ' ' { SPACE } else { c }));
        let mut split = HashMap::new();
        let symbols = self.merge(&escaped, &mut split);
        let mut at = Some(0);
        while let Some(index) = at {
            let symbol = symbols[index];
            self.give_out(&escaped[symbol.start..symbol.start + symbol.len], &split, ids);
            at = symbol.after;
        }
    }

    /// Merges until nothing merges; `split` remembers how unused pieces were made.
    fn merge<'a>(&self, text: &'a str, split: &mut HashMap<&'a str, usize>) -> Vec<Symbol> {
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(i, (start, c))| Symbol { start, len: c.len_utf8(), before: i.checked_sub(1), after: Some(i + 1) })
            .collect();
        if let Some(last) = symbols.last_mut() {
            last.after = None;
        }
        let mut pairs = BinaryHeap::new();
        for left in 0..symbols.len().saturating_sub(1) {
            self.note_pair(text, &symbols, left, left + 1, &mut pairs, split);
        }
        while let Some(pair) = pairs.pop() {
            let (left, right) = (symbols[pair.left], symbols[pair.right]);
            if left.len == 0 || right.len == 0 || left.len + right.len != pair.len {
                continue;
            }
            symbols[pair.left].len += right.len;
            symbols[pair.right].len = 0;
            symbols[pair.left].after = right.after;
            if let Some(after) = right.after {
                symbols[after].before = Some(pair.left);
                self.note_pair(text, &symbols, pair.left, after, &mut pairs, split);
            }
            if let Some(before) = left.before {
                self.note_pair(text, &symbols, before, pair.left, &mut pairs, split);
            }
        }
        symbols
    }

    fn note_pair<'a>(
        &self,
        text: &'a str,
        symbols: &[Symbol],
        left: usize,
        right: usize,
        pairs: &mut BinaryHeap<Pair>,
        split: &mut HashMap<&'a str, usize>,
    ) {
        let (l, r) = (symbols[left], symbols[right]);
        let joined = &text[l.start..r.start + r.len];
        if let Some(piece) = self.pieces.get(joined) {
            pairs.push(Pair { score: piece.score, left, right, len: l.len + r.len });
            if piece.unused {
                split.insert(joined, l.len);
            }
        }
    }

    /// One merged run: its piece; the two parts an unused piece was made of; or its bytes.
    fn give_out(&self, run: &str, split: &HashMap<&str, usize>, ids: &mut Vec<u32>) {
        let mut todo = vec![run];
        while let Some(run) = todo.pop() {
            match (self.pieces.get(run), split.get(run)) {
                (Some(piece), None) => ids.push(piece.id),
                (_, Some(&at)) => {
                    let (left, right) = run.split_at(at);
                    todo.push(right);
                    todo.push(left);
                }
                (None, None) => self.spell(run, ids),
            }
        }
    }

    fn spell(&self, run: &str, ids: &mut Vec<u32>) {
        let spelled: Option<Vec<u32>> = run.bytes().map(|b| self.bytes[b as usize]).collect();
        match (spelled, self.unknown) {
            (Some(bytes), _) => ids.extend(bytes),
            (None, Some(unknown)) => ids.push(unknown),
            // Refused when the vocabulary was read (`covers_everything`).
            (None, None) => {}
        }
    }
}

#[cfg(test)]
mod tests;
