//! Weights on the card: 16-bit numbers, rows as the kernels want them.
//!
//! Quantised weights are dequantised at load. RoPE turns pairs (2i, 2i + 1) on the card, so the query and key rows of
//! models that turn (i, i + d/2) are put into that order here: scores do not change when queries and keys are reordered
//! alike. Gate and up rows stand in groups of 8 gates and their 8 ups, so that one thread of a product holds both.

use super::attend::Number;
use super::driver::{Buffer, Gpu};
use crate::base::{Error, Result};
use crate::device::Shape;
use crate::device::weight::Weight;
use candle_core::quantized::GgmlDType;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::sync::Arc;

/// `[rows, cols]` in 16-bit numbers.
pub struct Matrix {
    pub buffer: Arc<Buffer>,
    pub rows: u32,
    pub cols: u32,
}

/// The number type that keeps these weights best: bfloat16 stays what it is, all else fits float16.
pub fn number_of(kind: GgmlDType) -> Number {
    if kind == GgmlDType::BF16 { Number::Bf16 } else { Number::F16 }
}

/// Groups of so many gate rows, then as many up rows.
const GATE_ROWS: usize = 8;

/// All numbers of a weight, in 16 bits.
pub fn numbers(weight: &Weight, number: Number) -> Result<Vec<u16>> {
    let same = match number {
        Number::F16 => weight.kind == GgmlDType::F16,
        Number::Bf16 => weight.kind == GgmlDType::BF16,
    };
    if same {
        // Files are little-endian, and so are the machines that have CUDA.
        let mut numbers = vec![0u16; weight.rows * weight.cols];
        bytemuck::cast_slice_mut(&mut numbers).copy_from_slice(weight.bytes.as_slice());
        return Ok(numbers);
    }
    let exact = weight.dequantise()?;
    Ok(match number {
        Number::F16 => {
            let mut to = vec![f16::ZERO; exact.len()];
            to.convert_from_f32_slice(&exact);
            to.into_iter().map(f16::to_bits).collect()
        }
        Number::Bf16 => {
            let mut to = vec![bf16::ZERO; exact.len()];
            to.convert_from_f32_slice(&exact);
            to.into_iter().map(bf16::to_bits).collect()
        }
    })
}

/// Rows of heads whose pairs are halves, put so that pairs are neighbours. `numbers` is `[heads × head size, cols]`.
fn pair_up(numbers: &[u16], cols: usize, head_size: usize) -> Vec<u16> {
    let mut to = Vec::with_capacity(numbers.len());
    for head in numbers.chunks_exact(head_size * cols) {
        for i in 0..head_size / 2 {
            for row in [i, i + head_size / 2] {
                to.extend_from_slice(&head[row * cols..(row + 1) * cols]);
            }
        }
    }
    to
}

/// Refuses a model whose matrices the kernels cannot multiply.
pub fn check(shape: &Shape) -> Result<()> {
    check_cols(shape.hidden)?;
    check_gated(shape.feed_forward)
}

fn check_cols(cols: usize) -> Result<()> {
    if cols > 0 && cols.is_multiple_of(8) {
        return Ok(());
    }
    Err(Error::input(format!(
        "rows of {cols} numbers cannot be multiplied on the GPU (no multiple of 8): use --device cpu"
    )))
}

fn check_gated(rows: usize) -> Result<()> {
    if rows.is_multiple_of(GATE_ROWS) {
        return Ok(());
    }
    Err(Error::input(format!(
        "a feed-forward size of {rows} cannot be run on the GPU (no multiple of {GATE_ROWS}): use --device cpu"
    )))
}

impl Matrix {
    /// Takes numbers `[rows, cols]` to the card. Rows of a number that is no multiple of 8 are refused.
    fn new(gpu: &Gpu, numbers: &[u16], cols: usize) -> Result<Self> {
        check_cols(cols)?;
        let buffer = Arc::new(gpu.upload(numbers)?);
        Ok(Self { buffer, rows: (numbers.len() / cols) as u32, cols: cols as u32 })
    }

    /// The first rows, where they are.
    pub fn first_rows(&self, rows: usize) -> Self {
        assert!(rows <= self.rows as usize, "rows that the matrix has");
        Self { buffer: Arc::clone(&self.buffer), rows: rows as u32, cols: self.cols }
    }

    pub fn plain(gpu: &Gpu, weight: &Weight, number: Number) -> Result<Self> {
        Self::new(gpu, &numbers(weight, number)?, weight.cols)
    }

    /// Queries, keys and values under each other; `halves`: the pairs of RoPE are halves of a head.
    pub fn projections(gpu: &Gpu, [q, k, v]: [&Weight; 3], number: Number, halves: Option<usize>) -> Result<Self> {
        let mut all = Vec::new();
        for weight in [q, k] {
            let numbers = numbers(weight, number)?;
            match halves {
                Some(head_size) => all.extend_from_slice(&pair_up(&numbers, weight.cols, head_size)),
                None => all.extend_from_slice(&numbers),
            }
        }
        all.extend_from_slice(&numbers(v, number)?);
        Self::new(gpu, &all, q.cols)
    }

    /// Gate and up in groups.
    pub fn gated(gpu: &Gpu, gate: &Weight, up: &Weight, number: Number) -> Result<Self> {
        check_gated(gate.rows)?;
        let (gates, ups) = (numbers(gate, number)?, numbers(up, number)?);
        let group = GATE_ROWS * gate.cols;
        let mut all = Vec::with_capacity(gates.len() + ups.len());
        for (gates, ups) in gates.chunks_exact(group).zip(ups.chunks_exact(group)) {
            all.extend_from_slice(gates);
            all.extend_from_slice(ups);
        }
        Self::new(gpu, &all, gate.cols)
    }

    pub fn bytes(&self) -> usize {
        self.rows as usize * self.cols as usize * 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_a_head_become_neighbours() {
        // Two heads of size 4, one column: rows 0 and 2, 1 and 3 are pairs.
        let rows: Vec<u16> = (0..8).collect();
        assert_eq!(pair_up(&rows, 1, 4), [0, 2, 1, 3, 4, 6, 5, 7]);
    }

    #[test]
    fn numbers_keep_their_type_or_are_rounded_once() {
        let exact = [1.0f32, -0.333, 1e-3, 77.7];
        for number in [Number::F16, Number::Bf16] {
            for kind in [GgmlDType::F32, GgmlDType::F16, GgmlDType::BF16] {
                let weight = Weight::quantise(kind, 1, 4, &exact).unwrap();
                for (&bits, &x) in numbers(&weight, number).unwrap().iter().zip(&exact) {
                    let found = match number {
                        Number::F16 => f16::from_bits(bits).to_f32(),
                        Number::Bf16 => bf16::from_bits(bits).to_f32(),
                    };
                    assert!((found - x).abs() <= x.abs() * 8e-3, "{number:?} {kind:?} {found} {x}");
                }
            }
        }
    }
}
