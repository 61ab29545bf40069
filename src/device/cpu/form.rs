//! How each weight type lies in memory once it is packed into tiles of 16 rows.
//!
//! Row `16·t + lane` of the matrix is lane `lane` of tile `t`, so one vector holds the same column of 16 rows and a tile
//! meets any number of activation rows. Float forms are `[column][lane]`. Quantised ones, in blocks of 32 columns:
//!
//! ```text
//! tile = low plane (64·LOW bytes a block) | high plane (64·HIGH bytes a block) | scales
//!   LOW 4: byte [g][lane][k] holds column 4g + k (low half) and column 16 + 4g + k (high half), g < 4
//!   LOW 8: byte [g][lane][k] holds column 4g + k, g < 8
//!   LOW 2, HIGH 2: byte [g][lane][k] holds columns 4(g + 2i) + k in bits 2i, 2i + 1, g < 2, i < 4
//!   HIGH 1: bit 4·lane + k of the 64-bit word g holds column 4g + k, g < 8
//! scales = plain: f16 [block][lane], then f16 minima [block][lane]
//!          nested: f16 [group of 256][lane], then f16 minima, then bytes [block][half][lane], then bytes of the minima
//! ```
//!
//! A weight is `scale · (code - BIAS) + minimum`. A packed matrix takes as many bytes as the file's (nested ones up to a
//! fifth more), because the codes are moved, not changed.

use super::lanes::{LANES, Lanes};
use candle_core::quantized::GgmlDType;

/// Columns that share a scale of the activations, and at most one of the weights.
pub const BLOCK: usize = 32;
/// Columns of a k-quant's group.
pub const GROUP: usize = 256;

/// A quantised form, as constants.
pub trait Format: 'static {
    /// Bits in the low plane: 2, 4 or 8.
    const LOW: usize;
    /// Bits in the high plane: 0, 1 or 2.
    const HIGH: usize;
    const BIAS: i32;
    /// Codes are signed bytes.
    const SIGNED: bool = false;
    /// Scales are bytes under a group's f16.
    const NESTED: bool = false;
    /// Those bytes are signed.
    const SIGNED_SCALES: bool = false;
    /// Each 16 columns have their own scale.
    const HALVES: bool = false;
    const MINIMUM: bool;
}

macro_rules! formats {
    ($($(#[$doc:meta])* $name:ident { $($key:ident = $value:expr),* $(,)? })*) => {$(
        $(#[$doc])*
        pub struct $name;
        impl Format for $name { $(formats!(@ $key $value);)* }
    )*};
    (@ LOW $v:expr) => { const LOW: usize = $v; };
    (@ HIGH $v:expr) => { const HIGH: usize = $v; };
    (@ BIAS $v:expr) => { const BIAS: i32 = $v; };
    (@ $flag:ident $v:expr) => { const $flag: bool = $v; };
}

formats! {
    Q4_0 { LOW = 4, HIGH = 0, BIAS = 8, MINIMUM = false }
    Q4_1 { LOW = 4, HIGH = 0, BIAS = 0, MINIMUM = true }
    Q5_0 { LOW = 4, HIGH = 1, BIAS = 16, MINIMUM = false }
    Q5_1 { LOW = 4, HIGH = 1, BIAS = 0, MINIMUM = true }
    Q8_0 { LOW = 8, HIGH = 0, BIAS = 0, SIGNED = true, MINIMUM = false }
    Q2K { LOW = 2, HIGH = 0, BIAS = 0, NESTED = true, HALVES = true, MINIMUM = true }
    Q3K { LOW = 2, HIGH = 1, BIAS = 4, NESTED = true, SIGNED_SCALES = true, HALVES = true, MINIMUM = false }
    Q4K { LOW = 4, HIGH = 0, BIAS = 0, NESTED = true, MINIMUM = true }
    Q5K { LOW = 4, HIGH = 1, BIAS = 0, NESTED = true, MINIMUM = true }
    Q6K { LOW = 4, HIGH = 2, BIAS = 32, NESTED = true, SIGNED_SCALES = true, HALVES = true, MINIMUM = false }
}

/// Where the parts of a quantised tile begin, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    pub high: usize,
    pub scales: usize,
    pub minima: usize,
    /// Bytes under the group's scale, and under its minimum (nested only).
    pub inner: usize,
    pub inner_minima: usize,
    pub bytes: usize,
}

impl Places {
    pub const fn of<F: Format>(cols: usize) -> Self {
        let blocks = cols / BLOCK;
        let scale_rows = if F::NESTED { cols / GROUP } else { blocks };
        let inner_rows = match (F::NESTED, F::HALVES) {
            (false, _) => 0,
            (true, false) => blocks,
            (true, true) => 2 * blocks,
        };
        let minimum = F::MINIMUM as usize;
        let high = blocks * 64 * F::LOW;
        let scales = high + blocks * 64 * F::HIGH;
        let minima = scales + scale_rows * 2 * LANES;
        let inner = minima + minimum * scale_rows * 2 * LANES;
        let inner_minima = inner + inner_rows * LANES;
        let bytes = (inner_minima + minimum * inner_rows * LANES).next_multiple_of(64);
        Self { high, scales, minima, inner, inner_minima, bytes }
    }
}

/// The 32 codes of block `block` of a tile for 16 rows: eight vectors of four columns each.
///
/// # Safety
/// As [`Lanes`]; `tile` holds a packed tile with these places and more than `block` blocks.
#[inline(always)]
pub unsafe fn codes<L: Lanes, F: Format>(tile: *const u8, places: &Places, block: usize) -> [L::B; 8] {
    // SAFETY: all reads lie inside the tile's planes (see the layout above).
    unsafe {
        let low = tile.add(block * 64 * F::LOW);
        // Plain loops here and below: closures given to array functions are compiled without the instruction set.
        let mut codes = [L::load_bytes(low); 8];
        match F::LOW {
            8 => {
                for (g, code) in codes.iter_mut().enumerate() {
                    *code = L::load_bytes(low.add(64 * g));
                }
            }
            4 => {
                for g in 0..4 {
                    let pair = L::load_bytes(low.add(64 * g));
                    codes[g] = L::bits::<0>(pair, 15);
                    codes[g + 4] = L::bits::<4>(pair, 15);
                }
            }
            _ => codes = quarters::<L>(low),
        }
        match F::HIGH {
            1 => {
                let words = tile.add(places.high + block * 64).cast::<u64>();
                for (g, code) in codes.iter_mut().enumerate() {
                    *code = L::set_where(*code, words.add(g).read_unaligned(), 1 << F::LOW);
                }
            }
            2 => {
                let high = quarters::<L>(tile.add(places.high + block * 128));
                for (code, high) in codes.iter_mut().zip(high) {
                    *code = L::or_shifted::<4>(*code, high);
                }
            }
            _ => {}
        }
        codes
    }
}

/// A plane of two bits.
#[inline(always)]
unsafe fn quarters<L: Lanes>(plane: *const u8) -> [L::B; 8] {
    // SAFETY: the plane holds 128 bytes a block; as `codes`.
    unsafe {
        let (a, b) = (L::load_bytes(plane), L::load_bytes(plane.add(64)));
        [
            L::bits::<0>(a, 3),
            L::bits::<0>(b, 3),
            L::bits::<2>(a, 3),
            L::bits::<2>(b, 3),
            L::bits::<4>(a, 3),
            L::bits::<4>(b, 3),
            L::bits::<6>(a, 3),
            L::bits::<6>(b, 3),
        ]
    }
}

/// Scale and minimum (0 where the form has none) of half `half` of block `block`.
///
/// # Safety
/// As [`codes`].
#[inline(always)]
pub unsafe fn scales<L: Lanes, F: Format>(tile: *const u8, places: &Places, block: usize, half: usize) -> (L::F, L::F) {
    // SAFETY: all reads lie inside the tile's scales.
    unsafe {
        let outer = if F::NESTED { block / (GROUP / BLOCK) } else { block };
        let scale = L::load_f16(tile.add(places.scales).cast::<u16>().add(outer * LANES));
        let minimum = match F::MINIMUM {
            true => L::load_f16(tile.add(places.minima).cast::<u16>().add(outer * LANES)),
            false => L::splat(0.0),
        };
        if !F::NESTED {
            return (scale, minimum);
        }
        let inner = if F::HALVES { 2 * block + half } else { block };
        let factor = tile.add(places.inner + inner * LANES);
        let factor = if F::SIGNED_SCALES { L::load_i8(factor.cast()) } else { L::load_u8(factor) };
        let minimum = match F::MINIMUM {
            true => {
                let factor = L::load_u8(tile.add(places.inner_minima + inner * LANES));
                L::sub(L::splat(0.0), L::mul(minimum, factor))
            }
            false => minimum,
        };
        (L::mul(scale, factor), minimum)
    }
}

/// Which form a matrix is packed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
}

/// Runs `$body` with `$F` standing for the format of a quantised `$form`; `$else` for the float forms.
macro_rules! with_format {
    ($form:expr, $F:ident => $body:expr, else $else:expr) => {{
        use $crate::device::cpu::form;
        match $form {
            form::Form::Q4_0 => {
                type $F = form::Q4_0;
                $body
            }
            form::Form::Q4_1 => {
                type $F = form::Q4_1;
                $body
            }
            form::Form::Q5_0 => {
                type $F = form::Q5_0;
                $body
            }
            form::Form::Q5_1 => {
                type $F = form::Q5_1;
                $body
            }
            form::Form::Q8_0 => {
                type $F = form::Q8_0;
                $body
            }
            form::Form::Q2K => {
                type $F = form::Q2K;
                $body
            }
            form::Form::Q3K => {
                type $F = form::Q3K;
                $body
            }
            form::Form::Q4K => {
                type $F = form::Q4K;
                $body
            }
            form::Form::Q5K => {
                type $F = form::Q5K;
                $body
            }
            form::Form::Q6K => {
                type $F = form::Q6K;
                $body
            }
            form::Form::F32 | form::Form::F16 | form::Form::Bf16 => $else,
        }
    }};
}
pub(super) use with_format;

impl Form {
    /// The form of a GGML type. Two types that no model file holds (they are made for activations) become f32.
    pub fn of(kind: GgmlDType) -> Self {
        match kind {
            GgmlDType::F32 | GgmlDType::Q8_1 | GgmlDType::Q8K => Self::F32,
            GgmlDType::F16 => Self::F16,
            GgmlDType::BF16 => Self::Bf16,
            GgmlDType::Q4_0 => Self::Q4_0,
            GgmlDType::Q4_1 => Self::Q4_1,
            GgmlDType::Q5_0 => Self::Q5_0,
            GgmlDType::Q5_1 => Self::Q5_1,
            GgmlDType::Q8_0 => Self::Q8_0,
            GgmlDType::Q2K => Self::Q2K,
            GgmlDType::Q3K => Self::Q3K,
            GgmlDType::Q4K => Self::Q4K,
            GgmlDType::Q5K => Self::Q5K,
            GgmlDType::Q6K => Self::Q6K,
        }
    }

    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    /// Bytes of one packed tile.
    pub fn tile_bytes(self, cols: usize) -> usize {
        with_format!(self, F => Places::of::<F>(cols).bytes, else {
            let number = if self == Self::F32 { 4 } else { 2 };
            (cols * LANES * number).next_multiple_of(64)
        })
    }
}
