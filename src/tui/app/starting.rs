//! Starting runs, and what other threads answer: lists, a preview, how far a start is, the run or why there is none.

use super::{App, Effect, Loading, RELOAD_SECONDS, Screen};
use crate::base::Result;
use crate::tui::replay::Recording;
use crate::tui::run_screen::RunScreen;
use crate::tui::start::{Catalog, Outcome as FormOutcome};
use crate::tui::{Choice, Fork, StrategyItem};

impl App {
    /// Starts a choice: the lists give way to a progress line.
    pub fn begin(&mut self, choice: Choice) {
        self.jobs += 1;
        self.effect(Effect::Drop);
        self.effect(Effect::Start { job: self.jobs, choice: choice.clone() });
        self.load(choice);
    }

    /// Goes on with a recorded run.
    pub fn begin_fork(&mut self, fork: Fork) {
        self.jobs += 1;
        self.effect(Effect::Drop);
        self.effect(Effect::Fork { job: self.jobs, fork: fork.clone() });
        self.load(fork.choice);
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
}
