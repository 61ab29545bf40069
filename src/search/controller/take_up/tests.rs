//! A run that was cut anywhere and taken up again is the run that was not cut.

use crate::lm::random::RandomProposer;
use crate::search::event::{Command, Event, Limits, Outcome, Reason};
use crate::search::record::whole_steps;
use crate::search::run::{Before, RunSpec};
use crate::search::testing::{Ran, run, run_steered};
use crate::search::tree::{NodeId, Status};
use crate::strategy::library;
use crate::task;
use std::sync::Arc;

fn spec(task: &str, strategy: &str, size: usize) -> RunSpec {
    RunSpec {
        puzzle: task::by_name(task).unwrap().generate(size, 3).unwrap(),
        strategy: Arc::new(library::load(strategy, task).unwrap()),
        lm: Arc::new(RandomProposer::default()),
        seed: 11,
        paused: false,
        limits: Limits::default(),
        record: None,
        before: None,
    }
}

/// What a record of these events holds.
fn recorded(events: &[Event]) -> Vec<Event> {
    events.iter().filter(|e| !e.is_for_screen()).cloned().collect()
}

fn before(events: &[Event]) -> Before {
    let kept = whole_steps(events);
    Before { from: "cut".into(), events: events[..kept].to_vec(), notes: Vec::new() }
}

#[track_caller]
fn check_same(whole: &Ran, taken_up: &Ran, what: &str) {
    assert_eq!(whole.tree, taken_up.tree, "{what}");
    let timeless = |outcome: &Outcome| Outcome { seconds: 0.0, ..outcome.clone() };
    assert_eq!(timeless(&whole.outcome), timeless(&taken_up.outcome), "{what}");
}

#[test]
fn a_run_cut_anywhere_goes_on_as_if_it_had_not_been_cut() {
    let policies = ["tot-bfs", "tot-dfs", "beam", "best-first", "mcts", "best-of-n", "got"];
    for (task, strategy) in ["sorting", "set-intersection"].into_iter().flat_map(|t| policies.map(|p| (t, p))) {
        let limited =
            || RunSpec { limits: Limits { thoughts: Some(40), ..Limits::default() }, ..spec(task, strategy, 8) };
        let whole = run(limited());
        if let Reason::Failed { message } = &whole.outcome.reason {
            assert!(message.contains("without a constraint"), "chance cannot play {task} {strategy}: {message}");
            continue;
        }
        let events = recorded(&whole.events);
        assert!(events.len() > 4, "{strategy}");
        let cuts = (1..events.len() - 4).step_by((events.len() / 16).max(1)).chain(events.len() - 4..=events.len());
        for cut in cuts {
            let again = run(RunSpec { before: Some(before(&events[..cut])), ..limited() });
            check_same(&whole, &again, &format!("{task} {strategy} cut after {cut} of {} events", events.len()));
        }
    }
}

#[test]
fn a_run_that_a_limit_ended_goes_on_with_a_higher_one() {
    let whole = run(spec("set-intersection", "tot-dfs", 8));
    for limit in [1, 3, 5, 8, 13] {
        let mut short = spec("set-intersection", "tot-dfs", 8);
        short.limits.thoughts = Some(limit);
        let short = run(short);
        assert_eq!(short.outcome.reason, Reason::Thoughts { limit });
        let mut again = spec("set-intersection", "tot-dfs", 8);
        again.limits.thoughts = Some(2000);
        again.before = Some(before(&recorded(&short.events)));
        let again = run(again);
        check_same(&whole, &again, &format!("limit {limit}"));
        let told = again
            .events
            .iter()
            .filter(|e| matches!(e, Event::Settings { limits, .. } if limits.thoughts == Some(2000)));
        assert_eq!(told.count(), 1, "readers learn the new limit");
    }
}

#[test]
fn a_run_that_was_left_goes_on_from_its_last_whole_step() {
    let whole = run(spec("set-intersection", "tot-bfs", 8));
    let mut thoughts = 0;
    let left = run_steered(spec("set-intersection", "tot-bfs", 8), |event| {
        thoughts += usize::from(matches!(event, Event::Grown { .. }));
        if thoughts == 5 { vec![Command::Quit] } else { Vec::new() }
    });
    assert_eq!(left.outcome.reason, Reason::Quit);
    let mut again = spec("set-intersection", "tot-bfs", 8);
    again.before = Some(before(&recorded(&left.events)));
    check_same(&whole, &run(again), "after quit");
}

#[test]
fn acts_and_settings_of_before_hold_and_a_fork_waits() {
    // Paused from the beginning: acts come between steps.
    let mut first = spec("set-intersection", "tot-bfs", 8);
    first.paused = true;
    let acts = [
        Command::Step,
        Command::SetBreadth { n: 2 },
        Command::SetTemperature { temperature: 0.5 },
        Command::Undo,
        Command::Add { parent: NodeId::ROOT, text: "7 ".into() },
        Command::Add { parent: NodeId::ROOT, text: "7 ".into() },
        Command::Pin { node: NodeId(1) },
        Command::Expand { node: NodeId(2) },
    ];
    let mut sent = 0;
    let first = run_steered(first, |event| match event {
        Event::Paused if sent == 0 => {
            sent = 1;
            vec![acts[0].clone()]
        }
        Event::Paused if sent == 1 => {
            sent = 2;
            acts[1..].iter().cloned().chain([Command::Quit]).collect()
        }
        _ => Vec::new(),
    });
    let events = recorded(&first.events);
    let mut fork = spec("set-intersection", "tot-bfs", 8);
    fork.paused = true;
    let taken = before(&events);
    assert!(
        taken.events.iter().any(|e| matches!(e, Event::Act { command: Command::Pin { .. } })),
        "{:?}",
        taken.events
    );
    fork.before = Some(taken);
    let mut settled = false;
    let mut pinned = false;
    let mut paused_after = false;
    let fork = run_steered(fork, |event| match event {
        Event::Continued { .. } => {
            settled = true;
            // It is paused still, so that nothing but the order of before would be carried out.
            vec![Command::Undo, Command::Quit]
        }
        Event::Status { status: Status::Pinned, .. } => {
            pinned = true;
            Vec::new()
        }
        Event::Paused => {
            paused_after = true;
            Vec::new()
        }
        _ => Vec::new(),
    });
    assert!(settled && pinned && paused_after);
    assert!(!fork.notes().contains(&"there is nothing to undo"), "{:?}", fork.notes());
    let set = fork.events.iter().rev().find_map(|e| match e {
        Event::Settings { breadth, temperature, .. } => Some((*breadth, *temperature)),
        _ => None,
    });
    assert_eq!(set, Some((Some(2), None)));
    assert_ne!(fork.tree.node(NodeId(1)).status, Status::Pinned, "the pin of before is undone");
}

/// Acts by chance on a paused run, one list after each step; the last list leaves.
fn acts(random: &mut impl rand::RngCore, lists: usize, last: &[Command]) -> Vec<Vec<Command>> {
    let mut pick = |n: u32| random.next_u32() % n;
    let mut all: Vec<Vec<Command>> = Vec::new();
    for i in 0..lists {
        let mut list = Vec::new();
        for _ in 0..pick(5) {
            // Some name no thought, the root, or what cannot be done: those are refused, and not undone either.
            let node = NodeId(pick(4 + 3 * i as u32));
            let limits = Limits { tokens: Some(100_000 + u64::from(pick(100))), ..Limits::default() };
            list.push(match pick(11) {
                0 => Command::Expand { node },
                1 => Command::Prune { node },
                2 => Command::Pin { node },
                3 => Command::Unpin { node },
                4 => Command::Edit { node, text: format!("{} ", pick(40)) },
                5 => Command::Add { parent: node, text: format!("{} ", pick(40)) },
                6 => Command::Rescore { node },
                7 => Command::SetBreadth { n: 1 + pick(3) as usize },
                8 => Command::SetTemperature { temperature: pick(20) as f32 / 10.0 },
                9 => Command::SetBudget { limits },
                _ => Command::Undo,
            });
        }
        list.push(Command::Step);
        all.push(list);
    }
    all.push(last.to_vec());
    all
}

#[test]
fn acts_of_before_are_undone_as_if_the_run_had_not_been_cut() {
    use rand::{RngCore, SeedableRng};
    let (mut taken_back, mut runs) = (0, 0);
    for seed in 0..60 {
        let run = |acts: Vec<Vec<Command>>, before: Option<Before>| {
            let mut spec = spec("set-intersection", ["tot-bfs", "tot-dfs", "best-first"][seed as usize % 3], 8);
            spec.paused = true;
            let taken_up = before.is_some();
            spec.before = before;
            let mut acts = acts.into_iter();
            let mut begun = !taken_up;
            run_steered(spec, move |event| {
                begun |= matches!(event, Event::Continued { .. });
                let waits = matches!(event, Event::Paused) || (taken_up && matches!(event, Event::Continued { .. }));
                if begun && waits { acts.next().unwrap_or_default() } else { Vec::new() }
            })
        };
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let undos = 1 + random.next_u32() as usize % 8;
        let last: Vec<Command> = std::iter::repeat_n(Command::Undo, undos).chain([Command::Quit]).collect();
        let all = acts(&mut random, 3, &last);
        let whole = run(all.clone(), None);
        if whole.outcome.reason != Reason::Quit {
            continue;
        }
        let mut cut = all;
        cut.pop();
        cut.push(vec![Command::Quit]);
        let cut = run(cut, None);
        let again = run(vec![last], Some(before(&recorded(&cut.events))));
        runs += 1;
        let what = format!("seed {seed}, {undos} undone");
        assert_eq!(whole.tree, again.tree, "{what}");
        let settings = |ran: &Ran| {
            ran.events.iter().rev().find_map(|e| match e {
                Event::Settings { breadth, temperature, limits } => Some((*breadth, *temperature, *limits)),
                _ => None,
            })
        };
        assert_eq!(settings(&whole), settings(&again), "{what}");
        let nothing = |ran: &Ran| ran.notes().iter().filter(|n| n.contains("nothing to undo")).count();
        assert_eq!(nothing(&whole), nothing(&again), "{what}: acts that can be undone are counted alike");
        taken_back += undos;
    }
    assert!(runs >= 30 && taken_back > 60, "{runs} runs, {taken_back} acts undone");
}

#[test]
fn what_does_not_fit_is_refused() {
    let refused = |events: Vec<Event>, part: &str| {
        let mut bad = spec("sorting", "tot-bfs", 4);
        bad.before = Some(Before { from: "x".into(), events, notes: Vec::new() });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _inside = runtime.enter();
        let error = crate::search::start(bad).err().expect("it is refused");
        assert!(error.exit_code() == 2 && error.message().contains(part), "{error}");
    };
    refused(Vec::new(), "had not begun");
    let events = recorded(&run(spec("sorting", "tot-bfs", 4)).events);
    let grown = events.iter().find(|e| matches!(e, Event::Grown { .. })).unwrap().clone();
    refused(vec![events[0].clone(), grown.clone(), grown], "thought #1 grows where 2 is next");
}
