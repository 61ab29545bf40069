//! What keys, pastes, clicks and the search's events do.

use crate::lm::{Counters, HeldKv, LinkCounters};
use crate::search::event::{Command, Event, Limits};
use crate::search::tree::{NodeId, Status};
use crate::tui::app::{App, Effect, Screen};
use crate::tui::keys::{Action, KeyMap, TABLE};
use crate::tui::layout::Pane;
use crate::tui::popup::Popup;
use crate::tui::testing::{
    app_with, choice, ended, grown, press, progress, recorded_run, replied, screen, small_run, start_app, started,
    status,
};
use crate::tui::{Choice, Fork, Recording, Source};
use crossterm::event::{
    Event as Input, KeyCode, KeyEvent, KeyEventKind, KeyEventState, KeyModifiers, MouseButton, MouseEvent,
    MouseEventKind,
};

fn selected(app: &App) -> NodeId {
    app.run.as_ref().unwrap().tree.selected()
}

fn sent(app: &mut App) -> Vec<Command> {
    let effects = app.take_effects();
    effects.into_iter().filter_map(|e| if let Effect::Send(c) = e { Some(c) } else { None }).collect()
}

fn click(app: &mut App, x: u16, y: u16, kind: MouseEventKind) {
    app.input(&Input::Mouse(MouseEvent { kind, column: x, row: y, modifiers: KeyModifiers::NONE }));
    app.settle();
}

#[test]
fn a_press_acts_once_repeats_go_on_and_releases_do_nothing() {
    let events: Vec<Event> = std::iter::once(started()).chain((1..20).map(|i| grown(i, 0, "x"))).collect();
    let mut app = app_with(80, 24, &events);
    press(&mut app, "g");
    let key = |kind| {
        Input::Key(KeyEvent {
            code: KeyCode::Char('j'),
            modifiers: KeyModifiers::NONE,
            kind,
            state: KeyEventState::NONE,
        })
    };
    app.input(&key(KeyEventKind::Press));
    app.input(&key(KeyEventKind::Release));
    assert_eq!(selected(&app), NodeId(1));
    for kind in [KeyEventKind::Press, KeyEventKind::Repeat, KeyEventKind::Repeat, KeyEventKind::Release] {
        app.input(&key(kind));
    }
    assert_eq!(selected(&app), NodeId(4));
}

#[test]
fn steering_keys_send_commands() {
    let check = |keys: &str, expected: &[Command]| {
        let mut app = app_with(80, 24, &small_run());
        press(&mut app, "b");
        assert_eq!(selected(&app), NodeId(6));
        press(&mut app, keys);
        assert_eq!(sent(&mut app), expected, "{keys}");
    };
    let node = NodeId(6);
    check("space", &[Command::Pause]);
    check("p", &[Command::Pause]);
    check("s", &[Command::Step]);
    check("+", &[Command::Expand { node }]);
    check("enter", &[Command::Expand { node }]);
    check("x", &[Command::Prune { node }]);
    check("P", &[Command::Pin { node }]);
    check("u", &[Command::Undo]);
    check("r", &[Command::Rescore { node }]);
    check("e 9 enter", &[Command::Edit { node, text: " 39".into() }]);
    check("e 9 esc", &[]);
    check("a enter", &[]);
    check("a 7 ctrl-j 8 enter", &[Command::Add { parent: node, text: "7\n8".into() }]);
    check(": s e t space b r e a d t h space 5 enter", &[Command::SetBreadth { n: 5 }]);
    let limits = Limits { tokens: None, thoughts: Some(500), seconds: Some(60.0) };
    check(": s e t space t o k e n s space n o n e enter", &[Command::SetBudget { limits }]);
    check(": p r u tab enter", &[Command::Prune { node }]);
    check("g x", &[]);
}

#[test]
fn pin_lets_a_pinned_thought_go_and_pause_goes_on() {
    let mut events = small_run();
    events.extend([status(6, Status::Pinned), Event::Paused]);
    let mut app = app_with(80, 24, &events);
    press(&mut app, "b P space");
    assert_eq!(sent(&mut app), [Command::Unpin { node: NodeId(6) }, Command::Resume]);
    // Two samples are still running.
    assert!(screen(&mut app).contains("PAUSING"));
    for sample in 0..2 {
        app.search_event(&replied(3, 4, sample, " 5"));
    }
    assert!(screen(&mut app).contains("PAUSED"));
}

#[test]
fn after_the_end_nothing_is_sent_and_the_banner_offers_what_is_next() {
    let mut events = small_run();
    events.push(ended(true));
    let mut app = app_with(80, 24, &events);
    assert!(matches!(app.popup, Some(Popup::Banner)));
    press(&mut app, "esc x s");
    assert!(sent(&mut app).is_empty());
    assert!(app.message.as_ref().unwrap().text.contains("has ended"));
    press(&mut app, "B n");
    assert!(app.take_effects().iter().any(|e| matches!(e, Effect::StartNext { .. })));
    assert!(matches!(app.screen, Screen::Loading(_)));
    let next = Choice { source: Source::Generated { size: 8, seed: 2 }, ..choice() };
    assert!(app.started(2, next, Ok(())));
    assert_eq!(app.start.seed.text(), "2");
    for (key, check) in [("a", "again"), ("o", "other")] {
        let mut app = app_with(80, 24, &events);
        press(&mut app, key);
        match check {
            "again" => assert!(app.take_effects().contains(&Effect::Start { job: 2, choice: choice() })),
            _ => assert_eq!(app.screen, Screen::Start),
        }
    }
}

#[test]
fn leaving_asks_only_while_a_search_runs() {
    let mut app = app_with(80, 24, &small_run());
    press(&mut app, "q n");
    assert!(app.take_effects().is_empty() && app.popup.is_none());
    press(&mut app, "q y");
    assert_eq!(app.take_effects(), [Effect::Leave]);
    let mut app = app_with(80, 24, &small_run());
    press(&mut app, "ctrl-c ctrl-c");
    assert_eq!(app.take_effects(), [Effect::Leave]);
    let mut events = small_run();
    events.push(ended(false));
    let mut app = app_with(80, 24, &events);
    press(&mut app, "q");
    assert_eq!(app.take_effects(), [Effect::Leave]);
}

#[test]
fn a_paste_goes_into_text_fields_only() {
    let paste = Input::Paste("q\nd\n4 5 6 10\n:quit\n".into());
    let mut app = app_with(80, 24, &small_run());
    app.input(&paste);
    assert!(app.take_effects().is_empty() && app.popup.is_none());
    press(&mut app, "b e");
    app.input(&paste);
    let Some(Popup::Edit { field, .. }) = &app.popup else { panic!("the field is open") };
    assert_eq!(field.text(), " 3q\nd\n4 5 6 10\n:quit\n");
    assert!(app.take_effects().is_empty());
    let mut app = start_app(80, 24);
    press(&mut app, "tab right tab");
    assert_eq!(app.start.field().map(|f| f.text()), Some(String::new()));
    app.input(&paste);
    assert_eq!(app.screen, Screen::Start);
    assert_eq!(app.start.field().map(|f| f.text()), Some("q\nd\n4 5 6 10\n:quit\n".into()));
}

#[test]
fn one_key_starts_from_the_start_screen() {
    let mut app = start_app(80, 24);
    press(&mut app, "enter");
    assert!(app.take_effects().contains(&Effect::Start { job: 1, choice: choice() }));
    app.started(1, choice(), Err(crate::base::Error::input("no model; three ways to get one")));
    assert_eq!(app.screen, Screen::Start);
    assert!(screen(&mut app).contains("no model; three ways to get one"));
}

#[test]
fn the_form_changes_task_source_strategy_and_refuses_what_is_wrong() {
    let mut app = start_app(80, 24);
    press(&mut app, "right");
    assert_eq!((app.start.task.as_str(), app.start.strategy.as_str()), ("set-intersection", "tot-dfs"));
    press(&mut app, "left tab tab ctrl-u x enter");
    assert!(screen(&mut app).contains("the size is a whole number, not `x`"));
    assert!(!app.take_effects().iter().any(|e| matches!(e, Effect::Start { .. })));
    press(&mut app, "ctrl-u 9 tab tab down down enter");
    assert_eq!(app.start.strategy, "mine.yaml");
    assert!(screen(&mut app).contains("unknown key `dpeth`"));
    // Its file was mended: the list is read again by itself.
    app.tick(10.0);
    assert!(app.take_effects().contains(&Effect::LoadStrategies { task: "sorting".into() }));
    press(&mut app, "up enter");
    let wanted = Choice { source: Source::Generated { size: 9, seed: 1 }, strategy: "tot-dfs".into(), ..choice() };
    assert!(app.take_effects().iter().any(|e| *e == Effect::Start { job: 1, choice: wanted.clone() }));
}

#[test]
fn late_answers_of_earlier_questions_are_dropped() {
    let mut app = start_app(80, 24);
    let question = app.start.question;
    press(&mut app, "tab tab 9");
    app.preview(question, Ok("old".into()));
    assert!(!screen(&mut app).contains("old"));
    press(&mut app, "enter esc");
    assert!(!app.started(1, choice(), Ok(())), "nobody waits for this start any more");
    assert_eq!(app.screen, Screen::Start);
}

#[test]
fn search_finds_in_growth_order_and_unfolds() {
    let mut app = app_with(80, 24, &small_run());
    press(&mut app, "g right h g left");
    press(&mut app, "/ 3 enter");
    assert_eq!(selected(&app), NodeId(2));
    press(&mut app, "n");
    assert_eq!(selected(&app), NodeId(5));
    press(&mut app, "n n");
    assert_eq!(selected(&app), NodeId(2));
    press(&mut app, "N");
    assert_eq!(selected(&app), NodeId(6));
    press(&mut app, "/ # 4 enter");
    assert_eq!(selected(&app), NodeId(4));
}

#[test]
fn panes_can_be_chosen_zoomed_hidden_and_shown() {
    let mut app = app_with(80, 24, &small_run());
    press(&mut app, "7");
    assert_eq!(app.arrangement().unwrap().panes[0].0, Pane::Log);
    press(&mut app, "7");
    assert_eq!(app.arrangement().unwrap().panes.len(), 5);
    press(&mut app, "3 -");
    assert!(app.arrangement().unwrap().of(Pane::Memory).is_none());
    press(&mut app, "=");
    assert!(app.arrangement().unwrap().of(Pane::Memory).is_some());
    press(&mut app, "1 tab");
    assert_eq!(app.run.as_ref().unwrap().wishes.focus, Pane::Thought);
    press(&mut app, "1 - 2 - 3 - 4 - 5 - 6 - 7 -");
    assert_eq!(app.arrangement().unwrap().panes.len(), 1);
}

#[test]
fn the_mouse_selects_folds_scrolls_and_drags_the_split() {
    let events: Vec<Event> = std::iter::once(started()).chain((1..60).map(|i| grown(i, 0, "x"))).collect();
    let mut app = app_with(80, 24, &events);
    press(&mut app, "g");
    click(&mut app, 10, 5, MouseEventKind::Down(MouseButton::Left));
    assert_eq!(selected(&app), NodeId(3));
    click(&mut app, 10, 2, MouseEventKind::Down(MouseButton::Right));
    assert_eq!(app.run.as_ref().unwrap().tree.rows().len(), 1);
    click(&mut app, 10, 2, MouseEventKind::Down(MouseButton::Right));
    for _ in 0..30 {
        click(&mut app, 10, 5, MouseEventKind::ScrollDown);
    }
    assert!(app.run.as_ref().unwrap().tree.top() > 30);
    let split = app.arrangement().unwrap().split.unwrap();
    click(&mut app, split, 8, MouseEventKind::Down(MouseButton::Left));
    click(&mut app, 30, 8, MouseEventKind::Drag(MouseButton::Left));
    click(&mut app, 30, 8, MouseEventKind::Up(MouseButton::Left));
    assert!((29..=31).contains(&app.arrangement().unwrap().split.unwrap()));
}

#[test]
fn the_selection_follows_the_search_until_it_is_moved() {
    let mut app = app_with(80, 24, &small_run());
    app.settle();
    assert_eq!(selected(&app), NodeId(4));
    press(&mut app, "k");
    let stays = selected(&app);
    app.search_event(&crate::tui::testing::asked(9, 6));
    app.settle();
    assert_eq!(selected(&app), stays);
    press(&mut app, "f");
    assert_eq!(selected(&app), NodeId(6));
    press(&mut app, "f");
    app.search_event(&progress(2.0, 5));
    app.settle();
    assert_eq!(selected(&app), NodeId(5), "the best thought");
    press(&mut app, "f");
    app.search_event(&progress(2.0, 6));
    app.settle();
    assert_eq!(selected(&app), NodeId(5), "it stays");
}

#[test]
fn a_replay_forks_into_a_live_run_from_where_it_is() {
    let mut app = start_app(80, 24);
    app.open_replay(recorded_run());
    press(&mut app, "] ] ] F");
    let fork = Fork { run: "run".into(), events: Some(3), paused: true, choice: choice() };
    assert!(app.take_effects().contains(&Effect::Fork { job: 1, fork }));
    assert!(app.started(1, choice(), Ok(())));
    assert!(app.is_running());
    let mut app = start_app(80, 24);
    app.open_replay(Recording { fork: None, ..recorded_run() });
    press(&mut app, "F");
    assert!(app.message.as_ref().is_some_and(|m| m.text.contains("cannot go on")));
}

#[test]
fn settings_are_shown_and_taken_back_and_the_tree_is_written_where_it_is_asked_for() {
    let limits = Limits { tokens: Some(9), ..Limits::default() };
    let set = |breadth| Event::Settings { breadth, temperature: None, limits };
    let mut app = app_with(200, 50, &small_run());
    app.search_event(&set(Some(5)));
    assert!(screen(&mut app).contains("by hand   breadth"));
    assert_eq!(app.run.as_ref().map(|r| r.state.limits), Some(limits));
    app.search_event(&set(None));
    assert!(!screen(&mut app).contains("by hand   breadth"));
    press(&mut app, "E a . s v g enter");
    assert_eq!(app.take_effects(), [Effect::Export("a.svg".into())]);
    press(&mut app, "E a enter");
    assert!(app.take_effects().is_empty() && screen(&mut app).contains(".svg, .html or .txt"));
}

#[test]
fn the_help_screen_names_every_key_of_the_table() {
    let mut app = app_with(80, 200, &small_run());
    press(&mut app, "?");
    let text = screen(&mut app);
    let keys = KeyMap::new(&[]).unwrap();
    for entry in TABLE.iter().filter(|e| e.group != crate::tui::keys::Group::Replay) {
        assert!(text.contains(entry.about), "{}", entry.name);
        assert!(text.contains(keys.keys(entry.action)), "{}", entry.name);
    }
    assert_eq!(keys.key(Action::Help), "?");
}

#[test]
fn copying_takes_the_text_as_it_is() {
    let mut app = app_with(80, 24, &[started(), grown(1, 0, "♻️ a"), grown(2, 1, "\tb")]);
    press(&mut app, "G y Y");
    assert_eq!(app.take_effects(), [Effect::Copy("\tb".into()), Effect::Copy("♻️ a\tb".into())]);
}

#[test]
fn time_alone_redraws_only_when_something_changes() {
    let mut app = app_with(80, 24, &[started(), progress(1.0, 0)]);
    app.search_event(&Event::Paused);
    app.settle();
    app.dirty = false;
    assert_eq!(app.wake_at(), None, "a paused screen needs no time");
    app.tick(100.0);
    assert!(!app.dirty);
    app.search_event(&crate::tui::testing::counters(1));
    app.dirty = false;
    app.search_event(&crate::tui::testing::counters(2));
    assert_eq!(app.wake_at(), Some(100.25), "counters are shown four times a second at most");
    app.dirty = false;
    app.tick(100.3);
    assert!(app.dirty);
    press(&mut app, "f");
    assert!(app.wake_at().is_some_and(|at| at > 100.3), "the message goes by itself");
}

#[test]
fn the_clock_goes_on_by_itself_and_stands_still_in_a_pause() {
    let mut app = app_with(80, 24, &[started()]);
    let mut at = |now: f64, event: Option<Event>| {
        app.tick(now);
        if let Some(event) = event {
            app.search_event(&event);
        }
        app.run.as_ref().unwrap().state.seconds()
    };
    // Before any step is done.
    assert_eq!((at(0.4, None), at(1.0, None), at(2.9, None)), (0.0, 1.0, 2.0));
    // What the search tells counts; the clock goes on from there.
    assert_eq!(at(3.0, Some(progress(2.75, 0))), 2.75);
    assert_eq!((at(3.9, None), at(5.0, None)), (2.75, 4.75));
    assert_eq!((at(5.5, Some(Event::Paused)), at(60.0, None)), (4.75, 4.75));
    assert_eq!((at(60.0, Some(Event::Resumed)), at(61.1, None)), (4.75, 5.75));
    assert_eq!((at(61.5, Some(ended(false))), at(90.0, None)), (ended_seconds(), ended_seconds()));
    assert!(app.wake_at().is_none_or(|at| at <= 90.0), "nothing ticks after the end");
}

fn ended_seconds() -> f64 {
    let Event::Ended { outcome } = ended(false) else { panic!("an end") };
    outcome.seconds
}

#[test]
fn a_step_keeps_its_line_end_while_it_is_edited_and_added_to() {
    let events = [started(), grown(1, 0, "4 + 4 = 8 (left: 6 8 8)\n"), grown(2, 1, "no end")];
    let text_after = |keys: &str| {
        let mut app = app_with(80, 24, &events);
        press(&mut app, "g j");
        press(&mut app, keys);
        match sent(&mut app).pop() {
            Some(Command::Edit { text, .. } | Command::Add { text, .. }) => text,
            other => panic!("{other:?}"),
        }
    };
    let mut app = app_with(80, 24, &events);
    press(&mut app, "g j e");
    let Some(Popup::Edit { field, .. }) = &app.popup else { panic!("the field is open") };
    assert_eq!((field.line_count(), field.text().as_str()), (1, "4 + 4 = 8 (left: 6 8 8)"));
    assert_eq!(text_after("e enter"), "4 + 4 = 8 (left: 6 8 8)\n");
    assert_eq!(text_after("e x enter"), "4 + 4 = 8 (left: 6 8 8)x\n");
    assert_eq!(text_after("j e x enter"), "no endx");
    // A new thought ends as its neighbours do, or else as the thought it follows.
    assert_eq!(text_after("k a x enter"), "x\n");
    assert_eq!(text_after("a x enter"), "x");
}

#[test]
fn a_typed_puzzle_starts_empty_and_is_taken_as_it_is() {
    let mut app = start_app(80, 24);
    press(&mut app, "tab right");
    assert!(app.start.choice().is_err_and(|why| why.starts_with("type a puzzle")), "nothing is typed yet");
    press(&mut app, "tab 9 space 8 enter");
    let typed = |e: &Effect| matches!(e, Effect::Start { choice, .. } if choice.source == Source::Typed("9 8".into()));
    assert!(app.take_effects().iter().any(typed));
}

#[test]
fn another_task_has_its_own_size_unless_one_was_chosen() {
    let size_after = |keys: &str| {
        let mut app = start_app(80, 24);
        let mut catalog = crate::tui::testing::catalog();
        catalog.tasks[1].default_size = 4;
        app.catalog(catalog);
        press(&mut app, keys);
        (app.start.task.clone(), app.start.size.text())
    };
    assert_eq!(size_after("right"), ("set-intersection".into(), "4".into()));
    assert_eq!(size_after("right right"), ("sorting".into(), "8".into()));
    assert_eq!(size_after("down down 0 up up right"), ("set-intersection".into(), "80".into()));
}

#[test]
fn enter_before_the_lists_are_there_starts_once_they_are() {
    let options = crate::tui::ScreenOptions { seed: 1, ..Default::default() };
    let open = |keys: &str| {
        let mut app = App::new(&options, 80, 24).unwrap();
        app.open(None);
        press(&mut app, keys);
        let error = app.start.error.clone();
        app.take_effects();
        app.catalog(crate::tui::testing::catalog());
        (error, app.take_effects())
    };
    let (error, effects) = open("enter");
    assert!(error.is_some_and(|e| e.contains("lists are still being read")));
    assert!(effects.contains(&Effect::Start { job: 1, choice: choice() }));
    // Another key takes the wish back.
    let (error, effects) = open("enter tab");
    assert_eq!(error, None);
    assert!(effects.iter().all(|e| !matches!(e, Effect::Start { .. })));
}

#[test]
fn what_the_search_answers_to_an_act_is_seen_without_the_log() {
    let note = |text: &str| Event::Note { text: text.into() };
    let mut app = app_with(80, 24, &small_run());
    app.search_event(&note("of itself"));
    assert_eq!(app.message, None);
    app.search_event(&Event::Act { command: Command::Undo });
    app.search_event(&note("there is nothing to undo"));
    assert!(screen(&mut app).contains("there is nothing to undo"));
    press(&mut app, "g x");
    assert!(screen(&mut app).contains("the root is the puzzle itself"), "{}", screen(&mut app));
    assert!(sent(&mut app).is_empty());
}

#[test]
fn a_locale_without_unicode_gets_ascii() {
    let check = |locale, expected| assert_eq!(crate::tui::shows_unicode(locale), expected, "{locale:?}");
    for locale in [None, Some("C.UTF-8"), Some("de_DE.utf8")] {
        check(locale, true);
    }
    for locale in ["C", "POSIX", "de_DE.ISO-8859-1"] {
        check(Some(locale), false);
    }
}

#[test]
fn replay_plays_steps_jumps_and_goes_back_to_the_start_screen() {
    let mut app = start_app(80, 24);
    app.open_replay(recorded_run());
    let position = |app: &App| app.run.as_ref().unwrap().replay.as_ref().unwrap().position();
    press(&mut app, "] ] ]");
    assert_eq!(position(&app), 3);
    press(&mut app, "[ x");
    assert_eq!(position(&app), 2);
    assert!(app.take_effects().iter().all(|e| !matches!(e, Effect::Send(_))));
    press(&mut app, ": e v e n t space 9 9 9 enter");
    assert_eq!(position(&app), small_run().len());
    click(&mut app, 0, 22, MouseEventKind::Down(MouseButton::Left));
    assert_eq!(position(&app), 0);
    press(&mut app, "q");
    assert_eq!(app.screen, Screen::Start);
}

#[test]
fn a_search_that_stops_silently_is_said() {
    let mut app = app_with(80, 24, &small_run());
    app.search_gone();
    assert!(!app.is_running());
    let text = screen(&mut app);
    assert!(text.contains("Not solved") && text.contains("the search stopped without saying why"), "{text}");
}

#[test]
fn a_thoughts_kv_is_shown_by_tier_where_there_are_two() {
    let shown = |here: Option<u32>, keys: &str| {
        let held = HeldKv { tokens: 64, own: 4, here, moving: here.map(|_| 8) };
        let mut app = app_with(80, 24, &small_run());
        app.search_event(&Event::Held { thoughts: (0..=4).map(|id| (NodeId(id), held)).collect() });
        press(&mut app, keys);
        screen(&mut app)
    };
    let two = shown(Some(24), "3 z");
    // A token takes 45 KiB here.
    for line in ["4 own  60 shared  2.81 MiB", "24 tokens  1.05 MiB", "40 tokens  1.76 MiB", "8 tokens  360 KiB"] {
        assert!(two.contains(line), "{line}: {two}");
    }
    let small = shown(Some(24), "3");
    assert!(small.contains("24 on device 40 RAM 8 moving"), "{small}");
    let one = shown(None, "3 z");
    assert!(one.contains("4 own  60 shared") && !one.contains("24 tokens"), "{one}");
    assert!(one.contains("one: all on the device"), "{one}");
}

#[test]
fn the_link_pane_tells_which_transfers_nobody_waited_for() {
    let shown = |waited_seconds: f64| {
        let link = LinkCounters { fetches: 3, fetch_seconds: 4.0, waited_seconds, ..LinkCounters::default() };
        let counters = Counters { link: Some(link), ..Counters::default() };
        let mut app = app_with(80, 24, &[started(), Event::Counters { counters }]);
        press(&mut app, "5");
        screen(&mut app)
    };
    let (hidden, none) = (shown(1.0), shown(4.0));
    assert!(hidden.contains("75.0 %  of 4.00 s of transfers behind compute"), "{hidden}");
    assert!(none.contains("none  4.00 s of copies, all waited for"), "{none}");
}
