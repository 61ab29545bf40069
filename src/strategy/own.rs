//! Tasks of the user's own: YAML files that say what a puzzle has, how it is asked, and how an answer is read and scored.
//!
//! | file | what |
//! |---|---|
//! | `own/read.rs` | from YAML, with located errors |
//! | `own/puzzle.rs` | one puzzle: inputs of prompts, steps, states, the check |
//! | `own/scorer.rs` | how an answer is compared with the expected one |
//! | `own/formula.rs` | expressions over texts, for scorers and for partial checks |
//! | `own/program.rs` | a program that scores answers |
//!
//! A task makes no puzzles by itself: they are typed, or come from a data file (CSV or JSON lines) whose columns the fields
//! name. Refused: everything that would make a task depend on more than its puzzle's fields and the text it judges.

mod formula;
mod program;
mod puzzle;
mod read;
mod scorer;
#[cfg(test)]
mod tests;

pub use read::{Parsed, check_file, is_task, parse, read_file};

use super::{Count, PromptSource, prompt};
use crate::base::text::sanitize_line;
use crate::base::{Error, Result};
use crate::task::data::{self, Columns, Holds};
use crate::task::{self, Puzzle, Task};
use formula::Formula;
use regex::Regex;
use scorer::Scorer;
use serde_json::{Map, Value, json};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

/// Inputs that every task of the user's own has beside its fields, each with a line about it.
pub const INPUTS: &[(&str, &str)] = &[
    ("puzzle.question", "the question, as the task's file puts it"),
    ("puzzle.input", "the fields as they are typed"),
    ("puzzle.len", "how many steps an answer takes at most"),
    ("puzzle.examples", "solved examples: a list of {question, answer} and the fields"),
];

/// One of a puzzle's values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    pub name: String,
    pub about: String,
    /// Names of its column in data files; the first is for messages.
    pub columns: Vec<String>,
}

/// When two beginnings of an answer are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The same words.
    Text,
    /// The same words, capitals aside.
    Folded,
    /// The same lines in any order.
    Lines,
    /// The same last line.
    Last,
}

/// A solved example.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Example {
    /// In the order of the fields.
    values: Vec<String>,
    answer: String,
}

/// What a task's file says.
#[derive(Debug)]
pub struct Definition {
    name: String,
    about: String,
    strategy: String,
    fields: Vec<Field>,
    /// Column of the puzzles' ids; none: they are numbered.
    id: Vec<String>,
    /// Column of the expected answers.
    answer: Vec<String>,
    /// What of a reply is the answer; `None`: all of it.
    pattern: Option<Regex>,
    separator: String,
    question: PromptSource,
    title: Option<PromptSource>,
    len: Count,
    state: State,
    scorer: Scorer,
    partial: Option<Formula>,
    steps: Option<PromptSource>,
    examples: Vec<Example>,
    input_forms: String,
    example: String,
    /// Names of all template inputs, with what is told of them.
    inputs: Vec<(String, String)>,
    text: String,
    origin: String,
}

/// A task from a file.
#[derive(Debug, Clone)]
pub struct OwnTask(Arc<Definition>);

impl PartialEq for OwnTask {
    fn eq(&self, other: &Self) -> bool {
        (&self.0.origin, &self.0.text) == (&other.0.origin, &other.0.text)
    }
}

impl OwnTask {
    /// Where it was read from.
    pub fn origin(&self) -> &str {
        &self.0.origin
    }

    /// The YAML text as read.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// The program that scores answers, if one does.
    pub fn program(&self) -> Option<&str> {
        match &self.0.scorer {
            Scorer::Command { run, .. } => run.first().map(String::as_str),
            _ => None,
        }
    }

    /// Whether it lists the steps that a puzzle allows.
    pub fn has_steps(&self) -> bool {
        self.0.steps.is_some()
    }

    /// A puzzle of these values.
    fn puzzle(&self, id: String, values: Vec<String>, expected: Option<String>) -> Result<Arc<dyn Puzzle>> {
        Ok(Arc::new(puzzle::OwnPuzzle::new(self.0.clone(), id, values, expected)?))
    }

    /// Values from a JSON object, and the expected answer where it has one.
    fn read_json(&self, text: &str) -> Result<(Vec<String>, Option<String>), String> {
        let object: Map<String, Value> =
            serde_json::from_str(text).map_err(|error| format!("is no JSON object ({error})"))?;
        let find = |names: &[String]| {
            object
                .iter()
                .find(|(key, _)| names.iter().any(|name| key.eq_ignore_ascii_case(name)))
                .map(|(_, v)| plain(v))
        };
        let values = self.0.fields.iter().map(|field| {
            // Its own name first: a column may be called as another field is.
            let own = object.get(&field.name).map(plain);
            own.or_else(|| find(&field.columns)).ok_or_else(|| format!("has no field `{}`", field.name))
        });
        Ok((values.collect::<Result<_, _>>()?, find(&self.0.answer)))
    }
}

/// A JSON value as text.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

impl Task for OwnTask {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn about(&self) -> &str {
        &self.0.about
    }

    fn default_strategy(&self) -> &str {
        &self.0.strategy
    }

    fn input_forms(&self) -> &str {
        &self.0.input_forms
    }

    fn example(&self) -> &str {
        &self.0.example
    }

    fn inputs(&self) -> Vec<(&str, &str)> {
        self.0.inputs.iter().map(|(name, about)| (name.as_str(), about.as_str())).collect()
    }

    fn default_size(&self) -> usize {
        1
    }

    fn generate(&self, _: usize, _: u64) -> Result<Arc<dyn Puzzle>> {
        Err(Error::input(format!(
            "the task {} makes no puzzles by itself; give --input with {}, or --data FILE",
            self.0.name, self.0.input_forms
        )))
    }

    fn parse(&self, input: &str) -> Result<Arc<dyn Puzzle>> {
        let refuse =
            |what: String| Error::input(format!("input for {}: {what}; write {}", self.0.name, self.0.input_forms));
        let text = input.trim();
        if text.is_empty() {
            return Err(refuse("is empty".into()));
        }
        if text.starts_with('{') {
            let (values, expected) = self.read_json(text).map_err(refuse)?;
            return self.puzzle("input".into(), values, expected);
        }
        let values: Vec<String> = match self.0.fields.as_slice() {
            [_] => vec![text.to_string()],
            _ => text.split(self.0.separator.as_str()).map(|part| part.trim().to_string()).collect(),
        };
        if values.len() != self.0.fields.len() {
            let (found, needed) = (values.len(), self.0.fields.len());
            return Err(refuse(format!("holds {found} of {needed} fields")));
        }
        self.puzzle("input".into(), values, None)
    }

    fn read_data(&self, path: &Path) -> Result<Vec<Arc<dyn Puzzle>>> {
        fn names(texts: &[String]) -> Vec<&str> {
            texts.iter().map(String::as_str).collect()
        }
        let (id, answer) = (names(&self.0.id), names(&self.0.answer));
        let fields: Vec<Vec<&str>> = self.0.fields.iter().map(|field| names(&field.columns)).collect();
        let fields: Vec<&[&str]> = fields.iter().map(Vec::as_slice).collect();
        let columns = Columns { id: &id, inputs: &fields, answer: &answer, holds: Holds::Texts };
        let rows = data::read(path, &columns)?;
        rows.into_iter()
            .map(|row| {
                let place = row.place.clone();
                self.puzzle(row.id, row.inputs, row.answer).map_err(|error| error.context(place))
            })
            .collect()
    }
}

impl Definition {
    /// Values as the fields of `puzzle`.
    fn named(&self, values: &[String]) -> Map<String, Value> {
        self.fields.iter().zip(values).map(|(field, value)| (field.name.clone(), json!(value))).collect()
    }

    /// The fields as they are typed.
    fn typed(&self, values: &[String]) -> String {
        let ambiguous = |value: &String| {
            value.trim() != value || value.is_empty() || value.contains(&self.separator) || value.starts_with('{')
        };
        match values {
            [one] if !one.starts_with('{') && one.trim() == one && !one.is_empty() => one.clone(),
            values if values.len() > 1 && !values.iter().any(ambiguous) => values.join(&format!("{} ", self.separator)),
            values => Value::Object(self.named(values)).to_string(),
        }
    }

    fn render(&self, source: &PromptSource, inputs: &Value) -> Result<String> {
        prompt::render(source, inputs, usize::MAX)
    }

    /// Shown where a line must do.
    fn line(text: &str) -> String {
        let line: String = sanitize_line(text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default());
        line.trim().chars().take(120).collect()
    }
}

/// A task, wherever it comes from.
#[derive(Clone)]
pub enum AnyTask {
    BuiltIn(&'static dyn Task),
    Own(OwnTask),
}

impl Deref for AnyTask {
    type Target = dyn Task;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::BuiltIn(task) => *task,
            Self::Own(task) => task,
        }
    }
}

/// Whether `--task` names a file.
pub fn names_file(spec: &str) -> bool {
    spec.contains(['/', '\\']) || spec.ends_with(".yaml") || spec.ends_with(".yml")
}

/// The task that `--task` means: a built-in one by its name, else a file.
///
/// # Errors
/// There is none of that name, the file has faults, or it runs a program and may not.
pub fn find(spec: &str, allow_commands: bool) -> Result<AnyTask> {
    if !names_file(spec) {
        let remedy = "; a task of your own is named by its file, such as mine.yaml";
        return task::by_name(spec).map(AnyTask::BuiltIn).map_err(|e| Error::input(format!("{}{remedy}", e.message())));
    }
    let own = read_file(Path::new(spec))?;
    if let Some(program) = own.program().filter(|_| !allow_commands) {
        return Err(Error::input(format!(
            "task {} runs the program `{program}`; look at it, and give --allow-commands if you want that",
            own.origin()
        )));
    }
    Ok(AnyTask::Own(own))
}
