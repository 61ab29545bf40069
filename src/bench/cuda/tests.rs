//! On a machine with a card: every kernel against the float64 reference on random trees, in all number types, head sizes
//! and memory layouts, with several queries in a node and batch rows in any order. Elsewhere a skip line.

use super::*;
use crate::base::rng;
use crate::device::cuda::work::Kernel;
use rand::Rng;

/// A random tree in slots that stand in no order: pages, or single slots, are shuffled.
fn random_tree(seed: u64, paged: bool) -> Laid {
    let mut random = rng::stream(seed, "cuda attention", &[]);
    let count = random.random_range(1..40u32);
    let (mut nodes, mut rows, mut at) = (Vec::new(), Vec::new(), 0u32);
    for i in 0..count {
        let parent = (i > 0).then(|| random.random_range(0..i));
        let len = match random.random_range(0..4) {
            0 if i > 0 => random.random_range(0..3),
            1 => random.random_range(1..40),
            _ => random.random_range(1..300),
        };
        nodes.push(Node { parent, first: at, len });
        at += len;
        if len > 0 {
            match random.random_range(0..4) {
                0 => {}
                1 => rows.extend((len.saturating_sub(9)..len).map(|offset| Row { node: i, offset })),
                _ => rows.push(Row { node: i, offset: random.random_range(0..len) }),
            }
        }
    }
    if rows.is_empty() {
        rows.push(Row { node: 0, offset: nodes[0].len - 1 });
    }
    for i in (1..rows.len()).rev() {
        rows.swap(i, random.random_range(0..=i));
    }
    // Tokens of a node go to consecutive places of pages that are dealt in a random order.
    let places: Vec<u32> = nodes
        .iter()
        .scan(0u32, |next, n| {
            let first = *next;
            *next += if paged { n.len.next_multiple_of(16) } else { n.len };
            Some(first)
        })
        .collect();
    let total = nodes.iter().zip(&places).map(|(n, p)| p + n.len).max().unwrap_or(0).next_multiple_of(16).max(16);
    let mut pages: Vec<u32> = (0..total / 16).collect();
    for i in (1..pages.len()).rev() {
        pages.swap(i, random.random_range(0..=i));
    }
    let mut slots = Vec::new();
    for (node, place) in nodes.iter().zip(&places) {
        slots.extend(
            (*place..place + node.len)
                .map(|p| if seed.is_multiple_of(3) { p } else { pages[p as usize / 16] * 16 + p % 16 }),
        );
    }
    Laid { nodes, slots, rows, total }
}

#[test]
fn every_kernel_agrees_with_the_reference_on_random_trees() {
    let gpu = match Gpu::open(0) {
        Ok(gpu) => gpu,
        Err(e) => {
            println!("skipped every_kernel_agrees_with_the_reference_on_random_trees: {e}");
            return;
        }
    };
    let bench = Bench::new(&gpu).expect("measuring kernels");
    let mut seed = 0;
    for number in [Number::F16, Number::Bf16] {
        for head_size in [64, 80, 96, 128] {
            for kernel in [Kernel::Ampere, Kernel::Hopper] {
                for (heads, kv_heads) in [(9, 3), (4, 4), (32, 8), (16, 2)] {
                    let shape = HeadShape { heads, kv_heads, head_size, number };
                    let attend = match AttendKernel::new(&gpu, shape, Some(kernel)) {
                        Ok(attend) => attend,
                        Err(e) if kernel == Kernel::Hopper => {
                            println!("no Hopper kernel here for head size {head_size}: {e}");
                            continue;
                        }
                        Err(e) => panic!("{e}"),
                    };
                    for paged in [true, false] {
                        seed += 1;
                        check(&gpu, &bench, &attend, seed, paged);
                    }
                }
            }
        }
    }
}

fn check(gpu: &Gpu, bench: &Bench, attend: &AttendKernel, seed: u64, paged: bool) {
    let shape = attend.shape;
    let options = CudaAttention {
        tree: format!("random:{seed}"),
        nodes: Vec::new(),
        queries: Vec::new(),
        shape,
        paged,
        clock: Clock::OneCall,
        repeats: 1,
    };
    for method in [Method::Auto, Method::Flatten, Method::Node, Method::NodeChunk, Method::Radix, Method::SpecInfer] {
        let ready = Ready::new(gpu, &options, attend, bench, method, random_tree(seed, paged), 1, false)
            .unwrap_or_else(|e| panic!("{shape:?}, paged {paged}, seed {seed}: {e}"));
        // Twice: the barrier must serve the next launch too.
        ready.launch(0).unwrap();
        let (error, _) = ready.error().unwrap();
        let most = most_error(shape.number);
        assert!(error <= most, "{method}, {shape:?}, paged {paged}, seed {seed}: error {error:.1e}");
    }
}
