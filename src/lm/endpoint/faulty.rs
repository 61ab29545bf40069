//! A server on loopback for tests: it says what it is told to, in time or late, whole or cut.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What it does with a request.
pub enum Act {
    Json(Value),
    Status(u16, &'static str, &'static str),
    /// A body that is announced longer than it is.
    Cut,
    Text(&'static str),
    Late(Duration),
    /// So many MiB.
    Huge(usize),
    /// Closes without a word.
    Close,
}

/// What was asked.
pub struct Asked {
    pub path: String,
    pub body: Value,
    pub headers: String,
}

type Script = dyn Fn(&Asked, usize) -> Act + Send + Sync;

pub struct Server {
    pub url: String,
    pub asked: Arc<Mutex<Vec<Asked>>>,
    /// Most requests that waited for their answers at once.
    pub most: Arc<AtomicUsize>,
}

impl Server {
    /// `/v1/models` names one model of `owner`; every other request is the script's, with its number from 0.
    pub fn start(owner: &'static str, script: impl Fn(&Asked, usize) -> Act + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (asked, most) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let (number, open) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let server = Self { url, asked: asked.clone(), most: most.clone() };
        let script: Arc<Script> = Arc::new(script);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (script, asked, number) = (script.clone(), asked.clone(), number.clone());
                let (most, open) = (most.clone(), open.clone());
                let counted = move |asked: &Asked, number: usize| {
                    most.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    let act = script(asked, number);
                    // Before the answer: the client may send its next request before this thread runs again.
                    open.fetch_sub(1, Ordering::SeqCst);
                    act
                };
                std::thread::spawn(move || serve(stream, owner, &counted, &asked, &number));
            }
        });
        server
    }
}

/// One request a connection.
fn serve(mut stream: TcpStream, owner: &str, script: &Script, asked: &Mutex<Vec<Asked>>, number: &AtomicUsize) {
    let mut reader = BufReader::new(stream.try_clone().expect("a stream"));
    let mut headers = String::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
            break;
        }
        headers.push_str(&line);
    }
    let path = headers.split(' ').nth(1).unwrap_or_default().to_string();
    let lower = headers.to_lowercase();
    let length = lower.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    if reader.read_exact(&mut body).is_err() {
        return;
    }
    let request = Asked { path, body: serde_json::from_slice(&body).unwrap_or(Value::Null), headers };
    let act = match request.path.as_str() {
        "/v1/models" => Act::Json(json!({"data": [{"id": "served", "owned_by": owner, "max_model_len": 64}]})),
        _ => script(&request, number.fetch_add(1, Ordering::SeqCst)),
    };
    asked.lock().expect("requests").push(request);
    let mut say = |status: u16, headers: &str, length: usize, body: &[u8]| {
        let head = format!("HTTP/1.1 {status} x\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n")
            .into_bytes();
        // The client may have gone away.
        drop(stream.write_all(&head).and_then(|()| stream.write_all(body)));
    };
    match act {
        Act::Json(value) => {
            let body = value.to_string();
            say(200, "", body.len(), body.as_bytes());
        }
        Act::Status(status, headers, body) => say(status, headers, body.len(), body.as_bytes()),
        Act::Cut => say(200, "", 500, b"{\"choices\": [{\"te"),
        Act::Text(text) => say(200, "", text.len(), text.as_bytes()),
        Act::Late(wait) => std::thread::sleep(wait),
        Act::Huge(mib) => say(200, "", mib << 20, &vec![b' '; mib << 20]),
        Act::Close => {}
    }
}

/// A completion of these texts, one token each, with usage.
pub fn completion(texts: &[&str]) -> Value {
    let choices: Vec<Value> = texts
        .iter()
        .enumerate()
        .map(|(i, text)| {
            json!({"text": text, "index": i, "finish_reason": "stop", "logprobs": {"content": [
                {"token": text, "logprob": -0.5, "top_logprobs": []}]}})
        })
        .collect();
    json!({"choices": choices, "usage": {"prompt_tokens": 10, "completion_tokens": texts.len(),
        "prompt_tokens_details": {"cached_tokens": 4}}})
}
