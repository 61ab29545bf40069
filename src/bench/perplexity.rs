//! `totara bench perplexity`: how well a model predicts a text, in windows.
//!
//! The text's tokens are cut into windows that do not overlap; each begins with the model's BOS where it has one, and the
//! last `score` tokens of each are scored with all of the window before them. [`measure`] asks whoever computes logits
//! through a closure, so that a method which reads less K/V is scored over the same tokens in the same way; [`of_llama`]
//! is the closure of the plain model.
//!
//! Perplexity is e to the mean of the scored tokens' negative natural-log probabilities.

use crate::base::size::peak_bytes;
use crate::base::{Error, Result};
use crate::engine::Limits;
use crate::engine::measure::Run;
use crate::engine::sample::sums::log_sum_exp;
use crate::lm::engine::{EngineOptions, Loaded, Sample, load};
use crate::model::Model;
use crate::model::llama::Llama;
use crate::model::tokenizer::{Special, Tokenizer};
use serde::Serialize;
use std::fmt;
use std::time::Instant;

/// Which tokens of a text are scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spec {
    /// Windows, from the beginning of the text.
    pub windows: usize,
    /// Tokens of each, BOS included.
    pub window: usize,
    /// Tokens scored at the end of each.
    pub score: usize,
}

/// Windows of a text, all of one length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Windows {
    ids: Vec<Vec<u32>>,
    score: usize,
}

/// Takes the logits (`[vocab]`) that predict one scored token, in the order of the text.
pub type Take<'a> = dyn FnMut(&[f32]) -> Result<()> + 'a;

/// Computes a window's logits: of its ids, those after each of positions `first - 1 .. len - 1` go to `Take`, in order
/// (they predict the tokens `first .. len`). `first` is at least 1.
pub type Forward<'a> = dyn FnMut(&[u32], usize, &mut Take<'_>) -> Result<()> + 'a;

/// What was found.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Perplexity {
    pub tokens: usize,
    /// Sum of the negative natural-log probabilities.
    pub nats: f64,
}

impl Perplexity {
    pub fn add(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.nats += other.nats;
    }

    pub fn value(&self) -> f64 {
        (self.nats / self.tokens as f64).exp()
    }
}

impl Spec {
    fn check(&self) -> Result<()> {
        let Self { windows, window, score } = *self;
        if windows == 0 || score == 0 || score >= window {
            return Err(Error::input(format!(
                "perplexity wants at least one window, and fewer scored tokens ({score}) than a window has ({window}): \
                 the first token has nothing before it"
            )));
        }
        Ok(())
    }
}

impl Windows {
    /// Cuts a text. Refused where it is too short.
    pub fn of(text: &str, tokenizer: &Tokenizer, spec: &Spec) -> Result<Self> {
        spec.check()?;
        let mut ids = tokenizer.encode(text, Special::Text);
        let bos = tokenizer.bos();
        if bos.is_some() && ids.first() == bos.as_ref() {
            ids.remove(0);
        }
        let own = spec.window - usize::from(bos.is_some());
        if ids.len() / own < spec.windows {
            return Err(Error::input(format!(
                "the text has {} tokens: {} whole windows of {}, not {}; take fewer or shorter ones",
                ids.len(),
                ids.len() / own,
                spec.window,
                spec.windows
            )));
        }
        let window = |ids: &[u32]| bos.iter().chain(ids).copied().collect();
        Ok(Self { ids: ids.chunks_exact(own).take(spec.windows).map(window).collect(), score: spec.score })
    }

    /// Each window alone.
    pub fn each(&self) -> impl Iterator<Item = Self> + '_ {
        self.ids.iter().map(|ids| Self { ids: vec![ids.clone()], score: self.score })
    }

    /// Ids of the first window.
    pub fn ids(&self) -> &[u32] {
        self.ids.first().map_or(&[], Vec::as_slice)
    }

    /// The first scored token of a window.
    pub fn first(&self) -> usize {
        self.ids().len() - self.score
    }

    /// Scored tokens of all windows.
    pub fn tokens(&self) -> usize {
        self.ids.len() * self.score
    }
}

/// Scores all windows; `progress` is told how many tokens are done.
pub fn measure(windows: &Windows, forward: &mut Forward<'_>, progress: &mut dyn FnMut(usize)) -> Result<Perplexity> {
    let mut found = Perplexity::default();
    for ids in &windows.ids {
        let first = ids.len() - windows.score;
        let mut targets = ids[first..].iter();
        forward(ids, first, &mut |logits| {
            let target = *targets.next().ok_or_else(|| Error::fault("more logits than tokens to score"))? as usize;
            found.nats += log_sum_exp(logits)? - f64::from(logits[target]);
            found.tokens += 1;
            progress(found.tokens);
            Ok(())
        })?;
        if targets.next().is_some() {
            return Err(Error::fault("fewer logits than tokens to score"));
        }
    }
    Ok(found)
}

/// The plain model: each window in an empty memory, in steps of up to `limits.step_rows` rows.
pub fn of_llama<'a>(
    llama: &'a mut Llama,
    limits: &'a Limits,
) -> impl FnMut(&[u32], usize, &mut Take<'_>) -> Result<()> + 'a {
    move |ids, first, take| {
        if ids.len() > limits.context {
            return Err(Error::limit(format!(
                "a window of {} tokens does not fit the model's context of {}",
                ids.len(),
                limits.context
            )));
        }
        let mut run = Run::new(llama, limits);
        let branch = run.tree.open();
        // The last token is only predicted.
        let ids = &ids[..ids.len() - 1];
        for from in (0..ids.len()).step_by(limits.step_rows) {
            let to = (from + limits.step_rows).min(ids.len());
            run.clear();
            run.push(branch, &ids[from..to])?;
            for position in from.max(first - 1)..to {
                run.want(position - from);
            }
            run.forward()?;
            run.logits().try_for_each(&mut *take)?;
        }
        Ok(())
    }
}

/// One row of the table, and the JSON line.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    pub model: String,
    pub device: String,
    pub activations: String,
    pub windows: usize,
    pub window: usize,
    pub score: usize,
    /// Scored tokens.
    pub tokens: usize,
    pub perplexity: f64,
    /// Mean negative natural-log probability of a token.
    pub nats: f64,
    pub seconds: f64,
    pub peak_bytes: Option<u64>,
}

/// Loads a model and scores a text with it.
pub fn run(
    model: Model,
    options: &EngineOptions,
    text: &str,
    spec: &Spec,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Report> {
    let windows = Windows::of(text, &model.tokenizer, spec)?;
    let name = model.info.name.clone();
    let sample = Sample::of(&model, options)?;
    let Loaded { mut llama, limits, device, .. } = load(model.weights, options, sample.as_ref())?;
    let began = Instant::now();
    let total = windows.tokens();
    let found = measure(&windows, &mut of_llama(&mut llama, &limits), &mut |done| progress(done, total))?;
    Ok(Report {
        model: name,
        device,
        activations: format!("{:?}", options.activations).to_lowercase(),
        windows: spec.windows,
        window: spec.window,
        score: spec.score,
        tokens: found.tokens,
        perplexity: found.value(),
        nats: found.nats / found.tokens as f64,
        seconds: began.elapsed().as_secs_f64(),
        peak_bytes: peak_bytes(),
    })
}

impl Report {
    pub const HEAD: &'static str = "activations   windows  window  scored   perplexity  nats/token  seconds";
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<12} {:>8} {:>7} {:>7} {:>12.4} {:>11.5} {:>8.1}",
            self.activations, self.windows, self.window, self.tokens, self.perplexity, self.nats, self.seconds
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::testing::{real_model, shared};
    use crate::device::cpu::Activations;
    use crate::device::cpu::arena::KvNumber;
    use crate::model::{self, OpenOptions};

    fn options(activations: Activations) -> EngineOptions {
        let kv = if activations == Activations::F32 { KvNumber::F32 } else { KvNumber::F16 };
        EngineOptions { device: "cpu".into(), activations, kv, ..EngineOptions::default() }
    }

    #[test]
    fn a_flat_model_has_the_vocabulary_as_its_perplexity_and_a_sure_one_has_1() {
        let windows = Windows { ids: vec![vec![9, 1, 2, 3], vec![9, 3, 0, 1]], score: 3 };
        let mut told = 0;
        let flat = measure(
            &windows,
            &mut |ids, first, take| (first..ids.len()).try_for_each(|_| take(&[0.5; 4])),
            &mut |done| told = done,
        );
        let flat = flat.unwrap();
        assert!((flat.tokens, told) == (6, 6) && (flat.value() - 4.0).abs() < 1e-6, "{flat:?}");
        let sure = measure(
            &windows,
            &mut |ids, first, take| {
                ids[first..].iter().try_for_each(|&id| {
                    let mut logits = [-50.0f32; 4];
                    logits[id as usize] = 50.0;
                    take(&logits)
                })
            },
            &mut |_| {},
        );
        assert!((sure.unwrap().value() - 1.0).abs() < 1e-6);
        assert!(measure(&windows, &mut |_, _, take| take(&[0.0; 4]), &mut |_| {}).is_err(), "logits are missing");
        assert!(measure(&windows, &mut |_, _, _| Ok(()), &mut |_| {}).is_err());
    }

    #[test]
    fn windows_begin_with_bos_and_short_texts_are_refused() {
        let tokenizer = Tokenizer::bytes(300);
        let spec = Spec { windows: 2, window: 5, score: 2 };
        let windows = Windows::of("abcdefghijkl", &tokenizer, &spec).unwrap();
        assert!(windows.ids.len() == 2 && windows.ids.iter().all(|ids| ids.len() == 5), "{windows:?}");
        assert!(windows.ids.iter().all(|ids| tokenizer.bos().is_none() || tokenizer.bos() == Some(ids[0])));
        assert!(Windows::of("abc", &tokenizer, &spec).unwrap_err().message().contains("fewer or shorter"));
        for spec in [Spec { windows: 0, ..spec }, Spec { score: 5, ..spec }, Spec { score: 0, ..spec }] {
            assert!(Windows::of("abcdefghijkl", &tokenizer, &spec).is_err(), "{spec:?}");
        }
    }

    #[test]
    fn steps_of_any_size_give_the_same_perplexity() {
        let model = model::open("random:tiny", &OpenOptions::default()).unwrap();
        let text: String = (0..200u8).map(|i| char::from(b'a' + i.wrapping_mul(37) % 26)).collect();
        let spec = Spec { windows: 2, window: 60, score: 41 };
        let windows = Windows::of(&text, &model.tokenizer, &spec).unwrap();
        let Loaded { mut llama, mut limits, .. } = load(model.weights, &options(Activations::F32), None).unwrap();
        let mut of = |rows: usize| {
            limits.step_rows = rows;
            measure(&windows, &mut of_llama(&mut llama, &limits), &mut |_| {}).unwrap().value()
        };
        let whole = of(256);
        assert!(whole > 1.0 && [1, 7, 19, 59].into_iter().all(|rows| of(rows) == whole));
    }

    /// A short form of what the README states for 8 windows of 2,048 tokens, so a little wider.
    #[test]
    fn int8_predicts_a_text_as_well_as_f32() {
        let name = "int8_predicts_a_text_as_well_as_f32";
        let (Some(path), Some(shared)) = (real_model(name), shared(name)) else { return };
        let text = std::fs::read_to_string(shared.join("data/text/wikitext2_test.txt")).unwrap();
        let end = text.char_indices().nth(1500).map_or(text.len(), |(at, _)| at);
        let spec = Spec { windows: 1, window: 96, score: 64 };
        let of = |activations| {
            let model = model::open(&path.display().to_string(), &OpenOptions::default()).unwrap();
            run(model, &options(activations), &text[..end], &spec, &mut |_, _| {}).unwrap().perplexity
        };
        let (f32, int8) = (of(Activations::F32), of(Activations::Int8));
        let change = (int8 / f32 - 1.0).abs();
        assert!(change < 0.02 && f32 < 200.0, "{f32} and {int8}");
    }
}
