//! Expressions over named values: `prune`, `accept`, `stop`, `priority` and `score`.
//!
//! An expression is one Jinja expression (`score < 0.5 * best and depth > 1`), read by the same library as prompts, with the
//! same strictness about names and the same bound on its work. It sees numbers alone, no puzzle and no text, so that a
//! search stays a function of its tree. A value that a thought does not have (the log-probability of one that the user
//! wrote) is not made up: the expression then has no result for that thought, and what that means stands with each use.

use super::prompt::{self, TemplateFault};
use minijinja::Value as Jinja;

/// Values of the run, known to every expression.
pub const RUN: &[(&str, &str)] = &[
    ("best", "the highest score among thoughts that are not pruned; 0 before any is scored"),
    ("deepest", "levels of the tree so far"),
    ("open", "thoughts that may still be expanded"),
    ("thoughts", "thoughts in the tree, without the puzzle itself"),
    ("tokens", "tokens computed so far"),
];

/// Values of one thought.
pub const THOUGHT: &[(&str, &str)] = &[
    ("score", "its score, 0 to 1"),
    ("depth", "its level; 1 is the first below the puzzle"),
    ("errors", "the checker's count of errors; needs a checker"),
    ("length", "characters of its text"),
    ("logprob", "log-probability of its text (natural logarithm), 0 or less"),
    ("parent_score", "the score of the thought above it; 1 for the puzzle"),
    ("path_score", "the product of the scores from the first level down to it"),
    ("path_logprob", "the sum of the log-probabilities from the first level down to it"),
    ("rank", "its place among its siblings by score, from 1"),
    ("repeats", "how often the same state was proposed again"),
    ("siblings", "other thoughts below the same parent"),
    ("value", "mcts: the mean of what was backed up through it"),
    ("visits", "mcts: how many simulations went through it"),
];

/// Values of `score`: what each evaluator gave.
pub const PARTS: &[(&str, &str)] = &[
    ("checker", "what the puzzle's check gave"),
    ("value", "what the value prompt gave"),
    ("vote", "the share of votes"),
    ("logprob", "the probability of the text, 0 to 1"),
    ("command", "what the command gave"),
    ("yes_no", "how likely yes is against no"),
];

/// Where an expression stands, which decides the names it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Run,
    Thought,
    Parts,
}

impl Scope {
    pub fn names(self) -> Vec<&'static str> {
        let tables: &[&[(&'static str, &'static str)]] = match self {
            Self::Run => &[RUN],
            Self::Thought => &[THOUGHT, RUN],
            Self::Parts => &[PARTS],
        };
        tables.iter().flat_map(|table| table.iter().map(|(name, _)| *name)).collect()
    }
}

/// An expression whose syntax and names were checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expression {
    text: String,
}

/// Named values for one evaluation; a name that is not there has no value.
pub type Values = Vec<(&'static str, f64)>;

impl Expression {
    /// Checks syntax and names.
    ///
    /// # Errors
    /// The first fault, with the known names where a name is not one of them.
    pub fn new(text: &str, scope: Scope) -> Result<Self, TemplateFault> {
        let at = |line: usize, message: String| TemplateFault { line, message };
        if text.contains("{{") || text.contains("{%") {
            return Err(at(1, "an expression stands without braces: `score < 0.5`".into()));
        }
        let env = prompt::environment();
        env.compile_expression(text).map_err(|error| at(error.line().unwrap_or(1), prompt::what(&error)))?;
        let known = scope.names();
        let expression = Self { text: text.to_string() };
        match expression.names().into_iter().find(|name| !known.contains(&name.as_str())) {
            Some(name) => {
                let hint = crate::base::nearest::hint(&name, known.iter().copied());
                Err(at(
                    prompt::line_of(text, &name),
                    format!("there is no value `{name}` in an expression{hint}; known here: {}", known.join(", ")),
                ))
            }
            None => Ok(expression),
        }
    }

    /// The values that it names.
    pub fn names(&self) -> Vec<String> {
        let env = prompt::environment();
        let compiled = env.compile_expression(&self.text);
        let mut names: Vec<String> =
            compiled.map(|found| found.undeclared_variables(true).into_iter().collect()).unwrap_or_default();
        names.retain(|name| !env.globals().any(|(global, _)| global == name));
        names.sort();
        names
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// The number for each row of values; `None` where a value it needs is not there.
    ///
    /// # Errors
    /// It cannot be worked out, or gives no number: a message that names the expression.
    pub fn numbers(&self, rows: &[Values]) -> Result<Vec<Option<f64>>, String> {
        self.each(rows, |value| {
            f64::try_from(value.clone()).map_err(|_| format!("gives `{value}`, which is no number"))
        })
    }

    /// Whether it holds for each row of values; `None` where a value it needs is not there.
    ///
    /// # Errors
    /// As [`Self::numbers`], where it gives something else than true or false.
    pub fn truths(&self, rows: &[Values]) -> Result<Vec<Option<bool>>, String> {
        self.each(rows, |value| {
            bool::try_from(value.clone()).map_err(|_| format!("gives `{value}`, which is neither true nor false"))
        })
    }

    fn each<T>(&self, rows: &[Values], read: impl Fn(Jinja) -> Result<T, String>) -> Result<Vec<Option<T>>, String> {
        let refuse = |why: String| format!("the expression `{}` {why}", self.text);
        let env = prompt::environment();
        let compiled = env
            .compile_expression(&self.text)
            .map_err(|error| refuse(format!("cannot be read: {}", prompt::what(&error))))?;
        let needed = self.names();
        let one = |values: &Values| {
            if needed.iter().any(|name| !values.iter().any(|(there, _)| there == name)) {
                return Ok(None);
            }
            let values = Jinja::from_pairs(values.iter().map(|(name, value)| (*name, Jinja::from(*value))));
            match compiled.eval(values) {
                Ok(value) => read(value).map(Some).map_err(&refuse),
                Err(error) => Err(refuse(format!("cannot be worked out: {}", prompt::what(&error)))),
            }
        };
        rows.iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::testing::thread_time;

    fn numbers(text: &str, values: Values) -> Result<Option<f64>, String> {
        Expression::new(text, Scope::Thought).unwrap().numbers(&[values]).map(|found| found[0])
    }

    #[test]
    fn numbers_and_truths_are_worked_out() {
        let values = || vec![("score", 0.5), ("depth", 3.0)];
        assert_eq!(numbers("score - 0.01 * depth", values()), Ok(Some(0.47)));
        assert_eq!(numbers("1 if depth > 2 else 0", values()), Ok(Some(1.0)));
        let holds =
            |text: &str| Expression::new(text, Scope::Thought).unwrap().truths(&[values()]).map(|found| found[0]);
        assert_eq!(holds("score < 0.6 and depth == 3"), Ok(Some(true)));
        assert_eq!(holds("not score < 0.6"), Ok(Some(false)));
        assert!(holds("score").unwrap_err().contains("neither true nor false"));
        assert!(numbers("score < 1", values()).is_err(), "a truth is no number");
    }

    #[test]
    fn a_value_that_is_not_there_leaves_no_result() {
        assert_eq!(numbers("logprob + 1", vec![("score", 0.5)]), Ok(None));
        assert_eq!(numbers("logprob", vec![]), Ok(None));
    }

    #[test]
    fn unknown_names_and_bad_syntax_are_told_with_what_is_known() {
        let refused = |text: &str, scope, part: &str| {
            let fault = Expression::new(text, scope).unwrap_err();
            assert!(fault.message.contains(part), "{}", fault.message);
        };
        refused("scor < 1", Scope::Thought, "did you mean `score`?");
        refused("score < 1", Scope::Run, "known here: best, deepest, open, thoughts, tokens");
        refused("score <", Scope::Thought, "syntax error");
        refused("{{ score }}", Scope::Thought, "without braces");
        refused("puzzle.len > 3", Scope::Thought, "no value `puzzle");
    }

    #[test]
    fn work_is_bounded() {
        let bomb = Expression::new("range(100000) | list | length + range(100000) | sum", Scope::Run).unwrap();
        let started = thread_time();
        let _ = bomb.numbers(&[vec![]]);
        assert!((thread_time() - started).as_secs() < 5);
    }
}
