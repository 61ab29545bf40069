//! `totara eval`: from flags to a batch, with progress on standard error and the summary on standard output.

use super::args::{Common, EvalArgs};
use super::{lm, out, runtime, signals, solve};
use crate::base::text::sanitize;
use crate::base::{Error, Result};
use crate::batch::progress::Progress;
use crate::batch::{self, Job, News, Options, Shard};
use crate::task::{self, Puzzle};
use std::cell::Cell;
use std::io::IsTerminal;
use std::sync::Arc;

pub fn run(common: &Common, args: &EvalArgs) -> Result<u8> {
    let puzzles = puzzles(common, args)?;
    let mut jobs = Vec::new();
    for name in &args.strategy {
        let strategy = solve::strategy(Some(name), &args.task, &args.language)?;
        jobs.extend(puzzles.iter().map(|puzzle| Job { puzzle: puzzle.clone(), strategy: strategy.clone() }));
    }
    let options = Options {
        out: args.out.clone(),
        parallel: args.parallel.into(),
        resume: args.resume,
        shard: args.shard.as_deref().map(str::parse::<Shard>).transpose()?,
        seed: common.seed,
        limits: args.limits.limits()?,
        records: args.records,
        command: solve::command_line(),
    };
    let lm = lm::open(common, &lm::Told::new(common))?;
    runtime()?.block_on(batch(common, jobs, lm, &options))
}

async fn batch(common: &Common, jobs: Vec<Job>, lm: Arc<dyn crate::lm::Lm>, options: &Options) -> Result<u8> {
    let mut signals = signals::Signals::new()?;
    let signal = Cell::new(None);
    let stop = async { signal.set(Some(signals.next().await)) };
    let terminal = std::io::stderr().is_terminal();
    let mut progress = None;
    // A row that cannot be told still stands in the results: the batch goes on, and the end says so.
    let mut unwritten = None;
    let done = batch::run(jobs, lm, options, stop, |news| match news {
        News::Note(text) if !common.quiet => out::tell(&sanitize(&text)),
        News::Note(_) => {}
        News::Begun { there, to_come } => {
            progress = Some(Progress::new(there, to_come, terminal, common.quiet, std::io::stderr()));
        }
        News::Row(row) => {
            if let Some(progress) = &mut progress {
                progress.row(row);
            }
            if common.json && unwritten.is_none() {
                let row = serde_json::to_value(row).map_err(|e| Error::fault(e.to_string()));
                unwritten = row.and_then(|row| out::json(&row)).err();
            }
        }
    })
    .await?;
    if let Some(progress) = &mut progress {
        progress.finish();
    }
    if let Some(error) = unwritten {
        return Err(error);
    }
    if !common.json {
        out::line(done.summary.markdown().trim_end())?;
    }
    if done.missing > 0 && !common.quiet {
        out::tell(&format!("{} puzzles have no row yet: the same command with --resume goes on", done.missing));
    }
    Ok(signal.get().map_or(0, |number| 128 + number))
}

fn puzzles(common: &Common, args: &EvalArgs) -> Result<Vec<Arc<dyn Puzzle>>> {
    let task = task::by_name(&args.task)?;
    if let Some(path) = &args.data {
        return task.read_data(path);
    }
    if args.sizes.is_empty() || args.count == 0 {
        return Err(Error::input("eval needs puzzles: --data FILE, or --sizes 8,16 with --count N"));
    }
    let mut puzzles = Vec::new();
    for &size in &args.sizes {
        for i in 0..args.count as u64 {
            puzzles.push(task.generate(size, common.seed.wrapping_add(i))?);
        }
    }
    Ok(puzzles)
}
