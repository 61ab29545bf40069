//! Text to token ids and back, the same whether it comes from a `tokenizer.json` or from a GGUF's own vocabulary.
//!
//! Encoding adds no BOS; `prompt` puts exactly one. Decoding works on bytes: a token's bytes are looked up, joined and
//! read as UTF-8, so that streamed text, stored text and decode-all agree whatever the tokens' borders. Control tokens
//! have no bytes: they never show up in a text, and a mask over texts must leave them out.
//!
//! | source | encoder |
//! |---|---|
//! | `tokenizer.json` | the `tokenizers` crate |
//! | GGUF, `gpt2` (byte-level BPE) | the `tokenizers` crate, built from vocabulary, merges and pre-tokeniser name |
//! | GGUF, `llama` (SentencePiece) | `spm`, the merge by scores that SentencePiece defines |
//! | `random:…` models | one token a byte |

mod bpe;
mod gguf;
mod json;
mod library;
mod spm;
mod stream;

pub use gguf::describe as describe_gguf;
pub use stream::StreamDecoder;

use crate::base::Result;
use crate::model::gguf::Gguf;
use library::Library;
use spm::Spm;
use std::path::Path;
use std::sync::Arc;

/// What happens to the names of control tokens inside a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// They become those tokens.
    Parse,
    /// They are text like any other: what a user or a model wrote cannot pose as a turn's end.
    Text,
}

/// A tokenizer; clones share everything.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

struct Inner {
    encoder: Encoder,
    vocabulary: Vocabulary,
    /// Put before a prompt.
    bos: Option<u32>,
    /// What a template calls them.
    bos_text: String,
    eos_text: String,
    ends: Vec<u32>,
    /// For lists: `byte-level BPE (smollm)`.
    kind: String,
    /// Whether encoding a text from its beginning puts a space before it (SentencePiece).
    space_prefix: bool,
}

enum Encoder {
    Library(Box<Library>),
    Spm(Box<Spm>),
    Bytes,
}

/// Each token's bytes, in one buffer, and which tokens are control tokens.
#[derive(Default)]
struct Vocabulary {
    bytes: Vec<u8>,
    /// `ends[i]` is where token i's bytes end.
    ends: Vec<usize>,
    control: Vec<bool>,
    names: Vec<Name>,
}

/// A token that is found in a text before the text is encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Name {
    text: String,
    id: u32,
    /// Otherwise it is ordinary text that is always one token.
    control: bool,
}

impl Vocabulary {
    fn push(&mut self, bytes: &[u8], control: bool) {
        if !control {
            self.bytes.extend_from_slice(bytes);
        }
        self.ends.push(self.bytes.len());
        self.control.push(control);
    }

    /// The longest first, so that the longest is found.
    fn set_names(&mut self, mut names: Vec<Name>) {
        names.retain(|name| !name.text.is_empty());
        names.sort_by(|a, b| b.text.len().cmp(&a.text.len()).then_with(|| a.text.cmp(&b.text)));
        self.names = names;
    }

    fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        match self.ends.get(id) {
            Some(&end) => {
                let start = if id == 0 { 0 } else { self.ends[id - 1] };
                &self.bytes[start..end]
            }
            None => &[],
        }
    }
}

/// A piece of a text that was split at named tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece<'a> {
    Token(u32),
    Text(&'a str),
}

impl Tokenizer {
    /// From a GGUF's own vocabulary.
    pub fn from_gguf(file: &Gguf) -> Result<Self> {
        gguf::read(file).map_err(|e| {
            let place = file.path().display().to_string();
            if e.message().starts_with(&place) { e } else { e.context(place) }
        })
    }

    /// From a folder's `tokenizer.json`, `tokenizer_config.json` and `generation_config.json`; `bos` and `ends` are what
    /// `config.json` says.
    ///
    /// # Errors
    /// Files that cannot be read, and ids or names in any of them that are no tokens.
    pub fn from_folder(folder: &Path, bos: Option<u32>, ends: &[u32]) -> Result<Self> {
        json::read(folder, bos, ends)
    }

    /// One token a byte, then BOS and EOS, then `vocab` in all with made-up words.
    pub fn bytes(vocab: usize) -> Self {
        let mut vocabulary = Vocabulary::default();
        for byte in 0..=u8::MAX {
            vocabulary.push(&[byte], false);
        }
        vocabulary.push(b"", true);
        vocabulary.push(b"", true);
        for id in 258..vocab {
            vocabulary.push(format!(" w{id}").as_bytes(), false);
        }
        let name = |text: &str, id| Name { text: text.to_string(), id, control: true };
        vocabulary.set_names(vec![name("<s>", 256), name("</s>", 257)]);
        Self(Arc::new(Inner {
            encoder: Encoder::Bytes,
            vocabulary,
            bos: None,
            bos_text: "<s>".to_string(),
            eos_text: "</s>".to_string(),
            ends: vec![257],
            kind: "bytes".to_string(),
            space_prefix: false,
        }))
    }

    /// Ids of a text from its beginning, without BOS.
    pub fn encode(&self, text: &str, special: Special) -> Vec<u32> {
        match &self.0.encoder {
            Encoder::Library(library) => library.encode(text, special, false),
            Encoder::Spm(spm) => self.encode_pieces(text, special, |text, out| spm.encode(text, true, out)),
            Encoder::Bytes => self.encode_pieces(text, special, push_bytes),
        }
    }

    /// Ids of a text that goes on after other tokens: no space is put before it, control names are text.
    pub fn encode_continued(&self, text: &str) -> Vec<u32> {
        match &self.0.encoder {
            Encoder::Library(library) => library.encode(text, Special::Text, true),
            Encoder::Spm(spm) => self.encode_pieces(text, Special::Text, |text, out| spm.encode(text, false, out)),
            Encoder::Bytes => self.encode_pieces(text, Special::Text, push_bytes),
        }
    }

    fn encode_pieces(&self, text: &str, special: Special, encode: impl Fn(&str, &mut Vec<u32>)) -> Vec<u32> {
        let mut ids = Vec::new();
        for piece in self.split(text, special) {
            match piece {
                Piece::Token(id) => ids.push(id),
                Piece::Text(text) => encode(text, &mut ids),
            }
        }
        ids
    }

    /// Splits a text at the names of tokens that stand for themselves; the longest name wins.
    pub fn split<'a>(&self, text: &'a str, special: Special) -> Vec<Piece<'a>> {
        let names: Vec<&Name> =
            self.0.vocabulary.names.iter().filter(|n| special == Special::Parse || !n.control).collect();
        let mut first = [false; 256];
        for name in &names {
            first[name.text.as_bytes()[0] as usize] = true;
        }
        let mut pieces = Vec::new();
        let (mut start, mut at) = (0, 0);
        let bytes = text.as_bytes();
        while at < bytes.len() {
            let found = first[bytes[at] as usize]
                .then(|| names.iter().find(|name| bytes[at..].starts_with(name.text.as_bytes())))
                .flatten();
            match found {
                Some(name) => {
                    if start < at {
                        pieces.push(Piece::Text(&text[start..at]));
                    }
                    pieces.push(Piece::Token(name.id));
                    at += name.text.len();
                    start = at;
                }
                None => at += 1,
            }
        }
        if start < bytes.len() {
            pieces.push(Piece::Text(&text[start..]));
        }
        pieces
    }

    /// Names of control tokens.
    pub fn control_names(&self) -> impl Iterator<Item = &str> {
        self.0.vocabulary.names.iter().filter(|n| n.control).map(|n| n.text.as_str())
    }

    /// The text of tokens that continue something: every space stays. Bytes that are no UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.token_bytes(id)).copied().collect();
        match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(e) => String::from_utf8_lossy(e.as_bytes()).into_owned(),
        }
    }

    /// The text that `encode` would have made these tokens of: the space it puts before a text is taken off.
    pub fn decode_from_start(&self, ids: &[u32]) -> String {
        let mut text = self.decode(ids);
        if self.0.space_prefix && text.starts_with(' ') {
            text.remove(0);
        }
        text
    }

    /// A token's bytes; none for control tokens and for ids outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.0.vocabulary.bytes(id)
    }

    /// The token to put before a prompt, where one is to be put.
    pub fn bos(&self) -> Option<u32> {
        self.0.bos
    }

    /// BOS as templates write it; empty where there is none.
    pub fn bos_text(&self) -> &str {
        &self.0.bos_text
    }

    pub fn eos_text(&self) -> &str {
        &self.0.eos_text
    }

    /// Whether a text ends with this token. Several tokens can be ends.
    pub fn is_end(&self, id: u32) -> bool {
        self.0.ends.contains(&id)
    }

    pub fn ends(&self) -> &[u32] {
        &self.0.ends
    }

    /// Whether it is a control token, which has no text.
    pub fn is_special(&self, id: u32) -> bool {
        self.0.vocabulary.control.get(id as usize).copied().unwrap_or(false)
    }

    /// The id of a control token's name.
    pub fn control_id(&self, name: &str) -> Option<u32> {
        self.0.vocabulary.names.iter().find(|n| n.control && n.text == name).map(|n| n.id)
    }

    /// Tokens; the model's embedding may have more rows.
    pub fn vocab_len(&self) -> usize {
        self.0.vocabulary.ends.len()
    }

    pub fn kind(&self) -> &str {
        &self.0.kind
    }
}

fn push_bytes(text: &str, ids: &mut Vec<u32>) {
    ids.extend(text.bytes().map(u32::from));
}

/// Names of control tokens that end a turn or a text wherever they exist, whatever a file declares. As llama.cpp's
/// `llama-vocab.cpp` lists them.
const END_NAMES: [&str; 10] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "</s>",
    "<EOT>",
];

/// Adds the ends known by name to the declared ones; drops what is no token.
fn with_named_ends(mut ends: Vec<u32>, vocabulary: &Vocabulary) -> Vec<u32> {
    let named = vocabulary.names.iter().filter(|n| n.control && END_NAMES.contains(&n.text.as_str()));
    ends.extend(named.map(|n| n.id));
    ends.sort_unstable();
    ends.dedup();
    ends
}

#[cfg(test)]
mod tests;
