//! The few strokes every pane is painted with. Whatever is drawn stays inside its area, at any size down to nothing.

use super::text;
use super::theme::Theme;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

/// A place to paint, with the styles to paint in.
pub struct Canvas<'a> {
    pub buf: &'a mut Buffer,
    pub theme: &'a Theme,
    /// Tree rows that were built for this frame; tests bound it by the height of the pane.
    pub rows_built: usize,
}

/// A styled piece of a line. Its text is already safe to show.
pub type Piece = (String, Style);

impl<'a> Canvas<'a> {
    pub fn new(buf: &'a mut Buffer, theme: &'a Theme) -> Self {
        Self { buf, theme, rows_built: 0 }
    }

    /// Writes `content` from column `x`, at most `cells` wide, cut with a mark; gives the column after it.
    pub fn put(&mut self, x: u16, y: u16, cells: u16, content: &str, style: Style) -> u16 {
        let area = self.buf.area;
        if y < area.top() || y >= area.bottom() || x < area.left() || x >= area.right() {
            return x;
        }
        let cells = cells.min(area.right() - x);
        let cut = text::shorten(content, usize::from(cells), self.theme.glyphs.more);
        self.buf.set_stringn(x, y, cut.as_ref(), usize::from(cells), style).0
    }

    /// Writes pieces one after the other, at most `cells` wide together; gives the column after them.
    pub fn pieces<'p>(&mut self, x: u16, y: u16, cells: u16, pieces: impl IntoIterator<Item = &'p Piece>) -> u16 {
        let end = x.saturating_add(cells);
        let mut at = x;
        for (content, style) in pieces {
            if at >= end {
                break;
            }
            at = self.put(at, y, end - at, content, *style);
        }
        at
    }

    /// Writes so that the text ends at the right edge of the `cells` from `x`.
    pub fn put_right(&mut self, x: u16, y: u16, cells: u16, content: &str, style: Style) {
        let w = text::width(content).min(usize::from(cells)) as u16;
        self.put(x + cells - w, y, w, content, style);
    }

    /// A border with a title on the left and a note on the right; gives what is inside.
    pub fn frame(&mut self, area: Rect, title: &str, note: &str, focused: bool) -> Rect {
        let area = area.intersection(self.buf.area);
        if area.width < 2 || area.height < 2 {
            return Rect::new(area.x, area.y, 0, 0);
        }
        let (style, title_style) = if focused {
            (self.theme.focus, self.theme.focus.patch(self.theme.strong))
        } else {
            (self.theme.border, self.theme.title)
        };
        let set = &self.theme.glyphs.border;
        let (right, bottom) = (area.right() - 1, area.bottom() - 1);
        for x in area.left() + 1..right {
            self.buf[(x, area.top())].set_symbol(set.horizontal_top).set_style(style);
            self.buf[(x, bottom)].set_symbol(set.horizontal_bottom).set_style(style);
        }
        for y in area.top() + 1..bottom {
            self.buf[(area.left(), y)].set_symbol(set.vertical_left).set_style(style);
            self.buf[(right, y)].set_symbol(set.vertical_right).set_style(style);
        }
        for (x, y, symbol) in [
            (area.left(), area.top(), set.top_left),
            (right, area.top(), set.top_right),
            (area.left(), bottom, set.bottom_left),
            (right, bottom, set.bottom_right),
        ] {
            self.buf[(x, y)].set_symbol(symbol).set_style(style);
        }
        let room = area.width.saturating_sub(4);
        let end = if title.is_empty() {
            area.left() + 1
        } else {
            self.put(area.left() + 2, area.top(), room, &format!(" {title} "), title_style)
        };
        let left = right.saturating_sub(end + 1);
        let note_cells = text::width(note) as u16 + 2;
        if !note.is_empty() && note_cells < left {
            self.put(right - 1 - note_cells, area.top(), note_cells, &format!(" {note} "), self.theme.dim);
        }
        Rect::new(area.x + 1, area.y + 1, area.width - 2, area.height - 2)
    }

    /// Empties an area, so that a pop-up covers what is below it.
    pub fn clear(&mut self, area: Rect) {
        let area = area.intersection(self.buf.area);
        for y in area.top()..area.bottom() {
            // A wide character cut by the left edge would lose its second half and push the border aside.
            if area.left() > self.buf.area.left() {
                let before = &mut self.buf[(area.left() - 1, y)];
                if text::width(before.symbol()) > 1 {
                    before.set_symbol(" ");
                }
            }
            for x in area.left()..area.right() {
                self.buf[(x, y)].reset();
            }
        }
    }

    /// A horizontal bar of `cells`, filled to `share` (0 to 1; anything else is clamped).
    pub fn bar(&mut self, x: u16, y: u16, cells: u16, share: f64, style: Style) {
        let content = self.bar_text(cells, share);
        let filled = content.chars().take_while(|c| !self.theme.glyphs.bar_empty.contains(*c)).count();
        let at = content.char_indices().nth(filled).map_or(content.len(), |(i, _)| i);
        let next = self.put(x, y, cells, &content[..at], style);
        self.put(next, y, (x + cells).saturating_sub(next), &content[at..], self.theme.dim);
    }

    pub fn bar_text(&self, cells: u16, share: f64) -> String {
        let g = &self.theme.glyphs;
        let share = if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) };
        let steps = g.bar.len();
        let filled = (share * f64::from(cells) * steps as f64).round() as usize;
        let mut out = g.bar[steps - 1].repeat(filled / steps);
        if !filled.is_multiple_of(steps) {
            out.push_str(g.bar[filled % steps - 1]);
        }
        let used = filled.div_ceil(steps);
        for _ in used..usize::from(cells) {
            out.push_str(g.bar_empty);
        }
        out
    }

    /// A bar in parts that add up to at most 1, each with its own glyph and style.
    pub fn stacked(&mut self, x: u16, y: u16, cells: u16, parts: &[(f64, Style)]) {
        let mut at = 0u16;
        let mut sum = 0.0;
        for (i, (share, style)) in parts.iter().enumerate() {
            sum += if share.is_finite() { share.max(0.0) } else { 0.0 };
            let to = ((sum.min(1.0) * f64::from(cells)).round() as u16).min(cells);
            let glyph = self.theme.glyphs.parts[i.min(3)];
            let style = *style;
            while at < to {
                self.put(x + at, y, 1, glyph, style);
                at += 1;
            }
        }
        let (empty, dim) = (self.theme.glyphs.bar_empty, self.theme.dim);
        while at < cells {
            self.put(x + at, y, 1, empty, dim);
            at += 1;
        }
    }

    /// The newest values as heights, the newest at the right edge. Scaled to the largest shown.
    pub fn spark(&mut self, x: u16, y: u16, cells: u16, values: &[f64], style: Style) {
        let shown = &values[values.len().saturating_sub(usize::from(cells))..];
        let top = shown.iter().copied().filter(|v| v.is_finite()).fold(0.0, f64::max);
        let heights = self.theme.glyphs.spark;
        for (i, &value) in shown.iter().enumerate() {
            let share = if top > 0.0 && value.is_finite() { (value / top).clamp(0.0, 1.0) } else { 0.0 };
            let step = (share * (heights.len() - 1) as f64).round() as usize;
            let column = x + cells - (shown.len() - i) as u16;
            self.put(column, y, 1, heights[step], style);
        }
    }

    /// A scroll bar on a vertical line: which part of `total` rows the `height` shown from `top` are.
    pub fn scroll_bar(&mut self, x: u16, area: Rect, top: usize, total: usize) {
        let height = usize::from(area.height);
        if total <= height || height == 0 {
            return;
        }
        let size = (height * height / total).max(1);
        let at = (top * (height - size)).div_ceil((total - height).max(1)).min(height - size);
        for i in 0..height {
            let (glyph, style) = if (at..at + size).contains(&i) {
                (self.theme.glyphs.thumb, self.theme.focus)
            } else {
                (self.theme.glyphs.track, self.theme.border)
            };
            self.put(x, area.y + i as u16, 1, glyph, style);
        }
    }
}
