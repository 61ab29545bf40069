//! Taking up a recorded run: `solve --continue RUN`, and a fork from a replay. The puzzle, the strategy and the model are
//! had again from where the run was started; what is no longer the same is refused, or told where the user asked for it.

use super::args::{Common, SolveArgs};
use super::puzzle;
use crate::base::text::counted;
use crate::base::{Error, Result};
use crate::lm::Info;
use crate::search::record::{self, HIDDEN, Header, Origin, PuzzleOrigin, Recorded, whole_steps};
use crate::search::run::Before;
use crate::strategy::{AnyTask, LoadOptions, Strategy, library, own};
use crate::task::Puzzle;
use std::path::Path;
use std::sync::Arc;

/// A run that can be taken up.
pub struct Again {
    pub puzzle: Arc<dyn Puzzle>,
    pub strategy: Arc<Strategy>,
    pub seed: u64,
    pub origin: Origin,
    pub before: Before,
    /// Of the weights it ran on.
    checksum: Option<String>,
    model: String,
}

impl Again {
    /// The run that `run` names, up to its first `events` events (all: `None`). What the flags name takes the place of what
    /// the record names; `args` are those about the strategy, where the user gave them for this run.
    ///
    /// # Errors
    /// There is no such record, it does not say how it was started, or puzzle or strategy are not what they were.
    pub fn open(run: &str, events: Option<usize>, common: &Common, args: Option<&SolveArgs>) -> Result<Self> {
        let recorded = record::read(run)?;
        let mut origin = origin(&recorded)?;
        if let Some(model) = &common.model {
            origin.model.clone_from(model);
        }
        let named = args.and_then(|args| args.strategy.as_ref());
        if let Some(strategy) = named {
            origin.strategy.clone_from(strategy);
        }
        let LoadOptions { set, allow_commands } =
            args.map(|args| args.language.options()).transpose()?.unwrap_or_default();
        origin.set.retain(|(name, _)| set.iter().all(|(new, _)| new != name));
        origin.set.extend(set);
        if let Some((name, _)) = origin.set.iter().find(|(_, value)| value == HIDDEN) {
            return Err(Error::input(format!("the value of `{name}` is not in the record; give --set {name}=… again")));
        }
        let Recorded { header, events: all, .. } = recorded;
        let task = own::find(origin.task.as_deref().unwrap_or(&header.task), allow_commands)?;
        let puzzle = again(&task, &origin.puzzle, &header)?;
        let options = LoadOptions { set: origin.set.clone(), allow_commands };
        let strategy = library::load_for(&origin.strategy, &task, &options)?;
        let mut notes = Vec::new();
        if !is_as_recorded(&strategy, &header) {
            if named.is_none() {
                return Err(Error::input(format!(
                    "strategy {} or a prompt of it is not what it was when run {} was recorded; give --strategy {} to go on with it as it is now",
                    strategy.origin, header.id, origin.strategy
                )));
            }
            notes.push(format!("from here on with the strategy {} as it is now", strategy.origin));
        }
        let taken = &all[..events.unwrap_or(all.len()).min(all.len())];
        let kept = whole_steps(taken);
        let left_out = taken.len() - kept;
        if left_out > 0 {
            let events = counted(left_out as u64, "event", "events");
            notes.push(format!("left out: {events} of a step that was not whole, or of the end"));
        }
        let before = Before { from: header.id.clone(), events: taken[..kept].to_vec(), notes };
        let (checksum, model) = (header.checksum, header.model);
        Ok(Self { puzzle, strategy: Arc::new(strategy), seed: header.seed, origin, before, checksum, model })
    }

    /// What is told again before the run goes on; where other weights go on, that is told too.
    pub fn before(self, model: &Info) -> Before {
        let mut before = self.before;
        if self.checksum != model.checksum || (model.checksum.is_none() && self.model != model.name) {
            before.notes.push(format!("from here on with the model {}, not with {}", model.name, self.model));
        }
        before
    }
}

/// Where a run was started from; guessed where its record does not say, and checked by the caller.
pub fn origin(recorded: &Recorded) -> Result<Origin> {
    let header = &recorded.header;
    if let Some(origin) = &header.origin {
        return Ok(origin.clone());
    }
    // Generated puzzles are named after their seed and size.
    let parts = header.puzzle.split_once('-').and_then(|(seed, size)| Some((seed.parse().ok()?, size.parse().ok()?)));
    let (seed, size) = parts.ok_or_else(|| {
        Error::input(format!(
            "the record of run {} does not say where its puzzle came from, so it cannot go on",
            header.id
        ))
    })?;
    let puzzle = PuzzleOrigin::Generated { size, seed };
    Ok(Origin { puzzle, task: None, strategy: header.strategy.clone(), set: Vec::new(), model: header.model.clone() })
}

/// The same puzzle once more.
fn again(task: &AnyTask, origin: &PuzzleOrigin, header: &Header) -> Result<Arc<dyn Puzzle>> {
    let puzzle = puzzle::of(task, origin)?;
    if puzzle.inputs() == header.inputs && puzzle.id() == header.puzzle {
        return Ok(puzzle);
    }
    let place = match origin {
        PuzzleOrigin::File { path, .. } => format!(" in {}", shown(path)),
        PuzzleOrigin::Generated { .. } | PuzzleOrigin::Typed(_) => String::new(),
    };
    Err(Error::input(format!("puzzle {}{place} is not what it was when run {} was recorded", header.puzzle, header.id)))
}

fn shown(path: &Path) -> String {
    crate::base::text::sanitize_line(&path.display().to_string())
}

fn is_as_recorded(strategy: &Strategy, header: &Header) -> bool {
    let texts = strategy.prompts().chain(&strategy.parts).map(|p| &p.text);
    strategy.text == header.strategy_text && texts.eq(header.prompts.iter().map(|(_, text)| text))
}
