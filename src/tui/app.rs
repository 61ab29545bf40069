//! The screen's whole state, and what keys, events and time do to it. What it wants done outside it leaves as
//! [`Effect`]s; it reads and writes nothing itself, so that every test is a list of inputs.

use super::draw;
use super::keys::{Action, Group, Key, KeyMap, REPLAY_GROUPS, RUN_GROUPS};
use super::layout::{Arrangement, Pane, arrange, is_too_small};
use super::popup::Popup;
use super::replay::{Recording, Replay};
use super::run_screen::RunScreen;
use super::start::{Catalog, Outcome as FormOutcome, Start};
use super::theme::{Theme, ThemeName};
use super::{Choice, ScreenOptions, StrategyItem};
use crate::base::Result;
use crate::search::event::{Command, Event as SearchEvent, Outcome, Reason};
use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind};
use ratatui::layout::Rect;

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
    pub fn open(&mut self, initial: Option<Choice>) {
        self.effect(Effect::LoadCatalog);
        if let Some(choice) = initial {
            self.start.show(&choice);
            self.begin(choice);
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

    pub fn catalog(&mut self, catalog: Catalog) {
        self.start.take(catalog);
        self.reload_at = self.now + RELOAD_SECONDS;
        self.dirty = true;
        if self.screen == Screen::Start
            && self.start.take_haste()
            && let FormOutcome::Start(choice) = self.start.enter()
        {
            // Enter was pressed before there was anything to choose from: what came first is what was meant.
            self.begin(choice);
            return;
        }
        self.ask_preview();
    }

    /// New strategies of a task; draws only where something changed.
    pub fn strategies(&mut self, task: String, items: Vec<StrategyItem>) {
        self.reload_at = self.now + RELOAD_SECONDS;
        let old = self.start.catalog.as_ref().and_then(|c| c.strategies.get(&task));
        if old != Some(&items) {
            self.start.take_strategies(task, items);
            self.dirty = true;
        }
    }

    pub fn preview(&mut self, question: u64, answer: Result<String>) {
        if question == self.start.question {
            self.start.preview = Some(answer.map_err(|e| e.to_string()));
            self.dirty = true;
        }
    }

    pub fn progress(&mut self, job: u64, text: String, share: Option<f64>) {
        if let Screen::Loading(loading) = &mut self.screen
            && loading.job == job
        {
            loading.text = text;
            loading.share = share;
            self.dirty = true;
        }
    }

    /// A start came to its end. True where its run is wanted.
    pub fn started(&mut self, job: u64, choice: Choice, result: Result<()>) -> bool {
        if !matches!(&self.screen, Screen::Loading(loading) if loading.job == job) {
            return false;
        }
        self.dirty = true;
        match result {
            Ok(()) => {
                self.start.show(&choice);
                let wishes = self.run.take().map(|r| r.wishes);
                let mut run = RunScreen::live(choice);
                if let Some(old) = wishes.filter(|w| !w.time_bar) {
                    // The next puzzle is looked at in the same panes.
                    run.wishes = old;
                }
                self.run = Some(run);
                self.screen = Screen::Run;
                self.popup = None;
                true
            }
            Err(e) => {
                self.screen = Screen::Start;
                self.start.error = Some(e.to_string());
                self.reload_at = self.now + RELOAD_SECONDS;
                false
            }
        }
    }

    pub fn opened(&mut self, result: Result<Recording>) {
        match result {
            Ok(recording) => self.open_replay(recording),
            Err(e) => {
                self.start.error = Some(e.to_string());
                self.dirty = true;
            }
        }
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

    /// Starts a choice: the lists give way to a progress line.
    pub fn begin(&mut self, choice: Choice) {
        self.jobs += 1;
        self.effect(Effect::Drop);
        self.effect(Effect::Start { job: self.jobs, choice: choice.clone() });
        self.load(choice);
    }

    /// Starts the puzzle after the one of `choice`.
    pub fn begin_next(&mut self, choice: Choice) {
        self.jobs += 1;
        self.effect(Effect::Drop);
        self.effect(Effect::StartNext { job: self.jobs, choice: choice.clone() });
        self.load(choice);
    }

    fn load(&mut self, choice: Choice) {
        self.popup = None;
        self.banner_due = false;
        self.start.error = None;
        self.spin = 0;
        let text = "starting".to_string();
        self.screen = Screen::Loading(Loading { job: self.jobs, choice, text, share: None, since: self.now });
        self.dirty = true;
    }

    pub fn back_to_start(&mut self) {
        if let Some(choice) = self.run.as_ref().and_then(|r| r.choice.clone()) {
            self.start.show(&choice);
        }
        self.effect(Effect::Drop);
        self.popup = None;
        self.banner_due = false;
        self.screen = Screen::Start;
        self.reload_at = self.now + RELOAD_SECONDS;
        if self.start.catalog.is_none() {
            self.effect(Effect::LoadCatalog);
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

    fn ask_preview(&mut self) {
        if self.screen == Screen::Start
            && let Some((question, choice)) = self.start.wants_preview()
        {
            self.effect(Effect::Preview { question, choice });
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
}
