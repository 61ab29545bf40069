//! Tests over whole strategy files: what is refused and where, what is kept as typed, and what is shipped.

use super::fault::{Fault, Severity};
use super::parse::{Parsed, parse};
use super::source::Home;
use super::*;
use crate::task;
use proptest::prelude::*;
use serde_json::Value as Json;

const GOOD: &str = r#"version: 1
name: mine
about: a test
task: sorting
search: {policy: bfs, depth: "{{ puzzle.len }}", keep: 2, prune_below: 0.1}
generate:
  kind: likeliest
  n: 3
  prompt: |
    Sort {{ puzzle.input }}
  constrain: puzzle
  stop: ["\n"]
evaluate:
  - checker: partial
budget: {tokens: 20000, thoughts: 500, seconds: 60}
"#;

fn read(text: &str) -> Parsed {
    parse(text, "f.yaml", &Home::BuiltIn)
}

fn shown(faults: &[Fault]) -> String {
    faults.iter().map(Fault::to_string).collect::<Vec<_>>().join("\n")
}

/// The good file with one line replaced.
fn with(line: &str, replacement: &str) -> String {
    assert!(GOOD.contains(line), "{line}");
    GOOD.replace(line, replacement)
}

/// Exactly one error, at this line and column, with this text in it.
fn check(text: &str, line: usize, column: usize, part: &str) {
    let errors: Vec<Fault> = read(text).faults.into_iter().filter(|f| f.severity == Severity::Error).collect();
    let found = shown(&errors);
    assert_eq!(errors.len(), 1, "{found}");
    assert!(errors[0].message.contains(part), "{found}");
    assert_eq!((errors[0].span.line, errors[0].span.column), (line, column), "{found}");
}

#[test]
fn offload_is_read_with_its_defaults_and_its_mistakes_are_located() {
    use crate::offload::{Method, Options};
    let text = |line: &str| {
        format!(
            "version: 1\nname: x\ntask: sorting\nsearch: {{policy: bfs}}\ngenerate: {{kind: random, n: 2}}\nbudget: {{tokens: 9}}\n{line}\n"
        )
    };
    let read = |line: &str| parse(&text(line), "f.yaml", &Home::BuiltIn);
    assert_eq!(read("").strategy.unwrap().offload, None);
    let found = read("offload: {method: infinigen-tree, alpha: 5, max_fetch: 0.1, capacity: 4MiB, whole_layers: 3}");
    let expected = Options {
        method: Method::InfinigenTree,
        alpha: 5.0,
        max_fetch: 0.1,
        capacity: Some("4MiB".parse().unwrap()),
        whole_layers: Some(3),
        ..Options::default()
    };
    assert_eq!(found.strategy.unwrap().offload, Some(expected), "{:?}", found.faults);
    for (line, part) in [
        ("offload: {alpha: 4}", "method"),
        ("offload: {method: infinigen-forest}", "infinigen-tree"),
        ("offload: {method: oracle}", "method"),
        ("offload: {method: full, max_fetch: 2}", "from 0.001 to 1"),
        ("offload: {method: full, capacity: much}", "MiB"),
        ("offload: {method: full, rato: 1}", "`ratio`"),
    ] {
        let faults = read(line).faults;
        assert!(faults.iter().any(|f| f.message.contains(part) && f.span.line == 7), "{line}: {faults:?}");
    }
}

#[test]
fn the_core_keys_are_read() {
    let parsed = read(GOOD);
    assert_eq!(shown(&parsed.faults), "");
    let strategy = parsed.strategy.unwrap();
    assert_eq!(strategy.search.depth, Count::Template("{{ puzzle.len }}".into()));
    assert_eq!((strategy.search.keep, strategy.search.prune_below), (Count::Number(2), 0.1));
    assert_eq!(strategy.generate.prompt.text, "Sort {{ puzzle.input }}\n");
    assert_eq!(strategy.generate.constrain, Constrain::Puzzle);
    assert_eq!(strategy.generate.stop, ["\n"]);
    assert_eq!(strategy.generate.thought, Thought::Step);
    assert_eq!(strategy.evaluate, [Evaluator::Checker { partial: true }]);
    assert_eq!(strategy.budget, Budget { tokens: Some(20000), thoughts: Some(500), seconds: Some(60.0), kv: None });
    assert_eq!(strategy.text, GOOD);
}

#[test]
fn unknown_keys_are_errors_with_line_column_caret_and_the_nearest_name() {
    let text = "version: 1\nname: x\nsearch:\n  policy: bfs\n  depht: 3\n  branch: 4\nbudget:\n  max_tokens: 500\n\
                # one level too little\nkeep: 2\ngenerate: {kind: random}\n";
    let parsed = read(text);
    assert!(parsed.strategy.is_none());
    let errors: Vec<Fault> = parsed.faults.into_iter().filter(|f| f.severity == Severity::Error).collect();
    assert_eq!(
        shown(&errors),
        "f.yaml:5:3: unknown key `depht` under `search`; did you mean `depth`?\n  5 |   depht: 3\n    |   ^^^^^\n\
         f.yaml:6:3: unknown key `branch` under `search`; proposals for each thought are `n` under `generate`\n  \
         6 |   branch: 4\n    |   ^^^^^^\n\
         f.yaml:8:3: unknown key `max_tokens` under `budget`; did you mean `tokens`? (`max_tokens` itself belongs under \
         `generate`)\n  8 |   max_tokens: 500\n    |   ^^^^^^^^^^\n\
         f.yaml:10:1: `keep` does not belong at the top level; it belongs under `search`\n  10 | keep: 2\n     | ^^^^"
    );
}

#[test]
fn duplicate_keys_name_both_lines() {
    check(&with("  n: 3\n", "  n: 3\n  n: 4\n"), 9, 3, "key `n` stands twice: on line 8 and on line 9");
}

#[test]
fn texts_keep_what_was_typed() {
    let text = with("name: mine", "name: no").replace("stop: [\"\\n\"]", "stop: [\"y\", n, null, ~, 1e3, 0755, 1_000]");
    let strategy = read(&text).strategy.unwrap();
    assert_eq!(strategy.name, "no");
    assert_eq!(strategy.generate.stop, ["y", "n", "null", "~", "1e3", "0755", "1_000"]);
    let value = "  - value: {prompt: \"{{ thought }}\", labels: {yes: 1, no: 0, on: 0.5}}";
    match &read(&with("  - checker: partial", value)).strategy.unwrap().evaluate[0] {
        Evaluator::Value { labels, .. } => assert_eq!(labels.keys().collect::<Vec<_>>(), ["no", "on", "yes"]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_value_has_labels_or_a_scale() {
    let value =
        |keys: &str| with("  - checker: partial", &format!("  - value: {{prompt: \"{{{{ thought }}}}\", {keys}}}"));
    match &read(&value("scale: [0, 10]")).strategy.unwrap().evaluate[0] {
        Evaluator::Value { labels, scale, .. } => assert_eq!((labels.len(), *scale), (0, Some((0.0, 10.0)))),
        other => panic!("{other:?}"),
    }
    for bad in ["n: 1", "labels: {a: 1}, scale: [0, 1]", "scale: [1, 0]", "scale: [0, .nan]", "scale: 10", "scale: [1]"]
    {
        assert!(read(&value(bad)).strategy.is_none(), "{bad}");
    }
}

#[test]
fn yes_and_no_have_spellings_that_exclude_each_other() {
    let asked = |keys: &str| {
        with("  - checker: partial", &format!("  - yes_no: {{prompt: \"Is {{{{ thought }}}} right?\"{keys}}}"))
    };
    match &read(&asked("")).strategy.unwrap().evaluate[0] {
        Evaluator::YesNo { yes, no, .. } => assert_eq!((yes.len(), no.len(), yes[0].as_str()), (4, 4, " Yes")),
        other => panic!("{other:?}"),
    }
    let message = |keys: &str| read(&asked(keys)).faults.first().map(|f| f.message.clone()).unwrap_or_default();
    assert_eq!(message(", yes: [no], no: [yes]"), "", "the words are the user's");
    assert!(message(", yes: [Y, Yes]").contains("begins with the answer `Y`"));
    assert!(message(", yes: [a], no: [a]").contains("stands twice"));
    assert!(message(", yes: []").contains("at least one text"));
    assert!(message(", n: 3").contains("unknown key `n` under `evaluate.yes_no`"), "{}", message(", n: 3"));
    assert!(read(&with("  - checker: partial", "  - yes_no")).faults[0].message.contains("needs settings"));
    let weighed = asked("").replace("budget:", "score: 0.5 + 0.5 * yes_no\nbudget:");
    assert!(read(&weighed).strategy.is_some());
}

#[test]
fn boolean_fields_take_true_and_false_only_and_say_which() {
    let set = |word: &str| with("  - checker: partial", &format!("  - logprob: {word}"));
    check(&set("yes"), 14, 14, "for `yes` write true");
    check(&set("no"), 14, 14, "for `no` write false");
    check(&set("Off"), 14, 14, "for `Off` write false");
    check(&set("\"true\""), 14, 14, "remove the quotes");
    check(&set("~"), 14, 14, "takes true or false");
    assert_eq!(read(&set("true")).strategy.unwrap().evaluate, [Evaluator::Logprob]);
    assert_eq!(read(&set("false")).strategy.unwrap().evaluate, []);
    assert_eq!(read(&with("  - checker: partial", "  - logprob")).strategy.unwrap().evaluate, [Evaluator::Logprob]);
}

#[test]
fn numbers_are_refused_at_their_line() {
    let set = |line: &str| with("  constrain: puzzle", &format!("  constrain: puzzle\n  {line}"));
    check(&set("temperature: .nan"), 12, 16, "`temperature` is a number of at least 0, not `.nan`");
    check(&set("temperature: NaN"), 12, 16, "not `NaN`");
    check(&set("temperature: -0.1"), 12, 16, "not `-0.1`");
    check(&set("temperature: .inf"), 12, 16, "not `.inf`");
    check(&set("temperature: 1e999"), 12, 16, "not `1e999`");
    check(&set("top_p: 1.5"), 12, 10, "from 0 to 1");
    check(&set("max_tokens: 0"), 12, 15, "at least 1, not `0`");
    check(&set("max_tokens: 1_000"), 12, 15, "write 1000");
    check(&set("max_tokens: 1e3"), 12, 15, "write 1000");
    check(&set("max_tokens: 0755"), 12, 15, "write 755");
    check(&set("max_tokens: \"64\""), 12, 15, "remove the quotes");
    check(&set("max_tokens: ~"), 12, 15, "not `~`");
    check(&set("max_tokens:"), 12, 13, "not nothing");
    check(&set("max_tokens: {{ puzzle.len }}"), 12, 16, "put a template in quotes");
    check(&set("max_tokens: 99999999999999999999"), 12, 15, "whole number");
    check(&set("top_k: 1.5"), 12, 10, "whole number");
}

#[test]
fn names_out_of_a_list_suggest_the_nearest() {
    check(&with("kind: likeliest", "kind: likelyest"), 7, 9, "did you mean `likeliest`?");
    check(&with("policy: bfs", "policy: mtcs"), 5, 18, "did you mean `mcts`?");
    check(&with("task: sorting", "task: sortin"), 4, 7, "did you mean `sorting`?");
    check(&with("checker: partial", "checker: half"), 14, 14, "known: partial, whole");
    check(&with("  - checker: partial", "  - chequer: partial"), 14, 5, "did you mean `checker`?");
    check(&with("  - checker: partial", "  - checker"), 14, 5, "needs a value");
    check(&with("  - checker: partial", "  checker: partial"), 14, 3, "`evaluate` is a list");
    check(&with("  - checker: partial", "  - {checker: partial, logprob: true}"), 14, 24, "one evaluator an item");
    check(&with("constrain: puzzle", "constrain: {regex: \"[\"}"), 11, 22, "no regular expression");
    check(&with("constrain: puzzle", "constrain: {choice: []}"), 11, 23, "at least one text");
    check(&with("version: 1", "version: 2"), 1, 10, "reads version 1");
    check(&with("name: mine\n", ""), 1, 1, "key `name` is missing");
    assert!(read(&with("policy: bfs", "policy: {dfs: {}}")).strategy.is_some());
}

#[test]
fn prompts_are_checked_against_their_inputs() {
    check(&with("{{ puzzle.input }}", "\n    {{ puzzle.inptu }}"), 11, 5, "did you mean `puzzle.input`?");
    check(&with("    Sort {{ puzzle.input }}", "\n\n    {{ puzzle.inptu }}"), 12, 5, "did you mean `puzzle.input`?");
    check(&with("{{ puzzle.input }}", "{{ puzzle.set1 }}"), 10, 5, "there is no input `puzzle.set1`");
    check(&with("{{ puzzle.len }}", "{{ puzzle.lne }}"), 5, 30, "did you mean `puzzle.len`?");
    check(
        &with("prompt: |\n    Sort {{ puzzle.input }}", "prompt: nowhere.txt"),
        9,
        11,
        "no prompt file `nowhere.txt`",
    );
    let any = GOOD.replace("task: sorting\n", "").replace("{{ puzzle.input }}", "{{ puzzle.set1 }}");
    assert!(read(&any).strategy.is_some(), "without a task the inputs of all tasks are known");
}

#[test]
fn faults_in_prompt_files_name_that_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("p.txt"), "one\n{{ wrong }}\n").unwrap();
    std::fs::write(folder.path().join("s.yaml"), with("prompt: |\n    Sort {{ puzzle.input }}", "prompt: p.txt"))
        .unwrap();
    let report = check::check(&[folder.path().join("s.yaml")]);
    assert_eq!((report.errors(), report.exit_code()), (1, 1));
    let text = report.to_string();
    assert!(text.contains("p.txt:2:1: there is no input `wrong`"), "{text}");
    assert!(text.ends_with("1 file, 1 error, 0 warnings"), "{text}");
    let missing = check::check(&[folder.path().join("none.yaml")]);
    assert_eq!(missing.exit_code(), 2);
    assert!(missing.to_string().contains("none.yaml"), "{missing}");
}

#[test]
fn what_looks_unintended_is_a_warning() {
    let warned = |text: &str, line: usize, part: &str| {
        let parsed = read(text);
        assert!(parsed.strategy.is_some(), "{}", shown(&parsed.faults));
        let found = shown(&parsed.faults);
        assert!(parsed.faults.iter().any(|f| f.span.line == line && f.message.contains(part)), "{found}");
    };
    warned(&with("Sort {{ puzzle.input }}", "Sort"), 9, "never shows the puzzle");
    warned(&with("kind: likeliest", "kind: sample"), 8, "all the same");
    warned(&with("policy: bfs", "policy: dfs"), 5, "`keep` is used by bfs, beam and graph only");
    warned(&with("budget: {tokens: 20000, thoughts: 500, seconds: 60}\n", ""), 1, "no `budget`");
    warned(&with("about: a test\n", ""), 2, "no `about`");
}

#[test]
fn without_a_line_about_it_the_first_comment_line_is_shown() {
    let check = |before: &str, about: &str, expected: &str| {
        let text = format!("{before}{}", with("about: a test\n", about));
        assert_eq!(read(&text).strategy.unwrap().about, expected);
    };
    check("#\n\n## Keeps the best  \n# and more\n", "", "Keeps the best");
    check("# Keeps the best\n", "about: said\n", "said");
    check("", "", "");
}

#[test]
fn shipped_strategies_are_clean_found_by_name_and_fit_their_task() {
    for entry in library::list() {
        let parsed = parse(entry.text, entry.name, &Home::BuiltIn);
        assert_eq!(shown(&parsed.faults), "", "{}/{}", entry.task, entry.name);
        assert!(entry.text.starts_with("# "), "the first line says what it does");
        if task::by_name(entry.task).is_err() {
            assert_eq!(parsed.strategy.unwrap().task, None, "{} is for any task", entry.name);
            continue;
        }
        let strategy = library::load(entry.name, entry.task).unwrap();
        assert_eq!((strategy.name.as_str(), strategy.task.as_deref()), (entry.name, Some(entry.task)));
        assert_eq!(library::load(&format!("{}/{}", entry.task, entry.name), entry.task).unwrap(), strategy);
    }
    for task in task::all() {
        for name in ["io", "cot", "tot-bfs", task.default_strategy()] {
            library::load(name, task.name()).unwrap();
        }
    }
    for task in ["sorting", "set-intersection", "game24"] {
        for name in ["tot-dfs", "beam", "best-first", "mcts", "cot-sc", "best-of-n"] {
            library::load(name, task).unwrap();
        }
    }
    for (name, task) in [
        ("got-sorting", "sorting"),
        ("got-set-intersection", "set-intersection"),
        ("got-keyword", "keyword-counting"),
        ("got-doc-merge", "doc-merge"),
        ("tot-game24", "game24"),
    ] {
        assert_eq!(library::load(name, task).unwrap().task.as_deref(), Some(task), "{name}");
        assert!(library::show(name, None).unwrap().contains(&format!("task: {task}")), "{name}");
    }
    let message = library::load("tot-bsf", "sorting").unwrap_err().to_string();
    assert!(message.contains("did you mean `tot-bfs`?"), "{message}");
    assert!(
        library::load("set-intersection/io", "sorting")
            .unwrap_err()
            .to_string()
            .contains("for the task set-intersection")
    );
    assert!(library::load("./none.yaml", "sorting").unwrap_err().to_string().contains("none.yaml"));
}

#[test]
fn policies_have_settings_of_their_own() {
    let policy = |text: &str| {
        let parsed = read(&with("policy: bfs", &format!("policy: {text}")));
        parsed.strategy.map(|strategy| strategy.search.policy).ok_or(shown(&parsed.faults))
    };
    let priority = |text: &str| Expression::new(text, Scope::Thought).unwrap();
    assert_eq!(policy("beam"), Ok(Policy::Beam { likelihood: 0.0 }));
    assert_eq!(policy("{beam: {likelihood: 0.3}}"), Ok(Policy::Beam { likelihood: 0.3 }));
    assert_eq!(policy("best-first"), Ok(Policy::BestFirst { priority: priority("score"), width: 1 }));
    assert_eq!(
        policy("{best-first: {priority: \"score - 0.01 * depth\", width: 3}}"),
        Ok(Policy::BestFirst { priority: priority("score - 0.01 * depth"), width: 3 })
    );
    assert_eq!(
        policy("{mcts: {c: 1.4, simulations: 50, rollout: true}}"),
        Ok(Policy::Mcts(Mcts { c: 1.4, simulations: 50, rollout: true }))
    );
    let refused = |text: &str, part: &str| {
        let found = policy(text).unwrap_err();
        assert!(found.contains(part), "{found}");
    };
    refused("{mcts: {C: 1}}", "did you mean `c`?");
    refused("{mcts: {c: .nan}}", "`c` is a number");
    refused("{mcts: {rollout: yes}}", "for `yes` write true");
    refused("{mcts: {simulations: 0}}", "at least 1");
    refused("{bfs: {keep: 1}}", "no settings of its own");
    refused("{best-first: {priority: \"scor\"}}", "did you mean `score`?");
    let graph = |operations: &str| format!("{{graph: {{operations: {operations}}}}}");
    refused(&graph("[generate]"), "write `thought: answer`");
    refused(&graph("[{split: 3}, generate]"), "power of two");
    refused(&graph("[{split: 4}, generate, aggregate]"), "2 parts are left in the end");
    refused(&graph("[{split: 2}, generate, aggregate, aggregate]"), "nothing to merge");
    refused(&graph("[generate, {split: 2}]"), "`split` is the first operation");
    refused(&graph("[{split: 2}, improve]"), "no solution to merge or improve yet");
    refused(&graph("[]"), "begin with `generate`");
    refused(&graph("[generate, improv]"), "did you mean `improve`?");
    refused("graph", "`operations` is missing");
    refused("best-of-n", "write `thought: answer`");
}

#[test]
fn rules_are_expressions_with_known_names() {
    let rule = |line: &str| with("prune_below: 0.1}", &format!("{line}}}"));
    let strategy = read(&rule("prune: score < 0.5 * best, accept: errors == 0, stop: thoughts > 9")).strategy.unwrap();
    assert_eq!(strategy.search.prune.unwrap().text(), "score < 0.5 * best");
    assert_eq!((strategy.search.accept.is_some(), strategy.search.stop.is_some()), (true, true));
    check(&rule("prune: scor < 1"), 5, 66, "did you mean `score`?");
    check(&rule("stop: score < 1"), 5, 65, "known here: best, deepest, open, thoughts, tokens");
    check(&rule("prune: \"{{ score }}\""), 5, 66, "without braces");
    let score = |text: &str| with("budget:", &format!("score: {text}\nbudget:"));
    assert!(read(&score("0.5 * checker")).strategy.is_some());
    check(&score("0.5 * vote"), 15, 8, "there is no such evaluator");
    check(&score("0.5 * votes"), 15, 8, "did you mean `vote`?");
}

#[test]
fn levels_change_what_is_made_at_the_first_levels() {
    let levels = |text: &str| with("budget:", &format!("levels: {text}\nbudget:"));
    let strategy = read(&levels("[{generate: {n: 7}}, {keep: 5}]")).strategy.unwrap();
    assert_eq!(strategy.generate_at(1).n, Count::Number(7));
    assert_eq!(strategy.generate_at(1).stop, ["\n"], "all else is as everywhere");
    assert_eq!([strategy.generate_at(2), strategy.generate_at(9)], [&strategy.generate; 2]);
    assert_eq!(strategy.levels[1].keep, Some(Count::Number(5)));
    check(&levels("[{generat: {n: 7}}]"), 15, 11, "did you mean `generate`?");
    check(&levels("[{generate: {m: 7}}]"), 15, 22, "unknown key `m`");
    check(&levels("[{}, {}]").replace("\"{{ puzzle.len }}\"", "1"), 15, 1, "level 2 is never reached");
}

#[test]
fn commands_need_leave() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.yaml");
    std::fs::write(&path, with("  - checker: partial", "  - command: [python3, score.py]")).unwrap();
    let load = |allow_commands| {
        load_with(path.to_str().unwrap(), "sorting", &LoadOptions { allow_commands, ..LoadOptions::default() })
    };
    let message = load(false).unwrap_err().to_string();
    assert!(message.contains("runs the program `python3`") && message.contains("--allow-commands"), "{message}");
    assert_eq!(
        load(true).unwrap().evaluate,
        [Evaluator::Command { run: vec!["python3".into(), "score.py".into()], seconds: 10.0 }]
    );
    check(&with("  - checker: partial", "  - command: python3 score.py"), 14, 14, "no shell reads it");
    check(&with("  - checker: partial", "  - command: {seconds: 1}"), 14, 14, "`run` is missing");
}

#[test]
fn a_level_that_does_not_show_what_it_goes_on_from_is_a_warning() {
    let graph = "version: 1\nname: g\nabout: a\ntask: sorting\nsearch:\n  policy: {graph: {operations: [{split: 2}, generate, aggregate, improve]}}\n\
        generate: {thought: answer, prompt: \"{{ puzzle.input }} {{ thought }}\"}\nbudget: {tokens: 9}\n";
    let warned = |text: &str| shown(&read(text).faults);
    assert!(warned(graph).contains("level 3 never shows `thoughts`"), "{}", warned(graph));
    assert!(!warned(graph).contains("level 4"), "{}", warned(graph));
    let blind = graph.replace("{{ thought }}", "{{ thoughts }}");
    assert!(warned(&blind).contains("level 4 never shows `thought`") && !warned(&blind).contains("level 3"));
    let levels = "version: 1\nname: l\nabout: a\ntask: sorting\nsearch: {policy: bfs, depth: 2}\n\
        generate: {thought: answer, prompt: \"{{ puzzle.input }}\"}\nlevels:\n  - {}\n  - generate: {n: 1}\nbudget: {tokens: 9}\n";
    assert!(warned(levels).contains("level 2 never shows `thought`"), "{}", warned(levels));
    assert_eq!(warned(&levels.replace("puzzle.input }}", "puzzle.input }} {{ thought }}")), "");
}

const STAGED: &str = r#"version: 1
name: staged
about: two stages
task: sorting
search: {policy: bfs, keep: 2}
generate:
  kind: likeliest
  prompt: "{{ puzzle.input }}"
evaluate:
  - checker: partial
stages:
  - search: {depth: 2}
    generate: {n: 4}
  - search: {policy: dfs, depth: "{{ puzzle.len }}"}
    evaluate: [logprob]
budget: {tokens: 100000, kv: 1MiB}
"#;

#[test]
fn stages_take_what_they_do_not_name_from_above() {
    let parsed = read(STAGED);
    let strategy = parsed.strategy.unwrap_or_else(|| panic!("{}", shown(&parsed.faults)));
    assert_eq!(shown(&parsed.faults), "");
    assert_eq!(strategy.stages.len(), 1);
    assert_eq!(
        (strategy.search_at(2).policy.clone(), strategy.search_at(3).policy.clone()),
        (Policy::Bfs, Policy::Dfs)
    );
    assert_eq!((&strategy.generate_at(1).n, &strategy.generate_at(3).n), (&Count::Number(4), &Count::Number(1)));
    assert_eq!(strategy.evaluate_at(2), [Evaluator::Checker { partial: true }]);
    assert_eq!(strategy.evaluate_at(3), [Evaluator::Logprob]);
    assert_eq!((strategy.judged_as(1), strategy.judged_as(2)), (1, 1));
    assert_eq!(strategy.judged_as(3), strategy.judged_as(9));
    assert_eq!((strategy.staged_levels(), strategy.budget.kv), (2, Some(1 << 20)));
    let schema = schema::schema();
    assert_eq!(validate(&schema, &schema, &json_of(STAGED), ""), [] as [String; 0]);
    assert!(estimate::estimate(&strategy).is_some_and(|found| found.thoughts > 4));
}

#[test]
fn stages_that_cannot_be_are_refused_at_their_place() {
    let check = |from: &str, to: &str, line: usize, part: &str| {
        assert!(STAGED.contains(from), "{from}");
        let parsed = read(&STAGED.replacen(from, to, 1));
        assert!(parsed.strategy.is_none(), "{to}");
        let fault = parsed.faults.iter().find(|fault| fault.message.contains(part));
        let fault = fault.unwrap_or_else(|| panic!("{part} in {}", shown(&parsed.faults)));
        assert_eq!(fault.span.line, line, "{fault}");
    };
    check("{depth: 2}", "{depth: 2, stop: \"1 > 0\"}", 14, "stage 2 is never reached: `1 > 0` always holds");
    check("{depth: 2}", "{depth: 2, prune: \"true\"}", 14, "every thought before it is pruned");
    check(
        "search: {depth: 2}",
        "search: {policy: self-consistency}",
        14,
        "stage 2 is never reached: the stage before it",
    );
    check("policy: dfs", "policy: mcts", 14, "is bfs, dfs, beam or best-first");
    check("{depth: 2}", "{depth: \"{{ puzzle.len }}\"}", 12, "only the last stage's `depth`");
    check("generate: {n: 4}", "generat: {n: 4}", 13, "did you mean `generate`?");
    check("budget:", "levels: [{keep: 1}]\nbudget:", 16, "has `levels` or `stages`");
    check("kv: 1MiB", "kv: 50%", 16, "no percentage");
    check("kv: 1MiB", "kv: much", 16, "`kv`: size `much`");
    let one = STAGED.replace("  - search: {policy: dfs, depth: \"{{ puzzle.len }}\"}\n    evaluate: [logprob]\n", "");
    assert!(shown(&read(&one).faults).contains("one stage alone"), "{}", shown(&read(&one).faults));
    let bare = STAGED.replace("search: {policy: bfs, keep: 2}\n", "");
    assert!(shown(&read(&bare).faults).contains("`policy` is missing"), "{}", shown(&read(&bare).faults));
}

/// docs/strategies.md: every example is a whole strategy that has no fault, and every key and value has its place there.
#[test]
fn the_documentation_is_right_and_complete() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/strategies.md")).unwrap();
    let mut blocks = 0;
    for block in text.split("```yaml\n").skip(1) {
        let yaml = block.split("```").next().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("example.yaml");
        std::fs::write(&path, yaml).unwrap();
        let report = check::check(&[&path]);
        assert_eq!((report.errors(), report.warnings()), (0, 0), "{report}\n{yaml}");
        blocks += 1;
    }
    assert!(blocks >= 7, "{blocks}");
    for key in keys::KEYS {
        assert!(
            text.contains(&format!("`{}`", key.name))
                || text.contains(&format!("`{}:", key.name))
                || text.contains(&format!("{{{}:", key.name)),
            "{key:?}"
        );
    }
    for (name, _) in expression::RUN.iter().chain(expression::THOUGHT).chain(expression::PARTS) {
        assert!(text.contains(&format!("`{name}`")), "{name}");
    }
    for (name, _) in parse::POLICIES {
        assert!(text.contains(&format!("| `{name}` |")), "{name}");
    }
}

/// docs/tasks.md: every example is a whole task or strategy that has no fault, and every key has its place there.
#[test]
fn the_documentation_of_tasks_is_right_and_complete() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/tasks.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let blocks: Vec<&str> = text.split("```yaml\n").skip(1).map(|block| block.split("```").next().unwrap()).collect();
    let file = |yaml: &str| {
        // A first line such as `# words.yaml` names the file, for those that refer to it.
        let name = yaml.lines().next().and_then(|line| line.strip_prefix("# ")).unwrap_or("example.yaml");
        folder.path().join(name)
    };
    for yaml in &blocks {
        std::fs::write(file(yaml), yaml).unwrap();
    }
    for &yaml in &blocks {
        let path = file(yaml);
        let report = check::check(&[&path]);
        assert_eq!((report.errors(), report.warnings()), (0, 0), "{report}\n{yaml}");
        if own::is_task(yaml) {
            let faults = validate(&schema::task_schema(), &schema::task_schema(), &json_of(yaml), "");
            assert_eq!(faults, [] as [String; 0], "{yaml}");
        }
    }
    assert!(blocks.len() >= 3, "{}", blocks.len());
    for key in keys::TASK_KEYS {
        assert!(text.contains(&format!("`{}`", key.name)), "{key:?}");
    }
}

#[test]
fn task_files_validate_against_their_schema_and_broken_ones_do_not() {
    let schema = schema::task_schema();
    let starter = include_str!("../../strategies/task.yaml");
    assert_eq!(validate(&schema, &schema, &json_of(starter), ""), [] as [String; 0]);
    for (from, to) in [
        ("name: sums", "nmae: sums"),
        ("scorer: {errors:", "scorer: {error:"),
        ("examples:", "examples: []\nexample:"),
        ("version: 1", "version: 2"),
        ("strategy: io", "state: other"),
    ] {
        let broken = starter.replacen(&format!("\n{from}"), &format!("\n{to}"), 1);
        assert_ne!(broken, starter, "{from}");
        assert!(!validate(&schema, &schema, &json_of(&broken), "").is_empty(), "{to}");
    }
}

#[test]
fn shipped_prompts_render_for_their_puzzles_with_the_fixed_part_first() {
    for entry in library::list() {
        // Those for any task are rendered for a task of a user's own, in `own/tests.rs`.
        let Ok(task) = task::by_name(entry.task) else { continue };
        let strategy = library::load(entry.name, entry.task).unwrap();
        let rendered = |puzzle: &dyn task::Puzzle| {
            let mut inputs = strategy.inputs(puzzle.inputs());
            for name in ["path", "thought"] {
                inputs[name] = Json::from("");
            }
            prompt::render(&strategy.generate.prompt, &inputs, 16).unwrap()
        };
        let size = match entry.task {
            "sorting" | "set-intersection" => 8,
            _ => task.default_size(),
        };
        let (first, second) = (task.generate(size, 1).unwrap(), task.generate(size, 2).unwrap());
        let (a, b) = (rendered(&*first), rendered(&*second));
        let common = a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count();
        // Documents to merge are longer than any example of merging them.
        let share = if entry.task == "doc-merge" { 1 } else { 6 };
        assert!(
            common * 10 > a.len() * share,
            "{}/{}: {common} of {} bytes are fixed\n{a}",
            entry.task,
            entry.name,
            a.len()
        );
        for count in
            [&strategy.search.depth, &strategy.search.keep, &strategy.generate.n, &strategy.generate.max_tokens]
        {
            assert!(prompt::count(count, &strategy.inputs(first.inputs())).unwrap() >= 1);
        }
        rendered(&*task.parse(task.example()).unwrap());
    }
}

#[test]
fn the_sorting_prompt_has_one_token_a_digit_and_ends_where_the_answer_begins() {
    let strategy = library::load("tot-bfs", "sorting").unwrap();
    let render = |input: &str, examples: usize| {
        let puzzle = task::by_name("sorting").unwrap().parse(input).unwrap();
        prompt::render(&strategy.generate.prompt, &puzzle.inputs(), examples).unwrap()
    };
    let compact = render("9 4 5 8 0 7 3 0", 16);
    assert!(
        compact.starts_with("Sort the list of numbers in ascending order. Keep duplicates.\n\nInput: "),
        "{compact}"
    );
    assert!(compact.ends_with("\nInput: 94580730\nOutput: "), "{compact:?}");
    assert_eq!(compact.matches("Input: ").count(), 17);
    let list = render("42 7 -3", 2);
    assert!(list.ends_with("\nInput: 42, 7, -3\nOutput:"), "{list:?}");
    assert_eq!(list.matches("\nOutput: ").count(), 2, "{list}");
    assert_eq!(
        render("1 2", 0),
        "Sort the list of numbers in ascending order. Keep duplicates.\n\nInput: 12\nOutput: "
    );
}

#[test]
fn the_starter_is_clean_and_never_overwrites() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new.yaml");
    library::new_file(&path).unwrap();
    let report = check::check(&[&path]);
    assert_eq!((report.errors(), report.warnings(), report.exit_code()), (0, 0, 0), "{report}");
    assert!(library::new_file(&path).unwrap_err().to_string().contains("there already"));
    assert!(library::load(path.to_str().unwrap(), "sorting").is_ok());
    assert!(
        library::load(path.to_str().unwrap(), "set-intersection")
            .unwrap_err()
            .to_string()
            .contains("is for the task sorting")
    );
}

#[test]
fn shipped_strategies_validate_against_the_schema_and_broken_ones_do_not() {
    let schema = schema::schema();
    let starter = include_str!("../../strategies/starter.yaml");
    for text in library::list().iter().map(|entry| entry.text).chain([starter, GOOD]) {
        let faults = validate(&schema, &schema, &json_of(text), "");
        assert_eq!(faults, [] as [String; 0], "{text}");
    }
    for (from, to) in [
        ("keep: 2", "kep: 2"),
        ("n: 3", "n: 0"),
        ("prune_below: 0.1", "prune_below: 2"),
        ("bfs", "mtcs"),
        ("policy: bfs", "policy: {mcts: {c: -1}}"),
        ("policy: bfs", "policy: {dfs: {c: 1}}"),
        ("name: mine\n", ""),
    ] {
        assert!(!validate(&schema, &schema, &json_of(&with(from, to)), "").is_empty(), "{to}");
    }
}

/// A file as an editor's YAML 1.2 reader sees it.
fn json_of(text: &str) -> Json {
    yaml::load(text).0.unwrap().to_json()
}

/// A validator for the part of JSON Schema that `schema.rs` uses; an unknown keyword fails the test.
fn validate(root: &Json, schema: &Json, value: &Json, at: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (keyword, rule) in schema.as_object().unwrap() {
        let ok = match keyword.as_str() {
            "$schema" | "title" | "description" | "$defs" => true,
            "$ref" => {
                let name = rule.as_str().unwrap().strip_prefix("#/$defs/").unwrap();
                faults.extend(validate(root, &root["$defs"][name], value, at));
                true
            }
            "type" => {
                let types: Vec<&str> = rule
                    .as_array()
                    .map_or_else(|| vec![rule.as_str().unwrap()], |a| a.iter().map(|t| t.as_str().unwrap()).collect());
                types.iter().any(|name| match *name {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "boolean" => value.is_boolean(),
                    "null" => value.is_null(),
                    "integer" => value.is_i64(),
                    "number" => value.is_number(),
                    other => panic!("type {other}"),
                })
            }
            "const" => value == rule,
            "enum" => rule.as_array().unwrap().contains(value),
            "minimum" => value.as_f64().is_none_or(|v| v >= rule.as_f64().unwrap()),
            "maximum" => value.as_f64().is_none_or(|v| v <= rule.as_f64().unwrap()),
            "minItems" => value.as_array().is_none_or(|v| v.len() as u64 >= rule.as_u64().unwrap()),
            "maxItems" => value.as_array().is_none_or(|v| v.len() as u64 <= rule.as_u64().unwrap()),
            "minProperties" => value.as_object().is_none_or(|v| v.len() as u64 >= rule.as_u64().unwrap()),
            "maxProperties" => value.as_object().is_none_or(|v| v.len() as u64 <= rule.as_u64().unwrap()),
            "pattern" => value.as_str().is_none_or(|v| regex::Regex::new(rule.as_str().unwrap()).unwrap().is_match(v)),
            "oneOf" => {
                let fits = |option: &&Json| validate(root, option, value, at).is_empty();
                rule.as_array().unwrap().iter().filter(fits).count() == 1
            }
            "anyOf" => rule.as_array().unwrap().iter().any(|option| validate(root, option, value, at).is_empty()),
            "required" => rule.as_array().unwrap().iter().all(|name| value.get(name.as_str().unwrap()).is_some()),
            "items" => {
                for item in value.as_array().into_iter().flatten() {
                    faults.extend(validate(root, rule, item, at));
                }
                true
            }
            "properties" => {
                for (name, rule) in rule.as_object().unwrap() {
                    if let Some(value) = value.get(name) {
                        faults.extend(validate(root, rule, value, &format!("{at}.{name}")));
                    }
                }
                true
            }
            "additionalProperties" => value.as_object().into_iter().flatten().all(|(name, value)| {
                let known = schema["properties"].get(name).is_some();
                known || (rule.is_object() && validate(root, rule, value, at).is_empty())
            }),
            other => panic!("keyword {other}"),
        };
        if !ok {
            faults.push(format!("{at}: {keyword} {rule} refuses {value}"));
        }
    }
    faults
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Cuts, doubles and overwrites parts of a good file.
    #[test]
    fn mutated_files_never_panic_and_faults_stay_inside_the_file(
        edits in prop::collection::vec((0usize..600, 0usize..40, "[-:{}\\[\\]&*!|>'\"%@`#,? \n\tnoa0.{}%\u{e9}\u{feff}]{0,6}"), 1..6)
    ) {
        let mut text: Vec<char> = GOOD.chars().collect();
        for (at, len, insert) in edits {
            let at = at.min(text.len());
            let end = (at + len).min(text.len());
            text.splice(at..end, insert.chars());
        }
        let text: String = text.into_iter().collect();
        let parsed = read(&text);
        prop_assert!(parsed.strategy.is_some() || !parsed.faults.is_empty());
        for fault in &parsed.faults {
            prop_assert!(fault.span.line >= 1 && fault.span.line <= text.lines().count() + 2, "{}", fault);
            let _ = fault.to_string();
        }
    }

    #[test]
    fn any_text_is_read_without_panic(text in "\\PC{0,200}") {
        read(&text);
    }

    #[test]
    fn any_template_is_rendered_without_panic(text in "[{}%# a-z.'\"*~|\\[\\]0-9\n-]{0,80}") {
        let source = PromptSource { origin: "t".into(), text };
        let inputs = serde_json::json!({"puzzle": {"len": 2, "input": "x"}});
        let _ = prompt::render(&source, &inputs, 4);
        let _ = prompt::count(&Count::Template(source.text.clone()), &inputs);
    }
}
