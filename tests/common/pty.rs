//! The built program in a real pseudo-terminal: what it shows, keys, signals, and what is left of it.

use super::Place;
use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};
use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long something may take to be shown, where the test does not say.
const PATIENCE: Duration = Duration::from_secs(180);

pub struct Terminal {
    child: Box<dyn Child + Send + Sync>,
    master: Box<dyn MasterPty + Send>,
    writer: Box<dyn Write + Send>,
    screen: Arc<Mutex<vt100::Parser>>,
    bytes: Arc<Mutex<Vec<u8>>>,
    reading: JoinHandle<()>,
}

impl Terminal {
    /// The program at 80x24, in that place and with these variables.
    pub fn open(args: &[&str], place: &Place, environment: &[(&str, String)]) -> Self {
        let size = PtySize { rows: 24, cols: 80, pixel_width: 0, pixel_height: 0 };
        let pair = native_pty_system().openpty(size).expect("a pseudo-terminal");
        let mut command = CommandBuilder::new(env!("CARGO_BIN_EXE_totara"));
        command.args(args);
        command.cwd(place.dir.path());
        command.env("TERM", "xterm-256color");
        command.env("TOTARA_STATE", place.path("state"));
        for (name, value) in environment {
            command.env(name, value);
        }
        let child = pair.slave.spawn_command(command).expect("the program starts");
        drop(pair.slave);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(24, 80, 0)));
        let mut reader = pair.master.try_clone_reader().expect("a reader");
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let (shown, written) = (Arc::clone(&screen), Arc::clone(&bytes));
        let reading = std::thread::spawn(move || {
            let mut buffer = [0u8; 65536];
            while let Ok(n) = reader.read(&mut buffer) {
                if n == 0 {
                    return;
                }
                written.lock().expect("the bytes").extend_from_slice(&buffer[..n]);
                shown.lock().expect("the screen").process(&buffer[..n]);
            }
        });
        let writer = pair.master.take_writer().expect("a writer");
        Self { child, master: pair.master, writer, screen, bytes, reading }
    }

    /// Whether these bytes were ever written to the terminal.
    pub fn has_written(&self, sequence: &str) -> bool {
        let bytes = self.bytes.lock().expect("the bytes");
        bytes.windows(sequence.len()).any(|window| window == sequence.as_bytes())
    }

    pub fn text(&self) -> String {
        self.screen.lock().expect("the screen").screen().contents()
    }

    #[track_caller]
    pub fn wait_for(&self, words: &str) {
        self.wait_until(words, |text| text.contains(words));
    }

    #[track_caller]
    pub fn wait_until(&self, what: &str, seen: impl Fn(&str) -> bool) {
        let start = Instant::now();
        while !seen(&self.text()) {
            assert!(start.elapsed() < PATIENCE, "not seen: `{what}` in:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn press(&mut self, keys: &str) {
        self.press_bytes(keys.as_bytes());
    }

    /// Keys for a program that has just ended are nobody's, which is what the system says then.
    pub fn press_bytes(&mut self, bytes: &[u8]) {
        if let Err(error) = self.writer.write_all(bytes).and_then(|()| self.writer.flush()) {
            assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
        }
    }

    pub fn resize(&self, cols: u16, rows: u16) {
        self.screen.lock().expect("the screen").screen_mut().set_size(rows, cols);
        self.resize_alone(cols, rows);
    }

    /// The program's side of a new size. The emulator here keeps its own: it does not bear what is written for sizes that
    /// were there a moment ago.
    pub fn resize_alone(&self, cols: u16, rows: u16) {
        self.master.resize(PtySize { rows, cols, pixel_width: 0, pixel_height: 0 }).expect("a new size");
    }

    pub fn signal(&self, name: &str) {
        let pid = self.child.process_id().expect("a process").to_string();
        assert!(std::process::Command::new("kill").args([name, &pid]).status().expect("kill").success());
    }

    /// The program's exit code; what it said after the screen is on the terminal by then.
    #[track_caller]
    pub fn end(&mut self) -> u32 {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a status") {
                break status;
            }
            if start.elapsed() > PATIENCE {
                self.child.kill().ok();
                panic!("the program does not end:\n{}", self.text());
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        self.drain();
        status.exit_code()
    }

    /// Waits until the reader has seen all that was written: nobody holds the other side any more.
    fn drain(&self) {
        let start = Instant::now();
        while !self.reading.is_finished() && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[track_caller]
    pub fn check_restored(&self) {
        let parser = self.screen.lock().expect("the screen");
        let screen = parser.screen();
        assert!(!screen.alternate_screen(), "the alternate screen was left");
        assert!(!screen.hide_cursor(), "the cursor is shown");
        assert!(!screen.bracketed_paste(), "bracketed paste is off");
        assert_eq!(screen.mouse_protocol_mode(), vt100::MouseProtocolMode::None, "the mouse is free");
    }
}
