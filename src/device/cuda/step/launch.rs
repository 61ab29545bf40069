//! Launches of `kernels/step.cu`: what stands between the products of a step.

use crate::base::Result;
use crate::device::cuda::attend::Number;
use crate::device::cuda::driver::{Begin, Buffer, Function, Gpu, Launch, Module};
use crate::device::cuda::ptx;
use std::ffi::c_void;

/// Kernels of `step.cu`.
pub(super) struct Kernels {
    embed: Function,
    norm: Function,
    rotate: Function,
    gate: Function,
    _module: Module,
}

#[repr(C)]
pub(super) struct NormArgs {
    pub x: u64,
    pub part: u64,
    pub shift: u64,
    pub weight: u64,
    pub rows: u64,
    pub out: u64,
    pub hidden: u32,
    pub n: u32,
    pub splits: u32,
    pub eps: f32,
}

#[repr(C)]
pub(super) struct RotateArgs {
    pub part: u64,
    pub frequencies: u64,
    pub positions: u64,
    pub slots: u64,
    pub q: u64,
    pub kv: u64,
    pub n: u32,
    pub splits: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_size: u32,
}

impl Kernels {
    /// For a model's number type and hidden size.
    pub(super) fn load(gpu: &Gpu, number: Number, hidden: usize) -> Result<Self> {
        let module = gpu.load(ptx::step(number, gpu.overlaps()))?;
        Ok(Self {
            embed: module.function("embed", 0)?,
            norm: module.function("residual_norm", hidden as u32 * 4)?,
            rotate: module.function("rotate", 0)?,
            gate: module.function("gate", 0)?,
            _module: module,
        })
    }

    /// `x[n][hidden]`: the table's rows of `n` tokens, which are the vocabulary's.
    pub(super) fn embed(
        &self,
        gpu: &Gpu,
        table: &Buffer,
        tokens: u64,
        x: &Buffer,
        [n, hidden]: [u32; 2],
    ) -> Result<()> {
        let (mut table, mut tokens, mut x, mut hidden) = (table.pointer(), tokens, x.pointer(), hidden);
        let mut parameters: [*mut c_void; 4] =
            [(&raw mut table).cast(), (&raw mut tokens).cast(), (&raw mut x).cast(), (&raw mut hidden).cast()];
        let launch = Launch { grid: (n, 1, 1), threads: 256, shared_bytes: 0, begin: Begin::After };
        // SAFETY: the kernel's four parameters.
        unsafe { gpu.launch(self.embed, launch, &mut parameters) }
    }

    /// Norms of `blocks` rows: those that `args.rows` numbers, or the first.
    pub(super) fn norm(&self, gpu: &Gpu, mut args: NormArgs, blocks: u32, begin: Begin) -> Result<()> {
        let launch = Launch {
            grid: (blocks, 1, 1),
            threads: (args.hidden / 4).next_multiple_of(32).clamp(32, 512),
            shared_bytes: args.hidden * 4,
            begin,
        };
        // SAFETY: the kernel takes one `Norm`; its buffers have n rows.
        unsafe { gpu.launch(self.norm, launch, &mut [(&raw mut args).cast()]) }
    }

    /// Turns queries and keys, and writes keys and values at slots that were checked against the pages.
    pub(super) fn rotate(&self, gpu: &Gpu, mut args: RotateArgs, begin: Begin) -> Result<()> {
        let pairs = (args.heads + 2 * args.kv_heads) * args.head_size / 2;
        let launch = Launch { grid: (args.n, pairs.div_ceil(256), 1), threads: 256, shared_bytes: 0, begin };
        // SAFETY: the kernel takes one `Rotate`; its buffers have n rows.
        unsafe { gpu.launch(self.rotate, launch, &mut [(&raw mut args).cast()]) }
    }

    /// Gates `y[n][2 × features]` into `out[n][features]`.
    pub(super) fn gate(
        &self,
        gpu: &Gpu,
        y: &Buffer,
        out: &Buffer,
        [n, features]: [u32; 2],
        begin: Begin,
    ) -> Result<()> {
        let (mut y, mut out, mut features, mut all) =
            (y.pointer(), out.pointer(), features, u64::from(features) * u64::from(n));
        let mut parameters: [*mut c_void; 4] =
            [(&raw mut y).cast(), (&raw mut out).cast(), (&raw mut features).cast(), (&raw mut all).cast()];
        let launch = Launch { grid: (all.div_ceil(256) as u32, 1, 1), threads: 256, shared_bytes: 0, begin };
        // SAFETY: the kernel's four parameters, of n rows each.
        unsafe { gpu.launch(self.gate, launch, &mut parameters) }
    }
}
