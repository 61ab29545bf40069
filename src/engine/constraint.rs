//! What a text may become, and the token masks that follow from it.
//!
//! A [`Constraint`] speaks about text. A [`Mask`] is found by walking the vocabulary's byte trie along the bytes that
//! may follow, so only what is viable is visited: digits one by one, merged digits, a token with a leading space and a
//! token that crosses the end of the text into a stop string all come out of the same walk. A token may end inside a
//! character if the character can still become a viable one.

mod ruler;
#[cfg(test)]
mod tests;

use super::grammar::Grammar;
pub use super::text::Stops;
pub use ruler::{Ruler, ending_tokens};

/// What a text may still become. Works on text, so one constraint serves any vocabulary.
pub trait Constraint: Send + Sync {
    /// Judges the text generated so far (only this request's text, not the prompt).
    fn judge(&self, text: &str) -> Judgement;

    /// What a beginning of a text is, where that can be told of every byte, also inside a character: masks are then exact, and
    /// found once for all texts of one place. Of every text, or of none.
    fn stand(&self, _text: &[u8]) -> Option<Standing> {
        None
    }

    /// Every complete text, where there are few enough to list.
    fn choices(&self) -> Option<Vec<String>> {
        None
    }

    /// The regular expression of which complete texts are whole matches, where it is one.
    fn pattern(&self) -> Option<String> {
        None
    }

    /// The grammar that texts are held to, where it is one: masks are then found by its parser.
    fn grammar(&self) -> Option<&Grammar> {
        None
    }

    /// Whether `judge` should mask tokens (true), or only end a text that became wrong (false).
    fn masks(&self) -> bool {
        true
    }

    /// Whether every text this allows is ASCII. A mask is found much faster where it is said.
    fn ascii(&self) -> bool {
        false
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    /// No continuation can make this right, and why.
    Dead(String),
    /// May go on.
    Open { complete: bool },
    /// Right and finished: nothing may follow.
    Closed,
}

/// Where the beginning of a text stands. Neither complete nor open: nothing can make it right any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    pub complete: bool,
    /// Something may follow.
    pub open: bool,
    /// Whatever may follow a text may follow all texts of this place.
    pub place: u64,
}

/// The tokens that may come next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mask {
    /// Ascending; `ends` included.
    pub allowed: Vec<u32>,
    /// Those that end the text and write nothing of it: end tokens, and tokens that begin a stop string where the text
    /// is complete. Ascending.
    pub ends: Vec<u32>,
}
