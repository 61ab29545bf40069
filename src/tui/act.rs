//! What each action does: moves, panes, steering, pop-ups.

mod panes;
mod popups;
mod steer;

use super::app::{App, Effect};
use super::field::Field;
use super::keys::{Action, Group};
use super::layout::Pane;
use super::popup::Popup;
use super::tree_view::Follow;

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
            Action::Export => self.popup = Some(Popup::Palette { field: Field::line("export "), selected: 0 }),
            Action::Find => self.popup = Some(Popup::Find { field: Field::line(""), from: selected }),
            Action::FindNext | Action::FindPrevious => {
                if !run.find_again(action == Action::FindNext) {
                    let what = if run.find.text.is_empty() { "nothing searched for yet" } else { "no match" };
                    self.say(format!("{what} ({} searches)", self.keys.key(Action::Find)));
                }
            }
            Action::Best => match run.state.best() {
                Some(best) => {
                    run.tree.follow = Follow::Stay;
                    run.tree.go(&run.state, best);
                    run.wishes.focus = Pane::Tree;
                }
                None => self.say("no thought is scored yet"),
            },
            Action::Mark => self.mark(),
            Action::Follow => {
                let (next, text) = match run.tree.follow {
                    Follow::Stay => (Follow::Search, "the selection goes with the search"),
                    Follow::Search => (Follow::Best, "the selection goes with the best thought"),
                    Follow::Best => (Follow::Stay, "the selection stays"),
                };
                run.tree.follow = next;
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
            Action::Fork => {
                let fork = run.replay.as_ref().map(|replay| replay.fork());
                match fork {
                    Some(Some(fork)) => self.begin_fork(fork),
                    Some(None) => self.complain("the record does not say how its run was started, so it cannot go on"),
                    None => self.say("this run is live already"),
                }
            }
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
}
