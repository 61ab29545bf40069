//! Integers of any length and sign, kept as normalised decimal text and compared as numbers.
//!
//! Refuses arithmetic: puzzles over lists only order, count and print their values.

use serde_json::Value;
use std::cmp::Ordering;
use std::fmt;

/// An integer without a limit: `-0`, `+7` and `007` are read and become `0`, `7` and `7`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Number {
    negative: bool,
    /// ASCII digits without leading zeros; `0` is not negative.
    digits: Box<str>,
}

impl Number {
    /// Reads an optional sign and ASCII digits, and nothing else.
    pub fn read(text: &str) -> Option<Self> {
        let (negative, digits) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let digits = match digits.trim_start_matches('0') {
            "" => "0",
            rest => rest,
        };
        Some(Self { negative: negative && digits != "0", digits: digits.into() })
    }

    /// Whether it is one of 0 to 9, so that a list of such numbers can be written without separators.
    pub fn is_digit(&self) -> bool {
        !self.negative && self.digits.len() == 1
    }

    /// A JSON number where it fits 64 bits, else its decimal text: a JSON number would lose digits in most readers.
    pub fn to_json(&self) -> Value {
        let text = self.to_string();
        text.parse::<i64>()
            .map(Value::from)
            .or_else(|_| text.parse::<u64>().map(Value::from))
            .unwrap_or(Value::String(text))
    }
}

impl From<i64> for Number {
    fn from(value: i64) -> Self {
        Self { negative: value < 0, digits: value.unsigned_abs().to_string().into() }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.negative { "-" } else { "" }, self.digits)
    }
}

impl Ord for Number {
    fn cmp(&self, other: &Self) -> Ordering {
        let size = |a: &Self, b: &Self| a.digits.len().cmp(&b.digits.len()).then_with(|| a.digits.cmp(&b.digits));
        match (self.negative, other.negative) {
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
            (false, false) => size(self, other),
            (true, true) => size(other, self),
        }
    }
}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn signs_and_zeros_are_normalised_and_all_else_is_refused() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(Number::read(text).map(|n| n.to_string()).as_deref(), expected, "{text:?}");
        };
        check("0", Some("0"));
        check("-0", Some("0"));
        check("+007", Some("7"));
        check("-00012", Some("-12"));
        check("123456789012345678901234567890", Some("123456789012345678901234567890"));
        for bad in ["", "-", "+", "--1", "1.0", "1e3", "1_000", " 1", "0x1", "١", "−1", "½"] {
            check(bad, None);
        }
    }

    #[test]
    fn numbers_beyond_64_bits_become_json_text() {
        let json = |text: &str| Number::read(text).unwrap().to_json();
        assert_eq!(json("-9223372036854775808"), Value::from(i64::MIN));
        assert_eq!(json("18446744073709551615"), Value::from(u64::MAX));
        assert_eq!(json("18446744073709551616"), Value::from("18446744073709551616"));
    }

    proptest! {
        #[test]
        fn order_is_that_of_integers(a: i128, b: i128) {
            let read = |n: i128| Number::read(&n.to_string()).unwrap();
            prop_assert_eq!(read(a).cmp(&read(b)), a.cmp(&b));
        }
    }
}
