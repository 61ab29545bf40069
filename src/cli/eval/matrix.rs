//! What a batch runs: puzzles of one or several tasks, strategies, settings of their variables, models; each with each.

use crate::base::{Error, Result};
use crate::batch::Job;
use crate::cli::args::{Common, EvalArgs};
use crate::model::store;
use crate::search::event::Limits;
use crate::search::record::public_value;
use crate::strategy::{AnyTask, LoadOptions, library, own};
use crate::task::Puzzle;
use std::path::PathBuf;
use std::sync::Arc;

/// Settings of variables that one batch may have; a mistyped range is told instead of run.
const MOST_SETTINGS: usize = 1000;

/// Generated puzzles of a batch, numbers in all of them, and runs, at most: all are there before the first is solved, and
/// take about 5 KiB, 70 bytes and 100 bytes each.
const MOST_PUZZLES: usize = 100_000;
const MOST_ITEMS: usize = 20_000_000;
const MOST_RUNS: usize = 5_000_000;

/// Where puzzles come from.
#[derive(Debug, Clone, PartialEq)]
pub struct Puzzles {
    pub task: String,
    pub from: From,
    /// Only so many, in order.
    pub first: Option<usize>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum From {
    Data(PathBuf),
    /// Without sizes: of the task's own.
    Generated {
        sizes: Vec<usize>,
        count: usize,
    },
}

/// The matrix; a batch is its product.
#[derive(Debug, Clone, PartialEq)]
pub struct Matrix {
    pub puzzles: Vec<Puzzles>,
    pub strategies: Vec<String>,
    pub models: Vec<String>,
    /// Each the variables that are set, by name.
    pub settings: Vec<Vec<(String, String)>>,
    pub limits: Limits,
    pub allow_commands: bool,
    pub seed: u64,
}

impl Matrix {
    pub fn of_flags(common: &Common, args: &EvalArgs) -> Result<Self> {
        let from = match &args.data {
            Some(path) => From::Data(path.clone()),
            None => From::Generated { sizes: args.sizes.clone(), count: args.count },
        };
        let LoadOptions { set, .. } = args.language.options()?;
        let mut vary = Vec::new();
        for text in &args.vary {
            let named = text.split_once('=').filter(|(name, _)| !name.trim().is_empty());
            let (name, values) = named.ok_or_else(|| {
                Error::input(format!("--vary {text}: write a variable and its values, such as width=2,3,5"))
            })?;
            vary.push((name.trim().to_string(), values.split(',').map(|v| v.trim().to_string()).collect()));
        }
        Ok(Self {
            puzzles: vec![Puzzles { task: args.task.clone(), from, first: args.first }],
            strategies: args.strategy.clone(),
            models: models(common, &args.models),
            settings: product(&set, &vary)?,
            limits: args.limits.limits()?,
            allow_commands: args.language.allow_commands,
            seed: common.seed,
        })
    }

    /// Every puzzle under every strategy with every setting, on every model.
    pub fn jobs(&self) -> Result<Vec<Job>> {
        let mut jobs = Vec::new();
        for model in &self.models {
            for from in &self.puzzles {
                let task = own::find(&from.task, self.allow_commands)?;
                let puzzles = self.read(&task, from)?;
                for name in &self.strategies {
                    for set in &self.settings {
                        let options = LoadOptions { set: set.clone(), allow_commands: self.allow_commands };
                        let strategy = Arc::new(library::load_for(name, &task, &options)?);
                        let settings = said(set);
                        let runs = jobs.len() + puzzles.len();
                        if runs > MOST_RUNS {
                            return Err(Error::input(format!(
                                "puzzles x strategies x settings x models are more than {MOST_RUNS} runs: split them into \
                                 several batches"
                            )));
                        }
                        jobs.extend(puzzles.iter().map(|puzzle| Job {
                            puzzle: puzzle.clone(),
                            strategy: strategy.clone(),
                            settings: settings.as_str().into(),
                            model: model.as_str().into(),
                        }));
                    }
                }
            }
        }
        Ok(jobs)
    }

    fn read(&self, task: &AnyTask, puzzles: &Puzzles) -> Result<Vec<Arc<dyn Puzzle>>> {
        let mut read = match &puzzles.from {
            From::Data(path) => task.read_data(path)?,
            // What is not taken need not be made.
            From::Generated { sizes, count } => {
                self.generate(task, sizes, (*count).min(puzzles.first.unwrap_or(usize::MAX)))?
            }
        };
        read.truncate(puzzles.first.unwrap_or(usize::MAX));
        if read.is_empty() {
            return Err(Error::input(format!("there is no puzzle of {} to run", puzzles.task)));
        }
        Ok(read)
    }

    fn generate(&self, task: &AnyTask, sizes: &[usize], count: usize) -> Result<Vec<Arc<dyn Puzzle>>> {
        let own = [task.default_size()];
        let sizes = if sizes.is_empty() { &own[..] } else { sizes };
        let items = sizes.iter().fold(0usize, |sum, &size| sum.saturating_add(size));
        let all = [("puzzles", sizes.len(), MOST_PUZZLES), ("items of puzzles", items, MOST_ITEMS)];
        for (what, each, most) in all {
            let number = each.saturating_mul(count);
            if number > most {
                return Err(Error::input(format!(
                    "{number} generated {what} are more than {most}: lower the count, and go on from another --seed in \
                     another batch"
                )));
            }
        }
        let one = |&size: &usize| (0..count as u64).map(move |i| task.generate(size, self.seed.wrapping_add(i)));
        sizes.iter().flat_map(one).collect()
    }
}

/// The models that are named, or the one that `--model` or the default names.
pub fn models(common: &Common, named: &[String]) -> Vec<String> {
    match named {
        [] => vec![common.model.clone().unwrap_or_else(store::default_spec)],
        named => named.to_vec(),
    }
}

/// Each combination of the values, after what is always set.
pub fn product(set: &[(String, String)], vary: &[(String, Vec<String>)]) -> Result<Vec<Vec<(String, String)>>> {
    let count = vary.iter().try_fold(1usize, |n, (_, values)| n.checked_mul(values.len()));
    if !count.is_some_and(|count| (1..=MOST_SETTINGS).contains(&count)) {
        return Err(Error::input(format!("the values to vary make no or more than {MOST_SETTINGS} combinations")));
    }
    let mut all = vec![set.to_vec()];
    for (name, values) in vary {
        if all[0].iter().any(|(known, _)| known == name) {
            return Err(Error::input(format!("the variable `{name}` is set twice; set it, or vary it once")));
        }
        all = all
            .iter()
            .flat_map(|so_far| values.iter().map(|value| [&so_far[..], &[(name.clone(), value.clone())]].concat()))
            .collect();
    }
    Ok(all)
}

/// Settings as a row says them, without what looks like a secret.
fn said(set: &[(String, String)]) -> String {
    let one = |(name, value): &(String, String)| format!("{name}={}", public_value(name, value.trim().to_string()));
    set.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_combined_and_said() {
        let pair = |name: &str, value: &str| (name.to_string(), value.to_string());
        let vary = |name: &str, values: &[&str]| (name.to_string(), values.iter().map(|v| v.to_string()).collect());
        let all = product(&[pair("a", "1")], &[vary("b", &["2", "3"]), vary("c", &["x", "y"])]).unwrap();
        let said: Vec<String> = all.iter().map(|set| said(set)).collect();
        assert_eq!(said, ["a=1, b=2, c=x", "a=1, b=2, c=y", "a=1, b=3, c=x", "a=1, b=3, c=y"]);
        assert_eq!(product(&[], &[]).unwrap(), [vec![]]);
        assert!(product(&[pair("a", "1")], &[vary("a", &["2"])]).is_err_and(|e| e.message().contains("`a`")));
        assert!(product(&[], &[vary("b", &["2"]), vary("b", &["3"])]).is_err());
        assert!(product(&[], &[vary("b", &[])]).is_err());
        let many: Vec<String> = (0..100).map(|i| i.to_string()).collect();
        assert!(product(&[], &[("a".into(), many.clone()), ("b".into(), many)]).is_err());
    }

    /// More puzzles than memory has room for are refused before any is made.
    #[test]
    fn puzzles_without_number_are_refused() {
        let matrix = |sizes: &[usize], count: usize, first: Option<usize>| Matrix {
            puzzles: vec![Puzzles {
                task: "sorting".into(),
                from: From::Generated { sizes: sizes.to_vec(), count },
                first,
            }],
            strategies: vec!["tot-bfs".into()],
            models: vec!["random-proposer".into()],
            settings: vec![vec![]],
            limits: Limits::default(),
            allow_commands: false,
            seed: 0,
        };
        let refused = |sizes: &[usize], count: usize| {
            let error = matrix(sizes, count, None).jobs().err().map(|e| (e.exit_code(), e.message().to_string()));
            error.unwrap_or_else(|| panic!("{count} puzzles of {sizes:?} are taken"))
        };
        for (sizes, count) in [(&[4][..], usize::MAX), (&[4, 8], 60_000), (&[100_000], 300), (&[], 100_001)] {
            let (code, message) = refused(sizes, count);
            assert!(code == 2 && message.contains("are more than"), "{message}");
        }
        assert_eq!(matrix(&[4], usize::MAX, Some(3)).jobs().unwrap().len(), 3, "what is not taken is not made");
    }
}
