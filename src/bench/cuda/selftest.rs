//! Every attention method on the card against its float64 reference, by name, number type, head size, grouping and memory
//! layout: a part of `totara doctor --selftest`.

use super::{Clock, CudaAttention, Laid, Ready, most_error};
use crate::attention::Method;
use crate::base::Result;
use crate::device::cuda::attend::{AttendKernel, HeadShape, Number};
use crate::device::cuda::driver::Gpu;
use crate::device::cuda::measure::Bench;
use crate::device::cuda::work::Kernel;
use crate::device::selftest::Row;

/// Query and K/V heads: groups of 1, 3, 4 and 8.
const HEADS: [(u32, u32); 4] = [(4, 4), (9, 3), (8, 2), (16, 2)];

/// A prompt over many tiles, a node without tokens, a node of one token, one that no tile divides, a second level, and a
/// tree of its own.
const NODES: [(Option<u32>, u32); 9] = [
    (None, 700),
    (Some(0), 100),
    (Some(0), 0),
    (Some(2), 1),
    (Some(0), 37),
    (Some(4), 200),
    (Some(4), 16),
    (Some(6), 5),
    (None, 33),
];
const QUERIES: [u32; 6] = [1, 3, 5, 7, 6, 8];

/// Runs all checks. With `fault`, `deft-flatten` does not see what its first tile holds.
pub fn run(gpu: &Gpu, fault: bool) -> Result<Vec<Row>> {
    let bench = Bench::new(gpu)?;
    let mut table = Vec::new();
    for (number, name) in [(Number::F16, "f16"), (Number::Bf16, "bf16")] {
        for head_size in [64, 80, 96, 128] {
            for (heads, kv_heads) in HEADS {
                let shape = HeadShape { heads, kv_heads, head_size, number };
                for kernel in [Kernel::Ampere, Kernel::Hopper] {
                    // No Hopper kernel on this card, or for this head size.
                    let Ok(attend) = AttendKernel::new(gpu, shape, Some(kernel)) else { continue };
                    for paged in [true, false] {
                        let options = CudaAttention {
                            tree: "selftest".into(),
                            nodes: NODES.to_vec(),
                            queries: QUERIES.to_vec(),
                            shape,
                            paged,
                            clock: Clock::OneCall,
                            repeats: 1,
                        };
                        for method in Method::ALL {
                            let spoilt = fault && method == Method::Flatten;
                            let laid = Laid::of(&options, method);
                            let ready = Ready::new(gpu, &options, &attend, &bench, method, laid, 1, spoilt)?;
                            // Twice: the barrier must serve the next launch too.
                            ready.launch(0)?;
                            let (max_error, _) = ready.error()?;
                            table.push(Row {
                                kernel: format!("cuda {kernel:?} attention {method}").to_lowercase(),
                                shape: format!(
                                    "{heads}/{kv_heads} heads of {head_size}, {name}{}",
                                    if paged { "" } else { ", unpaged" }
                                ),
                                max_error,
                                ok: max_error <= most_error(number),
                            });
                        }
                    }
                }
            }
        }
    }
    Ok(table)
}
