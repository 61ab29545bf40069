//! Expanding thoughts: all of a step at once, so that the engine batches them; thoughts grow in the order of asking.

use super::Controller;
use super::flight::{Ask, Lost};
use super::grow::Proposal;
use super::prompt::{self, Subject};
use crate::base::{Error, ErrorKind, Result, rng};
use crate::lm::{Constraint, Finish, Generate, Mode, StreamKey};
use crate::search::event::{Author, Event, Purpose};
use crate::search::tree::{NodeId, Status};
use crate::strategy::{Constrain, GenerateKind, Thought};
use crate::task::constrain::Refuter;
use rand::Rng;
use std::sync::Arc;

impl Controller {
    /// Asks for proposals below each of these thoughts.
    pub(super) async fn expand(&mut self, nodes: &[NodeId]) {
        let (by_chance, nodes): (Vec<NodeId>, Vec<NodeId>) =
            nodes.iter().partition(|&&node| self.generate_below(node).kind == GenerateKind::Random);
        self.expand_by_chance(&by_chance);
        if nodes.is_empty() || self.ending.is_some() {
            return;
        }
        let mut asks = Vec::new();
        let mut first_error = None;
        for &node in &nodes {
            match self.ask_for_proposals(node) {
                Ok(ask) => asks.push(ask),
                Err(error) => {
                    self.close(node, error.message());
                    first_error.get_or_insert(error);
                }
            }
        }
        if self.ending.is_some() {
            return;
        }
        let (asks, short) = self.afford(asks).await;
        let asked: Vec<NodeId> = asks.iter().map(|ask| ask.node).collect();
        let mut proposals = vec![0u64; asked.len()];
        let mut failed: Vec<Option<Error>> = vec![None; asked.len()];
        let mut served = false;
        let mut flight = self.launch(asks);
        while let Some(landed) = self.landed(&mut flight).await {
            let before = self.ledger.proposals;
            match landed.result {
                // What comes in after the answer is counted, not grown: the answer is the last word.
                _ if self.ending.is_some() => {}
                Ok(completion) => {
                    let lost = match &completion.finish {
                        Finish::Failed(why) => Some(Error::fault(why)),
                        Finish::NoMemory(why) => Some(Error::limit(why)),
                        _ => None,
                    };
                    if let Some(error) = lost {
                        self.note(format!("a sample for thought {} failed: {error}", landed.node));
                        failed[landed.ask].get_or_insert(error);
                        continue;
                    }
                    served = true;
                    if self.generate_below(landed.node).kind == GenerateKind::Propose {
                        self.propose_list(landed.node, &completion.text);
                    } else {
                        self.propose_sample(landed.node, completion);
                    }
                }
                Err(Lost::Cancelled { .. }) => {}
                Err(Lost::Failed(error)) => {
                    failed[landed.ask].get_or_insert(error);
                }
            }
            proposals[landed.ask] += self.ledger.proposals - before;
        }
        for (ask, node) in asked.iter().enumerate() {
            // What came in after the end was not used, so this thought was not expanded.
            if self.ending.is_some() && proposals[ask] == 0 {
                continue;
            }
            self.expanded(*node, proposals[ask]);
            if let Some(error) = failed[ask].take().filter(|_| self.tree.node(*node).children.is_empty()) {
                if error.kind() == ErrorKind::Limit {
                    self.starved = Some(error.message().to_string());
                }
                self.close(*node, error.message());
                first_error.get_or_insert(error);
            }
        }
        if let Some(error) = first_error.filter(|_| !served && short.is_none()) {
            self.fail(&error);
        }
        if let Some(reason) = short {
            self.ending.get_or_insert(reason);
        }
    }

    /// Tells that a thought was expanded. Its children hold their own branches now, so its own is given back.
    fn expanded(&mut self, node: NodeId, proposals: u64) {
        self.emit(Event::Expanded { node, proposals });
        if self.tree.node(node).status == Status::Open {
            let barren = self.tree.node(node).children.is_empty();
            let why = barren.then(|| match self.fate.all_dropped().filter(|_| self.fate.parent == Some(node)) {
                Some(why) => format!("nothing could be grown from it: {why}"),
                None => "nothing could be grown from it".to_string(),
            });
            self.emit(Event::Status { node, status: Status::Closed, why });
            self.holds.remove(&node);
        }
    }

    fn close(&mut self, node: NodeId, why: &str) {
        self.note(format!("thought {node} cannot be expanded: {why}"));
        if self.tree.node(node).expansions == 0 {
            self.emit(Event::Expanded { node, proposals: 0 });
        }
        if matches!(self.tree.node(node).status, Status::Open | Status::Closed) {
            self.emit(Event::Status { node, status: Status::Closed, why: Some(why.to_string()) });
        }
        self.holds.remove(&node);
    }

    /// How the thoughts below this one are made.
    pub(super) fn generate_below(&self, node: NodeId) -> &crate::strategy::Generate {
        self.generate_of(self.tree.node(node).depth + 1)
    }

    fn breadth(&self, node: NodeId) -> Result<usize> {
        let own = || prompt::count(&self.generate_below(node).n, &self.inputs, &self.strategy.origin, "generate.n");
        self.breadth.map_or_else(own, Ok)
    }

    fn ask_for_proposals(&mut self, node: NodeId) -> Result<Ask> {
        let strategy = self.strategy.clone();
        let generate = strategy.generate_at(self.tree.node(node).depth + 1);
        let breadth = self.breadth(node)?;
        let n = if generate.kind == GenerateKind::Propose { 1 } else { breadth };
        let subject = match self.merging.get(&node) {
            Some(sources) => Subject::Merge(sources.clone()),
            None => Subject::After(node),
        };
        let inputs = self.puzzle_inputs(&subject);
        let max_tokens = prompt::count(&generate.max_tokens, &inputs, &strategy.origin, "generate.max_tokens")?;
        let prompt = self.prompt(&generate.prompt, generate.format, subject, max_tokens)?;
        let mut sampling = generate.sampling.clone();
        if let Some(temperature) = self.temperature {
            sampling.temperature = temperature;
        }
        let mode = if generate.kind == GenerateKind::Likeliest { Mode::Likeliest } else { Mode::Sample };
        let constraint = self.constraint(node)?;
        let key = self.stream_key(node, Purpose::Generate);
        let stop = generate.stop.clone();
        let likelihood = strategy.likelihood();
        let generate = Generate { prompt, mode, n, sampling, max_tokens, stop, constraint, likelihood, key };
        Ok(Ask { node, purpose: Purpose::Generate, generate })
    }

    fn constraint(&self, node: NodeId) -> Result<Option<Arc<dyn Constraint>>> {
        let prefix = self.tree.path_text(node);
        // A reply that lists proposals is no proposal itself; each line is looked at when the list is there.
        let generate = self.generate_below(node);
        if generate.kind == GenerateKind::Propose {
            return Ok(None);
        }
        Ok(match (&generate.constrain, generate.thought) {
            // No mask; but where beginnings are checked, a text that became wrong is cut in its middle.
            (Constrain::None, _) if self.checks_partial(self.tree.node(node).depth + 1) => {
                Some(Arc::new(Refuter::new(self.puzzle.clone(), prefix)))
            }
            (Constrain::None, _) => None,
            (Constrain::Puzzle, Thought::Step) => {
                let steps = self.puzzle.next_steps(&prefix);
                if steps.is_empty() {
                    return Err(Error::input("the puzzle allows no further step"));
                }
                Some(prompt::choices(steps))
            }
            (Constrain::Puzzle, Thought::Answer) => Some(self.puzzle.answer_constraint(&prefix)),
            (Constrain::Choice(choices), _) => Some(prompt::choices(choices.clone())),
            (Constrain::Regex(_) | Constrain::Grammar(_), _) => self.rule_of(self.tree.node(node).depth + 1).cloned(),
        })
    }

    /// The random stream of a request: the same whatever else runs. Purposes and repeated expansions of one thought draw
    /// from streams of their own.
    pub(super) fn stream_key(&self, node: NodeId, purpose: Purpose) -> StreamKey {
        let times = u64::from(self.tree.node(node).expansions);
        StreamKey {
            seed: self.seed,
            puzzle: self.puzzle_part,
            node: u64::from(node.0) | (purpose as u64) << 32 | times << 40,
        }
    }

    /// One reply that lists proposals, one a line.
    fn propose_list(&mut self, node: NodeId, reply: &str) {
        let breadth = self.breadth(node).unwrap_or(usize::MAX);
        let lines = listed(reply);
        if lines.is_empty() {
            self.note(format!("the reply for thought {node} lists no proposal"));
        }
        let generate = self.generate_below(node);
        let thought = generate.thought;
        let allowed = match &generate.constrain {
            Constrain::Puzzle => Some(self.puzzle.next_steps(&self.tree.path_text(node))),
            Constrain::Choice(choices) => Some(choices.clone()),
            Constrain::None | Constrain::Regex(_) | Constrain::Grammar(_) => None,
        };
        for line in lines.into_iter().take(breadth) {
            if self.ending.is_some() {
                return;
            }
            // The separators around a step are the puzzle's business; a list in a reply does without them.
            let bare = |text: &str| text.trim_matches([' ', ',', '\n']).to_string();
            let text = match &allowed {
                Some(steps) => match steps.iter().find(|step| bare(step) == bare(&line)) {
                    Some(step) => step.clone(),
                    None => {
                        self.ledger.proposals += 1;
                        self.drop_proposal(node, line, "not among what is allowed here".to_string());
                        continue;
                    }
                },
                // The line's end belongs to the step, so that the steps of a path joined are the answer so far.
                None if thought == Thought::Step => format!("{line}\n"),
                None => line,
            };
            self.propose(node, Proposal::text(text, Author::Model));
        }
    }

    /// The control: random ones of what the puzzle allows.
    fn expand_by_chance(&mut self, nodes: &[NodeId]) {
        for &node in nodes {
            let breadth = match self.breadth(node) {
                Ok(breadth) => breadth,
                Err(error) => return self.fail(&error),
            };
            let before = self.ledger.proposals;
            let StreamKey { seed, puzzle, node: part } = self.stream_key(node, Purpose::Generate);
            for text in self.chance(node, breadth, rng::stream(seed, "random", &[puzzle, part])) {
                if self.ending.is_some() {
                    return;
                }
                self.propose(node, Proposal::text(text, Author::Model));
            }
            let proposals = self.ledger.proposals - before;
            self.expanded(node, proposals);
        }
    }

    fn chance(&self, node: NodeId, n: usize, mut rng: impl Rng) -> Vec<String> {
        let prefix = self.tree.path_text(node);
        match self.generate_below(node).thought {
            Thought::Step => {
                let mut steps = self.puzzle.next_steps(&prefix);
                let n = n.min(steps.len());
                // The first n places of a Fisher-Yates shuffle.
                for place in 0..n {
                    let from = rng.random_range(place..steps.len());
                    steps.swap(place, from);
                }
                steps.truncate(n);
                steps
            }
            Thought::Answer => {
                let walk = |_| {
                    let mut answer = String::new();
                    // A set's answer may end early; its steps are bounded by the puzzle's own length.
                    for _ in 0..=self.puzzle.len() {
                        let steps = self.puzzle.next_steps(&format!("{prefix}{answer}"));
                        if steps.is_empty() {
                            break;
                        }
                        answer.push_str(&steps[rng.random_range(0..steps.len())]);
                    }
                    answer
                };
                (0..n).map(walk).collect()
            }
        }
    }
}

/// The proposals of a list, one a line, without bullets, numbers and quotes around them.
pub fn listed(reply: &str) -> Vec<String> {
    reply.lines().map(|line| unnumbered(line).to_string()).filter(|line| !line.is_empty()).collect()
}

fn unnumbered(line: &str) -> &str {
    let line = line.trim();
    if let Some(rest) = line.strip_prefix(['-', '*', '•', '–']).and_then(|rest| rest.strip_prefix(' ')) {
        return rest.trim();
    }
    let digits = line.len() - line.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let opened = line.strip_prefix('(');
    if let Some(rest) = opened {
        let inner = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        if inner.len() < rest.len()
            && let Some(rest) = inner.strip_prefix(") ")
        {
            return rest.trim();
        }
    }
    // `1. ` and `2) ` number a line; `1.5` and `3 + 4` do not.
    match line[digits..].strip_prefix(['.', ')', ':']) {
        Some(rest) if digits > 0 && (rest.starts_with(' ') || rest.is_empty()) => rest.trim(),
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use super::listed;

    #[test]
    fn lists_lose_their_numbers_and_keep_their_content() {
        let check = |reply: &str, expected: &[&str]| assert_eq!(listed(reply), expected, "{reply:?}");
        check("1. 2 + 3 = 5\n2) 4 * 2 = 8\n\n3: x", &["2 + 3 = 5", "4 * 2 = 8", "x"]);
        check("- a\n* b\n• c\n(4) d", &["a", "b", "c", "d"]);
        check("3 + 4 = 7\n1.5\n-3\n12", &["3 + 4 = 7", "1.5", "-3", "12"]);
        check("1.\n  \n", &[]);
    }
}
