//! The token budget binds whatever is asked, and what a run cost can be counted again from its events.

use super::*;
use crate::lm::Usage;

fn words(text: &str) -> u64 {
    text.split_whitespace().count() as u64
}

/// Strategies that ask in different ways.
fn strategies() -> Vec<Strategy> {
    let vote = Evaluator::Vote {
        prompt: source("which of {{ thoughts }}"),
        format: None,
        n: 3,
        max_tokens: 9,
        temperature: 0.7,
    };
    let judged = |evaluator| Strategy { evaluate: vec![evaluator], ..strategy(Policy::Bfs) };
    let mut lists = strategy(Policy::Dfs);
    lists.generate.kind = GenerateKind::Propose;
    vec![strategy(Policy::Bfs), judged(value(&[])), judged(vote), lists]
}

fn replies() -> Vec<&'static str> {
    ["a", "b and some more words", "0.5", "c", "2", "d e f", "0.25 or so", "1. q\n2. r s"].repeat(8)
}

#[test]
fn no_budget_is_overrun_and_the_end_says_which() {
    for strategy in strategies() {
        let free = run(spec(Spell::new("abcdef"), strategy.clone(), script(&replies()))).outcome.usage.tokens();
        for limit in 1..free + 5 {
            let mut spec = spec(Spell::new("abcdef"), strategy.clone(), script(&replies()));
            spec.limits.tokens = Some(limit);
            let outcome = run(spec).outcome;
            assert!(outcome.usage.tokens() <= limit, "{} of {limit}: {:?}", outcome.usage.tokens(), strategy.evaluate);
            if outcome.usage.tokens() + 20 < free && limit < free {
                assert_eq!(outcome.reason, Reason::Tokens { limit });
            }
        }
    }
}

#[test]
fn log_probabilities_bind_too() {
    let mut judged = strategy(Policy::Bfs);
    judged.evaluate = vec![Evaluator::Logprob];
    judged.search.depth = Count::Number(1);
    let lm = || Arc::new(Fake::new(|_, _| says(&["a", "b"])));
    let steered = |limit| {
        let mut spec = spec(Spell::new("zzzz"), judged.clone(), lm());
        spec.paused = true;
        spec.limits.tokens = Some(limit);
        run_steered(spec, |event| match event {
            Event::Paused => vec![Command::Add { parent: NodeId::ROOT, text: "q".into() }, Command::Resume],
            _ => Vec::new(),
        })
    };
    let free = steered(1000);
    assert_eq!(free.outcome.usage.scored, 3);
    for limit in 1..30 {
        let ran = steered(limit);
        assert!(ran.outcome.usage.tokens() <= limit, "{:?} of {limit}", ran.outcome.usage);
    }
}

#[test]
fn the_cost_of_a_run_is_recounted_from_its_events() {
    for strategy in strategies() {
        let ran = run(spec(Spell::new("abcdef"), strategy, script(&replies())));
        let mut sum = Usage::default();
        let mut logical = 0;
        for event in &ran.events {
            match event {
                // Every request's full prompt, once, and all it put out: what a service without sharing would bill.
                Event::Asked { prompt, .. } => logical += words(prompt),
                Event::Replied { usage, text, .. } => {
                    sum += *usage;
                    logical += words(text);
                }
                _ => {}
            }
        }
        assert_eq!(ran.outcome.usage, sum);
        assert_eq!(ran.outcome.usage.logical, logical);
        assert!(logical > 0);
    }
}

#[test]
fn a_request_that_is_called_off_was_asked_all_the_same() {
    let mut spec = spec(Spell::new("abcdef"), strategy(Policy::Bfs), Arc::new(Endless::new(Some("a "))));
    spec.limits.seconds = Some(0.2);
    let ran = run(spec);
    assert_eq!(ran.outcome.reason, Reason::Seconds { limit: 0.2 });
    // `Spell abcdef: ` once, and a word of each of two samples.
    assert_eq!(ran.outcome.usage, Usage { sampled: 2, logical: 4, ..Usage::default() });
}
