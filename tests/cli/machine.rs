//! The program and its machine: the doctor's lines, a kernel's fault as the exit code, frames that are measured, outputs that
//! are full or closed.

use crate::common::{Place, Run};
use serde_json::Value;
use std::process::Stdio;

#[test]
fn a_selftest_that_finds_a_fault_ends_with_code_1_and_names_the_kernel() {
    let place = Place::new();
    let mut command = place.totara(&["doctor", "--selftest", "--json"]);
    let run = Run::of(command.env("TOTARA_SELFTEST_FAULT", "1").output().expect("the program starts"));
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
        Run::of(command.env("TOTARA_SELFTEST_FAULT", name).output().expect("the program starts"))
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
        let run = Run::of(command.envs(variables.iter().copied()).output().expect("starts")).exits(0);
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
fn frames_of_a_large_tree_are_measured() {
    let place = Place::new();
    let args = ["bench", "screen", "--thoughts", "500", "--size", "80x24", "--frames", "3", "--json"];
    let rows = place.run(&args).exits(0).rows();
    assert_eq!(rows.iter().map(|r| r["frame"].as_str().unwrap()).collect::<Vec<_>>(), ["scroll", "growth"]);
    assert!(rows.iter().all(|r| r["median_ms"].as_f64().unwrap() > 0.0));
    place.run(&["bench", "screen", "--size", "5x5"]).exits(2).says(&["20x8"]);
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
