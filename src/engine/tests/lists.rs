//! Texts that are listed, given or held to a constraint: ranked, scored and masked.

use super::super::constraint::{Constraint, Judgement};
use super::super::request::{Finish, Generate, Likelihood, Listed, Mode, Score};
use super::super::testing::{Bench, letters, outcome, path_logits, request};
use super::{prompt, warm};
use std::sync::Arc;

fn listed(texts: &[&str]) -> Vec<Listed> {
    let vocab = letters();
    let spell = |t: &&str| Listed { text: t.to_string(), ids: vocab.spell(t.as_bytes(), Vec::new()).unwrap() };
    texts.iter().map(spell).collect()
}

#[test]
fn listed_texts_are_ranked_exactly_and_shared_tokens_forwarded_once() {
    let texts = ["abc", "abd", "ab", "x", "34", "35", "3"];
    let tokens = prompt(40, 1);
    let bench = Bench::new(100, |_| {});
    let ask = |n| Generate { mode: Mode::Likeliest, n, listed: Some(listed(&texts)), ..request(&tokens) };
    let all = bench.run(ask(10)).unwrap();
    assert_eq!(all.len(), 7);
    let sum: f64 = all.iter().map(|d| d.masked_logprob.exp()).sum();
    assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    assert!(all.windows(2).all(|w| w[0].masked_logprob >= w[1].masked_logprob));
    // Inner nodes: "ab" (one token) and "3".
    assert_eq!((all[0].usage.prompt, all[0].usage.scored, all[0].usage.sampled), (40, 2, 0));
    assert_eq!(bench.script.lock().unwrap().steps, [42]);
    for done in &all {
        let mut path = tokens.clone();
        for (&id, &logprob) in done.ids.iter().zip(&done.logprobs) {
            let logits = path_logits(&path, letters().len());
            let total = logits.iter().map(|&l| f64::from(l).exp()).sum::<f64>().ln();
            assert!((f64::from(logits[id as usize]) - total - f64::from(logprob)).abs() < 1e-5);
            path.push(id);
        }
    }
    let best = bench.run(ask(2)).unwrap();
    assert_eq!(best.iter().map(outcome).collect::<Vec<_>>(), all[..2].iter().map(outcome).collect::<Vec<_>>());
    for (pages, rows) in [(6, 256), (4, 2)] {
        let small = Bench::new(pages, |limits| limits.step_rows = rows);
        let same = small.run(ask(10)).unwrap();
        assert_eq!(same.iter().map(outcome).collect::<Vec<_>>(), all.iter().map(outcome).collect::<Vec<_>>());
    }
    let tight = Bench::new(100, |limits| limits.context = 40).run(ask(3)).unwrap();
    assert_eq!(tight[0].finish, Finish::Context(40));
}

#[test]
fn scores_are_the_log_probabilities_of_given_tokens() {
    let bench = Bench::new(100, |_| {});
    let tokens = prompt(40, 1);
    let continuations = vec![vec![1, 2, 3], vec![1, 2], vec![], vec![1, 5]];
    let ask = || Score { prompt: tokens.clone().into(), continuations: continuations.clone() };
    let scores = bench.engine.score(ask()).blocking_recv().unwrap().unwrap();
    for (continuation, logprobs) in continuations.iter().zip(&scores.logprobs) {
        assert_eq!(continuation.len(), logprobs.len());
        let mut path = tokens.clone();
        for (&id, &logprob) in continuation.iter().zip(logprobs) {
            let logits = path_logits(&path, letters().len());
            let total = logits.iter().map(|&l| f64::from(l).exp()).sum::<f64>().ln();
            assert!((f64::from(logits[id as usize]) - total - f64::from(logprob)).abs() < 1e-5);
            path.push(id);
        }
    }
    assert_eq!((scores.usage.prompt, scores.usage.scored, scores.usage.logical), (40, 2, 47));
    let again = bench.engine.score(ask()).blocking_recv().unwrap().unwrap();
    assert_eq!((again.logprobs, again.usage.prompt), (scores.logprobs, 1));
    let long = Score { prompt: tokens.into(), continuations: vec![vec![1; 5000]] };
    assert!(bench.engine.score(long).blocking_recv().unwrap().is_err());
}

/// Exactly these texts, without saying so by list.
struct Texts(Vec<&'static str>);

impl Constraint for Texts {
    fn judge(&self, text: &str) -> Judgement {
        let more = self.0.iter().any(|t| t.len() > text.len() && t.starts_with(text));
        match (self.0.contains(&text), more) {
            (true, false) => Judgement::Closed,
            (complete, true) => Judgement::Open { complete },
            (false, false) => Judgement::Dead(format!("`{text}` is not one of them")),
        }
    }
}

#[test]
fn masks_keep_every_sample_right_and_end_it_when_it_is_closed() {
    let bench = Bench::new(100, |_| {});
    let rule: Arc<dyn Constraint> = Arc::new(Texts(vec!["12", "123", "17", "é", "zzz"]));
    for salt in 0..20 {
        let ask = Generate { n: 4, sampling: warm(), constraint: Some(Arc::clone(&rule)), ..request(&prompt(9, salt)) };
        for done in bench.run(ask).unwrap() {
            assert!(
                matches!(rule.judge(&done.text), Judgement::Closed | Judgement::Open { complete: true }),
                "{}",
                done.text
            );
            assert_eq!(done.finish, Finish::End);
            assert!(done.masked_logprob <= 1e-9);
        }
    }
    let likeliest = Generate { mode: Mode::Likeliest, n: 9, constraint: Some(rule), ..request(&prompt(9, 1)) };
    let done = bench.run(likeliest).unwrap();
    // First tokens: `1`, `12`, half of `é`, `z`.
    assert_eq!(done.len(), 4);
    let dead: Arc<dyn Constraint> = Arc::new(Texts(vec![]));
    let none = bench.run(Generate { constraint: Some(dead), ..request(&prompt(9, 1)) }).unwrap().remove(0);
    assert!(matches!(none.finish, Finish::Refuted(_)));
}

/// Where nobody wants to know of other tokens, only those that are allowed are computed, and the texts stay the same.
#[test]
fn few_allowed_tokens_are_the_only_ones_computed() {
    let rule: Arc<dyn Constraint> = Arc::new(Texts(vec!["12", "123", "17", "é", "zzz"]));
    let listed = listed(&["12", "123", "17", "zzz"]);
    for salt in 0..10 {
        for (mode, listed) in [(Mode::Sample, None), (Mode::Likeliest, None), (Mode::Likeliest, Some(listed.clone()))] {
            let ask = |likelihood| Generate {
                n: 3,
                mode,
                sampling: warm(),
                constraint: Some(Arc::clone(&rule)),
                listed: listed.clone(),
                likelihood,
                ..request(&prompt(9, salt))
            };
            let run = |likelihood| {
                let bench = Bench::new(100, |_| {});
                let done = bench.run(ask(likelihood)).unwrap();
                let script = bench.script.lock().unwrap();
                (done, script.few, script.asked.len())
            };
            let ((whole, none, _), (few, some, all)) = (run(Likelihood::Model), run(Likelihood::Allowed));
            assert!(none == 0 && some == all && all > 0, "{none} {some} {all}");
            for (a, b) in whole.iter().zip(&few) {
                assert_eq!((&a.text, &a.ids, &a.finish), (&b.text, &b.ids, &b.finish));
                assert!(
                    (a.masked_logprob - b.masked_logprob).abs() <= 1e-9,
                    "{} {}",
                    a.masked_logprob,
                    b.masked_logprob
                );
                let sum: f64 = b.logprobs.iter().map(|&l| f64::from(l)).sum();
                // What is left of the whole text's is that it ends there.
                assert!(b.masked_logprob <= sum + 1e-5, "{} {sum}", b.masked_logprob);
                assert!(a.logprobs.iter().zip(&b.logprobs).all(|(model, among)| model <= among));
            }
        }
    }
}

/// Refuses a letter, without masking.
struct Without(char);

impl Constraint for Without {
    fn judge(&self, text: &str) -> Judgement {
        if text.contains(self.0) {
            Judgement::Dead(format!("`{}`", self.0))
        } else {
            Judgement::Open { complete: true }
        }
    }

    fn masks(&self) -> bool {
        false
    }
}

#[test]
fn a_text_that_became_wrong_ends_in_its_middle() {
    let bench = Bench::new(100, |_| {});
    let free = |salt| Generate { max_tokens: 30, ..request(&prompt(9, salt)) };
    let mut refuted = 0;
    for salt in 0..20 {
        let whole = bench.run(free(salt)).unwrap().remove(0);
        let cut = bench.run(Generate { constraint: Some(Arc::new(Without('e'))), ..free(salt) }).unwrap().remove(0);
        match whole.text.find('e') {
            Some(at) => {
                assert_eq!((cut.text.as_str(), cut.finish), (&whole.text[..=at], Finish::Refuted("`e`".into())));
                refuted += 1;
            }
            None => assert_eq!(outcome(&whole), outcome(&cut)),
        }
    }
    assert!(refuted > 0);
}
