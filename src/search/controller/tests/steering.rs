//! The user steers a run.

use super::*;

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
