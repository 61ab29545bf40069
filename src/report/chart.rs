//! Plots as SVG, without any library: points with their intervals, and curves over a cost. Colours come from the page's
//! light or dark scheme by class; a plot that stands alone carries its own style.

use super::tables::{Axis, Curve, Panel};
use super::text::{heading, number, percent, short};
use crate::base::text::sanitize_line;
use std::fmt::Write;

/// Colours of arms, light scheme then dark; beyond them the dashes change.
const COLOURS: [(&str, &str); 8] = [
    ("#0b6cb0", "#5db5ee"),
    ("#c2500a", "#ff9f4a"),
    ("#0a7d5a", "#35cf9f"),
    ("#a3427f", "#e79ac6"),
    ("#6a4c9c", "#b79cf0"),
    ("#7d6200", "#dcc02c"),
    ("#55606b", "#aab6c2"),
    ("#b3261e", "#ff8a80"),
];

const WIDTH: f64 = 760.0;

/// Characters of a label that are shown.
const LABEL: usize = 40;

/// Style that a plot needs, for the page and for a plot on its own.
pub fn style() -> String {
    let scheme = |dark: bool| {
        let mut vars = if dark {
            "--ink:#e8e6e3;--soft:#9aa0a6;--line:#3c4043;--paper:#16181b".to_string()
        } else {
            "--ink:#1f2328;--soft:#59636e;--line:#d1d9e0;--paper:#ffffff".to_string()
        };
        for (i, (light, night)) in COLOURS.iter().enumerate() {
            let _ = write!(vars, ";--c{i}:{}", if dark { night } else { light });
        }
        vars
    };
    let mut css = format!(
        ":root{{{}}}@media (prefers-color-scheme:dark){{:root{{{}}}}}\
         svg text{{font:12px system-ui,sans-serif;fill:var(--ink)}}svg .soft{{fill:var(--soft)}}\
         svg .grid{{stroke:var(--line);stroke-width:1}}svg .curve{{fill:none;stroke-width:2}}\
         svg .bar{{stroke-width:2}}",
        scheme(false),
        scheme(true)
    );
    for i in 0..COLOURS.len() {
        let _ = write!(css, "svg .k{i}{{stroke:var(--c{i})}}svg .f{i}{{fill:var(--c{i})}}");
    }
    css
}

/// A plot as a file of its own.
pub fn alone(svg: &str) -> String {
    let style = format!("<style>{}svg{{background:var(--paper)}}</style>", style());
    let svg = svg.replacen("<svg ", "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 1);
    // After the opening tag and the title.
    svg.replacen("</title>", &format!("</title>{style}"), 1) + "\n"
}

pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in sanitize_line(text).chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

fn label(text: &str) -> String {
    let mut shown: String = text.chars().take(LABEL).collect();
    if text.chars().count() > LABEL {
        shown.push('…');
    }
    escape(&shown)
}

fn open(title: &str, height: f64) -> String {
    let title = escape(title);
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\" aria-label=\"{title}\">\
         <title>{title}</title>"
    )
}

/// A value with its ends.
type Interval = (f64, f64, f64);

/// A point with its interval for each arm.
struct Dots<'a> {
    title: String,
    /// Label, and value with its ends.
    rows: Vec<(&'a str, Option<Interval>)>,
    most: f64,
    tick: fn(f64) -> String,
}

impl Dots<'_> {
    fn svg(&self) -> String {
        const ROW: f64 = 26.0;
        let longest = self.rows.iter().map(|(name, _)| name.chars().count().min(LABEL + 1)).max().unwrap_or(0);
        let left = 20.0 + 6.8 * longest as f64;
        let (top, right) = (34.0, WIDTH - 90.0);
        let bottom = top + ROW * self.rows.len() as f64;
        let x = |value: f64| left + (right - left) * (value / self.most).clamp(0.0, 1.0);
        let mut svg = open(&self.title, bottom + 34.0);
        let _ = write!(svg, "<text x=\"{left:.1}\" y=\"18\">{}</text>", escape(&self.title));
        for i in 0..=4 {
            let value = self.most * f64::from(i) / 4.0;
            let at = x(value);
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{at:.1}\" y1=\"{top}\" x2=\"{at:.1}\" y2=\"{bottom}\"/><text class=\"soft\" \
                 x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 18.0,
                (self.tick)(value)
            );
        }
        for (i, (name, value)) in self.rows.iter().enumerate() {
            let y = top + ROW * (i as f64 + 0.5);
            let c = i % COLOURS.len();
            let _ = write!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left - 10.0,
                y + 4.0,
                label(name)
            );
            let Some((value, low, high)) = *value else {
                let _ =
                    write!(svg, "<text class=\"soft\" x=\"{:.1}\" y=\"{:.1}\">not known</text>", left + 6.0, y + 4.0);
                continue;
            };
            let _ = write!(
                svg,
                "<line class=\"bar k{c}\" x1=\"{:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\"/><circle class=\"f{c}\" \
                 cx=\"{:.1}\" cy=\"{y:.1}\" r=\"5\"/><text class=\"soft\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                x(low),
                x(high),
                x(value),
                right + 14.0,
                y + 4.0,
                (self.tick)(value)
            );
        }
        svg.push_str("</svg>");
        svg
    }
}

/// Solved rates with Wilson's intervals.
pub fn rates(panel: &Panel) -> String {
    let row = |group: &'_ super::tables::Group| Some((group.rate(), group.interval.0, group.interval.1));
    Dots {
        title: format!("{}: solved, with 95 % intervals", heading(panel)),
        rows: panel.groups.iter().map(|group| (group.label.as_str(), row(group))).collect(),
        most: 1.0,
        tick: percent,
    }
    .svg()
}

/// Mean errors with bootstrap intervals.
pub fn errors(panel: &Panel) -> String {
    let most = panel.groups.iter().filter_map(|group| group.errors).map(|(_, _, high)| high).fold(0.0, f64::max);
    Dots {
        title: format!("{}: mean errors, with 95 % intervals", heading(panel)),
        rows: panel.groups.iter().map(|group| (group.label.as_str(), group.errors)).collect(),
        most: if most > 0.0 { most * 1.05 } else { 1.0 },
        tick: |value| number(Some(value)),
    }
    .svg()
}

/// Share solved within a cost, on a logarithmic axis; `None` where no arm's cost is known or all are 0.
pub fn curves(panel: &Panel, axis: Axis) -> Option<String> {
    let curves: Vec<&Curve> = panel.curves.iter().filter(|curve| curve.axis == axis).collect();
    let most = curves.iter().map(|curve| curve.spent).fold(0.0, f64::max);
    if most <= 0.0 {
        return None;
    }
    let first = curves.iter().flat_map(|c| c.points.iter().map(|(cost, _)| *cost).chain([c.spent]));
    let least = first.filter(|&cost| cost > 0.0).fold(most, f64::min);
    // Whole decades around what was spent, at least one; a cost of 0 stands at the left edge.
    let (low, high) = (least.log10().floor(), (most.log10() + 1e-9).ceil());
    let high = if high > low { high } else { low + 1.0 };
    let (left, right, top, bottom) = (58.0, WIDTH - 20.0, 34.0, 300.0);
    let x = |cost: f64| left + (right - left) * ((cost.max(1e-300).log10() - low) / (high - low)).clamp(0.0, 1.0);
    let y = |share: f64| bottom - (bottom - top) * share;
    let title = format!("{}: solved within so many {}", heading(panel), axis.title());
    let height = bottom + 48.0 + 20.0 * curves.len().div_ceil(2) as f64;
    let mut svg = open(&title, height);
    let _ = write!(svg, "<text x=\"{left}\" y=\"18\">{}</text>", escape(&title));
    for i in 0..=4 {
        let share = f64::from(i) / 4.0;
        let at = y(share);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{left}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\"/><text class=\"soft\" \
             x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            left - 8.0,
            at + 4.0,
            percent(share)
        );
    }
    for power in low as i32..=high as i32 {
        let cost = 10f64.powi(power);
        let at = x(cost);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{at:.1}\" y1=\"{top}\" x2=\"{at:.1}\" y2=\"{bottom}\"/><text class=\"soft\" \
             x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 18.0,
            short(cost)
        );
    }
    for (i, curve) in curves.iter().enumerate() {
        let (c, dash) = (curve.group % COLOURS.len(), curve.group / COLOURS.len());
        let dash = if dash == 0 { String::new() } else { format!(" stroke-dasharray=\"{} 3\"", 8 / dash.min(4)) };
        let mut path = format!("M{left:.1} {:.1}", y(0.0));
        let mut share = 0.0;
        for (cost, next) in &curve.points {
            let _ = write!(path, "L{:.1} {:.1}L{:.1} {:.1}", x(*cost), y(share), x(*cost), y(*next));
            share = *next;
        }
        let _ = write!(path, "L{:.1} {:.1}", right, y(share));
        let name = label(&panel.groups[curve.group].label);
        let _ = write!(svg, "<path class=\"curve k{c}\"{dash} d=\"{path}\"><title>{name}</title></path>");
        let (row, column) = (i / 2, i % 2);
        let (at_x, at_y) = (left + 350.0 * column as f64, bottom + 44.0 + 20.0 * row as f64);
        let _ = write!(
            svg,
            "<line class=\"bar k{c}\"{dash} x1=\"{at_x:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/><text x=\"{:.1}\" \
             y=\"{at_y:.1}\">{name}</text>",
            at_y - 4.0,
            at_x + 24.0,
            at_y - 4.0,
            at_x + 32.0
        );
    }
    svg.push_str("</svg>");
    Some(svg)
}
