//! The shipped strategies on the shipped puzzles, with stand-ins for the model.

use super::event::Reason;
use super::testing::{run, spec};
use crate::lm::Lm;
use crate::lm::random::RandomProposer;
use crate::lm::scripted::Scripted;
use crate::strategy::Strategy;
use std::sync::Arc;

fn shipped(task: &str, name: &str) -> Strategy {
    crate::strategy::load(name, task).unwrap()
}

/// What chance solves of `n` puzzles of a size.
fn solved_by_chance(task: &str, strategy: &str, size: usize, n: u64) -> usize {
    let task = crate::task::by_name(task).unwrap();
    let strategy = shipped(task.name(), strategy);
    let solve = |seed: u64| {
        let lm: Arc<dyn Lm> = Arc::new(RandomProposer::default());
        let mut spec = spec(task.generate(size, seed).unwrap(), strategy.clone(), lm);
        spec.seed = seed;
        let ran = run(spec);
        assert!(!matches!(ran.outcome.reason, Reason::Failed { .. }), "{:?}", ran.outcome.reason);
        assert_eq!(ran.outcome.usage.tokens(), 0);
        ran.outcome.solved
    };
    (0..n).filter(|&seed| solve(seed)).count()
}

/// The README's bars: chance in the model's place must not solve what the model is said to solve.
#[test]
fn chance_solves_few_sortings() {
    for strategy in ["tot-bfs", "tot-dfs"] {
        let counts: Vec<usize> = [8, 16, 32].map(|size| solved_by_chance("sorting", strategy, size, 30)).to_vec();
        println!("{strategy}: {counts:?} of 30 at 8, 16, 32");
        assert!(counts[0] <= 20 && counts[1] <= 5 && counts[2] <= 5, "{strategy}: {counts:?}");
    }
}

#[test]
fn set_intersection_is_solved_by_search_alone() {
    for strategy in ["tot-bfs", "tot-dfs"] {
        let solved = solved_by_chance("set-intersection", strategy, 8, 10);
        println!("{strategy}: {solved} of 10");
        assert!(solved >= 9, "{strategy}: {solved}");
    }
}

#[test]
fn the_other_policies_solve_what_breadth_first_solves() {
    for strategy in ["beam", "best-first", "mcts"] {
        let sets = solved_by_chance("set-intersection", strategy, 8, 5);
        let sorted = solved_by_chance("sorting", strategy, 4, 10);
        println!("{strategy}: {sets} of 5 set intersections, {sorted} of 10 sortings");
        assert!(sets >= 4 && sorted >= 4, "{strategy}: {sets}, {sorted}");
    }
}

#[test]
fn the_majority_answers_and_the_checker_is_asked_once() {
    let task = crate::task::by_name("sorting").unwrap();
    let replies = ["Answer: 1, 3, 2", "I cannot say.", "Answer: 1, 2, 3", "Answer: [1, 2, 3]", "Answer: 3, 2, 1"];
    let all = replies.iter().chain(["Answer: 1, 2, 3"; 3].iter()).map(|r| r.to_string());
    let lm = Arc::new(Scripted::new("script", all));
    let ran = run(spec(task.parse("3 1 2").unwrap(), shipped("sorting", "cot-sc"), lm));
    assert!(ran.outcome.solved, "{:?}", ran.outcome);
    assert_eq!(ran.outcome.reason, Reason::Solved);
    let chosen = ran.tree.node(ran.outcome.node.unwrap());
    assert_eq!(chosen.repeats, 4);
    assert!(chosen.why.as_deref().unwrap().contains("5 of 8 answers agree"), "{:?}", chosen.why);
    // A wrong majority stays wrong, although a right answer was among them.
    let replies = ["Answer: 1, 2, 3"].iter().chain(["Answer: 3, 2, 1"; 7].iter()).map(|r| r.to_string());
    let lm = Arc::new(Scripted::new("script", replies));
    let ran = run(spec(task.parse("3 1 2").unwrap(), shipped("sorting", "cot-sc"), lm));
    assert!(!ran.outcome.solved && matches!(ran.outcome.reason, Reason::Stopped { .. }), "{:?}", ran.outcome);
    assert_eq!(ran.outcome.answer, Some(serde_json::json!([3, 2, 1])));
}

#[test]
fn a_level_improves_the_best_answer_of_the_level_above() {
    let task = crate::task::by_name("sorting").unwrap();
    let first = (0..9).map(|_| " 3, 2, 1".to_string()).chain([" 1, 3, 2".to_string()]);
    let then = (0..9).map(|_| " 2, 1, 3".to_string()).chain([" 1, 2, 3".to_string()]);
    let lm = Arc::new(Scripted::new("script", first.chain(then)));
    let ran = run(spec(task.parse("3 1 2").unwrap(), shipped("sorting", "tot-improve"), lm));
    assert!(ran.outcome.solved, "{:?} {:?}", ran.outcome, ran.thoughts());
    assert_eq!(ran.tree.node(ran.outcome.node.unwrap()).depth, 2);
}

#[test]
fn a_graph_of_thoughts_splits_sorts_merges_and_improves() {
    let task = crate::task::by_name("sorting").unwrap();
    let (mut script, say) = (Vec::new(), |texts: &[&str], n: usize| {
        let wrong = (texts.len()..n).map(|_| "9".to_string());
        texts.iter().map(|t| t.to_string()).chain(wrong).collect::<Vec<_>>()
    });
    // Parts 4 3, 2 1, 8 7, 6 5: five solutions each, the first of them wrong.
    for (wrong, right) in [("43", "34"), ("21", "12"), ("87", "78"), ("65", "56")] {
        script.extend(say(&[wrong, right], 5));
    }
    for merged in ["1234", "5678"] {
        script.extend(say(&["0000", merged], 10));
    }
    script.extend(say(&["12345687"], 10));
    script.extend(say(&["12345678"], 10));
    let lm = Arc::new(Scripted::new("script", script));
    let ran = run(spec(task.parse("4 3 2 1 8 7 6 5").unwrap(), shipped("sorting", "got"), lm));
    assert!(ran.outcome.solved, "{:?}\n{:?}", ran.outcome, ran.thoughts());
    let answer = ran.tree.node(ran.outcome.node.unwrap());
    assert_eq!(answer.depth, 5);
    let merged: Vec<_> = ran.tree.iter().filter(|(_, n)| !n.sources.is_empty()).collect();
    assert!(merged.iter().all(|(_, n)| n.sources.len() == 2 && n.sources[0] == n.parent.unwrap()));
    let part = ran.tree.iter().find(|(_, n)| n.text == "34").unwrap().1;
    assert_eq!((part.score, part.depth), (Some(1.0), 2), "judged as a solution of its part");
}

#[test]
fn whole_answers_are_read_from_what_a_model_writes() {
    let task = crate::task::by_name("sorting").unwrap();
    for (strategy, reply) in [
        ("io", " -3, 7, 7, 42, 103"),
        ("cot", "There is one -3, two 7, one 42, one 103.\nAnswer: -3, 7, 7, 42, 103"),
        ("cot", "I sort them.\n\nAnswer: [-3, 7, 7, 42, 103]\n"),
    ] {
        let lm = Arc::new(Scripted::new("script", [reply.to_string()]));
        let ran = run(spec(task.parse("42 7 -3 103 7").unwrap(), shipped("sorting", strategy), lm));
        assert!(ran.outcome.solved, "{strategy}: {:?} {:?}", ran.outcome, ran.events);
        assert_eq!(ran.outcome.answer, Some(serde_json::json!([-3, 7, 7, 42, 103])));
    }
}
