//! `--plan FILE`: the matrix of a batch as YAML, so that it can be kept beside its results.
//!
//! ```yaml
//! version: 1
//! puzzles:
//!   - {task: sorting, data: sorting_032.csv, first: 20}
//!   - {task: set-intersection, sizes: [16, 32], count: 20}
//! strategies: [io, cot, tot-bfs]
//! models: [SmolLM2-135M-Instruct.Q4_1.gguf, random-proposer]   # optional; --model otherwise
//! set: {depth: 4}                                             # optional
//! vary: {width: [2, 3, 5]}                                    # optional: each value of each
//! budget: {tokens: 20000}                                     # optional: tokens, thoughts, seconds
//! ```
//!
//! Paths are taken from the plan's own folder. Unknown keys are refused with their place. What the plan says, flags do not
//! say again: they are refused together by the command line.

use super::matrix::{From, Matrix, Puzzles, models, product};
use crate::base::{Error, Result, read};
use crate::cli::args::{Common, EvalArgs, LimitArgs};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Longest plan that is read, in bytes.
const MOST_BYTES: u64 = 1 << 20;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Plan {
    version: u32,
    puzzles: Vec<Source>,
    strategies: Vec<String>,
    #[serde(default)]
    models: Vec<String>,
    #[serde(default)]
    set: BTreeMap<String, Value>,
    #[serde(default)]
    vary: BTreeMap<String, Vec<Value>>,
    #[serde(default)]
    budget: Budget,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Source {
    task: String,
    data: Option<PathBuf>,
    sizes: Option<Vec<usize>>,
    count: Option<usize>,
    first: Option<usize>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Budget {
    tokens: Option<u64>,
    thoughts: Option<u64>,
    seconds: Option<f64>,
}

/// A variable's value, as it would stand after `--set name=`.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Value {
    Bool(bool),
    Whole(i64),
    Number(f64),
    Text(String),
}

impl Value {
    fn text(&self) -> String {
        match self {
            Self::Bool(value) => value.to_string(),
            Self::Whole(value) => value.to_string(),
            Self::Number(value) => value.to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

pub fn read(path: &Path, common: &Common, args: &EvalArgs) -> Result<Matrix> {
    let name = path.display();
    let text = read::text(path, MOST_BYTES).map_err(|e| Error::input(format!("plan {name} {e}")))?;
    if text.trim().is_empty() {
        let form = "write `version: 1`, `puzzles` and `strategies` as in docs/evaluation.md";
        return Err(Error::input(format!("plan {name} is empty; {form}")));
    }
    let plan: Plan = serde_yaml::from_str(&text).map_err(|e| Error::input(format!("plan {name}: {e}")))?;
    matrix(plan, path.parent().unwrap_or(Path::new("")), common, args).map_err(|e| e.context(format!("plan {name}")))
}

fn matrix(plan: Plan, folder: &Path, common: &Common, args: &EvalArgs) -> Result<Matrix> {
    if plan.version != 1 {
        return Err(Error::input(format!("version {} is not known; this program reads version 1", plan.version)));
    }
    for (what, empty) in [("puzzles", plan.puzzles.is_empty()), ("strategies", plan.strategies.is_empty())] {
        if empty {
            return Err(Error::input(format!("`{what}` is empty")));
        }
    }
    let beside = |name: String| {
        let file = folder.join(&name);
        let is_file = [".yaml", ".yml", ".gguf"].iter().any(|end| name.ends_with(end)) && file.is_file();
        if is_file { file.display().to_string() } else { name }
    };
    let sources = plan.puzzles.into_iter().map(|source| Source { task: beside(source.task), ..source });
    let puzzles = sources.map(|source| puzzles(source, folder)).collect::<Result<_>>()?;
    let named: Vec<String> = plan.models.into_iter().map(beside).collect();
    let set: Vec<_> = plan.set.into_iter().map(|(name, value)| (name, value.text())).collect();
    let vary: Vec<_> =
        plan.vary.into_iter().map(|(name, values)| (name, values.iter().map(Value::text).collect())).collect();
    let Budget { tokens, thoughts, seconds } = plan.budget;
    let limits = LimitArgs { max_tokens: tokens, max_thoughts: thoughts, max_seconds: seconds };
    Ok(Matrix {
        puzzles,
        strategies: plan.strategies.into_iter().map(beside).collect(),
        models: models(common, &named),
        settings: product(&set, &vary)?,
        limits: limits.limits()?,
        allow_commands: args.language.allow_commands,
        seed: common.seed,
    })
}

fn puzzles(source: Source, folder: &Path) -> Result<Puzzles> {
    let Source { task, data, sizes, count, first } = source;
    let from = match (data, sizes) {
        (Some(data), None) if count.is_none() => From::Data(folder.join(data)),
        (None, sizes) => From::Generated { sizes: sizes.unwrap_or_default(), count: count.unwrap_or(30) },
        _ => {
            return Err(Error::input(format!(
                "puzzles of {task}: give `data: FILE`, or `sizes: [8, 16]` and `count: N`, and not both"
            )));
        }
    };
    Ok(Puzzles { task, from, first })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Cli;
    use clap::Parser;

    fn plan(text: &str) -> Result<Matrix> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.yaml");
        std::fs::write(&path, text).unwrap();
        let cli = Cli::try_parse_from(["totara", "eval", "--plan", "plan.yaml", "--out", "x"]).unwrap();
        let Some(crate::cli::args::Command::Eval(args)) = &cli.command else { panic!("eval") };
        read(&path, &cli.common, args)
    }

    #[test]
    fn a_plan_is_the_matrix_of_its_parts() {
        let text = "version: 1\npuzzles:\n  - {task: sorting, sizes: [4, 8], count: 3}\n  - {task: game24, sizes: [4], \
                    count: 9, first: 2}\nstrategies: [tot-bfs, tot-dfs]\nmodels: [random-proposer, other]\nbudget: \
                    {tokens: 500}\n";
        let matrix = plan(text).unwrap();
        assert_eq!(matrix.jobs().unwrap().len(), (6 + 2) * 2 * 2);
        assert_eq!(matrix.limits.tokens, Some(500));
        let varied = plan("version: 1\npuzzles: [{task: sorting, sizes: [4], count: 1}]\nstrategies: [got]\nset: {sorts: 2}\nvary: {merges: [3, 4]}").unwrap();
        let settings: Vec<String> = varied.jobs().unwrap().iter().map(|job| job.settings.to_string()).collect();
        assert_eq!(settings, ["sorts=2, merges=3", "sorts=2, merges=4"]);
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        let check = |text: &str, words: &[&str]| {
            let error = plan(text).and_then(|m| m.jobs().map(drop)).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            for word in words {
                assert!(error.message().contains(word), "{text}: {error}");
            }
        };
        let good = "version: 1\npuzzles: [{task: sorting, sizes: [4]}]\nstrategies: [io]\n";
        check(&format!("{good}modles: [x]\n"), &["plan.yaml", "modles", "4"]);
        check(&good.replace("version: 1", "version: 2"), &["version 2"]);
        check(&good.replace("sizes: [4]", "data: a.csv, sizes: [4]"), &["not both"]);
        check(&good.replace("[io]", "[]"), &["`strategies` is empty"]);
        check(&good.replace("[io]", "[ioo]"), &["ioo"]);
        check(&good.replace("sorting", "sortign"), &["sortign", "sorting"]);
        check(&format!("{good}vary: {{width: []}}"), &["combinations"]);
        check(&format!("{good}budget: {{seconds: -1}}"), &["seconds"]);
        check("version: [1", &["plan.yaml"]);
        check(" \n", &["plan.yaml is empty", "`puzzles`"]);
        check(&format!("{good}# {}\n", "x".repeat(1 << 20)), &["plan.yaml is longer than 1.0"]);
    }
}
