//! The engine over a device that sees paths: what is shared, what is evicted and who waits never changes a result.
//!
//! `alone`: results equal those of a fresh engine. `room`: tiny page budgets. `ends`: what ends a text, a request, an
//! engine. `lists`: ranked, scored and masked texts. `prefill`: prompts in parts beside texts that grow.

mod lists;
mod prefill;

use super::constraint::{Constraint, Judgement};
use super::request::{Finish, Generate, Listed, Mode, Reply, Sampling, Score, Update, Usage};
use super::testing::{Bench, collect, letters, outcome, path_logits, request};
use super::{Message, Shown};
use crate::base::ErrorKind;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

fn prompt(length: usize, salt: u32) -> Vec<u32> {
    (0..length as u32).map(|i| 1 + (i * 7 + i * i * salt) % 36).collect()
}

fn warm() -> Sampling {
    Sampling { temperature: 1.2, ..Sampling::default() }
}

/// Requests of different shapes over prompts that share beginnings.
fn mixed() -> Vec<Generate> {
    let long = prompt(150, 3);
    let mut requests = Vec::new();
    for i in 0..10u32 {
        let mut tokens = long[..40 + 10 * (i as usize % 5)].to_vec();
        tokens.extend(prompt(5, i));
        let mut one = request(&tokens);
        one.sampling = if i % 2 == 0 { warm() } else { Sampling::default() };
        one.n = 1 + i as usize % 3;
        one.max_tokens = 6 + i as usize;
        one.key.node = u64::from(i);
        if i % 4 == 3 {
            one.mode = Mode::Likeliest;
        }
        requests.push(one);
    }
    requests
}

#[test]
fn alone_and_together_cold_and_warm_give_the_same_bits() {
    let expected: Vec<_> = mixed()
        .into_iter()
        .map(|one| Bench::new(400, |_| {}).run(one).unwrap().iter().map(outcome).collect::<Vec<_>>())
        .collect();
    for (rows, mixed_rows, pages) in [(256, 64, 400), (7, 3, 400), (1, 1, 400), (64, 16, 24), (13, 5, 15)] {
        let bench = Bench::new(pages, |limits| (limits.step_rows, limits.mixed_rows) = (rows, mixed_rows));
        for round in 0..2 {
            let open: Vec<_> = mixed().into_iter().map(|one| bench.engine.generate(one)).collect();
            for (updates, expected) in open.into_iter().zip(&expected) {
                let got: Vec<_> = collect(updates).unwrap().iter().map(outcome).collect();
                assert_eq!(&got, expected, "rows {rows}, pages {pages}, round {round}");
            }
        }
        let kv = bench.engine.counters().kv.unwrap();
        assert!(pages > 100 || kv.evicted_pages > 0, "{pages} pages never ran out");
    }
}

#[test]
fn a_greedy_text_follows_its_paths_logits() {
    let bench = Bench::new(64, |_| {});
    let tokens = prompt(30, 5);
    let done = bench.run(request(&tokens)).unwrap().remove(0);
    let mut path = tokens;
    for &id in done.ids.iter() {
        let logits = path_logits(&path, letters().len());
        let best = (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best });
        assert_eq!(id as usize, best);
        path.push(id);
    }
    assert!(matches!(done.finish, Finish::Length | Finish::End));
}

#[test]
fn equal_prompts_sent_together_are_computed_once() {
    let bench = Bench::new(100, |limits| limits.step_rows = 32);
    let tokens = prompt(100, 2);
    let open: Vec<_> = (0..4).map(|_| bench.engine.generate(request(&tokens))).collect();
    let done: Vec<_> = open.into_iter().map(|updates| collect(updates).unwrap().remove(0)).collect();
    let prompt_rows: u64 = done.iter().map(|d| d.usage.prompt).sum();
    // A request that comes a step later computes the last token once more, and nothing else.
    assert!((100..=103).contains(&prompt_rows), "{prompt_rows}");
    assert!(done.iter().all(|d| outcome(d) == outcome(&done[0])));
    assert!(done.iter().all(|d| d.usage.logical == 100 + d.usage.sampled));
    let rows: usize = bench.script.lock().unwrap().steps.iter().sum();
    // Equal texts share their rows too, where they are written in step.
    assert!(rows as u64 <= prompt_rows + 4 * done[0].usage.sampled);
}

#[test]
fn samples_share_the_prompt_and_depend_on_their_key_alone() {
    let bench = Bench::new(100, |_| {});
    let tokens = prompt(50, 2);
    let five = bench.run(Generate { n: 5, sampling: warm(), ..request(&tokens) }).unwrap();
    assert_eq!(five.iter().map(|d| d.usage.prompt).collect::<Vec<_>>(), [50, 0, 0, 0, 0]);
    assert!(five.iter().any(|d| d.text != five[0].text));
    let two = bench.run(Generate { n: 2, sampling: warm(), ..request(&tokens) }).unwrap();
    assert_eq!(outcome(&two[1]), outcome(&five[1]));
    let mut other = Generate { n: 2, sampling: warm(), ..request(&tokens) };
    other.key.seed = 9;
    assert_ne!(outcome(&bench.run(other).unwrap()[1]), outcome(&five[1]));
}

#[test]
fn memory_is_back_at_its_level_after_each_run_and_results_repeat() {
    let bench = Bench::new(200, |_| {});
    let mut first = None;
    for length in [20, 90, 45] {
        let done = bench.run(Generate { n: 3, sampling: warm(), ..request(&prompt(33, 1)) }).unwrap();
        let texts: Vec<_> = done.iter().map(outcome).collect();
        assert_eq!(first.get_or_insert_with(|| texts.clone()), &texts);
        assert!(bench.engine.counters().kv.unwrap().pages_live > 0, "claims keep their branches");
        drop(done);
        drop(bench.run(request(&prompt(length, 4))).unwrap());
        drop(bench.run(request(&[1])).unwrap());
        bench.wait_for("no live pages", |counters| counters.kv.is_some_and(|kv| kv.pages_live == 0));
    }
}

#[test]
fn what_can_never_fit_is_refused_with_the_numbers_and_others_go_on() {
    let bench = Bench::new(8, |limits| limits.context = 1000);
    let good = bench.engine.generate(request(&prompt(60, 1)));
    let refused = bench.run(request(&prompt(130, 1))).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Limit);
    for part in ["130 tokens", "9 pages", "8", "--kv-budget"] {
        assert!(refused.message().contains(part), "{refused}");
    }
    assert_eq!(collect(good).unwrap().len(), 1);
    // A text that outgrows the pages fails alone.
    let long = bench.run(Generate { max_tokens: 500, constraint: Some(Arc::new(Endless)), ..request(&prompt(100, 1)) });
    let long = long.unwrap().remove(0);
    assert!(matches!(&long.finish, Finish::NoMemory(why) if why.contains("--kv-budget")), "{:?}", long.finish);
    assert!(long.ids.len() >= 28);
    assert!(bench.run(request(&prompt(60, 1))).is_ok());
}

#[test]
fn a_cost_told_beforehand_is_what_is_computed_then() {
    let bench = Bench::new(200, |_| {});
    let listed = |texts: &[&str]| {
        let one =
            |text: &&str| Listed { text: text.to_string(), ids: text.bytes().map(|b| u32::from(b - b'a')).collect() };
        Some(texts.iter().map(one).collect::<Vec<_>>())
    };
    let rank = |tokens: &[u32]| Generate {
        mode: Mode::Likeliest,
        n: 2,
        listed: listed(&["abc", "abd", "ba", "b"]),
        constraint: Some(Arc::new(Endless)),
        ..request(tokens)
    };
    let (long, longer) = (prompt(50, 2), [prompt(50, 2), prompt(20, 7)].concat());
    // One after the other: nothing cached, a part, all of it, texts that are ranked.
    let one_by_one = [
        request(&long),
        request(&longer),
        request(&longer),
        Generate { n: 3, ..request(&prompt(9, 5)) },
        rank(&longer),
    ];
    for asked in one_by_one {
        let cost = bench.engine.costs(vec![asked.clone()]).blocking_recv().unwrap()[0];
        let usage = bench.run(asked).unwrap().iter().fold(Usage::default(), |mut sum, done| {
            sum += done.usage;
            sum
        });
        assert_eq!(cost.fixed, usage.prompt + usage.scored, "{usage:?}");
        assert!(usage.sampled <= cost.drawing * 12);
    }
    // Asked for together: what the second shares with the first is computed once.
    let together = vec![request(&prompt(40, 11)), request(&[prompt(40, 11), prompt(6, 1)].concat())];
    let costs = bench.engine.costs(together.clone()).blocking_recv().unwrap();
    // Prompts of one alphabet may share their first letter with what is cached.
    assert!((39..=40).contains(&costs[0].fixed), "{costs:?}");
    assert_eq!(costs[1].fixed, 6);
}

/// Letters without end.
struct Endless;

impl Constraint for Endless {
    fn judge(&self, text: &str) -> Judgement {
        if text.chars().all(|c| c.is_ascii_lowercase()) {
            Judgement::Open { complete: false }
        } else {
            Judgement::Dead("not a letter".into())
        }
    }

    fn ascii(&self) -> bool {
        true
    }
}

#[test]
fn claims_give_way_to_running_requests() {
    let bench = Bench::new(8, |_| {});
    let mut kept = Vec::new();
    for salt in 0..6 {
        kept.extend(bench.run(request(&prompt(60, salt))).unwrap());
    }
    assert!(kept.iter().all(|d| d.hold.is_some()));
}

#[test]
fn the_context_ends_texts_and_refuses_prompts() {
    let bench = Bench::new(100, |limits| limits.context = 256);
    let endless =
        |length| Generate { max_tokens: 50, constraint: Some(Arc::new(Endless)), ..request(&prompt(length, 1)) };
    let done = bench.run(endless(250)).unwrap().remove(0);
    assert_eq!((done.finish, done.ids.len()), (Finish::Context(256), 6));
    let full = bench.run(endless(256)).unwrap().remove(0);
    assert_eq!((full.finish, full.ids.len()), (Finish::Context(256), 0));
    let refused = bench.run(endless(300)).err().unwrap();
    assert!(refused.message().contains("300") && refused.message().contains("256"), "{refused}");
    let tiny = Bench::new(100, |limits| limits.context = 8);
    assert_eq!(tiny.run(endless(5)).unwrap().remove(0).ids.len(), 3);
}

#[test]
fn stop_strings_end_tokens_and_lengths_end_texts() {
    let bench = Bench::new(100, |_| {});
    let free = |salt| Generate { max_tokens: 40, sampling: warm(), ..request(&prompt(9, salt)) };
    let mut whole = (0..40).map(|salt| (salt, bench.run(free(salt)).unwrap().remove(0)));
    let (salt, whole) = whole.find(|(_, d)| d.ids.len() > 8 && d.text.is_ascii()).unwrap();
    let stop = whole.text.get(3..6).unwrap().to_string();
    let cut = bench.run(Generate { stop: vec![stop.clone()], ..free(salt) }).unwrap().remove(0);
    let before = whole.text.find(&stop).unwrap();
    assert_eq!((cut.text.as_str(), cut.finish), (&whole.text[..before], Finish::Stop(stop)));
    let spelled: Vec<u8> = cut.ids.iter().flat_map(|&id| letters().bytes(id).to_vec()).collect();
    assert_eq!(spelled, cut.text.as_bytes());
    let short = bench.run(Generate { max_tokens: 0, ..free(1) }).unwrap().remove(0);
    assert_eq!((short.finish, short.text.as_str(), short.usage.sampled), (Finish::Length, "", 0));
    assert!(bench.run(Generate { n: 0, ..free(1) }).unwrap().is_empty());
    assert!(bench.run(request(&[])).is_err());
    assert!(bench.run(request(&[999])).is_err());
}

#[test]
fn a_row_without_numbers_fails_alone() {
    let bench = Bench::new(100, |_| {});
    let free = || Generate { n: 6, max_tokens: 30, sampling: warm(), ..request(&prompt(9, 1)) };
    let before = bench.run(free()).unwrap();
    let poison = before.iter().find_map(|d| d.ids.get(2)).copied().unwrap();
    bench.script.lock().unwrap().nan_after = Some(poison);
    let after = bench.run(free()).unwrap();
    let mut failed = 0;
    for (before, after) in before.iter().zip(&after) {
        let inner = &before.ids[..before.ids.len().saturating_sub(1)];
        match inner.iter().position(|&id| id == poison) {
            Some(at) => {
                assert!(matches!(&after.finish, Finish::Failed(why) if why.contains("NaN")), "{:?}", after.finish);
                assert_eq!(after.ids.len(), at + 1);
                failed += 1;
            }
            None if before.ids.last() != Some(&poison) => assert_eq!(outcome(before), outcome(after)),
            None => {}
        }
    }
    assert!(failed > 0);
}

#[test]
fn a_lost_device_or_a_panic_fails_requests_and_hangs_nobody() {
    let lost = Bench::new(100, |_| {});
    let expected = lost.run(request(&prompt(30, 1))).unwrap().remove(0);
    let next = lost.script.lock().unwrap().steps.len() + 2;
    lost.script.lock().unwrap().error_at = Some(next);
    let open: Vec<_> = (0..3).map(|salt| lost.engine.generate(request(&prompt(30, salt)))).collect();
    let failed = open.into_iter().filter(|_| true).map(collect).filter(|r| r.is_err()).count();
    assert!(failed > 0);
    let again = lost.run(request(&prompt(30, 1))).unwrap().remove(0);
    assert_eq!(outcome(&again), outcome(&expected));

    // The failure is told to who asks, until a step goes well again.
    let sound = |bench: &Bench| bench.engine.check().blocking_recv().unwrap();
    assert_eq!(sound(&lost), Ok(()));
    let next = lost.script.lock().unwrap().steps.len();
    lost.script.lock().unwrap().error_at = Some(next);
    assert!(lost.run(request(&prompt(30, 7))).is_err());
    assert!(sound(&lost).unwrap_err().message().contains("device lost"));
    lost.run(request(&prompt(30, 7))).unwrap();
    assert_eq!(sound(&lost), Ok(()));

    let panics = Bench::new(100, |_| {});
    panics.script.lock().unwrap().panic_at = Some(1);
    let open: Vec<_> = (0..3).map(|salt| panics.engine.generate(request(&prompt(30, salt)))).collect();
    for updates in open {
        assert_eq!(collect(updates).err().unwrap().kind(), ErrorKind::Fault);
    }
    let later = panics.run(request(&prompt(30, 1))).err().unwrap();
    assert!(later.message().contains("as scripted"), "{later}");
    assert!(sound(&panics).unwrap_err().message().contains("as scripted"));
    let score = panics.engine.score(Score { prompt: vec![1].into(), continuations: vec![vec![2]] });
    assert!(score.blocking_recv().unwrap().is_err());
}

#[test]
fn a_dropped_receiver_cancels_and_a_dropped_engine_fails_what_is_open() {
    let bench = Bench::new(100, |_| {});
    // Fifteen hundred steps fill the memory: by then everybody has long been told.
    bench.script.lock().unwrap().pace = Duration::from_millis(10);
    let endless = || Generate { max_tokens: 3000, constraint: Some(Arc::new(Endless)), ..request(&prompt(9, 1)) };
    let mut gone = bench.engine.generate(endless());
    assert!(matches!(gone.blocking_recv(), Some(Update::Text { .. })));
    drop(gone);
    drop(bench.run(request(&[1])).unwrap());
    let steps = || bench.script.lock().unwrap().steps.len();
    let mut seen = 0;
    while seen != steps() {
        seen = steps();
        assert!(seen < 1000, "it runs on though nobody is served");
        std::thread::sleep(Duration::from_millis(200));
    }
    let mut open = bench.engine.generate(endless());
    assert!(matches!(open.blocking_recv(), Some(Update::Text { .. })));
    drop(bench.engine);
    assert!(collect(open).is_err());
}

#[test]
fn what_the_device_found_out_is_told_with_the_counters() {
    let bench = Bench::new(40, |_| {});
    bench.run(request(&prompt(5, 0))).unwrap();
    assert_eq!(bench.engine.counters().note, None);
    bench.script.lock().unwrap().note = Some("no graphs");
    bench.run(request(&prompt(5, 0))).unwrap();
    bench.wait_for("the note", |counters| counters.note.as_deref() == Some("no graphs"));
}

#[test]
fn attention_s_bytes_are_what_the_device_moved() {
    let bench = Bench::new(40, |limits| limits.partial_row_bytes = 24);
    let partial = |bench: &Bench| bench.engine.counters().io.unwrap().partial_bytes;
    bench.run(request(&prompt(5, 0))).unwrap();
    let (before, steps) = (partial(&bench), bench.script.lock().unwrap().steps.len() as u64);
    bench.script.lock().unwrap().partial_rows = Some(7);
    bench.run(request(&prompt(5, 1))).unwrap();
    let made = bench.script.lock().unwrap().steps.len() as u64 - steps;
    assert!(made > 0);
    assert_eq!(partial(&bench) - before, 7 * 24 * made);
}

/// Looks at the counters in the very moment in which an answer is sent, on the engine's own thread.
struct AtAnswer {
    shown: Arc<Mutex<Shown>>,
    seen: Mutex<std::sync::mpsc::Sender<(u64, u64)>>,
}

impl Wake for AtAnswer {
    fn wake(self: Arc<Self>) {
        let counters = self.shown.lock().unwrap().counters.clone();
        let seen = (counters.speed.unwrap_or_default().steps, counters.kv.unwrap_or_default().prefix_lookups);
        self.seen.lock().unwrap().send(seen).unwrap();
    }
}

#[test]
fn an_answer_comes_with_the_counters_of_its_step() {
    let bench = Bench::new(64, |_| {});
    let (seen, moments) = std::sync::mpsc::channel();
    let at_answer = Arc::new(AtAnswer { shown: Arc::clone(&bench.engine.shown), seen: Mutex::new(seen) });
    let waker = Waker::from(at_answer);
    let mut context = Context::from_waker(&waker);
    let look = |looked_up: usize| {
        let seen = moments.recv_timeout(Duration::from_secs(60)).expect("an answer");
        assert_eq!(seen.1, looked_up as u64, "of the step that looked this prompt up");
        seen.0
    };
    // Asked for before the engine knows of it, so that the answer finds somebody who waits.
    let (sender, mut updates) = tokio::sync::mpsc::unbounded_channel();
    assert!(updates.poll_recv(&mut context).is_pending());
    bench.engine.messages.send(Message::Generate(request(&prompt(30, 5)), Reply::new(sender))).unwrap();
    let steps = look(30);
    assert_eq!(steps, 1);
    collect(updates).unwrap();
    let (sender, mut scores) = tokio::sync::oneshot::channel();
    assert!(std::pin::Pin::new(&mut scores).poll(&mut context).is_pending());
    let score = Score { prompt: prompt(20, 9).into(), continuations: vec![vec![3, 4]] };
    bench.engine.messages.send(Message::Score(score, sender)).unwrap();
    assert!(look(50) > steps);
    assert_eq!(scores.blocking_recv().unwrap().unwrap().logprobs.len(), 1);
}

#[test]
fn an_engine_that_rests_computes_no_tokens_whatever_it_did_last() {
    let at = Instant::now();
    let speed = super::counters::SpeedCounters { tokens_per_second: 9.0, ..Default::default() };
    let counters = super::counters::Counters { speed: Some(speed), ..Default::default() };
    let shown = super::Shown { counters, stepped: Some(at), ..Default::default() };
    let rate = |after: u64| shown.counters(at + Duration::from_secs(after)).speed.unwrap().tokens_per_second;
    assert_eq!((rate(0), rate(1), rate(5)), (9.0, 9.0, 0.0));
}
