//! The screen: choose a puzzle, watch its tree grow, steer the search, see where the bytes are.
//!
//! The front end knows events, commands and counters only. Whatever it needs from the rest of the program (lists, a
//! started run, a record) comes through [`Host`], which the command line implements.
//!
//! How it hangs together: `live` waits for keys, events, signals and time, and hands them to [`app::App`], the state.
//! `draw` turns the state into a picture and touches nothing. `terminal` enters and, whatever happens, leaves the
//! terminal's modes. Only the newest state is drawn: a slow terminal drops frames, never events.

mod act;
mod app;
mod canvas;
mod draw;
mod field;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod held;
mod keys;
mod layout;
mod live;
mod measure;
mod mouse;
mod palette;
mod picture;
mod popup;
mod prompts;
mod replay;
mod run_screen;
mod run_state;
mod start;
mod terminal;
#[cfg(any(test, fuzzing))]
#[cfg_attr(not(test), expect(dead_code, reason = "fuzzers use a part of it"))]
mod testing;
#[cfg(test)]
mod tests;
mod text;
mod theme;
mod tree_view;

pub use keys::check as check_keys;
pub use live::{replay, run};
pub use measure::{Frames, measure};
pub use replay::Recording;
pub use theme::ThemeName;

use crate::base::Result;
use crate::search::event::Outcome;
use crate::search::run::RunHandle;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the screen needs from the program around it. Every method is called from a thread of its own and may be slow;
/// only `start` and `open_run` should be.
pub trait Host: Send + Sync + 'static {
    fn tasks(&self) -> Vec<TaskItem>;

    /// Strategies that can run on a task, the default one first. Asked again every two seconds while the start screen is
    /// open, so that a changed file shows at once, with its errors.
    fn strategies(&self, task: &str) -> Vec<StrategyItem>;

    /// Models that can be chosen, the default one first.
    fn models(&self) -> Vec<ModelItem>;

    /// Recorded runs, the newest first.
    fn last_runs(&self) -> Vec<RunItem>;

    /// One line that shows the puzzle of a choice, or why there is none (with the forms that are accepted).
    fn preview(&self, choice: &Choice) -> Result<String>;

    /// Loads what is not loaded yet and starts the search. May take as long as it needs; it should tell `progress` what
    /// it does, and may give up early once `progress.is_cancelled()`.
    fn start(&self, choice: &Choice, progress: &Progress) -> Result<RunHandle>;

    /// As [`Self::start`], going on with a recorded run.
    fn take_up(&self, fork: &Fork, progress: &Progress) -> Result<RunHandle>;

    /// The puzzle after this one, if there is one.
    fn next(&self, choice: &Choice) -> Option<Choice> {
        match &choice.source {
            Source::Generated { size, seed } => {
                Some(Choice { source: Source::Generated { size: *size, seed: seed.wrapping_add(1) }, ..choice.clone() })
            }
            Source::Typed(_) | Source::File { .. } => None,
        }
    }

    /// Reads a recorded run.
    fn open_run(&self, id: &str) -> Result<Recording>;
}

/// A kind of puzzle, for the start screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskItem {
    pub name: String,
    pub about: String,
    /// What can be typed in, with an example.
    pub input_forms: String,
    pub example: String,
    pub default_strategy: String,
    pub default_size: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StrategyItem {
    /// A name or a path: what `--strategy` takes.
    pub name: String,
    pub about: String,
    /// Why it cannot be used, where its file has a mistake.
    pub error: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelItem {
    /// What `--model` takes.
    pub name: String,
    pub bytes: Option<u64>,
    /// Whether it fits, whether it must be fetched first.
    pub note: String,
    /// Why it cannot be used.
    pub error: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunItem {
    pub id: String,
    pub about: String,
}

/// What to search, how, and with which model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    pub task: String,
    pub source: Source,
    pub strategy: String,
    pub model: String,
}

/// A recorded run that is to go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fork {
    /// What `totara replay` takes.
    pub run: String,
    /// After how many of its events; `None`: all.
    pub events: Option<usize>,
    /// Whether it waits for the user first.
    pub paused: bool,
    /// What it was started from.
    pub choice: Choice,
}

/// How the screen begins where it is not on the start screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begin {
    Choice(Choice),
    Fork(Fork),
}

/// Where the puzzle comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Generated {
        size: usize,
        seed: u64,
    },
    /// As the user typed it.
    Typed(String),
    /// A data file; without an id its first puzzle.
    File {
        path: PathBuf,
        id: Option<String>,
    },
}

/// How a slow start tells what it does, and learns that nobody waits for it any more.
#[derive(Clone)]
pub struct Progress {
    tell: Arc<dyn Fn(String, Option<f64>) + Send + Sync>,
    cancelled: Arc<AtomicBool>,
}

impl Progress {
    fn new(tell: impl Fn(String, Option<f64>) + Send + Sync + 'static) -> Self {
        Self { tell: Arc::new(tell), cancelled: Arc::new(AtomicBool::new(false)) }
    }

    /// What is being done, and which share of it (0 to 1) is done where that is known.
    pub fn say(&self, what: impl Into<String>, share: Option<f64>) {
        (self.tell)(what.into(), share);
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

/// How the screen looks and behaves.
#[derive(Debug, Clone)]
pub struct ScreenOptions {
    pub mouse: bool,
    /// No glyph beyond ASCII.
    pub ascii: bool,
    pub theme: ThemeName,
    /// Names of actions with the keys they shall have instead (the help screen shows both).
    pub keys: Vec<(String, String)>,
    /// The seed that the start screen begins with.
    pub seed: u64,
    /// Where copied text goes as well, for terminals that refuse OSC 52.
    pub copy_file: Option<PathBuf>,
}

impl Default for ScreenOptions {
    fn default() -> Self {
        Self { mouse: true, ascii: false, theme: ThemeName::Dark, keys: Vec::new(), seed: 0, copy_file: None }
    }
}

impl ScreenOptions {
    /// Options as the flags and the environment ask for: `NO_COLOR` (any value but an empty one) takes the colours away
    /// unless `--theme` was given, and a terminal or locale that cannot show Unicode (`LC_ALL=C` among them) gets ASCII.
    /// Without any locale, as in containers, the terminal is taken to show Unicode.
    pub fn from_environment(theme: Option<ThemeName>, no_mouse: bool, ascii: bool) -> Self {
        let set = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
        let no_color = set("NO_COLOR").is_some() || set("TERM").is_some_and(|t| t == "dumb");
        let unicode = shows_unicode(set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG")).as_deref());
        let linux_console = set("TERM").is_some_and(|t| t == "linux");
        Self {
            mouse: !no_mouse,
            ascii: ascii || !unicode || linux_console,
            theme: theme.unwrap_or(if no_color { ThemeName::None } else { ThemeName::Dark }),
            ..Self::default()
        }
    }
}

/// Whether a terminal of this size has room for the screen.
pub fn has_room(columns: u16, rows: u16) -> bool {
    !layout::is_too_small(ratatui::layout::Rect::new(0, 0, columns, rows))
}

/// Whether a terminal under this locale is taken to show Unicode.
fn shows_unicode(locale: Option<&str>) -> bool {
    locale.is_none_or(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

/// How the screen was left.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Left {
    /// Outcome of the last run, `Reason::Quit` where it was still running; `None`: none was started.
    pub outcome: Option<Outcome>,
    /// Whether a start was still under way (a model being fetched or loaded).
    pub starting: bool,
    /// The signal that ended it (the contract's exit code is 128 + signal).
    pub signal: Option<i32>,
}
