//! The prompts as sent, kept small: prompts of one run share their long beginning (instructions, examples), so each is
//! a length of an earlier full prompt and its own rest. 100,000 prompts of 2 KB with 50 bytes of their own take 5 MB.

use crate::search::event::Purpose;
use crate::search::tree::NodeId;
use std::collections::HashMap;

#[derive(Debug, Clone, Default)]
pub struct Prompts {
    /// Full prompts that others begin like.
    bases: Vec<String>,
    /// By thought and purpose (as its number).
    latest: HashMap<(NodeId, u8), Stored>,
}

#[derive(Debug, Clone)]
struct Stored {
    base: usize,
    /// Bytes of the base that are shared, on a character border.
    shared: usize,
    rest: Box<str>,
}

impl Prompts {
    /// Keeps the newest prompt of each purpose that was sent on behalf of a thought.
    pub fn keep(&mut self, node: NodeId, purpose: Purpose, prompt: &str) {
        // The newest bases are the likeliest; a strategy has a handful of templates.
        let best = self
            .bases
            .iter()
            .enumerate()
            .rev()
            .take(8)
            .map(|(i, base)| (common_prefix(base, prompt), i))
            .max_by_key(|&(shared, _)| shared);
        let stored = match best {
            Some((shared, base)) if shared * 2 >= prompt.len() => {
                Stored { base, shared, rest: prompt[shared..].into() }
            }
            _ => {
                self.bases.push(prompt.to_string());
                Stored { base: self.bases.len() - 1, shared: prompt.len(), rest: "".into() }
            }
        };
        self.latest.insert((node, purpose as u8), stored);
    }

    pub fn get(&self, node: NodeId, purpose: Purpose) -> Option<String> {
        let stored = self.latest.get(&(node, purpose as u8))?;
        Some(format!("{}{}", &self.bases[stored.base][..stored.shared], stored.rest))
    }
}

/// Bytes two texts share at their beginning, on a character border of both.
fn common_prefix(a: &str, b: &str) -> usize {
    let mut shared = a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count();
    while !a.is_char_boundary(shared) {
        shared -= 1;
    }
    shared
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_come_back_as_sent() {
        let mut prompts = Prompts::default();
        let head = "Sort the numbers. é ".repeat(20);
        let texts: Vec<String> = (0..50).map(|i| format!("{head}é{i}中")).chain(["other".into(), "".into()]).collect();
        for (i, text) in texts.iter().enumerate() {
            prompts.keep(NodeId(i as u32), Purpose::Generate, text);
        }
        for (i, text) in texts.iter().enumerate() {
            assert_eq!(prompts.get(NodeId(i as u32), Purpose::Generate).as_ref(), Some(text));
        }
        assert!(prompts.bases.len() <= 3, "{} full prompts are kept", prompts.bases.len());
        assert_eq!(prompts.get(NodeId(0), Purpose::Vote), None);
    }
}
