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
