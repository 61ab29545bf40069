//! What a step tells the card, in one copy: arrays are packed into pinned memory and sent together.
//!
//! Two places of pinned memory take turns, so that the host fills one while the card still reads the other; who uses this
//! waits for the step before last before it fills again. On the card there is one place where all that reads it is on one
//! stream with the copies: then kernels find a step's numbers where the last step's were, and graphs can be replayed.

use super::driver::{Buffer, Gpu, Pinned};
use crate::base::Result;

/// Arrays begin at multiples of this, so that kernels may read them in 16-byte pieces.
const ALIGN: usize = 256;
/// Room of an array that may grow.
const LEAST_ROOM: usize = 1024;

#[derive(Default)]
pub struct Staging {
    bytes: Vec<u8>,
    pinned: [Option<Pinned>; 2],
    there: [Option<Buffer>; 2],
    turn: usize,
}

impl Staging {
    /// Begins a new step.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.turn ^= 1;
    }

    /// Adds an array of plain numbers; its offset.
    pub fn push<T: Copy>(&mut self, numbers: &[T]) -> u64 {
        let at = self.bytes.len().next_multiple_of(ALIGN);
        self.bytes.resize(at, 0);
        // SAFETY: the types staged are `repr(C)` numbers without padding, so their bytes may be read.
        let bytes =
            unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast::<u8>(), std::mem::size_of_val(numbers)) };
        self.bytes.extend_from_slice(bytes);
        at as u64
    }

    /// Adds an array whose length changes from step to step, with room to grow: what follows it stays where it is.
    pub fn push_roomy<T: Copy>(&mut self, numbers: &[T]) -> u64 {
        let at = self.push(numbers);
        let room = size_of_val(numbers).next_power_of_two().max(LEAST_ROOM);
        self.bytes.resize(at as usize + room, 0);
        at
    }

    /// Adds zeros.
    pub fn push_zeros(&mut self, bytes: usize) -> u64 {
        let at = self.bytes.len().next_multiple_of(ALIGN);
        self.bytes.resize(at + bytes, 0);
        at as u64
    }

    /// Sends all; the address that offsets count from. `apart`: other streams may still read what was sent last.
    pub fn send(&mut self, gpu: &Gpu, apart: bool) -> Result<u64> {
        let len = self.bytes.len();
        if len == 0 {
            return Ok(0);
        }
        let room = (len * 3 / 2).next_multiple_of(1 << 16);
        let least = |bytes: usize| if bytes < len { room } else { bytes };
        let pinned = &mut self.pinned[self.turn];
        let bytes = least(pinned.as_ref().map_or(0, Pinned::bytes));
        let pinned = gpu.grow_pinned(pinned, bytes)?;
        let there = &mut self.there[if apart { self.turn } else { 0 }];
        let bytes = least(there.as_ref().map_or(0, Buffer::bytes));
        let there = gpu.grow(there, bytes)?;
        pinned.as_mut_slice()[..len].copy_from_slice(&self.bytes);
        gpu.send(there, pinned, len)?;
        Ok(there.pointer())
    }
}
