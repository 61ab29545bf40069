//! Keyword counting: how often each country is named in a text.
//!
//! The error score is Graph of Thoughts': the sum over all countries of how far their counts are off; 100 where the reply
//! cannot be read. (Besta et al., AAAI 2024; github.com/spcl/graph-of-thoughts, examples/keyword_counting.) A country is named
//! where one of [`COUNTRIES`](counts::COUNTRIES) stands as whole words, the longest at each place (`South Korea` is no `Korea`); this gives the
//! counts of that project's column on every row of its data. The generator writes sentences that name countries in pairs
//! that come again, as those texts do.
//!
//! A step is the next country of the text, in the order in which they first appear, with its count. What may come next is
//! that country with any small count; which count is right only the checker knows. The score of a beginning is graded:
//! 1 / (1 + errors).

mod counts;

use super::constrain::Steps;
use super::data::{self, Columns, Holds};
use super::{Partial, Puzzle, Task, Verdict, check_size, cut};
use crate::base::text::{counted, sanitize_line};
use crate::base::{Error, Result, rng};
use crate::lm::Constraint;
use counts::{COUNTRIES, Counts, count, listed, said, write, written};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// Error score of a reply that holds no counts.
pub const UNREADABLE: u64 = 100;

/// The step that says that no country is named.
const NONE: &str = " none";

const COLUMNS: Columns<'_> =
    Columns { id: &["ID"], inputs: &[&["Text", "input"]], answer: &["Countries", "answer"], holds: Holds::Texts };

/// The task.
pub struct KeywordCounting;

impl Task for KeywordCounting {
    fn name(&self) -> &str {
        "keyword-counting"
    }

    fn about(&self) -> &str {
        "count how often each country is named in a text"
    }

    fn default_strategy(&self) -> &str {
        "tot-bfs"
    }

    fn input_forms(&self) -> &str {
        "a text that names countries, such as `Ana left Peru for Chile and came back to Peru.`"
    }

    fn example(&self) -> &str {
        "Ana left Peru for Chile and came back to Peru. In Chile she had met a painter from Norway."
    }

    fn inputs(&self) -> Vec<(&str, &str)> {
        vec![
            ("puzzle.len", "how many countries the text names, and so how many steps an answer takes"),
            ("puzzle.input", "the text on one line"),
            ("puzzle.examples", "solved examples of one sentence each: a list of {input, output}"),
        ]
    }

    fn default_size(&self) -> usize {
        4
    }

    fn generate(&self, size: usize, seed: u64) -> Result<Arc<dyn Puzzle>> {
        check_size(self.name(), size)?;
        let mut rng = rng::stream(seed, "puzzle", &[rng::part(self.name()), size as u64]);
        Ok(Arc::new(TextPuzzle::new(format!("{seed}-{size}"), &write(size, &mut rng), None)))
    }

    fn parse(&self, input: &str) -> Result<Arc<dyn Puzzle>> {
        if input.trim().is_empty() {
            let forms = self.input_forms();
            return Err(Error::input(format!("input for keyword-counting: is empty; write {forms}")));
        }
        Ok(Arc::new(TextPuzzle::new("input".into(), input, None)))
    }

    fn read_data(&self, path: &Path) -> Result<Vec<Arc<dyn Puzzle>>> {
        data::read(path, &COLUMNS)?
            .into_iter()
            .map(|row| {
                if row.inputs[0].trim().is_empty() {
                    return Err(row.refuse(&COLUMNS, 0, "is blank; write a text that names countries"));
                }
                let expected = row.answer.as_deref().map(|text| listed(text).unwrap_or_default());
                Ok(Arc::new(TextPuzzle::new(row.id, &row.inputs[0], expected)) as Arc<dyn Puzzle>)
            })
            .collect()
    }
}

#[derive(Clone)]
struct TextPuzzle {
    id: String,
    text: String,
    truth: Counts,
    /// The data's own column; `None` where there is none.
    expected: Option<Counts>,
}

impl TextPuzzle {
    fn new(id: String, text: &str, expected: Option<Counts>) -> Self {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let truth = count(&text);
        Self { id, text, truth, expected }
    }

    fn sentences(&self) -> Vec<&str> {
        self.text.split_inclusive(['.', '!', '?']).filter(|part| !part.trim().is_empty()).collect()
    }

    /// Counts of a beginning, and whether it says that there are none.
    fn steps_of(prefix: &str) -> Option<(Counts, bool)> {
        match prefix.trim().trim_end_matches(',') {
            "" => Some((Counts::new(), false)),
            text => said(text).map(|counts| {
                let none = counts.is_empty();
                (counts, none)
            }),
        }
    }

    fn of<'a>(counts: &'a Counts, name: &str) -> Option<&'a u64> {
        counts.iter().find(|(known, _)| known == name).map(|(_, count)| count)
    }

    /// How far the counts of these countries are off.
    fn off(truth: &Counts, said: &Counts) -> u64 {
        said.iter()
            .map(|(name, count)| count.abs_diff(Self::of(truth, name).copied().unwrap_or(0)))
            .fold(0, u64::saturating_add)
    }

    /// Errors of a beginning: counts that are off, and countries that were left out before others.
    fn faults(&self, said: &Counts) -> (u64, u64) {
        let place = |name: &str| self.truth.iter().position(|(known, _)| known == name);
        let last = said.iter().filter_map(|(name, _)| place(name)).max();
        let skipped =
            self.truth.iter().take(last.unwrap_or(0)).filter(|(name, _)| Self::of(said, name).is_none()).count();
        (Self::off(&self.truth, said), skipped as u64)
    }
}

impl Puzzle for TextPuzzle {
    fn task(&self) -> &str {
        "keyword-counting"
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn title(&self) -> String {
        let short: String = sanitize_line(&self.text).chars().take(60).collect();
        format!("count the countries in: {short}{}", if self.text.chars().count() > 60 { "…" } else { "" })
    }

    fn inputs(&self) -> Value {
        json!({"puzzle": {"len": self.len(), "input": self.text, "examples": examples()}})
    }

    fn len(&self) -> usize {
        self.truth.len().max(1)
    }

    fn size(&self) -> usize {
        self.sentences().len().max(1)
    }

    fn check(&self, answer: &str) -> Verdict {
        let Some(said) = said(answer) else {
            let why = format!("unreadable: no counts such as `Peru: 2` in the reply; counted as {UNREADABLE} errors");
            return Verdict { error_score: UNREADABLE, answer: None, why };
        };
        let missing: u64 =
            self.truth.iter().filter(|(name, _)| Self::of(&said, name).is_none()).map(|(_, count)| count).sum();
        let error_score = Self::off(&self.truth, &said).saturating_add(missing);
        let why = match error_score {
            0 => "right: every country with its count".to_string(),
            errors => format!("wrong: counts are off by {errors}"),
        };
        let answer = said.iter().map(|(name, count)| (name.clone(), json!(count))).collect();
        Verdict { error_score, answer: Some(Value::Object(answer)), why }
    }

    fn check_partial(&self, prefix: &str) -> Partial {
        let Some((said, none)) = Self::steps_of(prefix) else {
            return Partial::Wrong { score: 1.0 / (1.0 + UNREADABLE as f64), why: "no counts in it".into() };
        };
        if none && !self.truth.is_empty() {
            let all: u64 = self.truth.iter().map(|(_, count)| count).sum();
            return Partial::Wrong { score: 1.0 / (1.0 + all as f64), why: "the text names countries".into() };
        }
        match self.faults(&said) {
            (0, 0) => {
                let complete = none || (said.len() == self.truth.len() && !said.is_empty());
                Partial::Possible { score: 1.0, complete }
            }
            (off, skipped) => {
                let score = 1.0 / (1.0 + off.saturating_add(skipped) as f64);
                let parts = [(off, "off by"), (skipped, "left out:")];
                let why: Vec<String> =
                    parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{what} {n}")).collect();
                Partial::Wrong { score, why: why.join(", ") }
            }
        }
    }

    fn solved(&self, answer: &str) -> bool {
        let Some(expected) = &self.expected else { return self.check(answer).error_score == 0 };
        let sorted = |mut counts: Counts| {
            counts.retain(|(_, count)| *count > 0);
            counts.sort();
            counts
        };
        !expected.is_empty() && said(answer).is_some_and(|said| sorted(said) == sorted(expected.clone()))
    }

    fn next_steps(&self, prefix: &str) -> Vec<String> {
        let Some((said, none)) = Self::steps_of(prefix) else { return Vec::new() };
        if self.truth.is_empty() && said.is_empty() && !none {
            return vec![NONE.to_string()];
        }
        let Some((name, _)) = self.truth.iter().find(|(name, _)| Self::of(&said, name).is_none()).filter(|_| !none)
        else {
            return Vec::new();
        };
        // As many as the whole text could hold of any country, so that the list does not tell the count.
        let most = self.truth.iter().map(|(_, count)| *count).max().unwrap_or(1).max(4);
        (1..=most).map(|count| format!(" {name}: {count},")).collect()
    }

    fn answer_constraint(&self, prefix: &str) -> Arc<dyn Constraint> {
        Arc::new(Steps::new(Arc::new(self.clone()), prefix))
    }

    /// Runs of sentences.
    fn split(&self, parts: usize) -> Option<Vec<String>> {
        Some(cut(&self.sentences(), parts)?.into_iter().map(|run| run.concat().trim().to_string()).collect())
    }

    fn join(&self, parts: &[String]) -> Option<String> {
        Some(parts.join(" "))
    }

    fn state_key(&self, prefix: &str) -> String {
        match Self::steps_of(prefix) {
            Some((_, true)) => "none".into(),
            Some((mut said, false)) => {
                said.sort();
                written(&said)
            }
            None => format!("unreadable {}", prefix.trim()),
        }
    }

    /// Only a bare list of pairs is judged, and of it only what a comma has finished.
    fn refute(&self, text: &str) -> Option<String> {
        let whole = &text[..text.rfind(',')?];
        let bare = whole.split(',').all(|pair| {
            pair.split_once(':').is_some_and(|(name, count)| {
                COUNTRIES.split('|').any(|known| known == name.trim()) && count.trim().parse::<u64>().is_ok()
            })
        });
        let off = Self::off(&self.truth, &said(whole).filter(|_| bare)?);
        (off > 0).then(|| format!("off by {}", counted(off, "count", "counts")))
    }
}

/// Solved examples for few-shot prompts: the same for every puzzle, so that all share the prompt's beginning.
fn examples() -> Vec<Value> {
    let mut rng = rng::stream(0, "examples", &[rng::part("keyword-counting")]);
    (0..12)
        .map(|at| {
            let text = write(1 + at % 2, &mut rng);
            json!({"input": text, "output": written(&count(&text))})
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::counts::add;
    use super::*;
    use crate::base::testing::shared;
    use crate::lm::Judgement;
    use proptest::prelude::*;

    fn puzzle(text: &str) -> Arc<dyn Puzzle> {
        KeywordCounting.parse(text).unwrap()
    }

    #[test]
    fn countries_are_whole_words_and_the_longest_of_them() {
        let check = |text: &str, expected: &str| assert_eq!(written(&count(text)), expected, "{text}");
        check("Peru and Chile; Peru's coast, Peruvian food.", "Peru: 2, Chile: 1");
        check(
            "South Korea, North Korea, Guinea-Bissau, Papua New Guinea, Nigeria and Niger",
            "South Korea: 1, North Korea: 1, Guinea-Bissau: 1, Papua New Guinea: 1, Nigeria: 1, Niger: 1",
        );
        check("Chilean, INDIA, Romania-n", "Romania: 1");
        check("", "");
    }

    #[test]
    fn replies_are_read_as_json_or_as_pairs() {
        let puzzle = puzzle("Peru, Peru and South Korea.");
        let check = |reply: &str, errors: u64| assert_eq!(puzzle.check(reply).error_score, errors, "{reply}");
        check(r#"Output: {"Peru": 2, "South Korea": 1}"#, 0);
        check("{\"Peru\": 9}\nNo:\n{\n\"Peru\": 1,\n\"South Korea\": 1\n}", 1);
        check("Peru: 2, South Korea: 1", 0);
        check("**Peru**: 2\n- South Korea = 1\n- Chile: 3", 3);
        check("none", 3);
        check("I do not know.", UNREADABLE);
        check("{\"Peru\": -2}", UNREADABLE);
        assert_eq!(puzzle.check("Peru: 2").answer, Some(json!({"Peru": 2})));
    }

    #[test]
    fn steps_name_the_countries_in_order_and_the_checker_knows_the_counts() {
        let puzzle = puzzle("Peru, Chile, Peru.");
        assert_eq!(puzzle.next_steps(""), [" Peru: 1,", " Peru: 2,", " Peru: 3,", " Peru: 4,"]);
        assert_eq!(puzzle.next_steps(" Peru: 2,")[0], " Chile: 1,");
        assert!(puzzle.next_steps(" Peru: 2, Chile: 1,").is_empty());
        assert_eq!(puzzle.check_partial(" Peru: 2,"), Partial::Possible { score: 1.0, complete: false });
        assert_eq!(puzzle.check_partial(" Peru: 2, Chile: 1,"), Partial::Possible { score: 1.0, complete: true });
        assert!(matches!(puzzle.check_partial(" Peru: 4,"), Partial::Wrong { score, .. } if score == 1.0 / 3.0));
        assert!(matches!(puzzle.check_partial(" Chile: 1,"), Partial::Wrong { why, .. } if why == "left out: 1"));
        assert_eq!(puzzle.answer_constraint(" Peru: 2,").judge(" Chile: 1,"), Judgement::Closed);
        assert_eq!(puzzle.refute(" Peru: 3, Ch").as_deref(), Some("off by 1 count"));
        assert_eq!(puzzle.refute("Let me see, Peru: 3, "), None);
        assert_eq!(puzzle.state_key(" Peru: 2, Chile: 1,"), puzzle.state_key("Chile: 1, Peru: 2"));
        let empty = super::tests::puzzle("Nothing here.");
        assert_eq!((empty.next_steps(""), empty.len()), (vec![" none".to_string()], 1));
        assert!(
            empty.solved(" none") && matches!(empty.check_partial(" none"), Partial::Possible { complete: true, .. })
        );
    }

    #[test]
    fn parts_together_have_the_counts_of_the_whole() {
        for seed in 0..20 {
            let whole = KeywordCounting.generate(8, seed).unwrap();
            let parts = whole.split(4).unwrap();
            assert_eq!(parts.len(), 4);
            let mut sum = Counts::new();
            for part in &parts {
                for (name, n) in count(part) {
                    add(&mut sum, &name, n);
                }
            }
            assert!(whole.solved(&written(&sum)));
            assert_eq!(puzzle(&whole.join(&parts).unwrap()).inputs(), whole.inputs());
        }
        assert_eq!(puzzle("Peru.").split(2), None);
    }

    #[test]
    fn the_projects_own_column_is_what_the_check_finds() {
        let Some(folder) = shared("keyword counting") else { return };
        let puzzles = KeywordCounting.read_data(&folder.join("data/got/keyword_countries.csv")).unwrap();
        assert!(puzzles.len() >= 50);
        for puzzle in puzzles {
            let mut path = String::new();
            while let Some(step) = puzzle
                .next_steps(&path)
                .into_iter()
                .find(|step| matches!(puzzle.check_partial(&format!("{path}{step}")), Partial::Possible { .. }))
            {
                path.push_str(&step);
            }
            assert!(puzzle.solved(&path) && puzzle.check(&path).error_score == 0, "{}: {path}", puzzle.id());
        }
    }

    proptest! {
        #[test]
        fn any_reply_is_judged_without_panic(text in "\\PC{0,80}", reply in "[A-Za-z{}\":, 0-9\n.-]{0,60}") {
            let puzzle = puzzle(&format!("Peru {text}"));
            for text in [&text, &reply] {
                puzzle.check(text);
                puzzle.check_partial(text);
                puzzle.refute(text);
                puzzle.next_steps(text);
                puzzle.state_key(text);
            }
        }
    }
}
