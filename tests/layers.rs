//! The layers of `src/lib.rs` hold: a module uses only what stands below it. The page about `unsafe` is complete.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Lowest first; modules of one row do not use each other, except where a row says so.
const LAYERS: &[&[&str]] = &[
    &["base"],
    &["kv"],
    &["device"],
    &["attention", "offload"],
    &["model"],
    &["engine"],
    &["lm"],
    &["task"],
    &["strategy"],
    &["search"],
    &["bench", "batch", "tui"],
    &["report"],
    &["cli"],
    &["fuzzing"],
];

fn rank(module: &str) -> Option<usize> {
    LAYERS.iter().position(|row| row.contains(&module))
}

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("src can be read") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
}

/// The crate's modules that a source names: `crate::x` anywhere outside comments.
fn used(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in text.lines().map(str::trim_start).filter(|l| !l.starts_with("//")) {
        for (at, _) in line.match_indices("crate::") {
            // `$crate::` and `other_crate::` are not ours.
            if line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$') {
                continue;
            }
            let rest = &line[at + "crate::".len()..];
            if let Some(group) = rest.strip_prefix('{') {
                let mut depth = 0;
                let mut word = String::new();
                for c in group.chars() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => word.clear(),
                        c if depth == 0 && (c.is_alphanumeric() || c == '_') => word.push(c),
                        _ if depth == 0 && !word.is_empty() => found.push(std::mem::take(&mut word)),
                        _ => {}
                    }
                    if c == ',' && !word.is_empty() {
                        found.push(std::mem::take(&mut word));
                    }
                }
                if !word.is_empty() {
                    found.push(word);
                }
            } else {
                found.push(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
            }
        }
    }
    found
}

#[test]
fn modules_use_only_what_stands_below_them() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let mut wrong = BTreeMap::new();
    let mut edges = 0;
    for file in files {
        let inner = file.strip_prefix(&src).expect("inside src");
        let module = inner.components().next().expect("a name").as_os_str().to_string_lossy().replace(".rs", "");
        if module == "lib" || module == "main" {
            continue;
        }
        let own = rank(&module).unwrap_or_else(|| panic!("module `{module}` has no layer: add it to the table"));
        for other in used(&fs::read_to_string(&file).expect("text")) {
            if other == module {
                continue;
            }
            edges += 1;
            match rank(&other) {
                Some(below) if below < own => {}
                Some(_) => {
                    wrong.insert(format!("{} uses crate::{other}", inner.display()), ());
                }
                None => {
                    wrong.insert(format!("{} uses crate::{other}, which has no layer", inner.display()), ());
                }
            }
        }
    }
    assert!(edges > 20, "the test sees only {edges} edges: it does not read the sources as it should");
    assert!(wrong.is_empty(), "imports that go upwards:\n{}", wrong.into_keys().collect::<Vec<_>>().join("\n"));
}

#[test]
fn the_reader_of_imports_sees_all_forms() {
    assert_eq!(used("use crate::kv::Slot;"), ["kv"]);
    assert_eq!(used("use crate::{base::Error, lm};"), ["base", "lm"]);
    assert_eq!(used("let x = crate::model::open(a, crate::base::size::free_ram());"), ["model", "base"]);
    assert!(used("// crate::tui is above").is_empty());
    assert!(used("macro_uses $crate::x").is_empty());
}

/// Lines that hold the keyword, outside comments: blocks, functions, implementations.
fn unsafe_lines(text: &str) -> usize {
    let code = text.lines().map(str::trim_start).filter(|l| !l.starts_with("//"));
    code.filter(|l| ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"].iter().any(|form| l.contains(form)))
        .count()
}

/// `docs/unsafe.md` names every source with `unsafe`, and none without.
#[test]
fn the_page_about_unsafe_names_every_place() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/unsafe.md")).expect("the page");
    let mut named = BTreeMap::new();
    for name in page.split('`').skip(1).step_by(2).filter(|name| name.starts_with("src/")) {
        match name.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?))) {
            Some((before, (kinds, after))) => {
                named.extend(kinds.split(',').map(|kind| (format!("{before}{kind}{after}"), false)));
            }
            None => named.extend([(name.to_string(), false)]),
        }
    }
    let mut files = Vec::new();
    sources(&root.join("src"), &mut files);
    let mut missing = Vec::new();
    for file in files {
        if unsafe_lines(&fs::read_to_string(&file).expect("text")) == 0 {
            continue;
        }
        let name = file.strip_prefix(root).expect("inside the project").display().to_string();
        match named.get_mut(&name) {
            Some(seen) => *seen = true,
            None => missing.push(name),
        }
    }
    assert!(missing.is_empty(), "docs/unsafe.md does not name {missing:?}");
    let gone: Vec<_> = named.iter().filter(|(_, seen)| !**seen).collect();
    assert!(gone.is_empty(), "docs/unsafe.md names sources without unsafe: {gone:?}");
    assert!(named.len() > 20 && unsafe_lines("// unsafe {\n  unsafe { x }\nunsafe fn y() {}") == 2);
}
