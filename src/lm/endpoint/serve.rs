//! A request of the search as requests of the server: n samples, the n likeliest of listed texts, log-probabilities.

use super::guide::Guide;
use super::http::Refusal;
use super::wire::{self, Ask, Billed, Choice, Reply};
use super::{Kind, Shared};
use crate::base::{Error, Result, rng};
use crate::lm::{
    Completion, Constraint, Finish, Format, Generate, Grammar, GrammarForm, Judgement, Mode, Prompt, Sampling, Score,
    Scores, StreamKey, Update, Usage,
};
use rand::RngCore;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc::UnboundedSender;

/// Alternatives of the first token that are asked for to rank texts by. vLLM allows 20 unless told otherwise.
const ALTERNATIVES: usize = 20;

/// Bytes of text that a token has, where a server does not tell how many there were.
const BYTES_A_TOKEN: u64 = 4;

/// Serves one request to its end. A request whose reader has gone away is left.
pub fn generate(shared: &Shared, request: &Generate, updates: &UnboundedSender<Update>) {
    let done = match request.mode {
        Mode::Sample => samples(shared, request, updates),
        Mode::Likeliest => likeliest(shared, request, updates),
    };
    if let Err(error) = done {
        // A reader that has gone away wants no answer.
        drop(updates.send(Update::Failed(error)));
    }
}

/// Hands a finished sample on.
fn deliver(updates: &UnboundedSender<Update>, sample: usize, completion: Completion) {
    let logprob = completion.logprobs.iter().sum();
    drop(updates.send(Update::Text { sample, text: completion.text.clone(), logprob }));
    drop(updates.send(Update::Done { sample, completion }));
}

/// The constraint in the server's words. Without a mask there is nothing to hold the server to.
fn guide(constraint: Option<&Arc<dyn Constraint>>) -> Result<Option<Guide>> {
    let Some(rule) = constraint.filter(|rule| rule.masks()) else { return Ok(None) };
    if let Some(GrammarForm::Json(schema)) = rule.grammar().map(Grammar::form) {
        return Ok(Some(Guide::Schema(schema.clone())));
    }
    match (rule.pattern(), rule.choices()) {
        (Some(pattern), _) => Ok(Some(Guide::Pattern(pattern))),
        (None, Some(choices)) => Ok(Some(Guide::Choices(choices))),
        (None, None) => Err(Error::input(
            "this constraint needs token masks, which an endpoint has not; use `constrain: none`, a pattern or a list",
        )),
    }
}

/// A seed of the server's own for each request, from the stream's key.
fn seed(key: StreamKey, part: u64) -> u64 {
    rng::stream(key.seed, "endpoint", &[key.puzzle, key.node, part]).next_u64()
}

/// n samples, as many of them in one request as the server takes.
fn samples(shared: &Shared, request: &Generate, updates: &UnboundedSender<Update>) -> Result<()> {
    let guide = guide(request.constraint.as_ref())?;
    let mut served = 0;
    while served < request.n && !updates.is_closed() {
        let n = (request.n - served).min(shared.most_samples.load(Ordering::Relaxed)).max(1);
        let ask = Ask {
            model: &shared.model,
            kind: shared.abilities.kind,
            prompt: &request.prompt,
            n,
            max_tokens: request.max_tokens,
            sampling: &request.sampling,
            stop: &request.stop,
            seed: seed(request.key, served as u64),
            logprobs: shared.abilities.logprobs.then_some(0),
            guide: guide.as_ref(),
        };
        let reply = match send(shared, &ask) {
            Ok(reply) => reply,
            // So many at once are too many for it: half as many, from here on.
            Err(Refusal { status: Some(400 | 422), .. }) if n > 1 => {
                shared.most_samples.fetch_min(n / 2, Ordering::Relaxed);
                continue;
            }
            Err(refusal) => return Err(refusal.error),
        };
        if reply.choices.len() < n {
            shared.most_samples.fetch_min(reply.choices.len(), Ordering::Relaxed);
        }
        let usages = usages(&reply, request.prompt.full_text().len());
        for (choice, usage) in reply.choices.into_iter().zip(usages).take(n) {
            deliver(updates, served, completion(choice, request, usage));
            served += 1;
        }
    }
    Ok(())
}

fn send(shared: &Shared, ask: &Ask<'_>) -> Result<Reply, Refusal> {
    let (path, body) = wire::body(ask);
    let value = shared.http.post(path, &body)?;
    let chat = ask.prompt.format == Format::Chat;
    let mut reply = wire::reply(&value, chat).map_err(|error| Refusal { error, status: None })?;
    // llama.cpp's server says the beginning that it was given again.
    let begun = wire::begun(ask.prompt);
    if chat && ask.kind == Kind::LlamaCpp && !begun.is_empty() {
        for choice in &mut reply.choices {
            if let Some(rest) = choice.text.strip_prefix(&begun) {
                choice.text = rest.to_string();
            }
        }
    }
    Ok(reply)
}

/// Each choice's share: the prompt is the first one's, as it was computed, and as it is billed: once a request.
fn usages(reply: &Reply, prompt_bytes: usize) -> Vec<Usage> {
    let n = reply.choices.len() as u64;
    let guess = |bytes: usize| (bytes as u64).div_ceil(BYTES_A_TOKEN);
    let billed = reply.usage.unwrap_or(Billed { prompt: guess(prompt_bytes), completion: 0, cached: None });
    let share = |i: usize, choice: &Choice| {
        let sampled = choice.sampled.unwrap_or_else(|| match reply.usage {
            // What is told is of all choices together.
            Some(usage) => usage.completion / n + u64::from((i as u64) < usage.completion % n),
            None => guess(choice.text.len()),
        });
        let computed = billed.prompt.saturating_sub(billed.cached.unwrap_or(0));
        let (prompt, full) = if i == 0 { (computed, billed.prompt) } else { (0, 0) };
        Usage { prompt, sampled, logical: full + sampled, ..Usage::default() }
    };
    reply.choices.iter().enumerate().map(|(i, choice)| share(i, choice)).collect()
}

/// A choice as a completion: cut where a stop text or the constraint ends it, whatever the server made of them.
fn completion(choice: Choice, request: &Generate, usage: Usage) -> Completion {
    let (text, finish) = ending(&choice, request);
    // Log-probabilities of what is kept.
    let mut left = text.len();
    let kept = choice.tokens.iter().take_while(|token| {
        let some = left > 0;
        left = left.saturating_sub(token.text.len());
        some
    });
    let logprobs: Vec<f32> = kept.map(|token| token.logprob).filter(|logprob| logprob.is_finite()).collect();
    let masked_logprob = logprobs.iter().map(|&l| f64::from(l)).sum();
    Completion { text, ids: Arc::from([]), logprobs, masked_logprob, finish, usage, hold: None }
}

fn ending(choice: &Choice, request: &Generate) -> (String, Finish) {
    let mut text = choice.text.as_str();
    let mut finish = match (choice.finish.as_str(), &choice.stopped_by) {
        ("length", _) => Finish::Length,
        ("abort" | "error", _) => Finish::Failed("the endpoint gave this sample up".into()),
        (_, Some(stop)) => Finish::Stop(stop.clone()),
        _ => Finish::End,
    };
    let stops = request.stop.iter().filter(|stop| !stop.is_empty());
    if let Some((at, stop)) = stops.filter_map(|stop| Some((text.find(stop.as_str())?, stop))).min_by_key(|(at, _)| *at)
    {
        text = &text[..at];
        finish = Finish::Stop(stop.clone());
    }
    let Some(rule) = &request.constraint else { return (text.to_string(), finish) };
    for (at, c) in text.char_indices() {
        let end = at + c.len_utf8();
        match rule.judge(&text[..end]) {
            Judgement::Dead(why) => return (text[..end].to_string(), Finish::Refuted(why)),
            Judgement::Closed => return (text[..end].to_string(), Finish::End),
            Judgement::Open { .. } => {}
        }
    }
    if rule.masks() && finish != Finish::Length && matches!(rule.judge(text), Judgement::Open { complete: false }) {
        finish = Finish::Refuted("the reply ends before it is complete".into());
    }
    (text.to_string(), finish)
}

/// The n likeliest of the listed texts: ranked by the first token where that decides, else picked one after another.
fn likeliest(shared: &Shared, request: &Generate, updates: &UnboundedSender<Update>) -> Result<()> {
    let choices = request.constraint.as_ref().and_then(|rule| rule.choices()).ok_or_else(|| {
        Error::input("`kind: likeliest` on an endpoint needs a constraint that lists its texts; use `kind: sample`")
    })?;
    let n = request.n.min(choices.len());
    if shared.abilities.logprobs && ranked(shared, request, &choices, n, updates)? {
        return Ok(());
    }
    let mut left = choices;
    for sample in 0..n {
        if updates.is_closed() {
            return Ok(());
        }
        let picked = pick(shared, request, &left, sample as u64)?;
        let Some(at) = left.iter().position(|text| *text == picked.text) else {
            return Err(Error::fault(format!(
                "the endpoint answered `{}`, which its grammar does not allow",
                crate::base::text::sanitize_line(&picked.text)
            )));
        };
        left.remove(at);
        deliver(updates, sample, picked);
    }
    Ok(())
}

/// One request, one token: where each of the n likeliest texts is a token of its own, its probability is told exactly.
/// `false`: the server's list does not decide it.
fn ranked(
    shared: &Shared,
    request: &Generate,
    choices: &[String],
    n: usize,
    updates: &UnboundedSender<Update>,
) -> Result<bool> {
    if choices.len() < 2 || choices.iter().any(|text| text.chars().count() > 1) {
        return Ok(false);
    }
    let guide = Guide::Choices(choices.to_vec());
    let ask = Ask {
        model: &shared.model,
        kind: shared.abilities.kind,
        prompt: &request.prompt,
        n: 1,
        max_tokens: 1,
        sampling: &Sampling::default(),
        stop: &[],
        seed: 0,
        logprobs: Some(ALTERNATIVES),
        guide: shared.abilities.guides().then_some(&guide),
    };
    let reply = send(shared, &ask)?;
    let usage = usages(&reply, request.prompt.full_text().len()).first().copied().unwrap_or_default();
    let Some(first) = reply.choices.first().and_then(|choice| choice.tokens.first()) else { return Ok(false) };
    let mut found: BTreeMap<&str, f32> = BTreeMap::new();
    for (text, logprob) in first.others.iter().chain([&(first.text.clone(), first.logprob)]) {
        if let Some(choice) = choices.iter().find(|choice| *choice == text) {
            found.insert(choice, *logprob);
        }
    }
    let mut order: Vec<(&str, f32)> = found.into_iter().filter(|(_, logprob)| logprob.is_finite()).collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    if order.len() < n {
        return Ok(false);
    }
    let all: f64 = order.iter().map(|(_, logprob)| f64::from(*logprob).exp()).sum();
    for (sample, (text, logprob)) in order.into_iter().take(n).enumerate() {
        // One request and one token served all of them.
        let usage = if sample == 0 { usage } else { Usage::default() };
        let completion = Completion {
            text: text.to_string(),
            ids: Arc::from([]),
            logprobs: vec![logprob],
            masked_logprob: f64::from(logprob) - all.ln(),
            finish: Finish::End,
            usage,
            hold: None,
        };
        deliver(updates, sample, completion);
    }
    Ok(true)
}

/// The greedy text among those that are left.
fn pick(shared: &Shared, request: &Generate, left: &[String], part: u64) -> Result<Completion> {
    let guide = Guide::Choices(left.to_vec());
    let ask = Ask {
        model: &shared.model,
        kind: shared.abilities.kind,
        prompt: &request.prompt,
        n: 1,
        max_tokens: request.max_tokens.max(1),
        sampling: &Sampling::default(),
        stop: &[],
        seed: seed(request.key, part),
        logprobs: shared.abilities.logprobs.then_some(0),
        guide: Some(&guide),
    };
    let reply = send(shared, &ask)?;
    let usage = usages(&reply, request.prompt.full_text().len()).first().copied().unwrap_or_default();
    let choice = reply.choices.into_iter().next().ok_or_else(|| Error::fault("the endpoint gave no text"))?;
    // The judge may end a text early that others begin with, so the list alone decides here.
    let plain = Generate { constraint: None, stop: Vec::new(), ..request.clone() };
    Ok(completion(choice, &plain, usage))
}

/// Log-probabilities of given texts, with `echo`: the server tells those of the prompt's tokens.
pub fn score(shared: &Shared, request: &Score) -> Result<Scores> {
    if !shared.abilities.scores() {
        return Err(Error::input(format!(
            "{} does not tell log-probabilities of given texts; use another evaluator",
            shared.abilities.kind.name()
        )));
    }
    if request.prompt.format == Format::Chat {
        return Err(Error::input("an endpoint scores completion prompts alone; use `format: completion`"));
    }
    let mut scores = Scores { logprobs: Vec::new(), usage: Usage::default() };
    for text in &request.continuations {
        let prompt: &Prompt = &request.prompt;
        let before = prompt.full_text();
        let body = json!({"model": shared.model, "prompt": format!("{before}{text}"), "max_tokens": 1, "echo": true,
            "logprobs": 1, "temperature": 0.0});
        let reply = wire::reply(&shared.http.post("completions", &body)?, false)?;
        let Some(choice) = reply.choices.first() else { continue };
        let mut at = 0;
        let ends = before.len()..before.len() + text.len();
        let inside = choice.tokens.iter().filter(|token| {
            let begin = at;
            at += token.text.len();
            // A token that bridges the seam belongs to the text.
            at > ends.start && begin < ends.end
        });
        let logprobs: Vec<f32> = inside.map(|token| token.logprob).collect();
        let billed = reply.usage.map_or(choice.tokens.len() as u64, |usage| usage.prompt);
        let scored = logprobs.len() as u64;
        let cached = reply.usage.and_then(|usage| usage.cached).unwrap_or(0);
        let prompt = billed.saturating_sub(cached).saturating_sub(scored);
        scores.usage += Usage { prompt, sampled: 1, scored, logical: billed + 1, ..Usage::default() };
        scores.logprobs.push(logprobs);
    }
    Ok(scores)
}
