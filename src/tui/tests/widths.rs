//! Wide, combining and joined characters: borders stay straight, and nothing is left over after a scroll.

use crate::search::event::Event;
use crate::search::tree::{NodeId, Status};
use crate::tui::app::App;
use crate::tui::testing::{app_with, grown, picture, press, started, token};
use crate::tui::text;
use crossterm::event::Event as Input;
use proptest::prelude::*;
use ratatui::buffer::Buffer;

const HARD: [&str; 8] = [
    "♻️♻️♻️♻️♻️♻️♻️♻️♻️♻️♻️♻️♻️♻️♻️♻️♻️♻️♻️♻️",
    "中文文字→24 中文文字→24 中文文字→24 中文文字",
    "\u{1100}\u{1161}\u{1102}\u{1161}\u{1103}\u{1161} e\u{301}\u{301} 👨‍👩‍👧 👨‍👩‍👧 👨‍👩‍👧 👨‍👩‍👧 👨‍👩‍👧 👨‍👩‍👧",
    "שלום עולם مرحبا بالعالم שלום עולם مرحبا",
    "a\u{200b}b\u{ad}c 1️⃣ 🇩🇪 👍🏽 ｶﾞｶﾞ",
    "tab\there\x1b[31m red\x07",
    "\u{202e}evil\u{202c} text",
    "中",
];

/// The cells of a picture's border columns: any that is not a border sign is a hole.
pub fn check_borders(app: &mut App) -> Buffer {
    let (buffer, _) = picture(app);
    let arrangement = app.arrangement().unwrap();
    for (pane, rect) in &arrangement.panes {
        for y in rect.top()..rect.bottom() {
            for x in [rect.left(), rect.right() - 1] {
                let symbol = buffer[(x, y)].symbol();
                assert!("│┃╭╮╰╯".contains(symbol), "{pane:?}: `{symbol}` at {x},{y}");
            }
        }
        // Nothing wide may reach into the border.
        for y in rect.top() + 1..rect.bottom() - 1 {
            let mut x = rect.left() + 1;
            while x < rect.right() - 1 {
                x += text::width(buffer[(x, y)].symbol()).max(1) as u16;
            }
            assert_eq!(x, rect.right() - 1, "{pane:?}: a wide character reaches over the border in row {y}");
        }
    }
    buffer
}

fn events() -> Vec<Event> {
    let mut events = vec![started()];
    for i in 1..60u32 {
        events.push(grown(i, (i - 1) / 2, HARD[i as usize % HARD.len()]));
    }
    events
}

#[test]
fn borders_stay_straight_at_forty_columns_and_others() {
    for (width, height) in [(40, 24), (41, 24), (80, 24), (63, 12), (20, 8), (160, 40)] {
        let mut app = app_with(width, height, &events());
        press(&mut app, "g");
        for _ in 0..60 {
            check_borders(&mut app);
            press(&mut app, "j");
        }
        press(&mut app, "2 z");
        check_borders(&mut app);
    }
}

#[test]
fn a_scroll_by_one_leaves_nothing_over() {
    // What a terminal shows after the difference of two pictures is the second picture, cell by cell.
    let mut app = app_with(40, 24, &events());
    press(&mut app, "g");
    let mut shown = check_borders(&mut app);
    for _ in 0..50 {
        press(&mut app, "j");
        let next = check_borders(&mut app);
        let changes: Vec<_> = shown.diff(&next).into_iter().map(|(x, y, cell)| (x, y, cell.clone())).collect();
        for (x, y, cell) in changes {
            let wide = text::width(cell.symbol());
            shown[(x, y)] = cell;
            for i in 1..wide as u16 {
                shown[(x + i, y)].reset();
            }
        }
        for y in 0..24 {
            let mut x = 0;
            while x < 40 {
                assert_eq!(shown[(x, y)].symbol(), next[(x, y)].symbol(), "at {x},{y}");
                x += text::width(next[(x, y)].symbol()).max(1) as u16;
            }
        }
    }
}

#[test]
fn every_grapheme_on_the_screen_has_the_width_terminals_agree_on() {
    let mut app = app_with(200, 50, &events());
    press(&mut app, "g");
    for _ in 0..59 {
        press(&mut app, "j");
        let (buffer, _) = picture(&mut app);
        for cell in buffer.content() {
            let symbol = cell.symbol();
            assert!(!symbol.contains(['\u{200d}', '\u{fe0f}', '\u{1b}', '\u{202e}', '\u{7}']), "{symbol:?}");
        }
    }
}

/// Every row of a picture, walked by the widths of what stands in it, ends exactly at the right edge.
#[track_caller]
fn check_rows(buffer: &Buffer) {
    let area = buffer.area;
    for y in area.top()..area.bottom() {
        let mut x = area.left();
        while x < area.right() {
            x += text::width(buffer[(x, y)].symbol()).max(1) as u16;
        }
        assert_eq!(x, area.right(), "row {y} is not as wide as the screen");
    }
}

fn any_text() -> impl Strategy<Value = String> {
    let hard = prop::sample::select(HARD.to_vec()).prop_map(str::to_string);
    let mixed = prop::collection::vec(
        prop_oneof![
            any::<char>(),
            prop::sample::select("中♻️👨‍👩‍👧e\u{301}שa ｶ한\u{1100}\u{1161}🇩🇪".chars().collect::<Vec<_>>())
        ],
        0..40,
    );
    prop_oneof![hard, mixed.prop_map(|chars| chars.into_iter().collect()), ".{0,60}"]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_row_has_the_width_of_the_screen(
        texts in prop::collection::vec(any_text(), 1..12),
        (width, height) in (20..160u16, 8..50u16),
        opening in prop::sample::select(vec!["g", "2 z", "7 z", "3 z", "?", "g j e", "g a", ": x", "/ x", "g m j m", "q"]),
        typed in any_text(),
    ) {
        let mut events = vec![started()];
        for (i, content) in texts.iter().enumerate() {
            let node = i as u32 + 1;
            events.push(grown(node, node / 2, content));
            events.push(Event::Note { text: content.clone() });
            events.push(token(1, node, 0, content));
            let why = Some(content.clone());
            events.push(Event::Status { node: NodeId(node), status: Status::Pruned, why });
        }
        let mut app = app_with(width, height, &events);
        press(&mut app, opening);
        app.input(&Input::Paste(typed));
        for _ in 0..3 {
            let (buffer, _) = picture(&mut app);
            check_rows(&buffer);
            if app.popup.is_none() {
                check_borders(&mut app);
            }
            press(&mut app, "down");
        }
    }
}
