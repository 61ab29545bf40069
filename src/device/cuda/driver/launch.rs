//! Kernels: loaded from PTX, and launched on a card's stream.

use super::{Gpu, fault};
use crate::base::{Error, Result};
use cudarc::driver::sys::{self, CUfunction, CUmodule};
use cudarc::driver::{CudaContext, result};
use std::ffi::{CString, c_void};
use std::sync::Arc;

/// Loaded kernels.
pub struct Module {
    module: CUmodule,
    context: Arc<CudaContext>,
}

// SAFETY: a module handle may be used from any thread that has the context bound.
unsafe impl Send for Module {}

/// A kernel; lives as long as its module.
#[derive(Clone, Copy)]
pub struct Function(pub(super) CUfunction);

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

/// So many blocks each way, after all that was launched before.
pub fn grid(x: usize, y: usize, z: usize, threads: u32) -> Launch {
    Launch { grid: (x as u32, y as u32, z as u32), threads, shared_bytes: 0, begin: Begin::After }
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
impl Gpu {
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
}
