//! Strategies made of several files: `extends` takes another strategy and changes it, `include` takes keys from other
//! files, `vars` names values that `--set` changes.
//!
//! All of it happens on located nodes, before any key is understood, so that a message about a key names the file in which
//! it stands. `extends` is the one way to change a key that is there already; a key that comes from two places by `include`
//! is an error that names both. Sections (`search`, `generate`, `budget`, `offload`, `vars`) are joined key by key, everything else is
//! taken whole.
//!
//! Refused: paths that leave the strategy's folder (all paths are relative to it, in included files too), files that extend
//! each other in a circle, and more than [`MAX_FILES`] files.

use super::fault::{Fault, Severity, Span};
use super::library;
use super::source::{self, Home};
use super::yaml::{self, Entry, Node, Style, Value};
use crate::base::nearest::hint;
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

const MAX_FILES: usize = 32;

/// Keys whose maps are joined key by key.
const SECTIONS: &[&str] = &["search", "generate", "budget", "offload", "vars"];

static VARIABLE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\{\{\s*vars\.([A-Za-z_]\w*)\s*\}\}").expect("a fixed pattern is valid"));

/// A file that was read; `Span::file` counts them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    pub origin: String,
    pub text: String,
    pub home: Home,
}

/// A strategy's nodes, put together.
#[derive(Debug)]
pub struct Composed {
    pub root: Option<Node>,
    /// The strategy's own file first.
    pub sources: Vec<Source>,
    pub vars: BTreeMap<String, String>,
    /// Variables that some node used whole.
    pub used: BTreeSet<String>,
    pub faults: Vec<Fault>,
}

/// Reads a strategy's text and everything it is made of. `set` takes the place of variables' defaults.
pub fn compose(text: &str, origin: &str, home: &Home, set: &[(String, String)]) -> Composed {
    let mut composer = Composer { sources: Vec::new(), faults: Vec::new() };
    let own = Source { origin: origin.to_string(), text: text.to_string(), home: home.clone() };
    let mut root = composer.read(own, &[]);
    let mut vars = BTreeMap::new();
    let mut used = BTreeSet::new();
    if let Some(root) = &mut root {
        vars = composer.variables(root, set);
        if let Value::Map(entries) = &mut root.value {
            for entry in entries.iter_mut().filter(|entry| entry.key != "vars") {
                composer.fill(&mut entry.value, &vars, &mut used);
            }
        }
    }
    Composed { root, sources: composer.sources, vars, used, faults: composer.faults }
}

/// The names of variables that a text uses: `vars.NAME`.
pub fn variables_in(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("vars.").map(|(at, word)| {
        let rest = &text[at + word.len()..];
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        &rest[..end]
    })
}

/// `text` with each `{{ vars.NAME }}` in it replaced by its value.
///
/// # Errors
/// A name that is no variable.
pub fn inserted(text: &str, vars: &BTreeMap<String, String>) -> Result<String, String> {
    let unknown = VARIABLE.captures_iter(text).map(|found| found[1].to_string()).find(|name| !vars.contains_key(name));
    match unknown {
        Some(name) => Err(no_variable(&name, vars)),
        None => Ok(VARIABLE.replace_all(text, |found: &regex::Captures<'_>| vars[&found[1]].clone()).into_owned()),
    }
}

/// Puts one map's entries over another's: sections are joined, all else is replaced.
pub fn overlay(below: Node, above: Node) -> Node {
    let (Value::Map(mut entries), Value::Map(over)) = (below.value, above.value.clone()) else { return above };
    for entry in over {
        match entries.iter().position(|known| known.key == entry.key) {
            Some(at) if SECTIONS.contains(&entry.key.as_str()) => {
                let known = entries.remove(at);
                let value = over_section(known.value, entry.value);
                entries.insert(at, Entry { key: entry.key, key_span: entry.key_span, value });
            }
            Some(at) => entries[at] = entry,
            None => entries.push(entry),
        }
    }
    Node { value: Value::Map(entries), span: above.span }
}

/// A section with some of its keys replaced.
pub fn over_section(below: Node, above: Node) -> Node {
    let (Value::Map(mut entries), Value::Map(over)) = (below.value, above.value.clone()) else { return above };
    for entry in over {
        match entries.iter().position(|known| known.key == entry.key) {
            Some(at) => entries[at] = entry,
            None => entries.push(entry),
        }
    }
    Node { value: Value::Map(entries), span: above.span }
}

fn no_variable(name: &str, vars: &BTreeMap<String, String>) -> String {
    let known = vars.keys().map(String::as_str);
    match vars.is_empty() {
        true => format!("there is no variable `{name}`; declare it: `vars: {{{name}: …}}`"),
        false => {
            let list = known.clone().collect::<Vec<_>>().join(", ");
            format!("there is no variable `{name}`{}; known: {list}", hint(name, known))
        }
    }
}

struct Composer {
    sources: Vec<Source>,
    faults: Vec<Fault>,
}

impl Composer {
    fn error(&mut self, span: Span, message: impl Into<String>) {
        let source = &self.sources[span.file];
        self.faults.push(Fault::new(Severity::Error, &source.origin, &source.text, span, message));
    }

    fn place(&self, span: Span) -> String {
        format!("on line {} of {}", span.line, self.sources[span.file].origin)
    }

    /// Reads one file with what it extends and includes; `above` are the files that led here.
    fn read(&mut self, source: Source, above: &[String]) -> Option<Node> {
        let file = self.sources.len();
        let (root, problems) = yaml::load(&source.text);
        let (origin, home) = (source.origin.clone(), source.home.clone());
        self.sources.push(source);
        for problem in problems {
            self.error(Span { file, ..problem.span }, problem.message);
        }
        let mut root = root?;
        root.set_file(file);
        let Value::Map(entries) = &mut root.value else { return Some(root) };
        let extends = take(entries, "extends");
        let include = take(entries, "include");
        let above: Vec<String> = above.iter().cloned().chain([origin]).collect();
        if let Some(include) = include {
            let paths = match include.value.value {
                Value::List(items) => items,
                _ => vec![include.value],
            };
            for path in paths {
                if let Some(part) = self.follow(&path, &home, &above, None) {
                    root = self.join(root, part);
                }
            }
        }
        let Some(extends) = extends else { return Some(root) };
        let task = text_at(&root, "task");
        match self.follow(&extends.value, &home, &above, Some(task.as_deref())) {
            Some(base) => Some(overlay(base, root)),
            None => Some(root),
        }
    }

    /// Reads the file that a path names. `built_in`: a built-in strategy may be meant, of this task where one is said.
    fn follow(&mut self, path: &Node, home: &Home, above: &[String], built_in: Option<Option<&str>>) -> Option<Node> {
        let Value::Scalar { text, .. } = &path.value else {
            self.error(path.span, format!("a file is named by a text, not {}", path.describe()));
            return None;
        };
        let found = match (source::file(text, home), built_in) {
            (Err(why), _) => Err(why),
            (Ok(Some((origin, text))), _) => Ok(Source { origin, text, home: home.clone() }),
            (Ok(None), Some(task)) => library::find(text, task)
                .map(|entry| Source {
                    origin: format!("built-in {}/{}", entry.task, entry.name),
                    text: entry.text.to_string(),
                    home: Home::BuiltIn,
                })
                .ok_or_else(|| {
                    let names = library::list().iter().filter(|e| task.is_none_or(|t| t == e.task)).map(|e| e.name);
                    format!("there is no strategy file and no built-in strategy `{text}`{}", hint(text, names))
                }),
            (Ok(None), None) => Err(format!("there is no file `{text}` in the strategy's folder")),
        };
        let source = match found {
            Ok(source) if above.contains(&source.origin) => Err(format!("{} leads back to itself", source.origin)),
            Ok(_) if self.sources.len() >= MAX_FILES => {
                Err(format!("more than {MAX_FILES} files make up this strategy"))
            }
            found => found,
        };
        match source {
            Ok(source) => self.read(source, above),
            Err(why) => {
                self.error(path.span, why);
                None
            }
        }
    }

    /// Both maps' keys; one that is in both is an error that names both places.
    fn join(&mut self, own: Node, part: Node) -> Node {
        let span = own.span;
        let (Value::Map(mut entries), Value::Map(more)) = (own.value.clone(), part.value) else {
            self.error(part.span, "an included file is a map of keys such as `search: …`");
            return own;
        };
        for entry in more {
            let Some(at) = entries.iter().position(|known| known.key == entry.key) else {
                entries.push(entry);
                continue;
            };
            let maps = matches!((&entries[at].value.value, &entry.value.value), (Value::Map(_), Value::Map(_)));
            if SECTIONS.contains(&entry.key.as_str()) && maps {
                let known = entries[at].value.clone();
                entries[at].value = self.join(known, entry.value);
            } else {
                let (first, second) = (self.place(entries[at].key_span), self.place(entry.key_span));
                let message = format!("key `{}` stands twice: {first} and {second}; keep one of them", entry.key);
                self.error(entry.key_span, message);
            }
        }
        Node { value: Value::Map(entries), span }
    }

    /// The variables with what `--set` says of them.
    fn variables(&mut self, root: &Node, set: &[(String, String)]) -> BTreeMap<String, String> {
        let mut vars = BTreeMap::new();
        let Value::Map(entries) = &root.value else { return vars };
        let section = entries.iter().find(|entry| entry.key == "vars").map(|entry| &entry.value);
        match section.map(|node| (&node.value, node.span)) {
            None => {}
            Some((Value::Map(entries), _)) => {
                for entry in entries {
                    match &entry.value.value {
                        Value::Scalar { text, .. } if is_name(&entry.key) => {
                            vars.insert(entry.key.clone(), text.clone());
                        }
                        Value::Scalar { .. } => {
                            self.error(entry.key_span, "a variable's name is of letters, digits and `_`");
                        }
                        _ => self.error(entry.value.span, "a variable's default is one value, no list and no map"),
                    }
                }
            }
            Some((_, span)) => self.error(span, "`vars` is a map of names with their defaults, such as `{width: 3}`"),
        }
        let span = section.map_or(Span { line: 1, column: 1, len: 1, file: 0 }, |node| node.span);
        for (name, value) in set {
            match vars.get_mut(name) {
                Some(known) => *known = value.clone(),
                None => {
                    let why = no_variable(name, &vars);
                    self.error(span, format!("--set {name}={value}: {why}"));
                }
            }
        }
        vars
    }

    /// Replaces every value that is nothing but a variable, so that it is read as what the variable holds.
    fn fill(&mut self, node: &mut Node, vars: &BTreeMap<String, String>, used: &mut BTreeSet<String>) {
        match &mut node.value {
            Value::List(items) => {
                for item in items {
                    self.fill(item, vars, used);
                }
            }
            Value::Map(entries) => {
                for entry in entries {
                    self.fill(&mut entry.value, vars, used);
                }
            }
            Value::Scalar { text, style } => {
                let trimmed = text.trim();
                let whole = VARIABLE.captures(trimmed).filter(|found| found[0].len() == trimmed.len());
                let Some(name) = whole.map(|found| found[1].to_string()) else { return };
                match vars.get(&name) {
                    Some(value) => {
                        *text = value.clone();
                        *style = Style::Plain;
                        used.insert(name);
                    }
                    None => {
                        let why = no_variable(&name, vars);
                        self.error(node.span, why);
                    }
                }
            }
        }
    }
}

fn is_name(text: &str) -> bool {
    let mut characters = text.chars();
    characters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && characters.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn take(entries: &mut Vec<Entry>, key: &str) -> Option<Entry> {
    let at = entries.iter().position(|entry| entry.key == key)?;
    Some(entries.remove(at))
}

fn text_at(root: &Node, key: &str) -> Option<String> {
    let Value::Map(entries) = &root.value else { return None };
    match &entries.iter().find(|entry| entry.key == key)?.value.value {
        Value::Scalar { text, .. } => Some(text.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
