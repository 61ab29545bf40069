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

pub mod row;
pub mod sums;

use super::request::{Likelihood, Sampling};
use crate::base::{Error, Result};
use rand::Rng;
use row::Row;
use std::cmp::Ordering;
use sums::{largest_of, log_sum_exp_of_few};

/// Temperatures below this are the argmax: the smallest difference of two float32 logits near 10 divided by it is
/// about 0.1, so anything smaller only draws between exact ties.
const COLD: f32 = 1e-5;

/// A sum of probabilities this close to `top_p` has reached it, so that 0.5 + 0.3 reaches 0.8.
const NUCLEUS_SLACK: f64 = 1e-6;

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
        let Sampling { temperature, top_k, top_p, min_p, .. } = self.settings;
        let known = self.known(row, text);
        if row.is_whole() || top_k.is_some_and(|k| k > 0 && k <= known.len()) {
            // The likeliest k, or all there are.
            return self.filter(known).map(|shares| Some(Kept { shares, rest: false }));
        }
        if self.settings.repetition_penalty != 1.0 && !text.is_empty() {
            // The sum below would be another one.
            return Ok(None);
        }
        if top_k.is_some_and(|k| k > 0) {
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

    /// The best tokens with their penalised logits, best first: as many as can be told from the row's best ones.
    fn known(&self, row: &mut Row<'_>, text: &[u32]) -> Vec<(u32, f64)> {
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

    /// What stays of tokens with their penalised logits after all filters, with probabilities that sum to 1.
    fn filter(&self, mut scored: Vec<(u32, f64)>) -> Result<Vec<(u32, f64)>> {
        let settings = &self.settings;
        // The likeliest k are the same before the temperature as after it, and then only they need an exponential.
        if let Some(k) = settings.top_k
            && k > 0
        {
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

/// What a draw is made from.
#[derive(Debug, Clone, PartialEq)]
pub struct Kept {
    /// Tokens with their probabilities.
    pub shares: Vec<(u32, f64)>,
    /// Whether all other tokens may be drawn too, with what `shares` leaves of 1.
    pub rest: bool,
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

/// Best first; equal weights by id.
fn better(a: &(u32, f64), b: &(u32, f64)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

fn keep_best(scored: &mut Vec<(u32, f64)>, k: usize) {
    if k < scored.len() && k > 0 {
        scored.select_nth_unstable_by(k - 1, better);
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::stream;
    use crate::base::testing::shared;
    use serde_json::Value;

    fn case(name: &str) -> Option<Value> {
        let path = shared(name)?.join("cases/A").join(name);
        Some(serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap())
    }

    fn floats(value: &Value) -> Vec<f32> {
        value.as_array().unwrap().iter().map(|v| v.as_f64().map_or(f32::NAN, |f| f as f32)).collect()
    }

    fn pick(settings: Sampling, logits: &[f32]) -> Result<u32> {
        Ok(Sampler::new(&settings)?.pick(&mut Row::of(logits), None, &[], &mut stream(0, "test", &[]))?.token)
    }

    /// What all filters leave of a whole vocabulary, or of allowed tokens, looking at every one.
    fn full(sampler: &Sampler, logits: &[f32], allowed: Option<&[u32]>, text: &[u32]) -> Vec<(u32, f64)> {
        let everything: Vec<u32> = (0..logits.len() as u32).collect();
        let allowed = allowed.unwrap_or(&everything).iter().map(|&id| (id, logits[id as usize]));
        sampler.filter(sampler.scored(allowed, text).unwrap()).unwrap()
    }

    #[test]
    fn cold_temperatures_are_the_argmax_and_nonsense_is_refused() {
        let Some(case) = case("18_sampling.json") else { return };
        let logits = floats(&case["logits"]);
        for setting in case["settings"].as_array().unwrap() {
            let temperature = setting["temperature"].as_f64().map_or(f32::NAN, |t| t as f32);
            let picked = pick(Sampling { temperature, ..Sampling::default() }, &logits);
            if temperature >= 0.0 {
                assert_eq!(picked.unwrap(), 2, "{temperature}");
            } else {
                assert!(picked.unwrap_err().message().contains("temperature"), "{temperature}");
            }
        }
        for temperature in [0.0, 1e-8, 1.0] {
            let settings = Sampling { temperature, ..Sampling::default() };
            assert!(pick(settings, &floats(&case["logits_with_nan"])).is_err(), "{temperature}");
        }
    }

    #[test]
    fn the_nucleus_and_top_k_keep_what_the_cases_list() {
        let Some(case) = case("20_sampling.json") else { return };
        let logits: Vec<f32> = floats(&case["probs"]).iter().map(|p| p.ln()).collect();
        for row in case["cases"].as_array().unwrap() {
            let settings = Sampling {
                temperature: 1.0,
                top_p: row["top_p"].as_f64().map(|p| p as f32),
                top_k: row["top_k"].as_u64().map(|k| k as usize),
                ..Sampling::default()
            };
            let kept = Sampler::new(&settings).unwrap().kept(&mut Row::of(&logits), &[]).unwrap();
            let mut kept: Vec<u64> = kept.shares.iter().map(|&(id, _)| u64::from(id)).collect();
            let mut expected: Vec<u64> = match row["keep"].as_array() {
                Some(ids) => ids.iter().map(|id| id.as_u64().unwrap()).collect(),
                None => vec![3, 0],
            };
            kept.sort_unstable();
            expected.sort_unstable();
            assert_eq!(kept, expected, "{row}");
        }
    }

    #[test]
    fn filters_follow_their_order_and_ties_go_to_the_lowest_id() {
        let logits = [1.0f32, 3.0, 3.0, 2.0, -1.0];
        assert_eq!(pick(Sampling::default(), &logits).unwrap(), 1);
        let kept = |settings: Sampling, allowed: Option<&[u32]>, text: &[u32]| -> Vec<u32> {
            let sampler = Sampler::new(&Sampling { temperature: 1.0, ..settings }).unwrap();
            let kept = full(&sampler, &logits, allowed, text);
            assert!((kept.iter().map(|k| k.1).sum::<f64>() - 1.0).abs() < 1e-12);
            kept.iter().map(|k| k.0).collect()
        };
        assert_eq!(kept(Sampling { top_k: Some(2), ..Sampling::default() }, None, &[]), [1, 2]);
        assert_eq!(kept(Sampling { top_k: Some(2), ..Sampling::default() }, Some(&[0, 3, 4]), &[]), [3, 0]);
        // The penalty comes before top-k: 3 / 2 and -1 * 2.
        let punished = Sampling { top_k: Some(2), repetition_penalty: 2.0, ..Sampling::default() };
        assert_eq!(kept(punished, None, &[1, 2, 4]), [3, 1]);
        assert_eq!(kept(Sampling { min_p: Some(0.3), ..Sampling::default() }, None, &[]), [1, 2, 3]);
        assert_eq!(kept(Sampling { min_p: Some(1.0), top_p: Some(0.0), ..Sampling::default() }, None, &[]), [1]);
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let logits = [0.5f32.ln(), 0.2f32.ln(), 0.3f32.ln()];
        let sampler = Sampler::new(&Sampling { temperature: 1.0, ..Sampling::default() }).unwrap();
        let mut counts = [0usize; 3];
        for i in 0..20_000 {
            let pick = sampler.pick(&mut Row::of(&logits), None, &[], &mut stream(7, "test", &[i])).unwrap();
            counts[pick.token as usize] += 1;
        }
        for (count, share) in counts.iter().zip([0.5, 0.2, 0.3]) {
            assert!((*count as f64 / 20_000.0 - share).abs() < 0.02, "{counts:?}");
        }
    }

    #[test]
    fn a_long_tail_is_sorted_only_as_far_as_the_nucleus_needs() {
        let logits: Vec<f32> = (0..5000).map(|i| ((i * 7919) % 5000) as f32 * 1e-3).collect();
        let sampler = Sampler::new(&Sampling { temperature: 1.0, top_p: Some(0.9), ..Sampling::default() }).unwrap();
        let kept = sampler.kept(&mut Row::of(&logits), &[]).unwrap().shares;
        assert!(kept.windows(2).all(|w| w[0].1 >= w[1].1));
        let all = Sampler::new(&Sampling { temperature: 1.0, ..Sampling::default() }).unwrap();
        let mut all = full(&all, &logits, None, &[]);
        all.sort_by(better);
        let mut sum = 0.0;
        let needed = all
            .iter()
            .take_while(|k| {
                let before = sum;
                sum += k.1;
                before < 0.9 - NUCLEUS_SLACK
            })
            .count();
        assert_eq!(kept.len(), needed);
    }

    #[test]
    fn a_mask_renormalises_its_own_log_probability_only() {
        let logits = [0.0f32, 1.0, 2.0, f32::NEG_INFINITY];
        let pick = |allowed: &[u32]| {
            Sampler::greedy().pick(&mut Row::of(&logits), Some(allowed), &[], &mut stream(0, "test", &[]))
        };
        let one = pick(&[0]).unwrap();
        assert_eq!(one.masked_logprob, 0.0);
        assert!((f64::from(one.logprob) + (1.0 + 1f64.exp() + 2f64.exp()).ln()).abs() < 1e-6);
        assert!(pick(&[3]).is_err());
        assert!(pick(&[]).is_err());
    }

    /// Random logits: flat, peaked or tied, smaller and larger than what is known of the best.
    fn random_logits(random: &mut impl Rng) -> Vec<f32> {
        let (vocab, steep) = (random.random_range(1..700), [0.3f32, 2.0, 9.0][random.random_range(0..3)]);
        let steps = [3.0f32, 40.0, 1e6][random.random_range(0..3)];
        (0..vocab).map(|_| ((random.random::<f32>() * steps).floor() / steps - 0.4) * steep * 3.0).collect()
    }

    #[test]
    fn what_the_best_tokens_tell_is_what_all_of_them_tell() {
        let mut random = stream(3, "best tokens", &[]);
        let (mut short, mut open) = (0, 0);
        for _ in 0..3000 {
            let logits = random_logits(&mut random);
            let vocab = logits.len() as u32;
            let mut one = |of: &[Option<f32>]| of[random.random_range(0..of.len())];
            let (top_p, min_p) =
                (one(&[None, None, Some(0.2), Some(0.9), Some(1.0)]), one(&[None, None, Some(0.05), Some(0.5)]));
            let top_k = one(&[None, None, Some(1.0), Some(40.0), Some(200.0)]).map(|k| k as usize);
            let (temperature, repetition_penalty) =
                (one(&[Some(0.2), Some(1.0), Some(1.9)]), one(&[Some(1.0), Some(1.0), Some(1.4), Some(0.8)]));
            let (temperature, repetition_penalty) = (temperature.unwrap(), repetition_penalty.unwrap());
            let sampler = Sampler::new(&Sampling { temperature, top_k, top_p, min_p, repetition_penalty }).unwrap();
            let text: Vec<u32> = (0..random.random_range(0..5)).map(|_| random.random_range(0..vocab)).collect();
            let mut exact = full(&sampler, &logits, None, &text);
            exact.sort_unstable_by(better);
            let mut row = Row::of(&logits);
            let kept = sampler.kept(&mut row, &text).unwrap();
            (short, open) = (short + usize::from(kept.shares.len() < exact.len()), open + usize::from(kept.rest));
            let mut shares = kept.shares.clone();
            shares.sort_unstable_by(better);
            assert!(kept.rest || shares.len() == exact.len(), "{sampler:?}");
            for (found, exact) in shares.iter().zip(&exact) {
                let near = (found.1 - exact.1).abs() <= 2e-5;
                assert!(found.0 == exact.0 && near, "{found:?} {exact:?} {sampler:?}");
            }
            let best = argmax(&sampler.scored((0..vocab).zip(logits.iter().copied()), &text).unwrap()).unwrap();
            assert_eq!(sampler.best_of(&mut row, &text).unwrap(), best, "{sampler:?}");
        }
        assert!(short > 100 && open == short, "{short} were told by fewer tokens, {open} left others open");
    }

    #[test]
    fn a_draw_beyond_the_best_tokens_has_the_others_probabilities() {
        // The first 128 have half of the probability.
        let logits: Vec<f32> = (0..384).map(|i| if i < 128 { 2f32.ln() } else { 0.0 }).collect();
        let sampler = Sampler::new(&Sampling { temperature: 1.0, ..Sampling::default() }).unwrap();
        let kept = sampler.kept(&mut Row::of(&logits), &[]).unwrap();
        assert!(kept.rest && kept.shares.len() == 128);
        let (mut counts, draws) = ([0usize; 4], 40_000);
        for i in 0..draws {
            let pick = sampler.pick(&mut Row::of(&logits), None, &[], &mut stream(8, "test", &[i])).unwrap();
            counts[pick.token as usize / 96] += 1;
        }
        let exact = [96.0 * 2.0, 32.0 * 2.0 + 64.0, 96.0, 96.0].map(|weight| weight / 512.0);
        for (count, exact) in counts.iter().zip(exact) {
            assert!((*count as f64 / draws as f64 - exact).abs() < 0.015, "{counts:?}");
        }
    }
}
