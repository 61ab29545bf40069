//! Requests that run at the same time. Replies come in whatever order; they are handed on in the order in which they were
//! asked for, so that the same replies always grow the same tree.

use crate::base::Error;
use crate::lm::{Completion, Generate, Lm, Prompt, Update};
use crate::search::event::Purpose;
use crate::search::tree::NodeId;
use std::future::poll_fn;
use std::task::{Context, Poll};
use tokio::sync::mpsc::UnboundedReceiver;

/// A request, and on whose behalf it is made.
pub struct Ask {
    pub node: NodeId,
    pub purpose: Purpose,
    pub generate: Generate,
}

/// One sample's end.
pub struct Landed {
    /// Which of the asks, from 0.
    pub ask: usize,
    pub request: u64,
    pub node: NodeId,
    pub sample: usize,
    pub result: Result<Completion, Lost>,
    /// The pieces that its text came in; none where they do not make up the text.
    pub pieces: Pieces,
    /// The request's prompt, where the sample that would have counted it was called off.
    pub uncounted: Option<Prompt>,
}

/// Pieces of a text, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pieces {
    /// Bytes of each.
    pub bytes: Vec<u32>,
    pub logprobs: Vec<f32>,
}

impl Pieces {
    fn push(&mut self, text: &str, logprob: f32) {
        self.bytes.push(u32::try_from(text.len()).unwrap_or(u32::MAX));
        self.logprobs.push(logprob);
    }
}

/// Why a sample has no completion.
#[derive(Debug)]
pub enum Lost {
    /// Called off; the text so far and how many pieces it came in (about a token each).
    Cancelled { text: String, pieces: u64 },
    /// The request could not be served.
    Failed(Error),
}

/// A piece of running text, for the screen.
pub struct Piece {
    pub request: u64,
    pub node: NodeId,
    pub sample: usize,
    pub text: String,
    pub logprob: f32,
}

enum Sample {
    Running {
        text: String,
        pieces: Pieces,
    },
    Landed(Box<(Result<Completion, Lost>, Pieces)>),
    /// Handed on.
    Taken,
}

struct Request {
    id: u64,
    node: NodeId,
    prompt: Prompt,
    samples: Vec<Sample>,
    /// `None` once nothing more is to come; dropping it cancels the request.
    updates: Option<UnboundedReceiver<Update>>,
}

impl Request {
    /// Ends everything that still runs.
    fn finish(&mut self, why: impl Fn(String, u64) -> Lost) {
        self.updates = None;
        for sample in &mut self.samples {
            if let Sample::Running { text, pieces } = sample {
                let count = pieces.bytes.len() as u64;
                *sample = Sample::Landed(Box::new((Err(why(std::mem::take(text), count)), std::mem::take(pieces))));
            }
        }
    }

    fn running(&self) -> bool {
        self.samples.iter().any(|sample| matches!(sample, Sample::Running { .. }))
    }

    /// Takes in one update; a piece of text is passed on.
    fn take_in(&mut self, update: Option<Update>) -> Option<Piece> {
        match update {
            Some(Update::Text { sample, text, logprob }) => {
                if let Some(Sample::Running { text: so_far, pieces }) = self.samples.get_mut(sample) {
                    so_far.push_str(&text);
                    pieces.push(&text, logprob);
                    return Some(Piece { request: self.id, node: self.node, sample, text, logprob });
                }
            }
            Some(Update::Done { sample, completion }) => {
                if let Some(slot) = self.samples.get_mut(sample)
                    && let Sample::Running { text, pieces } = slot
                {
                    let pieces = if *text == completion.text { std::mem::take(pieces) } else { Pieces::default() };
                    *slot = Sample::Landed(Box::new((Ok(completion), pieces)));
                }
                if !self.running() {
                    self.updates = None;
                }
            }
            Some(Update::Failed(error)) => self.finish(|_, _| Lost::Failed(error.clone())),
            // A model may give fewer texts than asked for (there are no more different ones).
            None => {
                self.updates = None;
                let given = self.samples.iter().take_while(|s| !matches!(s, Sample::Running { .. })).count();
                let only_unstarted = self.samples[given..]
                    .iter()
                    .all(|s| matches!(s, Sample::Running { pieces, .. } if pieces.bytes.is_empty()));
                if given > 0 && only_unstarted {
                    self.samples.truncate(given);
                } else {
                    self.finish(|_, _| Lost::Failed(Error::fault("the model ended without finishing its reply")));
                }
            }
        }
        None
    }
}

/// The requests of one step.
pub struct Flight {
    requests: Vec<Request>,
    /// The first sample that is not handed on yet.
    next: (usize, usize),
}

impl Flight {
    /// Sends every ask, in order; `first` numbers the first request.
    pub fn launch(lm: &dyn Lm, asks: Vec<Ask>, first: u64) -> Self {
        let launch = |(i, ask): (usize, Ask)| {
            let running = || Sample::Running { text: String::new(), pieces: Pieces::default() };
            Request {
                id: first + i as u64,
                node: ask.node,
                prompt: ask.generate.prompt.clone(),
                samples: (0..ask.generate.n).map(|_| running()).collect(),
                updates: Some(lm.generate(ask.generate)),
            }
        };
        Self { requests: asks.into_iter().enumerate().map(launch).collect(), next: (0, 0) }
    }

    /// The next sample in order, if it has landed.
    pub fn take(&mut self) -> Option<Landed> {
        loop {
            let (ask, sample) = self.next;
            let request = self.requests.get_mut(ask)?;
            let Some(slot) = request.samples.get_mut(sample) else {
                self.next = (ask + 1, 0);
                continue;
            };
            let Sample::Landed(_) = slot else { return None };
            let Sample::Landed(landed) = std::mem::replace(slot, Sample::Taken) else { return None };
            let (result, pieces) = *landed;
            self.next = (ask, sample + 1);
            let called_off = sample == 0 && matches!(result, Err(Lost::Cancelled { .. }));
            let uncounted = called_off.then(|| request.prompt.clone());
            return Some(Landed { ask, request: request.id, node: request.node, sample, result, pieces, uncounted });
        }
    }

    pub fn is_over(&self) -> bool {
        self.requests.iter().all(|r| !r.running())
    }

    pub fn cancel_all(&mut self) {
        for request in &mut self.requests {
            request.finish(|text, pieces| Lost::Cancelled { text, pieces });
        }
    }

    /// Calls off what runs for these thoughts.
    pub fn cancel(&mut self, nodes: &[NodeId]) {
        for request in self.requests.iter_mut().filter(|r| nodes.contains(&r.node)) {
            request.finish(|text, pieces| Lost::Cancelled { text, pieces });
        }
    }

    /// Waits for news: a piece of text, or `None` when some sample has ended. Does not return while nothing happens.
    pub async fn news(&mut self) -> Option<Piece> {
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Piece>> {
        for request in &mut self.requests {
            let Some(updates) = &mut request.updates else { continue };
            if let Poll::Ready(update) = updates.poll_recv(cx) {
                return Poll::Ready(request.take_in(update));
            }
        }
        Poll::Pending
    }
}
