//! Files that are there whole, or as they were before: what a full disk or a fault cuts short is never left in a file's
//! place, nor beside it.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result, Write};
use std::path::{Path, PathBuf};

/// Names that are tried for the file beside; others of this process may be on their way.
const NAMES: u32 = 100;

/// Writes a file, replacing what is there once everything is written. Where a link leads is written, what is no file (a
/// device, a pipe) is written as it is, and a file that may not be written stays.
pub fn write_whole(path: &Path, text: &str) -> Result<()> {
    let mut mode = None;
    if let Ok(there) = path.metadata() {
        if !there.is_file() {
            return std::fs::write(path, text);
        }
        // Replacing asks the folder alone: what protects the file itself is asked here.
        OpenOptions::new().write(true).open(path)?;
        mode = Some(there.permissions());
    }
    let path = target(path);
    let (part, mut file) = beside(&path)?;
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| mode.map_or(Ok(()), |mode| file.set_permissions(mode)))
        .and_then(|()| file.sync_all())
        .and_then(|()| std::fs::rename(&part, &path));
    removed_unless(written, &part)
}

/// Writes a file that was not there.
///
/// # Errors
/// Of kind [`ErrorKind::AlreadyExists`]: it was, and is left as it is.
pub fn write_new(path: &Path, text: &str) -> Result<()> {
    let mut file = File::create_new(path)?;
    removed_unless(file.write_all(text.as_bytes()).and_then(|()| file.sync_all()), path)
}

/// Half a file is of no use to anyone. That it cannot be removed changes nothing about why.
fn removed_unless(written: Result<()>, path: &Path) -> Result<()> {
    written.inspect_err(|_| drop(std::fs::remove_file(path)))
}

/// What a link leads to, also where nothing is there yet.
fn target(path: &Path) -> PathBuf {
    let led = || {
        let to = std::fs::read_link(path).ok()?;
        Some(path.parent().map_or_else(|| to.clone(), |folder| folder.join(&to)))
    };
    path.canonicalize().ok().or_else(led).unwrap_or_else(|| path.to_path_buf())
}

/// A file of a name of its own, in the same folder and so of the same disk. The name does not grow with the file's, which
/// may be as long as names can be.
fn beside(path: &Path) -> Result<(PathBuf, File)> {
    for number in 0..NAMES {
        let part = path.with_file_name(format!(".totara-{}-{number}.part", std::process::id()));
        match File::create_new(&part) {
            Ok(file) => return Ok((part, file)),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            // The file itself may well be one that can be written.
            Err(e) => return Err(Error::new(e.kind(), format!("no file can be made beside it: {e}"))),
        }
    }
    Err(Error::new(ErrorKind::AlreadyExists, "its folder is full of unfinished files (.totara-*.part): remove them"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn names(folder: &Path) -> Vec<String> {
        let names = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_where_it_is_and_nothing_lies_beside() {
        let place = tempfile::tempdir().unwrap();
        let (file, link, ahead) = (place.path().join("a.txt"), place.path().join("b"), place.path().join("c"));
        write_whole(&file, "one, longer").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        symlink("a.txt", &link).unwrap();
        symlink("new.txt", &ahead).unwrap();
        write_whole(&link, "two").unwrap();
        write_whole(&ahead, "three").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "two");
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o640, "for whom it was before");
        assert_eq!(std::fs::read_to_string(place.path().join("new.txt")).unwrap(), "three");
        assert!(link.is_symlink() && ahead.is_symlink());
        let longest = "x".repeat(255);
        write_whole(&place.path().join(&longest), "four").unwrap();
        assert_eq!(names(place.path()), ["a.txt", "b", "c", "new.txt", &longest]);
    }

    #[test]
    fn what_fails_leaves_everything_as_it_was() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("folder");
        std::fs::create_dir(&folder).unwrap();
        assert!(write_whole(&folder, "x").is_err());
        let error = write_whole(&place.path().join("none/a.txt"), "x").unwrap_err();
        assert!(error.kind() == ErrorKind::NotFound && error.to_string().contains("beside it"), "{error}");
        if Path::new("/dev/full").exists() {
            assert!(write_whole(Path::new("/dev/full"), "x").is_err(), "a device is written as it is");
        }
        let file = place.path().join("a.txt");
        write_new(&file, "one").unwrap();
        assert_eq!(write_new(&file, "two").unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "one");
        assert_eq!(names(place.path()), ["a.txt", "folder"]);
    }
}
