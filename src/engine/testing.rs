//! A device for tests that computes nothing and checks everything: its K/V arena holds the tokens themselves, `attend`
//! gathers each row's path through the work's units and pieces, and a row's logits are a hash of that path. Any slip in
//! slots, plans, sharing or eviction changes a path, and with it every text after it.

use super::counters::Counters;
use super::request::{Completion, Generate, Likelihood, Mode, Sampling, StreamKey, Update};
use super::sample::Sampler;
use super::sample::row::Row;
use super::sample::sums::{largest, largest_of, log_sum_exp, warm_sum};
use super::vocab::Vocab;
use super::{Engine, Limits};
use crate::attention::Method;
use crate::base::{Error, Result};
use crate::device::attend::{AttendWork, Io};
use crate::device::head::{Glance, HeadRow, Said, Want};
use crate::device::{Device, Rope, RopeLayout, Shape, Step, Times};
use crate::kv::PAGE_TOKENS;
use crate::model::llama::Llama;
use sha2::{Digest, Sha256};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedReceiver;

/// What a test may see and set from outside.
#[derive(Default)]
pub struct Script {
    /// Rows of each step.
    pub steps: Vec<usize>,
    /// Every path whose logits were asked for.
    pub asked: Vec<Vec<u32>>,
    /// How many of these were asked for a few tokens only.
    pub few: usize,
    /// Paths that end with this token get NaN logits.
    pub nan_after: Option<u32>,
    /// Only so many of a path's last tokens count: a model that repeats itself.
    pub memory: Option<usize>,
    /// Glances with so many best tokens are all it says; `None`: all logits.
    pub glance: Option<usize>,
    /// Rows that had to be fetched.
    pub fetched: usize,
    /// What a row costs; `None`: nearly nothing.
    pub row_cost: Option<f64>,
    /// What a step takes at least.
    pub pace: Duration,
    /// The step with this number fails, or panics.
    pub error_at: Option<usize>,
    pub panic_at: Option<usize>,
    /// What the device has to tell, from the first step on.
    pub note: Option<&'static str>,
    /// Partial rows of every step; `None`: as planned.
    pub partial_rows: Option<u64>,
}

pub struct PathDevice {
    vocab: usize,
    arena: Vec<Option<u32>>,
    pages: usize,
    step: Vec<(u32, u32, usize)>,
    paths: Vec<Vec<u32>>,
    /// Logits of the last step's wanted rows.
    kept: Vec<Vec<f32>>,
    script: Arc<Mutex<Script>>,
}

impl Device for PathDevice {
    fn describe(&self) -> String {
        "paths".into()
    }

    fn note(&self) -> Option<&str> {
        self.script.lock().unwrap().note
    }

    fn page_bytes(&self) -> usize {
        PAGE_TOKENS * 4
    }

    fn pages(&self) -> usize {
        self.pages
    }

    fn row_cost(&self) -> f64 {
        self.script.lock().unwrap().row_cost.unwrap_or(0.01)
    }

    fn attend_io(&self, planned: Io) -> Io {
        Io { partial_rows: self.script.lock().unwrap().partial_rows.unwrap_or(planned.partial_rows), ..planned }
    }

    fn begin(&mut self, step: &Step<'_>) -> Result<()> {
        let mut script = self.script.lock().unwrap();
        let number = script.steps.len();
        script.steps.push(step.tokens.len());
        let (error_at, panic_at, pace) = (script.error_at, script.panic_at, script.pace);
        drop(script);
        std::thread::sleep(pace);
        assert!(panic_at != Some(number), "as scripted");
        if error_at == Some(number) {
            return Err(Error::fault("device lost, as scripted"));
        }
        let place = |i: usize| step.slots[i].page.0 as usize * PAGE_TOKENS + step.slots[i].offset as usize;
        self.step = (0..step.tokens.len()).map(|i| (step.tokens[i], step.positions[i], place(i))).collect();
        let mut places: Vec<usize> = self.step.iter().map(|row| row.2).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), self.step.len(), "two rows of a step write one slot");
        Ok(())
    }

    fn attn_in(&mut self, _: usize) -> Result<()> {
        for &(token, position, place) in &self.step {
            assert_eq!(place % PAGE_TOKENS, position as usize % PAGE_TOKENS);
            self.arena[place] = Some(token);
        }
        Ok(())
    }

    fn attend(&mut self, _: usize, work: &AttendWork) -> Result<()> {
        self.paths = vec![Vec::new(); self.step.len()];
        let mut seen: Vec<Vec<Option<u32>>> = work.positions.iter().map(|&p| vec![None; p as usize + 1]).collect();
        for unit in &work.units {
            for piece in &work.pieces[unit.pieces.start as usize..unit.pieces.end as usize] {
                for row in piece.rows.start.max(unit.rows.start)..piece.rows.end.min(unit.rows.end) {
                    for position in piece.start..(piece.start + piece.len).min(work.positions[row as usize] + 1) {
                        let page = position as usize / PAGE_TOKENS - piece.start as usize / PAGE_TOKENS;
                        let page = work.pages[piece.first_page as usize + page] as usize;
                        let token = self.arena[page * PAGE_TOKENS + position as usize % PAGE_TOKENS];
                        let place = &mut seen[row as usize][position as usize];
                        assert!(place.is_none() && token.is_some(), "a token is seen twice, or was never written");
                        *place = token;
                    }
                }
            }
        }
        for (row, path) in work.order.iter().zip(seen) {
            self.paths[*row as usize] = path.into_iter().map(|token| token.expect("every position is seen")).collect();
        }
        Ok(())
    }

    fn attn_out(&mut self, _: usize) -> Result<()> {
        Ok(())
    }

    fn mlp(&mut self, _: usize) -> Result<()> {
        Ok(())
    }

    fn head(&mut self, wanted: &[HeadRow<'_>], out: &mut Vec<Said>) -> Result<()> {
        let mut script = self.script.lock().unwrap();
        self.kept.clear();
        for row in wanted {
            let path = &self.paths[row.row];
            script.asked.push(path.clone());
            script.few += usize::from(matches!(row.want, Want::Only(_)));
            let nan = script.nan_after.is_some() && path.last() == script.nan_after.as_ref();
            let from = script.memory.map_or(0, |memory| path.len().saturating_sub(memory));
            let logits = if nan { vec![f32::NAN; self.vocab] } else { path_logits(&path[from..], self.vocab) };
            out.push(match (row.want, script.glance) {
                (Want::Glance(ask), Some(top)) => Said::Glance(Glance {
                    top: largest_of(&logits, top),
                    total: log_sum_exp(&logits).unwrap_or(f64::NAN),
                    warm: warm_sum(&logits, largest(&logits), ask.temperature),
                    asked: ask.tokens.iter().map(|&token| logits[token as usize]).collect(),
                }),
                (Want::Only(few), _) => Said::Logits(few.iter().map(|&token| logits[token as usize]).collect()),
                _ => Said::Logits(logits.clone()),
            });
            self.kept.push(logits);
        }
        Ok(())
    }

    fn fetch(&mut self, wanted: usize, out: &mut Vec<f32>) -> Result<()> {
        self.script.lock().unwrap().fetched += 1;
        out.extend_from_slice(&self.kept[wanted]);
        Ok(())
    }

    fn times(&self) -> Times {
        Times::default()
    }
}

/// Logits in -4..4 that depend on the whole path.
pub fn path_logits(path: &[u32], vocab: usize) -> Vec<f32> {
    let mut hash = Sha256::new();
    for token in path {
        hash.update(token.to_le_bytes());
    }
    let mut state = u64::from_le_bytes(hash.finalize()[..8].try_into().unwrap());
    let mut logits = Vec::with_capacity(vocab);
    for _ in 0..vocab {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        logits.push((state >> 40) as f32 / (1 << 21) as f32 - 4.0);
    }
    logits
}

/// Token 0 ends; 1 to 26 are `a` to `z`, 27 to 36 the digits, 37 a space, 38 a newline, 39 `12`, 40 `ab`, 41 half of `é`,
/// 42 the other half.
pub fn letters() -> Vocab {
    let mut pieces: Vec<Vec<u8>> = vec![Vec::new()];
    pieces.extend((b'a'..=b'z').map(|b| vec![b]));
    pieces.extend((b'0'..=b'9').map(|b| vec![b]));
    pieces.extend([b" ".to_vec(), b"\n".to_vec(), b"12".to_vec(), b"ab".to_vec(), vec![0xC3], vec![0xA9]]);
    Vocab::new(pieces, vec![0])
}

/// An engine over the path device.
pub struct Bench {
    pub engine: Engine,
    pub script: Arc<Mutex<Script>>,
}

/// The path device in a model, with limits that fit it.
pub fn llama(pages: usize) -> (Llama, Limits, Arc<Mutex<Script>>) {
    let vocab = letters().len();
    let rope = Rope { theta: 1e4, factors: None, layout: RopeLayout::Halves };
    let shape = Shape {
        layers: 1,
        hidden: 1,
        heads: 1,
        kv_heads: 1,
        head_size: 1,
        feed_forward: 1,
        vocab,
        context: 4096,
        norm_eps: 1e-5,
        rope,
    };
    let script = Arc::new(Mutex::new(Script::default()));
    let device = PathDevice {
        vocab,
        arena: vec![None; pages * PAGE_TOKENS],
        pages,
        step: Vec::new(),
        paths: Vec::new(),
        kept: Vec::new(),
        script: Arc::clone(&script),
    };
    (Llama::new(Box::new(device), shape.layers), Limits::new(&shape, Method::default(), 2), script)
}

impl Bench {
    pub fn new(pages: usize, change: impl FnOnce(&mut Limits)) -> Self {
        let (llama, mut limits, script) = llama(pages);
        change(&mut limits);
        Self { engine: Engine::start(llama, Arc::new(letters()), limits).unwrap(), script }
    }

    /// Waits until the counters are as told: claims that were just dropped reach the engine a moment later.
    pub fn wait_for(&self, what: &str, mut as_told: impl FnMut(&Counters) -> bool) {
        let began = Instant::now();
        while !as_told(&self.engine.counters()) {
            assert!(began.elapsed() < Duration::from_secs(10), "{what}: {:?}", self.engine.counters());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn run(&self, request: Generate) -> std::result::Result<Vec<Completion>, Error> {
        collect(self.engine.generate(request))
    }
}

/// Waits for all samples; checks that each ended once and that the streamed pieces are its text.
pub fn collect(mut updates: UnboundedReceiver<Update>) -> std::result::Result<Vec<Completion>, Error> {
    let mut pieces: Vec<String> = Vec::new();
    let mut done: Vec<Option<Completion>> = Vec::new();
    while let Some(update) = updates.blocking_recv() {
        match update {
            Update::Text { sample, text, .. } => {
                pieces.resize(pieces.len().max(sample + 1), String::new());
                pieces[sample].push_str(&text);
            }
            Update::Done { sample, completion } => {
                done.resize_with(done.len().max(sample + 1), || None);
                assert!(done[sample].replace(completion).is_none(), "sample {sample} ended twice");
            }
            Update::Failed(error) => return Err(error),
        }
    }
    pieces.resize(done.len(), String::new());
    let done: Vec<Completion> = done.into_iter().map(|done| done.expect("every sample ended")).collect();
    for (piece, done) in pieces.iter().zip(&done) {
        assert_eq!(piece, &done.text);
        assert_eq!(done.ids.len(), done.logprobs.len());
    }
    Ok(done)
}

/// A request for greedy text after a prompt of letters.
pub fn request(prompt: &[u32]) -> Generate {
    Generate {
        prompt: prompt.into(),
        mode: Mode::Sample,
        n: 1,
        sampling: Sampling::default(),
        max_tokens: 12,
        stop: Vec::new(),
        constraint: None,
        listed: None,
        likelihood: Likelihood::Model,
        key: StreamKey { seed: 1, puzzle: 2, node: 3 },
    }
}

/// What must not depend on who else is served.
pub fn outcome(completion: &Completion) -> (String, Vec<u32>, Vec<u32>, u64) {
    let bits = completion.logprobs.iter().map(|l| l.to_bits()).collect();
    (completion.text.clone(), completion.ids.to_vec(), bits, completion.masked_logprob.to_bits())
}

/// A prompt after which the greedy text goes round in a ring for ever, where only the last token counts.
pub fn ring(from: u32) -> Vec<u32> {
    let next = |token: u32| Sampler::greedy().best(&mut Row::of(&path_logits(&[token], 43)), None, 1).unwrap()[0].token;
    let endless = |&first: &u32| {
        let mut at = first;
        (0..50).all(|_| {
            at = next(at);
            at != 0
        })
    };
    vec![1, 2, (from..43).chain(1..from).find(endless).unwrap()]
}
