//! How fast bytes move: between the host's memory and a card's, and inside the host's memory. For `totara doctor`.

use super::attention::peak;
use crate::base::Result;
use crate::device::cuda::driver::Gpu;
use rayon::prelude::*;
use std::time::Instant;

/// Bytes of a transfer: beyond caches, and long beside what starting one takes.
const BYTES: usize = 64 << 20;
const TRANSFERS: usize = 5;

/// Bytes a second, the best of five.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    pub to_device: f64,
    pub to_host: f64,
}

/// Between pinned host memory and the card.
///
/// # Errors
/// Memory cannot be had, or a copy fails.
pub fn card(gpu: &Gpu) -> Result<Link> {
    let (mut host, device) = (gpu.pinned(BYTES)?, gpu.alloc(BYTES)?);
    let mut best = [f64::INFINITY; 2];
    for _ in 0..TRANSFERS {
        let start = Instant::now();
        gpu.send(&device, &host, BYTES)?;
        gpu.wait()?;
        best[0] = best[0].min(start.elapsed().as_secs_f64());
        let start = Instant::now();
        gpu.fetch(&mut host, &device, 0, BYTES)?;
        best[1] = best[1].min(start.elapsed().as_secs_f64());
    }
    let [to_device, to_host] = best.map(|seconds| BYTES as f64 / seconds);
    Ok(Link { to_device, to_host })
}

/// Bytes a second read plus written by copying inside the host's memory, on all threads of the pool.
pub fn host() -> f64 {
    let parallel = |n: usize, job: &(dyn Fn(usize) + Sync)| (0..n).into_par_iter().for_each(job);
    peak::copy_bandwidth(rayon::current_num_threads(), BYTES, &parallel)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_copy_of_the_hosts_memory_takes_time() {
        let each = super::host();
        assert!((1e8..1e13).contains(&each), "{each} bytes a second");
    }
}
