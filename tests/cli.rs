//! The built program's words: commands, exit codes, JSON fields, refusals. No model is needed: chance and scripts play it.
//!
//! - rows: fields and codes of `solve --json`, with limits and without
//! - refusals: unknown names, unreadable inputs, wrong flags: code 2, the name of the thing, the remedy
//! - scripting: `check`, `schema`, `strategy`, `task`
//! - data: blank and wrong answer columns change `solved` alone
//! - records: a run goes on from one, a tree is exported from one
//! - selftest: a fault in a kernel is the exit code
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
    check(&["complete", "--prompt", "x", "--model", "random-proposer"], &["random-proposer"]);
    check(
        &["complete", "--prompt", "x", "--model", "random:tiny", "--offload-alpha", "3"],
        &["--offload-alpha", "--offload"],
    );
    check(&["model", "list", "--model-dir", "no-such-folder"], &["no-such-folder"]);
    check(&["model", "info", "--model", "random-proposer"], &["no weights"]);
    check(&[CHANCE, &["--set", "=1"]].concat(), &["--set =1", "width=3"]);
    check(&["bench", "attention", "--device", "cpu", "--seconds", "inf"], &["--seconds"]);
    check(&["bench", "attention", "--device", "cpu", "--heads", "999999999/1"], &["1024"]);
    if !totara::device::cuda::driver::is_present() {
        check(&["bench", "attention", "--device", "cuda"], &["use --device cpu"]);
    }
    for seconds in ["0", "-1", "nan", "inf", "1e-300", "1e300"] {
        check(&[CHANCE, &["--max-seconds", seconds]].concat(), &["--max-seconds", "from 0.001 to"]);
    }
    check(&["nonsense"], &["nonsense"]);
    check(&["replay", "no-such-run", "--no-tui"], &["no-such-run"]);
}

/// Whatever stands in the model's place, and whichever command: what would change nothing is not passed over.
#[test]
fn settings_of_an_offload_that_nothing_names_are_refused_before_anything_is_made() {
    let place = Place::new();
    place.write("script.txt", "1 2 3\n");
    let chance = ["--model", "random-proposer"];
    let scripted = ["--model", "scripted:script.txt"];
    let eval = ["eval", "--task", "sorting", "--strategy", "tot-dfs", "--sizes", "4", "--count", "1", "--out", "r"];
    let solve = ["solve", "--no-tui", "--task", "sorting", "--size", "4", "--strategy", "io", "--record", "run.jsonl"];
    let commands = [
        [&solve[..], &chance].concat(),
        [&solve[..], &scripted].concat(),
        [&eval[..], &chance].concat(),
        [&eval[..], &scripted].concat(),
        [&eval[..], &["--model", "random:tiny"]].concat(),
        vec!["complete", "--prompt", "x", "--model", "scripted:script.txt"],
        vec!["bench", "attention", "--device", "cpu"],
        vec!["model", "list"],
    ];
    let settings = [
        ["--offload-alpha", "3"],
        ["--offload-ratio", "0.5"],
        ["--offload-max-fetch", "0.5"],
        ["--offload-capacity", "1MiB"],
        ["--offload-eviction", "lru"],
        ["--offload-look", "same"],
        ["--offload-whole-layers", "2"],
    ];
    let made = |args: &[&str]| {
        assert!(!place.path("r").exists() && !place.path("run.jsonl").exists(), "{args:?} made something");
    };
    for (command, setting) in commands.iter().flat_map(|command| settings.map(|setting| (command, setting))) {
        let args = [&command[..], &setting].concat();
        place.run(&args).exits(2).says(&[setting[0], "give an --offload method"]);
        made(&args);
    }
    // Nor are values that no engine takes.
    for (bad, said) in [
        (&["--attention", "medusaa"][..], "medusaa"),
        (&["--offload", "infinigen", "--offload-alpha", "nan"], "alpha"),
        (&["--offload", "oracle"], "oracle"),
        (&["--device", "nonsense"], "there are auto, cpu, cuda and cuda:N"),
        (&["--device", "cuda:x"], "cuda:x"),
    ] {
        for command in &commands[..6] {
            let args = [&command[..], bad].concat();
            place.run(&args).exits(2).says(&[said]);
            made(&args);
        }
    }
}

#[test]
fn what_a_model_cannot_run_with_is_refused_before_a_batch_makes_its_folder() {
    let place = Place::new();
    let eval =
        ["eval", "--model", "random:tiny", "--task", "sorting", "--strategy", "tot-dfs", "--sizes", "4", "--out", "r"];
    for (bad, said) in [
        (["--model-dir", "no-such-folder"], "no-such-folder"),
        (["--chat-template", "none.jinja"], "none.jinja"),
        // Where there are cards, there are not so many.
        (["--device", "cuda:4000"], "use --device cpu"),
    ] {
        place.run(&[&eval[..], &bad].concat()).exits(2).says(&[said]);
        let cards_here = bad[0] == "--device" && totara::device::cuda::driver::is_present();
        assert!(cards_here || !place.path("r").exists(), "{bad:?} came too late");
    }
}

#[test]
fn a_folder_of_models_that_may_not_be_read_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new();
    let folder = place.path("closed");
    std::fs::create_dir(&folder).expect("a folder");
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o000)).expect("closed");
    if std::fs::read_dir(&folder).is_ok() {
        return println!("skipped a_folder_of_models_that_may_not_be_read: this user may read everything");
    }
    place.run(&["model", "list", "--model-dir", "closed"]).exits(2).says(&["--model-dir closed", "denied"]);
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
fn a_selftest_that_finds_a_fault_ends_with_code_1_and_names_the_kernel() {
    let place = Place::new();
    let mut command = place.totara(&["doctor", "--selftest", "--json"]);
    let run = common::Run::of(command.env("TOTARA_SELFTEST_FAULT", "1").output().expect("the program starts"));
    let rows = run.rows();
    let attention = |row: &&Value| row["kernel"].as_str().is_some_and(|k| k.contains(" attention "));
    let (wrong, right): (Vec<_>, Vec<_>) = rows.iter().filter(attention).partition(|row| row["ok"] == false);
    let faulty = |row: &&Value| row["kernel"].as_str().is_some_and(|k| k.starts_with("portable "));
    assert!(!wrong.is_empty() && wrong.iter().all(faulty), "{}", run.err);
    assert!(!right.iter().any(faulty), "{}", run.err);
    run.exits(1);
    // A card's kernel by name changes nothing where no card is, and what is no kernel is refused.
    let named = |name: &str| {
        let mut command = place.totara(&["doctor", "--selftest", "--json"]);
        common::Run::of(command.env("TOTARA_SELFTEST_FAULT", name).output().expect("the program starts"))
    };
    let run = named("packint4").exits(2);
    assert!(run.err.contains("pack_int4"), "{}", run.err);
    let run = named("pack_int4");
    let (wrong, card): (Vec<_>, Vec<_>) = run.rows().into_iter().partition(|row| row["ok"] == false);
    let of_card = |rows: &[Value]| rows.iter().any(|row| row["kernel"].as_str().is_some_and(|k| k.contains("int4")));
    assert!(of_card(&wrong) || wrong.is_empty() && !of_card(&card), "{}", run.err);
}

/// Everything that can be wrong around the program has its line, and the line says what to do.
#[test]
fn the_doctor_has_a_line_for_everything_and_a_remedy_where_something_is_wrong() {
    let place = Place::new();
    let look = |variables: &[(&str, &str)]| -> std::collections::BTreeMap<String, String> {
        let mut command = place.totara(&["doctor", "--json"]);
        command.env_remove("TMUX").env_remove("NO_COLOR").env("TERM", "xterm").env("LC_ALL", "C.UTF-8");
        command.env("HF_HOME", place.path("no-hub")).env_remove("HF_HUB_CACHE");
        let run = common::Run::of(command.envs(variables.iter().copied()).output().expect("starts")).exits(0);
        let text = |row: &Value, name: &str| row[name].as_str().expect("text").to_string();
        run.rows().iter().map(|row| (text(row, "subject"), text(row, "text"))).collect()
    };
    let all = look(&[]);
    for subject in ["cpu", "gpu", "memory", "link", "terminal", "model cache", "models", "records", "program"] {
        assert!(all.get(subject).is_some_and(|text| !text.is_empty()), "{subject}: {all:?}");
    }
    assert!(all["cpu"].contains("portable") && all["cpu"].contains("best"), "{all:?}");
    assert!(all["link"].contains("/s"), "a bandwidth that was measured: {all:?}");
    let check = |variables: &[(&str, &str)], subject: &str, words: &[&str]| {
        let text = &look(variables)[subject];
        for word in words {
            assert!(text.contains(word), "{variables:?}: {subject}: {text}");
        }
    };
    check(&[("TERM", "")], "terminal", &["TERM not set", "xterm-256color"]);
    check(&[("TERM", "dumb")], "terminal", &["solve --no-tui", "no colours"]);
    check(&[("LC_ALL", "C")], "terminal", &["ASCII", "C.UTF-8"]);
    check(&[("NO_COLOR", "1")], "terminal", &["no colours (NO_COLOR"]);
    check(&[("TMUX", "x")], "terminal", &["set-clipboard on"]);
    check(&[("TERM", "\u{1b}[31mx")], "terminal", &["TERM x"]);
    let file = place.write("file", "x").display().to_string();
    let empty = place.path("empty").display().to_string();
    check(&[("TOTARA_CACHE", &file)], "model cache", &["no folder", "TOTARA_CACHE"]);
    check(&[("TOTARA_STATE", &file)], "records", &["no folder", "TOTARA_STATE"]);
    check(&[("TOTARA_CACHE", &empty)], "models", &["0 here, 0 unusable", "totara model pull"]);
    std::fs::create_dir_all(place.path("empty/models")).expect("a cache");
    place.write("empty/models/page.gguf", "<html>");
    check(&[("TOTARA_CACHE", &empty)], "models", &["1 unusable", "totara model list", "totara model pull"]);
    assert_eq!(look(&[("TOTARA_CACHE", "beside")])["model cache"], "beside/models", "a folder that can be made");
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
    place.run(&["strategy", "show", "mine.yaml"]).exits(2).says(&["mine.yaml", "totara check"]);
    let schema = place.run(&["schema"]).exits(0).out;
    assert!(serde_json::from_str::<Value>(&schema).expect("JSON").is_object());
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
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = place.totara(&["schema"]).stdout(writer).output().expect("ends");
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

#[test]
fn a_record_can_be_read_again_and_holds_no_secret() {
    let place = Place::new();
    chance(&place, &["--size", "4", "--seed", "2"]);
    let events = place.run(&["replay", "last", "--json"]).exits(0).rows();
    assert_eq!(events.first().expect("events")["event"], "started");
    assert_eq!(events.last().expect("events")["event"], "ended");
    assert!(place.run(&["replay", "last", "--no-tui"]).exits(0).out.contains('#'));
}

#[test]
fn a_run_that_a_limit_ended_goes_on_and_its_record_is_left_alone() {
    let place = Place::new();
    let of = |more: &[&str]| chance(&place, &[&["--task", "set-intersection", "--size", "6"], more].concat());
    let mut whole = of(&["--no-record"]).exits(0).rows().remove(0);
    of(&["--max-thoughts", "4", "--set", "api_key=x"]).exits(2);
    of(&["--max-thoughts", "4"]).exits(3);
    let runs = place.path("state/runs");
    let first = std::fs::read_dir(&runs).unwrap().next().unwrap().unwrap().path();
    let before = std::fs::read_to_string(&first).unwrap();
    let id = first.file_stem().unwrap().to_str().unwrap().to_string();
    let go_on = |more: &[&str]| place.run(&[&["solve", "--no-tui", "--json", "--continue", &id], more].concat());
    let mut row = go_on(&["--max-thoughts", "5000"]).exits(0).rows().remove(0);
    assert_eq!(std::fs::read_to_string(&first).unwrap(), before);
    for row in [&mut whole, &mut row] {
        row["seconds"] = Value::Null;
    }
    assert_eq!(whole, row, "the same end as without the limit");
    let replayed = place.run(&["replay", "last", "--json"]).exits(0).rows();
    assert!(replayed.iter().any(|e| e["event"] == "continued" && e["from"] == id));
    // The puzzle is the record's; another one beside it is refused, and so is a run that is not there.
    go_on(&["--size", "4"]).exits(2).says(&["--size"]);
    place.run(&["solve", "--no-tui", "--continue", "nothing"]).exits(2).says(&["neither a record file nor a run"]);
}

#[test]
fn a_strategy_that_changed_is_not_gone_on_with_unasked() {
    let place = Place::new();
    let file = place.path("mine.yaml");
    let text = place.run(&["strategy", "show", "tot-bfs"]).exits(0).out;
    std::fs::write(&file, &text).unwrap();
    let strategy = ["--strategy", "mine.yaml"];
    chance(&place, &[&["--size", "8", "--max-thoughts", "2"], &strategy[..]].concat()).exits(3);
    std::fs::write(&file, text.replace("keep: 1", "keep: 2")).unwrap();
    let go_on = |more: &[&str]| {
        place.run(&[&["solve", "--no-tui", "--continue", "last", "--max-thoughts", "4"], more].concat())
    };
    go_on(&[]).exits(2).says(&["is not what it was", "--strategy"]);
    let code = go_on(&strategy).code;
    assert!(matches!(code, Some(1 | 3)), "chance may be unlucky: {code:?}");
    let events = place.run(&["replay", "last", "--json"]).exits(0).out;
    assert!(events.contains("from here on with the strategy"));
}

#[test]
fn a_tree_is_exported_in_three_forms() {
    let place = Place::new();
    chance(&place, &["--size", "3"]).exits(0);
    for (name, part) in [("t.svg", "<svg "), ("t.html", "<details open>"), ("t.txt", "#0\n")] {
        let path = place.path(name);
        let run = place.run(&["replay", "last", "--export", path.to_str().unwrap()]).exits(0).says(&[name]);
        assert_eq!(run.out, "");
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.contains(part) && text.contains("answer"), "{text}");
    }
    place.run(&["replay", "last", "--export", "t.pdf"]).exits(2).says(&[".svg, .html or .txt"]);
    place.run(&["replay", "last", "--export", "no/such/t.svg"]).exits(4).says(&["cannot be written"]);
}

#[test]
fn frames_of_a_large_tree_are_measured() {
    let place = Place::new();
    let args = ["bench", "screen", "--thoughts", "500", "--size", "80x24", "--frames", "3", "--json"];
    let rows = place.run(&args).exits(0).rows();
    assert_eq!(rows.iter().map(|r| r["frame"].as_str().unwrap()).collect::<Vec<_>>(), ["scroll", "growth"]);
    assert!(rows.iter().all(|r| r["median_ms"].as_f64().unwrap() > 0.0));
    place.run(&["bench", "screen", "--size", "5x5"]).exits(2).says(&["20x8"]);
}

/// The limit of a file's size cuts what is written in its middle, as a full disk does.
#[test]
fn a_file_that_cannot_be_written_whole_is_not_left_and_the_one_before_stays() {
    let place = Place::new();
    chance(&place, &["--size", "8"]);
    place.write("old.html", "mine");
    place.write("old.svg", "mine");
    let names = || {
        let names = std::fs::read_dir(place.dir.path()).expect("a folder");
        names.map(|e| e.expect("a file").file_name()).collect::<std::collections::BTreeSet<_>>()
    };
    let before = names();
    let program = env!("CARGO_BIN_EXE_totara");
    let files =
        ["new.html", "old.html", "new.svg", "old.svg"].map(|file| (file, format!("replay last --export {file}")));
    for (file, args) in files.into_iter().chain([("new.yaml", "strategy new new.yaml".to_string())]) {
        let shell = format!("trap '' XFSZ; ulimit -f 1; exec {program} {args}");
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &shell]).current_dir(place.dir.path()).env("TOTARA_STATE", place.path("state"));
        common::Run::of(command.output().expect("a shell")).exits(4).says(&[file]);
        assert_eq!(names(), before, "{args}");
    }
    for old in ["old.html", "old.svg"] {
        assert_eq!(std::fs::read_to_string(place.path(old)).expect("it is there"), "mine");
        place.run(&["replay", "last", "--export", old]).exits(0);
        assert!(std::fs::read_to_string(place.path(old)).expect("it is there").contains("</"));
    }
}
