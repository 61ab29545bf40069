//! Records: every run as JSON lines in the state folder, a header first, then its events.
//!
//! Of the events for the screen `Token` is not recorded (a reply tells the pieces that it came in), `Counters` and `Held` are
//! thinned ([`thin`]). The tree rebuilt from a record equals the one that ran. A record is written as the run goes and flushed with every thought, so a killed run loses at most its last
//! line; a torn last line is left out on reading. A disk that is full or a folder that cannot be written to is told once
//! and never ends the run.

mod folder;
mod header;
mod read;
mod thin;
mod whole;

pub use folder::{LIMIT_BYTES, runs_folder, state_folder, utc_now};
pub use header::{HIDDEN, Header, Origin, PuzzleOrigin, public_value, without_secrets};
pub use read::{Recorded, find, newest, parse, read};
pub use whole::whole_steps;

use super::event::Event;
use super::tree::Status;
use crate::base::{Error, Result, inside};
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use thin::Thinned;

/// Where a run is being recorded.
pub struct Recorder {
    path: PathBuf,
    id: String,
    out: BufWriter<File>,
    thinned: Thinned,
}

impl Recorder {
    /// Opens a new record in the state folder, after removing the oldest ones above the limit.
    ///
    /// # Errors
    /// The folder or the file cannot be written to. A front end tells it and runs without a record.
    pub fn create(header: Header) -> Result<Self> {
        // Old records are removed there too.
        Self::create_in(&inside(&state_folder()?, "runs")?, header)
    }

    /// As [`Self::create`], in a folder of the caller's.
    pub fn create_in(folder: &Path, mut header: Header) -> Result<Self> {
        std::fs::create_dir_all(folder)
            .map_err(|e| Error::fault(format!("records folder {} cannot be made: {e}", folder.display())))?;
        folder::remove_oldest(folder, LIMIT_BYTES);
        // Two runs may start in the same second; the file's creation decides who has the id.
        for attempt in 0..100 {
            header.id = folder::new_id(attempt);
            let path = folder.join(format!("{}.jsonl", header.id));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => return Self::begin(path, file, &header),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(Error::fault(format!("record {} cannot be made: {e}", path.display()))),
            }
        }
        Err(Error::fault(format!("records folder {} has no free name", folder.display())))
    }

    /// Records into this file, which must not be there yet (a device may be).
    ///
    /// # Errors
    /// There is such a file, which is left as it is; or it cannot be made.
    pub fn create_new_at(path: &Path, mut header: Header) -> Result<Self> {
        Self::check_new(path)?;
        header.id = folder::new_id(0);
        let device = path.exists();
        let file = OpenOptions::new().write(true).create_new(!device).open(path);
        let file = file.map_err(|e| Error::fault(format!("record {} cannot be made: {e}", path.display())))?;
        Self::begin(path.to_path_buf(), file, &header)
    }

    /// Refuses a file that is there already.
    pub fn check_new(path: &Path) -> Result<()> {
        if path.is_file() || path.is_dir() {
            let path = path.display();
            return Err(Error::input(format!("record {path} is there already: give another name, or remove it first")));
        }
        Ok(())
    }

    /// Records into this file, replacing it.
    pub fn create_at(path: &Path, mut header: Header) -> Result<Self> {
        header.id = folder::new_id(0);
        let file =
            File::create(path).map_err(|e| Error::fault(format!("record {} cannot be made: {e}", path.display())))?;
        Self::begin(path.to_path_buf(), file, &header)
    }

    fn begin(path: PathBuf, file: File, header: &Header) -> Result<Self> {
        let mut recorder = Self { path, id: header.id.clone(), out: BufWriter::new(file), thinned: Thinned::default() };
        let line = serde_json::to_string(header).map_err(|e| Error::fault(format!("record header: {e}")))?;
        recorder.line(&line, true)?;
        Ok(recorder)
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes one event, if it is one that is recorded.
    ///
    /// # Errors
    /// The line could not be written or flushed; nothing should be written after it.
    pub fn write(&mut self, event: &Event) -> Result<()> {
        if event.is_for_screen() {
            return match self.thinned.take_in(event) {
                Some(line) => self.line(&line, false),
                None => Ok(()),
            };
        }
        if matches!(event, Event::Ended { .. }) {
            for line in self.thinned.last() {
                self.line(&line, false)?;
            }
        }
        if matches!(event, Event::Status { status: Status::Pruned, .. })
            && let Some(line) = self.thinned.before_pruning()
        {
            self.line(&line, false)?;
        }
        let flush =
            matches!(event, Event::Started { .. } | Event::Grown { .. } | Event::Act { .. } | Event::Ended { .. });
        let line = serde_json::to_string(event).map_err(|e| Error::fault(format!("event: {e}")))?;
        self.thinned.beside(line.len());
        self.line(&line, flush)
    }

    fn line(&mut self, line: &str, flush: bool) -> Result<()> {
        let written = self.out.write_all(line.as_bytes()).and_then(|()| self.out.write_all(b"\n"));
        let written = written.and_then(|()| if flush { self.out.flush() } else { Ok(()) });
        written.map_err(|e| Error::fault(format!("record {} cannot be written: {e}", self.path.display())))
    }
}

#[cfg(test)]
mod tests;
