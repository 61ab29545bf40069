//! CUDA: the driver found at run time, the embedded kernels, tree attention and whole steps on the card.
//!
//! | file | what |
//! |---|---|
//! | `driver.rs` | is there a driver, is it new enough; the card, memory, graphs, events |
//! | `ptx.rs` | the kernels of `kernels/`, compiled ahead |
//! | `work.rs` | what a plan for the attention kernels looks like |
//! | `attend.rs` | one step's attention: kernel, loaded plan, launch |
//! | `step.rs` | a whole Llama step: [`step::CudaDevice`]; `step/` its launches, what a model brings, times |
//! | `store.rs` | K/V: on the card, or in two tiers with the card as the smaller one; `store/` the tier, its streams, what a step moves |
//! | `selecting.rs` | attention over selected tokens, which alone come from the host tier |
//! | `heavy.rs` | attention over what H2O keeps; `runs.rs` is what both are told of a path |
//! | `head.rs` | logits: what is told of them |
//! | `product.rs`, `blas.rs` | products by our tensor-core kernels, or by cuBLAS |
//! | `matrix.rs`, `staging.rs` | weights on the card; what a step tells it, in one copy |
//! | `selftest.rs` | the step's kernels against plain arithmetic |
//! | `measure.rs` | kernels for benchmarks and tests: numbers, a float64 reference, a cold read, unfused attention |
//!
//! All memory of a plan belongs to one stream, so nothing here synchronises but downloads and [`driver::Gpu::wait`]; the
//! streams of `store/step.rs` are ordered by events.

pub mod attend;
mod blas;
pub mod driver;
mod head;
mod heavy;
mod matrix;
pub mod measure;
mod product;
mod ptx;
mod runs;
mod selecting;
pub mod selftest;
mod staging;
pub mod step;
pub mod store;
#[cfg(test)]
mod testing;
pub mod work;
