//! The shared case files that concern terminals, as they are; without them the tests say so and pass.

use super::widths::check_borders;
use crate::base::testing::shared;
use crate::search::event::Event;
use crate::search::testing::case_replies;
use crate::tui::popup::Popup;
use crate::tui::testing::{app_with, grown, press, screen, small_run, started};
use crossterm::event::{Event as Input, KeyModifiers, MouseEvent, MouseEventKind};

fn case(name: &str) -> Option<String> {
    let path = shared(name)?.join("cases/A").join(name);
    Some(std::fs::read_to_string(path).expect("a case file"))
}

#[test]
fn the_sizes_of_the_case_are_survived_with_every_pop_up_open() {
    let Some(text) = case("47_sizes.txt") else { return };
    let size = |word: &str| -> Option<(u16, u16)> {
        let (w, h) = word.split_once('x')?;
        Some((w.parse().ok()?, h.parse().ok()?))
    };
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let sizes: Vec<(u16, u16)> = lines.flat_map(str::split_whitespace).filter_map(size).collect();
    assert!(sizes.len() > 5, "{text}");
    for opening in ["1", "?", ":", "/ 3", "e", "a", "q", "m g m", "2 z"] {
        let mut app = app_with(80, 24, &small_run());
        press(&mut app, "b");
        let selected = app.run.as_ref().map(|run| run.tree.selected());
        press(&mut app, opening);
        for &(w, h) in &sizes {
            app.input(&Input::Resize(w, h));
            for (column, row) in (0..w).map(|x| (x, h - 1)).chain((0..h).map(|y| (w - 1, y))) {
                let moved = MouseEvent { kind: MouseEventKind::Moved, column, row, modifiers: KeyModifiers::NONE };
                app.input(&Input::Mouse(moved));
            }
            screen(&mut app);
        }
        if !opening.starts_with('m') {
            assert_eq!(app.run.as_ref().map(|run| run.tree.selected()), selected, "after {opening}");
        }
    }
}

#[test]
fn the_wide_characters_of_the_case_keep_borders_straight() {
    let Some(texts) = case_replies("48_wide.reply.txt") else { return };
    assert!(texts.len() >= 3, "{texts:?}");
    let thoughts = (1..40u32).map(|i| grown(i, (i - 1) / 2, &texts[i as usize % texts.len()]));
    let events: Vec<Event> = std::iter::once(started()).chain(thoughts).collect();
    let mut app = app_with(40, 24, &events);
    press(&mut app, "g");
    for _ in 0..39 {
        check_borders(&mut app);
        press(&mut app, "j");
    }
    press(&mut app, "2 z");
    check_borders(&mut app);
}

#[test]
fn the_paste_of_the_case_is_one_edit_in_a_field_and_nothing_in_the_tree() {
    let Some(text) = case("52_paste.txt") else { return };
    let mut app = app_with(80, 24, &small_run());
    app.input(&Input::Paste(text.clone()));
    assert!(app.take_effects().is_empty() && app.popup.is_none() && app.is_running());
    press(&mut app, "b a");
    app.input(&Input::Paste(text.clone()));
    let Some(Popup::Add { field, .. }) = &app.popup else { panic!("the field is open") };
    assert_eq!(field.text().trim_start(), text.trim_start());
    assert!(app.take_effects().is_empty());
}
