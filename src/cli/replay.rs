//! `totara replay`: a recorded run again, on the screen or as text.

use super::args::{Common, ReplayArgs, ScreenArgs};
use super::{host, out, solve};
use crate::base::Result;
use crate::search::record;
use crate::search::trace;
use crate::tui::{self, Recording};
use std::io::IsTerminal;

pub fn run(common: &Common, screen: &ScreenArgs, args: &ReplayArgs) -> Result<u8> {
    if !args.no_tui && !common.json && std::io::stdout().is_terminal() && std::io::stdin().is_terminal() {
        let left = tui::replay(recording(&args.run)?, host::options(screen))?;
        return Ok(left.signal.map_or(0, |s| 128 + s as u8));
    }
    let recorded = record::read(&args.run)?;
    if recorded.torn {
        out::tell("the record's last line was cut and is left out");
    }
    if common.json {
        for event in &recorded.events {
            out::line(&serde_json::to_string(event).map_err(|e| crate::base::Error::fault(e.to_string()))?)?;
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

/// A recorded run as the screen takes it.
pub fn recording(run: &str) -> Result<Recording> {
    let recorded = record::read(run)?;
    // A record that does not fit itself is refused here, before the screen opens.
    recorded.tree()?;
    let name = format!("{} {}", recorded.header.id, recorded.header.title);
    Ok(Recording { name, events: recorded.events.into_iter().map(|e| (None, e)).collect() })
}
