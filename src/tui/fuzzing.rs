//! Whatever comes in, in any order and at any size: no panic, and the selection is a thought that exists. Moves come from
//! the tests, or from a fuzzer's bytes.

use super::app::{App, Effect};
use super::testing::{
    app_with, catalog, choice, counters, ended, picture, progress, recorded_run, replied, scored, small_run, start_app,
    started, token,
};
use crate::base::choices::Choices;
use crate::search::event::{Author, Event, Purpose};
use crate::search::tree::{NodeId, Status};
use crossterm::event::{
    Event as Input, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};

#[derive(Debug, Clone)]
pub enum Move {
    Key(KeyCode, bool, bool),
    Paste(String),
    Mouse(u16, u16, u8),
    Resize(u16, u16),
    Search(Box<Event>),
    Tick(f64),
    Started(bool),
}

/// Keys that no character stands for.
pub const NAMED: [KeyCode; 15] = [
    KeyCode::Enter,
    KeyCode::Esc,
    KeyCode::Tab,
    KeyCode::BackTab,
    KeyCode::Up,
    KeyCode::Down,
    KeyCode::Left,
    KeyCode::Right,
    KeyCode::Home,
    KeyCode::End,
    KeyCode::PageUp,
    KeyCode::PageDown,
    KeyCode::Backspace,
    KeyCode::Delete,
    KeyCode::F(1),
];

/// Text that is hard to show.
pub const ODD: &str = "♻️ 中文 e\u{301}\n\u{202e}x👨‍👩‍👧\u{1b}[2J";

/// Moves of one session: each is followed by a picture.
const MOST_MOVES: usize = 60;

/// A session as bytes spell it.
pub fn fuzz(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let mut app = beginning(choices.below(3));
    for _ in 0..MOST_MOVES {
        if choices.is_done() {
            break;
        }
        let step = next(&mut choices);
        apply(&mut app, &step);
    }
    app.catalog(catalog());
    picture(&mut app);
}

/// The start screen, a live run, or a replay.
pub fn beginning(which: usize) -> App {
    match which {
        0 => start_app(80, 24),
        1 => app_with(80, 24, &small_run()),
        _ => {
            let mut app = start_app(80, 24);
            app.open_replay(recorded_run());
            app
        }
    }
}

fn next(choices: &mut Choices<'_>) -> Move {
    match choices.below(24) {
        0..8 => Move::Key(KeyCode::Char(char::from(b' ' + choices.below(95) as u8)), choices.below(10) == 9, false),
        8 => Move::Key(KeyCode::Char(text(choices).chars().next().unwrap_or('é')), false, choices.below(2) == 1),
        9..13 => Move::Key(NAMED[choices.below(NAMED.len())], choices.below(10) == 9, choices.below(10) == 9),
        13 => Move::Paste(text(choices)),
        14..16 => Move::Mouse(choices.below(320) as u16, choices.below(110) as u16, choices.byte() % 6),
        16 => Move::Resize(choices.below(320) as u16, choices.below(110) as u16),
        17..22 => Move::Search(Box::new(search(choices))),
        22 => Move::Tick(f64::from(choices.byte()) / 50.0),
        _ => Move::Started(choices.below(2) == 1),
    }
}

fn text(choices: &mut Choices<'_>) -> String {
    match choices.below(4) {
        0 => ODD.into(),
        1 => String::new(),
        _ => choices.text(40),
    }
}

fn search(choices: &mut Choices<'_>) -> Event {
    let (node, other, request) = (choices.below(12) as u32, NodeId(choices.below(12) as u32), choices.below(4) as u64);
    let number = [f64::NAN, f64::INFINITY, -1.0, 0.5, 1e300][choices.below(5)];
    let statuses = [Status::Open, Status::Closed, Status::Pruned, Status::Pinned, Status::Answer];
    let id = NodeId(node);
    match choices.below(13) {
        0 => started(),
        1 | 2 => Event::Grown {
            node: id,
            parent: other,
            text: text(choices),
            by: Author::User,
            logprob: Some(number),
            token_logprobs: vec![-1.0, f32::NEG_INFINITY],
            usage: Default::default(),
        },
        3 => scored(node, number),
        4 => Event::Status { node: id, status: statuses[choices.below(5)], why: Some(text(choices)) },
        5 => token(request, node, choices.below(3), &text(choices)),
        6 => replied(request, node, choices.below(3), &text(choices)),
        7 => Event::Asked { request, node: id, purpose: Purpose::Generate, samples: 2, prompt: text(choices) },
        8 => Event::Edited { node: id, text: text(choices) },
        9 => progress(number, node),
        10 => counters(u64::from(choices.number())),
        11 => ended(choices.below(2) == 1),
        _ => Event::Note { text: text(choices) },
    }
}

pub fn mouse(x: u16, y: u16, kind: u8) -> Input {
    let kind = match kind {
        0 => MouseEventKind::Down(MouseButton::Left),
        1 => MouseEventKind::Drag(MouseButton::Left),
        2 => MouseEventKind::Up(MouseButton::Left),
        3 => MouseEventKind::ScrollDown,
        4 => MouseEventKind::ScrollUp,
        _ => MouseEventKind::Down(MouseButton::Right),
    };
    Input::Mouse(MouseEvent { kind, column: x, row: y, modifiers: KeyModifiers::NONE })
}

/// Does one thing and draws; the selection is a thought that exists.
pub fn apply(app: &mut App, step: &Move) {
    match step {
        Move::Key(code, ctrl, release) => {
            let modifiers = if *ctrl { KeyModifiers::CONTROL } else { KeyModifiers::NONE };
            let kind = if *release { KeyEventKind::Release } else { KeyEventKind::Press };
            app.input(&Input::Key(KeyEvent::new_with_kind(*code, modifiers, kind)));
        }
        Move::Paste(text) => app.input(&Input::Paste(text.clone())),
        Move::Mouse(x, y, kind) => app.input(&mouse(*x, *y, *kind)),
        Move::Resize(w, h) => app.input(&Input::Resize(*w, *h)),
        Move::Search(event) => app.search_event(event),
        Move::Tick(by) => app.tick(app.now + by),
        Move::Started(ok) => {
            let job = app.take_effects().iter().find_map(|e| match e {
                Effect::Start { job, .. } | Effect::StartNext { job, .. } => Some(*job),
                _ => None,
            });
            let result = if *ok { Ok(()) } else { Err(crate::base::Error::input("no\nmodel")) };
            app.started(job.unwrap_or(1), choice(), result);
        }
    }
    app.settle();
    if let Some(run) = &app.run {
        assert!(run.state.tree.get(run.tree.selected()).is_some());
    }
    picture(app);
}
