//! What stands in a file's fields: kept as typed, or refused at its place.

use super::*;
use proptest::prelude::*;

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
    for endless in ["inf", ".inf"] {
        let found = read(&format!("offload: {{method: infinigen, alpha: {endless}}}"));
        assert_eq!(found.strategy.unwrap().offload.unwrap().alpha, f32::INFINITY, "as --offload-alpha {endless}");
    }
    for (line, part) in [
        ("offload: {method: full, alpha: nan}", "alpha"),
        ("offload: {method: full, alpha: \"inf\"}", "alpha"),
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
fn a_number_that_is_too_large_is_told_the_bound() {
    let check = |from: &str, to: &str, part: &str| {
        assert!(GOOD.contains(from), "{from}");
        let faults = read(&GOOD.replace(from, to)).faults;
        assert!(faults.iter().any(|fault| fault.message.contains(part)), "{to}: {faults:?}");
    };
    check("  n: 3", "  n: 10001", "`n` is at most 10000, not 10001");
    check(
        "tokens: 20000",
        "tokens: 99999999999999999999",
        "`tokens` is at most 1000000000000, not 99999999999999999999",
    );
    check("seconds: 60", "seconds: 1e300", "`seconds` is at most");
    let judged = "evaluate:\n  - vote: {n: 1000000000, prompt: \"{{ thoughts }}\"}";
    check("evaluate:\n  - checker: partial", judged, "`n` is at most 10000");
}

#[test]
fn a_count_that_is_none_for_the_example_is_found_by_check() {
    let folder = tempfile::tempdir().unwrap();
    let told = |severity: Severity, depth: &str| {
        let path = folder.path().join("s.yaml");
        let text = GOOD.replace("{{ puzzle.len }}", depth);
        std::fs::write(&path, &text).unwrap();
        let report = super::super::check::check(&[&path]);
        let line = text.lines().position(|line| line.contains(depth)).unwrap() + 1;
        let faults = report.files.into_iter().flat_map(|file| file.faults);
        let found = faults.filter(|fault| fault.severity == severity && fault.span.line == line);
        found.map(|fault| fault.message).collect::<Vec<_>>().join("\n")
    };
    let found = |depth: &str| told(Severity::Error, depth);
    assert_eq!(found("{{ puzzle.len * 2 }}"), "");
    assert!(found("{{ puzzle.len // 0 }}").contains("calculate"), "{}", found("{{ puzzle.len // 0 }}"));
    // A larger puzzle may have more.
    assert_eq!(found("{{ puzzle.len // 1000 }}"), "");
    assert!(told(Severity::Warning, "{{ puzzle.len // 1000 }}").contains("gives 0"));
    assert!(found("{{ 0 - puzzle.len }}").contains("no whole number"));
    assert!(found("{{ puzzle.form }}").contains("no whole number"));
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
fn faults_lie_inside_files_whose_lines_end_in_carriage_returns() {
    let (lines, returns) = (GOOD.replace("keep: 2", "kep: 2"), GOOD.replace("keep: 2", "kep: 2").replace('\n', "\r"));
    assert_eq!(shown(&read(&returns).faults), shown(&read(&lines).faults));
    check(&returns, 5, 50, "did you mean `keep`?");
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
    check(&set("max_tokens: 99999999999999999999"), 12, 15, "at most 1000000000000");
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_files_never_panic_and_faults_stay_inside_the_file(text in mutated(GOOD)) {
        let parsed = read(&text);
        sound(&text, parsed.strategy.is_some(), &parsed.faults)?;
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
