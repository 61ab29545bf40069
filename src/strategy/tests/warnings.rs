//! What can be read and looks unintended.

use super::*;

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
    let unjudged = with("evaluate:\n  - checker: partial\n", "");
    warned(&unjudged, 6, "all thoughts score 1");
    let scored = unjudged.replace("budget:", "score: 0.5\nbudget:");
    assert!(!shown(&read(&scored).faults).contains("all thoughts score 1"), "the strategy says itself what they score");
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
