//! The numbers of a report: groups, pairs and curves of every panel (a task and a size).

use super::stats::{bootstrap, holm, mcnemar, mean};
use super::{Collected, Entry};
use crate::batch::summary::wilson;
use std::collections::{BTreeMap, HashMap};

/// All panels, in order of task and size.
#[derive(Debug, Clone, PartialEq)]
pub struct Tables {
    pub panels: Vec<Panel>,
}

/// One task and size.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    pub task: String,
    /// 0: not known.
    pub size: usize,
    pub groups: Vec<Group>,
    pub pairs: Vec<Pair>,
    pub curves: Vec<Curve>,
}

/// One arm in one panel.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    pub arm: usize,
    pub label: String,
    pub n: u64,
    pub solved: u64,
    /// Wilson's 95 % interval of the solved rate.
    pub interval: (f64, f64),
    /// Rows whose run ended with something that has errors to count.
    pub judged: usize,
    /// Their mean, with its bootstrap interval.
    pub errors: Option<(f64, f64, f64)>,
    pub thoughts: Option<f64>,
    pub tokens: Option<f64>,
    pub logical_tokens: Option<f64>,
    pub seconds: Option<f64>,
}

impl Group {
    pub fn rate(&self) -> f64 {
        self.solved as f64 / self.n as f64
    }
}

/// Two arms on the puzzles that both have.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// Places in the panel's groups.
    pub a: usize,
    pub b: usize,
    pub both: u64,
    pub only_a: u64,
    pub only_b: u64,
    pub neither: u64,
    /// McNemar's exact test.
    pub p: f64,
    /// The same after Holm's correction for all pairs of the panel.
    pub p_holm: f64,
    /// Puzzles of which both arms' errors are known.
    pub judged: usize,
    /// Mean of a's errors less b's, with its bootstrap interval.
    pub difference: Option<(f64, f64, f64)>,
}

impl Pair {
    pub fn n(&self) -> u64 {
        self.both + self.only_a + self.only_b + self.neither
    }
}

/// What is spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Axis {
    Tokens,
    LogicalTokens,
    Seconds,
}

impl Axis {
    pub const ALL: [Self; 3] = [Self::Tokens, Self::LogicalTokens, Self::Seconds];

    pub fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::LogicalTokens => "logical_tokens",
            Self::Seconds => "seconds",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Self::Tokens => "computed tokens a puzzle",
            Self::LogicalTokens => "logical tokens a puzzle",
            Self::Seconds => "seconds a puzzle",
        }
    }

    fn of(self, entry: &Entry) -> Option<f64> {
        match self {
            Self::Tokens => entry.tokens,
            Self::LogicalTokens => entry.logical_tokens,
            Self::Seconds => entry.seconds,
        }
    }
}

/// The share of puzzles that an arm solved within a cost: what its rows tell about smaller budgets. A run that stops at its
/// first right answer would have stopped there under any budget that allows it, so the curve is that of equal budgets.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Place in the panel's groups.
    pub group: usize,
    pub axis: Axis,
    /// Cost, and the share solved within it; costs rise.
    pub points: Vec<(f64, f64)>,
    /// The largest cost of any of its rows, solved or not.
    pub spent: f64,
}

impl Curve {
    /// The share solved within a cost.
    pub fn at(&self, cost: f64) -> f64 {
        self.points.iter().take_while(|(c, _)| *c <= cost).last().map_or(0.0, |(_, share)| *share)
    }
}

impl Tables {
    /// `seed` seeds the bootstrap.
    pub fn of(collected: &Collected, seed: u64) -> Self {
        let labels = collected.labels();
        let mut panels: BTreeMap<(&str, usize), BTreeMap<usize, Vec<&Entry>>> = BTreeMap::new();
        for entry in &collected.entries {
            let arms = panels.entry((&entry.task, entry.size)).or_default();
            arms.entry(entry.arm).or_default().push(entry);
        }
        let panel = |((task, size), arms): ((&str, usize), BTreeMap<usize, Vec<&Entry>>)| {
            let arms: Vec<(usize, Vec<&Entry>)> = arms.into_iter().collect();
            let name = |what: &str| format!("{task} {size} {what}");
            let groups: Vec<Group> =
                arms.iter().map(|(arm, rows)| group(*arm, &labels[*arm], rows, seed, &name(&labels[*arm]))).collect();
            let mut pairs = Vec::new();
            for b in 1..arms.len() {
                for a in 0..b {
                    let name = name(&format!("{} {}", labels[arms[a].0], labels[arms[b].0]));
                    pairs.extend(pair((a, &arms[a].1), (b, &arms[b].1), seed, &name));
                }
            }
            let p: Vec<f64> = pairs.iter().map(|pair| pair.p).collect();
            for (pair, p) in pairs.iter_mut().zip(holm(&p)) {
                pair.p_holm = p;
            }
            let curves = arms.iter().enumerate();
            let curves =
                curves.flat_map(|(at, (_, rows))| Axis::ALL.into_iter().filter_map(move |axis| curve(at, axis, rows)));
            Panel { task: task.to_string(), size, groups, pairs, curves: curves.collect() }
        };
        Self { panels: panels.into_iter().map(panel).collect() }
    }
}

fn group(arm: usize, label: &str, rows: &[&Entry], seed: u64, name: &str) -> Group {
    let (n, solved) = (rows.len() as u64, rows.iter().filter(|row| row.solved).count() as u64);
    let errors: Vec<f64> = rows.iter().filter_map(|row| row.error_score).collect();
    Group {
        arm,
        label: label.to_string(),
        n,
        solved,
        interval: wilson(solved, n),
        judged: errors.len(),
        errors: bootstrap(&errors, seed, name),
        thoughts: mean(rows.iter().map(|row| row.thoughts)),
        tokens: mean(rows.iter().map(|row| row.tokens)),
        logical_tokens: mean(rows.iter().map(|row| row.logical_tokens)),
        seconds: mean(rows.iter().map(|row| row.seconds)),
    }
}

/// `None` where they have no puzzle in common.
fn pair((a, rows_a): (usize, &[&Entry]), (b, rows_b): (usize, &[&Entry]), seed: u64, name: &str) -> Option<Pair> {
    let of_b: HashMap<&str, &Entry> = rows_b.iter().map(|row| (row.id.as_str(), *row)).collect();
    let mut pair =
        Pair { a, b, both: 0, only_a: 0, only_b: 0, neither: 0, p: 1.0, p_holm: 1.0, judged: 0, difference: None };
    let mut differences = Vec::new();
    for row_a in rows_a {
        let Some(row_b) = of_b.get(row_a.id.as_str()) else { continue };
        match (row_a.solved, row_b.solved) {
            (true, true) => pair.both += 1,
            (true, false) => pair.only_a += 1,
            (false, true) => pair.only_b += 1,
            (false, false) => pair.neither += 1,
        }
        differences.extend(row_a.error_score.zip(row_b.error_score).map(|(a, b)| a - b));
    }
    pair.p = mcnemar(pair.only_a, pair.only_b);
    pair.judged = differences.len();
    pair.difference = bootstrap(&differences, seed, name);
    (pair.n() > 0).then_some(pair)
}

/// `None` where some cost is not known.
fn curve(group: usize, axis: Axis, rows: &[&Entry]) -> Option<Curve> {
    let costs: Vec<(f64, bool)> = rows.iter().map(|row| Some((axis.of(row)?, row.solved))).collect::<Option<_>>()?;
    let mut solved: Vec<f64> = costs.iter().filter(|(_, solved)| *solved).map(|(cost, _)| *cost).collect();
    solved.sort_by(f64::total_cmp);
    let mut points: Vec<(f64, f64)> = Vec::new();
    for (i, cost) in solved.into_iter().enumerate() {
        let share = (i + 1) as f64 / rows.len() as f64;
        match points.last_mut() {
            Some(last) if last.0 == cost => last.1 = share,
            _ => points.push((cost, share)),
        }
    }
    let spent = costs.iter().map(|(cost, _)| *cost).fold(0.0, f64::max);
    Some(Curve { group, axis, points, spent })
}

/// Budgets at which a table compares curves: of the row 1, 2, 5, 10, … those within what was spent, at most six.
pub fn budgets(curves: &[&Curve]) -> Vec<f64> {
    let spent = curves.iter().map(|curve| curve.spent).fold(0.0, f64::max);
    let least = curves.iter().flat_map(|curve| curve.points.first()).map(|(cost, _)| *cost);
    let least = least.filter(|&cost| cost > 0.0).fold(spent, f64::min);
    if spent <= 0.0 {
        return Vec::new();
    }
    let mut all: Vec<f64> = (-3..=12)
        .flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(power)))
        .filter(|&b| b >= least * 0.4 && b < spent * 2.5)
        .collect();
    if all.len() > 6 {
        let each = all.len().div_ceil(6);
        let last = all.len() - 1;
        all = all.into_iter().enumerate().filter(|(i, _)| (last - i).is_multiple_of(each)).map(|(_, b)| b).collect();
    }
    all
}
