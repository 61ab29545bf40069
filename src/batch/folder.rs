//! The folder of a batch: its lock, its manifest, its files.

use super::results::Results;
use super::row::{Key, Row};
use super::summary::Summary;
use super::{Job, Options, Shard, header};
use crate::base::{Error, Result, inside};
use crate::lm::Lm;
use crate::search::event::Limits;
use crate::search::record::Recorder;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

/// What a batch is of. Rows of batches that differ in it do not belong into one file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the program.
    pub version: String,
    pub seed: u64,
    pub shard: Option<Shard>,
    pub limits: Limits,
    /// Rows that it will have.
    pub rows: usize,
    /// By name, those opened so far.
    pub models: BTreeMap<String, ModelEntry>,
    /// By task and strategy.
    pub strategies: BTreeMap<String, StrategyText>,
    /// How many puzzles there are of each task.
    pub puzzles: BTreeMap<String, usize>,
    pub parallel: usize,
    pub started: String,
    pub command: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelEntry {
    pub checksum: Option<String>,
    pub device: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StrategyText {
    pub text: String,
    /// Prompt templates by origin.
    pub prompts: Vec<(String, String)>,
}

impl Manifest {
    fn new(jobs: &[Job], options: &Options) -> Self {
        let mut strategies = BTreeMap::new();
        let mut puzzles: BTreeMap<String, BTreeSet<(usize, &str)>> = BTreeMap::new();
        for job in jobs {
            let name = format!("{}/{}", job.puzzle.task(), job.strategy.name);
            strategies.entry(name).or_insert_with(|| {
                let sources = job.strategy.prompts().chain(&job.strategy.parts);
                let prompts = sources.map(|p| (p.origin.clone(), p.text.clone())).collect();
                StrategyText { text: job.strategy.text.clone(), prompts }
            });
            puzzles.entry(job.puzzle.task().to_string()).or_default().insert((job.puzzle.size(), job.puzzle.id()));
        }
        Self {
            version: env!("CARGO_PKG_VERSION").to_string(),
            seed: options.seed,
            shard: options.shard,
            limits: options.limits,
            rows: jobs.len(),
            models: BTreeMap::new(),
            strategies,
            puzzles: puzzles.into_iter().map(|(task, ids)| (task, ids.len())).collect(),
            parallel: options.parallel,
            started: crate::search::record::utc_now(),
            command: crate::search::record::without_secrets(&options.command),
        }
    }

    /// What rows of `other` would mean something else by; `None` where they belong together.
    fn conflict(&self, other: &Self) -> Option<String> {
        if self.seed != other.seed {
            return Some(format!("the seed was {} and is {} now", other.seed, self.seed));
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

    /// Takes in what an earlier run into the same folder was of: its rows stand there too.
    fn join(&mut self, old: Self, rows: usize) {
        self.rows = rows;
        self.models.extend(old.models);
        for (name, text) in old.strategies {
            self.strategies.entry(name).or_insert(text);
        }
        for (task, count) in old.puzzles {
            let own = self.puzzles.entry(task).or_default();
            *own = count.max(*own);
        }
    }
}

/// An open folder. Its lock is held until it is dropped, or the process ends in any way.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    manifest: Manifest,
    pub results: Results,
    /// Rows that were there.
    pub rows: Vec<Row>,
    /// The models of these rows.
    models: BTreeSet<String>,
    /// What this run began, to be taken back where it comes to nothing; `None` where it goes on with another's.
    begun: Option<Begun>,
    _lock: File,
}

/// Folders and files that were not there before.
#[derive(Debug)]
struct Begun {
    /// From the batch's folder upwards.
    folders: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

impl Folder {
    pub fn open(options: &Options, jobs: &[Job], note: &mut dyn FnMut(String)) -> Result<Self> {
        let path = options.out.clone();
        let folders = path.ancestors().take_while(|folder| folder.symlink_metadata().is_err());
        let folders = folders.filter(|folder| !folder.as_os_str().is_empty()).map(Path::to_path_buf).collect();
        std::fs::create_dir_all(&path)
            .map_err(|e| Error::fault(format!("folder {} cannot be made: {e}", path.display())))?;
        let mut files: Vec<PathBuf> = ["results.jsonl", "manifest.json", "lock"].map(|name| path.join(name)).into();
        files.retain(|file| file.symlink_metadata().is_err());
        let lock = lock(&path)?;
        let mut manifest = Manifest::new(jobs, options);
        let results = inside(&path, "results.jsonl")?;
        // A batch that was cut before its first row, and recorded nothing, has left nothing that another could spoil.
        let rows_there = results.metadata().is_ok_and(|meta| meta.len() > 0);
        let recorded = std::fs::read_dir(path.join("events")).is_ok_and(|mut records| records.next().is_some());
        let old = read_manifest(&path)?.filter(|_| rows_there || recorded);
        if let Some(old) = &old {
            if !options.resume {
                return Err(Error::input(format!(
                    "{} holds results already; --resume goes on with them, another --out keeps them",
                    path.display()
                )));
            }
            if let Some(what) = manifest.conflict(old) {
                return Err(Error::input(format!(
                    "{} holds results of something else: {what}; choose another --out",
                    path.display()
                )));
            }
        }
        let (results, rows) = Results::open(&results, note)?;
        let begun = old.is_none().then_some(Begun { folders, files });
        if let Some(old) = old {
            let keys: BTreeSet<Key> = rows.iter().map(Row::key).chain(jobs.iter().map(Job::key)).collect();
            manifest.join(old, keys.len());
        }
        write_whole(&path, "manifest.json", &pretty(&manifest)?)?;
        let models = rows.iter().map(|row| row.model.clone()).collect();
        Ok(Self { path, manifest, results, rows, models, begun, _lock: lock })
    }

    /// Takes back what this run began, which came to nothing before it had a row: the same command, mended, is not to find
    /// a folder of results.
    pub fn take_back(self) {
        let Some(Begun { folders, files }) = &self.begun else { return };
        // What cannot be removed stays, and a folder that holds something else. The lock goes last: another batch may begin
        // once it is gone.
        for file in files {
            let _ = std::fs::remove_file(file);
        }
        for folder in folders {
            let _ = std::fs::remove_dir(folder);
        }
    }

    /// Notes a model that is about to make rows. Refused where rows of this name came from other weights.
    pub fn opened(&mut self, name: &str, lm: &dyn Lm) -> Result<()> {
        let info = lm.info();
        let entry = ModelEntry { checksum: info.checksum.clone(), device: info.device.clone() };
        let rows_there = self.models.contains(name);
        let old = self.manifest.models.insert(name.to_string(), entry);
        if let Some(old) = old.filter(|old| rows_there && old.checksum != info.checksum) {
            let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "not known".into());
            return Err(Error::input(format!(
                "{} holds results of something else: the checksum of the model {name} was {} and is {} now; choose another \
                 --out",
                self.path.display(),
                or_none(&old.checksum),
                or_none(&info.checksum)
            )));
        }
        write_whole(&self.path, "manifest.json", &pretty(&self.manifest)?)
    }

    /// A record in the folder `events` for one run.
    pub fn recorder(&self, job: &Job, lm: &dyn Lm, options: &Options) -> Result<Recorder> {
        let folder = inside(&self.path, "events")?;
        std::fs::create_dir_all(&folder)
            .map_err(|e| Error::fault(format!("folder {} cannot be made: {e}", folder.display())))?;
        let key = job.key();
        let plain = |text: &str| -> String {
            text.chars().map(|c| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '_' }).take(60).collect()
        };
        // Ids that look alike as file names are told apart by a number of their own.
        let part = crate::base::rng::part(&format!("{key}")) & 0xffff_ffff;
        let name = format!("{}.{}.{}.{part:08x}.jsonl", plain(&key.task), plain(&key.id), plain(&key.strategy));
        Recorder::create_at(&inside(&folder, &name)?, header(job, lm, options))
    }

    pub fn write_summary(&self, summary: &Summary) -> Result<()> {
        write_whole(&self.path, "summary.csv", &summary.csv())?;
        write_whole(&self.path, "summary.md", &summary.markdown())
    }
}

fn lock(folder: &Path) -> Result<File> {
    let path = inside(folder, "lock")?;
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

/// The manifest of a folder; `None` where nothing is there yet.
///
/// # Errors
/// It cannot be read, or results are there without it.
pub fn read_manifest(folder: &Path) -> Result<Option<Manifest>> {
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

/// Writes a file so that it is there whole or as it was before. A link of its name is replaced, not followed.
fn write_whole(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    let beside = inside(folder, &format!("{name}.tmp"))?;
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside, &path)
    };
    write().map_err(|e| {
        // Half a file beside is of no use to anyone.
        let _ = std::fs::remove_file(&beside);
        Error::fault(format!("{} cannot be written: {e}", path.display()))
    })
}
