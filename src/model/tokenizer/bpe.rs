//! Byte-level BPE from a GGUF's vocabulary and merges: pre-tokenisers by name, and the map between bytes and characters.
//!
//! The names and expressions are those of llama.cpp's `llama-vocab.cpp`, which writes the names into files.

use crate::base::text::sanitize_line;
use crate::base::{Error, Result};
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{PreTokenizerWrapper, SplitDelimiterBehavior};

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// How text is cut before merging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreTokenizer {
    /// Expressions, applied one after the other; each cuts what the one before left.
    expressions: &'static [&'static str],
    /// Whether a whole cut that is a token is taken as it is.
    pub ignore_merges: bool,
    /// Whether a BOS is added where the file does not say.
    pub add_bos: bool,
}

impl PreTokenizer {
    pub fn named(name: &str) -> Result<Self> {
        let plain = |expressions| Self { expressions, ignore_merges: false, add_bos: false };
        Ok(match name {
            "default" => plain(&[
                r"[\p{P}\$\+<=>\^~\|]+",
                r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
                r"\p{N}+",
                r"[0-9][0-9][0-9]",
            ]),
            "gpt-2" | "phi-2" | "jina-es" | "jina-de" | "mpt" | "olmo" | "roberta-bpe" => plain(&[GPT2]),
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" => plain(&[r"\p{N}", GPT2]),
            "qwen2" | "stablelm2" => plain(&[QWEN2]),
            "llama-bpe" | "llama3" | "llama-v3" => Self { expressions: &[LLAMA3], ignore_merges: true, add_bos: true },
            "dbrx" | "smaug-bpe" => plain(&[LLAMA3]),
            "tekken" => Self { expressions: &[TEKKEN], ignore_merges: true, add_bos: true },
            other => {
                return Err(Error::input(format!(
                    "pre-tokeniser `{}` (key `tokenizer.ggml.pre`) is not known; known: default, gpt-2, smollm, \
                     starcoder, refact, command-r, qwen2, llama-bpe, dbrx, smaug-bpe, tekken",
                    sanitize_line(other)
                )));
            }
        })
    }

    /// The library's form: the cuts, then bytes to characters.
    pub fn build(self) -> Result<PreTokenizerWrapper> {
        let mut steps = Vec::new();
        for expression in self.expressions {
            let pattern = SplitPattern::Regex((*expression).to_string());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                .map_err(|e| Error::fault(format!("expression `{expression}`: {e}")))?;
            steps.push(PreTokenizerWrapper::Split(split));
        }
        steps.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, false)));
        Ok(PreTokenizerWrapper::Sequence(Sequence::new(steps)))
    }
}

/// Builds the model. Every merge must join two tokens into a third: the library trusts that.
pub fn model(tokens: &[&str], merges: &[&str], ignore_merges: bool) -> Result<BPE> {
    let vocab: Vocab = tokens.iter().enumerate().map(|(id, token)| ((*token).to_string(), id as u32)).collect();
    let mut pairs = Vec::with_capacity(merges.len());
    for (index, merge) in merges.iter().enumerate() {
        // A token may itself begin with a space character, so the first one does not separate.
        let cut = merge.char_indices().skip(1).find(|(_, c)| *c == ' ').map(|(at, _)| at);
        let pair = cut.map(|at| (&merge[..at], &merge[at + 1..])).filter(|(left, right)| {
            vocab.contains_key(*left) && vocab.contains_key(*right) && vocab.contains_key(&format!("{left}{right}"))
        });
        let Some((left, right)) = pair else {
            return Err(Error::input(format!(
                "merge {index} (`{}`) does not join two tokens of the vocabulary into a third",
                sanitize_line(merge)
            )));
        };
        pairs.push((left.to_string(), right.to_string()));
    }
    BPE::builder()
        .vocab_and_merges(vocab, pairs)
        .ignore_merges(ignore_merges)
        .build()
        .map_err(|e| Error::input(format!("vocabulary and merges do not fit: {e}")))
}

/// The byte that a character of a byte-level token stands for: printable ones stand for themselves, the others were
/// moved to U+0100 and on (GPT-2's `bytes_to_unicode`).
fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => u8::try_from(code).ok(),
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// A token's bytes; a token with other characters in it stands for its own text.
pub fn token_bytes(token: &str) -> Vec<u8> {
    match token.chars().map(byte_of).collect::<Option<Vec<u8>>>() {
        Some(bytes) => bytes,
        None => token.as_bytes().to_vec(),
    }
}

/// The character that stands for a byte.
pub fn char_of(byte: u8) -> char {
    let code = match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => u32::from(byte),
        0x00..=0x20 => 0x100 + u32::from(byte),
        0x7f..=0xa0 => 0x121 + u32::from(byte) - 0x7f,
        0xad => 0x143,
    };
    char::from_u32(code).expect("all codes lie below U+0144")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_stand_for_all_bytes() {
        for byte in 0..=u8::MAX {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
        assert_eq!(token_bytes("\u{120}the"), b" the");
        assert_eq!(token_bytes("\u{10a}"), b"\n");
        assert_eq!(token_bytes("<|中|>"), "<|中|>".as_bytes());
    }

    #[test]
    fn pre_tokenisers_are_known_by_name_or_refused_by_it() {
        for name in ["default", "gpt-2", "smollm", "llama-bpe", "qwen2", "tekken", "dbrx"] {
            PreTokenizer::named(name).unwrap().build().unwrap();
        }
        let refused = PreTokenizer::named("zebra\x1b[31m").unwrap_err();
        assert!(refused.message().contains("`zebra`") && refused.message().contains("smollm"), "{refused}");
    }

    #[test]
    fn merges_that_join_nothing_are_refused() {
        let tokens = ["a", "b", "ab"];
        assert!(model(&tokens, &["a b"], false).is_ok());
        for bad in ["b a", "ab", "", " ", "a  b", "a c", "\u{120}"] {
            assert!(model(&tokens, &[bad], false).is_err(), "{bad:?}");
        }
    }
}
