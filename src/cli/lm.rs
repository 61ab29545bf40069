//! From flags to a language model: our engine, a script, or chance.

use super::args::{self, Activations, Common, OffloadArgs, Speculate};
use super::{out, signals};
use crate::attention::Method;
use crate::base::size::{Human, free_ram};
use crate::base::text::sanitize_line;
use crate::base::{Error, Result};
use crate::device::cpu;
use crate::device::cpu::arena::KvNumber;
use crate::device::cuda::driver;
use crate::device::speculation::Look;
use crate::kv::residency::Eviction;
use crate::lm::Lm;
use crate::lm::engine::{EngineLm, EngineOptions, check_device, needed_bytes};
use crate::lm::random::RandomProposer;
use crate::lm::scripted::Scripted;
use crate::model::info::ModelInfo;
use crate::model::list::{self, State};
use crate::model::store::{self, Progress};
use crate::model::template::ChatTemplate;
use crate::model::{self, Model, OpenOptions};
use crate::offload;
use crate::strategy::Strategy;
use crate::tui::{self, ModelItem};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How loading tells what it does.
pub enum Told {
    /// Nobody listens.
    Quiet,
    /// A bar on standard error, which is a terminal.
    Bar(Mutex<Option<ProgressBar>>),
    /// A line on standard error now and then.
    Lines(Mutex<Option<Instant>>),
    /// The screen's progress line, which also knows whether anybody still waits.
    Screen(tui::Progress),
}

/// How often a line about a download is printed where standard error is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// The name of chance in a model's place.
pub const CHANCE: &str = "random-proposer";

impl Told {
    pub fn new(common: &Common) -> Self {
        match (common.quiet, std::io::stderr().is_terminal()) {
            (true, _) => Self::Quiet,
            (false, true) => Self::Bar(Mutex::new(None)),
            (false, false) => Self::Lines(Mutex::new(None)),
        }
    }

    /// Takes a bar away that is still there.
    fn clear(&self) {
        if let Self::Bar(bar) = self
            && let Some(bar) = bar.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            bar.finish_and_clear();
        }
    }
}

impl Progress for Told {
    fn say(&self, text: &str) {
        let text = sanitize_line(text);
        match self {
            Self::Quiet => {}
            Self::Bar(bar) => match &*bar.lock().unwrap_or_else(PoisonError::into_inner) {
                Some(bar) => bar.suspend(|| out::tell(&text)),
                None => out::tell(&text),
            },
            Self::Lines(_) => out::tell(&text),
            Self::Screen(progress) => progress.say(text, None),
        }
    }

    fn bytes(&self, done: u64, total: u64) {
        match self {
            Self::Quiet => {}
            Self::Bar(bar) => {
                let mut bar = bar.lock().unwrap_or_else(PoisonError::into_inner);
                let shown = bar.get_or_insert_with(|| {
                    let bar = ProgressBar::new(total);
                    if let Ok(style) =
                        ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
                    {
                        bar.set_style(style);
                    }
                    bar
                });
                shown.set_length(total.max(done));
                shown.set_position(done);
                if done >= total {
                    shown.finish_and_clear();
                }
            }
            Self::Lines(last) => {
                let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                if last.is_none_or(|at| at.elapsed() >= LINE_EVERY) {
                    *last = Some(Instant::now());
                    out::tell(&format!("{} of {}", Human(done), Human(total)));
                }
            }
            Self::Screen(progress) => progress.say(
                format!("fetching the model: {} of {}", Human(done), Human(total)),
                Some(done as f64 / total.max(1) as f64),
            ),
        }
    }

    fn cancelled(&self) -> bool {
        match self {
            Self::Screen(progress) => progress.is_cancelled(),
            Self::Quiet | Self::Bar(_) | Self::Lines(_) => signals::pending(),
        }
    }
}

/// The file of a known model, fetched where it is not there. A signal meanwhile ends the program once nothing half-made
/// is left; the screen has signals and a way to cancel of its own.
pub fn fetch(name: &str, told: &Told) -> Result<PathBuf> {
    let ensured = || {
        let path = store::ensure(name, told);
        told.clear();
        path
    };
    if matches!(told, Told::Screen(_)) { ensured() } else { signals::during(ensured) }
}

/// Fetches what `--model` names, where that is a known model and not a file.
pub fn fetch_named(spec: &str, told: &Told) -> Result<()> {
    if store::known(spec).is_some() && !Path::new(spec).exists() {
        fetch(spec, told)?;
    }
    Ok(())
}

/// Refuses what the model could not do anything with, before anything runs.
pub fn fits(model: Option<&str>, strategy: &Strategy) -> Result<()> {
    if model == Some(CHANCE) && !strategy.leaves_chance_a_choice() {
        return Err(Error::input(format!(
            "strategy `{}` leaves {CHANCE} nothing to choose from: set `constrain` under `generate`, or run it on a model",
            strategy.name
        )));
    }
    Ok(())
}

/// The language model that the flags name.
pub fn open(common: &Common, told: &Told) -> Result<Arc<dyn Lm>> {
    check_flags(common)?;
    match common.model.as_deref() {
        Some(CHANCE) => Ok(Arc::new(RandomProposer::default())),
        Some(name) if name.starts_with("scripted:") => {
            Ok(Arc::new(Scripted::open(Path::new(name.trim_start_matches("scripted:")))?))
        }
        _ => Ok(engine(common, told)?),
    }
}

/// Every engine that the flags name: one on each card for `--device cuda:all`, else one.
pub fn open_all(common: &Common, told: &Told) -> Result<Vec<Arc<dyn Lm>>> {
    let no_weights = common.model.as_deref().is_some_and(|m| m == CHANCE || m.starts_with("scripted:"));
    if common.device != "cuda:all" || no_weights {
        return Ok(vec![open(common, told)?]);
    }
    let cards = driver::count().map_err(|e| Error::input(format!("--device cuda:all: {}", e.message())))?;
    if cards == 0 {
        return Err(Error::input("--device cuda:all: the driver shows no card; use --device cpu"));
    }
    let one = |card| open(&Common { device: format!("cuda:{card}"), ..common.clone() }, told);
    (0..cards).map(one).collect()
}

/// A model that is named but cannot be read is refused before anything runs, and so is what it would run with. Known names are fetched when they are opened.
pub fn check(common: &Common) -> Result<()> {
    let spec = common.model.clone().unwrap_or_else(store::default_spec);
    if let Some(path) = spec.strip_prefix("scripted:") {
        return Scripted::open(Path::new(path)).map(drop);
    }
    if spec != CHANCE {
        check_model_dir(common)?;
        if let Some(path) = &common.chat_template {
            ChatTemplate::from_file(path, "", "")?;
        }
        if common.device.starts_with("cuda") {
            driver::count().map_err(|e| Error::input(format!("--device {}: {}", common.device, e.message())))?;
        }
    }
    let made_up = ["random:", "hf:"].iter().any(|kind| spec.starts_with(kind)) || spec == CHANCE;
    if made_up || (store::known(&spec).is_some() && !Path::new(&spec).exists()) {
        return Ok(());
    }
    let options = OpenOptions { model_dir: common.model_dir.as_deref(), ..OpenOptions::default() };
    model::info(&model::resolve(&spec, &options)?).map(|_| ())
}

/// Our engine with the model that the flags name.
fn engine(common: &Common, told: &Told) -> Result<Arc<EngineLm>> {
    let options = engine_options(common)?;
    EngineLm::start(model(common, told)?, &options)
}

/// The model alone.
pub fn model(common: &Common, told: &Told) -> Result<Model> {
    let spec = common.model.clone().unwrap_or_else(store::default_spec);
    check_weights(&spec)?;
    check_model_dir(common)?;
    fetch_named(&spec, told)?;
    let options = OpenOptions {
        model_dir: common.model_dir.as_deref(),
        chat_template: common.chat_template.as_deref(),
        seed: common.seed,
        progress: told,
    };
    model::open(&spec, &options)
}

/// Refuses the models that are none.
pub fn check_weights(spec: &str) -> Result<()> {
    if spec == CHANCE || spec.starts_with("scripted:") {
        return Err(Error::input(format!(
            "--model {spec} has no weights; name a GGUF file, a folder or a known model"
        )));
    }
    Ok(())
}

/// A folder of models that is not there is a slip of the pen, and not a folder without models.
pub fn check_model_dir(common: &Common) -> Result<()> {
    match &common.model_dir {
        Some(folder) if !folder.is_dir() => {
            Err(Error::input(format!("--model-dir {}: no such folder", folder.display())))
        }
        Some(folder) => match std::fs::read_dir(folder) {
            Ok(_) => Ok(()),
            Err(e) => Err(Error::input(format!("--model-dir {} cannot be read: {e}", folder.display()))),
        },
        None => Ok(()),
    }
}

/// The flags with what a strategy says of offload, which counts where no flag does.
pub fn with_strategy(common: &Common, strategy: &Strategy) -> Common {
    let offload = OffloadArgs { of_strategy: strategy.offload, ..common.offload.clone() };
    Common { offload, ..common.clone() }
}

/// What the offload flags say, and the strategy where they say nothing.
fn offload_options(args: &OffloadArgs) -> Result<offload::Options> {
    let usual = match (args.offload, args.of_strategy) {
        (None, Some(options)) => options,
        (method, _) => offload::Options { method: method.unwrap_or_default(), ..offload::Options::default() },
    };
    let eviction = args.offload_eviction.map(|eviction| match eviction {
        args::Eviction::Counter => Eviction::Counter,
        args::Eviction::Fifo => Eviction::Fifo,
        args::Eviction::Lru => Eviction::Lru,
    });
    let look = args.offload_look.map(|look| match look {
        args::Look::Ahead => Look::Ahead,
        args::Look::Half => Look::Half,
        args::Look::Same => Look::Same,
    });
    let options = offload::Options {
        method: usual.method,
        alpha: args.offload_alpha.unwrap_or(usual.alpha),
        ratio: args.offload_ratio.unwrap_or(usual.ratio),
        max_fetch: args.offload_max_fetch.unwrap_or(usual.max_fetch),
        capacity: args.offload_capacity.or(usual.capacity),
        eviction: eviction.unwrap_or(usual.eviction),
        look: look.or(usual.look),
        whole_layers: args.offload_whole_layers.or(usual.whole_layers),
    };
    options.check()?;
    if !offload::Method::LIVE.contains(&options.method) {
        return Err(Error::input(format!(
            "offload method `{}` is for `totara bench offload` only; a run takes {}",
            options.method,
            offload::Method::LIVE.map(|m| m.name()).join(", ")
        )));
    }
    Ok(options)
}

/// Refuses what no engine takes of the flags, whatever stands in the model's place, and before anything is made.
pub fn check_flags(common: &Common) -> Result<()> {
    check_settings(&common.offload)?;
    check_values(common)
}

/// Refuses values that no engine takes; what they are of may still be said by a strategy.
pub fn check_values(common: &Common) -> Result<()> {
    check_device(&common.device)?;
    engine_options(common).map(drop)
}

/// Refuses a setting of offload where nothing names a method: it would change nothing.
fn check_settings(args: &OffloadArgs) -> Result<()> {
    let settings = [
        ("alpha", args.offload_alpha.is_some()),
        ("ratio", args.offload_ratio.is_some()),
        ("max-fetch", args.offload_max_fetch.is_some()),
        ("capacity", args.offload_capacity.is_some()),
        ("eviction", args.offload_eviction.is_some()),
        ("look", args.offload_look.is_some()),
        ("whole-layers", args.offload_whole_layers.is_some()),
    ];
    match settings.into_iter().find(|(_, given)| *given) {
        Some((name, _)) if args.offload.is_none() && args.of_strategy.is_none() => Err(Error::input(format!(
            "--offload-{name} says how a method fetches: give an --offload method with it, such as infinigen-tree"
        ))),
        _ => Ok(()),
    }
}

/// The engine's options, as the flags say.
pub fn engine_options(common: &Common) -> Result<EngineOptions> {
    let activations = match common.activations {
        Activations::Int8 => cpu::Activations::Int8,
        Activations::F32 => cpu::Activations::F32,
    };
    Ok(EngineOptions {
        device: common.device.clone(),
        threads: common.threads.map(usize::from),
        activations,
        // The exact path keeps exact keys and values too.
        kv: if activations == cpu::Activations::F32 { KvNumber::F32 } else { KvNumber::F16 },
        kv_budget: common.kv_budget,
        offload: offload_options(&common.offload)?,
        ram_budget: common.ram_budget,
        method: Method::live(&common.attention)?,
        speculate: common.speculate == Speculate::Ngram,
        ..EngineOptions::default()
    })
}

/// Models for the start screen, the one that the flags name first.
pub fn choices(common: &Common) -> Vec<ModelItem> {
    let named = common.model.clone().unwrap_or_else(store::default_spec);
    let free = free_ram();
    let mut items: Vec<ModelItem> = list::list(common.model_dir.as_deref())
        .into_iter()
        .map(|entry| match entry.state {
            State::Info(info) => item(entry.name, &info, free),
            State::NotFetched(bytes) => {
                let note = format!("fetched on first use; {}", fit(bytes, free));
                ModelItem { name: entry.name, bytes: Some(bytes), note, error: None }
            }
            State::Bad(why) => ModelItem { name: entry.name, bytes: None, note: String::new(), error: Some(why) },
        })
        .collect();
    items.push(ModelItem {
        name: CHANCE.into(),
        bytes: None,
        note: "chance in the model's place: the control".into(),
        error: None,
    });
    match items.iter().position(|i| i.name == named) {
        Some(at) => items[..=at].rotate_right(1),
        None => {
            let path = Path::new(&named);
            let named = match path.exists().then(|| model::info(path)) {
                Some(Ok(info)) => item(named, &info, free),
                Some(Err(why)) => {
                    ModelItem { name: named, bytes: None, note: String::new(), error: Some(why.message().to_string()) }
                }
                None => ModelItem { name: named, bytes: None, note: String::new(), error: None },
            };
            items.insert(0, named);
        }
    }
    items
}

fn item(name: String, info: &ModelInfo, free: Option<u64>) -> ModelItem {
    let note = format!("{}, {} layers, context {}", fit(info.file_bytes, free), info.layers, info.context);
    ModelItem { name, bytes: Some(info.file_bytes), note, error: None }
}

/// Whether weights of so many bytes fit into the free memory. A card's own memory is asked for only when a run starts.
fn fit(bytes: u64, free: Option<u64>) -> String {
    match free {
        None => "free memory not known".into(),
        Some(free) if needed_bytes(bytes) <= free => format!("fits ({} free)", Human(free)),
        Some(free) => format!("too large: {} free", Human(free)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Cli;
    use clap::Parser as _;

    fn offload(flags: &[&str], of_strategy: Option<offload::Options>) -> OffloadArgs {
        let words = ["totara", "complete", "--prompt", "x"].iter().chain(flags);
        OffloadArgs { of_strategy, ..Cli::try_parse_from(words).unwrap().common.offload }
    }

    /// A setting on the command line counts whoever names the method, and is refused where nobody does.
    #[test]
    fn no_setting_of_offload_is_passed_over() {
        let usual = offload::Options::default();
        let strategy = offload::Options { method: offload::Method::Infinigen, alpha: 2.0, ratio: 0.5, ..usual };
        let read = |flags: &[&str], of_strategy| offload_options(&offload(flags, of_strategy)).unwrap();
        assert_eq!(read(&[], None), usual);
        assert_eq!(read(&[], Some(strategy)), strategy);
        assert_eq!(read(&["--offload-alpha", "3"], Some(strategy)), offload::Options { alpha: 3.0, ..strategy });
        let full = offload::Options { method: offload::Method::Full, ..usual };
        assert_eq!(read(&["--offload", "full"], Some(strategy)), full, "--offload comes before the strategy");
        let settings = [
            ["--offload-alpha", "3"],
            ["--offload-ratio", "0.5"],
            ["--offload-max-fetch", "0.5"],
            ["--offload-capacity", "1MiB"],
            ["--offload-eviction", "lru"],
            ["--offload-look", "same"],
            ["--offload-whole-layers", "2"],
        ];
        for setting in settings {
            let refused = check_settings(&offload(&setting, None)).unwrap_err();
            assert!(refused.message().contains(setting[0]) && refused.exit_code() == 2, "{refused}");
            assert!(check_settings(&offload(&setting, Some(strategy))).is_ok(), "{setting:?}");
            let named = [&setting[..], &["--offload", "infinigen"]].concat();
            assert!(check_settings(&offload(&named, None)).is_ok(), "{setting:?}");
        }
        assert!(check_settings(&offload(&[], None)).is_ok());
    }
}
