//! Prompts: the strategy's template with the puzzle's inputs, then the thoughts of the path as the model wrote them.
//!
//! A template that names the thoughts itself (`thoughts`, `state`, `thought`, `candidates`) places them; where it does not, a
//! generation prompt is followed by the path, token by token as it was generated, so that nothing is tokenised twice and
//! the whole K/V of the path is shared. Few-shot examples are left out from the front until the prompt fits the context.

use super::Controller;
use crate::base::{Error, Result};
use crate::lm::{Constraint, Format, Part, Prompt};
use crate::search::tree::NodeId;
use crate::strategy::{Count, PromptSource};
use crate::task::constrain::Choices;
use serde_json::{Value, json};
use std::sync::Arc;

/// What a prompt is about.
pub struct Subject {
    pub node: NodeId,
    /// Whether the path's thoughts follow the template's text.
    pub path: bool,
    /// Further template inputs.
    pub extra: Vec<(&'static str, Value)>,
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
        let mut inputs = self.inputs(&subject);
        let tail = if subject.path && !places_path(&source.text) { self.tail(subject.node) } else { Vec::new() };
        let all = examples(&mut inputs).map_or(0, |list| list.len());
        let mut left_out = 0;
        loop {
            let text = render(source, &inputs)?;
            let prompt = Prompt { format, text, tail: tail.clone() };
            let Some((context, tokens)) = self.lm.info().context.zip(self.lm.count_tokens(&prompt)) else {
                return Ok(prompt);
            };
            // At least one token must find room; an answer cut short by the context is told on its thought.
            if tokens + max_tokens.min(context / 4).max(1) <= context {
                self.tell_examples(all, left_out);
                return Ok(prompt);
            }
            let Some(list) = examples(&mut inputs).filter(|list| !list.is_empty()) else {
                if tokens < context {
                    self.tell_examples(all, left_out);
                    return Ok(prompt);
                }
                return Err(Error::input(format!(
                    "its prompt has {tokens} tokens, and the model's context holds {context}"
                )));
            };
            // Halving keeps the number of renderings small; the last examples stand closest to the question.
            let drop = list.len().div_ceil(4);
            list.drain(..drop);
            left_out += drop;
        }
    }

    fn tell_examples(&mut self, all: usize, left_out: usize) {
        if left_out > 0 && self.examples_told != Some(left_out) {
            self.examples_told = Some(left_out);
            self.note(format!("{left_out} of {all} examples left out of the prompt, so that it fits the context"));
        }
    }

    /// The template's inputs: the puzzle's own, and where the search stands.
    fn inputs(&self, subject: &Subject) -> Value {
        let mut inputs = self.puzzle.inputs();
        if let Value::Object(map) = &mut inputs {
            let path = self.tree.path(subject.node);
            let thoughts: Vec<&str> = path.iter().map(|&id| self.tree.node(id).text.as_str()).collect();
            map.insert("thoughts".into(), json!(thoughts));
            map.insert("state".into(), json!(thoughts.concat()));
            for (name, value) in &subject.extra {
                map.insert((*name).into(), value.clone());
            }
        }
        inputs
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

/// The few-shot examples among a puzzle's inputs.
fn examples(inputs: &mut Value) -> Option<&mut Vec<Value>> {
    inputs.pointer_mut("/puzzle/examples").and_then(Value::as_array_mut)
}

/// Whether a template says by itself where the path's thoughts stand.
fn places_path(template: &str) -> bool {
    let mut rest = template;
    while let Some(start) = rest.find("{{").into_iter().chain(rest.find("{%")).min() {
        let inside = &rest[start + 2..];
        let end = inside.find("}}").into_iter().chain(inside.find("%}")).min().unwrap_or(inside.len());
        let mut names = inside[..end].split(|c: char| !c.is_alphanumeric() && c != '_' && c != '.');
        if names.any(|name| matches!(name, "thoughts" | "state" | "thought" | "candidates")) {
            return true;
        }
        rest = &inside[end..];
    }
    false
}

/// Works out a count for one puzzle; at least 1.
pub fn count(count: &Count, inputs: &Value, origin: &str, what: &str) -> Result<usize> {
    let number = match count {
        Count::Number(number) => *number,
        Count::Template(text) => {
            let source = PromptSource { origin: format!("{origin}, {what}"), text: text.clone() };
            let rendered = render(&source, inputs)?;
            let whole = rendered.trim();
            whole.parse().map_err(|_| Error::input(format!("{origin}: {what} is `{whole}`, which is no whole number")))?
        }
    };
    if number == 0 { Err(Error::input(format!("{origin}: {what} is 0; it must be at least 1"))) } else { Ok(number) }
}

/// One of these texts.
pub fn choices(texts: Vec<String>) -> Arc<dyn Constraint> {
    Arc::new(Choices::new(texts))
}

fn render(source: &PromptSource, inputs: &Value) -> Result<String> {
    let mut env = minijinja::Environment::new();
    env.set_keep_trailing_newline(true);
    env.render_str(&source.text, inputs).map_err(|e| Error::input(format!("{}: {e}", source.origin)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_places_the_path_where_it_names_the_thoughts() {
        let check = |template: &str, expected: bool| assert_eq!(places_path(template), expected, "{template}");
        check("Input: {{ puzzle.input }}\nOutput:{{ puzzle.lead }}", false);
        check("{% for t in thoughts %}{{ t }}{% endfor %}", true);
        check("so far: {{ state }}", true);
        check("thoughts are text here, {{ puzzle.state }} too", false);
        check("{{ unclosed", false);
    }
}
