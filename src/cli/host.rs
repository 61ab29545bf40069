//! What the screen needs from the rest of the program: lists, puzzles, a started run, a recorded one.

use super::again::Again;
use super::args::{Common, PuzzleArgs, ScreenArgs, SolveArgs, Theme};
use super::{endpoint, keys, lm, out, puzzle, runtime, solve};
use crate::base::{Error, Result, inside, read};
use crate::lm::Lm;
use crate::model::store;
use crate::offload;
use crate::search::event::Reason;
use crate::search::record::{self, Header, Origin, PuzzleOrigin, Recorder};
use crate::search::run::{RunHandle, RunSpec, start};
use crate::strategy::{AnyTask, Strategy, library, own};
use crate::task::{self, Task};
use crate::tui::{
    self, Begin, Choice, Fork, Host, Left, ModelItem, Progress, Recording, RunItem, ScreenOptions, Source,
    StrategyItem, TaskItem, ThemeName,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What the endpoint is called in the list of models, before its address.
const ENDPOINT: &str = "endpoint:";

/// Recorded runs that the start screen offers.
const LISTED_RUNS: usize = 30;

/// Bytes of a file that is listed as a strategy at most.
const LISTED: u64 = 1 << 20;

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
    args.limits.limits()?;
    if let Some(path) = &args.record {
        Recorder::check_new(path)?;
    }
    if let Some(run) = &args.continued {
        let Again { puzzle, strategy, origin, .. } = Again::open(run, None, common, Some(args))?;
        lm::check_flags(&lm::with_strategy(common, &strategy))?;
        let task = origin.task.clone().unwrap_or_else(|| puzzle.task().to_string());
        let fork = fork(run.clone(), task, origin, false);
        return show(common, screen, Some(Begin::Fork(fork)), args);
    }
    let task = own::find(&args.puzzle.task, args.language.allow_commands)?;
    let (_, origin) = puzzle::puzzle(&args.puzzle, &task, common.seed)?;
    let strategy = solve::strategy(args.strategy.as_deref(), &task, &args.language)?;
    lm::check_flags(&lm::with_strategy(common, &strategy))?;
    let choice = Choice {
        task: args.puzzle.task.clone(),
        source: source(origin),
        strategy: args.strategy.clone().unwrap_or_else(|| strategy.name.clone()),
        model: common.model.clone().unwrap_or_else(store::default_spec),
    };
    show(common, screen, Some(Begin::Choice(choice)), args)
}

/// A recorded run on the screen; what is forked from it runs, and is told afterwards, as by `solve`.
pub fn replay(common: &Common, screen: &ScreenArgs, recording: Recording) -> Result<u8> {
    let runtime = runtime()?;
    let host = Program::new(common, &solve::defaults(), &runtime);
    let options = ScreenOptions { seed: common.seed, ..options(screen)? };
    finish(common, &tui::replay(Arc::new(host), recording, options)?)
}

/// A recorded run as the screen names it.
pub fn fork(run: String, task: String, origin: Origin, paused: bool) -> Fork {
    let choice = Choice { task, source: source(origin.puzzle), strategy: origin.strategy, model: origin.model };
    Fork { run, events: None, paused, choice }
}

fn source(origin: PuzzleOrigin) -> Source {
    match origin {
        PuzzleOrigin::Generated { size, seed } => Source::Generated { size, seed },
        PuzzleOrigin::Typed(text) => Source::Typed(text),
        PuzzleOrigin::File { path, id } => Source::File { path, id },
    }
}

fn origin(source: &Source) -> PuzzleOrigin {
    match source.clone() {
        Source::Generated { size, seed } => PuzzleOrigin::Generated { size, seed },
        Source::Typed(text) => PuzzleOrigin::Typed(text),
        Source::File { path, id } => PuzzleOrigin::File { path, id },
    }
}

/// Opens the screen, and prints the answer once it is closed.
fn show(common: &Common, screen: &ScreenArgs, begin: Option<Begin>, args: &SolveArgs) -> Result<u8> {
    // A model that cannot be read is refused before the screen opens.
    let mut common = common.clone();
    let endpoint_model = match &args.endpoint.endpoint {
        Some(url) => {
            endpoint::check(&common, &args.endpoint)?;
            common.model.replace(format!("{ENDPOINT}{url}"))
        }
        None => lm::check(&common).map(|()| None)?,
    };
    let begin = begin.map(|begin| match (begin, &common.model) {
        (Begin::Choice(choice), Some(model)) => Begin::Choice(Choice { model: model.clone(), ..choice }),
        (begin, _) => begin,
    });
    let runtime = runtime()?;
    let host = Program { endpoint_model, ..Program::new(&common, args, &runtime) };
    let options = ScreenOptions { seed: common.seed, ..options(screen)? };
    let left = tui::run(Arc::new(host), begin, options)?;
    finish(&common, &left)
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

/// The screen as the flags, the environment and the user's files ask for.
fn options(screen: &ScreenArgs) -> Result<ScreenOptions> {
    let theme = screen.theme.map(|t| match t {
        Theme::Light => ThemeName::Light,
        Theme::Dark => ThemeName::Dark,
        Theme::None => ThemeName::None,
    });
    Ok(ScreenOptions {
        keys: keys::read()?,
        copy_file: record::state_folder().and_then(|folder| inside(&folder, "copied.txt")).ok(),
        ..ScreenOptions::from_environment(theme, screen.no_mouse, screen.ascii)
    })
}

/// The program behind the screen. The model stays loaded between runs.
struct Program {
    common: Common,
    args: SolveArgs,
    /// The endpoint's own name of its model.
    endpoint_model: Option<String>,
    runtime: tokio::runtime::Handle,
    lm: Mutex<Option<(Loaded, Arc<dyn Lm>)>>,
    /// Runs started so far.
    runs: AtomicUsize,
}

/// What an engine was loaded for: a model, and a way to fetch its K/V.
type Loaded = (String, Option<offload::Options>);

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
    fn new(common: &Common, args: &SolveArgs, runtime: &tokio::runtime::Runtime) -> Self {
        Self {
            common: common.clone(),
            args: args.clone(),
            endpoint_model: None,
            runtime: runtime.handle().clone(),
            lm: Mutex::new(None),
            runs: AtomicUsize::new(0),
        }
    }

    fn model(&self, name: &str, strategy: &Strategy, progress: &Progress) -> Result<Arc<dyn Lm>> {
        let mut loaded = self.lm.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, lm)) = &*loaded
            && *at == (name.to_string(), strategy.offload)
        {
            return Ok(lm.clone());
        }
        // The old model's memory is given back before the new one takes its own.
        *loaded = None;
        if name.starts_with(ENDPOINT) {
            progress.say("asking the endpoint what it serves", None);
            let common = Common { model: self.endpoint_model.clone(), ..self.common.clone() };
            let lm = endpoint::open(&common, &self.args.endpoint, endpoint::CONNECTIONS)?;
            let lm = lm.ok_or_else(|| Error::input("there is no --endpoint"))?;
            endpoint::fits(strategy, lm.abilities())?;
            let lm: Arc<dyn Lm> = lm;
            return Ok(lm);
        }
        lm::fits(Some(name), strategy)?;
        let told = lm::Told::Screen(progress.clone());
        let lm = lm::open(
            &lm::with_strategy(&Common { model: Some(name.to_string()), ..self.common.clone() }, strategy),
            &told,
        )?;
        *loaded = Some(((name.to_string(), strategy.offload), lm.clone()));
        Ok(lm)
    }
}

impl Program {
    /// Starts a search, recorded as the flags say.
    fn launch(&self, spec: RunSpec, origin: Origin, progress: &Progress) -> Result<RunHandle> {
        if progress.is_cancelled() {
            return Err(Error::fault("nobody waits for this run any more"));
        }
        let header = Header::new(&*spec.puzzle, &spec.strategy, &*spec.lm, spec.seed, &solve::command_line());
        let mut args = self.args.clone();
        // Runs after the first one are recorded beside it.
        let before = self.runs.fetch_add(1, Ordering::Relaxed);
        args.record = args.record.map(|path| if before == 0 { path } else { numbered(&path, before + 1) });
        let quiet = Common { quiet: true, ..self.common.clone() };
        let record = solve::recorder(&quiet, &args, header.from(origin))?;
        let _inside = self.runtime.enter();
        start(RunSpec { record, ..spec })
    }

    fn task(&self, spec: &str) -> Result<AnyTask> {
        own::find(spec, self.args.language.allow_commands)
    }

    /// The flags about strategies count for the one that was named with them.
    fn options(&self, strategy: &str) -> Result<library::LoadOptions> {
        let named = self.args.strategy.as_deref().is_none_or(|named| named == strategy);
        if named { self.args.language.options() } else { Ok(library::LoadOptions::default()) }
    }
}

impl Host for Program {
    fn tasks(&self) -> Vec<TaskItem> {
        let item = |name: &str, t: &dyn Task| TaskItem {
            name: name.to_string(),
            about: t.about().to_string(),
            input_forms: t.input_forms().to_string(),
            example: t.example().to_string(),
            default_strategy: t.default_strategy().to_string(),
            default_size: t.default_size(),
        };
        let mut items: Vec<TaskItem> = task::all().iter().map(|task| item(task.name(), *task)).collect();
        let named = &self.args.puzzle.task;
        if own::names_file(named)
            && let Ok(task) = self.task(named)
        {
            items.push(item(named, &*task));
        }
        items
    }

    fn strategies(&self, task: &str) -> Vec<StrategyItem> {
        let Ok(of) = self.task(task) else { return Vec::new() };
        let first = of.default_strategy().to_string();
        let mut items: Vec<_> = library::list_for(of.name())
            .map(|i| StrategyItem {
                name: i.name.to_string(),
                about: library::read(i).map(|s| s.about).unwrap_or_default(),
                error: None,
            })
            .collect();
        items.sort_by_key(|i| i.name != first);
        for name in files_here() {
            if own::is_task(&read::text(Path::new(&name), LISTED).unwrap_or_default()) {
                continue;
            }
            items.push(match library::load_for(&name, &of, &library::LoadOptions::default()) {
                Ok(s) => StrategyItem { name, about: s.about.clone(), error: None },
                Err(e) => StrategyItem { name, about: String::new(), error: Some(e.message().to_string()) },
            });
        }
        if let Some(named) = &self.args.strategy
            && !items.iter().any(|i| i.name == *named)
        {
            items.insert(
                0,
                match self.options(named).and_then(|options| library::load_for(named, &of, &options)) {
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
        puzzle::of(&self.task(&choice.task)?, &origin(&choice.source)).map(|p| p.title())
    }

    fn start(&self, choice: &Choice, progress: &Progress) -> Result<RunHandle> {
        let from = origin(&choice.source);
        let task = self.task(&choice.task)?;
        let puzzle = puzzle::of(&task, &from)?;
        let options = self.options(&choice.strategy)?;
        let strategy = Arc::new(library::load_for(&choice.strategy, &task, &options)?);
        let seed = match &choice.source {
            Source::Generated { seed, .. } => *seed,
            Source::Typed(_) | Source::File { .. } => self.common.seed,
        };
        let common = Common { model: Some(choice.model.clone()), ..self.common.clone() };
        let puzzle_args = PuzzleArgs { task: choice.task.clone(), ..self.args.puzzle.clone() };
        let args = SolveArgs { strategy: Some(choice.strategy.clone()), puzzle: puzzle_args, ..self.args.clone() };
        let origin = Origin { set: options.set, ..solve::origin(&common, &args, from, &strategy)? };
        let lm = self.model(&choice.model, &strategy, progress)?;
        let limits = self.args.limits.limits()?;
        let spec = RunSpec { puzzle, strategy, lm, seed, paused: false, limits, record: None, before: None };
        self.launch(spec, origin, progress)
    }

    fn take_up(&self, fork: &Fork, progress: &Progress) -> Result<RunHandle> {
        // The flags about the strategy were given for the run that `--continue` names, not for what is forked later.
        let args = Some(&self.args).filter(|args| args.continued.as_ref() == Some(&fork.run));
        let again = Again::open(&fork.run, fork.events, &self.common, args)?;
        let lm = self.model(&again.origin.model, &again.strategy, progress)?;
        let (puzzle, strategy, origin, seed) =
            (again.puzzle.clone(), again.strategy.clone(), again.origin.clone(), again.seed);
        let before = Some(again.before(lm.info()));
        let limits = self.args.limits.limits()?;
        let spec = RunSpec { puzzle, strategy, lm, seed, paused: fork.paused, limits, record: None, before };
        self.launch(spec, origin, progress)
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
        // Others are no strategies, and to look into a pipe is to wait for whoever writes into it.
        .filter(|e| e.path().is_file())
        .filter_map(|e| e.file_name().into_string().ok())
        .filter(|n| n.ends_with(".yaml") || n.ends_with(".yml"))
        .take(100)
        .collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_runs_are_recorded_beside_the_first() {
        let name = |path: &str, number| numbered(Path::new(path), number).display().to_string();
        assert_eq!(name("a/run.jsonl", 2), "a/run-2.jsonl");
        assert_eq!(name("run", 3), "run-3");
        assert_eq!(name("run.v1.jsonl", 2), "run.v1-2.jsonl");
    }
}
