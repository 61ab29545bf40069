//! What a frame costs, measured without a terminal: the state is brought in line, the picture is made and compared with the
//! last one, as in a real frame; only the writing is left out.

use super::app::App;
use super::canvas::Canvas;
use super::draw::draw;
use super::{Choice, ScreenOptions, Source};
use crate::base::Result;
use crate::search::event::{Author, Event, Limits};
use crate::search::tree::NodeId;
use crossterm::event::{Event as Input, KeyCode, KeyEvent, KeyModifiers};
use ratatui::buffer::Buffer;
use std::time::Instant;

/// Milliseconds of frames, sorted.
#[derive(Debug, Clone, PartialEq)]
pub struct Frames {
    /// After a step of the selection, as while Down is held.
    pub scroll_ms: Vec<f64>,
    /// After a thought grew, which makes the list of rows anew.
    pub growth_ms: Vec<f64>,
}

/// Frames over a tree of so many thoughts, ten below each.
pub fn measure(thoughts: u32, width: u16, height: u16, frames: u32) -> Result<Frames> {
    let mut app = App::new(&ScreenOptions::default(), width, height)?;
    let choice = Choice {
        task: "sorting".into(),
        source: Source::Generated { size: 8, seed: 0 },
        strategy: "made up".into(),
        model: "none".into(),
    };
    app.begin(choice.clone());
    app.started(1, choice, Ok(()));
    app.search_event(&Event::Started {
        task: "sorting".into(),
        puzzle: "0-8".into(),
        title: "a tree made up to be measured".into(),
        strategy: "made up".into(),
        model: "none".into(),
        seed: 0,
        budget: Limits::default(),
        among_allowed: false,
    });
    for node in 1..=thoughts {
        app.search_event(&grown(node));
    }
    let mut last = Buffer::empty(app.area);
    let mut frame = |app: &mut App, event: &dyn Fn(&mut App)| {
        let began = Instant::now();
        event(app);
        app.settle();
        let mut next = Buffer::empty(app.area);
        draw(&mut Canvas::new(&mut next, &app.theme), app);
        let changed = last.diff(&next).len();
        let ms = began.elapsed().as_secs_f64() * 1000.0;
        last = next;
        // The difference is part of a frame: it must not be left out as unused.
        std::hint::black_box(changed);
        ms
    };
    let key = |code| Input::Key(KeyEvent::new(code, KeyModifiers::NONE));
    frame(&mut app, &|app| app.input(&key(KeyCode::Home)));
    let mut scroll_ms: Vec<f64> = (0..frames).map(|_| frame(&mut app, &|app| app.input(&key(KeyCode::Down)))).collect();
    let mut growth_ms: Vec<f64> =
        (0..frames).map(|i| frame(&mut app, &|app| app.search_event(&grown(thoughts + 1 + i)))).collect();
    scroll_ms.sort_by(f64::total_cmp);
    growth_ms.sort_by(f64::total_cmp);
    Ok(Frames { scroll_ms, growth_ms })
}

fn grown(node: u32) -> Event {
    Event::Grown {
        node: NodeId(node),
        parent: NodeId((node - 1) / 10),
        text: format!("thought number {node}, with a text that is somewhat longer"),
        by: Author::Model,
        logprob: Some(-0.5),
        token_logprobs: Vec::new(),
        usage: Default::default(),
    }
}
