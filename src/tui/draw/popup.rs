//! Pop-ups: help, palette, search, text fields, questions, the banner, the comparison of two thoughts.

use super::pad;
use crate::search::tree::NodeId;
use crate::tui::app::App;
use crate::tui::canvas::{Canvas, Piece};
use crate::tui::field::Field;
use crate::tui::keys::{Action, Group, TABLE};
use crate::tui::palette;
use crate::tui::popup::Popup;
use crate::tui::run_screen::RunScreen;
use crate::tui::text::{counted, display, display_line, grouped, seconds, width, wrap};
use ratatui::layout::Rect;
use ratatui::widgets::Widget;

pub fn draw(canvas: &mut Canvas<'_>, app: &App, area: Rect) {
    let Some(popup) = &app.popup else { return };
    match popup {
        Popup::Help { top } => help(canvas, app, area, *top),
        Popup::Palette { field, selected } => command_palette(canvas, app, area, field, *selected),
        Popup::Find { field, .. } => find(canvas, app, area, field),
        Popup::Edit { node, field } => edit(canvas, app, area, &format!("Edit {node}"), field),
        Popup::Add { parent, field } => edit(canvas, app, area, &format!("Add a thought under {parent}"), field),
        Popup::ConfirmQuit => confirm(canvas, area),
        Popup::Banner => banner(canvas, app, area),
        Popup::Compare { a, b, top } => {
            if let Some(run) = &app.run {
                compare(canvas, run, area, *a, *b, *top);
            }
        }
    }
}

/// A framed box in the middle, at most as large as the screen; gives what is inside.
fn boxed(canvas: &mut Canvas<'_>, area: Rect, width: u16, height: u16, title: &str, note: &str) -> Rect {
    let w = width.min(area.width);
    let h = height.min(area.height.saturating_sub(2)).max(3.min(area.height));
    let rect = Rect::new(area.x + (area.width - w) / 2, area.y + (area.height - h) / 2, w, h);
    canvas.clear(rect);
    canvas.frame(rect, title, note, true)
}

fn lines(canvas: &mut Canvas<'_>, area: Rect, content: &[Vec<Piece>], top: usize) {
    let height = usize::from(area.height);
    let top = top.min(content.len().saturating_sub(height));
    for (i, line) in content.iter().skip(top).take(height).enumerate() {
        canvas.pieces(area.x, area.y + i as u16, area.width, line);
    }
    if content.len() > height && area.right() < canvas.buf.area.right() {
        canvas.scroll_bar(area.right(), area, top, content.len());
    }
}

/// The help screen, made from the key table.
fn help(canvas: &mut Canvas<'_>, app: &App, area: Rect, top: usize) {
    let theme = canvas.theme;
    let in_run = app.run.is_some();
    let groups = app.groups();
    let mut content: Vec<Vec<Piece>> = Vec::new();
    for group in Group::ALL {
        if in_run && !groups.contains(&group) && group != Group::End {
            continue;
        }
        if !content.is_empty() {
            content.push(Vec::new());
        }
        content.push(vec![(group.title().into(), theme.accent.patch(theme.strong))]);
        for entry in TABLE.iter().filter(|e| e.group == group) {
            let keys = app.keys.keys(entry.action);
            content.push(vec![(format!("  {keys:<16} "), theme.focus), (entry.about.to_string(), theme.text)]);
        }
    }
    content.push(Vec::new());
    content.push(vec![("Marks in the tree".into(), theme.accent.patch(theme.strong))]);
    use crate::search::tree::Status;
    for status in [Status::Open, Status::Closed, Status::Pruned, Status::Pinned, Status::Answer] {
        let (glyph, letter, style) = theme.status(status);
        let name = format!("{status:?}").to_lowercase();
        content.push(vec![(format!("  {glyph}{letter}               "), style), (name, theme.text)]);
    }
    content.push(vec![
        (format!("  {}0               ", theme.glyphs.live), theme.live),
        ("a sample that is running, with its number".into(), theme.text),
    ]);
    let height = content.len() as u16 + 2;
    let inner = boxed(canvas, area, 76, height, "Help", "any other key closes");
    lines(canvas, pad(inner), &content, top);
}

fn command_palette(canvas: &mut Canvas<'_>, app: &App, area: Rect, field: &Field, selected: usize) {
    let theme = canvas.theme;
    let (groups, ended) = app.palette_groups();
    let offers = palette::offers(&field.text(), groups, ended);
    let h = (offers.len() as u16 + 3).min(14).min(area.height.saturating_sub(2)).max(4.min(area.height));
    let w = 76.min(area.width);
    let rect = Rect::new(area.x + (area.width - w) / 2, area.bottom().saturating_sub(h + 1).max(area.y), w, h);
    canvas.clear(rect);
    let inner = pad(canvas.frame(rect, "Command", "tab completes, enter runs", true));
    if inner.is_empty() {
        return;
    }
    canvas.put(inner.x, inner.y, 2, ": ", theme.focus);
    input(canvas, Rect { x: inner.x + 2, width: inner.width.saturating_sub(2), height: 1, ..inner }, field);
    let height = usize::from(inner.height.saturating_sub(1));
    let top = (selected + 1).saturating_sub(height);
    for (i, offer) in offers.iter().enumerate().skip(top).take(height) {
        let y = inner.y + 1 + (i - top) as u16;
        let name = format!("{}{}", offer.text, offer.argument);
        let pieces = [(format!("  {name:<24} "), theme.text), (offer.about.to_string(), theme.dim)];
        canvas.pieces(inner.x, y, inner.width, &pieces);
        if i == selected {
            canvas.buf.set_style(Rect { y, height: 1, ..inner }, theme.selected);
        }
    }
}

/// Searching happens in the last line, so that the tree is seen.
fn find(canvas: &mut Canvas<'_>, app: &App, area: Rect, field: &Field) {
    let theme = canvas.theme;
    let row = Rect { y: area.bottom() - 1, height: 1, ..area };
    canvas.clear(row);
    let found = app.run.as_ref().map_or(0, |r| r.find.matches.len());
    let note = if field.is_empty() { String::new() } else { format!(" {} match ", grouped(found as u64)) };
    let note_cells = (width(&note) as u16).min(row.width.saturating_sub(8));
    let x = canvas.put(row.x, row.y, row.width, " find: ", theme.focus);
    let cells = row.right().saturating_sub(x + note_cells);
    input(canvas, Rect { x, width: cells, ..row }, field);
    canvas.put(x + cells, row.y, note_cells, &note, theme.dim);
}

fn edit(canvas: &mut Canvas<'_>, app: &App, area: Rect, title: &str, field: &Field) {
    let height = (field.line_count() as u16 + 5).clamp(7, 16);
    let inner = pad(boxed(canvas, area, 70, height, title, ""));
    if inner.height < 2 {
        input(canvas, inner, field);
        return;
    }
    input(canvas, Rect { height: inner.height - 1, ..inner }, field);
    let hint = "enter takes it  ctrl-j new line  esc leaves it";
    canvas.put(inner.x, inner.bottom() - 1, inner.width, hint, app.theme.dim);
}

/// A text field with its cursor.
pub fn input(canvas: &mut Canvas<'_>, area: Rect, field: &Field) {
    let area = area.intersection(canvas.buf.area);
    if !area.is_empty() {
        field.area().render(area, canvas.buf);
    }
}

fn confirm(canvas: &mut Canvas<'_>, area: Rect) {
    let theme = canvas.theme;
    let inner = pad(boxed(canvas, area, 44, 5, "Leave?", ""));
    let content = [
        vec![("The search is still running.".to_string(), theme.text)],
        Vec::new(),
        vec![
            ("y".to_string(), theme.focus),
            (" leave and end it  ".into(), theme.dim),
            ("n".into(), theme.focus),
            (" stay".into(), theme.dim),
        ],
    ];
    lines(canvas, inner, &content, 0);
}

/// How the run ended, what it cost, and what can be done next.
fn banner(canvas: &mut Canvas<'_>, app: &App, area: Rect) {
    let theme = canvas.theme;
    let Some(run) = &app.run else { return };
    let Some(outcome) = &run.state.outcome else { return };
    let w = 72.min(area.width.saturating_sub(2)).max(10);
    let room = usize::from(w.saturating_sub(4));
    let mut content: Vec<Vec<Piece>> = Vec::new();
    let right = outcome.error_score == Some(0);
    let (word, style) = match (outcome.solved, right) {
        (true, _) => ("right", theme.good),
        (false, true) => ("right by its own check, but not the file's answer", theme.warn),
        (false, false) => ("wrong", theme.bad),
    };
    let mut labelled = |label: &str, text: &str, style| {
        for (i, line) in wrap(text, room.saturating_sub(9)).into_iter().take(4).enumerate() {
            let label = if i == 0 { label } else { "" };
            content.push(vec![(format!("{label:<9}"), theme.dim), (line.to_string(), style)]);
        }
    };
    let answer = match (&outcome.answer, &outcome.answer_text) {
        (Some(value), _) => display_line(&value.to_string()),
        (None, Some(text)) => display(text),
        (None, None) => "none".into(),
    };
    labelled("answer", &answer, theme.strong);
    let why = display_line(&outcome.why);
    // The checkers begin with their verdict themselves.
    let told = why.starts_with("right:") || why.starts_with("wrong:");
    let verdict = if why.is_empty() {
        word.into()
    } else if told {
        why
    } else {
        format!("{word}: {why}")
    };
    labelled("", &verdict, style);
    labelled("ended", &display_line(&outcome.reason.to_string()), theme.text);
    let u = outcome.usage;
    labelled(
        "cost",
        &format!(
            "{} of {}, {} in {}",
            counted(outcome.thoughts, "thought", "thoughts"),
            counted(outcome.proposals, "proposal", "proposals"),
            counted(u.tokens(), "token", "tokens"),
            seconds(outcome.seconds)
        ),
        theme.text,
    );
    labelled(
        "",
        &format!(
            "{} prompt, {} sampled, {} scored; {} without sharing",
            grouped(u.prompt),
            grouped(u.sampled),
            grouped(u.scored),
            grouped(u.logical)
        ),
        theme.dim,
    );
    content.push(Vec::new());
    let live = run.replay.is_none();
    let mut hints: Vec<Piece> = Vec::new();
    let mut used = 0;
    for entry in TABLE.iter().filter(|e| e.group == Group::End && (live || e.action == Action::Look)) {
        let (key, words) = (app.keys.key(entry.action).to_string(), format!(" {}  ", entry.hint));
        let cells = width(&key) + width(&words);
        if used + cells > room && used > 0 {
            content.push(std::mem::take(&mut hints));
            used = 0;
        }
        used += cells;
        hints.extend([(key, theme.focus), (words, theme.dim)]);
    }
    content.push(hints);
    let title = if outcome.solved { "Solved" } else { "Not solved" };
    let inner = pad(boxed(canvas, area, w, content.len() as u16 + 2, title, ""));
    lines(canvas, inner, &content, 0);
}

/// Two thoughts side by side; where the room is narrow, below each other.
fn compare(canvas: &mut Canvas<'_>, run: &RunScreen, area: Rect, a: NodeId, b: NodeId, top: usize) {
    let theme = canvas.theme;
    let title = format!("{a} and {b}");
    let side = |id: NodeId, cells: u16| -> Vec<Vec<Piece>> {
        let tree = &run.state.tree;
        let Some(node) = tree.get(id) else { return Vec::new() };
        let (glyph, letter, style) = theme.status(node.status);
        let score = node.score.map_or("not scored".into(), |s| format!("score {s:.3}"));
        let mut out = vec![
            vec![(format!("{id} "), theme.strong), (format!("{glyph}{letter} "), style), (score, theme.text)],
            vec![(
                node.logprob.map_or("log-probability not known".into(), |l| format!("log-probability {l:.3}")),
                theme.dim,
            )],
        ];
        for part in &node.parts {
            let value = part.value.map_or("invalid".into(), |v| format!("{v:.3}"));
            out.push(vec![(format!("  {} {value}  {}", part.evaluator, display_line(&part.detail)), theme.dim)]);
        }
        let path = tree.path(id);
        let other = tree.path(if id == a { b } else { a });
        let common = path.iter().zip(&other).take_while(|(x, y)| x == y).count();
        out.push(vec![(
            format!("depth {}, {} in common", node.depth, counted(common as u64, "thought", "thoughts")),
            theme.dim,
        )]);
        for (i, step) in path.iter().enumerate() {
            let style = if i < common { theme.dim } else { theme.strong };
            for line in wrap(&display(&tree.node(*step).text), usize::from(cells)) {
                out.push(vec![(line.to_string(), style)]);
            }
        }
        out
    };
    let note = "any other key closes";
    let w = area.width.saturating_sub(4).max(10);
    let half = w.saturating_sub(2) / 2;
    if half >= 20 {
        let cells = half - 3;
        let (left, right) = (side(a, cells), side(b, cells));
        let height = left.len().max(right.len()).min(usize::from(u16::MAX) - 2) as u16 + 2;
        let inner = boxed(canvas, area, w, height, &title, note);
        // Both scroll together, the shorter one stops at its end.
        lines(canvas, Rect { x: inner.x + 1, width: cells, ..inner }, &left, top);
        lines(canvas, Rect { x: inner.x + half + 1, width: cells, ..inner }, &right, top);
    } else {
        let mut both = side(a, w.saturating_sub(2));
        both.push(Vec::new());
        both.extend(side(b, w.saturating_sub(2)));
        let inner = boxed(canvas, area, w, both.len().min(usize::from(u16::MAX) - 2) as u16 + 2, &title, note);
        lines(canvas, inner, &both, top);
    }
}
