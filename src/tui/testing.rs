//! Hand-made events and screens for this folder's tests.

use super::app::App;
use super::canvas::Canvas;
use super::draw::draw;
use super::replay::Recording;
use super::run_state::RunState;
use super::start::Catalog;
use super::{Choice, Fork, ModelItem, RunItem, ScreenOptions, Source, StrategyItem, TaskItem, ThemeName};
use crate::lm::{Counters, HeldKv, IoCounters, KvCounters, LinkCounters, SpeedCounters, Usage};
use crate::search::event::{Author, Event, Limits, Outcome, Purpose, Reason, ScorePart};
use crate::search::tree::{NodeId, Status};
use crossterm::event::{Event as Input, KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;

pub fn started() -> Event {
    Event::Started {
        task: "sorting".into(),
        puzzle: "1-8".into(),
        title: "sort 9 4 5 8 0 7 3 0".into(),
        strategy: "tot-bfs".into(),
        model: "smollm2-135m".into(),
        seed: 1,
        budget: Limits { tokens: Some(20_000), thoughts: Some(500), seconds: Some(60.0) },
        among_allowed: false,
    }
}

pub fn grown(node: u32, parent: u32, text: &str) -> Event {
    Event::Grown {
        node: NodeId(node),
        parent: NodeId(parent),
        text: text.into(),
        by: Author::Model,
        logprob: Some(-0.25 * f64::from(node % 7)),
        token_logprobs: vec![-0.25 * (node % 7) as f32],
        usage: Usage { prompt: 4, sampled: 1, scored: 0, logical: 300, ..Usage::default() },
    }
}

pub fn scored(node: u32, score: f64) -> Event {
    let part =
        |evaluator: &str, value, detail: &str| ScorePart { evaluator: evaluator.into(), value, detail: detail.into() };
    Event::Scored {
        node: NodeId(node),
        score,
        parts: vec![
            part("checker", Some(score), "1 smaller number skipped"),
            part("value", None, "the reply `Neither` is no label"),
        ],
    }
}

pub fn status(node: u32, status: Status) -> Event {
    let why = match status {
        Status::Pruned => Some("not among the best 1".to_string()),
        _ => None,
    };
    Event::Status { node: NodeId(node), status, why }
}

pub fn asked(request: u64, node: u32) -> Event {
    Event::Asked {
        request,
        node: NodeId(node),
        purpose: Purpose::Generate,
        samples: 3,
        prompt: format!("Sort the list of numbers in ascending order.\n\nInput: 94580730\nOutput: {node}"),
    }
}

pub fn token(request: u64, node: u32, sample: usize, text: &str) -> Event {
    Event::Token { request, node: NodeId(node), sample, text: text.into(), logprob: -0.5 }
}

pub fn replied(request: u64, node: u32, sample: usize, text: &str) -> Event {
    Event::Replied {
        request,
        node: NodeId(node),
        sample,
        text: text.into(),
        finish: "end".into(),
        logprob: Some(-0.5),
        usage: Usage::default(),
        pieces: vec![text.len() as u32],
        piece_logprobs: Vec::new(),
    }
}

pub fn progress(seconds: f64, best: u32) -> Event {
    Event::Progress {
        depth: 2,
        frontier: 3,
        best: Some(NodeId(best)),
        best_score: 0.83,
        thoughts: 9,
        usage: Usage { prompt: 1200, sampled: 34, scored: 0, logical: 8901, ..Usage::default() },
        seconds,
    }
}

pub fn counters(scale: u64) -> Event {
    Event::Counters {
        counters: Counters {
            kv: Some(KvCounters {
                pages_total: 512,
                pages_live: 60 + scale,
                pages_cached: 120,
                page_bytes: 737_280,
                tokens_stored: 900 + scale,
                tokens_logical: 8901,
                evicted_pages: 0,
                prefix_hits: 7600,
                prefix_lookups: 8300,
            }),
            io: Some(IoCounters { kv_bytes: 120 << 20, radix_bytes: 830 << 20, partial_bytes: 1 << 20 }),
            link: Some(LinkCounters { to_device_bytes: scale << 20, ..LinkCounters::default() }),
            speed: Some(SpeedCounters {
                steps: 40 + scale,
                rows: 130 + scale,
                sampled: 34,
                step_seconds: 1.0,
                attention_seconds: 0.3,
                products_seconds: 0.6,
                plan_seconds: 0.02,
                tokens_per_second: 100.0 + 37.0 * (scale % 5) as f64,
                ..SpeedCounters::default()
            }),
            note: None,
        },
    }
}

pub fn ended(solved: bool) -> Event {
    Event::Ended {
        outcome: Outcome {
            solved,
            reason: if solved { Reason::Solved } else { Reason::AllPruned { depth: 2 } },
            node: Some(NodeId(6)),
            answer: Some(serde_json::json!([0, 0, 3, 4, 5, 7, 8, 9])),
            answer_text: Some("00345789".into()),
            error_score: Some(if solved { 0 } else { 3 }),
            why: if solved { "sorted, with the same numbers".into() } else { "3 errors".into() },
            thoughts: 9,
            proposals: 12,
            usage: Usage { prompt: 1200, sampled: 34, scored: 0, logical: 8901, ..Usage::default() },
            seconds: 3.2,
            link: None,
        },
    }
}

/// A run in the middle of its second level, with two samples running.
pub fn small_run() -> Vec<Event> {
    let mut events = vec![started(), asked(1, 0)];
    for (node, text, score) in [(1, "0", 0.95), (2, "3", 0.4), (3, "4", 0.2)] {
        events.extend([token(1, 0, node as usize - 1, text), replied(1, 0, node as usize - 1, text)]);
        events.extend([grown(node, 0, text), scored(node, score)]);
    }
    events.extend([status(0, Status::Closed), status(2, Status::Pruned), status(3, Status::Pruned)]);
    events.extend([counters(1), progress(0.8, 1), asked(2, 1)]);
    for (node, text, score) in [(4, " 0", 0.9), (5, " 3", 0.5)] {
        events.extend([token(2, 1, node as usize - 4, text), replied(2, 1, node as usize - 4, text)]);
        events.extend([grown(node, 1, text), scored(node, score)]);
    }
    events.extend([status(1, Status::Closed), status(5, Status::Pinned), grown(6, 4, " 3"), scored(6, 0.83)]);
    events.extend([Event::Note { text: "12 of 16 examples fit the context".into() }, counters(2), progress(1.6, 6)]);
    events.extend([asked(3, 4), token(3, 4, 0, " 5"), token(3, 4, 1, " 4"), token(3, 4, 1, " 7")]);
    let held = |node, tokens, own| (NodeId(node), HeldKv { tokens, own, here: None, moving: None });
    events.push(Event::Held { thoughts: vec![held(4, 302, 1), held(5, 302, 1), held(6, 303, 1)] });
    events
}

pub fn recorded_run() -> Recording {
    let fork = Fork { run: "run".into(), events: None, paused: false, choice: choice() };
    Recording { name: "run".into(), events: small_run().into_iter().map(|e| (None, e)).collect(), fork: Some(fork) }
}

pub fn run_of(events: &[Event]) -> RunState {
    let mut run = RunState::default();
    for event in events {
        run.apply(event, 0.0);
    }
    run
}

pub fn choice() -> Choice {
    Choice {
        task: "sorting".into(),
        source: Source::Generated { size: 8, seed: 1 },
        strategy: "tot-bfs".into(),
        model: "smollm2-135m".into(),
    }
}

pub fn catalog() -> Catalog {
    let task = |name: &str, about: &str, default: &str| TaskItem {
        name: name.into(),
        about: about.into(),
        input_forms: "integers, such as 3 1 2".into(),
        example: "42 7 -3 103 7".into(),
        default_strategy: default.into(),
        default_size: 8,
    };
    let strategy = |name: &str, about: &str, error: Option<&str>| StrategyItem {
        name: name.into(),
        about: about.into(),
        error: error.map(str::to_string),
    };
    let model = |name: &str, bytes, note: &str| ModelItem { name: name.into(), bytes, note: note.into(), error: None };
    Catalog {
        tasks: vec![
            task("sorting", "sort numbers, duplicates kept", "tot-bfs"),
            task("set-intersection", "find what two sets share", "tot-dfs"),
        ],
        strategies: [
            (
                "sorting".to_string(),
                vec![
                    strategy("tot-bfs", "step by step, keep the best prefixes", None),
                    strategy("tot-dfs", "best step first, back where it fails", None),
                    strategy("mine.yaml", "", Some("mine.yaml:3:5: unknown key `dpeth` (nearest: `depth`)")),
                ],
            ),
            ("set-intersection".to_string(), vec![strategy("tot-dfs", "next common element", None)]),
        ]
        .into(),
        models: vec![
            model("smollm2-135m", Some(98_362_432), "ready"),
            model("random-proposer", None, "no model: chance proposes"),
        ],
        runs: vec![RunItem { id: "2026-11-30-1".into(), about: "sorting 1-8 solved, 9 thoughts".into() }],
    }
}

/// An app on its start screen.
pub fn start_app(width: u16, height: u16) -> App {
    let options = ScreenOptions { theme: ThemeName::Dark, seed: 1, ..ScreenOptions::default() };
    let mut app = App::new(&options, width, height).expect("an app");
    app.open(None);
    app.catalog(catalog());
    for effect in app.take_effects() {
        if let super::app::Effect::Preview { question, .. } = effect {
            app.preview(question, Ok("sort 9 4 5 8 0 7 3 0".into()));
        }
    }
    app
}

/// An app on a live run that these events came from.
pub fn app_with(width: u16, height: u16, events: &[Event]) -> App {
    let mut app = start_app(width, height);
    app.begin(choice());
    assert!(app.started(1, choice(), Ok(())));
    for (i, event) in events.iter().enumerate() {
        app.tick(i as f64);
        app.search_event(event);
    }
    app.take_effects();
    app.message = None;
    app.settle();
    app
}

pub fn press(app: &mut App, keys: &str) {
    for word in keys.split(' ') {
        let (code, modifiers) = match word {
            "enter" => (KeyCode::Enter, KeyModifiers::NONE),
            "esc" => (KeyCode::Esc, KeyModifiers::NONE),
            "tab" => (KeyCode::Tab, KeyModifiers::NONE),
            "down" => (KeyCode::Down, KeyModifiers::NONE),
            "up" => (KeyCode::Up, KeyModifiers::NONE),
            "left" => (KeyCode::Left, KeyModifiers::NONE),
            "right" => (KeyCode::Right, KeyModifiers::NONE),
            "space" => (KeyCode::Char(' '), KeyModifiers::NONE),
            "pagedown" => (KeyCode::PageDown, KeyModifiers::NONE),
            _ => match word.strip_prefix("ctrl-") {
                Some(c) => (KeyCode::Char(c.chars().next().expect("a key")), KeyModifiers::CONTROL),
                None => (KeyCode::Char(word.chars().next().expect("a key")), KeyModifiers::NONE),
            },
        };
        app.input(&Input::Key(KeyEvent::new(code, modifiers)));
        app.settle();
    }
}

/// Draws once; gives the cells and the number of tree rows that were built.
pub fn picture(app: &mut App) -> (Buffer, usize) {
    app.settle();
    let mut terminal = Terminal::new(TestBackend::new(app.area.width, app.area.height)).expect("a picture");
    let mut rows = 0;
    terminal
        .draw(|frame| {
            let mut canvas = Canvas::new(frame.buffer_mut(), &app.theme);
            rows = draw(&mut canvas, app);
        })
        .expect("a picture");
    (terminal.backend().buffer().clone(), rows)
}

/// The picture as text, lines without their trailing spaces.
pub fn screen(app: &mut App) -> String {
    let (buffer, _) = picture(app);
    lines_of(&buffer).join("\n")
}

pub fn lines_of(buffer: &Buffer) -> Vec<String> {
    let area = buffer.area;
    (area.top()..area.bottom())
        .map(|y| {
            let mut line = String::new();
            let mut skip = 0;
            for x in area.left()..area.right() {
                if skip > 0 {
                    skip -= 1;
                    continue;
                }
                let symbol = buffer[(x, y)].symbol();
                skip = super::text::width(symbol).saturating_sub(1);
                line.push_str(symbol);
            }
            line.trim_end().to_string()
        })
        .collect()
}
