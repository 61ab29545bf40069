//! Search over thoughts: the tree, the policies that decide, the evaluators that score, the controller that does.

pub mod controller;
pub mod evaluate;
pub mod event;
pub mod export;
pub mod policy;
pub mod record;
pub mod run;
pub mod trace;
pub mod tree;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub use run::{RunSpec, solve, start};
