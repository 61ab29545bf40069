//! Carrying out the evaluators: what the tree knows is scored at once, what a judge must be asked is asked for all thoughts
//! of the step together.

use super::Controller;
use super::flight::{Ask, Lost};
use super::prompt::Subject;
use super::round;
use crate::base::{Error, Result};
use crate::lm::{Constraint, Finish, Generate, Judgement, Likelihood, Mode, Sampling};
use crate::search::evaluate::reply::Scale;
use crate::search::evaluate::{Part, checker, combine, value, vote, weigh};
use crate::search::event::{Event, Purpose, ScorePart};
use crate::search::tree::{NodeId, Status};
use crate::strategy::{Evaluator, PromptSource, Thought};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What one ask of a judge is about.
struct Question {
    evaluator: usize,
    /// Places in the list of thoughts: one for a value, all for a vote.
    thoughts: Vec<usize>,
}

/// The replies a judge is expected to give. Nothing is asked of a model that reads its prompt; chance in a model's place
/// draws from them, for otherwise it had nothing to say.
struct Usual(Vec<String>);

impl Constraint for Usual {
    fn judge(&self, _: &str) -> Judgement {
        Judgement::Open { complete: true }
    }

    fn choices(&self) -> Option<Vec<String>> {
        Some(self.0.clone())
    }

    fn masks(&self) -> bool {
        false
    }
}

/// The labels, eleven numbers of the scale, or the candidates' numbers.
fn usual(evaluator: &Evaluator, candidates: usize) -> Vec<String> {
    match evaluator {
        Evaluator::Value { scale: Some((low, high)), .. } => {
            (0..=10).map(|i| (low + (high - low) * f64::from(i) / 10.0).to_string()).collect()
        }
        Evaluator::Value { labels, .. } => labels.keys().cloned().collect(),
        Evaluator::Vote { .. } => (1..=candidates).map(|i| i.to_string()).collect(),
        Evaluator::Checker { .. } | Evaluator::Logprob | Evaluator::YesNo { .. } | Evaluator::Command { .. } => {
            Vec::new()
        }
    }
}

impl Controller {
    /// Scores these thoughts. Each gets a score, so that a policy never asks twice.
    pub(super) async fn evaluate(&mut self, nodes: &[NodeId]) {
        let mut levels: BTreeMap<usize, Vec<NodeId>> = BTreeMap::new();
        for &node in nodes {
            // Levels without evaluators of their own are judged together: what is compared may stand at several depths.
            let level = self.strategy.judged_as(self.tree.node(node).depth);
            levels.entry(level).or_default().push(node);
        }
        for (level, nodes) in levels {
            if self.hurry || self.ending.is_some() {
                return;
            }
            self.evaluate_by(level, &nodes).await;
        }
    }

    async fn evaluate_by(&mut self, level: usize, nodes: &[NodeId]) {
        let strategy = self.strategy.clone();
        let evaluate = strategy.evaluate_at(level);
        let mut parts: Vec<Vec<Option<Part>>> = vec![vec![None; evaluate.len()]; nodes.len()];
        let mut asks = Vec::new();
        let mut questions = Vec::new();
        for (e, evaluator) in evaluate.iter().enumerate() {
            match evaluator {
                Evaluator::Checker { partial } => {
                    for (i, &node) in nodes.iter().enumerate() {
                        let answer = self.answer_of(node);
                        parts[i][e] = Some(checker::score(self.puzzle_of(node).as_ref(), &answer, *partial));
                    }
                }
                Evaluator::Logprob => {
                    for (i, &node) in nodes.iter().enumerate() {
                        parts[i][e] = Some(self.logprob(node).await);
                    }
                }
                Evaluator::YesNo { prompt, format, yes, no } => {
                    let Some(found) = self.yes_no(prompt, *format, [yes, no], nodes).await else { return };
                    for (row, part) in parts.iter_mut().zip(found) {
                        row[e] = Some(part);
                    }
                }
                Evaluator::Command { run, seconds } => {
                    let found = self.run_command(run, *seconds, nodes).await;
                    self.unreadable += found.iter().map(|part| part.invalid as u64).sum::<u64>();
                    for (row, part) in parts.iter_mut().zip(found) {
                        row[e] = Some(part);
                    }
                }
                Evaluator::Value { .. } => {
                    for (i, &node) in nodes.iter().enumerate() {
                        match self.question(evaluator, node, Vec::new()) {
                            Ok(ask) => {
                                asks.push(ask);
                                questions.push(Question { evaluator: e, thoughts: vec![i] });
                            }
                            Err(_) if self.ending.is_some() => return,
                            Err(error) => {
                                parts[i][e] = Some(Part::missing(value::NAME, error.to_string(), 0));
                            }
                        }
                    }
                }
                Evaluator::Vote { .. } => {
                    if nodes.len() == 1 {
                        parts[0][e] = Some(Part::of(vote::NAME, 1.0, "the only candidate"));
                        continue;
                    }
                    let shown = |id: &NodeId| match self.generate_of(self.tree.node(*id).depth).thought {
                        Thought::Answer => self.tree.node(*id).text.clone(),
                        Thought::Step => self.tree.path_text(*id),
                    };
                    let candidates: Vec<String> = nodes.iter().map(shown).collect();
                    // A vote is held once for all; it goes by the first candidate's number.
                    match self.question(evaluator, nodes[0], candidates) {
                        Ok(ask) => {
                            asks.push(ask);
                            questions.push(Question { evaluator: e, thoughts: (0..nodes.len()).collect() });
                        }
                        Err(_) if self.ending.is_some() => return,
                        Err(error) => {
                            for row in &mut parts {
                                row[e] = Some(Part::missing(vote::NAME, error.to_string(), 0));
                            }
                        }
                    }
                }
            }
        }
        if !asks.is_empty() {
            if let Some(reason) = self.ledger.used_up_before_growth() {
                self.ending.get_or_insert(reason);
                return;
            }
            let (asks, short) = self.afford(asks).await;
            if let Some(reason) = short {
                // Judged halfway a level cannot be compared, so it stays unjudged.
                self.ending.get_or_insert(reason);
                return;
            }
            self.judge(evaluate, asks, &questions, &mut parts).await;
        }
        for (&node, row) in nodes.iter().zip(parts) {
            // The user may have pruned it, or run out of patience, meanwhile.
            let waits = matches!(self.tree.node(node).status, Status::Open | Status::Pinned);
            if waits && !self.hurry {
                let row: Vec<Part> = row.into_iter().flatten().collect();
                self.emit_weighed(node, &row);
            }
        }
    }

    /// Tells what the strategy's own expression makes of the parts, where it has one.
    fn emit_weighed(&mut self, node: NodeId, parts: &[Part]) {
        let strategy = self.strategy.clone();
        let Some(expression) = &strategy.score else { return self.emit_score(node, parts) };
        let score = weigh(expression, parts).unwrap_or_else(|why| {
            self.note(format!("thought {node} scores 0: {why}"));
            0.0
        });
        self.tell_score(node, parts, score);
    }

    /// Asks the judges and files what they say.
    async fn judge(
        &mut self,
        evaluators: &[Evaluator],
        asks: Vec<Ask>,
        questions: &[Question],
        parts: &mut [Vec<Option<Part>>],
    ) {
        let mut replies: Vec<Vec<Result<String, String>>> = vec![Vec::new(); asks.len()];
        let mut failed = None;
        let mut served = false;
        let mut flight = self.launch(asks);
        while let Some(landed) = self.landed(&mut flight).await {
            replies[landed.ask].push(match landed.result {
                Ok(completion) => match completion.finish {
                    Finish::NoMemory(why) => {
                        self.starved = Some(why.clone());
                        failed.get_or_insert_with(|| Error::limit(&why));
                        Err(why)
                    }
                    finish => {
                        served = true;
                        if let Finish::Failed(why) = finish { Err(why) } else { Ok(completion.text) }
                    }
                },
                Err(Lost::Cancelled { .. }) => Err("called off".into()),
                Err(Lost::Failed(error)) => {
                    let why = error.to_string();
                    failed.get_or_insert(error);
                    Err(why)
                }
            });
        }
        for (question, replies) in questions.iter().zip(replies) {
            match &evaluators[question.evaluator] {
                Evaluator::Value { labels, scale, .. } => {
                    let ask = match *scale {
                        Some((low, high)) => value::Ask::Number(Scale { low, high }),
                        None => value::Ask::Label(labels),
                    };
                    let part = value::judge(&replies, &ask);
                    self.unreadable += part.invalid as u64;
                    for &i in &question.thoughts {
                        parts[i][question.evaluator] = Some(part.clone());
                    }
                }
                _ => {
                    let found = vote::judge(&replies, question.thoughts.len());
                    // Each candidate shows the votes that could not be read; they are counted once.
                    self.unreadable += found.first().map_or(0, |part| part.invalid as u64);
                    for (&i, part) in question.thoughts.iter().zip(found) {
                        parts[i][question.evaluator] = Some(part);
                    }
                }
            }
        }
        if let Some(error) = failed.filter(|_| !served) {
            self.fail(&error);
        }
    }

    fn question(&mut self, evaluator: &Evaluator, node: NodeId, candidates: Vec<String>) -> Result<Ask> {
        let (prompt, format, n, max_tokens, temperature, purpose): (&PromptSource, _, _, _, _, _) = match evaluator {
            Evaluator::Value { prompt, format, n, max_tokens, temperature, .. } => {
                (prompt, *format, *n, *max_tokens, *temperature, Purpose::Value)
            }
            Evaluator::Vote { prompt, format, n, max_tokens, temperature } => {
                (prompt, *format, *n, *max_tokens, *temperature, Purpose::Vote)
            }
            Evaluator::Checker { .. } | Evaluator::Logprob | Evaluator::YesNo { .. } | Evaluator::Command { .. } => {
                return Err(Error::fault("this evaluator asks no judge"));
            }
        };
        let among = candidates.len();
        let subject = if purpose == Purpose::Vote { Subject::Among(candidates) } else { Subject::Of(node) };
        let prompt = self.prompt(prompt, format, subject, max_tokens)?;
        let generate = Generate {
            prompt,
            mode: Mode::Sample,
            n,
            sampling: Sampling { temperature, ..Sampling::default() },
            max_tokens,
            stop: Vec::new(),
            constraint: Some(Arc::new(Usual(usual(evaluator, among)))),
            likelihood: Likelihood::Model,
            key: self.stream_key(node, purpose),
        };
        Ok(Ask { node, purpose, generate })
    }

    /// Tells a thought's score, and which evaluator had no usable reply.
    pub(super) fn emit_score(&mut self, node: NodeId, parts: &[Part]) {
        self.tell_score(node, parts, combine(parts));
    }

    fn tell_score(&mut self, node: NodeId, parts: &[Part], score: f64) {
        let score = round(score);
        for part in parts.iter().filter(|part| part.value.is_none()) {
            let (evaluator, detail) = (part.evaluator, &part.detail);
            self.note(format!("thought {node}: {evaluator} gave no value ({detail}); it counts as 0"));
        }
        let rounded = |part: &Part| ScorePart { value: part.value.map(round), ..ScorePart::from(part.clone()) };
        self.emit(Event::Scored { node, score, parts: parts.iter().map(rounded).collect() });
    }
}
