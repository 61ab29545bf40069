//! Batches against a script and chance; each test runs in a folder of its own.

use super::*;
use crate::lm::Update;
use crate::lm::random::RandomProposer;
use crate::search::testing::{Spell, script, strategy};
use crate::strategy::{Constrain, GenerateKind, Policy};
use crate::task::{Partial, Verdict};
use serde_json::Value;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{mpsc, oneshot};

/// The spelling puzzle under an id.
struct Named(Arc<Spell>, String);

impl Puzzle for Named {
    fn task(&self) -> &str {
        self.0.task()
    }
    fn id(&self) -> &str {
        &self.1
    }
    fn title(&self) -> String {
        self.0.title()
    }
    fn inputs(&self) -> Value {
        self.0.inputs()
    }
    fn len(&self) -> usize {
        self.0.len()
    }
    fn check(&self, answer: &str) -> Verdict {
        self.0.check(answer)
    }
    fn check_partial(&self, prefix: &str) -> Partial {
        self.0.check_partial(prefix)
    }
    fn solved(&self, answer: &str) -> bool {
        self.0.solved(answer)
    }
    fn next_steps(&self, prefix: &str) -> Vec<String> {
        self.0.next_steps(prefix)
    }
    fn answer_constraint(&self, prefix: &str) -> Arc<dyn crate::lm::Constraint> {
        self.0.answer_constraint(prefix)
    }
    fn state_key(&self, prefix: &str) -> String {
        self.0.state_key(prefix)
    }
    fn refute(&self, text: &str) -> Option<String> {
        self.0.refute(text)
    }
}

fn jobs(n: usize, names: &[&str]) -> Vec<Job> {
    let mut jobs = Vec::new();
    for i in 0..n {
        for name in names {
            let mut strategy = strategy(Policy::Bfs);
            strategy.name = (*name).to_string();
            strategy.generate.kind = GenerateKind::Likeliest;
            strategy.generate.constrain = Constrain::Puzzle;
            jobs.push(Job {
                puzzle: Arc::new(Named(Spell::new("abca"), i.to_string())),
                strategy: Arc::new(strategy),
                settings: "".into(),
                model: "chance".into(),
            });
        }
    }
    jobs
}

fn options(out: &Path) -> Options {
    Options {
        out: out.to_path_buf(),
        parallel: 2,
        resume: false,
        shard: None,
        seed: 1,
        limits: Limits::default(),
        records: false,
        command: vec!["totara".into(), "eval".into()],
    }
}

/// Models that are there already.
fn ready(engines: Vec<Arc<dyn Lm>>) -> Models {
    Arc::new(move |_| Ok(engines.clone()))
}

/// Runs a batch; stops after `most` rows.
fn batch(jobs: Vec<Job>, options: &Options, most: usize) -> Result<(Done, Vec<Row>, Vec<String>)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
        let mut sender = (most > 0).then_some(sender);
        let (mut rows, mut notes) = (Vec::new(), Vec::new());
        let stop = async {
            if most > 0 {
                let _ = receiver.await;
            } else {
                std::future::pending::<()>().await
            }
        };
        let done = run(jobs, ready(vec![Arc::new(RandomProposer::default())]), options, stop, |news| match news {
            News::Row(row) => {
                rows.push(row.clone());
                if rows.len() == most
                    && let Some(sender) = sender.take()
                {
                    let _ = sender.send(());
                }
            }
            News::Note(note) => notes.push(note),
            News::Begun { .. } => {}
        })
        .await?;
        Ok((done, rows, notes))
    })
}

fn rows(folder: &Path) -> Vec<Row> {
    let path = folder.join("results.jsonl");
    results::parse(&path, &std::fs::read(&path).unwrap()).unwrap().rows
}

/// Case 58: equal puzzles under different ids, a kill after two rows, a resume, and a resume of what is complete.
#[test]
fn a_batch_is_resumed_exactly_where_it_was_left() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    options.parallel = 1;
    let (done, first, _) = batch(jobs(4, &["s"]), &options, 2).unwrap();
    assert_eq!((first.len(), done.missing), (2, 2));
    assert!(batch(jobs(4, &["s"]), &options, 0).is_err_and(|e| e.message().contains("--resume")));
    options.resume = true;
    let (done, second, _) = batch(jobs(4, &["s"]), &options, 0).unwrap();
    assert_eq!((second.len(), done.missing), (2, 0));
    let ids: Vec<String> = rows(folder.path()).into_iter().map(|row| row.id).collect();
    assert_eq!(ids, ["0", "1", "2", "3"]);
    let before = std::fs::read(folder.path().join("results.jsonl")).unwrap();
    let (done, third, _) = batch(jobs(4, &["s"]), &options, 0).unwrap();
    assert!(third.is_empty());
    assert_eq!(done.summary.groups.values().map(|g| g.n).sum::<u64>(), 4);
    assert_eq!(std::fs::read(folder.path().join("results.jsonl")).unwrap(), before);
    assert!(std::fs::read_to_string(folder.path().join("summary.md")).unwrap().contains("of 4"));
}

/// Case 56: a torn last row, also one that was cut within a character.
#[test]
fn a_torn_row_is_dropped_with_a_note_and_run_again() {
    for tail in
        [&b"{\"task\": \"spell\", \"id\": \"1"[..], &b"{\"task\":\"spell\",\"id\":\"\xe2\x99"[..], &b"{\"id\n"[..]]
    {
        let folder = tempfile::tempdir().unwrap();
        let mut options = options(folder.path());
        batch(jobs(2, &["s"]), &options, 0).unwrap();
        let path = folder.path().join("results.jsonl");
        let text = std::fs::read_to_string(&path).unwrap();
        let mut bytes = text.lines().next().unwrap().as_bytes().to_vec();
        bytes.push(b'\n');
        bytes.extend_from_slice(tail);
        std::fs::write(&path, bytes).unwrap();
        options.resume = true;
        let (_, ran, notes) = batch(jobs(2, &["s"]), &options, 0).unwrap();
        assert_eq!(ran.len(), 1, "{notes:?}");
        assert!(notes[0].contains("the last row was cut"), "{notes:?}");
        assert_eq!(rows(folder.path()).len(), 2);
    }
}

#[test]
fn a_whole_row_without_its_newline_is_torn_too_and_a_bad_middle_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    batch(jobs(2, &["s"]), &options(folder.path()), 0).unwrap();
    let path = folder.path().join("results.jsonl");
    let bytes = std::fs::read(&path).unwrap();
    let cut = results::parse(&path, &bytes[..bytes.len() - 1]).unwrap();
    assert_eq!((cut.rows.len(), cut.torn > 0), (1, true));
    let mut bad = b"{\"id\": 1}\n".to_vec();
    bad.extend_from_slice(&bytes);
    assert!(results::parse(&path, &bad).is_err_and(|e| e.message().contains("line 1")));
    let twice = [bytes.clone(), bytes].concat();
    assert!(results::parse(&path, &twice).is_err_and(|e| e.message().contains("has a row already")));
}

/// Case 60: the first row that cannot be written ends the batch.
#[test]
fn a_full_disk_stops_the_batch_at_once() {
    if !Path::new("/dev/full").exists() {
        eprintln!("skipped: /dev/full is not there");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink("/dev/full", folder.path().join("results.jsonl")).unwrap();
    let error = batch(jobs(3, &["s"]), &options(folder.path()), 0).unwrap_err();
    assert_eq!(error.exit_code(), 4);
    assert!(error.message().contains("cannot be written"), "{error}");
}

#[test]
fn one_folder_takes_one_batch_at_a_time_and_of_one_kind() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    let lock = std::fs::File::create(folder.path().join("lock")).unwrap();
    lock.lock().unwrap();
    assert!(batch(jobs(1, &["s"]), &options, 0).is_err_and(|e| e.message().contains("another batch")));
    drop(lock);
    batch(jobs(1, &["s"]), &options, 0).unwrap();
    options.resume = true;
    options.seed = 2;
    assert!(batch(jobs(1, &["s"]), &options, 0).is_err_and(|e| e.message().contains("the seed was 1 and is 2 now")));
    options.seed = 1;
    let mut changed = jobs(1, &["s"]);
    let mut strategy = (*changed[0].strategy).clone();
    strategy.text.push_str("# another\n");
    changed[0].strategy = Arc::new(strategy);
    assert!(batch(changed, &options, 0).is_err_and(|e| e.message().contains("was changed")));
}

#[test]
fn rows_do_not_depend_on_how_many_run_at_once() {
    let rows = |parallel| {
        let folder = tempfile::tempdir().unwrap();
        let mut options = options(folder.path());
        options.parallel = parallel;
        let (_, mut rows, _) = batch(jobs(6, &["s", "t"]), &options, 0).unwrap();
        rows.sort_by_key(Row::key);
        for row in &mut rows {
            row.seconds = 0.0;
        }
        rows
    };
    let one = rows(1);
    assert_eq!(one.len(), 12);
    assert_eq!(one, rows(5));
}

#[test]
fn shards_split_by_puzzle_and_cover_all() {
    let all: BTreeSet<Key> = jobs(7, &["s", "t"]).iter().map(Job::key).collect();
    let mut seen = BTreeSet::new();
    for index in 1..=3 {
        let part = shard(jobs(7, &["s", "t"]), Some(Shard { index, of: 3 }));
        for job in &part {
            assert!(
                part.iter().filter(|other| other.puzzle.id() == job.puzzle.id()).count() == 2,
                "pairs stay together"
            );
            assert!(seen.insert(job.key()));
        }
    }
    assert_eq!(seen, all);
    let check = |text: &str, good: bool| assert_eq!(text.parse::<Shard>().is_ok(), good, "{text}");
    check("1/1", true);
    check("4/4", true);
    for bad in ["0/4", "5/4", "1", "a/b", "1/0", "-1/2"] {
        check(bad, false);
    }
}

#[test]
fn equal_keys_are_refused_and_events_are_recorded_where_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    let twice = [jobs(1, &["s"]), jobs(1, &["s"])].concat();
    assert!(batch(twice, &options, 0).is_err_and(|e| e.exit_code() == 2 && e.message().contains("twice")));
    options.records = true;
    batch(jobs(2, &["s"]), &options, 0).unwrap();
    let records: Vec<_> = std::fs::read_dir(folder.path().join("events")).unwrap().collect();
    assert_eq!(records.len(), 2);
    for record in records {
        let recorded = crate::search::record::read(&record.unwrap().path().display().to_string()).unwrap();
        assert!(recorded.outcome().is_some());
    }
}

#[test]
fn a_model_that_fails_leaves_rows_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let done = runtime.block_on(run(
        jobs(2, &["s"]),
        ready(vec![script(&["a"])]),
        &options(folder.path()),
        std::future::pending(),
        |_| {},
    ));
    assert_eq!(done.unwrap().missing, 0);
    let rows = rows(folder.path());
    assert!(rows.iter().all(|row| !row.solved));
    assert!(rows.iter().any(|row| row.reason.contains("no more replies")), "{rows:?}");
}

/// A model that answers so many requests, and then is lost: a card that fell off the bus, an engine that panicked.
struct Fragile {
    inner: RandomProposer,
    left: AtomicUsize,
}

impl Lm for Fragile {
    fn info(&self) -> &crate::lm::Info {
        self.inner.info()
    }
    fn count_tokens(&self, prompt: &crate::lm::Prompt) -> Option<usize> {
        self.inner.count_tokens(prompt)
    }
    fn generate(&self, request: crate::lm::Generate) -> mpsc::UnboundedReceiver<Update> {
        let left = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if left.is_ok() {
            return self.inner.generate(request);
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        sender.send(Update::Failed(Error::fault("a launch failed on the GPU: CUDA_ERROR_ILLEGAL_ADDRESS"))).unwrap();
        receiver
    }
    fn score(&self, request: crate::lm::Score) -> oneshot::Receiver<Result<crate::lm::Scores>> {
        self.inner.score(request)
    }
    fn counters(&self) -> crate::lm::Counters {
        self.inner.counters()
    }
    fn check(&self) -> oneshot::Receiver<Result<()>> {
        let (sender, receiver) = oneshot::channel();
        let lost = self.left.load(Ordering::SeqCst) == 0;
        sender.send(if lost { Err(Error::fault("device lost")) } else { Ok(()) }).unwrap();
        receiver
    }
}

/// Rows of a device's failure would say nothing about the puzzles, and `--resume` would pass them over.
#[test]
fn a_lost_model_ends_the_batch_and_a_resume_gives_each_puzzle_its_row() {
    for (parallel, requests) in [(1, 9), (2, 9), (4, 1), (4, 30)] {
        let folder = tempfile::tempdir().unwrap();
        let mut options = Options { parallel, ..options(folder.path()) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let fragile = Fragile { inner: RandomProposer::default(), left: requests.into() };
        let mut told = 0;
        let done = runtime.block_on(run(
            jobs(12, &["s"]),
            ready(vec![Arc::new(fragile)]),
            &options,
            std::future::pending(),
            |news| told += usize::from(matches!(news, News::Row(_))),
        ));
        let error = done.unwrap_err();
        assert_eq!(error.exit_code(), 4);
        let there = rows(folder.path());
        assert_eq!(there.len(), told);
        assert!(there.len() < 12 && there.iter().all(|row| !row.reason.contains("failed")), "{there:?}");
        let words = format!("the {} so far are intact", crate::base::text::counted(told as u64, "row", "rows"));
        for part in ["device lost", &words, "--resume"] {
            assert!(error.message().contains(part), "{error}");
        }
        options.resume = true;
        batch(jobs(12, &["s"]), &options, 0).unwrap();
        let whole = rows(folder.path());
        assert_eq!((whole.len(), &whole[..told]), (12, &there[..]));
    }
}

/// Case 61: a log gets lines, few of them, without anything a terminal would obey.
#[test]
fn a_log_stays_readable() {
    let folder = tempfile::tempdir().unwrap();
    let (_, rows, _) = batch(jobs(50, &["s"]), &options(folder.path()), 0).unwrap();
    let mut log = Vec::new();
    let mut progress = progress::Progress::new(0, 50, false, false, &mut log);
    for row in &rows {
        progress.row(row);
    }
    progress.finish();
    let text = String::from_utf8(log).unwrap();
    assert!(text.lines().count() <= 3, "{text}");
    assert!(text.contains("50 of 50 puzzles"));
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()));
    // A line that says how it ended is not said twice.
    let mut log = Vec::new();
    let mut progress = progress::Progress::new(0, 1, false, false, &mut log);
    progress.row(&rows[0]);
    progress.finish();
    assert_eq!(String::from_utf8(log).unwrap().lines().count(), 1);
}

/// Several engines stand for several cards: each gets its share, and the rows are those of one engine.
#[test]
fn puzzles_are_spread_over_engines_and_give_the_same_rows() {
    use crate::lm::engine::{EngineLm, EngineOptions};
    use crate::model::{OpenOptions, open};
    let Some(shared) = crate::base::testing::shared("puzzles_are_spread_over_engines") else { return };
    let tiny = shared.join("cases/tiny");
    let Some(path) = tiny_model(&tiny) else { return };
    let engine = || -> Arc<dyn Lm> {
        let model = open(path.to_str().unwrap(), &OpenOptions::default()).unwrap();
        let options = EngineOptions {
            device: "cpu".into(),
            threads: Some(1),
            kv_budget: Some(crate::base::size::Size::Bytes(16 << 20)),
            ..EngineOptions::default()
        };
        EngineLm::start(model, &options).unwrap()
    };
    let rows = |engines: Vec<Arc<dyn Lm>>, parallel| {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { parallel, ..options(folder.path()) };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let never = std::future::pending();
        let done = runtime.block_on(run(jobs(12, &["s"]), ready(engines.clone()), &options, never, |_| {})).unwrap();
        assert_eq!(done.missing, 0);
        let mut rows = rows(folder.path());
        rows.sort_by_key(Row::key);
        let read: Vec<Option<u64>> = rows.iter().map(|row| row.traffic.kv_bytes).collect();
        for row in &mut rows {
            // What was in the cache is another engine's affair.
            (row.seconds, row.tokens, row.prompt_tokens, row.traffic) = (0.0, 0, 0, row::Traffic::default());
        }
        let steps: Vec<u64> =
            engines.iter().map(|engine| engine.counters().speed.map_or(0, |speed| speed.steps)).collect();
        let all: u64 = engines.iter().filter_map(|engine| Some(engine.counters().io?.kv_bytes)).sum();
        (rows, steps, read, all)
    };
    let (one, ..) = rows(vec![engine()], 1);
    let (two, steps, shared, _) = rows(vec![engine(), engine()], 4);
    let (apart, _, read, all) = rows(vec![engine(), engine()], 2);
    assert_eq!(one.len(), 12);
    assert_eq!(one, two);
    assert_eq!(one, apart);
    assert!(shared.iter().all(Option::is_none), "steps are shared, so that bytes are nobody's: {shared:?}");
    let sum: u64 = read.iter().map(|bytes| bytes.expect("a run alone on its engine knows its bytes")).sum();
    assert!((1..=all).contains(&sum), "{read:?} of {all}");
    assert!(steps.iter().all(|&steps| steps > 0), "both engines worked: {steps:?}");
}

/// The tiny model of the shared cases.
fn tiny_model(folder: &Path) -> Option<std::path::PathBuf> {
    let found = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    found.filter(|path| path.extension().is_some_and(|end| end == "gguf")).min()
}

/// Runs a batch whose model cannot be opened.
fn unopened(options: &Options) -> Result<Done> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let models: Models = Arc::new(|_| Err(Error::limit("not enough memory")));
    runtime.block_on(run(jobs(2, &["s"]), models, options, std::future::pending(), |_| {}))
}

#[test]
fn a_model_that_cannot_be_opened_leaves_nothing_behind() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("new/deep");
    let mut options = options(&out);
    assert!(unopened(&options).unwrap_err().message().contains("memory"));
    assert!(!place.path().join("new").exists(), "folders that it made are gone");
    // A folder that was there stays, with what was in it.
    std::fs::create_dir_all(&out).unwrap();
    std::fs::write(out.join("notes.txt"), "mine").unwrap();
    unopened(&options).unwrap_err();
    let left: Vec<_> = std::fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["notes.txt"]);
    // Mended, the same batch runs into it; and what has rows is left alone.
    let (done, ..) = batch(jobs(2, &["s"]), &options, 0).unwrap();
    assert_eq!(done.missing, 0);
    options.resume = true;
    let more = jobs(3, &["s"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let models: Models = Arc::new(|_| Err(Error::limit("not enough memory")));
    runtime.block_on(run(more, models, &options, std::future::pending(), |_| {})).unwrap_err();
    assert_eq!(rows(&out).len(), 2);
    assert!(out.join("manifest.json").exists());
}

#[test]
fn a_batch_that_was_cut_before_its_first_row_is_no_result() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    // As a kill leaves it while the model loads.
    drop(Folder::open(&options, &jobs(1, &["s"]), &mut |_| {}).unwrap());
    options.seed += 1;
    // A record that it began is not written over unasked.
    let events = folder.path().join("events");
    std::fs::create_dir(&events).unwrap();
    std::fs::write(events.join("one.jsonl"), "{}").unwrap();
    let refused = Folder::open(&options, &jobs(1, &["s"]), &mut |_| {}).unwrap_err();
    assert!(refused.message().contains("--resume"), "{refused}");
    std::fs::remove_dir_all(&events).unwrap();
    let (done, ..) = batch(jobs(1, &["s"]), &options, 0).unwrap();
    assert_eq!(done.missing, 0);
    assert_eq!(rows(folder.path()).len(), 1);
}
