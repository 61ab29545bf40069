//! Samples of one prompt: how many lanes grow, and how each goes on from its logits.

use super::constraint::{Judgement, Mask, Ruler};
use super::job::{Context, Lane, Role};
use super::request::{Completion, Finish, Generate, Hold, Likelihood, Mode, Reply, StreamKey, Usage};
use super::sample::row::{Asked, Row};
use super::sample::sums::log_sum_exp_of_few;
use super::sample::{Pick, Sampler};
use super::speculate::{self, Load, Luck};
use super::text::{Stops, Text};
use super::vocab::Vocab;
use crate::base::rng::stream;
use crate::base::{Error, ErrorKind, Result};
use std::sync::Arc;

/// What all samples of a request share.
pub struct Sampling {
    reply: Reply,
    mode: Mode,
    n: usize,
    sampler: Sampler,
    max_tokens: usize,
    stops: Stops,
    ruler: Option<Ruler>,
    key: StreamKey,
    prompt_len: usize,
}

/// One sample while it grows.
pub struct Sample {
    index: usize,
    text: Text,
    /// Every token that was drawn and kept, in order.
    ids: Vec<u32>,
    logprobs: Vec<f32>,
    masked_logprob: f64,
    /// Log-probability of tokens whose characters are still held back.
    unsent_logprob: f32,
    usage: Usage,
    /// How its drafts do.
    pub luck: Luck,
}

impl Sampling {
    pub fn new(request: Generate, sampler: Sampler, mut reply: Reply) -> Self {
        reply.expect(request.n);
        let sampler = sampler.telling(request.likelihood);
        let stops = Stops::new(&request.stop);
        Self {
            reply,
            mode: request.mode,
            n: request.n,
            sampler: if request.mode == Mode::Likeliest { sampler.cold() } else { sampler },
            max_tokens: request.max_tokens,
            ruler: request.constraint.map(|rule| Ruler::new(rule, stops.clone())),
            stops,
            key: request.key,
            prompt_len: request.prompt.len(),
        }
    }

    pub fn reply(&mut self) -> &mut Reply {
        &mut self.reply
    }

    /// The prompt's logits are there: starts the samples and returns the lanes that go on.
    pub fn start(&mut self, root: &mut Lane, row: &mut Row<'_>, context: &mut Context<'_>) -> Vec<Lane> {
        let mut lanes = Vec::new();
        let first = match self.mode {
            Mode::Sample => vec![None; self.n],
            Mode::Likeliest => match self.likeliest(row, context) {
                Ok(picks) => picks.into_iter().map(Some).collect(),
                // Every sample meets the same logits and says what is wrong with them.
                Err(_) => vec![None; self.n],
            },
        };
        self.reply.expect(first.len());
        let count = first.len();
        for (index, pick) in first.into_iter().enumerate() {
            let mut sample = Sample::new(index, self.stops.clone());
            if index == 0 {
                sample.usage = std::mem::take(&mut root.usage);
                sample.usage.logical = self.prompt_len as u64;
            }
            let branch = match root.branch {
                Some(branch) if index + 1 < count => Some(context.tree.fork(branch)),
                _ => root.branch.take(),
            };
            let mut lane = Lane::new(root.path.clone(), Role::Root);
            lane.branch = branch;
            let finish = match self.before(context) {
                Some(finish) => Some(finish),
                None => match pick {
                    Some(pick) => {
                        let mask = self.mask(Some(&sample), context.vocab);
                        self.accept(&mut sample, pick, mask.as_deref(), context)
                    }
                    None => self.draw(&mut sample, row, context),
                },
            };
            self.go_on(&mut lane, sample, finish, context);
            lanes.push(lane);
        }
        lanes
    }

    /// One sample's logits are there.
    pub fn next(&mut self, lane: &mut Lane, mut sample: Sample, row: &mut Row<'_>, context: &mut Context<'_>) {
        let finish = self.draw(&mut sample, row, context);
        self.go_on(lane, sample, finish, context);
    }

    /// A draft of what may follow a sample's path, for a step of that load.
    pub fn draft(
        &mut self,
        sample: &Sample,
        path: &[u32],
        load: &mut Load,
        most: usize,
        context: &Context<'_>,
    ) -> Vec<speculate::Node> {
        // The token that is drawn last needs no node.
        let left = self.max_tokens.min(context.limit - self.prompt_len).saturating_sub(sample.ids.len() + 1);
        if left == 0 || !load.pays_at_best() {
            return Vec::new();
        }
        let mask = self.mask(Some(sample), context.vocab);
        let allowed = |token: u32| mask.as_ref().is_none_or(|mask| mask.allowed.binary_search(&token).is_ok());
        speculate::draft(path, &sample.luck, load, most, left, allowed)
    }

    /// Ends a sample that cannot be continued.
    pub fn give_up(&mut self, lane: &mut Lane, sample: Sample, error: &Error, context: &mut Context<'_>) {
        let why = error.message().to_string();
        let finish = match error.kind() {
            ErrorKind::Limit => Finish::NoMemory(why),
            ErrorKind::Input | ErrorKind::Fault => Finish::Failed(why),
        };
        self.go_on(lane, sample, Some(finish), context);
    }

    fn go_on(&mut self, lane: &mut Lane, sample: Sample, finish: Option<Finish>, context: &mut Context<'_>) {
        match finish {
            None => {
                lane.path.extend(sample.ids.last());
                lane.role = Role::Sample(Box::new(sample));
            }
            Some(finish) => {
                lane.done = true;
                lane.role = Role::Root;
                let branch = lane.branch.take();
                let hold = match (&finish, branch) {
                    (Finish::Failed(_) | Finish::NoMemory(_), Some(branch)) => {
                        context.tree.release(branch);
                        None
                    }
                    (_, branch) => branch.map(|branch| context.holds.claim(branch)),
                };
                let usage = lane.usage;
                self.end(sample, finish, usage, hold, context);
            }
        }
    }

    /// What ends every sample before its first token.
    fn before(&self, context: &Context<'_>) -> Option<Finish> {
        if self.prompt_len >= context.limit {
            return Some(Finish::Context(context.limit));
        }
        if self.max_tokens == 0 {
            return Some(Finish::Length);
        }
        match self.ruler.as_ref()?.judge("") {
            Judgement::Dead(why) => Some(Finish::Refuted(why)),
            Judgement::Closed => Some(Finish::End),
            Judgement::Open { .. } => None,
        }
    }

    /// The mask after a sample; `None`: of a text that has not begun.
    fn mask(&mut self, sample: Option<&Sample>, vocab: &Vocab) -> Option<Arc<Mask>> {
        let ruler = self.ruler.as_mut().filter(|ruler| ruler.masks())?;
        Some(ruler.mask(vocab, sample.map_or(&[], |sample| sample.text.bytes())))
    }

    /// The temperature that its samples are drawn with.
    pub fn temperature(&self) -> Option<f32> {
        self.sampler.temperature()
    }

    /// What will be looked at of the logits after a sample; `None`: of those that all samples begin with.
    pub fn asks(&mut self, sample: Option<&Sample>, vocab: &Vocab, asked: &mut Asked) {
        let mask = self.mask(sample, vocab);
        asked.more |= mask.is_none() || self.sampler.likelihood() == Likelihood::Model;
        if let Some(mask) = mask {
            asked.add(&mask.allowed);
        }
        asked.temperature = asked.temperature.or(self.sampler.temperature());
    }

    fn draw(&mut self, sample: &mut Sample, row: &mut Row<'_>, context: &Context<'_>) -> Option<Finish> {
        let mask = self.mask(Some(sample), context.vocab);
        if mask.as_ref().is_some_and(|mask| mask.allowed.is_empty()) {
            let text = sample.text.decided_text();
            return Some(Finish::Failed(format!("no token of this vocabulary fits the constraint after `{text}`")));
        }
        let StreamKey { seed, puzzle, node } = self.key;
        let place = [puzzle, node, sample.index as u64, sample.ids.len() as u64];
        let allowed = mask.as_ref().map(|mask| mask.allowed.as_slice());
        match self.sampler.pick(row, allowed, &sample.ids, &mut stream(seed, "sample", &place)) {
            Ok(pick) => {
                let pick = mask.as_ref().map_or(pick, |mask| whole_end(pick, mask, row));
                self.accept(sample, pick, mask.as_deref(), context)
            }
            Err(error) => Some(Finish::Failed(error.message().to_string())),
        }
    }

    /// The n likeliest first tokens, best first. To end at once is one of them, whatever tokens say so.
    fn likeliest(&mut self, row: &mut Row<'_>, context: &Context<'_>) -> Result<Vec<Pick>> {
        let mask = self.mask(None, context.vocab);
        let allowed = mask.as_ref().map(|mask| mask.allowed.as_slice());
        let ends = mask.as_ref().map_or(context.vocab.ends(), |mask| &mask.ends);
        let mut picks = self.sampler.best(row, allowed, self.n + ends.len())?;
        let mut ended = false;
        picks.retain(|pick| {
            let end = ends.binary_search(&pick.token).is_ok();
            let again = end && ended;
            ended |= end;
            !again
        });
        if let Some(mask) = &mask {
            for pick in &mut picks {
                *pick = whole_end(*pick, mask, row);
            }
            picks.sort_by(|a, b| b.masked_logprob.total_cmp(&a.masked_logprob));
        }
        picks.truncate(self.n);
        Ok(picks)
    }

    /// Adds a drawn token to the sample; says what ends it there.
    fn accept(
        &mut self,
        sample: &mut Sample,
        pick: Pick,
        mask: Option<&Mask>,
        context: &Context<'_>,
    ) -> Option<Finish> {
        let Pick { token, logprob, masked_logprob } = pick;
        sample.usage.sampled += 1;
        sample.usage.logical += 1;
        let piece = context.vocab.bytes(token);
        let ends = match mask {
            Some(mask) => mask.ends.binary_search(&token).is_ok(),
            None => context.vocab.is_end(token),
        };
        if ends {
            if mask.is_some() {
                sample.masked_logprob += masked_logprob;
            }
            let begun = |stop: &&str| stop.as_bytes().starts_with(piece) || piece.starts_with(stop.as_bytes());
            let stop = if piece.is_empty() { None } else { self.stops.iter().find(begun) };
            return Some(stop.map_or(Finish::End, |stop| Finish::Stop(stop.to_string())));
        }
        sample.ids.push(token);
        sample.logprobs.push(logprob);
        sample.masked_logprob += masked_logprob;
        sample.unsent_logprob += logprob;
        if let Some(stop) = sample.text.push(piece) {
            return Some(Finish::Stop(stop));
        }
        let text = sample.text.take();
        if !text.is_empty() {
            self.reply.text(sample.index, text, std::mem::take(&mut sample.unsent_logprob));
        }
        if let Some(ruler) = &self.ruler
            && let Some(finish) = judged(ruler, &sample.text)
        {
            return Some(finish);
        }
        if sample.ids.len() >= self.max_tokens {
            return Some(Finish::Length);
        }
        if self.prompt_len + sample.ids.len() >= context.limit {
            return Some(Finish::Context(context.limit));
        }
        None
    }

    fn end(&mut self, mut sample: Sample, finish: Finish, usage: Usage, hold: Option<Hold>, context: &Context<'_>) {
        let text = sample.text.finish();
        if !text.is_empty() {
            self.reply.text(sample.index, text, sample.unsent_logprob);
        }
        let text = String::from_utf8_lossy(sample.text.bytes()).into_owned();
        let finish = match (&self.ruler, finish) {
            // What was held back is text now.
            (Some(ruler), finish @ (Finish::End | Finish::Stop(_) | Finish::Length | Finish::Context(_)))
                if !ruler.masks() =>
            {
                match ruler.judge(&text) {
                    Judgement::Dead(why) => Finish::Refuted(why),
                    _ => finish,
                }
            }
            (_, finish) => finish,
        };
        // A token that a stop string cut is spelled anew, so that the ids write exactly the text; its log-probability
        // stands on the first of the new ones.
        let (whole, rest) = sample.text.whole_tokens();
        let respelled = context.vocab.spell(rest, Vec::new()).unwrap_or_default();
        sample.ids.truncate(whole);
        let cut_logprob = sample.logprobs.get(whole).copied();
        sample.logprobs.truncate(whole);
        for (i, id) in respelled.into_iter().enumerate() {
            sample.ids.push(id);
            sample.logprobs.push(if i == 0 { cut_logprob.unwrap_or(0.0) } else { 0.0 });
        }
        sample.usage += usage;
        let completion = Completion {
            text,
            ids: sample.ids.into(),
            logprobs: sample.logprobs,
            masked_logprob: sample.masked_logprob,
            finish,
            usage: sample.usage,
            hold,
        };
        self.reply.done(sample.index, completion);
    }
}

/// A drawn end has the probability of all tokens that end: which of them was drawn makes no difference to the text.
fn whole_end(pick: Pick, mask: &Mask, row: &mut Row<'_>) -> Pick {
    let Ok(at) = mask.ends.binary_search(&pick.token) else { return pick };
    // They are allowed, so they were looked at before.
    let Ok(logits) = row.at(&mask.ends) else { return pick };
    let share = log_sum_exp_of_few(&logits).map_or(0.0, |total| total - f64::from(logits[at]));
    Pick { masked_logprob: pick.masked_logprob + share, ..pick }
}

/// What a constraint says of a text that just grew.
fn judged(ruler: &Ruler, text: &Text) -> Option<Finish> {
    if ruler.masks() {
        return ruler.closed(text.bytes()).then_some(Finish::End);
    }
    let decided = text.decided_text();
    match ruler.judge(&decided) {
        Judgement::Dead(why) => Some(Finish::Refuted(why)),
        Judgement::Closed if decided.len() == text.bytes().len() => Some(Finish::End),
        _ => None,
    }
}

impl Sample {
    fn new(index: usize, stops: Stops) -> Self {
        Self {
            index,
            text: Text::new(stops),
            ids: Vec::new(),
            logprobs: Vec::new(),
            masked_logprob: 0.0,
            unsent_logprob: 0.0,
            usage: Usage::default(),
            luck: Luck::default(),
        }
    }
}
