//! YAML as a tree of located nodes, and nothing decided yet about what a scalar means.
//!
//! Serde's data model would lose what strategies need: where each key stands, both lines of a duplicate, whether a text
//! was quoted, and that `no`, `~` and `0755` are what was typed. So the parser's events (the same parser that serde-saphyr
//! uses, through its re-export) are built into this tree, and `parse.rs` reads it.
//!
//! Refused: more than one document, tags other than the core ones, keys that are no plain text, and input that would
//! cost more than it says (size, depth and node limits; an alias counts what it copies).

use super::fault::{Span, lines};
use serde_yaml::granit_parser::{Event, Options, Parser, ScalarStyle, Span as RawSpan};
use std::collections::HashMap;

/// A strategy file above this is none.
pub const MAX_BYTES: usize = 1 << 20;
const MAX_DEPTH: usize = 32;
const MAX_NODES: usize = 20_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub value: Value,
    pub span: Span,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Scalar { text: String, style: Style },
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// How a scalar was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Plain,
    Quoted,
    /// `|` or `>`.
    Block,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    pub key_span: Span,
    pub value: Node,
}

impl Node {
    /// Says of the whole tree which file it was read from.
    pub fn set_file(&mut self, file: usize) {
        self.span.file = file;
        match &mut self.value {
            Value::Scalar { .. } => {}
            Value::List(items) => items.iter_mut().for_each(|item| item.set_file(file)),
            Value::Map(entries) => {
                for entry in entries {
                    entry.key_span.file = file;
                    entry.value.set_file(file);
                }
            }
        }
    }

    /// All texts in it, keys left out.
    pub fn texts<'n>(&'n self, into: &mut Vec<&'n str>) {
        match &self.value {
            Value::Scalar { text, .. } => into.push(text),
            Value::List(items) => items.iter().for_each(|item| item.texts(into)),
            Value::Map(entries) => entries.iter().for_each(|entry| entry.value.texts(into)),
        }
    }

    /// As JSON, scalars read as YAML 1.2's core schema has them: what other readers of YAML would see.
    pub fn to_json(&self) -> serde_json::Value {
        use serde_json::Value as Json;
        match &self.value {
            Value::Scalar { text, style: Style::Plain } => match text.as_str() {
                "true" => Json::Bool(true),
                "false" => Json::Bool(false),
                "" | "~" | "null" => Json::Null,
                text => text
                    .parse::<i64>()
                    .map(Json::from)
                    .or_else(|_| text.parse::<f64>().map(Json::from))
                    .ok()
                    .filter(Json::is_number)
                    .unwrap_or_else(|| Json::from(text)),
            },
            Value::Scalar { text, .. } => Json::from(text.as_str()),
            Value::List(items) => items.iter().map(Self::to_json).collect(),
            Value::Map(entries) => {
                Json::Object(entries.iter().map(|entry| (entry.key.clone(), entry.value.to_json())).collect())
            }
        }
    }

    /// What it is, for messages: `a list`, `text "abc"`.
    pub fn describe(&self) -> String {
        match &self.value {
            Value::Scalar { text, style: Style::Plain } if text.is_empty() => "nothing".into(),
            Value::Scalar { text, style: Style::Plain } => format!("`{}`", brief(text)),
            Value::Scalar { text, .. } => format!("the text \"{}\"", brief(text)),
            Value::List(_) => "a list".into(),
            Value::Map(_) => "a map".into(),
        }
    }
}

fn brief(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let mut short: String = line.chars().take(40).collect();
    if short.len() < text.trim_end().len() {
        short.push('…');
    }
    short
}

/// A fault of the YAML itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub span: Span,
    pub message: String,
}

/// Reads one document. `None` where it cannot be read at all; problems may come with a tree too (duplicate keys, of which
/// the first is kept), so that one run reports all there is.
pub fn load(text: &str) -> (Option<Node>, Vec<Problem>) {
    let mut builder = Builder::default();
    let root = if text.len() > MAX_BYTES {
        builder.problem(Span { line: 1, column: 1, len: 1, file: 0 }, "is larger than 1 MiB: this is no strategy");
        None
    } else {
        builder.read(text)
    };
    (root, builder.problems)
}

#[derive(Default)]
struct Builder {
    problems: Vec<Problem>,
    /// Collections that are open, outermost first.
    open: Vec<Open>,
    /// Whole nodes by anchor, with the number of nodes they hold.
    anchors: HashMap<usize, (Node, usize)>,
    nodes: usize,
    root: Option<Node>,
}

struct Open {
    node: Node,
    anchor: usize,
    /// Number of nodes before this one, so that its own size is known at its end.
    before: usize,
    /// A key that waits for its value.
    key: Option<(String, Span)>,
}

impl Builder {
    fn problem(&mut self, span: Span, message: impl Into<String>) {
        self.problems.push(Problem { span, message: message.into() });
    }

    fn read(&mut self, text: &str) -> Option<Node> {
        let mut options = Options::default();
        options.set_emit_comments(false);
        let mut documents = 0;
        for event in Parser::new_from_str_with_options(text, options) {
            let (event, raw) = match event {
                Ok(event) => event,
                Err(error) => {
                    let mark = error.marker();
                    let span = Span { line: mark.line().max(1), column: mark.col() + 1, len: 1, file: 0 };
                    self.problem(span, format!("this is not YAML: {}", error.info()));
                    return None;
                }
            };
            let span = span(text, &raw);
            if self.nodes > MAX_NODES {
                self.problem(span, format!("holds more than {MAX_NODES} values, aliases counted: this is no strategy"));
                return None;
            }
            if let Some(tag) = event.tag()
                && !matches!(tag.core_suffix(), Some("str" | "map" | "seq"))
            {
                self.problem(span, format!("the tag `{}` means nothing here; remove it", tag.original()));
                return None;
            }
            let forced_text = event.tag().is_some();
            let going = match event {
                Event::DocumentStart(..) => {
                    documents += 1;
                    if documents > 1 {
                        self.problem(span, "a second document begins here; a strategy file holds one");
                        return self.root.take();
                    }
                    true
                }
                Event::Scalar(value, style, anchor, _) => {
                    let style = match style {
                        ScalarStyle::Plain if !forced_text => Style::Plain,
                        ScalarStyle::Plain | ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => Style::Quoted,
                        ScalarStyle::Literal | ScalarStyle::Folded => Style::Block,
                    };
                    self.nodes += 1;
                    // The parser writes `~` for a value that is not there at all.
                    let absent = style == Style::Plain && raw.is_empty();
                    let text = if absent { String::new() } else { value.into_owned() };
                    let node = Node { value: Value::Scalar { text, style }, span };
                    if anchor != 0 {
                        self.anchors.insert(anchor, (node.clone(), 1));
                    }
                    self.place(node)
                }
                Event::SequenceStart(_, anchor, _) => self.begin(Value::List(Vec::new()), span, anchor),
                Event::MappingStart(_, anchor, _) => self.begin(Value::Map(Vec::new()), span, anchor),
                Event::SequenceEnd | Event::MappingEnd => self.end(),
                Event::Alias(anchor) => match self.anchors.get(&anchor).cloned() {
                    Some((node, size)) => {
                        self.nodes += size;
                        // Limits count before the copy is kept, so that aliases of aliases cannot grow without bound.
                        if self.nodes > MAX_NODES { true } else { self.place(Node { span, ..node }) }
                    }
                    None => {
                        self.problem(span, "this alias stands inside the value it names");
                        false
                    }
                },
                _ => true,
            };
            if !going {
                return None;
            }
        }
        if self.root.is_none() {
            self.problem(Span { line: 1, column: 1, len: 1, file: 0 }, "the file is empty");
        }
        self.root.take()
    }

    fn begin(&mut self, value: Value, span: Span, anchor: usize) -> bool {
        if self.open.len() >= MAX_DEPTH {
            self.problem(span, format!("is nested more than {MAX_DEPTH} levels deep; a strategy needs four"));
            return false;
        }
        self.nodes += 1;
        self.open.push(Open { node: Node { value, span }, anchor, before: self.nodes - 1, key: None });
        true
    }

    fn end(&mut self) -> bool {
        let Some(done) = self.open.pop() else { return true };
        if done.anchor != 0 {
            self.anchors.insert(done.anchor, (done.node.clone(), self.nodes - done.before));
        }
        self.place(done.node)
    }

    /// Puts a whole node where it belongs; `false` where that makes the file unreadable.
    fn place(&mut self, node: Node) -> bool {
        let Some(parent) = self.open.last_mut() else {
            self.root = Some(node);
            return true;
        };
        match (&mut parent.node.value, parent.key.take()) {
            (Value::List(items), _) => items.push(node),
            (Value::Map(entries), Some((key, key_span))) => {
                if let Some(first) = entries.iter().find(|entry| entry.key == key) {
                    let message = format!(
                        "key `{key}` stands twice: on line {} and on line {}; keep one of them",
                        first.key_span.line, key_span.line
                    );
                    self.problem(key_span, message);
                } else {
                    entries.push(Entry { key, key_span, value: node });
                }
            }
            (Value::Map(_), None) => match node.value {
                Value::Scalar { text, .. } => parent.key = Some((text, node.span)),
                _ => {
                    let what = node.describe();
                    let remedy = "a key must be plain text; put a template in quotes: \"{{ … }}\"";
                    self.problem(node.span, format!("{what} stands where a key should: {remedy}"));
                    return false;
                }
            },
            (Value::Scalar { .. }, _) => unreachable!("only collections are opened"),
        }
        true
    }
}

fn span(text: &str, raw: &RawSpan) -> Span {
    let line = raw.start.line().max(1);
    let len = if raw.end.line() == raw.start.line() {
        raw.len()
    } else {
        // A span over several lines is marked to the end of its first.
        let rest = lines(text).nth(line - 1).map_or(0, |line| line.chars().count());
        rest.saturating_sub(raw.start.col())
    };
    Span { line, column: raw.start.col() + 1, len: len.max(1), file: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(node: &Node) -> String {
        match &node.value {
            Value::Scalar { text, style: Style::Plain } => text.clone(),
            Value::Scalar { text, .. } => format!("{text:?}"),
            Value::List(items) => format!("[{}]", items.iter().map(shown).collect::<Vec<_>>().join(", ")),
            Value::Map(entries) => {
                let entries: Vec<String> = entries.iter().map(|e| format!("{}: {}", e.key, shown(&e.value))).collect();
                format!("{{{}}}", entries.join(", "))
            }
        }
    }

    fn problems(text: &str) -> Vec<(usize, usize, String)> {
        load(text).1.into_iter().map(|p| (p.span.line, p.span.column, p.message)).collect()
    }

    #[test]
    fn scalars_keep_what_was_typed() {
        let (node, problems) = load("stop: [\"y\", n, null, ~, 1e3, 0755, 1_000]\nname: no\nt: !!str yes\n");
        assert_eq!(problems, []);
        assert_eq!(shown(&node.unwrap()), "{stop: [\"y\", n, null, ~, 1e3, 0755, 1_000], name: no, t: \"yes\"}");
    }

    #[test]
    fn duplicates_name_both_lines_and_the_rest_is_still_read() {
        let (node, problems) = load("search:\n  kind: bfs\n  depth: 3\n  depth: 5\nsearch: 1\n");
        assert_eq!(shown(&node.unwrap()), "{search: {kind: bfs, depth: 3}}");
        let messages: Vec<_> = problems.iter().map(|p| (p.span.line, p.span.column, p.message.as_str())).collect();
        assert_eq!(
            messages,
            [
                (4, 3, "key `depth` stands twice: on line 3 and on line 4; keep one of them"),
                (5, 1, "key `search` stands twice: on line 1 and on line 5; keep one of them"),
            ]
        );
    }

    #[test]
    fn aliases_are_copied_and_bounded() {
        let (node, _) = load("a: &x [1, 2]\nb: *x\n");
        assert_eq!(shown(&node.unwrap()), "{a: [1, 2], b: [1, 2]}");
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
        for i in 1..30 {
            bomb += &format!("a{i}: &a{i} [{}]\n", vec![format!("*a{}", i - 1); 9].join(", "));
        }
        assert!(problems(&bomb)[0].2.contains("more than 20000 values"), "{:?}", problems(&bomb));
        assert!(problems("a: &a [*a]")[0].2.contains("inside the value it names"));
    }

    #[test]
    fn what_is_no_strategy_is_refused_at_its_place() {
        let check = |text: &str, line: usize, part: &str| {
            let found = problems(text);
            assert!(found.iter().any(|(l, _, m)| *l == line && m.contains(part)), "{text:?}: {found:?}");
        };
        check("", 1, "empty");
        check("# only a comment\n", 1, "empty");
        check("a: 1\n---\nb: 2\n", 2, "second document");
        check("a: !!int 3\n", 1, "tag");
        check("a: !mine 3\n", 1, "tag");
        check("? [a, b]\n: c\n", 1, "a list stands where a key should");
        check("a: 1\nb: [1,\n", 2, "not YAML");
        check("a: 1\n\tb: 2\n", 1, "not YAML");
        check(&format!("{}{}", "[".repeat(100), "]".repeat(100)), 1, "nested more than");
        check(&"[".repeat(200), 1, "not YAML");
        check(&"- ".repeat(5000), 1, "nested");
        check(&"x".repeat(MAX_BYTES + 1), 1, "larger than 1 MiB");
    }
}
