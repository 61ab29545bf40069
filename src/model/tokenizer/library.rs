//! The `tokenizers` crate behind our signature: one object for texts from their beginning, and, where the tokenizer puts
//! something before a text, a second one that does not.

use super::Special;
use crate::base::{Error, Result};
use std::sync::{Mutex, PoisonError};
use tokenizers::Tokenizer;

pub struct Library {
    /// Parsing control tokens is a setting of the whole object, so a call holds the lock while it is as it needs it.
    start: Mutex<Tokenizer>,
    /// `None`: a text is encoded the same wherever it stands.
    continued: Option<Mutex<Tokenizer>>,
    /// Tokens of single bytes, for texts the library fails on.
    bytes: Vec<Option<u32>>,
}

impl Library {
    pub fn new(start: Tokenizer, continued: Option<Tokenizer>, bytes: Vec<Option<u32>>) -> Self {
        Self { start: Mutex::new(start), continued: continued.map(Mutex::new), bytes }
    }

    /// Refuses a tokenizer that fails on plain text, so that `encode` need not.
    pub fn check(&self) -> Result<()> {
        let probe = "A z\n0 1.\u{e9}\u{4e2d}\u{1f600}\u{7f}";
        let locked = self.start.lock().unwrap_or_else(PoisonError::into_inner);
        locked
            .encode_fast(probe, false)
            .map(|_| ())
            .map_err(|e| Error::input(format!("its tokenizer fails on plain text: {e}")))
    }

    pub fn encode(&self, text: &str, special: Special, continued: bool) -> Vec<u32> {
        let chosen = match &self.continued {
            Some(other) if continued => other,
            _ => &self.start,
        };
        let mut tokenizer = chosen.lock().unwrap_or_else(PoisonError::into_inner);
        tokenizer.set_encode_special_tokens(special == Special::Text);
        match tokenizer.encode_fast(text, false) {
            Ok(encoding) => encoding.get_ids().to_vec(),
            // Not known to happen with a vocabulary that passed `check`; no text must be lost if it does.
            Err(_) => text.bytes().filter_map(|b| self.bytes.get(b as usize).copied().flatten()).collect(),
        }
    }
}
