//! What a step tells the card, in one copy: arrays are packed into pinned memory and sent together.
//!
//! Two places take turns, so that the host fills one while the card still reads the other; who uses this waits for the
//! step before last before it fills again.

use super::driver::{Buffer, Gpu, Pinned};
use crate::base::Result;

/// Arrays begin at multiples of this, so that kernels may read them in 16-byte pieces.
const ALIGN: usize = 256;

#[derive(Default)]
pub struct Staging {
    bytes: Vec<u8>,
    places: [Option<(Pinned, Buffer)>; 2],
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

    /// Adds zeros.
    pub fn push_zeros(&mut self, bytes: usize) -> u64 {
        let at = self.bytes.len().next_multiple_of(ALIGN);
        self.bytes.resize(at + bytes, 0);
        at as u64
    }

    /// Sends all; the address that offsets count from.
    pub fn send(&mut self, gpu: &Gpu) -> Result<u64> {
        let len = self.bytes.len();
        let place = &mut self.places[self.turn];
        if place.as_ref().is_none_or(|(pinned, _)| pinned.bytes() < len) {
            let room = (len * 3 / 2).next_multiple_of(1 << 16);
            *place = Some((gpu.pinned(room)?, gpu.alloc(room)?));
        }
        match place {
            Some((pinned, buffer)) => {
                pinned.as_mut_slice()[..len].copy_from_slice(&self.bytes);
                gpu.send(buffer, pinned, len)?;
                Ok(buffer.pointer())
            }
            None => Ok(0),
        }
    }
}
