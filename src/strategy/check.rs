//! `totara check FILE…`: everything that is wrong or odd about strategy files, without running them.

use super::fault::{Fault, Severity, Span};
use super::own::{self, OwnTask};
use super::parse::parse_file;
use super::{Count, Evaluator, PromptSource, Strategy, prompt, source};
use crate::base::{Error, ErrorKind, Result};
use crate::task::Task;
use serde_json::{Value, json};
use std::fmt;
use std::path::{Path, PathBuf};

/// What was found in one file.
#[derive(Debug)]
pub struct Checked {
    pub path: PathBuf,
    /// There where nothing is wrong.
    pub strategy: Option<Strategy>,
    /// There where the file is a task and nothing is wrong.
    pub task: Option<OwnTask>,
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
    let Some(puzzle) = strategy.kind().and_then(|task| task.parse(task.example()).ok()) else { return Vec::new() };
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

/// Counts that are no number, or 0, for the example of the strategy's task: a run would be refused.
fn uncounted(strategy: &Strategy) -> Vec<Fault> {
    let Some(puzzle) = strategy.kind().and_then(|task| task.parse(task.example()).ok()) else { return Vec::new() };
    let inputs = strategy.inputs(puzzle.inputs());
    let searches = std::iter::once(&strategy.search).chain(strategy.stages.iter().map(|stage| &stage.search));
    let mut counts: Vec<&Count> = searches.flat_map(|s| [&s.depth, &s.keep].into_iter().chain(&s.children)).collect();
    counts.extend(strategy.generators().flat_map(|generate| [&generate.n, &generate.max_tokens]));
    counts.extend(strategy.levels.iter().filter_map(|level| level.keep.as_ref()));
    let mut texts: Vec<&str> = Vec::new();
    let mut faults = Vec::new();
    for count in counts {
        let Count::Template(text) = count else { continue };
        if texts.contains(&text.as_str()) {
            continue;
        }
        texts.push(text);
        let (severity, wrong) = match prompt::count(count, &inputs) {
            // Another puzzle may be large enough.
            Ok(0) => (Severity::Warning, format!("`{text}`: gives 0; it must be at least 1")),
            Ok(_) => continue,
            Err(error) => (Severity::Error, error.message().to_string()),
        };
        let found = strategy.text.lines().zip(1..).find_map(|(whole, line)| Some((line, whole, whole.find(text)?)));
        let span = found.map_or(Span { line: 1, column: 1, len: 1, file: 0 }, |(line, whole, at)| Span {
            line,
            column: whole[..at].chars().count() + 1,
            len: text.chars().count(),
            file: 0,
        });
        let message = format!("{wrong} (on the task's example)");
        faults.push(Fault::new(severity, &strategy.origin, &strategy.text, span, message));
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

type Read = (Option<Strategy>, Option<OwnTask>, Vec<Fault>);

/// Reads a file as what it is.
fn read(path: &Path) -> Result<Read> {
    if source::read_text(path).is_ok_and(|text| own::is_task(&text)) {
        let own::Parsed { task, faults } = own::check_file(path)?;
        return Ok((None, task, faults));
    }
    parse_file(path).map(|parsed| (parsed.strategy, None, parsed.faults))
}

/// Checks files, in order.
pub fn check(paths: &[impl AsRef<Path>]) -> Report {
    let files = paths
        .iter()
        .map(|path| {
            let path = path.as_ref().to_path_buf();
            match read(&path) {
                Ok((strategy, task, mut faults)) => {
                    faults.extend(strategy.as_ref().map(unrendered).unwrap_or_default());
                    faults.extend(strategy.as_ref().map(uncounted).unwrap_or_default());
                    Checked { path, strategy, task, faults, unreadable: None }
                }
                Err(error) => Checked { path, strategy: None, task: None, faults: Vec::new(), unreadable: Some(error) },
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
                let (kind, name) = match (&file.strategy, &file.task) {
                    (Some(strategy), _) => ("", strategy.name.as_str()),
                    (None, Some(task)) => ("task ", task.name()),
                    (None, None) => ("", ""),
                };
                let name = crate::base::text::sanitize_line(name);
                writeln!(f, "{}: ok ({kind}{name})", file.path.display())?;
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
