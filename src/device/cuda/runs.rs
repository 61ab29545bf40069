//! Runs of a row's path, as the kernels read them that look at single tokens (`kernels/select.cu`, `kernels/heavy.cu`).

use crate::device::tiers::Run;

/// `Run` of the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RunArgs {
    pub row: u32,
    pub start: u32,
    pub len: u32,
    pub page: u32,
}

impl RunArgs {
    pub fn of(row: usize, run: &Run) -> Self {
        Self { row: row as u32, start: run.start, len: run.len, page: run.page }
    }
}
