//! Texts that others wrote, read up to a limit: a device or a pipe without an end takes neither all memory nor all time.

use super::{Error, Result};
use std::io::Read;
use std::path::Path;

/// The text of a file, or of a pipe, of at most `limit` bytes.
///
/// # Errors
/// It cannot be read, is longer, or is not UTF-8; the message does not name the file.
pub fn text(path: &Path, limit: u64) -> Result<String> {
    let file = std::fs::File::open(path).map_err(|e| Error::input(format!("cannot be read: {e}")))?;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|e| Error::input(format!("cannot be read: {e}")))?;
    if bytes.len() as u64 > limit {
        return Err(Error::input(format!("is longer than {}", super::size::Human(limit))));
    }
    String::from_utf8(bytes)
        .map_err(|e| Error::input(format!("is not UTF-8 text (byte {})", e.utf8_error().valid_up_to())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_up_to_their_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t");
        let message = |limit| text(&path, limit).unwrap_err().message().to_string();
        assert!(message(9).contains("cannot be read"));
        std::fs::write(&path, "é12").unwrap();
        assert_eq!(text(&path, 4).unwrap(), "é12");
        assert_eq!(message(3), "is longer than 3 B");
        std::fs::write(&path, b"ab\xff").unwrap();
        assert_eq!(message(9), "is not UTF-8 text (byte 2)");
        let endless = text(Path::new("/dev/zero"), 1 << 16).unwrap_err();
        assert!(endless.message().contains("longer than 64.0 KiB"), "{endless}");
        assert!(text(folder.path(), 9).unwrap_err().message().contains("cannot be read"));
    }
}
