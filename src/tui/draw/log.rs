//! The log pane: what happened, the newest at the bottom.

use crate::tui::canvas::Canvas;
use crate::tui::run_screen::RunScreen;
use crate::tui::run_state::LogKind;
use crate::tui::text::display_line;
use ratatui::layout::Rect;
use std::ops::Range;

/// Which lines are seen in a pane of `height` rows.
pub fn shown(run: &RunScreen, height: usize) -> Range<usize> {
    let end = run.state.log.len().saturating_sub(run.log_back).max(height.min(run.state.log.len()));
    end.saturating_sub(height)..end
}

pub fn draw(canvas: &mut Canvas<'_>, run: &RunScreen, area: Rect) {
    let theme = canvas.theme;
    let range = shown(run, usize::from(area.height));
    for (i, line) in run.state.log.range(range).enumerate() {
        let (mark, style) = match line.kind {
            LogKind::Info => (theme.glyphs.dot, theme.dim),
            LogKind::Act => (theme.glyphs.mark, theme.accent),
            LogKind::Good => (theme.glyphs.answer, theme.good),
            LogKind::Bad => (theme.glyphs.pruned, theme.bad),
        };
        let pieces = [(format!("{mark} "), style), (display_line(&line.text), theme.text)];
        canvas.pieces(area.x, area.y + i as u16, area.width, &pieces);
    }
}
