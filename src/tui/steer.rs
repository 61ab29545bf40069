//! What each action does: moves, panes, steering, pop-ups.

use super::app::{App, Effect};
use super::field::Field;
use super::keys::{Action, Group, Key};
use super::layout::{Pane, arrange, is_too_small};
use super::palette;
use super::popup::Popup;
use super::run_screen::RunScreen;
use super::text::counted;
use crate::search::event::{Command, Limits};
use crate::search::tree::{NodeId, Status};
use crossterm::event::{KeyCode, KeyEvent};

impl App {
    /// Does one action. Whatever cannot be done now says why.
    pub fn act(&mut self, action: Action) {
        match action {
            Action::Help => self.open_popup(Popup::Help { top: 0 }),
            Action::Theme => self.set_theme(self.theme_name.next()),
            Action::Redraw => self.effect(Effect::Redraw),
            Action::Suspend => self.effect(Effect::Suspend),
            Action::Quit => self.quit(),
            _ => self.act_on_run(action),
        }
    }

    fn act_on_run(&mut self, action: Action) {
        let groups = self.groups();
        let Some(run) = self.run.as_mut() else { return };
        let selected = run.tree.selected();
        match action {
            Action::Palette => self.popup = Some(Popup::Palette { field: Field::line(""), selected: 0 }),
            Action::Find => self.popup = Some(Popup::Find { field: Field::line(""), from: selected }),
            Action::FindNext | Action::FindPrevious => {
                if !run.find_again(action == Action::FindNext) {
                    let what = if run.find.text.is_empty() { "nothing searched for yet" } else { "no match" };
                    self.say(format!("{what} ({} searches)", self.keys.key(Action::Find)));
                }
            }
            Action::Best => match run.state.best() {
                Some(best) => {
                    run.tree.follow = false;
                    run.tree.go(&run.state, best);
                    run.wishes.focus = Pane::Tree;
                }
                None => self.say("no thought is scored yet"),
            },
            Action::Mark => self.mark(),
            Action::Follow => {
                run.tree.follow = !run.tree.follow;
                let text = if run.tree.follow { "the selection goes with the search" } else { "the selection stays" };
                self.say(text);
            }
            Action::Copy => {
                let text = run.state.tree.node(selected).text.clone();
                self.effect(Effect::Copy(text));
            }
            Action::CopyPath => {
                let text = run.state.tree.path_text(selected);
                self.effect(Effect::Copy(text));
            }
            Action::Banner => match run.state.outcome {
                Some(_) => self.popup = Some(Popup::Banner),
                None => self.say("there is no result yet"),
            },
            Action::Again | Action::NextPuzzle | Action::OtherStrategy => self.after_the_end(action),
            Action::Look => self.close_popup(),
            Action::Down
            | Action::Up
            | Action::Left
            | Action::Right
            | Action::Top
            | Action::Bottom
            | Action::HalfDown
            | Action::HalfUp
            | Action::PageDown
            | Action::PageUp => self.go(action),
            Action::ToggleFold => run.tree.toggle_fold(&run.state),
            Action::FoldBelow => run.tree.fold_below(&run.state),
            Action::UnfoldAll => run.tree.unfold_all(),
            Action::TogglePruned => {
                run.tree.toggle_pruned();
                let text =
                    if run.tree.hide_pruned { "pruned thoughts are hidden" } else { "pruned thoughts are shown" };
                self.say(text);
            }
            Action::NextPane
            | Action::PreviousPane
            | Action::Pane(_)
            | Action::Zoom
            | Action::HidePane
            | Action::ShowPanes
            | Action::Wider
            | Action::Narrower => self.panes(action),
            Action::Play
            | Action::Forward
            | Action::Back
            | Action::LeapForward
            | Action::LeapBack
            | Action::Faster
            | Action::Slower => self.play(action),
            Action::Pause
            | Action::Step
            | Action::Expand
            | Action::Prune
            | Action::Pin
            | Action::Undo
            | Action::Edit
            | Action::Add
            | Action::Rescore => {
                if groups.contains(&Group::Steer) {
                    self.steer(action, selected);
                }
            }
            Action::Help | Action::Theme | Action::Redraw | Action::Suspend | Action::Quit => self.act(action),
        }
    }

    fn steer(&mut self, action: Action, node: NodeId) {
        let Some(run) = &self.run else { return };
        if !run.is_running() {
            let again = self.keys.key(Action::Banner);
            self.say(format!("the search has ended ({again} shows the result)"));
            return;
        }
        let thought = run.state.tree.node(node);
        let is_root = thought.parent.is_none();
        let text = thought.text.clone();
        let (paused, pinned) = (run.state.paused, thought.status == Status::Pinned);
        match action {
            Action::Pause => self.command(if paused { Command::Resume } else { Command::Pause }),
            Action::Step => self.command(Command::Step),
            Action::Expand => self.command(Command::Expand { node }),
            Action::Undo => self.command(Command::Undo),
            Action::Add => self.popup = Some(Popup::Add { parent: node, field: Field::lines("") }),
            _ if is_root => self.say("the root is the puzzle itself; choose a thought below it"),
            Action::Prune => self.command(Command::Prune { node }),
            Action::Pin => self.command(if pinned { Command::Unpin { node } } else { Command::Pin { node } }),
            Action::Rescore => self.command(Command::Rescore { node }),
            Action::Edit => self.popup = Some(Popup::Edit { node, field: Field::lines(unended(&text)) }),
            _ => {}
        }
    }

    /// A text that the user typed, with the line's end that a thought like this one has: the field does not show it.
    fn ended_as(&self, like: NodeId, text: String) -> String {
        let ended = |text: &str| text[unended(text).len()..].to_string();
        match self.run.as_ref().and_then(|run| run.state.tree.get(like)) {
            Some(thought) if !text.ends_with('\n') => text + &ended(&thought.text),
            _ => text,
        }
    }

    /// Sends a command to the search; the picture changes when the search answers with its events.
    pub fn command(&mut self, command: Command) {
        if self.is_running() {
            self.effect(Effect::Send(command));
        } else {
            self.say("the search has ended");
        }
    }

    fn mark(&mut self) {
        let Some(run) = &mut self.run else { return };
        let here = run.tree.selected();
        match run.marked {
            None => {
                run.marked = Some(here);
                let key = self.keys.key(Action::Mark).to_string();
                self.say(format!("{here} marked; {key} on another thought compares the two"));
            }
            Some(there) if there == here => run.marked = None,
            Some(there) => self.popup = Some(Popup::Compare { a: there, b: here, top: 0 }),
        }
    }

    fn after_the_end(&mut self, action: Action) {
        let Some(run) = &self.run else { return };
        if run.is_running() {
            self.say("the search is still running");
            return;
        }
        let Some(choice) = run.choice.clone() else {
            self.say("this is a replay");
            return;
        };
        match action {
            Action::Again => self.begin(choice),
            Action::NextPuzzle => self.begin_next(choice),
            _ => self.back_to_start(),
        }
    }

    fn go(&mut self, action: Action) {
        let Some(arrangement) = self.arrangement() else { return };
        let Some(run) = self.run.as_mut() else { return };
        let focus = run.wishes.focus;
        let height = |pane| arrangement.of(pane).map_or(1, |r| r.height.saturating_sub(2).max(1)) as isize;
        let page = height(if matches!(focus, Pane::Thought | Pane::Log) { focus } else { Pane::Tree });
        let by = match action {
            Action::Down => 1,
            Action::Up => -1,
            Action::HalfDown => (page / 2).max(1),
            Action::HalfUp => -(page / 2).max(1),
            Action::PageDown => (page - 1).max(1),
            Action::PageUp => -(page - 1).max(1),
            Action::Top => isize::MIN + 1,
            Action::Bottom => isize::MAX,
            _ => 0,
        };
        match focus {
            Pane::Thought if by != 0 => {
                run.thought_top = run.thought_top.saturating_add_signed(by);
                self.clamp_thought();
            }
            Pane::Log if by != 0 => {
                run.log_back = run.log_back.saturating_add_signed(-by).min(run.state.log.len().saturating_sub(1));
            }
            _ => match action {
                Action::Left => run.tree.fold_or_parent(&run.state),
                Action::Right => run.tree.unfold_or_child(&run.state),
                Action::Top => run.tree.first(),
                Action::Bottom => run.tree.last(),
                _ => run.tree.step(by),
            },
        }
    }

    fn panes(&mut self, action: Action) {
        let area = self.area;
        if is_too_small(area) {
            return;
        }
        let Some(run) = self.run.as_mut() else { return };
        let seen = |run: &RunScreen| -> Vec<Pane> {
            let mut panes: Vec<_> = arrange(area, &run.wishes).panes.iter().map(|p| p.0).collect();
            panes.sort_by_key(|p| p.number());
            panes
        };
        match action {
            Action::NextPane | Action::PreviousPane => {
                let by = if action == Action::NextPane { 1 } else { -1 };
                // With one pane on the screen the others take its place in turn.
                let alone = run.wishes.zoom.is_some() || seen(run).len() == 1;
                let panes = if alone { Pane::ALL.to_vec() } else { seen(run) };
                let at = panes.iter().position(|p| *p == run.wishes.focus).unwrap_or(0);
                let next = panes[(at as isize + by).rem_euclid(panes.len() as isize) as usize];
                run.wishes.focus = next;
                if alone {
                    run.wishes.zoom = Some(next);
                }
            }
            Action::Pane(number) => {
                let Some(pane) = Pane::from_number(number) else { return };
                let again = run.wishes.focus == pane;
                run.wishes.focus = pane;
                if run.wishes.zoom == Some(pane) && again {
                    run.wishes.zoom = None;
                } else if run.wishes.zoom.is_some() || !seen(run).contains(&pane) {
                    run.wishes.zoom = Some(pane);
                }
            }
            Action::Zoom => {
                run.wishes.zoom = match run.wishes.zoom {
                    Some(_) => None,
                    None => Some(run.wishes.focus),
                };
            }
            Action::HidePane => {
                let pane = run.wishes.focus;
                self.hide(pane);
            }
            Action::ShowPanes => {
                run.wishes.hidden = 0;
                run.wishes.zoom = None;
            }
            Action::Wider => resize_tree(run, 5),
            Action::Narrower => resize_tree(run, -5),
            _ => {}
        }
        self.keep_focus_in_sight();
    }

    pub fn hide(&mut self, pane: Pane) {
        let Some(run) = self.run.as_mut() else { return };
        let hidden = run.wishes.hidden | 1 << pane as u8;
        if hidden.count_ones() as usize == Pane::ALL.len() {
            self.say("one pane must stay");
            return;
        }
        run.wishes.hidden = hidden;
        run.wishes.zoom = None;
        self.keep_focus_in_sight();
        let key = self.keys.key(Action::ShowPanes).to_string();
        self.say(format!("{} hidden ({key} shows all panes)", pane.title()));
    }

    pub fn show(&mut self, pane: Pane) {
        let area = self.area;
        let Some(run) = self.run.as_mut() else { return };
        run.wishes.hidden &= !(1 << pane as u8);
        run.wishes.focus = pane;
        run.wishes.zoom = None;
        if !arrange(area, &run.wishes).panes.iter().any(|p| p.0 == pane) {
            run.wishes.zoom = Some(pane);
        }
    }

    fn keep_focus_in_sight(&mut self) {
        let Some(arrangement) = self.arrangement() else { return };
        if let Some(run) = self.run.as_mut()
            && arrangement.of(run.wishes.focus).is_none()
            && let Some((pane, _)) = arrangement.panes.first()
        {
            run.wishes.focus = *pane;
        }
    }

    fn play(&mut self, action: Action) {
        let Some(run) = self.run.as_mut() else { return };
        let Some(replay) = run.replay.as_mut() else { return };
        let tenth = (replay.len() / 10).max(1);
        let (at, state) = (replay.position(), &mut run.state);
        match action {
            Action::Play => replay.toggle(state),
            Action::Forward => {
                replay.playing = false;
                replay.jump(state, at + 1);
            }
            Action::Back => {
                replay.playing = false;
                replay.jump(state, at.saturating_sub(1));
            }
            Action::LeapForward => replay.jump(state, at + tenth),
            Action::LeapBack => replay.jump(state, at.saturating_sub(tenth)),
            Action::Faster => replay.change_speed(2.0),
            Action::Slower => replay.change_speed(0.5),
            _ => {}
        }
    }

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
                        run.tree.follow = false;
                        run.tree.go(&run.state, node);
                    }
                    _ => self.complain(format!("there is no thought {node}")),
                }
            }
            palette::Line::Theme(name) => self.set_theme(name),
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

/// A thought's text without the line's end that belongs to it as a step (as in game24).
fn unended(text: &str) -> &str {
    text.trim_end_matches(['\n', '\r'])
}

/// Moves the border between the tree and the rest.
fn resize_tree(run: &mut RunScreen, by: i16) {
    for percent in [&mut run.wishes.tree_percent, &mut run.wishes.tree_percent_of_three] {
        *percent = percent.saturating_add_signed(by).clamp(15, 85);
    }
}
