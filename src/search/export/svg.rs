//! A tree as SVG: one row a thought, lines from parents to children, the best path drawn stronger. Colours follow the
//! reader's light or dark preference; a status is also told by the shape and a word, never by colour alone.

use super::{Page, escape, line, status_line};
use crate::base::text::sanitize_line;
use crate::search::tree::{NodeId, Status};
use std::fmt::Write;
use unicode_width::UnicodeWidthStr;

/// Pixels of a row, of a level's indent, and of a cell of the monospaced font at its size.
const ROW: usize = 20;
const INDENT: usize = 18;
const CELL: f64 = 7.8;
const LEFT: usize = 14;
const BAR: usize = 40;
/// Longer texts are cut in the row; the whole stands in its title, which readers show on hovering.
const TEXT_CELLS: usize = 64;
const WHY_CELLS: usize = 48;

const STYLE: &str = "text{font:13px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#24292f;white-space:pre}\
.t{font-weight:bold}.f,.w,.n{fill:#6e7781}.l{stroke:#afb8c1;fill:none}.b{stroke:#0969da;stroke-width:2;fill:none}\
.s{fill:#eaeef2}.g{fill:#0969da}.open{fill:#fff;stroke:#0969da;stroke-width:1.5}.closed{fill:#6e7781}\
.pruned{stroke:#cf222e;stroke-width:2;fill:none}.pinned{fill:#8250df}.answer{fill:#1a7f37}.page{fill:#fff}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.f,.w,.n{fill:#8d96a0}.l{stroke:#484f58}.b{stroke:#4493f8}\
.s{fill:#30363d}.g{fill:#4493f8}.open{fill:#0d1117;stroke:#4493f8}.closed{fill:#8d96a0}.pruned{stroke:#f85149}\
.pinned{fill:#ab7df8}.answer{fill:#3fb950}.page{fill:#0d1117}}";

pub fn render(page: &Page<'_>) -> String {
    let tree = page.tree;
    let best = page.best_path();
    let mut rows = String::new();
    let mut lines = String::new();
    // Row of each thought, for the lines to its children.
    let mut row_of = vec![0usize; tree.len()];
    let top = 16 + ROW * (page.facts.len() + 1);
    let mut widest = page.facts.iter().map(|f| cells(f)).fold(cells(&page.title), f64::max);
    let mut stack = vec![NodeId::ROOT];
    let mut row = 0;
    while let Some(id) = stack.pop() {
        let node = tree.node(id);
        row_of[id.index()] = row;
        let (x, y) = (LEFT + node.depth * INDENT, top + row * ROW);
        if let Some(parent) = node.parent {
            let (px, py) = (x - INDENT, top + row_of[parent.index()] * ROW + 5);
            let class = if best.contains(&id) { "b" } else { "l" };
            // Writing to a String cannot fail.
            let _ = writeln!(lines, r#"<path class="{class}" d="M{px} {py}V{y}H{}"/>"#, x - 5);
        }
        let strong = if best.contains(&id) { r#" class="t""# } else { "" };
        let _ = write!(rows, "<g><title>#{} {}</title>", id.0, escape(&full(page, id)));
        mark(&mut rows, node.status, x, y);
        let mut at = x + 12;
        if let Some(score) = node.score {
            let share = if score.is_finite() { score.clamp(0.0, 1.0) } else { 0.0 };
            let filled = (share * BAR as f64).round() as usize;
            let (bar_y, fill) = (y - 4, "height=\"8\"");
            let _ = write!(rows, r#"<rect class="s" x="{at}" y="{bar_y}" width="{BAR}" {fill}/>"#);
            let _ = write!(rows, r#"<rect class="g" x="{at}" y="{bar_y}" width="{filled}" {fill}/>"#);
            let _ = write!(rows, r#"<text class="n" x="{}" y="{}">{score:.2}</text>"#, at + BAR + 6, y + 4);
            at += BAR + 6 + (5.0 * CELL) as usize;
        }
        let shown = shorten(&line(page, node), TEXT_CELLS);
        let _ = write!(rows, r#"<text{strong} x="{at}" y="{}">{}</text>"#, y + 4, escape(&shown));
        at += (cells(&shown) + 2.0 * CELL) as usize;
        let why = shorten(&status_line(node), WHY_CELLS);
        if node.parent.is_some() {
            let _ = write!(rows, r#"<text class="w" x="{at}" y="{}">{}</text>"#, y + 4, escape(&why));
        }
        rows.push_str("</g>\n");
        widest = widest.max(at as f64 + cells(&why));
        row += 1;
        stack.extend(node.children.iter().rev());
    }
    let (width, height) = (widest.ceil() as usize + 2 * LEFT, top + row * ROW);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n\
         <title>{}</title>\n<style>{STYLE}</style>\n<rect class=\"page\" width=\"{width}\" height=\"{height}\"/>\n",
        escape(&sanitize_line(&page.title))
    );
    for (i, fact) in page.facts.iter().enumerate() {
        let y = 20 + i * ROW;
        let _ = writeln!(out, r#"<text class="f" x="{LEFT}" y="{y}">{}</text>"#, escape(&sanitize_line(fact)));
    }
    out + &lines + &rows + "</svg>\n"
}

/// A shape for each status.
fn mark(out: &mut String, status: Status, x: usize, y: usize) {
    let _ = match status {
        Status::Open => write!(out, r#"<circle class="open" cx="{x}" cy="{y}" r="4"/>"#),
        Status::Closed => write!(out, r#"<circle class="closed" cx="{x}" cy="{y}" r="3"/>"#),
        Status::Pruned => {
            let (l, r, t, b) = (x - 4, x + 4, y - 4, y + 4);
            write!(out, r#"<path class="pruned" d="M{l} {t}L{r} {b}M{l} {b}L{r} {t}"/>"#)
        }
        Status::Pinned => {
            write!(out, r#"<path class="pinned" d="M{x} {}L{} {y}L{x} {}L{} {y}Z"/>"#, y - 5, x + 5, y + 5, x - 5)
        }
        Status::Answer => write!(out, r#"<rect class="answer" x="{}" y="{}" width="10" height="10"/>"#, x - 5, y - 5),
    };
}

fn full(page: &Page<'_>, id: NodeId) -> String {
    let node = page.tree.node(id);
    format!("{} ({})", line(page, node), status_line(node))
}

fn cells(text: &str) -> f64 {
    text.width() as f64 * CELL
}

/// At most so many cells, cut with a mark.
fn shorten(text: &str, most: usize) -> String {
    if text.width() <= most {
        return text.to_string();
    }
    let mut used = 0;
    let fits = |c: &char| {
        used += unicode_width::UnicodeWidthChar::width(*c).unwrap_or(0);
        used < most
    };
    let mut out: String = text.chars().take_while(fits).collect();
    out.push('…');
    out
}
