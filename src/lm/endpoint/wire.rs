//! Bodies of requests and replies, in the words of OpenAI's API and of the servers that add to it.

use super::Kind;
use super::guide::Guide;
use crate::base::text::sanitize_line;
use crate::base::{Error, Result};
use crate::lm::{Format, Prompt, Sampling};
use serde_json::{Map, Value, json};

/// A model that the server has.
#[derive(Debug, PartialEq)]
pub struct Found {
    pub id: String,
    pub owner: String,
    pub context: Option<usize>,
}

/// The model of that name in `/v1/models`, or the one there is.
pub fn model(listed: &Value, named: Option<&str>) -> Result<Found> {
    let all = listed["data"].as_array().map(Vec::as_slice).unwrap_or_default();
    let id = |model: &Value| model["id"].as_str().map(str::to_string);
    let names = || {
        let names: Vec<String> = all.iter().filter_map(id).take(20).map(|name| sanitize_line(&name)).collect();
        names.join(", ")
    };
    let aliases = |model: &Value| {
        let more = model["aliases"].as_array().into_iter().flatten().filter_map(Value::as_str);
        more.map(str::to_string).chain(id(model)).collect::<Vec<_>>()
    };
    let found = match named {
        Some(name) => all.iter().find(|model| aliases(model).iter().any(|alias| alias == name)).ok_or_else(|| {
            Error::input(format!("the endpoint serves no model `{}`; it serves {}", sanitize_line(name), names()))
        })?,
        None => match all {
            [one] => one,
            [] => return Err(Error::fault("the endpoint lists no model")),
            _ => return Err(Error::input(format!("the endpoint serves several models; name one of {}", names()))),
        },
    };
    let context = [&found["max_model_len"], &found["meta"]["n_ctx"]].into_iter().find_map(Value::as_u64);
    Ok(Found {
        id: id(found).ok_or_else(|| Error::fault("the endpoint lists a model without a name"))?,
        owner: found["owned_by"].as_str().unwrap_or_default().to_string(),
        context: context.and_then(|n| usize::try_from(n).ok()),
    })
}

/// What is asked of the server.
pub struct Ask<'a> {
    pub model: &'a str,
    pub kind: Kind,
    pub prompt: &'a Prompt,
    pub n: usize,
    pub max_tokens: usize,
    pub sampling: &'a Sampling,
    pub stop: &'a [String],
    pub seed: u64,
    /// Alternatives of each token that are told; `None`: no log-probabilities.
    pub logprobs: Option<usize>,
    pub guide: Option<&'a Guide>,
}

/// Path and body.
pub fn body(ask: &Ask<'_>) -> (&'static str, Value) {
    let Ask { model, kind, prompt, n, max_tokens, sampling, stop, seed, logprobs, guide } = ask;
    let mut body = Map::new();
    let mut set = |name: &str, value: Value| drop(body.insert(name.into(), value));
    set("model", json!(model));
    set("max_tokens", json!(max_tokens));
    set("temperature", json!(sampling.temperature));
    set("top_p", json!(sampling.top_p.unwrap_or(1.0)));
    // Seeds are 32-bit numbers at some servers.
    set("seed", json!(seed & 0x7fff_ffff));
    if *n > 1 {
        set("n", json!(n));
    }
    if !stop.is_empty() {
        set("stop", json!(stop));
    }
    // Servers that are known have samplers of their own switched on; they are told what the strategy says.
    let top_k = sampling.top_k.filter(|&k| k > 0);
    match kind {
        Kind::LlamaCpp => {
            set("top_k", json!(top_k.unwrap_or(0)));
            set("min_p", json!(sampling.min_p.unwrap_or(0.0)));
            set("repeat_penalty", json!(sampling.repetition_penalty));
            set("cache_prompt", json!(true));
        }
        Kind::Vllm | Kind::SgLang => {
            set("top_k", top_k.map_or(json!(-1), |k| json!(k)));
            set("min_p", json!(sampling.min_p.unwrap_or(0.0)));
            set("repetition_penalty", json!(sampling.repetition_penalty));
        }
        Kind::Other => {}
    }
    if let Some(guide) = guide {
        guide.write(*kind, &mut set);
    }
    if prompt.format == Format::Chat {
        if let Some(alternatives) = logprobs {
            set("logprobs", json!(true));
            set("top_logprobs", json!(alternatives));
        }
        let mut messages = vec![json!({"role": "user", "content": prompt.text})];
        let begun = begun(prompt);
        if !begun.is_empty() {
            messages.push(json!({"role": "assistant", "content": begun}));
            if matches!(kind, Kind::Vllm | Kind::SgLang) {
                set("continue_final_message", json!(true));
                set("add_generation_prompt", json!(false));
            }
        }
        set("messages", Value::Array(messages));
        return ("chat/completions", Value::Object(body));
    }
    if let Some(alternatives) = logprobs {
        set("logprobs", json!(alternatives.max(&1)));
    }
    set("prompt", json!(prompt.full_text()));
    ("completions", Value::Object(body))
}

/// What the assistant's turn begins with.
pub fn begun(prompt: &Prompt) -> String {
    prompt.tail.iter().map(|part| part.text()).collect()
}

/// A token of a reply, as text, with its natural-log probability and those of what else it might have been.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    pub text: String,
    pub logprob: f32,
    pub others: Vec<(String, f32)>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    pub text: String,
    /// Empty where no log-probabilities came. End tokens are left out.
    pub tokens: Vec<Token>,
    /// Tokens that were sampled, the end token with them.
    pub sampled: Option<u64>,
    pub finish: String,
    /// The stop text that ended it, where the server tells.
    pub stopped_by: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Billed {
    pub prompt: u64,
    pub completion: u64,
    /// Of the prompt, found in the server's cache; `None`: not told.
    pub cached: Option<u64>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    pub choices: Vec<Choice>,
    pub usage: Option<Billed>,
}

/// Reads a reply. `chat`: of the chat form.
pub fn reply(value: &Value, chat: bool) -> Result<Reply> {
    let strange =
        |what: &str| Error::fault(format!("the endpoint's reply has no {what}; is it an OpenAI-compatible server?"));
    let all = value["choices"].as_array().filter(|all| !all.is_empty()).ok_or_else(|| strange("`choices`"))?;
    let mut choices: Vec<(u64, Choice)> = Vec::new();
    for (place, one) in all.iter().enumerate() {
        let text = if chat { &one["message"]["content"] } else { &one["text"] };
        let text = match text {
            // A reply of the end token alone.
            Value::Null if chat => "",
            text => text.as_str().ok_or_else(|| strange("text"))?,
        };
        let (tokens, sampled) = tokens(&one["logprobs"]);
        let stopped_by = [&one["stop_reason"], &one["matched_stop"]].into_iter().find_map(Value::as_str);
        let choice = Choice {
            text: text.to_string(),
            tokens,
            sampled,
            finish: one["finish_reason"].as_str().unwrap_or_default().to_string(),
            stopped_by: stopped_by.map(str::to_string),
        };
        choices.push((one["index"].as_u64().unwrap_or(place as u64), choice));
    }
    choices.sort_by_key(|(index, _)| *index);
    let usage = &value["usage"];
    let usage = usage["prompt_tokens"].as_u64().map(|prompt| Billed {
        prompt,
        completion: usage["completion_tokens"].as_u64().unwrap_or(0),
        cached: usage["prompt_tokens_details"]["cached_tokens"].as_u64(),
    });
    Ok(Reply { choices: choices.into_iter().map(|(_, choice)| choice).collect(), usage })
}

/// Tokens of a choice, in the form of chats (llama.cpp uses it for completions too) or of completions; and how many were
/// sampled.
fn tokens(logprobs: &Value) -> (Vec<Token>, Option<u64>) {
    let number = |value: &Value| value.as_f64().map(|l| l as f32);
    if let Some(content) = logprobs["content"].as_array() {
        let others = |token: &Value| {
            let all = token["top_logprobs"].as_array().into_iter().flatten();
            all.filter_map(|other| Some((other["token"].as_str()?.to_string(), number(&other["logprob"])?))).collect()
        };
        let one = |token: &Value| {
            let text = token["token"].as_str()?.to_string();
            Some(Token { text, logprob: number(&token["logprob"])?, others: others(token) })
        };
        let all: Vec<Token> = content.iter().filter_map(one).collect();
        let sampled = content.len() as u64;
        return (all.into_iter().filter(|token| !token.text.is_empty()).collect(), Some(sampled));
    }
    let Some(texts) = logprobs["tokens"].as_array() else { return (Vec::new(), None) };
    let others = |i: usize| {
        let all = logprobs["top_logprobs"][i].as_object().into_iter().flatten();
        all.filter_map(|(text, logprob)| Some((text.clone(), number(logprob)?))).collect()
    };
    let one = |(i, text): (usize, &Value)| {
        // The first token of an echoed prompt has none; its text still counts for where the others stand.
        let logprob = number(&logprobs["token_logprobs"][i]).unwrap_or(f32::NAN);
        Some(Token { text: text.as_str()?.to_string(), logprob, others: others(i) })
    };
    (texts.iter().enumerate().filter_map(one).collect(), Some(texts.len() as u64))
}
