//! The vocabulary as bytes: what each token writes, which tokens end a text, and a byte trie over all of them.
//!
//! The trie is implicit: token ids sorted by their bytes, a node is a range of them that share a prefix. It costs four
//! bytes a token and is walked with binary searches.

use super::grammar::Lexicon;
use crate::model::tokenizer::Tokenizer;
use std::ops::Range;
use std::sync::OnceLock;

/// What the engine knows of a tokenizer.
#[derive(Debug, Clone)]
pub struct Vocab {
    /// Bytes of each token; empty for special tokens, which write nothing.
    pieces: Vec<Box<[u8]>>,
    /// Tokens that end a text, ascending.
    ends: Vec<u32>,
    /// Tokens that write something, by their bytes, equal bytes by id.
    sorted: Vec<u32>,
    /// The same for parsers of grammars, made when it is first asked for.
    lexicon: OnceLock<Result<Lexicon, String>>,
}

/// A node of the trie: the tokens that begin with the same `depth` bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    range: Range<usize>,
    depth: usize,
}

impl Vocab {
    /// `pieces[id]` are the bytes token `id` writes (empty: none).
    pub fn new(pieces: Vec<Vec<u8>>, mut ends: Vec<u32>) -> Self {
        let pieces: Vec<Box<[u8]>> = pieces.into_iter().map(Vec::into_boxed_slice).collect();
        let mut sorted: Vec<u32> =
            (0u32..).zip(&pieces).filter(|(_, piece)| !piece.is_empty()).map(|(id, _)| id).collect();
        sorted.sort_by(|&a, &b| pieces[a as usize].cmp(&pieces[b as usize]).then(a.cmp(&b)));
        ends.sort_unstable();
        ends.dedup();
        Self { pieces, ends, sorted, lexicon: OnceLock::new() }
    }

    /// The tokens of a model with logits for `vocab` of them.
    pub fn of(tokenizer: &Tokenizer, vocab: usize) -> Self {
        let count = tokenizer.vocab_len().min(vocab) as u32;
        let pieces = (0..count).map(|id| tokenizer.token_bytes(id).to_vec()).collect();
        Self::new(pieces, tokenizer.ends().iter().copied().filter(|&id| id < count).collect())
    }

    /// The vocabulary as parsers of grammars see it.
    pub fn lexicon(&self) -> Result<&Lexicon, String> {
        self.lexicon.get_or_init(|| Lexicon::of(self)).as_ref().map_err(Clone::clone)
    }

    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The bytes a token writes. Ids past the vocabulary (padding rows of a model's output matrix) write nothing.
    pub fn bytes(&self, id: u32) -> &[u8] {
        self.pieces.get(id as usize).map_or(&[], |piece| piece)
    }

    pub fn is_end(&self, id: u32) -> bool {
        self.ends.binary_search(&id).is_ok()
    }

    /// Tokens that end a text, ascending.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    pub fn root(&self) -> Node {
        Node { range: 0..self.sorted.len(), depth: 0 }
    }

    /// Tokens whose bytes are exactly this node's.
    pub fn here(&self, node: &Node) -> &[u32] {
        let ids = &self.sorted[node.range.clone()];
        let count = ids.partition_point(|&id| self.pieces[id as usize].len() == node.depth);
        &ids[..count]
    }

    /// All tokens at and below this node.
    pub fn below(&self, node: &Node) -> &[u32] {
        &self.sorted[node.range.clone()]
    }

    /// The next bytes that occur, with their nodes.
    pub fn children(&self, node: &Node) -> Vec<(u8, Node)> {
        let depth = node.depth;
        let mut from = node.range.start + self.here(node).len();
        let mut children = Vec::new();
        while from < node.range.end {
            let byte = self.pieces[self.sorted[from] as usize][depth];
            let ids = &self.sorted[from..node.range.end];
            let to = from + ids.partition_point(|&id| self.pieces[id as usize][depth] == byte);
            children.push((byte, Node { range: from..to, depth: depth + 1 }));
            from = to;
        }
        children
    }

    /// The node one byte on, if any token goes there.
    pub fn child(&self, node: &Node, byte: u8) -> Option<Node> {
        let depth = node.depth;
        let from = node.range.start + self.here(node).len();
        let ids = &self.sorted[from..node.range.end];
        let start = from + ids.partition_point(|&id| self.pieces[id as usize][depth] < byte);
        let to = from + ids.partition_point(|&id| self.pieces[id as usize][depth] <= byte);
        (start < to).then_some(Node { range: start..to, depth: depth + 1 })
    }

    /// Spells bytes in tokens: `proposal` (a tokenizer's encoding) where it writes exactly these bytes, else the longest
    /// token at each place. A tokenizer that puts a space before every text cannot spell a continuation by itself.
    /// `None` where a byte has no token.
    pub fn spell(&self, bytes: &[u8], proposal: Vec<u32>) -> Option<Vec<u32>> {
        if proposal.iter().flat_map(|&id| self.bytes(id)).eq(bytes) {
            return Some(proposal);
        }
        let mut ids = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let mut node = self.root();
            let mut longest = None;
            for &byte in &bytes[at..] {
                let Some(next) = self.child(&node, byte) else { break };
                node = next;
                longest = self.here(&node).first().map(|&id| (id, node.depth)).or(longest);
            }
            let (id, length) = longest?;
            ids.push(id);
            at += length;
        }
        Some(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocab(pieces: &[&str]) -> Vocab {
        Vocab::new(pieces.iter().map(|p| p.as_bytes().to_vec()).collect(), vec![0])
    }

    #[test]
    fn the_trie_finds_every_token_once() {
        let vocab = vocab(&["", "a", "ab", "abc", "b", "ab", "é"]);
        let mut found = Vec::new();
        let mut stack = vec![(vocab.root(), Vec::new())];
        while let Some((node, bytes)) = stack.pop() {
            for &id in vocab.here(&node) {
                assert_eq!(vocab.bytes(id), bytes);
                found.push(id);
            }
            for (byte, child) in vocab.children(&node) {
                assert_eq!(vocab.child(&node, byte), Some(child.clone()));
                stack.push((child, [&bytes[..], &[byte]].concat()));
            }
        }
        found.sort_unstable();
        assert_eq!(found, [1, 2, 3, 4, 5, 6]);
        assert_eq!(vocab.child(&vocab.root(), b'z'), None);
        assert!(vocab.is_end(0) && !vocab.is_end(1));
        assert_eq!(vocab.bytes(99), b"");
    }

    #[test]
    fn spelling_takes_the_tokenizers_ids_only_where_they_write_the_text() {
        let vocab = vocab(&["", "a", "ab", "abd", "c", " abc", "abc"]);
        assert_eq!(vocab.spell(b"abc", vec![2, 4]), Some(vec![2, 4]));
        assert_eq!(vocab.spell(b"abc", vec![5]), Some(vec![6]));
        assert_eq!(vocab.spell(b"abcab", vec![]), Some(vec![6, 2]));
        assert_eq!(vocab.spell(b"", vec![]), Some(vec![]));
        assert_eq!(vocab.spell(b"x", vec![]), None);
    }
}
