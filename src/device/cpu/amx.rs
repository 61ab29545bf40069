//! Int8 products through AMX tiles (`tdpbssd`), for four rows or more: the same integers, and the same float chain, as
//! `product::Int8`, so a row's bits do not depend on which of the two multiplied it.
//!
//! A weight tile is unpacked once for all rows into what a tile register takes, `[block][4 columns][lane][4]` with the bias
//! already subtracted. Then 16 rows at a time: per block two tile loads, one product of 16 x 32 x 16, one tile store, and
//! for each row one vector of 16 sums that stays in a register over all blocks.
//!
//! Tile instructions have no stable intrinsics, so they are written as assembly. Forms with a scale for each 16 columns
//! are not taken.

use super::form::{BLOCK, Format, Places, codes, scales};
use super::input::{Quantised, grow};
use super::lanes::avx512::Avx512;
use super::lanes::{LANES, Lanes};
use super::pack::Packed;
use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;
use std::sync::OnceLock;

/// Rows of one product; also the rows that one tile register holds.
pub const ROWS: usize = 16;

/// Whether this machine has AMX with int8, and the system lets this process use it.
pub fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        #[cfg(target_os = "linux")]
        {
            const REQUEST_PERMISSION: libc::c_long = 0x1023;
            const TILE_DATA: libc::c_long = 18;
            let has = std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains(" amx_int8"));
            // SAFETY: this request of `arch_prctl` takes two numbers and touches no memory; it fails where the kernel does
            // not know the feature. Threads that are started later inherit the permission, earlier ones share it.
            has && unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) } == 0
        }
        #[cfg(not(target_os = "linux"))]
        false
    })
}

/// A weight tile as tile registers take it.
#[derive(Default)]
pub struct Unpacked {
    /// `[block][8][lane][4]` signed codes.
    codes: Vec<i8>,
    /// `[block]` of 16 scales and 16 minima.
    scales: Vec<f32>,
}

impl Unpacked {
    /// Unpacks tile `t`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
    pub fn fill<F: Format>(&mut self, weight: &Packed, t: usize) {
        let blocks = weight.cols / BLOCK;
        let places = Places::of::<F>(weight.cols);
        let tile = weight.tile(t);
        assert!(tile.len() >= places.bytes && !F::HALVES);
        grow(&mut self.codes, blocks * BLOCK * LANES);
        grow(&mut self.scales, blocks * 2 * LANES);
        // SAFETY: the tile has its places, the vectors have room for `blocks` blocks; this function's instruction set.
        unsafe {
            let bias = _mm512_set1_epi8(F::BIAS as i8);
            for block in 0..blocks {
                let out = self.codes.as_mut_ptr().add(block * BLOCK * LANES);
                for (g, code) in codes::<Avx512, F>(tile.as_ptr(), &places, block).into_iter().enumerate() {
                    _mm512_storeu_si512(out.add(g * 64).cast(), _mm512_sub_epi8(code, bias));
                }
                let (scale, minimum) = scales::<Avx512, F>(tile.as_ptr(), &places, block, 0);
                let out = self.scales.as_mut_ptr().add(block * 2 * LANES);
                Avx512::store(out, scale);
                Avx512::store(out.add(LANES), minimum);
            }
        }
    }

    /// `sums[r] = tile · row` for the rows in `rows`, as `product::Int8` gives them.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
    pub fn multiply<F: Format>(&self, weight: &Packed, input: &Quantised, rows: Range<usize>, sums: &mut [f32]) {
        assert!(rows.end <= input.rows && sums.len() >= rows.len() * LANES);
        assert!(self.codes.len() >= weight.cols * LANES);
        let config = Config::new();
        // SAFETY: `available` was true before anyone came here; the configuration is a whole one. The tiles are released
        // before this function ends.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly)) };
        for from in (0..rows.len()).step_by(ROWS) {
            let group = Group {
                unpacked: self,
                input,
                blocks: weight.cols / BLOCK,
                row: rows.start + from,
                out: &mut sums[from * LANES..],
            };
            match rows.len() - from {
                ROWS.. => group.sixteen::<F>(),
                few => group.few::<F>(few),
            }
        }
        // SAFETY: as above.
        unsafe { asm!("tilerelease", options(nomem, nostack)) };
    }
}

/// What `ldtilecfg` reads: registers 0, 1 are sums (16 rows of 64 bytes), 2, 3 activations (16 rows of 32 bytes), 4, 5
/// weights (8 rows of 64 bytes).
#[repr(C, align(64))]
struct Config([u8; 64]);

impl Config {
    fn new() -> Self {
        let mut bytes = [0; 64];
        bytes[0] = 1;
        for (register, (rows, row_bytes)) in
            [(16, 64), (16, 64), (16, 32), (16, 32), (8, 64), (8, 64)].into_iter().enumerate()
        {
            bytes[16 + 2 * register] = row_bytes;
            bytes[48 + register] = rows;
        }
        Self(bytes)
    }
}

/// Integer sums of two blocks, `[row][lane]` each.
#[repr(C, align(64))]
struct Dots([[[i32; LANES]; ROWS]; 2]);

/// Up to 16 rows from `row` on.
struct Group<'a> {
    unpacked: &'a Unpacked,
    input: &'a Quantised,
    blocks: usize,
    row: usize,
    out: &'a mut [f32],
}

impl Group<'_> {
    /// Integer sums of block `block` for 16 rows, through register set `block % 2`, so that two blocks overlap. Rows past
    /// the input's are read as well (`Quantised` keeps room for them) and mean nothing.
    #[inline(always)]
    fn dots(&self, block: usize, dots: &mut Dots) {
        let x = self.input.codes_from(block, self.row);
        let w = &self.unpacked.codes[block * BLOCK * LANES..][..BLOCK * LANES];
        let out = &mut dots.0[block % 2];
        assert!(x.len() >= ROWS * BLOCK);
        // SAFETY: the loads read 16 rows of 32 bytes and 8 of 64, the store writes 16 rows of 64, all inside the slices.
        unsafe {
            if block.is_multiple_of(2) {
                asm!(
                    "tileloadd tmm2, [{x} + {x_step}*1]",
                    "tileloadd tmm4, [{w} + {step}*1]",
                    "tilezero tmm0",
                    "tdpbssd tmm0, tmm2, tmm4",
                    "tilestored [{out} + {step}*1], tmm0",
                    x = in(reg) x.as_ptr(), w = in(reg) w.as_ptr(), out = in(reg) out.as_mut_ptr(),
                    x_step = in(reg) BLOCK, step = in(reg) 64usize,
                    out("tmm0") _, out("tmm2") _, out("tmm4") _,
                    options(nostack),
                );
            } else {
                asm!(
                    "tileloadd tmm3, [{x} + {x_step}*1]",
                    "tileloadd tmm5, [{w} + {step}*1]",
                    "tilezero tmm1",
                    "tdpbssd tmm1, tmm3, tmm5",
                    "tilestored [{out} + {step}*1], tmm1",
                    x = in(reg) x.as_ptr(), w = in(reg) w.as_ptr(), out = in(reg) out.as_mut_ptr(),
                    x_step = in(reg) BLOCK, step = in(reg) 64usize,
                    out("tmm1") _, out("tmm3") _, out("tmm5") _,
                    options(nostack),
                );
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
    fn sixteen<F: Format>(self) {
        let mut dots = Dots([[[0; LANES]; ROWS]; 2]);
        let mut sums = [_mm512_setzero_ps(); ROWS];
        self.dots(0, &mut dots);
        for block in 0..self.blocks {
            if block + 1 < self.blocks {
                self.dots(block + 1, &mut dots);
            }
            let (scale, minimum) = self.scales(block);
            let meta = self.input.block(block).1;
            let meta = &meta[self.row..self.row + ROWS];
            for (r, sum) in sums.iter_mut().enumerate() {
                // SAFETY: 16 integers a row.
                let dot = unsafe { _mm512_load_si512(dots.0[block % 2][r].as_ptr().cast()) };
                let factor = _mm512_mul_ps(scale, _mm512_set1_ps(meta[r].scale));
                *sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), factor, *sum);
                if F::MINIMUM {
                    *sum = _mm512_fmadd_ps(minimum, _mm512_set1_ps(meta[r].scaled_sum), *sum);
                }
            }
        }
        for (sum, out) in sums.into_iter().zip(self.out.chunks_exact_mut(LANES)) {
            // SAFETY: `out` is 16 numbers.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), sum) };
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
    fn few<F: Format>(self, count: usize) {
        let mut dots = Dots([[[0; LANES]; ROWS]; 2]);
        let mut sums = [_mm512_setzero_ps(); ROWS];
        self.dots(0, &mut dots);
        for block in 0..self.blocks {
            if block + 1 < self.blocks {
                self.dots(block + 1, &mut dots);
            }
            let (scale, minimum) = self.scales(block);
            let meta = &self.input.block(block).1[self.row..self.row + count];
            for ((meta, sum), dot) in meta.iter().zip(&mut sums).zip(&dots.0[block % 2]) {
                // SAFETY: 16 integers a row.
                let dot = unsafe { _mm512_load_si512(dot.as_ptr().cast()) };
                let factor = _mm512_mul_ps(scale, _mm512_set1_ps(meta.scale));
                *sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), factor, *sum);
                if F::MINIMUM {
                    *sum = _mm512_fmadd_ps(minimum, _mm512_set1_ps(meta.scaled_sum), *sum);
                }
            }
        }
        for (sum, out) in sums.into_iter().zip(self.out.chunks_exact_mut(LANES)).take(count) {
            // SAFETY: `out` is 16 numbers.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), sum) };
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn scales(&self, block: usize) -> (__m512, __m512) {
        let scales = &self.unpacked.scales[block * 2 * LANES..][..2 * LANES];
        // SAFETY: 32 numbers.
        unsafe { (_mm512_loadu_ps(scales.as_ptr()), _mm512_loadu_ps(scales.as_ptr().add(LANES))) }
    }
}
