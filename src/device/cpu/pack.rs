//! Weights as the products read them: packed once at load into tiles of 16 rows (layout in [`super::form`]).
//!
//! The packed copy replaces the file's: pages of the mapping are handed back as soon as they are read, so a model is in
//! memory once. Packing moves codes and scales and changes none.

use super::form::{BLOCK, Form, Format, GROUP, Places, with_format};
use super::lanes::LANES;
use super::pool::Pool;
use super::shared::Shared;
use crate::base::size::Human;
use crate::base::{Error, Result};
use crate::device::weight::{Bytes, Weight};
use candle_core::quantized::GgmlDType;
use candle_core::quantized::k_quants::{BlockQ8_1, BlockQ8K, GgmlType};

/// A cache line: what packed tiles are aligned to.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A matrix `[rows, cols]` in tiles.
pub struct Packed {
    pub form: Form,
    pub rows: usize,
    pub cols: usize,
    tile_bytes: usize,
    lines: Vec<Line>,
}

impl Packed {
    /// Packs `weight`. Errors: sizes that do not fit its bytes or its type's blocks, and not enough memory.
    pub fn new(weight: &Weight, pool: &Pool) -> Result<Self> {
        let Weight { kind, rows, cols, .. } = *weight;
        let form = Form::of(kind);
        if cols == 0 || rows == 0 || !cols.is_multiple_of(kind.block_size()) {
            return Err(Error::input(format!(
                "a {kind:?} matrix of {rows} rows and {cols} columns: columns must be a multiple of {}",
                kind.block_size()
            )));
        }
        let row_bytes = cols / kind.block_size() * kind.type_size();
        let bytes = weight.bytes.as_slice();
        if rows.checked_mul(row_bytes) != Some(bytes.len()) {
            return Err(Error::input(format!(
                "a {kind:?} matrix of {rows} rows and {cols} columns takes {rows} x {row_bytes} bytes, not {}",
                bytes.len()
            )));
        }
        let tile_bytes = form.tile_bytes(cols);
        let tiles = rows.div_ceil(LANES);
        let count = tiles * tile_bytes / 64;
        let mut lines = Vec::new();
        lines.try_reserve_exact(count).map_err(|_| {
            Error::limit(format!(
                "no memory for {} of weights; free some, or take a smaller model",
                Human(count as u64 * 64)
            ))
        })?;
        lines.resize(count, Line([0; 64]));
        let packed: &mut [u8] = bytes_of_mut(&mut lines);
        let packed = Shared::new(packed);
        let per_task = tiles.div_ceil(4 * pool.threads()).max(1);
        pool.run(tiles.div_ceil(per_task), &|task, _| {
            for t in task * per_task..((task + 1) * per_task).min(tiles) {
                // SAFETY: each tile is packed by one task only.
                let tile = unsafe { packed.slice(t * tile_bytes..(t + 1) * tile_bytes) };
                let lanes = (rows - t * LANES).min(LANES);
                let source = &bytes[t * LANES * row_bytes..][..lanes * row_bytes];
                with_format!(form, F => pack_tile::<F>(kind, source, row_bytes, cols, tile),
                    else pack_floats(kind, source, row_bytes, cols, tile));
            }
            let read =
                task * per_task * LANES * row_bytes..(((task + 1) * per_task).min(tiles) * LANES).min(rows) * row_bytes;
            forget_pages(&weight.bytes, read);
        });
        Ok(Self { form, rows, cols, tile_bytes, lines })
    }

    pub fn tiles(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    /// Bytes this matrix takes.
    pub fn bytes(&self) -> usize {
        self.lines.len() * 64
    }

    /// The packed tile `t`, aligned to 64 bytes.
    pub fn tile(&self, t: usize) -> &[u8] {
        &bytes_of(&self.lines)[t * self.tile_bytes..(t + 1) * self.tile_bytes]
    }
}

fn bytes_of(lines: &[Line]) -> &[u8] {
    // SAFETY: a `Line` is 64 plain bytes.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * 64) }
}

fn bytes_of_mut(lines: &mut [Line]) -> &mut [u8] {
    // SAFETY: as in `bytes_of`, and any byte is a valid one.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * 64) }
}

/// Lets the system drop the mapping's pages that were just read: they would count as this process's memory.
fn forget_pages(bytes: &Bytes, read: std::ops::Range<usize>) {
    #[cfg(unix)]
    if let Bytes::Mapped { file, range } = bytes {
        let (from, len) = (range.start + read.start, read.len());
        // SAFETY: the map is a read-only file mapping, so dropped pages come back from the file with the same content.
        // Failing costs memory only.
        let _ = unsafe { file.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, from, len) };
    }
    #[cfg(not(unix))]
    let _ = (bytes, read);
}

/// `[lane][col]` numbers to `[col][lane]`.
fn pack_floats(kind: GgmlDType, source: &[u8], row_bytes: usize, cols: usize, tile: &mut [u8]) {
    let number = if matches!(kind, GgmlDType::F16 | GgmlDType::BF16) { 2 } else { 4 };
    for (lane, row) in source.chunks_exact(row_bytes).enumerate() {
        let mut place = |col: usize, bytes: &[u8]| {
            tile[(col * LANES + lane) * number..][..number].copy_from_slice(bytes);
        };
        match kind {
            GgmlDType::Q8_1 => widen_blocks::<BlockQ8_1>(row, |col, x| place(col, &x.to_le_bytes())),
            GgmlDType::Q8K => widen_blocks::<BlockQ8K>(row, |col, x| place(col, &x.to_le_bytes())),
            _ => row.chunks_exact(number).take(cols).enumerate().for_each(|(col, bytes)| place(col, bytes)),
        }
    }
}

fn widen_blocks<T: GgmlType>(row: &[u8], mut place: impl FnMut(usize, f32)) {
    let mut numbers = vec![0f32; T::BLCK_SIZE];
    for (b, bytes) in row.chunks_exact(size_of::<T>()).enumerate() {
        let mut block = [T::zeros()];
        // SAFETY: a GGML block is plain old data of exactly this many bytes, valid for every content.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), block.as_mut_ptr().cast(), bytes.len()) };
        T::to_float(&block, &mut numbers);
        for (i, &x) in numbers.iter().enumerate() {
            place(b * T::BLCK_SIZE + i, x);
        }
    }
}

/// One lane's view of a quantised tile.
struct Lane<'a> {
    tile: &'a mut [u8],
    places: Places,
    lane: usize,
}

impl Lane<'_> {
    fn put_codes<F: Format>(&mut self, block: usize, codes: [u8; BLOCK]) {
        let low_mask = ((1u32 << F::LOW) - 1) as u8;
        for (col, code) in codes.into_iter().enumerate() {
            let (g, k) = (col / 4, self.lane * 4 + col % 4);
            let low = code & low_mask;
            let (group, shift) = match F::LOW {
                8 => (g, 0),
                4 => (g % 4, g / 4 * 4),
                _ => (g % 2, g / 2 * 2),
            };
            self.tile[block * 64 * F::LOW + group * 64 + k] |= low << shift;
            let high = if F::HIGH == 0 { 0 } else { code >> F::LOW };
            match F::HIGH {
                1 => self.tile[self.places.high + block * 64 + g * 8 + k / 8] |= high << (k % 8),
                2 => self.tile[self.places.high + block * 128 + g % 2 * 64 + k] |= high << (g / 2 * 2),
                _ => {}
            }
        }
    }

    /// An f16 as it stands in the file.
    fn put_half(&mut self, base: usize, row: usize, bytes: &[u8]) {
        self.tile[base + (row * LANES + self.lane) * 2..][..2].copy_from_slice(&bytes[..2]);
    }

    fn put_inner(&mut self, base: usize, row: usize, value: u8) {
        self.tile[base + row * LANES + self.lane] = value;
    }
}

/// GGML's block layouts: `ggml-common.h` and `ggml-quants.c` of llama.cpp.
fn pack_tile<F: Format>(kind: GgmlDType, source: &[u8], row_bytes: usize, cols: usize, tile: &mut [u8]) {
    let places = Places::of::<F>(cols);
    for (lane, row) in source.chunks_exact(row_bytes).enumerate() {
        let mut lane = Lane { tile: &mut *tile, places, lane };
        for (b, raw) in row.chunks_exact(kind.type_size()).enumerate() {
            if F::NESTED { pack_group::<F>(kind, raw, b, &mut lane) } else { pack_block::<F>(raw, b, &mut lane) }
        }
    }
}

/// Q4_0, Q4_1, Q5_0, Q5_1, Q8_0: `d`, `m` where there is a minimum, `qh` where there is a high plane, then the codes.
fn pack_block<F: Format>(raw: &[u8], block: usize, lane: &mut Lane<'_>) {
    let places = lane.places;
    lane.put_half(places.scales, block, raw);
    let mut at = 2;
    if F::MINIMUM {
        lane.put_half(places.minima, block, &raw[2..]);
        at = 4;
    }
    let high = if F::HIGH == 1 { u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]) } else { 0 };
    let qs = &raw[at + 4 * F::HIGH..];
    if F::HIGH == 0 {
        // The packed plane has the file's bytes, four at a time.
        let plane = &mut lane.tile[block * 64 * F::LOW..][..64 * F::LOW];
        for (group, four) in plane.chunks_exact_mut(64).zip(qs.chunks_exact(4)) {
            group[lane.lane * 4..][..4].copy_from_slice(four);
        }
        return;
    }
    lane.put_codes::<F>(
        block,
        std::array::from_fn(|i| match F::LOW {
            8 => qs[i],
            _ => (qs[i % 16] >> (i / 16 * 4)) & 15 | ((high >> i & 1) as u8) << 4,
        }),
    );
}

/// The k-quants: a group of 256 columns.
fn pack_group<F: Format>(kind: GgmlDType, raw: &[u8], group: usize, lane: &mut Lane<'_>) {
    const BLOCKS: usize = GROUP / BLOCK;
    let places = lane.places;
    let mut codes = |code: &dyn Fn(usize, usize) -> u8| {
        for b in 0..BLOCKS {
            lane.put_codes::<F>(group * BLOCKS + b, std::array::from_fn(|i| code(b, i)));
        }
    };
    match kind {
        GgmlDType::Q2K => {
            let (scales, qs) = raw.split_at(16);
            codes(&|b, i| qs[b / 4 * 32 + i] >> (b % 4 * 2) & 3);
            for (i, &s) in scales.iter().enumerate() {
                lane.put_inner(places.inner, group * 16 + i, s & 15);
                lane.put_inner(places.inner_minima, group * 16 + i, s >> 4);
            }
            lane.put_half(places.scales, group, &raw[80..]);
            lane.put_half(places.minima, group, &raw[82..]);
        }
        GgmlDType::Q3K => {
            let (mask, qs, scales) = (&raw[..32], &raw[32..96], &raw[96..108]);
            codes(&|b, i| qs[b / 4 * 32 + i] >> (b % 4 * 2) & 3 | (mask[i] >> b & 1) << 2);
            for i in 0..16 {
                let low = if i < 8 { scales[i] & 15 } else { scales[i - 8] >> 4 };
                let high = scales[8 + i % 4] >> (i / 4 * 2) & 3;
                lane.put_inner(places.inner, group * 16 + i, (low | high << 4).wrapping_sub(32));
            }
            lane.put_half(places.scales, group, &raw[108..]);
        }
        GgmlDType::Q4K | GgmlDType::Q5K => {
            let scales = &raw[4..16];
            let (high, qs) = raw[16..].split_at(32 * F::HIGH);
            codes(&|b, i| {
                let low = qs[b / 2 * 32 + i] >> (b % 2 * 4) & 15;
                if F::HIGH == 1 { low | (high[i] >> b & 1) << 4 } else { low }
            });
            for b in 0..BLOCKS {
                let (scale, minimum) = match b {
                    0..4 => (scales[b] & 63, scales[b + 4] & 63),
                    _ => {
                        let both = scales[b + 4];
                        (both & 15 | scales[b - 4] >> 6 << 4, both >> 4 | scales[b] >> 6 << 4)
                    }
                };
                lane.put_inner(places.inner, group * BLOCKS + b, scale);
                lane.put_inner(places.inner_minima, group * BLOCKS + b, minimum);
            }
            lane.put_half(places.scales, group, raw);
            lane.put_half(places.minima, group, &raw[2..]);
        }
        _ => {
            let (low, high, scales) = (&raw[..128], &raw[128..192], &raw[192..208]);
            codes(&|b, i| {
                let (half, t) = (b / 4, b % 4);
                let l = low[half * 64 + t % 2 * 32 + i] >> (t / 2 * 4) & 15;
                l | (high[half * 32 + i] >> (2 * t) & 3) << 4
            });
            for (i, &s) in scales.iter().enumerate() {
                lane.put_inner(places.inner, group * 16 + i, s);
            }
            lane.put_half(places.scales, group, &raw[208..]);
        }
    }
}
