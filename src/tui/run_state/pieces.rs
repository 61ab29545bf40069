//! The pieces that a thought's text came in. A record says how long each is, so a replay knows what the live screen knew.

use crate::search::tree::NodeId;

/// A reply whose thought may grow next.
#[derive(Debug, Clone)]
pub(super) struct Reply {
    node: NodeId,
    pieces: Pieces,
}

/// A text, cut.
#[derive(Debug, Clone)]
pub(super) struct Pieces {
    text: Box<str>,
    /// Where each piece ends, on a border of characters.
    ends: Box<[u32]>,
    /// Their natural-log probabilities, where the thought does not tell them.
    logprobs: Box<[f32]>,
}

impl Reply {
    /// `None` where the pieces are not told, or not those of this text (a record may say anything).
    pub fn new(node: NodeId, text: &str, pieces: &[u32], logprobs: &[f32]) -> Option<Self> {
        let mut at = 0usize;
        let ends: Option<Box<[u32]>> = pieces
            .iter()
            .map(|&bytes| {
                at = at.checked_add(bytes as usize).filter(|&end| text.is_char_boundary(end))?;
                u32::try_from(at).ok()
            })
            .collect();
        let fits = at == text.len() && (logprobs.is_empty() || logprobs.len() == pieces.len());
        let ends = ends.filter(|ends| fits && !ends.is_empty())?;
        Some(Self { node, pieces: Pieces { text: text.into(), ends, logprobs: logprobs.into() } })
    }

    /// Whether the thought that grows is this reply and not one of several that it lists. A separator may have been added
    /// to its text.
    pub fn becomes(&self, parent: NodeId, text: &str, token_logprobs: &[f32]) -> bool {
        let Pieces { text: reply, ends, logprobs } = &self.pieces;
        let known = !logprobs.is_empty() || ends.len() == token_logprobs.len();
        let same = (!reply.trim().is_empty() && text.contains(reply.trim())) || reply.contains(text);
        self.node == parent && known && same && (!token_logprobs.is_empty() || **reply == *text)
    }
}

impl From<Reply> for Pieces {
    fn from(reply: Reply) -> Self {
        reply.pieces
    }
}

impl Pieces {
    /// The pieces with their probabilities; `token_logprobs` are the thought's.
    pub fn with<'a>(&'a self, token_logprobs: &[f32]) -> Vec<(&'a str, f32)> {
        let logprobs = if self.logprobs.is_empty() { token_logprobs } else { &self.logprobs };
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let pieces = starts.zip(&self.ends).map(|(start, &end)| &self.text[start as usize..end as usize]);
        pieces.zip(logprobs.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(reply: (&str, &[u32], &[f32]), thought: (&str, &[f32]), expected: Option<&[(&str, f32)]>) {
        let (text, pieces, logprobs) = reply;
        let found =
            Reply::new(NodeId(1), text, pieces, logprobs).filter(|r| r.becomes(NodeId(1), thought.0, thought.1));
        assert!(Reply::new(NodeId(2), text, pieces, logprobs).is_none_or(|r| !r.becomes(
            NodeId(1),
            thought.0,
            thought.1
        )));
        let found = found.map(Pieces::from);
        assert_eq!(found.as_ref().map(|p| p.with(thought.1)).as_deref(), expected, "{reply:?} {thought:?}");
    }

    #[test]
    fn pieces_are_those_of_the_thought_or_none() {
        check(
            ("12 3", &[1, 1, 2], &[]),
            ("12 3", &[-1.0, -2.0, -3.0]),
            Some(&[("1", -1.0), ("2", -2.0), (" 3", -3.0)]),
        );
        // The separator that ended the text is added to the thought.
        check(("7", &[1], &[]), ("7\n", &[-1.0]), Some(&[("7", -1.0)]));
        // One character of two tokens.
        check(("é!", &[2, 1], &[-3.0, -1.0]), ("é!", &[-1.0, -2.0, -1.0]), Some(&[("é", -3.0), ("!", -1.0)]));
        check(("é!", &[2, 1], &[]), ("é!", &[-1.0, -2.0, -1.0]), None);
        // A list's lines are thoughts without tokens of their own.
        check(("a\nb", &[1, 1, 1], &[-1.0; 3]), ("a", &[]), None);
        check(("ab", &[1, 1], &[-1.0; 2]), ("ab", &[]), Some(&[("a", -1.0), ("b", -1.0)]));
        check(("other", &[5], &[]), ("text", &[-1.0]), None);
        // What a record made by hand may say.
        for pieces in [&[][..], &[1, 2], &[4], &[3, 3], &[u32::MAX, 4], &[9]] {
            check(("éx", pieces, &[]), ("éx", &[-1.0; 2]), None);
        }
        check(("éx", &[2, 1], &[-1.0]), ("éx", &[-1.0; 2]), None);
    }
}
