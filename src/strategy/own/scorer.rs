//! How an answer is scored: compared with the expected one, by an expression, or by a program. 0 is right.

use super::formula::Formula;
use super::program;
use serde_json::{Value, json};
use std::collections::HashMap;

/// Error score of a reply in which there is no answer, and of one that could not be scored.
pub const UNREADABLE: u64 = 1000;

#[derive(Debug, Clone, PartialEq)]
pub enum Scorer {
    /// The same text, spaces around it aside.
    Exact,
    /// The same words: capitals, spaces and punctuation around words do not count.
    Text,
    /// The same number.
    Number,
    /// The same items in the same order; an error for each place that differs.
    List,
    /// The same items in any order; an error for each that is missing or too much.
    Set,
    Errors(Formula),
    Command {
        run: Vec<String>,
        seconds: f64,
    },
}

/// The scorers that need nothing but their name.
pub const NAMES: &[(&str, Scorer)] = &[
    ("exact", Scorer::Exact),
    ("text", Scorer::Text),
    ("number", Scorer::Number),
    ("list", Scorer::List),
    ("set", Scorer::Set),
];

/// What is judged.
pub struct Subject<'a> {
    pub answer: &'a str,
    pub expected: Option<&'a str>,
    pub task: &'a str,
    pub id: &'a str,
    /// `{"puzzle": {…}}`.
    pub inputs: &'a Value,
}

impl Scorer {
    /// The error score, and why.
    pub fn judge(&self, subject: &Subject<'_>) -> (u64, String) {
        let compare = |errors: fn(&str, &str) -> Result<u64, String>| match subject.expected {
            None => (1, "there is no expected answer to compare with".to_string()),
            Some(expected) => match errors(subject.answer, expected) {
                Ok(0) => (0, "right: as expected".to_string()),
                Ok(errors) => (errors, format!("wrong: {}", crate::base::text::counted(errors, "error", "errors"))),
                Err(why) => (UNREADABLE, format!("unreadable: {why}; counted as {UNREADABLE} errors")),
            },
        };
        match self {
            Self::Exact => compare(|a, b| Ok(u64::from(a.trim() != b.trim()))),
            Self::Text => compare(|a, b| Ok(u64::from(words(a) != words(b)))),
            Self::Number => compare(|a, b| Ok(u64::from(!same(number(a)?, number(b)?)))),
            Self::List => compare(|a, b| Ok(places(&items(a), &items(b)))),
            Self::Set => compare(|a, b| Ok(difference(&items(a), &items(b)))),
            Self::Errors(formula) => {
                let mut values = subject.inputs.clone();
                values["answer"] = json!(subject.answer);
                values["expected"] = json!(subject.expected.unwrap_or_default());
                told(formula.errors(&values), &format!("`{}`", formula.text()))
            }
            Self::Command { run, seconds } => {
                let input = json!({
                    "task": subject.task,
                    "id": subject.id,
                    "inputs": subject.inputs,
                    "answer": subject.answer,
                    "expected": subject.expected,
                });
                match program::errors(run, &input.to_string(), *seconds) {
                    Ok((errors, detail)) if detail.is_empty() => told(Ok(errors), "the program"),
                    Ok((errors, detail)) => (whole(errors), detail),
                    Err(why) => (UNREADABLE, format!("not scored: {why}; counted as {UNREADABLE} errors")),
                }
            }
        }
    }
}

fn told(errors: Result<f64, String>, whose: &str) -> (u64, String) {
    match errors.map(whole) {
        Ok(0) => (0, format!("right by {whose}")),
        Ok(errors) => (errors, format!("wrong: {} by {whose}", crate::base::text::counted(errors, "error", "errors"))),
        Err(why) => (UNREADABLE, format!("not scored: {why}; counted as {UNREADABLE} errors")),
    }
}

/// A part of an error is one.
fn whole(errors: f64) -> u64 {
    errors.ceil().clamp(0.0, 1e15) as u64
}

fn words(text: &str) -> Vec<String> {
    let bare = |word: &str| word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
    text.split_whitespace().map(bare).filter(|word| !word.is_empty()).collect()
}

/// A number as people write it: `1,234.5`, `$12`, `12 %`.
fn number(text: &str) -> Result<f64, String> {
    let bare: String = text.chars().filter(|c| !matches!(c, ',' | '$' | '€' | '£' | '%' | ' ')).collect();
    let bare = bare.trim_end_matches('.');
    bare.parse::<f64>().ok().filter(|n| n.is_finite()).ok_or_else(|| {
        let shown: String = text.trim().chars().take(40).collect();
        format!("`{shown}` is no number")
    })
}

fn same(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0)
}

/// What stands between commas, semicolons and line breaks, without brackets and quotes around.
fn items(text: &str) -> Vec<String> {
    let around = |c: char| c.is_whitespace() || "[](){}\"'`".contains(c);
    let bare = |item: &str| item.trim_matches(around).trim_end_matches('.').to_lowercase();
    text.split([',', ';', '\n']).map(bare).filter(|item| !item.is_empty()).collect()
}

fn places(a: &[String], b: &[String]) -> u64 {
    let differ = a.iter().zip(b).filter(|(a, b)| a != b).count();
    (differ + a.len().abs_diff(b.len())) as u64
}

fn difference(a: &[String], b: &[String]) -> u64 {
    let mut counts: HashMap<&String, i64> = HashMap::new();
    for item in a {
        *counts.entry(item).or_default() += 1;
    }
    for item in b {
        *counts.entry(item).or_default() -= 1;
    }
    counts.values().map(|count| count.unsigned_abs()).sum()
}
