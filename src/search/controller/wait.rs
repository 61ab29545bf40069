//! Sending requests and waiting for them, while commands are obeyed and the clock is watched.

use super::flight::{self, Ask, Flight, Landed, Lost};
use super::{Controller, finite, round};
use crate::base::{Error, Result};
use crate::lm::{Finish, Scores};
use crate::search::event::{Event, Reason};
use tokio::sync::oneshot;

impl Controller {
    /// Waits for a command while nothing runs.
    pub(super) async fn wait(&mut self) {
        tokio::select! {
            biased;
            command = self.commands.recv() => match command {
                Some(command) => self.obey(command),
                None => self.stop(Reason::Quit),
            },
            _ = self.ticker.tick() => self.tell_memory(),
        }
    }

    /// Sends requests and tells that they were sent.
    pub(super) fn launch(&mut self, asks: Vec<Ask>) -> Flight {
        let first = self.requests;
        self.requests += asks.len() as u64;
        for (i, ask) in asks.iter().enumerate() {
            self.emit(Event::Asked {
                request: first + i as u64,
                node: ask.node,
                purpose: ask.purpose,
                samples: ask.generate.n,
                prompt: ask.generate.prompt.full_text(),
            });
        }
        Flight::launch(self.lm.as_ref(), asks, first)
    }

    /// The next sample in order, when it has ended; meanwhile commands are obeyed, time is watched and running text is
    /// shown. `None` when all have been handed on.
    pub(super) async fn landed(&mut self, flight: &mut Flight) -> Option<Landed> {
        loop {
            if self.hurry {
                flight.cancel_all();
            }
            if let Some(landed) = flight.take() {
                self.count(&landed);
                return Some(landed);
            }
            if flight.is_over() {
                return None;
            }
            let deadline = self.ledger.limits.seconds.and_then(|limit| Some((limit, self.ledger.clock.when(limit)?)));
            let time_is_up = async {
                match deadline {
                    Some((limit, when)) => {
                        tokio::time::sleep_until(when).await;
                        limit
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    Some(command) => {
                        let gone = self.obey_during(command);
                        flight.cancel(&gone);
                    }
                    None => self.stop(Reason::Quit),
                },
                limit = time_is_up => self.stop(Reason::Seconds { limit }),
                _ = self.ticker.tick() => self.tell_memory(),
                piece = flight.news() => if let Some(piece) = piece {
                    if std::mem::take(&mut self.pruned) {
                        self.tell_counters();
                    }
                    let flight::Piece { request, node, sample, text, logprob } = piece;
                    // A piece for the screen alone; what cannot be written as JSON is not needed there.
                    self.emit(Event::Token { request, node, sample, text, logprob: finite(logprob) });
                },
            }
        }
    }

    /// Waits for log-probabilities, obeying meanwhile.
    pub(super) async fn scores(&mut self, mut receiver: oneshot::Receiver<Result<Scores>>) -> Result<Scores> {
        loop {
            if self.hurry {
                return Err(Error::fault("called off"));
            }
            tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    Some(command) => self.obey(command),
                    None => self.stop(Reason::Quit),
                },
                scores = &mut receiver => {
                    return scores.unwrap_or_else(|_| Err(Error::fault("the model ended without an answer")));
                }
            }
        }
    }

    /// Counts what a sample cost and tells what it said.
    pub(super) fn count(&mut self, landed: &Landed) {
        let (text, finish, logprob, usage) = match &landed.result {
            Ok(completion) => {
                let logprob = (!completion.logprobs.is_empty())
                    .then(|| round(completion.logprobs.iter().map(|&l| f64::from(finite(l))).sum()));
                (completion.text.clone(), told(&completion.finish), logprob, completion.usage)
            }
            Err(Lost::Cancelled { text, pieces }) => {
                // What the model computed for it is not known any more; about a token a piece was sampled.
                let prompt = landed.uncounted.as_ref().and_then(|prompt| self.lm.count_tokens(prompt)).unwrap_or(0);
                let logical = prompt as u64 + *pieces;
                let usage = crate::lm::Usage { sampled: *pieces, logical, ..Default::default() };
                (text.clone(), "cancelled".to_string(), None, usage)
            }
            Err(Lost::Failed(error)) => (String::new(), format!("failed: {error}"), None, Default::default()),
        };
        self.ledger.usage += usage;
        let Landed { request, node, sample, ref pieces, .. } = *landed;
        let (pieces, piece_logprobs) = match landed.result.as_ref().map_or(0, |c| c.logprobs.len()) {
            // Pieces are told for their probabilities.
            0 => Default::default(),
            // The thought tells those of its tokens.
            n if n == pieces.bytes.len() => (pieces.bytes.clone(), Vec::new()),
            _ => (pieces.bytes.clone(), pieces.logprobs.iter().copied().map(finite).collect()),
        };
        self.emit(Event::Replied { request, node, sample, text, finish, logprob, usage, pieces, piece_logprobs });
    }
}

/// How a text ended, in words.
pub fn told(finish: &Finish) -> String {
    match finish {
        Finish::End => "end".into(),
        Finish::Stop(stop) => format!("stop {stop:?}"),
        Finish::Length => "cut at max_tokens".into(),
        Finish::Context(limit) => format!("the context of {limit} tokens is full"),
        Finish::Refuted(why) => format!("refuted: {why}"),
        Finish::NoMemory(why) | Finish::Failed(why) => format!("failed: {why}"),
    }
}
