//! Signals that end a run: told to the run first, so that it can save what it has, or remove what it has not finished.

use crate::base::{Error, Result};
use std::sync::atomic::{AtomicI32, Ordering};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT, SIGTERM and SIGHUP; what the user has ignored (`nohup`) stays ignored.
pub struct Signals {
    interrupt: Option<Signal>,
    terminate: Option<Signal>,
    hangup: Option<Signal>,
}

impl Signals {
    /// Must be called inside a runtime.
    pub fn new() -> Result<Self> {
        let listen = |kind: SignalKind| match handler(kind.as_raw_value()) {
            Some(_) => signal(kind).map(Some).map_err(|e| Error::fault(format!("signals cannot be watched: {e}"))),
            None => Ok(None),
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// The number of the next signal; add 128 for the exit code.
    pub async fn next(&mut self) -> u8 {
        tokio::select! {
            () = came_to(&mut self.interrupt) => 2,
            () = came_to(&mut self.terminate) => 15,
            () = came_to(&mut self.hangup) => 1,
        }
    }
}

/// Never, where the signal is ignored.
async fn came_to(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// What is done on a signal now; `None` where it is ignored.
fn handler(number: libc::c_int) -> Option<libc::sigaction> {
    // SAFETY: zero is a value of each of its fields; sigaction writes the structure, which is ours, and reads nothing.
    let (asked, old) = unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        (libc::sigaction(number, std::ptr::null(), &mut old), old)
    };
    (asked == 0 && old.sa_sigaction != libc::SIG_IGN).then_some(old)
}

/// The signal that came while [`during`] was at work; 0: none. A handler can reach nothing but a static.
static CAME: AtomicI32 = AtomicI32::new(0);

extern "C" fn came(number: libc::c_int) {
    CAME.store(number, Ordering::SeqCst);
}

/// Does work that must tidy up before the program ends: it is asked to look at [`pending`] now and then, and where a
/// signal came the program ends with 128 + its number once the work has returned. Before and after it signals do what
/// they did.
pub fn during<T>(work: impl FnOnce() -> T) -> T {
    let watched = Watched::new();
    let result = work();
    drop(watched);
    match CAME.load(Ordering::SeqCst) {
        0 => result,
        number => std::process::exit(128 + number),
    }
}

/// Whether a signal asks the work inside [`during`] to end.
pub fn pending() -> bool {
    CAME.load(Ordering::SeqCst) != 0
}

/// The handlers of before; set again on drop.
struct Watched(Vec<(libc::c_int, libc::sigaction)>);

impl Watched {
    fn new() -> Self {
        let mut before = Vec::new();
        for number in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            let Some(old) = handler(number) else { continue };
            // SAFETY: the structure is ours and whole; `came` does nothing but an atomic store, which a handler may.
            unsafe {
                let mut new: libc::sigaction = std::mem::zeroed();
                new.sa_sigaction = came as extern "C" fn(libc::c_int) as libc::sighandler_t;
                new.sa_flags = libc::SA_RESTART;
                libc::sigemptyset(&mut new.sa_mask);
                if libc::sigaction(number, &new, std::ptr::null_mut()) == 0 {
                    before.push((number, old));
                }
            }
        }
        Self(before)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        for (number, old) in &self.0 {
            // SAFETY: `old` is what the system gave for this signal.
            unsafe {
                libc::sigaction(*number, old, std::ptr::null_mut());
            }
        }
    }
}
