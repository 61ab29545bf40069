//! `check`, `schema`, `strategy` and `task`: what a writer of strategies needs.

use super::args::{CheckArgs, Common, SchemaArgs, StrategyCommand, TaskCommand};
use super::out;
use crate::base::{Error, Result};
use crate::strategy::{check as checker, library, own, schema as schema_text};
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

pub fn schema(args: &SchemaArgs) -> Result<u8> {
    let schema = if args.task { schema_text::task_schema() } else { schema_text::schema() };
    let text = serde_json::to_string_pretty(&schema).map_err(|e| Error::fault(e.to_string()))?;
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
            if !common.quiet {
                out::tell(&format!("wrote {}: check it with `totara check {}`", file.display(), file.display()));
            }
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
            // Nothing runs here, so a program in it is no danger.
            let task = own::find(name, true)?;
            out::line(&format!("{}: {}", task.name(), task.about()))?;
            out::line(&format!("strategy: {}", task.default_strategy()))?;
            out::line(&format!("input:    {}", task.input_forms()))?;
            out::line(&format!("example:  {}", task.example().escape_debug()))?;
            out::line("prompt inputs:")?;
            for (name, about) in task.inputs() {
                out::line(&format!("  {name:<18} {about}"))?;
            }
        }
        TaskCommand::New { file } => {
            library::new_task_file(file)?;
            if !common.quiet {
                let shown = file.display();
                out::tell(&format!(
                    "wrote {shown}: check it with `totara check {shown}`, try it with `totara solve --task {shown} --input …`"
                ));
            }
        }
    }
    Ok(0)
}
