//! Prompts: Jinja templates with declared inputs.
//!
//! A value is inserted once and never rendered again: braces in puzzles and replies stay as they are. A name that is not
//! declared is an error with the template's file and line and the names that are. Nothing is escaped, nothing is included,
//! and the work and bytes of a rendering are bounded, since strategies come from strangers.
//!
//! | used by | inputs beside the task's own (`puzzle.…`) |
//! |---|---|
//! | counts (`depth: "{{ puzzle.len }}"`) | none |
//! | `generate.prompt` | `path`: the thoughts so far, joined; `thought`: the last of them; `thoughts`: the list to merge (graph). Where a prompt for steps uses neither, the path is appended by the search |
//! | `evaluate.value.prompt` | `thought`: the one to judge; `path`: all thoughts up to and with it, joined |
//! | a task's `question`, `title` | none |
//! | a task's `steps` | `path` |
//! | `evaluate.vote.prompt` | `thoughts`: the list to choose from, each with its path, joined |

use super::{Count, PromptSource};
use crate::base::nearest::hint;
use crate::base::{Error, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior, Value as Jinja};
use serde_json::Value;
use std::sync::LazyLock;

/// What one rendering may cost: an instruction costs 1, and so do 64 bytes of text made or written, asked for before they are
/// allocated. So this is at most 16 MiB; a prompt with 16 examples takes a few hundred.
const FUEL: u64 = (16 << 20) / 64;

/// The environment all templates share: strict about names, block tags on lines of their own leave no blank lines, and one
/// newline at the end is dropped.
pub(super) fn environment() -> &'static Environment<'static> {
    /// Made once: a search renders a prompt for every thought. Nothing is ever added to it.
    static SHARED: LazyLock<Environment<'static>> = LazyLock::new(|| {
        let mut env = Environment::new();
        env.set_undefined_behavior(UndefinedBehavior::Strict);
        env.set_auto_escape_callback(|_| AutoEscape::None);
        env.set_fuel(Some(FUEL));
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        env.set_syntax(syntax.expect("the usual delimiters are valid"));
        env
    });
    &SHARED
}

/// Where a template stands, which decides the inputs it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Generate,
    Value,
    Vote,
    /// About the puzzle alone.
    Puzzle,
    /// What may come next.
    Step,
}

impl Role {
    /// Inputs the search gives beside the puzzle's.
    pub fn inputs(self) -> &'static [&'static str] {
        match self {
            Self::Generate => &["path", "thought", "thoughts"],
            Self::Value => &["thought", "path"],
            Self::Vote => &["thoughts"],
            Self::Puzzle => &[],
            Self::Step => &["path"],
        }
    }
}

/// Something wrong in a template, found without rendering it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateFault {
    /// Line of the template, from 1.
    pub line: usize,
    pub message: String,
}

/// Syntax faults, and names outside `known` (dotted: `puzzle.input`, `path`).
pub fn check(text: &str, known: &[&str]) -> Vec<TemplateFault> {
    let env = environment();
    let template = match env.template_from_str(text) {
        Ok(template) => template,
        Err(error) => return vec![TemplateFault { line: error.line().unwrap_or(1), message: what(&error) }],
    };
    // A text or list has no fields: `path.text` goes on where there is nothing.
    let there = |name: &str| {
        let begins = |k: &&str| k.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        known.iter().any(begins)
    };
    let mut unknown: Vec<String> =
        template.undeclared_variables(true).into_iter().filter(|name| !there(name)).collect();
    unknown.retain(|name| !env.globals().any(|(global, _)| global == name));
    unknown.sort();
    unknown
        .into_iter()
        .map(|name| TemplateFault { line: line_of(text, &name), message: unknown_input(&name, known) })
        .collect()
}

/// Whether a template uses an input: `uses(prompt, "path")`.
pub fn uses(prompt: &PromptSource, name: &str) -> bool {
    let env = environment();
    env.template_from_str(&prompt.text).is_ok_and(|template| {
        template.undeclared_variables(true).iter().any(|used| used == name || is_known(used, &[name]))
    })
}

/// Renders a prompt. `inputs` is an object: the puzzle's [`crate::task::Puzzle::inputs`] with those of the prompt's
/// [`Role`] added. Of `puzzle.examples` only the first `max_examples` are given, for prompts that must fit a context.
pub fn render(prompt: &PromptSource, inputs: &Value, max_examples: usize) -> Result<String> {
    let refuse = |line: usize, message: String| Error::input(format!("{} line {line}: {message}", prompt.origin));
    let env = environment();
    let values = to_jinja(inputs, max_examples);
    let rendered = env.template_from_str(&prompt.text).and_then(|template| template.render(values));
    rendered.map_err(|error| {
        let line = error.line().unwrap_or(1);
        let names = names_of(inputs);
        let known: Vec<&str> = names.iter().map(String::as_str).collect();
        let unknown = check(&prompt.text, &known).into_iter().next();
        match unknown {
            Some(fault) if error.kind() == ErrorKind::UndefinedError => refuse(fault.line, fault.message),
            _ => refuse(line, what(&error)),
        }
    })
}

/// How many solved examples a puzzle offers: where [`render`]'s `max_examples` begins before it is halved.
pub fn example_count(inputs: &Value) -> usize {
    inputs["puzzle"]["examples"].as_array().map_or(0, Vec::len)
}

/// The value of a count for a puzzle.
pub fn count(count: &Count, inputs: &Value) -> Result<usize> {
    let text = match count {
        Count::Number(number) => return Ok(*number),
        Count::Template(text) => text,
    };
    let refuse = |message: String| Error::input(format!("`{text}`: {message}"));
    let env = environment();
    let values = to_jinja(inputs, usize::MAX);
    let rendered = env
        .template_from_str(text)
        .and_then(|template| template.render(values))
        .map_err(|error| refuse(what(&error)))?;
    let value = rendered.trim();
    value
        .strip_suffix(".0")
        .unwrap_or(value)
        .parse()
        .map_err(|_| refuse(format!("gives `{value}`, which is no whole number from 0 up")))
}

fn is_known(name: &str, known: &[&str]) -> bool {
    known.iter().any(|k| {
        *k == name
            || k.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))
            || name.strip_prefix(k).is_some_and(|rest| rest.starts_with('.'))
    })
}

fn unknown_input(name: &str, known: &[&str]) -> String {
    format!("there is no input `{name}`{}; known: {}", hint(name, known.iter().copied()), known.join(", "))
}

/// The line on which a name is first used.
pub(super) fn line_of(text: &str, name: &str) -> usize {
    let last = name.rsplit('.').next().unwrap_or(name);
    let find = |word: &str| {
        text.lines().position(|line| {
            line.match_indices(word).any(|(at, _)| {
                let part_of_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
                !part_of_word(line[..at].chars().next_back()) && !part_of_word(line[at + word.len()..].chars().next())
            })
        })
    };
    find(name).or_else(|| find(last)).map_or(1, |at| at + 1)
}

pub(super) fn what(error: &minijinja::Error) -> String {
    match (error.kind(), error.detail()) {
        (ErrorKind::OutOfFuel, _) => "this template does too much work or writes too much; simplify it".into(),
        (kind, Some(detail)) => format!("{kind}: {detail}"),
        (kind, None) => kind.to_string(),
    }
}

/// Dotted names of an inputs object, one level deep.
fn names_of(inputs: &Value) -> Vec<String> {
    let mut names = Vec::new();
    for (name, value) in inputs.as_object().into_iter().flatten() {
        match value.as_object() {
            Some(fields) => names.extend(fields.keys().map(|field| format!("{name}.{field}"))),
            None => names.push(name.clone()),
        }
    }
    names
}

pub(super) fn to_jinja(value: &Value, max_examples: usize) -> Jinja {
    match value {
        Value::Null => Jinja::from(()),
        Value::Bool(yes) => Jinja::from(*yes),
        Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), ..) => Jinja::from(number),
            (None, Some(number), _) => Jinja::from(number),
            (None, None, number) => Jinja::from(number.unwrap_or(f64::NAN)),
        },
        Value::String(text) => Jinja::from(text.as_str()),
        Value::Array(items) => items.iter().map(|item| to_jinja(item, max_examples)).collect(),
        Value::Object(fields) => Jinja::from_pairs(fields.iter().map(|(name, value)| {
            let value = match value {
                Value::Array(items) if name == "examples" => {
                    items.iter().take(max_examples).map(|item| to_jinja(item, max_examples)).collect()
                }
                value => to_jinja(value, max_examples),
            };
            (name.as_str(), value)
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::testing::thread_time;
    use serde_json::json;

    fn prompt(text: &str) -> PromptSource {
        PromptSource { origin: "prompts/p.txt".into(), text: text.into() }
    }

    fn inputs() -> Value {
        json!({"puzzle": {"len": 3, "input": "{1; 2} {{ path }}", "examples": [{"input": "a"}, {"input": "b"}, {"input": "c"}]}, "path": "{% if %}"})
    }

    fn rendered(text: &str) -> String {
        render(&prompt(text), &inputs(), 16).unwrap()
    }

    fn refusal(text: &str) -> String {
        render(&prompt(text), &inputs(), 16).unwrap_err().to_string()
    }

    #[test]
    fn a_value_is_inserted_once_and_braces_stay() {
        let text = "Find the common items of {{ puzzle.input }}.\nReply as JSON like {\"common\": [1]}. {{path}}\n";
        assert_eq!(
            rendered(text),
            "Find the common items of {1; 2} {{ path }}.\nReply as JSON like {\"common\": [1]}. {% if %}"
        );
        assert_eq!(rendered("<b>&\"' {{ '<' }}"), "<b>&\"' <");
    }

    #[test]
    fn blocks_leave_no_blank_lines_and_examples_can_be_fewer() {
        let text = "{% for e in puzzle.examples %}\nInput: {{ e.input }}\n{% endfor %}\nOutput:{{ ' ' }}";
        assert_eq!(rendered(text), "Input: a\nInput: b\nInput: c\nOutput: ");
        assert_eq!(render(&prompt(text), &inputs(), 1).unwrap(), "Input: a\nOutput: ");
        assert_eq!(example_count(&inputs()), 3);
    }

    #[test]
    fn undeclared_names_are_errors_with_file_line_and_the_known_ones() {
        let message = refusal("one\ntwo {{ puzzle.inptu }}");
        assert_eq!(
            message,
            "prompts/p.txt line 2: there is no input `puzzle.inptu`; did you mean `puzzle.input`?; \
             known: puzzle.len, puzzle.input, puzzle.examples, path"
        );
        assert!(refusal("{{ thought }}").contains("no input `thought`"));
        assert!(refusal("a\n{{ puzzle.input").contains("line 2"), "{}", refusal("a\n{{ puzzle.input"));
        let found = check(
            "{{ path }}{{ puzzle.len }}{{ puzzle }}\n{% for x in xs %}{{ x.y }}{% endfor %}",
            &["path", "puzzle.len"],
        );
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 2);
        let below = check("a\n{{ path.text }} {{ puzzle.input.x }}", &["path", "puzzle.input"]);
        assert_eq!(below.iter().map(|f| f.line).collect::<Vec<_>>(), [2, 2]);
        assert!(below[0].message.contains("no input `path.text`"), "{below:?}");
        assert!(uses(&prompt("{{ path }}"), "path") && !uses(&prompt("path"), "path"));
    }

    #[test]
    fn counts_are_whole_numbers_of_the_puzzle() {
        let check = |text: &str, expected: Result<usize, &str>| match (
            count(&Count::Template(text.into()), &inputs()),
            expected,
        ) {
            (Ok(value), Ok(expected)) => assert_eq!(value, expected, "{text}"),
            (Err(error), Err(part)) => assert!(error.message().contains(part), "{error}"),
            (found, expected) => panic!("{text}: {found:?} where {expected:?} was expected"),
        };
        check("{{ puzzle.len }}", Ok(3));
        check("{{ 3 if puzzle.len <= 8 else 4 }}", Ok(3));
        check("{{ puzzle.len * 2 + 1 }}", Ok(7));
        check("{{ puzzle.len / 3 }}", Ok(1));
        check("{{ puzzle.len / 2 }}", Err("`1.5`"));
        check("{{ 0 - puzzle.len }}", Err("`-3`"));
        check("{{ puzzle.input }}", Err("no whole number"));
        check("{{ puzzle.lenn }}", Err("undefined"));
        assert_eq!(count(&Count::Number(5), &inputs()).unwrap(), 5);
    }

    #[test]
    fn work_and_memory_are_bounded() {
        for bomb in [
            "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}".to_string(),
            "{{ 'a' * 100000000 }}".to_string(),
            "{% for a in range(10000) %}{{ 'a' * 100000 }}{% endfor %}".to_string(),
            format!("{{% set a = 'aaaaaaaaaaaaaaaa' %}}{}", "{% set a = a ~ a %}".repeat(50)),
            "{% macro f(s) %}{{ f(s ~ s) }}{% endmacro %}{{ f('abcd') }}".to_string(),
            "{{ ('a' * 100000) | replace('a', 'a' * 100000) }}".to_string(),
            "{{ ('a' * 9000) | list | map('replace', 'a', 'b' * 90000) | join }}".to_string(),
        ] {
            let started = thread_time();
            let message = refusal(&bomb);
            assert!((thread_time() - started).as_secs() < 5, "{bomb}");
            assert!(message.contains("too much work") || message.contains("recursion"), "{bomb}: {message}");
        }
        assert!(refusal("{% include 'x' %}").contains("line 1"));
    }
}
