//! What every layer may use: errors, sizes, random streams, and text that is safe to show.

#[cfg(any(test, fuzzing))]
pub mod choices;
pub mod error;
mod inside;
pub mod lazy;
pub mod nearest;
pub mod read;
pub mod rng;
pub mod size;
#[cfg(test)]
pub mod testing;
pub mod text;
mod whole;

pub use error::{Error, ErrorKind, Result};
pub use inside::inside;
pub use whole::{write_new, write_whole};
