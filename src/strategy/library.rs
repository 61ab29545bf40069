//! Embedded strategies and prompts: `--strategy tot-bfs` works from an empty folder.
//!
//! A strategy is found by its name and the task it is for; `sorting/tot-bfs` says both. What is embedded is read by the same
//! parser as a user's file, so each one is a text to start from.

use super::fault::to_result;
use super::own::{AnyTask, OwnTask};
use super::parse::{self, parse_for};
use super::source::Home;
use super::{Evaluator, Strategy};
use crate::base::nearest::hint;
use crate::base::{Error, Result, write_new};
use crate::task;
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
    "keyword-counting": "tot-bfs", "io", "cot", "got";
    "doc-merge": "tot-bfs", "io", "cot", "got";
    "any": "io", "cot", "cot-sc", "best-of-n";
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
    "prompts/keyword-counting/step.txt",
    "prompts/keyword-counting/cot.txt",
    "prompts/keyword-counting/merge.txt",
    "prompts/doc-merge/step.txt",
    "prompts/doc-merge/cot.txt",
    "prompts/doc-merge/merge.txt",
    "prompts/doc-merge/value.txt",
    "prompts/any/io.txt",
    "prompts/any/cot.txt",
];

/// What `strategy new` writes.
const STARTER: &str = include_str!("../../strategies/starter.yaml");

/// Short names that other projects' users look for.
const ALIASES: &[(&str, &str)] = &[("tot-game24", "game24/tot-bfs"), ("got-keyword", "keyword-counting/got")];

/// The name under which strategies for every task of the user's own are listed.
const ANY: &str = "any";

/// What `task new` writes.
const TASK_STARTER: &str = include_str!("../../strategies/task.yaml");

/// The strategies that a task can be given by name.
pub fn list_for(task: &str) -> impl Iterator<Item = &'static Entry> {
    let home = home_of(task);
    ENTRIES.iter().filter(move |entry| entry.task == home)
}

/// Where a task's strategies are listed: a task of the user's own has none of its own.
fn home_of(task: &str) -> &str {
    if task::by_name(task).is_ok() { task } else { ANY }
}

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
    load_for(spec, &AnyTask::BuiltIn(task::by_name(task)?), options)
}

/// As [`load_with`], for a task that may be the user's own.
///
/// # Errors
/// As [`load_with`].
pub fn load_for(spec: &str, of: &AnyTask, options: &LoadOptions) -> Result<Strategy> {
    let task = of.name();
    let own = match of {
        AnyTask::Own(own) => Some(own),
        AnyTask::BuiltIn(_) => None,
    };
    let strategy = match find(spec, Some(task)) {
        Some(entry) => read_for(entry, &options.set, own)?,
        None if is_file(spec) => parse::read_file(Path::new(spec), &options.set, own)?,
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
        (None, None) if Path::new(name).is_file() => Err(Error::input(format!(
            "{name} is a file of yours, and what is shown here comes with the program; `totara check {name}` reads it"
        ))),
        (None, None) => Err(unknown(name, task)),
    }
}

/// Writes a commented strategy to start from; never over a file that is there.
pub fn new_file(path: &Path) -> Result<()> {
    new(path, STARTER)
}

/// Writes a commented task to start from; never over a file that is there.
pub fn new_task_file(path: &Path) -> Result<()> {
    new(path, TASK_STARTER)
}

fn new(path: &Path, text: &str) -> Result<()> {
    let shown = path.display();
    write_new(path, text).map_err(|e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => {
            Error::input(format!("{shown} is there already and is left as it is; give another name"))
        }
        _ => Error::fault(format!("{shown}: {e}")),
    })
}

/// Reads an embedded strategy.
pub fn read(entry: &Entry) -> Result<Strategy> {
    read_for(entry, &[], None)
}

fn read_for(entry: &Entry, set: &[(String, String)], own: Option<&OwnTask>) -> Result<Strategy> {
    let origin = format!("built-in {}/{}", entry.task, entry.name);
    let parsed = parse_for(entry.text, &origin, &Home::BuiltIn, set, own);
    to_result(&parsed.faults)?;
    parsed.strategy.ok_or_else(|| Error::fault(format!("{origin}: could not be read")))
}

/// `tot-bfs`, `sorting/tot-bfs`, or `tot-bfs-sorting`; or a short name such as `tot-game24`.
pub(super) fn find(name: &str, task: Option<&str>) -> Option<&'static Entry> {
    let task = task.map(home_of);
    let name = ALIASES.iter().find(|(short, _)| *short == name).map_or(name, |(_, full)| full);
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
    let home = task.map(home_of);
    for entry in ENTRIES.iter().filter(|entry| home.is_none_or(|task| task == entry.task)) {
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
