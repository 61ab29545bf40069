//! A text field. A paste is one edit and never an Enter; keys that mean something to the screen are taken before.

use crate::base::text::sanitize;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Style;
use ratatui_textarea::{CursorMove, TextArea, WrapMode};

/// More than this is not taken from one paste.
const PASTE_BYTES: usize = 64 << 10;

#[derive(Clone)]
pub struct Field {
    area: TextArea<'static>,
    lines: bool,
}

impl Field {
    /// One line; pasted line breaks become spaces.
    pub fn line(text: &str) -> Self {
        Self::new(text, false)
    }

    /// Several lines: Ctrl-J makes a new one.
    pub fn lines(text: &str) -> Self {
        Self::new(text, true)
    }

    fn new(text: &str, lines: bool) -> Self {
        let clean = clean(text, lines);
        let mut area = TextArea::new(clean.split('\n').map(str::to_string).collect());
        area.set_cursor_line_style(Style::new());
        area.move_cursor(CursorMove::Bottom);
        area.move_cursor(CursorMove::End);
        area.set_wrap_mode(if lines { WrapMode::WordOrGlyph } else { WrapMode::None });
        Self { area, lines }
    }

    pub fn text(&self) -> String {
        self.area.lines().join("\n")
    }

    pub fn set(&mut self, text: &str) {
        *self = Self::new(text, self.lines);
    }

    pub fn is_empty(&self) -> bool {
        self.area.is_empty()
    }

    pub fn line_count(&self) -> usize {
        self.area.lines().len()
    }

    pub fn area(&self) -> &TextArea<'static> {
        &self.area
    }

    /// Takes a key; true where the text changed. Enter is left to the caller.
    pub fn key(&mut self, key: &KeyEvent) -> bool {
        match (key.code, key.modifiers.contains(KeyModifiers::CONTROL)) {
            (KeyCode::Enter, _) | (KeyCode::Char('m'), true) => false,
            (KeyCode::Char('j'), true) => {
                if self.lines {
                    self.area.insert_newline();
                }
                self.lines
            }
            // Ctrl-U empties the line, as in a shell.
            (KeyCode::Char('u'), true) => self.area.delete_line_by_head(),
            (KeyCode::Tab | KeyCode::BackTab, _) => false,
            _ => self.area.input(*key),
        }
    }

    pub fn paste(&mut self, text: &str) -> bool {
        let end = (0..=PASTE_BYTES.min(text.len())).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
        self.area.insert_str(clean(&text[..end], self.lines))
    }
}

fn clean(text: &str, lines: bool) -> String {
    let text = sanitize(&text.replace("\r\n", "\n").replace('\r', "\n")).into_owned();
    if lines { text } else { text.trim_end_matches('\n').replace('\n', " ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paste_is_one_edit_and_controls_stay_out() {
        let mut line = Field::line("a");
        assert!(line.paste("q\r\nd\n4 5\x1b[31m6\n"));
        assert_eq!(line.text(), "aq d 4 56");
        let mut lines = Field::lines("");
        lines.paste("q\nd\n");
        assert_eq!(lines.text(), "q\nd\n");
        lines.key(&KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE));
        assert_eq!(lines.text(), "q\nd\n");
        lines.paste(&"中".repeat(PASTE_BYTES));
        assert!(lines.text().len() <= PASTE_BYTES + 4);
    }
}
