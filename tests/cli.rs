//! The built program's words: commands, exit codes, JSON fields, refusals. No model is needed: chance and scripts play it.
//!
//! - rows: fields and codes of `solve --json`, with limits and without
//! - refusals: unknown names, unreadable inputs, wrong flags: code 2, the name of the thing, the remedy
//! - scripting: `check`, `schema`, `strategy`, `task`
//! - data: blank and wrong answer columns change `solved` alone
//! - output: a full disk, a closed pipe, no control characters where there is no terminal

mod common;

use common::Place;
use common::pty::Terminal;
use serde_json::Value;
use std::process::Stdio;

const CHANCE: &[&str] = &["solve", "--no-tui", "--json", "--model", "random-proposer"];

fn chance(place: &Place, more: &[&str]) -> common::Run {
    place.run(&[CHANCE, more].concat())
}

#[test]
fn a_row_has_the_contracts_fields() {
    let place = Place::new();
    let run = chance(&place, &["--task", "sorting", "--size", "4", "--seed", "3", "--strategy", "tot-dfs"]);
    let row = run.rows().remove(0);
    for field in [
        "task",
        "id",
        "strategy",
        "solved",
        "error_score",
        "answer",
        "thoughts",
        "tokens",
        "logical_tokens",
        "seconds",
        "reason",
    ] {
        assert!(row.get(field).is_some(), "no field {field} in {row}");
    }
    let solved = row["solved"].as_bool().expect("a boolean");
    assert_eq!(run.code, Some(if solved { 0 } else { 1 }), "{row}");
    if solved {
        assert!(row["answer"].is_array());
        assert_eq!(row["error_score"], 0);
    }
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    let place = Place::new();
    let row = |seed: &str| {
        let mut row = chance(&place, &["--task", "sorting", "--size", "16", "--seed", seed]).rows().remove(0);
        row["seconds"] = Value::Null;
        row
    };
    assert_eq!(row("5"), row("5"));
    assert_ne!(row("5"), row("6"));
}

#[test]
fn limits_end_a_run_with_code_3_and_say_which() {
    let place = Place::new();
    let run = chance(&place, &["--task", "sorting", "--size", "32", "--max-thoughts", "2"]);
    let row = run.rows().remove(0);
    run.exits(3);
    assert!(row["reason"].as_str().expect("text").contains("2 thoughts"), "{row}");
    assert!(row["thoughts"].as_u64().expect("a count") <= 2, "{row}");
}

#[test]
fn what_cannot_be_read_is_refused_with_code_2_and_a_remedy() {
    let place = Place::new();
    let check = |args: &[&str], words: &[&str]| {
        place.run(args).exits(2).says(words);
    };
    check(&["solve", "--no-tui", "--task", "sortign"], &["sortign", "sorting"]);
    check(&[CHANCE, &["--input", "3 x 5"]].concat(), &["x"]);
    check(&[CHANCE, &["--input", ""]].concat(), &["numbers"]);
    check(&[CHANCE, &["--strategy", "tot-bsf"]].concat(), &["tot-bsf", "tot-bfs"]);
    check(&[CHANCE, &["--strategy", "./missing.yaml"]].concat(), &["missing.yaml"]);
    check(&[CHANCE, &["--data", "missing.csv", "--id", "1"]].concat(), &["missing.csv"]);
    check(&["solve", "--no-tui", "--model", "./no-such.gguf"], &["no-such.gguf"]);
    check(&["solve", "--no-tui", "--model", "scripted:none.txt"], &["none.txt"]);
    check(&["complete", "--prompt", "x", "--temperature", "NaN"], &["temperature"]);
    check(&["complete", "--prompt", "x", "--temperature", "-1"], &["temperature"]);
    check(&["solve", "--no-tui", "--kv-budget", "12XB"], &["12XB", "MiB"]);
    check(&["solve", "--no-tui", "--model", "random-proposer", "--attention", "medusaa", "--size", "x"], &["x"]);
    check(&["nonsense"], &["nonsense"]);
    check(&["replay", "no-such-run", "--no-tui"], &["no-such-run"]);
}

#[test]
fn integers_of_any_length_and_sign_are_sorted() {
    let place = Place::new();
    let big = "99999999999999999999999999";
    // Three different numbers: three proposals are all of them, so that chance solves it.
    let input = format!("[{big}, 3, -{big}, 3]");
    let row = chance(&place, &["--input", &input, "--strategy", "tot-dfs"]).rows().remove(0);
    assert_eq!(row["solved"], true, "{row}");
    // What a JSON number cannot hold exactly is told as text.
    assert_eq!(row["answer"], serde_json::json!([format!("-{big}"), 3, 3, big]));
}

#[test]
fn two_sets_are_read_and_met() {
    let place = Place::new();
    let row = chance(&place, &["--task", "set-intersection", "--input", "1 4 9 200; 200 9 2", "--strategy", "tot-dfs"])
        .rows()
        .remove(0);
    assert_eq!(row["solved"], true, "{row}");
    let mut answer: Vec<_> = row["answer"].as_array().expect("an array").iter().filter_map(Value::as_i64).collect();
    answer.sort_unstable();
    assert_eq!(answer, [9, 200]);
}

#[test]
fn without_a_terminal_the_bare_program_solves_and_says_so() {
    let place = Place::new();
    let run = place.run(&["--model", "random-proposer", "--seed", "1"]).says(&["no terminal", "solve --no-tui"]);
    assert!(matches!(run.code, Some(0 | 1)), "{:?}", run.code);
    assert!(!run.err.contains(['\r', '\x1b']) && !run.out.contains(['\r', '\x1b']), "control characters in a file");
}

#[test]
fn strategies_are_listed_shown_started_and_checked() {
    let place = Place::new();
    let list = place.run(&["strategy", "list", "--json"]).exits(0).rows();
    for name in ["io", "cot", "tot-bfs", "tot-dfs"] {
        for task in ["sorting", "set-intersection"] {
            assert!(list.iter().any(|r| r["name"] == name && r["task"] == task), "{name} for {task} is not listed");
        }
    }
    let text = place.run(&["strategy", "show", "tot-bfs", "--task", "sorting"]).exits(0).out;
    assert!(text.contains("policy: bfs"), "{text}");
    place.run(&["strategy", "new", "mine.yaml"]).exits(0);
    place.run(&["check", "mine.yaml"]).exits(0);
    place.run(&["strategy", "new", "mine.yaml"]).exits(2).says(&["mine.yaml"]);
    let schema = place.run(&["schema"]).exits(0).out;
    assert!(serde_json::from_str::<Value>(&schema).expect("JSON").is_object());
}

#[test]
fn strategy_mistakes_name_the_line_and_the_nearest_key() {
    let place = Place::new();
    place.run(&["strategy", "new", "good.yaml"]).exits(0);
    let good = std::fs::read_to_string(place.path("good.yaml")).expect("written");
    let line = |text: &str, needle: &str| text.lines().position(|l| l.contains(needle)).expect("the line") + 1;
    let check = |name: &str, text: &str, words: &[&str]| {
        place.write(name, text);
        let run = place.run(&["check", name]).exits(1);
        assert_eq!(run.err, "", "what is found is the result");
        for word in words {
            assert!(run.out.contains(word), "standard output lacks {word:?}:\n{}", run.out);
        }
        for row in place.run(&["check", name, "--json"]).exits(1).rows() {
            assert!(row["file"].is_string() && row["message"].is_string() && row["severity"] == "error", "{row}");
            assert!(row["line"].as_u64().is_some_and(|line| line > 0), "{row}");
        }
    };
    let typo = good.replacen("  depth:", "  depht:", 1);
    check("typo.yaml", &typo, &["depht", "depth", &format!("{}:", line(&typo, "depht"))]);
    let twice = good.replacen("  depth:", "  depth: 3\n  depth:", 1);
    check(
        "twice.yaml",
        &twice,
        &["depth", &line(&twice, "  depth:").to_string(), &(line(&twice, "  depth:") + 1).to_string()],
    );
    check("odd.yaml", "version: [1", &["odd.yaml"]);
    check("empty.yaml", "", &["empty.yaml"]);
}

#[test]
fn a_file_without_its_version_is_checked_to_the_end() {
    let place = Place::new();
    place.run(&["strategy", "new", "good.yaml"]).exits(0);
    let good = std::fs::read_to_string(place.path("good.yaml")).expect("written");
    let bad = good.replacen("version: 1\n", "", 1).replacen("  depth:", "  depht:", 1);
    assert!(!bad.contains("version: 1") && bad.contains("depht"));
    place.write("bad.yaml", &bad);
    let said = place.run(&["check", "bad.yaml"]).exits(1).out;
    assert!(said.contains("version") && said.contains("depht") && said.contains("`depth`"), "{said}");
}

#[test]
fn a_model_that_cannot_be_read_is_refused_before_the_screen_opens() {
    let place = Place::new();
    place.write("bad.gguf", "<html>not a model</html>");
    for args in [&["--model", "bad.gguf"][..], &["solve", "--task", "sorting", "--model", "bad.gguf"]] {
        let mut terminal = Terminal::open(args, &place, &[]);
        assert_eq!(terminal.end(), 2, "{}", terminal.text());
        assert!(terminal.text().contains("bad.gguf"), "{}", terminal.text());
        assert!(!terminal.has_written("\x1b[?1049h"), "the screen was opened");
    }
}

#[test]
fn tasks_are_listed_and_shown() {
    let place = Place::new();
    assert!(place.run(&["task", "list"]).exits(0).out.contains("set-intersection"));
    assert!(place.run(&["task", "show", "sorting"]).exits(0).out.contains("42 7 -3 103 7"));
    place.run(&["task", "show", "sotring"]).exits(2).says(&["sorting"]);
}

#[test]
fn a_blank_or_wrong_answer_column_changes_solved_alone() {
    let place = Place::new();
    let files = [("right", "\"[1, 2, 3, 5]\""), ("blank", ""), ("wrong", "\"[5, 3, 2, 1]\"")];
    let (mut seen, mut codes) = (Vec::new(), Vec::new());
    for (name, answer) in files {
        let file = format!("{name}.csv");
        place.write(&file, &format!("ID,Unsorted,Sorted\n7,\"[3, 1, 5, 2]\",{answer}\n"));
        let record = format!("{name}.jsonl");
        let run = chance(&place, &["--data", &file, "--id", "7", "--strategy", "tot-dfs", "--record", &record]);
        codes.push(run.code);
        let row = run.rows().remove(0);
        let tree = place.run(&["replay", &record, "--no-tui"]).exits(0).out;
        let tree: Vec<_> = tree.lines().filter(|l| l.contains('#')).map(str::to_string).collect();
        seen.push((row, tree));
    }
    let (right, right_tree) = &seen[0];
    assert_eq!(right["solved"], true, "{right}");
    assert!(!right_tree.is_empty());
    for (row, tree) in &seen[1..] {
        assert_eq!(row["answer"], right["answer"]);
        assert_eq!(row["thoughts"], right["thoughts"]);
        assert_eq!(tree, right_tree);
    }
    assert_eq!(seen[2].0["solved"], false, "the wrong column must show in `solved`");
    assert_eq!(codes, [Some(0), Some(1), Some(1)], "and in the exit code");
}

#[test]
fn a_full_disk_and_a_closed_pipe_are_told_by_the_exit_code() {
    let place = Place::new();
    if let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") {
        let output = place.totara(&["schema"]).stdout(Stdio::from(full)).output().expect("starts");
        assert_eq!(output.status.code(), Some(4));
        assert!(String::from_utf8_lossy(&output.stderr).contains("standard output"));
    }
    if let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") {
        let output = place.totara(&["--help"]).stdout(Stdio::from(full)).output().expect("starts");
        assert_eq!(output.status.code(), Some(4), "help is a result too");
    }
    let mut child = place.totara(&["schema"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("ends");
    assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"), "a closed pipe is no panic");
}

#[test]
fn a_record_that_is_there_is_not_overwritten() {
    let place = Place::new();
    let args = [CHANCE, &["--size", "4", "--record", "run.jsonl"]].concat();
    place.run(&args);
    let first = std::fs::read(place.path("run.jsonl")).expect("a record");
    place.run(&args).exits(2).says(&["run.jsonl", "there already", "another name"]);
    assert_eq!(std::fs::read(place.path("run.jsonl")).expect("the record"), first);
}

#[test]
fn a_broken_judges_prompt_is_found_by_check_and_ends_a_run_with_code_2() {
    let place = Place::new();
    let text = place.run(&["strategy", "show", "tot-bfs", "--task", "game24"]).exits(0).out;
    assert!(text.contains("prompt: prompts/game24/value.txt"), "{text}");
    let broken = text.replacen(
        "prompt: prompts/game24/value.txt",
        "prompt: |\n      How good is {{ path.text }} of {{ puzzle.input }}? {{ thought }}",
        1,
    );
    place.write("broken.yaml", &broken);
    let found = place.run(&["check", "broken.yaml"]).exits(1).out;
    assert!(found.contains("path.text"), "{found}");
    // A name that only rendering finds.
    let hidden = broken.replacen("path.text", "puzzle.examples[0].no", 1);
    place.write("hidden.yaml", &hidden);
    let found = place.run(&["check", "hidden.yaml", "--json"]).exits(1).rows();
    assert!(found.iter().any(|row| row["message"].as_str().is_some_and(|m| m.contains("undefined"))), "{found:?}");
    let run = place.run(&[
        "solve",
        "--no-tui",
        "--json",
        "--model",
        "random-proposer",
        "--task",
        "game24",
        "--strategy",
        "hidden.yaml",
    ]);
    let row = run.rows().remove(0);
    assert!(row["reason"].as_str().is_some_and(|reason| reason.contains("undefined")), "{row}");
    run.exits(2);
}

#[test]
fn a_record_can_be_read_again_and_holds_no_secret() {
    let place = Place::new();
    chance(&place, &["--size", "4", "--seed", "2"]);
    let events = place.run(&["replay", "last", "--json"]).exits(0).rows();
    assert_eq!(events.first().expect("events")["event"], "started");
    assert_eq!(events.last().expect("events")["event"], "ended");
    assert!(place.run(&["replay", "last", "--no-tui"]).exits(0).out.contains('#'));
}
