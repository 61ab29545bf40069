//! `results.jsonl`: appended row by row, each synced before the next is begun. A row that was cut (a kill, a full disk) is
//! dropped when the file is opened again, with a note; rows before it are never touched.

use super::row::Row;
use crate::base::{Error, Result};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// An open results file.
#[derive(Debug)]
pub struct Results {
    path: PathBuf,
    file: File,
    /// Bytes of whole rows.
    len: u64,
    rows: usize,
}

/// What a results file holds.
#[derive(Debug, PartialEq)]
pub struct Contents {
    pub rows: Vec<Row>,
    /// Bytes of whole rows.
    pub len: u64,
    /// Bytes of a torn row after them.
    pub torn: usize,
}

impl Results {
    /// Opens the file for appending, makes it if it is not there, and cuts a torn row off.
    ///
    /// # Errors
    /// It cannot be read or written, a row in its middle cannot be read, or a key is there twice.
    pub fn open(path: &Path, note: &mut dyn FnMut(String)) -> Result<(Self, Vec<Row>)> {
        let fault = |what: &str, e: std::io::Error| Error::fault(format!("{} cannot be {what}: {e}", path.display()));
        let bytes = match std::fs::metadata(path) {
            // A device has no contents to go on from, and reading it may never end.
            Ok(meta) if meta.is_file() => std::fs::read(path).map_err(|e| fault("read", e))?,
            _ => Vec::new(),
        };
        let contents = parse(path, &bytes)?;
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(|e| fault("opened", e))?;
        if contents.torn > 0 {
            file.set_len(contents.len).and_then(|()| file.sync_all()).map_err(|e| fault("mended", e))?;
            note(format!(
                "{}: the last row was cut ({} bytes) and is dropped; its puzzle runs again",
                path.display(),
                contents.torn
            ));
        }
        let results = Self { path: path.to_path_buf(), file, len: contents.len, rows: contents.rows.len() };
        Ok((results, contents.rows))
    }

    /// Appends a row and waits until it is on the disk.
    ///
    /// # Errors
    /// The row could not be written whole. What was written of it is taken back if that is possible; else the next opening
    /// does it.
    pub fn append(&mut self, row: &Row) -> Result<()> {
        let mut line = serde_json::to_string(row).map_err(|e| Error::fault(format!("row: {e}")))?;
        line.push('\n');
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        if let Err(e) = written {
            // What is left behind of the row is dropped at the next opening at the latest.
            let _ = self.file.set_len(self.len);
            return Err(Error::fault(format!(
                "{} cannot be written: {e}; its {} earlier rows are intact, and --resume goes on from there",
                self.path.display(),
                self.rows
            )));
        }
        self.len += line.len() as u64;
        self.rows += 1;
        Ok(())
    }
}

/// Reads a results file's bytes.
///
/// # Errors
/// A row that is not the last cannot be read, or a key is there twice.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<Contents> {
    let mut rows = Vec::new();
    let mut len = 0;
    for line in scan(bytes) {
        match line {
            Line::Row { row, bytes, .. } => {
                rows.push(*row);
                len += bytes;
            }
            Line::Torn { .. } => break,
            Line::Bad { number, why } => {
                return Err(Error::input(format!("{}, line {number}: {why}", path.display())));
            }
        }
    }
    Ok(Contents { rows, len: len as u64, torn: bytes.len() - len })
}

/// A line of a results file, numbered from 1.
#[derive(Debug, PartialEq)]
pub enum Line {
    Row {
        number: usize,
        row: Box<Row>,
        bytes: usize,
    },
    /// No row, or a row of a puzzle that has one.
    Bad {
        number: usize,
        why: String,
    },
    /// The last line, cut in its middle.
    Torn {
        number: usize,
        bytes: usize,
    },
}

/// All lines, whatever they hold.
pub fn scan(bytes: &[u8]) -> Vec<Line> {
    let mut seen = BTreeSet::new();
    let mut end = 0;
    let read = |(i, line): (usize, &[u8])| {
        let number = i + 1;
        end += line.len();
        let (last, whole) = (end == bytes.len(), line.ends_with(b"\n"));
        match serde_json::from_slice::<Row>(line) {
            Ok(row) if whole => {
                if !seen.insert(row.key()) {
                    return Line::Bad { number, why: format!("{} has a row already", row.key()) };
                }
                Line::Row { number, row: Box::new(row), bytes: line.len() }
            }
            // A row without its newline may be cut within its last number: only what ends properly counts.
            _ if last && (!whole || serde_json::from_slice::<serde_json::Value>(line).is_err()) => {
                Line::Torn { number, bytes: line.len() }
            }
            Ok(_) => Line::Torn { number, bytes: line.len() },
            Err(e) => Line::Bad { number, why: format!("no row of results: {e}") },
        }
    };
    bytes.split_inclusive(|&byte| byte == b'\n').enumerate().map(read).collect()
}
