//! What the tests of the built program share: a clean place to run it, the real model, the shared data.

#![expect(dead_code, reason = "each test binary uses its own part")]

pub mod pty;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A place of its own for one test: state and home folders are its own, the model cache is the user's.
pub struct Place {
    pub dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a temporary folder") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).expect("a file in the temporary folder");
        path
    }

    /// The built program, started in this place.
    pub fn totara(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_totara"));
        command.args(args).current_dir(self.dir.path()).env("TOTARA_STATE", self.path("state"));
        if let Some(model) = model() {
            command.env("TOTARA_MODEL", model);
        }
        command
    }

    pub fn run(&self, args: &[&str]) -> Run {
        Run::of(self.totara(args).output().expect("the program starts"))
    }
}

/// What a finished program said.
pub struct Run {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Run {
    pub fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Standard output as JSON lines.
    pub fn rows(&self) -> Vec<serde_json::Value> {
        self.out.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e} in {l:?}"))).collect()
    }

    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "standard output:\n{}\nstandard error:\n{}", self.out, self.err);
        self
    }

    #[track_caller]
    pub fn says(self, words: &[&str]) -> Self {
        for word in words {
            assert!(self.err.contains(word), "standard error lacks {word:?}:\n{}", self.err);
        }
        self
    }
}

/// The default model's file, where it was pulled. Under TOTARA_REQUIRE_MODEL=1 its absence is a failure.
pub fn model() -> Option<PathBuf> {
    let found = std::env::var_os("TOTARA_MODEL").map(PathBuf::from).or_else(|| {
        let listed = Command::new(env!("CARGO_BIN_EXE_totara")).args(["model", "list", "--json"]).output().ok()?;
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        text.lines().find_map(|line| {
            let row: serde_json::Value = serde_json::from_str(line).ok()?;
            let path = row.get("path")?.as_str()?;
            path.ends_with("SmolLM2-135M-Instruct.Q4_1.gguf").then(|| PathBuf::from(path))
        })
    });
    found.filter(|p| p.is_file())
}

/// The real model, or a printed reason for skipping the test.
pub fn real_model(test: &str) -> Option<PathBuf> {
    let found = model();
    if found.is_none() {
        assert!(
            std::env::var_os("TOTARA_REQUIRE_MODEL").is_none(),
            "{test} needs the default model: run `totara model pull`, or set TOTARA_MODEL"
        );
        println!("skipped {test}: the default model is not here (`totara model pull` gets it)");
    }
    found
}

/// The folder of shared cases and data beside the project, or a printed reason for skipping the test.
pub fn shared(test: &str) -> Option<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let named = std::env::var_os("TOTARA_SHARED").map(PathBuf::from);
    let found = named.or_else(|| Some(manifest.join("../shared"))).filter(|p| p.join("cases").is_dir());
    if found.is_none() {
        println!("skipped {test}: no folder ../shared with cases and data beside the project");
    }
    found
}
