//! Strategies on llama.cpp's own server, on loopback: `TOTARA_LLAMA_SERVER` is the path of its program. Without it, or without
//! the default model, the test says so and passes.
//!
//! - the same strategies give the same thoughts as on our own engine where texts are ranked and greedy
//! - samples with log-probabilities, a pattern as a grammar, a chat through the server's template
//! - the key opens the server and stands in no file; what the server cannot tell is not known
//! - a server that goes away ends the run with what to do, and every puzzle that was finished keeps its row

#![expect(clippy::unwrap_used, reason = "the helpers of these tests may fail as tests do")]

mod common;

use common::Place;
use common::places::real_model;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const KEY: &str = "a-key-that-nobody-writes-down";

struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(test: &str) -> Option<Self> {
        let Some(program) = std::env::var_os("TOTARA_LLAMA_SERVER") else {
            println!("skipped: {test}: TOTARA_LLAMA_SERVER does not name llama.cpp's server");
            return None;
        };
        let model = real_model(test)?;
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new(program)
            .arg("-m")
            .arg(model)
            .args(["--host", "127.0.0.1", "--port", &port.to_string(), "--api-key", KEY])
            .args(["-np", "4", "-c", "8192", "-t", "2", "-fa", "off"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self { child, port };
        let start = Instant::now();
        while !server.is_ready() {
            assert!(start.elapsed() < Duration::from_secs(120), "llama.cpp's server does not answer");
            std::thread::sleep(Duration::from_millis(100));
        }
        Some(server)
    }

    fn is_ready(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return false };
        stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let asked = stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let mut head = [0u8; 15];
        asked.is_ok() && stream.read_exact(&mut head).is_ok() && &head == b"HTTP/1.1 200 OK"
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn strategy(place: &Place, name: &str, search: &str, generate: &str, evaluate: &str) {
    let text = format!(
        "version: 1\nname: {name}\nabout: short\ntask: sorting\nsearch: {search}\ngenerate: {generate}\nevaluate: [{evaluate}]\n"
    );
    place.write(&format!("{name}.yaml"), &text);
}

fn rows(place: &Place, folder: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(place.path(folder).join("results.jsonl")).unwrap();
    let mut rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    rows.sort_by_key(|row| format!("{} {}", row["strategy"], row["id"]));
    rows
}

#[test]
fn the_same_strategies_run_on_llama_cpps_server() {
    let Some(mut server) = Server::start("the_same_strategies_run_on_llama_cpps_server") else { return };
    let place = Place::new();
    place.write("p.txt", "Input: 3 1 2\nOutput: 1 2 3\nInput: {{ puzzle.list }}\nOutput:");
    let ranked = "{kind: likeliest, n: 2, prompt: p.txt, format: completion, constrain: puzzle}";
    strategy(&place, "ranked", "{policy: bfs, depth: 3, keep: 1}", ranked, "checker: partial");
    let greedy = "{prompt: p.txt, format: completion, temperature: 0, max_tokens: 6, thought: answer}";
    strategy(&place, "greedy", "{policy: bfs, depth: 1}", greedy, "checker: whole");
    let drawn = "{n: 3, prompt: p.txt, format: completion, temperature: 0.9, max_tokens: 6, thought: answer}";
    strategy(&place, "drawn", "{policy: best-of-n}", drawn, "logprob");
    let regex = "{n: 2, prompt: p.txt, format: completion, constrain: {regex: \"[0-9]( [0-9]){2}\"}, max_tokens: 8, thought: answer}";
    strategy(&place, "pattern", "{policy: best-of-n}", regex, "logprob");
    let chat = "{n: 1, prompt: p.txt, format: chat, temperature: 0, max_tokens: 8, thought: answer}";
    strategy(&place, "chat", "{policy: bfs, depth: 1}", chat, "checker: whole");
    let all = ["ranked.yaml", "greedy.yaml", "drawn.yaml", "pattern.yaml", "chat.yaml"];
    let url = server.url();
    let eval = |strategies: &[&str], count: &str, out: &str, more: &[&str]| {
        let head = ["eval", "--task", "sorting", "--sizes", "3", "--count", count, "--parallel", "4", "--out", out];
        let mut command = place.totara(&[&head[..], &["--strategy"], strategies, more].concat());
        command.env("TOTARA_API_KEY", KEY).env_remove("TOTARA_MODEL");
        common::Run::of(command.output().unwrap())
    };
    let run = eval(&all, "3", "server", &["--endpoint", &url]).exits(0);
    let theirs = rows(&place, "server");
    assert_eq!(theirs.len(), 15, "{}", run.err);
    for row in &theirs {
        assert!(row["kv_bytes"].is_null() && row["link_bytes"].is_null(), "not known: {row}");
        assert!(row["thoughts"].as_u64() > Some(0) && row["logical_tokens"].as_u64() > Some(0), "{row}");
        assert!(!row["reason"].to_string().contains("failed"), "{row}");
    }
    for row in theirs.iter().filter(|row| row["strategy"] == "pattern") {
        let text = row["answer_text"].as_str().unwrap();
        assert!(text.trim().len() == 5 && text.trim().chars().all(|c| c.is_ascii_digit() || c == ' '), "{row}");
    }
    // Ranks and greedy texts are equal up to near ties, and there is none among these.
    let run = place.run(&[
        "eval",
        "--task",
        "sorting",
        "--sizes",
        "3",
        "--count",
        "3",
        "--device",
        "cpu",
        "--kv-budget",
        "128MiB",
        "--out",
        "own",
        "--strategy",
        "ranked.yaml",
        "greedy.yaml",
    ]);
    run.exits(0);
    for own in rows(&place, "own") {
        let same = |row: &&Value| row["id"] == own["id"] && row["strategy"] == own["strategy"];
        let their = theirs.iter().find(same).unwrap();
        for field in ["thoughts", "answer", "solved", "error_score"] {
            assert_eq!(own[field], their[field], "{field} of {own} beside {their}");
        }
    }
    let manifest = std::fs::read_to_string(place.path("server/manifest.json")).unwrap();
    assert!(manifest.contains("llama.cpp"), "{manifest}");
    for file in ["manifest.json", "results.jsonl", "summary.md", "summary.csv"] {
        let text = std::fs::read_to_string(place.path("server").join(file)).unwrap();
        assert!(!text.contains(KEY), "the key stands in {file}");
    }

    let mut command = place.totara(&["solve", "--task", "sorting", "--size", "3", "--no-tui", "--endpoint", &url]);
    command.env_remove("TOTARA_API_KEY").env_remove("OPENAI_API_KEY").env_remove("TOTARA_MODEL");
    let refused = common::Run::of(command.output().unwrap());
    assert!(refused.code == Some(4) || refused.code == Some(2), "{:?} {}", refused.code, refused.err);
    assert!(refused.err.contains("TOTARA_API_KEY"), "{}", refused.err);

    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let gone = eval(&["greedy.yaml"], "1", "gone", &["--endpoint", &url]);
    assert!(gone.code == Some(4) && gone.err.contains("127.0.0.1"), "{:?} {}", gone.code, gone.err);
}
