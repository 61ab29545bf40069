//! From flags to a language model: our engine, a script, or chance.

use super::args::{Activations, Common, Speculate};
use super::out;
use crate::attention::Method;
use crate::base::size::Human;
use crate::base::text::sanitize_line;
use crate::base::{Error, Result};
use crate::device::cpu;
use crate::device::cpu::arena::KvNumber;
use crate::lm::Lm;
use crate::lm::engine::{EngineLm, EngineOptions};
use crate::lm::random::RandomProposer;
use crate::lm::scripted::Scripted;
use crate::model::list::{self, State};
use crate::model::store::{self, Progress};
use crate::model::{self, Model, OpenOptions};
use crate::tui::ModelItem;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::path::Path;
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
    /// The screen's progress line: what, and the share done where known.
    To(Box<dyn Fn(String, Option<f64>) + Send + Sync>),
}

/// How often a line about a download is printed where standard error is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

impl Told {
    pub fn new(common: &Common) -> Self {
        match (common.quiet, std::io::stderr().is_terminal()) {
            (true, _) => Self::Quiet,
            (false, true) => Self::Bar(Mutex::new(None)),
            (false, false) => Self::Lines(Mutex::new(None)),
        }
    }

    pub fn to(tell: impl Fn(String, Option<f64>) + Send + Sync + 'static) -> Self {
        Self::To(Box::new(tell))
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
            Self::To(tell) => tell(text, None),
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
            Self::To(tell) => {
                tell(
                    format!("fetching the model: {} of {}", Human(done), Human(total)),
                    Some(done as f64 / total.max(1) as f64),
                );
            }
        }
    }
}

/// The language model that the flags name.
pub fn open(common: &Common, told: &Told) -> Result<Arc<dyn Lm>> {
    match common.model.as_deref() {
        Some("random-proposer") => Ok(Arc::new(RandomProposer::default())),
        Some(name) if name.starts_with("scripted:") => {
            Ok(Arc::new(Scripted::open(Path::new(name.trim_start_matches("scripted:")))?))
        }
        _ => Ok(engine(common, told)?),
    }
}

/// Our engine with the model that the flags name.
pub fn engine(common: &Common, told: &Told) -> Result<Arc<EngineLm>> {
    let options = engine_options(common)?;
    EngineLm::start(model(common, told)?, &options)
}

/// The model alone.
pub fn model(common: &Common, told: &Told) -> Result<Model> {
    let spec = common.model.clone().unwrap_or_else(store::default_spec);
    if spec == "random-proposer" || spec.starts_with("scripted:") {
        return Err(Error::input(format!(
            "--model {spec} has no weights; name a GGUF file, a folder or a known model"
        )));
    }
    let options = OpenOptions {
        model_dir: common.model_dir.as_deref(),
        chat_template: common.chat_template.as_deref(),
        seed: common.seed,
        progress: told,
    };
    model::open(&spec, &options)
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
        method: Method::live(&common.attention)?,
        speculate: common.speculate == Speculate::Ngram,
        ..EngineOptions::default()
    })
}

/// Models for the start screen, the one that the flags name first.
pub fn choices(common: &Common) -> Vec<ModelItem> {
    let named = common.model.clone().unwrap_or_else(store::default_spec);
    let mut items: Vec<ModelItem> = list::list(common.model_dir.as_deref())
        .into_iter()
        .map(|entry| {
            let (bytes, note, error) = match entry.state {
                State::Info(info) => {
                    (Some(info.file_bytes), format!("{} layers, context {}", info.layers, info.context), None)
                }
                State::NotFetched(bytes) => (Some(bytes), "fetched on first use".to_string(), None),
                State::Bad(why) => (None, String::new(), Some(why)),
            };
            ModelItem { name: entry.name, bytes, note, error }
        })
        .collect();
    items.push(ModelItem {
        name: "random-proposer".into(),
        bytes: None,
        note: "chance in the model's place: the control".into(),
        error: None,
    });
    match items.iter().position(|i| i.name == named) {
        Some(at) => items[..=at].rotate_right(1),
        None => items.insert(0, ModelItem { name: named, bytes: None, note: String::new(), error: None }),
    }
    items
}
