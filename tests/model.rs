//! The built program with the real default model, end to end.
//!
//! - ids, greedy texts and log-probabilities against an independent engine's
//! - texts with `--speculate ngram` are those without, in fewer steps
//! - a sorting and a set puzzle solved; the same run twice; threads do not matter
//! - the screen in a real pseudo-terminal: from the start to a solved puzzle, and back to the shell
//! - batches: `--parallel` does not matter, a finished one resumed does nothing

mod common;

use common::Place;
use common::places::{model, real_model, shared};
use common::pty::Terminal;
use serde_json::Value;

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().expect("an array").iter().filter_map(Value::as_f64).collect()
}

#[test]
fn ids_and_greedy_texts_are_those_of_an_independent_engine() {
    let name = "ids_and_greedy_texts";
    let (Some(_), Some(shared)) = (real_model(name), shared(name)) else { return };
    let place = Place::new();
    let text = std::fs::read_to_string(shared.join("cases/reference/smollm2.json")).expect("the reference");
    let reference: Value = serde_json::from_str(&text).expect("JSON");
    let texts = reference["texts"].as_array().expect("texts");
    for case in texts {
        let text = case["text"].as_str().expect("text");
        let row = place.run(&["model", "tokenize", "--json", "--text", text]).exits(0).rows().remove(0);
        assert_eq!(row["ids"], case["ids_parse_special"], "{text:?}");
    }
    let prompts = reference["prompts"].as_array().expect("prompts");
    for (activations, within) in [("f32", 0.05), ("int8", 0.5)] {
        for case in prompts {
            let prompt = case["prompt"].as_str().expect("text");
            let expected: Vec<_> = case["greedy_ids"].as_array().expect("ids").clone();
            let margins = floats(&case["greedy_margin_logits"]);
            let count = expected.len().to_string();
            let args = ["complete", "--json", "--prompt", prompt, "--max-tokens", &count, "--activations", activations];
            let row = place.run(&args).exits(0).rows().remove(0);
            let ids = row["ids"].as_array().expect("ids");
            for (at, (id, want)) in ids.iter().zip(&expected).enumerate() {
                if id != want {
                    assert!(
                        margins[at] <= within,
                        "{activations}: {prompt:?} differs at {at} with a margin of {}",
                        margins[at]
                    );
                    break;
                }
            }
        }
    }
    println!("checked {} texts and {} prompts", texts.len(), prompts.len());
}

#[test]
fn drafts_change_no_text_and_are_accepted_where_a_prompt_is_copied() {
    if real_model("drafts_change_no_text").is_none() {
        return;
    }
    let place = Place::new();
    let list = "The quick brown fox jumps over the lazy dog. Pack my box with five dozen liquor jugs.";
    let prompt = format!("List: {list}\nCopy: {list}\nCopy: The quick brown fox");
    for more in [&["--temperature", "0"][..], &["--temperature", "0.7", "--top-k", "8", "--repetition-penalty", "1.05"]]
    {
        let complete = |speculate: &str| {
            let args = ["complete", "--json", "--prompt", &prompt, "--max-tokens", "20", "--speculate", speculate];
            place.run(&[&args[..], more].concat()).exits(0).rows().remove(0)
        };
        let (plain, drafted) = (complete("none"), complete("ngram"));
        assert_eq!((&plain["ids"], &plain["logprobs"]), (&drafted["ids"], &drafted["logprobs"]), "{more:?}");
        assert!(plain["accepted"].is_null());
        let length = drafted["accepted_length"].as_f64().expect("tokens were drafted");
        assert!(length > 1.5, "{length} tokens a draft, {more:?}");
    }
}

#[test]
fn both_puzzles_are_solved_the_same_way_every_time() {
    if real_model("both_puzzles_are_solved").is_none() {
        return;
    }
    let place = Place::new();
    let solve = |args: &[&str]| {
        let mut row = place.run(&[&["solve", "--no-tui", "--json"], args].concat()).exits(0).rows().remove(0);
        row["seconds"] = Value::Null;
        // How often shared K/V was read depends on which requests met in one step.
        row["kv_bytes"] = Value::Null;
        row
    };
    let sorting = solve(&["--task", "sorting", "--size", "8", "--threads", "2"]);
    assert_eq!(sorting["solved"], true);
    assert_eq!(sorting, solve(&["--task", "sorting", "--size", "8", "--threads", "1"]), "threads change nothing");
    assert_eq!(
        solve(&["--task", "sorting", "--input", "42 7 -3 103 7"])["answer"],
        serde_json::json!([-3, 7, 7, 42, 103])
    );
    let sets = solve(&["--task", "set-intersection", "--input", "1 4 200 9 31 77; 77 200 8 5 4 12"]);
    let mut found: Vec<_> = sets["answer"].as_array().expect("an array").iter().filter_map(Value::as_i64).collect();
    found.sort_unstable();
    assert_eq!(found, [4, 77, 200]);
}

#[test]
fn a_batch_does_not_depend_on_what_runs_beside_and_goes_on_where_it_stopped() {
    if real_model("a_batch").is_none() {
        return;
    }
    let place = Place::new();
    let eval = |out: &str, parallel: &str, more: &[&str]| {
        let args = [
            "eval",
            "--task",
            "sorting",
            "--sizes",
            "4",
            "--count",
            "4",
            "--strategy",
            "tot-bfs",
            "--out",
            out,
            "--parallel",
            parallel,
        ];
        place.run(&[&args[..], more].concat()).exits(0)
    };
    eval("one", "1", &[]);
    eval("four", "4", &[]);
    eval("drafted", "3", &["--threads", "1", "--speculate", "ngram"]);
    let rows = |folder: &str| {
        let text = std::fs::read_to_string(place.path(folder).join("results.jsonl")).expect("results");
        let mut rows: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).expect("a row")).collect();
        for row in &mut rows {
            // What is shared with the neighbours in the cache differs, and so do the seconds.
            for field in ["seconds", "tokens", "prompt_tokens", "kv_bytes", "link_bytes"] {
                row[field] = Value::Null;
            }
        }
        rows.sort_by_key(|r| r["id"].as_str().map(str::to_string));
        rows
    };
    assert_eq!(rows("one").len(), 4);
    assert_eq!(rows("one"), rows("four"));
    assert_eq!(rows("one"), rows("drafted"), "nor do threads and drafts change a result");
    let again = eval("four", "4", &["--resume"]);
    assert!(again.out.contains("tot-bfs"), "the summary is printed again:\n{}", again.out);
    assert_eq!(rows("four").len(), 4, "a finished batch resumed adds nothing");
    place
        .run(&["eval", "--task", "sorting", "--sizes", "4", "--count", "4", "--strategy", "tot-bfs", "--out", "four"])
        .exits(2)
        .says(&["--resume"]);
}

#[test]
fn the_screen_goes_from_the_start_to_a_solved_puzzle() {
    if real_model("the_screen").is_none() {
        return;
    }
    let place = Place::new();
    let model = model().expect("the model was there").display().to_string();
    let mut terminal = Terminal::open(&["--seed", "1"], &place, &[("TOTARA_MODEL", model)]);
    // The lists come from a thread of their own.
    terminal.wait_for("tot-bfs");
    terminal.press("\r");
    terminal.wait_for("SOLVED");
    terminal.press("\x1b");
    terminal.wait_until("the tree alone", |text| text.contains("1 Tree") && !text.contains("look at the tree"));
    terminal.press("q");
    assert_eq!(terminal.end(), 0, "a solved puzzle");
    terminal.check_restored();
    assert!(terminal.text().contains('['), "the answer line is printed:\n{}", terminal.text());
}
