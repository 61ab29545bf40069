//! The built program's words: commands, exit codes, JSON fields, refusals. No model is needed: chance and scripts play it.
//!
//! - `runs`: rows and codes of `solve`, limits, inputs, data
//! - `refusals`: code 2, the name of the thing, the remedy
//! - `scripting`: `strategy`, `task`, `check`, `schema`
//! - `records`: replays, runs that go on, exported trees
//! - `machine`: `doctor`, the selftest, measurements, a full disk and a closed pipe

#[path = "../common/mod.rs"]
mod common;
mod machine;
mod records;
mod refusals;
mod runs;
mod scripting;

use common::{Place, Run};

const CHANCE: &[&str] = &["solve", "--no-tui", "--json", "--model", "random-proposer"];

/// `solve` with chance in the model's place.
fn chance(place: &Place, more: &[&str]) -> Run {
    place.run(&[CHANCE, more].concat())
}
