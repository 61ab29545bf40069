//! `hf:owner/repo/file` through the built program, with a hub of our own on loopback (HF_ENDPOINT).
//!
//! Built with `cargo test --features hf --test hub`: a build without the feature has no hub to talk to.

#![cfg(feature = "hf")]

mod common;

use common::{Place, Run, places};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const FILE: &str = "some-one/tiny-llama/resolve/main/tiny.gguf";
const SPEC: &str = "hf:some-one/tiny-llama/tiny.gguf";

/// What the hub does when the file's body is asked for.
#[derive(Clone, Copy, PartialEq)]
enum Body {
    Whole,
    /// Says the whole length, sends half, hangs up.
    Cut,
}

/// A hub with one file. It ends with the test's process.
struct Hub {
    address: String,
    bodies: Arc<AtomicUsize>,
}

impl Hub {
    fn start(bytes: Vec<u8>, body: Body) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let bodies = Arc::new(AtomicUsize::new(0));
        let counted = bodies.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that hangs up is its own affair.
                answer(stream, &bytes, body, &counted).ok();
            }
        });
        Self { address, bodies }
    }

    fn run(&self, place: &Place, args: &[&str]) -> Run {
        Run::of(in_cache(place, &self.address, args))
    }
}

fn in_cache(place: &Place, endpoint: &str, args: &[&str]) -> std::process::Output {
    let mut command = place.totara(args);
    command.env("HF_ENDPOINT", endpoint).env("HF_HOME", place.path("hub")).env_remove("HF_HUB_OFFLINE");
    command.output().expect("the program starts")
}

fn answer(mut stream: TcpStream, bytes: &[u8], body: Body, bodies: &AtomicUsize) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    if !request.contains(FILE) {
        return stream.write_all(
            b"HTTP/1.1 404 Not Found\r\nX-Error-Code: EntryNotFound\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        );
    }
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nETag: \"0123456789abcdef\"\r\nX-Repo-Commit: {}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        "ab".repeat(20),
        bytes.len()
    )?;
    if request.starts_with("GET") {
        bodies.fetch_add(1, Ordering::Relaxed);
        stream.write_all(if body == Body::Whole { bytes } else { &bytes[..bytes.len() / 2] })?;
    }
    Ok(())
}

fn tiny() -> Option<Vec<u8>> {
    let path = places::shared("the hub's file")?.join("cases/tiny/untied.gguf");
    Some(std::fs::read(path).expect("the tiny model"))
}

#[test]
fn a_file_of_the_hub_is_fetched_once_and_found_again() {
    let Some(bytes) = tiny() else { return };
    let size = bytes.len() as u64;
    let hub = Hub::start(bytes, Body::Whole);
    let place = Place::new();
    hub.run(&place, &["model", "pull", SPEC]).exits(0);
    let info = hub.run(&place, &["model", "info", "--model", SPEC, "--json"]).exits(0);
    assert!(info.out.contains("llama"), "{}", info.out);
    hub.run(&place, &["complete", "--model", SPEC, "--prompt", "a", "--max-tokens", "2", "--json"]).exits(0);
    assert_eq!(hub.bodies.load(Ordering::Relaxed), 1, "the file came once and was found afterwards");
    // The hub is gone: what lies in its cache still works, and `model list` shows it.
    Run::of(in_cache(&place, "http://127.0.0.1:9", &["model", "info", "--model", SPEC])).exits(0);
    let list = hub.run(&place, &["model", "list", "--json"]).exits(0);
    assert!(list.out.contains("tiny"), "{}", list.out);
    assert!(size > 0);
}

#[test]
fn a_cut_download_is_never_taken_for_the_file() {
    let Some(bytes) = tiny() else { return };
    let place = Place::new();
    Hub::start(bytes.clone(), Body::Cut).run(&place, &["model", "pull", SPEC]).exits(4).says(&[SPEC]);
    let hub = Hub::start(bytes, Body::Whole);
    hub.run(&place, &["model", "info", "--model", SPEC]).exits(0);
}

#[test]
fn what_cannot_be_fetched_is_told_in_one_line() {
    let place = Place::new();
    let gone = Run::of(in_cache(&place, "http://127.0.0.1:9", &["model", "pull", SPEC])).exits(4).says(&[SPEC]);
    assert_eq!(gone.err.lines().filter(|line| line.contains("error")).count(), 1, "{}", gone.err);
    let hub = Hub::start(Vec::new(), Body::Whole);
    hub.run(&place, &["model", "pull", "hf:some-one/tiny-llama/other.gguf"]).exits(4).says(&["other.gguf"]);
    for spec in ["hf:tiny.gguf", "hf:some-one/tiny-llama", "hf:some-one//tiny.gguf"] {
        hub.run(&place, &["model", "info", "--model", spec]).exits(2).says(&["hf:owner/repo/file.gguf"]);
    }
}
