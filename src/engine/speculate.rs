//! Speculative decoding by prompt look-up: a tree of tokens that may come next, from what the path itself said before.
//!
//! The end of a path is looked for earlier in the same path. What stood after each earlier place is a guess at what comes
//! next: guesses that agree share their tokens, guesses that differ become branches (*draft*). All tokens of a draft are
//! rows of the step that would have computed one row, and one attention plan covers them ([`placed`]).
//!
//! A draft proposes each of its tokens with certainty, so rejection sampling (Leviathan et al., ICML 2023; for trees
//! SpecInfer, ASPLOS 2024) comes down to this: draw the next token from the model's own distribution, with every filter and
//! mask, and go on from the draft's node for it where there is one. A drafted token is then accepted with exactly its
//! probability, a rejected one leaves exactly the rest of the distribution, and no rule accepts more often. The random
//! stream is the one that would have been drawn from without a draft: on the CPU, where a row's numbers depend on its path
//! alone, the text is bit for bit the same.
//!
//! Whether a node pays is a rule of cost ([`Load`]): a row costs [`Device::row_cost`](crate::device::Device::row_cost) of a
//! step's fixed cost, and a node is worth the chance that it is accepted. With many rows in a step that chance would have
//! to be near 1, so a full batch drafts nothing and runs as without speculation.

pub mod placed;

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Tokens of the path's end that are compared at most.
const LONGEST_MATCH: usize = 12;

/// Earlier places that one draft looks at, the longest matches first, then the newest.
const PLACES: usize = 16;

/// Different next tokens that are drafted after one node at most.
const BRANCHING: usize = 3;

/// Nodes of one draft at most.
pub const MOST_NODES: usize = 24;

/// The chance that the token after a match of so many tokens comes again, before anything is known of a text: what
/// greedy texts of the default model about prompts of prose, lists and code gave, rounded down.
const PRIOR: [(usize, f64); 6] = [(1, 0.08), (2, 0.3), (3, 0.45), (5, 0.6), (8, 0.75), (usize::MAX, 0.85)];

/// A guess that never failed so far comes near this.
const BEST: f64 = 0.97;

/// A node must be worth so much more than it costs: planning, packing and sampling are not in the rows' cost.
const MARGIN: f64 = 1.15;

/// How many observations a prior weighs, and after how many old ones fade.
const PRIOR_WEIGHT: f64 = 3.0;
const MEMORY: f64 = 24.0;

/// A drafted token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    pub token: u32,
    /// An earlier node; `None`: the path's last token.
    pub parent: Option<usize>,
    /// Tokens before it that stood there too, drafted ones included.
    pub matched: usize,
}

/// How well the drafts of one text do, by length of the match.
#[derive(Debug, Clone, Copy, Default)]
pub struct Luck {
    tried: [f64; PRIOR.len()],
    hit: [f64; PRIOR.len()],
}

/// The step that a draft would join: its rows, and the tokens that will come of them.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    rows: f64,
    expected: f64,
    row_cost: f64,
}

/// A node that could be drafted next.
struct Open {
    chance: f64,
    /// The order of arrival settles equal chances.
    number: usize,
    parent: Option<usize>,
    token: u32,
    matched: usize,
    depth: usize,
    /// Where the path goes on after it, with the length of the first match.
    places: Vec<(usize, usize)>,
}

impl Luck {
    fn bucket(matched: usize) -> usize {
        PRIOR.iter().position(|&(most, _)| matched <= most).unwrap_or(PRIOR.len() - 1)
    }

    /// The chance that the token after a match of `matched` tokens comes again.
    pub fn chance(&self, matched: usize) -> f64 {
        let at = Self::bucket(matched);
        (PRIOR[at].1 * PRIOR_WEIGHT + self.hit[at]) / (PRIOR_WEIGHT + self.tried[at])
    }

    /// A drafted token was looked at, and accepted or not.
    pub fn learn(&mut self, matched: usize, accepted: bool) {
        let at = Self::bucket(matched);
        if self.tried[at] >= MEMORY {
            self.tried[at] /= 2.0;
            self.hit[at] /= 2.0;
        }
        self.tried[at] += 1.0;
        self.hit[at] += f64::from(u8::from(accepted));
    }
}

impl Load {
    /// A step of so many rows without drafts, each of which brings a token on.
    pub fn new(rows: usize, row_cost: f64) -> Self {
        Self { rows: rows as f64, expected: rows as f64, row_cost }
    }

    /// Whether one more row with this chance makes tokens come faster: the step's time is `1 + row_cost · rows` of its
    /// fixed part, and `expected` tokens come of it.
    fn pays(&self, chance: f64) -> bool {
        chance * (1.0 + self.row_cost * self.rows) > MARGIN * self.row_cost * self.expected
    }

    /// Whether the surest guess would pay: asked before any other work is done for a draft.
    pub fn pays_at_best(&self) -> bool {
        self.pays(BEST)
    }

    fn add(&mut self, chance: f64) {
        self.rows += 1.0;
        self.expected += chance;
    }
}

/// A draft for what comes after `path`: at most `most` nodes, none deeper than `depth`, parents before children. `allowed`
/// tells whether a token may come first. Cost: linear in the path, 4 bytes a token.
pub fn draft(
    path: &[u32],
    luck: &Luck,
    load: &mut Load,
    most: usize,
    depth: usize,
    allowed: impl Fn(u32) -> bool,
) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    if !load.pays_at_best() || most == 0 || depth == 0 {
        return nodes;
    }
    let mut open = BinaryHeap::new();
    let mut number = 0;
    let places = places(path);
    expand(path, luck, None, 0, 1.0, &places, &mut number, &mut open);
    while nodes.len() < most
        && let Some(best) = open.pop()
    {
        if !load.pays(best.chance) {
            break;
        }
        if best.depth == 1 && !allowed(best.token) {
            continue;
        }
        load.add(best.chance);
        nodes.push(Node { token: best.token, parent: best.parent, matched: best.matched });
        if best.depth < depth {
            let at = Some(nodes.len() - 1);
            expand(path, luck, at, best.depth, best.chance, &best.places, &mut number, &mut open);
        }
    }
    nodes
}

/// Where the path's end stood before: the position after it, and how many tokens of the end match; the longest matches
/// first, then the newest.
fn places(path: &[u32]) -> Vec<(usize, usize)> {
    let Some((&last, before)) = path.split_last() else { return Vec::new() };
    let mut found: Vec<(usize, usize)> = Vec::new();
    let mut longest = 0;
    for (at, _) in before.iter().enumerate().rev().filter(|&(_, &token)| token == last) {
        let pairs = before[..at].iter().rev().zip(before.iter().rev());
        let matched = 1 + pairs.take(LONGEST_MATCH - 1).take_while(|(a, b)| a == b).count();
        found.push((at + 1, matched));
        longest += usize::from(matched == LONGEST_MATCH);
        if longest == PLACES {
            break;
        }
    }
    found.sort_by(|a, b| b.1.cmp(&a.1).then(b.0.cmp(&a.0)));
    found.truncate(PLACES);
    found
}

/// Puts what may come after a node among the open ones.
#[expect(clippy::too_many_arguments, reason = "the state of one loop, in one place")]
fn expand(
    path: &[u32],
    luck: &Luck,
    parent: Option<usize>,
    depth: usize,
    chance: f64,
    places: &[(usize, usize)],
    number: &mut usize,
    open: &mut BinaryHeap<Open>,
) {
    let mut groups: Vec<(u32, Vec<(usize, usize)>)> = Vec::new();
    for &(at, matched) in places {
        let Some(&token) = path.get(at) else { continue };
        match groups.iter().position(|(of, _)| *of == token) {
            Some(group) => groups[group].1.push((at + 1, matched)),
            None if groups.len() < BRANCHING => groups.push((token, vec![(at + 1, matched)])),
            None => {}
        }
    }
    // What the better guesses leave of the chance.
    let mut left = chance;
    for (token, places) in groups {
        let matched = places[0].1 + depth;
        let own = left * luck.chance(matched);
        left -= own;
        open.push(Open { chance: own, number: *number, parent, token, matched, depth: depth + 1, places });
        *number += 1;
    }
}

impl Ord for Open {
    fn cmp(&self, other: &Self) -> Ordering {
        self.chance.total_cmp(&other.chance).then(other.number.cmp(&self.number))
    }
}

impl PartialOrd for Open {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Open {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Open {}

#[cfg(test)]
mod engine_tests;

#[cfg(test)]
mod tests {
    use super::*;

    /// The drafted tree as text: each node's token with its children behind it.
    fn shown(nodes: &[Node]) -> String {
        fn below(nodes: &[Node], parent: Option<usize>) -> String {
            let of = nodes.iter().enumerate().filter(|(_, node)| node.parent == parent);
            let parts: Vec<String> = of
                .map(|(at, node)| match below(nodes, Some(at)).as_str() {
                    "" => node.token.to_string(),
                    rest => format!("{}{rest}", node.token),
                })
                .collect();
            match parts.len() {
                0 => String::new(),
                1 => format!(" {}", parts[0]),
                _ => format!(" ({})", parts.join(" | ")),
            }
        }
        below(nodes, None).trim().to_string()
    }

    /// Rows that cost next to nothing, so that all there is to say is drafted.
    fn free(path: &[u32], most: usize, depth: usize) -> Vec<Node> {
        draft(path, &Luck::default(), &mut Load::new(1, 1e-9), most, depth, |_| true)
    }

    #[test]
    fn guesses_that_agree_share_tokens_and_others_branch() {
        assert_eq!(shown(&free(&[1, 2, 3, 4, 5, 1, 2], 9, 9)), "3 4 5 1 2");
        // The newest of equal matches comes first; both went on alike for one token.
        assert_eq!(shown(&free(&[1, 2, 7, 8, 9, 1, 2, 7, 6, 9, 1, 2], 4, 2)), "7 (6 | 8)");
        // A longer match before a newer one.
        assert_eq!(shown(&free(&[5, 1, 2, 7, 0, 1, 2, 8, 5, 1, 2], 2, 1)), "(7 | 8)");
        assert_eq!(shown(&free(&[1, 2, 3], 9, 9)), "", "nothing stood there before");
        assert_eq!(shown(&free(&[], 9, 9)), "");
        assert_eq!(shown(&free(&[4, 4, 4], 9, 9)), "4 4");
        for (most, depth) in [(0, 5), (5, 0)] {
            assert!(free(&[1, 2, 1], most, depth).is_empty());
        }
    }

    #[test]
    fn a_first_token_that_is_not_allowed_is_not_drafted() {
        let path = [1, 2, 7, 1, 2, 8, 1, 2];
        let nodes = draft(&path, &Luck::default(), &mut Load::new(1, 1e-9), 9, 1, |token| token != 8);
        assert_eq!(shown(&nodes), "7");
    }

    #[test]
    fn drafts_shrink_with_the_rows_beside_and_a_full_batch_has_none() {
        let path: Vec<u32> = (0..60).chain(0..30).collect();
        let of = |rows: usize, cost: f64| {
            draft(&path, &Luck::default(), &mut Load::new(rows, cost), MOST_NODES, 64, |_| true).len()
        };
        let sizes: Vec<usize> = [1, 2, 4, 8, 32].iter().map(|&rows| of(rows, 0.25)).collect();
        assert!(sizes[0] >= 4 && sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
        assert_eq!(sizes[4], 0, "{sizes:?}");
        assert!(of(1, 0.02) > sizes[0] && of(1, 0.02) <= MOST_NODES, "cheap rows are drafted further");
    }

    #[test]
    fn bad_luck_ends_drafting_and_good_luck_extends_it() {
        let path: Vec<u32> = (0..9).chain(0..3).collect();
        let size = |luck: &Luck| draft(&path, luck, &mut Load::new(1, 0.25), 24, 24, |_| true).len();
        let before = size(&Luck::default());
        let (mut bad, mut good) = (Luck::default(), Luck::default());
        for _ in 0..20 {
            for matched in 1..9 {
                bad.learn(matched, false);
                good.learn(matched, true);
            }
        }
        assert!(before > 0 && size(&bad) == 0 && size(&good) > before, "{before}");
        for _ in 0..200 {
            bad.learn(3, true);
        }
        assert!(bad.chance(3) > 0.9, "old luck fades: {}", bad.chance(3));
    }
}
