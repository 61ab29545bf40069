//! What the CUDA attention kernels are told to do: the structures of `kernels/plan.cuh`, and the machine a plan is made for.
//! `attention::cuda_plan` makes them; nothing here decides anything.

/// K/V tokens of a tile.
pub const TILE: usize = 64;
/// Tokens of a tile with consecutive slots: what one bulk copy brings.
pub const GROUP: usize = 16;
/// Packed rows (queries × query heads of a K/V head) of the largest item.
pub const ITEM_ROWS: u32 = 128;
/// Which of the two kernels runs the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// `attend.cu`: two CTAs of four warps to a multiprocessor, row tiles of 16.
    Ampere,
    /// `attend_hopper.cu`: one CTA of two warpgroups, row tiles of 64.
    Hopper,
}

/// The card, and the heads that share a plan.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    pub kernel: Kernel,
    /// CTAs that are resident at once.
    pub resident: u32,
    pub kv_heads: u32,
    /// Query heads of a K/V head.
    pub group: u32,
    pub head_size: u32,
}

/// 64 tokens as the kernel reads them. Row ranges are of work rows (depth-first order).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tile {
    /// Slot of the first token of each group; the others' slots follow it.
    pub group: [u32; TILE / GROUP],
    /// Rows that see each token: first, and end in the upper half. 0: no token here.
    pub rows: [u32; TILE],
    /// Rows that see any of the tokens.
    pub some: [u16; 2],
    /// Rows that see all 64; empty where the tile is not full.
    pub all: [u16; 2],
    /// 1: the 64 tokens are neighbours in memory, or fill four neighbouring pages.
    pub whole: u32,
    pub unused: u32,
}

/// Rows against tiles, for one CTA and every K/V head.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    pub row: u32,
    pub rows: u32,
    pub tile: u32,
    pub tiles: u32,
    /// Partial of the first row, the others follow; `u32::MAX`: nothing else sees these rows, write them finished.
    pub partial: u32,
    /// 0, 1, 2, 3: up to 16, 32, 64, 128 packed rows.
    pub kind: u32,
    pub unused: [u32; 2],
}

/// What the plan moves, per layer, in tokens and rows of one K/V head.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moves {
    /// K/V tokens copied into shared memory, replicas counted.
    pub tokens: u64,
    /// K/V tokens in the union of all paths.
    pub unique: u64,
    /// Sum of the rows' path lengths.
    pub paths: u64,
    /// Partial rows written, and read again, each `group × (head size + 1)` float32.
    pub partials: u64,
    /// Query rows read (each `group × head size` numbers), over all items.
    pub query_rows: u64,
}

/// One step's attention on CUDA, the same for all layers and K/V heads.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CudaPlan {
    pub items: Vec<Item>,
    /// Items of CTA c: `cta_items[c]..cta_items[c + 1]`.
    pub cta_items: Vec<u32>,
    pub tiles: Vec<Tile>,
    /// For each work row, the batch row.
    pub batch_row: Vec<u32>,
    /// Rows that are merged, and their partials: `merge[merge_first[i]..merge_first[i + 1]]`, in path order.
    pub merge_row: Vec<u32>,
    pub merge_first: Vec<u32>,
    pub merge: Vec<u32>,
    pub moves: Moves,
}

impl CudaPlan {
    /// CTAs for each K/V head.
    pub fn ctas(&self) -> usize {
        self.cta_items.len() - 1
    }
}
