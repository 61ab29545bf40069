//! Long runs with much in flight: memory stays within what the trees and the K/V budget need, seen from outside.
//!
//! The short form runs with the other tests. The long one, ten minutes by default (`TOTARA_LOAD_SECONDS`) and on any build
//! of the program (`TOTARA_PROGRAM`), is `cargo test --test hardening -- --ignored --nocapture trees_at_once`.

use super::common::Place;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// K/V memory of the engine, far below what all trees want: branches give way and are computed again.
const KV_MIB: u64 = 32;

/// What a thought of these trees may take, its text and its part of the events, of the states and of the claims included.
const THOUGHT_BYTES: u64 = 1500;
/// The program, the model, its buffers, and the puzzles that wait, in MiB.
const BASE_MIB: u64 = 300;

/// A field of `/proc/PID/status` in MiB.
fn mib(child: &Child, field: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    let line = status.lines().find(|line| line.starts_with(field))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib / 1024)
}

/// Trees of so many thoughts, 64 at once on a model of random weights, until it is `enough` by the rows that are finished
/// and the time; the resident memory of every quarter of a second, and the rows.
fn run(
    place: &Place,
    (thoughts, keep, size, count): (usize, usize, &str, &str),
    enough: impl Fn(usize, Duration) -> bool,
) -> (Vec<u64>, Vec<serde_json::Value>) {
    let text = format!(
        "version: 1\nname: load\nabout: wide and deep\ntask: sorting\nsearch: {{policy: bfs, depth: \"{{{{ puzzle.len }}}}\", keep: \
         {keep}}}\ngenerate: {{n: 4, prompt: \"{{{{ puzzle.input }}}}=\", format: completion, constrain: puzzle, temperature: 1.5}}\n\
         evaluate: [logprob]\nbudget: {{thoughts: {thoughts}, tokens: 1000000000, seconds: 36000}}\n"
    );
    place.write("load.yaml", &text);
    let kv = format!("{KV_MIB}MiB");
    let args = [
        "eval",
        "--model",
        "random:tiny",
        "--device",
        "cpu",
        "--kv-budget",
        &kv,
        "--task",
        "sorting",
        "--sizes",
        size,
        "--count",
        count,
        "--parallel",
        "64",
        "--strategy",
        "load.yaml",
        "--out",
        "r",
        "--quiet",
    ];
    let mut child = place.totara(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("starts");
    let rows = || std::fs::read_to_string(place.path("r/results.jsonl")).unwrap_or_default();
    let start = Instant::now();
    let mut seen = Vec::new();
    while !enough(rows().lines().count(), start.elapsed()) {
        std::thread::sleep(Duration::from_millis(250));
        assert!(child.try_wait().expect("a status").is_none(), "it ended by itself");
        seen.extend(mib(&child, "VmRSS"));
    }
    let peak = mib(&child, "VmHWM").unwrap_or(0);
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill").success());
    let told = Instant::now();
    let run = super::Run::of(child.wait_with_output().expect("ends"));
    let took = told.elapsed();
    assert_eq!(run.code, Some(130), "{}", run.err);
    assert!(!run.err.contains("panicked"), "{}", run.err);
    let rows: Vec<serde_json::Value> = rows().lines().map(|line| serde_json::from_str(line).expect("a row")).collect();
    for row in &rows {
        let reason = row["reason"].as_str().unwrap_or_default();
        assert!(!reason.contains("failed"), "{row}");
    }
    println!(
        "{} rows in {:?}, peak {peak} MiB, ended {took:?} after Ctrl-C, resident every few seconds: {:?}",
        rows.len(),
        start.elapsed(),
        seen.iter().step_by((seen.len() / 40).max(1)).collect::<Vec<_>>()
    );
    assert!(took < Duration::from_secs(20), "it does not end: {took:?}");
    (seen, rows)
}

#[test]
fn many_small_trees_at_once_stay_small() {
    let place = Place::new();
    // Three times as many as are there at once: most came after others had gone, however long that takes.
    let enough = |rows: usize, spent: Duration| rows >= 192 || spent > Duration::from_secs(600);
    let (seen, rows) = run(&place, (24, 2, "12", "100000"), enough);
    let most = seen.iter().max().copied().unwrap_or(0);
    assert!((1..400).contains(&most), "{most} MiB");
    assert!(rows.len() >= 192, "only {} trees came to their end", rows.len());
}

#[test]
#[ignore = "ten minutes"]
fn large_trees_at_once_for_ten_minutes() {
    let seconds = std::env::var("TOTARA_LOAD_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(600);
    let place = Place::new();
    let thoughts = 10_000;
    let (seen, rows) = run(&place, (thoughts, 80, "64", "20000"), |_, spent| spent >= Duration::from_secs(seconds));
    let whole = rows.iter().filter(|row| row["thoughts"] == thoughts).count();
    println!("{whole} of {} trees have {thoughts} thoughts", rows.len());
    assert!(whole >= 128 && whole * 10 >= rows.len() * 9, "64 trees of that size, and 64 after them");
    let part = |from: usize, to: usize| seen[seen.len() * from / 10..seen.len() * to / 10].iter().max().copied();
    // Trees grow until 64 of them are whole and are gone when others begin: no more is resident after that.
    let (middle, end) = (part(4, 7).unwrap_or(0), part(8, 10).unwrap_or(0));
    let most = BASE_MIB + KV_MIB + ((64 * thoughts as u64 * THOUGHT_BYTES) >> 20);
    println!("most in the middle {middle} MiB, at the end {end} MiB, of {most} MiB");
    assert!(seen.iter().all(|&mib| mib <= most), "more than {most} MiB");
    assert!(end <= middle + middle / 10, "{middle} MiB in the middle, {end} MiB at the end");
}
