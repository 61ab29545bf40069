//! Which rows of a step read which K/V: attention methods by name, and the planner that turns the token tree and the
//! query rows of a step into the device's units of work.
//!
//! A row sees the tokens of its branch at positions up to its own. That one rule covers decoding (one row a branch),
//! prefill (many rows in one branch) and token trees (a branch a draft node), in one step and one plan.
//!
//! | method | groups by | a task is |
//! |---|---|---|
//! | `deft-flatten` | K/V | a whole K/V head's blocks, or some of the depth-first tree's, the most work first |
//! | `deft-node` | K/V | all blocks that begin in one segment |
//! | `deft-node-chunk` | K/V | one block that begins in one segment |
//! | `radix` | query | blocks of the branches' paths, each for its branch alone, joined to even cost |
//! | `auto` | K/V | as flatten, but a block is split by rows where the threads would starve |
//!
//! Blocks are cut at fixed positions of the path and not at segment ends (see `device::attend`), so that all of these
//! give bit-identical rows; a segment's end is rounded up to the next block for `deft-node` and `deft-node-chunk`.
//! `flash-decoding`, `medusa`, `specinfer` and `vanilla` exist for the benchmark and the selftest only.
//!
//! Sources: DeFT (arXiv 2404.00242) for the partitionings, FastTree (MLSys 2025) for choosing by cost.

pub mod contender;
pub mod cuda_plan;
pub mod io;
mod plan;
pub mod reference;
pub mod sample;
pub mod selftest;
#[cfg(test)]
mod tests;

pub use plan::{Parallel, Planner};

use crate::base::{Error, Result};
use crate::kv::BranchId;
use std::fmt;
use std::str::FromStr;

/// One query token of a step. Its K/V slot is already appended to the branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueryRow {
    pub branch: BranchId,
    /// Absolute position in the branch; the row sees positions `0..=position`.
    pub position: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Method {
    #[default]
    Auto,
    Flatten,
    Node,
    NodeChunk,
    Radix,
    FlashDecoding,
    Medusa,
    SpecInfer,
    Vanilla,
}

impl Method {
    pub const ALL: [Self; 9] = [
        Self::Auto,
        Self::Flatten,
        Self::Node,
        Self::NodeChunk,
        Self::Radix,
        Self::FlashDecoding,
        Self::Medusa,
        Self::SpecInfer,
        Self::Vanilla,
    ];

    /// Those that a running model may use.
    pub const LIVE: [Self; 5] = [Self::Auto, Self::Flatten, Self::Node, Self::NodeChunk, Self::Radix];

    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Flatten => "deft-flatten",
            Self::Node => "deft-node",
            Self::NodeChunk => "deft-node-chunk",
            Self::Radix => "radix",
            Self::FlashDecoding => "flash-decoding",
            Self::Medusa => "medusa",
            Self::SpecInfer => "specinfer",
            Self::Vanilla => "vanilla",
        }
    }

    pub fn is_live(self) -> bool {
        Self::LIVE.contains(&self)
    }

    /// A method for a running model: refuses the ones that exist for comparison only.
    pub fn live(name: &str) -> Result<Self> {
        match name.parse::<Self>() {
            Ok(method) if method.is_live() => Ok(method),
            Ok(method) => Err(Error::input(format!(
                "attention method `{method}` is for `totara bench attention` only; a run takes {}",
                list(&Self::LIVE)
            ))),
            Err(_) => {
                Err(Error::input(format!("attention method `{name}` is unknown; a run takes {}", list(&Self::LIVE))))
            }
        }
    }
}

fn list(methods: &[Method]) -> String {
    methods.iter().map(|m| m.name()).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Method {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|m| m.name() == name).ok_or_else(|| {
            Error::input(format!("attention method `{name}` is unknown; there are {}", list(&Self::ALL)))
        })
    }
}
