//! What a run has spent, against what it may spend.

use crate::lm::Usage;
use crate::search::event::{Limits, Reason};
use std::time::Duration;
use tokio::time::Instant;

/// A clock that stands still while the run is paused.
#[derive(Debug)]
pub struct Clock {
    before: Duration,
    since: Option<Instant>,
}

impl Clock {
    pub fn new(paused: bool) -> Self {
        Self { before: Duration::ZERO, since: (!paused).then(Instant::now) }
    }

    /// Counts these seconds as passed before.
    pub fn add(&mut self, seconds: f64) {
        self.before += Duration::try_from_secs_f64(seconds).unwrap_or_default();
    }

    pub fn pause(&mut self) {
        self.before = self.elapsed();
        self.since = None;
    }

    pub fn resume(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    pub fn elapsed(&self) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// When `seconds` will have passed; `None` while paused or where that is too far away to say.
    pub fn when(&self, seconds: f64) -> Option<Instant> {
        let left = Duration::try_from_secs_f64(seconds).ok()?.saturating_sub(self.elapsed());
        self.since.and_then(|_| Instant::now().checked_add(left))
    }
}

/// Counts and limits of one run.
#[derive(Debug)]
pub struct Ledger {
    pub limits: Limits,
    pub usage: Usage,
    /// Proposals that received a node.
    pub thoughts: u64,
    /// Everything that was proposed.
    pub proposals: u64,
    pub clock: Clock,
}

impl Ledger {
    pub fn new(limits: Limits, paused: bool) -> Self {
        Self { limits, usage: Usage::default(), thoughts: 0, proposals: 0, clock: Clock::new(paused) }
    }

    /// The limit that is used up, if any.
    pub fn used_up(&self) -> Option<Reason> {
        self.used_up_before_growth().or_else(|| self.thoughts_used_up())
    }

    /// The limits that also bind asking for scores.
    pub fn used_up_before_growth(&self) -> Option<Reason> {
        let Limits { tokens, seconds, .. } = self.limits;
        if let Some(limit) = tokens.filter(|&limit| self.usage.tokens() >= limit) {
            return Some(Reason::Tokens { limit });
        }
        let limit = seconds.filter(|&limit| self.clock.elapsed().as_secs_f64() >= limit)?;
        Some(Reason::Seconds { limit })
    }

    pub fn thoughts_used_up(&self) -> Option<Reason> {
        let limit = self.limits.thoughts.filter(|&limit| self.thoughts >= limit)?;
        Some(Reason::Thoughts { limit })
    }

    /// The most tokens each of `samples` running at once may take, so that together they keep to what is left. What their
    /// prompts will cost is not known beforehand, so the last step of a run may go over by its prompts.
    pub fn tokens_each(&self, samples: usize, wanted: usize) -> usize {
        let Some(limit) = self.limits.tokens else { return wanted };
        let each = limit.saturating_sub(self.usage.tokens()) / samples.max(1) as u64;
        wanted.min(usize::try_from(each).unwrap_or(usize::MAX)).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_stands_still_while_paused() {
        let rest = || std::thread::sleep(Duration::from_millis(15));
        let mut clock = Clock::new(true);
        rest();
        assert_eq!((clock.elapsed(), clock.when(1.0)), (Duration::ZERO, None));
        clock.resume();
        rest();
        clock.resume();
        clock.pause();
        let elapsed = clock.elapsed();
        assert!(elapsed >= Duration::from_millis(15), "resuming twice loses nothing: {elapsed:?}");
        rest();
        assert_eq!(clock.elapsed(), elapsed);
        clock.resume();
        assert!(clock.when(1.0).is_some_and(|when| when > Instant::now()));
        assert_eq!(clock.when(f64::INFINITY), None);
    }

    #[test]
    fn samples_share_what_is_left() {
        let limits = Limits { tokens: Some(100), ..Limits::default() };
        let mut ledger = Ledger::new(limits, false);
        assert_eq!(ledger.tokens_each(4, 10), 10);
        ledger.usage.sampled = 90;
        assert_eq!(ledger.tokens_each(4, 10), 2);
        assert_eq!(ledger.used_up(), None);
        ledger.usage.prompt = 10;
        assert_eq!(ledger.used_up(), Some(Reason::Tokens { limit: 100 }));
        assert_eq!(ledger.tokens_each(4, 10), 1);
    }
}
