//! Launches of `kernels/product.cu`: which tile, how many splits; cuBLAS where there are many rows and it is there.

use super::attend::Number;
use super::blas::Blas;
use super::driver::{Begin, Buffer, Function, Gpu, Launch, Module};
use super::matrix::Matrix;
use super::ptx;
use crate::base::Result;

/// Columns of one stage of the kernels.
const DEPTH: u32 = 64;
/// Rows of W in a tile.
const TILE_ROWS: u32 = 128;
/// From so many rows on cuBLAS is asked, where it is there.
pub const BLAS_ROWS: u32 = 256;

/// `Product` of the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    w: u64,
    x: u64,
    part: u64,
    out: u64,
    rows: u32,
    cols: u32,
    n: u32,
    split: u32,
}

struct Tile {
    /// Rows of x.
    width: u32,
    threads: u32,
    stages: u32,
    partial: Function,
    gated: Function,
}

impl Tile {
    fn shared_bytes(width: u32, stages: u32) -> u32 {
        (TILE_ROWS + width) * DEPTH * 2 * stages
    }
}

pub struct Products {
    number: Number,
    tiles: Vec<Tile>,
    multiprocessors: u32,
    blas: Option<Blas>,
    _module: Module,
}

/// How the columns of a product are split: stages of one split, and splits.
pub fn splits(rows: u32, cols: u32, n_tiles: u32, multiprocessors: u32) -> (u32, u32) {
    let stages = cols.div_ceil(DEPTH);
    // Two blocks are resident on a multiprocessor.
    let wanted = (2 * multiprocessors / (rows.div_ceil(TILE_ROWS) * n_tiles)).clamp(1, stages.div_ceil(2));
    let split = stages.div_ceil(wanted);
    (split, stages.div_ceil(split))
}

impl Products {
    pub fn new(gpu: &Gpu, number: Number, blas: Option<Blas>) -> Result<Self> {
        let module = gpu.load(ptx::product(number, gpu.overlaps()))?;
        let tiles = [(16, 128, 5), (32, 128, 5), (64, 128, 4), (128, 256, 3)]
            .into_iter()
            .map(|(width, threads, stages)| {
                let bytes = Tile::shared_bytes(width, stages);
                Ok(Tile {
                    width,
                    threads,
                    stages,
                    partial: module.function(&format!("product_{width}"), bytes)?,
                    gated: module.function(&format!("gated_{width}"), bytes)?,
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self { number, tiles, multiprocessors: gpu.multiprocessors, blas, _module: module })
    }

    pub fn has_blas(&self) -> bool {
        self.blas.is_some()
    }

    /// Whether a product of so many rows goes to cuBLAS.
    pub fn by_blas(&self, n: u32) -> bool {
        n >= BLAS_ROWS && self.blas.is_some()
    }

    fn tile(&self, n: u32) -> &Tile {
        self.tiles.iter().find(|t| n <= t.width).unwrap_or(&self.tiles[self.tiles.len() - 1])
    }

    /// Splits that [`partial`](Self::partial) writes for so many rows.
    pub fn splits(&self, w: &Matrix, n: u32) -> u32 {
        if self.by_blas(n) {
            return 1;
        }
        splits(w.rows, w.cols, n.div_ceil(self.tile(n).width), self.multiprocessors).1
    }

    /// `part[splits][n][w.rows] = x[n][w.cols] · wᵀ` in float32; `once`: one split, whatever it costs. Returns the splits.
    pub fn partial(&self, gpu: &Gpu, w: &Matrix, x: &Buffer, n: u32, once: bool, part: &Buffer) -> Result<u32> {
        let (stages, splits) = match (once, self.by_blas(n)) {
            (true, _) | (_, true) => (w.cols.div_ceil(DEPTH), 1),
            _ => splits(w.rows, w.cols, n.div_ceil(self.tile(n).width), self.multiprocessors),
        };
        assert!(x.bytes() >= n as usize * w.cols as usize * 2, "all rows of x");
        assert!(part.bytes() >= splits as usize * n as usize * w.rows as usize * 4, "room for the parts");
        match &self.blas {
            Some(blas) if n >= BLAS_ROWS => {
                let places = (w.buffer.pointer(), x.pointer(), part.pointer());
                // SAFETY: sizes checked above; the buffers outlive the stream's work.
                unsafe { blas.product(self.number, (w.rows, w.cols, n), places)? };
            }
            _ => self.launch(gpu, w, x, n, (stages, splits), Target::Part(part))?,
        }
        Ok(splits)
    }

    /// `out[n][w.rows / 2] = silu(gate) · up`, by our own kernel.
    pub fn gated(&self, gpu: &Gpu, w: &Matrix, x: &Buffer, n: u32, out: &Buffer) -> Result<()> {
        assert!(x.bytes() >= n as usize * w.cols as usize * 2, "all rows of x");
        assert!(out.bytes() >= n as usize * w.rows as usize, "all rows of the result");
        self.launch(gpu, w, x, n, (w.cols.div_ceil(DEPTH), 1), Target::Gated(out))
    }

    fn launch(
        &self,
        gpu: &Gpu,
        w: &Matrix,
        x: &Buffer,
        n: u32,
        (stages, splits): (u32, u32),
        to: Target<'_>,
    ) -> Result<()> {
        let tile = self.tile(n);
        let (function, part, out) = match to {
            Target::Part(part) => (tile.partial, part.pointer(), 0),
            Target::Gated(out) => (tile.gated, 0, out.pointer()),
        };
        let (rows, cols) = (w.rows, w.cols);
        let mut args = Args { w: w.buffer.pointer(), x: x.pointer(), part, out, rows, cols, n, split: stages };
        let launch = Launch {
            grid: (n.div_ceil(tile.width), rows.div_ceil(TILE_ROWS), splits),
            threads: tile.threads,
            shared_bytes: Tile::shared_bytes(tile.width, tile.stages),
            begin: if gpu.overlaps() { Begin::Early } else { Begin::After },
        };
        // SAFETY: the kernel takes one `Product`; the callers checked the sizes.
        unsafe { gpu.launch(function, launch, &mut [(&raw mut args).cast()]) }
    }
}

enum Target<'a> {
    Part(&'a Buffer),
    Gated(&'a Buffer),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_cover_all_columns_and_none_is_empty() {
        for rows in [64, 576, 4096, 28_672, 128_256] {
            for cols in [8, 64, 576, 1536, 4096, 14_336] {
                for tiles in [1, 3, 16] {
                    let (split, splits) = splits(rows, cols, tiles, 132);
                    let stages = cols.div_ceil(DEPTH);
                    assert!(split * splits >= stages && split * (splits - 1) < stages, "{rows} {cols} {tiles}");
                }
            }
        }
        assert_eq!(splits(4096, 4096, 1, 132), (8, 8));
        assert_eq!(splits(28_672, 4096, 1, 132).1, 1);
    }
}
