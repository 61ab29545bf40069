//! Waits for keys, events, signals and time, and hands them to the state; carries out what the state wants done.
//!
//! It has a thread and a small runtime of its own, so it may be called from a plain thread as well as from within an
//! asynchronous one (which it then blocks). Events are taken in as fast as they come; pictures are drawn when something
//! changed, at most thirty a second, and fewer where they would write too much.

mod effects;

use super::app::App;
use super::canvas::Canvas;
use super::draw::draw;
use super::replay::Recording;
use super::start::Catalog;
use super::terminal::{FrameWriter, Guard};
use super::{Begin, Choice, Host, Left, Progress, ScreenOptions, StrategyItem};
use crate::base::{Error, Result};
use crate::search::event::Event as SearchEvent;
use crate::search::run::RunHandle;
use crossterm::event::Event;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
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

/// Opens the screen: on the start screen, or with `begin` at once on its run. Blocks until it is left.
///
/// SIGINT, SIGTERM and SIGHUP leave the screen properly and come back in [`Left::signal`]. Their default actions do not
/// return afterwards (the runtime keeps its handlers), so the caller should end soon.
///
/// # Errors
/// No terminal, a terminal that goes away, keys that clash, and a panic of any thread while the screen is open (its
/// message has then been printed to a restored terminal).
pub fn run(host: Arc<dyn Host>, begin: Option<Begin>, options: ScreenOptions) -> Result<Left> {
    on_own_thread(move || {
        let mut app = App::new(&options, 80, 24)?;
        app.open(begin);
        serve(app, host, options)
    })
}

/// Opens the screen on a recorded run. Blocks until it is left.
///
/// # Errors
/// As [`run`].
pub fn replay(host: Arc<dyn Host>, recording: Recording, options: ScreenOptions) -> Result<Left> {
    on_own_thread(move || {
        let mut app = App::new(&options, 80, 24)?;
        app.open_replay(recording);
        serve(app, host, options)
    })
}

fn on_own_thread(work: impl FnOnce() -> Result<Left> + Send) -> Result<Left> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("screen".into()).spawn_scoped(scope, work)?;
        thread.join().unwrap_or_else(|_| Err(Error::fault("the screen failed; see the message above")))
    })
}

fn serve(app: App, host: Arc<dyn Host>, options: ScreenOptions) -> Result<Left> {
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
    host: Arc<dyn Host>,
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
    fn new(mut app: App, host: Arc<dyn Host>, options: ScreenOptions, guard: Guard) -> Result<Self> {
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
        // Clears, as `clear` does, but asks nothing: a terminal that does not say in time where its cursor is would end the
        // run.
        self.terminal.resize(size.into())?;
        self.next_frame = 0.0;
        Ok(())
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
