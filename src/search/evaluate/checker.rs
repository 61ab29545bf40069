//! The puzzle's own check as a score: of a beginning, or of the thoughts of the path taken as a whole answer.

use super::Part;
use crate::task::{Partial, Puzzle};

pub const NAME: &str = "checker";

/// Scores what the path has so far. `partial`: as a beginning; else as a whole answer, 1 / (1 + error score).
pub fn score(puzzle: &dyn Puzzle, path: &str, partial: bool) -> Part {
    if !partial {
        let verdict = puzzle.check(path);
        return Part::of(NAME, verdict.score(), verdict.why);
    }
    match puzzle.check_partial(path) {
        Partial::Possible { score, .. } => Part::of(NAME, score, "could still become right"),
        Partial::Wrong { score, why } => Part::of(NAME, score, why),
    }
}
