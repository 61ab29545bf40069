//! A model of the tests' own.

use crate::base::Result;
use crate::lm::{
    Completion, Counters, Finish, Generate, Hold, Info, LinkCounters, Lm, Prompt, Score, Scores, Update, Usage,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::{mpsc, oneshot};

/// What a request, counted from 0, is answered with.
pub type Answer = dyn Fn(usize, &Generate) -> Vec<Update> + Send + Sync;

/// A model of the test's own: what it answers, where, and what it is told to keep.
pub struct Fake {
    pub info: Info,
    /// Prompts in order of asking.
    pub prompts: Mutex<Vec<Prompt>>,
    pub held: Arc<AtomicUsize>,
    pub answer: Box<Answer>,
    /// What it says of itself at the end of a run; `None`: it is gone.
    pub sound: Option<Result<()>>,
    /// How many claims were said to go on soon, and to wait, where K/V has two tiers.
    pub expected: Option<Mutex<Vec<(usize, usize)>>>,
    /// What its device has to tell.
    pub device_note: Option<String>,
}

pub struct Held(Arc<AtomicUsize>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Fake {
    pub fn new(answer: impl Fn(usize, &Generate) -> Vec<Update> + Send + Sync + 'static) -> Self {
        Self {
            info: Info { name: "fake".into(), ..Info::default() },
            prompts: Mutex::default(),
            held: Arc::default(),
            answer: Box::new(answer),
            sound: Some(Ok(())),
            expected: None,
            device_note: None,
        }
    }

    pub fn done(&self, sample: usize, text: &str, finish: Finish) -> Update {
        self.held.fetch_add(1, Ordering::SeqCst);
        Update::Done { sample, completion: completion(text, finish, Some(Hold(Arc::new(Held(self.held.clone()))))) }
    }
}

pub fn completion(text: &str, finish: Finish, hold: Option<Hold>) -> Completion {
    Completion {
        text: text.into(),
        ids: text.bytes().map(u32::from).collect::<Vec<_>>().into(),
        logprobs: vec![-1.0; text.len()],
        masked_logprob: -(text.len() as f64),
        finish,
        usage: Usage { sampled: text.len() as u64, logical: text.len() as u64, ..Usage::default() },
        hold,
    }
}

impl Lm for Fake {
    fn info(&self) -> &Info {
        &self.info
    }

    fn count_tokens(&self, prompt: &Prompt) -> Option<usize> {
        Some(prompt.full_text().len())
    }

    fn generate(&self, request: Generate) -> mpsc::UnboundedReceiver<Update> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut prompts = self.prompts.lock().unwrap();
        let updates: Vec<Update> = (self.answer)(prompts.len(), &request)
            .into_iter()
            .map(|update| match update {
                Update::Done { sample, completion } if completion.hold.is_none() => {
                    self.done(sample, &completion.text, completion.finish)
                }
                update => update,
            })
            .collect();
        prompts.push(request.prompt);
        for update in updates {
            // The run may have called it off already.
            let _ = sender.send(update);
        }
        receiver
    }

    fn score(&self, request: Score) -> oneshot::Receiver<Result<Scores>> {
        let (sender, receiver) = oneshot::channel();
        let logprobs = request.continuations.iter().map(|c| vec![-0.5; c.len()]).collect();
        let _ = sender.send(Ok(Scores { logprobs, usage: Usage { scored: 3, logical: 9, ..Usage::default() } }));
        receiver
    }

    fn counters(&self) -> Counters {
        let link = LinkCounters { device_budget_bytes: u64::from(self.expected.is_some()), ..LinkCounters::default() };
        Counters { link: Some(link), note: self.device_note.clone(), ..Counters::default() }
    }

    fn expect(&self, soon: &[&Hold], later: &[&Hold]) {
        self.expected.as_ref().unwrap().lock().unwrap().push((soon.len(), later.len()));
    }

    fn check(&self) -> oneshot::Receiver<Result<()>> {
        let (sender, receiver) = oneshot::channel();
        if let Some(sound) = self.sound.clone() {
            sender.send(sound).unwrap();
        }
        receiver
    }
}

/// A model that says one text of each sample, or none, and never ends.
pub struct Endless {
    info: Info,
    says: Option<&'static str>,
    pub asked: Mutex<Vec<mpsc::UnboundedSender<Update>>>,
}

impl Endless {
    pub fn new(says: Option<&'static str>) -> Self {
        Self { info: Info::default(), says, asked: Mutex::default() }
    }
}

impl Lm for Endless {
    fn info(&self) -> &Info {
        &self.info
    }

    fn count_tokens(&self, prompt: &Prompt) -> Option<usize> {
        Some(prompt.full_text().split_whitespace().count())
    }

    fn generate(&self, request: Generate) -> mpsc::UnboundedReceiver<Update> {
        let (sender, receiver) = mpsc::unbounded_channel();
        for sample in 0..self.says.map_or(0, |_| request.n) {
            // The receiver is at hand.
            let _ = sender.send(Update::Text { sample, text: self.says.unwrap_or_default().into(), logprob: -1.0 });
        }
        self.asked.lock().unwrap().push(sender);
        receiver
    }

    fn score(&self, _: Score) -> oneshot::Receiver<Result<Scores>> {
        oneshot::channel().1
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

pub fn says(texts: &[&str]) -> Vec<Update> {
    let done =
        |(sample, text): (usize, &&str)| Update::Done { sample, completion: completion(text, Finish::End, None) };
    texts.iter().enumerate().map(done).collect()
}
