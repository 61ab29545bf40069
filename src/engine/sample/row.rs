//! A row's logits as samplers see them: all at hand, or a glance and the way to fetch the rest.

use super::sums::{largest, largest_of, log_sum_exp, warm_sum};
use crate::base::{Error, Result};
use crate::device::head::{Ask, Glance, Said, TOP, Want};
use crate::model::llama::Llama;

/// What a row was asked beside its best tokens.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Asked {
    /// Ascending, each once.
    pub tokens: Vec<u32>,
    /// Whether more than these tokens is looked at.
    pub more: bool,
    /// `None`: nobody draws from it with a temperature.
    pub temperature: Option<f32>,
}

/// Tokens that are asked for at most: beyond that, all logits are fetched where they are looked at.
const MOST_ASKED: usize = 8192;
/// So many tokens are worth asking for alone: each takes a tile of the output matrix for its row by itself, where the
/// whole matrix is read once for all rows.
const FEW: usize = 256;

impl Asked {
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.more = false;
        self.temperature = None;
    }

    /// Adds tokens, unless they are too many.
    pub fn add(&mut self, tokens: &[u32]) {
        if self.tokens.len() + tokens.len() > MOST_ASKED {
            self.more = true;
            return;
        }
        self.tokens.extend_from_slice(tokens);
        self.tokens.sort_unstable();
        self.tokens.dedup();
    }

    /// Whether no logits are wanted but those of a few tokens.
    fn is_few(&self) -> bool {
        !self.more && (1..=FEW).contains(&self.tokens.len())
    }

    /// The question to the device.
    pub fn want(&self) -> Want<'_> {
        if self.is_few() {
            return Want::Only(&self.tokens);
        }
        Want::Glance(Ask { tokens: &self.tokens, temperature: self.temperature.unwrap_or(1.0) })
    }
}

/// Logits `[vocab]` of one row. What is computed of them is kept, since samples of one prompt share a row.
pub struct Row<'a> {
    source: Source<'a>,
    vocab: usize,
    total: Option<f64>,
    top: Option<Vec<(u32, f32)>>,
    warm: Option<(f32, f64)>,
}

enum Source<'a> {
    All(&'a [f32]),
    /// Of these tokens and no others.
    Few(&'a [u32], &'a [f32]),
    Glance {
        glance: &'a Glance,
        asked: &'a Asked,
        llama: &'a mut Llama,
        /// The row's number among the step's wanted ones.
        wanted: usize,
        fetched: Option<Vec<f32>>,
    },
}

impl<'a> Row<'a> {
    pub fn of(logits: &'a [f32]) -> Self {
        Self::new(Source::All(logits), logits.len())
    }

    /// Row `wanted` of the step that `llama` ran last, of which it said `said` when asked `asked`.
    pub fn said(said: &'a Said, asked: &'a Asked, vocab: usize, llama: &'a mut Llama, wanted: usize) -> Self {
        match said {
            Said::Logits(logits) if asked.is_few() => Self::new(Source::Few(&asked.tokens, logits), vocab),
            Said::Logits(logits) => Self::of(logits),
            Said::Glance(glance) => Self::new(Source::Glance { glance, asked, llama, wanted, fetched: None }, vocab),
        }
    }

    fn new(source: Source<'a>, vocab: usize) -> Self {
        Self { source, vocab, total: None, top: None, warm: None }
    }

    /// ln Σ exp(logit). An error where a logit is not a number, or all of them are infinite.
    pub fn total(&mut self) -> Result<f64> {
        if let Some(total) = self.total {
            return Ok(total);
        }
        let total = match &self.source {
            Source::All(logits) => log_sum_exp(logits)?,
            Source::Glance { glance, .. } if glance.total.is_finite() => glance.total,
            Source::Glance { .. } => return Err(not_numbers()),
            Source::Few(..) => return Err(not_asked()),
        };
        self.total = Some(total);
        Ok(total)
    }

    /// The largest logit and the first token that has it; [`total`](Self::total) is content.
    pub fn best(&mut self) -> Result<(u32, f32)> {
        let found = match &self.source {
            Source::All(logits) => {
                let best = largest(logits);
                (0u32..).zip(*logits).find(|&(_, &logit)| logit == best).map(|(token, &logit)| (token, logit))
            }
            Source::Glance { glance, .. } => glance.top.first().copied(),
            Source::Few(..) => return Err(not_asked()),
        };
        found.ok_or_else(not_numbers)
    }

    /// The largest logits, largest first, equal ones by token: at least one. [`total`](Self::total) is content.
    pub fn top(&mut self) -> &[(u32, f32)] {
        match &self.source {
            Source::All(logits) => self.top.get_or_insert_with(|| largest_of(logits, TOP)),
            Source::Glance { glance, .. } => &glance.top,
            Source::Few(..) => &[],
        }
    }

    /// Whether [`top`](Self::top) is the whole vocabulary.
    pub fn is_whole(&mut self) -> bool {
        self.top().len() == self.vocab
    }

    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Σ exp((logit - largest) / temperature).
    pub fn warm(&mut self, temperature: f32) -> Result<f64> {
        if let Some((at, sum)) = self.warm
            && at == temperature
        {
            return Ok(sum);
        }
        let (_, best) = self.best()?;
        let told = match &self.source {
            Source::Glance { glance, asked, .. } if asked.temperature == Some(temperature) => Some(glance.warm),
            _ => None,
        };
        let sum = match told {
            Some(sum) => sum,
            None => warm_sum(self.all()?, best, temperature),
        };
        self.warm = Some((temperature, sum));
        Ok(sum)
    }

    /// The logits of these tokens.
    pub fn at(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        if let Source::Few(few, logits) = &self.source {
            let known = |token: &u32| few.binary_search(token).ok().and_then(|at| logits.get(at).copied());
            return tokens.iter().map(known).collect::<Option<_>>().ok_or_else(not_asked);
        }
        if let Source::Glance { glance, asked, .. } = &self.source {
            let known = |token: &u32| match asked.tokens.binary_search(token) {
                Ok(at) => glance.asked.get(at).copied(),
                Err(_) => glance.top.iter().find(|(top, _)| top == token).map(|&(_, logit)| logit),
            };
            if let Some(logits) = tokens.iter().map(known).collect() {
                return Ok(logits);
            }
        }
        let all = self.all()?;
        let one = |&token: &u32| all.get(token as usize).copied();
        tokens.iter().map(one).collect::<Option<_>>().ok_or_else(|| Error::fault("a token outside the vocabulary"))
    }

    /// All logits, fetched from the device where it has to be.
    pub fn all(&mut self) -> Result<&[f32]> {
        match &mut self.source {
            Source::All(logits) => Ok(logits),
            Source::Few(..) => Err(not_asked()),
            Source::Glance { llama, wanted, fetched, .. } => {
                if fetched.is_none() {
                    let mut logits = Vec::with_capacity(self.vocab);
                    llama.fetch(*wanted, &mut logits)?;
                    *fetched = Some(logits);
                }
                Ok(fetched.as_deref().unwrap_or_default())
            }
        }
    }
}

fn not_asked() -> Error {
    Error::fault("logits are looked at that were not asked for")
}

fn not_numbers() -> Error {
    Error::fault("the model's logits are not numbers (NaN or infinite) at this token")
}
