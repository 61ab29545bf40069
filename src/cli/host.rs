//! What the screen needs from the rest of the program: lists, puzzles, a started run, a recorded one.

use super::args::{Common, ScreenArgs, SolveArgs, Theme};
use super::{lm, out, puzzle, runtime, solve};
use crate::base::{Error, Result};
use crate::lm::Lm;
use crate::model::store;
use crate::search::event::{Limits, Reason};
use crate::search::record::{self, Header, Recorder};
use crate::search::run::{RunHandle, RunSpec, start};
use crate::strategy::library;
use crate::task::{self, Puzzle};
use crate::tui::{
    self, Choice, Host, Left, ModelItem, Progress, Recording, RunItem, ScreenOptions, Source, StrategyItem, TaskItem,
    ThemeName,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Recorded runs that the start screen offers.
const LISTED_RUNS: usize = 30;

/// `totara` on a terminal.
pub fn start_screen(common: &Common, screen: &ScreenArgs) -> Result<u8> {
    show(common, screen, None, &solve::defaults())
}

/// `totara solve` on a terminal; without one it is refused with the flag to use.
pub fn solve(common: &Common, screen: &ScreenArgs, args: &SolveArgs) -> Result<u8> {
    use std::io::IsTerminal;
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        out::tell("no terminal: solving without the screen, as with --no-tui");
        return solve::headless(common, args);
    }
    // Mistakes in the flags are told before the screen opens.
    let puzzle = puzzle::puzzle(&args.puzzle, common.seed)?;
    let strategy = solve::strategy(args.strategy.as_deref(), puzzle.task(), &args.language)?;
    args.limits.limits()?;
    if let Some(path) = &args.record {
        Recorder::check_new(path)?;
    }
    let source = match (&args.puzzle.input, &args.puzzle.data) {
        (Some(input), _) => Source::Typed(puzzle::text(input, "--input")?),
        (None, Some(path)) => Source::File { path: path.clone(), id: args.puzzle.id.clone() },
        (None, None) => Source::Generated { size: args.puzzle.size.unwrap_or(puzzle::DEFAULT_SIZE), seed: common.seed },
    };
    let choice = Choice {
        task: puzzle.task().to_string(),
        source,
        strategy: args.strategy.clone().unwrap_or_else(|| strategy.name.clone()),
        model: common.model.clone().unwrap_or_else(store::default_spec),
    };
    show(common, screen, Some(choice), args)
}

/// Opens the screen, and prints the answer once it is closed.
fn show(common: &Common, screen: &ScreenArgs, initial: Option<Choice>, args: &SolveArgs) -> Result<u8> {
    // A model that cannot be read is refused before the screen opens.
    lm::check(common)?;
    let runtime = runtime()?;
    let host = Arc::new(Program {
        common: common.clone(),
        args: args.clone(),
        runtime: runtime.handle().clone(),
        lm: Mutex::new(None),
        runs: AtomicUsize::new(0),
    });
    let options = ScreenOptions { seed: common.seed, ..options(screen) };
    let left = tui::run(host, initial, options)?;
    finish(common, &left)
}

fn finish(common: &Common, left: &Left) -> Result<u8> {
    if let Some(outcome) = &left.outcome {
        if !common.quiet {
            out::tell(&solve::summary(outcome));
        }
        if outcome.reason != Reason::Quit
            && let Some(line) = solve::answer_line(outcome)
        {
            out::line(&line)?;
        }
    }
    Ok(match (left.signal, &left.outcome) {
        (Some(signal), _) => 128 + signal as u8,
        (None, Some(outcome)) => outcome.exit_code(),
        // A puzzle that was asked for is left unsolved, as in the middle of its search.
        (None, None) if left.starting => 128 + 2,
        (None, None) => 0,
    })
}

pub fn options(screen: &ScreenArgs) -> ScreenOptions {
    let theme = screen.theme.map(|t| match t {
        Theme::Light => ThemeName::Light,
        Theme::Dark => ThemeName::Dark,
        Theme::None => ThemeName::None,
    });
    ScreenOptions::from_environment(theme, screen.no_mouse, screen.ascii)
}

/// The program behind the screen. The model stays loaded between runs.
struct Program {
    common: Common,
    args: SolveArgs,
    runtime: tokio::runtime::Handle,
    lm: Mutex<Option<(String, Arc<dyn Lm>)>>,
    /// Runs started so far.
    runs: AtomicUsize,
}

/// `dir/name-2.jsonl` for `dir/name.jsonl`.
fn numbered(path: &Path, number: usize) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    name.push(format!("-{number}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

impl Program {
    fn puzzle(&self, choice: &Choice) -> Result<Arc<dyn Puzzle>> {
        let task = task::by_name(&choice.task)?;
        match &choice.source {
            Source::Generated { size, seed } => task.generate(*size, *seed),
            Source::Typed(text) => task.parse(text),
            Source::File { path, id } => {
                let puzzles = task.read_data(path)?;
                let found = match id {
                    Some(id) => puzzles.into_iter().find(|p| p.id() == id),
                    None => puzzles.into_iter().next(),
                };
                found.ok_or_else(|| Error::input(format!("{}: there is no such puzzle", path.display())))
            }
        }
    }

    fn model(&self, name: &str, progress: &Progress) -> Result<Arc<dyn Lm>> {
        let mut loaded = self.lm.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, lm)) = &*loaded
            && at == name
        {
            return Ok(lm.clone());
        }
        // The old model's memory is given back before the new one takes its own.
        *loaded = None;
        let told = lm::Told::Screen(progress.clone());
        let lm = lm::open(&Common { model: Some(name.to_string()), ..self.common.clone() }, &told)?;
        *loaded = Some((name.to_string(), lm.clone()));
        Ok(lm)
    }
}

impl Program {
    /// The flags about strategies count for the one that was named with them.
    fn options(&self, strategy: &str) -> Result<library::LoadOptions> {
        let named = self.args.strategy.as_deref().is_none_or(|named| named == strategy);
        if named { self.args.language.options() } else { Ok(library::LoadOptions::default()) }
    }
}

impl Host for Program {
    fn tasks(&self) -> Vec<TaskItem> {
        let item = |t: &&'static dyn task::Task| TaskItem {
            name: t.name().to_string(),
            about: t.about().to_string(),
            input_forms: t.input_forms().to_string(),
            example: t.example().to_string(),
            default_strategy: t.default_strategy().to_string(),
            default_size: puzzle::DEFAULT_SIZE,
        };
        task::all().iter().map(item).collect()
    }

    fn strategies(&self, task: &str) -> Vec<StrategyItem> {
        let first = task::by_name(task).map(|t| t.default_strategy()).unwrap_or_default();
        let mut items: Vec<_> = library::list()
            .iter()
            .filter(|i| i.task == task)
            .map(|i| StrategyItem {
                name: i.name.to_string(),
                about: library::read(i).map(|s| s.about).unwrap_or_default(),
                error: None,
            })
            .collect();
        items.sort_by_key(|i| i.name != first);
        for name in files_here() {
            items.push(match library::load(&name, task) {
                Ok(s) => StrategyItem { name, about: s.about.clone(), error: None },
                Err(e) => StrategyItem { name, about: String::new(), error: Some(e.message().to_string()) },
            });
        }
        if let Some(named) = &self.args.strategy
            && !items.iter().any(|i| i.name == *named)
        {
            items.insert(
                0,
                match self.options(named).and_then(|options| library::load_with(named, task, &options)) {
                    Ok(s) => StrategyItem { name: named.clone(), about: s.about.clone(), error: None },
                    Err(e) => {
                        StrategyItem { name: named.clone(), about: String::new(), error: Some(e.message().to_string()) }
                    }
                },
            );
        }
        items
    }

    fn models(&self) -> Vec<ModelItem> {
        lm::choices(&self.common)
    }

    fn last_runs(&self) -> Vec<RunItem> {
        record::newest(LISTED_RUNS)
            .into_iter()
            .map(|h| RunItem { id: h.id, about: format!("{} {} {}", h.started, h.strategy, h.title) })
            .collect()
    }

    fn preview(&self, choice: &Choice) -> Result<String> {
        self.puzzle(choice).map(|p| p.title())
    }

    fn start(&self, choice: &Choice, progress: &Progress) -> Result<RunHandle> {
        let puzzle = self.puzzle(choice)?;
        let strategy = Arc::new(library::load_with(&choice.strategy, &choice.task, &self.options(&choice.strategy)?)?);
        let lm = self.model(&choice.model, progress)?;
        if progress.is_cancelled() {
            return Err(Error::fault("nobody waits for this run any more"));
        }
        let limits: Limits = self.args.limits.limits()?;
        let seed = match &choice.source {
            Source::Generated { seed, .. } => *seed,
            Source::Typed(_) | Source::File { .. } => self.common.seed,
        };
        let header = Header::new(&*puzzle, &strategy, &*lm, seed, &solve::command_line());
        let mut args = self.args.clone();
        // Runs after the first one are recorded beside it.
        let before = self.runs.fetch_add(1, Ordering::Relaxed);
        args.record = args.record.map(|path| if before == 0 { path } else { numbered(&path, before + 1) });
        let record = solve::recorder(&Common { quiet: true, ..self.common.clone() }, &args, header)?;
        let _inside = self.runtime.enter();
        start(RunSpec { puzzle, strategy, lm, seed, paused: false, limits, record })
    }

    fn open_run(&self, id: &str) -> Result<Recording> {
        super::replay::recording(id)
    }
}

/// Strategy files in the working folder: offered beside the built-in ones.
fn files_here() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(Path::new(".")) else { return Vec::new() };
    let mut names: Vec<_> = entries
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok())
        .filter(|n| n.ends_with(".yaml") || n.ends_with(".yml"))
        .take(100)
        .collect();
    names.sort();
    names
}
