//! `strategy`, `task`, `check` and `schema`: what is shipped, files of one's own, and where their mistakes are told.

use crate::common::Place;
use serde_json::Value;

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
    place.run(&["strategy", "show", "mine.yaml"]).exits(2).says(&["mine.yaml", "totara check"]);
    let schema = place.run(&["schema"]).exits(0).out;
    assert!(serde_json::from_str::<Value>(&schema).expect("JSON").is_object());
}

#[test]
fn tasks_are_listed_and_shown() {
    let place = Place::new();
    assert!(place.run(&["task", "list"]).exits(0).out.contains("set-intersection"));
    assert!(place.run(&["task", "show", "sorting"]).exits(0).out.contains("42 7 -3 103 7"));
    place.run(&["task", "show", "sotring"]).exits(2).says(&["sorting"]);
}

#[test]
fn a_task_of_ones_own_is_written_checked_and_solved() {
    let place = Place::new();
    place.run(&["task", "new", "sums.yaml"]).exits(0);
    assert!(place.run(&["check", "sums.yaml"]).exits(0).out.contains("ok (task sums)"));
    assert!(place.run(&["task", "show", "sums.yaml"]).exits(0).out.contains("puzzle.a"));
    std::fs::write(place.path("script.txt"), " 42\n===\n 41").expect("written");
    let solve = ["solve", "--task", "sums.yaml", "--model", "scripted:script.txt", "--no-tui", "--json", "--no-record"];
    let row = place.run(&[&solve[..], &["--input", "17; 25"]].concat()).exits(0).rows().remove(0);
    assert_eq!((&row["task"], &row["solved"], &row["answer"]), (&"sums".into(), &true.into(), &"42".into()), "{row}");
    place.run(&[&solve[..], &["--input", "17"]].concat()).exits(2).says(&["1 of 2 fields"]);
    std::fs::write(place.path("sums.csv"), "id,a,second,answer\nx,1,2,3\ny,20,22,42\n").expect("written");
    let eval =
        ["eval", "--task", "sums.yaml", "--data", "sums.csv", "--strategy", "io", "--model", "scripted:script.txt"];
    let rows = place.run(&[&eval[..], &["--parallel", "1", "--out", "results", "--json"]].concat()).exits(0).rows();
    let solved: Vec<&Value> = rows.iter().map(|row| &row["solved"]).collect();
    assert_eq!(solved, [&Value::from(false), &Value::from(false)], "42 for 1 + 2, and 41 for 20 + 22: {rows:?}");
    std::fs::write(place.path("bad.yaml"), "version: 1\nname: b\nfields: {a: x}\nquestion: \"{{ puzzle.b }}\"\n")
        .expect("written");
    place.run(&["solve", "--task", "bad.yaml", "--input", "1"]).exits(2).says(&["bad.yaml:4:", "puzzle.a"]);
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
fn a_broken_judges_prompt_is_found_by_check_and_ends_a_run_with_code_2() {
    let place = Place::new();
    let text = place.run(&["strategy", "show", "tot-bfs", "--task", "game24"]).exits(0).out;
    assert!(text.contains("prompt: prompts/game24/value.txt"), "{text}");
    let broken = text.replacen(
        "prompt: prompts/game24/value.txt",
        "prompt: |\n        How good is {{ path.text }} of {{ puzzle.input }}? {{ thought }}",
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
