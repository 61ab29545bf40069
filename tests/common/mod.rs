//! What the tests of the built program share: a clean place to run it, the real model, the shared data.

#![expect(dead_code, reason = "each test binary uses its own part")]

#[path = "../../src/base/testing.rs"]
pub mod places;
pub mod pty;

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
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

    /// The built program, started in this place; another build of it where TOTARA_PROGRAM names one.
    pub fn totara(&self, args: &[&str]) -> Command {
        let mut command =
            Command::new(std::env::var_os("TOTARA_PROGRAM").unwrap_or(env!("CARGO_BIN_EXE_totara").into()));
        command.args(args).current_dir(self.dir.path()).env("TOTARA_STATE", self.path("state"));
        // Tests that run in the background inherit ignored signals, which the program rightly leaves ignored.
        // SAFETY: `signal` is async-signal-safe and touches nothing of the parent.
        unsafe {
            command.pre_exec(|| {
                for number in [libc::SIGINT, libc::SIGHUP, libc::SIGTERM] {
                    libc::signal(number, libc::SIG_DFL);
                }
                Ok(())
            });
        }
        if let Some(model) = places::model() {
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
