//! Strategies made of several files: what is taken from where, and which file a message names.

use crate::strategy::fault::{Fault, Severity};
use crate::strategy::parse::{Parsed, parse_file_with};
use crate::strategy::{Count, Strategy};
use std::path::Path;

/// Writes files into a folder and reads the first.
fn read(files: &[(&str, &str)], set: &[(&str, &str)]) -> (tempfile::TempDir, Parsed) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let set: Vec<(String, String)> = set.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    let parsed = parse_file_with(&folder.path().join(files[0].0), &set, None).unwrap();
    (folder, parsed)
}

fn good(files: &[(&str, &str)], set: &[(&str, &str)]) -> Strategy {
    let (_folder, parsed) = read(files, set);
    let shown: Vec<String> = parsed.faults.iter().map(Fault::to_string).collect();
    parsed.strategy.unwrap_or_else(|| panic!("{}", shown.join("\n")))
}

/// The errors as `file:line: message`, with bare file names.
fn errors(files: &[(&str, &str)], set: &[(&str, &str)]) -> Vec<String> {
    let (_folder, parsed) = read(files, set);
    let errors = parsed.faults.iter().filter(|fault| fault.severity == Severity::Error);
    let name = |file: &str| Path::new(file).file_name().unwrap().to_string_lossy().into_owned();
    errors.map(|fault| format!("{}:{}: {}", name(&fault.file), fault.span.line, fault.message)).collect()
}

const BASE: &str = "version: 1\nname: base\nabout: a base\ntask: sorting\nvars: {width: 3}\nsearch:\n  policy: bfs\n  depth: 4\n  \
                    keep: \"{{ vars.width }}\"\ngenerate:\n  kind: likeliest\n  n: 2\n  prompt: \"Sort {{ puzzle.input }}\"\n\
                    budget: {tokens: 100}\n";

#[test]
fn a_strategy_extends_another_and_changes_what_it_names() {
    let own = "extends: base.yaml\nname: mine\nsearch: {depth: 9}\nbudget: {seconds: 3}\n";
    let strategy = good(&[("own.yaml", own), ("base.yaml", BASE)], &[]);
    assert_eq!((strategy.name.as_str(), strategy.about.as_str()), ("mine", "a base"));
    assert_eq!((&strategy.search.depth, &strategy.search.keep), (&Count::Number(9), &Count::Number(3)));
    assert_eq!((strategy.budget.tokens, strategy.budget.seconds), (Some(100), Some(3.0)));
    assert_eq!(strategy.parts.len(), 1, "the record has the other file too");

    let built_in = good(&[("own.yaml", "extends: tot-bfs\ntask: sorting\nname: wider\nsearch: {keep: 4}\n")], &[]);
    assert_eq!((&built_in.search.keep, built_in.name.as_str()), (&Count::Number(4), "wider"));
}

#[test]
fn messages_name_the_file_in_which_the_fault_stands() {
    let base = BASE.replace("depth: 4", "depht: 4");
    assert_eq!(
        errors(&[("own.yaml", "extends: base.yaml\nname: mine\n"), ("base.yaml", &base)], &[]),
        ["base.yaml:8: unknown key `depht` under `search`; did you mean `depth`?"]
    );
    let twice = BASE.replace("  depth: 4\n", "  depth: 4\n  depth: 5\n");
    let found = errors(&[("own.yaml", "extends: base.yaml\nname: mine\n"), ("base.yaml", &twice)], &[]);
    assert_eq!(found, ["base.yaml:9: key `depth` stands twice: on line 8 and on line 9; keep one of them"]);
}

#[test]
fn included_keys_are_added_and_one_in_two_places_names_both() {
    let own = "include: [budget.yaml, more/score.yaml]\nversion: 1\nname: mine\ntask: sorting\n\
               search: {policy: bfs}\ngenerate: {prompt: \"{{ puzzle.input }}\"}\n";
    let files =
        [("own.yaml", own), ("budget.yaml", "budget: {tokens: 5}\n"), ("more/score.yaml", "evaluate: [logprob]\n")];
    let strategy = good(&files, &[]);
    assert_eq!((strategy.budget.tokens, strategy.evaluate.len()), (Some(5), 1));

    let clash = [files[0], ("budget.yaml", "search: {keep: 1, policy: dfs}\n"), files[2]];
    let found = errors(&clash, &[]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("budget.yaml:1: key `policy` stands twice: on line 5 of "), "{found:?}");
    assert!(found[0].contains("own.yaml and on line 1 of ") && found[0].contains("budget.yaml"), "{found:?}");
}

#[test]
fn paths_stay_inside_and_circles_are_refused() {
    let found = |own: &str| errors(&[("own.yaml", own), ("a.yaml", "extends: own.yaml\n")], &[]).join("\n");
    assert!(found("include: ../x.yaml\n").contains("leaves the strategy's folder"));
    assert!(found("extends: /etc/x.yaml\n").contains("leaves the strategy's folder"));
    assert!(found("extends: nothing.yaml\n").contains("no built-in strategy `nothing.yaml`"));
    assert!(found("include: nothing.yaml\n").contains("no file `nothing.yaml`"));
    assert!(found("extends: a.yaml\n").contains("leads back to itself"));
    assert!(found("extends: [a]\n").contains("named by a text"));
    assert!(found("extends: tot-bsf\n").contains("did you mean `tot-bfs`?"));
}

#[test]
fn variables_have_defaults_and_are_set() {
    let own = BASE
        .replace("vars: {width: 3}", "vars: {width: 3, style: terse, limit: 0.5}")
        .replace("Sort {{ puzzle.input }}", "Be {{ vars.style }}: {{ puzzle.input }}")
        .replace("depth: 4", "depth: 4\n  prune: \"score < {{ vars.limit }}\"");
    let strategy = good(&[("own.yaml", &own)], &[("width", "7"), ("limit", "0.25")]);
    assert_eq!(strategy.search.keep, Count::Number(7));
    assert_eq!(strategy.search.prune.unwrap().text(), "score < 0.25");
    assert_eq!(strategy.vars["style"], "terse");
    let wrong = |set: &[(&str, &str)]| errors(&[("own.yaml", &own)], set).join("\n");
    assert!(wrong(&[("widht", "7")]).contains("--set widht=7: there is no variable `widht`; did you mean `width`?"));
    assert!(wrong(&[("width", "many")]).contains("`keep` is a whole number of at least 1, not `many`"));
    assert!(wrong(&[("limit", "best or 1")]).contains("is no number"), "no code through a variable");
    let unknown = own.replace("vars.width", "vars.wide");
    assert!(errors(&[("own.yaml", &unknown)], &[]).join("\n").contains("no variable `wide`; did you mean"));
}

#[test]
fn a_variable_that_nothing_uses_is_told() {
    let own = BASE.replace("vars: {width: 3}", "vars: {width: 3, spare: 1}");
    let (_folder, parsed) = read(&[("own.yaml", &own)], &[]);
    assert!(parsed.faults.iter().any(|f| f.message.contains("variable `spare` is not used")), "{:?}", parsed.faults);
    assert!(!parsed.faults.iter().any(|f| f.message.contains("variable `width`")));
}
