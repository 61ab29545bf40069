//! `totara eval`: from flags, or a plan, to a batch, with progress on standard error and the summary on standard output.

mod matrix;
mod plan;

use super::args::{Common, EvalArgs};
use super::{lm, out, signals, solve};
use crate::base::text::sanitize;
use crate::base::{Error, Result};
use crate::batch::progress::Progress;
use crate::batch::{self, Models, News, Options, Shard};
use matrix::Matrix;
use std::cell::Cell;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

pub fn run(common: &Common, args: &EvalArgs) -> Result<u8> {
    let matrix = match &args.plan {
        Some(path) => plan::read(path, common, args)?,
        None => Matrix::of_flags(common, args)?,
    };
    let shard = args.shard.as_deref().map(str::parse::<Shard>).transpose()?;
    let jobs = matrix.jobs()?;
    for model in &matrix.models {
        lm::check(&with_model(common, model))?;
    }
    let options = Options {
        out: args.out.clone(),
        parallel: args.parallel.into(),
        resume: args.resume,
        shard,
        seed: common.seed,
        limits: matrix.limits,
        records: args.records,
        command: solve::command_line(),
    };
    let runtime = super::runtime()?;
    let done = runtime.block_on(batch(common, jobs, &options));
    // A model that is still being opened when the user leaves is not waited for.
    runtime.shutdown_timeout(Duration::from_millis(100));
    done
}

fn with_model(common: &Common, model: &str) -> Common {
    Common { model: Some(model.to_string()), ..common.clone() }
}

async fn batch(common: &Common, jobs: Vec<batch::Job>, options: &Options) -> Result<u8> {
    let mut signals = signals::Signals::new()?;
    let signal = Cell::new(None);
    let stop = async { signal.set(Some(signals.next().await)) };
    let terminal = std::io::stderr().is_terminal();
    let models: Models = {
        let common = common.clone();
        Arc::new(move |model| {
            let common = with_model(&common, model);
            lm::open_all(&common, &lm::Told::new(&common))
        })
    };
    let mut progress = None;
    // A row that cannot be told still stands in the results: the batch goes on, and the end says so.
    let mut unwritten = None;
    let done = batch::run(jobs, models, options, stop, |news| match news {
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
