//! What a run has spent, against what it may spend.

use crate::lm::{Cost, PAGE_TOKENS, Usage};
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
    /// Bytes of K/V that may live at the same time.
    pub kv: Option<u64>,
    pub usage: Usage,
    /// Proposals that received a node.
    pub thoughts: u64,
    /// Everything that was proposed.
    pub proposals: u64,
    pub clock: Clock,
}

impl Ledger {
    pub fn new(limits: Limits, paused: bool) -> Self {
        Self { limits, kv: None, usage: Usage::default(), thoughts: 0, proposals: 0, clock: Clock::new(paused) }
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

    /// Computed tokens that are left; `None`: no limit.
    pub fn tokens_left(&self) -> Option<u64> {
        self.limits.tokens.map(|limit| limit.saturating_sub(self.usage.tokens()))
    }
}

/// How far requests of one step go with `left` tokens: how many of them, in their order, can be sent at all, and how many
/// tokens each of their samples may draw. What no request and no sample needs is shared evenly.
///
/// A request is sent where its fixed part is left and a token for each sample, so what is spent never exceeds `left`.
pub fn share(costs: &[Cost], left: u64) -> (usize, u64) {
    let (mut spare, mut drawing, mut sent) = (left, 0, 0);
    for cost in costs {
        let Some(rest) = spare.checked_sub(cost.fixed + cost.drawing) else { break };
        spare = rest;
        drawing += cost.drawing;
        sent += 1;
    }
    (sent, 1 + spare / drawing.max(1))
}

/// How many of the requests of one step, in their order, keep within `pages` of K/V, each with the tokens that every one of
/// its samples may draw. A sample may leave its last page unfilled, and so may what was before it.
pub fn within_pages(costs: &[(Cost, u64)], pages: u64) -> usize {
    let of = |tokens: u64| tokens.div_ceil(PAGE_TOKENS as u64) + 1;
    let mut left = pages;
    let fits = |(cost, most): &&(Cost, u64)| {
        let needed = of(cost.fixed).saturating_add(cost.drawing.saturating_mul(of(*most)));
        let rest = left.checked_sub(needed);
        left = rest.unwrap_or(left);
        rest.is_some()
    };
    costs.iter().take_while(fits).count()
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
    fn what_is_left_is_known() {
        let limits = Limits { tokens: Some(100), ..Limits::default() };
        let mut ledger = Ledger::new(limits, false);
        ledger.usage.sampled = 90;
        assert_eq!((ledger.tokens_left(), ledger.used_up()), (Some(10), None));
        ledger.usage.prompt = 20;
        assert_eq!((ledger.tokens_left(), ledger.used_up()), (Some(0), Some(Reason::Tokens { limit: 100 })));
    }

    #[test]
    fn requests_keep_within_pages_in_their_order() {
        let cost = |fixed, drawing, most| (Cost { fixed, drawing }, most);
        // 20 tokens: 2 pages and one more; two samples of 1 to 16 tokens: 2 pages each.
        let one = cost(20, 2, 10);
        assert_eq!(within_pages(&[one, one], 14), 2);
        assert_eq!(within_pages(&[one, one], 13), 1);
        assert_eq!(within_pages(&[cost(1000, 0, 5), one], 13), 0, "what comes later waits for what is first");
        assert_eq!(within_pages(&[cost(0, 0, 5)], 1), 1);
        assert_eq!(within_pages(&[cost(u64::MAX / 2, u64::MAX, u64::MAX / 4)], u64::MAX - 1), 0);
    }

    #[test]
    fn requests_share_what_is_left_and_never_more() {
        let cost = |fixed, drawing| Cost { fixed, drawing };
        assert_eq!(share(&[cost(10, 2), cost(3, 2)], 100), (2, 1 + (100 - 17) / 4));
        assert_eq!(share(&[cost(10, 2), cost(3, 2)], 17), (2, 1));
        assert_eq!(share(&[cost(10, 2), cost(3, 2)], 16), (1, 1 + 4 / 2), "the second one does not fit");
        assert_eq!(share(&[cost(10, 2), cost(1, 0)], 5).0, 0, "what comes later was reckoned with the first");
        assert_eq!(share(&[cost(4, 0)], 4).0, 1, "ranking draws nothing");
        assert_eq!(share(&[], 5).0, 0);
        for left in 0..60 {
            let costs = [cost(7, 3), cost(1, 1), cost(5, 0), cost(2, 4)];
            let (sent, each) = share(&costs, left);
            let spent: u64 = costs[..sent].iter().map(|c| c.fixed + c.drawing * each).sum();
            assert!(spent <= left, "{spent} of {left}");
        }
    }
}
