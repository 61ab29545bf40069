//! Evaluators: what they make of the replies, as pure functions. The controller asks; nothing here does.
//!
//! A thought's score is the product of its parts. A part without a value (no usable reply) makes the score 0, is shown as
//! what it is, and is counted; it never takes a middling default.

pub mod checker;
pub mod command;
pub mod logprob;
pub mod reply;
pub mod value;
pub mod vote;
pub mod yes_no;

use super::event::ScorePart;
use crate::strategy::{Expression, Values};

/// One evaluator's finding about one thought.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    pub evaluator: &'static str,
    pub value: Option<f64>,
    pub detail: String,
    /// Replies that could not be read.
    pub invalid: usize,
}

impl Part {
    pub fn of(evaluator: &'static str, value: f64, detail: impl Into<String>) -> Self {
        Self { evaluator, value: Some(value), detail: detail.into(), invalid: 0 }
    }

    pub fn missing(evaluator: &'static str, detail: String, invalid: usize) -> Self {
        Self { evaluator, value: None, detail, invalid }
    }
}

impl From<Part> for ScorePart {
    fn from(part: Part) -> Self {
        Self { evaluator: part.evaluator.to_string(), value: part.value, detail: part.detail }
    }
}

/// The score that counts: the product of the parts, between 0 and 1; 1 without any.
pub fn combine(parts: &[Part]) -> f64 {
    let product: f64 = parts.iter().map(|part| part.value.unwrap_or(0.0)).product();
    if product.is_nan() { 0.0 } else { product.clamp(0.0, 1.0) }
}

/// The score that a strategy's own expression makes of the parts. Puzzle and constraint have the last word: what they alone
/// judge (a whole answer, a text that was cut) is not weighed.
///
/// # Errors
/// The expression fails, or an evaluator it names gave nothing.
pub fn weigh(expression: &Expression, parts: &[Part]) -> Result<f64, String> {
    let named: Values = parts.iter().filter_map(|part| Some((part.evaluator, part.value?))).collect();
    match expression.numbers(&[named])?.first() {
        Some(Some(score)) if !score.is_nan() => Ok(score.clamp(0.0, 1.0)),
        Some(Some(_)) => Err(format!("`{}` gives no number", expression.text())),
        _ => Err(format!("`{}` needs an evaluator that gave no value", expression.text())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_multiply_and_a_missing_one_is_zero() {
        let of = |value| Part::of("checker", value, "");
        assert_eq!(combine(&[]), 1.0);
        assert_eq!(combine(&[of(0.5), of(0.5)]), 0.25);
        assert_eq!(combine(&[of(0.5), Part::missing("vote", String::new(), 1)]), 0.0);
        assert_eq!(combine(&[of(f64::NAN)]), 0.0);
    }

    #[test]
    fn an_expression_may_weigh_the_parts() {
        let score =
            |text: &str, parts: &[Part]| weigh(&Expression::new(text, crate::strategy::Scope::Parts).unwrap(), parts);
        let parts = [Part::of("checker", 1.0, ""), Part::of("value", 0.5, "")];
        assert_eq!(score("0.5 * checker + 0.5 * value", &parts), Ok(0.75));
        assert_eq!(score("checker + value", &parts), Ok(1.0), "clamped");
        assert!(score("vote", &parts).unwrap_err().contains("gave no value"));
        assert!(score("checker > 0.5", &parts).is_err());
    }
}
