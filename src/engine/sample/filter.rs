//! What stays of a vocabulary: top-k, top-p and min-p, from all tokens or, where they are enough for certain, from the
//! best ones.

use super::row::Row;
use super::{Sampler, nothing_likely};
use crate::base::Result;
use crate::engine::request::Sampling;
use std::cmp::Ordering;

/// A sum of probabilities this close to `top_p` has reached it, so that 0.5 + 0.3 reaches 0.8.
pub(super) const NUCLEUS_SLACK: f64 = 1e-6;

/// What a draw is made from.
#[derive(Debug, Clone, PartialEq)]
pub struct Kept {
    /// Tokens with their probabilities.
    pub shares: Vec<(u32, f64)>,
    /// Whether all other tokens may be drawn too, with what `shares` leaves of 1.
    pub rest: bool,
}

impl Sampler {
    /// The tokens that stay of a whole vocabulary after all filters, with their probabilities: those of `shares`, and
    /// where `rest` all others too, as the temperature makes them.
    pub fn kept(&self, row: &mut Row<'_>, text: &[u32]) -> Result<Kept> {
        match self.kept_of_top(row, text)? {
            Some(kept) => Ok(kept),
            None => {
                let scored = self.scored((0u32..).zip(row.all()?.iter().copied()), text)?;
                Ok(Kept { shares: self.filter(scored)?, rest: false })
            }
        }
    }

    /// [`kept`](Self::kept) from the row's best tokens, where it is certain that they are enough; else `None`.
    fn kept_of_top(&self, row: &mut Row<'_>, text: &[u32]) -> Result<Option<Kept>> {
        let Sampling { temperature, top_p, min_p, .. } = self.settings;
        let top_k = self.cut(row.vocab());
        let known = self.known(row, text);
        if row.is_whole() || top_k.is_some_and(|k| k <= known.len()) {
            // The likeliest k, or all there are.
            return self.filter(known).map(|shares| Some(Kept { shares, rest: false }));
        }
        if self.settings.repetition_penalty != 1.0 && !text.is_empty() {
            // The sum below would be another one.
            return Ok(None);
        }
        if top_k.is_some() {
            return Ok(None);
        }
        let all = row.warm(temperature)?;
        let mut shares = known;
        let weigh = |best: f64, logit: f64| ((logit - best) / f64::from(temperature)).exp();
        let Some(&(_, best)) = shares.first() else { return Ok(None) };
        shares.iter_mut().for_each(|(_, logit)| *logit = weigh(best, *logit));
        let mut rest = true;
        if let Some(p) = top_p
            && p < 1.0
        {
            let Some(end) = nucleus_end(&shares, (f64::from(p) - NUCLEUS_SLACK) * all) else { return Ok(None) };
            shares.truncate(end);
            rest = false;
        }
        if let Some(share) = min_p
            && share > 0.0
        {
            let enough = shares.iter().position(|&(_, weight)| weight < f64::from(share));
            match enough {
                Some(end) => shares.truncate(end),
                None if rest => return Ok(None),
                None => {}
            }
            rest = false;
        }
        let sum = if rest { all } else { shares.iter().map(|&(_, weight)| weight).sum() };
        shares.iter_mut().for_each(|(_, weight)| *weight /= sum);
        Ok(Some(Kept { shares, rest }))
    }

    /// Top-k where it cuts so many tokens at all. A cut that leaves all of them is none, in the order of the draw as well:
    /// the same random number draws the same token as without it.
    fn cut(&self, tokens: usize) -> Option<usize> {
        self.settings.top_k.filter(|k| (1..tokens).contains(k))
    }

    /// The best tokens with their penalised logits, best first: as many as can be told from the row's best ones.
    pub(super) fn known(&self, row: &mut Row<'_>, text: &[u32]) -> Vec<(u32, f64)> {
        let whole = row.is_whole();
        let top = row.top();
        let mut scored: Vec<(u32, f64)> = top.iter().map(|&(token, logit)| (token, f64::from(logit))).collect();
        let penalty = self.settings.repetition_penalty;
        if penalty == 1.0 || text.is_empty() {
            return scored;
        }
        let bound = if whole { f64::NEG_INFINITY } else { scored.last().map_or(f64::INFINITY, |last| last.1) };
        self.penalise(&mut scored, text);
        scored.sort_unstable_by(better);
        if penalty < 1.0 && !whole {
            // A token outside may have risen above any of these.
            scored.clear();
        } else if !whole {
            // Those outside do not exceed the bound, and a penalty only lowers them.
            scored.truncate(scored.iter().position(|&(_, logit)| logit <= bound).unwrap_or(scored.len()));
        }
        scored
    }

    /// What stays of tokens with their penalised logits after all filters, with probabilities that sum to 1.
    pub(super) fn filter(&self, mut scored: Vec<(u32, f64)>) -> Result<Vec<(u32, f64)>> {
        let settings = &self.settings;
        // The likeliest k are the same before the temperature as after it, and then only they need an exponential.
        if let Some(k) = self.cut(scored.len()) {
            keep_best(&mut scored, k);
        }
        let best = scored.iter().map(|&(_, logit)| logit).fold(f64::NEG_INFINITY, f64::max);
        if best == f64::NEG_INFINITY {
            return Err(nothing_likely());
        }
        let temperature = f64::from(settings.temperature).max(f64::from(f32::MIN_POSITIVE));
        for (_, logit) in &mut scored {
            *logit = ((*logit - best) / temperature).exp();
        }
        if let Some(p) = settings.top_p
            && p < 1.0
        {
            keep_nucleus(&mut scored, f64::from(p));
        }
        if let Some(share) = settings.min_p {
            // The best one's weight is 1, so a share of it is a weight.
            scored.retain(|&(_, weight)| weight >= f64::from(share));
        }
        let sum: f64 = scored.iter().map(|&(_, weight)| weight).sum();
        for (_, weight) in &mut scored {
            *weight /= sum;
        }
        Ok(scored)
    }
}

/// Best first; equal weights by id.
pub(super) fn better(a: &(u32, f64), b: &(u32, f64)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// The best `k`, best first; `k` is above 0 and below their number.
fn keep_best(scored: &mut Vec<(u32, f64)>, k: usize) {
    scored.select_nth_unstable_by(k - 1, better);
    scored.truncate(k);
    scored.sort_unstable_by(better);
}

/// How many of the best, best first, it takes to reach `target`; `None`: more than these.
fn nucleus_end(sorted: &[(u32, f64)], target: f64) -> Option<usize> {
    let mut reached = 0.0;
    let enough = |&(_, weight): &(u32, f64)| {
        reached += weight;
        reached >= target
    };
    sorted.iter().position(enough).map(|at| at + 1)
}

/// The smallest set of the best whose weights reach `p` of all. Only as many are sorted as are needed: the nucleus is
/// small, the vocabulary is not.
fn keep_nucleus(scored: &mut Vec<(u32, f64)>, p: f64) {
    let total: f64 = scored.iter().map(|&(_, weight)| weight).sum();
    let target = (p - NUCLEUS_SLACK) * total;
    let mut sorted = 0;
    let mut reached = 0.0;
    while sorted < scored.len() {
        let next = (sorted * 8).max(64).min(scored.len());
        let rest = &mut scored[sorted..];
        if next < sorted + rest.len() {
            rest.select_nth_unstable_by(next - sorted - 1, better);
        }
        scored[sorted..next].sort_unstable_by(better);
        for at in sorted..next {
            reached += scored[at].1;
            if reached >= target {
                scored.truncate(at + 1);
                return;
            }
        }
        sorted = next;
    }
}
