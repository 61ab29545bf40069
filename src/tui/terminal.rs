//! The terminal's modes: entered together, left together, whatever happens in between.
//!
//! They are left on drop (so on return and on error), by the panic hook (before the message is printed, whichever thread
//! panicked), and before the program stops for Ctrl-Z.

use crossterm::event::{DisableBracketedPaste, DisableMouseCapture, EnableBracketedPaste, EnableMouseCapture};
use crossterm::style::{Attribute, SetAttribute};
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use crossterm::{cursor, queue};
use ratatui::backend::{Backend, CrosstermBackend};
use std::io::{self, Write};
use std::panic;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;

type Hook = dyn Fn(&panic::PanicHookInfo<'_>) + Send + Sync;

/// What the guard, the writer and the panic hook share.
struct Shared {
    mouse: bool,
    entered: AtomicBool,
    /// Held while a frame is written, so that leaving does not fall into the middle of one.
    pen: Mutex<()>,
    written: AtomicU64,
    panicked: AtomicBool,
    woken: Notify,
}

impl Shared {
    fn enter(&self) -> io::Result<()> {
        enable_raw_mode()?;
        self.entered.store(true, Ordering::SeqCst);
        let mut bytes = Vec::new();
        queue!(bytes, EnterAlternateScreen, cursor::Hide, EnableBracketedPaste)?;
        if self.mouse {
            queue!(bytes, EnableMouseCapture)?;
        }
        write_all(&bytes)
    }

    /// Does nothing where the modes are not entered. Errors are of no use here: there may be no terminal any more.
    fn leave(&self) {
        if !self.entered.swap(false, Ordering::SeqCst) {
            return;
        }
        // A frame under way ends first. If its thread is the one that panicked it never ends: then it is not waited for.
        let mut pen = self.pen.try_lock();
        for _ in 0..20 {
            if pen.is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
            pen = self.pen.try_lock();
        }
        let mut bytes = Vec::new();
        let queued = queue!(
            bytes,
            DisableMouseCapture,
            DisableBracketedPaste,
            SetAttribute(Attribute::Reset),
            LeaveAlternateScreen,
            cursor::Show
        );
        if queued.is_ok() {
            write_all(&bytes).ok();
        }
        disable_raw_mode().ok();
    }
}

/// Owns the modes; leaves them on drop.
pub struct Guard {
    shared: Arc<Shared>,
    previous: Arc<Hook>,
}

impl Guard {
    pub fn enter(mouse: bool) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            mouse,
            entered: AtomicBool::new(false),
            pen: Mutex::new(()),
            written: AtomicU64::new(0),
            panicked: AtomicBool::new(false),
            woken: Notify::new(),
        });
        let previous: Arc<Hook> = Arc::from(panic::take_hook());
        let (hook_shared, hook_previous) = (Arc::clone(&shared), Arc::clone(&previous));
        panic::set_hook(Box::new(move |info| {
            hook_shared.panicked.store(true, Ordering::SeqCst);
            hook_shared.leave();
            hook_previous(info);
            hook_shared.woken.notify_one();
        }));
        // From here on dropping the guard undoes whatever was done.
        let guard = Self { shared, previous };
        guard.shared.enter()?;
        Ok(guard)
    }

    pub fn writer(&self) -> FrameWriter {
        FrameWriter { shared: Arc::clone(&self.shared), buffer: Vec::new(), unchanged: unchanged() }
    }

    /// Bytes written to the terminal so far.
    pub fn written(&self) -> u64 {
        self.shared.written.load(Ordering::Relaxed)
    }

    /// Whether a thread has panicked since the modes were entered: the screen must not go on.
    pub fn panicked(&self) -> bool {
        self.shared.panicked.load(Ordering::SeqCst)
    }

    /// Waits until some thread panics.
    pub async fn panic(&self) {
        self.shared.woken.notified().await;
    }

    pub fn leave(&self) {
        self.shared.leave();
    }

    /// Enters the modes again, also where something else changed them behind our back.
    pub fn enter_again(&self) -> io::Result<()> {
        self.shared.leave();
        self.shared.enter()
    }

    /// Stops the program as Ctrl-Z does elsewhere, and comes back with `fg`.
    pub fn suspend(&self) -> io::Result<()> {
        self.shared.leave();
        // SAFETY: raise takes no pointers. The signal goes to this thread, so the program has stopped and was continued
        // by the time it returns.
        unsafe {
            libc::raise(libc::SIGTSTP);
        }
        self.shared.enter()
    }

    /// Writes something that is no picture: text for the clipboard.
    pub fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let mut writer = self.writer();
        writer.write_all(bytes)?;
        writer.flush()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.shared.leave();
        if !std::thread::panicking() {
            let previous = Arc::clone(&self.previous);
            panic::set_hook(Box::new(move |info| previous(info)));
        }
    }
}

/// Collects a frame and writes it at once. After the modes are left it swallows what is written.
pub struct FrameWriter {
    shared: Arc<Shared>,
    buffer: Vec<u8>,
    /// What a frame without any change is made of.
    unchanged: Vec<u8>,
}

/// The bytes of a frame in which no cell changes: the pen is reset and the cursor hidden, as they are already. Such a
/// frame is not written, so that a screen on which nothing moves is silent.
fn unchanged() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut backend = CrosstermBackend::new(&mut bytes);
    // Writing to memory cannot fail.
    let _ = backend.draw(std::iter::empty()).and_then(|()| backend.hide_cursor());
    bytes
}

impl Write for FrameWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() || self.buffer == self.unchanged {
            self.buffer.clear();
            return Ok(());
        }
        let bytes = std::mem::take(&mut self.buffer);
        let _pen = self.shared.pen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !self.shared.entered.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.shared.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        write_all(&bytes)
    }
}

/// Writes to standard output, also where it does not block and is full.
fn write_all(mut bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    while !bytes.is_empty() {
        match out.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(5)),
            Err(e) => return Err(e),
        }
    }
    loop {
        match out.flush() {
            Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(5)),
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::layout::Rect;
    use ratatui::widgets::Paragraph;
    use ratatui::{Terminal, TerminalOptions, Viewport};

    /// Frames as the writer gets them, one by one.
    #[derive(Default)]
    struct Frames(Vec<u8>, Arc<Mutex<Vec<Vec<u8>>>>);

    impl Write for Frames {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            self.1.lock().unwrap().push(std::mem::take(&mut self.0));
            Ok(())
        }
    }

    #[test]
    fn a_frame_without_changes_is_known_by_its_bytes_and_no_other_is() {
        let frames = Arc::default();
        let backend = CrosstermBackend::new(Frames(Vec::new(), Arc::clone(&frames)));
        let viewport = Viewport::Fixed(Rect::new(0, 0, 20, 2));
        let mut terminal = Terminal::with_options(backend, TerminalOptions { viewport }).unwrap();
        let kinds: Vec<bool> = ["a", "a", "b", "b", " ", " "]
            .map(|text| {
                frames.lock().unwrap().clear();
                terminal.draw(|frame| frame.render_widget(Paragraph::new(text), frame.area())).unwrap();
                frames.lock().unwrap().concat() == unchanged()
            })
            .to_vec();
        assert_eq!(kinds, [false, true, false, true, false, true]);
    }
}
