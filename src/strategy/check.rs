//! `totara check FILE…`: everything that is wrong or odd about strategy files, without running them.

use super::fault::{Fault, Severity, Span};
use super::parse::parse_file;
use super::{Evaluator, PromptSource, Strategy, prompt};
use crate::base::{Error, ErrorKind};
use crate::task;
use serde_json::{Value, json};
use std::fmt;
use std::path::{Path, PathBuf};

/// What was found in one file.
#[derive(Debug)]
pub struct Checked {
    pub path: PathBuf,
    /// There where nothing is wrong.
    pub strategy: Option<Strategy>,
    pub faults: Vec<Fault>,
    /// Where the file itself could not be read.
    pub unreadable: Option<Error>,
}

/// What was found in all files; its `Display` is what `check` prints.
#[derive(Debug)]
pub struct Report {
    pub files: Vec<Checked>,
}

/// Prompts that do not render for the example of the strategy's task, whatever their names look like.
fn unrendered(strategy: &Strategy) -> Vec<Fault> {
    let task = strategy.task.as_deref().and_then(|name| task::by_name(name).ok());
    let Some(puzzle) = task.and_then(|task| task.parse(task.example()).ok()) else { return Vec::new() };
    let mut inputs = strategy.inputs(puzzle.inputs());
    // A thought such as the search would have, and none, as at the beginning.
    let step = puzzle.next_steps("").into_iter().next().unwrap_or_default();
    let generators = strategy.generators().map(|generate| &generate.prompt);
    let judges = strategy.evaluators().filter_map(Evaluator::prompt);
    let mut faults: Vec<Fault> = Vec::new();
    for prompt in generators.chain(judges) {
        for text in ["", step.as_str()] {
            if let Value::Object(map) = &mut inputs {
                map.insert("path".into(), text.into());
                map.insert("thought".into(), text.into());
                map.insert("thoughts".into(), json!([text, text]));
            }
            if let Err(error) = prompt::render(prompt, &inputs, usize::MAX) {
                faults.push(at_prompt(strategy, prompt, &error));
                break;
            }
        }
    }
    faults
}

fn at_prompt(strategy: &Strategy, prompt: &PromptSource, error: &Error) -> Fault {
    let message = error.message().strip_prefix(prompt.origin.as_str()).unwrap_or(error.message()).trim_start();
    // The error begins with the template's line.
    let line = message.strip_prefix("line ").and_then(|rest| rest.split_once(": "));
    let (line, message) = match line.and_then(|(line, what)| Some((line.parse().ok()?, what))) {
        Some(found) => found,
        None => (1, message),
    };
    // A prompt written in the strategy itself is told by the strategy's own line.
    let inline = prompt.origin.rsplit_once(", prompt at line ");
    let inline = inline.and_then(|(file, first)| Some((file, first.parse::<usize>().ok()?)));
    let own = inline.filter(|(file, _)| *file == strategy.origin);
    let (file, text, line) = match own {
        Some((file, first)) => (file, strategy.text.as_str(), first + line - 1),
        None => (prompt.origin.as_str(), prompt.text.as_str(), line),
    };
    let whole = text.lines().nth(line - 1).unwrap_or_default();
    let indent = whole.chars().take_while(|c| c.is_whitespace()).count();
    let span = Span { line, column: indent + 1, len: whole.trim().chars().count().max(1), file: 0 };
    Fault::new(Severity::Error, file, text, span, message)
}

/// Checks files, in order.
pub fn check(paths: &[impl AsRef<Path>]) -> Report {
    let files = paths
        .iter()
        .map(|path| {
            let path = path.as_ref().to_path_buf();
            match parse_file(&path) {
                Ok(parsed) => {
                    let mut faults = parsed.faults;
                    faults.extend(parsed.strategy.as_ref().map(unrendered).unwrap_or_default());
                    Checked { path, strategy: parsed.strategy, faults, unreadable: None }
                }
                Err(error) => Checked { path, strategy: None, faults: Vec::new(), unreadable: Some(error) },
            }
        })
        .collect();
    Report { files }
}

impl Report {
    pub fn errors(&self) -> usize {
        self.files.iter().map(|file| file.count(Severity::Error) + usize::from(file.unreadable.is_some())).sum()
    }

    pub fn warnings(&self) -> usize {
        self.files.iter().map(|file| file.count(Severity::Warning)).sum()
    }

    /// Each finding as an object: `file`, `line` and `column` (from 1, null where the file cannot be read), `severity`
    /// (`error` or `warning`), `message`.
    pub fn findings(&self) -> Vec<Value> {
        let fault = |fault: &Fault| {
            let severity = match fault.severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
            };
            let Span { line, column, .. } = fault.span;
            json!({"file": fault.file, "line": line, "column": column, "severity": severity, "message": fault.message})
        };
        let file = |file: &Checked| {
            let unreadable = file.unreadable.as_ref().map(|error| {
                let path = file.path.display().to_string();
                json!({"file": path, "line": null, "column": null, "severity": "error", "message": error.message()})
            });
            file.faults.iter().map(fault).chain(unreadable).collect::<Vec<_>>()
        };
        self.files.iter().flat_map(file).collect()
    }

    /// 0: no errors (warnings are none); 1: faults were found; 2: a file could not be read at all.
    pub fn exit_code(&self) -> u8 {
        let unreadable = self.files.iter().filter_map(|file| file.unreadable.as_ref());
        match (unreadable.map(Error::kind).next(), self.errors()) {
            (Some(ErrorKind::Input), _) => 2,
            (Some(ErrorKind::Limit | ErrorKind::Fault), _) => 4,
            (None, 0) => 0,
            (None, _) => 1,
        }
    }
}

impl Checked {
    fn count(&self, severity: Severity) -> usize {
        self.faults.iter().filter(|fault| fault.severity == severity).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for file in &self.files {
            for fault in &file.faults {
                writeln!(f, "{fault}")?;
            }
            if let Some(error) = &file.unreadable {
                writeln!(f, "{error}")?;
            } else if file.count(Severity::Error) == 0 {
                let about = file.strategy.as_ref().map_or("", |strategy| strategy.name.as_str());
                writeln!(f, "{}: ok ({})", file.path.display(), crate::base::text::sanitize_line(about))?;
                if let Some(estimate) = file.strategy.as_ref().and_then(super::estimate::estimate) {
                    writeln!(f, "  on the task's example: {estimate}")?;
                }
            }
        }
        let plural = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
        write!(
            f,
            "{}, {}, {}",
            plural(self.files.len(), "file"),
            plural(self.errors(), "error"),
            plural(self.warnings(), "warning")
        )
    }
}
