//! Everything that reads what others wrote, as targets that take bytes: no input may panic, hang, allocate without bound
//! or overflow the stack, and what is accepted must be what it says it is.
//!
//! `fuzz/` runs these under libFuzzer (`cargo fuzz run gguf`); `cargo test` runs each of them for a moment on mutated
//! samples (`fuzzing/tests.rs`). Built with tests and fuzzers only.

mod files;
#[cfg(test)]
mod tests;
mod texts;

use crate::{kv, lm, tui};

/// A name, and what takes the bytes.
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
}

const fn target(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, run }
}

pub const TARGETS: &[Target] = &[
    target("gguf", files::gguf),
    target("safetensors", files::safetensors),
    target("tokenizer_json", files::tokenizer_json),
    target("chat_template", texts::chat_template),
    target("strategy", texts::strategy),
    target("record", files::record),
    target("results", files::results),
    target("csv", texts::csv),
    target("replies", texts::replies),
    target("constraint", texts::constraint),
    target("screen", tui::fuzzing::fuzz),
    target("token_tree", kv::tree::model::fuzz),
    target("endpoint", lm::endpoint::fuzzing::fuzz),
];

/// The target of that name.
///
/// # Panics
/// There is none.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.unwrap_or_else(|| panic!("no fuzz target `{name}`")).run)(bytes);
}
