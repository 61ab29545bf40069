//! The folder of a batch: its lock, its manifest, its files.

use super::results::Results;
use super::row::Row;
use super::summary::Summary;
use super::{Job, Options, Shard, header};
use crate::base::{Error, Result};
use crate::lm::Lm;
use crate::search::event::Limits;
use crate::search::record::{Header, Recorder};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

/// What a batch is of. Rows of batches that differ in it do not belong into one file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the program.
    pub version: String,
    pub model: String,
    pub checksum: Option<String>,
    pub seed: u64,
    pub shard: Option<Shard>,
    pub limits: Limits,
    /// By task and strategy.
    pub strategies: BTreeMap<String, StrategyText>,
    /// How many puzzles there are of each task.
    pub puzzles: BTreeMap<String, usize>,
    pub device: String,
    pub parallel: usize,
    pub started: String,
    pub command: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StrategyText {
    pub text: String,
    /// Prompt templates by origin.
    pub prompts: Vec<(String, String)>,
}

impl Manifest {
    fn new(jobs: &[Job], lm: &dyn Lm, options: &Options) -> Self {
        let mut strategies = BTreeMap::new();
        let mut puzzles: BTreeMap<String, std::collections::BTreeSet<&str>> = BTreeMap::new();
        for job in jobs {
            let name = format!("{}/{}", job.puzzle.task(), job.strategy.name);
            strategies.entry(name).or_insert_with(|| {
                let Header { strategy_text, prompts, .. } = header(job, lm, options);
                StrategyText { text: strategy_text, prompts }
            });
            puzzles.entry(job.puzzle.task().to_string()).or_default().insert(job.puzzle.id());
        }
        let info = lm.info();
        Self {
            version: env!("CARGO_PKG_VERSION").to_string(),
            model: info.name.clone(),
            checksum: info.checksum.clone(),
            seed: options.seed,
            shard: options.shard,
            limits: options.limits,
            strategies,
            puzzles: puzzles.into_iter().map(|(task, ids)| (task, ids.len())).collect(),
            device: info.device.clone(),
            parallel: options.parallel,
            started: crate::search::record::utc_now(),
            command: crate::search::record::without_secrets(&options.command),
        }
    }

    /// What rows of `other` would mean something else by; `None` where they belong together.
    fn conflict(&self, other: &Self) -> Option<String> {
        let differs = |what: &str, here: &dyn std::fmt::Display, there: &dyn std::fmt::Display| {
            Some(format!("{what} was {there} and is {here} now"))
        };
        let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "not known".into());
        if self.model != other.model && (self.checksum.is_none() || self.checksum != other.checksum) {
            return differs("the model", &self.model, &other.model);
        }
        if self.checksum != other.checksum {
            return differs("the model's checksum", &or_none(&self.checksum), &or_none(&other.checksum));
        }
        if self.seed != other.seed {
            return differs("the seed", &self.seed, &other.seed);
        }
        if self.shard != other.shard {
            return Some("the shard is another one".into());
        }
        if self.limits != other.limits {
            return Some("the limits are others".into());
        }
        let changed =
            self.strategies.iter().find(|(name, text)| other.strategies.get(*name).is_some_and(|t| t != *text));
        changed.map(|(name, _)| format!("the strategy `{name}` or one of its prompts was changed"))
    }
}

/// An open folder. Its lock is held until it is dropped, or the process ends in any way.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    pub results: Results,
    /// Rows that were there.
    pub rows: Vec<Row>,
    _lock: File,
}

impl Folder {
    pub fn open(options: &Options, jobs: &[Job], lm: &dyn Lm, note: &mut dyn FnMut(String)) -> Result<Self> {
        let path = options.out.clone();
        std::fs::create_dir_all(&path)
            .map_err(|e| Error::fault(format!("folder {} cannot be made: {e}", path.display())))?;
        let lock = lock(&path)?;
        let manifest = Manifest::new(jobs, lm, options);
        let results = path.join("results.jsonl");
        if let Some(old) = read_manifest(&path)? {
            if !options.resume {
                return Err(Error::input(format!(
                    "{} holds results already; --resume goes on with them, another --out keeps them",
                    path.display()
                )));
            }
            if let Some(what) = manifest.conflict(&old) {
                return Err(Error::input(format!(
                    "{} holds results of something else: {what}; choose another --out",
                    path.display()
                )));
            }
        }
        let (results, rows) = Results::open(&results, note)?;
        write_whole(&path.join("manifest.json"), &pretty(&manifest)?)?;
        Ok(Self { path, results, rows, _lock: lock })
    }

    /// A record in the folder `events` for one run.
    pub fn recorder(&self, job: &Job, lm: &dyn Lm, options: &Options) -> Result<Recorder> {
        let folder = self.path.join("events");
        std::fs::create_dir_all(&folder)
            .map_err(|e| Error::fault(format!("folder {} cannot be made: {e}", folder.display())))?;
        let key = job.key();
        let plain = |text: &str| -> String {
            text.chars().map(|c| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '_' }).take(60).collect()
        };
        // Ids that look alike as file names are told apart by a number of their own.
        let part = crate::base::rng::part(&key.id) & 0xffff;
        let name = format!("{}.{}.{}.{part:04x}.jsonl", plain(&key.task), plain(&key.id), plain(&key.strategy));
        Recorder::create_at(&folder.join(name), header(job, lm, options))
    }

    pub fn write_summary(&self, summary: &Summary) -> Result<()> {
        write_whole(&self.path.join("summary.csv"), &summary.csv())?;
        write_whole(&self.path.join("summary.md"), &summary.markdown())
    }
}

fn lock(folder: &Path) -> Result<File> {
    let path = folder.join("lock");
    let fault = |e: std::io::Error| Error::fault(format!("{} cannot be locked: {e}", path.display()));
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(fault)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::input(format!(
            "another batch is writing to {}; wait for it, or choose another --out",
            folder.display()
        ))),
        Err(TryLockError::Error(e)) => Err(fault(e)),
    }
}

fn read_manifest(folder: &Path) -> Result<Option<Manifest>> {
    let path = folder.join("manifest.json");
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let results = folder.join("results.jsonl");
            if std::fs::metadata(&results).is_ok_and(|meta| meta.len() > 0) {
                let results = results.display();
                return Err(Error::input(format!(
                    "{results} is there without its manifest.json; choose another --out"
                )));
            }
            return Ok(None);
        }
        Err(e) => return Err(Error::input(format!("{}: {e}", path.display()))),
    };
    serde_json::from_slice(&bytes).map(Some).map_err(|e| Error::input(format!("{}: {e}", path.display())))
}

fn pretty(manifest: &Manifest) -> Result<String> {
    let text = serde_json::to_string_pretty(manifest).map_err(|e| Error::fault(format!("manifest: {e}")))?;
    Ok(text + "\n")
}

/// Writes a file so that it is there whole or as it was before.
fn write_whole(path: &Path, text: &str) -> Result<()> {
    let beside = path.with_extension("tmp");
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    };
    write().map_err(|e| {
        // Half a file beside is of no use to anyone.
        let _ = std::fs::remove_file(&beside);
        Error::fault(format!("{} cannot be written: {e}", path.display()))
    })
}
