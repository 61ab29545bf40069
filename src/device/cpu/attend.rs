//! Tree attention on the CPU: carries out an [`AttendWork`] over one layer's paged K/V.
//!
//! Parallel over K/V heads that are taken whole, then (task, K/V head), then over rows for what tasks hand over. In a unit (`attend/unit.rs`) the `G` query
//! heads of a K/V head times the rows are the rows of one tile (GQA packing). The blocks of a row are merged in a fixed
//! order (`attend/chain.rs`), inside a task in the thread's own cache. No sum is ever split by anything but position, so
//! a row's bits depend on its own path alone.
//!
//! Bytes read: K/V once a unit (rows beyond [`TILE_ROWS`] take the block again from the cache), q once a unit. Partial
//! results of `d + 2` numbers a query head are written and read only where a row's blocks lie in several tasks
//! ([`AttendWork::handed_over`]). Refused: head sizes that are not multiples of 8.

use crate::base::lazy::Lazy;
use crate::base::{Error, Result};
use crate::device::attend::{AttendWork, BLOCK, Unit, WINDOW};
use crate::device::picks::Picks;
use crate::kv::PAGE_TOKENS;
use half::f16;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

mod ahead;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_softmax;
pub mod baseline;
mod chain;
mod integer_kernels;
#[cfg(test)]
mod integer_tests;
mod integers;
pub mod kernels;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(test)]
mod picked;
mod portable;
#[cfg(test)]
mod tests;
mod unit;
#[cfg(target_arch = "x86_64")]
mod vnni;
#[cfg(target_arch = "x86_64")]
mod vnni_values;

use ahead::Ahead;
use chain::{Chain, Held};
use integers::Counted;
use kernels::Kernels;
use unit::Job;

/// Query rows times heads that one pass over a unit's K/V serves: bounds the scratch to what a core's cache holds.
const TILE_ROWS: usize = 512;

/// Runs `f(0)`, …, `f(n - 1)` in any order on any threads and returns when all are done.
pub type ParallelFor<'a> = &'a dyn Fn(usize, &(dyn Fn(usize) + Sync));

/// On the calling thread.
pub fn serial(n: usize, f: &(dyn Fn(usize) + Sync)) {
    (0..n).for_each(f);
}

/// K and V of one layer, `[page][kv_head][K|V][16][d]`.
#[derive(Debug, Clone, Copy)]
pub enum KvLayer<'a> {
    F16(&'a [f16]),
    F32(&'a [f32]),
}

impl KvLayer<'_> {
    /// Numbers of the layer.
    pub fn numbers(&self) -> usize {
        match self {
            Self::F16(numbers) => numbers.len(),
            Self::F32(numbers) => numbers.len(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_size: usize,
}

impl Heads {
    /// Query heads of one K/V head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Numbers of one page of one layer.
    pub fn page_numbers(&self) -> usize {
        self.kv_heads * 2 * PAGE_TOKENS * self.head_size
    }
}

/// What one thread works in.
#[derive(Debug, Default)]
struct Scratch {
    /// `[rows · G][d]`, scaled, in the form of the kernels; and of which work rows it is, of the task's K/V head.
    q: Lazy<f32>,
    q_of: Option<Range<usize>>,
    /// `[rows · G][WINDOW]`; where values are taken as integers, weights in pairs and their scale lie there then.
    scores: Lazy<f32>,
    /// The block that is being computed.
    own: Held,
    /// One window of K, `[4 pages][d][16]` (or what the kernels make of it), or of V, `[64][d]`.
    tile: Lazy<f32>,
    /// One page of K or V, `[16][d]`, where its tokens lie apart.
    gathered: (Lazy<f16>, Lazy<f32>),
    /// The blocks before it.
    chain: Chain,
    /// K/V of the next window.
    ahead: Ahead,
    /// What values as integers need.
    counted: Counted,
}

/// The attention of one model on the CPU; keeps its buffers.
pub struct Attention {
    heads: Heads,
    kernels: &'static Kernels,
    /// What tasks hand over, by partial number: numbers `[heads][d]`, maxima and sums `[heads]`.
    out: Lazy<f32>,
    max: Lazy<f32>,
    sum: Lazy<f32>,
    /// How many blocks each stands for: a power of two, as its exponent plus 1; 0 where none was handed over.
    spans: Vec<AtomicU8>,
    /// With the thread that worked in it last: what lies in its core's cache would have to come from there.
    scratch: Mutex<Vec<(ThreadId, Scratch)>>,
}

impl Attention {
    pub fn with_kernels(heads: Heads, kernels: &'static Kernels) -> Result<Self> {
        let Heads { heads: h, kv_heads, head_size } = heads;
        if head_size == 0 || !head_size.is_multiple_of(8) {
            return Err(Error::input(format!("head size {head_size} is not a multiple of 8")));
        }
        if kv_heads == 0 || h == 0 || !h.is_multiple_of(kv_heads) {
            return Err(Error::input(format!("{h} query heads cannot share {kv_heads} K/V heads evenly")));
        }
        let (out, max, sum) = (Lazy::default(), Lazy::default(), Lazy::default());
        Ok(Self { heads, kernels, out, max, sum, spans: Vec::new(), scratch: Mutex::default() })
    }

    /// `out[n, heads·d]` = attention of `q[n, heads·d]` over `kv`, batch rows as `work.order` says.
    ///
    /// Panics where a slice is too short for the work: the caller sized them from the same numbers.
    pub fn run(&mut self, work: &AttendWork, kv: KvLayer<'_>, q: &[f32], out: &mut [f32], parallel: ParallelFor<'_>) {
        let pages = work.pages.iter().max().map_or(0, |&p| p as usize + 1);
        assert!(kv.numbers() >= pages * self.heads.page_numbers(), "the arena holds the work's pages");
        self.begin(work);
        let (units, tasks, whole_heads) = (&work.units, &work.tasks, work.whole_heads);
        let wave = Wave { units, tasks, whole_heads, kv: Kv::Pages { kv, pages: &work.pages } };
        if self.tasks(work, &wave, q, out, parallel) {
            self.merge(work, whole_heads, out, parallel);
        }
    }

    /// Room for what the tasks of `work` hand over, and nothing handed over yet.
    pub(super) fn begin(&mut self, work: &AttendWork) {
        let Heads { heads, head_size, .. } = self.heads;
        let partials = work.partials();
        self.out.grow(partials * heads * head_size);
        self.max.grow(partials * heads);
        self.sum.grow(partials * heads);
        self.spans.resize_with(partials.max(self.spans.len()), AtomicU8::default);
        self.spans[..partials].iter_mut().for_each(|s| *s.get_mut() = 0);
    }

    /// Carries out some tasks of the work. True where they handed something over, which [`Self::merge`] takes once all
    /// tasks of all waves are done.
    pub(super) fn tasks(
        &mut self,
        work: &AttendWork,
        wave: &Wave<'_>,
        q: &[f32],
        out: &mut [f32],
        parallel: ParallelFor<'_>,
    ) -> bool {
        let Heads { heads, kv_heads, head_size } = self.heads;
        assert!(q.len() >= work.rows() * heads * head_size, "q holds the work's rows");
        assert!(out.len() >= work.rows() * heads * head_size, "out holds the work's rows");
        let results = [self.out.as_mut_ptr(), self.max.as_mut_ptr(), self.sum.as_mut_ptr()];
        let sink = Sink::new(results, &self.spans[..work.partials()], out);
        let kernels = match wave.kv {
            Kv::Pages { kv, .. } | Kv::Rows { rows: kv, .. } => self.kernels.of(kv),
        };
        let job = Job { heads: self.heads, kernels, work, wave, q, sink };
        let whole = (wave.whole_heads as usize).min(kv_heads);
        let (all, cut) = (0..wave.units.len() as u32, kv_heads - whole);
        parallel(whole + wave.tasks.len() * cut, &|i| {
            let (task, head) = match i.checked_sub(whole) {
                None => (&all, i),
                Some(i) => (&wave.tasks[i / cut], whole + i % cut),
            };
            self.with_scratch(|scratch| job.task(task, head, scratch));
        });
        job.sink.handed_over.load(Ordering::Acquire)
    }

    /// Brings what was handed over to the rows' results: nothing of the first `whole_heads` K/V heads was.
    pub(super) fn merge(&mut self, work: &AttendWork, whole_heads: u32, out: &mut [f32], parallel: ParallelFor<'_>) {
        let Heads { heads, head_size, .. } = self.heads;
        assert!(out.len() >= work.rows() * heads * head_size, "out holds the work's rows");
        let results = [self.out.as_mut_ptr(), self.max.as_mut_ptr(), self.sum.as_mut_ptr()];
        let sink = Sink::new(results, &self.spans[..work.partials()], out);
        let kv = Kv::Pages { kv: KvLayer::F32(&[]), pages: &[] };
        let nothing = Wave { units: &[], tasks: &[], whole_heads, kv };
        let job = Job { heads: self.heads, kernels: self.kernels, work, wave: &nothing, q: &[], sink };
        // Merging is short: chunks of rows keep the threads' overhead below it.
        let chunk = work.rows().div_ceil(16).max(1);
        parallel(work.rows().div_ceil(chunk), &|c| {
            self.with_scratch(|scratch| {
                for row in c * chunk..((c + 1) * chunk).min(work.rows()) {
                    job.merge(row, scratch);
                }
            });
        });
    }

    fn with_scratch(&self, f: impl FnOnce(&mut Scratch)) {
        let thread = thread::current().id();
        let mut pool = lock(&self.scratch);
        let own = pool.iter().rposition(|(last, _)| *last == thread).or(pool.len().checked_sub(1));
        let mut scratch = own.map_or_else(Scratch::default, |at| pool.swap_remove(at).1);
        drop(pool);
        f(&mut scratch);
        lock(&self.scratch).push((thread, scratch));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Some of a work's tasks, and where the K/V of its pages lies.
pub(super) struct Wave<'a> {
    /// What the tasks number.
    pub units: &'a [Unit],
    pub tasks: &'a [Range<u32>],
    /// The first K/V heads, each of which a thread takes through all units, as one task.
    pub whole_heads: u32,
    pub kv: Kv<'a>,
}

/// Where the K/V of a work's pages lies.
#[derive(Clone, Copy)]
pub(super) enum Kv<'a> {
    Pages {
        kv: KvLayer<'a>,
        /// For each entry of the work's pages its page of `kv`; those that the tasks do not read may be anything.
        pages: &'a [u32],
    },
    /// Some tokens alone: those that the picks name, and no others are attended to.
    Rows {
        /// `[frame][K|V][d]`.
        rows: KvLayer<'a>,
        /// For each (page, K/V head, token) its frame plus 1, or 0.
        places: &'a [u32],
        /// The work's pages.
        pages: &'a [u32],
        picks: &'a Picks,
    },
}

/// Where tasks put what they have: results of rows that are theirs alone, partial results of the others.
struct Sink<'a> {
    out: Shared,
    max: Shared,
    sum: Shared,
    spans: &'a [AtomicU8],
    handed_over: AtomicBool,
    target: Shared,
}

impl<'a> Sink<'a> {
    fn new([partial_out, max, sum]: [*mut f32; 3], spans: &'a [AtomicU8], out: &mut [f32]) -> Self {
        let handed_over = AtomicBool::new(false);
        let target = Shared(out.as_mut_ptr());
        Self { out: Shared(partial_out), max: Shared(max), sum: Shared(sum), spans, handed_over, target }
    }
}

/// A pointer that threads write through, each to places of its own.
struct Shared(*mut f32);

// SAFETY: the tasks of one `run` write disjoint ranges: a (row, block, head) belongs to one unit and K/V head.
unsafe impl Sync for Shared {}

impl Shared {
    fn get(&self) -> *mut f32 {
        self.0
    }

    /// `n` numbers from `at` on, for the one that they belong to.
    ///
    /// # Safety
    /// They lie inside the memory, and no other reference to them exists while this one lives.
    #[expect(clippy::mut_from_ref, reason = "each caller has a range of its own, which the borrow checker cannot see")]
    unsafe fn part(&self, at: usize, n: usize) -> &mut [f32] {
        // SAFETY: the caller vouches for it.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(at), n) }
    }
}
