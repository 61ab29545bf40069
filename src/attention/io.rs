//! What a method moves to and from memory, per layer and step: counted from the plan, or from the shape for the methods
//! that have none. Shown on the screen and in every benchmark row.

use super::Method;
use crate::device::attend::AttendWork;
use crate::device::cpu::attend::Heads;

/// Counts of things; [`MethodIo::bytes`] turns them into bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MethodIo {
    /// K/V tokens read, each `2 × kv_heads × d` numbers.
    pub kv_tokens: u64,
    /// Float32 numbers of partial results written, and as many read.
    pub partial_numbers: u64,
    pub mask_bytes: u64,
    /// Query rows read (once a unit that uses them), each `heads × d` float32.
    pub query_rows: u64,
    /// Output rows written, each `heads × d` float32.
    pub output_rows: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IoBytes {
    pub kv: u64,
    /// Written and read back.
    pub partial: u64,
    pub mask: u64,
    pub query_and_output: u64,
}

impl MethodIo {
    /// Of a plan: a partial is `d` numbers, a maximum and a sum for each row, block and query head.
    pub fn planned(work: &AttendWork, heads: &Heads) -> Self {
        let used: u64 = work.units.iter().map(|u| u64::from(u.rows.end - u.rows.start)).sum();
        Self {
            kv_tokens: work.io.kv_tokens,
            partial_numbers: work.io.partial_rows * (heads.group() * (heads.head_size + 2)) as u64,
            mask_bytes: 0,
            query_rows: used,
            output_rows: work.rows() as u64,
        }
    }

    /// Of the methods that walk the whole tree of `tokens`. Medusa writes and reads QK^T, the scaled, the masked scores
    /// and the softmax: four matrices of `heads × rows × tokens`.
    pub fn flat(method: Method, tokens: usize, rows: usize, heads: &Heads) -> Self {
        let (tokens, rows) = (tokens as u64, rows as u64);
        let entries = tokens * rows;
        let mut io = Self { kv_tokens: tokens, query_rows: rows, output_rows: rows, ..Self::default() };
        match method {
            Method::Medusa => {
                io.partial_numbers = 4 * entries * heads.heads as u64;
                io.mask_bytes = 4 * entries;
            }
            Method::SpecInfer => {
                io.kv_tokens = entries;
                io.mask_bytes = rows * tokens.div_ceil(64) * 8;
            }
            _ => io.mask_bytes = 4 * entries,
        }
        io
    }

    pub fn bytes(&self, heads: &Heads, number_bytes: usize) -> IoBytes {
        let token = 2 * heads.kv_heads * heads.head_size * number_bytes;
        let row = 4 * heads.heads * heads.head_size;
        IoBytes {
            kv: self.kv_tokens * token as u64,
            partial: 2 * 4 * self.partial_numbers,
            mask: self.mask_bytes,
            query_and_output: (self.query_rows + self.output_rows) * row as u64,
        }
    }
}
