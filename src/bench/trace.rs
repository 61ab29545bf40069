//! `totara bench trace FILE...`: replays recorded trees step by step on a model, and tells what attention read and where
//! the time went.
//!
//! DeFT's reasoning records say which branch makes tokens in which iteration: the prompt is read, then each iteration is
//! one step with a row a branch; a branch that is done gives its K/V back once its children began. Its speculative
//! records give one token tree and how many of its tokens each step accepted: each step verifies the whole tree after a
//! prompt, and the accepted tokens stay. Tokens are the model's own greedy ones (the first of each branch is made up), so
//! that a step has all the parts of a real one; the shape of the tree is the record's alone.
//!
//! Iterations are timed without the prompt. *Host* is planning, packing, the token tree and sampling. K/V bytes are those
//! of the plan over all layers; partial results are counted as written and read once.

mod player;

use super::attention::deft::{self, Run as Recorded, Speculative};
use crate::attention::Method;
use crate::base::rng::stream;
use crate::base::{Error, Result, read};
use crate::engine::measure::{Run, Split};
use crate::lm::engine::{EngineOptions, Loaded, Sample, load};
use crate::model::Model;
use player::{Player, Sums};
use serde::Serialize;
use std::fmt;
use std::path::Path;

/// Bytes of a recording at most.
const MOST_BYTES: u64 = 1 << 30;

/// What is replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spec {
    /// Recorded runs of a file, from the first.
    pub runs: usize,
    /// Iterations of each run; `None`: all.
    pub steps: Option<usize>,
    /// Tokens before a recorded token tree, which does not tell them.
    pub prompt: usize,
    pub seed: u64,
}

/// A file's runs.
pub struct Recording {
    name: String,
    runs: Runs,
}

enum Runs {
    Reasoning(Vec<Recorded>),
    /// The tree, and which of its records.
    Speculative(Speculative, usize),
}

/// One recording with one method.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    pub recording: String,
    pub method: String,
    pub model: String,
    pub device: String,
    pub runs: usize,
    pub iterations: u64,
    /// Tokens that the iterations computed.
    pub tokens: u64,
    pub prefill_seconds: f64,
    /// Of all iterations.
    pub decode_seconds: f64,
    pub attention_seconds: f64,
    pub products_seconds: f64,
    /// Of an iteration, on average, in milliseconds.
    pub iteration_ms: f64,
    pub host_ms: f64,
    /// Share of an iteration that is host time.
    pub host_share: f64,
    pub kv_bytes: u64,
    /// What grouping by query would have read.
    pub radix_bytes: u64,
    pub partial_bytes: u64,
}

impl Recording {
    /// Reads a record; at most `runs` of its runs are kept.
    pub fn read(path: &Path, runs: usize) -> Result<Self> {
        let here = path.display();
        let text = read::text(path, MOST_BYTES).map_err(|e| Error::input(format!("{here} {e}")))?;
        let read = if text.trim_start().starts_with('[') {
            deft::read_reasoning(&text).map(|mut read| {
                read.runs.truncate(runs);
                Runs::Reasoning(read.runs)
            })
        } else {
            deft::read_speculative(&text).map(|read| {
                let runs = runs.min(read.accepted.len());
                Runs::Speculative(read, runs)
            })
        };
        let name = path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        Ok(Self { name, runs: read.map_err(|e| e.context(here))? })
    }

    /// Iterations of each run that are replayed.
    fn iterations(&self, spec: &Spec) -> Vec<usize> {
        let most = spec.steps.unwrap_or(usize::MAX);
        let all = |iterations: usize| iterations.min(most);
        match &self.runs {
            Runs::Reasoning(runs) => runs.iter().map(|run| all(run.last_iteration().max(0) as usize)).collect(),
            Runs::Speculative(record, runs) => record.accepted[..*runs].iter().map(|run| all(run.len())).collect(),
        }
    }
}

/// Replays a recording on a model with one method; `progress` is told iterations done and to do.
pub fn replay(
    recording: &Recording,
    model: Model,
    options: &EngineOptions,
    spec: &Spec,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Report> {
    let name = model.info.name.clone();
    let sample = Sample::of(&model, options)?;
    let Loaded { mut llama, limits, device, .. } = load(model.weights, options, sample.as_ref())?;
    let iterations = recording.iterations(spec);
    let total = iterations.iter().sum();
    let mut sums = Sums::default();
    let mut done = 0;
    let mut tick = || {
        done += 1;
        progress(done, total);
    };
    for (number, &iterations) in iterations.iter().enumerate() {
        let mut player = Player {
            run: Run::new(&mut llama, &limits),
            random: stream(spec.seed, "bench trace", &[number as u64]),
            vocab: limits.vocab as u32,
            context: limits.context,
            rows: limits.step_rows,
            partial_row_bytes: limits.partial_row_bytes as u64,
            sums: &mut sums,
            tick: &mut tick,
        };
        match &recording.runs {
            Runs::Reasoning(runs) => player.reasoning(&runs[number], iterations)?,
            Runs::Speculative(record, _) => {
                player.speculative(record, &record.accepted[number][..iterations], spec.prompt)?
            }
        }
    }
    Ok(report(recording, name, device, options.method, iterations.len(), &sums))
}

fn report(recording: &Recording, model: String, device: String, method: Method, runs: usize, sums: &Sums) -> Report {
    let Split { total, attention, products, plan, host } = sums.decode;
    let each = |seconds: f64| seconds * 1e3 / sums.iterations.max(1) as f64;
    Report {
        recording: recording.name.clone(),
        method: method.to_string(),
        model,
        device,
        runs,
        iterations: sums.iterations,
        tokens: sums.tokens,
        prefill_seconds: sums.prefill,
        decode_seconds: total,
        attention_seconds: attention,
        products_seconds: products,
        iteration_ms: each(total),
        host_ms: each(plan + host),
        host_share: if total > 0.0 { (plan + host) / total } else { 0.0 },
        kv_bytes: sums.kv_bytes,
        radix_bytes: sums.radix_bytes,
        partial_bytes: sums.partial_bytes,
    }
}

/// A number of bytes in the unit that fits, powers of 1000: the paper's tables are in TB.
pub fn bytes_text(bytes: u64) -> String {
    let (mut size, mut unit) = (bytes as f64, "B");
    for next in ["kB", "MB", "GB", "TB", "PB"] {
        if size < 1000.0 {
            break;
        }
        (size, unit) = (size / 1000.0, next);
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{size:.2} {unit}") }
}

impl Report {
    pub const HEAD: &'static str = "recording              method           iterations   tokens | decode s  attention s  products s |    ms each  host ms  host |    K/V read  by radix   partials";
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<22} {:<16} {:>10} {:>8} | {:>8.2} {:>12.2} {:>11.2} | {:>10.3} {:>8.3} {:>4.0}% | {:>11} {:>9} {:>10}",
            self.recording,
            self.method,
            self.iterations,
            self.tokens,
            self.decode_seconds,
            self.attention_seconds,
            self.products_seconds,
            self.iteration_ms,
            self.host_ms,
            100.0 * self.host_share,
            bytes_text(self.kv_bytes),
            bytes_text(self.radix_bytes),
            bytes_text(self.partial_bytes)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::testing::shared;
    use crate::model::{self, OpenOptions};

    fn spec(steps: usize) -> Spec {
        Spec { runs: 1, steps: Some(steps), prompt: 40, seed: 0 }
    }

    fn replayed(recording: &Recording, method: Method, spec: &Spec) -> Result<Report> {
        let model = model::open("random:tiny", &OpenOptions::default()).unwrap();
        let options = EngineOptions { device: "cpu".into(), method, ..EngineOptions::default() };
        let mut last = (0, 0);
        let report = replay(recording, model, &options, spec, &mut |done, total| last = (done, total))?;
        assert_eq!(last, (report.iterations as usize, report.iterations as usize), "progress ends where it should");
        Ok(report)
    }

    fn written(text: &str) -> (tempfile::TempDir, Recording) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("made.json");
        std::fs::write(&path, text).unwrap();
        let recording = Recording::read(&path, 1).unwrap();
        (dir, recording)
    }

    /// A prompt of 20; two branches of 3 and 2 tokens, then a child of 2 below the first.
    const SMALL: &str = r#"[{"data": {
        "a": {"id": 0, "value": 20, "start": -19, "end": 0, "children": [1, 2]},
        "b": {"id": 1, "value": 3, "start": 1, "end": 3, "children": [3]},
        "c": {"id": 2, "value": 2, "start": 1, "end": 2, "children": []},
        "d": {"id": 3, "value": 2, "start": 4, "end": 5, "children": []}}}]"#;

    #[test]
    fn a_small_recording_reads_what_its_trees_hold() {
        let (_dir, recording) = written(SMALL);
        let flat = replayed(&recording, Method::Flatten, &spec(100)).unwrap();
        assert_eq!((flat.iterations, flat.tokens), (5, 3 + 2 + 2));
        // Trees of 22, 24, 23, 24, 25 tokens; paths of 21+21, 22+22, 23, 24, 25.
        let token = flat.kv_bytes / (22 + 24 + 23 + 24 + 25);
        assert_eq!((flat.kv_bytes, flat.radix_bytes), (token * 118, token * (42 + 44 + 72)));
        let radix = replayed(&recording, Method::Radix, &spec(100)).unwrap();
        assert_eq!((radix.kv_bytes, radix.radix_bytes), (flat.radix_bytes, flat.radix_bytes));
        let cut = replayed(&recording, Method::Auto, &spec(2)).unwrap();
        assert_eq!((cut.iterations, cut.tokens), (2, 4));
        assert!(flat.decode_seconds > 0.0 && flat.host_share < 1.0);
        let columns = |line: &str| line.split('|').map(str::len).collect::<Vec<_>>();
        assert_eq!(columns(Report::HEAD), columns(&flat.to_string()));
    }

    #[test]
    fn a_token_tree_is_verified_whole_and_the_accepted_tokens_stay() {
        let text = r#"{"Tree_Structure": [[0], [1], [0, 0], [0, 1], [0, 0, 0]],
            "Records": [{"Accept_length": [1, 3, 4, 2]}]}"#;
        let (_dir, recording) = written(text);
        let report = replayed(&recording, Method::Flatten, &spec(100)).unwrap();
        assert_eq!((report.iterations, report.tokens), (4, 4 * 6));
        // The prompt's 40 and what was accepted before, with five drafted tokens.
        let token = report.kv_bytes / (45 + 46 + 49 + 53);
        assert_eq!(report.kv_bytes, token * (45 + 46 + 49 + 53));
        let deep = text.replace("[1, 3, 4, 2]", "[9]");
        let (_dir, recording) = written(&deep);
        assert!(replayed(&recording, Method::Auto, &spec(9)).unwrap_err().message().contains("3 tokens deep"));
    }

    #[test]
    fn recorded_runs_read_what_the_table_computes() {
        let Some(folder) = shared("recorded_runs_read_what_the_table_computes") else { return };
        let folder = folder.join("data/deft");
        let recording = Recording::read(&folder.join("speculative_tree_32.json"), 1).unwrap();
        let report = replayed(&recording, Method::Flatten, &spec(6)).unwrap();
        assert_eq!(report.iterations, 6);
        assert!(report.kv_bytes < report.radix_bytes / 10, "{report}");
        let recording = Recording::read(&folder.join("set128ToT.json"), 1).unwrap();
        let error = replayed(&recording, Method::Flatten, &spec(6)).unwrap_err();
        assert!(error.message().contains("context of 1024"), "{error}");
        assert!(Recording::read(&folder.join("nothing.json"), 1).is_err());
    }

    #[test]
    fn bytes_are_shown_in_the_unit_that_fits() {
        for (bytes, text) in [(0, "0 B"), (999, "999 B"), (1500, "1.50 kB"), (12_400_000_000_000, "12.40 TB")] {
            assert_eq!(bytes_text(bytes), text);
        }
    }
}
