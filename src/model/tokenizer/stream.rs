//! Decodes token by token, and gives out complete characters only.

use super::Tokenizer;

/// Joins to the same text as [`Tokenizer::decode`] of all the tokens.
pub struct StreamDecoder {
    tokenizer: Tokenizer,
    /// Bytes of a character that has not ended yet, at most three.
    pending: Vec<u8>,
}

impl StreamDecoder {
    pub fn new(tokenizer: &Tokenizer) -> Self {
        Self { tokenizer: tokenizer.clone(), pending: Vec::new() }
    }

    /// The characters that this token completes; often none in the middle of an emoji.
    pub fn push(&mut self, id: u32) -> String {
        self.pending.extend_from_slice(self.tokenizer.token_bytes(id));
        let mut text = String::new();
        let mut rest: &[u8] = &self.pending;
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(e) => {
                    let (valid, after) = rest.split_at(e.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    rest = after;
                    // No length: the bytes may still become a character.
                    let Some(wrong) = e.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[wrong..];
                }
            }
        }
        self.pending = rest.to_vec();
        text
    }

    /// What is left when no token follows: U+FFFD for a character that never ended.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }
}
