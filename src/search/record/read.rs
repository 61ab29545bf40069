//! Reading records. A torn last line (the run was killed while it wrote) is left out; anything else that cannot be read is
//! an error that names the line.

use super::Header;
use super::folder::{records, runs_folder};
use super::header::FORMAT;
use crate::base::{Error, Result};
use crate::search::event::{Event, Outcome};
use crate::search::tree::ThoughtTree;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

/// Bytes a header line may have where only the headers are wanted.
const HEADER_LIMIT: u64 = 4 << 20;

/// A run as recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    pub path: PathBuf,
    pub header: Header,
    pub events: Vec<Event>,
    /// The last line was cut and is left out.
    pub torn: bool,
}

impl Recorded {
    /// The tree as it was at the end.
    ///
    /// # Errors
    /// An event does not fit the tree: the record was changed by hand.
    pub fn tree(&self) -> Result<ThoughtTree> {
        let mut tree = ThoughtTree::default();
        for (i, event) in self.events.iter().enumerate() {
            // Line 1 is the header.
            tree.apply(event)
                .map_err(|why| Error::input(format!("record {}, line {}: {why}", self.path.display(), i + 2)))?;
        }
        Ok(tree)
    }

    /// How the run ended; `None` where it was cut short.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.events.iter().rev().find_map(|event| match event {
            Event::Ended { outcome } => Some(outcome),
            _ => None,
        })
    }
}

/// The record that `run` names: a file, `last`, or an id of the state folder (its beginning is enough where only one run
/// starts so).
pub fn find(run: &str) -> Result<PathBuf> {
    if Path::new(run).is_file() {
        return Ok(run.into());
    }
    let folder = runs_folder()?;
    let mut known: Vec<PathBuf> = records(&folder).into_iter().map(|(path, _)| path).collect();
    if run == "last" {
        let none = || Error::input(format!("there is no recorded run in {} yet", folder.display()));
        return known.pop().ok_or_else(none);
    }
    let stem = |path: &PathBuf| path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    if let Some(exact) = known.iter().find(|path| stem(path) == run) {
        return Ok(exact.clone());
    }
    known.retain(|path| !run.is_empty() && stem(path).starts_with(run));
    match known.as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(Error::input(format!(
            "`{run}` is neither a record file nor a run in {}; `last` is the newest one",
            folder.display()
        ))),
        several => Err(Error::input(format!("{} runs start with `{run}`; write more of the id", several.len()))),
    }
}

/// Reads the record that `run` names.
///
/// # Errors
/// There is no such record, it is none, or a line of it cannot be read.
pub fn read(run: &str) -> Result<Recorded> {
    let path = find(run)?;
    let bytes = std::fs::read(&path).map_err(|e| Error::input(format!("record {}: {e}", path.display())))?;
    parse(path, &bytes)
}

pub fn parse(path: PathBuf, bytes: &[u8]) -> Result<Recorded> {
    let shown = path.display().to_string();
    let mut lines: Vec<&[u8]> = bytes.split(|&byte| byte == b'\n').collect();
    // What stands after the last newline is a torn line; there is nothing in a record that ends properly.
    let mut torn = lines.pop().is_some_and(|rest| !rest.is_empty());
    let Some((first, rest)) = lines.split_first() else {
        return Err(Error::input(format!("record {shown} has no complete first line")));
    };
    let header: Header = serde_json::from_slice(first)
        .map_err(|e| Error::input(format!("{shown} is no record of a run: line 1: {e}")))?;
    if header.totara_record != FORMAT {
        return Err(Error::input(format!(
            "record {shown} has format {}, and this program reads format {FORMAT}",
            header.totara_record
        )));
    }
    let mut events = Vec::with_capacity(rest.len());
    for (i, line) in rest.iter().enumerate() {
        match serde_json::from_slice(line) {
            Ok(event) => events.push(event),
            // A crash of the machine may leave a last line whose middle is missing.
            Err(_) if i + 1 == rest.len() => torn = true,
            Err(e) => return Err(Error::input(format!("record {shown}, line {}: {e}", i + 2))),
        }
    }
    Ok(Recorded { path, header, events, torn })
}

/// Headers of the newest records of the state folder, the newest first. What is no record is passed over.
pub fn newest(count: usize) -> Vec<Header> {
    let Ok(folder) = runs_folder() else { return Vec::new() };
    let header = |path: &Path| -> Option<Header> {
        let mut line = String::new();
        std::io::BufReader::new(std::fs::File::open(path).ok()?.take(HEADER_LIMIT)).read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    };
    records(&folder).iter().rev().filter_map(|(path, _)| header(path)).take(count).collect()
}
