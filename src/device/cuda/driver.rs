//! The CUDA driver and one card: found at run time, asked for its version before anything that could panic without it.
//!
//! Refuses drivers older than 550 (CUDA 12.4): the embedded PTX is of that version.

use crate::base::size::Human;
use crate::base::{Error, Result};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream};
use std::cell::Cell;
use std::sync::Arc;

mod graph;
mod launch;
mod mapped;
mod memory;

pub use graph::{Graph, Node};
pub use launch::{Begin, Function, Launch, Module, grid};
pub use mapped::Mapped;
pub use memory::{Buffer, Pinned};

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

/// Memory that could not be had, and the flag that asks for less of it.
fn short(what: &str, bytes: usize, flag: &str, e: DriverError) -> Error {
    let what = format!("{what} {}", Human(bytes as u64));
    match e.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Error::fault(format!(
            "{what} failed on the GPU: there is not so much left: lower {flag}, or use --device cpu"
        )),
        _ => fault(&what, e),
    }
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

    pub fn wait(&self) -> Result<()> {
        self.stream.synchronize().map_err(|e| fault("the work before this", e))
    }

    pub fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().map_err(|e| fault("the context", e))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_short_is_told_with_the_flag_that_takes_less() {
        let error = short("taking", 3 << 20, "--kv-budget", DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        assert!(
            error.message().contains("taking 3.00 MiB failed") && error.message().contains("lower --kv-budget"),
            "{error}"
        );
    }

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
