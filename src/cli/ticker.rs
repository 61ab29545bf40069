//! How far a long measurement is, on standard error: a bar on a terminal, elsewhere a plain line now and then.
//!
//! Lines come from a thread of their own: one step of a measurement may take minutes, and is not to pass for a program that
//! hangs.

use super::out;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two lines of a log.
const EVERY: Duration = Duration::from_secs(5);

/// Between two that say the same.
const EVERY_AGAIN: Duration = Duration::from_secs(30);

/// Between two pictures of a bar that stands still.
const EVERY_PICTURE: Duration = Duration::from_secs(1);

pub struct Ticker {
    /// What is counted, such as `tokens scored`.
    unit: &'static str,
    shown: Shown,
}

enum Shown {
    /// Nobody looks.
    Nothing,
    /// A bar, while something is under way.
    Bar(Option<ProgressBar>),
    /// Lines, by a thread from the first tick on; none where no thread can be had.
    Lines(Option<Writer>),
}

/// A thread that writes lines, and how it hears of what is done, of how much.
struct Writer {
    ticks: Sender<(usize, usize)>,
    thread: JoinHandle<()>,
}

impl Ticker {
    pub fn new(quiet: bool, unit: &'static str) -> Self {
        let shown = match (quiet, std::io::stderr().is_terminal()) {
            (true, _) => Shown::Nothing,
            (false, true) => Shown::Bar(None),
            (false, false) => Shown::Lines(None),
        };
        Self { unit, shown }
    }

    /// At the end of a count the bar goes, so that a result may be printed; the next count has a new one.
    pub fn tick(&mut self, done: usize, total: usize) {
        let unit = self.unit;
        match &mut self.shown {
            Shown::Bar(shown) if done < total => {
                let bar = shown.get_or_insert_with(|| bar(unit));
                bar.set_length(total as u64);
                bar.set_position(done as u64);
            }
            Shown::Lines(writer) if done < total => {
                let tick = (done, total);
                if writer.is_none() {
                    *writer = lines(unit, tick);
                }
                if let Some(writer) = writer {
                    // A writer that is gone has nobody to write to.
                    let _ = writer.ticks.send(tick);
                }
            }
            _ => self.finish(),
        }
    }

    /// Takes the bar away, so that results stand alone.
    pub fn finish(&mut self) {
        match &mut self.shown {
            Shown::Bar(bar) => bar.take().iter().for_each(ProgressBar::finish_and_clear),
            Shown::Lines(writer) => {
                if let Some(Writer { ticks, thread }) = writer.take() {
                    drop(ticks);
                    // It only writes lines; what became of those does not matter here.
                    let _ = thread.join();
                }
            }
            Shown::Nothing => {}
        }
    }
}

fn bar(unit: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos} of {len} {msg}, about {eta} left") {
        bar.set_style(style);
    }
    bar.set_message(unit);
    bar.enable_steady_tick(EVERY_PICTURE);
    bar
}

/// Starts a thread that writes how far things are until nobody tells it any more.
fn lines(unit: &'static str, first: (usize, usize)) -> Option<Writer> {
    let (sender, ticks) = channel();
    let write = move || {
        let (mut newest, mut told, mut at) = (first, None, Instant::now());
        loop {
            let every = if told == Some(newest) { EVERY_AGAIN } else { EVERY };
            match ticks.recv_timeout(every.saturating_sub(at.elapsed())) {
                Ok(tick) => newest = tick,
                Err(RecvTimeoutError::Timeout) => {
                    let (done, total) = newest;
                    out::tell(&format!("{done} of {total} {unit}"));
                    (told, at) = (Some(newest), Instant::now());
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    };
    let thread = std::thread::Builder::new().name("progress".into()).spawn(write).ok()?;
    Some(Writer { ticks: sender, thread })
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.finish();
    }
}
