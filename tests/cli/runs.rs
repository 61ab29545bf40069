//! What a run without a screen says: fields and codes of `solve --json`, with limits and without; what inputs and data
//! change.

use super::chance;
use crate::common::Place;
use serde_json::Value;

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
fn every_task_runs_with_its_name_alone() {
    let place = Place::new();
    for row in place.run(&["task", "list", "--json"]).exits(0).rows() {
        let run = chance(&place, &["--task", row["name"].as_str().expect("a name"), "--max-thoughts", "30"]);
        assert!(matches!(run.code, Some(0 | 1 | 3)), "{row}: {}", run.err);
        assert_eq!(run.rows().len(), 1, "{row}");
    }
}

#[test]
fn without_a_terminal_the_bare_program_solves_and_says_so() {
    let place = Place::new();
    let run = place.run(&["--model", "random-proposer", "--seed", "1"]).says(&["no terminal", "solve --no-tui"]);
    assert!(matches!(run.code, Some(0 | 1)), "{:?}", run.code);
    assert!(!run.err.contains(['\r', '\x1b']) && !run.out.contains(['\r', '\x1b']), "control characters in a file");
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
