//! The layers of a step allocate nothing: counted by the allocator itself, in all threads.
//!
//! One test in a binary of its own, so that nobody else allocates while it counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use totara::engine::measure::Run;
use totara::lm::engine::{EngineOptions, Loaded, load};
use totara::model::{self, OpenOptions};

struct Counting;

static COUNT: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.fetch_add(1, Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What making the plan of a step may allocate, once a step: fewer than layers times operations by far, so that one in
/// any operation of any layer shows (two layers here, and five operations in each).
const PLAN: usize = 4;

/// Allocations of each of `steps` decode steps of `branches` branches, after some that are not counted.
fn decode(kind: &str, threads: usize, branches: usize, steps: usize, logits: bool) -> Vec<usize> {
    let model = model::open(&format!("random:tiny@{kind}"), &OpenOptions::default()).expect("a made-up model");
    let options = EngineOptions { device: "cpu".into(), threads: Some(threads), ..EngineOptions::default() };
    let Loaded { mut llama, limits, .. } = load(model.weights, &options, None).expect("room for it");
    let mut run = Run::new(&mut llama, &limits);
    let trunk = run.tree.open();
    run.fill(trunk, &[7; 300], 64).expect("pages");
    let branches: Vec<_> = (0..branches).map(|_| run.tree.fork(trunk)).collect();
    let mut counts = Vec::with_capacity(steps + 8);
    for step in 0..steps + 8 {
        let before = COUNT.load(Relaxed);
        run.clear();
        for (at, &branch) in branches.iter().enumerate() {
            run.push(branch, &[(step * 31 + at) as u32 % 300]).expect("pages");
            if logits {
                run.want_last();
            }
        }
        run.forward().expect("a step");
        counts.push(COUNT.load(Relaxed) - before);
    }
    counts.split_off(8)
}

#[test]
fn the_layers_of_a_decode_step_allocate_nothing() {
    for kind in ["q4_0", "q8_0", "f16"] {
        for (threads, branches) in [(1, 1), (2, 20)] {
            let counts = decode(kind, threads, branches, 100, false);
            let few = counts.iter().filter(|&&count| count <= PLAN).count();
            // Pages, tokens and partial results grow with the paths: buffers double now and then.
            assert!(
                few >= 100 - 12,
                "{kind}, {branches} branches: {few} of 100 steps allocate next to nothing: {counts:?}"
            );
            let counts = decode(kind, threads, branches, 100, true);
            let mut sorted = counts.clone();
            sorted.sort_unstable();
            // A vector of logits a row, and lists of the rows.
            assert!(sorted[85] <= branches + PLAN + 12, "{kind}, {branches} branches with logits: {counts:?}");
        }
    }
}
