//! The tree pane. Only rows in sight are built; each costs its depth.
//!
//! A row: connectors, fold mark, status as glyph and letter, score as number and bar, text, why. Levels far left of the
//! selection are cut off, so that deep trees stay readable in narrow panes.

use crate::search::tree::{NodeId, Status};
use crate::tui::canvas::{Canvas, Piece};
use crate::tui::run_screen::RunScreen;
use crate::tui::text::{self, counted, display_line, shorten_left};
use crate::tui::tree_view::Row;
use ratatui::layout::Rect;
use ratatui::style::Style;
use std::collections::HashSet;

/// What stands at the right of the pane's title.
pub fn note(run: &RunScreen) -> String {
    let thoughts = run.state.tree.len() as u64 - 1;
    let hidden = if run.tree.hide_pruned { ", pruned hidden" } else { "" };
    let follow = if run.tree.follow && run.is_running() { ", following" } else { "" };
    format!("{}{hidden}{follow}", counted(thoughts, "thought", "thoughts"))
}

/// What all rows of one picture have in common.
struct Look {
    /// Thoughts from the root to the best one.
    best: HashSet<NodeId>,
    /// Thoughts with running samples.
    busy: HashSet<NodeId>,
    /// Levels cut off at the left.
    cut: usize,
    width: u16,
}

pub fn draw(canvas: &mut Canvas<'_>, run: &RunScreen, frame: Rect, inner: Rect) {
    let view = &run.tree;
    let rows = view.rows();
    let height = usize::from(inner.height);
    let selected_depth = run.state.tree.node(view.selected()).depth;
    let levels = usize::from(inner.width) * 2 / 5 / 2;
    let look = Look {
        best: run.state.best().map(|b| run.state.tree.path(b).into_iter().collect()).unwrap_or_default(),
        busy: run.state.live.iter().map(|l| l.node).collect(),
        cut: (selected_depth + 1).saturating_sub(levels.max(3)),
        width: inner.width,
    };
    for (i, row) in rows.iter().enumerate().skip(view.top()).take(height) {
        let y = inner.y + (i - view.top()) as u16;
        canvas.rows_built += 1;
        let pieces = match row {
            Row::Thought(id) => thought_row(canvas, run, &look, *id),
            Row::Live(live) => live_row(canvas, run, &look, *live as usize),
        };
        let end = canvas.pieces(inner.x, y, inner.width, &pieces);
        if let Row::Thought(id) = row {
            let number = id.to_string();
            let cells = number.len() as u16;
            if inner.width >= 34 && end + cells < inner.right() {
                canvas.put_right(inner.x, y, inner.width, &number, canvas.theme.dim);
            }
        }
        if i == view.selected_row() {
            let style = canvas.theme.selected;
            canvas.buf.set_style(Rect { y, height: 1, ..inner }, style);
        }
    }
    canvas.scroll_bar(frame.right() - 1, inner, view.top(), rows.len());
}

fn thought_row(canvas: &Canvas<'_>, run: &RunScreen, look: &Look, id: NodeId) -> Vec<Piece> {
    let (theme, g) = (canvas.theme, &canvas.theme.glyphs);
    let node = run.state.tree.node(id);
    let (glyph, letter, style) = theme.status(node.status);
    let mut pieces = connectors(canvas, run, look, id, node.depth);
    let fold = if run.marked == Some(id) {
        (g.mark, theme.accent.patch(theme.strong))
    } else if node.children.is_empty() && !look.busy.contains(&id) {
        (g.leaf, theme.border)
    } else if run.tree.is_folded(id) {
        (g.folded, theme.accent)
    } else {
        (g.unfolded, theme.border)
    };
    pieces.push((fold.0.into(), fold.1));
    pieces.push((format!("{glyph}{letter} "), style));
    if node.parent.is_none() {
        let title =
            run.state.header.as_ref().map_or_else(|| "waiting for the search".into(), |h| display_line(&h.title));
        pieces.push((title, theme.strong));
        return with_count(pieces, run, id, theme.dim);
    }
    match node.score {
        Some(score) => {
            pieces.push((format!("{score:.2} "), theme.text));
            if look.width >= 36 {
                let bar = canvas.bar_text(4, score);
                pieces.push((format!("{bar} "), if node.status == Status::Pruned { theme.dim } else { style }));
            }
        }
        None => pieces.push(("  -  ".to_string() + if look.width >= 36 { "     " } else { "" }, theme.dim)),
    }
    let on_best = look.best.contains(&id);
    let text_style = match node.status {
        _ if on_best => theme.strong,
        Status::Pruned => theme.dim,
        _ => theme.text,
    };
    // Leading spaces are the thought's own, but here they would only push it to the right.
    let content = display_line(node.text.trim());
    pieces.push((if content.is_empty() { "(empty)".into() } else { content }, text_style));
    let pieces = with_count(pieces, run, id, theme.dim);
    match node.why.as_deref().filter(|w| !w.is_empty()) {
        Some(why) => {
            let mut pieces = pieces;
            pieces.push((format!("  {}", display_line(why)), theme.dim));
            pieces
        }
        None => pieces,
    }
}

fn with_count(mut pieces: Vec<Piece>, run: &RunScreen, id: NodeId, style: Style) -> Vec<Piece> {
    let children = run.state.tree.node(id).children.len();
    if run.tree.is_folded(id) && children > 0 {
        pieces.push((format!(" (+{children})"), style));
    }
    pieces
}

fn live_row(canvas: &Canvas<'_>, run: &RunScreen, look: &Look, index: usize) -> Vec<Piece> {
    let (theme, g) = (canvas.theme, &canvas.theme.glyphs);
    let Some(live) = run.state.live.get(index) else { return Vec::new() };
    let depth = run.state.tree.node(live.node).depth + 1;
    let mut pieces = ancestors(canvas, run, look, live.node, depth);
    let last = run.state.live.iter().rposition(|l| l.node == live.node) == Some(index);
    push_own(canvas, look, depth, last, &mut pieces);
    let label = format!("{}{} ", g.live, live.sample);
    let used: usize = pieces.iter().map(|p| text::width(&p.0)).sum::<usize>() + text::width(&label);
    pieces.push((label, theme.live.patch(theme.strong)));
    // The newest tokens are the interesting ones.
    let content = display_line(&live.text);
    let room = usize::from(look.width).saturating_sub(used);
    pieces.push((shorten_left(&content, room, g.more).into_owned(), theme.live));
    pieces
}

/// Everything left of a thought's own glyphs.
fn connectors(canvas: &Canvas<'_>, run: &RunScreen, look: &Look, id: NodeId, depth: usize) -> Vec<Piece> {
    let Some(parent) = run.state.tree.node(id).parent else { return Vec::new() };
    let mut pieces = ancestors(canvas, run, look, parent, depth);
    push_own(canvas, look, depth, is_last(run, look, parent, id), &mut pieces);
    pieces
}

fn push_own(canvas: &Canvas<'_>, look: &Look, depth: usize, last: bool, pieces: &mut Vec<Piece>) {
    let (theme, g) = (canvas.theme, &canvas.theme.glyphs);
    if depth > look.cut {
        pieces.push((if last { g.elbow } else { g.tee }.into(), theme.border));
    }
}

/// The trunks of the levels between the cut and a row at `depth` below `parent`.
fn ancestors(canvas: &Canvas<'_>, run: &RunScreen, look: &Look, parent: NodeId, depth: usize) -> Vec<Piece> {
    let (theme, g) = (canvas.theme, &canvas.theme.glyphs);
    let mut trunks = Vec::new();
    let mut at = parent;
    // Level of `at`, from depth - 1 up to the cut.
    let mut level = depth - 1;
    while let Some(above) = run.state.tree.node(at).parent {
        if level <= look.cut {
            break;
        }
        trunks.push(if is_last(run, look, above, at) { "  ".to_string() } else { format!("{} ", g.trunk) });
        at = above;
        level -= 1;
    }
    trunks.reverse();
    let mut out = String::new();
    if look.cut > 0 {
        out.push_str(g.left);
        out.push(' ');
    } else if depth > 0 {
        out.push(' ');
    }
    out.extend(trunks);
    // A row much deeper than the selection keeps room for its text.
    let most = usize::from(look.width) * 3 / 5;
    vec![(text::shorten(&out, most, g.more).into_owned(), theme.border)]
}

/// Whether nothing in sight follows a child under its parent.
fn is_last(run: &RunScreen, look: &Look, parent: NodeId, child: NodeId) -> bool {
    if look.busy.contains(&parent) {
        return false;
    }
    let tree = &run.state.tree;
    let seen = |id: &&NodeId| !run.tree.hide_pruned || tree.node(**id).status != Status::Pruned;
    tree.node(parent).children.iter().rev().find(seen) == Some(&child)
}
