//! Colours and glyphs. Only the terminal's own sixteen colours are used, and never alone: whatever a colour tells is
//! also told by a glyph, a letter or a number.

use crate::search::tree::Status;
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::border;

/// Which palette to draw with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ThemeName {
    #[default]
    Dark,
    Light,
    /// No colour at all: bold, dim, underline and reverse only. What NO_COLOR asks for.
    None,
}

impl ThemeName {
    pub fn next(self) -> Self {
        match self {
            Self::Dark => Self::Light,
            Self::Light => Self::None,
            Self::None => Self::Dark,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Dark => "dark",
            Self::Light => "light",
            Self::None => "none",
        }
    }
}

impl std::str::FromStr for ThemeName {
    type Err = crate::base::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "dark" => Ok(Self::Dark),
            "light" => Ok(Self::Light),
            "none" => Ok(Self::None),
            _ => Err(crate::base::Error::input(format!("theme `{text}` is not one of light, dark, none"))),
        }
    }
}

/// Styles by what they mean.
#[derive(Debug, Clone)]
pub struct Theme {
    pub text: Style,
    pub dim: Style,
    pub strong: Style,
    pub title: Style,
    pub border: Style,
    pub focus: Style,
    pub selected: Style,
    pub accent: Style,
    pub good: Style,
    pub warn: Style,
    pub bad: Style,
    pub live: Style,
    pub pinned: Style,
    pub glyphs: Glyphs,
}

impl Theme {
    pub fn new(name: ThemeName, ascii: bool) -> Self {
        let plain = Style::new();
        let bold = plain.add_modifier(Modifier::BOLD);
        let fg = |c| plain.fg(c);
        let glyphs = if ascii { Glyphs::ASCII } else { Glyphs::UNICODE };
        let base = Self {
            text: plain,
            dim: plain.add_modifier(Modifier::DIM),
            strong: bold,
            title: bold,
            border: plain,
            focus: bold,
            selected: plain.add_modifier(Modifier::REVERSED),
            accent: bold,
            good: bold,
            warn: plain.add_modifier(Modifier::UNDERLINED),
            bad: plain.add_modifier(Modifier::DIM),
            live: plain.add_modifier(Modifier::ITALIC),
            pinned: bold,
            glyphs,
        };
        match name {
            ThemeName::None => base,
            ThemeName::Dark => Self {
                dim: fg(Color::DarkGray),
                border: fg(Color::DarkGray),
                title: bold,
                focus: fg(Color::Cyan),
                accent: fg(Color::Cyan),
                good: fg(Color::Green),
                warn: fg(Color::Yellow),
                bad: fg(Color::Red),
                live: fg(Color::Magenta),
                pinned: fg(Color::LightBlue),
                ..base
            },
            ThemeName::Light => Self {
                dim: fg(Color::DarkGray),
                border: fg(Color::Gray),
                focus: fg(Color::Blue),
                accent: fg(Color::Blue),
                good: fg(Color::Green),
                warn: fg(Color::Magenta),
                bad: fg(Color::Red),
                live: fg(Color::Cyan),
                pinned: fg(Color::Blue),
                ..base
            },
        }
    }

    /// Glyph, letter and style of a status.
    pub fn status(&self, status: Status) -> (&'static str, &'static str, Style) {
        let g = &self.glyphs;
        match status {
            Status::Open => (g.open, "o", self.accent),
            Status::Closed => (g.closed, "c", self.dim),
            Status::Pruned => (g.pruned, "x", self.bad),
            Status::Pinned => (g.pinned, "P", self.pinned),
            Status::Answer => (g.answer, "A", self.good),
        }
    }

    /// Style of a probability; the number always stands beside it.
    pub fn heat(&self, probability: f64) -> Style {
        match probability {
            p if p >= 0.9 => self.good,
            p if p >= 0.5 => self.accent,
            p if p >= 0.1 => self.warn,
            _ => self.bad,
        }
    }
}

/// The characters that pictures are made of; all are one cell wide.
#[derive(Debug, Clone)]
pub struct Glyphs {
    pub open: &'static str,
    pub closed: &'static str,
    pub pruned: &'static str,
    pub pinned: &'static str,
    pub answer: &'static str,
    pub live: &'static str,
    pub mark: &'static str,
    pub more: &'static str,
    pub left: &'static str,
    pub folded: &'static str,
    pub unfolded: &'static str,
    pub leaf: &'static str,
    pub trunk: &'static str,
    pub tee: &'static str,
    pub elbow: &'static str,
    pub dot: &'static str,
    /// A thought's K/V: kept by itself, and kept by what is below it.
    pub kept: &'static str,
    pub passed: &'static str,
    /// Eighths of a cell, from one to eight; with fewer steps the fill is coarser.
    pub bar: &'static [&'static str],
    pub bar_empty: &'static str,
    /// Heights of a cell for sparklines and histograms, lowest first.
    pub spark: &'static [&'static str],
    /// Parts of a stacked gauge, in order.
    pub parts: [&'static str; 4],
    pub spinner: &'static [&'static str],
    pub border: border::Set<'static>,
    pub thumb: &'static str,
    pub track: &'static str,
}

impl Glyphs {
    pub const UNICODE: Self = Self {
        open: "○",
        closed: "•",
        pruned: "×",
        pinned: "♦",
        answer: "★",
        live: "~",
        mark: "»",
        more: "…",
        left: "‹",
        folded: "▸",
        unfolded: "▾",
        leaf: "─",
        trunk: "│",
        tee: "├",
        elbow: "└",
        dot: "·",
        kept: "■",
        passed: "□",
        bar: &["▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"],
        bar_empty: "·",
        spark: &["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"],
        parts: ["█", "▓", "▒", "░"],
        spinner: &["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"],
        border: border::ROUNDED,
        thumb: "┃",
        track: "│",
    };

    pub const ASCII: Self = Self {
        open: "o",
        closed: ".",
        pruned: "x",
        pinned: "P",
        answer: "*",
        live: "~",
        mark: ">",
        more: "~",
        left: "<",
        folded: "+",
        unfolded: "-",
        leaf: "-",
        trunk: "|",
        tee: "|",
        elbow: "`",
        dot: ".",
        kept: "K",
        passed: "k",
        bar: &["#"],
        bar_empty: ".",
        spark: &["_", ".", "-", "=", "#"],
        parts: ["#", "=", "-", "."],
        spinner: &["|", "/", "-", "\\"],
        border: border::Set {
            top_left: "+",
            top_right: "+",
            bottom_left: "+",
            bottom_right: "+",
            vertical_left: "|",
            vertical_right: "|",
            horizontal_top: "-",
            horizontal_bottom: "-",
        },
        thumb: "#",
        track: "|",
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_glyph_is_one_cell_and_ascii_is_ascii() {
        for (g, ascii) in [(Glyphs::UNICODE, false), (Glyphs::ASCII, true)] {
            let single = [
                g.open,
                g.closed,
                g.pruned,
                g.pinned,
                g.answer,
                g.live,
                g.mark,
                g.more,
                g.left,
                g.folded,
                g.unfolded,
                g.leaf,
                g.trunk,
                g.tee,
                g.elbow,
                g.dot,
                g.kept,
                g.passed,
                g.bar_empty,
                g.thumb,
                g.track,
            ];
            for glyph in single.iter().chain(g.bar).chain(g.spark).chain(&g.parts).chain(g.spinner) {
                assert_eq!(crate::tui::text::width(glyph), 1, "{glyph}");
                assert!(!ascii || glyph.is_ascii(), "{glyph}");
            }
        }
    }

    #[test]
    fn no_colour_means_no_colour() {
        let t = Theme::new(ThemeName::None, false);
        for style in [t.text, t.dim, t.strong, t.border, t.focus, t.selected, t.accent, t.good, t.warn, t.bad, t.live] {
            assert_eq!((style.fg, style.bg), (None, None));
        }
    }
}
