//! Sorting: put integers in ascending order, keeping duplicates.
//!
//! The generator draws digits 0 to 9, as Graph of Thoughts' data has them, and the error score is that project's: the
//! sum over values of how far their counts are off, plus the number of descents; 300 where the text cannot be read.
//! (Besta et al., AAAI 2024; github.com/spcl/graph-of-thoughts, examples/sorting.)
//!
//! A step is the next value. What may come next is whatever is left of the input; what *should* come next, the smallest
//! that is left, only the checker knows. The score of a beginning is graded: 1 / (1 + errors), with one error for each
//! descent, each value that was not left, and each value left behind that is smaller than one already placed.

use super::constrain::{Form, ListMask};
use super::data::{self, Columns, Holds};
use super::list::{closed, commas, read_answer, read_list, read_prefix};
use super::number::Number;
use super::reference::Reference;
use super::{Partial, Puzzle, Task, Verdict, check_size, cut, example_count};
use crate::base::{Error, Result, rng};
use crate::lm::Constraint;
use rand::Rng;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

/// Error score of a text that holds no list.
pub const UNREADABLE: u64 = 300;

const COLUMNS: Columns<'_> = Columns {
    id: &["ID"],
    inputs: &[&["Unsorted", "numbers", "input"]],
    answer: &["Sorted", "answer"],
    holds: Holds::Lists,
};

/// The task.
pub struct Sorting;

impl Task for Sorting {
    fn name(&self) -> &str {
        "sorting"
    }

    fn about(&self) -> &str {
        "put integers in ascending order, keeping duplicates"
    }

    fn default_strategy(&self) -> &str {
        "tot-bfs"
    }

    fn input_forms(&self) -> &str {
        "integers of any length and sign, separated by spaces, commas or brackets, such as `42 7 -3 103 7` or `[9, 4, 5]`"
    }

    fn example(&self) -> &str {
        "42 7 -3 103 7"
    }

    fn inputs(&self) -> Vec<(&str, &str)> {
        vec![
            ("puzzle.len", "how many numbers there are, and so how many steps an answer takes"),
            ("puzzle.input", "the numbers as text: `94580730` in compact form, else `42, 7, -3`"),
            ("puzzle.list", "the numbers separated by commas, whatever the form"),
            ("puzzle.form", "`compact` where every number is a single digit, else `list`"),
            ("puzzle.lead", "what stands between `Output:` and the answer: a space in compact form, else nothing"),
            ("puzzle.examples", "solved examples of the same length and form: a list of {input, output}"),
        ]
    }

    fn generate(&self, size: usize, seed: u64) -> Result<Arc<dyn Puzzle>> {
        check_size(self.name(), size)?;
        let mut rng = rng::stream(seed, "puzzle", &[rng::part(self.name()), size as u64]);
        let numbers = (0..size).map(|_| Number::from(rng.random_range(0..10i64))).collect();
        Ok(Arc::new(SortingPuzzle::new(format!("{seed}-{size}"), numbers, Reference::Own)))
    }

    fn parse(&self, input: &str) -> Result<Arc<dyn Puzzle>> {
        let refuse = |what: String| Error::input(format!("input for sorting: {what}; write {}", self.input_forms()));
        let numbers = read_list(input).map_err(|bad| refuse(format!("`{}` is not an integer", bad.0)))?;
        if numbers.is_empty() {
            return Err(refuse("there are no numbers in it".into()));
        }
        check_size(self.name(), numbers.len())?;
        Ok(Arc::new(SortingPuzzle::new("input".into(), numbers, Reference::Own)))
    }

    fn read_data(&self, path: &Path) -> Result<Vec<Arc<dyn Puzzle>>> {
        let rows = data::read(path, &COLUMNS)?;
        rows.into_iter()
            .map(|row| {
                let numbers = read_list(&row.inputs[0]).map_err(|bad| {
                    row.refuse(&COLUMNS, 0, &format!("`{}` is not an integer; write a list such as [4, 5, 6]", bad.0))
                })?;
                if numbers.is_empty() {
                    return Err(row.refuse(&COLUMNS, 0, "holds no numbers; write a list such as [4, 5, 6]"));
                }
                check_size(self.name(), numbers.len()).map_err(|e| row.refuse(&COLUMNS, 0, e.message()))?;
                let reference = Reference::of(row.answer.as_deref());
                Ok(Arc::new(SortingPuzzle::new(row.id, numbers, reference)) as Arc<dyn Puzzle>)
            })
            .collect()
    }
}

struct SortingPuzzle {
    id: String,
    numbers: Vec<Number>,
    form: Form,
    reference: Reference,
}

impl SortingPuzzle {
    fn new(id: String, numbers: Vec<Number>, reference: Reference) -> Self {
        let form = if numbers.iter().all(Number::is_digit) { Form::Compact } else { Form::List };
        Self { id, numbers, form, reference }
    }

    fn compact(&self) -> bool {
        self.form == Form::Compact
    }

    fn text(&self, numbers: &[Number]) -> String {
        form_text(self.form, numbers)
    }

    /// What is left of the input after `used`, in input order, and how many of `used` were not there.
    fn left(&self, used: &[Number]) -> (Vec<&Number>, usize) {
        let mut spent: HashMap<&Number, usize> = HashMap::new();
        for number in used {
            *spent.entry(number).or_default() += 1;
        }
        let left = self
            .numbers
            .iter()
            .filter(|number| match spent.get_mut(number) {
                Some(count) if *count > 0 => {
                    *count -= 1;
                    false
                }
                _ => true,
            })
            .collect();
        (left, spent.values().sum())
    }

    /// Errors no continuation can mend: descents, values that were not left, smaller values left behind.
    fn faults(&self, used: &[Number]) -> Faults {
        let (left, foreign) = self.left(used);
        let skipped = used.iter().max().map_or(0, |most| left.iter().filter(|number| **number < most).count());
        Faults { descents: descents(used), foreign, skipped }
    }
}

struct Faults {
    descents: usize,
    foreign: usize,
    skipped: usize,
}

impl Faults {
    fn sum(&self) -> usize {
        self.descents + self.foreign + self.skipped
    }

    fn why(&self) -> String {
        let parts = [
            (self.foreign, "not left in the input"),
            (self.skipped, "smaller left behind"),
            (self.descents, "out of order"),
        ];
        let parts: Vec<String> = parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
        parts.join(", ")
    }
}

fn descents(numbers: &[Number]) -> usize {
    numbers.windows(2).filter(|pair| pair[0] > pair[1]).count()
}

fn form_text(form: Form, numbers: &[Number]) -> String {
    match form {
        Form::Compact => numbers.iter().map(Number::to_string).collect(),
        Form::List => commas(numbers),
    }
}

impl Puzzle for SortingPuzzle {
    fn task(&self) -> &str {
        "sorting"
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn title(&self) -> String {
        let noun = if self.numbers.len() == 1 { "number" } else { "numbers" };
        format!(
            "sort {} {noun}: {}",
            self.numbers.len(),
            self.numbers.iter().map(Number::to_string).collect::<Vec<_>>().join(" ")
        )
    }

    fn inputs(&self) -> Value {
        let examples: Vec<Value> = examples(self.numbers.len(), self.form)
            .into_iter()
            .map(|(input, output)| json!({"input": input, "output": output}))
            .collect();
        json!({"puzzle": {
            "len": self.numbers.len(),
            "input": self.text(&self.numbers),
            "list": commas(&self.numbers),
            "form": self.form.name(),
            "lead": if self.compact() { " " } else { "" },
            "examples": examples,
        }})
    }

    fn len(&self) -> usize {
        self.numbers.len()
    }

    fn check(&self, answer: &str) -> Verdict {
        let list = match read_answer(answer, self.compact()) {
            Ok(list) => list,
            Err(what) => {
                let why = format!("unreadable: {what}; counted as {UNREADABLE} errors");
                return Verdict { error_score: UNREADABLE, answer: None, why };
            }
        };
        let (left, foreign) = self.left(&list);
        let descents = descents(&list);
        let error_score = (left.len() + foreign + descents) as u64;
        let why = if error_score == 0 {
            "right: ascending, and every number of the input is there".into()
        } else {
            let parts = [(left.len(), "missing"), (foreign, "not in the input"), (descents, "out of order")];
            let parts: Vec<String> =
                parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
            format!("wrong: {}", parts.join(", "))
        };
        Verdict { error_score, answer: Some(list.iter().map(Number::to_json).collect()), why }
    }

    fn check_partial(&self, prefix: &str) -> Partial {
        let used = match read_prefix(prefix, self.compact()) {
            Ok(used) => used,
            Err(bad) => {
                let why = format!("`{}` is not an integer", bad.0);
                return Partial::Wrong { score: 1.0 / (1.0 + UNREADABLE as f64), why };
            }
        };
        let faults = self.faults(&used);
        match faults.sum() {
            0 => Partial::Possible { score: 1.0, complete: used.len() == self.numbers.len() },
            errors => Partial::Wrong { score: 1.0 / (1.0 + errors as f64), why: faults.why() },
        }
    }

    fn solved(&self, answer: &str) -> bool {
        match &self.reference {
            Reference::Own => self.check(answer).error_score == 0,
            Reference::Column(None) => false,
            Reference::Column(Some(sorted)) => read_answer(answer, self.compact()).is_ok_and(|list| list == *sorted),
        }
    }

    fn next_steps(&self, prefix: &str) -> Vec<String> {
        let Ok(used) = read_prefix(prefix, self.compact()) else { return Vec::new() };
        let (left, _) = self.left(&used);
        let end = match (self.form, left.len()) {
            (Form::Compact, _) | (Form::List, 1) => "",
            (Form::List, _) => ",",
        };
        let mut steps: Vec<String> = Vec::new();
        let mut seen = HashSet::new();
        for number in left {
            if seen.insert(number) {
                steps.push(match self.form {
                    Form::Compact => number.to_string(),
                    Form::List => format!(" {number}{end}"),
                });
            }
        }
        steps
    }

    fn answer_constraint(&self, prefix: &str) -> Arc<dyn Constraint> {
        let used = read_prefix(prefix, self.compact()).unwrap_or_default();
        let (left, _) = self.left(&used);
        Arc::new(ListMask::new(self.form, left.into_iter().map(Number::to_string), true, prefix))
    }

    /// Runs of the list.
    fn split(&self, parts: usize) -> Option<Vec<String>> {
        Some(cut(&self.numbers, parts)?.into_iter().map(commas).collect())
    }

    fn join(&self, parts: &[String]) -> Option<String> {
        Some(parts.join(", "))
    }

    fn state_key(&self, prefix: &str) -> String {
        match read_prefix(prefix, self.compact()) {
            Ok(used) => commas(&used),
            Err(_) => format!("unreadable {}", prefix.trim()),
        }
    }

    fn refute(&self, text: &str) -> Option<String> {
        let whole = match self.form {
            Form::Compact => text,
            // The last number may still grow another digit.
            Form::List => closed(text),
        };
        let faults = self.faults(&read_prefix(whole, self.compact()).ok()?);
        (faults.sum() > 0).then(|| faults.why())
    }
}

/// Solved examples for few-shot prompts. They depend on length and form alone, never on the puzzle's values, so that all
/// puzzles of a length share the same prompt beginning, and with it its K/V.
fn examples(len: usize, form: Form) -> Vec<(String, String)> {
    let mut rng = rng::stream(0, "examples", &[rng::part(Sorting.name()), len as u64, form as u64]);
    let range = match form {
        Form::Compact => 0..10i64,
        Form::List => -99..1000,
    };
    (0..example_count(len))
        .map(|_| {
            let numbers: Vec<Number> = (0..len).map(|_| Number::from(rng.random_range(range.clone()))).collect();
            let mut sorted = numbers.clone();
            sorted.sort();
            (form_text(form, &numbers), form_text(form, &sorted))
        })
        .collect()
}
