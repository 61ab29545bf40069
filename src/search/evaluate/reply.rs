//! Reading a judge's reply: a score, a label or a vote. What cannot be read without guessing is refused with the reason;
//! nothing is ever defaulted, because a default ranks the best thought wherever it happens to fall.
//!
//! The rules are deliberately narrow. A number counts if it is labelled (`Score: 7`), or if it is the only one in the
//! reply. A label counts if the last line that has one has no other. A vote counts if the reply says which candidate is
//! best, or is nothing but a number. Everything is a pure function of the text and never panics on any text.

use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

/// Both ends of a scale, inclusive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    pub low: f64,
    pub high: f64,
}

/// A score as read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score {
    /// Within the scale.
    pub value: f64,
    /// What the reply said where it lay outside the scale.
    pub clamped_from: Option<f64>,
}

/// One number of a text, with what stands directly around it.
struct Number {
    value: f64,
    /// `/ 10`, `out of 100`, `%`.
    of: Option<f64>,
    /// `score:`, `value is`, … stands before it.
    labelled: bool,
}

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a fixed pattern is valid")
}

static NUMBER: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"(?i)(?P<label>\b(?:value|score|rating|grade|points)\b[*_`]*(?:\s*\([^)\n]*\))?\s*(?:is|of|[:=])?\s*[*_`]*\s*)?(?P<number>[-+−]?(?:\d+(?:\.\d+)?|\.\d+)(?:e[-+]?\d+)?)(?P<of>\s*%|\s*(?:/|out\s+of)\s*(?P<whole>\d+(?:\.\d+)?))?",
    )
});

/// Reads a score on `scale`: a plain number as it stands, `a/b`, `a out of b` and `a %` as a share of the scale.
pub fn score(reply: &str, scale: Scale) -> Result<Score, String> {
    let mut numbers = numbers(reply);
    if numbers.iter().any(|n| n.labelled) {
        numbers.retain(|n| n.labelled);
    }
    let first = numbers.first().ok_or("no number in the reply")?;
    let value = place(first, scale)?;
    for other in &numbers[1..] {
        if place(other, scale)? != value {
            return Err(format!("{} different numbers in the reply", numbers.len()));
        }
    }
    let clamped = value.clamp(scale.low, scale.high);
    Ok(Score { value: clamped, clamped_from: (clamped != value).then_some(value) })
}

/// Where a number lies on the scale; may be outside it.
fn place(number: &Number, scale: Scale) -> Result<f64, String> {
    let value = match number.of {
        None => number.value,
        Some(whole) if whole == scale.high => number.value,
        Some(whole) => scale.low + number.value / whole * (scale.high - scale.low),
    };
    if value.is_finite() { Ok(value) } else { Err("the number in the reply is not finite".into()) }
}

fn numbers(text: &str) -> Vec<Number> {
    let mut found = Vec::new();
    for captures in NUMBER.captures_iter(text) {
        let (Some(all), Some(number)) = (captures.get(0), captures.name("number")) else { continue };
        let before = text[..number.start()].chars().next_back();
        let after = text[all.end()..].chars().next();
        // `step2` and `8th` are words, not numbers.
        let word = |c: char| c.is_alphabetic() || c == '_';
        if before.is_some_and(word) || after.is_some_and(word) {
            continue;
        }
        // Neither `7-8` nor `2.1.3` says one number: unreadable rather than a guess.
        let joined = before.is_some_and(|c| c.is_numeric() || c == '.')
            || (after == Some('.') && text[all.end() + 1..].starts_with(|c: char| c.is_ascii_digit()));
        let value = if joined { f64::NAN } else { number.as_str().replace('−', "-").parse().unwrap_or(f64::NAN) };
        let of = captures.name("of").map(|of| match captures.name("whole") {
            Some(whole) => whole.as_str().parse().unwrap_or(f64::NAN),
            None if of.as_str().trim() == "%" => 100.0,
            None => f64::NAN,
        });
        found.push(Number { value, of, labelled: captures.name("label").is_some() });
    }
    found
}

/// Reads which of `labels` a reply gives, and its weight. Letter case does not count; a longer label wins over a shorter
/// one at the same place; a label after `not` is no answer.
pub fn label<'a>(reply: &str, labels: &'a BTreeMap<String, f64>) -> Result<(&'a str, f64), String> {
    for line in reply.lines().rev() {
        let found = labels_in(line, labels)?;
        match found.len() {
            0 => continue,
            1 => {
                let name = found.first().copied().unwrap_or_default();
                return Ok((name, labels.get(name).copied().unwrap_or(0.0)));
            }
            _ => {
                let names: Vec<&str> = found.into_iter().collect();
                return Err(format!("several labels in one line: {}", names.join(", ")));
            }
        }
    }
    Err("none of the labels in the reply".into())
}

fn labels_in<'a>(line: &str, labels: &'a BTreeMap<String, f64>) -> Result<BTreeSet<&'a str>, String> {
    let line = line.to_lowercase();
    let mut ordered: Vec<&str> = labels.keys().map(String::as_str).filter(|name| !name.trim().is_empty()).collect();
    ordered.sort_by_key(|name| std::cmp::Reverse(name.len()));
    let mut found = BTreeSet::new();
    let mut at = 0;
    while at < line.len() {
        let rest = &line[at..];
        let starts_word = line[..at].chars().next_back().is_none_or(|c| !c.is_alphanumeric());
        let hit = ordered.iter().find_map(|name| {
            let lower = name.to_lowercase();
            let ends_word = || rest[lower.len()..].chars().next().is_none_or(|c| !c.is_alphanumeric());
            (starts_word && rest.starts_with(&lower) && ends_word()).then_some((*name, lower.len()))
        });
        match hit {
            Some((name, len)) => {
                let last = line[..at].split_whitespace().next_back().unwrap_or_default();
                if matches!(last, "not" | "never") || last.ends_with("n't") || last.ends_with("n’t") {
                    return Err(format!("the reply denies `{name}` and names no other label"));
                }
                found.insert(name);
                at += len;
            }
            None => at += rest.chars().next().map_or(1, char::len_utf8),
        }
    }
    Ok(found)
}

static STATED: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"(?i)\b(?:(?:best|final|chosen|winning)(?:\s+(?:choice|option|candidate|answer|thought|one))?|choice|vote|answer)\s*(?:is|goes\s+to|:|=)\s*[*_`(\[]*(?:(?:choice|option|candidate|thought|number|no\.)\s*)?#?(?P<number>\d+)\b",
    )
});
static BEST: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"(?i)\b(?:choice|option|candidate|thought)\s*#?(?P<number>\d+)\s+(?:is|seems|looks)\s+(?:clearly\s+)?(?:the\s+)?best\b",
    )
});
static BARE: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"(?i)^[\s*_`(\[]*(?:i\s+)?(?:(?:vote|pick|choose|select|prefer)(?:\s+for)?\s+)?(?:(?:choice|option|candidate|thought|number|no\.)\s*)?#?(?P<number>\d+)[\s*_`)\].!]*$",
    )
});
static MORE: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?i)^[*_`)\]]*(?:\s*(?:or|and|,|/|&|-|–|\+)\s*#?\d|\.\d)"));

/// Reads which of the candidates 1 to `candidates` a reply votes for.
pub fn vote(reply: &str, candidates: usize) -> Result<usize, String> {
    let mut named = BTreeSet::new();
    for stated in [&*STATED, &*BEST, &*BARE] {
        for captures in stated.captures_iter(reply) {
            let Some(number) = captures.name("number") else { continue };
            if MORE.is_match(&reply[number.end()..]) {
                return Err("the reply names several candidates".into());
            }
            named.insert(number.as_str().trim_start_matches('0').to_string());
        }
    }
    let mut named = named.into_iter();
    let (Some(number), None) = (named.next(), named.next()) else {
        return Err("the reply does not name one candidate".into());
    };
    match number.parse::<usize>() {
        Ok(number) if (1..=candidates).contains(&number) => Ok(number),
        _ => Err(format!("candidate {number} does not exist: there are {candidates}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::testing::case_replies;
    use proptest::prelude::*;

    const TEN: Scale = Scale { low: 0.0, high: 10.0 };
    const ONE: Scale = Scale { low: 0.0, high: 1.0 };

    fn labels() -> BTreeMap<String, f64> {
        [("sure", 20.0), ("likely", 1.0), ("very likely", 5.0), ("impossible", 0.001)]
            .into_iter()
            .map(|(name, weight)| (name.to_string(), weight))
            .collect()
    }

    #[test]
    fn scores_are_the_intended_number_or_invalid() {
        let check = |reply: &str, scale: Scale, expected: Option<f64>| {
            let read = score(reply, scale).ok();
            assert_eq!(read.map(|s| s.value), expected, "{reply:?}");
            assert_eq!(read.and_then(|s| s.clamped_from), None, "{reply:?}");
        };
        check("2.0", TEN, Some(2.0));
        check("5", TEN, Some(5.0));
        check("Score: 8/10", TEN, Some(8.0));
        check("Score: 8/10", ONE, Some(0.8));
        check("0.85", ONE, Some(0.85));
        check(".85", ONE, Some(0.85));
        check("85.5 out of 100", ONE, Some(0.855));
        check("85.5 out of 100", TEN, Some(8.55));
        check("Confidence 100%. Value: 0.1", ONE, Some(0.1));
        check("**Score:** 7", TEN, Some(7.0));
        check("Rating (0-10): 7.", TEN, Some(7.0));
        check("The value is 3.", TEN, Some(3.0));
        check("85 %", TEN, Some(8.5));
        check("4/5", Scale { low: 1.0, high: 5.0 }, Some(4.0));
        check("score: 3, so the score is 3.0", TEN, Some(3.0));
        for unreadable in [
            "",
            "no score given",
            "(no score given)",
            "1e400",
            "7-8",
            "7 or 8",
            "score: 3; score: 4",
            "8/0",
            "v2.1.3",
            "NaN",
            "inf",
        ] {
            check(unreadable, TEN, None);
        }
    }

    #[test]
    fn scores_outside_the_scale_are_clamped_and_say_so() {
        let check = |reply: &str, scale, value, from| {
            assert_eq!(score(reply, scale), Ok(Score { value, clamped_from: Some(from) }), "{reply:?}");
        };
        check("-1", TEN, 0.0, -1.0);
        check("−1", ONE, 0.0, -1.0);
        check("Score: 12/10", TEN, 10.0, 12.0);
        check("5", ONE, 1.0, 5.0);
    }

    #[test]
    fn the_score_cases_from_the_field_give_a_number_a_reported_clamp_or_invalid() {
        let Some(replies) = case_replies("43_scores.reply.txt") else { return };
        let read = |scale| -> Vec<Option<(f64, bool)>> {
            let read = |r: &String| score(r, scale).ok().map(|s| (s.value, s.clamped_from.is_some()));
            replies.iter().map(read).collect()
        };
        let plain = |value| Some((value, false));
        let ten = [plain(2.0), plain(5.0), plain(8.0), plain(0.85), plain(8.55), plain(0.1), Some((0.0, true)), None];
        assert_eq!(read(TEN), ten);
        let clamped = Some((1.0, true));
        let one = [clamped, clamped, plain(0.8), plain(0.85), plain(0.855), plain(0.1), Some((0.0, true)), None];
        assert_eq!(read(ONE), one);
    }

    #[test]
    fn a_label_counts_where_it_stands_alone() {
        let labels = labels();
        let check = |reply: &str, expected: Option<&str>| {
            assert_eq!(label(reply, &labels).ok().map(|(name, _)| name), expected, "{reply:?}");
        };
        check("sure", Some("sure"));
        check("Sure.", Some("sure"));
        check("10 + 14 = 24\nsure", Some("sure"));
        check("this could be likely\nwell\nimpossible!\n\n", Some("impossible"));
        check("very likely", Some("very likely"));
        check("unlikely", None);
        check("not likely", None);
        check("it isn't impossible", None);
        check("sure or likely", None);
        check("assured", None);
        check("", None);
        check("maybe", None);
    }

    #[test]
    fn only_an_unambiguous_vote_counts() {
        let check = |reply: &str, expected: Option<usize>| assert_eq!(vote(reply, 3).ok(), expected, "{reply:?}");
        for good in [
            "The best choice is 2",
            "2",
            " (2). ",
            "I vote for 2",
            "candidate #2",
            "best choice: **2**",
            "Choice 1 is not sorted.\nThe best choice is 2.",
            "Option 2 is the best.",
            "answer: 02",
        ] {
            check(good, Some(2));
        }
        for bad in [
            "Neither.",
            "Both 1 and 3 look fine, hard to say",
            "best choice: 7",
            "",
            "0",
            "2 or 3",
            "The best choice is 2 or 3",
            "The best choice is 2/3",
            "The best choice is 2.5",
            "There are 3 candidates, none is good",
            "The best choice is not 2",
            "The best choice is 1. The best choice is 2.",
            "99999999999999999999999",
            "-2",
            "choice two",
        ] {
            check(bad, None);
        }
    }

    #[test]
    fn the_vote_cases_from_the_field_hold_one_vote() {
        let Some(replies) = case_replies("39_votes.reply.txt") else { return };
        let votes: Vec<Option<usize>> = replies.iter().map(|r| vote(r, 3).ok()).collect();
        assert_eq!(votes, [Some(2), None, None, None, None]);
    }

    proptest! {
        #[test]
        fn no_text_makes_a_reader_panic(text in "\\PC*|[-+−0-9./%e \\n]*|(best|choice|is|score|:|sure|not|n't|é|İ|ß| |[0-9])*") {
            let labels = labels();
            for scale in [TEN, ONE] {
                if let Ok(read) = score(&text, scale) {
                    prop_assert!((scale.low..=scale.high).contains(&read.value));
                }
            }
            let _ = label(&text, &labels);
            if let Ok(vote) = vote(&text, 3) {
                prop_assert!((1..=3).contains(&vote));
            }
        }

        #[test]
        fn a_plain_number_is_read_as_itself(value in -1e6f64..1e6) {
            let scale = Scale { low: -1e6, high: 1e6 };
            for text in [format!("{value}"), format!("Score: {value}"), format!("value = {value}.")] {
                prop_assert_eq!(score(&text, scale).map(|s| s.value), Ok(value));
            }
        }
    }
}
