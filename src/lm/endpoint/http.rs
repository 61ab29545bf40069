//! One request to the server, until it is served or given up: connection, key, time-outs, retries with back-off.
//!
//! Tried again: no connection, a reply that was cut or came too late, 408, 429 and 5xx, and a body that is no JSON. A
//! `Retry-After` in seconds is obeyed up to a minute. Everything else the server refuses is final, with its own message.
//! The key goes into one header and nowhere else: errors are cleaned of it before they leave this file.

use super::EndpointOptions;
use crate::base::text::sanitize_line;
use crate::base::{Error, Result};
use serde_json::Value;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body, http::Response};

/// Longest body that is read.
const MOST_BYTES: u64 = 64 << 20;

/// Characters of a server's own message that are told.
const MESSAGE: usize = 400;

/// Longest wait that a server may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A secret: it is never shown, also not by `{:?}`.
#[derive(Clone)]
pub struct Key(String);

impl Key {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// `TOTARA_API_KEY`, else `OPENAI_API_KEY`. The latter was made for another address, so it is not sent unencrypted to
/// another machine.
pub fn key_from_environment(url: &str) -> Option<Key> {
    let named = |name: &str| std::env::var(name).ok().filter(|key| !key.trim().is_empty());
    let private = url.starts_with("https://") || Address::parse(url).is_ok_and(|address| address.loopback);
    let key = named("TOTARA_API_KEY").or_else(|| named("OPENAI_API_KEY").filter(|_| private))?;
    Some(Key::new(key.trim()))
}

/// Refuses what is no address of a server, and addresses that hold a secret.
pub fn check_address(url: &str) -> Result<()> {
    Address::parse(url).map(drop)
}

/// A checked address.
struct Address {
    /// Up to and with `/v1`.
    base: String,
    loopback: bool,
}

impl Address {
    fn parse(url: &str) -> Result<Self> {
        let shown = || sanitize_line(url.split(['?', '#']).next().unwrap_or_default());
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")).ok_or_else(|| {
            Error::input(format!("--endpoint {}: write http://host:port or https://host", redacted(&shown())))
        })?;
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        if host.contains('@') || url.contains(['?', '#']) {
            return Err(Error::input(format!(
                "--endpoint {}: an address with a user, a password or a query is not taken; a key belongs into the \
                 environment variable TOTARA_API_KEY",
                redacted(&shown())
            )));
        }
        let name = match host.strip_prefix('[').and_then(|v6| v6.split_once(']')) {
            Some((name, _)) => name,
            None => host.split(':').next().unwrap_or_default(),
        };
        if name.is_empty() || url.contains(char::is_whitespace) {
            return Err(Error::input(format!("--endpoint {}: there is no host in it", shown())));
        }
        let trimmed = url.trim_end_matches('/');
        let base = if trimmed.ends_with("/v1") { trimmed.to_string() } else { format!("{trimmed}/v1") };
        let loopback = name == "localhost" || name == "::1" || name.starts_with("127.");
        Ok(Self { base, loopback })
    }
}

/// An address without what stands before an `@`.
fn redacted(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_string() };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    format!("{scheme}://{}{path}", host.rsplit('@').next().unwrap_or_default())
}

/// Why an attempt failed, and whether another one may do better.
struct Failed {
    error: Error,
    again: bool,
    /// What the server asked for.
    wait: Option<Duration>,
    status: Option<u16>,
}

impl Failed {
    fn passing(message: String) -> Self {
        Self { error: Error::fault(message), again: true, wait: None, status: None }
    }

    fn last(message: String) -> Self {
        Self { again: false, ..Self::passing(message) }
    }
}

/// A server that refused a request for good, or a failure after all attempts.
#[derive(Debug, Clone)]
pub struct Refusal {
    pub error: Error,
    pub status: Option<u16>,
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        refusal.error
    }
}

impl Refusal {
    pub fn context(self, what: &str) -> Error {
        self.error.context(what)
    }
}

/// The way to the server.
pub struct Http {
    agent: Agent,
    base: String,
    key: Option<Key>,
    retries: u32,
    wait: Duration,
    /// Nobody waits for replies any more.
    over: Arc<AtomicBool>,
}

impl Http {
    pub fn new(options: &EndpointOptions, over: Arc<AtomicBool>) -> Result<Self> {
        let address = Address::parse(&options.url)?;
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_global(Some(options.timeout))
            .timeout_connect(Some(Duration::from_secs(10).min(options.timeout)))
            .user_agent(concat!("totara/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls);
        if address.loopback {
            config = config.proxy(None);
        }
        Ok(Self {
            agent: config.build().into(),
            base: address.base,
            key: options.key.clone(),
            retries: options.retries,
            wait: options.wait,
            over,
        })
    }

    /// The address as it may be shown.
    pub fn shown(&self) -> &str {
        self.base.trim_end_matches("/v1")
    }

    pub fn get(&self, path: &str) -> Result<Value, Refusal> {
        self.patiently(path, None)
    }

    pub fn post(&self, path: &str, body: &Value) -> Result<Value, Refusal> {
        self.patiently(path, Some(body.to_string()))
    }

    fn patiently(&self, path: &str, body: Option<String>) -> Result<Value, Refusal> {
        let mut wait = self.wait;
        let mut attempt = 0;
        loop {
            let failed = match self.once(path, body.as_deref()) {
                Ok(value) => return Ok(value),
                Err(failed) => failed,
            };
            if !failed.again || attempt >= self.retries || self.over.load(Ordering::Relaxed) {
                let mut message = self.clean(failed.error.message());
                if attempt > 0 {
                    message.push_str(&format!(" (after {} attempts)", attempt + 1));
                }
                return Err(Refusal { error: Error::fault(message), status: failed.status });
            }
            attempt += 1;
            self.rest(failed.wait.unwrap_or(wait).min(LONGEST_WAIT));
            wait = wait.saturating_mul(2);
        }
    }

    /// Sleeps, unless nobody waits any more.
    fn rest(&self, wait: Duration) {
        let until = Instant::now() + wait;
        while !self.over.load(Ordering::Relaxed) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }

    /// A message without the key, whoever put it there.
    fn clean(&self, message: &str) -> String {
        match &self.key {
            Some(Key(key)) => message.replace(key.as_str(), "…"),
            None => message.to_string(),
        }
    }

    fn once(&self, path: &str, body: Option<&str>) -> Result<Value, Failed> {
        let url = format!("{}/{path}", self.base);
        let bearer = self.key.as_ref().map(|Key(key)| format!("Bearer {key}"));
        let sent = match body {
            Some(body) => {
                let mut request = self.agent.post(&url).header("content-type", "application/json");
                if let Some(bearer) = &bearer {
                    request = request.header("authorization", bearer);
                }
                request.send(body)
            }
            None => {
                let mut request = self.agent.get(&url);
                if let Some(bearer) = &bearer {
                    request = request.header("authorization", bearer);
                }
                request.call()
            }
        };
        let response = sent.map_err(|e| failed_to_send(&url, e))?;
        let status = response.status().as_u16();
        let wait = retry_after(&response);
        let read = response.into_body().into_with_config().limit(MOST_BYTES).read_to_vec();
        if !(200..300).contains(&status) {
            let said = read.map(|bytes| message_in(&bytes)).unwrap_or_default();
            return Err(refused(&url, status, &said, wait));
        }
        let bytes = read.map_err(|e| match e {
            ureq::Error::BodyExceedsLimit(_) => {
                Failed::last(format!("{url} answered with more than {} MiB", MOST_BYTES >> 20))
            }
            e => Failed::passing(format!("{url}: the reply was cut: {e}")),
        })?;
        // A server that says the key again, in a text, would have it in the record.
        let bytes = match &self.key {
            Some(Key(key)) if bytes.windows(key.len()).any(|part| part == key.as_bytes()) => {
                String::from_utf8_lossy(&bytes).replace(key.as_str(), "…").into_bytes()
            }
            _ => bytes,
        };
        serde_json::from_slice(&bytes).map_err(|e| Failed::passing(format!("{url} answered with what is no JSON: {e}")))
    }
}

fn failed_to_send(url: &str, error: ureq::Error) -> Failed {
    match error {
        ureq::Error::Timeout(_) => Failed::passing(format!("{url} did not answer in time: {error}")),
        ureq::Error::Io(_) | ureq::Error::ConnectionFailed | ureq::Error::HostNotFound | ureq::Error::Protocol(_) => {
            Failed::passing(format!("{url} cannot be reached: {error}"))
        }
        error => Failed::last(format!("{url}: {error}")),
    }
}

fn refused(url: &str, status: u16, said: &str, wait: Option<Duration>) -> Failed {
    let said = if said.is_empty() { String::new() } else { format!(": {said}") };
    let remedy = match status {
        401 | 403 => "; the key is taken from the environment variable TOTARA_API_KEY",
        404 => "; is the address the server's own, with or without /v1?",
        301 | 302 | 307 | 308 => "; the server is elsewhere: give the address it redirects to",
        _ => "",
    };
    let message = format!("{url} answered {status}{said}{remedy}");
    let again = matches!(status, 408 | 429 | 500..=599);
    // A server that asks for more patience than there is will not do better at once.
    let again = again && wait.is_none_or(|wait| wait <= LONGEST_WAIT);
    Failed { error: Error::fault(message), again, wait, status: Some(status) }
}

/// Seconds; a date is left to the back-off.
fn retry_after(response: &Response<Body>) -> Option<Duration> {
    let seconds: f64 = response.headers().get("retry-after")?.to_str().ok()?.trim().parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// What the server said in an error's body, as one safe line.
pub(super) fn message_in(bytes: &[u8]) -> String {
    let value: Value = serde_json::from_slice(bytes).unwrap_or(Value::Null);
    let inner = [&value["error"]["message"], &value["message"], &value["detail"], &value["error"]];
    let text = inner.into_iter().find_map(Value::as_str).map(str::to_string);
    let text = text.unwrap_or_else(|| String::from_utf8_lossy(bytes).into_owned());
    let mut line: String = sanitize_line(&text).trim().chars().take(MESSAGE).collect();
    if text.chars().count() > MESSAGE {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked_and_keep_no_secret() {
        let check = |url: &str, base: &str, loopback: bool| {
            let address = Address::parse(url).unwrap();
            assert_eq!((address.base.as_str(), address.loopback), (base, loopback));
        };
        check("http://127.0.0.1:8080", "http://127.0.0.1:8080/v1", true);
        check("http://[::1]:8080/", "http://[::1]:8080/v1", true);
        check("https://host/api/v1/", "https://host/api/v1", false);
        for url in ["host:80", "http://", "ftp://x", "http://me:pw@host", "http://host/?key=abc", "http://a b"] {
            let error = Address::parse(url).err().unwrap();
            assert!(error.exit_code() == 2, "{url}");
            assert!(!error.message().contains("pw") && !error.message().contains("abc"), "{error}");
        }
        assert_eq!(format!("{:?}", Key::new("secret")), "Key(…)");
    }

    #[test]
    fn a_servers_message_is_one_safe_line() {
        assert_eq!(message_in(br#"{"error": {"message": "too\nlong"}}"#), "too long");
        assert_eq!(message_in(br#"{"detail": "no"}"#), "no");
        assert_eq!(message_in(b"<html>\x1b[2Jx"), "<html>x");
        assert!(message_in(&[b'a'; 5000]).chars().count() <= MESSAGE + 1);
    }
}
