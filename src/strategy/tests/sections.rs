//! Policies, rules, levels, stages and programs.

use super::schemas::{json_of, validate};
use super::*;

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
