//! A program that scores answers: JSON in, a number of errors out. It blocks whoever asks, up to its time limit.

use serde_json::Value;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// An answer above this is none.
const MAX_BYTES: u64 = 1 << 20;

/// How often it is looked whether the program has ended.
const LOOK: Duration = Duration::from_millis(5);

/// What the program says: errors (0 is right), and what it tells of them.
///
/// # Errors
/// It cannot be started, fails, takes too long, or says something else.
pub fn errors(run: &[String], input: &str, seconds: f64) -> Result<(f64, String), String> {
    let text = answer(run, input, seconds)?;
    let value: Value = serde_json::from_str(text.trim()).map_err(|error| format!("its answer is no JSON: {error}"))?;
    let errors = match &value {
        Value::Bool(right) => Some(if *right { 0.0 } else { 1.0 }),
        value => value.as_f64().or_else(|| value.get("errors")?.as_f64()),
    };
    let errors =
        errors.filter(|e| *e >= 0.0).ok_or("its answer is neither a number of errors nor an object with `errors`")?;
    Ok((errors, value.get("detail").and_then(Value::as_str).unwrap_or_default().to_string()))
}

fn answer(run: &[String], input: &str, seconds: f64) -> Result<String, String> {
    let Some((program, arguments)) = run.split_first() else { return Err("there is no program to run".into()) };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("`{program}` cannot be started: {error}"))?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let input = input.to_string();
    // Both ends move by themselves, so that neither a full pipe nor a program that reads nothing holds anyone up.
    std::thread::spawn(move || {
        if let Some(mut stdin) = stdin {
            // A program that does not read its input may still answer.
            let _ = stdin.write_all(input.as_bytes());
        }
    });
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = match stdout {
            Some(stdout) => stdout.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| error.to_string()),
            None => Ok(0),
        };
        // Whoever waited may have given up.
        let _ = sender.send(read.map(|_| bytes));
    });
    let limit = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    let started = Instant::now();
    let bytes = receiver.recv_timeout(limit);
    let left = || limit.saturating_sub(started.elapsed());
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Ok(status),
            Ok(None) if bytes.is_ok() && !left().is_zero() => std::thread::sleep(LOOK.min(left())),
            Ok(None) => {
                // It is over whether or not these succeed.
                let _ = child.kill();
                let _ = child.wait();
                break Err(format!("no answer within {seconds} seconds"));
            }
            Err(error) => break Err(error.to_string()),
        }
    }?;
    if !status.success() {
        return Err(format!("`{program}` failed: {status}"));
    }
    let bytes = bytes.map_err(|_| format!("no answer within {seconds} seconds"))??;
    if bytes.len() as u64 > MAX_BYTES {
        return Err("its answer is larger than 1 MiB".into());
    }
    String::from_utf8(bytes).map_err(|_| "its answer is not UTF-8 text".into())
}
