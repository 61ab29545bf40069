//! Embedded strategies and prompts: `--strategy tot-bfs` works from an empty folder.
//!
//! A strategy is found by its name and the task it is for; `sorting/tot-bfs` says both. What is embedded is read by the same
//! parser as a user's file, so each one is a text to start from.

use super::fault::to_result;
use super::parse::{self, parse_with};
use super::source::Home;
use super::{Evaluator, Strategy};
use crate::base::nearest::hint;
use crate::base::{Error, Result};
use std::io::Write;
use std::path::Path;

/// An embedded strategy.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub task: &'static str,
    pub name: &'static str,
    /// The YAML text.
    pub text: &'static str,
}

macro_rules! entries {
    ($($task:literal: $($name:literal),+;)+) => {
        &[$($(Entry {
            task: $task,
            name: $name,
            text: include_str!(concat!("../../strategies/", $task, "/", $name, ".yaml")),
        }),+),+]
    };
}

macro_rules! prompts {
    ($($path:literal),+ $(,)?) => {
        &[$(($path, include_str!(concat!("../../", $path)))),+]
    };
}

const ENTRIES: &[Entry] = entries! {
    "sorting": "tot-bfs", "tot-dfs", "beam", "best-first", "mcts", "io", "cot", "cot-sc", "best-of-n", "tot-improve", "got";
    "set-intersection": "tot-bfs", "tot-dfs", "beam", "best-first", "mcts", "io", "cot", "cot-sc", "best-of-n", "got";
    "game24": "tot-bfs", "tot-dfs", "beam", "best-first", "mcts", "io", "cot", "cot-sc", "best-of-n";
};

const PROMPTS: &[(&str, &str)] = prompts![
    "prompts/sorting/step.txt",
    "prompts/sorting/cot.txt",
    "prompts/sorting/improve.txt",
    "prompts/sorting/merge.txt",
    "prompts/set-intersection/step.txt",
    "prompts/set-intersection/cot.txt",
    "prompts/set-intersection/merge.txt",
    "prompts/game24/step.txt",
    "prompts/game24/value.txt",
    "prompts/game24/cot.txt",
];

/// What `strategy new` writes.
const STARTER: &str = include_str!("../../strategies/starter.yaml");

/// All embedded strategies, those of a task together.
pub fn list() -> &'static [Entry] {
    ENTRIES
}

/// An embedded prompt by its path, such as `prompts/sorting/step.txt`.
pub fn prompt(path: &str) -> Option<&'static str> {
    PROMPTS.iter().find(|(name, _)| *name == path).map(|(_, text)| *text)
}

/// Paths of all embedded prompts.
pub fn prompt_names() -> impl Iterator<Item = &'static str> + Clone {
    PROMPTS.iter().map(|(name, _)| *name)
}

/// What a user may say about a strategy beside its name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Values of its variables: `--set name=value`.
    pub set: Vec<(String, String)>,
    /// Whether it may run programs (`evaluate: - command: …`).
    pub allow_commands: bool,
}

/// As [`load_with`], with nothing said.
pub fn load(spec: &str, task: &str) -> Result<Strategy> {
    load_with(spec, task, &LoadOptions::default())
}

/// The strategy meant by `--strategy`: an embedded one of this task by its name, else a file.
///
/// # Errors
/// There is none of that name, it has faults, it is for another task, or it runs programs and may not.
pub fn load_with(spec: &str, task: &str, options: &LoadOptions) -> Result<Strategy> {
    let strategy = match find(spec, Some(task)) {
        Some(entry) => read_with(entry, &options.set)?,
        None if is_file(spec) => parse::read_file(Path::new(spec), &options.set)?,
        None => return Err(unknown(spec, Some(task))),
    };
    let program = strategy.evaluators().find_map(|evaluator| match evaluator {
        Evaluator::Command { run, .. } => run.first(),
        _ => None,
    });
    if let Some(program) = program.filter(|_| !options.allow_commands) {
        return Err(Error::input(format!(
            "strategy {} runs the program `{program}`; look at it, and give --allow-commands if you want that",
            strategy.origin
        )));
    }
    match &strategy.task {
        Some(own) if own != task => Err(Error::input(format!(
            "strategy {} is for the task {own}, not {task}; give --task {own} or another strategy",
            strategy.origin
        ))),
        _ => Ok(strategy),
    }
}

/// The YAML text of an embedded strategy, as `strategy show` prints it: of the given task, else of the first that has it.
pub fn show(name: &str, task: Option<&str>) -> Result<&'static str> {
    match (find(name, task), prompt(name)) {
        (Some(entry), _) => Ok(entry.text),
        (None, Some(text)) => Ok(text),
        (None, None) => Err(unknown(name, task)),
    }
}

/// Writes a commented strategy to start from; never over a file that is there.
pub fn new_file(path: &Path) -> Result<()> {
    let shown = path.display();
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).open(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => {
            Error::input(format!("{shown} is there already and is left as it is; give another name"))
        }
        _ => Error::fault(format!("{shown}: {e}")),
    })?;
    file.write_all(STARTER.as_bytes()).and_then(|()| file.sync_all()).map_err(|e| Error::fault(format!("{shown}: {e}")))
}

/// Reads an embedded strategy.
pub fn read(entry: &Entry) -> Result<Strategy> {
    read_with(entry, &[])
}

fn read_with(entry: &Entry, set: &[(String, String)]) -> Result<Strategy> {
    let origin = format!("built-in {}/{}", entry.task, entry.name);
    let parsed = parse_with(entry.text, &origin, &Home::BuiltIn, set);
    to_result(&parsed.faults)?;
    parsed.strategy.ok_or_else(|| Error::fault(format!("{origin}: could not be read")))
}

/// `tot-bfs`, `sorting/tot-bfs`, or `tot-bfs-sorting`.
pub(super) fn find(name: &str, task: Option<&str>) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| {
        let full = name == format!("{}/{}", entry.task, entry.name) || name == format!("{}-{}", entry.name, entry.task);
        full || (name == entry.name && task.is_none_or(|task| task == entry.task))
    })
}

fn is_file(spec: &str) -> bool {
    let path = Path::new(spec);
    path.exists() || spec.contains(['/', '\\']) || path.extension().is_some_and(|e| e == "yaml" || e == "yml")
}

fn unknown(name: &str, task: Option<&str>) -> Error {
    let mut known: Vec<&str> = Vec::new();
    for entry in ENTRIES.iter().filter(|entry| task.is_none_or(|task| task == entry.task)) {
        if !known.contains(&entry.name) {
            known.push(entry.name);
        }
    }
    let of = task.map(|task| format!(" for {task}")).unwrap_or_default();
    Error::input(format!(
        "there is no strategy `{name}`{of}, and no file of that name{}; known: {}",
        hint(name, known.iter().copied()),
        known.join(", ")
    ))
}
