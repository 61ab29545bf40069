//! Many puzzles, several strategies, no screen: one engine for all, a row for each, nothing lost.
//!
//! One folder holds a batch:
//!
//! | file | what |
//! |---|---|
//! | `manifest.json` | what was run: versions, model, strategies with their prompts, seed, device, command |
//! | `results.jsonl` | a row for each (task, puzzle, strategy), synced to the disk one by one |
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
use std::pin::pin;
use std::sync::Arc;
use summary::Summary;
use tokio::task::JoinSet;

/// One puzzle under one strategy.
#[derive(Clone)]
pub struct Job {
    pub puzzle: Arc<dyn Puzzle>,
    pub strategy: Arc<Strategy>,
}

impl Job {
    pub fn key(&self) -> Key {
        Key {
            task: self.puzzle.task().to_string(),
            id: self.puzzle.id().to_string(),
            strategy: self.strategy.name.clone(),
        }
    }
}

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

/// Runs the jobs that have no row yet. `stop` ends it early and cleanly: puzzles in flight are given up without a row.
///
/// # Errors
/// Two jobs have the same key; the folder is in use, holds other results, or cannot be written to; a row could not be
/// written, which ends the batch at once with all earlier rows intact.
pub async fn run(
    jobs: Vec<Job>,
    lm: Arc<dyn Lm>,
    options: &Options,
    stop: impl Future<Output = ()>,
    mut tell: impl FnMut(News<'_>),
) -> Result<Done> {
    let jobs = shard(distinct(jobs)?, options.shard);
    let mut folder = Folder::open(options, &jobs, lm.as_ref(), &mut |note| tell(News::Note(note)))?;
    let wanted: BTreeSet<Key> = jobs.iter().map(Job::key).collect();
    let mut rows = std::mem::take(&mut folder.rows);
    rows.retain(|row| wanted.contains(&row.key()));
    let there: BTreeSet<Key> = rows.iter().map(Row::key).collect();
    let mut waiting: VecDeque<Job> = jobs.into_iter().filter(|job| !there.contains(&job.key())).collect();
    tell(News::Begun { there: rows.len(), to_come: waiting.len() });

    let mut stop = pin!(stop);
    let mut stopped = false;
    let mut running: JoinSet<Result<Row>> = JoinSet::new();
    loop {
        while running.len() < options.parallel.max(1)
            && let Some(job) = waiting.pop_front()
        {
            let record = match options.records {
                true => folder.recorder(&job, lm.as_ref(), options).map(Some),
                false => Ok(None),
            };
            let record = record.unwrap_or_else(|error| {
                tell(News::Note(error.to_string()));
                None
            });
            running.spawn(one(job, lm.clone(), options.seed, options.limits, record, options.parallel <= 1));
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
        let row = finished.map_err(|e| Error::fault(format!("a run stopped by itself: {e}")))??;
        // Dropping `running` on an error calls off what is in flight.
        folder.results.append(&row)?;
        tell(News::Row(&row));
        rows.push(row);
    }
    running.shutdown().await;
    let summary = Summary::of(&rows);
    folder.write_summary(&summary)?;
    let missing = if stopped { wanted.len() - rows.len() } else { 0 };
    Ok(Done { summary, missing })
}

/// Runs one puzzle to its row. A run that the model could not serve has a row too, with the reason.
async fn one(
    job: Job,
    lm: Arc<dyn Lm>,
    seed: u64,
    limits: Limits,
    record: Option<Recorder>,
    alone: bool,
) -> Result<Row> {
    let before = alone.then(|| lm.counters());
    let Job { puzzle, strategy } = job;
    let spec = RunSpec {
        puzzle: puzzle.clone(),
        strategy: strategy.clone(),
        lm: lm.clone(),
        seed,
        paused: false,
        limits,
        record,
        before: None,
    };
    let outcome = solve(spec, |_| {}).await?;
    if outcome.reason == Reason::Quit {
        return Err(Error::fault("a run of the batch was left although nobody can leave it"));
    }
    let traffic = before.map(|before| row::Traffic::between(&before, &lm.counters()));
    Ok(Row::new(puzzle.as_ref(), &strategy, &outcome, traffic.unwrap_or_default()))
}

/// Refuses two jobs that would be the same row.
fn distinct(jobs: Vec<Job>) -> Result<Vec<Job>> {
    let mut seen = BTreeSet::new();
    for job in &jobs {
        let key = job.key();
        if !seen.insert(key.clone()) {
            let Key { task, id, strategy } = key;
            return Err(Error::input(format!(
                "puzzle {id} of {task} under strategy `{strategy}` is there twice; ids and strategy names must differ"
            )));
        }
    }
    Ok(jobs)
}

/// Every n-th puzzle in order of appearance; all its strategies go with it, so that comparisons stay paired.
fn shard(jobs: Vec<Job>, shard: Option<Shard>) -> Vec<Job> {
    let Some(Shard { index, of }) = shard else { return jobs };
    let mut puzzles: Vec<(String, String)> = Vec::new();
    let mut place = std::collections::HashMap::new();
    jobs.into_iter()
        .filter(|job| {
            let name = (job.puzzle.task().to_string(), job.puzzle.id().to_string());
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
