//! A host tier in four bits a number (`kernels/int4.cu`), and what stands between it and arenas that attention reads.
//!
//! New K/V is packed on the card before attention reads it, and what the arena has of it is rounded to what was packed, so that
//! attention sees the same numbers whether a page stayed or was fetched. Packed pages come to a place of their own on the card
//! and are widened from there into the layer's arena.

use super::Target;
use crate::base::Result;
use crate::device::Shape;
use crate::device::cpu::int4;
use crate::device::cuda::attend::Number;
use crate::device::cuda::driver::{Begin, Buffer, Function, Gpu, Launch, Module};
use crate::device::cuda::ptx;
use crate::kv::PAGE_TOKENS;

/// Blocks that widen: with fewer the card takes longer over it than the link over the pages.
const UNPACK_BLOCKS: u32 = 256;

/// Bytes of a layer of a page.
pub fn page_bytes(shape: &Shape) -> usize {
    int4::bytes(2 * PAGE_TOKENS * shape.kv_heads * shape.head_size, shape.head_size)
}

/// Bytes that the card's tier needs at least: a layer of its host tier's `pages` pages, packed and widened.
pub fn least_bytes(pages: usize, shape: &Shape) -> u64 {
    super::least_bytes(pages, shape) + (pages * page_bytes(shape)) as u64
}

#[repr(C)]
struct PackArgs {
    kv: u64,
    records: u64,
    from_slots: u64,
    to_slots: u64,
    kv_heads: u32,
    head_size: u32,
    words: u32,
    rounds: u32,
}

#[repr(C)]
struct UnpackArgs {
    records: u64,
    kv: u64,
    pages: u64,
    count: u32,
    kv_heads: u32,
    head_size: u32,
    words: u32,
}

#[repr(C)]
struct RecordsArgs {
    from: u64,
    to: u64,
    from_slots: u64,
    to_slots: u64,
    kv_heads: u32,
    words: u32,
}

/// The kernels, for one shape of K/V.
pub struct Packing {
    pack: Function,
    unpack: Function,
    write: Function,
    kv_heads: u32,
    head_size: u32,
    /// Words of 4 bytes of a row's record.
    words: u32,
    _module: Module,
}

impl Packing {
    pub fn new(gpu: &Gpu, number: Number, kv_heads: usize, head_size: usize) -> Result<Self> {
        let module = gpu.load(ptx::int4(number))?;
        Ok(Self {
            pack: module.function("pack_int4", 0)?,
            unpack: module.function("unpack_int4", 0)?,
            write: module.function("write_records", 0)?,
            kv_heads: kv_heads as u32,
            head_size: head_size as u32,
            words: (int4::bytes(head_size, head_size) / 4) as u32,
            _module: module,
        })
    }

    /// Bytes of a layer of a page.
    pub fn page_bytes(&self) -> usize {
        PAGE_TOKENS * self.token_bytes()
    }

    /// Bytes of a layer of a token.
    pub fn token_bytes(&self) -> usize {
        (2 * self.kv_heads * self.words * 4) as usize
    }

    /// Packs `rows` tokens of a layer; `rounds`: and leaves there what their records keep.
    pub fn pack(&self, gpu: &Gpu, from: Target, to: Target, rows: u32, rounds: bool) -> Result<()> {
        let mut args = PackArgs {
            kv: from.kv,
            records: to.kv,
            from_slots: from.slots,
            to_slots: to.slots,
            kv_heads: self.kv_heads,
            head_size: self.head_size,
            words: self.words,
            rounds: u32::from(rounds),
        };
        let launch = Launch { grid: (rows, 1, 1), threads: 256, shared_bytes: 0, begin: Begin::After };
        // SAFETY: the kernel takes one `Pack`; callers pass memory that has the slots.
        unsafe { gpu.launch(self.pack, launch, &mut [(&raw mut args).cast()]) }
    }

    /// Widens pages whose numbers stand at `list`; they have the same ones in both memories.
    pub fn unpack(&self, gpu: &Gpu, records: u64, kv: u64, (list, count): (u64, usize)) -> Result<()> {
        let Self { kv_heads, head_size, words, .. } = *self;
        let mut args = UnpackArgs { records, kv, pages: list, count: count as u32, kv_heads, head_size, words };
        let launch = Launch { grid: (UNPACK_BLOCKS, 1, 1), threads: 256, shared_bytes: 0, begin: Begin::After };
        // SAFETY: the kernel takes one `Unpack`; callers pass memory that has the pages.
        unsafe { gpu.launch(self.unpack, launch, &mut [(&raw mut args).cast()]) }
    }

    /// Copies records of `rows` tokens from slots of one memory to slots of another.
    pub fn write(&self, gpu: &Gpu, from: Target, to: Target, rows: u32) -> Result<()> {
        let mut args = RecordsArgs {
            from: from.kv,
            to: to.kv,
            from_slots: from.slots,
            to_slots: to.slots,
            kv_heads: self.kv_heads,
            words: self.words,
        };
        let launch = Launch { grid: (rows, 1, 1), threads: 256, shared_bytes: 0, begin: Begin::After };
        // SAFETY: the kernel takes one `Records`; callers pass memory that has the slots.
        unsafe { gpu.launch(self.write, launch, &mut [(&raw mut args).cast()]) }
    }
}

/// What a tier of four bits has beside its arenas.
pub struct Int4 {
    pub packing: Packing,
    /// Packed pages of a layer, as they come.
    pub arrived: Buffer,
    /// Records of the step's tokens, by layers in turns.
    pub fresh: [Option<Buffer>; 2],
}
