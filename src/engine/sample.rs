//! From logits to a token: filters, the draw, and the log-probability of what was drawn.
//!
//! The order is fixed: repetition penalty, the constraint's mask, temperature, top-k, top-p, min-p, draw. All sums are
//! in float64; tokens are ordered by logit, equal ones by id. At least one token always stays. Logits that are not
//! numbers are an error of this row, never a token.
//!
//! A whole vocabulary is looked at only where its best tokens ([`row`]) are not enough for certain. They are for the
//! argmax, for top-k, for a nucleus that ends among them and for a min-p above the last of them; a draw without filters
//! begins with them, best first, and looks at the others when it falls beyond. A penalty above 1 lowers tokens only, so
//! what stays above the last of the best is the best; with a penalty, and neither argmax nor top-k, all are looked at. The
//! rule is the same whether a device gives all logits or a glance, and so is the token that a random number draws.

mod filter;
pub mod row;
pub mod sums;

use super::request::{Likelihood, Sampling};
use crate::base::{Error, Result};
pub use filter::Kept;
use rand::Rng;
use row::Row;
use sums::{largest_of, log_sum_exp_of_few};

/// Temperatures below this are the argmax: the smallest difference of two float32 logits near 10 divided by it is
/// about 0.1, so anything smaller only draws between exact ties.
const COLD: f32 = 1e-5;

/// Checked sampling settings.
#[derive(Debug, Clone)]
pub struct Sampler {
    settings: Sampling,
    likelihood: Likelihood,
}

/// A drawn token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pick {
    pub token: u32,
    /// Natural-log probability of what [`Likelihood`] says: no penalty, temperature 1.
    pub logprob: f32,
    /// Natural-log probability under the mask alone: no penalty, temperature 1.
    pub masked_logprob: f64,
}

impl Sampler {
    /// Refuses settings that mean nothing: negative or NaN temperature and penalty, shares outside 0 to 1.
    pub fn new(settings: &Sampling) -> Result<Self> {
        let Sampling { temperature, top_p, min_p, repetition_penalty, .. } = *settings;
        if !(temperature >= 0.0 && temperature.is_finite()) {
            return Err(Error::input(format!("temperature {temperature} is not a number from 0 up (0 is the argmax)")));
        }
        for (name, share) in [("top_p", top_p), ("min_p", min_p)] {
            if let Some(share) = share
                && !(0.0..=1.0).contains(&share)
            {
                return Err(Error::input(format!("{name} {share} is not a number from 0 to 1")));
            }
        }
        if !(repetition_penalty > 0.0 && repetition_penalty.is_finite()) {
            return Err(Error::input(format!(
                "repetition penalty {repetition_penalty} is not a number above 0 (1 is off)"
            )));
        }
        Ok(Self { settings: settings.clone(), likelihood: Likelihood::Model })
    }

    pub fn greedy() -> Self {
        Self { settings: Sampling::default(), likelihood: Likelihood::Model }
    }

    /// With log-probabilities of that.
    pub fn telling(self, likelihood: Likelihood) -> Self {
        Self { likelihood, ..self }
    }

    /// What log-probabilities are of.
    pub fn likelihood(&self) -> Likelihood {
        self.likelihood
    }

    /// This sampler's penalty with the argmax instead of a draw.
    pub fn cold(&self) -> Self {
        let settings = Sampling { repetition_penalty: self.settings.repetition_penalty, ..Sampling::default() };
        Self { settings, likelihood: self.likelihood }
    }

    /// The temperature that it draws with; `None`: it takes the best.
    pub fn temperature(&self) -> Option<f32> {
        (self.settings.temperature >= COLD).then_some(self.settings.temperature)
    }

    /// Draws a token from a row among `allowed` (ascending; `None`: all). `text` is what was generated so far: the penalty
    /// is for its tokens, not for the prompt's.
    pub fn pick(&self, row: &mut Row<'_>, allowed: Option<&[u32]>, text: &[u32], rng: &mut impl Rng) -> Result<Pick> {
        let (token, logit, total, masked_total) = match allowed {
            None => {
                let total = row.total()?;
                let token =
                    if self.temperature().is_none() { self.best_of(row, text)? } else { self.draw(row, text, rng)? };
                (token, f64::from(row.at(&[token])?[0]), total, total)
            }
            Some(allowed) => {
                let (logits, total, masked_total) = self.masked(row, allowed)?;
                let scored = self.scored(allowed.iter().copied().zip(logits.iter().copied()), text)?;
                let token = if self.temperature().is_none() {
                    argmax(&scored)?
                } else {
                    walk(&self.filter(scored)?, &mut rng.random())
                        .map_or_else(|last| last.ok_or_else(nothing_left), Ok)?
                };
                let at = allowed.binary_search(&token).map_err(|_| nothing_left())?;
                (token, f64::from(logits[at]), total, masked_total)
            }
        };
        Ok(Pick { token, logprob: (logit - total) as f32, masked_logprob: logit - masked_total })
    }

    /// The `n` likeliest tokens, best first; fewer where fewer are allowed. The filters do not apply.
    pub fn best(&self, row: &mut Row<'_>, allowed: Option<&[u32]>, n: usize) -> Result<Vec<Pick>> {
        let (mut best, total, masked_total) = match allowed {
            Some(allowed) => {
                let (logits, total, masked_total) = self.masked(row, allowed)?;
                let mut best: Vec<(u32, f32)> = allowed.iter().copied().zip(logits.iter().copied()).collect();
                best.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
                (best, total, masked_total)
            }
            None => {
                let total = row.total()?;
                let enough = n <= row.top().len() || row.is_whole();
                (if enough { row.top().to_vec() } else { largest_of(row.all()?, n) }, total, total)
            }
        };
        best.truncate(n);
        best.retain(|&(_, logit)| logit > f32::NEG_INFINITY);
        let pick = |(token, logit): (u32, f32)| {
            let logit = f64::from(logit);
            Pick { token, logprob: (logit - total) as f32, masked_logprob: logit - masked_total }
        };
        Ok(best.into_iter().map(pick).collect())
    }

    /// The logits of allowed tokens, and the logarithms of the sums that their log-probabilities and masked ones are of.
    fn masked(&self, row: &mut Row<'_>, allowed: &[u32]) -> Result<(Vec<f32>, f64, f64)> {
        if allowed.is_empty() {
            return Err(no_token());
        }
        let logits = row.at(allowed)?;
        Ok(match self.likelihood {
            Likelihood::Model => {
                let total = row.total()?;
                let masked = log_sum_exp_of_few(&logits)?;
                (logits, total, masked)
            }
            Likelihood::Allowed => {
                let masked = log_sum_exp_of_few(&logits)?;
                (logits, masked, masked)
            }
        })
    }

    fn draw(&self, row: &mut Row<'_>, text: &[u32], rng: &mut impl Rng) -> Result<u32> {
        let Kept { shares, rest } = self.kept(row, text)?;
        let mut left: f64 = rng.random();
        let last = match walk(&shares, &mut left) {
            Ok(token) => return Ok(token),
            Err(last) => last,
        };
        if !rest {
            return last.ok_or_else(nothing_left);
        }
        // Beyond the best tokens, by their number.
        let (temperature, sum) = (self.settings.temperature, row.warm(self.settings.temperature)?);
        let (_, best) = row.best()?;
        let mut before: Vec<u32> = shares.iter().map(|&(token, _)| token).collect();
        before.sort_unstable();
        let weigh = |logit: f32| ((f64::from(logit) - f64::from(best)) / f64::from(temperature)).exp() / sum;
        let others = (0u32..).zip(row.all()?).filter(|(token, _)| before.binary_search(token).is_err());
        let shares: Vec<(u32, f64)> = others.map(|(token, &logit)| (token, weigh(logit))).collect();
        walk(&shares, &mut left).or_else(|end| end.or(last).ok_or_else(nothing_left))
    }

    /// The best token of a whole vocabulary.
    fn best_of(&self, row: &mut Row<'_>, text: &[u32]) -> Result<u32> {
        if self.settings.repetition_penalty == 1.0 || text.is_empty() {
            return row.best().map(|(token, _)| token);
        }
        match self.known(row, text).first() {
            Some(&(token, logit)) if logit > f64::NEG_INFINITY => Ok(token),
            _ => argmax(&self.scored((0u32..).zip(row.all()?.iter().copied()), text)?),
        }
    }

    /// Tokens with their penalised logits.
    fn scored(&self, tokens: impl Iterator<Item = (u32, f32)>, text: &[u32]) -> Result<Vec<(u32, f64)>> {
        let mut scored: Vec<(u32, f64)> = tokens.map(|(token, logit)| (token, f64::from(logit))).collect();
        if scored.is_empty() {
            return Err(no_token());
        }
        self.penalise(&mut scored, text);
        Ok(scored)
    }

    fn penalise(&self, scored: &mut [(u32, f64)], text: &[u32]) {
        let penalty = f64::from(self.settings.repetition_penalty);
        if penalty == 1.0 || text.is_empty() {
            return;
        }
        let mut seen = text.to_vec();
        seen.sort_unstable();
        seen.dedup();
        for (token, logit) in scored {
            if seen.binary_search(token).is_ok() {
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
    }
}

/// The token in whose share `left` falls; else takes all shares off `left` and gives the last that can be drawn at all:
/// where rounding left a crumb over, it belongs to that one.
fn walk(shares: &[(u32, f64)], left: &mut f64) -> std::result::Result<u32, Option<u32>> {
    for &(token, share) in shares {
        if *left < share {
            return Ok(token);
        }
        *left -= share;
    }
    Err(shares.iter().rev().find(|&&(_, share)| share > 0.0).map(|&(token, _)| token))
}

fn argmax(scored: &[(u32, f64)]) -> Result<u32> {
    let higher = |a: (u32, f64), b: (u32, f64)| if b.1 > a.1 || (b.1 == a.1 && b.0 < a.0) { b } else { a };
    match scored.iter().copied().reduce(higher) {
        Some((token, logit)) if logit > f64::NEG_INFINITY => Ok(token),
        _ => Err(nothing_likely()),
    }
}

fn no_token() -> Error {
    Error::fault("no token is allowed here")
}

fn nothing_likely() -> Error {
    Error::fault("every allowed token has probability 0")
}

fn nothing_left() -> Error {
    Error::fault("no token left to draw")
}

#[cfg(test)]
mod tests;
