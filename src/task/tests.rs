//! Tests over all tasks: what every puzzle promises, and the given data read in place.

use super::*;
use crate::base::rng;
use proptest::prelude::*;
use rand::Rng;
use std::path::PathBuf;

fn task(name: &str) -> &'static dyn Task {
    by_name(name).unwrap()
}

/// The right answer step by step, found by asking the checker at every step as a search would.
fn solve(puzzle: &dyn Puzzle) -> String {
    let mut prefix = String::new();
    for _ in 0..puzzle.len() {
        let step = puzzle
            .next_steps(&prefix)
            .into_iter()
            .find(|step| matches!(puzzle.check_partial(&format!("{prefix}{step}")), Partial::Possible { .. }))
            .unwrap_or_else(|| panic!("no right step after {prefix:?} of {}", puzzle.title()));
        prefix += &step;
        if matches!(puzzle.check_partial(&prefix), Partial::Possible { complete: true, .. }) {
            return prefix;
        }
    }
    panic!("{} steps do not complete {}", puzzle.len(), puzzle.title());
}

fn typed(task_name: &str, input: &str) -> Arc<dyn Puzzle> {
    task(task_name).parse(input).unwrap()
}

/// A data file of the shared folder, or `None` with a line that says so.
fn shared(file: &str) -> Option<PathBuf> {
    crate::base::testing::shared("a test of tasks").map(|shared| shared.join(file))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_right_path_exists_and_whole_and_partial_checks_agree(size in 1usize..20, seed: u64, list: bool) {
        let mut puzzles = vec![task("sorting").generate(size, seed).unwrap(), task("set-intersection").generate(size, seed).unwrap()];
        if list {
            let mut rng = rng::stream(seed, "test", &[]);
            let numbers: Vec<String> = (0..size).map(|_| rng.random_range(-20..200).to_string()).collect();
            puzzles.push(typed("sorting", &numbers.join(" ")));
        }
        for puzzle in puzzles {
            let answer = solve(&*puzzle);
            let verdict = puzzle.check(&answer);
            prop_assert_eq!(verdict.error_score, 0, "{} {:?}", puzzle.title(), answer);
            prop_assert!(puzzle.solved(&answer));
            prop_assert_eq!(verdict.score(), 1.0);
            prop_assert_eq!(puzzle.refute(&answer), None);
            // The mask allows every right answer, in its whole and in every beginning.
            let trimmed = answer.trim_end_matches(',');
            let mask = puzzle.answer_constraint("");
            for (end, _) in trimmed.char_indices() {
                let judged = mask.judge(&trimmed[..end]);
                prop_assert!(matches!(judged, crate::lm::Judgement::Open { .. }), "{trimmed:?} at {end}: {judged:?}");
            }
            let complete = matches!(
                mask.judge(trimmed),
                crate::lm::Judgement::Closed | crate::lm::Judgement::Open { complete: true }
            );
            prop_assert!(complete);
        }
    }

    #[test]
    fn a_wrong_beginning_never_becomes_right(size in 1usize..9, seed: u64) {
        for name in ["sorting", "set-intersection"] {
            let puzzle = task(name).generate(size, seed).unwrap();
            let mut rng = rng::stream(seed, "walk", &[size as u64]);
            let (mut prefix, mut wrong) = (String::new(), false);
            loop {
                let steps = puzzle.next_steps(&prefix);
                if steps.is_empty() {
                    break;
                }
                prefix += &steps[rng.random_range(0..steps.len())];
                match puzzle.check_partial(&prefix) {
                    Partial::Possible { score, complete } => {
                        prop_assert!(!wrong, "{prefix:?} was wrong before");
                        prop_assert_eq!(score, 1.0);
                        prop_assert_eq!(complete, puzzle.check(&prefix).error_score == 0);
                    }
                    Partial::Wrong { score, why } => {
                        wrong = true;
                        prop_assert!(score < 1.0 && score > 0.0 && !why.is_empty());
                    }
                }
            }
        }
    }

    #[test]
    fn no_text_makes_a_checker_panic(text in "[0-9, \\-\\[\\]a;:\n{}é+*/=()]{0,40}", seed: u64) {
        for name in ["sorting", "set-intersection", "game24"] {
            let puzzle = task(name).generate(4, seed).unwrap();
            puzzle.check(&text);
            puzzle.check_partial(&text);
            puzzle.next_steps(&text);
            puzzle.refute(&text);
            puzzle.state_key(&text);
            puzzle.answer_constraint(&text).judge(&text);
            let _ = task(name).parse(&text);
        }
    }

    #[test]
    fn sorting_errors_are_count_differences_and_descents(
        numbers in prop::collection::vec(0i64..10, 1..12),
        answer in prop::collection::vec(0i64..10, 1..12),
    ) {
        let text = |list: &[i64]| list.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
        let puzzle = typed("sorting", &text(&numbers));
        let count = |list: &[i64], value: i64| list.iter().filter(|&&v| v == value).count() as i64;
        let counts: i64 = (0..10).map(|value| (count(&numbers, value) - count(&answer, value)).abs()).sum();
        let descents = answer.windows(2).filter(|pair| pair[0] > pair[1]).count() as i64;
        prop_assert_eq!(puzzle.check(&text(&answer)).error_score as i64, counts + descents);
    }
}

#[test]
fn generated_puzzles_are_seeded_and_resemble_the_given_data() {
    for name in ["sorting", "set-intersection"] {
        let title = |size, seed| task(name).generate(size, seed).unwrap().title();
        assert_eq!(title(8, 1), title(8, 1));
        assert_ne!(title(8, 1), title(8, 2));
        assert_eq!(task(name).generate(8, 3).unwrap().id(), "3-8");
        assert!(task(name).generate(0, 1).is_err());
        assert!(task(name).generate(usize::MAX, 1).is_err());
    }
    for size in [8, 16, 32, 128] {
        for seed in 0..50 {
            let inputs = task("set-intersection").generate(size, seed).unwrap().inputs();
            let set = |key: &str| -> Vec<usize> {
                inputs["puzzle"][key].as_str().unwrap().split(", ").map(|v| v.parse().unwrap()).collect()
            };
            let (set1, set2) = (set("set1"), set("set2"));
            let common = set1.iter().filter(|v| set2.contains(v)).count() as f64 / size as f64;
            assert!((0.28..=0.73).contains(&common), "{common}");
            assert!(set1.iter().chain(&set2).all(|&v| v < 2 * size));
            assert_eq!((set1.len(), set2.len()), (size, size));
        }
    }
}

#[test]
fn examples_depend_on_length_and_form_alone() {
    for name in ["sorting", "set-intersection"] {
        let examples = |seed| task(name).generate(8, seed).unwrap().inputs()["puzzle"]["examples"].clone();
        assert_eq!(examples(1), examples(2));
        assert_eq!(examples(1).as_array().unwrap().len(), 16);
    }
    let inputs = task("sorting").generate(8, 1).unwrap().inputs();
    assert_eq!(inputs["puzzle"]["form"], "compact");
    assert_eq!(inputs["puzzle"]["examples"][0]["output"].as_str().unwrap().len(), 8);
    assert_eq!(typed("sorting", "42 7 -3").inputs()["puzzle"]["input"], "42, 7, -3");
}

#[test]
fn every_task_names_its_inputs_and_runs_its_example() {
    for task in all() {
        let inputs = task.parse(task.example()).unwrap().inputs();
        for (name, about) in task.inputs() {
            let key = name.strip_prefix("puzzle.").unwrap();
            assert!(!inputs["puzzle"][key].is_null(), "{} lacks {name}", task.name());
            assert!(!about.is_empty());
        }
        assert_eq!(inputs["puzzle"].as_object().unwrap().len(), task.inputs().len(), "{}", task.name());
    }
}

#[test]
fn typed_inputs_are_taken_in_every_form_and_refused_with_the_forms() {
    for text in
        ["1 2 3; 2 3 5", "1,2,3\n2,3,5", "{1, 2, 3}; {2, 3, 5}", "[1,2,3] [2,3,5]", "A = {1; 2; 3}; B = {2; 3; 5}"]
    {
        assert_eq!(typed("set-intersection", text).title(), "common values of {1, 2, 3} and {2, 3, 5}", "{text:?}");
    }
    let refused = |name: &str, input: &str, what: &str| {
        let message = task(name).parse(input).err().unwrap_or_else(|| panic!("{input:?} was taken")).to_string();
        assert!(message.contains(what) && message.contains("such as"), "{message}");
    };
    refused("set-intersection", "1 2 3", "one set");
    refused("set-intersection", "1; 2; 3", "3 sets");
    refused("set-intersection", "1 2 2; 3", "set 1: 2 stands twice");
    refused("set-intersection", "1 2; x", "set 2: `x` is not an integer");
    refused("set-intersection", "{}; {1}", "set 1: holds no values");
    refused("sorting", "", "no numbers");
    refused("sorting", "1; 2", "`1;` is not an integer");
    refused("sorting", "one", "`one` is not an integer");
    refused("sorting", "3 \u{1b}[31m1", "`\\u{1b}` is not an integer");
    assert!(by_name("sortin").err().unwrap().to_string().contains("did you mean `sorting`?"));
}

#[test]
fn sorting_steps_offer_what_is_left_and_the_checker_tells_right_from_wrong() {
    let puzzle = typed("sorting", "42 7 -3 103 7");
    assert_eq!(puzzle.next_steps(""), [" 42,", " 7,", " -3,", " 103,"]);
    assert_eq!(puzzle.next_steps(" -3, 7, 7, 42,"), [" 103"]);
    assert!(puzzle.next_steps(" -3, 7, 7, 42, 103").is_empty());
    let partial = |prefix: &str| puzzle.check_partial(prefix);
    assert_eq!(partial(""), Partial::Possible { score: 1.0, complete: false });
    assert_eq!(partial(" -3,"), Partial::Possible { score: 1.0, complete: false });
    assert_eq!(partial(" 42,"), Partial::Wrong { score: 0.25, why: "3 smaller left behind".into() });
    assert_eq!(
        partial(" -3, 8,"),
        Partial::Wrong { score: 0.25, why: "1 not left in the input, 2 smaller left behind".into() }
    );
    assert_eq!(puzzle.state_key(" -3, 7,"), puzzle.state_key("-3 7"));
    assert_ne!(puzzle.state_key(" -3,"), puzzle.state_key(" 7,"));
    let digits = typed("sorting", "9 4 5 8 0 7 3 0");
    assert_eq!(digits.next_steps("0").join(""), "9458730");
}

#[test]
fn a_long_number_sorts_exactly() {
    let puzzle = typed("sorting", "123456789012345678901 -5 123456789012345678900");
    let answer = solve(&*puzzle);
    assert_eq!(answer, " -5, 123456789012345678900, 123456789012345678901");
    assert_eq!(
        puzzle.check(&answer).answer.unwrap().to_string(),
        "[-5,\"123456789012345678900\",\"123456789012345678901\"]"
    );
}

#[test]
fn set_steps_follow_the_first_set() {
    let puzzle = typed("set-intersection", "1 2 3 4; 4 2 9");
    assert_eq!(puzzle.next_steps(""), [" 1,", " 2,", " 3,", " 4,", " none"]);
    assert_eq!(puzzle.next_steps(" 2,"), [" 3,", " 4,"]);
    let wrong = |prefix: &str, reason: &str| match puzzle.check_partial(prefix) {
        Partial::Wrong { why, .. } => assert!(why.contains(reason), "{why}"),
        other => panic!("{prefix}: {other:?}"),
    };
    wrong(" 1,", "1 not in both sets");
    wrong(" 4,", "1 common value skipped");
    wrong(" 2, 2,", "1 said twice");
    wrong(" 4, 2,", "1 not in the order");
    wrong(" none", "2 common value skipped");
    assert_eq!(puzzle.check_partial(" 2, 4,"), Partial::Possible { score: 1.0, complete: true });
    assert_eq!(puzzle.check("4, 2").error_score, 0);
    assert_eq!(puzzle.check("2, 2, 7").error_score, 3);
    assert_eq!(puzzle.refute(" 4, 2"), None, "a whole answer may come in any order");
    assert_eq!(puzzle.refute(" 1"), None, "1 may become 12");
    assert!(puzzle.refute(" 1,").is_some());
    let apart = typed("set-intersection", "1 2; 3 4");
    assert_eq!(apart.check_partial(""), Partial::Possible { score: 1.0, complete: false });
    assert_eq!(apart.check_partial(" none"), Partial::Possible { score: 1.0, complete: true });
    assert_eq!(apart.check(" none").error_score, 0);
}

#[test]
fn unreadable_answers_get_the_stated_score_and_say_so() {
    let check = |name: &str, input: &str, score: u64| {
        let verdict = typed(name, input).check("I cannot do that.");
        assert_eq!(verdict.error_score, score);
        assert_eq!(verdict.answer, None);
        assert!(verdict.why.starts_with("unreadable"), "{}", verdict.why);
    };
    check("sorting", "3 1", 300);
    check("set-intersection", "3 1; 1", 1000);
}

#[test]
fn free_answers_are_refuted_in_their_middle_only_when_nothing_can_save_them() {
    let puzzle = typed("sorting", "42 7 -3 103 7");
    assert_eq!(puzzle.refute(" -3, 7, 4"), None);
    assert!(puzzle.refute(" -3, 7, 4,").is_some());
    assert_eq!(puzzle.refute("Let us see. -3,"), None, "a chain of thought is no answer yet");
    let digits: Arc<dyn Puzzle> = typed("sorting", "9 4 0");
    assert!(digits.refute("4").is_some());
    let refuter = constrain::Refuter::new(digits, "0");
    assert!(!refuter.masks());
    assert_eq!(refuter.judge("4"), crate::lm::Judgement::Open { complete: true });
    assert!(matches!(refuter.judge("9"), crate::lm::Judgement::Dead(_)));
}

#[test]
fn the_answer_column_changes_nothing_but_solved() {
    let folder = tempfile::tempdir().unwrap();
    let read = |name: &str, text: &str| {
        let path = folder.path().join("data.csv");
        std::fs::write(&path, text).unwrap();
        task(name).read_data(&path).unwrap().remove(0)
    };
    let with = |answer: &str| read("sorting", &format!("ID,Unsorted,Sorted\n0,\"[2, 1]\",{answer}\n"));
    let (right, blank, wrong) = (with("\"[1, 2]\""), with(""), with("\"[2, 1]\""));
    for puzzle in [&right, &blank, &wrong] {
        assert_eq!(puzzle.check("12").error_score, 0);
        assert_eq!(puzzle.inputs(), right.inputs());
        assert_eq!(puzzle.next_steps(""), right.next_steps(""));
    }
    assert_eq!([&right, &blank, &wrong].map(|p| p.solved("12")), [true, false, false]);
    assert!(wrong.solved("21"), "solved compares with the file's own column");
    assert!(read("sorting", "ID,Unsorted\n0,2 1\n").solved("1 2"));
    let sets = read("set-intersection", "ID,SET1,SET2,INTERSECTION\n0,\"[3, 1]\",\"[1, 3]\",\"[1, 3]\"\n");
    assert!(sets.solved(" 3, 1,"), "sets compare in any order");
}

#[test]
fn bad_cells_name_file_line_and_column() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sets.csv");
    let message = |text: &str| {
        std::fs::write(&path, text).unwrap();
        task("set-intersection").read_data(&path).err().unwrap().to_string()
    };
    let twice = message("ID,SET1,SET2\n0,1,1\n1,\"[1, 1]\",\"[2]\"\n");
    for part in ["sets.csv line 3", "column `SET1`", "1 stands twice"] {
        assert!(twice.contains(part), "{twice}");
    }
    let word = message("ID,SET1,SET2\n0,1,x\n");
    assert!(word.contains("line 2, column `SET2`: `x` is not an integer"), "{word}");
    std::fs::write(&path, b"ID,SET1,SET2\n0,\xff,1\n").unwrap();
    let bytes = task("sorting").read_data(&path).err().unwrap().to_string();
    assert!(bytes.contains("line 2: is not UTF-8"), "{bytes}");
    let missing = task("sorting").read_data(&folder.path().join("none.csv")).err().unwrap();
    assert!(missing.to_string().contains("none.csv"), "{missing}");
    assert_eq!(missing.exit_code(), 2);
}

#[test]
fn the_given_files_are_read_and_their_answers_are_right() {
    for (name, file) in [
        ("sorting", "data/got/sorting_032.csv"),
        ("sorting", "data/got/sorting_128.csv"),
        ("set-intersection", "data/got/set_intersection_032.csv"),
        ("set-intersection", "data/got/set_intersection_128.csv"),
    ] {
        let Some(path) = shared(file) else { return };
        let puzzles = task(name).read_data(&path).unwrap();
        assert_eq!(puzzles.len(), 50, "{file}");
        for puzzle in puzzles {
            let answer = solve(&*puzzle);
            assert!(puzzle.solved(&answer), "{file} {}", puzzle.id());
            assert_eq!(puzzle.check(&answer).error_score, 0);
        }
    }
    let Some(path) = shared("data/tot/24.csv") else { return };
    let puzzles = task("game24").read_data(&path).unwrap();
    assert_eq!((puzzles.len(), puzzles[0].id(), puzzles[0].title().as_str()), (900, "1", "make 24 from 1 1 4 6"));
    let Some(path) = shared("cases/A/58_puzzles.jsonl") else { return };
    assert_eq!(task("game24").read_data(&path).unwrap().len(), 4);
    let puzzles = task("sorting").read_data(&path).unwrap();
    assert_eq!(puzzles.iter().map(|p| p.id()).collect::<Vec<_>>(), ["0", "1", "2", "3"]);
    assert_eq!(puzzles[0].title(), puzzles[2].title());
}

#[test]
fn parts_of_a_puzzle_are_puzzles_that_join_to_the_whole() {
    for (task, input) in
        [("sorting", "5 3 9 1 1 7 0"), ("sorting", "42 7 -3 103 7"), ("set-intersection", "1 2 3 4; 4 5 2 9 8")]
    {
        let task = by_name(task).unwrap();
        let whole = task.parse(input).unwrap();
        for parts in [2, 4] {
            let inputs = whole.split(parts).unwrap();
            assert_eq!(inputs.len(), parts);
            for input in &inputs {
                task.parse(input).unwrap();
            }
            let joined = task.parse(&whole.join(&inputs).unwrap()).unwrap();
            assert_eq!(joined.title(), whole.title());
        }
        assert_eq!(whole.split(100), None);
    }
    let game = by_name("game24").unwrap().parse("4 5 6 10").unwrap();
    assert_eq!(game.split(2), None);
}
