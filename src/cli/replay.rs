//! `totara replay`: a recorded run again, on the screen or as text.

use super::args::{Common, ReplayArgs, ScreenArgs};
use super::{again, host, out, solve};
use crate::base::Result;
use crate::search::record;
use crate::search::{export, trace};
use crate::tui::Recording;
use std::io::IsTerminal;
use std::path::Path;

pub fn run(common: &Common, screen: &ScreenArgs, args: &ReplayArgs) -> Result<u8> {
    if let Some(path) = &args.export {
        return export_to(path, args);
    }
    if !args.no_tui && !common.json && std::io::stdout().is_terminal() && std::io::stdin().is_terminal() {
        return host::replay(common, screen, recording(&args.run)?);
    }
    let recorded = record::read(&args.run)?;
    if recorded.torn {
        out::tell("the record's last line was cut and is left out");
    }
    if common.json {
        for event in &recorded.events {
            out::json(event)?;
        }
        return Ok(0);
    }
    let header = &recorded.header;
    out::line(&format!("{}  {}  {}  seed {}", header.id, header.started, header.model, header.seed))?;
    out::line(&format!("{}: {}", header.strategy, header.title))?;
    out::line(trace::render(&recorded.tree()?, screen.ascii).trim_end())?;
    match recorded.outcome() {
        Some(outcome) => out::line(&solve::summary(outcome))?,
        None => out::line("the run was cut short")?,
    }
    Ok(0)
}

fn export_to(path: &Path, args: &ReplayArgs) -> Result<u8> {
    // A name whose end says nothing is refused before a long record is read.
    export::Form::of(path)?;
    let recorded = record::read(&args.run)?;
    let (header, outcome) = (&recorded.header, recorded.outcome());
    let mut facts = vec![
        format!("{} on {}, seed {}", header.strategy, header.model, header.seed),
        format!("run {}, {}", header.id, header.started),
    ];
    facts.push(outcome.map_or("the run was cut short".into(), export::outcome_fact));
    let best = outcome.and_then(|o| o.node);
    export::Page { title: header.title.clone(), facts, tree: &recorded.tree()?, best }.write(path)?;
    out::tell(&format!("the tree is in {}", path.display()));
    Ok(0)
}

/// A recorded run as the screen takes it.
pub fn recording(run: &str) -> Result<Recording> {
    let recorded = record::read(run)?;
    // A record that does not fit itself is refused here, before the screen opens.
    recorded.tree()?;
    let name = format!("{} {}", recorded.header.id, recorded.header.title);
    // By its path, so that a fork finds a record outside of the state folder too.
    let run = recorded.path.to_string_lossy().into_owned();
    let task = recorded.header.task.clone();
    let fork = again::origin(&recorded).ok().map(|origin| host::fork(run, task, origin, true));
    Ok(Recording { name, events: recorded.events.into_iter().map(|e| (None, e)).collect(), fork })
}
