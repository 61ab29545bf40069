//! Batches of the built program, with chance in the model's place where no model is needed.
//!
//! - a batch that is killed at any moment goes on where it was, with no row lost or doubled
//! - a disk that fills up, two runs into one folder, a signal: rows stay whole, the exit code and the remedy are told
//! - a matrix of settings and models, a plan, shards, and the report that joins them
//! - the same rows whatever runs at the same time and on how many threads (with the real model)

mod common;

use common::Place;
use common::places::real_model;
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const CHANCE: &[&str] = &["eval", "--model", "random-proposer", "--task", "sorting", "--strategy", "tot-dfs"];

fn eval(more: &[&str]) -> Vec<String> {
    [CHANCE, more].concat().into_iter().map(String::from).collect()
}

/// Rows of a folder by their key, each once.
fn rows(place: &Place, folder: &str) -> BTreeMap<String, Value> {
    let text = std::fs::read_to_string(place.path(folder).join("results.jsonl")).expect("results");
    let mut rows = BTreeMap::new();
    for line in text.lines() {
        let row: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} in {line:?}"));
        let key = format!("{} {} {} {} {}", row["task"], row["id"], row["strategy"], row["settings"], row["model"]);
        assert!(rows.insert(key.clone(), row).is_none(), "{key} is there twice");
    }
    rows
}

/// Without what a clock decides.
fn timeless(mut rows: BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    rows.values_mut().for_each(|row| row["seconds"] = Value::Null);
    rows
}

fn start(place: &Place, args: &[String]) -> Child {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    place.totara(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts")
}

#[test]
fn a_batch_that_is_killed_at_any_moment_goes_on_where_it_was() {
    let place = Place::new();
    let args = eval(&["--sizes", "8", "--count", "400", "--out", "r", "--parallel", "8"]);
    let again = [&args[..], &["--resume".to_string()]].concat();
    // Moments that spread over start, middle and end, without a clock deciding which test runs.
    let mut kills = 0;
    for pause in [3, 25, 40, 60, 90, 130, 200, 300] {
        let mut child = start(&place, if kills == 0 { &args } else { &again });
        std::thread::sleep(Duration::from_millis(pause));
        child.kill().expect("killed");
        child.wait().expect("ended");
        kills += 1;
        let path = place.path("r").join("manifest.json");
        if !path.exists() {
            // Killed before it made its folder: then it may be begun anew.
            kills = 0;
        }
    }
    let last: Vec<&str> = again.iter().map(String::as_str).collect();
    place.run(&last).exits(0);
    let all = rows(&place, "r");
    assert_eq!(all.len(), 400);
    let file = || std::fs::read(place.path("r").join("results.jsonl")).expect("results");
    let before = file();
    place.run(&last).exits(0).says(&["0 of 0 puzzles"]);
    assert_eq!(file(), before, "a finished batch does nothing when it is resumed");
    let whole = eval(&["--sizes", "8", "--count", "400", "--out", "whole"]);
    place.run(&whole.iter().map(String::as_str).collect::<Vec<_>>()).exits(0);
    assert_eq!(timeless(all), timeless(rows(&place, "whole")));
}

/// The limit of a file's size cuts a row in its middle, as a full disk does.
#[test]
fn a_full_disk_keeps_whole_rows_and_a_resume_goes_on() {
    let place = Place::new();
    let program = env!("CARGO_BIN_EXE_totara");
    let command = format!(
        "trap '' XFSZ; ulimit -f 24; exec {program} eval --model random-proposer --task sorting --strategy tot-dfs --sizes 8 \
         --count 200 --out r"
    );
    let shell = std::process::Command::new("sh").args(["-c", &command]).current_dir(place.dir.path()).output();
    let run = common::Run::of(shell.expect("a shell"));
    assert_eq!(run.code, Some(4), "{}", run.err);
    assert!(run.err.contains("cannot be written") && run.err.contains("--resume"), "{}", run.err);
    let there = rows(&place, "r").len();
    assert!((1..200).contains(&there), "{there}");
    let args = eval(&["--sizes", "8", "--count", "200", "--out", "r", "--resume"]);
    place.run(&args.iter().map(String::as_str).collect::<Vec<_>>()).exits(0);
    assert_eq!(rows(&place, "r").len(), 200);
}

#[test]
fn a_signal_saves_what_is_there_and_a_second_run_is_refused_meanwhile() {
    let place = Place::new();
    // Long enough that the test is inside it.
    let args = eval(&["--sizes", "256", "--count", "2000", "--out", "r", "--parallel", "2"]);
    let mut child = start(&place, &args);
    let until = Instant::now() + Duration::from_secs(60);
    let results = place.path("r").join("results.jsonl");
    while std::fs::metadata(&results).map_or(0, |meta| meta.len()) == 0 {
        assert!(Instant::now() < until, "no row after a minute");
        std::thread::sleep(Duration::from_millis(20));
    }
    let second: Vec<String> = [&args[..], &["--resume".to_string()]].concat();
    place.run(&second.iter().map(String::as_str).collect::<Vec<_>>()).exits(2).says(&["another batch", "--out"]);
    let status = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(status.expect("kill").success());
    assert_eq!(child.wait().expect("ended").code(), Some(130));
    let there = rows(&place, "r").len();
    assert!((1..2000).contains(&there));
    assert!(place.path("r").join("summary.md").exists());
    place.run(&["report", "r"]).exits(0).says(&["is not finished"]);
}

#[test]
fn a_plan_runs_the_matrix_and_shards_are_joined() {
    let place = Place::new();
    place.write(
        "plan.yaml",
        "version: 1\npuzzles:\n  - {task: sorting, sizes: [4, 6], count: 3}\n  - {task: set-intersection, sizes: [6], count: \
         4}\nstrategies: [tot-bfs, tot-dfs]\nmodels: [random-proposer]\nbudget: {thoughts: 40}\n",
    );
    for shard in ["1/2", "2/2"] {
        let out = format!("s{}", &shard[..1]);
        place.run(&["eval", "--plan", "plan.yaml", "--shard", shard, "--out", &out]).exits(0);
    }
    place.run(&["eval", "--plan", "plan.yaml", "--out", "whole"]).exits(0);
    let joined = place.run(&["report", "s1", "s2", "--json"]).exits(0).rows();
    let whole = place.run(&["report", "whole", "--json"]).exits(0).rows();
    let numbers = |rows: &[Value]| -> Vec<Value> {
        let mut kept: Vec<Value> =
            rows.iter().filter(|r| r["kind"] == "group" || r["kind"] == "pair").cloned().collect();
        kept.iter_mut().for_each(|r| r["seconds"] = Value::Null);
        kept
    };
    assert_eq!(numbers(&joined).iter().filter(|r| r["kind"] == "group").count(), 6);
    let key = |r: &Value| format!("{} {} {} {}", r["kind"], r["task"], r["size"], r["arm"]);
    let by_key = |rows: Vec<Value>| rows.into_iter().map(|r| (key(&r), r["n"].clone())).collect::<BTreeMap<_, _>>();
    assert_eq!(by_key(numbers(&joined)), by_key(numbers(&whole)));
    // A shard that is missing, and a row that is there twice, are told.
    place.run(&["report", "s1"]).exits(0).says(&["2/2"]);
    place.run(&["report", "s1", "s2", "whole"]).exits(0).says(&["count once"]);
    place.run(&["eval", "--plan", "plan.yaml", "--task", "sorting", "--out", "x"]).exits(2).says(&["--plan", "--task"]);
}

#[test]
fn settings_and_models_are_columns_of_the_summary() {
    let place = Place::new();
    place.write("script.txt", &vec!["1"; 40].join("\n===\n"));
    let run = place.run(&[
        "eval",
        "--task",
        "sorting",
        "--sizes",
        "4",
        "--count",
        "2",
        "--strategy",
        "got",
        "--vary",
        "sorts=1,2",
        "--vary",
        "merges=1,2",
        "--models",
        "random-proposer",
        "scripted:script.txt",
        "--out",
        "r",
    ]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    for words in ["| settings |", "| model |", "sorts=1, merges=2", "scripted:script.txt"] {
        assert!(run.out.contains(words), "{words}: {}", run.out);
    }
    assert_eq!(rows(&place, "r").len(), 2 * 4 * 2);
    let manifest = std::fs::read_to_string(place.path("r").join("manifest.json")).expect("a manifest");
    let manifest: Value = serde_json::from_str(&manifest).expect("JSON");
    assert_eq!(manifest["models"].as_object().map(|models| models.len()), Some(2));
    place
        .run(&["eval", "--task", "sorting", "--sizes", "4", "--strategy", "got", "--vary", "sort=1", "--out", "x"])
        .exits(2)
        .says(&["sort"]);
    place
        .run(&["eval", "--sizes", "4", "--strategy", "io", "--models", "./none.gguf", "--out", "x"])
        .exits(2)
        .says(&["none.gguf"]);
}

#[test]
fn a_report_is_written_whole_and_faults_are_the_exit_code() {
    let place = Place::new();
    let args = eval(&["--sizes", "5", "--count", "6", "--out", "r"]);
    place.run(&args.iter().map(String::as_str).collect::<Vec<_>>()).exits(0);
    let run = place.run(&["report", "r", "--out", "page"]).exits(0);
    assert!(run.out.contains("## sorting 5") && run.out.contains("of 6"), "{}", run.out);
    for name in
        ["report.html", "report.md", "report.jsonl", "groups.csv", "pairs.csv", "curves.csv", "sorting-5-solved.svg"]
    {
        let text = std::fs::read_to_string(place.path("page").join(name)).expect(name);
        assert!(!text.is_empty() || name == "pairs.csv", "{name}");
        assert!(!text.contains("src=") && !text.contains("<script"), "{name}");
    }
    let results = place.path("r").join("results.jsonl");
    let mut text = std::fs::read_to_string(&results).expect("results");
    text.truncate(text.len() - 20);
    std::fs::write(&results, text).expect("written");
    place.run(&["report", "r"]).exits(1).says(&["results.jsonl, line 6", "cut"]);
    place.run(&["report", "nothing"]).exits(2).says(&["nothing"]);
    place.write("file", "x");
    place.run(&["report", "file"]).exits(2).says(&["file"]);
    place.run(&["report"]).exits(2);
}

#[test]
fn an_endpoint_that_cannot_be_is_refused_before_anything_is_written() {
    let place = Place::new();
    let check = |more: &[&str], code: i32, words: &[&str]| {
        let args = [&["eval", "--sizes", "4", "--count", "1", "--strategy", "io", "--out", "r"], more].concat();
        place.run(&args).exits(code).says(words);
        assert!(!place.path("r").exists());
    };
    check(&["--endpoint", "http://me:hunter2@host"], 2, &["TOTARA_API_KEY", "http://host"]);
    check(&["--endpoint", "host:80"], 2, &["http://"]);
    check(&["--endpoint", "http://127.0.0.1:1", "--threads", "2"], 2, &["--threads"]);
    check(&["--endpoint", "http://127.0.0.1:1", "--endpoint-timeout", "-1"], 2, &["--endpoint-timeout"]);
    check(&["--endpoint-timeout", "5"], 2, &["--endpoint"]);
}

#[test]
fn chance_without_a_choice_is_refused_and_sizes_are_the_tasks_own() {
    let place = Place::new();
    let chance = |strategy: &str, more: &[&str]| {
        let args = ["eval", "--model", "random-proposer", "--count", "2", "--out", "r", "--strategy", strategy];
        place.run(&[&args[..], more].concat())
    };
    for strategy in ["io", "cot", "cot-sc"] {
        chance(strategy, &[]).exits(2).says(&[strategy, "constrain"]);
        let solve = ["solve", "--no-tui", "--model", "random-proposer", "--size", "3", "--strategy", strategy];
        place.run(&solve).exits(2).says(&[strategy, "constrain"]);
    }
    assert!(!place.path("r").exists(), "nothing was begun");
    for task in ["sorting", "game24", "set-intersection"] {
        let out = format!("own-{task}");
        let args = ["eval", "--model", "random-proposer", "--count", "2", "--strategy", "tot-dfs"];
        let rows = place.run(&[&args[..], &["--task", task, "--out", &out, "--json"]].concat()).exits(0).rows();
        assert_eq!(rows.len(), 2, "{task}");
        let id = rows[0]["id"].as_str().expect("an id").to_string();
        let size = id.rsplit('-').next().expect("generated puzzles are named by seed and size");
        let sized = [&args[..], &["--task", task, "--sizes", size, "--out", "sized", "--json"]].concat();
        let same = place.run(&sized).exits(0).rows();
        std::fs::remove_dir_all(place.path("sized")).expect("the folder");
        assert_eq!(same[0]["puzzle"], rows[0]["puzzle"], "{task}: the same puzzles as with --sizes {size}");
    }
}

#[test]
fn rows_of_the_real_model_do_not_depend_on_what_runs_at_the_same_time() {
    let name = "rows_of_the_real_model_do_not_depend_on_what_runs_at_the_same_time";
    let Some(_) = real_model(name) else { return };
    let place = Place::new();
    // Short prompts and replies: an unoptimised build computes a few tokens a second.
    place.write("p.txt", "Input: {{ puzzle.list }}\nOutput:");
    let strategy = |name: &str, search: &str, generate: &str, evaluate: &str| {
        let text = format!(
            "version: 1\nname: {name}\nabout: short\ntask: sorting\nsearch: {search}\ngenerate: {generate}\nevaluate: [{evaluate}]\n"
        );
        place.write(&format!("{name}.yaml"), &text);
    };
    let drawn = "{n: 2, prompt: p.txt, format: completion, temperature: 0.9, max_tokens: 5, thought: answer}";
    strategy("drawn", "{policy: best-of-n}", drawn, "logprob");
    let ranked = "{kind: likeliest, n: 2, prompt: p.txt, format: completion, constrain: puzzle}";
    strategy("ranked", "{policy: bfs, depth: 3, keep: 1}", ranked, "checker: partial");
    let run = |out: &str, parallel: &str, threads: &str| {
        let args = [
            "eval",
            "--task",
            "sorting",
            "--sizes",
            "3",
            "--count",
            "3",
            "--strategy",
            "drawn.yaml",
            "ranked.yaml",
            "--device",
            "cpu",
            "--kv-budget",
            "128MiB",
            "--parallel",
            parallel,
            "--threads",
            threads,
            "--out",
            out,
        ];
        place.run(&args).exits(0);
        let mut rows = timeless(rows(&place, out));
        for row in rows.values_mut() {
            // What was in the cache depends on who was there before; so do the bytes that were read.
            for field in ["tokens", "prompt_tokens", "kv_bytes", "link_bytes"] {
                row[field] = Value::Null;
            }
        }
        rows
    };
    let one = run("one", "1", "1");
    assert_eq!(one.len(), 6);
    assert_eq!(one, run("many", "8", "2"));
}
