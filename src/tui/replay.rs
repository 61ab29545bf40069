//! A recorded run, played again: the same state from the same events, with a clock that the user holds.

use super::Fork;
use super::run_state::RunState;
use crate::search::event::Event;

/// Playing time of an event that has no time of its own, in seconds.
const UNTIMED_STEP: f64 = 0.05;

/// A recorded run as the screen takes it.
#[derive(Debug, Clone, Default)]
pub struct Recording {
    /// What the last line calls it.
    pub name: String,
    /// Events in order, with seconds since the start where they were recorded.
    pub events: Vec<(Option<f64>, Event)>,
    /// How to go on with it from any of its events.
    pub fork: Option<Fork>,
}

#[derive(Debug, Clone)]
pub struct Replay {
    pub name: String,
    fork: Option<Fork>,
    events: Vec<(f64, Event)>,
    tells_counters: bool,
    /// Events that are applied.
    at: usize,
    clock: f64,
    pub playing: bool,
    speed: f64,
    last_now: Option<f64>,
}

impl Replay {
    pub fn new(mut recording: Recording) -> Self {
        let events = with_times(std::mem::take(&mut recording.events));
        let Recording { name, fork, .. } = recording;
        let tells_counters = events.iter().any(|(_, event)| matches!(event, Event::Counters { .. }));
        Self { name, fork, events, tells_counters, at: 0, clock: 0.0, playing: true, speed: 1.0, last_now: None }
    }

    /// The run as it is to go on from here, waiting for the user first.
    pub fn fork(&self) -> Option<Fork> {
        let fork = self.fork.clone()?;
        Some(Fork { events: Some(self.at), paused: true, ..fork })
    }

    /// Whether memory, link and speed were recorded.
    pub fn tells_counters(&self) -> bool {
        self.tells_counters
    }

    pub fn position(&self) -> usize {
        self.at
    }

    pub fn len(&self) -> usize {
        self.events.len()
    }

    pub fn seconds(&self) -> f64 {
        self.clock
    }

    pub fn total_seconds(&self) -> f64 {
        self.events.last().map_or(0.0, |(t, _)| *t)
    }

    pub fn speed(&self) -> f64 {
        self.speed
    }

    pub fn share(&self) -> f64 {
        if self.events.is_empty() { 1.0 } else { self.at as f64 / self.events.len() as f64 }
    }

    /// Lets the clock run to `now` and applies what has happened by then. True where something changed.
    pub fn tick(&mut self, state: &mut RunState, now: f64) -> bool {
        let passed = self.last_now.map_or(0.0, |last| (now - last).max(0.0));
        self.last_now = Some(now);
        if !self.playing {
            return false;
        }
        self.clock += passed * self.speed;
        let before = self.at;
        while let Some((time, event)) = self.events.get(self.at)
            && *time <= self.clock
        {
            apply(state, event, *time);
            self.at += 1;
        }
        if self.at == self.events.len() {
            self.playing = false;
            self.clock = self.total_seconds();
            return true;
        }
        before != self.at
    }

    /// When the next event is due, on the reader's clock.
    pub fn wake_at(&self) -> Option<f64> {
        let (time, _) = self.events.get(self.at)?;
        if !self.playing {
            return None;
        }
        Some(self.last_now? + (time - self.clock).max(0.0) / self.speed)
    }

    /// Goes to where `events` events are applied. Back means from the start again: a state of 100,000 events is rebuilt in
    /// well under a second.
    pub fn jump(&mut self, state: &mut RunState, events: usize) {
        let target = events.min(self.events.len());
        if target < self.at {
            let shape = state.shape;
            *state = RunState::default();
            // Rows made from the old state must not pass for rows of the new one.
            state.shape = shape + 1;
            self.at = 0;
        }
        for (time, event) in &self.events[self.at..target] {
            apply(state, event, *time);
        }
        self.at = target;
        self.clock = if target == 0 { 0.0 } else { self.events[target - 1].0 };
    }

    /// Goes to a moment.
    pub fn jump_to_second(&mut self, state: &mut RunState, second: f64) {
        let target = self.events.partition_point(|(time, _)| *time <= second);
        self.jump(state, target);
    }

    pub fn toggle(&mut self, state: &mut RunState) {
        if !self.playing && self.at == self.events.len() {
            self.jump(state, 0);
        }
        self.playing = !self.playing;
        self.last_now = None;
    }

    pub fn change_speed(&mut self, factor: f64) {
        self.speed = (self.speed * factor).clamp(1.0 / 16.0, 256.0);
    }
}

/// Recorded counters are few already: each is shown, so that a jump shows what playing shows.
fn apply(state: &mut RunState, event: &Event, time: f64) {
    state.apply(event, time);
    if matches!(event, Event::Counters { .. }) {
        state.show_counters(time);
    }
}

/// Gives every event a time that never goes back. Events without one take it from the `Progress` events around them, else
/// follow each other at an even pace.
fn with_times(events: Vec<(Option<f64>, Event)>) -> Vec<(f64, Event)> {
    let known: Vec<Option<f64>> = events
        .iter()
        .map(|(time, event)| {
            let told = match event {
                Event::Progress { seconds, .. } => Some(*seconds),
                Event::Ended { outcome } => Some(outcome.seconds),
                Event::Started { .. } => Some(0.0),
                _ => None,
            };
            time.or(told).filter(|t| t.is_finite() && *t >= 0.0)
        })
        .collect();
    let mut times = Vec::with_capacity(events.len());
    let mut last = 0.0f64;
    let mut i = 0;
    while i < known.len() {
        if let Some(time) = known[i] {
            last = last.max(time);
            times.push(last);
            i += 1;
            continue;
        }
        let gap = known[i..].iter().take_while(|t| t.is_none()).count();
        let next = known.get(i + gap).copied().flatten();
        let step = next.map_or(UNTIMED_STEP, |next| (next - last).max(0.0) / (gap + 1) as f64);
        for _ in 0..gap {
            last += step;
            times.push(last);
        }
        i += gap;
    }
    times.into_iter().zip(events).map(|(time, (_, event))| (time, event)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tui::testing::{recorded_run, small_run};

    #[test]
    fn times_never_go_back_and_gaps_are_filled_evenly() {
        let note = || Event::Note { text: "n".into() };
        let input = vec![
            (Some(1.0), note()),
            (None, note()),
            (None, note()),
            (Some(4.0), note()),
            (Some(2.0), note()),
            (None, note()),
        ];
        let times: Vec<f64> = with_times(input).iter().map(|(t, _)| *t).collect();
        assert_eq!(times, [1.0, 2.0, 3.0, 4.0, 4.0, 4.0 + UNTIMED_STEP]);
    }

    #[test]
    fn any_jump_gives_the_state_that_playing_gives() {
        let events = small_run();
        let mut replay = Replay::new(recorded_run());
        let mut state = RunState::default();
        for target in [5, 2, events.len(), 0, 7, 7, 3, events.len() + 9] {
            replay.jump(&mut state, target);
            let mut expected = RunState::default();
            for event in events.iter().take(target) {
                expected.apply(event, 0.0);
            }
            assert_eq!(state.tree, expected.tree, "after {target} events");
            assert_eq!(state.outcome, expected.outcome);
            let told = events.iter().take(target).rev().find_map(|event| match event {
                Event::Counters { counters } => Some(counters.clone()),
                _ => None,
            });
            assert_eq!(state.counters, told.unwrap_or_default(), "after {target} events");
            for id in (0..state.tree.len() as u32).map(crate::search::tree::NodeId) {
                assert_eq!((state.pieces(id), state.held.of(id)), (expected.pieces(id), expected.held.of(id)));
            }
        }
    }

    #[test]
    fn playing_follows_the_clock_and_stops_at_the_end() {
        let mut replay = Replay::new(recorded_run());
        let mut state = RunState::default();
        replay.tick(&mut state, 10.0);
        let first = replay.position();
        assert!(first < replay.len());
        assert!(replay.wake_at().is_some_and(|at| at >= 10.0));
        replay.tick(&mut state, 10.001 + replay.total_seconds());
        assert_eq!((replay.position(), replay.playing), (replay.len(), false));
        replay.toggle(&mut state);
        assert_eq!(replay.position(), 0);
    }
}
