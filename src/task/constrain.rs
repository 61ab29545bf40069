//! What a text may still become, for the tasks over lists: masks, never judges of right and wrong.
//!
//! - [`Choices`]: one of some whole texts; a step.
//! - [`Steps`]: a whole answer of steps that the puzzle lists.
//! - [`ListMask`]: a whole answer drawn from what is left of the input.
//! - [`Refuter`]: no mask; ends a free text in its middle once the puzzle proves that nothing can save it.
//!
//! A mask says what the puzzle *allows* (values that are left), so that a model's ranking still has to tell right from
//! wrong. A mask that knew the right answer would solve the puzzle by itself; that is why refuting is apart from masking.

use super::Puzzle;
use crate::lm::{Constraint, Judgement};
use std::sync::Arc;

/// One of these texts, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choices(Vec<String>);

impl Choices {
    /// Equal texts are kept once, in order.
    pub fn new(texts: impl IntoIterator<Item = String>) -> Self {
        let mut kept: Vec<String> = Vec::new();
        for text in texts {
            if !kept.contains(&text) {
                kept.push(text);
            }
        }
        Self(kept)
    }
}

impl Constraint for Choices {
    fn judge(&self, text: &str) -> Judgement {
        let mut exact = false;
        let mut longer = false;
        for choice in &self.0 {
            if choice == text {
                exact = true;
            } else if choice.starts_with(text) {
                longer = true;
            }
        }
        match (exact, longer) {
            (true, false) => Judgement::Closed,
            (complete, true) => Judgement::Open { complete },
            (false, false) => Judgement::Dead("not one of the choices".into()),
        }
    }

    fn choices(&self) -> Option<Vec<String>> {
        Some(self.0.clone())
    }
}

/// How a list is written in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Single digits without separators: `00345789`.
    Compact,
    /// A space before each value, a comma after each but the last: ` -3, 7, 42`.
    List,
}

impl Form {
    /// The name templates see.
    pub fn name(self) -> &'static str {
        match self {
            Self::Compact => "compact",
            Self::List => "list",
        }
    }
}

/// A list drawn from a pool of values, each as often as it is there.
#[derive(Debug, Clone)]
pub struct ListMask {
    form: Form,
    /// Distinct values as text, with how many are left.
    pool: Vec<(String, usize)>,
    /// Whether the text ends only when the pool is empty; otherwise after any whole value.
    all: bool,
    /// Whether a value stands before the text without its comma.
    after_value: bool,
    /// Whether ` none` may stand for the empty list.
    none: bool,
}

impl ListMask {
    pub fn new(form: Form, left: impl IntoIterator<Item = String>, all: bool, prefix: &str) -> Self {
        let mut pool: Vec<(String, usize)> = Vec::new();
        for value in left {
            match pool.iter_mut().find(|(known, _)| *known == value) {
                Some((_, count)) => *count += 1,
                None => pool.push((value, 1)),
            }
        }
        let prefix = prefix.trim_end();
        let after_value = form == Form::List && !prefix.is_empty() && !prefix.ends_with(',');
        Self { form, pool, all, after_value, none: !all && prefix.is_empty() }
    }

    fn judge_compact(&self, text: &str) -> Judgement {
        let mut counts: Vec<usize> = self.pool.iter().map(|(_, count)| *count).collect();
        let mut left: usize = counts.iter().sum();
        for c in text.chars() {
            let mut buffer = [0u8; 4];
            let digit: &str = c.encode_utf8(&mut buffer);
            match self.pool.iter().position(|(value, _)| value == digit) {
                Some(i) if counts[i] > 0 => counts[i] -= 1,
                _ => return Judgement::Dead(format!("`{c}` is not left")),
            }
            left -= 1;
        }
        if left == 0 { Judgement::Closed } else { Judgement::Open { complete: !self.all && !text.is_empty() } }
    }

    fn judge_list(&self, text: &str) -> Judgement {
        if self.none && !text.is_empty() && " none".starts_with(text) && text.len() > 1 {
            return if text == " none" { Judgement::Closed } else { Judgement::Open { complete: false } };
        }
        let mut counts: Vec<usize> = self.pool.iter().map(|(_, count)| *count).collect();
        let mut left: usize = counts.iter().sum();
        let mut rest = text;
        let mut after_value = self.after_value;
        loop {
            if after_value {
                if rest.is_empty() {
                    return if left == 0 { Judgement::Closed } else { Judgement::Open { complete: !self.all } };
                }
                match rest.strip_prefix(',') {
                    Some(after) if left > 0 => rest = after,
                    _ => return Judgement::Dead("a comma must follow a value".into()),
                }
            }
            if rest.is_empty() {
                // Between values: an answer to which nothing can be added any more is finished.
                let complete = !self.all && !self.none && text.is_empty();
                return if left == 0 { Judgement::Closed } else { Judgement::Open { complete } };
            }
            let Some(after) = rest.strip_prefix(' ') else {
                return Judgement::Dead("a space must stand before a value".into());
            };
            let end = after.find(|c: char| c != '-' && !c.is_ascii_digit()).unwrap_or(after.len());
            let (value, tail) = after.split_at(end);
            let exact = self.pool.iter().position(|(v, _)| v == value).filter(|&i| counts[i] > 0);
            if tail.is_empty() {
                let longer = self
                    .pool
                    .iter()
                    .zip(&counts)
                    .any(|((v, _), &count)| count > 0 && v.len() > value.len() && v.starts_with(value));
                return match (exact, longer) {
                    (Some(_), false) if left == 1 => Judgement::Closed,
                    (None, false) => Judgement::Dead(format!("`{value}` is not left")),
                    (exact, _) => Judgement::Open { complete: exact.is_some() && (!self.all || left == 1) },
                };
            }
            match exact {
                Some(i) => counts[i] -= 1,
                None => return Judgement::Dead(format!("`{value}` is not left")),
            }
            left -= 1;
            rest = tail;
            after_value = true;
        }
    }
}

impl Constraint for ListMask {
    fn judge(&self, text: &str) -> Judgement {
        match self.form {
            Form::Compact => self.judge_compact(text),
            Form::List => self.judge_list(text),
        }
    }
}

/// Whole steps, one after the other, until the puzzle allows no more.
pub struct Steps {
    puzzle: Arc<dyn Puzzle>,
    prefix: String,
}

impl Steps {
    /// For texts that continue `prefix`.
    pub fn new(puzzle: Arc<dyn Puzzle>, prefix: impl Into<String>) -> Self {
        Self { puzzle, prefix: prefix.into() }
    }
}

impl Constraint for Steps {
    fn judge(&self, text: &str) -> Judgement {
        let mut prefix = self.prefix.clone();
        let mut rest = text;
        loop {
            let steps = self.puzzle.next_steps(&prefix);
            if steps.is_empty() {
                return if rest.is_empty() {
                    Judgement::Closed
                } else {
                    Judgement::Dead("nothing is left to do".into())
                };
            }
            match steps.iter().find(|step| rest.starts_with(step.as_str())) {
                Some(step) => {
                    rest = &rest[step.len()..];
                    prefix.push_str(step);
                }
                None if steps.iter().any(|step| step.starts_with(rest)) => return Judgement::Open { complete: false },
                None => return Judgement::Dead("not a step from here".into()),
            }
        }
    }
}

/// Ends a free text once the puzzle proves it wrong ([`Puzzle::refute`]); forbids nothing beforehand.
pub struct Refuter {
    puzzle: Arc<dyn Puzzle>,
    prefix: String,
}

impl Refuter {
    /// For texts that continue `prefix`.
    pub fn new(puzzle: Arc<dyn Puzzle>, prefix: impl Into<String>) -> Self {
        Self { puzzle, prefix: prefix.into() }
    }
}

impl Constraint for Refuter {
    fn judge(&self, text: &str) -> Judgement {
        match self.puzzle.refute(&format!("{}{text}", self.prefix)) {
            Some(why) => Judgement::Dead(why),
            None => Judgement::Open { complete: true },
        }
    }

    fn masks(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(String::from).collect()
    }

    fn open(complete: bool) -> Judgement {
        Judgement::Open { complete }
    }

    #[test]
    fn choices_open_and_close() {
        let choices = Choices::new(words("7, 70, 8, 8,"));
        assert_eq!(choices.choices().unwrap().len(), 3);
        assert_eq!(choices.judge(""), open(false));
        assert_eq!(choices.judge("7"), open(false));
        assert_eq!(choices.judge("70,"), Judgement::Closed);
        assert!(matches!(choices.judge("9"), Judgement::Dead(_)));
        let nested = Choices::new(words("7 70"));
        assert_eq!(nested.judge("7"), open(true));
    }

    #[test]
    fn digits_are_drawn_from_what_is_left() {
        let mask = ListMask::new(Form::Compact, words("0 0 3"), true, "1");
        assert_eq!(mask.judge(""), open(false));
        assert_eq!(mask.judge("30"), open(false));
        assert_eq!(mask.judge("300"), Judgement::Closed);
        for dead in ["000", "1", " ", "3003", "a", "é"] {
            assert!(matches!(mask.judge(dead), Judgement::Dead(_)), "{dead}");
        }
    }

    #[test]
    fn lists_are_drawn_from_what_is_left() {
        let mask = ListMask::new(Form::List, words("7 70 -3 7"), true, "");
        let check = |text: &str, expected: Judgement| assert_eq!(mask.judge(text), expected, "{text:?}");
        check("", open(false));
        check(" ", open(false));
        check(" 7", open(false));
        check(" 7,", open(false));
        check(" -", open(false));
        check(" 7, 7, -3, 7", open(false));
        check(" 7, 7, -3, 70", Judgement::Closed);
        check(" 70, 7, -3, 7", Judgement::Closed);
        for dead in ["7", " 8", " 7, 7, 7,", " 7 ", " 7,,", " none", " 7, 7, -3, 70,", " 70, 70"] {
            assert!(matches!(mask.judge(dead), Judgement::Dead(_)), "{dead}");
        }
        let after = ListMask::new(Form::List, words("8 9"), true, " 7");
        assert_eq!(after.judge(""), open(false));
        assert_eq!(after.judge(", 8, 9"), Judgement::Closed);
        assert!(matches!(after.judge(" 8"), Judgement::Dead(_)));
    }

    #[test]
    fn a_set_may_end_after_any_value_or_be_none() {
        let mask = ListMask::new(Form::List, words("7 70"), false, "");
        assert_eq!(mask.judge(" 7"), open(true));
        assert_eq!(mask.judge(" 70"), open(true));
        assert_eq!(mask.judge(" 7,"), open(false));
        assert_eq!(mask.judge(" 7, 70"), Judgement::Closed);
        assert_eq!(mask.judge(" no"), open(false));
        assert_eq!(mask.judge(" none"), Judgement::Closed);
        assert!(matches!(mask.judge(" none,"), Judgement::Dead(_)));
        let later = ListMask::new(Form::List, words("70"), false, " 7,");
        assert_eq!(later.judge(" 70"), Judgement::Closed);
        assert!(matches!(later.judge(" none"), Judgement::Dead(_)));
    }
}
