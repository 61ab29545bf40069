//! `check`, `schema`, `strategy` and `task`: what a writer of strategies needs.

use super::args::{CheckArgs, Common, StrategyCommand, TaskCommand};
use super::out;
use crate::base::{Error, Result};
use crate::strategy::{check as checker, library, schema as schema_text};
use crate::task;
use serde_json::json;

pub fn check(common: &Common, args: &CheckArgs) -> Result<u8> {
    let report = checker::check(&args.files);
    // What is found is the result, right or wrong.
    if common.json {
        for finding in report.findings() {
            out::json(&finding)?;
        }
    } else {
        out::line(report.to_string().trim_end())?;
    }
    Ok(report.exit_code())
}

pub fn schema() -> Result<u8> {
    let text = serde_json::to_string_pretty(&schema_text::schema()).map_err(|e| Error::fault(e.to_string()))?;
    out::line(&text)?;
    Ok(0)
}

pub fn strategy(common: &Common, command: &StrategyCommand) -> Result<u8> {
    match command {
        StrategyCommand::List => {
            for entry in library::list() {
                let about = library::read(entry)?.about;
                if common.json {
                    out::json(&json!({"name": entry.name, "task": entry.task, "about": about}))?;
                } else {
                    out::line(&format!("{:<10} {:<17} {about}", entry.name, entry.task))?;
                }
            }
        }
        StrategyCommand::Show { name, task } => out::line(library::show(name, task.as_deref())?.trim_end())?,
        StrategyCommand::New { file } => {
            library::new_file(file)?;
            out::tell(&format!("wrote {}: check it with `totara check {}`", file.display(), file.display()));
        }
    }
    Ok(0)
}

pub fn task(common: &Common, command: &TaskCommand) -> Result<u8> {
    match command {
        TaskCommand::List => {
            for task in task::all() {
                if common.json {
                    out::json(
                        &json!({"name": task.name(), "about": task.about(), "strategy": task.default_strategy()}),
                    )?;
                } else {
                    out::line(&format!("{:<17} {}", task.name(), task.about()))?;
                }
            }
        }
        TaskCommand::Show { name } => {
            let task = task::by_name(name)?;
            out::line(&format!("{}: {}", task.name(), task.about()))?;
            out::line(&format!("strategy: {}", task.default_strategy()))?;
            out::line(&format!("input:    {}", task.input_forms()))?;
            out::line(&format!("example:  {}", task.example().escape_debug()))?;
            out::line("prompt inputs:")?;
            for (name, about) in task.inputs() {
                out::line(&format!("  {name:<18} {about}"))?;
            }
        }
    }
    Ok(0)
}
