//! From logits to a token: filters, the draw, and the log-probability of what was drawn.
//!
//! The order is fixed: repetition penalty, the constraint's mask, temperature, top-k, top-p, min-p, draw. All sums are
//! in float64; tokens are ordered by logit, equal ones by id. At least one token always stays. Logits that are not
//! numbers are an error of this row, never a token.

use super::request::Sampling;
use crate::base::{Error, Result};
use rand::Rng;
use std::cmp::Ordering;

/// Temperatures below this are the argmax: the smallest difference of two float32 logits near 10 divided by it is
/// about 0.1, so anything smaller only draws between exact ties.
const COLD: f32 = 1e-5;

/// A sum of probabilities this close to `top_p` has reached it, so that 0.5 + 0.3 reaches 0.8.
const NUCLEUS_SLACK: f64 = 1e-6;

/// Checked sampling settings.
#[derive(Debug, Clone)]
pub struct Sampler {
    settings: Sampling,
}

/// A drawn token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pick {
    pub token: u32,
    /// Natural-log probability under the unmodified distribution.
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
        Ok(Self { settings: settings.clone() })
    }

    pub fn greedy() -> Self {
        Self { settings: Sampling::default() }
    }

    /// This sampler's penalty with the argmax instead of a draw.
    pub fn cold(&self) -> Self {
        Self { settings: Sampling { repetition_penalty: self.settings.repetition_penalty, ..Sampling::default() } }
    }

    /// Draws a token from `logits` (`[vocab]`) among `allowed` (ascending; `None`: all). `text` is what was generated
    /// so far: the penalty is for its tokens, not for the prompt's.
    pub fn pick(&self, logits: &[f32], allowed: Option<&[u32]>, text: &[u32], rng: &mut impl Rng) -> Result<Pick> {
        let total = log_sum_exp(logits)?;
        let token = if self.settings.temperature < COLD {
            self.argmax(logits, allowed, text)?
        } else {
            self.draw(logits, allowed, text, rng)?
        };
        let logit = f64::from(logits[token as usize]);
        let masked_total = match allowed {
            Some(allowed) => masked_log_sum_exp(logits, allowed)?,
            None => total,
        };
        Ok(Pick { token, logprob: (logit - total) as f32, masked_logprob: logit - masked_total })
    }

    /// The `n` likeliest tokens, best first; fewer where fewer are allowed. The filters do not apply.
    pub fn best(&self, logits: &[f32], allowed: Option<&[u32]>, n: usize) -> Result<Vec<Pick>> {
        let total = log_sum_exp(logits)?;
        let masked_total = match allowed {
            Some(allowed) => masked_log_sum_exp(logits, allowed)?,
            None => total,
        };
        let mut scored = self.candidates(logits, allowed, &[])?;
        scored.retain(|&(_, logit)| logit > f64::NEG_INFINITY);
        keep_best(&mut scored, n);
        let pick = |(token, _): (u32, f64)| {
            let logit = f64::from(logits[token as usize]);
            Pick { token, logprob: (logit - total) as f32, masked_logprob: logit - masked_total }
        };
        Ok(scored.into_iter().map(pick).collect())
    }

    /// The tokens that stay after all filters, best first, with their probabilities (which sum to 1).
    pub fn kept(&self, logits: &[f32], allowed: Option<&[u32]>, text: &[u32]) -> Result<Vec<(u32, f64)>> {
        let settings = &self.settings;
        let mut scored = self.candidates(logits, allowed, text)?;
        // The likeliest k are the same before the temperature as after it, and then only they need an exponential.
        if let Some(k) = settings.top_k
            && k > 0
        {
            keep_best(&mut scored, k);
        }
        let best = scored.iter().map(|&(_, logit)| logit).fold(f64::NEG_INFINITY, f64::max);
        if best == f64::NEG_INFINITY {
            return Err(Error::fault("every allowed token has probability 0"));
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

    fn draw(&self, logits: &[f32], allowed: Option<&[u32]>, text: &[u32], rng: &mut impl Rng) -> Result<u32> {
        let kept = self.kept(logits, allowed, text)?;
        let mut left: f64 = rng.random();
        for &(token, share) in &kept {
            if left < share {
                return Ok(token);
            }
            left -= share;
        }
        // Rounding left a crumb over: it belongs to the last token that can be drawn at all.
        let last = kept.iter().rev().find(|&&(_, share)| share > 0.0);
        last.map(|&(token, _)| token).ok_or_else(|| Error::fault("no token left to draw"))
    }

    fn argmax(&self, logits: &[f32], allowed: Option<&[u32]>, text: &[u32]) -> Result<u32> {
        let better = |a: (u32, f64), b: (u32, f64)| if b.1 > a.1 || (b.1 == a.1 && b.0 < a.0) { b } else { a };
        let best = if allowed.is_none() && self.settings.repetition_penalty == 1.0 {
            // The commonest case needs no list of the whole vocabulary.
            let best = largest(logits);
            (0u32..).zip(logits).find(|&(_, &logit)| logit == best).map(|(id, &logit)| (id, f64::from(logit)))
        } else {
            self.candidates(logits, allowed, text)?.into_iter().reduce(better)
        };
        match best {
            Some((token, logit)) if logit > f64::NEG_INFINITY => Ok(token),
            _ => Err(Error::fault("every allowed token has probability 0")),
        }
    }

    /// Allowed tokens with their penalised logits, by id.
    fn candidates(&self, logits: &[f32], allowed: Option<&[u32]>, text: &[u32]) -> Result<Vec<(u32, f64)>> {
        let mut scored: Vec<(u32, f64)> = match allowed {
            Some(allowed) => allowed.iter().map(|&id| (id, f64::from(logits[id as usize]))).collect(),
            None => (0u32..).zip(logits).map(|(id, &logit)| (id, f64::from(logit))).collect(),
        };
        if scored.is_empty() {
            return Err(Error::fault("no token is allowed here"));
        }
        let penalty = f64::from(self.settings.repetition_penalty);
        if penalty != 1.0 {
            let mut seen = text.to_vec();
            seen.sort_unstable();
            seen.dedup();
            for id in seen {
                if let Ok(at) = scored.binary_search_by_key(&id, |&(id, _)| id) {
                    let logit = &mut scored[at].1;
                    *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
                }
            }
        }
        Ok(scored)
    }
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

/// Numbers that are treated side by side, each in a sum of its own: the order of the additions, and with it every bit,
/// is the same whatever the instruction set.
const LANES: usize = 16;

/// ln Σ exp(logit): the vocabulary is read for every token drawn. The exponentials are float32 (relative error below
/// 1e-6), the sums float64. An error where a logit is NaN, or all of them are infinite.
pub fn log_sum_exp(logits: &[f32]) -> Result<f64> {
    let best = largest(logits);
    if !best.is_finite() {
        return finish_sum(f64::NAN, f64::NAN);
    }
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 was found at run time.
        return finish_sum(f64::from(best), unsafe { exp_sum_avx2(logits, best) });
    }
    finish_sum(f64::from(best), exp_sum(logits, best))
}

/// The largest logit; NaN where one is NaN.
fn largest(logits: &[f32]) -> f32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 was found at run time.
        return unsafe { largest_avx2(logits) };
    }
    largest_lanes(logits)
}

/// [`largest_lanes`], compiled for wider instructions: the same bits.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn largest_avx2(logits: &[f32]) -> f32 {
    largest_lanes(logits)
}

#[inline(always)]
fn largest_lanes(logits: &[f32]) -> f32 {
    let (chunks, rest) = logits.as_chunks::<LANES>();
    let mut best = [f32::NEG_INFINITY; LANES];
    // Stays 0 as long as there are only numbers.
    let mut wrong = [0u32; LANES];
    for chunk in chunks {
        for lane in 0..LANES {
            best[lane] = if chunk[lane] > best[lane] { chunk[lane] } else { best[lane] };
            wrong[lane] |= u32::from(chunk[lane].is_nan());
        }
    }
    if wrong.iter().any(|&wrong| wrong > 0) || rest.iter().any(|logit| logit.is_nan()) {
        return f32::NAN;
    }
    best.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max)
}

/// [`exp_sum`], compiled for wider instructions: the same bits, since nothing is fused or put in another order.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn exp_sum_avx2(logits: &[f32], best: f32) -> f64 {
    exp_sum(logits, best)
}

/// Σ exp(logit - best).
#[inline(always)]
fn exp_sum(logits: &[f32], best: f32) -> f64 {
    let (chunks, rest) = logits.as_chunks::<LANES>();
    let mut sums = [0f64; LANES];
    for chunk in chunks {
        for (sum, &logit) in sums.iter_mut().zip(chunk) {
            *sum += f64::from(exp_of_negative(logit - best));
        }
    }
    let tail: f64 = rest.iter().map(|&logit| f64::from(exp_of_negative(logit - best))).sum();
    sums.iter().sum::<f64>() + tail
}

/// e^x for x from 0 down, without a branch: 2^n times a Taylor polynomial on half a power of two either side (Cody and
/// Waite's reduction). Below -87 the result stays at e^-87, which adds nothing to a sum that holds e^0.
#[inline(always)]
fn exp_of_negative(x: f32) -> f32 {
    /// Adding and taking off 1.5 · 2^23 rounds to a whole number.
    const ROUND: f32 = 12_582_912.0;
    let x = x.max(-87.0);
    let n = (x * std::f32::consts::LOG2_E + ROUND) - ROUND;
    let r = x - n * 0.693_359_4 - n * -2.121_944_4e-4;
    let tail = 0.5 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0 + r * (1.0 / 720.0))));
    (1.0 + r * (1.0 + r * tail)) * f32::from_bits(((n as i32 + 127) as u32) << 23)
}

/// [`log_sum_exp`] over some tokens only.
pub fn masked_log_sum_exp(logits: &[f32], allowed: &[u32]) -> Result<f64> {
    let best = allowed.iter().map(|&id| logits[id as usize]).fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = allowed.iter().map(|&id| f64::from(logits[id as usize] - best).exp()).sum();
    finish_sum(f64::from(best), sum)
}

fn finish_sum(best: f64, sum: f64) -> Result<f64> {
    let total = best + sum.ln();
    if total.is_finite() {
        Ok(total)
    } else {
        Err(Error::fault("the model's logits are not numbers (NaN or infinite) at this token"))
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
        Ok(Sampler::new(&settings)?.pick(logits, None, &[], &mut stream(0, "test", &[]))?.token)
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
            let kept = Sampler::new(&settings).unwrap().kept(&logits, None, &[]).unwrap();
            let mut kept: Vec<u64> = kept.iter().map(|&(id, _)| u64::from(id)).collect();
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
            let kept = sampler.kept(&logits, allowed, text).unwrap();
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
            let pick = sampler.pick(&logits, None, &[], &mut stream(7, "test", &[i])).unwrap();
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
        let kept = sampler.kept(&logits, None, &[]).unwrap();
        assert!(kept.windows(2).all(|w| w[0].1 >= w[1].1));
        let all = Sampler::new(&Sampling { temperature: 1.0, ..Sampling::default() }).unwrap();
        let mut all = all.kept(&logits, None, &[]).unwrap();
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
    fn the_fast_exponential_is_exact_enough_and_nan_is_never_lost() {
        for i in 0..100_000 {
            let x = -i as f32 * 8.6e-4;
            let (fast, exact) = (f64::from(exp_of_negative(x)), f64::from(x).exp());
            assert!((fast / exact - 1.0).abs() < 1e-6, "{x}: {fast} {exact}");
        }
        assert_eq!(exp_of_negative(0.0), 1.0);
        let mut logits: Vec<f32> = (0..1003).map(|i| ((i * 7919) % 1000) as f32 * 0.02 - 9.0).collect();
        let exact = logits.iter().map(|&l| f64::from(l).exp()).sum::<f64>().ln();
        assert!((log_sum_exp(&logits).unwrap() - exact).abs() < 1e-6);
        for at in [0, 17, 1002] {
            for wrong in [f32::NAN, f32::INFINITY] {
                let right = std::mem::replace(&mut logits[at], wrong);
                assert!(log_sum_exp(&logits).is_err(), "{wrong} at {at}");
                logits[at] = f32::NEG_INFINITY;
                assert!(log_sum_exp(&logits).is_ok());
                logits[at] = right;
            }
        }
        assert!(log_sum_exp(&[f32::NEG_INFINITY; 40]).is_err());
        assert!(log_sum_exp(&[]).is_err());
    }

    #[test]
    fn a_mask_renormalises_its_own_log_probability_only() {
        let logits = [0.0f32, 1.0, 2.0, f32::NEG_INFINITY];
        let pick = |allowed: &[u32]| Sampler::greedy().pick(&logits, Some(allowed), &[], &mut stream(0, "test", &[]));
        let one = pick(&[0]).unwrap();
        assert_eq!(one.masked_logprob, 0.0);
        assert!((f64::from(one.logprob) + (1.0 + 1f64.exp() + 2f64.exp()).ln()).abs() < 1e-6);
        assert!(pick(&[3]).is_err());
        assert!(pick(&[]).is_err());
    }
}
