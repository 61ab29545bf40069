//! Our own engine as a language model: prompts become token ids, memory is checked before anything is taken.

use super::{Cost, Counters, Format, Generate, HeldKv, Hold, Info, Lm, Mode, Part, Prompt, Score, Scores, Update};
use crate::attention::Method;
use crate::base::size::{Human, Size};
use crate::base::{Error, Result};
use crate::device::Shape;
use crate::device::cpu::Activations;
use crate::device::cpu::arena::KvNumber;
use crate::device::weight::{self, Weights};
use crate::engine::request::{self, Listed};
use crate::engine::vocab::Vocab;
use crate::engine::{Engine, Limits, partial_row_bytes};
use crate::kv::PAGE_TOKENS;
use crate::model::Model;
use crate::model::llama::Llama;
use crate::model::prompt::{self, Form, Tail};
use crate::model::template::ChatTemplate;
use crate::model::tokenizer::Tokenizer;
use crate::offload::{self, skew::Skew};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

mod memo;
mod place;
mod skewing;

use memo::Memo;
use place::Place;
pub use place::check_device;
pub use skewing::Sample;

/// K/V tokens that the default budget holds at most.
const DEFAULT_TOKENS: usize = 65_536;

/// Percent of the free memory that the default budget takes at most.
const DEFAULT_PERCENT: f64 = 25.0;

/// Memory for the activations, the tokenizer and the program itself, above weights and K/V.
const SPARE_BYTES: u64 = 96 << 20;

/// How the engine is to run; the flags of the command line.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// `auto`, `cpu`, `cuda` or `cuda:N`.
    pub device: String,
    /// `None`: as many as there are cores.
    pub threads: Option<usize>,
    pub activations: Activations,
    pub kv: KvNumber,
    /// K/V on the device. `None`: what 64k tokens need, at most a quarter of the free memory.
    pub kv_budget: Option<Size>,
    pub offload: offload::Options,
    /// K/V in the host tier, with an offload method alone. `None`: as `kv_budget` where that is `None`.
    pub ram_budget: Option<Size>,
    pub method: Method,
    /// Whether tokens are drafted from the text so far and verified together.
    pub speculate: bool,
    /// Tokens a path may have; `None`: what the model was made for.
    pub context: Option<usize>,
    /// Rows of a step, and prompt rows of a step in which others decode; `None`: the engine's own choice.
    pub step_rows: Option<usize>,
    pub mixed_rows: Option<usize>,
    /// Whether a card replays steps of a shape that came before.
    pub graphs: bool,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            device: "auto".into(),
            threads: None,
            activations: Activations::Int8,
            kv: KvNumber::F16,
            kv_budget: None,
            offload: offload::Options::default(),
            ram_budget: None,
            method: Method::default(),
            speculate: false,
            context: None,
            step_rows: None,
            mixed_rows: None,
            graphs: true,
        }
    }
}

/// A model on our engine.
pub struct EngineLm {
    info: Info,
    engine: Engine,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    vocab: Arc<Vocab>,
    heads: Memo<Form>,
    spelled: Memo<()>,
}

impl EngineLm {
    /// Checks memory, takes weights and K/V pages, and starts the engine. Refused before loading: too little memory (with
    /// the numbers and the flag), an unknown device, a context longer than the model's.
    pub fn start(model: Model, options: &EngineOptions) -> Result<Arc<Self>> {
        let vocab = Arc::new(Vocab::of(&model.tokenizer, model.weights.shape.vocab));
        let checksum = model.checksum()?;
        let sample = Sample::of(&model, options)?;
        let Loaded { llama, limits, device, .. } = load(model.weights, options, sample.as_ref())?;
        let info = Info {
            name: model.info.name.clone(),
            checksum,
            context: Some(limits.context),
            chat_template: model.template.is_some(),
            masks: true,
            device,
        };
        let engine = Engine::start(llama, Arc::clone(&vocab), limits)?;
        Ok(Arc::new(Self {
            info,
            engine,
            tokenizer: model.tokenizer,
            template: model.template,
            vocab,
            heads: Memo::default(),
            spelled: Memo::default(),
        }))
    }

    /// The prompt's token ids, with exactly one BOS where the model wants one.
    pub fn ids(&self, prompt: &Prompt) -> Result<Vec<u32>> {
        let form = match prompt.format {
            Format::Completion => Form::Completion,
            Format::Raw => Form::Raw,
            Format::Chat => Form::Chat,
        };
        let tail: Vec<Tail<'_>> = prompt
            .tail
            .iter()
            .map(|part| match part {
                Part::Text(text) => Tail::Text(text),
                Part::Tokens { ids, .. } => Tail::Tokens(ids),
            })
            .collect();
        let find = || prompt::head(&self.tokenizer, self.template.as_ref(), form, &prompt.text);
        let mut ids = self.heads.get(form, &prompt.text, find)?.to_vec();
        prompt::go_on(&self.tokenizer, &mut ids, &tail);
        Ok(ids)
    }

    fn request(&self, request: Generate) -> Result<request::Generate> {
        let listed = match (request.mode, &request.constraint) {
            (Mode::Likeliest, Some(rule)) => rule.choices().map(|texts| self.spell_all(texts)).transpose()?,
            _ => None,
        };
        Ok(request::Generate {
            prompt: self.ids(&request.prompt)?.into(),
            mode: request.mode,
            n: request.n,
            sampling: request.sampling,
            max_tokens: request.max_tokens,
            stop: request.stop,
            constraint: request.constraint,
            listed,
            likelihood: request.likelihood,
            key: request.key,
        })
    }

    fn spell_all(&self, texts: Vec<String>) -> Result<Vec<Listed>> {
        texts.into_iter().map(|text| Ok(Listed { ids: self.spell(&text)?, text })).collect()
    }

    /// A text that goes on after a prompt, in tokens that write exactly its bytes.
    fn spell(&self, text: &str) -> Result<Vec<u32>> {
        let find = || {
            let ids = self.vocab.spell(text.as_bytes(), self.tokenizer.encode_continued(text));
            ids.ok_or_else(|| Error::input(format!("the model's vocabulary cannot spell `{text}`")))
        };
        Ok(self.spelled.get((), text, find)?.to_vec())
    }
}

impl Lm for EngineLm {
    fn info(&self) -> &Info {
        &self.info
    }

    fn count_tokens(&self, prompt: &Prompt) -> Option<usize> {
        self.ids(prompt).ok().map(|ids| ids.len())
    }

    fn generate(&self, request: Generate) -> mpsc::UnboundedReceiver<Update> {
        match self.request(request) {
            Ok(request) => self.engine.generate(request),
            Err(error) => {
                let (sender, receiver) = mpsc::unbounded_channel();
                // A receiver that is gone wants no answer.
                let _ = sender.send(Update::Failed(error));
                receiver
            }
        }
    }

    fn costs(&self, requests: &[&Generate]) -> oneshot::Receiver<Vec<Cost>> {
        let spelled: Result<Vec<request::Generate>> =
            requests.iter().map(|&request| self.request(request.clone())).collect();
        let Ok(spelled) = spelled else {
            let (sender, receiver) = oneshot::channel();
            // What cannot be spelled costs nothing, and says so itself when it is sent.
            let _ = sender.send(vec![Cost::default(); requests.len()]);
            return receiver;
        };
        self.engine.costs(spelled)
    }

    fn score(&self, request: Score) -> oneshot::Receiver<Result<Scores>> {
        let prompt = self.ids(&request.prompt);
        let continuations = request.continuations.iter().map(|text| self.spell(text)).collect::<Result<Vec<_>>>();
        match prompt.and_then(|prompt| Ok(request::Score { prompt: prompt.into(), continuations: continuations? })) {
            Ok(request) => self.engine.score(request),
            Err(error) => {
                let (sender, receiver) = oneshot::channel();
                // A receiver that is gone wants no answer.
                let _ = sender.send(Err(error));
                receiver
            }
        }
    }

    fn counters(&self) -> Counters {
        self.engine.counters()
    }

    fn check(&self) -> oneshot::Receiver<Result<()>> {
        self.engine.check()
    }

    fn held(&self, holds: &[&Hold]) -> Vec<Option<HeldKv>> {
        self.engine.held(holds)
    }

    fn expect(&self, soon: &[&Hold], later: &[&Hold]) {
        self.engine.expect(soon, later);
    }
}

/// Memory that a model of such a file needs beside its K/V, about: its weights, and room to work in.
pub fn needed_bytes(file_bytes: u64) -> u64 {
    file_bytes + SPARE_BYTES
}

/// What the engine may take on, for a model of this shape; what the device says of itself is filled in once it is there.
fn limits(shape: &Shape, options: &EngineOptions) -> Result<Limits> {
    let mut limits = Limits::new(shape, options.method, 1);
    limits.speculate = options.speculate;
    if let Some(context) = options.context {
        if context == 0 || context > shape.context {
            return Err(Error::input(format!(
                "a context of {context} tokens: the model was made for 1 to {}",
                shape.context
            )));
        }
        limits.context = context;
    }
    Ok(limits)
}

/// Opens the device, puts the weights on it with as many K/V pages as the budget holds, and fits the limits to it.
/// `sample` is [`Sample::of`] the model and these options.
pub fn load(weights: Weights, options: &EngineOptions, sample: Option<&Sample>) -> Result<Loaded> {
    let shape = weights.shape.clone();
    let mut limits = limits(&shape, options)?;
    let place = Place::choose(&options.device, &weights.shape)?;
    let note = match &place {
        Place::Cpu { note } => note.clone(),
        Place::Cuda(_) => None,
    };
    let (llama, skew) = place.load(weights, options, sample)?;
    // A card's threads are not the CPU's: its work is neither split nor counted for those.
    limits.parallel.threads = llama.device().attend_threads();
    limits.partial_row_bytes = partial_row_bytes(&shape, llama.device().partial_sums());
    let rows = llama.device().step_rows();
    limits.step_rows = options.step_rows.unwrap_or(rows).max(1);
    limits.mixed_rows = options.mixed_rows.unwrap_or(rows / 4).max(1);
    let mut device = llama.device().describe();
    if options.offload.method != offload::Method::None {
        // Every page lies in the host tier.
        limits.budget_flag = "--ram-budget";
        device += &format!(", offload {}", options.offload.method);
        if options.offload.method.speculates() {
            device += &format!(" ({})", options.offload.look.unwrap_or(llama.device().usual_look()));
        }
    }
    let device = note.map_or_else(|| device.clone(), |note| format!("{device} ({note})"));
    Ok(Loaded { llama, limits, device, skew })
}

/// A model on its device.
pub struct Loaded {
    pub llama: Llama,
    pub limits: Limits,
    /// The device, with why a card that is here is not used.
    pub device: String,
    /// The model's skew, where the offload method wanted it.
    pub skew: Option<Skew>,
}

/// What K/V memory is taken: pages, and the bytes of the device tier where that holds fewer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Room {
    pages: usize,
    device_bytes: Option<u64>,
}

/// Refuses a device tier that cannot hold what must be there: with the numbers, before anything runs.
fn check_least(device_bytes: u64, least: u64, pages: usize, method: offload::Method) -> Result<()> {
    if device_bytes >= least {
        return Ok(());
    }
    let (what, flags) = match method.speculates() {
        true => (format!("for the partial keys of {pages} pages and for"), "--ram-budget or --offload-ratio"),
        false => ("for".into(), "--ram-budget"),
    };
    Err(Error::limit(format!(
        "a device tier of {} cannot hold what must be there: {} {what} what attention reads at once; raise --kv-budget, or \
         lower {flags}",
        Human(device_bytes),
        Human(least)
    )))
}

fn unreadable(flag: &str) -> Error {
    Error::input(format!("free memory cannot be read here: give {flag} in bytes, such as 512MiB"))
}

fn check_no_host_tier(options: &EngineOptions) -> Result<()> {
    match options.ram_budget {
        Some(_) => Err(Error::input("--ram-budget is the host tier's: give an --offload method with it, such as full")),
        None => Ok(()),
    }
}

/// K/V pages within the budgets, given the free memory. Refuses what does not fit, with the numbers.
fn room(weights: &Weights, options: &EngineOptions, free: Option<u64>) -> Result<Room> {
    let shape = &weights.shape;
    let page_bytes = (PAGE_TOKENS * shape.kv_numbers_per_token() * options.kv.bytes()) as u64;
    let default = (DEFAULT_TOKENS / PAGE_TOKENS) as u64 * page_bytes;
    let budget = |flag: &str, given: Option<Size>| match (given, free) {
        (Some(size), Some(free)) => Ok(size.of(free)),
        (Some(Size::Bytes(bytes)), None) => Ok(bytes),
        (Some(Size::Percent(_)), None) => Err(unreadable(flag)),
        (None, Some(free)) => Ok(default.min(Size::Percent(DEFAULT_PERCENT).of(free))),
        (None, None) => Ok(default),
    };
    let device_bytes = budget("--kv-budget", options.kv_budget)?;
    let offloads = options.offload.method != offload::Method::None;
    options.offload.check()?;
    if !offloads {
        check_no_host_tier(options)?;
    }
    let (flag, host_bytes) = match offloads {
        true => ("--ram-budget", budget("--ram-budget", options.ram_budget)?),
        false => ("--kv-budget", device_bytes),
    };
    let pages = host_bytes / page_bytes;
    if pages == 0 {
        return Err(Error::limit(format!(
            "a K/V budget of {} holds not one page of {PAGE_TOKENS} tokens ({}): raise {flag}",
            Human(host_bytes),
            Human(page_bytes)
        )));
    }
    let weight_bytes = weight_bytes(weights);
    // On the CPU both tiers are main memory.
    let kv_bytes = host_bytes + if offloads { device_bytes } else { 0 };
    if let Some(free) = free
        && weight_bytes + kv_bytes + SPARE_BYTES > free
    {
        return Err(Error::limit(format!(
            "not enough memory: {} for the weights, {} for K/V and {} to work in, but only {} is free; use a smaller \
             model, or a smaller {flag}",
            Human(weight_bytes),
            Human(kv_bytes),
            Human(SPARE_BYTES),
            Human(free)
        )));
    }
    let pages = usize::try_from(pages).unwrap_or(usize::MAX).min(u32::MAX as usize / shape.layers);
    Ok(Room { pages, device_bytes: offloads.then_some(device_bytes) })
}

/// Bytes of all matrices; the device packs a copy of its own.
fn weight_bytes(weights: &Weights) -> u64 {
    let layers = weights.layers.iter().flat_map(|l| [&l.wq, &l.wk, &l.wv, &l.wo, &l.gate, &l.up, &l.down]);
    let all = layers.chain([&weights.embed]).chain(&weights.output);
    all.map(|weight: &weight::Weight| weight.bytes.as_slice().len() as u64).sum()
}

#[cfg(test)]
mod tests;
