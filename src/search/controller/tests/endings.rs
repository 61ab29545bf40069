//! How runs end: limits, rules, failures, answers.

use super::*;

#[test]
fn limits_end_a_run_with_the_best_so_far() {
    let ended = |limits: Limits| {
        let mut spec = spec(Spell::new("abcd"), strategy(Policy::Bfs), script(&["a", "c", "b", "x", "d", "y"]));
        spec.limits = limits;
        run(spec).outcome
    };
    let thoughts = ended(Limits { thoughts: Some(3), ..Limits::default() });
    assert_eq!((thoughts.reason, thoughts.thoughts), (Reason::Thoughts { limit: 3 }, 3));
    assert!(thoughts.answer_text.is_some());
    let tokens = ended(Limits { tokens: Some(5), ..Limits::default() });
    assert_eq!(tokens.reason, Reason::Tokens { limit: 5 });
    let seconds = ended(Limits { seconds: Some(0.0), ..Limits::default() });
    assert_eq!(
        (seconds.reason, seconds.thoughts, seconds.why.as_str()),
        (Reason::Seconds { limit: 0.0 }, 0, "no thought was grown")
    );
}

#[test]
fn the_datas_own_answer_changes_only_whether_it_counts_as_solved() {
    let solve = |column| {
        let puzzle = Arc::new(Spell { word: "ab", column });
        run(spec(puzzle, strategy(Policy::Bfs), script(&["a", "b", "x", "b", "y"])))
    };
    let (right, blank, wrong) = (solve(Some("ab")), solve(None), solve(Some("zz")));
    assert!(right.outcome.solved && !blank.outcome.solved && !wrong.outcome.solved);
    assert_eq!(right.tree, blank.tree);
    assert_eq!(right.tree, wrong.tree);
    assert_eq!(right.outcome.answer, wrong.outcome.answer);
    assert_eq!(wrong.outcome.reason, Reason::Solved);
}

#[test]
fn an_accepted_thought_is_the_answer_and_a_rule_may_stop_the_run() {
    use crate::strategy::{Expression, Scope};
    let mut strategy = strategy(Policy::Bfs);
    strategy.search.accept = Some(Expression::new("depth == 2", Scope::Thought).unwrap());
    let ran = run(spec(Spell::new("abc"), strategy.clone(), script(&["a", "x", "b", "y", "q", "r"])));
    assert!(matches!(ran.outcome.reason, Reason::Stopped { .. }), "{:?}", ran.outcome);
    assert_eq!(ran.outcome.answer_text.as_deref(), Some("ab"));
    strategy.search.accept = None;
    strategy.search.stop = Some(Expression::new("thoughts >= 2", Scope::Run).unwrap());
    let ran = run(spec(Spell::new("abc"), strategy, script(&["a", "x"])));
    assert_eq!(ran.outcome.reason.to_string(), "stopped: `thoughts >= 2` holds");
    assert_eq!(ran.outcome.reason.exit_code(), 1);
}

#[test]
fn monte_carlo_visits_stand_in_the_record() {
    use crate::strategy::Mcts;
    let policy = Policy::Mcts(Mcts { c: 1.0, simulations: 4, rollout: false });
    let ran = run(spec(Spell::new("zzz"), strategy(policy), script(&["a", "b", "c", "d", "e", "f"])));
    assert!(matches!(ran.outcome.reason, Reason::Stopped { .. }), "{:?}", ran.outcome);
    assert_eq!(ran.tree.node(NodeId::ROOT).visits, 4);
    let mut rebuilt = crate::search::tree::ThoughtTree::default();
    for event in &ran.events {
        rebuilt.apply(event).unwrap();
    }
    assert_eq!(rebuilt, ran.tree);
}

#[test]
fn a_strategy_for_another_task_is_refused() {
    let mut strategy = strategy(Policy::Bfs);
    strategy.task = Some("sorting".into());
    let (events, _rx) = mpsc::unbounded_channel();
    let (_tx, commands) = mpsc::unbounded_channel();
    let refused =
        crate::search::controller::Controller::new(spec(Spell::new("ab"), strategy, script(&[])), events, commands);
    assert!(refused.is_err_and(|e| e.exit_code() == 2 && e.message().contains("sorting")));
}

#[test]
fn a_failed_sample_is_told_and_the_others_go_on() {
    let lm = Fake::new(|asked, _| match asked {
        0 => {
            let nan = completion("", Finish::Failed("the logits are not numbers".into()), None);
            let mut updates = says(&["a"]);
            updates.push(Update::Done { sample: 1, completion: nan });
            updates
        }
        _ => says(&["b", "c"]),
    });
    let ran = run(spec(Spell::new("ab"), strategy(Policy::Bfs), Arc::new(lm)));
    assert_eq!(ran.outcome.reason, Reason::Solved);
    assert!(ran.notes().iter().any(|n| n.contains("the logits are not numbers")));
}

#[test]
fn a_model_that_fails_ends_the_run_with_its_message() {
    let ended = |error: fn() -> Error| {
        let lm = Fake::new(move |_, _| vec![Update::Failed(error())]);
        run(spec(Spell::new("ab"), strategy(Policy::Bfs), Arc::new(lm))).outcome.reason
    };
    assert_eq!(ended(|| Error::fault("engine gone")), Reason::Failed { message: "engine gone".into() });
    assert_eq!(ended(|| Error::limit("no page left")), Reason::Memory { detail: "no page left".into() });
    assert_eq!(ended(|| Error::input("too long")), Reason::Refused { message: "too long".into() });
    let silent = run(spec(Spell::new("ab"), strategy(Policy::Bfs), Arc::new(Fake::new(|_, _| Vec::new()))));
    assert!(matches!(silent.outcome.reason, Reason::Failed { .. }));
}

#[test]
fn one_request_that_fails_closes_its_thought_and_the_others_go_on() {
    let lm = Fake::new(|asked, _| match asked {
        0 => says(&["a", "b"]),
        1 => vec![Update::Failed(Error::input("a prompt of 300 tokens does not fit the context of 256"))],
        _ => says(&["c", "d"]),
    });
    let mut strategy = strategy(Policy::Bfs);
    strategy.search.depth = Count::Number(2);
    let ran = run(spec(Spell::new("zzzz"), strategy, Arc::new(lm)));
    assert_eq!(ran.outcome.reason, Reason::Depth { depth: 2 });
    let closed = ran.tree.node(NodeId(1));
    assert_eq!(closed.status, Status::Closed);
    assert!(closed.why.as_deref().is_some_and(|why| why.contains("300 tokens")));
    assert_eq!(ran.thoughts()[2..], ["c open", "d open"]);
}

#[test]
fn a_front_end_that_goes_away_ends_the_run() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let lm = Arc::new(Endless::new(None));
        let (events, _seen) = mpsc::unbounded_channel();
        let (sender, commands) = mpsc::unbounded_channel();
        let controller = crate::search::controller::Controller::new(
            spec(Spell::new("ab"), strategy(Policy::Bfs), lm.clone()),
            events,
            commands,
        )
        .unwrap();
        let running = tokio::spawn(controller.run());
        while lm.asked.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        drop(sender);
        let (outcome, _) = running.await.unwrap();
        assert_eq!(outcome.reason, Reason::Quit);
        assert!(lm.asked.lock().unwrap()[0].is_closed(), "the request was called off");

        let mut spec = spec(Spell::new("ab"), strategy(Policy::Bfs), lm);
        spec.limits.seconds = Some(0.02);
        let outcome = crate::search::solve(spec, |_| {}).await.unwrap();
        assert_eq!(outcome.reason, Reason::Seconds { limit: 0.02 });
    });
}

#[test]
fn without_memory_a_run_ends_with_the_best_so_far() {
    let no_memory = || Finish::NoMemory("a path of 300 tokens needs 19 pages; raise --kv-budget".into());
    let starved = move |from: usize| {
        let lm = Fake::new(move |asked, request| match asked {
            at if at >= from => (0..request.n)
                .map(|sample| Update::Done { sample, completion: completion("", no_memory(), None) })
                .collect(),
            0 => says(&["a", "x"]),
            _ => says(&["b", "c"]),
        });
        run(spec(Spell::new("abcd"), strategy(Policy::Bfs), Arc::new(lm)))
    };
    for (from, best) in [(0, None), (1, Some("a"))] {
        let ran = starved(from);
        assert!(matches!(&ran.outcome.reason, Reason::Memory { detail } if detail.contains("--kv-budget")));
        assert_eq!(ran.outcome.exit_code(), 3);
        assert_eq!(ran.outcome.answer_text.as_deref(), best);
    }
    // One thought goes on, the other lost its memory: what is left at the end was not exhausted.
    let lm = Fake::new(|asked, _| match asked {
        0 => says(&["a", "x"]),
        1 => (0..2)
            .map(|sample| Update::Done { sample, completion: completion("", Finish::NoMemory("no page".into()), None) })
            .collect(),
        _ => says(&[" ", " "]),
    });
    let ran = run(spec(Spell::new("abcd"), strategy(Policy::Bfs), Arc::new(lm)));
    assert_eq!(ran.outcome.reason, Reason::Memory { detail: "no page".into() });
    // A judge without memory gives no score, and says so.
    let lm = Fake::new(|asked, _| match asked {
        0 => says(&["a", "x"]),
        _ => vec![Update::Done { sample: 0, completion: completion("", Finish::NoMemory("no page".into()), None) }],
    });
    let mut judged = strategy(Policy::Bfs);
    judged.evaluate = vec![value(&[])];
    let ran = run(spec(Spell::new("abcd"), judged, Arc::new(lm)));
    assert_eq!(ran.outcome.reason, Reason::Memory { detail: "no page".into() });
}

#[test]
fn where_all_proposals_were_dropped_the_end_says_so() {
    let mut one = strategy(Policy::Bfs);
    one.generate.n = Count::Number(2);
    let ran = run(spec(Spell::new("abc"), one, script(&["a", "a", " ", " "])));
    assert_eq!(ran.outcome.reason, Reason::Exhausted);
    assert!(ran.notes().iter().any(|n| n.contains("all 2 proposals were dropped")), "{:?}", ran.notes());
    let why = ran.tree.node(NodeId(1)).why.clone().unwrap_or_default();
    assert!(why.contains("nothing could be grown from it: all 2 proposals"), "{why}");
}

/// The right answer stays one if the model fails afterwards; if its memory does not add up nothing it said counts.
#[test]
fn the_model_is_looked_at_when_a_run_ends() {
    let with = |sound| {
        let mut lm = Fake::new(|_, _| says(&["ab"]));
        lm.sound = sound;
        let mut strategy = checked(Policy::Bfs);
        strategy.generate.thought = Thought::Answer;
        run(spec(Spell::new("ab"), strategy, Arc::new(lm)))
    };
    let sound = with(Some(Ok(())));
    assert_eq!((&sound.outcome.reason, sound.notes().len()), (&Reason::Solved, 0));
    let lost = with(Some(Err(Error::fault("device lost"))));
    assert_eq!(lost.outcome.reason, Reason::Solved);
    assert_eq!(lost.notes(), ["the model failed meanwhile: device lost"]);
    let broken = with(None);
    assert_eq!(broken.outcome.reason.exit_code(), 4);
    assert!(broken.outcome.reason.to_string().contains("memory did not add up"), "{}", broken.outcome.reason);
}
