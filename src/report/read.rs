//! Reads folders of results. What cannot be read as a folder at all is an error; what is wrong inside one is a fault that
//! is told, and the rest is still read.

use super::{Arm, Collected, Entry, Origin, Source, got};
use crate::base::{Error, Result};
use crate::batch::results::{Line, scan};
use crate::batch::row::Row;
use crate::batch::{Manifest, Shard, StrategyText, read_manifest};
use std::collections::{BTreeMap, HashMap, btree_map};
use std::path::{Path, PathBuf};

/// Reads all folders, and the folders right below one that holds no results itself.
///
/// # Errors
/// A folder holds no results or cannot be read; a name stands for different things in two folders.
pub fn read(folders: &[PathBuf]) -> Result<Collected> {
    let mut reader = Reader::default();
    for folder in folders {
        if reader.folder(folder)? {
            continue;
        }
        let unreadable = |e: std::io::Error| Error::input(format!("{} cannot be read: {e}", folder.display()));
        let mut below: Vec<PathBuf> =
            std::fs::read_dir(folder).map_err(unreadable)?.flatten().map(|entry| entry.path()).collect();
        below.sort();
        let mut found = false;
        for inner in below.into_iter().filter(|path| path.is_dir()) {
            found |= reader.folder(&inner)?;
        }
        if !found {
            return Err(Error::input(format!(
                "{} holds no results: neither a manifest.json of `totara eval` nor a config.json of Graph of Thoughts, and \
                 no folder below it does",
                folder.display()
            )));
        }
    }
    Ok(reader.finish())
}

/// What a name stands for, and the folder that said so first.
type Said<T> = BTreeMap<String, (T, String)>;

#[derive(Default)]
struct Reader {
    collected: Collected,
    strategies: Said<StrategyText>,
    checksums: Said<Option<String>>,
    /// What each puzzle asks.
    puzzles: Said<String>,
    versions: Said<()>,
    /// Where an entry of an arm and a puzzle stands, and whose it is.
    places: HashMap<(usize, String, usize, String), (usize, String)>,
    twice: BTreeMap<(String, String), usize>,
    shards: BTreeMap<String, Vec<Shard>>,
}

impl Reader {
    /// Reads one folder; `false` where it holds no results.
    fn folder(&mut self, folder: &Path) -> Result<bool> {
        if let Some(manifest) = read_manifest(folder)? {
            self.totara(folder, &manifest)?;
            return Ok(true);
        }
        let Some(found) = got::read(folder)? else { return Ok(false) };
        self.graph_of_thoughts(folder, found)?;
        Ok(true)
    }

    fn totara(&mut self, folder: &Path, manifest: &Manifest) -> Result<()> {
        let name = folder.display().to_string();
        for (strategy, text) in &manifest.strategies {
            let differs = "the strategy or one of its prompts";
            agree(&mut self.strategies, strategy, text, &name, differs)?;
        }
        for (model, entry) in &manifest.models {
            agree(&mut self.checksums, model, &entry.checksum, &name, "the weights of the model")?;
        }
        self.versions.entry(manifest.version.clone()).or_insert(((), name.clone()));
        if let Some(shard) = manifest.shard {
            // Shards of one batch have everything else in common.
            let whole = format!("{:?} {:?} {}", manifest.strategies.keys(), manifest.limits, manifest.seed);
            self.shards.entry(whole).or_default().push(shard);
        }
        let path = folder.join("results.jsonl");
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(Error::input(format!("{} cannot be read: {e}", path.display()))),
        };
        let mut rows = 0;
        for line in scan(&bytes) {
            match line {
                Line::Row { row, .. } => {
                    rows += 1;
                    self.row(&name, manifest, *row)?;
                }
                Line::Bad { number, why } => {
                    self.collected.faults.push(format!("{}, line {number}: {why}", path.display()));
                }
                Line::Torn { number, bytes } => self.collected.faults.push(format!(
                    "{}, line {number}: the last row was cut ({bytes} bytes); `totara eval --resume` runs its puzzle again",
                    path.display()
                )),
            }
        }
        if rows < manifest.rows {
            self.collected.notes.push(format!("{name} has {rows} of {} rows: it is not finished", manifest.rows));
        }
        self.collected.sources.push(Source {
            folder: name,
            origin: Origin::Totara,
            rows,
            expected: Some(manifest.rows),
            command: manifest.command.join(" "),
        });
        Ok(())
    }

    fn row(&mut self, folder: &str, manifest: &Manifest, row: Row) -> Result<()> {
        let arm = Arm {
            origin: Origin::Totara,
            strategy: row.strategy,
            settings: row.settings,
            model: row.model,
            seed: Some(manifest.seed),
            limits: manifest.limits,
        };
        let entry = Entry {
            arm: self.arm(arm),
            task: row.task,
            size: row.size,
            id: row.id,
            solved: row.solved,
            error_score: row.error_score.map(|errors| errors as f64),
            thoughts: Some(row.thoughts as f64),
            tokens: Some(row.tokens as f64),
            logical_tokens: Some(row.logical_tokens as f64),
            seconds: Some(row.seconds),
        };
        self.entry(folder, entry, Some(row.puzzle).filter(|digest| !digest.is_empty()))
    }

    fn graph_of_thoughts(&mut self, folder: &Path, found: got::Found) -> Result<()> {
        let name = folder.display().to_string();
        self.collected.faults.extend(found.faults);
        self.collected.notes.extend(found.notes);
        let rows = found.results.len();
        for result in found.results {
            let arm = Arm {
                origin: Origin::GraphOfThoughts,
                strategy: result.method,
                settings: String::new(),
                model: found.model.clone(),
                seed: None,
                limits: crate::search::event::Limits::default(),
            };
            let entry = Entry {
                arm: self.arm(arm),
                task: result.task,
                size: result.size,
                id: result.id,
                solved: result.solved,
                error_score: result.error_score,
                thoughts: Some(result.thoughts),
                tokens: None,
                logical_tokens: Some(result.tokens),
                seconds: None,
            };
            self.entry(&name, entry, result.digest)?;
        }
        self.collected.sources.push(Source {
            folder: name,
            origin: Origin::GraphOfThoughts,
            rows,
            expected: None,
            command: String::new(),
        });
        Ok(())
    }

    fn arm(&mut self, arm: Arm) -> usize {
        let arms = &mut self.collected.arms;
        arms.iter().position(|known| *known == arm).unwrap_or_else(|| {
            arms.push(arm);
            arms.len() - 1
        })
    }

    fn entry(&mut self, folder: &str, entry: Entry, digest: Option<String>) -> Result<()> {
        if let Some(digest) = &digest {
            let puzzle = format!("puzzle {} of {} {}", entry.id, entry.task, entry.size);
            agree(&mut self.puzzles, &puzzle, digest, folder, "what is asked in")?;
        }
        let place = (entry.arm, entry.task.clone(), entry.size, entry.id.clone());
        if let Some((at, first)) = self.places.get(&place) {
            let known = &self.collected.entries[*at];
            if (known.solved, known.error_score, known.tokens) != (entry.solved, entry.error_score, entry.tokens) {
                self.collected.faults.push(format!(
                    "puzzle {} of {} {} under `{}` is in {first} and in {folder} with different results; the first counts",
                    entry.id, entry.task, entry.size, self.collected.arms[entry.arm].strategy
                ));
            }
            *self.twice.entry((first.clone(), folder.to_string())).or_default() += 1;
            return Ok(());
        }
        self.places.insert(place, (self.collected.entries.len(), folder.to_string()));
        self.collected.entries.push(entry);
        Ok(())
    }

    fn finish(mut self) -> Collected {
        for ((first, second), count) in &self.twice {
            self.collected.notes.push(format!("{count} rows of {second} are in {first} too; they count once"));
        }
        for shards in self.shards.values() {
            let of = shards[0].of;
            let missing: Vec<String> = (1..=of)
                .filter(|&index| shards.iter().all(|shard| shard.of == of && shard.index != index))
                .map(|index| format!("{index}/{of}"))
                .collect();
            if !missing.is_empty() {
                self.collected.notes.push(format!("shards that are not here: {}", missing.join(", ")));
            }
        }
        if self.versions.len() > 1 {
            let all: Vec<&str> = self.versions.keys().map(String::as_str).collect();
            self.collected.notes.push(format!("the folders were written by different versions: {}", all.join(", ")));
        }
        self.collected
    }
}

/// Notes what a name stands for; refused where it stood for something else.
fn agree<T: PartialEq + Clone>(said: &mut Said<T>, name: &str, what: &T, folder: &str, differs: &str) -> Result<()> {
    match said.entry(name.to_string()) {
        btree_map::Entry::Vacant(slot) => {
            slot.insert((what.clone(), folder.to_string()));
            Ok(())
        }
        btree_map::Entry::Occupied(known) if known.get().0 == *what => Ok(()),
        btree_map::Entry::Occupied(known) => Err(Error::input(format!(
            "these cannot be compared: {differs} `{name}` differs between {} and {folder}; report them apart",
            known.get().1
        ))),
    }
}
