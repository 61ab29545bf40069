//! The command line: flags to types, types to the library, results to standard output, all else to standard error.

mod again;
mod args;
mod complete;
mod doctor;
mod endpoint;
mod eval;
mod host;
mod keys;
mod lm;
mod measure;
mod models;
mod out;
mod puzzle;
mod replay;
mod report;
mod scripting;
mod signals;
mod solve;
mod ticker;
mod usage;

use crate::base::{Error, Result};
use args::{BenchCommand, Cli, Command};
use std::io::IsTerminal;
use std::process::ExitCode;

/// Runs the program and returns its exit code (the contract's).
pub fn main() -> ExitCode {
    let cli = match usage::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    match run(cli) {
        Ok(code) => ExitCode::from(code),
        Err(e) => {
            out::tell(&format!("totara: {}", crate::base::text::sanitize(e.message())));
            ExitCode::from(e.exit_code())
        }
    }
}

fn run(cli: Cli) -> Result<u8> {
    let Cli { command, screen, common } = cli;
    match &command {
        // The strategy may name what a setting is of.
        None | Some(Command::Solve(_) | Command::Eval(_) | Command::Replay(_)) => lm::check_values(&common)?,
        // Its methods are named by --method.
        Some(Command::Bench(BenchCommand::Offload(_))) => {}
        Some(_) => lm::check_flags(&common)?,
    }
    match command {
        None if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() => {
            host::start_screen(&common, &screen)
        }
        None => {
            out::tell("no terminal: solving one puzzle as `totara solve --no-tui` does");
            solve::headless(&common, &solve::defaults())
        }
        Some(Command::Solve(args)) if args.no_tui => solve::headless(&common, &args),
        Some(Command::Solve(args)) => host::solve(&common, &screen, &args),
        Some(Command::Eval(args)) => eval::run(&common, &args),
        Some(Command::Report(args)) => report::run(&common, &args),
        Some(Command::Replay(args)) => replay::run(&common, &screen, &args),
        Some(Command::Check(args)) => scripting::check(&common, &args),
        Some(Command::Schema(args)) => scripting::schema(&args),
        Some(Command::Strategy(command)) => scripting::strategy(&common, &command),
        Some(Command::Task(command)) => scripting::task(&common, &command),
        Some(Command::Model(command)) => models::run(&common, &command),
        Some(Command::Complete(args)) => complete::run(&common, &args),
        Some(Command::Bench(command)) => measure::run(&common, &command),
        Some(Command::Doctor(args)) => doctor::run(&common, &args),
    }
}

/// The runtime that searches run on: the controller is light, so two threads do.
fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| Error::fault(format!("no threads for the search: {e}")))
}
