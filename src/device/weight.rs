//! Weights as the model hands them to a device: raw GGML blocks or plain numbers, by row.

use candle_core::quantized::GgmlDType;
use memmap2::Mmap;
use std::ops::Range;
use std::sync::Arc;

use super::Shape;

/// Bytes of a weight: a range of a mapped file, or owned.
#[derive(Clone)]
pub enum Bytes {
    Mapped { file: Arc<Mmap>, range: Range<usize> },
    Owned(Arc<[u8]>),
}

impl Bytes {
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Mapped { file, range } => &file[range.clone()],
            Self::Owned(bytes) => bytes,
        }
    }
}

/// A matrix `[rows, cols]`, row-major, `cols` a multiple of the type's block size; `y[rows] = W x[cols]`.
#[derive(Clone)]
pub struct Weight {
    pub kind: GgmlDType,
    pub rows: usize,
    pub cols: usize,
    pub bytes: Bytes,
}

/// One layer.
#[derive(Clone)]
pub struct LayerWeights {
    pub attn_norm: Vec<f32>,
    pub wq: Weight,
    pub wk: Weight,
    pub wv: Weight,
    pub wo: Weight,
    pub mlp_norm: Vec<f32>,
    pub gate: Weight,
    pub up: Weight,
    pub down: Weight,
}

/// A whole Llama model.
#[derive(Clone)]
pub struct Weights {
    pub shape: Shape,
    /// `[vocab, hidden]`.
    pub embed: Weight,
    pub layers: Vec<LayerWeights>,
    pub norm: Vec<f32>,
    /// `[vocab, hidden]`; `None`: tied to `embed`.
    pub output: Option<Weight>,
}
