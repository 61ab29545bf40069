//! `check`, `schema`, `strategy` and `task`: what a writer of strategies needs.

use super::args::{CheckArgs, Common, StrategyCommand, TaskCommand};
use super::out;
use crate::base::{Error, Result};
use crate::strategy::{check as checker, library, schema as schema_text};
use crate::task;
use serde_json::json;

pub fn check(args: &CheckArgs) -> Result<u8> {
    let mut faults = 0;
    for file in &args.files {
        let report = checker::file(file)?;
        for problem in &report.problems {
            out::tell(problem);
        }
        faults += report.errors;
        if report.errors == 0 {
            out::line(&format!("{}: ok", file.display()))?;
        }
    }
    Ok(u8::from(faults > 0))
}

pub fn schema() -> Result<u8> {
    out::line(schema_text::text())?;
    Ok(0)
}

pub fn strategy(common: &Common, command: &StrategyCommand) -> Result<u8> {
    match command {
        StrategyCommand::List => {
            for item in library::list() {
                if common.json {
                    out::json(&json!({"name": item.name, "task": item.task, "about": item.about}))?;
                } else {
                    out::line(&format!("{:<10} {:<17} {}", item.name, item.task, item.about))?;
                }
            }
        }
        StrategyCommand::Show { name, task } => {
            let found: Vec<_> = library::list()
                .into_iter()
                .filter(|i| i.name == *name && task.as_deref().is_none_or(|t| t == i.task))
                .collect();
            if found.is_empty() {
                return Err(library::unknown(name));
            }
            for (i, item) in found.iter().enumerate() {
                if i > 0 {
                    out::line("---")?;
                }
                out::line(item.text.trim_end())?;
            }
        }
        StrategyCommand::New { file } => {
            library::write_new(file)?;
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
                    out::json(&json!({"name": task.name(), "about": task.about(), "strategy": task.default_strategy()}))?;
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

/// Kept beside the commands that use it: a name nobody knows.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_strategy_is_the_users_mistake() {
        let error: Error = library::unknown("tot-bsf");
        assert_eq!(error.exit_code(), 2);
        assert!(error.message().contains("tot-bfs"), "{error}");
    }
}
