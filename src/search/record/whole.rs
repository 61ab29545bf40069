//! Up to where a recorded run can be taken up again.
//!
//! A step asks the model, grows thoughts and says that they are expanded; a run that was cut in the middle of one has paid
//! for replies that it never used. Such a step is done again as a whole: the random streams belong to thoughts, so the same
//! proposals come, and none of them counts twice.

use crate::search::event::{Author, Command, Event};
use crate::search::tree::Status;

/// How many of these events, from the first on, are whole steps and acts of the user. The end of a run and the step that it
/// interrupted are not among them.
pub fn whole_steps(events: &[Event]) -> usize {
    let end = events.iter().position(|e| matches!(e, Event::Ended { .. }));
    let events = &events[..end.unwrap_or(events.len())];
    let last = events.iter().rev().find(|e| !e.is_for_screen());
    // A run that ends tells its progress once more, also where the end interrupted a step.
    // A record that stops at such a word may have lost nothing but its end, so that word is not trusted either.
    let is_word = |e: &Event| matches!(e, Event::Progress { .. });
    let last_word = match end.is_some() || last.is_some_and(is_word) {
        true => events.iter().rposition(is_word),
        false => None,
    };
    let mut kept = 0;
    let mut between_steps = true;
    let mut by_hand = false;
    let mut adding = false;
    // A step that only closes a thought has chosen the answer: the end comes next, also where it is not recorded any more.
    let (mut worked, mut chose) = (false, false);
    for (i, event) in events.iter().enumerate() {
        if event.is_for_screen() {
            continue;
        }
        match event {
            Event::Progress { .. } if Some(i) != last_word && (worked || !chose) => {
                between_steps = true;
                worked = false;
            }
            Event::Begun { .. }
            | Event::Asked { .. }
            | Event::Replied { .. }
            | Event::Expanded { .. }
            | Event::Merged { .. }
            | Event::Visited { .. }
            | Event::Grown { by: Author::Model, .. } => {
                between_steps = false;
                worked = true;
            }
            // A thought of the user's own may be known already; a step's proposal comes after no such act.
            Event::Dropped { .. } if !adding => between_steps = false,
            // A policy prunes, scores and chooses too; that it decides again.
            Event::Status { status, .. } if !by_hand => {
                between_steps = false;
                chose |= matches!(status, Status::Closed | Status::Answer);
            }
            Event::Scored { .. } if !by_hand => between_steps = false,
            Event::Act { command: Command::Resume | Command::Step } => by_hand = false,
            Event::Act { .. } => by_hand = true,
            _ => {}
        }
        if matches!(event, Event::Progress { .. }) {
            by_hand = false;
            chose = false;
        }
        adding = matches!(event, Event::Act { command: Command::Add { .. } });
        if between_steps {
            kept = i + 1;
        }
    }
    kept
}
