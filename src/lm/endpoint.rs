//! A serving engine as a language model: SGLang, vLLM, llama.cpp's server, or whatever else speaks OpenAI's API.
//!
//! | file | what |
//! |---|---|
//! | `http.rs` | one request: time-outs, retries, what may be told of an error, the key |
//! | `wire.rs` | bodies: what is asked in which server's words, what came back |
//! | `guide.rs` | constraints in a server's words: choices and patterns as grammars |
//! | `serve.rs` | requests of the search as requests of the server: samples, ranks, scores |
//!
//! Prompts are arranged for the server's prefix cache: the fixed text first, then the path, and all samples of a prompt in
//! one request where the server takes several. A completion prompt goes out as it stands; a chat prompt goes through the
//! server's own template, with the path as the beginning of the assistant's turn.
//!
//! A server has no token masks of ours. A constraint that lists texts, or is a pattern, becomes a grammar where the server
//! is known to have one; the n likeliest of listed texts are read from the log-probabilities of the first token where each
//! text is one token, and are picked greedily one after another elsewhere. What cannot be done so is refused by
//! [`Abilities`] before anything runs. K/V and link are not known. Requests never hold more than so many connections.
//! Special tokens written in a prompt are the server's to parse or not: that cannot be told from here.

#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod guide;
mod http;
mod serve;
mod wire;

#[cfg(test)]
mod faulty;
#[cfg(test)]
mod tests;

pub use http::{check_address, key_from_environment};

use super::{Counters, Generate, Info, Lm, Prompt, Score, Scores, Update};
use crate::base::text::sanitize_line;
use crate::base::{Error, Result};
use http::Http;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Where a server is and how it is spoken to.
#[derive(Debug, Clone)]
pub struct EndpointOptions {
    /// `http://host:port`, with or without `/v1`.
    pub url: String,
    /// The server's name of the model; `None`: the one it serves.
    pub model: Option<String>,
    /// Requests in flight at once; at least 1.
    pub connections: usize,
    /// A whole request may take this long.
    pub timeout: Duration,
    /// Further attempts after one that failed for a passing reason.
    pub retries: u32,
    /// Before the first further attempt; doubled each time.
    pub wait: Duration,
    /// Sent as a bearer token, and nowhere else.
    pub key: Option<http::Key>,
}

impl EndpointOptions {
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            model: None,
            connections: 8,
            timeout: Duration::from_secs(600),
            retries: 5,
            wait: Duration::from_millis(500),
            key: None,
        }
    }
}

/// Which server it is, by what `/v1/models` says of its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    LlamaCpp,
    Vllm,
    SgLang,
    /// Standard fields only.
    Other,
}

impl Kind {
    fn of(owner: &str) -> Self {
        match owner {
            "llamacpp" => Self::LlamaCpp,
            "vllm" => Self::Vllm,
            "sglang" => Self::SgLang,
            _ => Self::Other,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::LlamaCpp => "llama.cpp",
            Self::Vllm => "vLLM",
            Self::SgLang => "SGLang",
            Self::Other => "an unknown server",
        }
    }
}

/// What the server behind an endpoint can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    pub kind: Kind,
    pub logprobs: bool,
    /// Whether it tells how many tokens a request took.
    pub usage: bool,
}

impl Abilities {
    /// Whether texts can be held to a list or a pattern.
    pub fn guides(self) -> bool {
        self.kind != Kind::Other
    }

    /// Whether given texts can be scored (`echo` with log-probabilities).
    pub fn scores(self) -> bool {
        self.logprobs && matches!(self.kind, Kind::Vllm | Kind::SgLang)
    }

    /// Whether `top_k`, `min_p` and a repetition penalty are known to it.
    pub fn samplers(self) -> bool {
        self.kind != Kind::Other
    }

    /// Whether an assistant's turn can be continued.
    pub fn continues_chat(self) -> bool {
        self.kind != Kind::Other
    }
}

/// What the threads that talk to the server share.
struct Shared {
    http: Http,
    model: String,
    abilities: Abilities,
    /// Samples that one request may ask for, as far as is known.
    most_samples: AtomicUsize,
}

enum Work {
    Generate(Box<Generate>, mpsc::UnboundedSender<Update>),
    Score(Score, oneshot::Sender<Result<Scores>>),
}

/// A server as a language model. Dropping it ends its threads after what they are at.
pub struct Endpoint {
    info: Info,
    abilities: Abilities,
    work: Option<Sender<Work>>,
    over: Arc<AtomicBool>,
}

impl Endpoint {
    /// Asks the server what it serves and can do, with one short completion, and starts the threads.
    ///
    /// # Errors
    /// The address is none, holds a password or a key; the server does not answer, refuses, or does not serve that model.
    pub fn open(options: EndpointOptions) -> Result<Arc<Self>> {
        let over = Arc::new(AtomicBool::new(false));
        let http = Http::new(&options, over.clone())?;
        let listed = http.get("models").map_err(|e| e.context("asking what the endpoint serves"))?;
        let found = wire::model(&listed, options.model.as_deref())?;
        let abilities = probe(&http, &found.id, Kind::of(&found.owner))?;
        let mut device = format!("endpoint {} ({})", http.shown(), abilities.kind.name());
        if !abilities.usage {
            device.push_str(", tokens estimated from characters");
        }
        let info = Info {
            name: sanitize_line(&found.id),
            checksum: None,
            context: found.context,
            chat_template: true,
            masks: false,
            device,
        };
        let (work, inbox) = channel();
        let inbox = Arc::new(Mutex::new(inbox));
        let shared = Arc::new(Shared { http, model: found.id, abilities, most_samples: AtomicUsize::new(usize::MAX) });
        for i in 0..options.connections.max(1) {
            let (shared, inbox) = (shared.clone(), inbox.clone());
            std::thread::Builder::new()
                .name(format!("endpoint-{i}"))
                .spawn(move || serve(&shared, &inbox))
                .map_err(|e| Error::fault(format!("a thread for the endpoint cannot be started: {e}")))?;
        }
        Ok(Arc::new(Self { info, abilities, work: Some(work), over }))
    }

    pub fn abilities(&self) -> Abilities {
        self.abilities
    }

    fn send(&self, work: Work) {
        if let Some(queue) = &self.work {
            // The threads live as long as the queue does.
            drop(queue.send(work));
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.work = None;
    }
}

/// One short completion tells what comes back.
fn probe(http: &Http, model: &str, kind: Kind) -> Result<Abilities> {
    let ask = |logprobs: bool| {
        let mut body = json!({"model": model, "prompt": "1", "max_tokens": 1, "temperature": 0.0});
        if logprobs && let Some(map) = body.as_object_mut() {
            map.insert("logprobs".into(), Value::from(1));
        }
        http.post("completions", &body)
    };
    // A server that refuses log-probabilities may still complete.
    let reply = ask(true).or_else(|_| ask(false)).map_err(|e| e.context("trying a completion on the endpoint"))?;
    let reply = wire::reply(&reply, false)?;
    let logprobs = reply.choices.first().is_some_and(|choice| !choice.tokens.is_empty());
    Ok(Abilities { kind, logprobs, usage: reply.usage.is_some() })
}

/// A thread's life: one request after another until there is nobody to ask.
fn serve(shared: &Shared, inbox: &Mutex<Receiver<Work>>) {
    loop {
        let next = inbox.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match next {
            Ok(Work::Generate(request, updates)) => serve::generate(shared, &request, &updates),
            Ok(Work::Score(request, answer)) => {
                if !answer.is_closed() {
                    // A reader that has gone away is a cancelled request.
                    drop(answer.send(serve::score(shared, &request)));
                }
            }
            Err(_) => return,
        }
    }
}

impl Lm for Endpoint {
    fn info(&self) -> &Info {
        &self.info
    }

    fn count_tokens(&self, _: &Prompt) -> Option<usize> {
        None
    }

    fn generate(&self, request: Generate) -> mpsc::UnboundedReceiver<Update> {
        let (updates, receiver) = mpsc::unbounded_channel();
        self.send(Work::Generate(Box::new(request), updates));
        receiver
    }

    fn score(&self, request: Score) -> oneshot::Receiver<Result<Scores>> {
        let (answer, receiver) = oneshot::channel();
        self.send(Work::Score(request, answer));
        receiver
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}
