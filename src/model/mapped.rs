//! Files that hold weights, mapped into memory, and small text files, read with a limit.
//!
//! Refuses what cannot be a model file before anyone parses it: a missing, empty or special file, a saved web page, a
//! Git LFS pointer, an archive.

use crate::base::{Error, Result};
use memmap2::Mmap;
use std::fs::{File, Metadata};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// Opens a regular file. Others are not even opened: a pipe would have this wait until someone writes into it.
fn open(path: &Path) -> Result<(File, Metadata)> {
    let shown = path.display();
    let cannot = |e| Error::input(format!("{shown}: cannot be opened: {e}"));
    let meta = std::fs::metadata(path).map_err(cannot)?;
    if !meta.is_file() {
        return Err(Error::input(format!("{shown}: is not a regular file")));
    }
    let file = File::open(path).map_err(cannot)?;
    let meta = file.metadata().map_err(cannot)?;
    Ok((file, meta))
}

/// Maps a regular, non-empty file.
pub fn map(path: &Path) -> Result<Arc<Mmap>> {
    let shown = path.display();
    let (file, meta) = open(path)?;
    if meta.len() == 0 {
        return Err(Error::input(format!("{shown}: is empty (0 bytes): the download is incomplete, fetch it again")));
    }
    // SAFETY: the map is read-only and private. Another process that truncates the file while it is mapped would end
    // this one with SIGBUS; every range is checked against the length seen here, which is all a reader can do.
    let map = unsafe { Mmap::map(&file) }.map_err(|e| Error::input(format!("{shown}: cannot be mapped: {e}")))?;
    Ok(Arc::new(map))
}

/// What a file that is no model file looks like, as the rest of a message; `None` where it is not recognised.
pub fn mistaken_for(bytes: &[u8]) -> Option<&'static str> {
    let head = &bytes[..bytes.len().min(512)];
    let text = String::from_utf8_lossy(head).trim_start().to_ascii_lowercase();
    if text.starts_with("<!doctype")
        || text.starts_with("<html")
        || text.starts_with("<?xml")
        || text.starts_with("<head")
    {
        Some("this is a web page, not a model: the address led to a page (or to a login) instead of the file itself")
    } else if text.starts_with("version https://git-lfs") {
        Some("this is a Git LFS pointer, not the model it stands for: fetch the file with `git lfs pull`")
    } else if head.starts_with(b"PK\x03\x04") {
        Some("this is a zip archive (a PyTorch checkpoint, perhaps): a GGUF file or a safetensors folder is needed")
    } else {
        None
    }
}

/// Reads a text file of at most `limit` bytes; a mark of its byte order, with which some editors begin a text, is no part of it.
pub fn read_text(path: &Path, limit: u64) -> Result<String> {
    let shown = path.display();
    let (file, _) = open(path)?;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|e| Error::input(format!("{shown}: cannot be read: {e}")))?;
    if bytes.len() as u64 > limit {
        return Err(Error::input(format!("{shown}: has more than {limit} bytes, too many for what it is")));
    }
    if let Some(what) = mistaken_for(&bytes) {
        return Err(Error::input(format!("{shown}: {what}")));
    }
    let text = String::from_utf8(bytes).map_err(|e| {
        Error::input(format!("{shown}: is not UTF-8 text (first wrong byte at {})", e.utf8_error().valid_up_to()))
    })?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_string).unwrap_or(text))
}

/// [`read_text`] for a file that need not be there.
pub fn read_text_if_there(path: &Path, limit: u64) -> Result<Option<String>> {
    if path.exists() { read_text(path, limit).map(Some) } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_model_file_is_named() {
        let check = |bytes: &[u8], part: Option<&str>| {
            let found = mistaken_for(bytes);
            assert_eq!(found.is_some(), part.is_some(), "{found:?}");
            assert!(found.unwrap_or("").contains(part.unwrap_or("")), "{found:?}");
        };
        check(b"\n  <!DOCTYPE html><html>", Some("web page"));
        check(b"<HTML>", Some("web page"));
        check(b"version https://git-lfs.github.com/spec/v1\noid", Some("LFS"));
        check(b"PK\x03\x04....", Some("zip"));
        check(b"GGUF\x03\0\0\0", None);
        check(b"", None);
    }

    #[test]
    fn long_missing_and_special_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("long.txt");
        std::fs::write(&path, vec![b'a'; 100]).unwrap();
        assert_eq!(read_text(&path, 100).unwrap().len(), 100);
        assert!(read_text(&path, 99).unwrap_err().message().contains("more than 99 bytes"));
        assert!(read_text_if_there(&dir.path().join("none"), 9).unwrap().is_none());
        assert!(map(dir.path()).unwrap_err().message().contains("not a regular file"));
        std::fs::write(&path, b"").unwrap();
        assert!(map(&path).unwrap_err().message().contains("empty (0 bytes)"));
    }

    #[test]
    fn a_mark_of_the_byte_order_is_no_part_of_a_text() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        std::fs::write(&path, "\u{feff}{\"a\": \"\u{feff}\"}").unwrap();
        assert_eq!(read_text(&path, 100).unwrap(), "{\"a\": \"\u{feff}\"}");
    }

    #[test]
    fn a_pipe_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe.gguf");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        for error in [map(&path).map(drop).unwrap_err(), read_text(&path, 9).map(drop).unwrap_err()] {
            assert!(error.message().contains("not a regular file"), "{error}");
        }
    }
}
