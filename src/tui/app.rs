//! The screen's whole state, and what keys, events and time do to it. What it wants done outside it leaves as
//! [`Effect`]s; it reads and writes nothing itself, so that every test is a list of inputs.

mod input;
mod starting;

use super::draw;
use super::keys::{Group, KeyMap, REPLAY_GROUPS, RUN_GROUPS};
use super::layout::{Arrangement, Pane, arrange, is_too_small};
use super::popup::Popup;
use super::replay::{Recording, Replay};
use super::run_screen::RunScreen;
use super::start::Start;
use super::theme::{Theme, ThemeName};
use super::{Begin, Choice, Fork, ScreenOptions};
use crate::base::Result;
use crate::search::event::{Command, Event as SearchEvent, Outcome, Reason};
use ratatui::layout::Rect;
use std::path::PathBuf;

/// How long a message stays in the last line, in seconds.
const MESSAGE_SECONDS: f64 = 4.0;
/// A note of the search that comes so soon after an act is the answer to it, in seconds.
const ANSWER_SECONDS: f64 = 0.5;
/// How often the start screen asks for the strategies again, in seconds.
const RELOAD_SECONDS: f64 = 2.0;
/// Time of one picture of the spinner, in seconds.
const SPIN_SECONDS: f64 = 0.125;

/// What is to be done outside.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    LoadCatalog,
    LoadStrategies {
        task: String,
    },
    Preview {
        question: u64,
        choice: Choice,
    },
    /// Answered by [`App::started`] with the same number.
    Start {
        job: u64,
        choice: Choice,
    },
    /// Go on with a recorded run; answered as `Start` is.
    Fork {
        job: u64,
        fork: Fork,
    },
    /// Start the puzzle after this one.
    StartNext {
        job: u64,
        choice: Choice,
    },
    /// Nobody waits for the start any more, or the run is to be let go.
    Drop,
    Send(Command),
    OpenRun(String),
    Copy(String),
    /// The tree as it is now, into a file.
    Export(PathBuf),
    /// The screen as it is without the pop-up, into a file.
    Picture(PathBuf),
    Suspend,
    Redraw,
    Leave,
}

/// Which screen is seen.
#[derive(Debug, Clone, PartialEq)]
pub enum Screen {
    Start,
    Loading(Loading),
    Run,
}

/// A start under way.
#[derive(Debug, Clone, PartialEq)]
pub struct Loading {
    pub job: u64,
    pub choice: Choice,
    pub text: String,
    pub share: Option<f64>,
    pub since: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    Info,
    Bad,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    pub text: String,
    pub tone: Tone,
    until: f64,
}

pub struct App {
    pub theme: Theme,
    pub theme_name: ThemeName,
    ascii: bool,
    pub mouse: bool,
    pub keys: KeyMap,
    pub area: Rect,
    /// Seconds on the reader's clock.
    pub now: f64,
    pub screen: Screen,
    pub start: Start,
    pub run: Option<RunScreen>,
    pub popup: Option<Popup>,
    pub message: Option<Message>,
    /// Whether the picture would be another one than the last.
    pub dirty: bool,
    effects: Vec<Effect>,
    jobs: u64,
    banner_due: bool,
    reload_at: f64,
    /// When the search last took up an act of the user.
    acted_at: f64,
    spin: u64,
}

impl App {
    /// # Errors
    /// Keys of the options that are not known or clash.
    pub fn new(options: &ScreenOptions, width: u16, height: u16) -> Result<Self> {
        Ok(Self {
            theme: Theme::new(options.theme, options.ascii),
            theme_name: options.theme,
            ascii: options.ascii,
            mouse: options.mouse,
            keys: KeyMap::new(&options.keys)?,
            area: Rect::new(0, 0, width, height),
            now: 0.0,
            screen: Screen::Start,
            start: Start::with_seed(options.seed),
            run: None,
            popup: None,
            message: None,
            dirty: true,
            effects: Vec::new(),
            jobs: 0,
            banner_due: false,
            reload_at: f64::INFINITY,
            acted_at: f64::NEG_INFINITY,
            spin: 0,
        })
    }

    /// Opens the start screen, or starts at once.
    pub fn open(&mut self, begin: Option<Begin>) {
        self.effect(Effect::LoadCatalog);
        match begin {
            Some(Begin::Choice(choice)) => {
                self.start.show(&choice);
                self.begin(choice);
            }
            Some(Begin::Fork(fork)) => {
                self.start.show(&fork.choice);
                self.begin_fork(fork);
            }
            None => {}
        }
    }

    pub fn open_replay(&mut self, recording: Recording) {
        self.run = Some(RunScreen::replay(Replay::new(recording)));
        self.screen = Screen::Run;
        self.popup = None;
        self.dirty = true;
    }

    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    pub fn effect(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    pub fn say(&mut self, text: impl Into<String>) {
        self.tell(text, Tone::Info);
    }

    pub fn complain(&mut self, text: impl Into<String>) {
        self.tell(text, Tone::Bad);
    }

    fn tell(&mut self, text: impl Into<String>, tone: Tone) {
        self.message = Some(Message { text: text.into(), tone, until: self.now + MESSAGE_SECONDS });
        self.dirty = true;
    }

    /// One event of the search.
    pub fn search_event(&mut self, event: &SearchEvent) {
        let Some(run) = self.run.as_mut().filter(|r| r.replay.is_none()) else { return };
        run.state.apply(event, self.now);
        self.dirty = true;
        match event {
            SearchEvent::Act { .. } => self.acted_at = self.now,
            // The search's answer to what the user just did, which the log alone would hide in a small window.
            SearchEvent::Note { text } if self.now - self.acted_at < ANSWER_SECONDS => self.say(text.clone()),
            _ => {}
        }
        if matches!(event, SearchEvent::Ended { .. }) {
            self.banner_due = true;
            if matches!(self.popup, Some(Popup::ConfirmQuit)) {
                self.popup = None;
            }
            self.show_due_banner();
        }
    }

    /// The events of the run stopped. Without an end that is a failure, and is shown as one.
    pub fn search_gone(&mut self) {
        if let Some(run) = self.run.as_ref().filter(|r| r.is_running()) {
            let message = "the search stopped without saying why; this is a fault of the program".to_string();
            let outcome = run.state.unfinished(Reason::Failed { message });
            self.search_event(&SearchEvent::Ended { outcome });
        }
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: f64) {
        self.now = now;
        if self.message.as_ref().is_some_and(|m| now >= m.until) {
            self.message = None;
            self.dirty = true;
        }
        if let Some(run) = &mut self.run {
            match &mut run.replay {
                Some(replay) => {
                    self.dirty |= replay.tick(&mut run.state, now);
                    run.refresh();
                }
                // A replay has a clock of its own.
                None => self.dirty |= run.state.tick(now),
            }
        }
        if let Screen::Loading(loading) = &self.screen {
            let spin = ((now - loading.since).max(0.0) / SPIN_SECONDS) as u64;
            self.dirty |= spin != self.spin;
            self.spin = spin;
        }
        if self.screen == Screen::Start && self.start.catalog.is_some() && now >= self.reload_at {
            self.reload_at = f64::INFINITY;
            self.effect(Effect::LoadStrategies { task: self.start.task.clone() });
        }
    }

    /// When time alone changes something next.
    pub fn wake_at(&self) -> Option<f64> {
        let mut times = vec![];
        times.extend(self.message.as_ref().map(|m| m.until));
        if let Some(run) = &self.run {
            times.extend(match &run.replay {
                Some(replay) => replay.wake_at(),
                None => run.state.wake_at(),
            });
        }
        if let Screen::Loading(loading) = &self.screen {
            times.push(loading.since + (self.spin + 1) as f64 * SPIN_SECONDS);
        }
        if self.screen == Screen::Start && self.reload_at.is_finite() {
            times.push(self.reload_at);
        }
        times.into_iter().min_by(f64::total_cmp)
    }

    /// Which picture of the spinner is due.
    pub fn spin(&self) -> usize {
        self.spin as usize
    }

    /// The outcome of the last run, if there was one that ended.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.run.as_ref().filter(|r| r.replay.is_none())?.state.outcome.as_ref()
    }

    pub fn is_running(&self) -> bool {
        self.screen == Screen::Run && self.run.as_ref().is_some_and(RunScreen::is_running)
    }

    /// Brings everything that depends on the size in line before a picture is made.
    pub fn settle(&mut self) {
        if is_too_small(self.area) {
            // Scroll positions wait for a larger window.
            if let Some(run) = &mut self.run {
                run.refresh();
            }
            return;
        }
        let height = self.arrangement().and_then(|a| a.of(Pane::Tree)).map_or(1, |r| r.height.saturating_sub(2));
        if let Some(run) = &mut self.run {
            run.settle(usize::from(height));
            let shown = self.arrangement().is_some_and(|a| a.of(Pane::Thought).is_some());
            if shown {
                self.clamp_thought();
            }
        }
    }

    pub fn arrangement(&self) -> Option<Arrangement> {
        if is_too_small(self.area) || self.screen != Screen::Run {
            return None;
        }
        self.run.as_ref().map(|run| arrange(self.area, &run.wishes))
    }

    /// Keeps the last line of the thought from being scrolled above the pane.
    pub fn clamp_thought(&mut self) {
        let Some(area) = self.arrangement().and_then(|a| a.of(Pane::Thought)) else { return };
        let (width, height) = (area.width.saturating_sub(4), usize::from(area.height.saturating_sub(2)));
        let Some(run) = &mut self.run else { return };
        if run.thought_top > 0 {
            let lines = draw::thought::lines(run, &self.theme, width).len();
            run.thought_top = run.thought_top.min(lines.saturating_sub(height));
        }
    }

    pub fn set_theme(&mut self, name: ThemeName) {
        self.theme_name = name;
        self.theme = Theme::new(name, self.ascii);
        self.say(format!("theme {}", name.name()));
    }

    pub fn open_popup(&mut self, popup: Popup) {
        self.popup = Some(popup);
    }

    pub fn close_popup(&mut self) {
        self.popup = None;
        self.show_due_banner();
    }

    fn show_due_banner(&mut self) {
        let busy = self.popup.as_mut().is_some_and(|p| p.field().is_some());
        if self.banner_due && !busy {
            self.banner_due = false;
            self.popup = Some(Popup::Banner);
        }
    }

    /// Groups of keys that hold where the user is.
    pub fn groups(&self) -> &'static [Group] {
        match (&self.screen, &self.run) {
            (Screen::Run, Some(run)) if run.replay.is_some() => REPLAY_GROUPS,
            (Screen::Run, _) => RUN_GROUPS,
            _ => &[Group::Program],
        }
    }
}
