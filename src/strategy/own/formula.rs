//! Expressions over a puzzle's texts: `errors` of a scorer, and `partial`. One Jinja expression, as in strategies, with texts
//! beside numbers and three more filters: `number` (the text as a number), `numbers` (all numbers in it) and `words`.

use crate::base::nearest::hint;
use crate::strategy::prompt;
use minijinja::{Environment, Error, ErrorKind, Value as Jinja};
use regex::Regex;
use serde_json::Value;
use std::sync::LazyLock;

static NUMBER: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?").expect("a fixed pattern is valid"));

/// An expression whose syntax and names were checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Formula(String);

fn environment() -> Environment<'static> {
    let mut env = prompt::environment().clone();
    env.add_filter("number", |text: &str| {
        text.trim().parse::<f64>().ok().filter(|n| n.is_finite()).ok_or_else(|| {
            let shown: String = text.trim().chars().take(40).collect();
            Error::new(ErrorKind::InvalidOperation, format!("`{shown}` is no number"))
        })
    });
    env.add_filter("numbers", |text: &str| {
        NUMBER.find_iter(text).filter_map(|found| found.as_str().parse::<f64>().ok()).collect::<Vec<f64>>()
    });
    env.add_filter("words", |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>());
    env
}

impl Formula {
    /// Checks syntax, and names against `known` (dotted: `puzzle.country`, `answer`).
    ///
    /// # Errors
    /// The first fault.
    pub fn new(text: &str, known: &[&str]) -> Result<Self, String> {
        if text.contains("{{") || text.contains("{%") {
            return Err("an expression stands without braces: `answer == expected`".into());
        }
        let env = environment();
        let compiled = env.compile_expression(text).map_err(|error| prompt::what(&error))?;
        let there = |name: &str| {
            let within = |k: &&str| {
                k.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
                    // A text has methods and items of its own.
                    || (*k != "puzzle" && name.strip_prefix(*k).is_some_and(|rest| rest.starts_with('.')))
            };
            known.iter().any(within)
        };
        let mut unknown: Vec<String> =
            compiled.undeclared_variables(true).into_iter().filter(|name| !there(name)).collect();
        unknown.retain(|name| !env.globals().any(|(global, _)| global == name));
        unknown.sort();
        match unknown.first() {
            Some(name) => Err(format!(
                "there is no value `{name}` here{}; known: {}",
                hint(name, known.iter().copied()),
                known.join(", ")
            )),
            None => Ok(Self(text.to_string())),
        }
    }

    pub fn text(&self) -> &str {
        &self.0
    }

    /// Errors of a text: a number from 0 up, or true (none) and false (one).
    ///
    /// # Errors
    /// It cannot be worked out, or gives something else.
    pub fn errors(&self, values: &Value) -> Result<f64, String> {
        let refuse = |why: String| format!("the expression `{}` {why}", self.0);
        let env = environment();
        let compiled = env.compile_expression(&self.0).map_err(|error| refuse(prompt::what(&error)))?;
        let found = compiled
            .eval(prompt::to_jinja(values, usize::MAX))
            .map_err(|error| refuse(format!("cannot be worked out: {}", prompt::what(&error))))?;
        if let Ok(right) = bool::try_from(found.clone()) {
            return Ok(if right { 0.0 } else { 1.0 });
        }
        let number = f64::try_from(found.clone()).ok().filter(|n| n.is_finite() && *n >= 0.0);
        number.ok_or_else(|| {
            refuse(format!("gives `{}`, which is neither true, false nor a number from 0 up", shown(&found)))
        })
    }
}

fn shown(value: &Jinja) -> String {
    value.to_string().chars().take(40).collect()
}
