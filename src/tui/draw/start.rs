//! The start screen: a form whose every line has a sensible value already, so that Enter is enough.

use super::{footer, pad, popup};
use crate::base::size::Human;
use crate::tui::Source;
use crate::tui::app::{App, Loading};
use crate::tui::canvas::Canvas;
use crate::tui::start::{Line, Start};
use crate::tui::text::{self, display, display_line, wrap};
use ratatui::layout::Rect;

const LABEL: u16 = 10;

/// One row of the form.
#[derive(Debug, Clone, PartialEq)]
enum Row {
    Gap,
    Choice(Line),
    Field(Line),
    Item(Line, usize),
    Preview,
}

/// Where a line of the form, or an item of one of its lists, stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Place {
    pub area: Rect,
    pub line: Line,
    pub item: Option<usize>,
}

fn rows(start: &Start) -> Vec<(Row, u16)> {
    let mut rows = Vec::new();
    for line in start.lines() {
        match line {
            Line::Task | Line::Source => rows.push((Row::Choice(line), 1)),
            Line::Text => rows.push((Row::Field(line), 3)),
            Line::Size | Line::Seed | Line::File | Line::FileId => rows.push((Row::Field(line), 1)),
            Line::Strategy | Line::Model | Line::Runs => {
                rows.push((Row::Gap, 1));
                let count = match line {
                    Line::Strategy => start.strategies().len(),
                    Line::Model => start.models().len(),
                    _ => start.runs().len(),
                };
                if count == 0 {
                    rows.push((Row::Choice(line), 1));
                }
                rows.extend((0..count).map(|i| (Row::Item(line, i), 1)));
            }
        }
        if matches!(line, Line::Seed | Line::Text | Line::FileId) {
            rows.push((Row::Preview, 2));
        }
    }
    rows
}

/// Whether a row is where the focus is.
fn has_focus(start: &Start, row: &Row) -> bool {
    match row {
        Row::Choice(line) | Row::Field(line) => start.focus == *line,
        Row::Item(line, i) => start.focus == *line && chosen(start, *line) == Some(*i),
        Row::Gap | Row::Preview => false,
    }
}

fn chosen(start: &Start, line: Line) -> Option<usize> {
    match line {
        Line::Strategy => start.strategies().iter().position(|s| s.name == start.strategy),
        Line::Model => start.models().iter().position(|m| m.name == start.model),
        Line::Runs => Some(start.run),
        _ => None,
    }
}

/// The rows in sight with their areas: the one with the focus is always among them.
fn layout(start: &Start, area: Rect) -> Vec<(Row, Rect)> {
    let form = form_area(start, area);
    let rows = rows(start);
    let mut focus_end = 0;
    let mut total = 0u16;
    for (row, height) in &rows {
        total += height;
        if has_focus(start, row) {
            focus_end = total;
        }
    }
    // The row after the focus stays in sight too, so that lists show that they go on.
    let scroll = (focus_end + 1).min(total).saturating_sub(form.height);
    let mut y = 0u16;
    let mut out = Vec::new();
    for (row, height) in rows {
        if y >= scroll && y + height <= scroll + form.height {
            out.push((row, Rect { y: form.y + y - scroll, height, ..form }));
        }
        y += height;
    }
    out
}

fn form_area(start: &Start, area: Rect) -> Rect {
    let inner = Rect {
        x: area.x + 2.min(area.width),
        y: area.y + 2,
        width: area.width.saturating_sub(4).min(100),
        height: area.height.saturating_sub(4),
    };
    Rect { height: inner.height.saturating_sub(error_lines(start, inner).len() as u16), ..inner }
}

fn error_lines(start: &Start, inner: Rect) -> Vec<String> {
    let Some(error) = &start.error else { return Vec::new() };
    let most = usize::from(inner.height / 2);
    wrap(&display(error), usize::from(inner.width)).into_iter().take(most).map(str::to_string).collect()
}

/// What a click finds.
pub fn places(start: &Start, area: Rect) -> Vec<Place> {
    let place = |(row, area): (Row, Rect)| match row {
        Row::Choice(line) | Row::Field(line) => Some(Place { area, line, item: None }),
        Row::Item(line, i) => Some(Place { area, line, item: Some(i) }),
        Row::Gap | Row::Preview => None,
    };
    if crate::tui::layout::is_too_small(area) {
        return Vec::new();
    }
    layout(start, area).into_iter().filter_map(place).collect()
}

pub fn draw(canvas: &mut Canvas<'_>, app: &App, area: Rect) {
    let theme = canvas.theme;
    let start = &app.start;
    canvas.frame(Rect { height: area.height - 1, ..area }, "Totara", "tree search on a local Llama model", true);
    if start.catalog.is_none() {
        canvas.put(area.x + 2, area.y + 2, area.width.saturating_sub(4), "reading the lists", theme.dim);
    } else {
        for (row, rect) in layout(start, area) {
            draw_row(canvas, start, &row, rect);
        }
        let form = form_area(start, area);
        let inner = Rect { height: area.height.saturating_sub(4), y: area.y + 2, ..form };
        for (i, line) in error_lines(start, inner).iter().enumerate() {
            canvas.put(form.x, form.bottom() + i as u16, form.width, line, theme.bad);
        }
    }
    footer(canvas, app, Rect { y: area.bottom() - 1, height: 1, ..area });
}

fn draw_row(canvas: &mut Canvas<'_>, start: &Start, row: &Row, area: Rect) {
    let theme = canvas.theme;
    let focused = has_focus(start, row);
    let label = |canvas: &mut Canvas<'_>, text: &str, on: bool| {
        let style = if on { theme.focus.patch(theme.strong) } else { theme.dim };
        canvas.put(area.x, area.y, LABEL.min(area.width), text, style);
    };
    let x = area.x + LABEL;
    let cells = area.width.saturating_sub(LABEL);
    match row {
        Row::Gap => {}
        Row::Choice(line) => {
            let (name, value, about) = match line {
                Line::Task => {
                    let about = start.task_item().map(|t| display_line(&t.about)).unwrap_or_default();
                    ("Task", start.task.clone(), about)
                }
                Line::Source => ("Puzzle", start.source.name().to_string(), String::new()),
                Line::Strategy => ("Strategy", start.strategy.clone(), "no other is known for this task".into()),
                Line::Model => ("Model", start.model.clone(), "no other is known".into()),
                _ => ("Runs", String::new(), String::new()),
            };
            label(canvas, name, focused);
            let value = if focused { format!("< {value} >") } else { format!("  {value}  ") };
            let style = if focused { theme.focus.patch(theme.strong) } else { theme.strong };
            canvas.pieces(x, area.y, cells, &[(value, style), (format!("  {about}"), theme.dim)]);
        }
        Row::Field(line) => {
            let (name, field) = match line {
                Line::Size => ("  size", &start.size),
                Line::Seed => ("  seed", &start.seed),
                Line::Text => ("  text", &start.text),
                Line::File => ("  file", &start.file),
                _ => ("  id", &start.file_id),
            };
            label(canvas, name, focused);
            let rect = Rect { x: x + 2, width: cells.saturating_sub(2), ..area };
            if focused {
                popup::input(canvas, rect, field);
            } else {
                let shown = display(&field.text());
                let none = if *line == Line::FileId { "the first" } else { "" };
                let (shown, style) = if shown.is_empty() { (none, theme.dim) } else { (shown.as_str(), theme.strong) };
                for (i, line) in wrap(shown, usize::from(rect.width)).into_iter().take(rect.height.into()).enumerate() {
                    canvas.put(rect.x, rect.y + i as u16, rect.width, line, style);
                }
            }
        }
        Row::Item(line, i) => item(canvas, start, *line, *i, area, focused),
        Row::Preview => {
            let (content, style) = match &start.preview {
                Some(Ok(title)) => (display_line(title), theme.text),
                Some(Err(why)) => (display_line(why), theme.bad),
                None => (String::new(), theme.dim),
            };
            let rect = Rect { x: x + 2, width: cells.saturating_sub(2), ..area };
            for (i, line) in wrap(&content, usize::from(rect.width.max(1))).into_iter().take(2).enumerate() {
                canvas.put(rect.x, rect.y + i as u16, rect.width, line, style);
            }
        }
    }
}

fn item(canvas: &mut Canvas<'_>, start: &Start, line: Line, index: usize, area: Rect, focused: bool) {
    let theme = canvas.theme;
    let (title, name, note, bad) = match line {
        Line::Strategy => {
            let Some(s) = start.strategies().get(index) else { return };
            ("Strategy", &s.name, display_line(&s.about), s.error.as_deref())
        }
        Line::Model => {
            let Some(m) = start.models().get(index) else { return };
            let size = m.bytes.map(|b| format!("{}  ", Human(b))).unwrap_or_default();
            ("Model", &m.name, format!("{size}{}", display_line(&m.note)), m.error.as_deref())
        }
        _ => {
            let Some(r) = start.runs().get(index) else { return };
            ("Last runs", &r.id, display_line(&r.about), None)
        }
    };
    let on = start.focus == line;
    if index == 0 {
        let style = if on { theme.focus.patch(theme.strong) } else { theme.dim };
        canvas.put(area.x, area.y, LABEL.min(area.width), title, style);
    }
    let x = area.x + LABEL;
    let cells = area.width.saturating_sub(LABEL);
    let is_chosen = chosen(start, line) == Some(index) && (line != Line::Runs || on);
    let mark = if is_chosen { theme.glyphs.mark } else { " " };
    let style = match (is_chosen, bad) {
        (true, _) if focused => theme.focus.patch(theme.strong),
        (true, _) => theme.strong,
        (false, Some(_)) => theme.bad,
        (false, None) => theme.text,
    };
    let name = display_line(name);
    let column = 22.min(usize::from(cells) / 2);
    // The end of a path tells more than its beginning.
    let cut = if name.contains('/') { text::shorten_left } else { text::shorten };
    let shown = cut(&name, column, theme.glyphs.more);
    let gap = " ".repeat((column + 2).saturating_sub(text::width(&shown)));
    let after = match bad {
        Some(error) => (format!("{} {}", theme.glyphs.pruned, display_line(error)), theme.bad),
        None => (note, theme.dim),
    };
    canvas.pieces(x, area.y, cells, &[(format!("{mark} "), theme.focus), (format!("{shown}{gap}"), style), after]);
}

/// The wait for a model.
pub fn draw_loading(canvas: &mut Canvas<'_>, app: &App, loading: &Loading, area: Rect) {
    let theme = canvas.theme;
    let inner = pad(canvas.frame(Rect { height: area.height - 1, ..area }, "Totara", "", true));
    let choice = &loading.choice;
    let puzzle = match &choice.source {
        Source::Generated { size, seed } => format!("size {size}, seed {seed}"),
        Source::Typed(text) => display_line(text),
        Source::File { path, id } => display_line(&format!("{} {}", path.display(), id.as_deref().unwrap_or(""))),
    };
    let spinner = theme.glyphs.spinner[app.spin() % theme.glyphs.spinner.len()];
    let top = inner.y + inner.height / 3;
    let rows = [
        vec![(format!("{} {}", choice.task, puzzle), theme.strong)],
        vec![(format!("{} on {}", choice.strategy, display_line(&choice.model)), theme.dim)],
        vec![],
        vec![(format!("{spinner} "), theme.live), (display_line(&loading.text), theme.text)],
    ];
    for (i, row) in rows.iter().enumerate() {
        if top + (i as u16) < inner.bottom() {
            canvas.pieces(inner.x, top + i as u16, inner.width, row);
        }
    }
    if let Some(share) = loading.share
        && top + 4 < inner.bottom()
    {
        let cells = inner.width.min(50);
        canvas.bar(inner.x, top + 4, cells.saturating_sub(6), share, theme.accent);
        canvas.put_right(inner.x, top + 4, cells, &format!("{:.0} %", share * 100.0), theme.text);
    }
    let hints = Rect { y: area.bottom() - 1, height: 1, ..area };
    let key = app.keys.key(crate::tui::keys::Action::Quit);
    canvas.pieces(
        hints.x + 1,
        hints.y,
        hints.width.saturating_sub(1),
        &[
            ("esc".into(), theme.focus),
            (" back  ".into(), theme.dim),
            (key.to_string(), theme.focus),
            (" quit".into(), theme.dim),
        ],
    );
}
