//! Writes small GGUF files for tests: any metadata, any tensor type through candle's quantiser.

use super::types;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};

/// A file in the making.
#[derive(Clone, Default)]
pub struct Writer {
    keys: Vec<(String, Vec<u8>)>,
    tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
    pub version: Option<u32>,
}

impl Writer {
    pub fn raw(mut self, key: &str, kind: u32, bytes: &[u8]) -> Self {
        let mut value = kind.to_le_bytes().to_vec();
        value.extend_from_slice(bytes);
        self.keys.push((key.to_string(), value));
        self
    }

    pub fn text(self, key: &str, text: &str) -> Self {
        self.raw(key, 8, &string(text))
    }

    pub fn u32(self, key: &str, value: u32) -> Self {
        self.raw(key, 4, &value.to_le_bytes())
    }

    pub fn f32(self, key: &str, value: f32) -> Self {
        self.raw(key, 6, &value.to_le_bytes())
    }

    pub fn flag(self, key: &str, value: bool) -> Self {
        self.raw(key, 7, &[u8::from(value)])
    }

    pub fn texts<T: AsRef<str>>(self, key: &str, texts: &[T]) -> Self {
        let mut bytes = array(8, texts.len());
        for text in texts {
            bytes.extend(string(text.as_ref()));
        }
        self.raw(key, 9, &bytes)
    }

    pub fn i32s(self, key: &str, values: &[i32]) -> Self {
        let mut bytes = array(5, values.len());
        bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        self.raw(key, 9, &bytes)
    }

    pub fn f32s(self, key: &str, values: &[f32]) -> Self {
        let mut bytes = array(6, values.len());
        bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        self.raw(key, 9, &bytes)
    }

    /// Drops a key again.
    pub fn without(mut self, key: &str) -> Self {
        self.keys.retain(|(k, _)| k != key);
        self
    }

    pub fn without_tensor(mut self, name: &str) -> Self {
        self.tensors.retain(|(n, ..)| n != name);
        self
    }

    /// A tensor `dims` (outermost first) of `kind`, quantised by candle.
    pub fn tensor(mut self, name: &str, dims: &[usize], values: &[f32], kind: GgmlDType) -> Self {
        let bytes = quantised(dims, values, kind);
        let file_dims = dims.iter().rev().map(|&d| d as u64).collect();
        let id = types::TYPES.iter().find(|t| t.kind == Some(kind)).unwrap().id;
        self.tensors.push((name.to_string(), file_dims, id, bytes));
        self
    }

    /// A tensor given as it is to lie in the file.
    pub fn raw_tensor(mut self, name: &str, file_dims: &[u64], id: u32, bytes: Vec<u8>) -> Self {
        self.tensors.push((name.to_string(), file_dims.to_vec(), id, bytes));
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.unwrap_or(3).to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            out.extend(string(key));
            out.extend_from_slice(value);
        }
        let mut offset = 0u64;
        for (name, dims, id, bytes) in &self.tensors {
            out.extend(string(name));
            out.extend((dims.len() as u32).to_le_bytes());
            out.extend(dims.iter().flat_map(|d| d.to_le_bytes()));
            out.extend(id.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset = (offset + bytes.len() as u64).next_multiple_of(32);
        }
        for (_, _, _, bytes) in &self.tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend_from_slice(bytes);
        }
        out
    }
}

/// Bytes of `values` in `kind`.
pub fn quantised(dims: &[usize], values: &[f32], kind: GgmlDType) -> Vec<u8> {
    let tensor = Tensor::from_slice(values, dims, &Device::Cpu).unwrap();
    match kind {
        GgmlDType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        GgmlDType::F16 => values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect(),
        GgmlDType::BF16 => values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect(),
        _ => QTensor::quantize(&tensor, kind).unwrap().data().unwrap().into_owned(),
    }
}

pub fn string(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

fn array(element: u32, len: usize) -> Vec<u8> {
    let mut bytes = element.to_le_bytes().to_vec();
    bytes.extend((len as u64).to_le_bytes());
    bytes
}
