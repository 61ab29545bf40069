//! Many puzzles, several strategies, models and settings, no screen: one engine for all puzzles of a model, a row for each,
//! nothing lost.
//!
//! One folder holds a batch:
//!
//! | file | what |
//! |---|---|
//! | `manifest.json` | what was run: versions, model, strategies with their prompts, seed, device, command |
//! | `results.jsonl` | a row for each (task, puzzle, strategy, settings, model), synced to the disk one by one |
//! | `summary.csv`, `summary.md` | solved rates with Wilson intervals, means of errors and costs |
//! | `events/*.jsonl` | records of the single runs, where asked for |
//! | `lock` | held while a batch runs; the system lets go of it however the run ends |
//!
//! A kill at any moment, a full disk or a torn last line lose at most the puzzles in flight: `resume` drops a torn row,
//! skips what has a row, and runs the rest. A batch refuses to write into a folder that another one is writing to, or that
//! holds results of something else.

mod folder;
pub mod progress;
pub mod results;
pub mod row;
pub mod summary;

pub use folder::{Manifest, ModelEntry, StrategyText, read_manifest};

use crate::base::{Error, Result};
use crate::lm::Lm;
use crate::search::event::{Limits, Reason};
use crate::search::record::{Header, Recorder};
use crate::search::{RunSpec, solve};
use crate::strategy::Strategy;
use crate::task::Puzzle;
use folder::Folder;
use row::{Key, Row};
use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use summary::Summary;
use tokio::task::JoinSet;

/// One puzzle under one strategy with its settings, on one model.
#[derive(Clone)]
pub struct Job {
    pub puzzle: Arc<dyn Puzzle>,
    pub strategy: Arc<Strategy>,
    /// The strategy's variables that were set, as its row says them.
    pub settings: Arc<str>,
    /// What [`Models`] opens.
    pub model: Arc<str>,
}

impl Job {
    pub fn key(&self) -> Key {
        Key {
            task: self.puzzle.task().to_string(),
            size: self.puzzle.size(),
            id: self.puzzle.id().to_string(),
            strategy: self.strategy.name.clone(),
            model: row::model_name(&self.model),
            settings: self.settings.to_string(),
        }
    }
}

/// Opens a model when its first puzzle is to run: one engine, or several that share its puzzles (one a GPU). A model whose
/// puzzles all have rows is never opened, and only one is open at a time.
pub type Models = Arc<dyn Fn(&str) -> Result<Vec<Arc<dyn Lm>>> + Send + Sync>;

/// One part of a batch that several machines share, split by puzzle: `2/4`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Shard {
    /// From 1.
    pub index: usize,
    pub of: usize,
}

impl std::str::FromStr for Shard {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = || Error::input(format!("shard `{text}` is not of the form i/n with i from 1 to n, such as 2/4"));
        let (index, of) = text.split_once('/').ok_or_else(refuse)?;
        let shard = Self { index: index.parse().map_err(|_| refuse())?, of: of.parse().map_err(|_| refuse())? };
        if (1..=shard.of).contains(&shard.index) { Ok(shard) } else { Err(refuse()) }
    }
}

/// How a batch is run.
#[derive(Debug, Clone)]
pub struct Options {
    pub out: PathBuf,
    /// Puzzles in flight at once; at least 1.
    pub parallel: usize,
    /// Go on in a folder that holds results.
    pub resume: bool,
    pub shard: Option<Shard>,
    pub seed: u64,
    pub limits: Limits,
    /// Record every run in the folder `events`.
    pub records: bool,
    /// The command line, for the manifest.
    pub command: Vec<String>,
}

/// What a front end is told on the way.
pub enum News<'a> {
    /// Something worth a line on standard error.
    Note(String),
    /// So many rows were there, so many puzzles are to come.
    Begun {
        there: usize,
        to_come: usize,
    },
    Row(&'a Row),
}

/// How a batch ended.
#[derive(Debug)]
pub struct Done {
    pub summary: Summary,
    /// Puzzles without a row: only where the batch was stopped.
    pub missing: usize,
}

/// Runs the jobs that have no row yet, model by model. `stop` ends it early and cleanly: puzzles in flight are given up
/// without a row.
///
/// # Errors
/// Two jobs have the same key; the folder is in use, holds other results, or cannot be written to; a model cannot be
/// opened, which leaves no folder behind where there is no row yet; a row could not be written, which ends the batch at
/// once with all earlier rows intact.
pub async fn run(
    jobs: Vec<Job>,
    models: Models,
    options: &Options,
    stop: impl Future<Output = ()>,
    mut tell: impl FnMut(News<'_>),
) -> Result<Done> {
    let jobs = shard(distinct(jobs)?, options.shard);
    let mut folder = Folder::open(options, &jobs, &mut |note| tell(News::Note(note)))?;
    let wanted: BTreeSet<Key> = jobs.iter().map(Job::key).collect();
    let mut rows = std::mem::take(&mut folder.rows);
    rows.retain(|row| wanted.contains(&row.key()));
    let there: BTreeSet<Key> = rows.iter().map(Row::key).collect();
    let mut phases: Vec<(Arc<str>, VecDeque<Job>)> = Vec::new();
    for job in jobs.into_iter().filter(|job| !there.contains(&job.key())) {
        match phases.iter_mut().find(|(model, _)| *model == job.model) {
            Some((_, waiting)) => waiting.push_back(job),
            None => phases.push((job.model.clone(), VecDeque::from([job]))),
        }
    }
    tell(News::Begun { there: rows.len(), to_come: phases.iter().map(|(_, waiting)| waiting.len()).sum() });
    let mut stop: Pin<&mut dyn Future<Output = ()>> = pin!(stop);
    let mut stopped = false;
    for (model, waiting) in phases {
        let open = {
            let (models, model) = (models.clone(), model.clone());
            tokio::task::spawn_blocking(move || models(&model))
        };
        let engines = tokio::select! {
            biased;
            () = &mut stop => {
                stopped = true;
                break;
            }
            opened = open => {
                let opened = opened.map_err(|e| Error::fault(format!("opening the model ended by itself: {e}")));
                match opened.flatten() {
                    Ok(engines) => engines,
                    Err(error) => {
                        if rows.is_empty() {
                            folder.take_back();
                        }
                        return Err(error);
                    }
                }
            }
        };
        if let Some(engine) = engines.first() {
            folder.opened(&row::model_name(&model), engine.as_ref())?;
        }
        let mut phase = Phase { engines, options, folder: &mut folder, rows: &mut rows };
        if phase.run(waiting, stop.as_mut(), &mut tell).await? {
            stopped = true;
            break;
        }
    }
    let summary = Summary::of(&rows);
    folder.write_summary(&summary)?;
    let missing = if stopped { wanted.len() - rows.len() } else { 0 };
    Ok(Done { summary, missing })
}

/// The puzzles of one model.
struct Phase<'a> {
    engines: Vec<Arc<dyn Lm>>,
    options: &'a Options,
    folder: &'a mut Folder,
    rows: &'a mut Vec<Row>,
}

impl Phase<'_> {
    /// Runs the jobs with so many in flight, each on the engine that has the fewest; whether it was stopped.
    async fn run(
        &mut self,
        mut waiting: VecDeque<Job>,
        mut stop: Pin<&mut dyn Future<Output = ()>>,
        tell: &mut dyn FnMut(News<'_>),
    ) -> Result<bool> {
        let Self { engines, options, folder, rows } = self;
        let parallel = options.parallel.max(1);
        // Each run takes the engine that has the fewest.
        let alone = parallel <= engines.len();
        let mut load = vec![0usize; engines.len()];
        let mut running: JoinSet<(usize, Result<Row>)> = JoinSet::new();
        let mut stopped = false;
        loop {
            while running.len() < parallel
                && let Some(at) = (0..load.len()).min_by_key(|&at| load[at])
                && let Some(job) = waiting.pop_front()
            {
                let lm = engines[at].clone();
                let record = match options.records {
                    true => folder.recorder(&job, lm.as_ref(), options).map(Some),
                    false => Ok(None),
                };
                let record = record.unwrap_or_else(|error| {
                    tell(News::Note(error.to_string()));
                    None
                });
                load[at] += 1;
                let (seed, limits) = (options.seed, options.limits);
                running.spawn(async move { (at, one(job, lm, seed, limits, record, alone).await) });
            }
            let finished = tokio::select! {
                biased;
                () = &mut stop => {
                    stopped = true;
                    break;
                }
                finished = running.join_next() => finished,
            };
            let Some(finished) = finished else { break };
            let (at, row) = finished.map_err(|e| Error::fault(format!("a run stopped by itself: {e}")))?;
            load[at] -= 1;
            let row = match row {
                Ok(row) => row,
                Err(error) => {
                    // What has ended meanwhile is kept.
                    for row in ended(&mut running) {
                        keep(row, folder, rows, tell)?;
                    }
                    let there = crate::base::text::counted(rows.len() as u64, "row", "rows");
                    return Err(error.after(format!("the {there} so far are intact, and --resume goes on from there")));
                }
            };
            keep(row, folder, rows, tell)?;
        }
        if stopped {
            for row in ended(&mut running) {
                keep(row, folder, rows, tell)?;
            }
        }
        // Dropping `running` calls off what is in flight, and nobody waits for it: large trees on a busy machine would take
        // their time to notice.
        Ok(stopped)
    }
}

/// Rows of runs that have ended and were not looked at yet.
fn ended(running: &mut JoinSet<(usize, Result<Row>)>) -> Vec<Row> {
    std::iter::from_fn(|| running.try_join_next()).filter_map(|run| run.ok()?.1.ok()).collect()
}

fn keep(row: Row, folder: &mut Folder, rows: &mut Vec<Row>, tell: &mut dyn FnMut(News<'_>)) -> Result<()> {
    folder.results.append(&row)?;
    tell(News::Row(&row));
    rows.push(row);
    Ok(())
}

/// Runs one puzzle to its row. A run that the model could not serve has a row too, with the reason. `alone`: no other run
/// uses the engine meanwhile, so that what it moved was this run's; otherwise a step reads a page once for several runs, and
/// whose bytes those are cannot be told.
///
/// # Errors
/// The model itself is lost (its device failed, or its thread): what it did not serve says nothing about the puzzle, so it
/// has no row, and no other run would fare better.
async fn one(
    job: Job,
    lm: Arc<dyn Lm>,
    seed: u64,
    limits: Limits,
    record: Option<Recorder>,
    alone: bool,
) -> Result<Row> {
    let before = alone.then(|| lm.counters());
    let key = job.key();
    let Job { puzzle, strategy, .. } = job;
    let spec =
        RunSpec { puzzle: puzzle.clone(), strategy, lm: lm.clone(), seed, paused: false, limits, record, before: None };
    let outcome = solve(spec, |_| {}).await?;
    if outcome.reason == Reason::Quit {
        return Err(Error::fault("a run of the batch was left although nobody can leave it"));
    }
    if matches!(outcome.reason, Reason::Failed { .. }) {
        lm.check().await.map_err(|_| Error::fault(outcome.reason.to_string()))??;
    }
    let traffic = before.map(|before| row::Traffic::between(&before, &lm.counters()));
    Ok(Row::new(key, puzzle.as_ref(), &outcome, traffic.unwrap_or_default()))
}

/// Refuses two jobs that would be the same row.
fn distinct(jobs: Vec<Job>) -> Result<Vec<Job>> {
    let mut seen = BTreeSet::new();
    for job in &jobs {
        let key = job.key();
        if !seen.insert(key.clone()) {
            return Err(Error::input(format!(
                "{key} is there twice; ids, and names of strategies and models, must differ"
            )));
        }
    }
    Ok(jobs)
}

/// Every n-th puzzle in order of appearance; all its strategies go with it, so that comparisons stay paired.
fn shard(jobs: Vec<Job>, shard: Option<Shard>) -> Vec<Job> {
    let Some(Shard { index, of }) = shard else { return jobs };
    let mut puzzles: Vec<(String, usize, String)> = Vec::new();
    let mut place = std::collections::HashMap::new();
    jobs.into_iter()
        .filter(|job| {
            let name = (job.puzzle.task().to_string(), job.puzzle.size(), job.puzzle.id().to_string());
            let place = *place.entry(name.clone()).or_insert_with(|| {
                puzzles.push(name);
                puzzles.len() - 1
            });
            place % of == index - 1
        })
        .collect()
}

fn header(job: &Job, lm: &dyn Lm, options: &Options) -> Header {
    Header::new(job.puzzle.as_ref(), &job.strategy, lm, options.seed, &options.command)
}

#[cfg(test)]
mod tests;
