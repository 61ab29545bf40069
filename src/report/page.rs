//! The report as one HTML page: tables and plots, light and dark, nothing fetched and nothing run (its content policy says
//! so), so that it can be mailed, archived and opened anywhere.

use super::chart::{self, escape};
use super::tables::{Axis, Tables};
use super::text::{
    CURVES_NOTE, GROUP_TITLES, GROUPS_NOTE, PAIR_TITLES, PAIRS_NOTE, curve_table, group_cells, heading, pair_cells,
};
use super::{Collected, Origin};
use std::fmt::Write;

const STYLE: &str = "*{box-sizing:border-box}html{color-scheme:light dark}body{margin:0 auto;max-width:80rem;padding:1.5rem;\
     font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper)}h1{font-size:1.5rem}h2{font-size:1.2rem;\
     margin-top:2.5rem;border-bottom:1px solid var(--line)}p,li{max-width:46rem}.soft{color:var(--soft);font-size:.9rem}\
     .wide{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums;margin:.5rem 0}\
     th,td{padding:.3rem .7rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}\
     th:first-child,td:first-child{text-align:left}svg{max-width:100%;height:auto;display:block;margin:1rem 0}\
     .fault{color:var(--c7)}code{font-size:.85rem;overflow-wrap:anywhere}";

pub fn html(collected: &Collected, tables: &Tables) -> String {
    let mut out = String::from(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\"><meta http-equiv=\"Content-Security-Policy\" content=\"default-src \
         'none'; style-src 'unsafe-inline'\"><title>Totara report</title><style>",
    );
    out.push_str(&chart::style());
    out.push_str(STYLE);
    out.push_str("</style></head><body>\n<h1>Totara report</h1>\n");
    for (class, lines) in [("fault", &collected.faults), ("soft", &collected.notes)] {
        if !lines.is_empty() {
            let _ = write!(out, "<ul class=\"{class}\">");
            lines.iter().for_each(|line| out.push_str(&format!("<li>{}</li>", escape(line))));
            out.push_str("</ul>\n");
        }
    }
    for panel in &tables.panels {
        let _ = writeln!(out, "<h2>{}</h2>", escape(&heading(panel)));
        table(&mut out, &GROUP_TITLES.map(String::from), panel.groups.iter().map(group_cells));
        let _ = writeln!(out, "<p class=\"soft\">{GROUPS_NOTE}</p>");
        out.push_str(&chart::rates(panel));
        out.push_str(&chart::errors(panel));
        for axis in Axis::ALL {
            out.push_str(&chart::curves(panel, axis).unwrap_or_default());
            if let Some((titles, lines)) = curve_table(panel, axis) {
                table(&mut out, &titles, lines.into_iter());
            }
        }
        let _ = writeln!(out, "<p class=\"soft\">{}</p>", escape(CURVES_NOTE));
        if !panel.pairs.is_empty() {
            out.push_str("<h3>Pairs on the same puzzles</h3>\n");
            table(&mut out, &PAIR_TITLES.map(String::from), panel.pairs.iter().map(|pair| pair_cells(panel, pair)));
            let _ = writeln!(out, "<p class=\"soft\">{}</p>", escape(PAIRS_NOTE));
        }
    }
    out.push_str("<h2>Sources</h2>\n<ul>\n");
    for source in &collected.sources {
        let format = match source.origin {
            Origin::Totara => "",
            Origin::GraphOfThoughts => " (Graph of Thoughts)",
        };
        let _ = write!(out, "<li>{}{format}: {} rows", escape(&source.folder), source.rows);
        if !source.command.is_empty() {
            let _ = write!(out, "<br><code>{}</code>", escape(&source.command));
        }
        out.push_str("</li>\n");
    }
    let _ = write!(out, "</ul>\n<p class=\"soft\">totara {}</p>\n</body></html>\n", env!("CARGO_PKG_VERSION"));
    out
}

fn table(out: &mut String, titles: &[String], lines: impl Iterator<Item = Vec<String>>) {
    let row = |tag: &str, cells: &[String]| -> String {
        let cells: String = cells.iter().map(|text| format!("<{tag}>{}</{tag}>", escape(text))).collect();
        format!("<tr>{cells}</tr>")
    };
    out.push_str("<div class=\"wide\"><table>");
    out.push_str(&row("th", titles));
    lines.for_each(|cells| out.push_str(&row("td", &cells)));
    out.push_str("</table></div>\n");
}
