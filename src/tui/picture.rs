//! The screen as SVG, cell by cell: for a manual, a report of a fault, a friend. Lines are drawn as lines, so that borders
//! join whatever font the reader has; every run of text is held to its cells.

use super::text::width;
use crate::search::export::escape;
use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};
use std::fmt::Write;

/// Pixels of a cell, and around the screen.
const CELL: f64 = 8.4;
const ROW: f64 = 18.0;
const EDGE: f64 = 10.0;

const STYLE: &str = "text{font:14px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}path{fill:none}\
.bold{font-weight:bold}.dim{opacity:.6}.italic{font-style:italic}.under{text-decoration:underline}";

/// The sixteen colours as a dark terminal shows them; `None` is its own.
fn rgb(color: Color) -> Option<&'static str> {
    Some(match color {
        Color::Black => "#484f58",
        Color::Red => "#ff7b72",
        Color::Green => "#3fb950",
        Color::Yellow => "#d29922",
        Color::Blue => "#58a6ff",
        Color::Magenta => "#bc8cff",
        Color::Cyan => "#39c5cf",
        Color::Gray => "#b1bac4",
        Color::DarkGray => "#7d8590",
        Color::LightRed => "#ffa198",
        Color::LightGreen => "#56d364",
        Color::LightYellow => "#e3b341",
        Color::LightBlue => "#79c0ff",
        Color::LightMagenta => "#d2a8ff",
        Color::LightCyan => "#56d4dd",
        Color::White => "#f0f6fc",
        _ => return None,
    })
}

const FOREGROUND: &str = "#e6edf3";
const BACKGROUND: &str = "#0d1117";

/// Foreground and background of a cell; reversed ones change places.
fn colours(cell: &Cell) -> (&'static str, Option<&'static str>) {
    let (fg, bg) = (rgb(cell.fg).unwrap_or(FOREGROUND), rgb(cell.bg));
    if cell.modifier.contains(Modifier::REVERSED) { (bg.unwrap_or(BACKGROUND), Some(fg)) } else { (fg, bg) }
}

/// Which edges of its cell a line reaches from the middle: up, down, left, right.
fn line(symbol: &str) -> Option<[bool; 4]> {
    Some(match symbol {
        "│" | "┃" => [true, true, false, false],
        "─" => [false, false, true, true],
        "╭" => [false, true, false, true],
        "╮" => [false, true, true, false],
        "╰" | "└" => [true, false, false, true],
        "╯" => [true, false, true, false],
        "├" => [true, true, false, true],
        _ => return None,
    })
}

/// A picture of the cells.
pub fn svg(buffer: &Buffer, title: &str) -> String {
    let area = buffer.area;
    let (w, h) = (f64::from(area.width) * CELL + 2.0 * EDGE, f64::from(area.height) * ROW + 2.0 * EDGE);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" xml:space=\"preserve\" viewBox=\"0 0 {w:.0} {h:.0}\" width=\"{w:.0}\" height=\"{h:.0}\">\n\
         <title>{}</title>\n<style>{STYLE}</style>\n<rect width=\"{w:.0}\" height=\"{h:.0}\" rx=\"8\" fill=\"{BACKGROUND}\"/>\n",
        escape(title)
    );
    for y in area.top()..area.bottom() {
        let mut x = area.left();
        while x < area.right() {
            let cell = &buffer[(x, y)];
            // A run: cells of one look, lines apart from text.
            let mut run = String::new();
            let start = x;
            while x < area.right() {
                let next = &buffer[(x, y)];
                let alike = (next.fg, next.bg, next.modifier) == (cell.fg, cell.bg, cell.modifier)
                    && line(next.symbol()).is_some() == line(cell.symbol()).is_some();
                if !alike {
                    break;
                }
                run.push_str(next.symbol());
                x += width(next.symbol()).max(1) as u16;
            }
            let place = Place { column: start - area.left(), cells: x - start, row: y - area.top() };
            draw_run(&mut out, cell, &run, place);
        }
    }
    out.push_str("</svg>\n");
    out
}

struct Place {
    column: u16,
    cells: u16,
    row: u16,
}

fn draw_run(out: &mut String, cell: &Cell, run: &str, place: Place) {
    let (fg, bg) = colours(cell);
    let (left, top) = (EDGE + f64::from(place.column) * CELL, EDGE + f64::from(place.row) * ROW);
    let length = f64::from(place.cells) * CELL;
    // Writing to a String cannot fail.
    if let Some(bg) = bg {
        let _ =
            writeln!(out, r#"<rect x="{left:.1}" y="{top:.0}" width="{length:.1}" height="{ROW:.0}" fill="{bg}"/>"#);
    }
    if run.trim().is_empty() {
        return;
    }
    if line(cell.symbol()).is_some() {
        let mut path = String::new();
        for (i, symbol) in run.chars().enumerate() {
            let mut buffer = [0; 4];
            let Some([up, down, to_left, to_right]) = line(symbol.encode_utf8(&mut buffer)) else { continue };
            let (x, y) = (left + (i as f64 + 0.5) * CELL, top + ROW / 2.0);
            for (reaches, dx, dy) in [(up, 0.0, -ROW), (down, 0.0, ROW), (to_left, -CELL, 0.0), (to_right, CELL, 0.0)] {
                if reaches {
                    let _ = write!(path, "M{x:.1} {y:.1}l{:.1} {:.1}", dx / 2.0, dy / 2.0);
                }
            }
        }
        let _ = writeln!(out, r#"<path stroke="{fg}" d="{path}"/>"#);
        return;
    }
    let looks = [
        (Modifier::BOLD, "bold"),
        (Modifier::DIM, "dim"),
        (Modifier::ITALIC, "italic"),
        (Modifier::UNDERLINED, "under"),
    ];
    let looks: Vec<&str> = looks.iter().filter(|(m, _)| cell.modifier.contains(*m)).map(|(_, name)| *name).collect();
    let class = if looks.is_empty() { String::new() } else { format!(r#" class="{}""#, looks.join(" ")) };
    let y = top + 13.5;
    let _ = writeln!(
        out,
        r#"<text x="{left:.1}" y="{y:.1}" textLength="{length:.1}" lengthAdjust="spacingAndGlyphs" fill="{fg}"{class}>{}</text>"#,
        escape(run)
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tui::testing::{app_with, picture, small_run};

    #[test]
    fn a_screen_becomes_runs_of_cells() {
        let mut app = app_with(40, 24, &small_run());
        let (buffer, _) = picture(&mut app);
        let text = svg(&buffer, "a <screen>");
        assert!(text.contains("<title>a &lt;screen&gt;</title>"), "{text}");
        assert!(text.contains(">sort 9 4 5 8 0 7 3 0</text>"), "{text}");
        assert!(!text.contains(['│', '╭']), "lines are drawn");
        assert_eq!(text.matches("<text").count(), text.matches("</text>").count());
        // The selection is reversed: a filled row below its text.
        assert!(text.contains(&format!(r#"fill="{FOREGROUND}"/>"#)), "{text}");
    }
}
