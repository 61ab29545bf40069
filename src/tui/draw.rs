//! The picture: a pure function of the state. Nothing here changes anything, and nothing is built that is not seen.

pub mod log;
mod popup;
pub mod start;
mod stats;
pub mod thought;
mod tree;

use super::app::{App, Screen, Tone};
use super::canvas::Canvas;
use super::keys::{Action, TABLE};
use super::layout::{Pane, arrange, is_too_small};
use super::run_screen::RunScreen;
use super::text::{self, display_line, seconds};
use ratatui::layout::Rect;

/// Paints everything. Gives the number of tree rows that were built for it.
pub fn draw(canvas: &mut Canvas<'_>, app: &App) -> usize {
    let area = canvas.buf.area;
    if is_too_small(area) {
        too_small(canvas, area);
        return 0;
    }
    match &app.screen {
        Screen::Start => start::draw(canvas, app, area),
        Screen::Loading(loading) => start::draw_loading(canvas, app, loading, area),
        Screen::Run => {
            if let Some(run) = &app.run {
                run_screen(canvas, app, run, area);
            }
        }
    }
    popup::draw(canvas, app, area);
    canvas.rows_built
}

fn too_small(canvas: &mut Canvas<'_>, area: Rect) {
    if area.is_empty() {
        return;
    }
    let style = canvas.theme.text;
    let lines = text::wrap("too small", usize::from(area.width));
    let top = area.y + (area.height / 2).saturating_sub(lines.len() as u16 / 2);
    for (i, line) in lines.iter().take(usize::from(area.height)).enumerate() {
        let x = area.x + area.width.saturating_sub(text::width(line) as u16) / 2;
        canvas.put(x, top + i as u16, area.width, line, style);
    }
}

fn run_screen(canvas: &mut Canvas<'_>, app: &App, run: &RunScreen, area: Rect) {
    let arrangement = arrange(area, &run.wishes);
    header(canvas, app, run, arrangement.header);
    for (pane, rect) in &arrangement.panes {
        draw_pane(canvas, run, *pane, *rect);
    }
    if let Some(bar) = arrangement.time_bar {
        time_bar(canvas, run, bar);
    }
    footer(canvas, app, arrangement.footer);
}

fn draw_pane(canvas: &mut Canvas<'_>, run: &RunScreen, pane: Pane, rect: Rect) {
    let title = format!("{} {}", pane.number(), pane.title());
    let focused = run.wishes.focus == pane;
    let note = match pane {
        Pane::Tree => tree::note(run),
        Pane::Thought => run.tree.selected().to_string(),
        Pane::Log if run.log_back > 0 => format!("{} newer", run.log_back),
        _ => String::new(),
    };
    let inner = canvas.frame(rect, &title, &note, focused);
    if inner.is_empty() {
        return;
    }
    match pane {
        Pane::Tree => tree::draw(canvas, run, rect, inner),
        Pane::Thought => thought::draw(canvas, run, rect, inner),
        Pane::Memory => stats::memory(canvas, run, pad(inner)),
        Pane::Speed => stats::speed(canvas, run, pad(inner)),
        Pane::Link => stats::link(canvas, run, pad(inner)),
        Pane::Search => stats::search(canvas, run, pad(inner)),
        Pane::Log => log::draw(canvas, run, pad(inner)),
    }
}

/// One empty column on either side.
pub fn pad(area: Rect) -> Rect {
    Rect { x: area.x + 1.min(area.width), width: area.width.saturating_sub(2), ..area }
}

fn header(canvas: &mut Canvas<'_>, app: &App, run: &RunScreen, area: Rect) {
    let theme = canvas.theme;
    let (badge, style) = badge(app, run);
    let clock = match run.replay {
        Some(_) => String::new(),
        None => seconds(run.state.seconds()),
    };
    let right = format!(" {clock}  {badge} ");
    let right_cells = text::width(&right) as u16;
    let room = area.width.saturating_sub(right_cells);
    let mut pieces = vec![(" Totara ".to_string(), theme.focus.patch(theme.strong))];
    if let Some(replay) = &run.replay {
        pieces.push((format!(" {} ", display_line(&replay.name)), theme.accent));
    }
    if let Some(h) = &run.state.header {
        let dot = theme.glyphs.dot;
        let what = [format!("{} {}", h.task, h.puzzle), h.strategy.clone(), h.model.clone()];
        for (i, word) in what.iter().enumerate() {
            pieces.push((format!(" {dot} "), theme.dim));
            pieces.push((display_line(word), if i == 0 { theme.text } else { theme.dim }));
        }
    }
    canvas.pieces(area.x, area.y, room, &pieces);
    let split = text::width(&clock) as u16 + 2;
    let x = area.right().saturating_sub(right_cells);
    canvas.put(x, area.y, split, &format!(" {clock} "), theme.dim);
    canvas.put(x + split, area.y, right_cells.saturating_sub(split), &format!(" {badge} "), style);
}

/// The state in one word, and its style.
fn badge(app: &App, run: &RunScreen) -> (&'static str, ratatui::style::Style) {
    let theme = &app.theme;
    let strong = theme.strong;
    match (&run.replay, &run.state.outcome) {
        (Some(replay), _) if replay.playing => ("REPLAY", theme.accent.patch(strong)),
        (Some(_), _) => ("REPLAY STOPPED", theme.accent.patch(strong)),
        (None, Some(outcome)) if outcome.solved => ("SOLVED", theme.good.patch(strong)),
        (None, Some(_)) => ("ENDED", theme.bad.patch(strong)),
        // The step that runs is done to its end.
        (None, None) if run.state.paused && !run.state.live.is_empty() => ("PAUSING", theme.warn.patch(strong)),
        (None, None) if run.state.paused => ("PAUSED", theme.warn.patch(strong)),
        (None, None) => ("RUNNING", theme.live.patch(strong)),
    }
}

fn time_bar(canvas: &mut Canvas<'_>, run: &RunScreen, area: Rect) {
    let Some(replay) = &run.replay else { return };
    let theme = canvas.theme;
    let left = format!(" {} / {} ", seconds(replay.seconds()), seconds(replay.total_seconds()));
    let speed = replay.speed();
    let speed = if speed >= 1.0 { format!("{speed:.0}x") } else { format!("1/{:.0}x", 1.0 / speed) };
    let right = format!(" event {} of {}  {speed} ", replay.position(), replay.len());
    let x = canvas.put(area.x, area.y, area.width, &left, theme.dim);
    let cells = area.right().saturating_sub(x).saturating_sub(text::width(&right) as u16);
    if cells >= 4 {
        canvas.bar(x, area.y, cells, replay.share(), theme.accent);
        canvas.put(x + cells, area.y, area.right() - x - cells, &right, theme.dim);
    } else {
        canvas.put(x, area.y, area.right().saturating_sub(x), &right, theme.dim);
    }
}

/// A message while there is one, else what the most useful keys do.
pub fn footer(canvas: &mut Canvas<'_>, app: &App, area: Rect) {
    let theme = canvas.theme;
    if let Some(message) = &app.message {
        let style = match message.tone {
            Tone::Info => theme.accent,
            Tone::Bad => theme.bad.patch(theme.strong),
        };
        canvas.put(area.x, area.y, area.width, &format!(" {}", display_line(&message.text)), style);
        return;
    }
    let groups = app.groups();
    let hint = |action: Action, words: &str| format!("{} {words}", app.keys.key(action));
    // Help and quit are always there; the others as far as there is room.
    let fixed = [(Action::Help, "help"), (Action::Quit, "quit")].map(|(a, w)| hint(a, w));
    let fixed_cells: usize = fixed.iter().map(|f| text::width(f) + 2).sum();
    let mut left = usize::from(area.width).saturating_sub(fixed_cells + 1);
    let mut hints = Vec::new();
    let paused = app.run.as_ref().is_some_and(|r| r.state.paused);
    let running = app.is_running();
    for entry in TABLE.iter().filter(|e| groups.contains(&e.group) && !e.hint.is_empty()) {
        let steer = entry.group == super::keys::Group::Steer;
        if matches!(entry.action, Action::Help | Action::Quit) || (steer && !running) {
            continue;
        }
        let words = if entry.action == Action::Pause && paused { "go on" } else { entry.hint };
        hints.push((steer, hint(entry.action, words)));
    }
    // Steering first: it is what the screen is for.
    hints.sort_by_key(|(steer, _)| !steer);
    if !running && app.run.as_ref().is_some_and(|r| r.replay.is_none() && r.state.outcome.is_some()) {
        hints.insert(0, (true, hint(Action::Banner, "result")));
    }
    if app.screen == Screen::Start {
        hints = ["enter grow the tree", "tab next", "left/right change"].map(|h| (true, h.to_string())).to_vec();
    }
    let mut x = area.x + 1;
    for text in hints
        .into_iter()
        .map(|(_, t)| t)
        .filter(|t| {
            let cells = text::width(t) + 2;
            let fits = cells <= left;
            left = if fits { left - cells } else { 0 };
            fits
        })
        .chain(fixed)
    {
        let (key, words) = text.split_once(' ').unwrap_or((&text, ""));
        let room = area.right().saturating_sub(x);
        x = canvas.put(x, area.y, room, key, theme.focus);
        x = canvas.put(x, area.y, area.right().saturating_sub(x), &format!(" {words}  "), theme.dim);
    }
}
