//! Evaluators carried out: labels, votes, programs, log-probabilities.

use super::*;

/// Case 35: a threshold that prunes every state ends the run normally.
#[test]
fn when_all_are_pruned_the_best_pruned_thought_is_given() {
    let Some(replies) = case_replies("35_all_pruned.reply.txt") else { return };
    let mut strategy = strategy(Policy::Bfs);
    strategy.search.depth = Count::Number(3);
    strategy.search.prune_below = 0.9;
    strategy.generate.kind = GenerateKind::Random;
    strategy.generate.n = Count::Number(4);
    strategy.evaluate = vec![value(&[])];
    let replies: Vec<&str> = replies.iter().map(String::as_str).collect();
    let ran = run(spec(Spell::new("abcdefg"), strategy, script(&replies)));
    assert_eq!(ran.outcome.reason, Reason::AllPruned { depth: 1 });
    assert_eq!(ran.outcome.reason.exit_code(), 1);
    assert!(!ran.outcome.solved);
    assert_eq!(ran.outcome.node, Some(NodeId(2)), "the one that scored 0.2");
    let scores: Vec<Option<f64>> = ran.tree.iter().skip(1).map(|(_, n)| n.score).collect();
    assert_eq!(scores, [Some(0.1), Some(0.2), Some(0.1), Some(0.0)]);
    assert!(ran.tree.iter().skip(1).all(|(_, n)| n.status == Status::Pruned));
    assert_eq!(ran.tree.node(NodeId(4)).parts[0].value, None, "shown as what it is");
    assert!(ran.notes().iter().any(|n| n.contains("thought #4: value gave no value")), "{:?}", ran.notes());
    assert!(ran.notes().iter().any(|n| n.contains("1 reply of a judge could not be read")));
}

#[test]
fn votes_choose_among_the_thoughts_of_a_level() {
    let mut strategy = strategy(Policy::Bfs);
    strategy.search.keep = Count::Number(1);
    strategy.generate.n = Count::Number(3);
    let prompt = source("{% for t in thoughts %}{{ loop.index }}: {{ t }}\n{% endfor %}Best?");
    strategy.evaluate = vec![Evaluator::Vote { prompt, format: None, n: 5, max_tokens: 20, temperature: 0.7 }];
    let Some(votes) = case_replies("39_votes.reply.txt") else { return };
    let mut replies = vec!["x", "a", "z"];
    replies.extend(votes.iter().map(String::as_str));
    replies.extend(["b", "c", "d"]);
    let ran = run(spec(Spell::new("ab"), strategy, script(&replies)));
    assert_eq!(ran.thoughts(), ["x pruned", "a closed", "z pruned", "b answer"]);
    let detail = &ran.tree.node(NodeId(2)).parts[0].detail;
    assert!(detail.starts_with("candidate 2: 1 of 1 votes, 4 invalid"), "{detail}");
    // Each candidate shows them; they are four replies all the same.
    assert!(ran.notes().contains(&"4 replies of judges could not be read"), "{:?}", ran.notes());
}

#[cfg(unix)]
#[test]
fn programs_score_thoughts_and_their_failures_are_told() {
    let scored = |run_: &[&str], seconds: f64| {
        let mut strategy = strategy(Policy::Bfs);
        strategy.search.depth = Count::Number(1);
        let words = run_.iter().map(|w| w.to_string()).collect();
        strategy.evaluate = vec![Evaluator::Command { run: words, seconds }];
        let ran = run(spec(Spell::new("zz"), strategy, script(&["a", "b"])));
        let of = |id| (ran.tree.node(NodeId(id)).score, ran.tree.node(NodeId(id)).parts[0].detail.clone());
        (of(1), of(2))
    };
    let program = r#"if grep -q '"thought":"a"'; then echo '{"score": 0.75, "detail": "an a"}'; else echo 0.25; fi"#;
    let (a, b) = scored(&["sh", "-c", program], 10.0);
    assert_eq!((a.0, a.1.as_str(), b.0), (Some(0.75), "an a", Some(0.25)));
    let why = |run: &[&str], seconds| scored(run, seconds).0;
    assert!(why(&["sleep", "5"], 0.05).1.contains("no answer within"));
    assert!(why(&["false"], 5.0).1.contains("failed"));
    assert!(why(&["/nowhere/at/all"], 5.0).1.contains("cannot be started"));
    assert!(why(&["echo", "fine"], 5.0).1.contains("no JSON"));
    assert_eq!(why(&["echo", "2"], 5.0).0, Some(0.0));
}

#[test]
fn log_probabilities_are_taken_from_the_thought_or_asked_for() {
    let lm = Fake::new(|_, _| says(&["a", "b"]));
    let mut strategy = strategy(Policy::Bfs);
    strategy.search.depth = Count::Number(1);
    strategy.evaluate = vec![Evaluator::Logprob];
    let mut spec = spec(Spell::new("zzzz"), strategy, Arc::new(lm));
    spec.paused = true;
    let ran = run_steered(spec, |event| match event {
        Event::Paused => vec![Command::Add { parent: NodeId::ROOT, text: "q".into() }, Command::Resume],
        _ => Vec::new(),
    });
    let score = |text: &str| ran.tree.iter().find(|(_, n)| n.text == text).and_then(|(_, n)| n.score).unwrap();
    assert!((score("a") - (-1.0f64).exp()).abs() < 1e-9);
    assert!((score("q") - (-0.5f64).exp()).abs() < 1e-9);
    assert_eq!(ran.outcome.usage.scored, 3);
}

#[test]
fn yes_and_no_are_read_from_the_logits_of_all_thoughts_at_once() {
    let ask = |prompt: &str| Evaluator::YesNo {
        prompt: source(prompt),
        format: None,
        yes: vec!["yes".into(), "Yes".into()],
        no: vec!["no".into()],
    };
    let judged = |evaluator: Evaluator, lm: Arc<dyn Lm>, limit: Option<u64>| {
        let mut strategy = strategy(Policy::Bfs);
        strategy.search.depth = Count::Number(1);
        strategy.evaluate = vec![evaluator];
        let mut spec = spec(Spell::new("zzzz"), strategy, lm);
        spec.limits.tokens = limit;
        run(spec)
    };
    let lm = || Arc::new(Fake::new(|_, _| says(&["a", "b"])));
    let ran = judged(ask("{{ thought }} right?"), lm(), None);
    let scores: Vec<f64> = ran.tree.iter().skip(1).filter_map(|(_, n)| n.score).collect();
    // The fake model gives every byte of a text -0.5.
    let p = |bytes: f64| (-0.5 * bytes).exp();
    let expected = 2.0 * p(3.0) / (2.0 * p(3.0) + p(2.0));
    assert!(scores.len() == 2 && scores.iter().all(|s| (s - expected).abs() < 1e-9), "{scores:?} {expected}");
    assert_eq!(ran.outcome.usage.scored, 6, "one request a thought");
    assert!(ran.tree.node(NodeId(1)).parts[0].detail.contains("ln P(yes)"));

    let short = judged(ask("{{ thought }} right?"), lm(), Some(10));
    assert_eq!(short.outcome.reason, Reason::Tokens { limit: 10 });
    assert!(short.tree.iter().skip(1).all(|(_, n)| n.score.is_none()), "judged in part they cannot be compared");

    let deaf = judged(ask("{{ thought }} right?"), script(&["a", "b"]), None);
    assert_eq!(deaf.outcome.exit_code(), 2);
    assert!(deaf.outcome.reason.to_string().contains("log-probabilities"), "{}", deaf.outcome.reason);
    assert_eq!(judged(ask("{{ path.text }}"), lm(), None).outcome.exit_code(), 2);
}

#[test]
fn a_judges_prompt_that_does_not_render_ends_the_run() {
    let judged = |evaluator: Evaluator| {
        let mut strategy = strategy(Policy::Bfs);
        strategy.evaluate = vec![evaluator];
        run(spec(Spell::new("abc"), strategy, script(&["a", "b", "0.5", "0.5"])))
    };
    let broken = source("How good is {{ path.text }}?");
    let Evaluator::Value { format, n, scale, labels, max_tokens, temperature, .. } = value(&[]) else {
        panic!("a value")
    };
    let value = Evaluator::Value { prompt: broken.clone(), format, n, scale, labels, max_tokens, temperature };
    let vote = Evaluator::Vote { prompt: broken, format, n, max_tokens, temperature };
    for evaluator in [value, vote] {
        let ran = judged(evaluator);
        assert_eq!(ran.outcome.exit_code(), 2);
        let told = ran.outcome.reason.to_string();
        assert!(told.contains("prompts/test.txt line 1"), "{told}");
        assert!(ran.tree.iter().skip(1).all(|(_, n)| n.score.is_none()), "nothing scores 0 for it");
    }
    let mut strategy = strategy(Policy::Bfs);
    strategy.generate.prompt = source("{{ puzzle.wrod }}");
    let ran = run(spec(Spell::new("abc"), strategy, script(&["a"])));
    assert_eq!(ran.outcome.exit_code(), 2);
    assert!(ran.outcome.reason.to_string().contains("puzzle.word"), "{}", ran.outcome.reason);
}

#[test]
fn chance_judges_with_the_labels_numbers_and_candidates_there_are() {
    let vote =
        Evaluator::Vote { prompt: source("{{ thoughts }}"), format: None, n: 2, max_tokens: 9, temperature: 0.0 };
    for evaluator in [value(&[("good", 2.0), ("bad", 1.0)]), value(&[]), vote] {
        let mut strategy = strategy(Policy::Bfs);
        strategy.generate.constrain = Constrain::Puzzle;
        strategy.generate.kind = GenerateKind::Likeliest;
        strategy.search.depth = Count::Number(2);
        strategy.evaluate = vec![evaluator];
        let ran = run(spec(Spell::new("zzzz"), strategy, Arc::new(RandomProposer::default())));
        assert!(ran.notes().iter().all(|note| !note.contains("no value")), "{:?}", ran.notes());
        assert!(ran.tree.iter().skip(1).all(|(_, n)| n.parts.iter().all(|part| part.value.is_some())));
    }
}
