//! Against a server on loopback that behaves, and one that does not.

use super::faulty::{Act, Asked, Server, completion};
use super::*;
use crate::lm::pattern::Pattern;
use crate::lm::{Constraint, Finish, Format, Judgement, Likelihood, Mode, Part, Sampling, StreamKey};
use std::time::Instant;

fn options(server: &Server) -> EndpointOptions {
    EndpointOptions { wait: Duration::from_millis(5), ..EndpointOptions::new(&server.url) }
}

fn request(n: usize) -> Generate {
    Generate {
        prompt: Prompt::completion("Input: 312\nOutput: "),
        mode: Mode::Sample,
        n,
        sampling: Sampling::default(),
        max_tokens: 8,
        stop: vec!["\n".into()],
        constraint: None,
        likelihood: Likelihood::Model,
        key: StreamKey { seed: 1, puzzle: 2, node: 3 },
    }
}

/// All updates of a request: finished samples, or why there is none.
fn finished(lm: &Endpoint, request: Generate) -> Result<Vec<crate::lm::Completion>> {
    let mut updates = lm.generate(request);
    let mut done = Vec::new();
    while let Some(update) = updates.blocking_recv() {
        match update {
            Update::Text { .. } => {}
            Update::Done { sample, completion } => {
                assert_eq!(sample, done.len());
                done.push(completion);
            }
            Update::Failed(error) => return Err(error),
        }
    }
    Ok(done)
}

/// The probe is answered; what comes after it is the script's.
fn after_probe(owner: &'static str, script: impl Fn(&Asked, usize) -> Act + Send + Sync + 'static) -> Server {
    Server::start(owner, move |asked, number| match number {
        0 => Act::Json(completion(&["x"])),
        number => script(asked, number - 1),
    })
}

struct Listed(Vec<&'static str>);

impl Constraint for Listed {
    fn judge(&self, text: &str) -> Judgement {
        let longer = self.0.iter().any(|choice| choice.len() > text.len() && choice.starts_with(text));
        match (self.0.contains(&text), longer) {
            (true, false) => Judgement::Closed,
            (complete, true) => Judgement::Open { complete },
            _ => Judgement::Dead("not listed".into()),
        }
    }

    fn choices(&self) -> Option<Vec<String>> {
        Some(self.0.iter().map(|text| text.to_string()).collect())
    }
}

#[test]
fn samples_come_in_one_request_with_their_cost() {
    let server = after_probe("vllm", |_, _| Act::Json(completion(&["1 2 3", "1 3 2\nInput:"])));
    let lm = Endpoint::open(options(&server)).unwrap();
    assert_eq!((lm.info().name.as_str(), lm.info().context), ("served", Some(64)));
    assert!(lm.info().device.contains("vLLM") && lm.counters() == Counters::default());
    let done = finished(&lm, request(2)).unwrap();
    assert_eq!(done.iter().map(|c| c.text.as_str()).collect::<Vec<_>>(), ["1 2 3", "1 3 2"]);
    assert_eq!((&done[0].finish, &done[1].finish), (&Finish::End, &Finish::Stop("\n".into())));
    let usage = done.iter().fold(crate::lm::Usage::default(), |mut sum, c| {
        sum += c.usage;
        sum
    });
    // Ten tokens of prompt, four of them cached; the request is billed for the whole prompt.
    assert_eq!((usage.prompt, usage.sampled, usage.logical), (6, 2, 12));
    assert_eq!(done[0].logprobs, [-0.5]);
    let asked = server.asked.lock().unwrap();
    let body = &asked.last().unwrap().body;
    assert_eq!(asked.last().unwrap().path, "/v1/completions");
    for (name, value) in [("n", json!(2)), ("max_tokens", json!(8)), ("stop", json!(["\n"])), ("top_k", json!(-1))] {
        assert_eq!(body[name], value, "{name}");
    }
    assert!(body["seed"].is_u64() && body["prompt"] == "Input: 312\nOutput: ");
}

#[test]
fn chats_go_through_the_servers_template_and_continue_the_path() {
    let server = after_probe("llamacpp", |_, _| {
        Act::Json(
            json!({"choices": [{"index": 0, "finish_reason": "length", "message": {"content": "step 1\nstep 2"}}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 3}}),
        )
    });
    let lm = Endpoint::open(options(&server)).unwrap();
    let mut ask = request(1);
    ask.prompt = Prompt { format: Format::Chat, text: "Sort.".into(), tail: vec![Part::Text("step 1\n".into())] };
    ask.stop.clear();
    let done = finished(&lm, ask).unwrap();
    // The beginning that was given is not said again.
    assert_eq!((done[0].text.as_str(), &done[0].finish), ("step 2", &Finish::Length));
    assert_eq!((done[0].usage.prompt, done[0].usage.sampled), (5, 3));
    let asked = server.asked.lock().unwrap();
    assert_eq!(asked.last().unwrap().path, "/v1/chat/completions");
    assert_eq!(asked.last().unwrap().body["messages"][1], json!({"role": "assistant", "content": "step 1\n"}));
}

/// Slots of llama.cpp's server bound how many samples one request may have; so may any gateway.
#[test]
fn a_server_that_takes_fewer_samples_is_asked_more_often() {
    let server = after_probe("llamacpp", |asked, _| match asked.body["n"].as_u64().unwrap_or(1) {
        n if n > 2 => Act::Status(400, "", r#"{"error": {"message": "n must be at most 2"}}"#),
        n => Act::Json(completion(&["1", "2"][..n as usize])),
    });
    let lm = Endpoint::open(options(&server)).unwrap();
    assert_eq!(finished(&lm, request(5)).unwrap().len(), 5);
    assert_eq!(finished(&lm, request(2)).unwrap().len(), 2);
    let one = after_probe("other", |_, _| Act::Json(completion(&["1"])));
    assert_eq!(finished(&Endpoint::open(options(&one)).unwrap(), request(3)).unwrap().len(), 3);
}

#[test]
fn passing_failures_are_tried_again_and_the_server_is_obeyed() {
    let script = |_: &Asked, number: usize| match number {
        0 => Act::Status(429, "retry-after: 0.2\r\n", r#"{"error": {"message": "slow down"}}"#),
        1 => Act::Status(500, "", "oops"),
        2 => Act::Cut,
        3 => Act::Text("this is no JSON"),
        4 => Act::Close,
        _ => Act::Json(completion(&["served at last"])),
    };
    let server = after_probe("vllm", script);
    let lm = Endpoint::open(options(&server)).unwrap();
    let begun = Instant::now();
    assert_eq!(finished(&lm, request(1)).unwrap()[0].text, "served at last");
    assert!(begun.elapsed() >= Duration::from_millis(200), "Retry-After was not obeyed");
    assert_eq!(server.asked.lock().unwrap().len(), 2 + 6);
}

#[test]
fn what_does_not_pass_is_told_once_with_the_servers_words() {
    let check = |act: fn() -> Act, words: &[&str], tries: usize| {
        let server = after_probe("vllm", move |_, _| act());
        let mut options = options(&server);
        (options.retries, options.timeout) = (2, Duration::from_millis(400));
        options.key = Some(http::Key::new("sk-secret"));
        let lm = Endpoint::open(options).unwrap();
        let error = finished(&lm, request(1)).err().unwrap();
        assert_eq!(error.exit_code(), 4, "{error}");
        for word in words {
            assert!(error.message().contains(word), "{word}: {error}");
        }
        assert!(!error.message().contains("sk-secret"), "{error}");
        let asked = server.asked.lock().unwrap();
        assert_eq!(asked.len(), 2 + tries);
        assert!(asked.iter().all(|asked| asked.headers.contains("Bearer sk-secret")), "the key is sent");
    };
    check(|| Act::Status(500, "", "the key sk-secret is \x1b[31mbad"), &["500", "is bad", "3 attempts"], 3);
    check(|| Act::Status(400, "", r#"{"error": {"message": "context is full"}}"#), &["400", "context is full"], 1);
    check(|| Act::Status(401, "", "{}"), &["401", "TOTARA_API_KEY"], 1);
    check(|| Act::Status(429, "retry-after: 3600\r\n", "later"), &["429", "later"], 1);
    check(|| Act::Status(302, "location: http://elsewhere\r\n", ""), &["302", "redirects"], 1);
    check(|| Act::Late(Duration::from_secs(2)), &["did not answer in time"], 3);
    check(|| Act::Text("<html>"), &["no JSON", "3 attempts"], 3);
    check(|| Act::Cut, &["cut", "3 attempts"], 3);
    check(|| Act::Json(json!({"object": "something else"})), &["choices"], 1);
    check(|| Act::Json(json!({"choices": [{"index": 0}]})), &["text"], 1);
}

#[test]
fn a_huge_body_is_not_swallowed() {
    let server = after_probe("vllm", |_, _| Act::Huge(65));
    let lm = Endpoint::open(options(&server)).unwrap();
    let error = finished(&lm, request(1)).err().unwrap();
    assert!(error.message().contains("64 MiB"), "{error}");
}

#[test]
fn without_usage_tokens_are_estimated_and_it_is_said() {
    let server = Server::start("vllm", |_, _| {
        Act::Json(json!({"choices": [{"text": "12345678", "index": 0, "finish_reason": "stop"}]}))
    });
    let lm = Endpoint::open(options(&server)).unwrap();
    assert!(lm.info().device.contains("estimated") && !lm.abilities().logprobs);
    let done = finished(&lm, request(1)).unwrap();
    assert_eq!((done[0].usage.prompt, done[0].usage.sampled), (5, 2));
}

#[test]
fn listed_texts_are_ranked_by_the_first_token_or_picked_greedily() {
    let top = |all: &[(&str, f64)]| {
        let others: Vec<Value> = all.iter().map(|(t, l)| json!({"token": t, "logprob": l})).collect();
        json!({"choices": [{"text": all[0].0, "index": 0, "finish_reason": "length", "logprobs": {"content": [
            {"token": all[0].0, "logprob": all[0].1, "top_logprobs": others}]}}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 1}})
    };
    let likeliest = |choices: &[&'static str], n: usize| Generate {
        mode: Mode::Likeliest,
        constraint: Some(Arc::new(Listed(choices.to_vec()))),
        ..request(n)
    };
    let server =
        after_probe("llamacpp", move |_, _| Act::Json(top(&[("7", -0.1), (" ", -1.0), ("3", -2.0), ("1", -3.0)])));
    let lm = Endpoint::open(options(&server)).unwrap();
    let done = finished(&lm, likeliest(&["1", "3", "7"], 2)).unwrap();
    assert_eq!(done.iter().map(|c| c.text.as_str()).collect::<Vec<_>>(), ["7", "3"]);
    let all: f64 = [-0.1f64, -2.0, -3.0].iter().map(|l| l.exp()).sum();
    assert!((done[1].masked_logprob - (-2.0 - all.ln())).abs() < 1e-6);
    assert_eq!((done[0].usage.prompt, done[1].usage.prompt), (9, 0));
    assert_eq!(server.asked.lock().unwrap().len(), 3, "one request ranks them");

    // Longer texts: the greedy one of what is left, each time.
    let server = after_probe("llamacpp", |asked, number| {
        let grammar = asked.body["grammar"].as_str().unwrap_or_default().to_string();
        assert_eq!(grammar.contains(" 12,"), number == 0, "{grammar}");
        Act::Json(completion(&[[" 12,", " 3,"][number]]))
    });
    let lm = Endpoint::open(options(&server)).unwrap();
    let done = finished(&lm, likeliest(&[" 3,", " 12,"], 2)).unwrap();
    assert_eq!(done.iter().map(|c| c.text.as_str()).collect::<Vec<_>>(), [" 12,", " 3,"]);
    // A server that does not keep to its grammar is found out.
    let server = after_probe("llamacpp", |_, _| Act::Json(completion(&["nonsense"])));
    let lm = Endpoint::open(options(&server)).unwrap();
    assert!(finished(&lm, likeliest(&[" 3,", " 12,"], 1)).is_err_and(|e| e.message().contains("nonsense")));
}

#[test]
fn patterns_are_sent_and_held_against_the_reply() {
    let server = after_probe("sglang", |asked, _| {
        assert_eq!(asked.body["regex"], "[0-9]+");
        Act::Json(completion(&["12", "1x"]))
    });
    let lm = Endpoint::open(options(&server)).unwrap();
    let pattern = Pattern::new("[0-9]+").unwrap();
    let done = finished(&lm, Generate { constraint: Some(Arc::new(pattern)), ..request(2) }).unwrap();
    assert_eq!(done[0].finish, Finish::End);
    assert!(matches!(&done[1].finish, Finish::Refuted(_)), "{:?}", done[1].finish);
}

#[test]
fn connections_are_bounded_and_the_rest_waits() {
    // Nobody is answered before three have met, and then a fourth has a moment to come in.
    let gate = Arc::new(std::sync::Barrier::new(3));
    let server = after_probe("vllm", move |_, _| {
        gate.wait();
        std::thread::sleep(Duration::from_millis(30));
        Act::Json(completion(&["x"]))
    });
    let lm = Endpoint::open(EndpointOptions { connections: 3, ..options(&server) }).unwrap();
    let all: Vec<_> = (0..12).map(|_| lm.generate(request(1))).collect();
    for mut updates in all {
        while updates.blocking_recv().is_some() {}
    }
    assert_eq!(server.most.load(Ordering::SeqCst), 3, "connections at once");
}

#[test]
fn scores_are_of_the_continuation_alone() {
    let echo = json!({"choices": [{"text": "", "index": 0, "finish_reason": "length", "logprobs": {
        "tokens": ["In", "put: ", "7", " 8", "!"], "token_logprobs": [null, -1.0, -0.25, -0.75, -3.0]}}],
        "usage": {"prompt_tokens": 4, "completion_tokens": 1}});
    let server = after_probe("vllm", move |asked, _| {
        assert!(asked.body["echo"] == true && asked.body["prompt"] == "Input: 7 8");
        Act::Json(echo.clone())
    });
    let lm = Endpoint::open(options(&server)).unwrap();
    let score = |lm: &Endpoint| {
        let request = Score { prompt: Prompt::completion("Input: "), continuations: vec!["7 8".into()] };
        lm.score(request).blocking_recv().unwrap()
    };
    let scores = score(&lm).unwrap();
    assert_eq!(scores.logprobs, [vec![-0.25, -0.75]]);
    assert_eq!(scores.usage.scored, 2);
    let other = after_probe("llamacpp", |_, _| Act::Close);
    let lm = Endpoint::open(options(&other)).unwrap();
    assert!(score(&lm).is_err_and(|e| e.message().contains("llama.cpp")));
}

#[test]
fn what_is_no_server_is_told_at_once() {
    let nobody = EndpointOptions { retries: 0, ..EndpointOptions::new("http://127.0.0.1:1") };
    assert!(Endpoint::open(nobody).is_err_and(|e| e.exit_code() == 4 && e.message().contains("cannot be reached")));
    let server = after_probe("vllm", |_, _| Act::Close);
    let named = EndpointOptions { model: Some("other".into()), ..options(&server) };
    let error = Endpoint::open(named).err().unwrap();
    assert!(error.exit_code() == 2 && error.message().contains("served"), "{error}");
}
