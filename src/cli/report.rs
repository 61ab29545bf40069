//! `totara report`: folders to tables on standard output, and with --out to files.

use super::args::{Common, ReportArgs};
use super::out;
use crate::base::text::sanitize;
use crate::base::{Error, Result, inside, write_whole};
use crate::report::tables::{Axis, Tables};
use crate::report::{chart, page, read, text};
use std::path::Path;

/// 1 where something is wrong in the folders; the report is made all the same.
pub fn run(common: &Common, args: &ReportArgs) -> Result<u8> {
    let collected = read::read(&args.folders)?;
    let tables = Tables::of(&collected, common.seed);
    if let Some(folder) = &args.out {
        for (name, text) in files(&collected, &tables) {
            write(folder, &name, &text)?;
        }
        if !common.quiet {
            out::tell(&format!("the page is {}", folder.join("report.html").display()));
        }
    }
    if !common.quiet {
        for fault in &collected.faults {
            out::tell(&sanitize(&format!("fault: {fault}")));
        }
        for note in &collected.notes {
            out::tell(&sanitize(&format!("note: {note}")));
        }
    }
    if common.json {
        for line in text::json_lines(&collected, &tables) {
            out::json(&line)?;
        }
    } else {
        out::line(text::markdown(&collected, &tables).trim_end())?;
    }
    Ok(u8::from(!collected.faults.is_empty()))
}

/// Every file of a report, by name.
fn files(collected: &crate::report::Collected, tables: &Tables) -> Vec<(String, String)> {
    let lines: Vec<String> = text::json_lines(collected, tables).iter().map(|line| format!("{line}\n")).collect();
    let mut files = vec![
        ("report.html".to_string(), page::html(collected, tables)),
        ("report.md".into(), text::markdown(collected, tables)),
        ("report.jsonl".into(), lines.concat()),
        ("groups.csv".into(), text::groups_csv(collected, tables)),
        ("pairs.csv".into(), text::pairs_csv(tables)),
        ("curves.csv".into(), text::curves_csv(tables)),
    ];
    for panel in &tables.panels {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        let name: String = format!("{}-{}", panel.task, panel.size).chars().map(plain).take(60).collect();
        let mut add = |what: &str, svg: &str| files.push((format!("{name}-{what}.svg"), chart::alone(svg)));
        add("solved", &chart::rates(panel));
        add("errors", &chart::errors(panel));
        for axis in Axis::ALL {
            if let Some(svg) = chart::curves(panel, axis) {
                add(axis.name(), &svg);
            }
        }
    }
    files
}

fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    let fault = |e: std::io::Error| Error::fault(format!("{} cannot be written: {e}", folder.join(name).display()));
    std::fs::create_dir_all(folder).map_err(fault)?;
    write_whole(&inside(folder, name)?, text).map_err(fault)
}
