//! Chance in the model's place: `--model random-proposer`. The control beside every table: what it solves, the search
//! solved and not the model.
//!
//! Where a constraint lists its texts, each is equally likely; where it does not, a text grows by characters that are
//! equally likely among those the constraint allows, and may end where it is complete. `Likeliest` n gives n different
//! ones. Nothing is computed, so nothing is counted: all token counts are 0. The log-probability is that of the uniform
//! choice. Without a constraint there is nothing to choose from, which is said.

use super::{
    Completion, Constraint, Cost, Counters, Finish, Generate, Info, Judgement, Lm, Mode, Prompt, Score, Scores, Update,
    Usage,
};
use crate::base::{Error, Result, rng};
use rand::Rng;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Characters that answers to puzzles are written in.
const ALPHABET: &str = "0123456789 ,-\n;.:+*/=()[]{}\"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

pub struct RandomProposer {
    info: Info,
}

impl Default for RandomProposer {
    fn default() -> Self {
        Self { info: Info { name: "random-proposer".into(), device: "chance".into(), ..Info::default() } }
    }
}

/// A text and its natural-log probability, or why there is none.
type Drawn = Result<(String, f64), String>;

/// n texts: independent ones for `Sample`, different ones for `Likeliest` (fewer where there are fewer).
fn draw(request: &Generate) -> Vec<Drawn> {
    let Some(constraint) = &request.constraint else {
        let why = "chance has nothing to choose from without a constraint; set generate.constrain in the strategy";
        return vec![Err(why.into()); request.n];
    };
    let key = request.key;
    let stream = |sample: usize| rng::stream(key.seed, "random-proposer", &[key.puzzle, key.node, sample as u64]);
    match (constraint.choices(), request.mode) {
        (Some(choices), _) if choices.is_empty() => vec![Err("the puzzle allows nothing here".into())],
        (Some(choices), Mode::Sample) => {
            let one = |sample| choices[stream(sample).random_range(0..choices.len())].clone();
            (0..request.n).map(|sample| Ok((one(sample), -(choices.len() as f64).ln()))).collect()
        }
        (Some(mut choices), Mode::Likeliest) => {
            let logprob = -(choices.len() as f64).ln();
            let mut rng = stream(0);
            let n = request.n.min(choices.len());
            // The first n places of a Fisher-Yates shuffle.
            for place in 0..n {
                let from = rng.random_range(place..choices.len());
                choices.swap(place, from);
            }
            choices.into_iter().take(n).map(|text| Ok((text, logprob))).collect()
        }
        (None, mode) => {
            let mut texts: Vec<Drawn> = Vec::with_capacity(request.n);
            // Different texts may be few: some more attempts than texts, then fewer texts.
            let attempts = if mode == Mode::Likeliest { request.n * 8 } else { request.n };
            for attempt in 0..attempts {
                let text = walk(constraint.as_ref(), &mut stream(attempt), request.max_tokens);
                let known = mode == Mode::Likeliest
                    && text
                        .as_ref()
                        .is_ok_and(|(new, _)| texts.iter().any(|t| t.as_ref().is_ok_and(|(old, _)| old == new)));
                if texts.len() < request.n && !known {
                    texts.push(text);
                }
            }
            texts
        }
    }
}

/// Grows one text character by character. `most` bounds it in characters.
fn walk(constraint: &dyn Constraint, rng: &mut impl Rng, most: usize) -> Drawn {
    let mut text = String::new();
    let mut logprob = 0.0;
    let mut complete = false;
    for _ in 0..most {
        let mut next = Vec::new();
        for c in ALPHABET.chars() {
            text.push(c);
            match constraint.judge(&text) {
                Judgement::Dead(_) => {}
                Judgement::Closed => next.push((c, true, true)),
                Judgement::Open { complete } => next.push((c, complete, false)),
            }
            text.pop();
        }
        // A complete text may also end: one more equally likely choice.
        let options = next.len() + usize::from(complete);
        if options == 0 {
            break;
        }
        logprob -= (options as f64).ln();
        let Some(&(c, now_complete, closed)) = next.get(rng.random_range(0..options)) else {
            return Ok((text, logprob));
        };
        text.push(c);
        complete = now_complete;
        if closed {
            return Ok((text, logprob));
        }
    }
    if complete { Ok((text, logprob)) } else { Err("chance found no complete text".into()) }
}

impl Lm for RandomProposer {
    fn info(&self) -> &Info {
        &self.info
    }

    fn count_tokens(&self, _: &Prompt) -> Option<usize> {
        None
    }

    fn generate(&self, request: Generate) -> mpsc::UnboundedReceiver<Update> {
        let (updates, receiver) = mpsc::unbounded_channel();
        for (sample, drawn) in draw(&request).into_iter().enumerate() {
            let (text, logprob, finish) = match drawn {
                Ok((text, logprob)) => (text, logprob, Finish::End),
                Err(why) => (String::new(), 0.0, Finish::Failed(why)),
            };
            // A reader that has gone away is a cancelled request.
            let _ = updates.send(Update::Text { sample, text: text.clone(), logprob: logprob as f32 });
            let completion = Completion {
                text,
                ids: Arc::from([]),
                logprobs: vec![logprob as f32],
                masked_logprob: logprob,
                finish,
                usage: Usage::default(),
                hold: None,
            };
            let _ = updates.send(Update::Done { sample, completion });
        }
        receiver
    }

    fn costs(&self, requests: &[&Generate]) -> oneshot::Receiver<Vec<Cost>> {
        let (sender, receiver) = oneshot::channel();
        // The receiver is at hand, so this cannot fail.
        let _ = sender.send(vec![Cost::default(); requests.len()]);
        receiver
    }

    fn score(&self, _: Score) -> oneshot::Receiver<Result<Scores>> {
        let (answer, receiver) = oneshot::channel();
        let _ = answer.send(Err(Error::input("chance has no log-probabilities of given texts; use another evaluator")));
        receiver
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lm::{Likelihood, Sampling, StreamKey};
    use std::collections::BTreeSet;

    struct Digits(usize);

    impl Constraint for Digits {
        fn judge(&self, text: &str) -> Judgement {
            match text.len() {
                _ if text.chars().any(|c| !c.is_ascii_digit()) => Judgement::Dead("a digit".into()),
                len if len < self.0 => Judgement::Open { complete: false },
                len if len == self.0 => Judgement::Closed,
                _ => Judgement::Dead("too long".into()),
            }
        }
    }

    struct Listed(usize);

    impl Constraint for Listed {
        fn judge(&self, _: &str) -> Judgement {
            Judgement::Open { complete: true }
        }

        fn choices(&self) -> Option<Vec<String>> {
            Some((0..self.0).map(|i| format!("c{i}")).collect())
        }
    }

    fn texts(mode: Mode, n: usize, node: u64, constraint: Option<Arc<dyn Constraint>>) -> Vec<(String, Finish)> {
        let request = Generate {
            prompt: Prompt::completion("x"),
            mode,
            n,
            sampling: Sampling::default(),
            max_tokens: 10,
            stop: Vec::new(),
            constraint,
            likelihood: Likelihood::Model,
            key: StreamKey { seed: 3, puzzle: 4, node },
        };
        let mut updates = RandomProposer::default().generate(request);
        let mut done = Vec::new();
        while let Ok(update) = updates.try_recv() {
            if let Update::Done { completion, .. } = update {
                assert_eq!(completion.usage, Usage::default());
                done.push((completion.text, completion.finish));
            }
        }
        done
    }

    #[test]
    fn likeliest_gives_different_choices_and_the_stream_decides_which() {
        let draw = |node| texts(Mode::Likeliest, 3, node, Some(Arc::new(Listed(9))));
        assert_eq!(draw(1), draw(1));
        let seen: BTreeSet<Vec<String>> =
            (0..20).map(|node| draw(node).into_iter().map(|(text, _)| text).collect()).collect();
        assert!(seen.len() > 10);
        for texts in seen {
            assert_eq!(texts.iter().collect::<BTreeSet<_>>().len(), 3);
        }
        assert_eq!(texts(Mode::Likeliest, 5, 0, Some(Arc::new(Listed(2)))).len(), 2, "no more than there are");
    }

    #[test]
    fn every_choice_is_equally_likely() {
        let mut counts = [0usize; 4];
        for node in 0..4000 {
            for (text, _) in texts(Mode::Sample, 1, node, Some(Arc::new(Listed(4)))) {
                counts[text[1..].parse::<usize>().unwrap()] += 1;
            }
        }
        assert!(counts.iter().all(|c| (850..1150).contains(c)), "{counts:?}");
    }

    #[test]
    fn texts_grow_within_the_constraint_and_without_one_nothing_is_proposed() {
        for (text, finish) in texts(Mode::Sample, 5, 0, Some(Arc::new(Digits(4)))) {
            assert_eq!(finish, Finish::End);
            assert_eq!(text.len(), 4, "{text}");
        }
        assert!(matches!(&texts(Mode::Sample, 1, 0, None)[0].1, Finish::Failed(why) if why.contains("constrain")));
        let too_long = texts(Mode::Sample, 1, 0, Some(Arc::new(Digits(40))));
        assert!(matches!(too_long[0].1, Finish::Failed(_)));
    }
}
