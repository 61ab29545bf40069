//! The CUDA driver and one card: found at run time, asked for its version before anything that could panic without it.
//!
//! Refuses drivers older than 550 (CUDA 12.4): the embedded PTX is of that version.

use crate::base::{Error, Result};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUdeviceptr, CUfunction, CUmodule};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream};
use memmap2::MmapMut;
use std::cell::Cell;
use std::ffi::{CString, c_void};
use std::sync::Arc;

mod graph;

pub use graph::{Graph, Node};

/// The oldest CUDA version of a driver that takes our PTX, as the driver counts: 1000 × major + 10 × minor.
const LEAST_CUDA: i32 = 12_040;

/// Whether a driver is installed, whatever its version.
pub fn is_present() -> bool {
    // SAFETY: only looks whether the library can be opened.
    unsafe { sys::is_culib_present() }
}

/// The CUDA version of the driver that is here, new enough; the error says what is missing and what to do.
pub fn version() -> Result<i32> {
    if !is_present() {
        return Err(Error::fault("no CUDA driver is installed (libcuda.so.1 is not found): use --device cpu"));
    }
    let mut version = 0;
    // SAFETY: writes one int; every driver has this function, and it needs no initialisation.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(|e| fault("the driver's version", e))?;
    if version < LEAST_CUDA {
        let (major, minor) = (version / 1000, version % 1000 / 10);
        return Err(Error::fault(format!(
            "the CUDA driver is too old: it knows CUDA {major}.{minor}, these kernels need 12.4: install driver 550 or newer, or use --device cpu"
        )));
    }
    Ok(version)
}

/// Cards that the driver shows, once [`version`] is content.
pub fn count() -> Result<usize> {
    version()?;
    CudaContext::device_count().map(|n| n.max(0) as usize).map_err(|e| fault("counting the cards", e))
}

pub fn fault(what: &str, e: DriverError) -> Error {
    Error::fault(format!("{what} failed on the GPU: {e}"))
}

/// One card with one stream; [`beside`](Gpu::beside) gives it another.
pub struct Gpu {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    pub ordinal: usize,
    pub name: String,
    pub multiprocessors: u32,
    /// (9, 0) is Hopper.
    pub compute: (i32, i32),
    /// Bytes of shared memory a block may ask for.
    pub shared_bytes: u32,
    /// Launches are captured, not run.
    captures: Cell<bool>,
    /// What was captured last is a mark.
    marked: Cell<bool>,
}

impl Gpu {
    pub fn open(ordinal: usize) -> Result<Self> {
        version()?;
        let open = || -> Result<Self, DriverError> {
            let context = CudaContext::new(ordinal)?;
            // SAFETY: what several streams share is ordered by events of our own (`set_mark`, `wait_for`).
            unsafe { context.disable_event_tracking() };
            let attribute = |a| context.attribute(a).map(|v| v.max(0) as u32);
            Ok(Self {
                stream: context.new_stream()?,
                ordinal,
                name: context.name()?,
                multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
                compute: context.compute_capability()?,
                shared_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
                captures: Cell::new(false),
                marked: Cell::new(false),
                context,
            })
        };
        let gpu = open().map_err(|e| fault(&format!("opening card {ordinal}"), e))?;
        if gpu.compute < (8, 0) {
            let (major, minor) = gpu.compute;
            return Err(Error::fault(format!(
                "{} has compute capability {major}.{minor}, these kernels need 8.0: use --device cpu",
                gpu.name
            )));
        }
        Ok(gpu)
    }

    /// The same card with a stream of its own, whose work runs beside that of the others. Its blocks begin before theirs where
    /// a multiprocessor has room: few blocks that feed the link must not wait behind a large product.
    pub fn beside(&self) -> Result<Self> {
        self.bind()?;
        let urgent = result::stream::get_priority_range().map(|(_, greatest)| greatest);
        let stream = urgent.and_then(|priority| self.context.new_stream_with_priority(priority));
        let stream = stream.map_err(|e| fault("a stream", e))?;
        let (captures, marked) = (Cell::new(false), Cell::new(false));
        Ok(Self { stream, context: self.context.clone(), name: self.name.clone(), captures, marked, ..*self })
    }

    /// Has the stream go on only once a mark of another has been passed.
    pub fn wait_for(&self, mark: &CudaEvent) -> Result<()> {
        self.stream.wait(mark).map_err(|e| fault("an event", e))
    }

    /// Free and total bytes of the card's memory.
    pub fn memory(&self) -> Result<(usize, usize)> {
        self.context.mem_get_info().map_err(|e| fault("asking for free memory", e))
    }

    /// Memory that is not initialised.
    pub fn alloc(&self, bytes: usize) -> Result<Buffer> {
        let bytes = bytes.max(16);
        self.bind()?;
        // SAFETY: a plain allocation; the buffer frees it once.
        let pointer = unsafe { result::malloc_sync(bytes) }.map_err(|e| fault(&format!("taking {bytes} bytes"), e))?;
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

    /// A mark that can be set again and again.
    pub fn new_mark(&self) -> Result<CudaEvent> {
        self.context.new_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT)).map_err(|e| fault("an event", e))
    }

    /// A mark that orders streams and tells no time, which costs the stream less.
    pub fn new_order(&self) -> Result<CudaEvent> {
        self.context.new_event(Some(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)).map_err(|e| fault("an event", e))
    }

    /// Sets a mark at the stream's present end; one that is captured is set by every replay.
    pub fn set_mark(&self, mark: &CudaEvent) -> Result<()> {
        if !self.captures.get() {
            return mark.record(&self.stream).map_err(|e| fault("an event", e));
        }
        self.marked.set(true);
        let outside = sys::CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL as u32;
        // SAFETY: an event and a stream of this context, both alive.
        unsafe { sys::cuEventRecordWithFlags(mark.cu_event(), self.stream.cu_stream(), outside) }
            .result()
            .map_err(|e| fault("an event", e))
    }

    /// The stream, for libraries.
    pub(super) fn raw_stream(&self) -> sys::CUstream {
        self.stream.cu_stream()
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

    pub fn wait(&self) -> Result<()> {
        self.stream.synchronize().map_err(|e| fault("the work before this", e))
    }

    pub fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().map_err(|e| fault("the context", e))
    }

    /// Loads PTX; the driver assembles it for the card, once, and keeps the result in its own cache.
    pub fn load(&self, ptx: &str) -> Result<Module> {
        self.bind()?;
        let image = CString::new(ptx).map_err(|_| Error::fault("a kernel's PTX holds a zero byte"))?;
        // SAFETY: the image is text that ends in a zero.
        let module =
            unsafe { result::module::load_data(image.as_ptr().cast()) }.map_err(|e| fault("loading a kernel", e))?;
        Ok(Module { module, context: self.context.clone() })
    }

    /// Whether launches of this card can begin early.
    pub fn overlaps(&self) -> bool {
        self.compute >= (9, 0)
    }

    /// Launches a kernel.
    ///
    /// # Safety
    /// `parameters` point to the kernel's parameters, in order and of its types, and the buffers they name live until
    /// the work is done.
    pub unsafe fn launch(&self, f: Function, shape: Launch, parameters: &mut [*mut c_void]) -> Result<()> {
        let (grid, block) = (shape.grid, (shape.threads, 1, 1));
        let stream = self.stream.cu_stream();
        // In a graph only a launch whose predecessor is a launch can begin early.
        let begin = if self.marked.replace(false) && shape.begin == Begin::Early { Begin::After } else { shape.begin };
        // SAFETY: the caller's.
        unsafe {
            match begin {
                Begin::After => result::launch_kernel(f.0, grid, block, shape.shared_bytes, stream, parameters),
                Begin::Together => {
                    result::launch_cooperative_kernel(f.0, grid, block, shape.shared_bytes, stream, parameters)
                }
                Begin::Early => {
                    let mut early = sys::CUlaunchAttribute {
                        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                        pad: [0; 4],
                        value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
                    };
                    let config = sys::CUlaunchConfig {
                        gridDimX: grid.0,
                        gridDimY: grid.1,
                        gridDimZ: grid.2,
                        blockDimX: shape.threads,
                        blockDimY: 1,
                        blockDimZ: 1,
                        sharedMemBytes: shape.shared_bytes,
                        hStream: stream,
                        attrs: &raw mut early,
                        numAttrs: 1,
                    };
                    sys::cuLaunchKernelEx(&raw const config, f.0, parameters.as_mut_ptr(), std::ptr::null_mut())
                        .result()
                }
            }
        }
        .map_err(|e| fault("a launch", e))
    }

    /// A mark in the stream, for [`Gpu::microseconds`].
    pub fn mark(&self) -> Result<CudaEvent> {
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
        self.stream.record_event(Some(flags)).map_err(|e| fault("an event", e))
    }

    /// Time between two marks, once both are passed; negative where `to` came first.
    pub fn microseconds(&self, from: &CudaEvent, to: &CudaEvent) -> Result<f64> {
        // SAFETY: two events of this context, both alive. Marks that are not passed yet are waited for below.
        let passed = unsafe { result::event::elapsed(from.cu_event(), to.cu_event()) };
        passed.or_else(|_| from.elapsed_ms(to)).map(|ms| f64::from(ms) * 1000.0).map_err(|e| fault("an event", e))
    }
}

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
        let what = format!("pinning {bytes} bytes");
        gpu.bind()?;
        let mut memory = MmapMut::map_anon(bytes.max(16)).map_err(|e| Error::limit(format!("{what}: {e}")))?;
        #[cfg(target_os = "linux")]
        // Without large pages it is only slower.
        let _ = memory.advise(memmap2::Advice::HugePage);
        #[cfg(target_os = "linux")]
        gpu.prefer_near(&mut memory);
        let (at, mut pointer) = (memory.as_mut_ptr().cast::<c_void>(), 0);
        // SAFETY: the range is the mapping's, which lives until `drop` has unregistered it.
        unsafe {
            let mapped = sys::CU_MEMHOSTREGISTER_DEVICEMAP;
            sys::cuMemHostRegister_v2(at, memory.len(), mapped).result().map_err(|e| fault(&what, e))?;
            // From here on a failure unregisters it.
            let mut this = Self { memory, pointer, context: gpu.context.clone() };
            sys::cuMemHostGetDevicePointer_v2(&mut pointer, at, 0).result().map_err(|e| fault(&what, e))?;
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
        assert!(bytes <= from.bytes, "a copy inside the buffer");
        let to = &mut self.memory[first..first + bytes];
        // SAFETY: both ranges were checked.
        unsafe { result::memcpy_dtoh_async(to, from.pointer, gpu.stream.cu_stream()) }
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

/// Loaded kernels.
pub struct Module {
    module: CUmodule,
    context: Arc<CudaContext>,
}

// SAFETY: a module handle may be used from any thread that has the context bound.
unsafe impl Send for Module {}

/// A kernel; lives as long as its module.
#[derive(Clone, Copy)]
pub struct Function(CUfunction);

// SAFETY: as the module.
unsafe impl Send for Function {}

impl Module {
    /// A kernel that may ask for `shared_bytes` of shared memory.
    pub fn function(&self, name: &str, shared_bytes: u32) -> Result<Function> {
        let named = CString::new(name).map_err(|_| Error::fault("a kernel's name holds a zero byte"))?;
        let what = format!("kernel {name}");
        // SAFETY: the module is loaded.
        let f = unsafe { result::module::get_function(self.module, named) }.map_err(|e| fault(&what, e))?;
        if shared_bytes > 48 << 10 {
            let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is of a loaded module.
            unsafe { result::function::set_function_attribute(f, most, shared_bytes as i32) }
                .map_err(|e| fault(&what, e))?;
        }
        Ok(Function(f))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        // SAFETY: loaded by `load`, unloaded once.
        let _ = unsafe { result::module::unload(self.module) };
    }
}

/// The shape of a launch.
#[derive(Debug, Clone, Copy)]
pub struct Launch {
    pub grid: (u32, u32, u32),
    pub threads: u32,
    pub shared_bytes: u32,
    pub begin: Begin,
}

/// When a launch's blocks may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// After all that was launched before.
    After,
    /// Likewise, and all blocks are resident at once, or the launch is refused: for kernels that meet at a barrier.
    Together,
    /// While the launch before ends, where the card [overlaps](Gpu::overlaps): the kernel itself waits for what it reads
    /// (`after_previous` of `kernels/tensor.cuh`), in every block.
    Early,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_opening_is_an_error_and_no_panic() {
        if is_present() {
            println!("skipped without_a_driver_opening_is_an_error_and_no_panic: a CUDA driver is here");
            return;
        }
        let Err(error) = Gpu::open(0) else { panic!("a card without a driver") };
        assert!(error.message().contains("--device cpu"), "{error}");
    }
}
