//! `totara complete`: plain continuation with the same engine, which is how others check it.

use super::args::{Common, CompleteArgs, Speculate};
use super::{lm, out, puzzle, runtime, signals};
use crate::base::text::sanitize;
use crate::base::{Error, Result};
use crate::lm::{Finish, Format, Generate, Likelihood, Lm, Mode, Prompt, Sampling, StreamKey, Update, Usage};
use serde_json::json;

pub fn run(common: &Common, args: &CompleteArgs) -> Result<u8> {
    let prompt = puzzle::text(&args.prompt, "--prompt")?;
    let sampling = Sampling {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        repetition_penalty: args.repetition_penalty,
    };
    if common.model.as_deref() == Some(lm::CHANCE) {
        return Err(Error::input("--model random-proposer chooses among what a puzzle allows, and a text has none"));
    }
    // A refused setting is told before a model is loaded.
    crate::engine::sample::Sampler::new(&sampling)?;
    let lm = lm::open(common, &lm::Told::new(common))?;
    let request = Generate {
        prompt: Prompt { format: if args.chat { Format::Chat } else { Format::Raw }, text: prompt, tail: Vec::new() },
        mode: Mode::Sample,
        n: args.n,
        sampling,
        max_tokens: args.max_tokens,
        stop: args.stop.clone(),
        constraint: None,
        likelihood: Likelihood::Model,
        key: StreamKey { seed: common.seed, puzzle: 0, node: 0 },
    };
    runtime()?.block_on(answer(common, args, &*lm, request))
}

async fn answer(common: &Common, args: &CompleteArgs, lm: &dyn Lm, request: Generate) -> Result<u8> {
    let mut signals = signals::Signals::new()?;
    // A single text streams; several come whole, in order.
    let stream = args.n == 1 && !common.json;
    let mut done: Vec<Option<crate::lm::Completion>> = vec![None; args.n];
    let mut updates = lm.generate(request);
    let mut code = 0;
    while done.iter().any(Option::is_none) {
        let update = tokio::select! {
            update = updates.recv() => update,
            number = signals.next() => return Ok(128 + number),
        };
        match update {
            Some(Update::Text { text, .. }) if stream => out::piece(&sanitize(&text))?,
            Some(Update::Text { .. }) => {}
            Some(Update::Done { sample, completion }) => {
                if let Some(place) = done.get_mut(sample) {
                    *place = Some(completion);
                }
            }
            Some(Update::Failed(e)) => return Err(e),
            None => return Err(Error::fault("the engine went away in the middle of its answer")),
        }
    }
    for completion in done.into_iter().flatten() {
        if common.json {
            let mut row = json!({
                "ids": &*completion.ids,
                "text": completion.text,
                "logprobs": completion.logprobs,
                "finish": completion.finish,
                "prompt_tokens": completion.usage.prompt,
            });
            if common.speculate == Speculate::Ngram {
                row["drafted"] = completion.usage.drafted.into();
                row["accepted"] = completion.usage.accepted.into();
                row["accepted_length"] = completion.usage.accepted_length().into();
            }
            out::json(&row)?;
        } else if stream {
            out::line("")?;
        } else {
            out::line(&sanitize(&completion.text))?;
        }
        if common.verbose > 0
            && let Some(line) = drafts(&completion.usage)
        {
            out::tell(&line);
        }
        match &completion.finish {
            Finish::NoMemory(why) => {
                code = code.max(3);
                out::tell(&format!("totara: {why}"));
            }
            Finish::Failed(why) => {
                code = code.max(4);
                out::tell(&format!("totara: {why}"));
            }
            Finish::Context(limit) if !common.quiet => {
                out::tell(&format!("stopped at the context's limit of {limit} tokens"))
            }
            _ => {}
        }
    }
    Ok(code)
}

/// How the drafts of a text did.
fn drafts(usage: &Usage) -> Option<String> {
    usage.accepted_length().map(|length| {
        format!(
            "drafts: {} of {} tokens accepted in {} steps, {length:.2} tokens a step",
            usage.accepted, usage.drafted, usage.drafts
        )
    })
}
