//! `hf:owner/repo/file`: fetches a file from the Hugging Face Hub into that library's own cache, or finds it there.
//!
//! HF_HOME, HF_ENDPOINT and HF_TOKEN mean what they mean to that library's other users.

use super::Progress;
use crate::base::{Error, Result};
use hf_hub::HFClientSync;
use hf_hub::progress::{DownloadEvent, ProgressEvent, ProgressHandler};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How often the bytes so far are told and a wish to stop is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Bytes that have come, and bytes in all. 0 in all: not known yet.
#[derive(Default)]
struct Arrived {
    done: AtomicU64,
    total: AtomicU64,
}

impl ProgressHandler for Arrived {
    fn on_progress(&self, event: &ProgressEvent) {
        let ProgressEvent::Download(event) = event else { return };
        let (done, total) = match event {
            DownloadEvent::Start { total_bytes, .. } => (0, *total_bytes),
            // One file is asked for.
            DownloadEvent::Progress { files } => match files.first() {
                Some(file) => (file.bytes_completed, file.total_bytes),
                None => return,
            },
            DownloadEvent::AggregateProgress { bytes_completed, total_bytes, .. } => (*bytes_completed, *total_bytes),
            DownloadEvent::Complete => return,
        };
        self.done.store(done, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }
}

/// `spec` is what follows `hf:`.
pub fn fetch(spec: &str, progress: &dyn Progress) -> Result<PathBuf> {
    let mut parts = spec.splitn(3, '/').map(str::to_string);
    let (owner, repo, file) = match (parts.next(), parts.next(), parts.next()) {
        (Some(owner), Some(repo), Some(file)) if !owner.is_empty() && !repo.is_empty() && !file.is_empty() => {
            (owner, repo, file)
        }
        _ => return Err(Error::input(format!("`hf:{spec}` is not of the form hf:owner/repo/file.gguf"))),
    };
    progress.say(&format!("fetching {file} of {owner}/{repo}, unless it is there already"));
    let arrived = Arc::new(Arrived::default());
    let (send, receive) = channel();
    let handler = arrived.clone();
    // The library's call cannot be stopped, so it has a thread of its own, which ends with the program at the latest. What
    // it had half is kept under a name of its own in that library's cache and never taken for the file.
    std::thread::spawn(move || {
        let fetched = HFClientSync::new()
            .and_then(|client| client.model(owner, repo).download_file().filename(file).progress(handler).send());
        // Nobody listens after a wish to stop.
        send.send(fetched).ok();
    });
    loop {
        match receive.recv_timeout(LOOK) {
            Ok(fetched) => return fetched.map_err(|e| Error::fault(format!("hf:{spec}: {}", whole(&e)))),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::fault(format!("hf:{spec}: the download ended unexpectedly; try again")));
            }
            Err(RecvTimeoutError::Timeout) if progress.cancelled() => {
                return Err(Error::fault(format!(
                    "hf:{spec}: the download was ended; the next start fetches it again"
                )));
            }
            Err(RecvTimeoutError::Timeout) => {
                let total = arrived.total.load(Ordering::Relaxed);
                if total > 0 {
                    progress.bytes(arrived.done.load(Ordering::Relaxed).min(total), total);
                }
            }
        }
    }
}

/// An error with its causes: the outer one alone says no more than that a request failed.
fn whole(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}
