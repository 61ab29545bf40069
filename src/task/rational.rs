//! Exact fractions, and reading arithmetic over them. What does not fit 128 bits is no value rather than a wrong one.

use std::fmt;

/// A fraction in lowest terms with a denominator above 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rational {
    num: i128,
    den: i128,
}

impl Rational {
    /// `None` for a denominator of 0, and where a term does not fit.
    pub fn new(num: i128, den: i128) -> Option<Self> {
        let divisor = i128::try_from(gcd(num.unsigned_abs(), den.unsigned_abs())).ok()?;
        let sign = den.signum();
        match sign {
            0 => None,
            _ => Some(Self { num: (num / divisor).checked_mul(sign)?, den: (den / divisor).checked_mul(sign)? }),
        }
    }

    pub fn whole(value: i64) -> Self {
        Self { num: value.into(), den: 1 }
    }

    /// `+ - * /`; `None` for other signs, a division by 0, and what does not fit.
    pub fn apply(self, operator: char, other: Self) -> Option<Self> {
        let cross = |a: i128, b: i128| a.checked_mul(b);
        match operator {
            '+' => Self::new(
                cross(self.num, other.den)?.checked_add(cross(other.num, self.den)?)?,
                cross(self.den, other.den)?,
            ),
            '-' => Self::new(
                cross(self.num, other.den)?.checked_sub(cross(other.num, self.den)?)?,
                cross(self.den, other.den)?,
            ),
            '*' => Self::new(cross(self.num, other.num)?, cross(self.den, other.den)?),
            '/' => Self::new(cross(self.num, other.den)?, cross(self.den, other.num)?),
            _ => None,
        }
    }

    /// `7`, `-7` or `8/3`, and nothing around it.
    pub fn read(text: &str) -> Option<Self> {
        match text.split_once('/') {
            Some((num, den)) => Self::new(num.parse().ok()?, den.parse().ok()?),
            None => Self::new(text.parse().ok()?, 1),
        }
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

impl fmt::Display for Rational {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.den == 1 { write!(f, "{}", self.num) } else { write!(f, "{}/{}", self.num, self.den) }
    }
}

/// The value of an expression with `+ - * /` and parentheses, and the numbers it is made of, in order. A fraction without
/// spaces (`8/3`) is one number where it is one of `known`, else a division.
pub fn evaluate(text: &str, known: &[Rational]) -> Option<(Rational, Vec<Rational>)> {
    // `×`, `·` and `÷` are what models write for `*` and `/`.
    let text = text.replace(['×', '·'], "*").replace('÷', "/").replace('−', "-");
    let mut reader = Reader { rest: &text, known, numbers: Vec::new(), depth: 0 };
    let value = reader.sum()?;
    reader.rest.trim().is_empty().then_some((value, reader.numbers))
}

struct Reader<'a> {
    rest: &'a str,
    known: &'a [Rational],
    numbers: Vec<Rational>,
    depth: usize,
}

impl Reader<'_> {
    fn take(&mut self, operators: &[char]) -> Option<char> {
        self.rest = self.rest.trim_start();
        let operator = self.rest.chars().next().filter(|c| operators.contains(c))?;
        self.rest = &self.rest[operator.len_utf8()..];
        Some(operator)
    }

    fn sum(&mut self) -> Option<Rational> {
        let mut value = self.product()?;
        while let Some(operator) = self.take(&['+', '-']) {
            value = value.apply(operator, self.product()?)?;
        }
        Some(value)
    }

    fn product(&mut self) -> Option<Rational> {
        let mut value = self.operand()?;
        while let Some(operator) = self.take(&['*', '/']) {
            value = value.apply(operator, self.operand()?)?;
        }
        Some(value)
    }

    fn operand(&mut self) -> Option<Rational> {
        if self.take(&['(']).is_some() {
            self.depth += 1;
            let value = if self.depth > 16 { None } else { self.sum() }?;
            self.depth -= 1;
            return self.take(&[')']).map(|_| value);
        }
        self.rest = self.rest.trim_start();
        let sign = usize::from(self.rest.starts_with('-'));
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let whole = sign + digits(&self.rest[sign..]);
        let mut end = whole;
        if self.rest[whole..].starts_with('/') {
            let den = digits(&self.rest[whole + 1..]);
            let fraction = Rational::read(&self.rest[..whole + 1 + den]);
            if den > 0 && fraction.is_some_and(|fraction| self.known.contains(&fraction)) {
                end = whole + 1 + den;
            }
        }
        let value = Rational::read(&self.rest[..end])?;
        self.rest = &self.rest[end..];
        self.numbers.push(value);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn expressions_are_exact() {
        let check = |text: &str, expected: Option<&str>| {
            let third = Rational::new(8, 3).unwrap();
            assert_eq!(evaluate(text, &[third]).map(|(v, _)| v.to_string()).as_deref(), expected, "{text}");
        };
        check("8 / (3 - 8/3)", Some("24"));
        check("1 * 2 * 3 * 4", Some("24"));
        check("2 + 3 * 4", Some("14"));
        check("10 − 4 ÷ 2 × 3", Some("4"));
        check("-3 - -5", Some("2"));
        check("1 / 0", None);
        check("1 / (2 - 2)", None);
        check("(1 + 2", None);
        check("1 +", None);
        check("1 2", None);
        check("", None);
        check(&"(".repeat(10_000), None);
        check("170141183460469231731687303715884105727 + 1", None);
        assert_eq!(evaluate("8/3 + 6/2", &[Rational::new(8, 3).unwrap()]).unwrap().1.len(), 3);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[-0-9()+*/ é]{0,60}") {
            let _ = evaluate(&text, &[Rational::whole(1)]);
        }
    }
}
