//! Result folders of Graph of Thoughts (Besta et al., AAAI 2024; github.com/spcl/graph-of-thoughts):
//!
//! ```text
//! {lm}_{methods}_{time}/config.json        {"data": [[id, input…, answer], …], "methods": […], "lm": …, "budget": …}
//! {lm}_{methods}_{time}/{method}/{id}.json [{"operation", "thoughts", "scored", "scores", …, "problem_solved"}, …,
//!                                           {"prompt_tokens", "completion_tokens", "cost"}]
//! ```
//!
//! As that repository's own plots do, a puzzle's error is the least score of its `ground_truth_evaluator`, and it is solved
//! where one of its thoughts is. Its tokens are what the service billed, so they are logical tokens; computed tokens and
//! seconds are not known. Sorting and set intersection become our tasks, with our digest of the puzzle, so that one puzzle
//! is known to be the same; other data keep the folder's own name as their task.

use crate::base::{Error, Result};
use crate::batch::row::digest;
use crate::task::{self, Puzzle};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// What a folder holds.
pub struct Found {
    pub model: String,
    pub results: Vec<Outcome>,
    pub faults: Vec<String>,
    pub notes: Vec<String>,
}

/// One puzzle under one method.
pub struct Outcome {
    pub method: String,
    pub task: String,
    pub size: usize,
    pub id: String,
    pub digest: Option<String>,
    pub solved: bool,
    pub error_score: Option<f64>,
    pub thoughts: f64,
    /// Prompt and completion, as billed.
    pub tokens: f64,
}

/// Reads a folder; `None` where it is none of Graph of Thoughts.
///
/// # Errors
/// Its config.json cannot be read.
pub fn read(folder: &Path) -> Result<Option<Found>> {
    let path = folder.join("config.json");
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(_) if !path.exists() => return Ok(None),
        Err(e) => return Err(Error::input(format!("{} cannot be read: {e}", path.display()))),
    };
    let config: Value = serde_json::from_slice(&bytes).map_err(|e| Error::input(format!("{}: {e}", path.display())))?;
    let (Some(methods), Some(data)) = (config["methods"].as_array(), config["data"].as_array()) else {
        return Ok(None);
    };
    let model = config["lm"].as_str().unwrap_or("not known").to_string();
    let mut found = Found { model, results: Vec::new(), faults: Vec::new(), notes: Vec::new() };
    for method in methods.iter().filter_map(Value::as_str) {
        // A method's name is a folder's name, and leads nowhere else.
        if method.contains(['/', '\\']) || method.starts_with('.') {
            found.faults.push(format!("{}: the method `{method}` is no name", path.display()));
            continue;
        }
        let mut missing = 0;
        for row in data {
            let Some(question) = Question::of(row, folder) else {
                found.faults.push(format!("{}: a row of `data` has no number as its id", path.display()));
                continue;
            };
            let file = folder.join(method).join(format!("{}.json", question.id));
            match std::fs::read(&file) {
                Ok(bytes) => match result(&bytes, method, &question) {
                    Ok(result) => found.results.push(result),
                    Err(why) => found.faults.push(format!("{}: {why}", file.display())),
                },
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => missing += 1,
                Err(e) => found.faults.push(format!("{} cannot be read: {e}", file.display())),
            }
        }
        if missing > 0 {
            found.notes.push(format!("{}: {missing} puzzles have no result under {method}", folder.display()));
        }
    }
    Ok(Some(found))
}

/// A row of the folder's data.
struct Question {
    id: String,
    task: String,
    size: usize,
    digest: Option<String>,
}

impl Question {
    /// `[id, unsorted, sorted]` or `[id, set1, set2, intersection]`, lists as text.
    fn of(row: &Value, folder: &Path) -> Option<Self> {
        let row = row.as_array()?;
        let id = row.first()?.as_i64()?.to_string();
        let texts: Vec<&str> = row[1..].iter().map_while(Value::as_str).collect();
        let puzzle: Option<Arc<dyn Puzzle>> = match texts[..] {
            [list, _] => task::by_name("sorting").and_then(|task| task.parse(list)).ok(),
            [one, two, _] => {
                task::by_name("set-intersection").and_then(|task| task.parse(&format!("{one}; {two}"))).ok()
            }
            _ => None,
        };
        Some(match puzzle {
            Some(puzzle) => {
                Self { id, task: puzzle.task().to_string(), size: puzzle.len(), digest: Some(digest(puzzle.as_ref())) }
            }
            None => {
                let inside = folder.parent().and_then(Path::parent).and_then(Path::file_name);
                let task = inside.map_or_else(|| "other".to_string(), |name| name.to_string_lossy().into_owned());
                Self { id, task, size: 0, digest: None }
            }
        })
    }
}

fn result(bytes: &[u8], method: &str, question: &Question) -> Result<Outcome, String> {
    let operations: Vec<Value> = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    let mut result = Outcome {
        method: method.to_string(),
        task: question.task.clone(),
        size: question.size,
        id: question.id.clone(),
        digest: question.digest.clone(),
        solved: false,
        error_score: None,
        thoughts: 0.0,
        tokens: f64::NAN,
    };
    for operation in &operations {
        match operation["operation"].as_str() {
            Some("ground_truth_evaluator") => {
                let scores = operation["scores"].as_array().into_iter().flatten().filter_map(Value::as_f64);
                result.error_score = scores.min_by(f64::total_cmp);
                let solved = operation["problem_solved"].as_array().into_iter().flatten();
                result.solved = solved.into_iter().any(|solved| solved.as_bool() == Some(true));
            }
            Some("generate" | "aggregate" | "improve" | "validate_and_improve") => {
                result.thoughts += operation["thoughts"].as_array().map_or(0, Vec::len) as f64;
            }
            _ => {}
        }
        if let (Some(prompt), Some(completion)) =
            (operation["prompt_tokens"].as_f64(), operation["completion_tokens"].as_f64())
        {
            result.tokens = prompt + completion;
        }
    }
    if result.tokens.is_nan() {
        return Err("there are no `prompt_tokens` and `completion_tokens` at its end".into());
    }
    Ok(result)
}
