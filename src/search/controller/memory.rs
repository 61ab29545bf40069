//! What the model is told of the tree, so that its memory serves it, and what is told of that memory.

use super::Controller;
use crate::lm::Hold;
use crate::search::event::{Event, Reason};
use crate::search::policy;
use crate::search::tree::NodeId;

impl Controller {
    /// Tells the model which thoughts go on now, which are likely to go on after them, and which wait.
    pub(super) fn foretell(&self, expanding: &[NodeId]) {
        let two_tiers = self.lm.counters().link.is_some_and(|link| link.device_budget_bytes > 0);
        if !two_tiers || self.holds.is_empty() {
            return;
        }
        let plan = self.stages.get(self.stage).unwrap_or(&self.plan);
        let mut soon = policy::expected(&self.tree, plan, expanding);
        soon.extend(expanding);
        let mut holds: Vec<(NodeId, &Hold)> = self.holds.iter().map(|(&node, hold)| (node, hold)).collect();
        holds.sort_unstable_by_key(|(node, _)| *node);
        let (soon, later): (Vec<_>, Vec<_>) = holds.into_iter().partition(|(node, _)| soon.contains(node));
        self.lm.expect(&claims(&soon), &claims(&later));
    }

    pub(super) fn tell_counters(&mut self) {
        let counters = self.lm.counters();
        let note = counters.note.clone().filter(|note| self.device_note.as_ref() != Some(note));
        self.emit(Event::Counters { counters });
        if let Some(note) = note {
            self.note(note.clone());
            self.device_note = Some(note);
        }
    }

    /// What memory, link and speed are now, and which thought keeps what.
    pub(super) fn tell_memory(&mut self) {
        self.tell_counters();
        let mut holds: Vec<(NodeId, &Hold)> = self.holds.iter().map(|(&node, hold)| (node, hold)).collect();
        holds.sort_unstable_by_key(|(node, _)| *node);
        let held = self.lm.held(&holds.iter().map(|(_, hold)| *hold).collect::<Vec<_>>());
        let thoughts: Vec<_> = holds.iter().zip(held).filter_map(|((node, _), kv)| Some((*node, kv?))).collect();
        if thoughts != self.held_told {
            self.held_told.clone_from(&thoughts);
            self.emit(Event::Held { thoughts });
        }
    }

    /// Every run ends with a look at the model: its memory must add up, or nothing it said can be trusted.
    pub(super) async fn check_model(&mut self, reason: &mut Reason) {
        let sound = self.lm.check();
        // Who leaves does not wait for a step to end; the model checks itself all the same.
        if *reason == Reason::Quit {
            return;
        }
        match sound.await {
            Ok(Ok(())) => {}
            Ok(Err(_)) if matches!(reason, Reason::Failed { .. }) => {}
            Ok(Err(error)) => self.note(format!("the model failed meanwhile: {error}")),
            Err(_) => {
                *reason = Reason::Failed { message: "the model's memory did not add up at the end of the run".into() }
            }
        }
    }
}

fn claims<'a>(holds: &[(NodeId, &'a Hold)]) -> Vec<&'a Hold> {
    holds.iter().map(|(_, hold)| *hold).collect()
}
