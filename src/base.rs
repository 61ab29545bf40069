//! What every layer may use: errors, sizes, random streams, and text that is safe to show.

pub mod error;
pub mod lazy;
pub mod nearest;
pub mod rng;
pub mod size;
#[cfg(test)]
pub mod testing;
pub mod text;

pub use error::{Error, ErrorKind, Result};
