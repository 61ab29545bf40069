//! Snapshots of the screens at several sizes, from hand-made events.

use crate::tui::app::App;
use crate::tui::replay::Replay;
use crate::tui::testing::{
    app_with, ended, grown, picture, press, recorded_run, screen, small_run, start_app, started,
};
use crate::tui::theme::{Theme, ThemeName};
use insta::assert_snapshot;

#[test]
fn start_screen() {
    assert_snapshot!("start_80x24", screen(&mut start_app(80, 24)));
    assert_snapshot!("start_40x16", screen(&mut start_app(40, 16)));
}

#[test]
fn run_screen_at_several_sizes() {
    for (width, height) in [(80, 24), (40, 24), (200, 50), (100, 34), (30, 9)] {
        let mut app = app_with(width, height, &small_run());
        assert_snapshot!(format!("run_{width}x{height}"), screen(&mut app));
    }
}

#[test]
fn run_screen_in_ascii_has_no_other_characters() {
    let mut app = app_with(80, 24, &small_run());
    app.theme = Theme::new(ThemeName::None, true);
    let text = screen(&mut app);
    assert!(text.is_ascii(), "{text}");
    assert_snapshot!("run_ascii_80x24", text);
    press(&mut app, "?");
    assert!(screen(&mut app).is_ascii());
    let mut app = start_app(80, 24);
    app.theme = Theme::new(ThemeName::None, true);
    assert!(screen(&mut app).is_ascii());
}

#[test]
fn pop_ups() {
    let mut app = app_with(80, 24, &small_run());
    for (name, keys) in [
        ("help", "?"),
        ("palette", ": s e t"),
        ("edit", "b e"),
        ("confirm", "q"),
        ("compare", "g j m G m"),
        ("thought_zoomed", "b 2 z"),
    ] {
        press(&mut app, keys);
        assert_snapshot!(format!("popup_{name}"), screen(&mut app));
        press(&mut app, "esc esc");
    }
}

#[test]
fn banner_says_answer_reason_cost_and_keys() {
    for solved in [true, false] {
        let mut events = small_run();
        events.push(ended(solved));
        let mut app = app_with(80, 24, &events);
        assert_snapshot!(format!("banner_solved_{solved}"), screen(&mut app));
    }
}

#[test]
fn loading_shows_what_is_done() {
    let mut app = start_app(80, 24);
    press(&mut app, "enter");
    app.progress(1, "fetching smollm2-135m".into(), Some(0.42));
    assert_snapshot!("loading", screen(&mut app));
}

#[test]
fn replay_has_a_time_bar() {
    let mut app = start_app(80, 24);
    app.open_replay(recorded_run());
    press(&mut app, "} } } ]");
    assert_snapshot!("replay", screen(&mut app));
}

#[test]
fn deep_trees_are_cut_at_the_left() {
    let mut events = vec![started()];
    events.extend((1..40).map(|i| grown(i, i - 1, &format!(" {i}"))));
    let mut app = app_with(60, 24, &events);
    press(&mut app, "G");
    assert_snapshot!("deep_60x24", screen(&mut app));
}

#[test]
fn only_rows_in_sight_are_built_and_scrolling_builds_no_list() {
    let mut events = vec![started()];
    // 20,000 thoughts: 200 below the root, 99 below each of these.
    for i in 1..=200u32 {
        events.push(grown(i, 0, "first level"));
    }
    for i in 201..=20_000u32 {
        events.push(grown(i, 1 + (i % 200), "second level, with a text that is somewhat longer"));
    }
    let mut app = app_with(200, 50, &events);
    picture(&mut app);
    let before = std::time::Instant::now();
    let frames = 90;
    for _ in 0..frames {
        press(&mut app, "down");
        let (_, rows) = picture(&mut app);
        assert!(rows <= 48, "{rows} rows built for a pane of 46");
    }
    let each = before.elapsed().as_secs_f64() * 1000.0 / f64::from(frames);
    println!("20,000 thoughts at 200x50: {each:.2} ms a frame");
    press(&mut app, "G");
    let (_, rows) = picture(&mut app);
    assert!(rows <= 48);
    assert_eq!(app.run.as_ref().map(|r| r.tree.rows().len()), Some(20_001));
}

#[test]
fn drawing_changes_nothing() {
    let mut app = app_with(80, 24, &small_run());
    press(&mut app, "b m");
    let (first, _) = picture(&mut app);
    let (second, _) = picture(&mut app);
    assert_eq!(first, second);
    fn replay_of(app: &App) -> Option<&Replay> {
        app.run.as_ref().and_then(|r| r.replay.as_ref())
    }
    assert!(replay_of(&app).is_none());
}
