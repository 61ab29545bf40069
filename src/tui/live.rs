//! Waits for keys, events, signals and time, and hands them to the state; carries out what the state wants done.
//!
//! It has a thread and a small runtime of its own, so it may be called from a plain thread as well as from within an
//! asynchronous one (which it then blocks). Events are taken in as fast as they come; pictures are drawn when something
//! changed, at most thirty a second, and fewer where they would write too much.

use super::app::{App, Effect, Screen};
use super::canvas::Canvas;
use super::draw::draw;
use super::replay::Recording;
use super::start::Catalog;
use super::terminal::{FrameWriter, Guard};
use super::text::base64;
use super::{Choice, Host, Left, Progress, ScreenOptions, StrategyItem};
use crate::base::{Error, Result};
use crate::search::event::{Command, Event as SearchEvent, Reason};
use crate::search::run::RunHandle;
use crossterm::event::Event;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, error::TryRecvError, unbounded_channel};

/// Least seconds between two pictures of a running search, and after a key.
const FRAME: f64 = 1.0 / 30.0;
const FRAME_AFTER_KEY: f64 = 1.0 / 120.0;
/// Bytes a second that pictures of a running search may take at 80x24; larger screens may take more in proportion.
const BYTES_PER_SECOND: f64 = 18_000.0;
/// How long one turn takes events in before it looks at keys again.
const DRAIN: Duration = Duration::from_millis(10);
/// How long leaving waits for a search to end properly, so that its record is whole.
const LEAVE: Duration = Duration::from_millis(1500);
/// How long leaving waits for a start that was cancelled to tidy up.
const LEAVE_START: Duration = Duration::from_secs(5);
/// How often the thread that reads keys looks whether it shall end.
const READER_POLL: Duration = Duration::from_millis(100);
/// Larger texts do not fit into what terminals take for the clipboard.
const COPY_BYTES: usize = 74_000;

/// Opens the screen: on the start screen, or with `initial` at once on its run. Blocks until it is left.
///
/// SIGINT, SIGTERM and SIGHUP leave the screen properly and come back in [`Left::signal`]. Their default actions do not
/// return afterwards (the runtime keeps its handlers), so the caller should end soon.
///
/// # Errors
/// No terminal, a terminal that goes away, keys that clash, and a panic of any thread while the screen is open (its
/// message has then been printed to a restored terminal).
pub fn run(host: Arc<dyn Host>, initial: Option<Choice>, options: ScreenOptions) -> Result<Left> {
    on_own_thread(move || {
        let mut app = App::new(&options, 80, 24)?;
        app.open(initial);
        serve(app, Some(host), options)
    })
}

/// Opens the screen on a recorded run. Blocks until it is left.
///
/// # Errors
/// As [`run`].
pub fn replay(recording: Recording, options: ScreenOptions) -> Result<Left> {
    on_own_thread(move || {
        let mut app = App::new(&options, 80, 24)?;
        app.open_replay(recording);
        serve(app, None, options)
    })
}

fn on_own_thread(work: impl FnOnce() -> Result<Left> + Send) -> Result<Left> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("screen".into()).spawn_scoped(scope, work)?;
        thread.join().unwrap_or_else(|_| Err(Error::fault("the screen failed; see the message above")))
    })
}

fn serve(app: App, host: Option<Arc<dyn Host>>, options: ScreenOptions) -> Result<Left> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let signals = Signals::new()?;
        let guard = Guard::enter(options.mouse).map_err(|e| Error::from(e).context("cannot use the terminal"))?;
        let mut session = Session::new(app, host, options, guard)?;
        let served = session.serve(signals).await;
        // The terminal first: whatever is said next must be readable.
        session.guard.leave();
        let left = session.leave(served).await;
        session.stop_reader.store(true, Ordering::Relaxed);
        // The reader may be stuck in a terminal that went away; then it is left behind.
        tokio::time::timeout(READER_POLL * 3, session.reader_done.recv()).await.ok();
        left
    })
}

/// What other threads have to tell.
enum Notice {
    Catalog(Catalog),
    Strategies { task: String, items: Vec<StrategyItem> },
    Preview { question: u64, answer: Result<String> },
    Progress { job: u64, text: String, share: Option<f64> },
    Started { job: u64, choice: Choice, result: Result<RunHandle> },
    Opened(Result<Recording>),
}

/// Signals that end the screen, and the one that follows a stop.
struct Signals {
    ending: Vec<(i32, Signal)>,
    cont: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        let ending = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let ending = ending.into_iter().map(|kind| Ok((kind.as_raw_value(), signal(kind)?))).collect::<Result<_>>()?;
        Ok(Self { ending, cont: signal(SignalKind::from_raw(libc::SIGCONT))? })
    }

    /// The next signal that ends the screen.
    async fn end(ending: &mut [(i32, Signal)]) -> i32 {
        std::future::poll_fn(|cx| {
            for (number, signal) in ending.iter_mut() {
                if signal.poll_recv(cx).is_ready() {
                    return std::task::Poll::Ready(*number);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}

struct Session {
    app: App,
    host: Option<Arc<dyn Host>>,
    options: ScreenOptions,
    terminal: Terminal<CrosstermBackend<FrameWriter>>,
    guard: Guard,
    inputs: UnboundedReceiver<std::io::Result<Event>>,
    stop_reader: Arc<AtomicBool>,
    reader_done: tokio::sync::mpsc::Receiver<()>,
    notices: UnboundedReceiver<Notice>,
    notify: UnboundedSender<Notice>,
    run: Option<RunHandle>,
    progress: Option<Progress>,
    /// Starts whose threads may still be at work; all but the newest are cancelled.
    starts: Vec<std::thread::JoinHandle<()>>,
    clock: Instant,
    /// When the next picture may be drawn, in seconds on the clock.
    next_frame: f64,
    last_frame: f64,
    resumed_at: f64,
}

/// Why the loop ended.
enum Ended {
    Left,
    Signal(i32),
}

impl Session {
    fn new(mut app: App, host: Option<Arc<dyn Host>>, options: ScreenOptions, guard: Guard) -> Result<Self> {
        let terminal = Terminal::new(CrosstermBackend::new(guard.writer()))?;
        let size = terminal.size()?;
        app.input(&Event::Resize(size.width, size.height));
        let (input_tx, inputs) = unbounded_channel();
        let (notify, notices) = unbounded_channel();
        let (done_tx, reader_done) = tokio::sync::mpsc::channel(1);
        let stop_reader = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stop_reader);
        std::thread::Builder::new().name("keys".into()).spawn(move || {
            read_inputs(&input_tx, &stop);
            // Nobody listens where the screen is gone already.
            done_tx.try_send(()).ok();
        })?;
        Ok(Self {
            app,
            host,
            options,
            terminal,
            guard,
            inputs,
            stop_reader,
            reader_done,
            notices,
            notify,
            run: None,
            progress: None,
            starts: Vec::new(),
            clock: Instant::now(),
            next_frame: 0.0,
            last_frame: 0.0,
            resumed_at: 0.0,
        })
    }

    fn now(&self) -> f64 {
        self.clock.elapsed().as_secs_f64()
    }

    async fn serve(&mut self, mut signals: Signals) -> Result<Ended> {
        loop {
            if self.guard.panicked() {
                return Err(Error::fault("a thread of the program failed; see the message above"));
            }
            self.app.tick(self.now());
            if self.carry_out()? {
                return Ok(Ended::Left);
            }
            let now = self.now();
            if self.app.dirty && now >= self.next_frame {
                self.draw()?;
            }
            let frame = self.app.dirty.then_some(self.next_frame);
            let wake = frame.into_iter().chain(self.app.wake_at()).min_by(f64::total_cmp);
            let sleep = wake.map(|at| Duration::from_secs_f64((at - self.now()).clamp(0.0, 3600.0)));
            tokio::select! {
                biased;
                number = Signals::end(&mut signals.ending) => return Ok(Ended::Signal(number)),
                () = self.guard.panic() => {}
                _ = signals.cont.recv() => self.resumed()?,
                input = self.inputs.recv() => match input {
                    Some(Ok(event)) => {
                        self.app.input(&event);
                        self.drain_inputs()?;
                        self.next_frame = self.next_frame.min(self.last_frame + FRAME_AFTER_KEY);
                    }
                    Some(Err(e)) => return Err(Error::from(e).context("cannot read the terminal")),
                    None => return Err(Error::fault("the terminal went away")),
                },
                Some(notice) = self.notices.recv() => self.notice(notice),
                event = next_event(&mut self.run) => self.search_events(event),
                () = tokio::time::sleep(sleep.unwrap_or_default()), if sleep.is_some() => {}
            }
        }
    }

    fn drain_inputs(&mut self) -> Result<()> {
        // A held key or a paste without brackets comes as many events: one picture for all of them.
        for _ in 0..256 {
            match self.inputs.try_recv() {
                Ok(event) => self.app.input(&event.map_err(|e| Error::from(e).context("cannot read the terminal"))?),
                Err(_) => break,
            }
        }
        Ok(())
    }

    fn search_events(&mut self, first: Option<SearchEvent>) {
        let Some(first) = first else {
            self.run = None;
            self.app.search_gone();
            return;
        };
        self.app.search_event(&first);
        let started = Instant::now();
        while let Some(run) = &mut self.run {
            match run.events.try_recv() {
                Ok(event) => self.app.search_event(&event),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    self.run = None;
                    self.app.search_gone();
                    break;
                }
            }
            if started.elapsed() > DRAIN {
                break;
            }
        }
    }

    fn notice(&mut self, notice: Notice) {
        match notice {
            Notice::Catalog(catalog) => self.app.catalog(catalog),
            Notice::Strategies { task, items } => self.app.strategies(task, items),
            Notice::Preview { question, answer } => self.app.preview(question, answer),
            Notice::Progress { job, text, share } => self.app.progress(job, text, share),
            Notice::Opened(result) => self.app.opened(result),
            Notice::Started { job, choice, result } => {
                let (run, result) = match result {
                    Ok(run) => (Some(run), Ok(())),
                    Err(e) => (None, Err(e)),
                };
                if self.app.started(job, choice, result) {
                    self.run = run;
                }
            }
        }
    }

    fn draw(&mut self) -> Result<()> {
        self.app.settle();
        let before = self.guard.written();
        let app = &self.app;
        self.terminal.draw(|frame| {
            let theme = app.theme.clone();
            let mut canvas = Canvas::new(frame.buffer_mut(), &theme);
            draw(&mut canvas, app);
        })?;
        self.app.dirty = false;
        let now = self.now();
        let area = self.app.area;
        let budget = BYTES_PER_SECOND * (f64::from(area.width) * f64::from(area.height) / 1920.0).max(1.0);
        let bytes = (self.guard.written() - before) as f64;
        self.last_frame = now;
        self.next_frame = now + FRAME.max(bytes / budget);
        Ok(())
    }

    /// After a stop from outside the shell has set the terminal as it likes.
    fn resumed(&mut self) -> Result<()> {
        if self.now() - self.resumed_at > 0.5 {
            self.guard.enter_again()?;
            self.redraw()?;
        }
        Ok(())
    }

    fn redraw(&mut self) -> Result<()> {
        self.resumed_at = self.now();
        let size = self.terminal.size()?;
        self.app.input(&Event::Resize(size.width, size.height));
        self.terminal.clear()?;
        self.next_frame = 0.0;
        Ok(())
    }

    /// Does what the state wants done. True where the screen is to be left.
    fn carry_out(&mut self) -> Result<bool> {
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
                Effect::Start { job, choice } => self.start(job, choice, false)?,
                Effect::StartNext { job, choice } => self.start(job, choice, true)?,
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
    ) -> Result<Option<std::thread::JoinHandle<()>>> {
        let Some(host) = self.host.clone() else { return Ok(None) };
        let notify = self.notify.clone();
        let thread = std::thread::Builder::new().name(thread.into()).spawn(move || {
            // The screen may be gone by the time the answer is there.
            notify.send(question(host.as_ref())).ok();
        })?;
        Ok(Some(thread))
    }

    fn start(&mut self, job: u64, choice: Choice, next: bool) -> Result<()> {
        let tell = self.notify.clone();
        let progress = Progress::new(move |text, share| {
            tell.send(Notice::Progress { job, text, share }).ok();
        });
        self.progress = Some(progress.clone());
        let thread = self.ask_on("start", move |host| {
            let choice = if next { host.next(&choice) } else { Some(choice) };
            let Some(choice) = choice else {
                let e = Error::input("there is no next puzzle here; choose another one");
                return Notice::Started { job, choice: empty_choice(), result: Err(e) };
            };
            let result = host.start(&choice, &progress);
            Notice::Started { job, choice, result }
        })?;
        self.starts.retain(|thread| !thread.is_finished());
        self.starts.extend(thread);
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
            false => self.app.say(format!("{} characters copied {}", text.chars().count(), where_to.join(" and "))),
        }
        Ok(())
    }

    /// Ends a search that still runs, so that its record is whole, and says how the screen was left.
    async fn leave(&mut self, served: Result<Ended>) -> Result<Left> {
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

fn empty_choice() -> Choice {
    Choice {
        task: String::new(),
        source: super::Source::Typed(String::new()),
        strategy: String::new(),
        model: String::new(),
    }
}

/// The run's next event; waits for ever where there is no run.
async fn next_event(run: &mut Option<RunHandle>) -> Option<SearchEvent> {
    match run {
        Some(run) => run.events.recv().await,
        None => std::future::pending().await,
    }
}

fn read_inputs(inputs: &UnboundedSender<std::io::Result<Event>>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let input = match crossterm::event::poll(READER_POLL) {
            Ok(true) => crossterm::event::read(),
            Ok(false) => continue,
            Err(e) => Err(e),
        };
        let failed = input.is_err();
        if inputs.send(input).is_err() || failed {
            return;
        }
    }
}

fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}
