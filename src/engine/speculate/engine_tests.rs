//! The engine with drafts against the engine without, over a device that sees paths and repeats itself.

use crate::attention::Method;
use crate::engine::constraint::{Constraint, Judgement};
use crate::engine::counters::Counters;
use crate::engine::request::{Completion, Finish, Generate, Mode, Sampling};
use crate::engine::sample::Sampler;
use crate::engine::sample::row::Row;
use crate::engine::testing::{Bench, collect, outcome, path_logits, request, ring};
use std::collections::HashMap;
use std::sync::Arc;

fn bench(pages: usize, speculate: bool, memory: usize) -> Bench {
    let bench = Bench::new(pages, |limits| limits.speculate = speculate);
    bench.script.lock().unwrap().memory = Some(memory);
    bench
}

fn warm(top_k: usize) -> Sampling {
    Sampling { temperature: 0.7, top_k: Some(top_k), ..Sampling::default() }
}

/// Only letters and spaces, up to ten characters.
struct Letters;

impl Constraint for Letters {
    fn judge(&self, text: &str) -> Judgement {
        match text.chars().find(|c| !c.is_ascii_lowercase() && *c != ' ') {
            Some(c) => Judgement::Dead(format!("`{c}`")),
            None if text.len() > 10 => Judgement::Dead("long".into()),
            None if text.len() == 10 => Judgement::Closed,
            None => Judgement::Open { complete: true },
        }
    }

    fn ascii(&self) -> bool {
        true
    }
}

/// Every way to ask for a text, over prompts that repeat.
fn requests() -> Vec<Generate> {
    let mut requests = Vec::new();
    for i in 0..24u32 {
        let prompt: Vec<u32> = (0..30 + i).map(|at| 1 + (at * 5 + at % 7 * i) % 36).collect();
        let mut one = Generate { max_tokens: 30 + i as usize, ..request(&prompt) };
        one.key.node = u64::from(i);
        one.n = 1 + i as usize % 2;
        match i % 8 {
            0 => {}
            1 => one.sampling = warm(3),
            2 => one.sampling = Sampling { repetition_penalty: 1.3, ..warm(4) },
            3 => one.stop = vec!["ab".into(), "e".into(), "1".into()],
            4 => one.constraint = Some(Arc::new(Letters)),
            5 => {
                one.constraint = Some(Arc::new(Letters));
                one.sampling = warm(5);
            }
            6 => one.mode = Mode::Likeliest,
            _ => (one.sampling, one.max_tokens) = (warm(2), 1 + i as usize % 3),
        }
        requests.push(one);
    }
    requests
}

/// What a request computed besides its own prompt, which may be found in the cache.
fn counted(done: &Completion) {
    let usage = done.usage;
    assert!(usage.accepted <= usage.drafted && usage.scored == usage.drafted - usage.accepted, "{usage:?}");
}

#[test]
fn every_text_is_bit_for_bit_the_one_without_drafts() {
    for memory in [1, 2] {
        let plain = bench(400, false, memory);
        let expected: Vec<Vec<_>> =
            requests().into_iter().map(|one| plain.run(one).unwrap().iter().map(outcome).collect()).collect();
        for pages in [400, 12] {
            let drafting = bench(pages, true, memory);
            let mut accepted = 0;
            for (one, expected) in requests().into_iter().zip(&expected) {
                let done = drafting.run(one).unwrap();
                done.iter().for_each(counted);
                accepted += done.iter().map(|done| done.usage.accepted).sum::<u64>();
                assert_eq!(&done.iter().map(outcome).collect::<Vec<_>>(), expected, "alone, memory {memory}");
            }
            assert!(accepted > 40, "{accepted} accepted");
            let open: Vec<_> = requests().into_iter().map(|one| drafting.engine.generate(one)).collect();
            for (updates, expected) in open.into_iter().zip(&expected) {
                let done: Vec<_> = collect(updates).unwrap().iter().map(outcome).collect();
                assert_eq!(&done, expected, "together, memory {memory}, {pages} pages");
            }
            let nothing_live = |counters: &Counters| counters.kv.is_some_and(|kv| kv.pages_live == 0);
            drafting.wait_for("pages are given back", nothing_live);
            let speed = drafting.engine.counters().speed.unwrap();
            assert!(speed.accepted >= accepted && speed.drafted >= speed.accepted && speed.drafts > 0, "{speed:?}");
        }
    }
}

#[test]
fn a_device_that_only_glances_gives_the_same_bits() {
    for speculate in [false, true] {
        let all = bench(400, speculate, 2);
        let expected: Vec<Vec<_>> =
            requests().into_iter().map(|one| all.run(one).unwrap().iter().map(outcome).collect()).collect();
        assert_eq!(all.script.lock().unwrap().fetched, 0);
        let mut fetched = Vec::new();
        for top in [1, 5, 43] {
            let glancing = bench(400, speculate, 2);
            glancing.script.lock().unwrap().glance = Some(top);
            for (one, expected) in requests().into_iter().zip(&expected) {
                let done: Vec<_> = glancing.run(one).unwrap().iter().map(outcome).collect();
                assert_eq!(&done, expected, "speculate {speculate}, {top} best tokens");
            }
            fetched.push(glancing.script.lock().unwrap().fetched);
        }
        assert!(fetched.is_sorted_by(|a, b| a > b) && fetched[0] > 20 && fetched[2] == 0, "{fetched:?}");
    }
}

#[test]
fn a_text_that_repeats_takes_fewer_steps() {
    let ask = || Generate { max_tokens: 200, ..request(&ring(1)) };
    let steps = |speculate| {
        let bench = bench(100, speculate, 1);
        bench.script.lock().unwrap().row_cost = Some(0.25);
        let done = bench.run(ask()).unwrap().remove(0);
        assert_eq!((done.ids.len(), done.finish), (200, Finish::Length));
        let script = bench.script.lock().unwrap();
        (script.steps.len(), done.usage.accepted_length())
    };
    let ((plain, none), (drafted, length)) = (steps(false), steps(true));
    assert_eq!((plain, none), (200, None));
    assert!(drafted < plain / 2 && length.unwrap() > 2.0, "{drafted} steps of {plain}, {length:?}");
}

/// Three tokens that follow each other under the model's own distribution, drawn with drafts: their counts against the
/// exact probabilities. The texts repeat, so most tokens were drafted.
#[test]
fn drawn_texts_have_the_models_distribution() {
    const TEXTS: u64 = 4000;
    let bench = bench(400, true, 1);
    bench.script.lock().unwrap().row_cost = Some(1e-6);
    let settings = warm(3);
    let sampler = Sampler::new(&settings).unwrap();
    let likely = |token: u32| sampler.kept(&mut Row::of(&path_logits(&[token], 43)), &[]).unwrap().shares;
    // A prompt in which likely continuations stand: each time a token comes, another one of its likely ones follows.
    let mut prompt = vec![5u32];
    let mut visits = [0; 43];
    for _ in 0..150 {
        let at = *prompt.last().unwrap();
        let next: Vec<u32> = likely(at).iter().map(|n| n.0).filter(|&t| t != 0).collect();
        visits[at as usize] += 1;
        prompt.push(next.get(visits[at as usize] % next.len().max(1)).copied().unwrap_or(5));
    }
    let mut expected: HashMap<Vec<u32>, f64> = HashMap::new();
    let mut paths = vec![(Vec::new(), 1.0)];
    while let Some((path, chance)) = paths.pop() {
        if path.len() == 3 || path.last() == Some(&0) {
            expected.insert(path, chance);
            continue;
        }
        for (token, share) in likely(*path.last().unwrap_or(prompt.last().unwrap())) {
            paths.push((path.iter().copied().chain([token]).collect(), chance * share));
        }
    }
    let mut seen: HashMap<Vec<u32>, f64> = HashMap::new();
    let mut usage = crate::engine::request::Usage::default();
    for text in 0..TEXTS {
        let mut ask = Generate { sampling: settings.clone(), max_tokens: 3, ..request(&prompt) };
        ask.key.puzzle = text;
        let done = bench.run(ask).unwrap().remove(0);
        usage += done.usage;
        let mut ids = done.ids.to_vec();
        // The end token is not part of the text.
        ids.extend((done.finish == Finish::End).then_some(0));
        *seen.entry(ids).or_default() += 1.0;
    }
    assert!(usage.accepted > TEXTS / 4 && usage.scored > TEXTS / 4, "{usage:?}");
    let mut chi = 0.0;
    for (path, chance) in &expected {
        let (seen, expected) = (seen.remove(path).unwrap_or(0.0), chance * TEXTS as f64);
        chi += (seen - expected).powi(2) / expected.max(1.0);
    }
    assert!(seen.is_empty(), "texts that cannot be: {seen:?}");
    // The mean of the statistic is one less than the number of texts, its deviation the root of twice that.
    let free = expected.len() as f64 - 1.0;
    assert!(chi < free + 5.0 * (2.0 * free).sqrt(), "{chi} at {free} degrees of freedom");
}

#[test]
fn failures_in_the_middle_of_a_draft_fail_what_they_would_have() {
    let plain = bench(100, false, 1);
    let drafting = bench(100, true, 1);
    for bench in [&plain, &drafting] {
        bench.script.lock().unwrap().nan_after = Some(7);
    }
    let mut failed = 0;
    for first in 1..36 {
        let ask = || Generate { max_tokens: 60, ..request(&[first, 3, first, 3, first]) };
        let (a, b) = (plain.run(ask()).unwrap().remove(0), drafting.run(ask()).unwrap().remove(0));
        assert_eq!((outcome(&a), &a.finish), (outcome(&b), &b.finish));
        failed += usize::from(matches!(a.finish, Finish::Failed(_)));
    }
    assert!(failed > 0, "token 7 never came");
    // The device fails while drafts are rows of its step: the request fails, and the next one is served.
    let next = drafting.script.lock().unwrap().steps.len() + 6;
    drafting.script.lock().unwrap().error_at = Some(next);
    let ask = || Generate { max_tokens: 200, ..request(&[1, 2, 1, 2, 1]) };
    let error = drafting.run(ask()).map(drop).unwrap_err();
    assert!(error.message().contains("device lost"), "{error}");
    let (a, b) = (plain.run(ask()).unwrap().remove(0), drafting.run(ask()).unwrap().remove(0));
    assert_eq!(outcome(&a), outcome(&b));
    drop(b);
    drafting.wait_for("pages are given back", |c| c.kv.is_some_and(|kv| kv.pages_live == 0));
}

#[test]
fn every_method_plans_token_trees() {
    let expected: Vec<_> = {
        let plain = bench(400, false, 1);
        requests().into_iter().map(|one| plain.run(one).unwrap().iter().map(outcome).collect::<Vec<_>>()).collect()
    };
    for method in Method::LIVE {
        let bench = Bench::new(400, |limits| (limits.speculate, limits.method) = (true, method));
        bench.script.lock().unwrap().memory = Some(1);
        for (one, expected) in requests().into_iter().zip(&expected) {
            let done: Vec<_> = bench.run(one).unwrap().iter().map(outcome).collect();
            assert_eq!(&done, expected, "{method}");
        }
    }
}
