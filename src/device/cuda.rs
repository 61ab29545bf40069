//! CUDA: the driver found at run time, the embedded kernels, and tree attention on the card.
//!
//! | file | what |
//! |---|---|
//! | `driver.rs` | is there a driver, is it new enough; the card, memory, graphs, events |
//! | `ptx.rs` | the kernels of `kernels/`, compiled ahead |
//! | `work.rs` | what a plan for the attention kernels looks like |
//! | `attend.rs` | one step's attention: kernel, loaded plan, launch |
//! | `measure.rs` | kernels for benchmarks and tests: numbers, a float64 reference, a cold read, unfused attention |
//!
//! All memory of a plan belongs to one stream, so nothing here synchronises but downloads and [`driver::Gpu::wait`].

pub mod attend;
pub mod driver;
pub mod measure;
mod ptx;
pub mod work;
