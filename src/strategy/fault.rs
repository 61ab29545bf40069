//! What is wrong with a strategy file, with the place shown: file, line, column, the line itself and a caret below it.

use crate::base::text::sanitize_line;
use crate::base::{Error, Result};
use std::fmt;
use unicode_width::UnicodeWidthStr;

/// A run of characters on one line; line and column count from 1, in characters.
/// `file` counts the files that a strategy is made of; its own is 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    pub line: usize,
    pub column: usize,
    pub len: usize,
    pub file: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    Error,
    Warning,
}

/// One finding. Warnings do not keep a strategy from running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub severity: Severity,
    /// The strategy file, or the prompt file where the fault is in there.
    pub file: String,
    pub span: Span,
    pub message: String,
    /// The line with a caret below it, safe to show; empty where the place has no line.
    pub snippet: String,
}

impl Fault {
    /// A fault at `span` of `text`, which was read from `file`.
    pub fn new(severity: Severity, file: &str, text: &str, span: Span, message: impl Into<String>) -> Self {
        let snippet = snippet(text, span);
        Self { severity, file: file.to_string(), span, message: message.into(), snippet }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.severity {
            Severity::Error => "",
            Severity::Warning => "warning: ",
        };
        write!(f, "{}:{}:{}: {word}{}", self.file, self.span.line, self.span.column, sanitize_line(&self.message))?;
        if !self.snippet.is_empty() {
            write!(f, "\n{}", self.snippet)?;
        }
        Ok(())
    }
}

/// All errors as one, or nothing where there are only warnings.
pub fn to_result(faults: &[Fault]) -> Result<()> {
    let errors: Vec<String> =
        faults.iter().filter(|fault| fault.severity == Severity::Error).map(Fault::to_string).collect();
    if errors.is_empty() { Ok(()) } else { Err(Error::input(errors.join("\n"))) }
}

/// Characters of a long line that are shown around the fault.
const SHOWN: usize = 100;

/// Lines as YAML counts them: a carriage return alone ends one too.
pub fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.split('\n').flat_map(|line| line.strip_suffix('\r').unwrap_or(line).split('\r'))
}

fn snippet(text: &str, span: Span) -> String {
    let Some(line) = lines(text).nth(span.line.saturating_sub(1)) else { return String::new() };
    let start = span.column.saturating_sub(1);
    // A long line is cut so that the fault stays in view.
    let skip = if start > SHOWN - 20 { start - 20 } else { 0 };
    let shown: String = line.chars().skip(skip).take(SHOWN).collect();
    let before: String = shown.chars().take(start - skip).collect();
    let marked: String = shown.chars().skip(start - skip).take(span.len.max(1)).collect();
    let width = |text: &str| UnicodeWidthStr::width(sanitize_line(text).as_str());
    let number = span.line.to_string();
    format!(
        "  {number} | {}\n  {} | {}{}",
        sanitize_line(&shown),
        " ".repeat(number.len()),
        " ".repeat(width(&before)),
        "^".repeat(width(&marked).max(1))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, line: usize, column: usize, len: usize) -> String {
        Fault::new(Severity::Error, "f.yaml", text, Span { line, column, len, file: 0 }, "bad").to_string()
    }

    #[test]
    fn the_caret_stands_below_the_fault() {
        assert_eq!(shown("a: 1\nbc: 2", 2, 1, 2), "f.yaml:2:1: bad\n  2 | bc: 2\n    | ^^");
        assert_eq!(shown("字: é x", 1, 4, 1), "f.yaml:1:4: bad\n  1 | 字: é x\n    |     ^");
        assert_eq!(shown("a", 9, 1, 1), "f.yaml:9:1: bad");
        // Found by fuzzing: YAML ends a line at a carriage return too.
        assert_eq!(shown("a\rb\r\nc\n\rd", 3, 1, 1), "f.yaml:3:1: bad\n  3 | c\n    | ^");
        assert_eq!(shown("a\rb\r\nc\n\rd", 5, 1, 1), "f.yaml:5:1: bad\n  5 | d\n    | ^");
        let long = shown(&format!("{}x", "y".repeat(500)), 1, 501, 1);
        assert!(long.ends_with(&format!("{}^", " ".repeat(20))), "{long}");
        assert!(shown("a\x1b[2Jb", 1, 1, 1).contains("| ab\n"));
    }
}
