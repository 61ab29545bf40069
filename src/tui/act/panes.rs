//! Moves within a pane, and panes shown, hidden, zoomed and resized.

use crate::tui::app::App;
use crate::tui::keys::Action;
use crate::tui::layout::{Pane, arrange, is_too_small};
use crate::tui::run_screen::RunScreen;

impl App {
    pub(super) fn go(&mut self, action: Action) {
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

    pub(super) fn panes(&mut self, action: Action) {
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
}

/// Moves the border between the tree and the rest.
fn resize_tree(run: &mut RunScreen, by: i16) {
    for percent in [&mut run.wishes.tree_percent, &mut run.wishes.tree_percent_of_three] {
        *percent = percent.saturating_add_signed(by).clamp(15, 85);
    }
}
