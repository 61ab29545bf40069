//! Given texts as one tree of tokens: what they share is forwarded once, all of it in one packed step.
//!
//! Only inner nodes are forwarded: a node's logits give the probabilities of its children, and the last token of a text
//! that no other goes on from needs none.
//!
//! Ranking: a text's probability is the product, along its path, of each token's share among its siblings. A node that
//! is both a whole text and inner has one more alternative, to end: its weight is the summed probability of the tokens
//! that end a text (end tokens, and tokens that begin a stop string). Where nothing else follows, the end is certain.

use super::request::Likelihood;
use super::sample::row::Row;
use super::sample::sums::log_sum_exp_of_few;
use crate::base::Result;

/// Node 0 is the prompt's last token.
pub struct Trie {
    nodes: Vec<Node>,
    /// For each text, the node it ends at.
    leaves: Vec<usize>,
}

struct Node {
    token: u32,
    parent: usize,
    children: Vec<usize>,
    /// Whether some text ends here.
    whole: bool,
    shares: Option<Shares>,
}

/// What an inner node's logits say.
struct Shares {
    /// For each child, the natural-log probability under the unmodified distribution.
    logprobs: Vec<f32>,
    /// For each child, the natural-log share among the alternatives.
    masked: Vec<f64>,
    /// The natural-log share of ending here.
    end: f64,
}

impl Trie {
    pub fn new<'a>(texts: impl IntoIterator<Item = &'a [u32]>) -> Self {
        let mut nodes = vec![Node::new(0, 0)];
        let leaves = texts
            .into_iter()
            .map(|text| {
                let mut at = 0;
                for &token in text {
                    let known = nodes[at].children.iter().copied().find(|&child| nodes[child].token == token);
                    at = known.unwrap_or_else(|| {
                        let new = nodes.len();
                        nodes.push(Node::new(token, at));
                        nodes[at].children.push(new);
                        new
                    });
                }
                nodes[at].whole = true;
                at
            })
            .collect();
        Self { nodes, leaves }
    }

    /// Nodes below the prompt that must be forwarded, parents first.
    pub fn inner(&self) -> Vec<usize> {
        (1..self.nodes.len()).filter(|&node| !self.nodes[node].children.is_empty()).collect()
    }

    /// Tokens from the prompt (exclusive) to this node.
    pub fn path(&self, node: usize) -> Vec<u32> {
        let mut path: Vec<u32> = self.ancestors(node).map(|at| self.nodes[at].token).collect();
        path.reverse();
        path
    }

    /// The deepest forwarded node on the way to a text; 0 is the prompt.
    pub fn deepest_inner(&self, text: usize) -> usize {
        let leaf = self.leaves[text];
        if self.nodes[leaf].children.is_empty() { self.nodes[leaf].parent } else { leaf }
    }

    /// Tokens whose logits [`fill`](Self::fill) looks at: a node's children, then those that may end it.
    pub fn looked_at(&self, node: usize, ends: &[u32]) -> Vec<u32> {
        let Node { children, whole, .. } = &self.nodes[node];
        let mut tokens: Vec<u32> = children.iter().map(|&child| self.nodes[child].token).collect();
        if *whole {
            let other: Vec<u32> = ends.iter().copied().filter(|end| !tokens.contains(end)).collect();
            tokens.extend(other);
        }
        tokens
    }

    /// Takes an inner node's logits. `ends`: tokens that end a text; `likelihood`: what log-probabilities are of.
    pub fn fill(&mut self, node: usize, row: &mut Row<'_>, ends: &[u32], likelihood: Likelihood) -> Result<()> {
        let logits = row.at(&self.looked_at(node, ends))?;
        let total = match likelihood {
            Likelihood::Model => row.total()?,
            Likelihood::Allowed => log_sum_exp_of_few(&logits)?,
        };
        let mut children: Vec<f64> = logits.iter().map(|&logit| f64::from(logit) - total).collect();
        let ends = children.split_off(self.nodes[node].children.len());
        let end = sum_of_logs(ends.into_iter());
        let all = sum_of_logs(children.iter().copied().chain([end]));
        self.nodes[node].shares = Some(Shares {
            masked: children.iter().map(|l| l - all).collect(),
            logprobs: children.into_iter().map(|l| l as f32).collect(),
            end: end - all,
        });
        Ok(())
    }

    /// Natural-log probability of each token of a text, and of the text among all given ones. `None` where a node on
    /// its way has no logits.
    pub fn score(&self, text: usize) -> Option<(Vec<f32>, f64)> {
        let leaf = self.leaves[text];
        let mut logprobs = Vec::new();
        let mut masked = 0.0;
        for at in self.ancestors(leaf) {
            let parent = &self.nodes[self.nodes[at].parent];
            let shares = parent.shares.as_ref()?;
            let child = parent.children.iter().position(|&child| child == at)?;
            logprobs.push(shares.logprobs[child]);
            masked += shares.masked[child];
        }
        logprobs.reverse();
        if !self.nodes[leaf].children.is_empty() {
            masked += self.nodes[leaf].shares.as_ref()?.end;
        }
        Some((logprobs, masked))
    }

    /// This node and those above it, without the prompt.
    fn ancestors(&self, node: usize) -> impl Iterator<Item = usize> {
        std::iter::successors((node != 0).then_some(node), |&at| Some(self.nodes[at].parent).filter(|&up| up != 0))
    }
}

impl Node {
    fn new(token: u32, parent: usize) -> Self {
        Self { token, parent, children: Vec::new(), whole: false, shares: None }
    }
}

/// ln Σ exp(l); minus infinity of nothing.
fn sum_of_logs(logs: impl Iterator<Item = f64> + Clone) -> f64 {
    let best = logs.clone().fold(f64::NEG_INFINITY, f64::max);
    if best == f64::NEG_INFINITY {
        return best;
    }
    best + logs.map(|l| (l - best).exp()).sum::<f64>().ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_tokens_are_one_node_and_the_probabilities_of_all_texts_sum_to_one() {
        let texts: [&[u32]; 4] = [&[1], &[1, 2], &[1, 3, 2], &[2]];
        let mut trie = Trie::new(texts);
        assert_eq!(trie.inner(), [1, 3]);
        assert_eq!(
            (trie.path(3), trie.deepest_inner(0), trie.deepest_inner(2), trie.deepest_inner(3)),
            (vec![1, 3], 1, 3, 0)
        );
        assert!(trie.score(0).is_none());
        let logits = [0.5f32, 1.0, -0.5, 2.0];
        for node in [0, 1, 3] {
            trie.fill(node, &mut Row::of(&logits), &[0], Likelihood::Model).unwrap();
        }
        let sum: f64 = (0..4).map(|text| trie.score(text).unwrap().1.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-12, "{sum}");
        // At node 1 the alternatives are 2, 3 and the end.
        let lse = |ids: &[usize]| ids.iter().map(|&i| f64::from(logits[i]).exp()).sum::<f64>().ln();
        let (logprobs, masked) = trie.score(1).unwrap();
        assert!((f64::from(logprobs[1]) - (-0.5 - lse(&[0, 1, 2, 3]))).abs() < 1e-6);
        assert!((masked - ((1.0 - lse(&[1, 2])) + (-0.5 - lse(&[0, 2, 3])))).abs() < 1e-9);
    }

    #[test]
    fn empty_and_repeated_texts_are_texts() {
        let texts: [&[u32]; 3] = [&[], &[1], &[1]];
        let mut trie = Trie::new(texts);
        assert!(trie.inner().is_empty());
        trie.fill(0, &mut Row::of(&[0.0, 0.0]), &[0], Likelihood::Model).unwrap();
        assert_eq!(trie.score(0).unwrap().0, Vec::<f32>::new());
        assert_eq!(trie.score(1), trie.score(2));
        assert!((trie.score(0).unwrap().1 - 0.5f64.ln()).abs() < 1e-12);
        assert!(trie.fill(0, &mut Row::of(&[f32::NAN, 0.0]), &[0], Likelihood::Model).is_err());
    }
}
