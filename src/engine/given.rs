//! Given texts after one prompt: ranked (the likeliest of a list) or scored. Both forward one [`Trie`].

use super::constraint::ending_tokens;
use super::job::{Context, Lane, Role};
use super::request::{Completion, Finish, Generate, Likelihood, Listed, Reply, Score, ScoreReply, Scores, Usage};
use super::sample::row::{Asked, Row};
use super::text::Stops;
use super::trie::Trie;
use crate::base::Error;
use std::collections::HashSet;

/// The texts of one request, while their nodes' logits come in.
pub struct Given {
    trie: Trie,
    /// Tokens that end a text, for ranking.
    ends: Vec<u32>,
    likelihood: Likelihood,
    /// Nodes whose logits are still to come, the prompt's included.
    missing: usize,
    prompt_len: usize,
    answer: Answer,
    /// Why the texts below some node have no score.
    failed: Option<String>,
}

enum Answer {
    Rank {
        listed: Vec<Listed>,
        n: usize,
        reply: Reply,
    },
    /// The reply is taken when it is sent.
    Score {
        continuations: Vec<Vec<u32>>,
        reply: Option<ScoreReply>,
    },
}

impl Given {
    /// Ranks the listed texts that fit the context; the lanes are those of the trie's inner nodes.
    pub fn rank(request: Generate, mut listed: Vec<Listed>, reply: Reply, context: &Context<'_>) -> (Self, Vec<Lane>) {
        let mut seen = HashSet::new();
        listed.retain(|one| request.prompt.len() + one.ids.len() <= context.limit && seen.insert(one.ids.clone()));
        let trie = Trie::new(listed.iter().map(|one| one.ids.as_slice()));
        let ends = ending_tokens(context.vocab, &Stops::new(&request.stop));
        let answer = Answer::Rank { listed, n: request.n, reply };
        Self::new(trie, ends, request.likelihood, &request.prompt, answer)
    }

    pub fn score(request: Score, reply: ScoreReply) -> (Self, Vec<Lane>) {
        let trie = Trie::new(request.continuations.iter().map(Vec::as_slice));
        let answer = Answer::Score { continuations: request.continuations, reply: Some(reply) };
        Self::new(trie, Vec::new(), Likelihood::Model, &request.prompt, answer)
    }

    /// Tokens that [`Self::rank`] forwards to rank these texts, beside the prompt's.
    pub fn forwarded(listed: &[Listed]) -> usize {
        Trie::new(listed.iter().map(|one| one.ids.as_slice())).inner().len()
    }

    fn new(trie: Trie, ends: Vec<u32>, likelihood: Likelihood, prompt: &[u32], answer: Answer) -> (Self, Vec<Lane>) {
        let lane = |&node: &usize| Lane::new([prompt, &trie.path(node)].concat(), Role::Node(node));
        let lanes: Vec<Lane> = trie.inner().iter().map(lane).collect();
        let given =
            Self { missing: lanes.len() + 1, trie, ends, likelihood, prompt_len: prompt.len(), answer, failed: None };
        (given, lanes)
    }

    pub fn cancelled(&self) -> bool {
        match &self.answer {
            Answer::Rank { reply, .. } => reply.cancelled(),
            Answer::Score { reply, .. } => reply.as_ref().is_none_or(ScoreReply::is_closed),
        }
    }

    pub fn fail(&mut self, error: Error) {
        match &mut self.answer {
            Answer::Rank { reply, .. } => reply.fail(error),
            Answer::Score { reply, .. } => {
                // A receiver that is gone wants no answer.
                let _ = reply.take().map(|reply| reply.send(Err(error)));
            }
        }
    }

    /// What a node will be filled from.
    pub fn asks(&self, node: usize, asked: &mut Asked) {
        asked.more |= self.likelihood == Likelihood::Model;
        asked.add(&self.trie.looked_at(node, &self.ends));
    }

    /// A node's logits are there (node 0: the prompt's). Once all are, the answer goes out. True: it did.
    pub fn fill(&mut self, node: usize, row: &mut Row<'_>, lanes: &mut [Lane], context: &mut Context<'_>) -> bool {
        if let Err(error) = self.trie.fill(node, row, &self.ends, self.likelihood) {
            self.failed = Some(error.message().to_string());
        }
        self.missing -= 1;
        if self.missing > 0 {
            return false;
        }
        let mut usage = Usage::default();
        for lane in lanes.iter_mut() {
            usage += std::mem::take(&mut lane.usage);
        }
        usage.logical = self.prompt_len as u64;
        match self.answer {
            Answer::Rank { .. } => self.send_ranked(usage, lanes, context),
            Answer::Score { .. } => self.send_scores(usage),
        }
        true
    }

    fn send_ranked(&mut self, mut usage: Usage, lanes: &[Lane], context: &mut Context<'_>) {
        let Answer::Rank { listed, n, reply } = &mut self.answer else { return };
        let scored = (0..listed.len()).filter_map(|text| Some((text, self.trie.score(text)?)));
        let mut ranked: Vec<(usize, (Vec<f32>, f64))> = scored.collect();
        // Equal probabilities stand in the order of the list.
        ranked.sort_by(|a, b| b.1.1.total_cmp(&a.1.1).then(a.0.cmp(&b.0)));
        ranked.truncate(*n);
        reply.expect(ranked.len().max(1));
        if ranked.is_empty() {
            let finish = match self.failed.take() {
                Some(why) => Finish::Failed(why),
                None => Finish::Context(context.limit),
            };
            reply.done(0, Completion::empty(finish, usage));
            return;
        }
        for (sample, (text, (logprobs, masked_logprob))) in ranked.into_iter().enumerate() {
            let node = self.trie.deepest_inner(text);
            let lane = lanes.iter().find(|lane| matches!(lane.role, Role::Node(at) if at == node) || node == 0);
            let branch = lane.and_then(|lane| lane.branch).map(|branch| context.tree.fork(branch));
            let Listed { text, ids } = listed[text].clone();
            usage.logical += ids.len() as u64;
            reply.text(sample, text.clone(), logprobs.iter().sum());
            let completion = Completion {
                text,
                ids: ids.into(),
                logprobs,
                masked_logprob,
                finish: Finish::End,
                usage: std::mem::take(&mut usage),
                hold: branch.map(|branch| context.holds.claim(branch)),
            };
            reply.done(sample, completion);
        }
    }

    fn send_scores(&mut self, mut usage: Usage) {
        let Answer::Score { continuations, reply } = &mut self.answer else { return };
        usage.logical += continuations.iter().map(Vec::len).sum::<usize>() as u64;
        let scores: Option<Vec<Vec<f32>>> =
            (0..continuations.len()).map(|text| self.trie.score(text).map(|score| score.0)).collect();
        let answer = match (scores, self.failed.take()) {
            (Some(logprobs), None) => Ok(Scores { logprobs, usage }),
            (_, why) => Err(Error::fault(why.unwrap_or_else(|| "a continuation has no score".into()))),
        };
        // A receiver that is gone wants no answer.
        let _ = reply.take().map(|reply| reply.send(answer));
    }
}

impl Completion {
    /// No text at all.
    fn empty(finish: Finish, usage: Usage) -> Self {
        Self {
            text: String::new(),
            ids: Vec::new().into(),
            logprobs: Vec::new(),
            masked_logprob: 0.0,
            finish,
            usage,
            hold: None,
        }
    }
}
