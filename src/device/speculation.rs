//! What a device needs to guess the attention scores of a layer before its keys are at hand: a basis for each layer.

use super::Device;
use super::picks::Choose;
use crate::base::Result;
use crate::base::size::Size;
use crate::kv::residency::Eviction;
use std::fmt;

/// Columns of an orthogonal matrix a K/V head, `[kv_head][columns][d]`: projects queries and keys alike.
#[derive(Debug, Clone, PartialEq)]
pub struct Basis {
    pub columns: usize,
    pub numbers: Vec<f32>,
    /// The columns of a mean key, `[kv_head][columns]`: a query's product with it is the same for all tokens, so that keys
    /// need only tell how they differ from it.
    pub centre: Vec<f32>,
}

impl Basis {
    /// The columns of one key `[d]`, less those of the mean.
    pub fn project_key(&self, kv_head: usize, from: &[f32], to: &mut [f32]) {
        self.project(kv_head, from, to);
        let centre = &self.centre[kv_head * self.columns..(kv_head + 1) * self.columns];
        to.iter_mut().zip(centre).for_each(|(to, centre)| *to -= centre);
    }

    /// The columns of one query `[d]`.
    pub fn project(&self, kv_head: usize, from: &[f32], to: &mut [f32]) {
        let d = from.len();
        let own = &self.numbers[kv_head * self.columns * d..(kv_head + 1) * self.columns * d];
        for (to, column) in to.iter_mut().zip(own.chunks_exact(d)) {
            *to = column.iter().zip(from).map(|(a, b)| a * b).sum();
        }
    }
}

/// Bytes of a token's partial keys for one K/V head on a card: a number of four bits a column, and their scale in float16.
pub fn partial_token_bytes(columns: usize) -> usize {
    columns.div_ceil(2) + 2
}

/// Bases of all layers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Speculation {
    /// The first layers attend to everything.
    pub whole_layers: usize,
    pub columns: usize,
    pub layers: Vec<Basis>,
    /// Of every layer what the one before adds to its input in the mean, `[hidden]`; empty for none.
    pub shifts: Vec<Vec<f32>>,
}

impl Speculation {
    /// What is added to `x` where the queries of `layer` are guessed from it; empty for nothing.
    pub fn shift(&self, layer: usize, look: Look) -> &[f32] {
        match look {
            Look::Ahead => self.shifts.get(layer).map_or(&[], |shift| shift),
            Look::Half | Look::Same => &[],
        }
    }
}

/// Whose query guesses a layer's scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// One layer ahead: from the input of the layer before (InfiniGen), so that the fetch overlaps with all of that layer.
    Ahead,
    /// From what the layer before has after its attention: the fetch overlaps with its feed-forward.
    Half,
    /// The layer's own query: nothing overlaps, and the choice is better.
    Same,
}

impl Look {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ahead => "ahead",
            Self::Half => "half",
            Self::Same => "same",
        }
    }
}

impl fmt::Display for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Where a row's scores come from.
#[derive(Debug, Clone)]
pub enum Source {
    /// Partial keys in a skewed basis, with the query that `Look` says.
    Partial(Speculation, Look),
    /// Exact scores over the host tier: for benchmarks, which want to know the best that can be.
    Exact,
    /// Attention that a token has had so far; what falls below the budget is gone for good (H2O).
    Heavy {
        /// Share of a path that is kept.
        keep: f32,
    },
}

/// How layers after the whole ones select what they read.
pub struct Selection {
    pub source: Source,
    pub choose: Box<dyn Choose>,
    pub whole_layers: usize,
    /// Whether rows are fetched once for all that want them, and kept; or by each row alone.
    pub share: bool,
    pub eviction: Eviction,
    /// Bytes of the device tier that rows may take at most; a percentage is of what whole layers and partial keys leave.
    pub capacity: Option<Size>,
}

/// What crosses the link for attention.
pub enum Fetch {
    /// All pages.
    Full,
    /// All pages, in four bits a number (FlexGen's group quantisation).
    Int4,
    /// What layers after the first ones select.
    Selected(Selection),
}

/// One layer's input `[rows][hidden]`, and its queries `[rows][heads · d]` and keys `[rows][kv_heads · d]` after RoPE.
pub struct Seen<'a> {
    pub layer: usize,
    pub x: &'a [f32],
    pub q: &'a [f32],
    /// The queries as guessed one layer before; empty for the first.
    pub guess: &'a [f32],
    pub k: &'a [f32],
}

/// Is told what each layer sees.
pub type Watcher = Box<dyn FnMut(&Seen<'_>) + Send>;

/// A watcher, and the shifts that guesses are made with for it ([`Speculation::shifts`]).
pub struct Watching {
    pub watcher: Watcher,
    pub shifts: Vec<Vec<f32>>,
}

/// A device that tells what its layers see.
pub trait Watched: Device {
    /// Has every layer's input, queries and keys told from now on, or no more. Errors: no memory for the shifts.
    fn watch(&mut self, watching: Option<Watching>) -> Result<()>;
}
