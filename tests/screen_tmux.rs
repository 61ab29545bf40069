//! The built program in a real tmux, with the terminal types that tmux gives its programs and with the Linux console's
//! (16 colours, ASCII). No model is needed: chance and a made-up one play it. Without tmux the tests say so and pass.
//!
//! - the screen is right under both types, with no colour that they do not have
//! - copying goes through tmux to its buffer, and into a file for terminals that refuse
//! - Ctrl-Z gives the shell back, `fg` the screen; any size in between is survived
//! - a lost connection saves the record, and `solve --continue` goes on from there
//! - keys from a file, with its mistakes told before the screen opens

#![expect(clippy::unwrap_used, reason = "the helpers of these tests may fail as tests do")]

mod common;

use common::Place;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long something may take to be shown.
const PATIENCE: Duration = Duration::from_secs(120);

static NEXT: AtomicUsize = AtomicUsize::new(0);

/// A tmux server of its own with one shell in it.
struct Tmux {
    socket: String,
    place: Place,
}

impl Tmux {
    /// `None` where there is no tmux.
    fn open(term: &str) -> Option<Self> {
        if Command::new("tmux").arg("-V").output().is_err() {
            println!("skipped: tmux is not here");
            return None;
        }
        let socket = format!("totara-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::SeqCst));
        let tmux = Self { socket, place: Place::new() };
        let conf = tmux.place.write(
            "tmux.conf",
            &format!(
                "set -g default-terminal {term}\nset -s set-clipboard on\nset -s escape-time 10\nset -g status off\n"
            ),
        );
        let folder = tmux.place.dir.path();
        let vars = [("TOTARA_STATE", "state"), ("TOTARA_CONFIG", "config"), ("TOTARA_CACHE", "cache")];
        let vars: Vec<String> = vars.iter().map(|(n, f)| format!("{n}={}", folder.join(f).display())).collect();
        let shell =
            format!("cd {} && exec env {} LC_ALL=C.UTF-8 PS1='ready$ ' sh -i", folder.display(), vars.join(" "));
        let ok = Command::new("tmux")
            .args(["-L", &tmux.socket, "-f", conf.to_str().unwrap()])
            .args(["new-session", "-d", "-x", "80", "-y", "24", &shell])
            .env_remove("TMUX")
            .status()
            .unwrap();
        assert!(ok.success());
        tmux.wait_for_shell();
        Some(tmux)
    }

    fn tmux(&self, args: &[&str]) -> String {
        let out = Command::new("tmux").args(["-L", &self.socket]).args(args).output().unwrap();
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    fn text(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    #[track_caller]
    fn wait_until(&self, what: &str, seen: impl Fn(&str) -> bool) -> String {
        let start = Instant::now();
        loop {
            let text = self.text();
            if seen(&text) {
                return text;
            }
            assert!(start.elapsed() < PATIENCE, "no {what} in:\n{text}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    #[track_caller]
    fn wait_for(&self, words: &str) -> String {
        self.wait_until(words, |text| text.contains(words))
    }

    /// Waits until the shell wants a command.
    #[track_caller]
    fn wait_for_shell(&self) -> String {
        let ready = |text: &str| text.lines().rfind(|l| !l.trim().is_empty()).is_some_and(|l| l.trim_end() == "ready$");
        self.wait_until("shell", ready)
    }

    fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// Types a command line for the built program.
    fn totara(&self, args: &str) {
        let line = format!("clear; {} {args}", env!("CARGO_BIN_EXE_totara"));
        self.tmux(&["send-keys", "-l", &line]);
        self.keys(&["Enter"]);
    }

    /// A search by chance on the screen, ended and looked at.
    fn solved(&self) -> String {
        self.totara("solve --model random-proposer --size 3 --seed 5");
        self.wait_for("look at the tree");
        self.keys(&["Escape"]);
        self.wait_until("the tree alone", |text| text.contains("1 Tree") && !text.contains("look at the tree"))
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

#[test]
fn the_screen_keeps_to_what_the_terminal_can_show() {
    for term in ["screen-256color", "linux"] {
        let Some(tmux) = Tmux::open(term) else { return };
        let text = tmux.solved();
        assert!(text.contains("SOLVED") && text.contains("2 Thought"), "{text}");
        assert_eq!(text.is_ascii(), term == "linux", "{term}:\n{text}");
        let coloured = tmux.tmux(&["capture-pane", "-p", "-e"]);
        assert!(coloured.contains("\u{1b}["), "there are colours");
        let high = |(_, rest): (usize, &str)| {
            let number: String = rest.chars().take_while(char::is_ascii_digit).collect();
            number.parse::<u32>().is_ok_and(|n| n >= 16)
        };
        let indexed = |kind| coloured.match_indices(kind).map(|(at, _)| (at, &coloured[at + 5..]));
        assert!(!indexed("38;5;").any(high) && !indexed("48;5;").any(high), "sixteen colours only under {term}");
        assert!(!coloured.contains("38;2;") && !coloured.contains("48;2;"), "{term}");
        // Borders stand below each other: the left one in every row between the first and the last.
        let rows: Vec<&str> = text.lines().skip(2).take(20).collect();
        assert!(rows.iter().all(|r| r.starts_with(['│', '|'])), "{text}");
        tmux.keys(&["?"]);
        tmux.wait_for("any other key closes");
        tmux.keys(&["Escape"]);
        tmux.wait_until("no help", |text| !text.contains("any other key closes"));
        tmux.keys(&["q"]);
        let text = tmux.wait_for_shell();
        assert!(text.contains("solved: right"), "how it ended is told after the screen:\n{text}");
    }
}

#[test]
fn a_copy_reaches_tmux_and_a_file() {
    let Some(tmux) = Tmux::open("screen-256color") else { return };
    tmux.solved();
    tmux.keys(&["b", "Y"]);
    tmux.wait_for("copied");
    let start = Instant::now();
    let file = tmux.place.path("state/copied.txt");
    let copied = loop {
        let buffer = tmux.tmux(&["show-buffer"]);
        if !buffer.is_empty() && file.is_file() {
            break buffer;
        }
        assert!(start.elapsed() < PATIENCE, "nothing in tmux's buffer");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(copied.trim().len() >= 3 && copied.trim().chars().all(|c| c.is_ascii_digit()), "{copied:?}");
    assert_eq!(std::fs::read_to_string(file).unwrap(), copied);
}

#[test]
fn ctrl_z_gives_the_shell_and_fg_the_screen_at_any_size() {
    let Some(tmux) = Tmux::open("screen-256color") else { return };
    tmux.solved();
    tmux.keys(&["C-z"]);
    tmux.wait_for_shell();
    tmux.tmux(&["send-keys", "-l", "echo typed; fg"]);
    tmux.keys(&["Enter"]);
    tmux.wait_for("1 Tree");
    for (width, height) in [("100", "34"), ("14", "5"), ("40", "12"), ("200", "50"), ("80", "24")] {
        tmux.tmux(&["resize-window", "-x", width, "-y", height]);
        let tiny = width == "14";
        tmux.wait_until(width, |text| {
            let widest = text.lines().map(|l| l.chars().count()).max().unwrap_or(0);
            if tiny { text.contains("too small") } else { widest == width.parse::<usize>().unwrap() }
        });
    }
    tmux.keys(&["q"]);
    tmux.wait_for_shell();
    tmux.tmux(&["send-keys", "-l", "echo st''ill a shell"]);
    tmux.keys(&["Enter"]);
    tmux.wait_for("still a shell");
}

/// Some hundred thoughts a level until the context is full: no machine ends it before the connection is lost.
const LONG: &str = "\
version: 1
name: long
about: long thoughts of a model that knows nothing
task: sorting
search: {policy: bfs, depth: 50, keep: 200}
generate:
  kind: sample
  n: 3
  prompt: \"{{ puzzle.input }}\"
  format: completion
  temperature: 1.0
  max_tokens: 60
evaluate: [logprob]
budget: {tokens: 10000000}
";

#[test]
fn a_lost_connection_saves_the_record_and_the_run_goes_on_from_it() {
    let Some(tmux) = Tmux::open("screen-256color") else { return };
    tmux.place.write("long.yaml", LONG);
    tmux.totara("solve --model random:tiny --strategy long.yaml --size 4");
    // The title counts them; their numbers have no room beside such texts.
    let thoughts = |text: &str| -> Option<usize> {
        text.split_once(" thoughts")?.0.split_whitespace().next_back()?.replace(',', "").parse().ok()
    };
    tmux.wait_until("two thoughts", |text| thoughts(text) >= Some(2));
    // As when an ssh connection goes: the terminal is gone, and the program gets SIGHUP.
    tmux.tmux(&["kill-session"]);
    let record = tmux.place.path("state/runs");
    let start = Instant::now();
    let text = loop {
        let found = std::fs::read_dir(&record).unwrap().flatten().next().unwrap().path();
        let text = std::fs::read_to_string(found).unwrap();
        if text.ends_with('\n') && text.contains(r#"{"event":"ended""#) {
            break text;
        }
        assert!(start.elapsed() < PATIENCE, "the record has no end");
        std::thread::sleep(Duration::from_millis(100));
    };
    let last = text.lines().last().unwrap();
    assert!(last.contains(r#""kind":"quit""#), "{last}");
    let grown = |text: &str| text.matches(r#"{"event":"grown""#).count();
    let limit = (grown(&text) + 2).to_string();
    let run = tmux.place.run(&["solve", "--continue", "last", "--no-tui", "--max-thoughts", &limit]).exits(3);
    assert!(run.err.contains("not solved"), "{}", run.err);
    let records: Vec<_> = std::fs::read_dir(&record).unwrap().flatten().map(|e| e.path()).collect();
    assert_eq!(records.len(), 2, "the first record is left as it is");
    let new =
        records.iter().map(|p| std::fs::read_to_string(p).unwrap()).find(|t| t.contains(r#""continued""#)).unwrap();
    assert_eq!(grown(&new), limit.parse::<usize>().unwrap(), "what came before is in the new record too");
    tmux.place.run(&["replay", "last", "--no-tui"]).exits(0);
}

#[test]
fn keys_come_from_a_file_whose_mistakes_are_told_first() {
    let Some(tmux) = Tmux::open("screen-256color") else { return };
    std::fs::create_dir(tmux.place.path("config")).unwrap();
    tmux.place.write("config/keys.yaml", "quit: j\n");
    tmux.totara("solve --model random-proposer --size 3");
    let text = tmux.wait_for("would mean both");
    assert!(text.replace('\n', "").contains("config/keys.yaml"), "{text}");
    tmux.place.write("config/keys.yaml", "quit: X\nhelp: f1 U\n");
    tmux.solved();
    tmux.keys(&["U"]);
    let text = tmux.wait_for("any other key closes");
    tmux.keys(&["G"]);
    let end = tmux.wait_for("leave (asks while a search runs)");
    assert!(end.contains("  X ") && text.contains("Help"), "{end}");
    tmux.keys(&["Escape"]);
    tmux.wait_until("no help", |text| !text.contains("any other key closes"));
    tmux.keys(&["q", "X"]);
    tmux.wait_for_shell();
}
