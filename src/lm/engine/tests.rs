//! The engine with real arithmetic: the reference's texts and probabilities, and the same bits whatever happens around a
//! request. Small checks run on the tiny model of the shared cases, the rest on the default model.

use super::*;
use crate::base::ErrorKind;
use crate::base::testing::{real_model, shared};
use crate::engine::constraint::{Constraint, Judgement};
use crate::lm::{Completion, Finish, Grammar, GrammarForm, Likelihood, Sampling, StreamKey};
use crate::model::{OpenOptions, open};
use serde_json::Value;
use std::path::Path;

fn start(path: &Path, options: &EngineOptions) -> Arc<EngineLm> {
    let model = open(path.to_str().unwrap(), &OpenOptions::default()).unwrap();
    EngineLm::start(model, options).unwrap()
}

/// Little memory, so that several engines stand beside each other.
fn options() -> EngineOptions {
    EngineOptions { kv_budget: Some(Size::Bytes(96 << 20)), threads: Some(2), ..EngineOptions::default() }
}

/// Everything fetched; and selection without bounds, which must be the same.
fn full() -> offload::Options {
    offload::Options { method: offload::Method::Full, ..offload::Options::default() }
}

fn unbounded(method: offload::Method) -> offload::Options {
    offload::Options { method, alpha: f32::INFINITY, max_fetch: 1.0, ..offload::Options::default() }
}

fn exact() -> EngineOptions {
    EngineOptions { activations: Activations::F32, ..options() }
}

fn tokens(ids: &[u32]) -> Prompt {
    Prompt { tail: vec![Part::Tokens { text: String::new(), ids: ids.into() }], ..Prompt::completion("") }
}

fn ask(prompt: Prompt, max_tokens: usize) -> Generate {
    Generate {
        prompt,
        mode: Mode::Sample,
        n: 1,
        sampling: Sampling::default(),
        max_tokens,
        stop: Vec::new(),
        constraint: None,
        likelihood: Likelihood::Model,
        key: StreamKey { seed: 1, puzzle: 2, node: 3 },
    }
}

fn collect(mut updates: mpsc::UnboundedReceiver<Update>) -> Result<Vec<Completion>> {
    let mut done: Vec<Option<Completion>> = Vec::new();
    let mut streamed: Vec<String> = Vec::new();
    while let Some(update) = updates.blocking_recv() {
        match update {
            Update::Text { sample, text, .. } => {
                streamed.resize(streamed.len().max(sample + 1), String::new());
                streamed[sample].push_str(&text);
            }
            Update::Done { sample, completion } => {
                done.resize_with(done.len().max(sample + 1), || None);
                done[sample] = Some(completion);
            }
            Update::Failed(error) => return Err(error),
        }
    }
    streamed.resize(done.len(), String::new());
    let done: Vec<Completion> = done.into_iter().map(|d| d.expect("every sample ends")).collect();
    assert!(done.iter().zip(&streamed).all(|(d, s)| d.text == *s));
    Ok(done)
}

fn bits(done: &[Completion]) -> Vec<(Vec<u32>, Vec<u32>, String)> {
    let bits = |d: &Completion| (d.ids.to_vec(), d.logprobs.iter().map(|l| l.to_bits()).collect(), d.text.clone());
    done.iter().map(bits).collect()
}

fn logprobs(lm: &EngineLm, prompt: &[u32], continuations: &[Vec<u32>]) -> Vec<Vec<f32>> {
    let request = request::Score { prompt: prompt.into(), continuations: continuations.to_vec() };
    lm.engine.score(request).blocking_recv().unwrap().unwrap().logprobs
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Greedy texts and log-probabilities against the reference file, with bounds on error and on the margin below which a
/// greedy token may differ.
fn check_reference(name: &str, options: &EngineOptions, worst: f64, mean: f64, margin: f64) {
    let (Some(model), Some(cases)) = (real_model(name), shared(name)) else { return };
    let lm = start(&model, options);
    let reference = read(&cases.join("cases/reference/smollm2.json"));
    let mut errors = Vec::new();
    for case in reference["prompts"].as_array().unwrap() {
        let prompt = ids(&case["ids"]);
        let scores = logprobs(&lm, &prompt[..1], &[prompt[1..].to_vec()]);
        for (ours, theirs) in scores[0].iter().zip(floats(&case["prompt_logprobs"])) {
            errors.push((f64::from(*ours) - theirs).abs());
        }
        let top = case["next_top5_logprobs"].as_array().unwrap();
        let next: Vec<Vec<u32>> = top.iter().map(|t| vec![t[0].as_u64().unwrap() as u32]).collect();
        for (ours, theirs) in logprobs(&lm, &prompt, &next).iter().zip(top) {
            errors.push((f64::from(ours[0]) - theirs[1].as_f64().unwrap()).abs());
        }
        let greedy = ids(&case["greedy_ids"]);
        let done = collect(lm.generate(ask(tokens(&prompt), greedy.len()))).unwrap().remove(0);
        for (i, (&theirs, sure)) in greedy.iter().zip(floats(&case["greedy_margin_logits"])).enumerate() {
            let ours = done.ids.get(i).copied();
            if ours == Some(theirs) || (ours.is_none() && lm.tokenizer.is_end(theirs)) {
                continue;
            }
            assert!(sure <= margin, "{}: token {i} is {ours:?}, not {theirs} (margin {sure})", case["prompt"]);
            break;
        }
    }
    let most = errors.iter().copied().fold(0.0, f64::max);
    let average = errors.iter().sum::<f64>() / errors.len() as f64;
    println!("{name}: log-probabilities differ by {most:.4} at most, {average:.4} on average");
    assert!(most <= worst && average <= mean, "{most} {average}");
}

#[test]
fn exact_activations_give_the_references_texts_and_probabilities() {
    check_reference("exact reference", &exact(), 0.02, 0.01, 0.05);
}

#[test]
fn int8_activations_stay_within_the_contract() {
    check_reference("int8 reference", &options(), 0.6, 0.1, 0.5);
}

/// Few-shot prompts with a shared beginning, as a search asks them.
fn search_prompts() -> Vec<Generate> {
    let shots = "Input: 94580730\nOutput: 00345789\n\nInput: 31415926\nOutput: 11234569\n\nInput: 2718281\nOutput: ";
    let mut requests = Vec::new();
    for (i, tail) in ["", "1", "12", "112", "1127", "2"].iter().enumerate() {
        let mut prompt = Prompt::completion(shots);
        if !tail.is_empty() {
            prompt.tail.push(Part::Text(tail.to_string()));
        }
        let mut one = ask(prompt, 7);
        one.key.node = i as u64;
        one.n = 1 + i % 3;
        one.sampling.temperature = if i % 2 == 0 { 0.9 } else { 0.0 };
        one.mode = if i == 3 { Mode::Likeliest } else { Mode::Sample };
        requests.push(one);
    }
    requests
}

/// The same bits on every engine of `variants`, together and one after the other, cold and warm.
fn check_same_bits(
    path: &Path,
    base: &EngineOptions,
    requests: impl Fn() -> Vec<Generate>,
    variants: &[EngineOptions],
) {
    let expected: Vec<_> = {
        let lm = start(path, base);
        requests().into_iter().map(|one| bits(&collect(lm.generate(one)).unwrap())).collect()
    };
    for options in variants {
        let lm = start(path, options);
        for round in 0..2 {
            let open: Vec<_> = requests().into_iter().map(|one| lm.generate(one)).collect();
            for (updates, expected) in open.into_iter().zip(&expected) {
                assert_eq!(&bits(&collect(updates).unwrap()), expected, "round {round}: {options:?}");
            }
        }
    }
}

#[test]
fn results_are_the_same_bits_alone_together_warm_chunked_evicted_and_on_any_threads() {
    let Some(model) = real_model("same bits") else { return };
    let tight = Size::Bytes(16 * 23_040 * 9);
    let variants = [
        EngineOptions { threads: Some(1), step_rows: Some(40), ..options() },
        EngineOptions { kv_budget: Some(tight), step_rows: Some(63), ..options() },
        EngineOptions { step_rows: Some(9), mixed_rows: Some(2), method: Method::Radix, ..options() },
        // A device tier of 300 pages of one layer, where the searches' paths take some thousands.
        EngineOptions { kv_budget: Some(Size::Bytes(300 * 12_288)), offload: full(), ..options() },
        EngineOptions {
            kv_budget: Some(Size::Bytes(256 * 12_288)),
            ram_budget: Some(tight),
            offload: full(),
            threads: Some(1),
            method: Method::Node,
            ..options()
        },
        // With the partial keys of all pages, and rows for a few blocks beside.
        EngineOptions {
            kv_budget: Some(Size::Bytes(8 << 20)),
            ram_budget: Some(Size::Bytes(16 * 23_040 * 60)),
            offload: unbounded(offload::Method::InfinigenTree),
            ..options()
        },
        EngineOptions {
            kv_budget: Some(Size::Bytes(8 << 20)),
            ram_budget: Some(Size::Bytes(16 * 23_040 * 60)),
            offload: unbounded(offload::Method::Infinigen),
            ..options()
        },
    ];
    check_same_bits(&model, &options(), search_prompts, &variants);
    let variants = [EngineOptions { threads: Some(1), kv_budget: Some(tight), step_rows: Some(40), ..exact() }];
    check_same_bits(&model, &exact(), search_prompts, &variants);
}

#[test]
fn what_a_branch_has_on_the_device_is_told_where_not_all_is_there() {
    let held = |prompts: u32, offloads: bool| {
        let offload = if offloads { full() } else { offload::Options::default() };
        // The least that a device tier of this model may have: 256 pages of a layer, 8 KiB each.
        let (kv_budget, ram_budget) = match offloads {
            true => (2 << 20, Some(Size::Bytes(16 << 20))),
            false => (16 << 20, None),
        };
        let options = EngineOptions { kv_budget: Some(Size::Bytes(kv_budget)), ram_budget, offload, ..options() };
        let lm = EngineLm::start(crate::model::random::open("tiny", 0).unwrap(), &options).unwrap();
        let prompt = |p: u32| -> Vec<u32> { (0..400).map(|i| 3 + (i * 7 + p * 31) % 300).collect() };
        let done: Vec<Completion> =
            (0..prompts).flat_map(|p| collect(lm.generate(ask(tokens(&prompt(p)), 4))).unwrap()).collect();
        let holds: Vec<&Hold> = done.iter().map(|one| one.hold.as_ref().unwrap()).collect();
        // It is told once the engine has nothing to do.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        loop {
            if let Some(held) = lm.held(&holds).into_iter().collect::<Option<Vec<HeldKv>>>() {
                return held;
            }
            assert!(std::time::Instant::now() < until, "nothing is told");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    assert_eq!(held(1, false)[0].here, None, "all of it is on the device");
    let one = held(1, true)[0];
    assert_eq!(one.here, Some(one.tokens), "there is room for a path: {one:?}");
    // Ten paths need some 500 pages of a layer.
    let ten = held(10, true);
    let here: u32 = ten.iter().map(|held| held.here.unwrap()).sum();
    let tokens: u32 = ten.iter().map(|held| held.tokens).sum();
    // A page of one of the two layers is half of 16 tokens; the first token may be shared, and shares are rounded.
    assert!(here > 0 && here <= 256 * 8 + 20 && here < tokens, "{here} of {tokens}: {ten:?}");
}

#[test]
fn what_was_given_back_before_a_check_is_shown_after_it() {
    let lm = EngineLm::start(crate::model::random::open("tiny", 0).unwrap(), &options()).unwrap();
    let done = collect(lm.generate(ask(tokens(&[5, 6, 7, 8, 9]), 4))).unwrap();
    assert!(lm.counters().kv.unwrap().tokens_stored > 0);
    drop(done);
    lm.check().blocking_recv().unwrap().unwrap();
    assert_eq!(lm.counters().kv.unwrap().tokens_stored, 0);
}

#[test]
fn k_v_moves_as_the_search_expects_and_not_only_when_rows_see_it() {
    let options = EngineOptions {
        kv_budget: Some(Size::Bytes(2 << 20)),
        ram_budget: Some(Size::Bytes(16 << 20)),
        offload: full(),
        ..options()
    };
    let lm = EngineLm::start(crate::model::random::open("tiny", 0).unwrap(), &options).unwrap();
    let prompt = |p: u32| -> Vec<u32> { (0..300).map(|i| 3 + (i * 7 + p * 31) % 300).collect() };
    let done: Vec<Completion> =
        (0..2).flat_map(|p| collect(lm.generate(ask(tokens(&prompt(p)), 4))).unwrap()).collect();
    let holds: Vec<&Hold> = done.iter().map(|one| one.hold.as_ref().unwrap()).collect();
    let here = |what: &str, seen: &dyn Fn(HeldKv, HeldKv) -> bool| {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            let held = lm.held(&holds);
            if let [Some(one), Some(other)] = held[..]
                && seen(one, other)
            {
                return;
            }
            assert!(std::time::Instant::now() < until, "{what}: {held:?}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    let all = |held: HeldKv| held.here == Some(held.tokens);
    // The first page begins alike and may be shared.
    let none = |held: HeldKv| held.here.is_some_and(|here| here <= 16);
    here("one went while the other was read", &|one, other| none(one) && all(other));
    let link = || lm.counters().link.unwrap();
    let (steps, before) = (lm.counters().speed.unwrap().steps, link());
    lm.expect(&[holds[0]], &[holds[1]]);
    here("they change places", &|one, other| all(one) && none(other));
    lm.expect(&[holds[1]], &[holds[0]]);
    here("and back", &|one, other| none(one) && all(other));
    let after = link();
    assert!(after.moved_out >= before.moved_out + 30 && after.moved_back >= before.moved_back + 30, "{after:?}");
    assert!(after.to_device_bytes > before.to_device_bytes);
    assert_eq!(lm.counters().speed.unwrap().steps, steps, "no row asked for it");
    // What waits is computed as ever once it goes on.
    let again = collect(lm.generate(ask(tokens(&prompt(0)), 4))).unwrap();
    assert_eq!(again[0].ids, done[0].ids);
}

#[test]
fn a_prompt_in_parts_gives_the_tiny_models_reference() {
    let Some(cases) = shared("tiny parts") else { return };
    let expected = read(&cases.join("cases/tiny/expected.json"));
    let prompt = ids(&expected["prompt"]);
    let top: Vec<(u32, f64)> = expected["plain"]["last_top3"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| (t[0].as_u64().unwrap() as u32, t[1].as_f64().unwrap()))
        .collect();
    let next: Vec<Vec<u32>> = top.iter().map(|t| vec![t.0]).collect();
    let mut first: Option<Vec<Vec<f32>>> = None;
    // Its weights are float32, so that with int8 activations nothing is rounded either: neither products nor scores.
    let ways = [
        (256, 0, exact()),
        (40, 0, exact()),
        (63, 0, exact()),
        (256, 1, exact()),
        (1, 0, exact()),
        (256, 0, options()),
    ];
    for (rows, begun, how) in ways {
        let lm = start(&cases.join("cases/tiny/hf"), &EngineOptions { step_rows: Some(rows), ..how });
        if begun > 0 {
            logprobs(&lm, &prompt[..begun], &[vec![]]);
        }
        let scores = logprobs(&lm, &prompt, &next);
        for (ours, theirs) in scores.iter().zip(&top) {
            let difference = f64::from(ours[0] - scores[0][0]) - (theirs.1 - top[0].1);
            assert!(difference.abs() < 1e-2, "{rows} rows: {difference}");
        }
        assert_eq!(&scores, first.get_or_insert_with(|| scores.clone()), "{rows} rows, {begun} before");
        let greedy = ids(&expected["plain"]["greedy_8_after_first8"]);
        // The prompt begins with the BOS, which the engine puts there by itself.
        let done = collect(lm.generate(ask(tokens(&prompt[1..8]), 8))).unwrap().remove(0);
        assert_eq!(done.ids[..], greedy[..]);
    }
}

#[test]
fn the_tiny_models_context_ends_texts_and_refuses_prompts() {
    let Some(cases) = shared("tiny context") else { return };
    let lm = start(&cases.join("cases/tiny/hf"), &exact());
    assert_eq!(lm.info().context, Some(256));
    let prompt: Vec<u32> = (0..300).map(|i| 260 + i % 40).collect();
    let long = lm.generate(ask(tokens(&prompt[..250]), 50));
    let refused = collect(lm.generate(ask(tokens(&prompt), 5))).err().unwrap();
    assert!(refused.message().contains("256") && refused.message().contains("30"), "{refused}");
    let done = collect(long).unwrap().remove(0);
    assert!(
        done.finish == Finish::Context(256) && done.ids.len() <= 6 || done.finish == Finish::End,
        "{:?}",
        done.finish
    );
    let tiny = start(&cases.join("cases/tiny/hf"), &EngineOptions { context: Some(8), ..exact() });
    let done = collect(tiny.generate(ask(tokens(&prompt[..5]), 50))).unwrap().remove(0);
    assert!(done.ids.len() <= 3);
    let model = open(cases.join("cases/tiny/hf").to_str().unwrap(), &OpenOptions::default()).unwrap();
    let more = EngineLm::start(model, &EngineOptions { context: Some(257), ..exact() });
    assert!(more.err().unwrap().message().contains("256"));
}

/// Digits of a multiset, one after the other: what a sorting step allows.
struct Digits(Vec<&'static str>);

impl Constraint for Digits {
    fn judge(&self, text: &str) -> Judgement {
        let more = self.0.iter().any(|t| t.len() > text.len() && t.starts_with(text));
        match (self.0.contains(&text), more) {
            (true, false) => Judgement::Closed,
            (complete, true) => Judgement::Open { complete },
            (false, false) => Judgement::Dead("not allowed".into()),
        }
    }

    fn choices(&self) -> Option<Vec<String>> {
        Some(self.0.iter().map(|t| t.to_string()).collect())
    }

    fn ascii(&self) -> bool {
        true
    }
}

#[test]
fn listed_steps_are_ranked_as_their_tokens_are_drawn() {
    let Some(model) = real_model("listed") else { return };
    let lm = start(&model, &options());
    let rule: Arc<dyn Constraint> = Arc::new(Digits(vec!["1", "12", "103", "7", "7 8", "42"]));
    let prompt = || Prompt::completion("Numbers in order: 1 7 12 42 103\nThe next one is ");
    let likeliest = Generate {
        mode: Mode::Likeliest,
        n: 6,
        constraint: Some(Arc::clone(&rule)),
        stop: vec!["\n".into()],
        ..ask(prompt(), 8)
    };
    let ranked = collect(lm.generate(likeliest.clone())).unwrap();
    assert_eq!(ranked.len(), 6);
    let sum: f64 = ranked.iter().map(|d| d.masked_logprob.exp()).sum();
    assert!((sum - 1.0).abs() < 1e-6, "{sum}");
    for done in &ranked {
        assert_eq!(lm.tokenizer.decode(&done.ids), done.text);
    }
    // A text drawn under the mask has the probability that the ranking gives it.
    let drawn = Generate {
        mode: Mode::Sample,
        n: 12,
        sampling: Sampling { temperature: 1.0, ..Sampling::default() },
        ..likeliest.clone()
    };
    for done in collect(lm.generate(drawn)).unwrap() {
        let same = ranked.iter().find(|r| r.text == done.text).expect("only listed texts are drawn");
        if same.ids == done.ids {
            assert!((same.masked_logprob - done.masked_logprob).abs() < 1e-4, "{}", done.text);
        }
    }
    // Going on from a thought's ids computes its last token only.
    let mut next = prompt();
    next.tail.push(Part::Tokens { text: ranked[0].text.clone(), ids: Arc::clone(&ranked[0].ids) });
    let usage = collect(lm.generate(ask(next, 1))).unwrap()[0].usage;
    assert!(usage.prompt <= ranked[0].ids.len() as u64, "{usage:?}");
}

/// Whatever the model would rather say, a sample under a schema or a grammar fits it, or was cut by its limit.
#[test]
fn samples_fit_a_schema_or_a_grammar() {
    let Some(path) = real_model("grammar") else { return };
    let lm = start(&path, &options());
    let schema = serde_json::json!({"type": "object", "properties": {
        "city": {"type": "string", "maxLength": 20}, "people": {"type": "integer", "minimum": 0, "maximum": 9_999_999}
    }, "required": ["city", "people"], "additionalProperties": false});
    let lark = "start: \"(\" word (\" \" word)* \")\"\nword: /[a-zé]{1,8}/";
    for (form, schema) in [(GrammarForm::Json(schema), true), (GrammarForm::Lark(lark.into()), false)] {
        let rule = Arc::new(Grammar::new(form).unwrap());
        let mut request = ask(Prompt::completion("A large city and how many people live there:\n"), 40);
        request.n = 2;
        request.sampling.temperature = 1.5;
        request.constraint = Some(Arc::clone(&rule) as Arc<dyn Constraint>);
        let done = collect(lm.generate(request)).unwrap();
        assert_eq!(done.len(), 2);
        let mut whole = 0;
        for one in done {
            let found = rule.judge(&one.text);
            match one.finish {
                Finish::Length => assert!(!matches!(found, Judgement::Dead(_)), "{}: {found:?}", one.text),
                _ => {
                    assert_eq!(found, Judgement::Closed, "{}", one.text);
                    whole += 1;
                    assert!(!schema || serde_json::from_str::<Value>(&one.text).unwrap()["people"].is_u64());
                }
            }
        }
        assert!(whole > 0 || !schema, "no sample came to its end");
    }
}

#[test]
fn stop_strings_span_tokens_and_chat_has_one_turn() {
    let Some(model) = real_model("stops") else { return };
    let lm = start(&model, &options());
    let whole = collect(lm.generate(ask(Prompt::completion("The capital of France is"), 16))).unwrap().remove(0);
    let (at, _) = whole.text.char_indices().nth(whole.text.len() / 2).unwrap();
    let stop = whole.text[at - 2..at + 3].to_string();
    let cut = Generate { stop: vec![stop.clone()], ..ask(Prompt::completion("The capital of France is"), 16) };
    let cut = collect(lm.generate(cut)).unwrap().remove(0);
    assert_eq!(cut.finish, Finish::Stop(stop.clone()));
    assert_eq!(cut.text, whole.text[..whole.text.find(&stop).unwrap()]);
    assert_eq!(lm.tokenizer.decode(&cut.ids), cut.text);
    let chat = Prompt { format: Format::Chat, ..Prompt::completion("Name three colours.") };
    let ids = lm.ids(&chat).unwrap();
    assert_eq!(Some(ids.len()), lm.count_tokens(&chat));
    let done = collect(lm.generate(ask(chat, 40))).unwrap().remove(0);
    assert!(!done.text.contains("<|im_end|>") && !done.text.is_empty());
}

#[test]
fn memory_is_checked_before_it_is_taken() {
    let Some(cases) = shared("memory") else { return };
    let weights = open(cases.join("cases/tiny/hf").to_str().unwrap(), &OpenOptions::default()).unwrap().weights;
    let page = (PAGE_TOKENS * weights.shape.kv_numbers_per_token() * 2) as u64;
    let of = |budget: Option<Size>, free: Option<u64>| {
        room(&weights, &EngineOptions { kv_budget: budget, ..EngineOptions::default() }, free).map(|room| room.pages)
    };
    assert_eq!(of(Some(Size::Bytes(10 * page + 1)), Some(1 << 40)).unwrap(), 10);
    assert_eq!(of(None, Some(1 << 40)).unwrap(), DEFAULT_TOKENS / PAGE_TOKENS);
    assert_eq!(of(None, None).unwrap(), DEFAULT_TOKENS / PAGE_TOKENS);
    assert_eq!(
        of(None, Some(200 << 20)).unwrap() as u64,
        ((50 << 20) / page).min((DEFAULT_TOKENS / PAGE_TOKENS) as u64)
    );
    for (budget, free, part) in [
        (Some(Size::Bytes(page - 1)), Some(1 << 40), "--kv-budget"),
        (Some(Size::Bytes(1 << 30)), Some(1 << 29), "512 MiB is free"),
        (None, Some(1 << 20), "memory"),
        (Some(Size::Percent(10.0)), None, "bytes"),
    ] {
        let error = of(budget, free).unwrap_err();
        assert!(error.message().contains(part), "{error}");
    }
    assert_eq!(of(Some(Size::Bytes(1 << 30)), Some(1 << 29)).unwrap_err().kind(), ErrorKind::Limit);
    // Two tiers: the host's pages count, and the device holds a row's block of one layer at least.
    let both = |kv: u64, method| EngineOptions {
        kv_budget: Some(Size::Bytes(kv)),
        ram_budget: Some(Size::Bytes(1000 * page)),
        offload: offload::Options { method, ..offload::Options::default() },
        device: "cpu".into(),
        ..EngineOptions::default()
    };
    let least = 256 * page / weights.shape.layers as u64;
    let fits = Room { pages: 1000, device_bytes: Some(least) };
    assert_eq!(room(&weights, &both(least, offload::Method::Full), Some(1 << 40)).unwrap(), fits);
    let error = room(&weights, &both(least, offload::Method::None), Some(1 << 40)).unwrap_err();
    assert!(error.exit_code() == 2 && error.message().contains("--offload"), "{error}");
    for method in [offload::Method::Full, offload::Method::InfinigenTree] {
        let model = open(cases.join("cases/tiny/hf").to_str().unwrap(), &OpenOptions::default()).unwrap();
        let error = EngineLm::start(model, &both(least - 1, method)).err().unwrap();
        assert!(error.exit_code() == 3 && error.message().contains("raise --kv-budget"), "{error}");
    }
    let unknown = EngineOptions { device: "tpu".into(), ..EngineOptions::default() };
    let model = open(cases.join("cases/tiny/hf").to_str().unwrap(), &OpenOptions::default()).unwrap();
    assert!(EngineLm::start(model, &unknown).err().unwrap().message().contains("tpu"));
}

#[test]
fn attention_is_planned_for_the_device_s_own_threads() {
    let threads = |device: &str| {
        let weights = crate::model::random::open("tiny", 0).unwrap().weights;
        let options = EngineOptions { device: device.into(), threads: Some(3), ..options() };
        load(weights, &options, None).map(|loaded| loaded.limits.parallel.threads)
    };
    assert_eq!(threads("cpu").unwrap(), 3);
    match threads("cuda") {
        Ok(threads) => assert_eq!(threads, 1, "a card's work is not for the CPU's threads"),
        Err(e) => println!("skipped the card: {e}"),
    }
}
