//! A few threads that stay hot between the operations of a step and sleep when there is none.
//!
//! A step has hundreds of operations of tens of microseconds, so handing one out must cost about a microsecond: workers
//! spin for [`SPIN`] after their last task before they park. A worker that is late (still waking up) is not waited for:
//! the caller takes its tasks, closes the job, and waits only for those who entered. Which thread does a task never
//! changes a result: tasks write disjoint places.

use crate::base::{Error, Result};
use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long an idle worker looks for work before it sleeps: longer than the serial parts of a step, far shorter than a
/// pause that anybody notices.
const SPIN: Duration = Duration::from_micros(300);

/// `job(task, worker)`: task in `0..tasks`, worker in `0..threads`, no two calls at once with the same worker.
type Job<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// The gate's fields: bits 0..16 workers inside, bit 16 open, bit 17 over (the pool is dropped), the rest counts jobs.
const INSIDE: u64 = 0xffff;
const OPEN: u64 = 1 << 16;
const OVER: u64 = 1 << 17;
const NEXT: u64 = 1 << 18;

struct Shared {
    gate: AtomicU64,
    job: UnsafeCell<Option<*const Job<'static>>>,
    tasks: AtomicUsize,
    next: AtomicUsize,
    asleep: Vec<AtomicBool>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is written only by the caller of `Pool::run` while the gate is closed and nobody is inside, and read only
// by workers that have entered through the open gate; the gate's atomics order the two. The rest is Sync by itself.
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer is only used as said above.
unsafe impl Send for Shared {}

/// The threads: the caller is worker 0.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Not `Sync`, so that neither a second thread nor a job (which is `Sync`) can call `run` while one is under way.
    one_caller: PhantomData<Cell<()>>,
}

impl Pool {
    /// `threads` in all, the caller included; at least 1.
    pub fn new(threads: usize) -> Result<Self> {
        let shared = Arc::new(Shared {
            gate: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            tasks: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            asleep: (1..threads.max(1)).map(|_| AtomicBool::new(false)).collect(),
            panic: Mutex::new(None),
        });
        let mut pool = Self { shared: shared.clone(), workers: Vec::new(), one_caller: PhantomData };
        for worker in 1..threads.max(1) {
            let shared = shared.clone();
            let handle = thread::Builder::new()
                .name(format!("totara-cpu-{worker}"))
                .spawn(move || work(&shared, worker))
                .map_err(|e| {
                    Error::fault(format!("cannot start thread {worker} of {threads}: {e}; try --threads 1"))
                })?;
            pool.workers.push(handle);
        }
        Ok(pool)
    }

    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Does all tasks and returns when they are done. A panic in a task is raised again here.
    pub fn run(&self, tasks: usize, job: &Job<'_>) {
        if self.workers.is_empty() || tasks <= 1 {
            (0..tasks).for_each(|task| job(task, 0));
            return;
        }
        let shared = &*self.shared;
        // SAFETY: the gate is closed and nobody is inside (only one `run` is under way, and it leaves it so), so no worker reads the
        // cell. The lifetime is erased: no worker uses the pointer after the wait at the end of this function.
        unsafe { *shared.job.get() = Some(std::mem::transmute::<*const Job<'_>, *const Job<'static>>(job)) };
        shared.tasks.store(tasks, Ordering::Relaxed);
        shared.next.store(0, Ordering::Relaxed);
        let opened = (shared.gate.load(Ordering::Relaxed) & !(INSIDE | OPEN)).wrapping_add(NEXT) | OPEN;
        shared.gate.store(opened, Ordering::SeqCst);
        for (asleep, worker) in shared.asleep.iter().zip(&self.workers) {
            if asleep.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        let mine = catch_unwind(AssertUnwindSafe(|| take(shared, job, 0)));
        if mine.is_err() {
            shared.next.store(usize::MAX / 2, Ordering::Relaxed);
        }
        shared.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let mut waits = 0u32;
        while shared.gate.load(Ordering::Acquire) & INSIDE != 0 {
            waits += 1;
            if waits.is_multiple_of(2048) { thread::yield_now() } else { std::hint::spin_loop() }
        }
        if let Err(panic) = mine {
            resume_unwind(panic);
        }
        if let Some(panic) = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take() {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.gate.fetch_or(OVER, Ordering::SeqCst);
        for worker in &self.workers {
            worker.thread().unpark();
        }
        for worker in self.workers.drain(..) {
            // A worker catches its tasks' panics, so joining only fails where the panic machinery itself did.
            let _ = worker.join();
        }
    }
}

fn take(shared: &Shared, job: &Job<'_>, worker: usize) {
    let tasks = shared.tasks.load(Ordering::Relaxed);
    loop {
        let task = shared.next.fetch_add(1, Ordering::Relaxed);
        if task >= tasks {
            return;
        }
        job(task, worker);
    }
}

fn work(shared: &Shared, worker: usize) {
    let mut done = 0u64;
    let mut since = Instant::now();
    let mut looks = 0u32;
    loop {
        let gate = shared.gate.load(Ordering::Acquire);
        if gate & OVER != 0 {
            return;
        }
        if gate & OPEN != 0 && gate / NEXT != done {
            if shared.gate.compare_exchange(gate, gate + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                done = gate / NEXT;
                // SAFETY: we are inside the open gate, so the caller is waiting in `run` and the pointer is alive.
                if let Some(job) = unsafe { *shared.job.get() } {
                    // SAFETY: as above.
                    let outcome = catch_unwind(AssertUnwindSafe(|| take(shared, unsafe { &*job }, worker)));
                    if let Err(panic) = outcome {
                        *shared.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
                    }
                }
                shared.gate.fetch_sub(1, Ordering::AcqRel);
                since = Instant::now();
            }
            continue;
        }
        std::hint::spin_loop();
        looks = looks.wrapping_add(1);
        if looks.is_multiple_of(64) && since.elapsed() > SPIN {
            let asleep = &shared.asleep[worker - 1];
            asleep.store(true, Ordering::SeqCst);
            // The caller opens the gate first and looks at `asleep` then; we do it the other way round, so one of us sees
            // the other and no wake-up is lost.
            let gate = shared.gate.load(Ordering::SeqCst);
            if gate & OVER == 0 && !(gate & OPEN != 0 && gate / NEXT != done) {
                thread::park();
            }
            asleep.store(false, Ordering::SeqCst);
            since = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_is_done_once_whatever_the_threads() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads).unwrap();
            assert_eq!(pool.threads(), threads);
            for round in 0..300usize {
                let tasks = round % 37;
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                let busy: Vec<AtomicBool> = (0..threads).map(|_| AtomicBool::new(false)).collect();
                pool.run(tasks, &|task, worker| {
                    assert!(!busy[worker].swap(true, Ordering::SeqCst), "two calls at once as worker {worker}");
                    counts[task].fetch_add(1, Ordering::SeqCst);
                    busy[worker].store(false, Ordering::SeqCst);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::SeqCst) == 1), "{threads} threads, round {round}");
                if round % 100 == 99 {
                    thread::sleep(SPIN * 3);
                }
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_works_on() {
        let pool = Pool::new(3).unwrap();
        for bad in 0..20 {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.run(20, &|task, _| {
                    if task == bad {
                        panic!("task {bad}");
                    }
                });
            }));
            assert!(outcome.is_err(), "task {bad}");
        }
        let count = AtomicUsize::new(0);
        pool.run(50, &|_, _| {
            count.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!(count.load(Ordering::SeqCst), 50);
    }
}
