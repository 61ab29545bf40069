//! Running the programs that score thoughts: a few at a time, each with its time limit, while commands are obeyed.
//!
//! A program is started as the strategy names it, without a shell, in the current folder. It is ended when its time is up
//! and when the run ends. Whether a strategy may run programs at all was decided when it was loaded.

use super::Controller;
use crate::search::evaluate::{Part, command};
use crate::search::event::Reason;
use crate::search::tree::NodeId;
use serde_json::{Value, json};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Programs that run at the same time.
const AT_ONCE: usize = 4;
/// A program's answer above this is none.
const MAX_BYTES: u64 = 1 << 20;

impl Controller {
    /// What the program says of each thought.
    pub(super) async fn run_command(&mut self, run: &[String], seconds: f64, nodes: &[NodeId]) -> Vec<Part> {
        let mut parts: Vec<Part> = nodes.iter().map(|_| Part::missing(command::NAME, "called off".into(), 0)).collect();
        let places = Arc::new(Semaphore::new(AT_ONCE));
        let mut running = JoinSet::new();
        for (i, &node) in nodes.iter().enumerate() {
            let input = self.told_to_command(node).to_string();
            let (run, places) = (run.to_vec(), places.clone());
            running.spawn(async move {
                let _place = places.acquire_owned().await;
                let limit = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
                match tokio::time::timeout(limit, answer(&run, input)).await {
                    Ok(answer) => (i, answer),
                    Err(_) => (i, Err(format!("no answer within {seconds} seconds"))),
                }
            });
        }
        // Dropping the set ends what still runs.
        while !self.hurry {
            tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    Some(command) => self.obey(command),
                    None => self.stop(Reason::Quit),
                },
                finished = running.join_next() => match finished {
                    None => break,
                    Some(Ok((i, answer))) => parts[i] = command::judge(answer),
                    Some(Err(error)) => self.note(format!("a program of `evaluate` was lost: {error}")),
                },
            }
        }
        parts
    }

    /// What a program reads.
    fn told_to_command(&self, node: NodeId) -> Value {
        let at = self.tree.node(node);
        json!({
            "task": self.puzzle.task(),
            "id": self.puzzle.id(),
            "inputs": self.inputs,
            "thought": at.text,
            "path": self.tree.path(node).iter().map(|&id| self.tree.node(id).text.as_str()).collect::<Vec<_>>(),
            "answer": self.answer_of(node),
            "depth": at.depth,
        })
    }
}

/// Runs a program on one input; what it wrote.
async fn answer(run: &[String], input: String) -> Result<String, String> {
    let Some((program, arguments)) = run.split_first() else { return Err("there is no program to run".into()) };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("`{program}` cannot be started: {error}"))?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let write = async {
        if let Some(mut stdin) = stdin {
            // A program that does not read its input may still answer.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
    };
    let read = async {
        let mut text = Vec::new();
        if let Some(stdout) = stdout {
            stdout.take(MAX_BYTES + 1).read_to_end(&mut text).await.map_err(|error| error.to_string())?;
        }
        if text.len() as u64 > MAX_BYTES { Err("its answer is larger than 1 MiB".to_string()) } else { Ok(text) }
    };
    let ((), text) = tokio::join!(write, read);
    let text = text?;
    let status = child.wait().await.map_err(|error| error.to_string())?;
    if !status.success() {
        return Err(format!("`{program}` failed: {status}"));
    }
    String::from_utf8(text).map_err(|_| "its answer is not UTF-8 text".into())
}
