//! A program with everything that it starts: one process group, ended as a whole.
//!
//! `python3` may be a shim that starts the real one, and pip starts helpers of its own. A group of their own also keeps
//! the terminal's Ctrl-C from them, so that who ends them, and when the files under their hands may go, is decided here.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// How long a program may take to end by itself once it was asked to.
const GRACE: Duration = Duration::from_millis(700);
/// How long the rest of the group is waited for after it was ended by force.
const GONE: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(10);

pub struct Group {
    leader: Child,
    /// The leader's process id, which is the group's too. It cannot be given to another process before the leader is
    /// waited for, so a signal never meets a stranger.
    id: libc::pid_t,
    reaped: bool,
}

impl Group {
    pub fn spawn(mut command: Command) -> io::Result<Self> {
        command.process_group(0);
        // SAFETY: prctl is async-signal-safe and touches nothing of the parent; it asks the system to end the leader
        // where this program is ended in a way that it cannot see (the folder is then removed by the next download).
        #[cfg(target_os = "linux")]
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
                Ok(())
            });
        }
        let leader = command.spawn()?;
        let id = libc::pid_t::try_from(leader.id()).map_err(io::Error::other)?;
        Ok(Self { leader, id, reaped: false })
    }

    /// The leader's status once it has ended; whatever it left running is ended too.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        if !self.has_ended()? {
            return Ok(None);
        }
        self.finish().map(Some)
    }

    /// Whether the leader has ended. It stays unreaped, so that the group's id stays ours.
    fn has_ended(&self) -> io::Result<bool> {
        let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: `info` is ours and large enough; the id is that of a child that was not waited for.
        let (done, ended) = unsafe {
            let done = libc::waitid(libc::P_PID, self.id.cast_unsigned(), info.as_mut_ptr(), flags);
            (done, info.assume_init().si_pid() != 0)
        };
        if done == 0 { Ok(ended) } else { Err(io::Error::last_os_error()) }
    }

    fn signal(&self, number: libc::c_int) -> bool {
        // SAFETY: kill takes no pointers; a group that is gone is an error that changes nothing.
        unsafe { libc::kill(-self.id, number) == 0 }
    }

    /// Ends by force what is left of the group, and waits for the leader.
    fn finish(&mut self) -> io::Result<ExitStatus> {
        self.signal(libc::SIGKILL);
        self.reaped = true;
        let status = self.leader.wait()?;
        let until = Instant::now() + GONE;
        // What was ended by force may still hold files for a moment.
        while self.signal(0) && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
        Ok(status)
    }
}

impl Drop for Group {
    /// Ends the group where it is left early: asks first, so that pip can tidy its own cache.
    fn drop(&mut self) {
        if self.reaped {
            return;
        }
        self.signal(libc::SIGINT);
        let until = Instant::now() + GRACE;
        while Instant::now() < until && matches!(self.has_ended(), Ok(false)) {
            std::thread::sleep(LOOK);
        }
        // Fails harmlessly where the leader is lost.
        let _ = self.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alive(pid: i32) -> bool {
        // A process that has ended but is not waited for has no command line.
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_status_comes_through_and_nothing_is_left_running() {
        let dir = tempfile::tempdir().unwrap();
        let note = dir.path().join("pid");
        let mut group = Group::spawn(shell(&format!("sleep 100 & echo $! > {}; exit 3", note.display()))).unwrap();
        let status = loop {
            if let Some(status) = group.try_wait().unwrap() {
                break status;
            }
            std::thread::sleep(LOOK);
        };
        assert_eq!(status.code(), Some(3));
        let left: i32 = std::fs::read_to_string(note).unwrap().trim().parse().unwrap();
        assert!(!alive(left), "what the program left behind is ended");
    }

    #[test]
    fn dropped_early_the_whole_group_ends_even_where_it_will_not() {
        for script in ["sleep 100", "trap '' INT TERM; while :; do sleep 100 || :; done"] {
            let group = Group::spawn(shell(&format!("(sh -c \"{script}\"); :"))).unwrap();
            std::thread::sleep(Duration::from_millis(100));
            let id = group.id;
            let started = Instant::now();
            drop(group);
            assert!(started.elapsed() < Duration::from_secs(20), "{script}: {:?}", started.elapsed());
            // SAFETY: kill takes no pointers.
            assert!(unsafe { libc::kill(-id, 0) } != 0 || !alive(id), "{script}");
        }
    }
}
