//! Rows in short: by task, size and strategy, with intervals.

use super::row::Row;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Normal quantile of a two-sided 95 % interval.
const Z: f64 = 1.959_963_984_540_054;

/// The Wilson interval of a share, at 95 %: from `solved` of `n`. Source: Wilson, Probable Inference (1927), with the form
/// that stays within 0 and 1; 0 of 0 is anything.
pub fn wilson(solved: u64, n: u64) -> (f64, f64) {
    if n == 0 {
        return (0.0, 1.0);
    }
    let (n, share) = (n as f64, solved as f64 / n as f64);
    let middle = share + Z * Z / (2.0 * n);
    let half = Z * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
    let scale = 1.0 + Z * Z / n;
    (((middle - half) / scale).max(0.0), ((middle + half) / scale).min(1.0))
}

/// Rows of one task, size and strategy.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Group {
    pub n: u64,
    pub solved: u64,
    pub error_score: f64,
    pub thoughts: f64,
    pub tokens: f64,
    pub logical_tokens: f64,
    pub seconds: f64,
}

/// All groups, in order of task, size and strategy. Means, where there are several.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summary {
    pub groups: BTreeMap<(String, usize, String), Group>,
}

impl Summary {
    pub fn of(rows: &[Row]) -> Self {
        let mut groups: BTreeMap<(String, usize, String), Group> = BTreeMap::new();
        for row in rows {
            let group = groups.entry((row.task.clone(), row.size, row.strategy.clone())).or_default();
            group.n += 1;
            group.solved += u64::from(row.solved);
            group.error_score += row.error_score.unwrap_or(0) as f64;
            group.thoughts += row.thoughts as f64;
            group.tokens += row.tokens as f64;
            group.logical_tokens += row.logical_tokens as f64;
            group.seconds += row.seconds;
        }
        for group in groups.values_mut() {
            let n = group.n as f64;
            for sum in [
                &mut group.error_score,
                &mut group.thoughts,
                &mut group.tokens,
                &mut group.logical_tokens,
                &mut group.seconds,
            ] {
                *sum /= n;
            }
        }
        Self { groups }
    }

    pub fn csv(&self) -> String {
        let mut out = String::from(
            "task,size,strategy,n,solved,rate,wilson_low,wilson_high,error_score,thoughts,tokens,logical_tokens,seconds\n",
        );
        for ((task, size, strategy), g) in &self.groups {
            let (low, high) = wilson(g.solved, g.n);
            let (task, strategy) = (quoted(task), quoted(strategy));
            let rate = g.solved as f64 / g.n as f64;
            // Writing to a String cannot fail.
            let _ = writeln!(
                out,
                "{task},{size},{strategy},{},{},{rate:.4},{low:.4},{high:.4},{:.3},{:.2},{:.2},{:.2},{:.3}",
                g.n, g.solved, g.error_score, g.thoughts, g.tokens, g.logical_tokens, g.seconds
            );
        }
        out
    }

    pub fn markdown(&self) -> String {
        let mut out = String::from(
            "| task | size | strategy | solved | 95 % interval | errors | thoughts | tokens | logical tokens | seconds |\n\
             |---|---:|---|---:|---:|---:|---:|---:|---:|---:|\n",
        );
        for ((task, size, strategy), g) in &self.groups {
            let (low, high) = wilson(g.solved, g.n);
            let (task, strategy) = (cell(task), cell(strategy));
            let _ = writeln!(
                out,
                "| {task} | {size} | {strategy} | {} of {} | {:.0}-{:.0} % | {:.2} | {:.1} | {:.0} | {:.0} | {:.2} |",
                g.solved,
                g.n,
                low * 100.0,
                high * 100.0,
                g.error_score,
                g.thoughts,
                g.tokens,
                g.logical_tokens,
                g.seconds
            );
        }
        out
    }
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_string() }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_wilsons() {
        let check = |solved, n, low: f64, high: f64| {
            let (a, b) = wilson(solved, n);
            assert!((a - low).abs() < 5e-4 && (b - high).abs() < 5e-4, "{solved} of {n}: {a} to {b}");
        };
        // Newcombe, Two-sided confidence intervals for the single proportion (1998), table I, method 3.
        check(81, 263, 0.2553, 0.3662);
        check(15, 148, 0.0624, 0.1605);
        check(0, 20, 0.0, 0.1611);
        check(1, 29, 0.0061, 0.1718);
        check(0, 0, 0.0, 1.0);
    }

    #[test]
    fn names_cannot_break_a_table() {
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(cell("a|b\nc"), "a\\|b c");
    }
}
