//! Memory of the card and pinned memory of the host, and the copies between them: checked against both lengths.

use super::{Gpu, fault, short};
use crate::base::{Error, Result};
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaContext, result};
use std::sync::Arc;

/// Memory of the card, freed on drop.
pub struct Buffer {
    pointer: CUdeviceptr,
    bytes: usize,
    context: Arc<CudaContext>,
}

impl Buffer {
    pub fn pointer(&self) -> CUdeviceptr {
        self.pointer
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // A failure here is of earlier work, which reports itself; there is nobody to tell.
        let _ = self.context.bind_to_thread();
        // SAFETY: allocated by `alloc`, freed once. The driver waits for work that uses it.
        let _ = unsafe { result::free_sync(self.pointer) };
    }
}

/// Page-locked host memory, freed on drop.
pub struct Pinned {
    at: *mut u8,
    bytes: usize,
    context: Arc<CudaContext>,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}

impl Pinned {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: allocated and filled by `pinned`.
        unsafe { std::slice::from_raw_parts(self.at, self.bytes) }
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        // SAFETY: allocated by `pinned`, freed once.
        let _ = unsafe { result::free_host(self.at.cast()) };
    }
}

impl Gpu {
    /// Free and total bytes of the card's memory.
    pub fn memory(&self) -> Result<(usize, usize)> {
        self.context.mem_get_info().map_err(|e| fault("asking for free memory", e))
    }

    /// Memory that is not initialised.
    pub fn alloc(&self, bytes: usize) -> Result<Buffer> {
        let bytes = bytes.max(16);
        self.bind()?;
        // SAFETY: a plain allocation; the buffer frees it once.
        let pointer = unsafe { result::malloc_sync(bytes) }.map_err(|e| short("taking", bytes, "--kv-budget", e))?;
        Ok(Buffer { pointer, bytes, context: self.context.clone() })
    }

    pub fn zeros(&self, bytes: usize) -> Result<Buffer> {
        let buffer = self.alloc(bytes)?;
        self.set(&buffer, 0)?;
        Ok(buffer)
    }

    /// Fills a buffer with one byte.
    pub fn set(&self, buffer: &Buffer, byte: u8) -> Result<()> {
        // SAFETY: the range is the buffer's.
        unsafe { result::memset_d8_async(buffer.pointer, byte, buffer.bytes, self.stream.cu_stream()) }
            .map_err(|e| fault("filling memory", e))
    }

    /// A copy of the numbers on the card.
    pub fn upload<T: Copy>(&self, numbers: &[T]) -> Result<Buffer> {
        let buffer = self.alloc(std::mem::size_of_val(numbers))?;
        if !numbers.is_empty() {
            // On our own stream: the driver's synchronous copy may return before the bytes are there for another stream.
            // SAFETY: the buffer has at least as many bytes, and `numbers` stays until the wait below.
            unsafe { result::memcpy_htod_async(buffer.pointer, numbers, self.stream.cu_stream()) }
                .map_err(|e| fault("an upload", e))?;
            self.wait()?;
        }
        Ok(buffer)
    }

    /// Copies numbers to a place in device memory and waits.
    ///
    /// # Safety
    /// `to` and the bytes behind it belong to a live buffer.
    pub unsafe fn upload_to<T: Copy>(&self, to: CUdeviceptr, numbers: &[T]) -> Result<()> {
        if numbers.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's; `numbers` stays until the wait below.
        unsafe { result::memcpy_htod_async(to, numbers, self.stream.cu_stream()) }
            .map_err(|e| fault("an upload", e))?;
        self.wait()
    }

    /// Host memory that the card copies from and to without the processor's help.
    pub fn pinned(&self, bytes: usize) -> Result<Pinned> {
        self.bind()?;
        let bytes = bytes.max(16);
        // SAFETY: a plain allocation, filled before it is read; the owner frees it once.
        unsafe {
            let at = result::malloc_host(bytes, 0).map_err(|e| fault(&format!("pinning {bytes} bytes"), e))?;
            std::ptr::write_bytes(at.cast::<u8>(), 0, bytes);
            Ok(Pinned { at: at.cast(), bytes, context: self.context.clone() })
        }
    }

    /// Sends the first bytes of pinned memory into a buffer; returns at once. The pinned memory must stay as it is until
    /// the stream has passed here.
    pub fn send(&self, to: &Buffer, from: &Pinned, bytes: usize) -> Result<()> {
        assert!(bytes <= to.bytes && bytes <= from.bytes, "a copy inside both memories");
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: checked above.
        unsafe { result::memcpy_htod_async(to.pointer, &from.as_slice()[..bytes], self.stream.cu_stream()) }
            .map_err(|e| fault("an upload", e))
    }

    /// Fetches bytes of a buffer from `first` on into pinned memory, and waits.
    pub fn fetch(&self, to: &mut Pinned, from: &Buffer, first: usize, bytes: usize) -> Result<()> {
        assert!(bytes <= to.bytes && first + bytes <= from.bytes, "a copy inside both memories");
        if bytes > 0 {
            let (to, stream) = (&mut to.as_mut_slice()[..bytes], self.stream.cu_stream());
            // SAFETY: checked above.
            unsafe { result::memcpy_dtoh_async(to, from.pointer + first as u64, stream) }
                .map_err(|e| fault("a download", e))?;
        }
        self.wait()
    }

    /// A buffer of at least so many bytes in `room`; grows, never shrinks.
    pub fn grow<'a>(&self, room: &'a mut Option<Buffer>, bytes: usize) -> Result<&'a Buffer> {
        if room.as_ref().is_none_or(|b| b.bytes() < bytes) {
            // The old one goes first: both may not fit.
            *room = None;
            *room = Some(self.alloc(bytes)?);
        }
        room.as_ref().ok_or_else(|| Error::fault("memory on the GPU that was just taken is not there"))
    }

    /// Pinned memory of at least so many bytes in `room`; grows, never shrinks.
    pub fn grow_pinned<'a>(&self, room: &'a mut Option<Pinned>, bytes: usize) -> Result<&'a mut Pinned> {
        if room.as_ref().is_none_or(|p| p.bytes() < bytes) {
            *room = None;
            *room = Some(self.pinned(bytes)?);
        }
        room.as_mut().ok_or_else(|| Error::fault("pinned memory that was just taken is not there"))
    }

    /// Waits for the stream and copies the buffer's first numbers.
    pub fn download<T: Copy + Default>(&self, buffer: &Buffer, len: usize) -> Result<Vec<T>> {
        let mut numbers = vec![T::default(); len];
        assert!(std::mem::size_of_val(numbers.as_slice()) <= buffer.bytes, "a download inside the buffer");
        self.wait()?;
        if len > 0 {
            // SAFETY: checked above; any bytes are numbers of the types used here.
            unsafe { result::memcpy_dtoh_sync(&mut numbers, buffer.pointer) }.map_err(|e| fault("a download", e))?;
        }
        Ok(numbers)
    }

    /// Copies between buffers, on the stream.
    pub fn copy(&self, to: CUdeviceptr, from: CUdeviceptr, bytes: usize) -> Result<()> {
        // SAFETY: callers pass ranges of live buffers.
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.stream.cu_stream()) }.map_err(|e| fault("a copy", e))
    }
}
