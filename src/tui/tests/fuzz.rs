//! Random sessions (`fuzzing.rs` carries them out), and every pop-up at every size.

use crate::search::event::{Author, Event, Purpose};
use crate::search::tree::{NodeId, Status};
use crate::tui::fuzzing::{Move, NAMED, ODD, apply, beginning, mouse};
use crate::tui::testing::{
    app_with, catalog, counters, ended, picture, press, progress, replied, scored, small_run, start_app, started, token,
};
use crossterm::event::{Event as Input, KeyCode, KeyModifiers, MouseEvent, MouseEventKind};
use proptest::prelude::*;

fn key() -> impl Strategy<Value = Move> {
    let code = prop_oneof![
        8 => proptest::char::range('!', '~').prop_map(KeyCode::Char),
        1 => Just(KeyCode::Char(' ')),
        1 => any::<char>().prop_map(KeyCode::Char),
        2 => Just(KeyCode::Enter),
        2 => Just(KeyCode::Esc),
        4 => prop::sample::select(NAMED.to_vec()),
    ];
    (code, prop::bool::weighted(0.1), prop::bool::weighted(0.1))
        .prop_map(|(code, ctrl, release)| Move::Key(code, ctrl, release))
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![".{0,40}", Just(ODD.to_string()), Just(String::new())]
}

fn search() -> impl Strategy<Value = Event> {
    let node = 0..12u32;
    let statuses =
        prop::sample::select(vec![Status::Open, Status::Closed, Status::Pruned, Status::Pinned, Status::Answer]);
    prop_oneof![
        Just(started()),
        (node.clone(), node.clone(), text()).prop_map(|(node, parent, text)| Event::Grown {
            node: NodeId(node),
            parent: NodeId(parent),
            text,
            by: Author::User,
            logprob: Some(f64::NAN),
            token_logprobs: vec![-1.0, f32::NEG_INFINITY],
            usage: Default::default(),
        }),
        (node.clone(), any::<f64>()).prop_map(|(n, s)| scored(n, s)),
        (node.clone(), statuses, text()).prop_map(|(n, status, why)| Event::Status {
            node: NodeId(n),
            status,
            why: Some(why)
        }),
        (0..4u64, node.clone(), 0..3usize, text()).prop_map(|(r, n, s, t)| token(r, n, s, &t)),
        (0..4u64, node.clone(), 0..3usize, text()).prop_map(|(r, n, s, t)| replied(r, n, s, &t)),
        (0..4u64, node.clone(), text()).prop_map(|(request, n, prompt)| Event::Asked {
            request,
            node: NodeId(n),
            purpose: Purpose::Generate,
            samples: 2,
            prompt
        }),
        (node.clone(), text()).prop_map(|(n, text)| Event::Edited { node: NodeId(n), text }),
        (any::<f64>(), node).prop_map(|(s, best)| progress(s, best)),
        any::<u32>().prop_map(|n| counters(u64::from(n))),
        Just(Event::Paused),
        any::<bool>().prop_map(ended),
        text().prop_map(|text| Event::Note { text }),
    ]
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        10 => key(),
        1 => text().prop_map(Move::Paste),
        3 => (0..320u16, 0..110u16, 0..6u8).prop_map(|(x, y, kind)| Move::Mouse(x, y, kind)),
        1 => (0..320u16, 0..110u16).prop_map(|(w, h)| Move::Resize(w, h)),
        6 => search().prop_map(|e| Move::Search(Box::new(e))),
        1 => (0.0..5.0f64).prop_map(Move::Tick),
        1 => any::<bool>().prop_map(Move::Started),
    ];
    prop::collection::vec(one, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_comes_in_panics(begin in 0..3usize, moves in moves()) {
        let mut app = beginning(begin);
        for step in &moves {
            apply(&mut app, step);
        }
        app.catalog(catalog());
        picture(&mut app);
    }
}

/// Every pop-up and screen open, through the sizes of the case file, with the mouse along the last column and row.
#[test]
fn no_size_panics_and_the_selection_survives() {
    let sizes = [(80, 24), (14, 54), (10, 11), (40, 3), (3, 40), (2, 2), (1, 1), (300, 1), (80, 24)];
    let openings = ["1", "?", ":", "/ 3", "b e", "b a", "q", "g j m G m", "2 z", "7 z", "3 z", "6 z", "5 z", "4 z"];
    for opening in openings {
        let mut app = app_with(80, 24, &small_run());
        press(&mut app, "b");
        press(&mut app, opening);
        let before = app.run.as_ref().map(|r| r.tree.selected());
        for (w, h) in sizes {
            app.input(&Input::Resize(w, h));
            for x in 0..w {
                app.input(&mouse(x, h - 1, 9));
                app.input(&Input::Mouse(MouseEvent {
                    kind: MouseEventKind::Moved,
                    column: w - 1,
                    row: x % h,
                    modifiers: KeyModifiers::NONE,
                }));
            }
            if before == app.run.as_ref().map(|r| r.tree.selected()) {
                picture(&mut app);
            }
            apply(&mut app, &Move::Resize(w, h));
            if w < 20 || h < 8 {
                let text = crate::tui::testing::screen(&mut app);
                assert!(w < 9 || text.contains("too small"), "{w}x{h}: {text}");
            }
        }
    }
    // Without the mouse the selection is the same after all sizes.
    let mut app = app_with(80, 24, &small_run());
    press(&mut app, "b");
    let before = app.run.as_ref().map(|r| (r.tree.selected(), r.tree.selected_row()));
    for (w, h) in sizes {
        apply(&mut app, &Move::Resize(w, h));
    }
    assert_eq!(before, app.run.as_ref().map(|r| (r.tree.selected(), r.tree.selected_row())));
    for size in sizes {
        for mut app in [start_app(size.0, size.1), {
            let mut events = small_run();
            events.push(ended(true));
            app_with(size.0, size.1, &events)
        }] {
            picture(&mut app);
        }
    }
}
