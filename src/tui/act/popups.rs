//! Keys while a pop-up is open, and the lines of the palette.

use crate::search::event::{Command, Limits};
use crate::search::tree::NodeId;
use crate::tui::app::{App, Effect};
use crate::tui::keys::{Action, Group, Key};
use crate::tui::palette;
use crate::tui::popup::Popup;
use crate::tui::run_screen::RunScreen;
use crate::tui::text::counted;
use crate::tui::tree_view::Follow;
use crossterm::event::{KeyCode, KeyEvent};

impl App {
    /// A key while a pop-up is open.
    pub fn popup_key(&mut self, event: &KeyEvent, key: Key) {
        let Some(popup) = self.popup.as_mut() else { return };
        match popup {
            Popup::Help { top } | Popup::Compare { top, .. } => match self.keys.action(key, &[Group::Move]) {
                Some(Action::Down) => *top += 1,
                Some(Action::Up) => *top = top.saturating_sub(1),
                Some(Action::HalfDown | Action::PageDown) => *top += 10,
                Some(Action::HalfUp | Action::PageUp) => *top = top.saturating_sub(10),
                Some(Action::Top) => *top = 0,
                Some(Action::Bottom) => *top = usize::MAX / 2,
                _ => self.close_popup(),
            },
            Popup::ConfirmQuit => match key.code {
                // Only this one: text pasted without brackets often holds line breaks.
                KeyCode::Char('y' | 'Y') => self.effect(Effect::Leave),
                KeyCode::Char('n' | 'N') | KeyCode::Esc => self.close_popup(),
                _ => {}
            },
            Popup::Banner => {
                if let Some(action) = self.keys.action(key, &[Group::End, Group::Program]) {
                    self.act(action);
                } else if let Some(action) = self.keys.action(key, self.groups()) {
                    // A move means: let me look.
                    self.close_popup();
                    self.act(action);
                }
            }
            Popup::Palette { .. } => self.palette_key(event),
            Popup::Find { field, from } => match key.code {
                KeyCode::Enter => {
                    let count = self.run.as_ref().map_or(0, |r| r.find.matches.len());
                    let asked_number = field.text().starts_with('#');
                    self.close_popup();
                    if !asked_number {
                        self.say(format!("{} match", counted(count as u64, "thought", "thoughts")));
                    }
                }
                KeyCode::Esc => {
                    let from = *from;
                    if let Some(run) = &mut self.run {
                        run.start_find("", from);
                    }
                    self.close_popup();
                }
                _ => {
                    if field.key(event) {
                        self.field_changed();
                    }
                }
            },
            Popup::Edit { node, field } => {
                let node = *node;
                match key.code {
                    KeyCode::Esc => self.close_popup(),
                    KeyCode::Enter => {
                        let text = field.text();
                        self.close_popup();
                        let text = self.ended_as(node, text);
                        self.command(Command::Edit { node, text });
                    }
                    _ => {
                        field.key(event);
                    }
                }
            }
            Popup::Add { parent, field } => {
                let parent = *parent;
                match key.code {
                    KeyCode::Esc => self.close_popup(),
                    KeyCode::Enter if field.is_empty() => self.say("a thought of your own needs a text"),
                    KeyCode::Enter => {
                        let text = field.text();
                        self.close_popup();
                        let like = self.run.as_ref().and_then(|r| r.state.tree.node(parent).children.first().copied());
                        let text = self.ended_as(like.unwrap_or(parent), text);
                        self.command(Command::Add { parent, text });
                    }
                    _ => {
                        field.key(event);
                    }
                }
            }
        }
    }

    /// Groups whose names the palette offers, and whether those of the end are among them.
    pub fn palette_groups(&self) -> (&'static [Group], bool) {
        let ended = self.run.as_ref().is_some_and(|r| r.replay.is_none() && r.state.outcome.is_some());
        (self.groups(), ended)
    }

    fn palette_key(&mut self, event: &KeyEvent) {
        let (groups, ended) = self.palette_groups();
        let Some(Popup::Palette { field, selected }) = self.popup.as_mut() else { return };
        let offers = palette::offers(&field.text(), groups, ended);
        match event.code {
            KeyCode::Esc => self.close_popup(),
            KeyCode::Down => *selected = (*selected + 1).min(offers.len().saturating_sub(1)),
            KeyCode::Up => *selected = selected.saturating_sub(1),
            KeyCode::Tab => {
                if let Some(offer) = offers.get(*selected) {
                    field.set(&offer.text);
                    *selected = 0;
                }
            }
            KeyCode::Enter => {
                let typed = field.text();
                let line = match palette::parse(&typed, groups, ended) {
                    Ok(line) if *selected == 0 => Ok(line),
                    other => match offers.get(*selected) {
                        // An offer stands for what is typed only where it completes it.
                        Some(o) if o.whole && o.text.contains(typed.trim()) => palette::parse(&o.text, groups, ended),
                        Some(o)
                            if !o.whole && o.text.starts_with(typed.trim_start()) && typed.trim() != o.text.trim() =>
                        {
                            field.set(&o.text);
                            *selected = 0;
                            return;
                        }
                        _ => other,
                    },
                };
                match line {
                    Ok(line) => {
                        self.close_popup();
                        self.palette_line(line);
                    }
                    Err(why) => self.complain(why),
                }
            }
            _ => {
                if field.key(event) {
                    self.field_changed();
                }
            }
        }
    }

    fn palette_line(&mut self, line: palette::Line) {
        let limits = self.run.as_ref().map(|r| r.state.limits).unwrap_or_default();
        match line {
            palette::Line::Do(action) => self.act(action),
            palette::Line::SetBreadth(n) => self.command(Command::SetBreadth { n }),
            palette::Line::SetTemperature(temperature) => self.command(Command::SetTemperature { temperature }),
            palette::Line::SetTokens(tokens) => {
                self.command(Command::SetBudget { limits: Limits { tokens, ..limits } })
            }
            palette::Line::SetThoughts(thoughts) => {
                self.command(Command::SetBudget { limits: Limits { thoughts, ..limits } });
            }
            palette::Line::SetSeconds(seconds) => {
                self.command(Command::SetBudget { limits: Limits { seconds, ..limits } });
            }
            palette::Line::GoTo(number) => {
                let node = NodeId(number);
                match self.run.as_mut() {
                    Some(run) if run.state.tree.get(node).is_some() => {
                        run.tree.follow = Follow::Stay;
                        run.tree.go(&run.state, node);
                    }
                    _ => self.complain(format!("there is no thought {node}")),
                }
            }
            palette::Line::Theme(name) => self.set_theme(name),
            palette::Line::Picture(path) => self.effect(Effect::Picture(path)),
            palette::Line::Export(path) => self.effect(Effect::Export(path)),
            palette::Line::Show(pane) => self.show(pane),
            palette::Line::Hide(pane) => self.hide(pane),
            palette::Line::Second(second) => {
                if let Some(RunScreen { state, replay: Some(replay), .. }) = self.run.as_mut() {
                    replay.jump_to_second(state, second);
                }
            }
            palette::Line::Event(number) => {
                if let Some(RunScreen { state, replay: Some(replay), .. }) = self.run.as_mut() {
                    replay.jump(state, number);
                }
            }
        }
    }
}
