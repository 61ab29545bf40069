//! Game of 24: make 24 from all the numbers with `+ - * /`, each number used once (Yao et al., NeurIPS 2023).
//!
//! A step takes two numbers that are left and puts their result in their place, written as that paper does:
//! `4 * 6 = 24 (left: 5 10 24)`. Arithmetic is exact. The checker knows whether a step is what it says and whether 24 is what
//! is left in the end; it does not look ahead, so that telling promising states from hopeless ones is left to the strategy.
//! A state with one number left is final and has no next steps.
//!
//! Error score: 0 is right, 1 is wrong, 100 is a text without any step or expression.

use super::constrain::Steps;
use super::data::{self, Columns, Holds};
use super::list::read_list;
use super::rational::{Rational, evaluate};
use super::{Partial, Puzzle, Task, Verdict};
use crate::base::text::sanitize;
use crate::base::{Error, Result, rng};
use crate::lm::Constraint;
use rand::Rng;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// Error score of a text that holds no step and no expression.
pub const UNREADABLE: u64 = 100;

const COLUMNS: Columns<'_> = Columns {
    id: &["Rank", "ID"],
    inputs: &[&["Puzzles", "numbers", "input"]],
    answer: &["answer"],
    holds: Holds::Lists,
};

/// Numbers above this are refused, so that no product of six of them leaves 128 bits.
const LARGEST: i64 = 1_000_000;

/// The task.
pub struct Game24;

impl Task for Game24 {
    fn name(&self) -> &str {
        "game24"
    }

    fn about(&self) -> &str {
        "make 24 from all the numbers with + - * /"
    }

    fn default_strategy(&self) -> &str {
        "tot-bfs"
    }

    fn default_size(&self) -> usize {
        4
    }

    fn input_forms(&self) -> &str {
        "two to six integers between -1000000 and 1000000, separated by spaces, commas or brackets, such as `4 5 6 10`"
    }

    fn example(&self) -> &str {
        "4 5 6 10"
    }

    fn inputs(&self) -> Vec<(&str, &str)> {
        vec![
            ("puzzle.len", "how many steps an answer takes: one less than there are numbers"),
            ("puzzle.input", "the numbers as text: `4 5 6 10`"),
            (
                "puzzle.examples",
                "solved examples with as many numbers: a list of {input, output}, output one step a line",
            ),
        ]
    }

    fn generate(&self, size: usize, seed: u64) -> Result<Arc<dyn Puzzle>> {
        if !(2..=5).contains(&size) {
            return Err(Error::input(format!(
                "a game24 puzzle of size {size} cannot be made; give 2 to 5 numbers (4 is usual)"
            )));
        }
        let mut rng = rng::stream(seed, "puzzle", &[rng::part(self.name()), size as u64]);
        let (numbers, _) = draw(size, &mut rng)?;
        Ok(Arc::new(Game { id: format!("{seed}-{size}"), numbers }))
    }

    fn parse(&self, input: &str) -> Result<Arc<dyn Puzzle>> {
        let numbers = read_numbers(input)
            .map_err(|what| Error::input(format!("input for game24: {what}; write {}", self.input_forms())))?;
        Ok(Arc::new(Game { id: "input".into(), numbers }))
    }

    fn read_data(&self, path: &Path) -> Result<Vec<Arc<dyn Puzzle>>> {
        data::read(path, &COLUMNS)?
            .into_iter()
            .map(|row| {
                let numbers = read_numbers(&row.inputs[0])
                    .map_err(|what| row.refuse(&COLUMNS, 0, &format!("{what}; write numbers such as `4 5 6 10`")))?;
                Ok(Arc::new(Game { id: row.id, numbers }) as Arc<dyn Puzzle>)
            })
            .collect()
    }
}

fn read_numbers(text: &str) -> Result<Vec<Rational>, String> {
    let list = read_list(text).map_err(|bad| format!("`{}` is not an integer", bad.0))?;
    if !(2..=6).contains(&list.len()) {
        return Err(format!("holds {} numbers", list.len()));
    }
    list.iter()
        .map(|number| {
            let small = number.to_string().parse::<i64>().ok().filter(|value| value.abs() <= LARGEST);
            small.map(Rational::whole).ok_or_else(|| format!("{number} is too large"))
        })
        .collect()
}

/// Numbers from 1 to 13 from which 24 can be made, and one way to make it.
fn draw(size: usize, rng: &mut impl Rng) -> Result<(Vec<Rational>, String)> {
    // Of four numbers four in five draws can be solved, of two one in fifteen.
    for _ in 0..10_000 {
        let numbers: Vec<Rational> = (0..size).map(|_| Rational::whole(rng.random_range(1..14))).collect();
        if let Some(steps) = solve(&numbers) {
            return Ok((numbers, steps));
        }
    }
    Err(Error::fault(format!("no game24 puzzle of size {size} was found")))
}

/// Steps that make 24, one a line; `None` where there are none. Tries all, so it is for few numbers.
fn solve(left: &[Rational]) -> Option<String> {
    if let [last] = left {
        return (*last == Rational::whole(24)).then(String::new);
    }
    moves(left).into_iter().find_map(|(step, left)| solve(&left).map(|rest| format!("{step}{rest}")))
}

/// Every step from a state, with the state it leads to.
fn moves(left: &[Rational]) -> Vec<(String, Vec<Rational>)> {
    let mut moves: Vec<(String, Vec<Rational>)> = Vec::new();
    for first in 0..left.len() {
        for second in 0..left.len() {
            for operator in ['+', '-', '*', '/'] {
                // Sums and products are the same both ways round.
                if first == second || (first > second && matches!(operator, '+' | '*')) {
                    continue;
                }
                let (a, b) = (left[first], left[second]);
                let Some(result) = a.apply(operator, b) else { continue };
                let others = left.iter().enumerate().filter(|(at, _)| *at != first && *at != second);
                let after: Vec<Rational> = others.map(|(_, value)| *value).chain([result]).collect();
                let step = format!("{a} {operator} {b} = {result} (left: {})\n", words(&after));
                if !moves.iter().any(|(known, _)| *known == step) {
                    moves.push((step, after));
                }
            }
        }
    }
    moves
}

fn words(numbers: &[Rational]) -> String {
    numbers.iter().map(Rational::to_string).collect::<Vec<_>>().join(" ")
}

/// One step applied to a state: `4 * 6 = 24 (left: 5 10 24)`. It may join more than two numbers; what it says is left may be
/// missing, and must be true where it stands.
fn step(line: &str, left: &[Rational]) -> Result<Vec<Rational>, String> {
    let (expression, rest) = line.split_once('=').ok_or_else(|| "there is no `=` in a step".to_string())?;
    let (value, said) = match rest.split_once('(') {
        Some((value, said)) => (value, Some(said)),
        None => (rest, None),
    };
    let (result, used) =
        evaluate(expression, left).ok_or_else(|| format!("`{}` cannot be computed", expression.trim()))?;
    if used.len() < 2 {
        return Err("a step joins at least two numbers".into());
    }
    if Rational::read(value.trim().trim_end_matches('.')) != Some(result) {
        return Err(format!("`{}` is {result}, not {}", expression.trim(), value.trim()));
    }
    let mut after = left.to_vec();
    for number in used {
        let at = after.iter().position(|other| *other == number).ok_or_else(|| format!("{number} is not left"))?;
        after.remove(at);
    }
    after.push(result);
    if let Some(said) = said {
        let list = said.trim_end().trim_end_matches('.').trim_end_matches(')').trim().trim_start_matches("left:");
        let said: Option<Vec<Rational>> = list.split_whitespace().map(Rational::read).collect();
        let sorted = |mut numbers: Vec<Rational>| {
            numbers.sort();
            numbers
        };
        if said.map(sorted) != Some(sorted(after.clone())) {
            return Err(format!("what is left is {}", words(&after)));
        }
    }
    Ok(after)
}

/// Steps as lines, also where they were joined without a line break.
fn lines(text: &str) -> Vec<String> {
    let mut separate = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("(left:") {
        let end = rest[at..].find(')').map_or(rest.len(), |end| at + end + 1);
        separate.push_str(&rest[..end]);
        separate.push('\n');
        rest = &rest[end..];
    }
    separate.push_str(rest);
    separate.lines().map(str::trim).filter(|line| !line.is_empty()).map(String::from).collect()
}

#[derive(Clone)]
struct Game {
    id: String,
    numbers: Vec<Rational>,
}

impl Game {
    /// What is left after the steps of `prefix`.
    fn state(&self, prefix: &str) -> Result<Vec<Rational>, String> {
        lines(prefix).iter().try_fold(self.numbers.clone(), |left, line| step(line, &left))
    }

    fn is_24(left: &[Rational]) -> bool {
        left == [Rational::whole(24)]
    }
}

impl Puzzle for Game {
    fn task(&self) -> &str {
        "game24"
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn title(&self) -> String {
        format!("make 24 from {}", words(&self.numbers))
    }

    fn inputs(&self) -> Value {
        let size = self.numbers.len().min(5);
        let mut rng = rng::stream(0, "examples", &[rng::part(Game24.name()), size as u64]);
        let examples: Vec<Value> = (0..5)
            .filter_map(|_| draw(size, &mut rng).ok())
            .map(|(numbers, steps)| json!({"input": words(&numbers), "output": steps.trim_end()}))
            .collect();
        json!({"puzzle": {"len": self.len(), "input": words(&self.numbers), "examples": examples}})
    }

    fn len(&self) -> usize {
        self.numbers.len() - 1
    }

    fn size(&self) -> usize {
        self.numbers.len()
    }

    /// Reads the steps of the answer, or the last line that is one expression over all the numbers.
    fn check(&self, answer: &str) -> Verdict {
        let text = sanitize(answer);
        let lines: Vec<String> = lines(&text).into_iter().filter(|line| line.contains('=')).collect();
        let said = Some(Value::from(lines.join("\n")));
        if lines.is_empty() {
            let why = format!("unreadable: no step and no expression in the reply; counted as {UNREADABLE} errors");
            return Verdict { error_score: UNREADABLE, answer: None, why };
        }
        let steps = self.state(&lines.join("\n"));
        let whole = lines.iter().rev().find(|line| {
            let line =
                line.split_once(": ").filter(|(label, _)| !label.contains('(')).map_or(line.as_str(), |(_, line)| line);
            step(line, &self.numbers).is_ok_and(|left| Self::is_24(&left))
        });
        match (steps, whole) {
            (Ok(left), _) if Self::is_24(&left) => {
                Verdict { error_score: 0, answer: said, why: "right: 24, and every number is used once".into() }
            }
            (_, Some(line)) => Verdict {
                error_score: 0,
                answer: Some(Value::from(line.as_str())),
                why: "right: 24, and every number is used once".into(),
            },
            (Ok(left), None) => {
                Verdict { error_score: 1, answer: said, why: format!("wrong: {} is left, not 24", words(&left)) }
            }
            (Err(why), None) => Verdict { error_score: 1, answer: said, why: format!("wrong: {why}") },
        }
    }

    fn check_partial(&self, prefix: &str) -> Partial {
        match self.state(prefix) {
            Ok(left) if Self::is_24(&left) => Partial::Possible { score: 1.0, complete: true },
            Ok(left) if left.len() == 1 => {
                Partial::Wrong { score: 0.5, why: format!("{} is left, not 24", words(&left)) }
            }
            Ok(_) => Partial::Possible { score: 1.0, complete: false },
            Err(why) => Partial::Wrong { score: 0.5, why },
        }
    }

    fn solved(&self, answer: &str) -> bool {
        self.check(answer).error_score == 0
    }

    fn next_steps(&self, prefix: &str) -> Vec<String> {
        self.state(prefix).map(|left| moves(&left).into_iter().map(|(step, _)| step).collect()).unwrap_or_default()
    }

    fn answer_constraint(&self, prefix: &str) -> Arc<dyn Constraint> {
        Arc::new(Steps::new(Arc::new(self.clone()), prefix))
    }

    fn state_key(&self, prefix: &str) -> String {
        match self.state(prefix) {
            Ok(mut left) => {
                left.sort();
                words(&left)
            }
            Err(_) => format!("unreadable {}", prefix.trim()),
        }
    }

    /// Only lines that say what is left are steps; free text around them is not judged.
    fn refute(&self, text: &str) -> Option<String> {
        let whole = &text[..text.rfind(['\n', ')']).map_or(0, |at| at + 1)];
        let steps: Vec<String> = lines(whole).into_iter().filter(|line| line.contains("(left:")).collect();
        self.state(&steps.join("\n")).err()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lm::Judgement;

    fn game(input: &str) -> Arc<dyn Puzzle> {
        Game24.parse(input).unwrap()
    }

    #[test]
    fn steps_are_checked_exactly() {
        let puzzle = game("3 3 8 8");
        let path = "8 / 3 = 8/3 (left: 3 8 8/3)\n3 - 8/3 = 1/3 (left: 8 1/3)\n8 / 1/3 = 24 (left: 24)\n";
        assert_eq!(puzzle.check_partial(path), Partial::Possible { score: 1.0, complete: true });
        assert_eq!(puzzle.check(path).error_score, 0);
        assert!(puzzle.next_steps(path).is_empty(), "a final state is not expanded");
        assert!(puzzle.next_steps("").contains(&"8 / 3 = 8/3 (left: 3 8 8/3)\n".to_string()));
        assert_eq!(puzzle.answer_constraint("").judge(path), Judgement::Closed);
        assert_eq!(puzzle.answer_constraint("").judge("8 / 3 = 8"), Judgement::Open { complete: false });
        let wrong = |prefix: &str, part: &str| match puzzle.check_partial(prefix) {
            Partial::Wrong { why, .. } => assert!(why.contains(part), "{why}"),
            other => panic!("{prefix}: {other:?}"),
        };
        wrong("8 / 4 = 2", "4 is not left");
        wrong("8 * 3 = 25", "is 24, not 25");
        wrong("8 * 3 = 24 (left: 3 24)", "what is left is 3 8 24");
        wrong("8 = 8", "at least two numbers");
        wrong("hello", "no `=`");
        wrong("3 + 3 + 8 + 8 = 22", "22 is left, not 24");
        assert_eq!(puzzle.state_key("8 + 3 = 11"), puzzle.state_key("3 + 8 = 11 (left: 3 8 11)"));
    }

    #[test]
    fn an_early_solution_is_final() {
        let puzzle = game("1 2 3 4");
        let early = "1 * 2 * 3 * 4 = 24 (left: 24)";
        assert_eq!(puzzle.check_partial(early), Partial::Possible { score: 1.0, complete: true });
        assert!(puzzle.next_steps(early).is_empty());
        assert!(matches!(puzzle.check_partial(&format!("{early}24 * 1 = 24 (left: 24)")), Partial::Wrong { .. }));
    }

    #[test]
    fn whole_answers_are_read_as_steps_or_one_expression() {
        let puzzle = game("4 5 6 10");
        let check = |answer: &str, errors: u64| assert_eq!(puzzle.check(answer).error_score, errors, "{answer}");
        check("First 10 - 4 = 6.\nAnswer: (5 - 6 + 10 / 4) * 1 = 24", 1);
        check("Let us try.\nAnswer: (10 - 6) * 5 + 4 = 24", 0);
        check("(10 - 6) × 5 + 4 = 24.", 0);
        check("10 - 6 = 4 (left: 4 5 4)\n4 * 5 = 20 (left: 4 20)\n20 + 4 = 24 (left: 24)", 0);
        check("24", 100);
        assert_eq!(
            puzzle.refute("10 - 6 = 4 (left: 4 5 4)\n4 * 5 = 21 (left: 4 21)").as_deref(),
            Some("`4 * 5` is 20, not 21")
        );
        assert_eq!(puzzle.refute("Perhaps 10 + 10 = 20 helps\n"), None);
    }

    #[test]
    fn inputs_are_bounded_and_generated_ones_can_be_solved() {
        for bad in ["4", "1 2 3 4 5 6 7", "1 2 3 9999999", "1 2 x"] {
            assert!(Game24.parse(bad).is_err(), "{bad}");
        }
        for size in 2..=5 {
            let inputs = Game24.generate(size, 1).unwrap().inputs();
            let example = &inputs["puzzle"]["examples"][0];
            let puzzle = game(example["input"].as_str().unwrap());
            assert_eq!(puzzle.check(example["output"].as_str().unwrap()).error_score, 0);
        }
        assert!(Game24.generate(1, 1).is_err() && Game24.generate(6, 1).is_err());
    }
}
