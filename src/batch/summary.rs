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

/// What rows are gathered by, in the order of tables.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct By {
    pub task: String,
    pub size: usize,
    pub strategy: String,
    pub settings: String,
    pub model: String,
}

/// Rows of one kind: counts, and means over the rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Group {
    pub n: u64,
    pub solved: u64,
    /// Rows whose run ended with something that has errors to count; the mean is theirs.
    pub judged: u64,
    pub error_score: f64,
    pub thoughts: f64,
    pub tokens: f64,
    pub logical_tokens: f64,
    pub seconds: f64,
}

impl Group {
    fn add(&mut self, row: &Row) {
        self.n += 1;
        self.solved += u64::from(row.solved);
        self.judged += u64::from(row.error_score.is_some());
        self.error_score += row.error_score.unwrap_or(0) as f64;
        self.thoughts += row.thoughts as f64;
        self.tokens += row.tokens as f64;
        self.logical_tokens += row.logical_tokens as f64;
        self.seconds += row.seconds;
    }

    /// From sums to means.
    fn divide(&mut self) {
        let n = self.n as f64;
        for sum in [&mut self.thoughts, &mut self.tokens, &mut self.logical_tokens, &mut self.seconds] {
            *sum /= n;
        }
        self.error_score /= self.judged as f64;
    }

    /// The mean of the errors to some digits; a dash where no row has any to count.
    pub fn errors(&self, digits: usize) -> String {
        if self.judged == 0 { "-".into() } else { format!("{:.digits$}", self.error_score) }
    }
}

/// All groups in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summary {
    pub groups: BTreeMap<By, Group>,
}

impl Summary {
    pub fn of(rows: &[Row]) -> Self {
        let mut groups: BTreeMap<By, Group> = BTreeMap::new();
        for row in rows {
            let Row { task, strategy, settings, model, .. } = row.clone();
            groups.entry(By { task, size: row.size, strategy, settings, model }).or_default().add(row);
        }
        groups.values_mut().for_each(Group::divide);
        Self { groups }
    }

    pub fn csv(&self) -> String {
        let mut out = String::from(
            "task,size,strategy,settings,model,n,solved,rate,wilson_low,wilson_high,error_score,thoughts,tokens,\
             logical_tokens,seconds\n",
        );
        for (by, g) in &self.groups {
            let (low, high) = wilson(g.solved, g.n);
            let names = [&by.strategy, &by.settings, &by.model].map(|name| quoted(name)).join(",");
            let rate = g.solved as f64 / g.n as f64;
            let errors = if g.judged == 0 { String::new() } else { g.errors(3) };
            // Writing to a String cannot fail.
            let _ = writeln!(
                out,
                "{},{},{names},{},{},{rate:.4},{low:.4},{high:.4},{errors},{:.2},{:.2},{:.2},{:.3}",
                quoted(&by.task),
                by.size,
                g.n,
                g.solved,
                g.thoughts,
                g.tokens,
                g.logical_tokens,
                g.seconds
            );
        }
        out
    }

    /// Settings and models have a column where they differ.
    pub fn markdown(&self) -> String {
        let differ = |name: fn(&By) -> &String| {
            self.groups.keys().any(|by| Some(name(by)) != self.groups.keys().next().map(name))
        };
        type Column = (&'static str, fn(&By) -> &String);
        let columns: [Column; 2] = [("settings", |by| &by.settings), ("model", |by| &by.model)];
        let named: Vec<_> = columns.into_iter().filter(|(_, name)| differ(*name)).collect();
        let mut out = String::from("| task | size | strategy |");
        named.iter().for_each(|(title, _)| out.push_str(&format!(" {title} |")));
        out.push_str(
            " solved | 95 % interval | errors | thoughts | tokens | logical tokens | seconds |\n|---|---:|---|",
        );
        named.iter().for_each(|_| out.push_str("---|"));
        out.push_str("---:|---:|---:|---:|---:|---:|---:|\n");
        for (by, g) in &self.groups {
            let (low, high) = wilson(g.solved, g.n);
            let _ = write!(out, "| {} | {} | {} |", cell(&by.task), by.size, cell(&by.strategy));
            named.iter().for_each(|(_, name)| out.push_str(&format!(" {} |", cell(name(by)))));
            let _ = writeln!(
                out,
                " {} of {} | {:.0}-{:.0} % | {} | {:.1} | {:.0} | {:.0} | {:.2} |",
                g.solved,
                g.n,
                low * 100.0,
                high * 100.0,
                g.errors(2),
                g.thoughts,
                g.tokens,
                g.logical_tokens,
                g.seconds
            );
        }
        out
    }
}

/// A field of a CSV line.
pub fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_string() }
}

/// A cell of a Markdown table.
pub fn cell(text: &str) -> String {
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
