//! The numbers as text: Markdown for reading, CSV and JSON lines for other programs.

use super::tables::{Axis, Curve, Group, Pair, Panel, Tables, budgets};
use super::{Collected, Origin, budget};
use crate::base::text::sanitize_line;
use crate::batch::summary::{cell, quoted};
use serde_json::{Value, json};
use std::fmt::Write;

/// What a table's columns mean; the same words in Markdown and on the page.
pub const GROUPS_NOTE: &str = "Solved with Wilson's 95 % interval. Errors: the task's own count, 0 is right; mean over the runs that \
     ended with an answer (their number in brackets where it is not all), with a bootstrap 95 % interval. Tokens: computed. \
     Logical tokens: what a service without sharing would bill. Costs are means of a puzzle.";
pub const PAIRS_NOTE: &str = "On the puzzles that both have. p: McNemar's exact test of the puzzles that only one of the two solved; \
     p (Holm): the same, corrected for all pairs of the table. Difference of errors: mean of a less b, with a bootstrap 95 % \
     interval; below 0 means that a makes fewer.";
pub const CURVES_NOTE: &str = "The share of puzzles solved within a cost: what the same runs would have solved under a smaller \
     budget. A strategy that ends before a budget is used up keeps its share.";

/// The heading of a panel.
pub fn heading(panel: &Panel) -> String {
    if panel.size == 0 { panel.task.clone() } else { format!("{} {}", panel.task, panel.size) }
}

/// A number with as many digits as it deserves; a dash where it is not known.
pub fn number(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(v) if v != 0.0 && v.abs() < 10.0 => format!("{v:.2}"),
        Some(v) if v.abs() < 100.0 => format!("{v:.1}"),
        Some(v) => format!("{v:.0}"),
    }
}

/// `12.50 (10.10 to 14.90)`.
pub fn spread(value: Option<(f64, f64, f64)>) -> String {
    match value {
        None => "-".into(),
        Some((mean, low, high)) => format!("{mean:.2} ({low:.2} to {high:.2})"),
    }
}

pub fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

pub fn p_value(p: f64) -> String {
    if p < 0.0001 { "< 0.0001".into() } else { format!("{p:.4}") }
}

/// The cells of a group's line, as Markdown and the page show them.
pub fn group_cells(group: &Group) -> Vec<String> {
    let (low, high) = group.interval;
    let mut errors = spread(group.errors);
    if group.judged as u64 != group.n && group.judged > 0 {
        errors.push_str(&format!(" [{}]", group.judged));
    }
    vec![
        group.label.clone(),
        format!("{} of {}", group.solved, group.n),
        format!("{} ({:.0}-{:.0} %)", percent(group.rate()), low * 100.0, high * 100.0),
        errors,
        number(group.thoughts),
        number(group.tokens),
        number(group.logical_tokens),
        number(group.seconds),
    ]
}

pub const GROUP_TITLES: [&str; 8] =
    ["arm", "solved", "rate", "errors", "thoughts", "tokens", "logical tokens", "seconds"];
pub const PAIR_TITLES: [&str; 8] = ["a", "b", "both", "only a", "only b", "p", "p (Holm)", "difference of errors"];

pub fn pair_cells(panel: &Panel, pair: &Pair) -> Vec<String> {
    vec![
        panel.groups[pair.a].label.clone(),
        panel.groups[pair.b].label.clone(),
        format!("{} of {}", pair.both, pair.n()),
        pair.only_a.to_string(),
        pair.only_b.to_string(),
        p_value(pair.p),
        p_value(pair.p_holm),
        spread(pair.difference),
    ]
}

/// The table of one axis: titles, then a line for each curve. `None` where there is nothing to show.
pub fn curve_table(panel: &Panel, axis: Axis) -> Option<(Vec<String>, Vec<Vec<String>>)> {
    let curves: Vec<&Curve> = panel.curves.iter().filter(|curve| curve.axis == axis).collect();
    let budgets = budgets(&curves);
    if budgets.is_empty() {
        return None;
    }
    let unit = if axis == Axis::Seconds { " s" } else { "" };
    let mut titles = vec!["arm".to_string()];
    titles.extend(budgets.iter().map(|&budget| format!("≤ {}{unit}", short(budget))));
    let line = |curve: &&Curve| {
        let mut cells = vec![panel.groups[curve.group].label.clone()];
        cells.extend(budgets.iter().map(|&budget| percent(curve.at(budget))));
        cells
    };
    Some((titles, curves.iter().map(line).collect()))
}

/// `20k`, `0.05`.
pub fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{}M", v / 1e6),
        v if v >= 1e3 => format!("{}k", v / 1e3),
        v if v < 1.0 => format!("{}", (v * 1e4).round() / 1e4),
        v => format!("{v}"),
    }
}

pub fn markdown(collected: &Collected, tables: &Tables) -> String {
    let mut out = String::new();
    for (title, lines) in [("Faults", &collected.faults), ("Notes", &collected.notes)] {
        if !lines.is_empty() {
            let _ = writeln!(out, "**{title}**\n");
            lines.iter().for_each(|line| out.push_str(&format!("- {}\n", sanitize_line(line))));
            out.push('\n');
        }
    }
    for panel in &tables.panels {
        let _ = writeln!(out, "## {}\n", heading(panel));
        table(&mut out, &GROUP_TITLES.map(String::from), panel.groups.iter().map(group_cells));
        let _ = writeln!(out, "\n{GROUPS_NOTE}\n");
        if !panel.pairs.is_empty() {
            table(&mut out, &PAIR_TITLES.map(String::from), panel.pairs.iter().map(|pair| pair_cells(panel, pair)));
            let _ = writeln!(out, "\n{PAIRS_NOTE}\n");
        }
        for axis in Axis::ALL {
            if let Some((titles, lines)) = curve_table(panel, axis) {
                let _ = writeln!(out, "Solved within so many {}:\n", axis.title());
                table(&mut out, &titles, lines.into_iter());
                out.push('\n');
            }
        }
        let _ = writeln!(out, "{CURVES_NOTE}\n");
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

fn table(out: &mut String, titles: &[String], lines: impl Iterator<Item = Vec<String>>) {
    let line = |cells: &[String]| -> String {
        let cells: Vec<String> = cells.iter().map(|text| cell(&sanitize_line(text))).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    out.push_str(&line(titles));
    out.push_str(&format!("|---|{}\n", "---:|".repeat(titles.len() - 1)));
    lines.for_each(|cells| out.push_str(&line(&cells)));
}

/// A field for a spreadsheet: empty where the number is not known.
fn field(value: Option<f64>) -> String {
    value.map_or_else(String::new, |v| format!("{v:.4}"))
}

pub fn groups_csv(collected: &Collected, tables: &Tables) -> String {
    let mut out = String::from(
        "task,size,arm,strategy,settings,model,seed,budget,n,solved,rate,rate_low,rate_high,judged,error_score,error_low,\
         error_high,thoughts,tokens,logical_tokens,seconds\n",
    );
    for (panel, group) in tables.panels.iter().flat_map(|panel| panel.groups.iter().map(move |group| (panel, group))) {
        let arm = &collected.arms[group.arm];
        let names = [&panel.task, &panel.size.to_string(), &group.label, &arm.strategy, &arm.settings, &arm.model];
        let names = names.map(|name| quoted(name)).join(",");
        let seed = arm.seed.map(|seed| seed.to_string()).unwrap_or_default();
        let (low, high) = group.interval;
        let errors = group.errors.map_or_else(|| ",,".to_string(), |(m, l, h)| format!("{m:.4},{l:.4},{h:.4}"));
        let costs = [group.thoughts, group.tokens, group.logical_tokens, group.seconds].map(field).join(",");
        let _ = writeln!(
            out,
            "{names},{seed},{},{},{},{:.4},{low:.4},{high:.4},{},{errors},{costs}",
            quoted(&budget(&arm.limits)),
            group.n,
            group.solved,
            group.rate(),
            group.judged
        );
    }
    out
}

pub fn pairs_csv(tables: &Tables) -> String {
    let mut out = String::from(
        "task,size,a,b,n,both,only_a,only_b,neither,p,p_holm,judged,error_difference,error_low,error_high\n",
    );
    for (panel, pair) in tables.panels.iter().flat_map(|panel| panel.pairs.iter().map(move |pair| (panel, pair))) {
        let (a, b) = (&panel.groups[pair.a].label, &panel.groups[pair.b].label);
        let names = [&panel.task, &panel.size.to_string(), a, b].map(|name| quoted(name)).join(",");
        let errors = pair.difference.map_or_else(|| ",,".to_string(), |(m, l, h)| format!("{m:.4},{l:.4},{h:.4}"));
        let _ = writeln!(
            out,
            "{names},{},{},{},{},{},{:.6},{:.6},{},{errors}",
            pair.n(),
            pair.both,
            pair.only_a,
            pair.only_b,
            pair.neither,
            pair.p,
            pair.p_holm,
            pair.judged
        );
    }
    out
}

pub fn curves_csv(tables: &Tables) -> String {
    let mut out = String::from("task,size,arm,axis,cost,solved_share\n");
    for (panel, curve) in tables.panels.iter().flat_map(|panel| panel.curves.iter().map(move |curve| (panel, curve))) {
        let names =
            [&panel.task, &panel.size.to_string(), &panel.groups[curve.group].label].map(|n| quoted(n)).join(",");
        for (cost, share) in &curve.points {
            let _ = writeln!(out, "{names},{},{cost:.4},{share:.4}", curve.axis.name());
        }
    }
    out
}

/// One object a line, each with its `kind`.
pub fn json_lines(collected: &Collected, tables: &Tables) -> Vec<Value> {
    let mut lines = Vec::new();
    for source in &collected.sources {
        let format = match source.origin {
            Origin::Totara => "totara",
            Origin::GraphOfThoughts => "graph-of-thoughts",
        };
        lines.push(json!({"kind": "source", "folder": source.folder, "format": format, "rows": source.rows,
            "expected": source.expected}));
    }
    lines.extend(collected.faults.iter().map(|text| json!({"kind": "fault", "text": text})));
    lines.extend(collected.notes.iter().map(|text| json!({"kind": "note", "text": text})));
    for panel in &tables.panels {
        let (task, size) = (&panel.task, panel.size);
        let label = |group: usize| &panel.groups[group].label;
        for g in &panel.groups {
            let arm = &collected.arms[g.arm];
            let (mean, low, high) = unzip(g.errors);
            lines.push(json!({
                "kind": "group", "task": task, "size": size, "arm": g.label, "strategy": arm.strategy,
                "settings": arm.settings, "model": arm.model, "seed": arm.seed, "budget": arm.limits, "n": g.n,
                "solved": g.solved, "rate": g.rate(), "rate_low": g.interval.0, "rate_high": g.interval.1,
                "judged": g.judged, "error_score": mean, "error_low": low, "error_high": high, "thoughts": g.thoughts,
                "tokens": g.tokens, "logical_tokens": g.logical_tokens, "seconds": g.seconds,
            }));
        }
        for pair in &panel.pairs {
            let (mean, low, high) = unzip(pair.difference);
            lines.push(json!({
                "kind": "pair", "task": task, "size": size, "a": label(pair.a), "b": label(pair.b), "n": pair.n(),
                "both": pair.both, "only_a": pair.only_a, "only_b": pair.only_b, "neither": pair.neither, "p": pair.p,
                "p_holm": pair.p_holm, "judged": pair.judged, "error_difference": mean, "error_low": low,
                "error_high": high,
            }));
        }
        for curve in &panel.curves {
            lines.push(json!({
                "kind": "curve", "task": task, "size": size, "arm": label(curve.group), "axis": curve.axis.name(),
                "points": curve.points, "spent": curve.spent,
            }));
        }
    }
    lines
}

fn unzip(value: Option<(f64, f64, f64)>) -> (Option<f64>, Option<f64>, Option<f64>) {
    (value.map(|v| v.0), value.map(|v| v.1), value.map(|v| v.2))
}
