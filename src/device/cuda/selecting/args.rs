//! The parameter blocks of attention over selected tokens, as the kernels have them: `Select` and `Put` of `kernels/select.cu`;
//! `Gather`, `Attend` and `Sample` of `picked.cu`; `Keep` and `BringBack` of `keep.cu`; and `Kept`, which they share.

/// `Select` of the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SelectArgs {
    pub q: u64,
    pub basis: u64,
    pub codes: u64,
    pub scales: u64,
    pub projected: u64,
    pub runs: u64,
    pub slot_of: u64,
    pub scores: u64,
    pub tops: u64,
    pub within: u64,
    pub keys: u64,
    pub batch_row: u64,
    pub positions: u64,
    pub caps: u64,
    pub lists: u64,
    pub counts: u64,
    pub bits: u64,
    pub told: u64,
    pub alpha: f32,
    pub scale: f32,
    pub rows: u32,
    pub run_count: u32,
    pub group: u32,
    pub kv_heads: u32,
    pub head_size: u32,
    pub columns: u32,
    pub pairs: u32,
    pub pages: u32,
    pub stride: u32,
    pub list_stride: u32,
    pub all: u32,
    pub clears: u32,
}

/// `Kept` of the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KeptArgs {
    pub state: u64,
    pub holders: u64,
    pub stamps: u64,
    pub kv_heads: u32,
    pub pages: u32,
    pub groups: u32,
    pub frames: u32,
    pub eviction: u32,
}

/// `Keep` of the kernels.
#[repr(C)]
pub struct KeepArgs {
    pub bits: u64,
    pub starts: u64,
    pub kept: KeptArgs,
    pub total: u64,
    pub other: u64,
    pub brought: u64,
    pub chunks: u64,
    pub moved: u64,
    pub told: u64,
    pub first: u32,
    pub stage: u32,
    pub capacity: u32,
    pub turned: u32,
    pub own: u32,
    pub tiles: u32,
    pub step: u32,
}

#[repr(C)]
pub struct BringBackArgs {
    pub kept: KeptArgs,
    pub list: u64,
    pub host: u64,
    pub pool: u64,
    pub moved: u64,
    pub told: u64,
    pub layer_pieces: u64,
    pub listed: u32,
    pub layer_sets: u32,
    pub pieces: u32,
    pub step: u32,
}

#[repr(C)]
pub struct PutArgs {
    pub kv: u64,
    pub from_slots: u64,
    pub to_slots: u64,
    pub basis: u64,
    pub centre: u64,
    pub codes: u64,
    pub scales: u64,
    pub kv_heads: u32,
    pub head_size: u32,
    pub columns: u32,
    pub pairs: u32,
    pub kept: KeptArgs,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct GatherArgs {
    pub host: u64,
    pub pool: u64,
    pub total: u64,
    pub brought: u64,
    pub chunks: u64,
    pub told: u64,
    pub capacity: u32,
    pub kv_heads: u32,
    pub pieces: u32,
    pub own: u32,
    pub stage: u32,
    pub turned: u32,
    pub chunk_count: u32,
    pub late: u32,
}

#[repr(C)]
pub struct AttendArgs {
    pub q: u64,
    pub out: u64,
    pub batch_row: u64,
    pub lists: u64,
    pub counts: u64,
    pub bits: u64,
    pub starts: u64,
    pub total: u64,
    pub pool: u64,
    pub layer: u64,
    pub own: u64,
    pub own_slots: u64,
    pub told: u64,
    pub part: u64,
    pub sums: u64,
    pub kept: KeptArgs,
    pub first: u32,
    pub stage: u32,
    pub turned: u32,
    pub group: u32,
    pub kv_heads: u32,
    pub head_size: u32,
    pub pages: u32,
    pub list_stride: u32,
    pub capacity: u32,
    pub in_parts: u32,
    pub parts: u32,
    pub scale_log2: f32,
}

/// `Sample` of the kernels.
#[repr(C)]
pub struct SampleArgs {
    pub q: u64,
    pub batch_row: u64,
    pub runs: u64,
    pub layer: u64,
    pub own: u64,
    pub own_slots: u64,
    pub sums: u64,
    pub part: u64,
    pub told: u64,
    pub row: u32,
    pub head: u32,
    pub position: u32,
    pub run_count: u32,
    pub group: u32,
    pub kv_heads: u32,
    pub head_size: u32,
    pub blocks: u32,
    pub scale_log2: f32,
}
