//! What is refused, with code 2, the name of the thing and the remedy, before anything is made: unknown names, unreadable
//! inputs, wrong flags.

use super::CHANCE;
use crate::common::Place;
use crate::common::pty::Terminal;

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
