//! Standard output for results: a failed write is an error with exit code 4, a closed pipe ends the program quietly as
//! the signal would (128 + 13).
//!
//! Whatever goes out here is safe on a terminal, whoever wrote the text: this is the last place it passes.

use crate::base::text::{escape_json, sanitize};
use crate::base::{Error, Result};
use serde::Serialize;
use std::io::{ErrorKind, Write};

/// Writes one line of results and flushes it.
pub fn line(text: &str) -> Result<()> {
    write(&format!("{}\n", sanitize(text)))
}

/// Writes a piece of a result that is still growing.
pub fn piece(text: &str) -> Result<()> {
    write(&sanitize(text))
}

fn write(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    finish(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

fn finish(written: std::io::Result<()>) -> Result<()> {
    match written {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == ErrorKind::BrokenPipe => std::process::exit(128 + 13),
        Err(e) => Err(Error::fault(format!("standard output cannot be written: {e}"))),
    }
}

/// One JSON object as a line.
pub fn json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string(value).map_err(|e| Error::fault(format!("a result cannot be written: {e}")))?;
    write(&format!("{}\n", escape_json(&text)))
}

/// Results for what writes them itself: by the same way as all others.
pub struct Results;

impl Write for Results {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        piece(&String::from_utf8_lossy(bytes)).map_err(std::io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Tells the user something on standard error; a closed standard error is nobody listening, not a failure.
pub fn tell(text: &str) {
    let mut err = std::io::stderr().lock();
    // Nothing can be done where even standard error is gone.
    drop(writeln!(err, "{}", sanitize(text)));
}
