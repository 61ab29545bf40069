//! Weights as the model hands them to a device: raw GGML blocks or plain numbers, by row.

use crate::base::{Error, Result};
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::{Device, Tensor};
use memmap2::Mmap;
use std::borrow::Cow;
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

impl Weight {
    /// Quantises `numbers` `[rows, cols]` with candle's quantiser.
    pub fn quantise(kind: GgmlDType, rows: usize, cols: usize, numbers: &[f32]) -> Result<Self> {
        let quantise = || -> candle_core::Result<Arc<[u8]>> {
            let tensor = Tensor::from_slice(numbers, (rows, cols), &Device::Cpu)?;
            Ok(QTensor::quantize(&tensor, kind)?.data()?.into())
        };
        let bytes = quantise().map_err(|e| {
            Error::input(format!("a [{rows}, {cols}] matrix as {kind:?}: {}", first_line(&e.to_string())))
        })?;
        Ok(Self { kind, rows, cols, bytes: Bytes::Owned(bytes) })
    }

    /// The numbers `[rows, cols]`, by candle: what our own kernels are compared with.
    pub fn dequantise(&self) -> Result<Vec<f32>> {
        let dequantise = || -> candle_core::Result<Vec<f32>> {
            // A copy, because a mapped file's bytes may lie unaligned.
            let storage = QStorage::from_data(Cow::Owned(self.bytes.as_slice().to_vec()), &Device::Cpu, self.kind)?;
            QTensor::new(storage, (self.rows, self.cols))?.dequantize(&Device::Cpu)?.flatten_all()?.to_vec1()
        };
        let Self { kind, rows, cols, .. } = self;
        dequantise()
            .map_err(|e| Error::input(format!("a [{rows}, {cols}] matrix of {kind:?}: {}", first_line(&e.to_string()))))
    }
}

/// What candle says, without the backtrace that it adds where RUST_BACKTRACE is set.
fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
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
