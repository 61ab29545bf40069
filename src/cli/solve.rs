//! `totara solve --no-tui`: one puzzle, progress on standard error, the answer on standard output.

use super::again::Again;
use super::args::{Common, EndpointArgs, LanguageArgs, LimitArgs, PuzzleArgs, SolveArgs};
use super::{endpoint, lm, out, puzzle, runtime};
use crate::base::text::{counted, sanitize_line};
use crate::base::{Error, Result};
use crate::batch::row::{Key, Row, Traffic, model_name};
use crate::lm::Lm;
use crate::model::store;
use crate::search::event::{Command, Event, Limits, Outcome, Reason};
use crate::search::record::{Header, Origin, PuzzleOrigin, Recorder};
use crate::search::run::{RunSpec, start};
use crate::search::tree::{Status, ThoughtTree};
use crate::strategy::{AnyTask, LoadOptions, Strategy, library, own};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a line is printed where standard error is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// What `totara` without a command and without a terminal solves.
pub fn defaults() -> SolveArgs {
    SolveArgs {
        puzzle: PuzzleArgs { task: "sorting".into(), input: None, size: None, data: None, id: None },
        strategy: None,
        language: LanguageArgs::default(),
        no_tui: true,
        continued: None,
        record: None,
        no_record: false,
        endpoint: EndpointArgs::default(),
        limits: LimitArgs::default(),
    }
}

impl LimitArgs {
    pub fn limits(&self) -> Result<Limits> {
        // As a strategy's budget has them.
        if let Some(s) = self.max_seconds.filter(|s| !(0.001..=1e9).contains(s)) {
            return Err(Error::input(format!(
                "--max-seconds {s:?}: give a number of seconds from 0.001 to 1000000000"
            )));
        }
        Ok(Limits { tokens: self.max_tokens, thoughts: self.max_thoughts, seconds: self.max_seconds })
    }
}

impl LanguageArgs {
    /// The flags as the strategy's reader takes them.
    pub fn options(&self) -> Result<LoadOptions> {
        let pair = |text: &String| {
            let named = text.split_once('=').filter(|(name, _)| !name.trim().is_empty());
            let (name, value) = named.ok_or_else(|| {
                Error::input(format!("--set {text}: write a variable and its value, such as width=3"))
            })?;
            Ok((name.trim().to_string(), value.to_string()))
        };
        let set = self.set.iter().map(pair).collect::<Result<_>>()?;
        Ok(LoadOptions { set, allow_commands: self.allow_commands })
    }
}

/// The strategy of that name or file, for that task; without one the task's own.
pub fn strategy(named: Option<&str>, task: &AnyTask, language: &LanguageArgs) -> Result<Arc<Strategy>> {
    let name = named.unwrap_or_else(|| task.default_strategy());
    library::load_for(name, task, &language.options()?).map(Arc::new)
}

/// Solves one puzzle and prints the answer, or the contract's row.
pub fn headless(common: &Common, args: &SolveArgs) -> Result<u8> {
    let limits = args.limits.limits()?;
    if let Some(path) = &args.record {
        Recorder::check_new(path)?;
    }
    let (puzzle, strategy, origin, seed, again) = match &args.continued {
        Some(run) => {
            let again = Again::open(run, None, common, Some(args))?;
            (again.puzzle.clone(), again.strategy.clone(), again.origin.clone(), again.seed, Some(again))
        }
        None => {
            let task = own::find(&args.puzzle.task, args.language.allow_commands)?;
            let (puzzle, from) = puzzle::puzzle(&args.puzzle, &task, common.seed)?;
            let strategy = strategy(args.strategy.as_deref(), &task, &args.language)?;
            let origin = origin(common, args, from, &strategy)?;
            (puzzle, strategy, origin, common.seed, None)
        }
    };
    // The seed also makes the weights of a random model.
    let lm_flags = Common { model: Some(origin.model.clone()), seed, ..common.clone() };
    let lm_flags = lm::with_strategy(&lm_flags, &strategy);
    lm::check_flags(&lm_flags)?;
    let lm: Arc<dyn Lm> = match endpoint::open(common, &args.endpoint, endpoint::CONNECTIONS)? {
        Some(server) => {
            endpoint::fits(&strategy, server.abilities())?;
            server
        }
        None => {
            lm::fits(lm_flags.model.as_deref(), &strategy)?;
            lm::open(&lm_flags, &lm::Told::new(common))?
        }
    };
    let model = model_name(&lm.info().name);
    let before = again.map(|again| again.before(lm.info()));
    let header = Header::new(&*puzzle, &strategy, &*lm, seed, &command_line()).from(origin);
    let record = recorder(common, args, header)?;
    let runtime = runtime()?;
    let _inside = runtime.enter();
    let spec =
        RunSpec { puzzle: puzzle.clone(), strategy: strategy.clone(), lm, seed, paused: false, limits, record, before };
    let engine = spec.lm.clone();
    let counted = engine.counters();
    let (outcome, signal) = runtime.block_on(drive(spec, common))?;
    if common.json {
        let key = Key {
            task: puzzle.task().to_string(),
            size: puzzle.size(),
            id: puzzle.id().to_string(),
            strategy: strategy.name.clone(),
            model,
            settings: args.language.set.join(", "),
        };
        let row = Row::new(key, &*puzzle, &outcome, Traffic::between(&counted, &engine.counters()));
        out::json(&serde_json::to_value(&row).map_err(|e| Error::fault(e.to_string()))?)?;
    } else {
        if !common.quiet {
            out::tell(&summary(&outcome));
        }
        if let Some(line) = answer_line(&outcome) {
            out::line(&line)?;
        }
    }
    Ok(signal.map_or(outcome.exit_code(), |s| 128 + s))
}

/// Where the run is recorded, as the flags say.
pub fn recorder(common: &Common, args: &SolveArgs, header: Header) -> Result<Option<Recorder>> {
    if args.no_record {
        return Ok(None);
    }
    match &args.record {
        Some(path) => Recorder::create_new_at(path, header).map(Some),
        // A state folder that cannot be written costs the record, not the run.
        None => Ok(Recorder::create(header)
            .map_err(|e| {
                if !common.quiet {
                    out::tell(&format!("the run is not recorded: {e}"));
                }
            })
            .ok()),
    }
}

/// Where a run of these flags is started from, so that its record says how to go on with it from any folder.
pub fn origin(common: &Common, args: &SolveArgs, puzzle: PuzzleOrigin, strategy: &Strategy) -> Result<Origin> {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let file = |name: String| match Path::new(&name).exists() {
        true => absolute(Path::new(&name)).to_string_lossy().into_owned(),
        false => name,
    };
    Ok(Origin {
        puzzle: match puzzle {
            PuzzleOrigin::File { path, id } => PuzzleOrigin::File { path: absolute(&path), id },
            other => other,
        },
        strategy: match &args.strategy {
            Some(named) if !strategy.origin.starts_with("built-in") => file(named.clone()),
            Some(named) => named.clone(),
            None if strategy.origin.starts_with("built-in") => strategy.name.clone(),
            // A task's own file.
            None => file(strategy.origin.clone()),
        },
        task: own::names_file(&args.puzzle.task).then(|| file(args.puzzle.task.clone())),
        set: args.language.options()?.set,
        model: file(common.model.clone().unwrap_or_else(store::default_spec)),
    })
}

/// The command line as given, for the record.
pub fn command_line() -> Vec<String> {
    std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect()
}

/// Runs the search to its end; a signal asks it to stop, so that the best answer so far is still told.
async fn drive(spec: RunSpec, common: &Common) -> Result<(Outcome, Option<u8>)> {
    let mut signals = super::signals::Signals::new()?;
    let mut told = Told::new(common);
    let mut handle = start(spec)?;
    let mut signal = None;
    loop {
        tokio::select! {
            event = handle.events.recv() => match event {
                Some(Event::Ended { outcome }) => {
                    told.finish();
                    return Ok((outcome, signal));
                }
                Some(event) => told.event(&event),
                None => return Err(Error::fault("the search stopped without an end; this is a fault of the program")),
            },
            number = signals.next() => {
                // The second one does not wait for the search to save itself.
                if signal.replace(number).is_some() {
                    std::process::exit(128 + i32::from(number));
                }
                drop(handle.commands.send(Command::Quit));
            }
        }
    }
}

/// Progress on standard error: one line that changes on a terminal, a line now and then elsewhere.
struct Told {
    bar: Option<ProgressBar>,
    lines: bool,
    verbose: bool,
    last: Instant,
    tree: ThoughtTree,
}

impl Told {
    fn new(common: &Common) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = (!common.quiet && terminal).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
            if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {wide_msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Self {
            bar,
            lines: !common.quiet && !terminal,
            verbose: common.verbose > 0 && !common.quiet,
            last: Instant::now(),
            tree: ThoughtTree::default(),
        }
    }

    fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| out::tell(text)),
            None => out::tell(text),
        }
    }

    fn event(&mut self, event: &Event) {
        if self.verbose {
            drop(self.tree.apply(event));
        }
        match event {
            Event::Note { text } if self.bar.is_some() || self.lines => {
                self.say(&format!("note: {}", sanitize_line(text)))
            }
            Event::Status { node, status: status @ (Status::Pruned | Status::Answer), why } if self.verbose => {
                let text = sanitize_line(&self.tree.path_text(*node));
                let why = why.as_deref().map(sanitize_line).unwrap_or_default();
                self.say(&format!("{node} {status:?} {text:?}: {why}"));
            }
            Event::Progress { depth, frontier, best_score, thoughts, usage, seconds, .. } => {
                let line = format!(
                    "depth {depth}, {} ({frontier} open), best score {best_score:.3}, {}",
                    counted(*thoughts, "thought", "thoughts"),
                    counted(usage.tokens(), "token", "tokens")
                );
                if let Some(bar) = &self.bar {
                    bar.set_message(line);
                } else if self.lines && self.last.elapsed() >= LINE_EVERY {
                    self.last = Instant::now();
                    out::tell(&format!("{seconds:.0} s: {line}"));
                }
            }
            _ => {}
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// How a run ended, for people.
pub fn summary(outcome: &Outcome) -> String {
    let verdict = if outcome.solved { "solved" } else { "not solved" };
    let reason = match &outcome.reason {
        Reason::Solved => String::new(),
        // May hold text of a model file or of a strategy.
        reason => format!(" ({})", sanitize_line(&reason.to_string())),
    };
    format!(
        "{verdict}{reason}: {}; {}, {} computed ({} prompt, {} sampled, {} scored), {:.1} s",
        sanitize_line(&outcome.why),
        counted(outcome.thoughts, "thought", "thoughts"),
        counted(outcome.usage.tokens(), "token", "tokens"),
        outcome.usage.prompt,
        outcome.usage.sampled,
        outcome.usage.scored,
        outcome.seconds
    )
}

/// The answer for standard output: as the puzzle read it, else the text of the best thought.
pub fn answer_line(outcome: &Outcome) -> Option<String> {
    match (&outcome.answer, &outcome.answer_text) {
        (Some(Value::String(text)), _) => Some(sanitize_line(text)),
        (Some(value), _) => Some(value.to_string()),
        (None, Some(text)) => Some(sanitize_line(text)),
        (None, None) => None,
    }
}
