//! Reads a task's file into an [`OwnTask`], reporting everything that is wrong with it at once, each at its place.

use super::formula::Formula;
use super::scorer::{self, Scorer};
use super::{Definition, Example, Field, INPUTS, OwnTask, State};
use crate::base::{Error, Result};
use crate::strategy::Count;
use crate::strategy::compose::Source;
use crate::strategy::fault::{Fault, Severity, Span, to_result};
use crate::strategy::prompt::{self, Role};
use crate::strategy::read::{Fields, Reader};
use crate::strategy::source::{self, Home};
use crate::strategy::yaml::{self, Node, Value};
use regex::Regex;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// What reading a file gave: all faults, and the task where none of them is an error.
#[derive(Debug)]
pub struct Parsed {
    pub task: Option<OwnTask>,
    pub faults: Vec<Fault>,
}

/// Reads a task from a file; warnings are dropped.
///
/// # Errors
/// The file cannot be read, or has faults.
pub fn read_file(path: &Path) -> Result<OwnTask> {
    let parsed = check_file(path)?;
    to_result(&parsed.faults)?;
    parsed.task.ok_or_else(|| Error::fault(format!("{}: could not be read", path.display())))
}

/// Reads a file with all its faults; an error only where the file itself cannot be read.
pub fn check_file(path: &Path) -> Result<Parsed> {
    let name = path.display().to_string();
    let text = source::read_text(path).map_err(|what| Error::input(format!("task {name}: {what}")))?;
    Ok(parse(&text, &name, &source::home_of(path)))
}

/// Whether a file is about a task and not a strategy, by its top-level keys.
pub fn is_task(text: &str) -> bool {
    let Some(Node { value: Value::Map(entries), .. }) = yaml::load(text).0 else { return false };
    let has = |name: &str| entries.iter().any(|entry| entry.key == name);
    let of_strategy = ["search", "generate", "extends", "include"].iter().any(|name| has(name));
    !of_strategy && ["fields", "question", "scorer"].iter().any(|name| has(name))
}

/// Reads a task's text. `origin` stands in messages; prompts are found from `home`.
pub fn parse(text: &str, origin: &str, home: &Home) -> Parsed {
    let sources = [Source { origin: origin.to_string(), text: text.to_string(), home: home.clone() }];
    let vars = BTreeMap::new();
    let mut reader = Reader::new(&sources, &vars);
    let (root, problems) = yaml::load(text);
    for problem in problems {
        reader.error(problem.span, problem.message);
    }
    let task = root.and_then(|root| read(&mut reader, &root));
    let mut faults = reader.faults;
    faults.sort_by_key(|fault| (fault.span.line, fault.span.column));
    let failed = faults.iter().any(|fault| fault.severity == Severity::Error);
    if failed {
        faults.retain(|fault| fault.severity == Severity::Error);
    }
    Parsed { task: task.filter(|_| !failed), faults }
}

/// Names that may not be fields: the puzzle has them already.
const TAKEN: &[&str] = &["question", "input", "len", "examples", "answer"];

fn read(r: &mut Reader, root: &Node) -> Option<OwnTask> {
    let top = r.fields(root, "task", "a task")?;
    if let Some(node) = r.need(&top, "version")
        && r.whole(node, "version", 0).is_some_and(|version| version != 1)
    {
        r.error(node.span, "this version is not known; this Totara reads version 1");
    }
    let name = r.need(&top, "name").and_then(|node| read_name(r, node));
    let about = top.get("about").and_then(|node| r.text(node, "about")).unwrap_or_default();
    let fields = r.need(&top, "fields").and_then(|node| read_fields(r, node))?;
    r.inputs =
        Some(fields.iter().map(|field| format!("puzzle.{}", field.name)).chain(["puzzle.input".into()]).collect());
    let question = r.need(&top, "question").and_then(|node| r.prompt(node, Role::Puzzle));
    let inputs: Vec<(String, String)> = INPUTS
        .iter()
        .map(|(name, about)| ((*name).to_string(), (*about).to_string()))
        .chain(fields.iter().map(|field| (format!("puzzle.{}", field.name), field.about.clone())))
        .collect();
    r.inputs = Some(inputs.iter().map(|(name, _)| name.clone()).filter(|name| name != "puzzle.len").collect());
    let len = top.get("len").and_then(|node| r.count(node, "len")).unwrap_or(Count::Number(1));
    let title = top.get("title").and_then(|node| r.prompt(node, Role::Puzzle));
    r.inputs = Some(inputs.iter().map(|(name, _)| name.clone()).collect());
    let steps = top.get("steps").and_then(|node| r.prompt(node, Role::Step));
    let (answer, pattern) = top.get("answer").map(|node| read_answer(r, node)).unwrap_or_default();
    let answer = if answer.is_empty() { vec!["answer".to_string()] } else { answer };
    let known: Vec<String> = inputs.iter().map(|(name, _)| name.clone()).collect();
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let scorer = r.need(&top, "scorer").and_then(|node| read_scorer(r, node, &known));
    let partial = top.get("partial").and_then(|node| read_formula(r, node, "partial", &known, &["path", "steps"]));
    let states = &[("text", State::Text), ("folded", State::Folded), ("lines", State::Lines), ("last", State::Last)];
    let state = top.get("state").and_then(|node| r.one_of(node, "state", states)).unwrap_or(State::Text);
    let separator = top.get("separator").and_then(|node| read_separator(r, node)).unwrap_or_else(|| ";".into());
    let id = top.get("id").map(|node| names(r, node, "id")).unwrap_or_default();
    let examples = r.need(&top, "examples").and_then(|node| read_examples(r, node, &fields, &answer));
    let strategy = top.get("strategy").and_then(|node| read_strategy(r, node)).unwrap_or_else(|| "io".into());
    let (text, origin) = (r.sources[0].text.clone(), r.sources[0].origin.clone());
    let mut definition = Definition {
        name: name?,
        about,
        strategy,
        fields,
        id,
        answer,
        pattern,
        separator,
        question: question?,
        title,
        len,
        state,
        scorer: scorer?,
        partial,
        steps,
        examples: examples?,
        input_forms: String::new(),
        example: String::new(),
        inputs,
        text,
        origin,
    };
    let first = definition.examples.first()?.values.clone();
    definition.example = definition.typed(&first);
    definition.input_forms = forms(&definition);
    lint(r, &definition, &top);
    let task = OwnTask(Arc::new(definition));
    try_examples(r, &task, &top);
    Some(task)
}

/// How a puzzle is typed, with an example.
fn forms(definition: &Definition) -> String {
    let names: Vec<&str> = definition.fields.iter().map(|field| field.name.as_str()).collect();
    let fields = match names.as_slice() {
        [one] => format!("the {one}"),
        names => format!("{}, separated by `{}`", names.join(", "), definition.separator.escape_debug()),
    };
    format!("{fields}, or a JSON object of the fields, such as `{}`", Definition::line(&definition.example))
}

/// A name as `--task` results show it; a built-in task's name would be mistaken for that task.
fn read_name(r: &mut Reader, node: &Node) -> Option<String> {
    let name = r.text(node, "name")?;
    let plain = name.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c));
    if !plain || name.len() > 60 {
        return r.refuse(node.span, "a task's name is of letters, digits, `-`, `_` and `.`, at most 60 bytes");
    }
    if crate::task::by_name(&name).is_ok() {
        return r.refuse(node.span, format!("`{name}` is a built-in task; give yours another name"));
    }
    Some(name)
}

fn read_fields(r: &mut Reader, node: &Node) -> Option<Vec<Field>> {
    let Value::Map(entries) = &node.value else {
        return r.refuse(node.span, "`fields` is a map of names, such as `{country: the country that is asked about}`");
    };
    if entries.is_empty() {
        return r.refuse(node.span, "a task needs at least one field");
    }
    let mut fields = Vec::new();
    for entry in entries {
        let name = entry.key.clone();
        let plain = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !plain {
            r.error(entry.key_span, "a field's name is of letters, digits and `_`: prompts show it as `puzzle.NAME`");
            continue;
        }
        if TAKEN.contains(&name.as_str()) {
            r.error(entry.key_span, format!("every puzzle has `{name}` already; give this field another name"));
            continue;
        }
        let (about, columns) = match &entry.value.value {
            Value::Map(_) => {
                let Some(own) = r.fields(&entry.value, "task.field", "a field") else { continue };
                let about = own.get("about").and_then(|node| r.text(node, "about")).unwrap_or_default();
                (about, own.get("column").map(|node| names(r, node, "column")).unwrap_or_default())
            }
            _ => (r.text(&entry.value, &name).unwrap_or_default(), Vec::new()),
        };
        let columns = if columns.is_empty() { vec![name.clone()] } else { columns };
        fields.push(Field { name, about, columns });
    }
    (!fields.is_empty()).then_some(fields)
}

/// One name or a list of them.
fn names(r: &mut Reader, node: &Node, what: &str) -> Vec<String> {
    match node.value {
        Value::List(_) => r.texts(node, what),
        _ => r.text(node, what).into_iter().collect(),
    }
}

/// `{column: Capital, pattern: 'Answer: (.+)'}`, or the pattern alone.
fn read_answer(r: &mut Reader, node: &Node) -> (Vec<String>, Option<Regex>) {
    let Value::Map(_) = node.value else { return (Vec::new(), read_pattern(r, node)) };
    let Some(fields) = r.fields(node, "task.answer", "`answer`") else { return Default::default() };
    let columns = fields.get("column").map(|node| names(r, node, "column")).unwrap_or_default();
    (columns, fields.get("pattern").and_then(|node| read_pattern(r, node)))
}

fn read_pattern(r: &mut Reader, node: &Node) -> Option<Regex> {
    let text = r.text(node, "pattern")?;
    let built = regex::RegexBuilder::new(&text).size_limit(1 << 20).build();
    match built {
        Ok(pattern) if pattern.captures_len() <= 2 => Some(pattern),
        Ok(_) => r.refuse(node.span, "a pattern has one group at most, which is the answer; write `(?:…)` for others"),
        Err(error) => {
            let why = error.to_string();
            let last = why.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
            r.refuse(node.span, format!("this is no regular expression: {}", last.trim()))
        }
    }
}

fn read_scorer(r: &mut Reader, node: &Node, known: &[&str]) -> Option<Scorer> {
    let Value::Map(entries) = &node.value else {
        return r.one_of(node, "scorer", scorer::NAMES);
    };
    let fields = r.fields(node, "task.scorer", "`scorer`")?;
    if entries.len() != 1 {
        return r.refuse(node.span, "`scorer` is a name, or holds one of `errors` and `command`");
    }
    if let Some(node) = fields.get("errors") {
        return read_formula(r, node, "errors", known, &["answer", "expected"]).map(Scorer::Errors);
    }
    let (run, seconds) = r.command(fields.get("command")?, "task.command")?;
    Some(Scorer::Command { run, seconds })
}

fn read_formula(r: &mut Reader, node: &Node, what: &str, known: &[&str], more: &[&str]) -> Option<Formula> {
    let text = r.text(node, what)?;
    let known: Vec<&str> = known.iter().chain(more).copied().collect();
    match Formula::new(&text, &known) {
        Ok(formula) => Some(formula),
        Err(why) => r.refuse(node.span, format!("`{what}`: {why}")),
    }
}

fn read_separator(r: &mut Reader, node: &Node) -> Option<String> {
    match &node.value {
        Value::Scalar { text, .. } if !text.is_empty() && !text.contains(['{', '"']) => Some(text.clone()),
        _ => {
            r.refuse(node.span, "`separator` is a text between typed fields, such as \";\", without braces and quotes")
        }
    }
}

/// A built-in strategy's name, or a file beside the task.
fn read_strategy(r: &mut Reader, node: &Node) -> Option<String> {
    let text = r.text(node, "strategy")?;
    if !super::names_file(&text) {
        return Some(text);
    }
    let home = r.sources[node.span.file].home.clone();
    match source::file(&text, &home) {
        Ok(Some((origin, _))) => Some(origin),
        Ok(None) => r.refuse(node.span, format!("there is no file `{text}` in the task's folder")),
        Err(why) => r.refuse(node.span, why),
    }
}

fn read_examples(r: &mut Reader, node: &Node, fields: &[Field], answer: &[String]) -> Option<Vec<Example>> {
    let shape = || {
        let names: Vec<String> = fields.iter().map(|field| format!("{}: …", field.name)).collect();
        format!("`- {{{}, answer: …}}`", names.join(", "))
    };
    let Value::List(items) = &node.value else {
        return r.refuse(node.span, format!("`examples` is a list of solved puzzles, such as {}", shape()));
    };
    if items.is_empty() {
        return r.refuse(node.span, format!("a task needs at least one solved example, such as {}", shape()));
    }
    let mut examples = Vec::new();
    for item in items {
        let Value::Map(entries) = &item.value else {
            r.error(item.span, format!("an example is a map such as {}, not {}", shape(), item.describe()));
            continue;
        };
        let known = || {
            fields.iter().map(|field| field.name.as_str()).chain(["answer"]).chain(answer.iter().map(String::as_str))
        };
        for entry in entries.iter().filter(|entry| !known().any(|name| name == entry.key)) {
            let near = crate::base::nearest::hint(&entry.key, known());
            r.error(
                entry.key_span,
                format!("there is no field `{}`{near}; an example is such as {}", entry.key, shape()),
            );
        }
        let slipped = entries.iter().any(|entry| !known().any(|name| name == entry.key));
        let find = |name: &str| entries.iter().find(|entry| entry.key == name).map(|entry| &entry.value);
        let value = |r: &mut Reader, found: Option<&Node>, name: &str| match found.map(|node| (&node.value, node)) {
            Some((Value::Scalar { text, .. }, _)) => Some(text.clone()),
            Some((_, node)) => r.refuse(node.span, format!("`{name}` is a text, not {}", node.describe())),
            // An unknown name is probably a slip of it, and was told.
            None if slipped => None,
            None => r.refuse(item.span, format!("this example has no `{name}`; it is such as {}", shape())),
        };
        let values: Vec<Option<String>> = fields.iter().map(|field| value(r, find(&field.name), &field.name)).collect();
        let said = find("answer").or_else(|| answer.iter().find_map(|name| find(name)));
        let answer = value(r, said, "answer");
        if let (Some(values), Some(answer)) = (values.into_iter().collect(), answer) {
            examples.push(Example { values, answer });
        }
    }
    (!examples.is_empty()).then_some(examples)
}

fn place(top: &Fields<'_>, name: &str) -> Span {
    top.key_span(name).unwrap_or(Span { len: 1, ..top.span })
}

/// What looks unintended.
fn lint(r: &mut Reader, definition: &Definition, top: &Fields<'_>) {
    if definition.about.is_empty() {
        r.warn(place(top, "name"), "there is no `about`: lists show an empty line for this task");
    }
    for field in &definition.fields {
        let name = format!("puzzle.{}", field.name);
        if !prompt::uses(&definition.question, &name) && !prompt::uses(&definition.question, "puzzle.input") {
            r.warn(place(top, "question"), format!("the question never shows the field `{}`", field.name));
        }
    }
}

/// Every example must be a puzzle whose own answer is right, and whose templates render.
fn try_examples(r: &mut Reader, task: &OwnTask, top: &Fields<'_>) {
    let examples = &task.0.examples;
    for (at, example) in examples.iter().enumerate() {
        let span = match top.get("examples").map(|node| &node.value) {
            Some(Value::List(items)) => items.get(at).map_or(place(top, "examples"), |item| item.span),
            _ => place(top, "examples"),
        };
        let puzzle = match task.puzzle(at.to_string(), example.values.clone(), Some(example.answer.clone())) {
            Ok(puzzle) => puzzle,
            Err(error) => {
                r.error(span, format!("this example cannot be asked: {}", error.message()));
                continue;
            }
        };
        // A program may not run before the user allows it.
        if task.program().is_none() {
            let verdict = puzzle.check(&example.answer);
            if verdict.answer.is_none() {
                r.error(span, format!("this example's own answer cannot be read: {}", verdict.why));
            } else if verdict.error_score > 0 {
                r.error(span, format!("this example's own answer does not score as right: {}", verdict.why));
            }
        }
        if let Some(steps) = &task.0.steps {
            let mut values = puzzle.inputs();
            values["path"] = "".into();
            match task.0.render(steps, &values) {
                Ok(text) if text.trim().is_empty() => {
                    r.error(place(top, "steps"), "`steps` lists no first step for this task's example");
                }
                Ok(_) => {}
                Err(error) => r.error(place(top, "steps"), error.message().to_string()),
            }
        }
    }
}
