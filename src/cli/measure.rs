//! `totara bench`: measurements as a table, or as JSON lines.

use super::args::{BenchCommand, BenchDecodeArgs, Common};
use super::{lm, out};
use crate::base::{Error, Result};
use crate::bench::decode;
use crate::engine::measure::Spec;
use serde_json::to_value;

pub fn run(common: &Common, command: &BenchCommand) -> Result<u8> {
    match command {
        BenchCommand::Decode(args) => bench_decode(common, args),
    }
}

/// One row a number of branches; the model is loaded anew for each, so that peak memory is that row's own.
fn bench_decode(common: &Common, args: &BenchDecodeArgs) -> Result<u8> {
    let options = lm::engine_options(common)?;
    for (i, &branches) in args.branches.iter().enumerate() {
        let spec = Spec { prompt: args.prompt, branches, own: args.own, steps: args.steps, seed: common.seed };
        let report = decode::decode(lm::model(common, &lm::Told::new(common))?, &options, &spec)?;
        if common.json {
            out::json(&to_value(&report).map_err(|e| Error::fault(e.to_string()))?)?;
        } else {
            if i > 0 {
                out::line("")?;
            }
            out::line(report.to_string().trim_end())?;
        }
    }
    Ok(0)
}
