//! Set intersection: the values that two sets have in common.
//!
//! The generator draws two sets of `size` distinct values below twice the size with 28 to 73 % in common, as the rows of
//! Graph of Thoughts' data are, and the error score is that project's: the size of the symmetric difference between
//! answer and truth, a value said twice counting again; 1000 where the text cannot be read.
//! (Besta et al., AAAI 2024; github.com/spcl/graph-of-thoughts, examples/set_intersection.)
//!
//! A step is the next common value in the order of the first set. What may come next is any later value of that set;
//! whether it is in both, and whether one was skipped, only the checker knows. The score of a beginning is graded:
//! 1 / (1 + errors), one for each value that is not in both, said twice or out of order, and each one skipped.

use super::constrain::{Form, ListMask};
use super::data::{self, Columns, Holds, Row};
use super::list::{closed, commas, read_answer, read_list, read_prefix};
use super::number::Number;
use super::reference::Reference;
use super::{Partial, Puzzle, Task, Verdict, check_size, cut, example_count};
use crate::base::{Error, Result, rng};
use crate::lm::Constraint;
use rand::Rng;
use rand::seq::SliceRandom;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

/// Error score of a text that holds no list.
pub const UNREADABLE: u64 = 1000;

/// The step that says there is nothing in common.
const NONE: &str = " none";

const COLUMNS: Columns<'_> =
    Columns { id: &["ID"], inputs: &[&["SET1"], &["SET2"]], answer: &["INTERSECTION", "answer"], holds: Holds::Lists };

/// The task.
pub struct SetIntersection;

impl Task for SetIntersection {
    fn name(&self) -> &str {
        "set-intersection"
    }

    fn about(&self) -> &str {
        "find the values that two sets have in common"
    }

    fn default_strategy(&self) -> &str {
        "tot-bfs"
    }

    fn input_forms(&self) -> &str {
        "two sets separated by `;` or a newline, each of integers of any length and sign separated by spaces, commas or \
         brackets, each value once in its set, such as `1 2 3; 2 3 5` or `{1, 2, 3}; {2, 3, 5}`"
    }

    fn example(&self) -> &str {
        "11 60 1 49 21 255 14 56; 31 11 4 255 38 14 59 1"
    }

    fn inputs(&self) -> Vec<(&str, &str)> {
        vec![
            ("puzzle.len", "how many values the first set has, and so how many steps an answer takes at most"),
            ("puzzle.input", "both sets as text: `1, 2, 3; 2, 3, 5`"),
            ("puzzle.set1", "the first set as text: `1, 2, 3`"),
            ("puzzle.set2", "the second set as text: `2, 3, 5`"),
            ("puzzle.form", "`list`"),
            ("puzzle.lead", "what stands between `Output:` and the answer: nothing"),
            ("puzzle.examples", "solved examples of the same size: a list of {input, set1, set2, output}"),
        ]
    }

    fn generate(&self, size: usize, seed: u64) -> Result<Arc<dyn Puzzle>> {
        check_size(self.name(), size)?;
        let mut rng = rng::stream(seed, "puzzle", &[rng::part(self.name()), size as u64]);
        let (set1, set2) = draw(size, &mut rng);
        Ok(Arc::new(SetPuzzle::new(format!("{seed}-{size}"), set1, set2, Reference::Own)))
    }

    fn parse(&self, input: &str) -> Result<Arc<dyn Puzzle>> {
        let refuse =
            |what: String| Error::input(format!("input for set-intersection: {what}; write {}", self.input_forms()));
        let parts = split_sets(input).map_err(refuse)?;
        let mut sets = Vec::new();
        for (at, part) in parts.iter().enumerate() {
            let set = read_set(part).map_err(|what| refuse(format!("set {}: {what}", at + 1)))?;
            check_size(self.name(), set.len())?;
            sets.push(set);
        }
        let [set1, set2] = <[Vec<Number>; 2]>::try_from(sets).expect("two parts were split, so two sets were read");
        Ok(Arc::new(SetPuzzle::new("input".into(), set1, set2, Reference::Own)))
    }

    fn read_data(&self, path: &Path) -> Result<Vec<Arc<dyn Puzzle>>> {
        let set = |row: &Row, at: usize| -> Result<Vec<Number>> {
            let set = read_set(&row.inputs[at])
                .map_err(|what| row.refuse(&COLUMNS, at, &format!("{what}; write a set such as [4, 5, 6]")))?;
            check_size(self.name(), set.len()).map_err(|e| row.refuse(&COLUMNS, at, e.message()))?;
            Ok(set)
        };
        data::read(path, &COLUMNS)?
            .into_iter()
            .map(|row| {
                let (set1, set2) = (set(&row, 0)?, set(&row, 1)?);
                let reference = Reference::of(row.answer.as_deref());
                Ok(Arc::new(SetPuzzle::new(row.id, set1, set2, reference)) as Arc<dyn Puzzle>)
            })
            .collect()
    }
}

/// Two sets of `size` values below twice the size, 28 to 73 % in common. Two independent draws have about half in common,
/// as in Graph of Thoughts' generator; how many they share is kept, clamped to that range, and the second set is drawn again
/// with exactly that many.
fn draw(size: usize, rng: &mut impl Rng) -> (Vec<Number>, Vec<Number>) {
    let mut values: Vec<usize> = (0..2 * size).collect();
    values.shuffle(rng);
    let set1 = values[..size].to_vec();
    let mut others = values[size..].to_vec();
    values.shuffle(rng);
    let in_first: HashSet<usize> = set1.iter().copied().collect();
    let chance = values[..size].iter().filter(|value| in_first.contains(value)).count();
    let least = (size * 28).div_ceil(100);
    let most = (size * 73 / 100).max(least);
    let common = chance.clamp(least, most);
    let mut shared = set1.clone();
    shared.shuffle(rng);
    others.shuffle(rng);
    let mut set2: Vec<usize> = shared[..common].iter().chain(&others[..size - common]).copied().collect();
    set2.shuffle(rng);
    let numbers = |set: Vec<usize>| set.into_iter().map(|value| Number::from(value as i64)).collect();
    (numbers(set1), numbers(set2))
}

/// The two parts of a typed input: its two bracket groups where it has exactly two (`A = {1; 2}; B = {2; 3}` too), else
/// what stands before and after the one `;` or line break.
fn split_sets(input: &str) -> Result<[String; 2], String> {
    let mut groups: Vec<String> = Vec::new();
    let mut between = String::new();
    let mut open = false;
    for c in input.chars() {
        match c {
            '[' | '(' | '{' if !open => {
                open = true;
                groups.push(String::new());
            }
            ']' | ')' | '}' if open => open = false,
            c if open => {
                if let Some(group) = groups.last_mut() {
                    group.push(if c == ';' { ',' } else { c });
                }
            }
            c => between.push(c),
        }
    }
    if let [first, second] = groups.as_slice()
        && !open
        && !between.contains(|c: char| c.is_ascii_digit())
    {
        return Ok([first.clone(), second.clone()]);
    }
    let parts: Vec<&str> = input.split([';', '\n']).map(str::trim).filter(|part| !part.is_empty()).collect();
    match parts.as_slice() {
        [first, second] => Ok([(*first).to_string(), (*second).to_string()]),
        parts => Err(format!(
            "holds {} where two are needed",
            if parts.len() == 1 { "one set".into() } else { format!("{} sets", parts.len()) }
        )),
    }
}

/// A set's values in order; a value that stands twice is refused, since merging it would change the puzzle unseen.
fn read_set(text: &str) -> Result<Vec<Number>, String> {
    let numbers = read_list(text).map_err(|bad| format!("`{}` is not an integer", bad.0))?;
    if numbers.is_empty() {
        return Err("holds no values".into());
    }
    let mut seen = HashSet::new();
    match numbers.iter().find(|number| !seen.insert(*number)) {
        Some(twice) => Err(format!("{twice} stands twice; leave it in once")),
        None => Ok(numbers),
    }
}

struct SetPuzzle {
    id: String,
    set1: Vec<Number>,
    set2: Vec<Number>,
    /// Common values in the order of `set1`.
    common: Vec<Number>,
    /// Where each value stands in `set1`.
    place: HashMap<Number, usize>,
    reference: Reference,
}

/// What can be wrong with a beginning.
struct Faults {
    foreign: usize,
    repeated: usize,
    disordered: usize,
    skipped: usize,
}

impl Faults {
    fn sum(&self) -> usize {
        self.foreign + self.repeated + self.disordered + self.skipped
    }

    fn why(&self) -> String {
        let parts = [
            (self.foreign, "not in both sets"),
            (self.repeated, "said twice"),
            (self.disordered, "not in the order of the first set"),
            (self.skipped, "common value skipped"),
        ];
        let parts: Vec<String> = parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
        parts.join(", ")
    }
}

impl SetPuzzle {
    fn new(id: String, set1: Vec<Number>, set2: Vec<Number>, reference: Reference) -> Self {
        let second: HashSet<&Number> = set2.iter().collect();
        let common = set1.iter().filter(|value| second.contains(value)).cloned().collect();
        let place = set1.iter().cloned().enumerate().map(|(at, value)| (value, at)).collect();
        Self { id, set1, set2, common, place, reference }
    }

    /// Values of a beginning, and whether it says that there are none.
    fn read(&self, prefix: &str) -> Result<(Vec<Number>, bool), String> {
        if prefix.trim().trim_end_matches(',').eq_ignore_ascii_case("none") {
            return Ok((Vec::new(), true));
        }
        read_prefix(prefix, false).map(|list| (list, false)).map_err(|bad| format!("`{}` is not an integer", bad.0))
    }

    fn faults(&self, said: &[Number]) -> Faults {
        let common: HashSet<&Number> = self.common.iter().collect();
        let mut seen = HashSet::new();
        let mut faults = Faults { foreign: 0, repeated: 0, disordered: 0, skipped: 0 };
        let mut last = None;
        for value in said {
            if !common.contains(value) {
                faults.foreign += 1;
            }
            if !seen.insert(value) {
                faults.repeated += 1;
            } else if let Some(&place) = self.place.get(value) {
                faults.disordered += usize::from(last.is_some_and(|last| place < last));
                last = last.max(Some(place));
            }
        }
        faults.skipped = self
            .common
            .iter()
            .filter(|value| !seen.contains(value) && last.is_some_and(|last| self.place[*value] < last))
            .count();
        faults
    }
}

impl Puzzle for SetPuzzle {
    fn task(&self) -> &str {
        "set-intersection"
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn title(&self) -> String {
        format!("common values of {{{}}} and {{{}}}", commas(&self.set1), commas(&self.set2))
    }

    fn inputs(&self) -> Value {
        json!({"puzzle": {
            "len": self.len(),
            "input": format!("{}; {}", commas(&self.set1), commas(&self.set2)),
            "set1": commas(&self.set1),
            "set2": commas(&self.set2),
            "form": Form::List.name(),
            "lead": "",
            "examples": examples(self.set1.len()),
        }})
    }

    fn len(&self) -> usize {
        self.set1.len()
    }

    fn check(&self, answer: &str) -> Verdict {
        let list = match read_answer(answer, false) {
            Ok(list) => list,
            Err(what) => {
                let why = format!("unreadable: {what}; counted as {UNREADABLE} errors");
                return Verdict { error_score: UNREADABLE, answer: None, why };
            }
        };
        let mut missing: HashSet<&Number> = self.common.iter().collect();
        let extra = list.iter().filter(|value| !missing.remove(value)).count();
        let why = match (missing.len(), extra) {
            (0, 0) => "right: every common value, and nothing else".into(),
            (missing, 0) => format!("wrong: {missing} missing"),
            (0, extra) => format!("wrong: {extra} not in both or said twice"),
            (missing, extra) => format!("wrong: {missing} missing, {extra} not in both or said twice"),
        };
        let error_score = (missing.len() + extra) as u64;
        Verdict { error_score, answer: Some(list.iter().map(Number::to_json).collect()), why }
    }

    fn check_partial(&self, prefix: &str) -> Partial {
        let graded = |errors: usize, why: String| Partial::Wrong { score: 1.0 / (1.0 + errors as f64), why };
        let (said, none) = match self.read(prefix) {
            Ok(read) => read,
            Err(why) => return graded(UNREADABLE as usize, why),
        };
        if none && !self.common.is_empty() {
            return graded(self.common.len(), format!("{} common value skipped", self.common.len()));
        }
        let faults = self.faults(&said);
        if faults.sum() > 0 {
            return graded(faults.sum(), faults.why());
        }
        Partial::Possible { score: 1.0, complete: none || (!said.is_empty() && said.len() == self.common.len()) }
    }

    fn solved(&self, answer: &str) -> bool {
        match &self.reference {
            Reference::Own => self.check(answer).error_score == 0,
            Reference::Column(None) => false,
            Reference::Column(Some(expected)) => read_answer(answer, false).is_ok_and(|mut list| {
                let mut expected = expected.clone();
                list.sort();
                expected.sort();
                list == expected
            }),
        }
    }

    fn next_steps(&self, prefix: &str) -> Vec<String> {
        let Ok((said, none)) = self.read(prefix) else { return Vec::new() };
        if none {
            return Vec::new();
        }
        let from = said.iter().filter_map(|value| self.place.get(value)).max().map_or(0, |place| place + 1);
        let mut steps: Vec<String> = self.set1[from..].iter().map(|value| format!(" {value},")).collect();
        if said.is_empty() {
            steps.push(NONE.into());
        }
        steps
    }

    fn answer_constraint(&self, prefix: &str) -> Arc<dyn Constraint> {
        let (said, none) = self.read(prefix).unwrap_or_default();
        let said: HashSet<Number> = said.into_iter().collect();
        let left = self.set1.iter().filter(|value| !none && !said.contains(value)).map(Number::to_string);
        Arc::new(ListMask::new(Form::List, left, false, prefix))
    }

    /// The first set with each run of the second: the intersection is what all of them find together.
    fn split(&self, parts: usize) -> Option<Vec<String>> {
        let first = commas(&self.set1);
        Some(cut(&self.set2, parts)?.into_iter().map(|run| format!("{first}; {}", commas(run))).collect())
    }

    fn join(&self, parts: &[String]) -> Option<String> {
        let second: Option<Vec<&str>> = parts.iter().map(|part| Some(part.split_once(';')?.1.trim())).collect();
        Some(format!("{}; {}", commas(&self.set1), second?.join(", ")))
    }

    fn state_key(&self, prefix: &str) -> String {
        match self.read(prefix) {
            Ok((_, true)) => "none".into(),
            Ok((said, false)) => commas(&said),
            Err(_) => format!("unreadable {}", prefix.trim()),
        }
    }

    /// A whole answer may name the common values in any order, so that only values not in both, or said twice, refute it.
    fn refute(&self, text: &str) -> Option<String> {
        // The last number may still grow another digit.
        let whole = closed(text);
        let (said, _) = self.read(whole).ok()?;
        let faults = Faults { disordered: 0, skipped: 0, ..self.faults(&said) };
        (faults.sum() > 0).then(|| faults.why())
    }
}

/// Solved examples for few-shot prompts; they depend on the size alone, so that all puzzles of a size share the same prompt
/// beginning, and with it its K/V.
fn examples(size: usize) -> Vec<Value> {
    let mut rng = rng::stream(0, "examples", &[rng::part(SetIntersection.name()), size as u64]);
    (0..example_count(size))
        .map(|_| {
            let (set1, set2) = draw(size, &mut rng);
            let example = SetPuzzle::new(String::new(), set1, set2, Reference::Own);
            json!({
                "input": format!("{}; {}", commas(&example.set1), commas(&example.set2)),
                "set1": commas(&example.set1),
                "set2": commas(&example.set2),
                "output": if example.common.is_empty() { "none".into() } else { commas(&example.common) },
            })
        })
        .collect()
}
