//! SHA-256 of weights files, remembered by path, size and time of change, so that it is computed once.

use crate::base::{Error, Result};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The checksum of a model: of its one file, or of the lines `digest  name` of several.
pub fn of_files(files: &[PathBuf]) -> Result<String> {
    let memory = super::cache_dir().ok().map(|d| d.join("checksums"));
    of_files_in(files, memory.as_deref())
}

fn of_files_in(files: &[PathBuf], memory: Option<&Path>) -> Result<String> {
    if let [file] = files {
        return of_file(file, memory);
    }
    let mut all = Sha256::new();
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        all.update(format!("{}  {name}\n", of_file(file, memory)?));
    }
    Ok(hex(&all.finalize()))
}

fn of_file(path: &Path, memory: Option<&Path>) -> Result<String> {
    let place = |e: std::io::Error| Error::input(format!("{}: {e}", path.display()));
    let meta = fs::metadata(path).map_err(place)?;
    let changed = meta.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok()).map_or(0, |d| d.as_nanos());
    let stamp = format!("{} {changed}", meta.len());
    let full = fs::canonicalize(path).map_err(place)?;
    let note = memory.map(|m| m.join(hex(&Sha256::digest(full.as_os_str().as_encoded_bytes())[..16])));
    if let Some(digest) = note.as_ref().and_then(|n| remembered(n, &stamp)) {
        return Ok(digest);
    }
    let digest = digest(path).map_err(place)?;
    if let Some(note) = &note {
        // A note that cannot be kept costs time only.
        let _ = remember(note, &stamp, &digest);
    }
    Ok(digest)
}

fn digest(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0u8; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&hash.finalize())),
            read => hash.update(&buffer[..read]),
        }
    }
}

fn remembered(note: &Path, stamp: &str) -> Option<String> {
    let text = fs::read_to_string(note).ok()?;
    let digest = text.strip_prefix(stamp)?.strip_prefix(' ')?.trim_end();
    (digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit())).then(|| digest.to_string())
}

fn remember(note: &Path, stamp: &str, digest: &str) -> std::io::Result<()> {
    let dir = note.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir)?;
    let part = note.with_extension(format!("{}", std::process::id()));
    fs::write(&part, format!("{stamp} {digest}\n"))?;
    fs::rename(&part, note)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_is_remembered_until_the_file_changes() {
        let dir = tempfile::tempdir().unwrap();
        let (file, memory) = (dir.path().join("a.gguf"), dir.path().join("memory"));
        fs::write(&file, b"abc").unwrap();
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let of = |file: &PathBuf| of_files_in(std::slice::from_ref(file), Some(&memory)).unwrap();
        assert_eq!(of(&file), abc);
        let note = fs::read_dir(&memory).unwrap().next().unwrap().unwrap().path();
        let forged = fs::read_to_string(&note).unwrap().replace(abc, &"0".repeat(64));
        fs::write(&note, forged).unwrap();
        assert_eq!(of(&file), "0".repeat(64), "the note is used");
        fs::write(&file, b"abcd").unwrap();
        assert_ne!(of(&file), "0".repeat(64), "a changed file is read again");
        assert_ne!(of_files_in(&[file.clone(), file.clone()], None).unwrap(), of(&file));
    }
}
