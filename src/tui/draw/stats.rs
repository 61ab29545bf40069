//! Numbers: memory, speed, link, search. Whatever the model cannot tell is `not known`, never zero.
//!
//! Each pane is a list of lines in order of importance; as many are drawn as fit.

use crate::base::size::Human;
use crate::lm::{HeldKv, PAGE_TOKENS};
use crate::search::tree::Status;
use crate::tui::canvas::Canvas;
use crate::tui::held::Keeps;
use crate::tui::run_screen::RunScreen;
use crate::tui::text::{self, grouped, seconds, short_number};
use ratatui::layout::Rect;
use ratatui::style::Style;

/// Writes lines downwards until the area is full.
struct Lines<'c, 'a> {
    canvas: &'c mut Canvas<'a>,
    area: Rect,
    y: u16,
    /// What stands where nothing is known.
    none: &'static str,
}

const LABEL: u16 = 10;
/// What is said where K/V has no second tier.
const ONE_TIER: &str = "one: all on the device";
const SEE_OFFLOAD: &str = "see --offload";

impl<'c, 'a> Lines<'c, 'a> {
    fn new(canvas: &'c mut Canvas<'a>, run: &RunScreen, area: Rect) -> Self {
        // Old records hold no counters.
        let recorded = run.replay.as_ref().is_none_or(|replay| replay.tells_counters());
        let none = if recorded { "not known" } else { "not recorded" };
        Self { y: area.y, canvas, area, none }
    }

    /// The next line's row, where there is one.
    fn next(&mut self) -> Option<u16> {
        (self.y < self.area.bottom()).then(|| {
            self.y += 1;
            self.y - 1
        })
    }

    fn left(&self) -> u16 {
        self.area.bottom() - self.y
    }

    fn label(&mut self, y: u16, label: &str) -> (u16, u16) {
        let cells = LABEL.min(self.area.width);
        let dim = self.canvas.theme.dim;
        self.canvas.put(self.area.x, y, cells, label, dim);
        (self.area.x + cells, self.area.width - cells)
    }

    fn value(&mut self, label: &str, value: &str, style: Style) {
        let Some(y) = self.next() else { return };
        let (x, cells) = self.label(y, label);
        self.canvas.put(x, y, cells, value, style);
    }

    /// A value, and after it something less important.
    fn value_and(&mut self, label: &str, value: &str, more: &str) {
        let Some(y) = self.next() else { return };
        let (text, dim) = (self.canvas.theme.text, self.canvas.theme.dim);
        let (x, cells) = self.label(y, label);
        self.canvas.pieces(x, y, cells, &[(value.to_string(), text), (format!("  {more}"), dim)]);
    }

    /// A text without a label.
    fn whole(&mut self, text: &str) {
        let Some(y) = self.next() else { return };
        let style = self.canvas.theme.text;
        self.canvas.put(self.area.x, y, self.area.width, text, style);
    }

    /// A bar with a text at its right end.
    fn gauge(&mut self, label: &str, share: f64, note: &str, style: Style) {
        let Some(y) = self.next() else { return };
        let (x, cells) = self.label(y, label);
        let note_cells = (text::width(note) as u16 + 1).min(cells);
        let bar = (cells - note_cells).min(24);
        self.canvas.bar(x, y, bar, share, style);
        let dim = self.canvas.theme.text;
        self.canvas.put(x + bar + 1, y, cells.saturating_sub(bar + 1), note, dim);
    }

    fn spark(&mut self, label: &str, value: &str, values: &[f64], style: Style) {
        let Some(y) = self.next() else { return };
        let (x, cells) = self.label(y, label);
        let text = self.canvas.theme.text;
        let end = self.canvas.put(x, y, cells, value, text) + 1;
        let room = (x + cells).saturating_sub(end).min(60);
        self.canvas.spark(end, y, room, values, style);
    }

    /// Heights between a `0` and the scale's other end. More bins than cells are drawn together.
    fn histogram(&mut self, label: &str, bins: &[f64], end: &str, style: Style) {
        let Some(y) = self.next() else { return };
        let (x, cells) = self.label(y, label);
        let dim = self.canvas.theme.dim;
        let room = usize::from(cells.saturating_sub(text::width(end) as u16 + 4)).clamp(1, 60);
        let width = bins.len().div_ceil(room).max(1);
        let merged: Vec<f64> = bins.chunks(width).map(|c| c.iter().sum()).collect();
        let at = self.canvas.put(x, y, cells, "0 ", dim);
        let drawn = (merged.len() as u16).min((x + cells).saturating_sub(at));
        self.canvas.spark(at, y, drawn, &merged, style);
        self.canvas.put(at + drawn + 1, y, (x + cells).saturating_sub(at + drawn + 1), end, dim);
    }

    fn unknown(&mut self, label: &str) {
        let dim = self.canvas.theme.dim;
        self.value(label, self.none, dim);
    }
}

fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".into() } else { format!("{:.0} %", part as f64 * 100.0 / whole as f64) }
}

pub fn memory(canvas: &mut Canvas<'_>, run: &RunScreen, area: Rect) {
    let theme = canvas.theme;
    let mut lines = Lines::new(canvas, run, area);
    match run.state.counters.kv {
        None => lines.unknown("K/V"),
        Some(kv) => {
            if let Some(y) = lines.next() {
                let (x, cells) = lines.label(y, "pages");
                let note = format!(
                    "{} of {}",
                    short_number((kv.pages_live + kv.pages_cached) as f64),
                    short_number(kv.pages_total as f64)
                );
                let bar = cells.saturating_sub(text::width(&note) as u16 + 1).min(24);
                let share = |n: u64| n as f64 / kv.pages_total.max(1) as f64;
                lines.canvas.stacked(
                    x,
                    y,
                    bar,
                    &[(share(kv.pages_live), theme.accent), (share(kv.pages_cached), theme.dim)],
                );
                lines.canvas.put(x + bar + 1, y, cells.saturating_sub(bar + 1), &note, theme.text);
            }
            let bytes = Human(kv.pages_live * kv.page_bytes);
            lines.value_and("K/V", &format!("{} tokens", grouped(kv.tokens_stored)), &bytes.to_string());
            thought_memory(&mut lines, run, kv.page_bytes / PAGE_TOKENS as u64);
        }
    }
    match run.state.counters.io {
        None => lines.unknown("read"),
        Some(io) => {
            let radix = Human(io.radix_bytes);
            lines.value_and("read", &Human(io.kv_bytes).to_string(), &format!("Radix {radix}"));
            let times = io.radix_bytes as f64 / io.kv_bytes.max(1) as f64;
            lines.value_and("", &format!("{times:.2}x"), "less than Radix reads");
        }
    }
    if let Some(kv) = run.state.counters.kv {
        let shared = kv.tokens_logical.saturating_sub(kv.tokens_stored);
        lines.value_and(
            "shared",
            &percent(shared, kv.tokens_logical),
            &format!("of {} tokens", grouped(kv.tokens_logical)),
        );
        let free = kv.pages_total.saturating_sub(kv.pages_live + kv.pages_cached);
        let legend =
            format!("{} live  {} cached  {} free", grouped(kv.pages_live), grouped(kv.pages_cached), grouped(free));
        lines.value("", &legend, theme.dim);
        lines.value_and(
            "prefix",
            &percent(kv.prefix_hits, kv.prefix_lookups),
            &format!("of {} tokens found", grouped(kv.prefix_lookups)),
        );
        lines.value("evicted", &format!("{} pages", grouped(kv.evicted_pages)), theme.text);
        // Two tiers are told of in every claim; what is told of none has but one.
        if run.state.counters.link.is_none_or(|link| link.device_budget_bytes == 0) {
            lines.value_and("tiers", ONE_TIER, SEE_OFFLOAD);
        }
    }
}

/// Lines that tell of the selected thought's tiers in a line each; below that all in one.
const TIER_LINES: u16 = 7;

/// What the selected thought keeps, and where it lies.
fn thought_memory(lines: &mut Lines<'_, '_>, run: &RunScreen, token_bytes: u64) {
    let selected = run.tree.selected();
    let bytes = |tokens: u32| Human(u64::from(tokens) * token_bytes).to_string();
    let many = |tokens: u32| grouped(u64::from(tokens));
    let held = match run.state.held.of(selected) {
        Keeps::Own(held) => held,
        Keeps::Below => return lines.value_and(&selected.to_string(), "shared", "kept by what is below"),
        Keeps::Nothing => return lines.value_and(&selected.to_string(), "none kept", ""),
    };
    let HeldKv { tokens, own, here, moving } = held;
    let mut more = format!("{} shared", many(tokens.saturating_sub(own)));
    if lines.area.width >= 40 {
        more = format!("{more}  {}", bytes(tokens));
    }
    lines.value_and(&selected.to_string(), &format!("{} own", many(own)), &more);
    let Some(here) = here else { return };
    let ram = tokens.saturating_sub(here);
    if lines.left() < TIER_LINES {
        let moving = moving.map(|moving| format!(" {} moving", many(moving))).unwrap_or_default();
        return lines.whole(&format!("{} on device {} RAM{moving}", many(here), many(ram)));
    }
    for (label, tokens) in [("on device", Some(here)), ("in RAM", Some(ram)), ("moving", moving)] {
        if let Some(tokens) = tokens {
            lines.value_and(label, &format!("{} tokens", many(tokens)), &bytes(tokens));
        }
    }
}

pub fn speed(canvas: &mut Canvas<'_>, run: &RunScreen, area: Rect) {
    let theme = canvas.theme;
    let mut lines = Lines::new(canvas, run, area);
    let Some(speed) = run.state.counters.speed else {
        lines.unknown("speed");
        return;
    };
    let series = run.state.speed.newest(60);
    lines.spark("tokens/s", &format!("{:>5}", short_number(speed.tokens_per_second)), &series, theme.accent);
    let whole = speed.step_seconds.max(f64::MIN_POSITIVE);
    let share = |s: f64| (s / whole).clamp(0.0, 1.0);
    let parts = [
        ("attention", share(speed.attention_seconds), theme.accent),
        ("products", share(speed.products_seconds), theme.good),
        ("plan", share(speed.plan_seconds), theme.warn),
    ];
    let other = (1.0 - parts.iter().map(|p| p.1).sum::<f64>()).max(0.0);
    if let Some(y) = lines.next() {
        let ms = speed.step_seconds * 1000.0 / speed.steps.max(1) as f64;
        let note = format!("{ms:.1} ms");
        let (x, cells) = lines.label(y, "step");
        let bar = cells.saturating_sub(note.len() as u16 + 1).min(24);
        let mut stack: Vec<(f64, Style)> = parts.iter().map(|p| (p.1, p.2)).collect();
        stack.push((other, theme.dim));
        lines.canvas.stacked(x, y, bar, &stack);
        lines.canvas.put(x + bar + 1, y, cells.saturating_sub(bar + 1), &note, theme.text);
    }
    let g = theme.glyphs.parts;
    let rest = ("other", other, theme.dim);
    let all: Vec<_> = parts.iter().chain([&rest]).zip(g).collect();
    if lines.left() >= 4 {
        for ((name, share, style), glyph) in &all {
            if let Some(y) = lines.next() {
                let (x, cells) = lines.label(y, "");
                let pieces = [
                    (format!("{glyph} "), *style),
                    (format!("{name:<10}"), theme.dim),
                    (format!("{:>3.0} %", share * 100.0), theme.text),
                ];
                lines.canvas.pieces(x, y, cells, &pieces);
            }
        }
    } else if let Some(y) = lines.next() {
        let pieces: Vec<_> = all
            .iter()
            .flat_map(|((name, share, style), glyph)| {
                let short = &name[..name.len().min(4)];
                [(glyph.to_string(), *style), (format!("{short} {:.0} ", share * 100.0), theme.dim)]
            })
            .collect();
        lines.canvas.pieces(lines.area.x, y, lines.area.width, &pieces);
    }
    if let Some(length) = speed.accepted_length() {
        let note = format!("tokens each, {} of {} accepted", grouped(speed.accepted), grouped(speed.drafted));
        lines.value_and("drafts", &format!("{length:.2}"), &note);
    }
    let rows = speed.rows as f64 / speed.steps.max(1) as f64;
    lines.value_and(
        "steps",
        &grouped(speed.steps),
        &format!("{rows:.1} rows each, {} sampled", grouped(speed.sampled)),
    );
}

pub fn link(canvas: &mut Canvas<'_>, run: &RunScreen, area: Rect) {
    let theme = canvas.theme;
    let mut lines = Lines::new(canvas, run, area);
    let Some(link) = run.state.counters.link else {
        lines.unknown("to device");
        lines.unknown("to host");
        return;
    };
    for (label, bytes, series) in
        [("to device", link.to_device_bytes, &run.state.link_down), ("to host", link.to_host_bytes, &run.state.link_up)]
    {
        let newest = series.newest(60);
        let rate = newest.last().copied().unwrap_or(0.0);
        let value = format!("{:<9} {:>9}/s", Human(bytes).to_string(), Human(rate as u64).to_string());
        lines.spark(label, &format!("{value} "), &newest, theme.accent);
    }
    if link.device_budget_bytes == 0 && link.to_device_bytes + link.to_host_bytes == 0 {
        lines.value_and("", ONE_TIER, SEE_OFFLOAD);
    }
    if let Some(rate) = link.hit_rate() {
        let note = format!("{} of {} on the device", Human(link.device_peak_bytes), Human(link.device_budget_bytes));
        lines.value_and("hits", &format!("{:.1} %", 100.0 * rate), &note);
        if let Some(overlap) = link.overlap() {
            let took = seconds(link.fetch_seconds);
            let (value, note) = match overlap > 0.0 {
                true => (format!("{:.1} %", 100.0 * overlap), format!("of {took} of transfers behind compute")),
                false => ("none".into(), format!("{took} of copies, all waited for")),
            };
            lines.value_and("overlap", &value, &note);
        }
        if let Some(share) = link.attended_share() {
            let missed = link.missed().map(|missed| format!(", {:.1} % of the weight missed", 100.0 * missed));
            let note = format!("of the past read{}", missed.unwrap_or_default());
            lines.value_and("selected", &format!("{:.1} %", 100.0 * share), &note);
        }
        lines.value_and(
            "fetches",
            &grouped(link.fetches),
            &format!(
                "{} evicted, {} pages paused, {} back",
                grouped(link.evictions),
                grouped(link.moved_out),
                grouped(link.moved_back)
            ),
        );
    }
}

pub fn search(canvas: &mut Canvas<'_>, run: &RunScreen, area: Rect) {
    let theme = canvas.theme;
    let state = &run.state;
    let p = &state.progress;
    let mut lines = Lines::new(canvas, run, area);
    let best = match state.best() {
        Some(best) => match state.tree.node(best).score {
            Some(score) => format!("{best} {score:.2}"),
            None => format!("{best} unscored"),
        },
        None => "-".into(),
    };
    lines.value_and("best", &best, &format!("depth {}  frontier {}", p.depth, grouped(p.frontier as u64)));
    let tight = |share: f64| match share {
        s if s >= 0.9 => theme.bad,
        s if s >= 0.7 => theme.warn,
        _ => theme.accent,
    };
    // The tightest budget first: it is the one that will end the run.
    let spent = state.seconds();
    let seconds_note = |limit: f64| format!("{} of {}", seconds(spent), seconds(limit));
    let mut budgets: Vec<(&str, f64, String)> = Vec::new();
    let counted = [("tokens", p.usage.tokens(), state.limits.tokens), ("thoughts", p.thoughts, state.limits.thoughts)];
    for (name, used, limit) in counted {
        match limit {
            Some(limit) => {
                let note = format!("{} of {}", short_number(used as f64), short_number(limit as f64));
                budgets.push((name, used as f64 / limit.max(1) as f64, note));
            }
            None => budgets.push((name, f64::NAN, grouped(used))),
        }
    }
    match state.limits.seconds {
        Some(limit) => budgets.push(("seconds", spent / limit.max(1e-9), seconds_note(limit))),
        None => budgets.push(("seconds", f64::NAN, seconds(spent))),
    }
    for (name, share, note) in &budgets {
        if share.is_nan() {
            lines.value_and(name, note, "no limit");
        } else {
            lines.gauge(name, *share, note, tight(*share));
        }
    }
    let (breadth, temperature) = state.set_by_hand;
    let set = [breadth.map(|n| format!("breadth {n}")), temperature.map(|t| format!("temperature {t}"))];
    let set: Vec<String> = set.into_iter().flatten().collect();
    if !set.is_empty() {
        lines.value("by hand", &set.join("  "), theme.accent);
    }
    let by_score: Vec<f64> = state.by_score().iter().map(|&n| f64::from(n)).collect();
    lines.histogram("scores", &by_score, "1", theme.good);
    let depths: Vec<f64> = state.by_depth().iter().map(|&n| f64::from(n)).collect();
    lines.histogram("depths", &depths, &(depths.len().saturating_sub(1)).to_string(), theme.accent);
    let count = |s: Status| grouped(state.with_status(s));
    lines.value_and(
        "open",
        &count(Status::Open),
        &format!("{} closed  {} pruned", count(Status::Closed), count(Status::Pruned)),
    );
    lines.value_and(
        "replies",
        &grouped(state.replies),
        &format!("{} dropped  {} pinned", grouped(state.dropped), count(Status::Pinned)),
    );
}
