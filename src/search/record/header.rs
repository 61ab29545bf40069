//! The first line of a record: what is needed to know, and to run again, what was run.

use crate::lm::Lm;
use crate::strategy::Strategy;
use crate::task::Puzzle;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Version of the record format.
pub const FORMAT: u32 = 1;

/// The header line.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Format version of the record, which also marks the line as a header.
    pub totara_record: u32,
    /// Version of the program.
    pub version: String,
    pub id: String,
    /// UTC, `2026-11-30T00:41:19Z`.
    pub started: String,
    pub model: String,
    pub checksum: Option<String>,
    pub device: String,
    pub strategy: String,
    /// The strategy's YAML as read.
    pub strategy_text: String,
    /// Every prompt template, and every other file that the strategy is made of, as read, by origin.
    pub prompts: Vec<(String, String)>,
    pub task: String,
    pub puzzle: String,
    pub title: String,
    pub inputs: Value,
    pub seed: u64,
    /// The command line, without what must stay private.
    pub command: Vec<String>,
    /// What the run was started from; absent where the front end does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
}

/// What it takes to start a run again, or to go on with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    pub puzzle: PuzzleOrigin,
    /// The task's file, where it is the user's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// As `--strategy` takes it.
    pub strategy: String,
    /// Variables given with `--set`; what must stay private is [`HIDDEN`].
    pub set: Vec<(String, String)>,
    /// As `--model` takes it.
    pub model: String,
}

/// Where a puzzle came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PuzzleOrigin {
    Generated {
        size: usize,
        seed: u64,
    },
    Typed(String),
    File {
        #[serde(serialize_with = "as_text")]
        path: PathBuf,
        id: Option<String>,
    },
}

/// A name that is not Unicode, as far as JSON can say it: a record whose data file cannot be found again is better than none.
fn as_text<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// Stands for what must stay private.
pub const HIDDEN: &str = "…";

impl Header {
    /// Describes a run; `command` is the command line as given.
    pub fn new(puzzle: &dyn Puzzle, strategy: &Strategy, lm: &dyn Lm, seed: u64, command: &[String]) -> Self {
        let info = lm.info();
        Self {
            totara_record: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_string(),
            id: String::new(),
            started: super::folder::utc_now(),
            model: info.name.clone(),
            checksum: info.checksum.clone(),
            device: info.device.clone(),
            strategy: strategy.name.clone(),
            strategy_text: strategy.text.clone(),
            prompts: strategy.prompts().chain(&strategy.parts).map(|p| (p.origin.clone(), p.text.clone())).collect(),
            task: puzzle.task().to_string(),
            puzzle: puzzle.id().to_string(),
            title: puzzle.title(),
            inputs: puzzle.inputs(),
            seed,
            command: without_secrets(command),
            origin: None,
        }
    }

    /// As it is, with where the run was started from.
    pub fn from(self, origin: Origin) -> Self {
        let set = origin.set.into_iter().map(|(name, value)| (name.clone(), public_value(&name, value))).collect();
        Self { origin: Some(Origin { set, model: public_address(&origin.model), ..origin }), ..self }
    }
}

/// A command line without user names, passwords and query strings in addresses, and without values that are called a key,
/// token, secret or password (`--max-tokens` is none of these).
pub fn without_secrets(command: &[String]) -> Vec<String> {
    let mut hide_next = false;
    command
        .iter()
        .map(|word| {
            if std::mem::take(&mut hide_next) {
                return HIDDEN.to_string();
            }
            hide_next = word.starts_with("--") && !word.contains('=') && is_private(word);
            public_word(word)
        })
        .collect()
}

/// `--flag=value`, `name=value`, and both in one: `--set=name=value`.
fn public_word(word: &str) -> String {
    match word.split_once('=').filter(|(name, _)| !name.contains("://")) {
        Some((name, _)) if is_private(name) => format!("{name}={HIDDEN}"),
        Some((name, value)) => format!("{name}={}", public_word(value)),
        None => public_address(word),
    }
}

/// The value of a flag or a variable, as it may be kept.
pub fn public_value(name: &str, value: String) -> String {
    if is_private(name) { HIDDEN.into() } else { value }
}

fn is_private(name: &str) -> bool {
    let name = name.trim_start_matches('-').to_ascii_lowercase();
    let last = name.rsplit(['-', '_', '.']).next().unwrap_or_default();
    matches!(last, "key" | "apikey" | "token" | "secret" | "password")
}

fn public_address(word: &str) -> String {
    let Some((scheme, rest)) = word.split_once("://") else { return word.to_string() };
    let rest = rest.split('?').next().unwrap_or_default();
    let end = rest.find('/').unwrap_or(rest.len());
    let (host, path) = rest.split_at(end);
    let host = host.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn a_data_file_whose_name_is_no_text_does_not_keep_a_run_from_its_record() {
        use std::os::unix::ffi::OsStringExt;
        let path = PathBuf::from(std::ffi::OsString::from_vec(b"p\xff.csv".into()));
        let line = serde_json::to_string(&PuzzleOrigin::File { path, id: None }).unwrap();
        let read: PuzzleOrigin = serde_json::from_str(&line).unwrap();
        assert_eq!(read, PuzzleOrigin::File { path: "p\u{fffd}.csv".into(), id: None });
    }

    #[test]
    fn secrets_leave_the_command_line() {
        let check = |command: &str, expected: &str| {
            let words: Vec<String> = command.split(' ').map(String::from).collect();
            assert_eq!(without_secrets(&words).join(" "), expected);
        };
        check("totara solve --max-tokens 5 --task sorting", "totara solve --max-tokens 5 --task sorting");
        check("--endpoint https://me:pw@host:8080/v1?key=1", "--endpoint https://host:8080/v1");
        check("--endpoint=http://me@host", "--endpoint=http://host");
        check("--api-key abc --seed 1", "--api-key … --seed 1");
        check("--set api_key=abc --set n=3", "--set api_key=… --set n=3");
        check("--set=api_key=abc --set=n=3=4 --vary=x.token=a,b", "--set=api_key=… --set=n=3=4 --vary=x.token=…");
    }
}
