//! Reports of folders that the tests write: what is joined, told, refused, and what the numbers are.

use super::read::read;
use super::tables::{Axis, Tables, budgets};
use super::*;
use crate::batch::row::{Row, Traffic, digest};
use crate::batch::{Manifest, ModelEntry, Shard, StrategyText};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A row of a puzzle of five numbers.
fn row(id: u64, strategy: &str, solved: bool, errors: u64, tokens: u64) -> Row {
    Row {
        task: "sorting".into(),
        id: id.to_string(),
        strategy: strategy.into(),
        solved,
        error_score: Some(errors),
        answer: None,
        thoughts: 3,
        tokens,
        logical_tokens: tokens * 2,
        seconds: tokens as f64 / 100.0,
        reason: "solved".into(),
        model: "m".into(),
        settings: String::new(),
        size: 5,
        puzzle: format!("digest {id}"),
        proposals: 3,
        prompt_tokens: 0,
        sampled_tokens: 0,
        scored_tokens: 0,
        answer_text: None,
        reproducible: true,
        traffic: Traffic::default(),
    }
}

fn manifest(rows: usize) -> Manifest {
    let text = |text: &str| StrategyText { text: text.into(), prompts: Vec::new() };
    Manifest {
        version: "1".into(),
        seed: 1,
        shard: None,
        limits: Limits::default(),
        rows,
        models: [("m".to_string(), ModelEntry { checksum: Some("c".into()), device: "cpu".into() })].into(),
        strategies: [("sorting/a".to_string(), text("a")), ("sorting/b".to_string(), text("b"))].into(),
        puzzles: [("sorting".to_string(), rows)].into(),
        parallel: 1,
        started: String::new(),
        command: vec!["totara".into(), "eval".into()],
    }
}

struct Folders(tempfile::TempDir);

impl Folders {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a batch's folder; `tail` stands after its rows.
    fn batch(&self, name: &str, manifest: &Manifest, rows: &[Row], tail: &str) -> PathBuf {
        let folder = self.path(name);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("manifest.json"), serde_json::to_string(manifest).unwrap()).unwrap();
        let lines: String = rows.iter().map(|row| serde_json::to_string(row).unwrap() + "\n").collect();
        std::fs::write(folder.join("results.jsonl"), lines + tail).unwrap();
        folder
    }
}

fn refused(folders: &[PathBuf], words: &[&str]) {
    let error = read(folders).unwrap_err();
    assert_eq!(error.exit_code(), 2, "{error}");
    for word in words {
        assert!(error.message().contains(word), "{word}: {error}");
    }
}

#[test]
fn shards_are_joined_and_a_missing_one_is_told() {
    let folders = Folders::new();
    let mut part = manifest(2);
    for index in [1, 3] {
        part.shard = Some(Shard { index, of: 3 });
        let first = index as u64 * 10;
        folders.batch(
            &format!("s{index}"),
            &part,
            &[row(first, "a", true, 0, 10), row(first + 1, "a", false, 4, 30)],
            "",
        );
    }
    let collected = read(&[folders.0.path().to_path_buf()]).unwrap();
    assert_eq!((collected.sources.len(), collected.arms.len(), collected.entries.len()), (2, 1, 4));
    assert_eq!(collected.notes, ["shards that are not here: 2/3"]);
    let tables = Tables::of(&collected, 0);
    let group = &tables.panels[0].groups[0];
    assert_eq!((group.n, group.solved, group.tokens, group.errors.unwrap().0), (4, 2, Some(20.0), 2.0));
    assert_eq!(group.interval, crate::batch::summary::wilson(2, 4));
}

#[test]
fn what_is_wrong_in_a_folder_is_named_and_the_rest_counts() {
    let folders = Folders::new();
    let good = row(1, "a", true, 0, 5);
    let twice = serde_json::to_string(&good).unwrap();
    let tail = format!("{twice}\nnonsense\n{{\"task\": \"sorti");
    let folder = folders.batch("x", &manifest(3), &[good], &tail);
    let collected = read(&[folder]).unwrap();
    assert_eq!(collected.entries.len(), 1);
    for (fault, words) in
        collected.faults.iter().zip(["line 2: puzzle 1", "line 3: no row", "line 4: the last row was cut"])
    {
        assert!(fault.contains("results.jsonl") && fault.contains(words), "{fault}");
    }
    assert_eq!(collected.faults.len(), 3);
    assert!(collected.notes[0].contains("1 of 3 rows"), "{:?}", collected.notes);
}

#[test]
fn what_cannot_be_compared_is_refused_and_duplicates_are_told() {
    let folders = Folders::new();
    let rows = [row(1, "a", true, 0, 5), row(2, "a", false, 2, 7)];
    let one = folders.batch("one", &manifest(2), &rows, "");
    let check = |change: &dyn Fn(&mut Manifest, &mut Row), words: &[&str]| {
        let (mut other, mut rows) = (manifest(2), rows.clone());
        change(&mut other, &mut rows[1]);
        refused(&[one.clone(), folders.batch("other", &other, &rows, "")], words);
    };
    check(&|_, row| row.puzzle = "something else".into(), &["puzzle 2 of sorting 5", "one", "other"]);
    check(&|m, _| m.strategies.get_mut("sorting/a").unwrap().text = "changed".into(), &["strategy", "sorting/a"]);
    check(&|m, _| m.models.get_mut("m").unwrap().checksum = Some("d".into()), &["weights", "`m`"]);
    refused(&[folders.path("nowhere")], &["nowhere", "cannot be read"]);
    refused(&[folders.0.path().join("one/..").join("one/../empty")], &["empty"]);

    let same = folders.batch("same", &manifest(2), &rows, "");
    let collected = read(&[one.clone(), same]).unwrap();
    assert_eq!((collected.entries.len(), collected.faults.len()), (2, 0));
    assert!(collected.notes[0].contains("2 rows of"), "{:?}", collected.notes);
    let other = folders.batch("differs", &manifest(2), &[row(1, "a", false, 9, 5)], "");
    let collected = read(&[one.clone(), other]).unwrap();
    assert!(collected.faults[0].contains("different results"), "{:?}", collected.faults);

    // Another seed or budget is another arm, and says so in its label.
    let mut seeded = manifest(2);
    seeded.seed = 2;
    seeded.limits.tokens = Some(100);
    let collected = read(&[one, folders.batch("seeded", &seeded, &rows, "")]).unwrap();
    assert_eq!(collected.labels(), ["a · seed 1", "a · ≤ 100 tokens · seed 2"]);
}

#[test]
fn pairs_and_curves_are_of_the_same_puzzles() {
    let folders = Folders::new();
    let mut rows: Vec<Row> = (0..10).map(|id| row(id, "a", id < 2, 5, 10 * (id + 1))).collect();
    rows.extend((0..12).map(|id| row(id, "b", id < 9, 3, 7)));
    let collected = read(&[folders.batch("x", &manifest(22), &rows, "")]).unwrap();
    let tables = Tables::of(&collected, 0);
    let panel = &tables.panels[0];
    let pair = &panel.pairs[0];
    assert_eq!((pair.n(), pair.both, pair.only_a, pair.only_b, pair.neither), (10, 2, 0, 7, 1));
    assert!((pair.p - 2.0 / 128.0).abs() < 1e-12 && pair.p_holm == pair.p);
    assert_eq!((pair.judged, pair.difference), (10, Some((2.0, 2.0, 2.0))));
    let curve = panel.curves.iter().find(|curve| curve.group == 0 && curve.axis == Axis::Tokens).unwrap();
    assert_eq!(curve.points, [(10.0, 0.1), (20.0, 0.2)]);
    assert_eq!([curve.at(5.0), curve.at(10.0), curve.at(1e9)], [0.0, 0.1, 0.2]);
    assert_eq!(curve.spent, 100.0);
    let other = panel.curves.iter().find(|curve| curve.group == 1 && curve.axis == Axis::Tokens).unwrap();
    assert_eq!(other.points, [(7.0, 0.75)]);
    let budgets = budgets(&[curve, other]);
    assert!(!budgets.is_empty() && budgets.len() <= 6 && budgets.last().is_some_and(|&b| b >= 100.0), "{budgets:?}");
}

#[test]
fn a_report_is_self_contained_and_its_names_are_harmless() {
    let folders = Folders::new();
    let mut evil = row(1, "</text><script>alert(1)</script>|\u{1b}[2J", true, 0, 5);
    evil.settings = "a=\"b\", c='d'".into();
    let rows = [evil, row(1, "b", false, 3, 0), row(2, "b", true, 0, 40)];
    let mut chance = row(2, "c", false, 1, 0);
    (chance.tokens, chance.error_score) = (0, None);
    let collected = read(&[folders.batch("x", &manifest(4), &[&rows[..], &[chance]].concat(), "")]).unwrap();
    let tables = Tables::of(&collected, 0);
    let page = page::html(&collected, &tables);
    for banned in ["<script", "http://", "https://", "src=", "@import", "url(", "\u{1b}", "NaN", "inf"] {
        assert!(!page.contains(banned), "{banned}");
    }
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    assert!(page.contains("prefers-color-scheme:dark"));
    let svg = chart::alone(&chart::rates(&tables.panels[0]));
    assert!(svg.starts_with("<svg xmlns=") && svg.contains("<style>"));
    let markdown = text::markdown(&collected, &tables);
    let columns = |line: &str| line.replace("\\|", "").matches('|').count();
    let lines: Vec<&str> = markdown.lines().filter(|line| line.starts_with('|')).collect();
    assert_eq!(columns(lines[0]), columns(lines[2]), "{markdown}");
    for csv in [text::groups_csv(&collected, &tables), text::pairs_csv(&tables), text::curves_csv(&tables)] {
        let read = crate::task::csv::read(&csv).unwrap();
        assert!(read.iter().all(|line| line.fields.len() == read[0].fields.len()), "{csv}");
    }
    for line in text::json_lines(&collected, &tables) {
        assert!(line["kind"].is_string() && !line.to_string().contains("null,null,null,null"), "{line}");
    }
    assert!(text::json_lines(&collected, &tables).iter().any(|l| l["kind"] == "curve" && l["axis"] == "seconds"));
}

/// A folder as Graph of Thoughts' own controller writes it.
fn graph_of_thoughts(folder: &Path) {
    let data = json!([[0, "[3, 1, 2, 1]", "[1, 1, 2, 3]"], [1, "[9, 8, 7, 6]", "[6, 7, 8, 9]"]]);
    std::fs::create_dir_all(folder.join("tot")).unwrap();
    std::fs::create_dir_all(folder.join("io")).unwrap();
    let config = json!({"data": data, "methods": ["io", "tot"], "lm": "chatgpt", "budget": 30});
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let run = |scores: Value, solved: Value, prompt: u64| {
        json!([
            {"operation": "generate", "thoughts": [{"current": "x"}, {"current": "y"}]},
            {"operation": "score", "thoughts": [{}, {}], "scored": [true, true], "scores": scores},
            {"operation": "ground_truth_evaluator", "thoughts": [{}, {}], "scored": [true, true], "scores": scores,
             "compared_to_ground_truth": [true, true], "problem_solved": solved},
            {"prompt_tokens": prompt, "completion_tokens": 50, "cost": 0.01},
        ])
        .to_string()
    };
    std::fs::write(folder.join("tot/0.json"), run(json!([4, 0]), json!([false, true]), 100)).unwrap();
    std::fs::write(folder.join("tot/1.json"), run(json!([7.0, 3.0]), json!([false, false]), 300)).unwrap();
    std::fs::write(folder.join("io/0.json"), "[{\"operation\": \"gen").unwrap();
}

#[test]
fn graph_of_thoughts_folders_stand_beside_our_own() {
    let folders = Folders::new();
    let theirs = folders.path("sorting/results/chatgpt_io-tot_2024-01-01_00-00-00");
    graph_of_thoughts(&theirs);
    let mut own = row(0, "a", false, 2, 10);
    own.size = 4;
    let puzzle = crate::task::by_name("sorting").unwrap().parse("3 1 2 1").unwrap();
    own.puzzle = digest(puzzle.as_ref());
    let ours = folders.batch("ours", &manifest(1), &[own.clone()], "");
    let collected = read(&[ours.clone(), theirs.clone()]).unwrap();
    assert_eq!(collected.labels(), ["a · m", "tot · chatgpt · Graph of Thoughts"]);
    assert!(collected.faults.len() == 1 && collected.faults[0].contains("io/0.json"), "{:?}", collected.faults);
    assert!(
        collected.notes.iter().any(|note| note.contains("1 puzzles have no result under io")),
        "{:?}",
        collected.notes
    );
    let tables = Tables::of(&collected, 0);
    let panel = &tables.panels[0];
    let group = &panel.groups[1];
    assert_eq!((group.n, group.solved, group.errors.unwrap().0), (2, 1, 1.5));
    assert_eq!((group.tokens, group.logical_tokens, group.thoughts), (None, Some(250.0), Some(2.0)));
    assert_eq!((panel.pairs[0].n(), panel.pairs[0].only_b), (1, 1));
    assert!(panel.curves.iter().all(|curve| curve.group == 0 || curve.axis == Axis::LogicalTokens));
    // The same id with other numbers is not the same puzzle.
    own.puzzle = "other".into();
    refused(&[folders.batch("others", &manifest(1), &[own], ""), theirs], &["puzzle 0 of sorting 4"]);
}

/// Real data rows and a typed puzzle of the same numbers have the same digest.
#[test]
fn a_puzzle_of_a_file_and_the_same_one_typed_are_the_same() {
    let Some(shared) = crate::base::testing::shared("a_puzzle_of_a_file") else { return };
    for (name, task) in [("sorting_032.csv", "sorting"), ("set_intersection_032.csv", "set-intersection")] {
        let path = shared.join("data/got").join(name);
        let task = crate::task::by_name(task).unwrap();
        let of_file = task.read_data(&path).unwrap();
        let rows = crate::task::csv::read(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let typed = match &rows[1].fields[..] {
            [_, list, _] => task.parse(list),
            [_, one, two, _] => task.parse(&format!("{one}; {two}")),
            other => panic!("{other:?}"),
        };
        assert_eq!(digest(of_file[0].as_ref()), digest(typed.unwrap().as_ref()), "{name}");
    }
}
