//! The screen in a real pseudo-terminal, without a model: a made-up host grows a made-up tree.
//!
//! The program in the terminal is this test binary itself, told by a variable to play the child. What is looked at: modes
//! are left in every case (row 45 of the public bug reports), nothing is written while nothing happens, streaming stays
//! below 20 KB/s at 80x24, and any size is survived (row 47).

#![expect(clippy::unwrap_used, reason = "the helpers of these tests may fail as tests do")]

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use totara::base::{Error, Result};
use totara::lm::{Counters, KvCounters, SpeedCounters, Usage};
use totara::search::event::{Author, Command, Event, Limits, Outcome, Purpose, Reason};
use totara::search::run::RunHandle;
use totara::search::tree::NodeId;
use totara::tui::{Choice, Fork, Host, ModelItem, Progress, Recording, RunItem, ScreenOptions, StrategyItem, TaskItem};

/// Thoughts after which the `burst` part falls silent.
const BURST: u32 = 300;

const PLAY: &str = "TOTARA_SCREEN_TEST_CHILD";
const MARK: &str = "TOTARA_SCREEN_TEST_MARK";

/// How long something may take to be shown.
const PATIENCE: Duration = Duration::from_secs(120);

// ---- the child ----

struct Pretend {
    part: String,
}

impl Host for Pretend {
    fn tasks(&self) -> Vec<TaskItem> {
        vec![TaskItem {
            name: "sorting".into(),
            about: "sort numbers".into(),
            input_forms: "integers".into(),
            example: "3 1 2".into(),
            default_strategy: "tot-bfs".into(),
            default_size: 8,
        }]
    }

    fn strategies(&self, _task: &str) -> Vec<StrategyItem> {
        vec![StrategyItem { name: "tot-bfs".into(), about: "breadth first".into(), error: None }]
    }

    fn models(&self) -> Vec<ModelItem> {
        vec![ModelItem { name: "pretend".into(), bytes: None, note: String::new(), error: None }]
    }

    fn last_runs(&self) -> Vec<RunItem> {
        Vec::new()
    }

    fn preview(&self, _choice: &Choice) -> Result<String> {
        Ok("sort 3 1 2".into())
    }

    fn start(&self, _choice: &Choice, progress: &Progress) -> Result<RunHandle> {
        progress.say("loading the pretended model", Some(0.5));
        std::thread::sleep(Duration::from_millis(300));
        if self.part == "fail" {
            return Err(Error::input("/no/such/model.gguf: there is no such file; try `totara model list`"));
        }
        let (events, event_receiver) = tokio::sync::mpsc::unbounded_channel();
        let (commands, command_receiver) = tokio::sync::mpsc::unbounded_channel();
        let part = self.part.clone();
        std::thread::spawn(move || pretend(&part, &events, command_receiver));
        Ok(RunHandle { events: event_receiver, commands })
    }

    fn take_up(&self, fork: &Fork, progress: &Progress) -> Result<RunHandle> {
        self.start(&fork.choice, progress)
    }

    fn open_run(&self, _id: &str) -> Result<Recording> {
        Err(Error::input("nothing is recorded here"))
    }
}

type Events = tokio::sync::mpsc::UnboundedSender<Event>;

fn pretend(part: &str, events: &Events, mut commands: tokio::sync::mpsc::UnboundedReceiver<Command>) {
    let send = |event| events.send(event).is_ok();
    send(Event::Started {
        task: "sorting".into(),
        puzzle: "1-8".into(),
        title: "sort 3 1 2".into(),
        strategy: "tot-bfs".into(),
        model: "pretend".into(),
        seed: 1,
        budget: Limits { tokens: Some(100_000), thoughts: None, seconds: None },
        among_allowed: false,
    });
    let mut nodes = 1u32;
    let mut step = 0u64;
    loop {
        match commands.try_recv() {
            Ok(Command::Quit) => {
                send(Event::Ended { outcome: outcome(nodes) });
                return;
            }
            Ok(Command::Step) => panic!("a worker went wrong"),
            Err(tokio::sync::mpsc::error::TryRecvError::Disconnected) => return,
            Ok(_) | Err(_) => {}
        }
        std::thread::sleep(Duration::from_millis(if part == "burst" { 1 } else { 2 }));
        if part == "burst" && nodes == BURST {
            continue;
        }
        if part == "idle" && nodes > 5 {
            // Sleeps until it is told something: the time that is measured is the screen's alone.
            if matches!(commands.blocking_recv(), Some(Command::Quit)) {
                send(Event::Ended { outcome: outcome(nodes) });
            }
            return;
        }
        if part == "short" && nodes > 5 {
            send(Event::Ended { outcome: outcome(nodes) });
            return;
        }
        step += 1;
        // Four samples at about 500 tokens a second in all; a thought every 16 tokens.
        let parent = NodeId((nodes - 1) / 3);
        if step % 16 == 1 {
            send(Event::Asked {
                request: step / 16,
                node: parent,
                purpose: Purpose::Generate,
                samples: 4,
                prompt: "p".into(),
            });
        }
        send(Event::Token {
            request: (step - 1) / 16,
            node: parent,
            sample: (step % 4) as usize,
            text: format!(" {}", step % 10),
            logprob: -0.4,
        });
        send(Event::Counters { counters: counters(step) });
        if step.is_multiple_of(16) {
            for sample in 0..4 {
                send(Event::Replied {
                    request: (step - 1) / 16,
                    node: parent,
                    sample,
                    text: "x".into(),
                    finish: "end".into(),
                    logprob: None,
                    usage: Usage::default(),
                    pieces: vec![1],
                    piece_logprobs: vec![-0.4],
                });
            }
            send(Event::Grown {
                node: NodeId(nodes),
                parent,
                text: format!("thought number {nodes}"),
                by: Author::Model,
                logprob: None,
                token_logprobs: Vec::new(),
                usage: Usage::default(),
            });
            send(Event::Scored { node: NodeId(nodes), score: f64::from(nodes % 10) / 10.0, parts: Vec::new() });
            nodes += 1;
            if part == "burst" && nodes == BURST {
                std::fs::write(std::env::var_os(MARK).unwrap(), "silent").unwrap();
            }
        }
    }
}

fn counters(step: u64) -> Counters {
    Counters {
        kv: Some(KvCounters {
            pages_total: 512,
            pages_live: step % 512,
            tokens_stored: step,
            tokens_logical: 3 * step,
            ..KvCounters::default()
        }),
        speed: Some(SpeedCounters { tokens_per_second: 400.0 + (step % 100) as f64, ..SpeedCounters::default() }),
        ..Counters::default()
    }
}

fn outcome(nodes: u32) -> Outcome {
    Outcome {
        solved: false,
        reason: Reason::Quit,
        node: None,
        answer: None,
        answer_text: None,
        error_score: None,
        why: String::new(),
        thoughts: u64::from(nodes),
        proposals: 0,
        usage: Usage::default(),
        seconds: 0.0,
        link: None,
    }
}

/// Not a test: the child's part, when it is asked for.
#[test]
fn child() {
    let Ok(part) = std::env::var(PLAY) else { return };
    let left = totara::tui::run(Arc::new(Pretend { part }), None, ScreenOptions::default());
    let code = match left {
        Ok(left) => match left.signal {
            Some(signal) => 128 + signal,
            None => left.outcome.map_or(0, |o| i32::from(o.reason.exit_code())),
        },
        Err(e) => {
            eprintln!("error: {e}");
            i32::from(e.exit_code())
        }
    };
    println!("back in the shell");
    std::process::exit(code);
}

// ---- the terminal around it ----

struct Terminal {
    child: Box<dyn Child + Send + Sync>,
    master: Box<dyn MasterPty + Send>,
    writer: Box<dyn Write + Send>,
    screen: Arc<Mutex<vt100::Parser>>,
    bytes: Arc<AtomicUsize>,
    /// Whether the terminal takes nothing in.
    stuck: Arc<AtomicBool>,
    reading: JoinHandle<()>,
    /// Where the child notes that it falls silent.
    mark: tempfile::TempPath,
}

impl Terminal {
    fn open(part: &str) -> Self {
        let size = PtySize { rows: 24, cols: 80, pixel_width: 0, pixel_height: 0 };
        let pair = native_pty_system().openpty(size).unwrap();
        let mut command = CommandBuilder::new(std::env::current_exe().unwrap());
        command.args(["child", "--exact", "--nocapture", "--test-threads=1"]);
        command.env(PLAY, part);
        let mark = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        command.env(MARK, mark.as_os_str());
        command.env("RUST_BACKTRACE", "0");
        command.env("TERM", "xterm-256color");
        let child = pair.slave.spawn_command(command).unwrap();
        drop(pair.slave);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(24, 80, 0)));
        let bytes = Arc::new(AtomicUsize::new(0));
        let mut reader = pair.master.try_clone_reader().unwrap();
        let (shown, counted) = (Arc::clone(&screen), Arc::clone(&bytes));
        let stuck = Arc::new(AtomicBool::new(false));
        let waits = Arc::clone(&stuck);
        let reading = std::thread::spawn(move || {
            let mut buffer = [0u8; 65536];
            while let Ok(n) = reader.read(&mut buffer) {
                while waits.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(10));
                }
                if n == 0 {
                    return;
                }
                counted.fetch_add(n, Ordering::SeqCst);
                shown.lock().unwrap().process(&buffer[..n]);
            }
        });
        let writer = pair.master.take_writer().unwrap();
        Self { child, master: pair.master, writer, screen, bytes, stuck, reading, mark }
    }

    fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    fn wait_for(&self, words: &str) {
        self.wait_until(words, |text| text.contains(words));
    }

    fn wait_until(&self, what: &str, seen: impl Fn(&str) -> bool) {
        let start = Instant::now();
        while !seen(&self.text()) {
            assert!(start.elapsed() < PATIENCE, "not seen: `{what}` in:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn press(&mut self, keys: &str) {
        self.writer.write_all(keys.as_bytes()).unwrap();
        self.writer.flush().unwrap();
    }

    fn start_run(&mut self) {
        self.wait_for("sort 3 1 2");
        self.press("\r");
        self.wait_for("1 Tree");
        self.wait_for("thought number 3");
    }

    fn resize(&self, cols: u16, rows: u16) {
        self.screen.lock().unwrap().screen_mut().set_size(rows, cols);
        self.master.resize(PtySize { rows, cols, pixel_width: 0, pixel_height: 0 }).unwrap();
    }

    fn signal(&self, name: &str) {
        let pid = self.child.process_id().unwrap().to_string();
        assert!(std::process::Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    /// The child's exit code; what it said after the screen is on the terminal by then.
    fn end(&mut self) -> u32 {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if start.elapsed() > PATIENCE {
                self.child.kill().ok();
                panic!("the child does not end:\n{}", self.text());
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        // The reader has seen all that was written once nobody holds the other side any more.
        while !self.reading.is_finished() {
            assert!(start.elapsed() < 2 * PATIENCE, "somebody holds the terminal");
            std::thread::sleep(Duration::from_millis(5));
        }
        status.exit_code()
    }

    fn check_restored(&self) {
        let parser = self.screen.lock().unwrap();
        let screen = parser.screen();
        assert!(!screen.alternate_screen(), "the alternate screen was left");
        assert!(!screen.hide_cursor(), "the cursor is shown");
        assert!(!screen.bracketed_paste(), "bracketed paste is off");
        assert_eq!(screen.mouse_protocol_mode(), vt100::MouseProtocolMode::None, "the mouse is free");
    }

    /// Milliseconds of processor time the child has used.
    /// Waits until no more than `bytes` are written in a time of this length.
    #[track_caller]
    fn wait_for_rest(&self, length: Duration, bytes: usize) {
        let start = Instant::now();
        loop {
            let before = self.bytes.load(Ordering::SeqCst);
            std::thread::sleep(length);
            let written = self.bytes.load(Ordering::SeqCst) - before;
            if written <= bytes {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{written} bytes in {length:?}, and no rest");
        }
    }

    fn cpu_ms(&self) -> u64 {
        let pid = self.child.process_id().unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        // utime and stime, in hundredths of a second on every Linux there is.
        (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()) * 10
    }
}

#[test]
fn the_terminal_is_given_back_after_leaving() {
    let mut terminal = Terminal::open("stream");
    terminal.start_run();
    {
        let parser = terminal.screen.lock().unwrap();
        assert!(parser.screen().alternate_screen() && parser.screen().bracketed_paste());
    }
    terminal.press("q");
    terminal.wait_for("Leave?");
    terminal.press("y");
    assert_eq!(terminal.end(), 130, "leaving a running search");
    terminal.check_restored();
    terminal.wait_for("back in the shell");
}

#[test]
fn a_panic_of_any_thread_is_readable_and_ends_the_screen() {
    let mut terminal = Terminal::open("stream");
    terminal.start_run();
    terminal.press("s");
    assert_eq!(terminal.end(), 4);
    terminal.check_restored();
    terminal.wait_for("a worker went wrong");
    terminal.wait_for("error: a thread of the program failed");
}

/// This terminal, as a slow line, never says where its cursor is.
#[test]
fn drawing_anew_asks_the_terminal_nothing() {
    let mut terminal = Terminal::open("stream");
    terminal.start_run();
    terminal.press("\x0c");
    terminal.press("?");
    terminal.wait_for("Help");
    terminal.press("\x1b");
    terminal.wait_until("the help has gone", |text| !text.contains("Help"));
    terminal.wait_for("1 Tree");
    terminal.press("qy");
    assert_eq!(terminal.end(), 130);
    terminal.check_restored();
}

#[test]
fn signals_give_the_terminal_back() {
    for (name, code) in [("-TERM", 143), ("-HUP", 129), ("-INT", 130)] {
        let mut terminal = Terminal::open("stream");
        terminal.start_run();
        terminal.signal(name);
        assert_eq!(terminal.end(), code, "{name}");
        terminal.check_restored();
    }
}

#[test]
fn a_start_that_fails_says_so_in_place() {
    let mut terminal = Terminal::open("fail");
    terminal.wait_for("sort 3 1 2");
    terminal.press("\r");
    terminal.wait_for("loading the pretended model");
    terminal.wait_for("/no/such/model.gguf: there is no such file");
    terminal.press("q");
    assert_eq!(terminal.end(), 0);
    terminal.check_restored();
}

#[test]
fn an_idle_screen_writes_its_clock_alone_and_costs_next_to_nothing() {
    let mut terminal = Terminal::open("idle");
    terminal.start_run();
    // The last thought there is; what followed from it is drawn once the clock alone is.
    terminal.wait_for("thought number 5");
    terminal.wait_for_rest(Duration::from_secs(1), 100);
    let (bytes, cpu) = (terminal.bytes.load(Ordering::SeqCst), terminal.cpu_ms());
    std::thread::sleep(Duration::from_secs(2));
    let written = terminal.bytes.load(Ordering::SeqCst) - bytes;
    println!("idle: {written} bytes written in 2 s");
    assert!(written <= 200, "{written} bytes written while only the clock moves");
    let used = terminal.cpu_ms() - cpu;
    println!("idle: {used} ms of processor time in 2 s");
    assert!(used <= 100, "{used} ms of processor time in 2 s");
    terminal.press("qy");
    assert_eq!(terminal.end(), 130);
}

#[test]
fn nothing_is_written_and_little_computed_where_nothing_happens() {
    let mut terminal = Terminal::open("short");
    terminal.wait_for("sort 3 1 2");
    let quiet = |terminal: &Terminal, what: &str| {
        // What was on its way is drawn, and a message has gone, which stays for less than this.
        terminal.wait_for_rest(Duration::from_secs(5), 0);
        let (bytes, cpu) = (terminal.bytes.load(Ordering::SeqCst), terminal.cpu_ms());
        std::thread::sleep(Duration::from_secs(4));
        let written = terminal.bytes.load(Ordering::SeqCst) - bytes;
        let used = terminal.cpu_ms() - cpu;
        println!("{what}: {written} bytes and {used} ms of processor time in 4 s");
        assert_eq!(written, 0, "{what}");
        assert!(used < 80, "{what}: {used} ms of processor time in 4 s, which is 2 % and more");
    };
    quiet(&terminal, "the start screen");
    terminal.press("\r");
    // The search may have ended before its first picture.
    terminal.wait_for("ENDED");
    quiet(&terminal, "a run that has ended");
    terminal.press("q");
    assert_eq!(terminal.end(), 130, "the run's own end");
}

#[test]
fn streaming_stays_below_twenty_kilobytes_a_second() {
    let mut terminal = Terminal::open("stream");
    terminal.start_run();
    std::thread::sleep(Duration::from_millis(500));
    let bytes = terminal.bytes.load(Ordering::SeqCst);
    let start = Instant::now();
    std::thread::sleep(Duration::from_secs(3));
    let each = (terminal.bytes.load(Ordering::SeqCst) - bytes) as f64 / start.elapsed().as_secs_f64();
    println!("streaming 500 tokens a second at 80x24: {:.1} KB/s", each / 1000.0);
    assert!(each < 20_000.0, "{each} bytes a second");
    assert!(each > 500.0, "the tree is seen growing");
    terminal.press("qy");
    assert_eq!(terminal.end(), 130);
}

#[test]
fn any_size_is_survived_and_the_keys_still_work() {
    let mut terminal = Terminal::open("stream");
    terminal.start_run();
    for (cols, rows) in [(14, 54), (10, 11), (40, 3), (3, 40), (2, 2), (1, 1), (300, 1), (80, 24)] {
        terminal.resize(cols, rows);
        // The mouse along the last column and row, as terminals report it.
        terminal.press(&format!("\x1b[<35;{cols};{rows}M\x1b[<0;{cols};{rows}M\x1b[<0;{cols};{rows}m"));
        std::thread::sleep(Duration::from_millis(120));
    }
    terminal.wait_for("1 Tree");
    terminal.press("?");
    terminal.wait_for("Help");
    terminal.press("\x1b");
    // An Escape that is followed at once by more is the beginning of a sequence.
    terminal.wait_until("the help has gone", |text| !text.contains("Help"));
    terminal.press("\x1b[200~q\nd\n:quit\n\x1b[201~");
    terminal.wait_for("text fields only");
    terminal.press("qy");
    assert_eq!(terminal.end(), 130);
    terminal.check_restored();
}

#[test]
fn a_stuck_terminal_loses_frames_and_never_tokens() {
    let mut terminal = Terminal::open("burst");
    terminal.start_run();
    terminal.stuck.store(true, Ordering::SeqCst);
    // All thoughts come meanwhile, which fills what the kernel keeps of a terminal's output, some 64 KB.
    let start = Instant::now();
    while std::fs::metadata(&terminal.mark).unwrap().len() == 0 {
        assert!(start.elapsed() < PATIENCE, "the pretended search does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    let bytes = terminal.bytes.load(Ordering::SeqCst);
    terminal.stuck.store(false, Ordering::SeqCst);
    terminal.wait_for(&format!("{} thoughts", BURST - 1));
    let late = terminal.bytes.load(Ordering::SeqCst) - bytes;
    println!("after {:?} without a reader: {late} bytes", start.elapsed());
    // What the kernel had taken, and a few frames; all that was missed would be more than 100 KB.
    assert!(late < 90_000, "{late} bytes written at once");
    terminal.press("qy");
    assert_eq!(terminal.end(), 130);
    terminal.check_restored();
}
