//! Tests over whole strategy files: what is refused and where, what is kept as typed, and what is shipped.

mod fields;
mod prompts;
mod schemas;
mod sections;
mod shipped;
mod warnings;

use super::fault::{Fault, Severity};
use super::parse::{Parsed, parse};
use super::source::Home;
use super::*;
use proptest::prelude::{Strategy as Inputs, prop};
use proptest::test_runner::TestCaseError;

const GOOD: &str = r#"version: 1
name: mine
about: a test
task: sorting
search: {policy: bfs, depth: "{{ puzzle.len }}", keep: 2, prune_below: 0.1}
generate:
  kind: likeliest
  n: 3
  prompt: |
    Sort {{ puzzle.input }}
  constrain: puzzle
  stop: ["\n"]
evaluate:
  - checker: partial
budget: {tokens: 20000, thoughts: 500, seconds: 60}
"#;

fn read(text: &str) -> Parsed {
    parse(text, "f.yaml", &Home::BuiltIn)
}

fn shown(faults: &[Fault]) -> String {
    faults.iter().map(Fault::to_string).collect::<Vec<_>>().join("\n")
}

/// The good file with one line replaced.
fn with(line: &str, replacement: &str) -> String {
    assert!(GOOD.contains(line), "{line}");
    GOOD.replace(line, replacement)
}

/// Exactly one error, at this line and column, with this text in it.
fn check(text: &str, line: usize, column: usize, part: &str) {
    let errors: Vec<Fault> = read(text).faults.into_iter().filter(|f| f.severity == Severity::Error).collect();
    let found = shown(&errors);
    assert_eq!(errors.len(), 1, "{found}");
    assert!(errors[0].message.contains(part), "{found}");
    assert_eq!((errors[0].span.line, errors[0].span.column), (line, column), "{found}");
}

/// A good file with parts cut, doubled and overwritten.
pub(super) fn mutated(good: &'static str) -> impl Inputs<Value = String> {
    let edit = (0usize..600, 0usize..40, "[-:{}\\[\\]&*!|>'\"%@`#,? \n\tnoa0.()\u{e9}\u{feff}]{0,6}");
    prop::collection::vec(edit, 1..6).prop_map(|edits| {
        let mut text: Vec<char> = good.chars().collect();
        for (at, len, insert) in edits {
            let at = at.min(text.len());
            let end = (at + len).min(text.len());
            text.splice(at..end, insert.chars());
        }
        text.into_iter().collect()
    })
}

/// What was read of a text is something, or has faults; they lie inside the text and can be shown.
pub(super) fn sound(text: &str, something: bool, faults: &[Fault]) -> Result<(), TestCaseError> {
    proptest::prop_assert!(something || !faults.is_empty());
    for fault in faults {
        proptest::prop_assert!((1..=text.lines().count() + 2).contains(&fault.span.line), "{}", fault);
        let _ = fault.to_string();
    }
    Ok(())
}
