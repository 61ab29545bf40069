//! The trees a benchmark runs on: nodes with lengths, and where the queries sit.
//!
//! | spec | tree |
//! |---|---|
//! | `1,20/4000,100` | nodes per level / tokens per level, children spread evenly over the level above; a query a leaf |
//! | a file whose first line is a number | FastTree's: nodes, then `parent id seqlen children` a line, the root's parent -1 |
//! | a JSON file with `Tree_Structure` | a recorded token tree: a prompt, a token a node, a query a node |
//! | a JSON list | a recorded reasoning run (DeFT's): the iteration with the most K/V on its paths |
//! | `random:SEED` | up to 300 leaves in any shape, empty nodes among them |

use super::deft;
use crate::attention::QueryRow;
use crate::attention::sample::{Number, Sample};
use crate::base::{Error, Result, read, rng};
use crate::device::cpu::attend::Heads;
use crate::kv::{BranchId, pages_of};
use rand::Rng;
use std::path::Path;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// Index of an earlier node.
    pub parent: Option<usize>,
    pub tokens: usize,
    /// A query looks from the node's last token.
    pub query: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    pub name: String,
    pub nodes: Vec<Node>,
}

/// More tokens than this are refused: a slip of the pen should not fill the memory.
const MOST_TOKENS: usize = 1 << 24;
/// Prompt under a recorded token tree: its length in DeFT's speculative benchmark is about this.
const SPECULATIVE_PROMPT: usize = 1000;
/// Bytes of a tree's file at most.
const MOST_BYTES: u64 = 1 << 30;

impl Shape {
    pub fn read(spec: &str) -> Result<Self> {
        let shape = if let Some(seed) = spec.strip_prefix("random:") {
            let seed = seed.parse().map_err(|_| refuse(spec, "the seed is not a whole number"))?;
            Self { name: spec.into(), nodes: random(seed) }
        } else if let Some(nodes) = levels(spec)? {
            Self { name: spec.into(), nodes }
        } else {
            let path = Path::new(spec);
            let text = read::text(path, MOST_BYTES).map_err(|e| {
                let form = "nodes per level / tokens per level (such as 1,20/4000,100), random:SEED, or a file";
                refuse(spec, &format!("it is not {form}: {spec} {e}"))
            })?;
            let name = path.file_name().map_or(spec.into(), |n| n.to_string_lossy().into_owned());
            let nodes = match text.trim_start().chars().next() {
                Some('[') => deft::read_reasoning(&text).map_err(|e| e.context(spec))?.widest(),
                Some('{') => speculative(&deft::read_speculative(&text).map_err(|e| e.context(spec))?),
                _ => fast_tree(&text).map_err(|e| e.context(spec))?,
            };
            Self { name, nodes }
        };
        shape.check(spec)?;
        Ok(shape)
    }

    fn check(&self, spec: &str) -> Result<()> {
        let mut tokens = 0usize;
        for (i, node) in self.nodes.iter().enumerate() {
            assert!(node.parent.is_none_or(|p| p < i), "parents stand before their children");
            tokens = tokens.saturating_add(node.tokens);
        }
        if tokens > MOST_TOKENS {
            return Err(refuse(spec, &format!("{tokens} tokens are more than {MOST_TOKENS}")));
        }
        let paths = self.path_lengths();
        if !self.nodes.iter().zip(&paths).any(|(n, &len)| n.query && len > 0) {
            return Err(refuse(spec, "it has no query with a token before it"));
        }
        Ok(())
    }

    pub fn queries(&self) -> usize {
        self.nodes.iter().filter(|n| n.query).count()
    }

    pub fn tokens(&self) -> usize {
        self.nodes.iter().map(|n| n.tokens).sum()
    }

    /// Tokens from the root to the end of each node.
    pub fn path_lengths(&self) -> Vec<usize> {
        let mut lengths = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            lengths.push(node.tokens + node.parent.map_or(0, |p: usize| lengths[p]));
        }
        lengths
    }

    /// The tree with made-up K/V over just the pages it needs and `spare` more, and its rows.
    pub fn build(&self, heads: Heads, number: Number, spare: usize) -> Result<(Sample, Vec<QueryRow>)> {
        let paths = self.path_lengths();
        let pages: usize =
            self.nodes.iter().zip(&paths).map(|(n, &end)| pages_of((end - n.tokens) as u32, end as u32)).sum();
        let mut sample = Sample::new(pages + spare, heads, number);
        let mut branches: Vec<BranchId> = Vec::with_capacity(self.nodes.len());
        for (i, node) in self.nodes.iter().enumerate() {
            let branch = match node.parent {
                Some(parent) => sample.tree.fork(branches[parent]),
                None => sample.tree.open(),
            };
            // A node's tokens differ from its siblings', so that paths do.
            let ids: Vec<u32> = (0..node.tokens).map(|t| (i * 31 + t * 7) as u32 % 50_000).collect();
            sample.append(branch, &ids).map_err(|e| Error::fault(e.to_string()))?;
            branches.push(branch);
        }
        let mut rows = Vec::new();
        for (i, node) in self.nodes.iter().enumerate() {
            if node.query && paths[i] > 0 {
                rows.push(QueryRow { branch: branches[i], position: paths[i] as u32 - 1 });
            } else {
                sample.tree.release(branches[i]);
            }
        }
        Ok((sample, rows))
    }
}

fn refuse(spec: &str, why: &str) -> Error {
    Error::input(format!("tree `{spec}` cannot be used: {why}"))
}

/// `a,b,…/x,y,…`; `None` where the text does not begin like that.
fn levels(spec: &str) -> Result<Option<Vec<Node>>> {
    let Some((nodes, tokens)) = spec.split_once('/') else { return Ok(None) };
    let numbers = |text: &str| text.split(',').map(|n| n.trim().parse::<usize>().ok()).collect::<Option<Vec<_>>>();
    let (Some(counts), Some(lengths)) = (numbers(nodes), numbers(tokens)) else { return Ok(None) };
    if counts.len() != lengths.len() {
        return Err(refuse(spec, &format!("{} levels of nodes, {} of tokens", counts.len(), lengths.len())));
    }
    if counts.contains(&0) || counts.iter().fold(0usize, |a, &b| a.saturating_add(b)) > MOST_TOKENS {
        return Err(refuse(spec, "a level has no node, or there are too many"));
    }
    let mut tree = Vec::new();
    let mut above = 0..0;
    for (level, (&count, &tokens)) in counts.iter().zip(&lengths).enumerate() {
        let first = tree.len();
        for i in 0..count {
            let parent = (level > 0).then(|| above.start + i * above.len() / count);
            tree.push(Node { parent, tokens, query: false });
        }
        above = first..tree.len();
    }
    mark_leaves(&mut tree);
    Ok(Some(tree))
}

fn mark_leaves(nodes: &mut [Node]) {
    let mut inner = vec![false; nodes.len()];
    for node in nodes.iter() {
        if let Some(parent) = node.parent {
            inner[parent] = true;
        }
    }
    for (node, inner) in nodes.iter_mut().zip(inner) {
        node.query = !inner;
    }
}

/// FastTree's file. Ids may come in any order; parents before children is how they leave here.
fn fast_tree(text: &str) -> Result<Vec<Node>> {
    let mut lines = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty());
    let fault = |line: usize, why: &str| Error::input(format!("line {}: {why}", line + 1));
    let (_, first) = lines.next().ok_or_else(|| Error::input("the file is empty"))?;
    let count: usize = first.trim().parse().map_err(|_| fault(0, "the number of nodes is expected"))?;
    let mut read: Vec<Option<(Option<usize>, usize)>> = vec![None; count.min(text.len())];
    for (at, line) in lines {
        let fields: Vec<i64> = line.split_whitespace().map_while(|f| f.parse().ok()).collect();
        let [parent, id, len, ..] = fields[..] else {
            return Err(fault(at, "`parent id seqlen children` is expected"));
        };
        let index = |n: i64| usize::try_from(n).ok().filter(|&n| n < read.len());
        let (Some(id), Ok(len)) = (index(id), usize::try_from(len)) else {
            return Err(fault(at, "the id or the length is out of range"));
        };
        let parent = match parent {
            -1 => None,
            p => Some(index(p).ok_or_else(|| fault(at, "the parent is out of range"))?),
        };
        if read[id].replace((parent, len)).is_some() {
            return Err(fault(at, &format!("node {id} comes twice")));
        }
    }
    let read: Option<Vec<_>> = read.into_iter().collect();
    let Some(read) = read.filter(|r| r.len() == count) else {
        return Err(Error::input(format!("fewer than {count} nodes are listed")));
    };
    let mut children = vec![Vec::new(); count];
    let mut open = Vec::new();
    for (id, (parent, _)) in read.iter().enumerate().rev() {
        match parent {
            Some(p) => children[*p].push(id),
            None => open.push((id, None)),
        }
    }
    let mut nodes = Vec::with_capacity(count);
    while let Some((id, parent)) = open.pop() {
        open.extend(children[id].iter().map(|&c| (c, Some(nodes.len()))));
        nodes.push(Node { parent, tokens: read[id].1, query: children[id].is_empty() });
    }
    if nodes.len() < count {
        return Err(Error::input("some nodes are their own ancestors"));
    }
    Ok(nodes)
}

/// A prompt with the token tree of one verification step below it: every token is a query, and so is the root's last.
fn speculative(record: &deft::Speculative) -> Vec<Node> {
    let mut nodes = vec![Node { parent: None, tokens: SPECULATIVE_PROMPT, query: true }];
    nodes.extend(record.parents.iter().map(|p| Node { parent: Some(p.map_or(0, |p| p + 1)), tokens: 1, query: true }));
    nodes
}

fn random(seed: u64) -> Vec<Node> {
    let mut r = rng::stream(seed, "bench-tree", &[]);
    let leaves = r.random_range(1..=300);
    let longest = r.random_range(1..=400);
    let shape = r.random_range(0..4);
    let mut nodes = vec![Node { parent: None, tokens: r.random_range(1..=4000), query: false }];
    while nodes.len() < leaves {
        let parent = match shape {
            0 => 0,
            1 => nodes.len() - 1,
            2 => r.random_range(0..nodes.len().min(4)),
            _ => r.random_range(0..nodes.len()),
        };
        let tokens = if r.random_range(0..8) == 0 { 0 } else { r.random_range(1..=longest) };
        nodes.push(Node { parent: Some(parent), tokens, query: false });
    }
    mark_leaves(&mut nodes);
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_spread_their_children_evenly() {
        let shape = Shape::read("1,2,5/8,4,2").unwrap();
        let parents: Vec<_> = shape.nodes.iter().map(|n| n.parent).collect();
        assert_eq!(parents, [None, Some(0), Some(0), Some(1), Some(1), Some(1), Some(2), Some(2)]);
        assert_eq!((shape.queries(), shape.tokens()), (5, 26));
        let heads = Heads { heads: 3, kv_heads: 1, head_size: 8 };
        let (sample, rows) = shape.build(heads, Number::F32, 0).unwrap();
        sample.tree.check();
        assert_eq!((rows.len(), sample.tree.stats().live_tokens), (5, 26));
        assert!(rows.iter().all(|r| r.position == 13));
    }

    #[test]
    fn specs_that_cannot_be_used_say_why() {
        let check = |spec: &str, expected: &str| {
            let message = Shape::read(spec).unwrap_err().message().to_string();
            assert!(message.contains(expected) && message.contains(spec), "{message}");
        };
        check("1,2/3", "2 levels of nodes, 1 of tokens");
        check("1,0/3,4", "no node");
        check("1,2/0,0", "no query");
        check("1/999999999999", "more than");
        check("random:x", "seed");
        check("nowhere.json", "1,20/4000,100");
    }

    #[test]
    fn fast_trees_file_is_read_in_any_order() {
        let nodes = fast_tree("4\n0 2 5 0\n-1 0 10 2\n0 1 7 1\n1 3 3 0\n").unwrap();
        let lengths: Vec<_> = nodes.iter().map(|n| (n.parent, n.tokens, n.query)).collect();
        assert_eq!(lengths, [(None, 10, false), (Some(0), 7, false), (Some(1), 3, true), (Some(0), 5, true)]);
        for (bad, expected) in [
            ("", "empty"),
            ("x", "number of nodes"),
            ("2\n-1 0 3 0\n", "fewer than 2"),
            ("1\n-1 5 3 0", "line 2"),
            ("2\n-1 0 3 0\n-1 0 3 0", "twice"),
            ("2\n1 0 3 1\n0 1 3 1", "ancestors"),
            ("99999999999999\n", "fewer than"),
        ] {
            let message = fast_tree(bad).unwrap_err().message().to_string();
            assert!(message.contains(expected), "{bad:?}: {message}");
        }
    }
}
