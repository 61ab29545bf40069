//! How thoughts come about: levels, lists, duplicates, constraints, paths that go on.

use super::*;

/// Two letters breadth first, then depth first: the second stage makes its thoughts in its own way.
#[test]
fn stages_follow_one_another_on_one_tree() {
    let mut strategy = strategy(Policy::Dfs);
    strategy.generate.kind = GenerateKind::Likeliest;
    strategy.generate.constrain = Constrain::Puzzle;
    strategy.generate.n = Count::Number(30);
    strategy.search.depth = Count::Number(2);
    strategy.evaluate = vec![Evaluator::Checker { partial: true }];
    let mut wide = strategy.clone();
    wide.search.policy = Policy::Bfs;
    wide.search.keep = Count::Number(1);
    strategy.stages = vec![Stage { depth: 2, search: wide.search, generate: wide.generate, evaluate: wide.evaluate }];
    let ran = run(spec(Spell::new("abcd"), strategy, Arc::new(RandomProposer::default())));
    assert!(ran.outcome.solved, "{}", ran.outcome.reason);
    assert_eq!(ran.outcome.answer_text.as_deref(), Some("abcd"));
    assert_eq!(ran.notes().iter().filter(|note| note.contains("stage 2 of 2 begins")).count(), 1);
}

#[test]
fn breadth_first_grows_level_by_level_to_the_answer() {
    let ran = run(spec(Spell::new("ab"), strategy(Policy::Bfs), script(&["a", "b", "x", "b", "y"])));
    assert_eq!(ran.thoughts(), ["a closed", "b open", "x open", "b answer"]);
    let outcome = &ran.outcome;
    assert_eq!((outcome.solved, &outcome.reason, outcome.node), (true, &Reason::Solved, Some(NodeId(4))));
    assert_eq!(outcome.answer_text.as_deref(), Some("ab"));
    assert_eq!((outcome.error_score, outcome.thoughts, outcome.proposals), (Some(0), 4, 4));
    assert_eq!(ran.events.first().map(|e| matches!(e, Event::Started { .. })), Some(true));
    assert!(matches!(ran.events.last(), Some(Event::Ended { .. })));
}

#[test]
fn the_event_log_of_a_small_run() {
    let ran = run(spec(Spell::new("ab"), checked(Policy::Dfs), script(&["x", "a", "a", "b"])));
    let lines: Vec<String> =
        ran.events.iter().filter(|e| !e.is_for_screen()).map(|e| serde_json::to_string(e).unwrap()).collect();
    insta::with_settings!({filters => vec![(r#""seconds":[0-9.e-]+"#, r#""seconds":0"#)]}, {
        insta::assert_snapshot!(lines.join("\n"));
    });
}

#[test]
fn a_reply_tells_the_pieces_that_it_came_in_where_they_are_its_text() {
    let lm = Fake::new(|_, _| {
        let text = |sample, text: &str, logprob| Update::Text { sample, text: text.into(), logprob };
        let done = |sample, text| Update::Done { sample, completion: completion(text, Finish::End, None) };
        // A token a letter; two tokens in one piece; a text that came otherwise than it was told.
        let told = vec![text(0, "a", -1.0), text(0, "b", -1.0), done(0, "ab")];
        let more = vec![text(1, "bc", -2.5), text(1, "d", -1.0), done(1, "bcd"), text(2, "x", -1.0), done(2, "d")];
        told.into_iter().chain(more).collect()
    });
    let mut strategy = strategy(Policy::Bfs);
    strategy.generate.n = Count::Number(3);
    let ran = run(spec(Spell::new("zz"), strategy, Arc::new(lm)));
    let told = |event: &Event| match event {
        Event::Replied { node: NodeId::ROOT, pieces, piece_logprobs, .. } => {
            Some((pieces.clone(), piece_logprobs.clone()))
        }
        _ => None,
    };
    let told: Vec<(Vec<u32>, Vec<f32>)> = ran.events.iter().filter_map(told).collect();
    assert_eq!(told, [(vec![1, 1], vec![]), (vec![2, 1], vec![-2.5, -1.0]), (vec![], vec![])]);
}

#[test]
fn the_model_is_told_what_goes_on_what_comes_after_it_and_what_waits() {
    let told = |policy, expected: bool| {
        let mut lm = Fake::new(|_, _| says(&["p", "q", "r"]));
        lm.expected = expected.then(Mutex::default);
        let lm = Arc::new(lm);
        let mut strategy = strategy(policy);
        (strategy.generate.n, strategy.search.keep) = (Count::Number(3), Count::Number(2));
        strategy.search.depth = Count::Number(2);
        run(spec(Spell::new("zz"), strategy, lm.clone()));
        lm.expected.as_ref().map(|told| told.lock().unwrap().clone())
    };
    // Depth first: one of three goes on, the next best is where the search goes back to, the third waits. Whole answers keep
    // nothing of theirs waiting.
    let dfs = told(Policy::Dfs, true).unwrap();
    assert_eq!(dfs[0], (2, 1), "{dfs:?}");
    // Breadth first: both survivors go on together.
    let bfs = told(Policy::Bfs, true).unwrap();
    assert_eq!(bfs[0], (2, 0), "{bfs:?}");
    assert_eq!(told(Policy::Dfs, false), None, "with one tier nothing is told");
}

#[test]
fn depth_first_follows_the_best_child_and_comes_back() {
    let mut strategy = strategy(Policy::Dfs);
    strategy.evaluate = vec![value(&[("good", 2.0), ("bad", 1.0)])];
    // Root: c (bad), a (good); a: x, z both whole and wrong; then c.
    let replies = ["c", "a", "bad", "good", "x", "z", "good", "bad", "d", "b", "good", "bad"];
    let ran = run(spec(Spell::new("ab"), strategy, script(&replies)));
    assert_eq!(ran.thoughts(), ["c closed", "a closed", "x open", "z open", "d open", "b open"]);
    assert_eq!(ran.tree.node(NodeId(3)).parent, Some(NodeId(2)));
    assert_eq!(ran.tree.node(NodeId(5)).parent, Some(NodeId(1)));
}

/// Case 37: a whole answer before the last level is checked once and never expanded.
#[test]
fn an_early_answer_is_kept_and_not_expanded() {
    let mut strategy = strategy(Policy::Bfs);
    strategy.search.depth = Count::Number(3);
    let ran = run(spec(Spell::new("ab"), strategy, script(&["ab", "ba", "more"])));
    assert_eq!(ran.thoughts(), ["ab answer"]);
    let answers = ran.events.iter().filter(|e| matches!(e, Event::Status { status: Status::Answer, .. })).count();
    let asked = ran.events.iter().filter(|e| matches!(e, Event::Asked { .. })).count();
    assert_eq!((answers, asked), (1, 1));
    assert_eq!(ran.outcome.usage.sampled, 2, "the sample that ran beside the answer is counted");
}

#[test]
fn a_whole_wrong_answer_is_closed_and_the_search_goes_on() {
    let ran = run(spec(Spell::new("aab"), checked_whole(), script(&["aba", "a", "a", "ab", "b"])));
    assert_eq!(ran.tree.node(NodeId(1)).expansions, 1, "a wrong beginning that nobody is asked to check goes on");
    let mut strategy = strategy(Policy::Bfs);
    strategy.generate.thought = Thought::Answer;
    let ran = run(spec(Spell::new("ab"), strategy, script(&["So: a, c.\nAnswer: ac", "Answer: ba"])));
    assert_eq!(ran.thoughts(), ["So: a, c.\nAnswer: ac closed", "Answer: ba closed"]);
    assert_eq!(ran.outcome.reason, Reason::Exhausted);
    assert_eq!(ran.outcome.error_score, Some(1));
    assert_eq!(ran.outcome.answer_text.as_deref(), Some("ac"));
}

fn checked_whole() -> Strategy {
    Strategy { evaluate: vec![Evaluator::Checker { partial: false }], ..strategy(Policy::Bfs) }
}

#[test]
fn duplicates_and_empty_texts_receive_no_node() {
    let mut strategy = strategy(Policy::Bfs);
    strategy.generate.n = Count::Number(4);
    strategy.search.depth = Count::Number(1);
    let ran = run(spec(Spell::new("ab"), strategy, script(&["a", " a ", "", "b"])));
    assert_eq!((ran.outcome.thoughts, ran.outcome.proposals), (2, 4));
    let dropped: Vec<&str> = ran
        .events
        .iter()
        .filter_map(|e| match e {
            Event::Dropped { why, .. } => Some(why.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(dropped, ["the same state as thought #1", "empty"]);
}

#[test]
fn a_provably_wrong_text_is_cut_in_its_middle_and_pruned() {
    let mut strategy = checked(Policy::Bfs);
    strategy.generate.n = Count::Number(1);
    strategy.search.depth = Count::Number(1);
    let ran = run(spec(Spell::new("abcd"), strategy, script(&["abxd"])));
    assert_eq!(ran.thoughts(), ["abx pruned"]);
    assert_eq!(ran.outcome.reason, Reason::AllPruned { depth: 1 });
}

#[test]
fn proposals_come_from_a_list() {
    let mut strategy = strategy(Policy::Bfs);
    strategy.generate.kind = GenerateKind::Propose;
    strategy.generate.n = Count::Number(3);
    let ran = run(spec(Spell::new("ab"), strategy, script(&["1. a\n2. b\n- c\n4. d", "b", "b"])));
    assert_eq!(ran.thoughts(), ["a closed", "b open", "c pruned", "b answer"]);
    assert_eq!(ran.tree.node(NodeId(1)).text, "a\n");
}

#[test]
fn a_list_is_held_against_what_the_puzzle_allows() {
    let mut strategy = strategy(Policy::Bfs);
    strategy.generate.kind = GenerateKind::Propose;
    strategy.generate.constrain = Constrain::Puzzle;
    strategy.generate.n = Count::Number(3);
    strategy.search.keep = Count::Number(1);
    let ran = run(spec(Spell::new("ab"), strategy, script(&["1. q\n2. a,\n3. b", "b"])));
    assert_eq!(ran.thoughts(), ["a closed", "b pruned", "b answer"]);
    assert_eq!((ran.outcome.proposals, ran.outcome.thoughts), (4, 3));
}

#[test]
fn chance_is_the_control_and_the_seed_decides() {
    let mut strategy = checked(Policy::Bfs);
    strategy.generate.constrain = Constrain::Puzzle;
    let grown = |seed, kind, lm: Arc<dyn Lm>| {
        let mut strategy = strategy.clone();
        strategy.generate.kind = kind;
        let mut spec = spec(Spell::new("abcdefgh"), strategy, lm);
        spec.seed = seed;
        run(spec).thoughts()
    };
    for kind in [GenerateKind::Random, GenerateKind::Likeliest] {
        let lm = || -> Arc<dyn Lm> { Arc::new(RandomProposer::default()) };
        assert_eq!(grown(1, kind, lm()), grown(1, kind, lm()));
        assert!((2..30).any(|seed| grown(1, kind, lm()) != grown(seed, kind, lm())));
    }
}

#[test]
fn a_pattern_is_a_mask_and_the_last_word() {
    let mut strategy = strategy(Policy::Bfs);
    strategy.generate.constrain = Constrain::Regex("[ab]".into());
    let lm = Fake::new(|_, request| {
        let rule = request.constraint.as_ref().expect("a pattern constrains");
        assert!(rule.masks() && rule.stand(b"a").is_some_and(|after| after.complete && !after.open));
        says(&["a", "q"])
    });
    let ran = run(spec(Spell::new("zz"), strategy, Arc::new(lm)));
    assert_eq!(ran.thoughts()[0], "a closed");
    assert!(ran.events.iter().any(|e| matches!(e, Event::Dropped { why, .. } if why.contains("pattern [ab]"))));
}

#[test]
fn likeliest_may_give_fewer_than_asked_for() {
    let mut strategy = checked(Policy::Bfs);
    strategy.generate.kind = GenerateKind::Likeliest;
    strategy.generate.constrain = Constrain::Puzzle;
    strategy.generate.n = Count::Number(9);
    let ran = run(spec(Spell::new("ab"), strategy, Arc::new(RandomProposer::default())));
    assert_eq!(ran.outcome.reason, Reason::Solved);
    assert_eq!(ran.outcome.proposals, 4, "two letters, twice");
}

#[test]
fn a_level_is_asked_for_at_once_and_replies_in_any_order_grow_the_same_tree() {
    // Every request of a level waits until the whole level was asked: alone it would wait for ever.
    struct Level(Fake, Mutex<Vec<(mpsc::UnboundedSender<Update>, Vec<Update>)>>);
    impl Lm for Level {
        fn info(&self) -> &Info {
            &self.0.info
        }
        fn count_tokens(&self, _: &Prompt) -> Option<usize> {
            None
        }
        fn generate(&self, request: Generate) -> mpsc::UnboundedReceiver<Update> {
            let root = request.key.node & 0xffff_ffff == 0;
            let (sender, receiver) = mpsc::unbounded_channel();
            let mut waiting = self.1.lock().unwrap();
            waiting.push((sender, (self.0.answer)(0, &request)));
            if root || waiting.len() == 2 {
                for (sender, updates) in waiting.drain(..).rev() {
                    for update in updates.into_iter().rev() {
                        let _ = sender.send(update);
                    }
                }
            }
            receiver
        }
        fn score(&self, request: Score) -> oneshot::Receiver<Result<Scores>> {
            self.0.score(request)
        }
        fn counters(&self) -> Counters {
            Counters::default()
        }
    }
    let fake = Fake::new(|_, request| match request.key.node & 0xffff_ffff {
        0 => says(&["a", "b"]),
        1 => says(&["c", "d"]),
        _ => says(&["e", "f"]),
    });
    let mut strategy = strategy(Policy::Bfs);
    strategy.search.depth = Count::Number(2);
    let ran = run(spec(Spell::new("zzzz"), strategy, Arc::new(Level(fake, Mutex::default()))));
    assert_eq!(ran.thoughts(), ["a closed", "b closed", "c open", "d open", "e open", "f open"]);
}

#[test]
fn what_the_device_has_to_tell_is_told_once() {
    let mut fake = Fake::new(|_, _| says(&["a", "b", "c"]));
    fake.device_note = Some("steps are launched one by one".into());
    let mut strategy = strategy(Policy::Bfs);
    strategy.search.depth = Count::Number(3);
    let ran = run(spec(Spell::new("zzzz"), strategy, Arc::new(fake)));
    let counted = ran.events.iter().filter(|event| matches!(event, Event::Counters { .. })).count();
    assert!(counted > 1, "counters are told again and again");
    assert_eq!(ran.notes(), ["steps are launched one by one"]);
}

#[test]
fn the_path_is_continued_with_the_thoughts_own_tokens() {
    let lm = Arc::new(Fake::new(|asked, _| match asked {
        0 => vec![Update::Done { sample: 0, completion: completion("a", Finish::Stop("\n".into()), None) }],
        _ => says(&["b"]),
    }));
    let mut strategy = strategy(Policy::Bfs);
    strategy.generate.n = Count::Number(1);
    let ran = run(spec(Spell::new("ab"), strategy, lm.clone()));
    assert_eq!(ran.thoughts(), ["a closed", "b answer"]);
    let prompts = lm.prompts.lock().unwrap();
    assert_eq!(prompts[1].text, "Spell ab: ");
    assert_eq!(prompts[1].full_text(), "Spell ab: a\n");
    assert!(matches!(&prompts[1].tail[0], crate::lm::Part::Tokens { text, ids } if text == "a" && ids[..] == [97]));
    assert!(matches!(&prompts[1].tail[1], crate::lm::Part::Text(text) if text == "\n"));
}

#[test]
fn pruned_branches_give_their_memory_back_at_once() {
    let lm = Arc::new(Fake::new(|_, _| says(&["a", "b", "c"])));
    let held = lm.held.clone();
    let mut strategy = strategy(Policy::Bfs);
    strategy.search.keep = Count::Number(1);
    strategy.search.depth = Count::Number(2);
    strategy.generate.n = Count::Number(3);
    let mut at_second_level = None;
    let ran = run_steered(spec(Spell::new("zzzz"), strategy, lm), |event| {
        if matches!(event, Event::Asked { request: 1, .. }) {
            at_second_level = Some(held.load(Ordering::SeqCst));
        }
        Vec::new()
    });
    assert_eq!(ran.outcome.reason, Reason::Depth { depth: 2 });
    // Of the root's three children one is kept; the event arrives while or after its expansion runs.
    assert!(at_second_level.is_some_and(|held| held <= 4), "{at_second_level:?}");
    assert_eq!(held.load(Ordering::SeqCst), 0);
}

#[test]
fn examples_become_fewer_until_the_prompt_fits() {
    let examples = source("{% for e in puzzle.examples %}{{ e.input }}={{ e.output }};{% endfor %}{{ puzzle.word }}=");
    let asked = |context: usize| {
        let mut fake = Fake::new(|_, _| says(&["ab", "x"]));
        fake.info.context = Some(context);
        let lm = Arc::new(fake);
        let mut strategy = strategy(Policy::Bfs);
        strategy.generate.prompt = examples.clone();
        strategy.generate.max_tokens = Count::Number(4);
        let ran = run(spec(Spell::new("ab"), strategy, lm.clone()));
        let prompt = lm.prompts.lock().unwrap().first().map(|p| p.text.matches(';').count());
        let notes: Vec<String> = ran.notes().into_iter().map(String::from).collect();
        (prompt, notes, ran.outcome.reason)
    };
    assert_eq!(asked(1000).0, Some(8));
    let (kept, notes, _) = asked(40);
    assert_eq!(kept, Some(4));
    assert_eq!(notes, ["4 of 8 examples left out of the prompt, so that it fits the context"]);
    let (kept, notes, reason) = asked(2);
    assert_eq!(kept, None);
    assert!(notes[0].contains("the prompt has 3 tokens, and the model's context holds 2"), "{notes:?}");
    assert!(matches!(reason, Reason::Refused { .. }));
}
