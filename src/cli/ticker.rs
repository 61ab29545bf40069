//! How far a long measurement is, on standard error: a bar on a terminal, elsewhere a plain line every few seconds.

use super::out;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Between two lines of a log.
const EVERY: Duration = Duration::from_secs(5);

pub struct Ticker {
    /// What is counted, such as `tokens scored`.
    unit: &'static str,
    /// `None`: nobody looks, or there is no terminal.
    bar: Option<ProgressBar>,
    quiet: bool,
    last: Instant,
}

impl Ticker {
    pub fn new(quiet: bool, unit: &'static str) -> Self {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos} of {len} {msg}, about {eta} left") {
                bar.set_style(style);
            }
            bar.set_message(unit);
            bar
        });
        Self { unit, bar, quiet, last: Instant::now() }
    }

    pub fn tick(&mut self, done: usize, total: usize) {
        if let Some(bar) = &self.bar {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        } else if !self.quiet && self.last.elapsed() >= EVERY {
            self.last = Instant::now();
            out::tell(&format!("{done} of {total} {}", self.unit));
        }
    }

    /// Takes the bar away, so that results stand alone.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.finish();
    }
}
