//! Texts: templates, strategies, data, replies, and constraints over any vocabulary.

use super::files::written;
use crate::base::choices::Choices;
use crate::engine::constraint::{Ruler, Stops};
use crate::engine::vocab::Vocab;
use crate::lm::pattern::Pattern;
use crate::lm::{Constraint, Judgement};
use crate::model::template::{ChatTemplate, Message};
use crate::search::controller::generate::listed;
use crate::search::evaluate::reply::{self, Scale};
use crate::strategy::fault::{Severity, lines};
use crate::strategy::parse;
use crate::strategy::prompt;
use crate::strategy::source::Home;
use crate::strategy::{Count, PromptSource, estimate};
use crate::task::{self, csv as table};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A model's chat template.
pub fn chat_template(bytes: &[u8]) {
    let Ok(source) = std::str::from_utf8(bytes) else { return };
    let Ok(template) = ChatTemplate::new(source, "<s>", "</s>", "t") else { return };
    for add in [true, false] {
        let _ = template.render(&[Message::user("x {{ y }}"), Message::user("\u{e9}")], add);
    }
}

/// A strategy file, and what is made of it before a run.
pub fn strategy(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let parsed = parse::parse(text, "f.yaml", &Home::BuiltIn);
    let errors = parsed.faults.iter().filter(|fault| fault.severity == Severity::Error).count();
    assert_eq!(parsed.strategy.is_none(), errors > 0, "a strategy, or errors");
    for fault in &parsed.faults {
        let line = fault.span.line;
        assert!(line >= 1 && line <= lines(text).count() + 2, "a fault lies inside the file: {fault}");
    }
    let Some(strategy) = parsed.strategy else { return };
    let _ = estimate::estimate(&strategy);
    let inputs = strategy.inputs(json!({"puzzle": {"len": 3, "input": "3 1 2", "examples": []}}));
    for prompt in strategy.prompts() {
        let _ = prompt::render(prompt, &inputs, 2);
    }
    for count in [&strategy.search.depth, &strategy.search.keep, &Count::Template(text.to_string())] {
        let _ = prompt::count(count, &inputs);
    }
    let _ = prompt::render(&PromptSource { origin: "t".into(), text: text.to_string() }, &inputs, 2);
}

/// A data file, as each task reads it, and puzzles: those of the file, and the text as one typed by hand.
pub fn csv(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(records) = table::read(text) {
        assert!(records.iter().all(|record| !record.fields.is_empty() && record.line >= 1));
    }
    let path = written("data.csv", bytes);
    for task in task::all() {
        let mut puzzles = task.read_data(&path).unwrap_or_default();
        puzzles.truncate(4);
        puzzles.extend(task.parse(text));
        for puzzle in puzzles {
            assert!(!puzzle.title().chars().any(char::is_control), "a title is one safe line");
            for answer in [text, "", "1 2", "(1 + 2) * 3"] {
                assert!((0.0..=1.0).contains(&puzzle.check(answer).score()));
                let _ = (puzzle.check_partial(answer), puzzle.solved(answer), puzzle.refute(answer));
                let _ = (puzzle.state_key(answer), puzzle.next_steps(answer), puzzle.inputs());
                let _ = puzzle.answer_constraint(answer).judge(answer);
            }
            if let Some(parts) = puzzle.split(2) {
                let _ = puzzle.join(&parts);
            }
        }
    }
}

/// What a judge and a proposer replied.
pub fn replies(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let candidates = choices.below(12);
    let scale = [Scale { low: 0.0, high: 10.0 }, Scale { low: 0.0, high: 1.0 }, Scale { low: -1e6, high: 1e6 }];
    let scale = scale[choices.below(3)];
    let Ok(text) = std::str::from_utf8(choices.rest()) else { return };
    if let Ok(read) = reply::score(text, scale) {
        assert!((scale.low..=scale.high).contains(&read.value), "a score lies on its scale");
    }
    let labels: BTreeMap<String, f64> =
        [("sure", 1.0), ("likely", 0.5), ("no", 0.0)].map(|(k, v)| (k.into(), v)).into();
    if let Ok((label, value)) = reply::label(text, &labels) {
        assert_eq!(labels.get(label), Some(&value));
    }
    if let Ok(vote) = reply::vote(text, candidates) {
        assert!((1..=candidates).contains(&vote), "a vote is for a candidate");
    }
    let proposals = listed(text);
    assert!(proposals.iter().all(|p| !p.is_empty() && p.trim() == p && !p.contains('\n')), "{proposals:?}");
}

/// A pattern over a vocabulary of any bytes: what the mask allows must be what judging each token says.
pub fn constraint(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let text = choices.text(24);
    let Ok(pattern) = Pattern::new(&text) else { return };
    let rule: Arc<dyn Constraint> = Arc::new(pattern);
    let mut pieces: Vec<Vec<u8>> = vec![Vec::new()];
    pieces.extend((0..1 + choices.below(24)).map(|_| choices.bytes(5).to_vec()));
    let written = choices.text(12);
    let vocab = Vocab::new(pieces.clone(), vec![0]);
    let mask = Ruler::new(Arc::clone(&rule), Stops::new(&[])).mask(&vocab, written.as_bytes());
    assert!(mask.allowed.is_sorted_by(|a, b| a < b), "ascending, each once");
    if let Judgement::Dead(_) = rule.judge(&written) {
        assert!(mask.allowed.is_empty(), "nothing follows what is refuted");
        return;
    }
    for (id, piece) in pieces.iter().enumerate().skip(1) {
        // `Ruler` and `Pattern` have tests of their own for tokens that end inside a character.
        let Ok(piece) = std::str::from_utf8(piece) else { continue };
        if piece.is_empty() {
            continue;
        }
        // A token may not pass the point where the text is finished.
        let closed = piece
            .char_indices()
            .skip(1)
            .any(|(at, _)| matches!(rule.judge(&format!("{written}{}", &piece[..at])), Judgement::Closed));
        let dead = matches!(rule.judge(&format!("{written}{piece}")), Judgement::Dead(_));
        let begun = rule.judge(&written) == Judgement::Closed;
        let expected = !dead && !closed && !begun;
        let found = mask.allowed.binary_search(&(id as u32)).is_ok();
        assert_eq!(found, expected, "token {piece:?} after {written:?} under {text:?}");
    }
}
