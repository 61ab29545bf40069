//! `hf:owner/repo/file` in a build without the feature `hf`.

use super::Progress;
use crate::base::{Error, Result};
use std::path::PathBuf;

/// Always refuses, and says which build takes it.
pub fn fetch(_: &str, _: &dyn Progress) -> Result<PathBuf> {
    Err(Error::input(
        "this build cannot fetch `hf:` models: build it with `cargo build --release --features hf`, or give a file that \
         is already there",
    ))
}
