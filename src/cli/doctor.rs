//! `totara doctor`: what this machine offers, with remedies, and the kernels against their references.

use super::args::{Common, DoctorArgs};
use super::{out, solve};
use crate::base::size::{Human, free_ram};
use crate::base::text::sanitize_line;
use crate::base::{Error, Result};
use crate::bench::link;
use crate::device::cpu::{default_threads, simd::Simd};
use crate::device::cuda::driver::{self, Gpu};
use crate::model::list::{self, State};
use crate::model::store;
use crate::search::record;
use crate::tui::{ScreenOptions, ThemeName};
use serde_json::json;
use std::io::IsTerminal;
use std::path::Path;

mod selftest;

pub fn run(common: &Common, args: &DoctorArgs) -> Result<u8> {
    if args.selftest { selftest::run(common) } else { look(common) }
}

/// The card whose kernels are checked: that of `--device cuda:N`, or the first.
fn cards(common: &Common) -> Result<usize> {
    let ordinal = common.device.strip_prefix("cuda:").and_then(|n| n.parse().ok()).unwrap_or(0);
    match driver::count()? {
        count if ordinal < count => Ok(ordinal),
        count => Err(Error::fault(format!("the driver shows {count} cards, not cuda:{ordinal}"))),
    }
}

/// The first card, as a line.
fn card(common: &Common) -> Result<String> {
    let version = driver::version()?;
    let gpu = Gpu::open(cards(common)?)?;
    let (free, total) = gpu.memory()?;
    Ok(format!(
        "cuda:{} {}, {} multiprocessors, {} of {} free, driver for CUDA {}.{}",
        gpu.ordinal,
        gpu.name,
        gpu.multiprocessors,
        Human(free as u64),
        Human(total as u64),
        version / 1000,
        version % 1000 / 10
    ))
}

/// One line a subject.
fn look(common: &Common) -> Result<u8> {
    let mut rows: Vec<(&str, String)> = Vec::new();
    let sets: Vec<String> = Simd::available().iter().map(|s| s.to_string()).collect();
    rows.push(("cpu", format!("{} threads, {} (best: {})", default_threads(), sets.join(", "), Simd::best())));
    rows.push(("gpu", card(common).unwrap_or_else(|e| e.message().to_string())));
    rows.push((
        "memory",
        match free_ram() {
            Some(bytes) => format!("{} free", Human(bytes)),
            None => "unknown: neither /proc/meminfo nor a control group can be read; give --kv-budget".into(),
        },
    ));
    rows.push(("link", link(common)));
    rows.push(("terminal", terminal()));
    rows.push((
        "model cache",
        match store::models_dir() {
            Ok(dir) => format!("{}{}", dir.display(), writable(&dir)),
            Err(e) => e.message().to_string(),
        },
    ));
    let models = list::list(common.model_dir.as_deref());
    let good = models.iter().filter(|m| matches!(m.state, State::Info(_))).count();
    let bad = models.iter().filter(|m| matches!(m.state, State::Bad(_))).count();
    let hint = match (good, bad) {
        (0, 0) => ": `totara model pull` gets the default one",
        (0, _) => " (`totara model list` says why): `totara model pull` gets the default one",
        (_, 0) => "",
        _ => " (`totara model list` says why)",
    };
    rows.push(("models", format!("{good} here, {bad} unusable{hint}")));
    rows.push((
        "records",
        match record::runs_folder() {
            Ok(dir) => format!("{}{}", dir.display(), writable(&dir)),
            Err(e) => e.message().to_string(),
        },
    ));
    rows.push((
        "program",
        format!(
            "totara {} ({})",
            env!("CARGO_PKG_VERSION"),
            solve::command_line().first().cloned().unwrap_or_default()
        ),
    ));
    for (subject, text) in rows {
        if common.json {
            out::json(&json!({"subject": subject, "text": text}))?;
        } else {
            out::line(&format!("{subject:<12} {text}"))?;
        }
    }
    Ok(0)
}

/// What moves K/V, measured.
fn link(common: &Common) -> String {
    let second = |bytes: f64| format!("{}/s", Human(bytes as u64));
    let host = || format!("{} inside the host's memory (read plus written)", second(link::host()));
    match cards(common).and_then(Gpu::open).and_then(|gpu| link::card(&gpu)) {
        Ok(found) => format!(
            "{} to the card, {} back (pinned memory); {}",
            second(found.to_device),
            second(found.to_host),
            host()
        ),
        Err(_) => format!("no card, so no link; {}", host()),
    }
}

/// What the terminal shows, as far as its variables tell, and what to do where that is too little.
fn terminal() -> String {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let mut parts = Vec::new();
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        parts.push("no: the screen needs one, `solve --no-tui` does not".to_string());
    }
    match crossterm::terminal::size() {
        Ok((columns, rows)) if crate::tui::has_room(columns, rows) => parts.push(format!("{columns}x{rows}")),
        Ok((columns, rows)) => parts.push(format!("{columns}x{rows}: too small for the screen, make it larger")),
        Err(_) => parts.push("size unknown".into()),
    }
    let term = set("TERM");
    parts.push(match term.as_deref() {
        None => "TERM not set: export TERM=xterm-256color if the screen stays dark".into(),
        Some("dumb") => "TERM dumb: the screen cannot be shown, `solve --no-tui` can".into(),
        Some(term) => format!("TERM {}", sanitize_line(term)),
    });
    let options = ScreenOptions::from_environment(None, false, false);
    parts.push(if options.ascii {
        "ASCII (this locale or console has no Unicode: LANG=C.UTF-8 gives lines and bars)".into()
    } else {
        "Unicode (--ascii if lines are broken)".to_string()
    });
    parts.push(match options.theme {
        ThemeName::None => "no colours (NO_COLOR, or TERM)".into(),
        _ => "16 colours (--theme light on a light ground)".into(),
    });
    if set("TMUX").is_some() {
        parts.push("inside tmux: copying needs `set -g set-clipboard on`".into());
    }
    parts.join(", ")
}

/// What is in the way of making files in a folder (or in the nearest parent that exists), and the remedy; empty: nothing.
fn writable(dir: &Path) -> String {
    const REMEDY: &str = "set TOTARA_CACHE or TOTARA_STATE to a folder that is";
    let whole = std::path::absolute(dir).unwrap_or_else(|_| dir.to_path_buf());
    let Some(there) = whole.ancestors().find(|d| d.exists()) else {
        return format!(" (cannot be made: {REMEDY} there)");
    };
    if !there.is_dir() {
        return format!(
            " (cannot be made, {} is no folder: {REMEDY} one)",
            sanitize_line(&there.display().to_string())
        );
    }
    let free = std::ffi::CString::new(there.as_os_str().as_encoded_bytes()).ok().is_some_and(|path| {
        // SAFETY: `path` is a NUL-terminated string that lives through the call; access only reads it.
        unsafe { libc::access(path.as_ptr(), libc::W_OK) == 0 }
    });
    if free { String::new() } else { format!(" (not writable: {REMEDY})") }
}
