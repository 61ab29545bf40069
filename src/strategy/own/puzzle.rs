//! A puzzle of a task of the user's own.

use super::scorer::{Subject, UNREADABLE};
use super::{Definition, State};
use crate::base::text::sanitize;
use crate::base::{Error, Result};
use crate::lm::{Constraint, Judgement};
use crate::strategy::prompt;
use crate::task::constrain::Steps;
use crate::task::{Partial, Puzzle, Verdict};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Steps that a puzzle may take at most.
const MAX_LEN: usize = 10_000;

#[derive(Clone)]
pub struct OwnPuzzle(Arc<Inner>);

struct Inner {
    task: Arc<Definition>,
    id: String,
    expected: Option<String>,
    title: String,
    len: usize,
    inputs: Value,
    /// Answers that were judged: a program is asked once of each.
    judged: Mutex<HashMap<String, (u64, String)>>,
}

impl OwnPuzzle {
    /// # Errors
    /// A template of the task does not render for these values.
    pub fn new(task: Arc<Definition>, id: String, values: Vec<String>, expected: Option<String>) -> Result<Self> {
        let asked = |values: &[String]| -> Result<Map<String, Value>> {
            let mut fields = task.named(values);
            fields.insert("input".into(), json!(task.typed(values)));
            let question = task.render(&task.question, &json!({"puzzle": fields}))?;
            fields.insert("question".into(), json!(question));
            Ok(fields)
        };
        let mut fields = asked(&values)?;
        let examples = task.examples.iter().map(|example| {
            let mut fields = asked(&example.values)?;
            fields.insert("answer".into(), json!(example.answer));
            Ok(Value::Object(fields))
        });
        fields.insert("examples".into(), Value::Array(examples.collect::<Result<_>>()?));
        let shown = json!({"puzzle": fields});
        let len = prompt::count(&task.len, &shown).map_err(|e| e.context(format!("{}: len", task.origin)))?;
        if !(1..=MAX_LEN).contains(&len) {
            return Err(Error::input(format!("{}: len is {len}; it is from 1 to {MAX_LEN}", task.origin)));
        }
        let title = match &task.title {
            Some(title) => Definition::line(&task.render(title, &shown)?),
            None => Definition::line(fields["question"].as_str().unwrap_or_default()),
        };
        fields.insert("len".into(), json!(len));
        let inputs = json!({"puzzle": fields});
        // A blank answer is none: nothing could be compared with it.
        let expected = expected.filter(|text| !text.trim().is_empty());
        Ok(Self(Arc::new(Inner { task, id, expected, title, len, inputs, judged: Mutex::default() })))
    }

    /// What of a reply is its answer.
    fn answer(&self, reply: &str) -> Option<String> {
        let text = sanitize(reply);
        let found = match &self.0.task.pattern {
            None => Some(after_label(&text).unwrap_or(&text)),
            Some(pattern) => {
                let last = pattern.captures_iter(&text).last();
                last.and_then(|found| found.get(1).or_else(|| found.get(0))).map(Into::<&str>::into)
            }
        };
        found.map(str::trim).filter(|answer| !answer.is_empty()).map(String::from)
    }

    fn judge(&self, answer: &str) -> (u64, String) {
        let judged = || self.0.judged.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = judged().get(answer) {
            return known.clone();
        }
        let Inner { task, id, expected, inputs, .. } = &*self.0;
        let found = task.scorer.judge(&Subject { answer, expected: expected.as_deref(), task: &task.name, id, inputs });
        judged().insert(answer.to_string(), found.clone());
        found
    }

    /// Whether a beginning is a whole answer: it holds one, or has all its steps.
    fn is_complete(&self, prefix: &str) -> bool {
        match &self.0.task.pattern {
            Some(_) => self.answer(prefix).is_some(),
            None => after_label(prefix).is_some() || steps_of(prefix).count() >= self.0.len,
        }
    }
}

/// What follows the last `Answer:` up to a blank line, without the marks that make it stand out; `None` where that is nothing.
fn after_label(text: &str) -> Option<&str> {
    const LABEL: &str = "answer:";
    let at = text.to_ascii_lowercase().rfind(LABEL)? + LABEL.len();
    let rest = text[at..].trim_matches(|c: char| c.is_whitespace() || "*`_".contains(c));
    let end = rest.find("\n\n").unwrap_or(rest.len());
    Some(&rest[..end]).filter(|answer| !answer.is_empty())
}

fn steps_of(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty())
}

impl Puzzle for OwnPuzzle {
    fn task(&self) -> &str {
        &self.0.task.name
    }

    fn id(&self) -> &str {
        &self.0.id
    }

    fn title(&self) -> String {
        self.0.title.clone()
    }

    fn inputs(&self) -> Value {
        self.0.inputs.clone()
    }

    fn len(&self) -> usize {
        self.0.len
    }

    fn check(&self, answer: &str) -> Verdict {
        match self.answer(answer) {
            Some(answer) => {
                let (error_score, why) = self.judge(&answer);
                Verdict { error_score, answer: Some(Value::from(answer)), why }
            }
            None => {
                let what = match &self.0.task.pattern {
                    Some(pattern) => format!("nothing in the reply matches `{pattern}`"),
                    None => "the reply is empty".to_string(),
                };
                let why = format!("unreadable: {what}; counted as {UNREADABLE} errors");
                Verdict { error_score: UNREADABLE, answer: None, why }
            }
        }
    }

    fn check_partial(&self, prefix: &str) -> Partial {
        let complete = self.is_complete(prefix);
        let Some(partial) = &self.0.task.partial else { return Partial::Possible { score: 1.0, complete } };
        let mut values = self.0.inputs.clone();
        values["path"] = json!(prefix);
        values["steps"] = steps_of(prefix).collect();
        match partial.errors(&values) {
            Ok(0.0) => Partial::Possible { score: 1.0, complete },
            Ok(errors) => {
                Partial::Wrong { score: 1.0 / (1.0 + errors), why: format!("{errors} errors by `{}`", partial.text()) }
            }
            Err(why) => Partial::Wrong { score: 0.0, why },
        }
    }

    fn solved(&self, answer: &str) -> bool {
        self.check(answer).error_score == 0
    }

    fn next_steps(&self, prefix: &str) -> Vec<String> {
        let Some(steps) = self.0.task.steps.as_ref().filter(|_| !self.is_complete(prefix)) else { return Vec::new() };
        let mut values = self.0.inputs.clone();
        values["path"] = json!(prefix);
        let text = self.0.task.render(steps, &values).unwrap_or_default();
        let mut listed: Vec<String> = Vec::new();
        for step in steps_of(&text).map(|step| format!("{step}\n")) {
            if !listed.contains(&step) {
                listed.push(step);
            }
        }
        listed
    }

    fn answer_constraint(&self, prefix: &str) -> Arc<dyn Constraint> {
        match self.0.task.steps {
            Some(_) => Arc::new(Steps::new(Arc::new(self.clone()), prefix)),
            None => Arc::new(Free),
        }
    }

    fn state_key(&self, prefix: &str) -> String {
        let squeezed = || prefix.split_whitespace().collect::<Vec<_>>().join(" ");
        match self.0.task.state {
            State::Text => squeezed(),
            State::Folded => squeezed().to_lowercase(),
            State::Lines => {
                let mut lines: Vec<&str> = steps_of(prefix).collect();
                lines.sort_unstable();
                lines.join("\n")
            }
            State::Last => steps_of(prefix).last().unwrap_or_default().to_string(),
        }
    }

    fn refute(&self, _: &str) -> Option<String> {
        None
    }
}

/// Any text.
struct Free;

impl Constraint for Free {
    fn judge(&self, _: &str) -> Judgement {
        Judgement::Open { complete: true }
    }

    fn masks(&self) -> bool {
        false
    }
}
