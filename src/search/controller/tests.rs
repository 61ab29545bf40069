//! The controller against a script: each test is a short story of one run.

use crate::base::{Error, Result};
use crate::lm::random::RandomProposer;
use crate::lm::{Completion, Counters, Finish, Generate, Hold, Info, Lm, Prompt, Score, Scores, Update, Usage};
use crate::search::event::{Command, Event, Limits, Reason};
use crate::search::testing::{Spell, case_replies, recorder, run, run_steered, script, source, spec, strategy, value};
use crate::search::tree::{NodeId, Status};
use crate::strategy::{Constrain, Count, Evaluator, GenerateKind, Policy, Strategy, Thought};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::{mpsc, oneshot};

fn checked(policy: Policy) -> Strategy {
    Strategy { evaluate: vec![Evaluator::Checker { partial: true }], ..strategy(policy) }
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
    let lines: Vec<String> = ran
        .events
        .iter()
        .filter(|e| !matches!(e, Event::Token { .. } | Event::Counters { .. }))
        .map(|e| serde_json::to_string(e).unwrap())
        .collect();
    insta::with_settings!({filters => vec![(r#""seconds":[0-9.e-]+"#, r#""seconds":0"#)]}, {
        insta::assert_snapshot!(lines.join("\n"));
    });
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
    assert!(ran.notes().iter().any(|n| n.contains("1 replies of judges could not be read")));
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
}

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
fn a_pattern_is_a_mask_and_the_last_word() {
    let mut strategy = strategy(Policy::Bfs);
    strategy.generate.constrain = Constrain::Regex("[ab]".into());
    let lm = Fake::new(|_, request| {
        let rule = request.constraint.as_ref().expect("a pattern constrains");
        assert!(rule.masks() && rule.ascii());
        says(&["a", "q"])
    });
    let ran = run(spec(Spell::new("zz"), strategy, Arc::new(lm)));
    assert_eq!(ran.thoughts()[0], "a closed");
    assert!(ran.events.iter().any(|e| matches!(e, Event::Dropped { why, .. } if why.contains("pattern [ab]"))));
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
    let refused = super::Controller::new(spec(Spell::new("ab"), strategy, script(&[])), events, commands);
    assert!(refused.is_err_and(|e| e.exit_code() == 2 && e.message().contains("sorting")));
}

/// What a request, counted from 0, is answered with.
type Answer = dyn Fn(usize, &Generate) -> Vec<Update> + Send + Sync;

/// A model of the test's own: what it answers, where, and what it is told to keep.
struct Fake {
    info: Info,
    /// Prompts in order of asking.
    prompts: Mutex<Vec<Prompt>>,
    held: Arc<AtomicUsize>,
    answer: Box<Answer>,
}

struct Held(Arc<AtomicUsize>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Fake {
    fn new(answer: impl Fn(usize, &Generate) -> Vec<Update> + Send + Sync + 'static) -> Self {
        Self {
            info: Info { name: "fake".into(), ..Info::default() },
            prompts: Mutex::default(),
            held: Arc::default(),
            answer: Box::new(answer),
        }
    }

    fn done(&self, sample: usize, text: &str, finish: Finish) -> Update {
        self.held.fetch_add(1, Ordering::SeqCst);
        Update::Done { sample, completion: completion(text, finish, Some(Hold(Arc::new(Held(self.held.clone()))))) }
    }
}

fn completion(text: &str, finish: Finish, hold: Option<Hold>) -> Completion {
    Completion {
        text: text.into(),
        ids: text.bytes().map(u32::from).collect::<Vec<_>>().into(),
        logprobs: vec![-1.0; text.len()],
        masked_logprob: -(text.len() as f64),
        finish,
        usage: Usage {
            prompt: 0,
            sampled: text.len() as u64,
            scored: 0,
            logical: text.len() as u64,
            ..Usage::default()
        },
        hold,
    }
}

impl Lm for Fake {
    fn info(&self) -> &Info {
        &self.info
    }

    fn count_tokens(&self, prompt: &Prompt) -> Option<usize> {
        Some(prompt.full_text().len())
    }

    fn generate(&self, request: Generate) -> mpsc::UnboundedReceiver<Update> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut prompts = self.prompts.lock().unwrap();
        let updates: Vec<Update> = (self.answer)(prompts.len(), &request)
            .into_iter()
            .map(|update| match update {
                Update::Done { sample, completion } if completion.hold.is_none() => {
                    self.done(sample, &completion.text, completion.finish)
                }
                update => update,
            })
            .collect();
        prompts.push(request.prompt);
        for update in updates {
            // The run may have called it off already.
            let _ = sender.send(update);
        }
        receiver
    }

    fn score(&self, request: Score) -> oneshot::Receiver<Result<Scores>> {
        let (sender, receiver) = oneshot::channel();
        let logprobs = request.continuations.iter().map(|c| vec![-0.5; c.len()]).collect();
        let _ = sender.send(Ok(Scores { logprobs, usage: Usage { scored: 3, logical: 9, ..Usage::default() } }));
        receiver
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

fn says(texts: &[&str]) -> Vec<Update> {
    let done =
        |(sample, text): (usize, &&str)| Update::Done { sample, completion: completion(text, Finish::End, None) };
    texts.iter().enumerate().map(done).collect()
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
    assert!(matches!(reason, Reason::Failed { .. }));
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

/// Starts paused, and sends one list of commands after each `Paused`.
fn steered(replies: &[&str], strategy: Strategy, acts: Vec<Vec<Command>>) -> crate::search::testing::Ran {
    let mut spec = spec(Spell::new("abc"), strategy, script(replies));
    spec.paused = true;
    let mut acts = acts.into_iter();
    run_steered(spec, move |event| match event {
        Event::Paused => acts.next().unwrap_or_else(|| vec![Command::Quit]),
        _ => Vec::new(),
    })
}

#[test]
fn a_paused_run_goes_step_by_step_and_leaving_ends_it() {
    let ran = steered(&["a", "b"], strategy(Policy::Bfs), vec![vec![Command::Step], vec![Command::Step]]);
    assert_eq!(ran.outcome.reason, Reason::Quit);
    assert_eq!(ran.thoughts(), ["a open", "b open"]);
    assert!(ran.tree.node(NodeId(1)).score.is_some(), "the second step scored");
    assert_eq!(ran.outcome.reason.exit_code(), 130);
}

#[test]
fn the_user_prunes_pins_adds_edits_and_undoes() {
    use Command::*;
    let node = NodeId;
    let first = vec![Step];
    let status = |ran: &crate::search::testing::Ran, n: u32| ran.tree.node(node(n)).status;

    let ran = steered(&["a", "b"], strategy(Policy::Bfs), vec![first.clone(), vec![Prune { node: node(1) }, Quit]]);
    assert_eq!(status(&ran, 1), Status::Pruned);
    let ran =
        steered(&["a", "b"], strategy(Policy::Bfs), vec![first.clone(), vec![Prune { node: node(1) }, Undo, Quit]]);
    assert_eq!(status(&ran, 1), Status::Open);

    let pin = vec![Pin { node: node(1) }, Prune { node: node(1) }, Quit];
    let ran = steered(&["a", "b"], strategy(Policy::Bfs), vec![first.clone(), pin]);
    assert_eq!(status(&ran, 1), Status::Pinned);

    let add = vec![Add { parent: node(1), text: "b".into() }, Add { parent: node(3), text: "c".into() }];
    let ran = steered(&["a", "b"], strategy(Policy::Bfs), vec![first.clone(), add]);
    assert_eq!(ran.outcome.reason, Reason::Solved);
    assert_eq!(ran.outcome.answer_text.as_deref(), Some("abc"));
    assert!(matches!(ran.tree.node(node(3)).by, crate::search::event::Author::User));

    let edit = vec![Edit { node: node(1), text: "abc".into() }];
    let ran = steered(&["x", "b"], strategy(Policy::Bfs), vec![first.clone(), edit]);
    assert_eq!(ran.outcome.reason, Reason::Solved);

    let edit = vec![Edit { node: node(1), text: "q".into() }, Undo, Quit];
    let ran = steered(&["x", "b"], strategy(Policy::Bfs), vec![first.clone(), edit]);
    assert_eq!(ran.tree.node(node(1)).text, "x");

    let nothing = vec![Undo, Prune { node: node(77) }, Prune { node: node(0) }, Quit];
    let ran = steered(&["a", "b"], strategy(Policy::Bfs), vec![first, nothing]);
    for expected in ["nothing to undo", "no thought #77", "cannot be pruned"] {
        assert!(ran.notes().iter().any(|n| n.contains(expected)), "{expected}: {:?}", ran.notes());
    }
}

#[test]
fn the_user_expands_a_pruned_thought_and_it_is_caught_up_with() {
    let acts = vec![
        vec![Command::Step],
        vec![Command::Prune { node: NodeId(1) }, Command::Expand { node: NodeId(1) }, Command::Step],
        vec![Command::Quit],
    ];
    let ran = steered(&["a", "b", "b", "c"], strategy(Policy::Bfs), acts);
    assert_eq!(ran.tree.node(NodeId(1)).children.len(), 2);
    assert_eq!(ran.tree.node(NodeId(1)).status, Status::Closed);
}

#[test]
fn settings_change_while_a_run_goes() {
    let acts = vec![
        vec![Command::SetBreadth { n: 3 }, Command::SetTemperature { temperature: 0.5 }, Command::Step],
        vec![
            Command::SetTemperature { temperature: f32::NAN },
            Command::SetBudget { limits: Limits { thoughts: Some(3), ..Limits::default() } },
            Command::Resume,
        ],
    ];
    let ran = steered(&["a", "b", "d"], strategy(Policy::Bfs), acts);
    assert_eq!(ran.outcome.thoughts, 3);
    assert_eq!(ran.outcome.reason, Reason::Thoughts { limit: 3 });
    assert!(ran.notes().iter().any(|n| n.contains("temperature NaN")));
}

#[test]
fn a_front_end_that_goes_away_ends_the_run() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // A model that never answers.
        struct Silent(Info, Mutex<Vec<mpsc::UnboundedSender<Update>>>);
        impl Lm for Silent {
            fn info(&self) -> &Info {
                &self.0
            }
            fn count_tokens(&self, _: &Prompt) -> Option<usize> {
                None
            }
            fn generate(&self, _: Generate) -> mpsc::UnboundedReceiver<Update> {
                let (sender, receiver) = mpsc::unbounded_channel();
                self.1.lock().unwrap().push(sender);
                receiver
            }
            fn score(&self, _: Score) -> oneshot::Receiver<Result<Scores>> {
                oneshot::channel().1
            }
            fn counters(&self) -> Counters {
                Counters::default()
            }
        }
        let lm = Arc::new(Silent(Info::default(), Mutex::default()));
        let (events, _seen) = mpsc::unbounded_channel();
        let (sender, commands) = mpsc::unbounded_channel();
        let controller =
            super::Controller::new(spec(Spell::new("ab"), strategy(Policy::Bfs), lm.clone()), events, commands)
                .unwrap();
        let running = tokio::spawn(controller.run());
        while lm.1.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        drop(sender);
        let (outcome, _) = running.await.unwrap();
        assert_eq!(outcome.reason, Reason::Quit);
        assert!(lm.1.lock().unwrap()[0].is_closed(), "the request was called off");

        let mut spec = spec(Spell::new("ab"), strategy(Policy::Bfs), lm);
        spec.limits.seconds = Some(0.02);
        let outcome = crate::search::solve(spec, |_| {}).await.unwrap();
        assert_eq!(outcome.reason, Reason::Seconds { limit: 0.02 });
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever the strategy and the script: the run ends, and the record gives back the tree.
    #[test]
    fn the_tree_from_the_record_is_the_tree_that_ran(
        replies in proptest::collection::vec("[abc]{0,2}|(good|bad|0\\.7|)", 0..40),
        dfs in any::<bool>(),
        kind in 0..3usize,
        keep in 1..4usize,
        n in 1..4usize,
        prune in prop_oneof![Just(0.0), Just(0.6)],
        judges in 0..4usize,
        thoughts in prop_oneof![Just(None), proptest::strategy::Strategy::prop_map(1..12u64, Some)],
    ) {
        let mut strategy = strategy(if dfs { Policy::Dfs } else { Policy::Bfs });
        strategy.search.keep = Count::Number(keep);
        strategy.search.prune_below = prune;
        strategy.generate.n = Count::Number(n);
        strategy.generate.kind = [GenerateKind::Sample, GenerateKind::Propose, GenerateKind::Random][kind];
        strategy.evaluate = match judges {
            0 => vec![],
            1 => vec![Evaluator::Checker { partial: true }],
            2 => vec![value(&[("good", 3.0), ("bad", 1.0)]), Evaluator::Logprob],
            _ => vec![value(&[]), Evaluator::Checker { partial: false }],
        };
        let replies: Vec<&str> = replies.iter().map(String::as_str).collect();
        let folder = tempfile::tempdir().unwrap();
        let mut spec = spec(Spell::new("abca"), strategy, script(&replies));
        spec.limits.thoughts = thoughts;
        let recorder = recorder(folder.path(), &spec);
        let path = recorder.path().display().to_string();
        spec.record = Some(recorder);
        let ran = run(spec);
        let recorded = crate::search::record::read(&path).unwrap();
        prop_assert_eq!(recorded.tree().unwrap(), ran.tree);
        prop_assert_eq!(recorded.outcome(), Some(&ran.outcome));
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for event in &recorded.events {
            match event {
                Event::Grown { .. } => *counts.entry("thoughts").or_default() += 1,
                Event::Replied { usage, .. } => *counts.entry("tokens").or_default() += usage.tokens(),
                _ => {}
            }
        }
        prop_assert_eq!(counts.get("thoughts").copied().unwrap_or(0), ran.outcome.thoughts);
        prop_assert_eq!(counts.get("tokens").copied().unwrap_or(0), ran.outcome.usage.tokens());
    }
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
