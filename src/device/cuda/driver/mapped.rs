//! Host memory that kernels read and write in place: the host tier of K/V, from the card's own memory node where there are several.

use super::{Buffer, Gpu, fault, short};
use crate::base::size::Human;
use crate::base::{Error, Result};
use cudarc::driver::sys::{self, CUdeviceptr};
use cudarc::driver::{CudaContext, result};
use memmap2::MmapMut;
use std::ffi::c_void;
use std::sync::Arc;

#[cfg(target_os = "linux")]
impl Gpu {
    /// The memory node that the card hangs on, where the system has several and tells.
    fn node(&self) -> Option<u32> {
        let mut text = [0 as std::ffi::c_char; 16];
        let device = result::device::get(i32::try_from(self.ordinal).ok()?).ok()?;
        // SAFETY: writes at most so many characters, and a zero after them.
        unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as i32, device) }.result().ok()?;
        let bus: String = text.iter().map(|&c| c as u8 as char).take_while(|&c| c != '\0').collect();
        let path = format!("/sys/bus/pci/devices/{}/numa_node", bus.to_lowercase());
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    }

    /// Has memory that nothing has touched yet come from the card's own node: copies from the other side of a machine with two
    /// processors are slower. Where the system refuses it is taken from anywhere.
    fn prefer_near(&self, memory: &mut MmapMut) {
        const PREFERRED: libc::c_int = 1;
        let Some(node) = self.node().filter(|&node| node < 64) else { return };
        let nodes = 1u64 << node;
        // SAFETY: the range is the mapping's; the call reads one word of nodes and changes no content.
        unsafe {
            let (at, bytes) = (memory.as_mut_ptr(), memory.len());
            let _ = libc::syscall(libc::SYS_mbind, at, bytes, PREFERRED, &raw const nodes, 64 + 1, 0);
        }
    }
}

/// Page-locked host memory that kernels read and write in place, zeros at first. Taken in large pages where the system has
/// them: pinning 4 GiB that way takes 0.3 s in place of 2.3.
pub struct Mapped {
    memory: MmapMut,
    /// Where kernels find it.
    pointer: CUdeviceptr,
    context: Arc<CudaContext>,
}

impl Mapped {
    pub fn new(gpu: &Gpu, bytes: usize) -> Result<Self> {
        gpu.bind()?;
        let mut memory = MmapMut::map_anon(bytes.max(16)).map_err(|e| {
            Error::limit(format!("a host tier of {} could not be taken: {e}: lower --ram-budget", Human(bytes as u64)))
        })?;
        #[cfg(target_os = "linux")]
        // Without large pages it is only slower.
        let _ = memory.advise(memmap2::Advice::HugePage);
        #[cfg(target_os = "linux")]
        gpu.prefer_near(&mut memory);
        let (at, mut pointer) = (memory.as_mut_ptr().cast::<c_void>(), 0);
        // SAFETY: the range is the mapping's, which lives until `drop` has unregistered it.
        unsafe {
            let mapped = sys::CU_MEMHOSTREGISTER_DEVICEMAP;
            sys::cuMemHostRegister_v2(at, memory.len(), mapped)
                .result()
                .map_err(|e| short("pinning", bytes, "--ram-budget", e))?;
            // From here on a failure unregisters it.
            let mut this = Self { memory, pointer, context: gpu.context.clone() };
            sys::cuMemHostGetDevicePointer_v2(&mut pointer, at, 0)
                .result()
                .map_err(|e| fault("finding pinned memory", e))?;
            this.pointer = pointer;
            Ok(this)
        }
    }

    pub fn pointer(&self) -> CUdeviceptr {
        self.pointer
    }

    /// Copies a range to device memory by the card's copy engine; returns at once.
    ///
    /// # Safety
    /// `to` has room for it, and what writes the range is ordered before this by the stream or by events.
    pub unsafe fn send(&self, gpu: &Gpu, first: usize, to: CUdeviceptr, bytes: usize) -> Result<()> {
        assert!(first + bytes <= self.memory.len(), "a copy inside the memory");
        // SAFETY: checked above, and the caller's.
        unsafe {
            let from = self.memory.as_ptr().add(first).cast::<c_void>();
            sys::cuMemcpyHtoDAsync_v2(to, from, bytes, gpu.stream.cu_stream()).result()
        }
        .map_err(|e| fault("an upload", e))
    }

    /// Copies a range from device memory and waits.
    pub fn fetch(&mut self, gpu: &Gpu, first: usize, from: &Buffer, bytes: usize) -> Result<()> {
        assert!(bytes <= from.bytes(), "a copy inside the buffer");
        let to = &mut self.memory[first..first + bytes];
        // SAFETY: both ranges were checked.
        unsafe { result::memcpy_dtoh_async(to, from.pointer(), gpu.stream.cu_stream()) }
            .map_err(|e| fault("a download", e))?;
        gpu.wait()
    }

    /// What it holds, once the work that writes it is done: callers wait for that.
    pub fn bytes(&self) -> &[u8] {
        &self.memory
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        // SAFETY: registered by `new`, once; work that uses it is waited for.
        let _ = unsafe { sys::cuMemHostUnregister(self.memory.as_mut_ptr().cast()) };
    }
}
