//! How much of what the screen shows of memory, link and speed a record holds: at most an eighth of its other bytes, and in
//! a short run all that changed. The last word of each kind is always kept, and where K/V has two tiers the counters around
//! every pruning: those before it, and the first after a step that followed it, which show what became free.

use crate::lm::Counters;
use crate::search::event::Event;

/// Bytes that are kept however little else there is.
const AT_LEAST: usize = 16 << 10;
/// Beyond that one byte for so many others.
const SHARE: usize = 8;

#[derive(Debug, Default)]
pub struct Thinned {
    kept: usize,
    others: usize,
    told: Option<Counters>,
    /// The newest of each kind that was left out.
    counters: Option<String>,
    held: Option<String>,
    /// Steps of the model at a pruning, until counters of a later step are kept.
    pruned_at: Option<u64>,
}

impl Thinned {
    /// A line of so many bytes was written that is not thinned.
    pub fn beside(&mut self, bytes: usize) {
        self.others += bytes;
    }

    /// Before a pruning is written: the counters that stood before it, where they were left out.
    pub fn before_pruning(&mut self) -> Option<String> {
        let told = self.told.as_ref().filter(|told| told.link.is_some_and(|link| link.device_budget_bytes > 0))?;
        if self.pruned_at.is_some() {
            return None;
        }
        self.pruned_at = Some(steps(told));
        let line = self.counters.take()?;
        self.kept += line.len();
        Some(line)
    }

    /// The line to be written for this event, if it is kept.
    pub fn take_in(&mut self, event: &Event) -> Option<String> {
        if let Event::Counters { counters } = event {
            if self.told.as_ref() == Some(counters) {
                return None;
            }
            self.told = Some(counters.clone());
        }
        let after_pruning = match event {
            Event::Counters { counters } => self.pruned_at.take_if(|before| steps(counters) > *before).is_some(),
            _ => false,
        };
        let line = serde_json::to_string(event).ok()?;
        // A number that is none would make the whole record unreadable.
        serde_json::from_str::<Event>(&line).ok()?;
        let waiting = match event {
            Event::Counters { .. } => &mut self.counters,
            Event::Held { .. } => &mut self.held,
            _ => return None,
        };
        if !after_pruning && self.kept + line.len() > AT_LEAST.max(self.others / SHARE) {
            *waiting = Some(line);
            return None;
        }
        *waiting = None;
        self.kept += line.len();
        Some(line)
    }

    /// What was left out last, at the end of the run.
    pub fn last(&mut self) -> impl Iterator<Item = String> + use<> {
        self.counters.take().into_iter().chain(self.held.take())
    }
}

fn steps(counters: &Counters) -> u64 {
    counters.speed.map_or(0, |speed| speed.steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lm::{HeldKv, LinkCounters, SpeedCounters};
    use crate::search::tree::NodeId;

    fn counters(tokens_per_second: f64) -> Event {
        let speed = Some(SpeedCounters { tokens_per_second, ..SpeedCounters::default() });
        Event::Counters { counters: Counters { speed, ..Counters::default() } }
    }

    #[test]
    fn what_changes_is_kept_within_its_share_and_the_last_word_always() {
        let mut thinned = Thinned::default();
        let one = thinned.take_in(&counters(1.0)).unwrap().len();
        assert_eq!(thinned.take_in(&counters(1.0)), None, "nothing has changed");
        let mut kept = one;
        for i in 0..20_000 {
            kept += thinned.take_in(&counters(2.0 + f64::from(i % 7))).map_or(0, |line| line.len());
        }
        assert!(kept <= AT_LEAST && kept > AT_LEAST - 2 * one, "{kept}");
        thinned.beside(10 << 20);
        for i in 0..20_000 {
            kept += thinned.take_in(&counters(2.0 + f64::from(i % 7))).map_or(0, |line| line.len());
        }
        assert!(kept <= (10 << 20) / SHARE && kept > AT_LEAST, "{kept}");
        let held = HeldKv { tokens: 9, own: 1, here: None, moving: None };
        let held = Event::Held { thoughts: vec![(NodeId(1), held); 40_000] };
        assert_eq!((thinned.take_in(&held), thinned.take_in(&counters(3.5))), (None, None));
        let last: Vec<Event> = thinned.last().map(|line| serde_json::from_str(&line).unwrap()).collect();
        assert_eq!(last, [counters(3.5), held]);
        assert_eq!(thinned.last().count(), 0);
    }

    #[test]
    fn what_stands_around_a_pruning_is_kept_where_there_are_two_tiers() {
        for device_budget_bytes in [0, 1 << 20] {
            let link = Some(LinkCounters { device_budget_bytes, ..LinkCounters::default() });
            let at = |steps: u64, hits: u64| {
                let speed = Some(SpeedCounters { steps, tokens_per_second: hits as f64, ..SpeedCounters::default() });
                Event::Counters { counters: Counters { link, speed, ..Counters::default() } }
            };
            let read = |line: Option<String>| line.map(|line| serde_json::from_str::<Event>(&line).unwrap());
            let mut thinned = Thinned::default();
            (0..1000).for_each(|i| drop(thinned.take_in(&at(i, 0))));
            assert_eq!(thinned.take_in(&at(1000, 0)), None, "its share is used up");
            let two = device_budget_bytes > 0;
            assert_eq!(read(thinned.before_pruning()), two.then(|| at(1000, 0)));
            assert_eq!(thinned.before_pruning(), None, "the next one of the same step");
            assert_eq!(thinned.take_in(&at(1000, 1)), None, "no step yet");
            assert_eq!(read(thinned.take_in(&at(1001, 2))), two.then(|| at(1001, 2)));
            assert_eq!(thinned.take_in(&at(1002, 3)), None);
        }
    }

    #[test]
    fn a_number_that_is_none_is_left_out() {
        let mut thinned = Thinned::default();
        assert_eq!(thinned.take_in(&counters(f64::NAN)), None);
        assert_eq!(thinned.last().count(), 0);
        assert!(thinned.take_in(&counters(1.0)).is_some());
    }
}
