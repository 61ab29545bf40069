//! Carries out what the state wants done: starts and questions on threads of their own, files, the clipboard, leaving.

use super::{COPY_BYTES, Ended, LEAVE, LEAVE_START, Notice, Session};
use crate::base::text::counted;
use crate::base::{Error, Result, write_whole};
use crate::search::event::{Command, Reason};
use crate::tui::app::{Effect, Screen};
use crate::tui::canvas::Canvas;
use crate::tui::draw::draw;
use crate::tui::picture;
use crate::tui::start::Catalog;
use crate::tui::text::base64;
use crate::tui::{Choice, Fork, Host, Left, Progress};
use ratatui::buffer::Buffer;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is to be started.
enum Wanted {
    This(Choice),
    /// The puzzle after this one.
    After(Choice),
    Fork(Fork),
}

impl Session {
    /// Does what the state wants done. True where the screen is to be left.
    pub(super) fn carry_out(&mut self) -> Result<bool> {
        for effect in self.app.take_effects() {
            match effect {
                Effect::Leave => return Ok(true),
                Effect::Send(command) => {
                    let sent = self.run.as_ref().is_some_and(|run| run.commands.send(command).is_ok());
                    if !sent {
                        self.app.complain("the search does not listen any more");
                    }
                }
                Effect::Copy(text) => self.copy(&text)?,
                Effect::Export(path) => {
                    let Some(run) = &self.app.run else { continue };
                    match run.state.page().write(&path) {
                        Ok(()) => self.app.say(format!("the tree is in {}", path.display())),
                        Err(e) => self.app.complain(e.message()),
                    }
                }
                Effect::Picture(path) => {
                    self.app.settle();
                    let mut buffer = Buffer::empty(self.app.area);
                    draw(&mut Canvas::new(&mut buffer, &self.app.theme), &self.app);
                    match write_whole(&path, &picture::svg(&buffer, "Totara")) {
                        Ok(()) => self.app.say(format!("the screen is in {}", path.display())),
                        Err(e) => self.app.complain(format!("{} cannot be written: {e}", path.display())),
                    }
                }
                Effect::Suspend => {
                    self.guard.suspend()?;
                    self.redraw()?;
                }
                Effect::Redraw => self.redraw()?,
                Effect::Drop => {
                    self.run = None;
                    if let Some(progress) = self.progress.take() {
                        progress.cancel();
                    }
                }
                Effect::LoadCatalog => self.ask(|host| {
                    let tasks = host.tasks();
                    let strategies = tasks.iter().map(|t| (t.name.clone(), host.strategies(&t.name))).collect();
                    Notice::Catalog(Catalog { strategies, models: host.models(), runs: host.last_runs(), tasks })
                })?,
                Effect::LoadStrategies { task } => {
                    self.ask(move |host| Notice::Strategies { items: host.strategies(&task), task })?;
                }
                Effect::Preview { question, choice } => {
                    self.ask(move |host| Notice::Preview { question, answer: host.preview(&choice) })?;
                }
                Effect::OpenRun(id) => self.ask(move |host| Notice::Opened(host.open_run(&id)))?,
                Effect::Start { job, choice } => self.start(job, Wanted::This(choice))?,
                Effect::StartNext { job, choice } => self.start(job, Wanted::After(choice))?,
                Effect::Fork { job, fork } => self.start(job, Wanted::Fork(fork))?,
            }
        }
        Ok(false)
    }

    /// Asks the host on a thread of its own: it may be slow, the screen must not be.
    fn ask(&self, question: impl FnOnce(&dyn Host) -> Notice + Send + 'static) -> Result<()> {
        self.ask_on("lists", question).map(drop)
    }

    fn ask_on(
        &self,
        thread: &str,
        question: impl FnOnce(&dyn Host) -> Notice + Send + 'static,
    ) -> Result<std::thread::JoinHandle<()>> {
        let host = Arc::clone(&self.host);
        let notify = self.notify.clone();
        let thread = std::thread::Builder::new().name(thread.into()).spawn(move || {
            // The screen may be gone by the time the answer is there.
            notify.send(question(host.as_ref())).ok();
        })?;
        Ok(thread)
    }

    /// Starts a run on a thread of its own.
    fn start(&mut self, job: u64, wanted: Wanted) -> Result<()> {
        let tell = self.notify.clone();
        let progress = Progress::new(move |text, share| {
            tell.send(Notice::Progress { job, text, share }).ok();
        });
        self.progress = Some(progress.clone());
        let thread = self.ask_on("start", move |host| {
            let (choice, result) = match wanted {
                Wanted::This(choice) => {
                    let result = host.start(&choice, &progress);
                    (choice, result)
                }
                Wanted::After(choice) => match host.next(&choice) {
                    Some(next) => {
                        let result = host.start(&next, &progress);
                        (next, result)
                    }
                    None => (choice, Err(Error::input("there is no next puzzle here; choose another one"))),
                },
                Wanted::Fork(fork) => {
                    let result = host.take_up(&fork, &progress);
                    (fork.choice, result)
                }
            };
            Notice::Started { job, choice, result }
        })?;
        self.starts.retain(|thread| !thread.is_finished());
        self.starts.push(thread);
        Ok(())
    }

    /// Waits for cancelled starts, so that a download has removed what it had before the program ends. One that cannot
    /// be cancelled (weights being read) has nothing to remove, and is left behind.
    async fn join_starts(&mut self) {
        let until = Instant::now() + LEAVE_START;
        while self.starts.iter().any(|thread| !thread.is_finished()) && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for thread in self.starts.drain(..).filter(std::thread::JoinHandle::is_finished) {
            // One that panicked has said so already.
            thread.join().ok();
        }
    }

    fn copy(&mut self, text: &str) -> Result<()> {
        let mut where_to = Vec::new();
        if text.len() <= COPY_BYTES {
            let osc = format!("\x1b]52;c;{}\x07", base64(text.as_bytes()));
            self.guard.write(osc.as_bytes())?;
            if std::env::var_os("TMUX").is_some() {
                // tmux passes it on to the outer terminal only in this wrapping.
                self.guard.write(format!("\x1bPtmux;\x1b{osc}\x1b\\").as_bytes())?;
            }
            where_to.push("to the clipboard (where the terminal allows it)".to_string());
        }
        if let Some(path) = &self.options.copy_file {
            match write_private(path, text) {
                Ok(()) => where_to.push(format!("to {}", path.display())),
                Err(e) => {
                    self.app.complain(format!("cannot write {}: {e}", path.display()));
                    return Ok(());
                }
            }
        }
        match where_to.is_empty() {
            true => self.app.complain("the text is too long for a terminal's clipboard"),
            false => {
                let many = counted(text.chars().count() as u64, "character", "characters");
                self.app.say(format!("{many} copied {}", where_to.join(" and ")));
            }
        }
        Ok(())
    }

    /// Ends a search that still runs, so that its record is whole, and says how the screen was left.
    pub(super) async fn leave(&mut self, served: Result<Ended>) -> Result<Left> {
        if let Some(progress) = &self.progress {
            progress.cancel();
        }
        if self.app.is_running()
            && let Some(run) = &mut self.run
        {
            run.commands.send(Command::Quit).ok();
            let app = &mut self.app;
            let end = async {
                while let Some(event) = run.events.recv().await {
                    app.search_event(&event);
                    if app.outcome().is_some() {
                        break;
                    }
                }
            };
            tokio::time::timeout(LEAVE, end).await.ok();
        }
        self.join_starts().await;
        let starting = matches!(self.app.screen, Screen::Loading(_));
        let outcome = self.app.outcome().cloned().or_else(|| {
            let run = self.app.run.as_ref().filter(|_| self.app.is_running())?;
            Some(run.state.unfinished(Reason::Quit))
        });
        match served? {
            Ended::Left => Ok(Left { outcome, starting, signal: None }),
            Ended::Signal(number) => Ok(Left { outcome, starting, signal: Some(number) }),
        }
    }
}

fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut options = std::fs::OpenOptions::new();
    // A link of that name leads somewhere else: it is not written through.
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let mut file = options.open(path)?;
    file.write_all(text.as_bytes())
}
