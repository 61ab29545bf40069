//! Records: read again, never overwritten, gone on from; trees exported from them, whole or not at all.

use super::{CHANCE, chance};
use crate::common::{Place, Run};
use serde_json::Value;

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
fn a_record_that_is_there_is_not_overwritten() {
    let place = Place::new();
    let args = [CHANCE, &["--size", "4", "--record", "run.jsonl"]].concat();
    place.run(&args);
    let first = std::fs::read(place.path("run.jsonl")).expect("a record");
    place.run(&args).exits(2).says(&["run.jsonl", "there already", "another name"]);
    assert_eq!(std::fs::read(place.path("run.jsonl")).expect("the record"), first);
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
        Run::of(command.output().expect("a shell")).exits(4).says(&[file]);
        assert_eq!(names(), before, "{args}");
    }
    for old in ["old.html", "old.svg"] {
        assert_eq!(std::fs::read_to_string(place.path(old)).expect("it is there"), "mine");
        place.run(&["replay", "last", "--export", old]).exits(0);
        assert!(std::fs::read_to_string(place.path(old)).expect("it is there").contains("</"));
    }
}
