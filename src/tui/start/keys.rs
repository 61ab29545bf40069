//! What keys do to the form of the start screen.

use super::{Line, Outcome, SourceKind, Start};
use crate::tui::field::Field;
use crossterm::event::{KeyCode, KeyEvent};

impl Start {
    pub fn field(&mut self) -> Option<&mut Field> {
        match self.focus {
            Line::Size => Some(&mut self.size),
            Line::Seed => Some(&mut self.seed),
            Line::Text => Some(&mut self.text),
            Line::File => Some(&mut self.file),
            Line::FileId => Some(&mut self.file_id),
            Line::Task | Line::Source | Line::Strategy | Line::Model | Line::Runs => None,
        }
    }

    pub fn key(&mut self, key: &KeyEvent) -> Outcome {
        if std::mem::take(&mut self.haste) {
            self.error = None;
        }
        match key.code {
            KeyCode::Enter => return self.enter(),
            KeyCode::Tab => self.move_focus(1),
            KeyCode::BackTab => self.move_focus(-1),
            KeyCode::Down if !matches!(self.focus, Line::Text) => self.down(1),
            KeyCode::Up if !matches!(self.focus, Line::Text) => self.down(-1),
            _ => return self.other_key(key),
        }
        Outcome::Handled
    }

    pub fn enter(&mut self) -> Outcome {
        if self.focus == Line::Runs {
            return self.runs().get(self.run).map_or(Outcome::Handled, |r| Outcome::Open(r.id.clone()));
        }
        self.error = None;
        if self.catalog.is_none() {
            self.haste = true;
            self.error = Some("the lists are still being read; the tree grows as soon as they are there".into());
            return Outcome::Handled;
        }
        if let Some(bad) = self.strategies().iter().find(|s| s.name == self.strategy).and_then(|s| s.error.as_deref()) {
            self.error = Some(bad.to_string());
            return Outcome::Handled;
        }
        match self.choice() {
            Ok(choice) => Outcome::Start(choice),
            Err(why) => {
                self.error = Some(why);
                Outcome::Handled
            }
        }
    }

    fn other_key(&mut self, key: &KeyEvent) -> Outcome {
        if let Some(field) = self.field() {
            if field.key(key) {
                self.error = None;
                return Outcome::Handled;
            }
            // What a field has no use for (an arrow at its end, a function key) may still mean something else; plain
            // characters never do.
            return if matches!(key.code, KeyCode::Char(_)) && key.modifiers.is_empty() {
                Outcome::Handled
            } else {
                Outcome::Ignored
            };
        }
        match key.code {
            KeyCode::Left | KeyCode::Char('h') => self.change(-1),
            KeyCode::Right | KeyCode::Char('l') => self.change(1),
            KeyCode::Char('j') => self.down(1),
            KeyCode::Char('k') => self.down(-1),
            _ => return Outcome::Ignored,
        }
        Outcome::Handled
    }

    /// Next or previous item of a list; at its end the next line of the form.
    pub fn down(&mut self, by: isize) {
        let moved = match self.focus {
            Line::Strategy => {
                let names: Vec<_> = self.strategies().iter().map(|s| s.name.clone()).collect();
                move_name(&names, &mut self.strategy, by)
            }
            Line::Model => {
                let names: Vec<_> = self.models().iter().map(|m| m.name.clone()).collect();
                move_name(&names, &mut self.model, by)
            }
            Line::Runs => {
                let next = self.run.checked_add_signed(by).filter(|r| *r < self.runs().len());
                self.run = next.unwrap_or(self.run);
                next.is_some()
            }
            _ => false,
        };
        if !moved {
            self.move_focus(by);
        }
    }

    pub fn move_focus(&mut self, by: isize) {
        let lines = self.lines();
        let at = lines.iter().position(|l| *l == self.focus).unwrap_or(0);
        self.focus = lines[(at as isize + by).rem_euclid(lines.len() as isize) as usize];
    }

    /// Left and right: another task, source, size or list item.
    pub fn change(&mut self, by: isize) {
        match self.focus {
            Line::Task => {
                let names: Vec<_> = self.catalog.iter().flat_map(|c| &c.tasks).map(|t| t.name.clone()).collect();
                let size = |start: &Self| start.task_item().map(|t| t.default_size.to_string());
                let before = size(self);
                if move_name_round(&names, &mut self.task, by) {
                    self.strategy.clear();
                    self.fill_in();
                    // A size that nobody chose is the other task's own.
                    if let Some(new) = size(self).filter(|_| before == Some(self.size.text())) {
                        self.size.set(&new);
                    }
                }
            }
            Line::Source => {
                let at = SourceKind::ALL.iter().position(|s| *s == self.source).unwrap_or(0);
                self.source = SourceKind::ALL[(at as isize + by).rem_euclid(3) as usize];
            }
            Line::Strategy | Line::Model | Line::Runs => self.down(by),
            Line::Size | Line::Seed | Line::Text | Line::File | Line::FileId => {}
        }
        self.error = None;
    }
}

fn move_name(names: &[String], chosen: &mut String, by: isize) -> bool {
    let next = match names.iter().position(|n| n == chosen) {
        Some(at) => at.checked_add_signed(by),
        None => Some(0),
    };
    match next.and_then(|at| names.get(at)) {
        Some(name) => {
            chosen.clone_from(name);
            true
        }
        None => false,
    }
}

fn move_name_round(names: &[String], chosen: &mut String, by: isize) -> bool {
    if names.len() < 2 {
        return false;
    }
    let at = names.iter().position(|n| n == chosen).unwrap_or(0);
    chosen.clone_from(&names[(at as isize + by).rem_euclid(names.len() as isize) as usize]);
    true
}
