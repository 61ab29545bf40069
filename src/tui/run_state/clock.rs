//! What time alone changes: the clock goes on between two words of the search, and counters that came too soon are shown.

use super::{RunState, SERIES_LEN};
use std::collections::VecDeque;

/// Counters are shown at most this often, in seconds.
pub(super) const COUNTERS_EVERY: f64 = 0.25;
/// The clock on the screen goes on by itself in steps of so many seconds.
const CLOCK_STEP: f64 = 1.0;

/// The newest values of something, oldest first.
#[derive(Debug, Clone, Default)]
pub struct Series {
    values: VecDeque<f64>,
}

impl Series {
    fn push(&mut self, value: f64) {
        if self.values.len() == SERIES_LEN {
            self.values.pop_front();
        }
        self.values.push_back(value);
    }

    /// At most the newest `n`, oldest first.
    pub fn newest(&self, n: usize) -> Vec<f64> {
        self.values.iter().skip(self.values.len().saturating_sub(n)).copied().collect()
    }
}

impl RunState {
    /// Shows counters that came too soon after the last ones. True where something changed.
    pub fn tick(&mut self, now: f64) -> bool {
        let clock = self.tick_clock(now);
        self.tick_counters(now) || clock
    }

    /// Seconds the search has run, pauses left out: as it told them, and what has passed since.
    pub fn seconds(&self) -> f64 {
        self.progress.seconds + self.since_told
    }

    fn tick_clock(&mut self, now: f64) -> bool {
        let Some(at) = self.told_at else { return false };
        let steps = ((now - at) / CLOCK_STEP).floor().max(0.0) * CLOCK_STEP;
        let moved = steps > self.since_told;
        self.since_told = self.since_told.max(steps);
        moved
    }

    fn tick_counters(&mut self, now: f64) -> bool {
        !self.shown_at.is_some_and(|at| now < at + COUNTERS_EVERY) && self.show_counters(now)
    }

    /// Shows the newest counters, however soon after the last ones. True where something changed.
    pub fn show_counters(&mut self, now: f64) -> bool {
        let Some(new) = self.pending.take() else { return false };
        if self.shown_at.is_some() && new == self.counters {
            // Lines that go on while nothing happens would keep a paused screen writing.
            self.shown_at = Some(now);
            return false;
        }
        if let (Some(old), Some(new), Some(at)) = (self.counters.link, new.link, self.shown_at)
            && now > at
        {
            let rate = |new: u64, old: u64| new.saturating_sub(old) as f64 / (now - at);
            self.link_down.push(rate(new.to_device_bytes, old.to_device_bytes));
            self.link_up.push(rate(new.to_host_bytes, old.to_host_bytes));
        }
        if let Some(speed) = new.speed {
            self.speed.push(speed.tokens_per_second);
        }
        self.counters = new;
        self.shown_at = Some(now);
        true
    }

    /// When [`Self::tick`] next has something to do.
    pub fn wake_at(&self) -> Option<f64> {
        let clock = self.told_at.map(|at| at + self.since_told + CLOCK_STEP);
        let counters = self.pending.as_ref().and(self.shown_at).map(|at| at + COUNTERS_EVERY);
        clock.into_iter().chain(counters).min_by(f64::total_cmp)
    }
}
