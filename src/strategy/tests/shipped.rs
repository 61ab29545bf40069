//! What comes with the program: strategies, the starter, the documentation's examples.

use super::schemas::{json_of, validate};
use super::*;
use crate::task;

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
