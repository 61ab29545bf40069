//! cuBLAS for products of many rows, where the library is found at run time. Everything else runs without it.

use super::attend::Number;
use super::driver::Gpu;
use crate::base::{Error, Result};
use cudarc::cublas::{result, sys};

/// A handle on the card's one stream.
pub struct Blas {
    handle: sys::cublasHandle_t,
}

// SAFETY: a handle may be used from any thread, one at a time.
unsafe impl Send for Blas {}

impl Blas {
    /// `None`: the library is not installed, or does not start.
    pub fn find(gpu: &Gpu) -> Option<Self> {
        gpu.bind().ok()?;
        // SAFETY: only looks whether the library can be opened.
        if !unsafe { sys::is_culib_present() } {
            return None;
        }
        let blas = Self { handle: result::create_handle().ok()? };
        // SAFETY: both are alive; a driver's stream is the runtime's too.
        unsafe { result::set_stream(blas.handle, gpu.raw_stream().cast()) }.ok()?;
        Some(blas)
    }

    /// `out[n][rows] = x[n][cols] · w[rows][cols]ᵀ`, `out` in float32.
    ///
    /// # Safety
    /// The pointers are device memory of these sizes, alive until the work is done.
    pub unsafe fn product(
        &self,
        number: Number,
        (rows, cols, n): (u32, u32, u32),
        (w, x, out): (u64, u64, u64),
    ) -> Result<()> {
        let kind = match number {
            Number::F16 => sys::cudaDataType::CUDA_R_16F,
            Number::Bf16 => sys::cudaDataType::CUDA_R_16BF,
        };
        let (one, zero) = (1f32, 0f32);
        // Column-major as cuBLAS counts: out is [rows, n], w is [cols, rows] and turned, x is [cols, n].
        // SAFETY: the caller's; alpha and beta live through the call.
        unsafe {
            result::gemm_ex(
                self.handle,
                sys::cublasOperation_t::CUBLAS_OP_T,
                sys::cublasOperation_t::CUBLAS_OP_N,
                rows as i32,
                n as i32,
                cols as i32,
                (&raw const one).cast(),
                w as *const _,
                kind,
                cols as i32,
                x as *const _,
                kind,
                cols as i32,
                (&raw const zero).cast(),
                out as *mut _,
                sys::cudaDataType::CUDA_R_32F,
                rows as i32,
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        }
        .map_err(|e| Error::fault(format!("a cuBLAS product failed on the GPU: {e:?}")))
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: made by `find`, destroyed once. A failure here has nobody to tell.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}
