//! What SECURITY.md promises, a test of the whole kind for each promise.

use super::common::pty::Terminal;
use super::common::{Place, Run};
use super::faulty::{Act, Server, completion};
use super::{everything, finish};
use serde_json::json;
use std::os::unix::fs::symlink;

const CHANCE: &[&str] = &["--model", "random-proposer", "--task", "sorting", "--size", "3"];

/// Arguments of a small batch by chance into `r`.
fn batch<'a>(strategy: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let fixed = ["eval", "--model", "random-proposer", "--sizes", "3", "--count", "2", "--out", "r", "--strategy"];
    [&fixed[..], &[strategy], more].concat()
}

fn strategy(evaluate: &str, more: &str) -> String {
    format!(
        "version: 1\nname: theirs\nabout: from elsewhere\ntask: sorting\n{more}search: {{policy: bfs, depth: 3, keep: 2}}\n\
         generate: {{n: 2, kind: likeliest, prompt: \"{{{{ puzzle.input }}}}\", format: completion, constrain: puzzle}}\n\
         evaluate:\n  - {evaluate}\n"
    )
}

/// A strategy that runs a program: nothing of the program's command line runs it unasked, wherever the strategy comes from.
#[test]
fn no_program_runs_without_the_flag() {
    let place = Place::new();
    let mark = place.path("it-ran");
    let run = format!("command: {{run: [sh, -c, \"touch {}; echo 0.5\"]}}", mark.display());
    place.write("theirs.yaml", &strategy(&run, ""));
    place.write("base.yaml", &strategy(&run, "vars: {x: 1}\n"));
    place.write("child.yaml", "version: 1\nname: child\nabout: by way of another\nextends: base.yaml\n");
    place.write("plan.yaml", "version: 1\npuzzles:\n  - {task: sorting, sizes: [3], count: 1}\nstrategies: [theirs.yaml]\nmodels: [random-proposer]\n");
    let solve =
        |file: &str, more: &[&str]| place.run(&[&["solve", "--no-tui", "--strategy", file], CHANCE, more].concat());
    for file in ["theirs.yaml", "child.yaml"] {
        solve(file, &[]).exits(2).says(&["sh", "--allow-commands"]);
        place.run(&["check", file]);
        place.run(&batch(file, &[])).exits(2);
    }
    place.run(&["eval", "--plan", "plan.yaml", "--out", "p"]).exits(2).says(&["--allow-commands"]);
    assert!(!mark.exists(), "a program ran unasked");
    // Allowed once, the record of that run allows nothing.
    let ran = solve("theirs.yaml", &["--allow-commands", "--max-thoughts", "2", "--record", "run.jsonl"]);
    assert!(mark.exists() && matches!(ran.code, Some(0 | 1 | 3)), "{:?} {}", ran.code, ran.err);
    std::fs::remove_file(&mark).expect("the mark");
    place.run(&["replay", "run.jsonl", "--no-tui"]).exits(0);
    place
        .run(&["solve", "--no-tui", "--continue", "run.jsonl", "--max-thoughts", "9"])
        .exits(2)
        .says(&["--allow-commands"]);
    assert!(!mark.exists(), "a record made a program run");
}

/// Prompts, includes and extensions stay inside the strategy's folder, and what lies outside is not shown by a message.
#[test]
fn paths_of_a_strategy_stay_inside_its_folder() {
    let place = Place::new();
    let secret = "hunter2: [unclosed, \"\n";
    place.write("secret.yaml", secret);
    let inner = place.path("inner");
    std::fs::create_dir(&inner).expect("a folder");
    symlink(place.path("secret.yaml"), inner.join("link.yaml")).expect("a link");
    symlink(place.dir.path(), inner.join("up")).expect("a link");
    let outside = place.path("secret.yaml").display().to_string();
    for path in
        ["../secret.yaml", "up/secret.yaml", "link.yaml", "./../inner/../secret.yaml", &outside, "..\\secret.yaml"]
    {
        let quoted = serde_json::to_string(path).expect("text");
        let prompt = strategy("checker: partial", "").replace("\"{{ puzzle.input }}\"", &quoted);
        for (what, text) in [
            ("prompt", prompt),
            ("extends", strategy("checker: partial", &format!("extends: {quoted}\n"))),
            ("include", strategy("checker: partial", &format!("include: [{quoted}]\n"))),
            ("value", strategy(&format!("value: {{prompt: {quoted}, labels: {{good: 1, bad: 0}}}}"), "")),
        ] {
            let file = inner.join("theirs.yaml");
            std::fs::write(&file, text).expect("a file");
            let file = file.display().to_string();
            for args in [vec!["check", &file], [&["solve", "--no-tui", "--strategy", &file], CHANCE].concat()] {
                let run = place.run(&args);
                assert!(matches!(run.code, Some(1 | 2)), "{what} {path}: {:?} {}", run.code, run.out);
                let said = format!("{}{}", run.out, run.err);
                assert!(!said.contains("hunter2"), "{what} {path} shows what lies outside:\n{said}");
                assert!(said.contains("folder"), "{what} {path}:\n{said}");
            }
        }
    }
    // Templates reach no files and no environment either.
    for text in [
        "{% include '../secret.yaml' %}",
        "{% import '/etc/passwd' as x %}",
        "{{ env.HOME }}",
        "{{ puzzle.__class__ }}",
    ] {
        place.write("inner/theirs.yaml", &strategy("checker: partial", "").replace("{{ puzzle.input }}", text));
        let run = place.run(&["check", "inner/theirs.yaml"]).exits(1);
        assert!(!run.out.contains("hunter2"), "{}", run.out);
    }
}

/// A folder of results from elsewhere may hold links: what they lead to stays as it was.
#[test]
fn results_are_not_written_through_links() {
    let names = [
        "results.jsonl",
        "manifest.json",
        "manifest.json.tmp",
        "summary.md",
        "summary.csv",
        "summary.md.tmp",
        "lock",
        "events",
    ];
    for name in names {
        let place = Place::new();
        let theirs = place.write("theirs", "as it was");
        std::fs::create_dir_all(place.path("r")).expect("a folder");
        let target = if name == "events" { place.path("elsewhere") } else { theirs.clone() };
        std::fs::create_dir_all(place.path("elsewhere")).expect("a folder");
        symlink(&target, place.path("r").join(name)).expect("a link");
        let run = place.run(&batch("tot-dfs", &["--records"]));
        assert_eq!(std::fs::read_to_string(&theirs).expect("theirs"), "as it was", "{name}: {}", run.err);
        assert_eq!(std::fs::read_dir(place.path("elsewhere")).expect("a folder").count(), 0, "{name}: {}", run.err);
        assert!(run.code == Some(0) || run.err.contains(name), "{name}: {:?} {}", run.code, run.err);
    }
    let place = Place::new();
    place.run(&batch("tot-dfs", &[])).exits(0);
    let theirs = place.write("theirs", "as it was");
    std::fs::create_dir_all(place.path("page")).expect("a folder");
    for name in ["report.html", "report.md", "groups.csv"] {
        symlink(&theirs, place.path("page").join(name)).expect("a link");
        place.run(&["report", "r", "--out", "page"]).exits(4).says(&[name, "link"]);
        std::fs::remove_file(place.path("page").join(name)).expect("a link");
    }
    // The state folder and the cache: nothing is made, removed or copied where a link of theirs leads.
    let elsewhere = place.path("elsewhere");
    for folder in ["linked/state", "linked/cache", "elsewhere"] {
        std::fs::create_dir_all(place.path(folder)).expect("a folder");
    }
    place.write("elsewhere/20200101T000000Z-000000.jsonl", "theirs");
    symlink(&elsewhere, place.path("linked/state/runs")).expect("a link");
    symlink(&elsewhere, place.path("linked/cache/models")).expect("a link");
    let linked = |args: &[&str]| {
        let mut command = place.totara(args);
        command.env("TOTARA_STATE", place.path("linked/state")).env("TOTARA_CACHE", place.path("linked/cache"));
        finish(command.env("TOTARA_MODEL", ""))
    };
    linked(&[&["solve", "--no-tui"], CHANCE].concat()).says(&["not recorded", "runs", "link"]);
    linked(&["model", "pull"]).exits(4).says(&["models", "link"]);
    assert_eq!(std::fs::read_dir(&elsewhere).expect("a folder").count(), 1, "something was made elsewhere");
    // A record's name that is a link is a name that is taken, also where it leads nowhere.
    symlink(place.path("nowhere"), place.path("dangling.jsonl")).expect("a link");
    symlink(&theirs, place.path("link.jsonl")).expect("a link");
    for name in ["dangling.jsonl", "link.jsonl"] {
        let run = place.run(&[&["solve", "--no-tui", "--record", name], CHANCE].concat());
        assert!(matches!(run.code, Some(2 | 4)), "{name}: {:?} {}", run.code, run.err);
    }
    assert!(!place.path("nowhere").exists());
    assert_eq!(std::fs::read_to_string(&theirs).expect("theirs"), "as it was");
    place.run(&["report", "r", "--out", "page"]).exits(0);
}

/// Everything a hostile text could do to a terminal: titles, colours, the clipboard, hidden and turned text.
const HOSTILE: &str =
    "a\u{1b}[31mb\u{1b}]0;pwned\u{7}\u{1b}]52;c;cHduZWQ=\u{1b}\\\u{9b}2J\u{202e}c\u{8}\u{7f}\u{90}q\u{9c}d";

#[track_caller]
fn check_plain(what: &str, run: &Run) {
    for (name, text) in [("output", &run.out), ("error", &run.err)] {
        let bad = text.chars().find(|&c| (c.is_control() && c != '\n') || ('\u{202a}'..='\u{202e}').contains(&c));
        assert!(bad.is_none(), "{what}: {bad:?} on standard {name}: {text:?}");
    }
}

#[test]
fn control_sequences_of_texts_names_and_files_never_reach_the_terminal() {
    let place = Place::new();
    let check = |args: &[&str]| {
        let run = place.run(args);
        check_plain(&format!("{args:?}"), &run);
        run
    };
    // Words of the command line, in every place that takes one.
    for args in [
        vec!["solve", "--no-tui", "--task", HOSTILE],
        vec!["solve", "--no-tui", "--strategy", HOSTILE],
        vec!["solve", "--no-tui", "--model", HOSTILE],
        vec!["solve", "--no-tui", "--model", "random-proposer", "--input", HOSTILE],
        vec!["solve", "--no-tui", "--model", "random-proposer", "--set", HOSTILE],
        vec!["solve", "--no-tui", "--model", "random-proposer", "--data", HOSTILE, "--id", HOSTILE],
        vec!["solve", "--no-tui", "--continue", HOSTILE],
        vec!["solve", "--no-tui", "--endpoint", HOSTILE],
        vec!["solve", "--size", HOSTILE],
        vec!["eval", "--strategy", "io", "--out", "r", "--shard", HOSTILE],
        vec!["eval", "--plan", HOSTILE, "--out", "r"],
        vec!["replay", HOSTILE],
        vec!["replay", "last", "--export", HOSTILE],
        vec!["report", HOSTILE],
        vec!["check", HOSTILE],
        vec!["strategy", "show", HOSTILE],
        vec!["task", "show", HOSTILE],
        vec!["model", "pull", HOSTILE],
        vec!["model", "info", "--model", HOSTILE],
        vec!["complete", "--prompt", HOSTILE, "--device", HOSTILE],
        vec!["complete", "--model", "random:tiny", "--prompt", HOSTILE, "--max-tokens", "3", "--device", "cpu"],
        vec!["bench", "attention", "--tree", HOSTILE],
        vec!["doctor", HOSTILE],
        vec![HOSTILE],
        vec!["--", HOSTILE],
    ] {
        check(&args);
        check(&[&args[..], &["--json"]].concat());
    }
    // Files: their names, and what is in them.
    let name = format!("{HOSTILE}.yaml");
    let json = serde_json::to_string(HOSTILE).expect("text");
    for text in [
        HOSTILE.to_string(),
        strategy("checker: partial", "").replace("theirs", &json),
        format!("version: 1\n{json}: 1\n"),
    ] {
        place.write(&name, &text);
        check(&["check", &name]);
        check(&["check", &name, "--json"]);
        check(&[&["solve", "--no-tui", "--strategy", &name], CHANCE].concat());
    }
    let tree = format!("{HOSTILE}.tree");
    place.write(&tree, "2\n-1 0 10 1\n0 1 4 0\n");
    for json in [&[][..], &["--json"]] {
        let args = ["bench", "attention", "--device", "cpu", "--seconds", "0.001", "--tree", &tree];
        assert_eq!(check(&[&args[..], json].concat()).code, Some(0), "the tree is read");
    }
    place.write(
        "data.jsonl",
        &format!("{{\"id\": {json}, \"input\": \"2 1\"}}\n{{\"id\": {json}, \"input\": \"3 1\"}}\n"),
    );
    check(&["solve", "--no-tui", "--model", "random-proposer", "--data", "data.jsonl", "--id", HOSTILE]);
    place.write("data.jsonl", &format!("{{\"id\": {json}, \"input\": \"2 1\"}}\n"));
    for json in [&[][..], &["--json"]] {
        check(
            &[&["solve", "--no-tui", "--model", "random-proposer", "--data", "data.jsonl", "--id", HOSTILE], json]
                .concat(),
        );
    }
    check(&[
        "eval",
        "--model",
        "random-proposer",
        "--data",
        "data.jsonl",
        "--strategy",
        "tot-dfs",
        "--records",
        "--out",
        "r",
    ]);
    check(&["report", "r"]);
    check(&["report", "r", "--json"]);
    // Replies of a model, live, as a result, replayed, exported, and on a screen.
    place.write("script.txt", &vec![HOSTILE; 40].join("\n===\n"));
    let scripted =
        ["solve", "--no-tui", "--model", "scripted:script.txt", "--task", "sorting", "--size", "3", "--strategy", "io"];
    for more in [&[][..], &["-v"], &["--json"], &["-v", "--json"]] {
        check(&[&scripted[..], more].concat());
    }
    for args in [
        vec!["replay", "last", "--no-tui"],
        vec!["replay", "last", "--json"],
        vec!["replay", "last", "--export", "t.txt"],
    ] {
        check(&args).exits(0);
    }
    let exported = std::fs::read_to_string(place.path("t.txt")).expect("the tree");
    assert!(!exported.contains('\u{1b}') && !exported.contains('\u{9b}'), "{exported:?}");
    check(&["complete", "--model", "scripted:script.txt", "--prompt", "x"]);
    check(&["complete", "--model", "scripted:script.txt", "--prompt", "x", "--json", "--n", "2"]);
    for args in
        [&["solve", "--model", "scripted:script.txt", "--size", "3", "--strategy", "io"][..], &["replay", "last"]]
    {
        let mut terminal = Terminal::open(args, &place, &[]);
        // What the reply is without its sequences is in the tree; then in the thought's own pane, alone, with its prompt.
        terminal.wait_for("abcd");
        terminal.press("2z");
        terminal.wait_until("the thought alone", |text| !text.contains("1 Tree") && text.contains("abcd"));
        for part in ["pwned", "]52;", "\u{9b}", "\u{90}", "\u{202e}"] {
            assert!(!terminal.has_written(part), "{part:?} reached the terminal");
        }
        terminal.press("q");
        assert!(matches!(terminal.end(), 0 | 1 | 3 | 4), "{}", terminal.text());
        terminal.check_restored();
    }
}

/// A server that says everything back that it was sent: the key stands in no file and no message.
#[test]
fn the_key_of_an_endpoint_is_nowhere() {
    const KEY: &str = "sk-hunter2-0123456789";
    let echo = |asked: &super::faulty::Asked, number: usize| {
        assert!(asked.headers.contains(KEY), "the key is sent");
        let said = asked.headers.lines().find(|l| l.contains(KEY)).unwrap_or_default().trim().to_string();
        match number % 3 {
            0 => Act::Json(completion(&[&said])),
            1 => Act::Json(json!({"choices": [{"text": format!("1 2\n{said}"), "finish_reason": said}]})),
            _ => Act::Json(completion(&["1 2 3"])),
        }
    };
    let refusing = |asked: &super::faulty::Asked, number: usize| match number {
        // The probe is answered, what comes then is not.
        0 => Act::Json(completion(&["1"])),
        _ if asked.headers.contains(KEY) => {
            Act::Status(401, "", "{\"error\": {\"message\": \"bad key sk-hunter2-0123456789\"}}")
        }
        _ => Act::Close,
    };
    for server in [Server::start("vllm", echo), Server::start("x", refusing)] {
        let place = Place::new();
        let args: [&[&str]; 2] = [
            &[
                "solve",
                "--no-tui",
                "--json",
                "-v",
                "--task",
                "sorting",
                "--size",
                "3",
                "--strategy",
                "io",
                "--endpoint",
                &server.url,
            ],
            &[
                "eval",
                "--sizes",
                "3",
                "--count",
                "2",
                "--strategy",
                "io",
                "--records",
                "--out",
                "r",
                "--endpoint",
                &server.url,
            ],
        ];
        for args in args {
            let run = finish(place.totara(args).env("TOTARA_API_KEY", KEY).env("TOTARA_MODEL", ""));
            let all = everything(&place, &run);
            assert!(all.iter().any(|(name, _)| name.ends_with(".jsonl")), "something was recorded: {}", run.err);
            for (name, text) in all {
                assert!(!text.contains("hunter2"), "{args:?}: the key stands in {name}: {text}");
            }
        }
        assert!(!server.asked.lock().expect("requests").is_empty());
    }
}

/// What a command line calls a secret is not kept, whatever records it.
#[test]
fn secrets_of_the_command_line_are_not_recorded() {
    let place = Place::new();
    place.write("mine.yaml", &strategy("checker: partial", "vars: {api_key: none, x_token: none}\n"));
    let set = ["--set", "api_key=hunter2", "--set=x_token=hunter2"];
    let solve = place.run(&[&["solve", "--no-tui", "--strategy", "mine.yaml"], CHANCE, &set].concat());
    assert!(matches!(solve.code, Some(0 | 1 | 3)), "{:?} {}", solve.code, solve.err);
    let eval = place.run(&[&batch("mine.yaml", &["--records"])[..], &set].concat());
    assert_eq!(eval.code, Some(0), "{}", eval.err);
    let mut records = 0;
    for (name, text) in everything(&place, &eval) {
        records += usize::from(name.ends_with(".jsonl"));
        assert!(!text.contains("hunter2"), "{name}: {text}");
    }
    assert!(records >= 3, "two records and the results");
}
