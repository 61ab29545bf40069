//! Prompts: the strategy's template with the puzzle's inputs, then the thoughts of the path as the model wrote them.
//!
//! A generation template that uses `path` places the thoughts itself; where it does not, the prompt is followed by the path,
//! token by token as it was generated, so that nothing is tokenised twice and the whole K/V of the path is shared.
//! Few-shot examples become fewer until the prompt fits the context, which is told.

use super::Controller;
use crate::base::{Error, Result};
use crate::lm::{Constraint, Format, Part, Prompt};
use crate::search::tree::NodeId;
use crate::strategy::{self, Count, PromptSource, Thought};
use crate::task::Puzzle;
use crate::task::constrain::Choices;
use serde_json::Value;
use std::borrow::Cow;
use std::sync::Arc;

/// What a prompt is for.
pub enum Subject {
    /// Thoughts that follow this one.
    After(NodeId),
    /// What these thoughts together make.
    Merge(Vec<NodeId>),
    /// The value of this thought.
    Of(NodeId),
    /// Which of these, each with its path, is best.
    Among(Vec<String>),
}

impl Controller {
    /// Renders a prompt that leaves room for `max_tokens` in the context.
    ///
    /// # Errors
    /// The template does not render, or the prompt does not fit even without examples.
    pub(super) fn prompt(
        &mut self,
        source: &PromptSource,
        format: Option<Format>,
        subject: Subject,
        max_tokens: usize,
    ) -> Result<Prompt> {
        let default = if self.lm.info().chat_template { Format::Chat } else { Format::Completion };
        let format = format.unwrap_or(default);
        let inputs = self.inputs(&subject);
        let tail = match subject {
            Subject::After(node) if self.continues(source, node) => self.tail(node),
            _ => Vec::new(),
        };
        let all = strategy::prompt::example_count(&inputs);
        let mut examples = all;
        loop {
            let text = match strategy::prompt::render(source, &inputs, examples) {
                Ok(text) => text,
                Err(error) => {
                    // It renders for no thought: a run that went on would score or grow nothing.
                    self.refuse(&error);
                    return Err(error);
                }
            };
            let prompt = Prompt { format, text, tail: tail.clone() };
            let Some((context, tokens)) = self.lm.info().context.zip(self.lm.count_tokens(&prompt)) else {
                return Ok(prompt);
            };
            // Examples make room for the whole reply, but for no more than a quarter of the context: a strategy may name
            // a generous limit. Without examples a single token's room will do; a cut reply is told on its thought.
            if tokens + max_tokens.min(context / 4).max(1) <= context || (examples == 0 && tokens < context) {
                self.tell_examples(all, all - examples);
                return Ok(prompt);
            }
            if examples == 0 {
                return Err(Error::input(format!(
                    "the prompt has {tokens} tokens, and the model's context holds {context}"
                )));
            }
            examples /= 2;
        }
    }

    fn tell_examples(&mut self, all: usize, left_out: usize) {
        if left_out > 0 && self.examples_told != Some(left_out) {
            self.examples_told = Some(left_out);
            self.note(format!("{left_out} of {all} examples left out of the prompt, so that it fits the context"));
        }
    }

    /// The puzzle that a prompt is about: the whole one, or a part of it.
    pub(super) fn puzzle_for(&self, subject: &Subject) -> Arc<dyn Puzzle> {
        match subject {
            Subject::After(node) | Subject::Of(node) => self.puzzle_of(*node),
            Subject::Merge(sources) => self.puzzle_of_sources(sources),
            Subject::Among(_) => self.puzzle.clone(),
        }
    }

    /// What the puzzle gives that a prompt is about.
    pub(super) fn puzzle_inputs(&self, subject: &Subject) -> Cow<'_, Value> {
        let puzzle = self.puzzle_for(subject);
        match Arc::ptr_eq(&puzzle, &self.puzzle) {
            true => Cow::Borrowed(&self.inputs),
            false => Cow::Owned(self.strategy.inputs(puzzle.inputs())),
        }
    }

    /// The template's inputs: the puzzle's own, and where the search stands.
    fn inputs(&self, subject: &Subject) -> Value {
        let mut inputs = self.puzzle_inputs(subject).into_owned();
        if let Value::Object(map) = &mut inputs {
            if let Subject::After(_) | Subject::Merge(_) = subject {
                map.insert("thoughts".into(), Value::Array(Vec::new()));
            }
            match subject {
                Subject::Merge(sources) => {
                    let texts: Vec<String> = sources.iter().map(|&source| self.answer_of(source)).collect();
                    map.insert("path".into(), texts.concat().into());
                    map.insert("thought".into(), texts.first().cloned().unwrap_or_default().into());
                    map.insert("thoughts".into(), texts.into());
                }
                Subject::After(node) | Subject::Of(node) => {
                    map.insert("path".into(), self.tree.path_text(*node).into());
                    map.insert("thought".into(), self.tree.node(*node).text.clone().into());
                }
                Subject::Among(thoughts) => {
                    map.insert("thoughts".into(), thoughts.clone().into());
                }
            }
        }
        inputs
    }

    /// Whether a generation prompt is followed by the path: it goes on with the steps so far, and does not show them itself.
    fn continues(&self, source: &PromptSource, node: NodeId) -> bool {
        let shown = ["path", "thought"].iter().any(|name| strategy::prompt::uses(source, name));
        !shown && self.generate_below(node).thought == Thought::Step
    }

    fn tail(&self, node: NodeId) -> Vec<Part> {
        let mut tail = Vec::new();
        for id in self.tree.path(node) {
            let text = &self.tree.node(id).text;
            let known = self.ids.get(&id).filter(|tokens| text.is_char_boundary(tokens.len));
            let (covered, rest) = text.split_at(known.map_or(0, |tokens| tokens.len));
            if let Some(tokens) = known {
                tail.push(Part::Tokens { text: covered.to_string(), ids: tokens.ids.clone() });
            }
            if !rest.is_empty() {
                tail.push(Part::Text(rest.to_string()));
            }
        }
        tail
    }
}

/// Works out a count for one puzzle; at least 1.
pub fn count(count: &Count, inputs: &Value, origin: &str, what: &str) -> Result<usize> {
    match strategy::prompt::count(count, inputs).map_err(|e| e.context(format!("{origin}: {what}")))? {
        0 => Err(Error::input(format!("{origin}: {what} is 0; it must be at least 1"))),
        number => Ok(number),
    }
}

/// One of these texts.
pub fn choices(texts: Vec<String>) -> Arc<dyn Constraint> {
    Arc::new(Choices::new(texts))
}
