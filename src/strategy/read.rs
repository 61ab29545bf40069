//! Reading fields of a strategy from located nodes: each reader takes what the field may hold and reports the rest.
//!
//! A reader that returns `None` has reported why. Nothing stops at the first fault.

use super::compose::{self, Source};
use super::expression::{Expression, Scope};
use super::fault::{Fault, Severity, Span};
use super::keys;
use super::own::{self, OwnTask};
use super::prompt::{self, Role};
use super::source;
use super::yaml::{Entry, Node, Style, Value};
use super::{Count, MOST_AT_ONCE, PromptSource};
use crate::base::nearest::hint;
use crate::task::{self, Task};
use std::collections::BTreeMap;
use std::num::IntErrorKind;
use std::path::Path;

pub struct Reader<'a> {
    /// The files that the nodes come from, by [`Span::file`].
    pub sources: &'a [Source],
    pub vars: &'a BTreeMap<String, String>,
    pub faults: Vec<Fault>,
    /// The strategy's task once it is read: it decides the inputs that templates have.
    pub task: Option<String>,
    /// Names of inputs that are known beforehand, in place of those of the built-in tasks.
    pub inputs: Option<Vec<String>>,
    /// The task, where it is a file of its own.
    pub own: Option<OwnTask>,
}

/// The entries of a map whose keys are known.
pub struct Fields<'n> {
    entries: &'n [Entry],
    pub span: Span,
    level: &'static str,
}

impl<'n> Fields<'n> {
    pub fn get(&self, name: &str) -> Option<&'n Node> {
        self.entries.iter().find(|entry| entry.key == name).map(|entry| &entry.value)
    }

    pub fn key_span(&self, name: &str) -> Option<Span> {
        self.entries.iter().find(|entry| entry.key == name).map(|entry| entry.key_span)
    }
}

impl<'a> Reader<'a> {
    pub fn new(sources: &'a [Source], vars: &'a BTreeMap<String, String>) -> Self {
        Self { sources, vars, faults: Vec::new(), task: None, inputs: None, own: None }
    }

    fn fault(&mut self, severity: Severity, span: Span, message: impl Into<String>) {
        let source = &self.sources[span.file];
        self.faults.push(Fault::new(severity, &source.origin, &source.text, span, message));
    }

    pub fn error(&mut self, span: Span, message: impl Into<String>) {
        self.fault(Severity::Error, span, message);
    }

    /// [`Reader::error`] where a value was wanted.
    pub fn refuse<T>(&mut self, span: Span, message: impl Into<String>) -> Option<T> {
        self.error(span, message);
        None
    }

    pub fn warn(&mut self, span: Span, message: impl Into<String>) {
        self.fault(Severity::Warning, span, message);
    }

    /// The fields of a map at a level of the key table; unknown keys are reported.
    pub fn fields<'n>(&mut self, node: &'n Node, level: &'static str, what: &str) -> Option<Fields<'n>> {
        let Value::Map(entries) = &node.value else {
            let first = keys::names(level).next().unwrap_or_default();
            return self
                .refuse(node.span, format!("{what} is a map of keys such as `{first}: …`, not {}", node.describe()));
        };
        for entry in entries {
            if !keys::names(level).any(|name| name == entry.key) {
                self.error(entry.key_span, keys::unknown(level, &entry.key));
            }
        }
        Some(Fields { entries, span: node.span, level })
    }

    /// A field that must be there. Where an unknown key is probably a slip of it, that was reported and is enough.
    pub fn need<'n>(&mut self, fields: &Fields<'n>, name: &str) -> Option<&'n Node> {
        let found = fields.get(name);
        if found.is_none() {
            let slipped = fields.entries.iter().any(|entry| {
                !keys::names(fields.level).any(|known| known == entry.key)
                    && keys::unknown(fields.level, &entry.key).contains(&format!("did you mean `{name}`"))
            });
            if !slipped {
                let level = keys::shown(fields.level);
                let under = if level.is_empty() { String::new() } else { format!(" under `{level}`") };
                let about = keys::find(fields.level, name).map(|key| format!(" ({})", key.about)).unwrap_or_default();
                let span = Span { len: 1, ..fields.span };
                self.error(span, format!("key `{name}` is missing{under}{about}"));
            }
        }
        found
    }

    /// Any scalar, as typed; blank is refused.
    pub fn text(&mut self, node: &Node, what: &str) -> Option<String> {
        match &node.value {
            Value::Scalar { text, .. } if text.trim().is_empty() => {
                self.refuse(node.span, format!("`{what}` is blank"))
            }
            Value::Scalar { text, .. } => Some(text.clone()),
            _ => self.refuse(node.span, format!("`{what}` is a text, not {}", node.describe())),
        }
    }

    /// A text after `|`, or what stands in a file of the strategy's folder.
    pub fn text_or_file(&mut self, node: &Node, what: &str) -> Option<String> {
        let text = self.text(node, what)?;
        if matches!(node.value, Value::Scalar { style: Style::Block, .. }) || text.contains('\n') {
            return Some(text);
        }
        match source::file(&text, &self.sources[node.span.file].home) {
            Ok(Some((_, text))) => Some(text),
            Ok(None) => self.refuse(
                node.span,
                format!(
                    "there is no file `{text}` in the strategy's folder; a text of your own stands after `{what}: |`"
                ),
            ),
            Err(why) => self.refuse(node.span, why),
        }
    }

    /// A JSON value: a map written in place, JSON after `|`, or a JSON file of the strategy's folder.
    pub fn json(&mut self, node: &Node, what: &str) -> Option<serde_json::Value> {
        if !matches!(node.value, Value::Scalar { .. }) {
            return Some(node.to_json());
        }
        let text = self.text_or_file(node, what)?;
        match serde_json::from_str(&text) {
            Ok(value) => Some(value),
            Err(error) => self.refuse(node.span, format!("`{what}` is no JSON: {error}")),
        }
    }

    /// A list of texts, each as typed. An empty text is refused: it would match everywhere.
    pub fn texts(&mut self, node: &Node, what: &str) -> Vec<String> {
        let Value::List(items) = &node.value else {
            let example = r#"["\n"]"#;
            self.error(node.span, format!("`{what}` is a list such as {example}, not {}", node.describe()));
            return Vec::new();
        };
        let mut texts = Vec::new();
        for item in items {
            match &item.value {
                Value::Scalar { text, .. } if text.is_empty() => {
                    self.error(item.span, format!("a text of `{what}` is empty"));
                }
                Value::Scalar { text, .. } => texts.push(text.clone()),
                _ => {
                    self.error(item.span, format!("`{what}` holds texts, not {}", item.describe()));
                }
            }
        }
        texts
    }

    /// A whole number of at least `least`.
    pub fn whole(&mut self, node: &Node, what: &str, least: u64) -> Option<u64> {
        let refuse = |found: String| format!("`{what}` is a whole number of at least {least}, not {found}");
        match &node.value {
            Value::Scalar { text, style: Style::Plain } => {
                let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
                let plain = digits && (text == "0" || !text.starts_with('0'));
                match text.parse::<u64>() {
                    Ok(number) if plain && number >= least && number <= MAX_WHOLE => Some(number),
                    Ok(number) if plain && number > MAX_WHOLE => {
                        self.refuse(node.span, format!("`{what}` is at most {MAX_WHOLE}, not {number}"))
                    }
                    Err(error) if plain && *error.kind() == IntErrorKind::PosOverflow => {
                        self.refuse(node.span, format!("`{what}` is at most {MAX_WHOLE}, not {text}"))
                    }
                    _ => {
                        let remedy = if plain { String::new() } else { decimal(text) };
                        self.refuse(node.span, refuse(node.describe()) + &remedy)
                    }
                }
            }
            Value::Scalar { text, .. } if text.parse::<u64>().is_ok() => {
                self.refuse(node.span, refuse(node.describe()) + "; remove the quotes")
            }
            _ => self.refuse(node.span, refuse(node.describe())),
        }
    }

    /// A whole number from `least` to `most`.
    pub fn whole_to(&mut self, node: &Node, what: &str, least: u64, most: u64) -> Option<u64> {
        match self.whole(node, what, least)? {
            number if number > most => self.refuse(node.span, format!("`{what}` is at most {most}, not {number}")),
            number => Some(number),
        }
    }

    /// A decimal number from `least` to `most`; NaN and infinities are refused.
    pub fn number(&mut self, node: &Node, what: &str, least: f64, most: f64) -> Option<f64> {
        let range = if most >= 1e6 { format!("of at least {least}") } else { format!("from {least} to {most}") };
        let refuse = |found: String| format!("`{what}` is a number {range}, not {found}");
        match &node.value {
            Value::Scalar { text, style: Style::Plain } => {
                let shaped = text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b))
                    && text.bytes().any(|b| b.is_ascii_digit());
                match text.parse::<f64>() {
                    Ok(number) if shaped && number.is_finite() && number >= least && number <= most => Some(number),
                    Ok(number) if shaped && number > most && most >= 1e6 => {
                        self.refuse(node.span, format!("`{what}` is at most {most}, not {}", node.describe()))
                    }
                    _ => self.refuse(node.span, refuse(node.describe())),
                }
            }
            Value::Scalar { text, .. } if text.parse::<f64>().is_ok() => {
                self.refuse(node.span, refuse(node.describe()) + "; remove the quotes")
            }
            _ => self.refuse(node.span, refuse(node.describe())),
        }
    }

    /// `true` or `false`, and no other word.
    pub fn boolean(&mut self, node: &Node, what: &str) -> Option<bool> {
        let message = match &node.value {
            Value::Scalar { text, style: Style::Plain } => match text.as_str() {
                "true" => return Some(true),
                "false" => return Some(false),
                other => match other.to_ascii_lowercase().as_str() {
                    "yes" | "on" | "y" | "true" | "1" => {
                        format!("`{what}` takes true or false; for `{other}` write true")
                    }
                    "no" | "off" | "n" | "false" | "0" => {
                        format!("`{what}` takes true or false; for `{other}` write false")
                    }
                    _ => format!("`{what}` takes true or false, not {}", node.describe()),
                },
            },
            Value::Scalar { text, .. } if text == "true" || text == "false" => {
                format!("`{what}` takes true or false, not {}; remove the quotes", node.describe())
            }
            _ => format!("`{what}` takes true or false, not {}", node.describe()),
        };
        self.refuse(node.span, message)
    }

    /// A number of at least 1, or a template over the puzzle's numbers.
    pub fn count(&mut self, node: &Node, what: &str) -> Option<Count> {
        if let Value::Scalar { text, .. } = &node.value
            && text.contains("{{")
        {
            let known = self.puzzle_inputs();
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            let faults = prompt::check(text, &known);
            for fault in &faults {
                self.error(node.span, fault.message.clone());
            }
            return faults.is_empty().then(|| Count::Template(text.clone()));
        }
        if let Value::Map(_) = node.value {
            return self.refuse(
                node.span,
                format!("`{what}` is a number or a template; put a template in quotes: \"{{{{ puzzle.len }}}}\""),
            );
        }
        self.whole(node, what, 1).map(|number| Count::Number(number as usize))
    }

    /// As [`Self::count`], of what is asked for at once.
    pub fn at_once(&mut self, node: &Node, what: &str) -> Option<Count> {
        match self.count(node, what)? {
            Count::Number(number) if number > MOST_AT_ONCE => {
                self.refuse(node.span, format!("`{what}` is at most {MOST_AT_ONCE}, not {number}"))
            }
            count => Some(count),
        }
    }

    /// One of some names.
    pub fn one_of<T: Clone>(&mut self, node: &Node, what: &str, names: &[(&str, T)]) -> Option<T> {
        match &node.value {
            Value::Scalar { text, .. } => self.one_of_name(text, node.span, what, names),
            _ => {
                let known = names.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
                self.refuse(node.span, format!("`{what}` is one of {known}, not {}", node.describe()))
            }
        }
    }

    pub fn one_of_name<T: Clone>(&mut self, text: &str, span: Span, what: &str, names: &[(&str, T)]) -> Option<T> {
        if let Some((_, value)) = names.iter().find(|(name, _)| *name == text) {
            return Some(value.clone());
        }
        let known = names.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let near = hint(text, names.iter().map(|(name, _)| *name));
        let short: String = text.chars().take(40).collect();
        self.refuse(span, format!("`{short}` is no {what}{near}; known: {known}"))
    }

    /// The name of a task, or of its file in the strategy's folder.
    pub fn task(&mut self, node: &Node) -> Option<String> {
        let Value::Scalar { text, .. } = &node.value else {
            return self.refuse(node.span, format!("`task` is a task's name or file, not {}", node.describe()));
        };
        if own::names_file(text) {
            return self.own_task(node, text);
        }
        if let Some(own) = self.own.as_ref().filter(|own| own.name() == text) {
            return Some(own.name().to_string());
        }
        let names: Vec<(&str, String)> =
            task::all().iter().map(|task| (task.name(), task.name().to_string())).collect();
        self.one_of(node, "task", &names)
    }

    fn own_task(&mut self, node: &Node, path: &str) -> Option<String> {
        let home = self.sources[node.span.file].home.clone();
        let (origin, text) = match source::file(path, &home) {
            Ok(Some(found)) => found,
            Ok(None) => {
                return self.refuse(node.span, format!("there is no task file `{path}` in the strategy's folder"));
            }
            Err(why) => return self.refuse(node.span, why),
        };
        let parsed = own::parse(&text, &origin, &source::home_of(Path::new(&origin)));
        let broken = parsed.task.is_none();
        self.faults.extend(parsed.faults.into_iter().filter(|fault| broken || fault.severity == Severity::Error));
        let task = parsed.task?;
        if let Some(other) = self.own.as_ref().filter(|other| other.name() != task.name()) {
            let message = format!("this strategy is for the task {}, not {}", task.name(), other.name());
            return self.refuse(node.span, message);
        }
        let name = task.name().to_string();
        self.inputs = Some(task.inputs().into_iter().map(|(name, _)| name.to_string()).collect());
        self.own = Some(task);
        Some(name)
    }

    /// `{run: [prog, arg], seconds: 10}`, or the list alone.
    pub fn command(&mut self, node: &Node, level: &'static str) -> Option<(Vec<String>, f64)> {
        let (run, seconds) = match &node.value {
            Value::Map(_) => {
                let fields = self.fields(node, level, "`command`")?;
                let run = self.need(&fields, "run")?;
                let seconds = fields.get("seconds").and_then(|node| self.number(node, "seconds", 0.001, 3600.0));
                (run, seconds.unwrap_or(10.0))
            }
            _ => (node, 10.0),
        };
        let Value::List(_) = run.value else {
            let example = r#"["python3", "score.py"]"#;
            return self.refuse(
                run.span,
                format!("a program with its arguments is a list such as {example}; no shell reads it"),
            );
        };
        let words = self.texts(run, "run");
        if words.is_empty() {
            return self.refuse(run.span, "there is no program to run");
        }
        Some((words, seconds))
    }

    /// A prompt: its text after `|`, or a path. Its template is checked against the inputs of its role.
    pub fn prompt(&mut self, node: &Node, role: Role) -> Option<PromptSource> {
        let text = self.text(node, "prompt")?;
        let inline = matches!(node.value, Value::Scalar { style: Style::Block, .. })
            || text.contains('\n')
            || text.contains("{{")
            || text.contains("{%");
        let source = &self.sources[node.span.file];
        let prompt = if inline {
            PromptSource { origin: format!("{}, prompt at line {}", source.origin, node.span.line), text }
        } else {
            match source::prompt(&text, &source.home) {
                Ok(prompt) => prompt,
                Err(message) => return self.refuse(node.span, message),
            }
        };
        let mut known = self.puzzle_inputs();
        known.extend(role.inputs().iter().map(|name| (*name).to_string()));
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let faults = prompt::check(&prompt.text, &known);
        for fault in &faults {
            if !inline {
                let line = prompt.text.lines().nth(fault.line - 1).unwrap_or_default();
                let span = Span { line: fault.line, column: 1, len: line.chars().count(), file: 0 };
                self.faults.push(Fault::new(
                    Severity::Error,
                    &prompt.origin,
                    &prompt.text,
                    span,
                    fault.message.clone(),
                ));
            } else if let Some(header) = self.block_header(node) {
                self.error(self.whole_line(node.span.file, header + fault.line), fault.message.clone());
            } else {
                self.error(node.span, fault.message.clone());
            }
        }
        faults.is_empty().then_some(prompt)
    }

    /// The line of a block text's `|`: its first line of text is the next one. The parser gives the first line that is not
    /// blank, so only blank lines lie between.
    fn block_header(&self, node: &Node) -> Option<usize> {
        if !matches!(node.value, Value::Scalar { style: Style::Block, .. }) {
            return None;
        }
        let lines: Vec<&str> = self.sources[node.span.file].text.lines().take(node.span.line).collect();
        let is_header = |line: &str| {
            let code = line.split(" #").next().unwrap_or(line).trim_end();
            let code = code.trim_end_matches(|c: char| c.is_ascii_digit() || c == '+' || c == '-');
            code.ends_with('|') || code.ends_with('>')
        };
        (1..=lines.len())
            .rev()
            .find(|&line| line < node.span.line && !lines[line - 1].trim().is_empty() || is_header(lines[line - 1]))
    }

    /// A line without the spaces around it.
    fn whole_line(&self, file: usize, line: usize) -> Span {
        let text = self.sources[file].text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
        let indent = text.chars().take_while(|c| c.is_whitespace()).count();
        Span { line, column: indent + 1, len: text.trim().chars().count(), file }
    }

    /// An expression over named values; variables are put in as the numbers they hold.
    pub fn expression(&mut self, node: &Node, what: &str, scope: Scope) -> Option<Expression> {
        let text = self.text(node, what)?;
        for name in compose::variables_in(&text) {
            if let Some(value) = self.vars.get(name).filter(|value| value.parse::<f64>().is_err()) {
                let message = format!("`{what}` takes numbers; the variable `{name}` is `{value}`, which is no number");
                return self.refuse(node.span, message);
            }
        }
        let text = match compose::inserted(&text, self.vars) {
            Ok(text) => text,
            Err(message) => return self.refuse(node.span, message),
        };
        match Expression::new(&text, scope) {
            Ok(expression) => Some(expression),
            Err(fault) => self.refuse(node.span, format!("`{what}`: {}", fault.message)),
        }
    }

    /// Names that templates know beside those of their role: the puzzle's inputs (of the strategy's task, or of all tasks
    /// where it names none) and the strategy's variables.
    pub fn puzzle_inputs(&self) -> Vec<String> {
        let mut names: Vec<String> = self.vars.keys().map(|name| format!("vars.{name}")).collect();
        if let Some(inputs) = &self.inputs {
            names.extend(inputs.iter().cloned());
            return names;
        }
        if self.task.is_none() {
            // A strategy for any task may be run on one of the user's own.
            names.extend(own::INPUTS.iter().map(|(name, _)| (*name).to_string()));
        }
        for task in task::all().iter().filter(|task| self.task.as_deref().is_none_or(|name| name == task.name())) {
            for (name, _) in task.inputs() {
                if !names.iter().any(|known| known == name) {
                    names.push((*name).to_string());
                }
            }
        }
        names
    }
}

/// No count or limit in a strategy needs more; it keeps products of them far from overflow.
const MAX_WHOLE: u64 = 1_000_000_000_000;

/// For numbers in other notations: what to write.
fn decimal(text: &str) -> String {
    let cleaned = text.replace('_', "");
    let value = cleaned.parse::<u64>().ok().or_else(|| {
        cleaned
            .parse::<f64>()
            .ok()
            .filter(|v| v.fract() == 0.0 && (0.0..=MAX_WHOLE as f64).contains(v))
            .map(|v| v as u64)
    });
    value.map(|value| format!("; write {value}")).unwrap_or_default()
}
