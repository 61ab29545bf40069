//! Evaluators that read log-probabilities of given texts, without sampling: of a thought that somebody else wrote, and of
//! yes and no.

use super::prompt::Subject;
use super::{Controller, round};
use crate::base::Result;
use crate::lm::{Format, Generate, Likelihood, Mode, Prompt, Sampling, Score, Scores};
use crate::search::evaluate::{Part, logprob, yes_no};
use crate::search::event::{Event, Purpose};
use crate::search::tree::NodeId;
use crate::strategy::PromptSource;
use tokio::sync::oneshot;

/// Room in the context for an answer to a yes/no question, in tokens.
const ANSWER_TOKENS: usize = 16;

/// A question that was sent: the thought it is about, its number, and where the answer comes.
type Sent = (NodeId, u64, oneshot::Receiver<Result<Scores>>);

impl Controller {
    /// How likely yes is against no for each of these thoughts, asked for all of them at once. `None`: the run ends, and the
    /// thoughts stay unjudged.
    pub(super) async fn yes_no(
        &mut self,
        source: &PromptSource,
        format: Option<Format>,
        [yes, no]: [&[String]; 2],
        nodes: &[NodeId],
    ) -> Option<Vec<Part>> {
        let mut parts = Vec::with_capacity(nodes.len());
        let mut prompts = Vec::new();
        for &node in nodes {
            match self.prompt(source, format, Subject::Of(node), ANSWER_TOKENS) {
                Ok(prompt) => prompts.push((parts.len(), node, prompt)),
                Err(_) if self.ending.is_some() => return None,
                Err(error) => {
                    parts.push(Part::missing(yes_no::NAME, error.to_string(), 0));
                    continue;
                }
            }
            parts.push(Part::missing(yes_no::NAME, "called off".into(), 0));
        }
        let answers: Vec<String> = yes.iter().chain(no).cloned().collect();
        if let Some(reason) = self.ledger.used_up_before_growth() {
            self.ending.get_or_insert(reason);
            return None;
        }
        let all: Vec<Prompt> = prompts.iter().map(|(_, _, prompt)| prompt.clone()).collect();
        if !self.afford_scores(all, &answers).await {
            return None;
        }
        let mut sent = Vec::with_capacity(prompts.len());
        for (at, node, prompt) in prompts {
            sent.push((at, self.send_score(node, prompt, answers.clone())));
        }
        let (mut failed, mut served) = (None, false);
        for (at, sent) in sent {
            parts[at] = match self.scored(sent, &answers.join(" | ")).await {
                Ok(logprobs) if logprobs.len() == answers.len() => {
                    served = true;
                    let sums: Vec<f64> = logprobs.iter().map(|text| text.iter().map(|&l| f64::from(l)).sum()).collect();
                    let (yes, no) = sums.split_at(yes.len());
                    yes_no::judge(yes, no)
                }
                Ok(_) => Part::missing(yes_no::NAME, "some answer has no log-probability".into(), 0),
                Err(error) => {
                    let part = Part::missing(yes_no::NAME, error.to_string(), 0);
                    failed.get_or_insert(error);
                    part
                }
            };
        }
        // A model that can tell none of them never will.
        if let Some(error) = failed.filter(|_| !served && !self.hurry) {
            self.fail(&error);
            return None;
        }
        Some(parts)
    }

    /// Asks for the log-probabilities of `texts` after a prompt.
    fn send_score(&mut self, node: NodeId, prompt: Prompt, texts: Vec<String>) -> Sent {
        let request = self.requests;
        self.requests += 1;
        let asked = prompt.full_text();
        self.emit(Event::Asked { request, node, purpose: Purpose::Logprob, samples: 1, prompt: asked });
        (node, request, self.lm.score(Score { prompt, continuations: texts }))
    }

    /// Waits for them, and counts what they cost; `text` is what the record shows as the reply.
    async fn scored(&mut self, (node, request, receiver): Sent, text: &str) -> Result<Vec<Vec<f32>>> {
        let Scores { logprobs, usage } = self.scores(receiver).await?;
        // Of several texts that exclude each other a sum would mean nothing.
        let one = logprobs.first().filter(|_| logprobs.len() == 1);
        let logprob = one.map(|text| round(text.iter().map(|&l| f64::from(super::finite(l))).sum()));
        self.ledger.usage += usage;
        let (text, finish) = (text.to_string(), "scored".to_string());
        let (pieces, piece_logprobs) = (Vec::new(), Vec::new());
        self.emit(Event::Replied { request, node, sample: 0, text, finish, logprob, usage, pieces, piece_logprobs });
        Ok(logprobs)
    }

    /// The log-probability of a thought's text: as it was generated, or asked for where someone else wrote it.
    pub(super) async fn logprob(&mut self, node: NodeId) -> Part {
        let thought = self.tree.node(node);
        if !thought.token_logprobs.is_empty() {
            return logprob::score(&thought.token_logprobs);
        }
        let Some(parent) = thought.parent else { return logprob::score(&[]) };
        let text = thought.text.clone();
        let strategy = self.strategy.clone();
        let subject = Subject::After(parent);
        let generate = strategy.generate_at(self.tree.node(node).depth);
        let prompt = match self.prompt(&generate.prompt, generate.format, subject, 0) {
            Ok(prompt) => prompt,
            Err(error) => return Part::missing(logprob::NAME, error.to_string(), 0),
        };
        if !self.afford_scores(vec![prompt.clone()], std::slice::from_ref(&text)).await {
            return Part::missing(logprob::NAME, "the token budget is used up".into(), 0);
        }
        let sent = self.send_score(node, prompt, vec![text.clone()]);
        match self.scored(sent, &text).await {
            Ok(logprobs) => logprob::score(&logprobs.into_iter().next().unwrap_or_default()),
            Err(error) => Part::missing(logprob::NAME, error.to_string(), 0),
        }
    }

    /// Whether asking for the log-probabilities of `texts` after each prompt keeps to the token budget; else the run ends.
    async fn afford_scores(&mut self, prompts: Vec<Prompt>, texts: &[String]) -> bool {
        let tokens = |text: &String| self.lm.count_tokens(&Prompt::completion(text)).unwrap_or(0) as u64;
        let each: u64 = texts.iter().map(tokens).sum();
        let more = each.saturating_mul(prompts.len() as u64);
        let key = self.stream_key(NodeId::ROOT, Purpose::Logprob);
        let request = |prompt| Generate {
            prompt,
            mode: Mode::Sample,
            n: 0,
            sampling: Sampling::default(),
            max_tokens: 0,
            stop: Vec::new(),
            constraint: None,
            likelihood: Likelihood::Model,
            key,
        };
        let requests: Vec<Generate> = prompts.into_iter().map(request).collect();
        let short = self.affords(&requests.iter().collect::<Vec<_>>(), more).await;
        let affordable = short.is_none();
        self.ending = self.ending.take().or(short);
        affordable
    }
}
