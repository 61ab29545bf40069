//! How far a batch is, on standard error: a bar on a terminal, elsewhere a plain line every few seconds without carriage
//! returns or escapes, so that a log stays readable.

use super::row::Row;
use crate::base::text::sanitize;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::Write;
use std::time::{Duration, Instant};

/// Between two lines of a log.
const EVERY: Duration = Duration::from_secs(5);

/// Where progress is shown.
pub enum Progress<W: Write> {
    Quiet,
    Bar {
        bar: ProgressBar,
        counts: Counts,
    },
    Log {
        out: W,
        /// When a line was last written, and of how many rows.
        last: Option<(Instant, usize)>,
        counts: Counts,
    },
}

/// What is shown.
#[derive(Debug, Clone)]
pub struct Counts {
    started: Instant,
    /// Rows of an earlier run.
    there: usize,
    total: usize,
    done: usize,
    solved: usize,
}

impl Counts {
    fn new(there: usize, to_come: usize) -> Self {
        Self { started: Instant::now(), there, total: to_come, done: 0, solved: 0 }
    }

    fn add(&mut self, row: &Row) {
        self.done += 1;
        self.solved += usize::from(row.solved);
    }

    /// `12 of 200 puzzles, 9 solved, 31.0 a minute, about 6 min left`.
    fn line(&self, now: Instant) -> String {
        let minutes = now.duration_since(self.started).as_secs_f64() / 60.0;
        let mut line = format!("{} of {} puzzles, {} solved", self.done, self.total, self.solved);
        if self.there > 0 {
            line.push_str(&format!(" ({} from before)", self.there));
        }
        if self.done > 0 && minutes > 0.0 {
            let rate = self.done as f64 / minutes;
            line.push_str(&format!(", {rate:.1} a minute"));
            let left = (self.total - self.done) as f64 / rate;
            match left {
                _ if self.done == self.total => {}
                left if left < 1.0 => line.push_str(", under a minute left"),
                left => line.push_str(&format!(", about {left:.0} min left")),
            }
        }
        line
    }
}

impl<W: Write> Progress<W> {
    /// `log` is where lines go where there is no terminal.
    pub fn new(there: usize, to_come: usize, terminal: bool, quiet: bool, log: W) -> Self {
        let counts = Counts::new(there, to_come);
        if quiet {
            return Self::Quiet;
        }
        if !terminal {
            return Self::Log { out: log, last: None, counts };
        }
        let bar = ProgressBar::with_draw_target(Some(to_come as u64), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {msg}") {
            bar.set_style(style);
        }
        Self::Bar { bar, counts }
    }

    pub fn row(&mut self, row: &Row) {
        match self {
            Self::Quiet => {}
            Self::Bar { bar, counts } => {
                counts.add(row);
                bar.set_message(counts.line(Instant::now()));
                bar.inc(1);
            }
            Self::Log { out, last, counts } => {
                counts.add(row);
                let now = Instant::now();
                if last.is_none_or(|(last, _)| now.duration_since(last) >= EVERY) {
                    *last = Some((now, counts.done));
                    // Progress that cannot be shown is no reason to stop.
                    let _ = writeln!(out, "{}", counts.line(now));
                }
            }
        }
    }

    /// A line of its own, whatever else is shown.
    pub fn note(&mut self, text: &str) {
        let text = &sanitize(text);
        match self {
            Self::Quiet => {}
            Self::Bar { bar, .. } => bar.println(text),
            Self::Log { out, .. } => {
                let _ = writeln!(out, "{text}");
            }
        }
    }

    pub fn finish(&mut self) {
        match self {
            Self::Quiet => {}
            Self::Bar { bar, .. } => bar.finish_and_clear(),
            Self::Log { out, last, counts } => {
                if last.is_none_or(|(_, done)| done < counts.done) {
                    let _ = writeln!(out, "{}", counts.line(Instant::now()));
                }
            }
        }
    }
}
