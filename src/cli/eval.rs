//! `totara eval`: from flags, or a plan, to a batch, with progress on standard error and the summary on standard output.

mod matrix;
mod plan;

use super::args::{Common, EvalArgs};
use super::{endpoint, lm, out, signals, solve};
use crate::base::text::sanitize;
use crate::base::{Error, Result};
use crate::batch::progress::Progress;
use crate::batch::{self, Models, News, Options, Shard};
use crate::lm::Lm;
use crate::lm::endpoint::Endpoint;
use crate::model::store;
use matrix::Matrix;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

pub fn run(common: &Common, args: &EvalArgs) -> Result<u8> {
    let mut matrix = match &args.plan {
        Some(path) => plan::read(path, common, args)?,
        None => Matrix::of_flags(common, args)?,
    };
    let shard = args.shard.as_deref().map(str::parse::<Shard>).transpose()?;
    let servers = servers(common, args, &mut matrix)?;
    let jobs = matrix.jobs()?;
    for job in &jobs {
        match servers.get(&*job.model) {
            Some(server) => endpoint::fits(&job.strategy, server.abilities())?,
            None => lm::fits(Some(&job.model), &job.strategy)?,
        }
    }
    for model in matrix.models.iter().filter(|_| args.endpoint.endpoint.is_none()) {
        lm::check(&with_model(common, model))?;
    }
    // One engine serves all strategies of a batch.
    let common = &match jobs.split_first() {
        Some((first, rest)) => {
            if let Some(other) = rest.iter().find(|job| job.strategy.offload != first.strategy.offload)
                && common.offload.offload.is_none()
            {
                return Err(Error::input(format!(
                    "strategies `{}` and `{}` say different things under `offload`, and a batch has one engine: give \
                     --offload, or run them apart",
                    first.strategy.name, other.strategy.name
                )));
            }
            lm::with_strategy(common, &first.strategy)
        }
        None => common.clone(),
    };
    lm::check_flags(common)?;
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
    let done = runtime.block_on(batch(common, jobs, servers, &options));
    // A model that is still being opened when the user leaves is not waited for.
    runtime.shutdown_timeout(Duration::from_millis(100));
    done
}

fn with_model(common: &Common, model: &str) -> Common {
    Common { model: Some(model.to_string()), ..common.clone() }
}

/// The models of an endpoint, by the server's names, which the matrix then has too. Empty without one.
fn servers(common: &Common, args: &EvalArgs, matrix: &mut Matrix) -> Result<Servers> {
    let mut servers = Servers::new();
    if args.endpoint.endpoint.is_none() {
        return Ok(servers);
    }
    // Without a name it is whatever the server has, and not our own default.
    let unnamed = common.model.is_none() && args.models.is_empty() && matrix.models == [store::default_spec()];
    let wanted = if unnamed { vec![None] } else { matrix.models.iter().cloned().map(Some).collect() };
    matrix.models.clear();
    for model in wanted {
        let common = Common { model, ..common.clone() };
        let Some(server) = endpoint::open(&common, &args.endpoint, args.parallel.into())? else { continue };
        let name = server.info().name.clone();
        matrix.models.push(name.clone());
        servers.insert(name, server);
    }
    Ok(servers)
}

type Servers = BTreeMap<String, Arc<Endpoint>>;

async fn batch(common: &Common, jobs: Vec<batch::Job>, servers: Servers, options: &Options) -> Result<u8> {
    let mut signals = signals::Signals::new()?;
    let signal = Cell::new(None);
    let stop = async { signal.set(Some(signals.next().await)) };
    let terminal = std::io::stderr().is_terminal();
    let models: Models = {
        let common = common.clone();
        Arc::new(move |model| {
            if let Some(server) = servers.get(model) {
                let server: Arc<dyn Lm> = server.clone();
                return Ok(vec![server]);
            }
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
