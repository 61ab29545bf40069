//! DeFT's recorded trees (MIT; Yao et al., ICLR 2025), and how many K/V tokens each method reads to replay them.
//!
//! A reasoning record lists nodes with `value` tokens, made in the iterations `start..=end`; in iteration `t` every node
//! with `start <= t <= end` decodes one token. The root is the prompt: it ends in iteration 0.

use super::trees::Node;
use crate::attention::{Planner, QueryRow};
use crate::base::{Error, Result};
use crate::kv::{BranchId, PAGE_TOKENS, TokenTree};
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};

#[derive(Deserialize)]
struct RawReasoning {
    #[serde(default)]
    incompleted: bool,
    data: BTreeMap<String, RawNode>,
}

#[derive(Deserialize)]
struct RawNode {
    id: usize,
    value: usize,
    start: i64,
    end: i64,
    children: Vec<usize>,
}

#[derive(Deserialize)]
struct RawSpeculative {
    #[serde(rename = "Tree_Structure")]
    structure: Vec<Vec<u32>>,
    #[serde(rename = "Records")]
    records: Vec<RawRecord>,
}

#[derive(Deserialize)]
struct RawRecord {
    #[serde(rename = "Accept_length")]
    accepted: Vec<usize>,
}

/// One recorded run: nodes, parents before children.
#[derive(Debug, Clone)]
pub struct Run {
    nodes: Vec<RunNode>,
}

/// A node of a recorded run: it makes a token in each of the iterations `start..=end`; those up to 0 are the prompt.
#[derive(Debug, Clone, Copy)]
pub struct RunNode {
    /// Index of an earlier node.
    pub parent: Option<usize>,
    pub start: i64,
    pub end: i64,
    pub tokens: usize,
}

#[derive(Debug, Clone)]
pub struct Reasoning {
    pub runs: Vec<Run>,
}

/// A recorded token tree: each node's parent (`None`: the root token), and the tokens accepted in each step of each run.
#[derive(Debug, Clone)]
pub struct Speculative {
    pub parents: Vec<Option<usize>>,
    pub accepted: Vec<Vec<usize>>,
}

/// K/V tokens read over a whole run, per layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunIo {
    pub iterations: u64,
    /// Sum over iterations of the tokens in the tree: what grouping by K/V reads.
    pub tree: u64,
    /// Sum over iterations and queries of the path: what grouping by query reads.
    pub paths: u64,
    /// Sum over iterations of the queries.
    pub queries: u64,
    /// Sum over iterations of queries times tokens in the tree: entries of a dense mask, and of each matrix of scores a
    /// query head.
    pub dense: u64,
    /// Partial rows that the plans' tasks hand over, and K/V tokens that the plans read: counted from real plans.
    pub handed_over: u64,
    pub planned: u64,
}

pub fn read_reasoning(text: &str) -> Result<Reasoning> {
    let raw: Vec<RawReasoning> =
        serde_json::from_str(text).map_err(|e| Error::input(format!("not a recording: {e}")))?;
    let runs = raw.iter().filter(|r| !r.incompleted).map(read_run).collect::<Result<Vec<_>>>()?;
    if runs.is_empty() {
        return Err(Error::input("the recording has no complete run"));
    }
    Ok(Reasoning { runs })
}

fn read_run(raw: &RawReasoning) -> Result<Run> {
    let mut by_id: HashMap<usize, &RawNode> = HashMap::new();
    let mut child = HashMap::new();
    for node in raw.data.values() {
        by_id.insert(node.id, node);
        for &c in &node.children {
            if child.insert(c, node.id).is_some() {
                return Err(Error::input(format!("node {c} has two parents")));
            }
        }
    }
    let mut nodes = Vec::new();
    let mut open: Vec<(usize, Option<usize>)> =
        raw.data.values().filter(|n| !child.contains_key(&n.id)).map(|n| (n.id, None)).collect();
    while let Some((id, parent)) = open.pop() {
        let node = by_id.get(&id).ok_or_else(|| Error::input(format!("node {id} is a child but not listed")))?;
        if node.end - node.start + 1 != node.value as i64 {
            return Err(Error::input(format!("node {id} does not make a token an iteration")));
        }
        open.extend(node.children.iter().map(|&c| (c, Some(nodes.len()))));
        nodes.push(RunNode { parent, start: node.start, end: node.end, tokens: node.value });
    }
    Ok(Run { nodes })
}

pub fn read_speculative(text: &str) -> Result<Speculative> {
    let raw: RawSpeculative = serde_json::from_str(text).map_err(|e| Error::input(format!("not a recording: {e}")))?;
    let place: HashMap<&[u32], usize> =
        raw.structure.iter().enumerate().map(|(i, path)| (path.as_slice(), i)).collect();
    let mut parents = Vec::with_capacity(raw.structure.len());
    for (i, path) in raw.structure.iter().enumerate() {
        let parent = match path.split_last() {
            None => return Err(Error::input("a token tree node has an empty path")),
            Some((_, [])) => None,
            Some((_, above)) => match place.get(above) {
                Some(&p) if p < i => Some(p),
                _ => return Err(Error::input(format!("the parent of token tree node {i} does not stand before it"))),
            },
        };
        parents.push(parent);
    }
    Ok(Speculative { parents, accepted: raw.records.into_iter().map(|r| r.accepted).collect() })
}

impl Run {
    /// Parents before children.
    pub fn nodes(&self) -> &[RunNode] {
        &self.nodes
    }

    pub fn last_iteration(&self) -> i64 {
        self.nodes.iter().map(|n| n.end).max().unwrap_or(0)
    }

    /// The nodes on the paths of what decodes in iteration `t`, with their lengths after it.
    fn at(&self, t: i64) -> Vec<Node> {
        let mut needed = vec![false; self.nodes.len()];
        for i in (0..self.nodes.len()).rev() {
            let n = &self.nodes[i];
            needed[i] |= n.start <= t && t <= n.end;
            if let (true, Some(p)) = (needed[i], n.parent) {
                needed[p] = true;
            }
        }
        let mut place = vec![None; self.nodes.len()];
        let mut nodes = Vec::new();
        for (i, n) in self.nodes.iter().enumerate().filter(|(i, _)| needed[*i]) {
            place[i] = Some(nodes.len());
            let tokens = (t - n.start + 1).clamp(0, n.tokens as i64) as usize;
            let query = n.start <= t && t <= n.end;
            nodes.push(Node { parent: n.parent.and_then(|p| place[p]), tokens, query });
        }
        nodes
    }

    /// Replays the run on a token tree of its own and plans every iteration.
    pub fn io(&self, planner: &mut Planner) -> RunIo {
        let mut io = RunIo::default();
        let mut replay = Replay::new(self.nodes.iter().map(|n| n.tokens).sum::<usize>(), self.nodes.len());
        let mut branches: Vec<Option<BranchId>> = vec![None; self.nodes.len()];
        for t in 1..=self.last_iteration() {
            let mut rows = Vec::new();
            for (i, n) in self.nodes.iter().enumerate() {
                // The root is a prompt: it is there before the first iteration. A node's first token forks it off.
                let tokens = if n.end < t { n.tokens } else { usize::from(n.start <= t) };
                let branch = match branches[i] {
                    Some(branch) if n.start <= t && t <= n.end => branch,
                    None if n.start <= t => replay.fork(n.parent.and_then(|p| branches[p])),
                    _ => continue,
                };
                let have = replay.tree.len(branch);
                let add = if branches[i].replace(branch).is_none() { tokens } else { 1 };
                replay.append(branch, add);
                if n.start <= t && t <= n.end {
                    rows.push(QueryRow { branch, position: (have + add) as u32 - 1 });
                }
            }
            replay.plan(planner, &rows, &mut io);
            let nodes = self.at(t);
            let (tree, paths, queries) = measure(&nodes);
            io.iterations += 1;
            io.tree += tree;
            io.paths += paths;
            io.queries += queries;
            io.dense += tree * queries;
        }
        io
    }
}

/// Tokens in the tree, on the queries' paths, and queries.
fn measure(nodes: &[Node]) -> (u64, u64, u64) {
    let mut ends = Vec::with_capacity(nodes.len());
    let (mut tree, mut paths, mut queries) = (0, 0, 0);
    for node in nodes {
        let end = node.tokens as u64 + node.parent.map_or(0, |p: usize| ends[p]);
        ends.push(end);
        tree += node.tokens as u64;
        if node.query {
            paths += end;
            queries += 1;
        }
    }
    (tree, paths, queries)
}

/// A token tree that does what a recording tells, with tokens that never repeat.
struct Replay {
    tree: TokenTree,
    next: u32,
}

impl Replay {
    /// Room for so many tokens on so many branches.
    fn new(tokens: usize, branches: usize) -> Self {
        Self { tree: TokenTree::new(tokens.div_ceil(PAGE_TOKENS) + 2 * branches + 2), next: 0 }
    }

    fn fork(&mut self, from: Option<BranchId>) -> BranchId {
        match from {
            Some(branch) => self.tree.fork(branch),
            None => self.tree.open(),
        }
    }

    fn append(&mut self, branch: BranchId, tokens: usize) {
        let ids: Vec<u32> = (self.next..self.next + tokens as u32).collect();
        self.next += tokens as u32;
        self.tree.append(branch, &ids, &mut Vec::new()).expect("the tree has room for the whole recording");
    }

    fn plan(&self, planner: &mut Planner, rows: &[QueryRow], io: &mut RunIo) {
        if !rows.is_empty() {
            let planned = planner.plan(&self.tree, rows).io;
            io.handed_over += planned.partial_rows;
            io.planned += planned.kv_tokens;
        }
    }
}

impl Reasoning {
    /// The tree of the iteration of the first run in which the paths are longest in sum.
    pub fn widest(&self) -> Vec<Node> {
        let run = &self.runs[0];
        let last = (1..=run.last_iteration()).max_by_key(|&t| measure(&run.at(t)).1);
        last.map_or_else(Vec::new, |t| run.at(t))
    }
}

impl Speculative {
    /// The runs of a record after a prompt of `prompt` tokens: in each step the whole token tree is verified, then the
    /// accepted tokens join the prompt.
    pub fn io(&self, run: usize, prompt: usize, planner: &mut Planner) -> RunIo {
        let accepted: usize = self.accepted[run].iter().sum();
        let mut replay = Replay::new(prompt + accepted, self.parents.len());
        let trunk = replay.fork(None);
        replay.append(trunk, prompt);
        let mut depth: Vec<u64> = Vec::with_capacity(self.parents.len());
        for parent in &self.parents {
            depth.push(1 + parent.map_or(0, |p| depth[p]));
        }
        // The root token is a query too.
        let queries = self.parents.len() as u64 + 1;
        let mut io = RunIo::default();
        let mut before = prompt as u64;
        for &accepted in &self.accepted[run] {
            io.iterations += 1;
            io.tree += before + queries - 1;
            io.paths += before * queries + depth.iter().sum::<u64>();
            io.queries += queries;
            io.dense += (before + queries - 1) * queries;
            let mut rows = vec![QueryRow { branch: trunk, position: before as u32 - 1 }];
            let mut branches: Vec<BranchId> = Vec::with_capacity(self.parents.len());
            for parent in &self.parents {
                let branch = replay.fork(Some(parent.map_or(trunk, |p| branches[p])));
                replay.append(branch, 1);
                rows.push(QueryRow { branch, position: replay.tree.len(branch) as u32 - 1 });
                branches.push(branch);
            }
            replay.plan(planner, &rows, &mut io);
            for branch in branches.into_iter().rev() {
                replay.tree.drop_branch(branch, 0);
            }
            replay.append(trunk, accepted);
            before += accepted as u64;
        }
        io
    }
}
