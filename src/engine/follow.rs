//! A moment's wait for requests that follow on those a step has ended.
//!
//! Whoever searches asks on at once when a request has ended. A next step that began without those rows would be followed by
//! another one for them alone, so the engine waits a small share of a step's time for as many requests as have ended. One
//! run alone never waits: its next request is the one that is waited for. What a request says does not depend on it.

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// The longest wait, as a share of the last step's time: what is lost where nothing follows, against a step for each row
/// that comes too late.
const SHARE: u32 = 16;

#[derive(Debug, Default)]
pub struct Follow {
    /// Requests that have ended, and nothing has followed on them yet.
    ended: usize,
    step_took: Duration,
}

impl Follow {
    /// A step of that length ended so many requests.
    pub fn ended(&mut self, requests: usize, step_took: Duration) {
        *self = Self { ended: requests, step_took };
    }

    /// A request came.
    pub fn came(&mut self) {
        self.ended = self.ended.saturating_sub(1);
    }

    /// How long what follows is waited for from now on.
    pub fn until(&self) -> Instant {
        Instant::now() + self.step_took / SHARE
    }

    /// The next message that is there, or that comes before `until` while something is waited for.
    pub fn next<T>(&mut self, messages: &Receiver<T>, until: Instant) -> Option<T> {
        if let Ok(message) = messages.try_recv() {
            return Some(message);
        }
        if self.ended == 0 {
            return None;
        }
        let message = messages.recv_timeout(until.saturating_duration_since(Instant::now())).ok();
        if message.is_none() {
            self.ended = 0;
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// What is taken, and whether the whole wait passed.
    fn taken(ended: usize, sent: usize, step_took: Duration) -> (usize, bool) {
        let (sender, receiver) = channel();
        let late = std::thread::spawn(move || {
            for message in 0..sent {
                std::thread::sleep(Duration::from_millis(2));
                sender.send(message).unwrap();
            }
            // What is dropped would end the wait.
            std::thread::sleep(Duration::from_millis(600));
        });
        let mut follow = Follow::default();
        follow.ended(ended, step_took);
        let (until, mut count) = (follow.until(), 0);
        while follow.next(&receiver, until).is_some() {
            follow.came();
            count += 1;
        }
        let all = Instant::now() >= until;
        late.join().unwrap();
        (count, all)
    }

    #[test]
    fn as_many_requests_as_have_ended_are_waited_for_and_no_longer() {
        let (long, short) = (Duration::from_secs(16 * 30), Duration::from_millis(16 * 50));
        assert_eq!(taken(3, 3, long), (3, false), "three follow on three");
        assert_eq!(taken(1, 1, long), (1, false), "a run alone loses nothing");
        assert_eq!(taken(0, 3, long).0, 0, "nothing has ended, nothing is waited for");
        assert_eq!(taken(2, 0, short), (0, true), "nothing follows");
    }
}
