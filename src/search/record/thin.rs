//! How much of what the screen shows of memory, link and speed a record holds: at most an eighth of its other bytes, and in
//! a short run all that changed. The last word of each kind is always kept.

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
}

impl Thinned {
    /// A line of so many bytes was written that is not thinned.
    pub fn beside(&mut self, bytes: usize) {
        self.others += bytes;
    }

    /// The line to be written for this event, if it is kept.
    pub fn take_in(&mut self, event: &Event) -> Option<String> {
        if let Event::Counters { counters } = event {
            if self.told.as_ref() == Some(counters) {
                return None;
            }
            self.told = Some(counters.clone());
        }
        let line = serde_json::to_string(event).ok()?;
        // A number that is none would make the whole record unreadable.
        serde_json::from_str::<Event>(&line).ok()?;
        let waiting = match event {
            Event::Counters { .. } => &mut self.counters,
            Event::Held { .. } => &mut self.held,
            _ => return None,
        };
        if self.kept + line.len() > AT_LEAST.max(self.others / SHARE) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lm::{HeldKv, SpeedCounters};
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
    fn a_number_that_is_none_is_left_out() {
        let mut thinned = Thinned::default();
        assert_eq!(thinned.take_in(&counters(f64::NAN)), None);
        assert_eq!(thinned.last().count(), 0);
        assert!(thinned.take_in(&counters(1.0)).is_some());
    }
}
