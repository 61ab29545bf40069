//! `totara check FILE…`: everything that is wrong or odd about strategy files, without running them.

use super::Strategy;
use super::fault::{Fault, Severity};
use super::parse::parse_file;
use crate::base::{Error, ErrorKind};
use std::fmt;
use std::path::{Path, PathBuf};

/// What was found in one file.
#[derive(Debug)]
pub struct Checked {
    pub path: PathBuf,
    /// There where nothing is wrong.
    pub strategy: Option<Strategy>,
    pub faults: Vec<Fault>,
    /// Where the file itself could not be read.
    pub unreadable: Option<Error>,
}

/// What was found in all files; its `Display` is what `check` prints.
#[derive(Debug)]
pub struct Report {
    pub files: Vec<Checked>,
}

/// Checks files, in order.
pub fn check(paths: &[impl AsRef<Path>]) -> Report {
    let files = paths
        .iter()
        .map(|path| {
            let path = path.as_ref().to_path_buf();
            match parse_file(&path) {
                Ok(parsed) => Checked { path, strategy: parsed.strategy, faults: parsed.faults, unreadable: None },
                Err(error) => Checked { path, strategy: None, faults: Vec::new(), unreadable: Some(error) },
            }
        })
        .collect();
    Report { files }
}

impl Report {
    pub fn errors(&self) -> usize {
        self.files.iter().map(|file| file.count(Severity::Error) + usize::from(file.unreadable.is_some())).sum()
    }

    pub fn warnings(&self) -> usize {
        self.files.iter().map(|file| file.count(Severity::Warning)).sum()
    }

    /// 0: no errors (warnings are none); 1: faults were found; 2: a file could not be read at all.
    pub fn exit_code(&self) -> u8 {
        let unreadable = self.files.iter().filter_map(|file| file.unreadable.as_ref());
        match (unreadable.map(Error::kind).next(), self.errors()) {
            (Some(ErrorKind::Input), _) => 2,
            (Some(ErrorKind::Limit | ErrorKind::Fault), _) => 4,
            (None, 0) => 0,
            (None, _) => 1,
        }
    }
}

impl Checked {
    fn count(&self, severity: Severity) -> usize {
        self.faults.iter().filter(|fault| fault.severity == severity).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for file in &self.files {
            for fault in &file.faults {
                writeln!(f, "{fault}")?;
            }
            if let Some(error) = &file.unreadable {
                writeln!(f, "{error}")?;
            } else if file.count(Severity::Error) == 0 {
                let about = file.strategy.as_ref().map_or("", |strategy| strategy.name.as_str());
                writeln!(f, "{}: ok ({})", file.path.display(), crate::base::text::sanitize_line(about))?;
                if let Some(estimate) = file.strategy.as_ref().and_then(super::estimate::estimate) {
                    writeln!(f, "  on the task's example: {estimate}")?;
                }
            }
        }
        let plural = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
        write!(
            f,
            "{}, {}, {}",
            plural(self.files.len(), "file"),
            plural(self.errors(), "error"),
            plural(self.warnings(), "warning")
        )
    }
}
