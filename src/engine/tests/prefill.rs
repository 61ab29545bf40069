//! Prompts are read in parts, in the same steps in which others decode, and what they share is computed once.

use super::super::request::{Generate, Usage};
use super::super::testing::{Bench, collect, outcome, request, ring};
use super::prompt;

/// A text that grows for long, then a long prompt: its parts come in steps that the text is in too, and hold none up.
#[test]
fn a_long_prompt_is_read_beside_texts_that_grow() {
    let bench = |mixed_rows| {
        let bench = Bench::new(600, |limits| limits.mixed_rows = mixed_rows);
        bench.script.lock().unwrap().memory = Some(1);
        bench
    };
    let text = || Generate { max_tokens: 2000, ..request(&ring(1)) };
    let long = || Generate { max_tokens: 3, ..request(&prompt(1500, 5)) };
    let of = |done: Vec<_>| done.iter().map(outcome).collect::<Vec<_>>();
    let expected = (of(bench(64).run(text()).unwrap()), of(bench(64).run(long()).unwrap()));
    let both = bench(32);
    let growing = both.engine.generate(text());
    both.wait_for("the text grows", |counters| counters.speed.is_some_and(|speed| speed.steps > 3));
    let reading = both.engine.generate(long());
    let read = of(collect(reading).unwrap());
    let grown = of(collect(growing).unwrap());
    assert_eq!((grown, read), expected);
    let script = both.script.lock().unwrap();
    let mixed = script.steps.iter().filter(|&&rows| rows == 1 + 32).count();
    assert!(mixed >= 1400 / 32, "{mixed} steps with a row of the text and 32 of the prompt");
    assert!(script.steps.iter().all(|&rows| rows <= 1 + 32), "no step holds the text up for longer");
}

/// Ten puzzles of twenty branches each over the same examples: the examples are computed once, whoever asks.
#[test]
fn a_shared_prompt_is_computed_once_for_all_branches_and_puzzles() {
    let bench = Bench::new(2000, |_| {});
    let examples = prompt(700, 2);
    let ask = |puzzle: u64| {
        let mut ask = Generate {
            n: 20,
            sampling: super::warm(),
            max_tokens: 4,
            ..request(&[&examples[..], &[1 + puzzle as u32; 3]].concat())
        };
        ask.key.puzzle = puzzle;
        ask
    };
    let open: Vec<_> = (0..10).map(|puzzle| bench.engine.generate(ask(puzzle))).collect();
    let mut usage = Usage::default();
    for updates in open {
        collect(updates).unwrap().iter().for_each(|done| usage += done.usage);
    }
    assert_eq!(usage.prompt, 700 + 10 * 3, "examples once, and each puzzle's own tokens once: {usage:?}");
    assert_eq!(usage.logical, 10 * 703 + usage.sampled);
    // A later one finds the examples too.
    assert_eq!(bench.run(ask(30)).unwrap().iter().map(|done| done.usage.prompt).sum::<u64>(), 3);
}
