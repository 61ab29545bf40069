//! Public bug reports of other programs that only show through the whole of ours: each as a kind, on random weights, so that
//! no model file is needed.
//!
//! - K/V: runs one after the other and beside each other, little memory, methods of attention, a host tier (rows 22, 24, 26, 32)
//! - the context's end in a search (row 30)
//! - batches: equal puzzles, torn rows, output that is a file (rows 56, 58, 61)

use super::common::Place;
use serde_json::Value;
use std::collections::BTreeSet;

/// Three children of each of two thoughts a level, ranked by their probability.
const SMALL: &str = "\
version: 1
name: small
about: a small search
task: sorting
search: {policy: bfs, depth: \"{{ puzzle.len }}\", keep: 2}
generate: {n: 3, kind: likeliest, prompt: \"sort {{ puzzle.input }} now, and once more: \", format: completion, constrain: puzzle}
evaluate: [logprob]
budget: {thoughts: 300}
";

/// What a record says of the tree: each thought and each score.
fn tree(record: &str) -> Vec<String> {
    let events = record.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let told = events.filter(|event| event["event"] == "grown" || event["event"] == "scored");
    told.map(|mut event| {
        event["usage"] = Value::Null;
        event.to_string()
    })
    .collect()
}

fn rows(place: &Place, folder: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(place.path(folder).join("results.jsonl")).expect("results");
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} in {line:?}"))).collect()
}

/// Rows 22, 24, 26 and 32: the same puzzle gives the same tree to the last bit whatever ran before it, whatever runs beside it
/// on however many threads, with K/V memory for little more than one path, and with all of it in a host tier.
#[test]
fn the_same_puzzle_gives_the_same_tree_whatever_becomes_of_its_kv() {
    let place = Place::new();
    place.write("small.yaml", SMALL);
    let equal = (0..24).map(|i| format!("{{\"id\": \"same-{i}\", \"input\": \"5 3 9 1 4 7 7 2\"}}\n"));
    let others = (0..6).map(|i| format!("{{\"id\": \"other-{i}\", \"input\": \"{}\"}}\n", "9 1 ".repeat(2 + 3 * i)));
    let mut mixed: Vec<String> = equal.chain(others).collect();
    // Others of all lengths in between.
    mixed.sort_by_key(|line| line.bytes().map(u64::from).fold(7, |hash, byte| hash * 31 % 1009 + byte));
    place.write("puzzles.jsonl", &mixed.concat());
    let run = |name: &str, more: &[&str]| -> BTreeSet<Vec<String>> {
        let args = ["eval", "--model", "random:tiny", "--device", "cpu", "--data", "puzzles.jsonl"];
        let fixed = ["--strategy", "small.yaml", "--records", "--out", name];
        place.run(&[&args[..], &fixed, more].concat()).exits(0);
        assert_eq!(rows(&place, name).len(), 30, "{name}");
        let records = std::fs::read_dir(place.path(name).join("events")).expect("records").flatten();
        let texts = records.map(|entry| std::fs::read_to_string(entry.path()).expect("a record"));
        texts.filter(|text| text.contains("same-")).map(|text| tree(&text)).collect()
    };
    let plenty = run("plenty", &["--parallel", "1", "--threads", "1", "--kv-budget", "8MiB"]);
    assert_eq!(plenty.len(), 1, "one tree for all that are equal");
    assert!(plenty.first().is_some_and(|tree| tree.len() > 60));
    let scarce = ["--parallel", "8", "--threads", "3", "--kv-budget", "64KiB"];
    let host =
        ["--parallel", "8", "--threads", "3", "--offload", "full", "--kv-budget", "2MiB", "--ram-budget", "4MiB"];
    for (name, more) in [("scarce", &scarce[..]), ("host", &host)] {
        assert_eq!(run(name, more), plenty, "{name}");
    }
    // Across methods equal up to near ties; here nothing is that near.
    let answers = |folder: &str| -> BTreeSet<String> {
        rows(&place, folder).iter().map(|row| format!("{} {} {}", row["id"], row["answer"], row["thoughts"])).collect()
    };
    for method in ["deft-flatten", "deft-node", "deft-node-chunk", "radix"] {
        run(method, &["--parallel", "4", "--attention", method]);
        assert_eq!(answers(method), answers("plenty"), "{method}");
    }
}

/// Row 30: a branch that reaches the end of the context stops there with the reason, the others go on; a prompt that does not
/// fit is refused with both numbers.
#[test]
fn the_end_of_the_context_is_told_where_it_is_reached() {
    let place = Place::new();
    let long = SMALL
        .replace("kind: likeliest", "kind: sample, temperature: 1.0, max_tokens: 3000, stop: []")
        .replace(", constrain: puzzle", "");
    place.write("long.yaml", &long.replace("depth: \"{{ puzzle.len }}\"", "depth: 2"));
    let args = [
        "solve",
        "--no-tui",
        "--model",
        "random:tiny",
        "--device",
        "cpu",
        "--input",
        "3 1 2",
        "--strategy",
        "long.yaml",
    ];
    place.run(&[&args[..], &["--record", "run.jsonl", "--max-thoughts", "6"]].concat());
    let record = std::fs::read_to_string(place.path("run.jsonl")).expect("a record");
    let ends: Vec<&str> = record.lines().filter(|line| line.contains(r#""event":"replied""#)).collect();
    assert!(!ends.is_empty());
    let full = ends.iter().filter(|line| line.contains("tokens is full")).count();
    let closed = record.lines().filter(|l| l.contains(r#""event":"status""#) && l.contains("tokens is full")).count();
    assert!(full > 0 && closed > 0, "{full} replies and {closed} thoughts at the context's end:\n{record}");
    assert!(full < ends.len(), "the others end by themselves");
    let refused = place.run(&["complete", "--model", "random:tiny", "--prompt", &"a ".repeat(3000)]).exits(2);
    let numbers = refused.err.split(|c: char| !c.is_ascii_digit()).filter(|n| n.len() >= 3).count();
    assert!(refused.err.contains("context") && numbers >= 2, "both numbers: {}", refused.err);
}

/// Rows 56 and 58: a results file cut at any byte loses the cut row alone, equal puzzles stay apart, and a batch that is
/// complete does nothing more.
#[test]
fn results_cut_at_any_byte_lose_one_row_which_runs_again() {
    let place = Place::new();
    let puzzle = |id: usize| format!("{{\"id\": {id}, \"numbers\": \"{}\"}}\n", ["4 5 6 10", "1 2 3 4"][id % 2]);
    place.write("puzzles.jsonl", &(0..4).map(puzzle).collect::<String>());
    let args = ["eval", "--task", "game24", "--model", "random-proposer", "--data", "puzzles.jsonl"];
    let args = [&args[..], &["--strategy", "tot-dfs", "--parallel", "1", "--out", "r"]].concat();
    place.run(&args).exits(0);
    let file = place.path("r/results.jsonl");
    let whole = std::fs::read(&file).expect("results");
    let timeless = |mut rows: Vec<Value>| {
        rows.iter_mut().for_each(|row| row["seconds"] = Value::Null);
        rows
    };
    let expected = timeless(rows(&place, "r"));
    assert_eq!(expected.len(), 4);
    let resume = [&args[..], &["--resume"]].concat();
    for at in (1..whole.len()).step_by(whole.len() / 23) {
        let mut cut = whole[..at].to_vec();
        if at % 2 == 0 {
            // And inside a character.
            cut.extend([0xe4, 0xb8]);
        }
        std::fs::write(&file, cut).expect("cut");
        let torn = whole[at - 1] != b'\n' || at % 2 == 0;
        let run = place.run(&resume).exits(0);
        assert_eq!(run.err.contains("was cut"), torn, "{at}: {}", run.err);
        assert_eq!(timeless(rows(&place, "r")), expected, "cut after {at} bytes");
    }
    let before = std::fs::read(&file).expect("results");
    let run = place.run(&resume).exits(0);
    assert!(run.out.contains("2 of 4") || run.out.contains("of 4"), "the summary again: {}", run.out);
    assert_eq!(std::fs::read(&file).expect("results"), before);
}

/// Row 61: where no terminal is, there are no escapes and no carriage returns, and few lines, whatever runs.
#[test]
fn logs_are_plain_and_short() {
    let place = Place::new();
    place.write("small.yaml", SMALL);
    let check = |args: &[&str]| {
        let mut command = place.totara(args);
        let run = super::finish(command.env("TERM", "dumb").env("COLORTERM", "truecolor"));
        for text in [&run.out, &run.err] {
            assert!(!text.contains(['\r', '\x1b']), "{args:?}: {text:?}");
        }
        assert!(run.err.lines().count() <= 12, "{args:?}: {}", run.err);
        run
    };
    let chance = ["--model", "random-proposer", "--strategy", "tot-bfs"];
    check(&[&["eval", "--sizes", "8", "--count", "200", "--out", "a"], &chance[..]].concat()).exits(0);
    let model = ["--model", "random:tiny", "--device", "cpu", "--strategy", "small.yaml"];
    check(&[&["eval", "--sizes", "6", "--count", "4", "--out", "b"], &model[..]].concat()).exits(0);
    check(&[&["solve", "--no-tui", "--size", "6"], &model[..]].concat());
    check(&["report", "a", "b"]).exits(0);
    check(&["complete", "--model", "random:tiny", "--prompt", "x", "--max-tokens", "4", "--device", "cpu"]).exits(0);
    check(&["model", "list"]).exits(0);
    check(&["doctor"]).exits(0);
}
