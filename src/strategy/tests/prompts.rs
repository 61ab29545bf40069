//! Prompts: their inputs, their files, and those that are shipped.

use super::*;
use crate::task;
use serde_json::Value as Json;

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
