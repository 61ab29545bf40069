//! A model that answers from a file: `--model scripted:FILE`. For trying and testing strategies and the screen without
//! weights.
//!
//! The file holds replies separated by lines that are exactly `===`; lines at its top that start with `#` are comments.
//! Replies are handed out in the order in which they are asked for, one a sample, whatever the prompt. After the last one
//! each further sample fails with `the script has no more replies`: going round would hide a strategy that asks more
//! than its author thinks.
//!
//! A token is a word of the text (split at white space), for counting, for budgets and for `max_tokens`. There is no
//! cache, so every prompt counts in full, once a request. There are no log-probabilities; asking for them is an error.

use super::{Completion, Counters, Finish, Generate, Info, Judgement, Lm, Prompt, Score, Scores, Update, Usage};
use crate::base::{Error, Result, read};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{mpsc, oneshot};

/// Bytes of a script at most.
const MOST_BYTES: u64 = 64 << 20;

pub struct Scripted {
    info: Info,
    replies: Mutex<VecDeque<String>>,
}

impl Scripted {
    /// Reads a script.
    ///
    /// # Errors
    /// The file cannot be read, is not UTF-8, or holds no reply.
    pub fn open(path: &Path) -> Result<Self> {
        let text = read::text(path, MOST_BYTES).map_err(|e| Error::input(format!("script {} {e}", path.display())))?;
        let replies = parse(&text);
        if replies.is_empty() {
            let path = path.display();
            return Err(Error::input(format!("script {path} holds no reply; separate replies by lines `===`")));
        }
        Ok(Self::new(format!("scripted:{}", path.display()), replies))
    }

    pub fn new(name: impl Into<String>, replies: impl IntoIterator<Item = String>) -> Self {
        let info = Info { name: name.into(), device: "script".into(), ..Info::default() };
        Self { info, replies: Mutex::new(replies.into_iter().collect()) }
    }

    /// The next n replies; fewer where the script ends.
    fn take(&self, n: usize) -> Vec<Option<String>> {
        let mut replies = self.replies.lock().unwrap_or_else(PoisonError::into_inner);
        (0..n).map(|_| replies.pop_front()).collect()
    }
}

/// The replies of a script's text.
pub fn parse(text: &str) -> Vec<String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let body: Vec<&str> = text.lines().skip_while(|line| line.starts_with('#')).collect();
    if body.iter().all(|line| line.trim().is_empty()) {
        return Vec::new();
    }
    body.split(|line| line.trim_end() == "===").map(|lines| lines.join("\n")).collect()
}

fn words(text: &str) -> u64 {
    text.split_whitespace().count() as u64
}

/// What becomes of a reply under the request's limits: the text kept and why it ended.
fn cut(reply: &str, request: &Generate) -> (String, Finish) {
    let mut text = reply;
    let mut finish = Finish::End;
    let stops = request.stop.iter().filter(|s| !s.is_empty());
    if let Some((at, stop)) = stops.filter_map(|s| text.find(s.as_str()).map(|at| (at, s))).min_by_key(|(at, _)| *at) {
        text = &text[..at];
        finish = Finish::Stop(stop.clone());
    }
    if words(text) > request.max_tokens as u64 {
        let mut left = request.max_tokens;
        let mut inside = false;
        let end = text.char_indices().find_map(|(at, c)| {
            if !c.is_whitespace() && !inside {
                if left == 0 {
                    return Some(at);
                }
                left -= 1;
            }
            inside = !c.is_whitespace();
            None
        });
        text = text[..end.unwrap_or(text.len())].trim_end();
        finish = Finish::Length;
    }
    if let Some(constraint) = &request.constraint {
        let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
        for end in ends {
            match constraint.judge(&text[..end]) {
                Judgement::Dead(why) => return (text[..end].to_string(), Finish::Refuted(why)),
                Judgement::Closed => return (text[..end].to_string(), Finish::End),
                Judgement::Open { .. } => {}
            }
        }
        if constraint.masks() && matches!(constraint.judge(text), Judgement::Open { complete: false }) {
            return (text.to_string(), Finish::Refuted("the reply ends before it is complete".into()));
        }
    }
    (text.to_string(), finish)
}

impl Lm for Scripted {
    fn info(&self) -> &Info {
        &self.info
    }

    fn count_tokens(&self, prompt: &Prompt) -> Option<usize> {
        Some(words(&prompt.full_text()) as usize)
    }

    fn generate(&self, request: Generate) -> mpsc::UnboundedReceiver<Update> {
        let (updates, receiver) = mpsc::unbounded_channel();
        let prompt = words(&request.prompt.full_text());
        for (sample, reply) in self.take(request.n).into_iter().enumerate() {
            let computed = if sample == 0 { prompt } else { 0 };
            let (text, finish, sampled) = match reply {
                Some(reply) => {
                    let (text, finish) = cut(&reply, &request);
                    let sampled = words(&text);
                    (text, finish, sampled)
                }
                None => (String::new(), Finish::Failed("the script has no more replies".into()), 0),
            };
            for piece in text.split_inclusive(char::is_whitespace) {
                // A reader that has gone away is a cancelled request.
                let _ = updates.send(Update::Text { sample, text: piece.to_string(), logprob: 0.0 });
            }
            let usage = Usage { prompt: computed, sampled, scored: 0, logical: computed + sampled, ..Usage::default() };
            let completion = Completion {
                text,
                ids: Arc::from([]),
                logprobs: Vec::new(),
                masked_logprob: 0.0,
                finish,
                usage,
                hold: None,
            };
            let _ = updates.send(Update::Done { sample, completion });
        }
        receiver
    }

    fn score(&self, _: Score) -> oneshot::Receiver<Result<Scores>> {
        let (answer, receiver) = oneshot::channel();
        let _ = answer.send(Err(Error::input("a scripted model has no log-probabilities; use another evaluator")));
        receiver
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lm::{Constraint, Likelihood, Mode, Sampling, StreamKey};

    fn request(n: usize) -> Generate {
        Generate {
            prompt: Prompt::completion("two words"),
            mode: Mode::Sample,
            n,
            sampling: Sampling::default(),
            max_tokens: 100,
            stop: Vec::new(),
            constraint: None,
            likelihood: Likelihood::Model,
            key: StreamKey { seed: 0, puzzle: 0, node: 0 },
        }
    }

    fn finished(lm: &Scripted, request: Generate) -> Vec<(String, Finish)> {
        let mut updates = lm.generate(request);
        let mut done = Vec::new();
        while let Ok(update) = updates.try_recv() {
            if let Update::Done { completion, .. } = update {
                done.push((completion.text, completion.finish));
            }
        }
        done
    }

    #[test]
    fn replies_are_parted_at_rules_and_comments_at_the_top_skipped() {
        assert_eq!(parse("# a comment\n# more\none\n# kept\n===\n\n===\nthree\n"), ["one\n# kept", "", "three"]);
        assert_eq!(parse("# only a comment\n"), Vec::<String>::new());
        assert_eq!(parse("a\r\n===\r\nb"), ["a", "b"]);
    }

    #[test]
    fn replies_go_out_in_order_and_then_fail() {
        let lm = Scripted::new("s", ["a", "b", "c"].map(String::from));
        assert_eq!(finished(&lm, request(2)), [("a".into(), Finish::End), ("b".into(), Finish::End)]);
        let rest = finished(&lm, request(2));
        assert_eq!(rest[0].0, "c");
        assert_eq!(rest[1].1, Finish::Failed("the script has no more replies".into()));
    }

    #[test]
    fn stops_limits_and_constraints_hold() {
        struct Only(&'static str);
        impl Constraint for Only {
            fn judge(&self, text: &str) -> Judgement {
                match (self.0 == text, self.0.starts_with(text)) {
                    (true, _) => Judgement::Closed,
                    (_, true) => Judgement::Open { complete: false },
                    _ => Judgement::Dead("not it".into()),
                }
            }
        }
        let check = |reply: &str, change: fn(&mut Generate), text: &str, finish: Finish| {
            let mut request = request(1);
            change(&mut request);
            assert_eq!(finished(&Scripted::new("s", [reply.to_string()]), request), [(text.to_string(), finish)]);
        };
        check("one\ntwo;", |r| r.stop = vec![";".into(), "\n".into()], "one", Finish::Stop("\n".into()));
        check("a  b c", |r| r.max_tokens = 2, "a  b", Finish::Length);
        check("abc", |r| r.constraint = Some(Arc::new(Only("ab"))), "ab", Finish::End);
        check("axc", |r| r.constraint = Some(Arc::new(Only("ab"))), "ax", Finish::Refuted("not it".into()));
        let short = Finish::Refuted("the reply ends before it is complete".into());
        check("a", |r| r.constraint = Some(Arc::new(Only("ab"))), "a", short);
    }

    #[test]
    fn words_are_counted_and_the_prompt_once() {
        let lm = Scripted::new("s", ["a b c", "d"].map(String::from));
        let mut updates = lm.generate(request(2));
        let mut usage = Usage::default();
        while let Ok(update) = updates.try_recv() {
            if let Update::Done { completion, .. } = update {
                usage += completion.usage;
            }
        }
        assert_eq!(
            usage,
            Usage { prompt: 2, sampled: 4, scored: 0, logical: 2 + 3 + 1, ..Usage::default() },
            "a request's prompt counts once"
        );
    }

    #[test]
    fn a_script_without_replies_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# nothing\n").unwrap();
        assert!(Scripted::open(file.path()).is_err_and(|e| e.message().contains("holds no reply")));
        assert!(Scripted::open(Path::new("/no/such/script")).is_err_and(|e| e.exit_code() == 2));
    }
}
