//! What benchmarks and the selftest need on the card: numbers, the reference, a cold read, and Medusa's unfused attention.

use super::attend::{AttendKernel, KvLayout, LoadedPlan, Number};
use super::driver::{Begin, Buffer, Function, Gpu, Launch, Module};
use super::ptx;
use crate::base::{Error, Result};
use std::ffi::c_void;

/// Kernels of `measure.cu`.
pub struct Bench {
    fill: [Function; 2],
    reference: [Function; 2],
    read: Function,
    _module: Module,
}

/// Each row's path: its runs of tokens, as `(index of the first slot, tokens)`.
pub struct Paths {
    pub first: Buffer,
    pub runs: Buffer,
    pub slots: Buffer,
}

fn plain(grid: (u32, u32, u32), threads: u32) -> Launch {
    Launch { grid, threads, shared_bytes: 0, begin: Begin::After }
}

impl Bench {
    pub fn new(gpu: &Gpu) -> Result<Self> {
        let module = gpu.load(ptx::MEASURE)?;
        let f = |name| module.function(name, 0);
        Ok(Self {
            fill: [f("fill_f16")?, f("fill_bf16")?],
            reference: [f("reference_f16")?, f("reference_bf16")?],
            read: f("read_all")?,
            _module: module,
        })
    }

    /// Uniform numbers in `[-amplitude, amplitude]`.
    pub fn fill(&self, gpu: &Gpu, to: &Buffer, number: Number, seed: u32, amplitude: f32) -> Result<()> {
        let (mut at, mut pairs, mut seed, mut amplitude) = (to.pointer(), to.bytes() as u64 / 4, seed, amplitude);
        let mut parameters: [*mut c_void; 4] =
            [(&raw mut at).cast(), (&raw mut pairs).cast(), (&raw mut seed).cast(), (&raw mut amplitude).cast()];
        // SAFETY: the kernel's four parameters; it writes inside the buffer.
        unsafe { gpu.launch(self.fill[number as usize], plain((2048, 1, 1), 256), &mut parameters) }
    }

    /// Reads `bytes` once.
    pub fn read(&self, gpu: &Gpu, from: u64, bytes: usize, sink: &Buffer) -> Result<()> {
        let (mut from, mut pieces, mut sink) = (from, bytes as u64 / 16, sink.pointer());
        let mut parameters: [*mut c_void; 3] =
            [(&raw mut from).cast(), (&raw mut pieces).cast(), (&raw mut sink).cast()];
        // SAFETY: the kernel's three parameters; it reads `bytes` from a live buffer.
        unsafe { gpu.launch(self.read, plain((gpu.multiprocessors * 4, 1, 1), 512), &mut parameters) }
    }

    /// `out[batch rows][heads][d]` in float32: each row against its path, sums in float64. Rows are numbered as in q.
    #[expect(clippy::too_many_arguments, reason = "a kernel's operands")]
    pub fn reference(
        &self,
        gpu: &Gpu,
        kernel: &AttendKernel,
        plan: &LoadedPlan,
        q: &Buffer,
        kv: KvLayout,
        paths: &Paths,
        rows: u32,
        out: &Buffer,
    ) -> Result<()> {
        let args = kernel.args(plan, q, kv, out);
        let (mut q, mut k, mut v, mut out) = (args.q, args.k, args.v, args.out);
        let (mut first, mut runs, mut slots) = (paths.first.pointer(), paths.runs.pointer(), paths.slots.pointer());
        let (mut page, mut token, mut head) = (args.page_stride, args.token_stride, args.head_stride);
        let (mut group, mut size) = (args.group, kernel.shape.head_size);
        let mut parameters: [*mut c_void; 12] = [
            (&raw mut q).cast(),
            (&raw mut k).cast(),
            (&raw mut v).cast(),
            (&raw mut out).cast(),
            (&raw mut first).cast(),
            (&raw mut runs).cast(),
            (&raw mut slots).cast(),
            (&raw mut page).cast(),
            (&raw mut token).cast(),
            (&raw mut head).cast(),
            (&raw mut group).cast(),
            (&raw mut size).cast(),
        ];
        let f = self.reference[kernel.shape.number as usize];
        // SAFETY: the kernel's twelve parameters, all of live buffers.
        unsafe { gpu.launch(f, plain((rows, kernel.shape.heads, 1), 128), &mut parameters) }
    }
}

/// Attention with the whole tree's scores and a dense mask in device memory: `kernels/dense.cu`.
pub struct Dense {
    steps: [Function; 4],
    args: DenseArgs,
    splits: u32,
    blocks: u32,
    _module: Module,
    _buffers: Vec<Buffer>,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DenseArgs {
    args: super::attend::Args,
    scores: u64,
    mask: u64,
    sums: u64,
    rows: u32,
    tiles: u32,
    split_tiles: u32,
    unused: u32,
}

impl Dense {
    /// Room for a plan's tiles; `mask[rows][64 × tiles]` is 0 where a row sees a token and -inf elsewhere.
    pub fn new(gpu: &Gpu, kernel: &AttendKernel, tiles: u32, rows: u32, mask: &[f32]) -> Result<Self> {
        let shape = kernel.shape;
        let text = ptx::dense(shape.number, shape.head_size)
            .ok_or_else(|| Error::input(format!("there is no unfused attention for head size {}", shape.head_size)))?;
        let module = gpu.load(text)?;
        let f = |name| module.function(name, 0);
        let blocks = (rows * shape.group()).div_ceil(64);
        let scores = u64::from(shape.kv_heads * blocks * 64) * u64::from(tiles) * 64 * 4;
        let splits = (gpu.multiprocessors * 2 / (blocks * shape.kv_heads)).clamp(1, tiles);
        let buffers = vec![
            gpu.alloc(scores as usize)?,
            gpu.upload(mask)?,
            gpu.zeros(rows as usize * (shape.heads * shape.head_size) as usize * 4)?,
        ];
        let args = DenseArgs {
            args: super::attend::Args::default(),
            scores: buffers[0].pointer(),
            mask: buffers[1].pointer(),
            sums: buffers[2].pointer(),
            rows,
            tiles,
            split_tiles: tiles.div_ceil(splits),
            unused: 0,
        };
        let steps = [f("scores")?, f("weights")?, f("values")?, f("finish")?];
        Ok(Self { steps, args, splits, blocks, _module: module, _buffers: buffers })
    }

    /// The four steps; the plan gives tiles only.
    pub fn launch(
        &self,
        gpu: &Gpu,
        kernel: &AttendKernel,
        plan: &LoadedPlan,
        q: &Buffer,
        kv: KvLayout,
        out: &Buffer,
    ) -> Result<()> {
        let mut args = self.args;
        args.args = kernel.args(plan, q, kv, out);
        let heads = kernel.shape.kv_heads;
        let numbers = args.rows * kernel.shape.heads * kernel.shape.head_size;
        let grids = [
            plain((args.tiles, self.blocks, heads), 128),
            plain((args.rows * kernel.shape.group(), heads, 1), 256),
            plain((self.splits, self.blocks, heads), 128),
            plain((numbers.div_ceil(512), 1, 1), 256),
        ];
        for (step, grid) in self.steps.iter().zip(grids) {
            // SAFETY: each step takes one `Dense`; its buffers live as long as this, the plan, q, out and the K/V.
            unsafe { gpu.launch(*step, grid, &mut [(&raw mut args).cast()])? };
        }
        Ok(())
    }
}
