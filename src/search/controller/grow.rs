//! A proposal becomes a thought, or is dropped and the reason told.
//!
//! A whole answer (a terminal state) is checked once, by the puzzle alone, and never expanded. A beginning that the
//! puzzle proves wrong is pruned at once where the strategy asks for its partial check.

use super::wait::told;
use super::{Controller, Tokens, finite, round};
use crate::lm::{Completion, Constraint, Finish, GrammarForm, Judgement, Usage};
use crate::search::evaluate::{Part, checker};
use crate::search::event::{Author, Event, Reason};
use crate::search::tree::{NodeId, Status};
use crate::strategy::{Constrain, Evaluator, GenerateKind, Policy, Thought};
use crate::task::{Partial, Verdict};
use std::sync::Arc;

/// What someone proposes as a thought.
pub struct Proposal {
    pub text: String,
    pub by: Author,
    pub logprob: Option<f64>,
    pub token_logprobs: Vec<f32>,
    pub usage: Usage,
    /// How the text ended, where that matters.
    pub finish: Finish,
}

/// What became of the proposals for one thought: why a search that has nothing left to expand came to that.
#[derive(Debug, Default)]
pub struct Fate {
    pub parent: Option<NodeId>,
    grown: u64,
    repeated: u64,
    /// Dropped for another reason, as first told.
    dropped: u64,
    why: Option<String>,
}

impl Fate {
    /// The fate of this thought's proposals; another thought's is forgotten.
    fn of(&mut self, parent: NodeId) -> &mut Self {
        if self.parent != Some(parent) {
            *self = Self { parent: Some(parent), ..Self::default() };
        }
        self
    }

    /// In words, where there were proposals and none of them became a thought.
    pub fn all_dropped(&self) -> Option<String> {
        let all = self.repeated + self.dropped;
        let what = match (&self.why, all) {
            _ if self.grown > 0 => return None,
            (_, 0) => return None,
            (None, 1) => "the one proposal repeats a state that is there".to_string(),
            (None, all) => format!("all {all} proposals repeat states that are there"),
            (Some(why), 1) => format!("the one proposal was dropped ({why})"),
            (Some(why), all) => {
                format!("all {all} proposals were dropped ({} as repeated states; {why})", self.repeated)
            }
        };
        Some(what)
    }
}

impl Proposal {
    /// A bare text: chance's, the user's, or a line of a list.
    pub fn text(text: impl Into<String>, by: Author) -> Self {
        let text = text.into();
        Self { text, by, logprob: None, token_logprobs: Vec::new(), usage: Usage::default(), finish: Finish::End }
    }
}

impl Controller {
    /// A finished sample as a proposal, and as a thought if it becomes one. Its K/V is held as long as the thought lives.
    pub(super) fn propose_sample(&mut self, parent: NodeId, completion: Completion) {
        let Completion { text, ids, logprobs, masked_logprob, finish, usage, hold } = completion;
        let covered = text.len();
        let mut proposal = Proposal {
            text,
            by: Author::Model,
            // What ranks equal scores: how likely the text was among those allowed.
            logprob: (!logprobs.is_empty()).then(|| round(masked_logprob)),
            token_logprobs: logprobs.into_iter().map(finite).collect(),
            usage,
            finish,
        };
        // The separator belongs to the step, so that the steps of a path joined are the answer so far.
        if let Finish::Stop(stop) = &proposal.finish
            && self.generate_of(self.tree.node(parent).depth + 1).thought == Thought::Step
            && stop.chars().all(char::is_whitespace)
            && !proposal.text.trim().is_empty()
        {
            proposal.text.push_str(stop);
        }
        let Some(node) = self.propose(parent, proposal) else { return };
        if !ids.is_empty() {
            self.ids.insert(node, Tokens { ids, len: covered });
        }
        if let Some(hold) = hold.filter(|_| matches!(self.tree.node(node).status, Status::Open | Status::Pinned)) {
            self.holds.insert(node, hold);
        }
    }

    /// Grows a thought from a proposal, unless it is empty, known or over the limit.
    pub(super) fn propose(&mut self, parent: NodeId, proposal: Proposal) -> Option<NodeId> {
        let Proposal { text, by, logprob, token_logprobs, usage, finish } = proposal;
        self.ledger.proposals += 1;
        if text.trim().is_empty() {
            return self.drop_proposal(parent, text, "empty".into());
        }
        let level = self.tree.node(parent).depth + 1;
        let whole = |rule: &Arc<dyn Constraint>, text: &str| {
            matches!(rule.judge(text), Judgement::Closed | Judgement::Open { complete: true })
        };
        if by == Author::Model
            && self.rule_of(level).is_some_and(|rule| !whole(rule, &text) && !whole(rule, text.trim()))
        {
            let why = match &self.generate_of(level).constrain {
                Constrain::Regex(pattern) => format!("does not match the pattern {pattern}"),
                Constrain::Grammar(GrammarForm::Json(_)) => "does not fit the JSON schema".to_string(),
                _ => "does not fit the grammar".to_string(),
            };
            return self.drop_proposal(parent, text, why);
        }
        if let Some(reason) = self.ledger.thoughts_used_up() {
            let why = reason.to_string();
            self.ending.get_or_insert(reason);
            return self.drop_proposal(parent, text, why);
        }
        let sources = self.merging.get(&parent).cloned().unwrap_or_default();
        let state = self.state_of(parent, &text, &sources);
        if let Some(&first) = self.states.get(&state) {
            let why = format!("the same state as thought {first}");
            self.fate.of(parent).repeated += 1;
            self.emit(Event::Dropped { parent, text, why, same_as: Some(first) });
            return None;
        }
        let node = NodeId(self.tree.len() as u32);
        self.states.insert(state, node);
        self.fate.of(parent).grown += 1;
        self.ledger.thoughts += 1;
        self.emit(Event::Grown { node, parent, text, by, logprob, token_logprobs, usage });
        if !sources.is_empty() {
            self.emit(Event::Merged { node, sources });
        }
        self.look_at(node, &finish);
        Some(node)
    }

    /// What two proposals must have in common to be the same thought.
    pub(super) fn state_of(&self, parent: NodeId, text: &str, sources: &[NodeId]) -> String {
        let level = self.tree.node(parent).depth + 1;
        let state = match self.generate_of(level).thought {
            Thought::Answer => self.puzzle.state_key(&self.answer_in(level, text)),
            Thought::Step => self.puzzle.state_key(&(self.tree.path_text(parent) + text)),
        };
        let Policy::Graph(_) = self.plan.policy else { return state };
        // Equal texts about other parts, or made by another operation, are other thoughts.
        let about = if sources.is_empty() { vec![parent] } else { sources.to_vec() };
        let parts: Vec<NodeId> = about.iter().flat_map(|&source| self.problem(source)).collect();
        format!("{level} {parts:?} {state}")
    }

    pub(super) fn drop_proposal(&mut self, parent: NodeId, text: String, why: String) -> Option<NodeId> {
        let fate = self.fate.of(parent);
        fate.dropped += 1;
        fate.why.get_or_insert_with(|| why.clone());
        self.emit(Event::Dropped { parent, text, why, same_as: None });
        None
    }

    /// Settles at once what needs no evaluator: whole answers, provably wrong beginnings, texts that were cut.
    pub(super) fn look_at(&mut self, node: NodeId, finish: &Finish) {
        if let Some(verdict) = self.whole_answer(node) {
            self.check_off(node, verdict, finish);
            return;
        }
        let level = self.tree.node(node).depth;
        if self.generate_of(level).thought == Thought::Answer {
            // Reading an answer is no judging: what holds none cannot be chosen.
            if self.plan.policy.chooses() {
                let verdict = self.puzzle.check(&self.answer_of(node));
                if verdict.answer.is_none() {
                    self.emit_score(node, &[Part::of(checker::NAME, verdict.score(), verdict.why.clone())]);
                    self.prune(node, &verdict.why);
                }
            }
            return;
        }
        if let Partial::Wrong { score, why } = self.puzzle.check_partial(&self.tree.path_text(node))
            && self.checks_partial(level)
        {
            self.emit_score(node, &[Part::of(checker::NAME, score, why.clone())]);
            self.prune(node, &why);
            return;
        }
        let status = match finish {
            Finish::Refuted(why) => {
                self.emit_score(node, &[Part::of("constraint", 0.0, why.clone())]);
                self.prune(node, why);
                return;
            }
            Finish::Context(_) => Status::Closed,
            Finish::Length => Status::Open,
            _ => return,
        };
        self.emit(Event::Status { node, status, why: Some(told(finish)) });
    }

    /// The puzzle's verdict on a thought that is a whole answer and goes no further; `None`: it may, or its policy chooses
    /// among whole answers and must not be told which one is right.
    pub(super) fn whole_answer(&self, node: NodeId) -> Option<Verdict> {
        let level = self.tree.node(node).depth;
        if self.generate_of(level).thought == Thought::Answer {
            if self.plan.policy.chooses() || !self.whole(node) {
                return None;
            }
            // A wrong answer goes on where a further level may improve it.
            let levels = match &self.plan.policy {
                Policy::Graph(operations) => operations.len(),
                _ if !self.strategy.improves() => 0,
                _ => self.plan.depth,
            };
            let verdict = self.puzzle.check(&self.answer_of(node));
            return (verdict.error_score == 0 || level >= levels).then_some(verdict);
        }
        let path = self.tree.path_text(node);
        let complete = match self.puzzle.check_partial(&path) {
            Partial::Wrong { .. } if self.checks_partial(level) => return None,
            Partial::Wrong { .. } => false,
            Partial::Possible { complete, .. } => complete,
        };
        // Where steps are drawn from the puzzle, the last one is known by that; free text may go on for ever.
        let drawn = self.generate_of(level).constrain == Constrain::Puzzle;
        let last = (complete || drawn) && self.puzzle.next_steps(&path).is_empty();
        if !complete && !last {
            return None;
        }
        let verdict = self.puzzle.check(&path);
        // A whole answer that is not right yet may still grow (a set's may end after any element).
        (verdict.error_score == 0 || last).then_some(verdict)
    }

    /// A whole answer: right or closed.
    fn check_off(&mut self, node: NodeId, verdict: Verdict, finish: &Finish) {
        let part = Part::of(checker::NAME, verdict.score(), verdict.why.clone());
        let mut why = verdict.why.clone();
        if matches!(finish, Finish::Length | Finish::Context(_) | Finish::Refuted(_)) {
            why = format!("{why} ({})", told(finish));
        }
        let right = verdict.error_score == 0;
        self.checked.insert(node, verdict);
        self.emit_score(node, &[part]);
        let status = if right { Status::Answer } else { Status::Closed };
        self.emit(Event::Status { node, status, why: Some(why) });
        if right {
            self.ending.get_or_insert(Reason::Solved);
        }
    }

    /// Whether the strategy has beginnings of a level checked by the puzzle.
    pub(super) fn checks_partial(&self, level: usize) -> bool {
        self.strategy.evaluate_at(level).iter().any(|e| matches!(e, Evaluator::Checker { partial: true }))
    }

    /// The answer within a whole-answer thought: what follows the last `Answer:`, else the last list in brackets, else
    /// the whole text. A chain of thought comes before its answer, and may mention other lists on the way.
    pub(super) fn answer_in(&self, level: usize, text: &str) -> String {
        if self.generate_of(level).kind == GenerateKind::Random {
            return text.to_string();
        }
        answer_in(text).to_string()
    }

    /// Prunes a thought and all below it; what is pinned, right, or pruned already stays.
    pub(super) fn prune(&mut self, node: NodeId, why: &str) -> Vec<NodeId> {
        // What is held is told before the first of them goes, and with the first words that are written afterwards: the model's next
        // step lies in between.
        if !std::mem::replace(&mut self.pruned, true) {
            self.tell_counters();
        }
        for below in self.tree.subtree(node) {
            self.holds.remove(&below);
        }
        let pruned = self.prunable(node);
        for &below in &pruned {
            let why = if below == node { why.to_string() } else { format!("below thought {node}, which was pruned") };
            self.emit(Event::Status { node: below, status: Status::Pruned, why: Some(why) });
        }
        pruned
    }

    /// What [`Self::prune`] would prune.
    pub(super) fn prunable(&self, node: NodeId) -> Vec<NodeId> {
        let live = |id: &NodeId| matches!(self.tree.node(*id).status, Status::Open | Status::Closed);
        self.tree.subtree(node).into_iter().filter(live).collect()
    }
}

fn answer_in(text: &str) -> &str {
    const MARK: &str = "answer:";
    let lower = text.to_ascii_lowercase();
    if let Some(at) = lower.rfind(MARK) {
        return text[at + MARK.len()..]
            .trim_start_matches(|c: char| c.is_whitespace() || c == '*' || c == '_')
            .trim_end();
    }
    let last_list = text.rfind(']').and_then(|end| Some((text[..end].rfind('[')?, end)));
    match last_list {
        Some((start, end)) => &text[start..=end],
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::{Fate, answer_in};
    use crate::search::tree::NodeId;

    #[test]
    fn what_became_of_all_proposals_is_told_where_none_grew() {
        let told = |grown, repeated, dropped| {
            let why = (dropped > 0).then(|| "empty".to_string());
            Fate { parent: Some(NodeId(1)), grown, repeated, dropped, why }.all_dropped()
        };
        assert_eq!((told(0, 0, 0), told(1, 2, 0)), (None, None));
        assert_eq!(told(0, 1, 0).unwrap(), "the one proposal repeats a state that is there");
        assert_eq!(told(0, 3, 0).unwrap(), "all 3 proposals repeat states that are there");
        assert_eq!(told(0, 0, 1).unwrap(), "the one proposal was dropped (empty)");
        assert_eq!(told(0, 2, 1).unwrap(), "all 3 proposals were dropped (2 as repeated states; empty)");
        let mut fate = Fate { parent: Some(NodeId(1)), grown: 1, ..Fate::default() };
        assert_eq!(fate.of(NodeId(2)).grown, 0, "another thought's fate is its own");
    }

    #[test]
    fn the_answer_stands_after_its_mark_or_in_the_last_list() {
        let check = |text: &str, expected: &str| assert_eq!(answer_in(text), expected, "{text:?}");
        check("00345789", "00345789");
        check("First [3, 1].\nAnswer: [1, 3]", "[1, 3]");
        check("Answer: 5? No.\nANSWER: **1 3", "1 3");
        check("sorted [3, 1] is [1, 3].", "[1, 3]");
        check("an odd ] bracket", "an odd ] bracket");
        check("Answer:", "");
        check("İ answer: 5", "5");
    }
}
