//! The built program in bad company: faults of the machine, hostile files and texts, long runs.
//!
//! - `faults`: read-only and missing folders, closed pipes, signals, memory that is not there, storms of sizes and keys
//! - `security`: programs, paths, links, control sequences, keys
//! - `cases`: public bug reports that only show through the whole program
//! - `offload`: the counters of a recorded run with a device tier that is too small for its tree
//! - `load`: large trees and many at once, with the memory measured from outside

mod cases;
#[path = "../common/mod.rs"]
mod common;
mod faults;
#[path = "../../src/lm/endpoint/faulty.rs"]
#[expect(dead_code, reason = "a server that can do more than these tests ask for")]
mod faulty;
mod load;
mod offload;
mod security;

use common::{Place, Run};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// With so many bytes of address space.
fn with_memory(command: &mut Command, bytes: u64) -> &mut Command {
    // SAFETY: setrlimit reads one structure of ours and may be called between fork and exec.
    unsafe {
        command.pre_exec(move || {
            let room = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
            match libc::setrlimit(libc::RLIMIT_AS, &room) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        })
    }
}

fn finish(command: &mut Command) -> Run {
    Run::of(command.output().expect("the program starts"))
}

/// All that a user could read of a run: both outputs and every file of the place.
fn everything(place: &Place, run: &Run) -> Vec<(String, String)> {
    let mut all = vec![("standard output".into(), run.out.clone()), ("standard error".into(), run.err.clone())];
    let mut folders = vec![place.dir.path().to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let text = std::fs::read(&path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
                    all.push((path.display().to_string(), text.expect("a file")));
                }
            }
        }
    }
    all
}
