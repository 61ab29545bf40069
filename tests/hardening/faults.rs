//! Whatever the machine refuses: one clear line, the right exit code, and every finished result.

use super::common::pty::Terminal;
use super::common::{Place, Run};
use super::{finish, with_memory};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const SOLVE: &[&str] =
    &["solve", "--no-tui", "--json", "--model", "random-proposer", "--task", "sorting", "--size", "4"];
const EVAL: &[&str] = &[
    "eval",
    "--model",
    "random-proposer",
    "--task",
    "sorting",
    "--strategy",
    "tot-dfs",
    "--sizes",
    "4",
    "--count",
    "3",
];

/// Arguments of a search that no machine ends in some minutes: more than a million thoughts by chance.
fn endless(place: &Place) -> [&'static str; 7] {
    place.write(
        "endless.yaml",
        "version: 1\nname: endless\nabout: wide and deep\ntask: sorting\nsearch: {policy: bfs, depth: \"{{ puzzle.len }}\", keep: \
         500}\ngenerate: {kind: random, n: 3, constrain: puzzle, prompt: \"{{ puzzle.input }}\"}\nevaluate: []\nbudget: \
         {thoughts: 100000000}\n",
    );
    ["solve", "--model", "random-proposer", "--strategy", "endless.yaml", "--size", "1000"]
}

/// Someone who is not root, so that permissions bind.
fn somebody(place: &Place, args: &[&str]) -> Command {
    let mut command = place.totara(args);
    // SAFETY: geteuid takes nothing and cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        command.uid(65_534).gid(65_534);
    }
    command
}

fn folder(place: &Place, name: &str, mode: u32) -> String {
    let path = place.path(name);
    std::fs::create_dir_all(&path).expect("a folder");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("permissions");
    path.display().to_string()
}

/// A place that everyone may enter; `None` where somebody else cannot start the program (it lies in a private folder).
fn open_place(test: &str) -> Option<Place> {
    let place = Place::new();
    std::fs::set_permissions(place.dir.path(), std::fs::Permissions::from_mode(0o755)).expect("permissions");
    match somebody(&place, &["--version"]).output() {
        Ok(output) if output.status.success() => Some(place),
        _ => {
            println!("skipped {test}: another user cannot start the program here");
            None
        }
    }
}

#[test]
fn read_only_folders_cost_what_lies_in_them_and_nothing_else() {
    let Some(place) = open_place("read_only_folders") else { return };
    let locked = folder(&place, "locked", 0o555);
    // A record that cannot be made is a note; the result comes.
    let run = finish(somebody(&place, SOLVE).env("TOTARA_STATE", &locked)).says(&["not recorded", "locked"]);
    assert_eq!(run.rows().len(), 1, "{}", run.err);
    assert_eq!(run.err.lines().filter(|l| l.contains("recorded")).count(), 1, "{}", run.err);
    // Where the results themselves cannot be written nothing is begun.
    let out = format!("{locked}/r");
    let run =
        finish(&mut somebody(&place, &[EVAL, &["--out", &out]].concat())).exits(4).says(&[&out, "cannot be made"]);
    assert_eq!(run.err.lines().count(), 1, "one clear line: {}", run.err);
    let there = folder(&place, "there", 0o555);
    finish(&mut somebody(&place, &[EVAL, &["--out", &there]].concat())).exits(4).says(&["there", "cannot be"]);
    let record = format!("{locked}/run.jsonl");
    finish(&mut somebody(&place, &[SOLVE, &["--record", &record]].concat())).exits(4).says(&["run.jsonl"]);
    finish(&mut somebody(&place, &["strategy", "new", &format!("{locked}/s.yaml")])).exits(4).says(&["s.yaml"]);
    let cache = somebody(&place, &["model", "pull"]).env("TOTARA_CACHE", &locked).env("TOTARA_MODEL", "").output();
    let run = Run::of(cache.expect("starts")).exits(4).says(&["locked"]);
    assert!(run.err.lines().count() <= 8, "what failed, and the ways to a model: {}", run.err);
    finish(somebody(&place, &["doctor"]).env("TOTARA_STATE", &locked).env("TOTARA_CACHE", &locked)).exits(0);
}

#[test]
fn without_a_home_folder_everything_works_that_needs_none() {
    let Some(place) = open_place("without_a_home_folder") else { return };
    let homeless = |args: &[&str]| {
        let mut command = somebody(&place, args);
        for name in [
            "HOME",
            "TOTARA_STATE",
            "TOTARA_CACHE",
            "TOTARA_CONFIG",
            "XDG_STATE_HOME",
            "XDG_CACHE_HOME",
            "XDG_CONFIG_HOME",
        ] {
            command.env_remove(name);
        }
        finish(&mut command)
    };
    let run = homeless(SOLVE);
    assert_eq!(run.rows().len(), 1, "{}", run.err);
    assert!(run.err.contains("not recorded"), "{}", run.err);
    homeless(&[SOLVE, &["--no-record"]].concat());
    homeless(&["replay", "last"]).exits(2);
    homeless(&["model", "list"]).exits(0);
    let doctor = homeless(&["doctor"]).exits(0).out;
    assert!(doctor.contains("TOTARA_CACHE") && doctor.contains("TOTARA_STATE"), "{doctor}");
}

/// Nobody reads: the program ends as the signal would end it, quietly, and what it wrote into files is whole.
#[test]
fn closed_outputs_end_quietly() {
    let place = Place::new();
    place.run(SOLVE);
    let closed = |args: &[&str]| {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        Run::of(place.totara(args).stdout(writer).output().expect("ends"))
    };
    let attention = &["bench", "attention", "--device", "cpu", "--tree", "1,2/16,4", "--seconds", "0.001"];
    let commands: [&[&str]; 7] = [
        &["schema"],
        &["strategy", "list"],
        &["task", "list"],
        &["replay", "last", "--no-tui"],
        &["doctor"],
        attention,
        SOLVE,
    ];
    for args in commands {
        let run = closed(args);
        assert_eq!(run.code, Some(141), "{args:?}: {}", run.err);
        assert!(!run.err.contains("panicked") && !run.err.contains("totara:"), "{args:?}: {}", run.err);
    }
    let run = closed(&[EVAL, &["--out", "r"]].concat());
    assert_eq!(run.code, Some(141), "{}", run.err);
    let rows = std::fs::read_to_string(place.path("r/results.jsonl")).expect("results");
    assert_eq!(rows.lines().count(), 3);
    // Standard error gone, or full, is nobody listening.
    for to in ["2>&-", "2>/dev/full"] {
        let command = format!("exec {} {} {to}", env!("CARGO_BIN_EXE_totara"), SOLVE.join(" "));
        let run = finish(Command::new("sh").args(["-c", &command]).env("TOTARA_STATE", place.path("state")));
        assert_eq!(run.rows().len(), 1, "{to}: {:?}", run.code);
    }
}

/// A signal in the middle of a run without a screen: its number, and a record that can be gone on with.
#[test]
fn a_run_without_a_screen_saves_its_record_on_signals() {
    for (name, code) in [("-HUP", 129), ("-TERM", 143), ("-INT", 130)] {
        let place = Place::new();
        let child = place
            .totara(&[&endless(&place)[..], &["--no-tui"]].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        let until = Instant::now() + Duration::from_secs(60);
        let grown = || {
            let runs = std::fs::read_dir(place.path("state/runs")).ok()?;
            let mut texts = runs.flatten().filter_map(|e| std::fs::read_to_string(e.path()).ok());
            texts.find(|text| text.contains(r#"{"event":"grown""#))
        };
        while grown().is_none() {
            assert!(Instant::now() < until, "no record grows");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(Command::new("kill").args([name, &child.id().to_string()]).status().expect("kill").success());
        let run = Run::of(child.wait_with_output().expect("ends"));
        assert_eq!(run.code, Some(code), "{name}: {}", run.err);
        assert!(!run.err.contains("panicked"), "{}", run.err);
        place.run(&["replay", "last", "--no-tui"]).exits(0);
        let on = place.run(&["solve", "--no-tui", "--continue", "last", "--max-thoughts", "5"]);
        assert!(matches!(on.code, Some(0 | 1 | 3)), "{:?} {}", on.code, on.err);
    }
}

/// A file system of its own, gone with the test.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    /// `None` where this user may not mount.
    fn of(place: &Place, test: &str, bytes: u32) -> Option<Self> {
        let path = place.path("disk");
        std::fs::create_dir(&path).expect("a folder");
        let disk = Self(path);
        let mounted = disk.mount(&format!("size={bytes}"));
        if !mounted {
            println!("skipped {test}: a small file system cannot be mounted here");
        }
        mounted.then_some(disk)
    }

    fn mount(&self, options: &str) -> bool {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "totara-test"]).arg(&self.0).stderr(Stdio::null());
        mount.status().is_ok_and(|status| status.success())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(&self.0).stderr(Stdio::null()).status().ok();
    }
}

/// Row 60 of the public reports on a real file system that is full after some rows: whole rows, the exit code, a remedy; and
/// once there is room a resume does the rest. Records, reports and copies of strategies say the same.
#[test]
fn a_disk_that_is_full_costs_what_was_in_flight_and_nothing_else() {
    let place = Place::new();
    let Some(disk) = SmallDisk::of(&place, "a_disk_that_is_full", 64 << 10) else { return };
    let eval = ["eval", "--model", "random-proposer", "--strategy", "tot-dfs", "--sizes", "8", "--count", "600"];
    let eval = [&eval[..], &["--out", "disk/r"]].concat();
    let run = place.run(&eval).exits(4).says(&["results.jsonl", "No space", "--resume"]);
    assert_eq!(run.err.lines().filter(|l| l.contains("No space")).count(), 1, "one clear line: {}", run.err);
    let ids = || -> Vec<String> {
        let text = std::fs::read_to_string(place.path("disk/r/results.jsonl")).expect("results");
        let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let row = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("a whole row");
        whole.map(|line| row(line)["id"].to_string()).collect()
    };
    let there = ids();
    assert!((1..600).contains(&there.len()), "{}", there.len());
    // What else is written there, while nothing more fits.
    let fill = std::fs::write(place.path("disk/fill"), vec![0; 64 << 10]);
    assert!(fill.is_err(), "the disk is full");
    let record = [&endless(&place)[..], &["--no-tui", "--json", "--record", "disk/run.jsonl", "--max-thoughts", "500"]];
    let run = place.run(&record.concat());
    assert!(run.err.contains("No space"), "{:?}: {}", run.code, run.err);
    assert!(matches!(run.code, Some(3 | 4)), "the run goes on unrecorded, or is refused: {:?} {}", run.code, run.err);
    place.run(&["strategy", "new", "disk/s.yaml"]).exits(4).says(&["s.yaml", "No space"]);
    place.run(&["report", "disk/r", "--out", "disk/page"]).exits(4).says(&["No space"]);
    std::fs::remove_file(place.path("disk/fill")).ok();
    assert!(disk.mount("remount,size=8m"), "more room");
    place.run(&[&eval[..], &["--resume"]].concat()).exits(0);
    let mut all = ids();
    assert_eq!(all[..there.len()], there, "what was there stays");
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 600, "each puzzle once");
}

/// K/V memory that the system does not give is a limit with its number and its flag, before anything is computed.
#[test]
fn an_arena_that_cannot_be_had_is_refused_with_the_flag() {
    let place = Place::new();
    let complete = |budget: &str| {
        let args = ["complete", "--model", "random:tiny", "--prompt", "x", "--max-tokens", "2", "--device", "cpu"];
        place.totara(&[&args[..], &["--threads", "1", "--kv-budget", budget]].concat())
    };
    finish(&mut complete("1MiB")).exits(0);
    let run = finish(&mut complete("900TiB")).exits(3).says(&["--kv-budget"]);
    assert_eq!(run.err.lines().count(), 1, "{}", run.err);
    let run = finish(with_memory(&mut complete("3GiB"), 2 << 30));
    assert!(!run.err.contains("panicked") && run.code == Some(3), "{:?} {}", run.code, run.err);
    assert!(run.err.contains("--kv-budget"), "{}", run.err);
    // The host tier of offload, and a device tier that its partial keys do not fit.
    let offload = |more: &[&str]| {
        let mut command = complete("64MiB");
        command.args(["--offload", "full"]).args(more);
        command
    };
    finish(&mut offload(&["--ram-budget", "1MiB"])).exits(0);
    let run = finish(with_memory(&mut offload(&["--ram-budget", "3GiB"]), 2 << 30)).exits(3).says(&["--ram-budget"]);
    assert_eq!(run.err.lines().count(), 1, "{}", run.err);
    let run = finish(&mut offload(&["--ram-budget", "900TiB"])).exits(3).says(&["--ram-budget"]);
    assert_eq!(run.err.lines().count(), 1, "{}", run.err);
    finish(&mut offload(&["--ram-budget", "1"])).exits(3).says(&["--ram-budget"]);
}

/// Row 34: what a host tier holds is bounded by its budget, and a path that does not fit it says which flag to raise.
#[test]
fn a_host_tier_keeps_to_its_budget_and_names_its_flag() {
    let place = Place::new();
    let long = "a ".repeat(300);
    let args = ["complete", "--model", "random:tiny", "--device", "cpu", "--threads", "1", "--max-tokens", "2"];
    let more = ["--offload", "full", "--kv-budget", "64MiB", "--prompt", &long, "--ram-budget"];
    let run = |budget: &str| place.run(&[&args[..], &more, &[budget]].concat());
    run("4MiB").exits(0);
    let run = run("16KiB").exits(3).says(&["no K/V memory", "raise --ram-budget"]);
    assert!(!run.err.contains("raise --kv-budget"), "{}", run.err);
}

/// Rows 1 and 3 of the public reports, and whatever else is among the cases: bad model files with 512 MiB of memory.
#[test]
fn bad_model_files_are_refused_within_half_a_gibibyte_and_a_second() {
    let Some(shared) = super::common::places::shared("bad_model_files") else { return };
    let place = Place::new();
    let mut seen = 0;
    for entry in std::fs::read_dir(shared.join("cases/A")).expect("cases").flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if !(name.starts_with("01_") || name.starts_with("03_") || name.starts_with("09_")) {
            continue;
        }
        seen += 1;
        let shown = path.display().to_string();
        for args in [["model", "info", "--model"], ["complete", "--prompt=x", "--model"]] {
            let start = Instant::now();
            let run = finish(with_memory(&mut place.totara(&[&args[..], &[&shown]].concat()), 512 << 20));
            assert_eq!(run.code, Some(2), "{name}: {}", run.err);
            assert!(run.err.contains(&name) && run.err.lines().count() == 1, "{name}: {}", run.err);
            assert!(start.elapsed() < Duration::from_secs(60), "{name}: {:?}", start.elapsed());
        }
    }
    assert!(seen >= 8, "only {seen} cases");
}

/// Sizes that change faster than frames, with the mouse moving along the edges; then the screen is as good as new.
#[test]
fn a_storm_of_sizes_is_survived() {
    let place = Place::new();
    let mut terminal = Terminal::open(&endless(&place), &place, &[]);
    terminal.wait_for("1 Tree");
    let mut number = 1u32;
    for _ in 0..400 {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (columns, rows) = ((number >> 8) as u16 % 260 + 1, (number >> 20) as u16 % 90 + 1);
        terminal.resize_alone(columns, rows);
        terminal.press(&format!("\x1b[<35;{columns};{rows}M"));
        std::thread::sleep(Duration::from_millis(3));
    }
    terminal.resize(80, 24);
    terminal.wait_for("1 Tree");
    terminal.press("qy");
    assert_eq!(terminal.end(), 130);
    terminal.check_restored();
}

/// A key pressed in the moment of a new size is read then, not with the next key.
#[test]
fn a_key_in_the_moment_of_a_new_size_is_read() {
    let place = Place::new();
    let mut terminal = Terminal::open(&endless(&place), &place, &[]);
    terminal.wait_for("1 Tree");
    for round in 0..12 {
        terminal.resize(if round % 2 == 0 { 90 } else { 80 }, 24);
        terminal.press("q");
        terminal.wait_for("Leave?");
        terminal.press("n");
        terminal.wait_until("the question is gone", |text| !text.contains("Leave?"));
    }
    terminal.press("qy");
    assert_eq!(terminal.end(), 130);
}

/// Bytes that no keyboard sends: cut sequences, wrong UTF-8, pastes without an end. The program lives, and gives the
/// terminal back.
#[test]
fn a_storm_of_bytes_from_the_terminal_is_survived() {
    let place = Place::new();
    let mut number = 7u32;
    let mut next = || {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        number >> 8
    };
    let parts: [&[u8]; 14] = [
        b"\x1b[200~:quit\n",
        b"\x1b[201~",
        b"\x1b[<0;9999;9999M",
        b"\x1b[<",
        b"\x1b[",
        b"\x1b]0;x",
        b"\x1bOP",
        b"\xff\xfe",
        b"\xe4\xb8",
        "\u{1f468}\u{200d}".as_bytes(),
        b"jjjj",
        b"\x1b[1;5A",
        b"?\x1b\x1b",
        b"\x1b[27;5;99999999999~",
    ];
    for _ in 0..3 {
        let mut terminal = Terminal::open(&endless(&place), &place, &[]);
        terminal.wait_for("1 Tree");
        for _ in 0..120 {
            terminal.press_bytes(parts[next() as usize % parts.len()]);
            if next() % 8 == 0 {
                std::thread::sleep(Duration::from_millis(15));
            }
        }
        terminal.press_bytes(b"\x1b[201~");
        terminal.signal("-TERM");
        // Some of the keys may have left the screen first.
        let code = terminal.end();
        assert!(matches!(code, 143 | 130 | 0 | 1 | 3), "{code}:\n{}", terminal.text());
        terminal.check_restored();
        assert!(!terminal.text().contains("panicked"), "{}", terminal.text());
    }
}
