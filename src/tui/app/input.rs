//! What keys, pastes and the mouse do to the state.

use super::{App, Effect, Screen};
use crate::tui::keys::{Action, Group, Key};
use crate::tui::popup::Popup;
use crate::tui::start::Outcome as FormOutcome;
use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind};
use ratatui::layout::Rect;

impl App {
    /// One input of the terminal. Key releases do nothing; a paste goes into a text field or nowhere.
    pub fn input(&mut self, event: &Event) {
        match event {
            Event::Key(key) if key.kind == KeyEventKind::Release => return,
            Event::Key(key) => self.key(key),
            Event::Paste(text) => {
                let field = match (&mut self.popup, &self.screen) {
                    (Some(popup), _) => popup.field(),
                    (None, Screen::Start) => self.start.field(),
                    (None, _) => None,
                };
                match field {
                    Some(field) => {
                        field.paste(text);
                        self.field_changed();
                    }
                    None => self.say("pasted text goes into text fields only"),
                }
            }
            Event::Mouse(mouse) if self.mouse => self.mouse_event(*mouse),
            Event::Resize(width, height) => self.area = Rect::new(0, 0, *width, *height),
            Event::Mouse(_) | Event::FocusGained | Event::FocusLost => return,
        }
        self.dirty = true;
        self.ask_preview();
        // The next input may come before the next picture, and must not meet rows of what is gone.
        self.settle();
    }

    fn key(&mut self, event: &KeyEvent) {
        let key = Key::of(event);
        if key == (Key { code: KeyCode::Char('c'), ctrl: true }) {
            // Twice leaves whatever is open.
            match self.popup {
                Some(Popup::ConfirmQuit) => self.effect(Effect::Leave),
                _ => self.quit(),
            }
            return;
        }
        if let Some(action @ (Action::Suspend | Action::Redraw)) = self.keys.action(key, &[Group::Program]) {
            self.act(action);
            return;
        }
        if self.popup.is_some() {
            self.popup_key(event, key);
            return;
        }
        match &self.screen {
            Screen::Start => self.start_key(event, key),
            Screen::Loading(_) => {
                if key.code == KeyCode::Esc {
                    self.back_to_start();
                } else if self.keys.action(key, &[Group::Program]) == Some(Action::Quit) {
                    self.effect(Effect::Leave);
                }
            }
            Screen::Run => {
                if let Some(action) = self.keys.action(key, self.groups()) {
                    self.act(action);
                } else if key.code == KeyCode::Esc {
                    self.escape();
                }
            }
        }
    }

    /// Escape undoes the newest of: zoom, mark, search.
    fn escape(&mut self) {
        let Some(run) = &mut self.run else { return };
        if run.wishes.zoom.take().is_none() && run.marked.take().is_none() {
            run.find = Default::default();
        }
    }

    fn start_key(&mut self, event: &KeyEvent, key: Key) {
        match self.start.key(event) {
            FormOutcome::Handled => {}
            FormOutcome::Start(choice) => self.begin(choice),
            FormOutcome::Open(id) => self.effect(Effect::OpenRun(id)),
            FormOutcome::Ignored => match self.keys.action(key, &[Group::Program]) {
                Some(action @ (Action::Help | Action::Theme | Action::Quit)) => self.act(action),
                _ if key.code == KeyCode::Esc && self.start.field().is_some() => self.start.move_focus(1),
                _ => {}
            },
        }
    }

    pub fn quit(&mut self) {
        let replay_from_start = self.screen == Screen::Run
            && self.start.catalog.is_some()
            && self.run.as_ref().is_some_and(|r| r.replay.is_some());
        if self.is_running() {
            self.open_popup(Popup::ConfirmQuit);
        } else if replay_from_start {
            // A replay opened from the start screen goes back to it.
            self.run = None;
            self.back_to_start();
        } else {
            self.effect(Effect::Leave);
        }
    }

    /// A text field got new text: what hangs on it follows.
    pub fn field_changed(&mut self) {
        match &mut self.popup {
            Some(Popup::Find { field, from }) => {
                let (text, from) = (field.text(), *from);
                if let Some(run) = &mut self.run {
                    run.start_find(text.trim(), from);
                }
            }
            Some(Popup::Palette { selected, .. }) => *selected = 0,
            _ => {}
        }
    }

    pub(super) fn ask_preview(&mut self) {
        if self.screen == Screen::Start
            && let Some((question, choice)) = self.start.wants_preview()
        {
            self.effect(Effect::Preview { question, choice });
        }
    }
}
