//! Lists of integers as people, files and models write them.
//!
//! Two readers with different tempers: [`read_list`] takes what a user typed or a data file holds and refuses whatever
//! is not an integer; [`read_answer`] looks for the list in a model's reply by fixed rules, and says when there is none.

use super::number::Number;
use crate::base::text::{sanitize, sanitize_line};

/// The part of a text that is not an integer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotInteger(pub String);

/// Reads integers separated by spaces, newlines, commas and brackets of any kind. No integers at all is an empty list.
pub fn read_list(text: &str) -> Result<Vec<Number>, NotInteger> {
    text.split(|c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']' | '(' | ')' | '{' | '}'))
        .filter(|word| !word.is_empty())
        .map(|word| Number::read(word).ok_or_else(|| NotInteger(shown(word))))
        .collect()
}

/// A word as a message shows it: its beginning, and where nothing of it can be seen, its code points.
fn shown(word: &str) -> String {
    let seen = sanitize_line(word);
    let seen = if seen.trim().is_empty() { word.escape_unicode().to_string() } else { seen };
    seen.chars().take(40).collect()
}

/// Reads the beginning of an answer: what [`read_list`] takes, and digits without separators where the puzzle is
/// `compact` (all its values are single digits) and the text has no commas.
pub fn read_prefix(text: &str, compact: bool) -> Result<Vec<Number>, NotInteger> {
    let numbers = read_list(text)?;
    if !compact || text.contains(',') {
        return Ok(numbers);
    }
    if text.bytes().all(|b| b != b'-' && b != b'+') {
        return Ok(text.bytes().filter(u8::is_ascii_digit).map(|b| Number::from(i64::from(b - b'0'))).collect());
    }
    Ok(numbers)
}

/// Finds the list in a reply. In this order:
///
/// 1. the last pair of brackets that holds nothing but integers, commas, semicolons and spaces;
/// 2. the whole text, where it is nothing but a list;
/// 3. the last line that is nothing but a list after its last colon (`Answer: 1, 2, 3`), quotes, asterisks and a final
///    full stop aside.
///
/// `none` stands for the empty list. In a `compact` puzzle a list without commas may be written without separators
/// (`00345789`). Control sequences in the reply are dropped before.
pub fn read_answer(reply: &str, compact: bool) -> Result<Vec<Number>, String> {
    let text = sanitize(reply);
    if text.trim().is_empty() {
        return Err("the reply is empty".into());
    }
    if let Some(list) = last_bracketed(&text, compact) {
        return Ok(list);
    }
    if let Some(list) = bare_list(&text, compact) {
        return Ok(list);
    }
    text.lines()
        .rev()
        .find_map(|line| bare_list(line.rsplit(':').next().unwrap_or(line), compact))
        .ok_or_else(|| "no list of integers in the reply".into())
}

fn last_bracketed(text: &str, compact: bool) -> Option<Vec<Number>> {
    let (mut open, mut last) = (None, None);
    for (at, c) in text.char_indices() {
        match c {
            '[' | '(' | '{' => open = Some(at + 1),
            ']' | ')' | '}' => {
                // Only an innermost pair counts: its opening bracket is the nearest one before it.
                if let Some(start) = open.take() {
                    let inside = text[start..at].replace(';', ",");
                    if let Ok(list) = read_prefix(&inside, compact) {
                        last = Some(list);
                    }
                }
            }
            _ => {}
        }
    }
    last
}

fn bare_list(text: &str, compact: bool) -> Option<Vec<Number>> {
    let text = text.trim().trim_end_matches('.').trim_matches(|c: char| c.is_whitespace() || "`*\"'_".contains(c));
    if text.eq_ignore_ascii_case("none") || text.eq_ignore_ascii_case("none,") {
        return Some(Vec::new());
    }
    if text.contains(['[', ']', '(', ')', '{', '}']) {
        return None;
    }
    read_prefix(&text.replace(';', ","), compact).ok().filter(|list| !list.is_empty())
}

/// The text without a number at its end that may still grow another digit.
pub fn closed(text: &str) -> &str {
    text.trim_end_matches(|c: char| c == '-' || c == '+' || c.is_ascii_digit())
}

/// `1, 2, 3`.
pub fn commas(numbers: &[Number]) -> String {
    numbers.iter().map(Number::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(list: &[Number]) -> String {
        list.iter().map(Number::to_string).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn typed_lists_are_read_in_every_accepted_form() {
        let check = |text: &str, expected: &str| assert_eq!(shown(&read_list(text).unwrap()), expected, "{text:?}");
        check("42 7 -3 103 7", "42 7 -3 103 7");
        check("[42, 7,-3]", "42 7 -3");
        check("(1)(2) {3}\n4", "1 2 3 4");
        check("", "");
        let refused = |text: &str, word: &str| assert_eq!(read_list(text), Err(NotInteger(word.into())), "{text:?}");
        refused("1 two 3", "two");
        refused("1.5", "1.5");
        refused("1;2", "1;2");
    }

    #[test]
    fn answers_are_found_by_the_documented_rules() {
        let check = |reply: &str, compact: bool, expected: Option<&str>| {
            assert_eq!(read_answer(reply, compact).ok().map(|l| shown(&l)).as_deref(), expected, "{reply:?}");
        };
        check("00345789", true, Some("0 0 3 4 5 7 8 9"));
        check("0034 5789\n", true, Some("0 0 3 4 5 7 8 9"));
        check("0, 0, 34", true, Some("0 0 34"));
        check("[0, 1, 2]", true, Some("0 1 2"));
        check("[012]", true, Some("0 1 2"));
        check("012", false, Some("12"));
        check("[3, 1] sorted is [1, 3].", false, Some("1 3"));
        check("The sets share {2; 3}, and {input} or {{score}} is only text here.", false, Some("2 3"));
        check("First 1, then more.\n**Answer: -3, 7, 42**.\nDone.", false, Some("-3 7 42"));
        check(" 11, 4,", false, Some("11 4"));
        check("1, 2,\n3", false, Some("1 2 3"));
        check("Answer: none", false, Some(""));
        check(" none", false, Some(""));
        check("[]", false, Some(""));
        check("\x1b[31m1, 2\x1b[0m", false, Some("1 2"));
        check("(3 numbers) I do not know", false, None);
        check("", false, None);
        check("  \n", true, None);
        check("[[[[", true, None);
        check("]]]1", true, None);
    }
}
