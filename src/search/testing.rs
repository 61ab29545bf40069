//! Fakes for tests of the search: a puzzle whose right answer is known, strategies in a line, runs to their end.

use super::controller::Controller;
use super::event::{Command, Event, Limits, Outcome};
use super::record::Recorder;
use super::run::RunSpec;
use super::tree::ThoughtTree;
use crate::lm::scripted::Scripted;
use crate::lm::{Constraint, Format, Lm, Sampling};
use crate::strategy::{
    Budget, Constrain, Count, Evaluator, Generate, GenerateKind, Policy, PromptSource, Search, Strategy, Thought,
};
use crate::task::constrain::Choices;
use crate::task::{Partial, Puzzle, Verdict};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc;

/// The replies of a case file, or `None` (and a line that says so) where the shared folder is absent.
pub fn case_replies(name: &str) -> Option<Vec<String>> {
    let path = crate::base::testing::shared(name)?.join("cases/A").join(name);
    Some(crate::lm::scripted::parse(&std::fs::read_to_string(path).unwrap()))
}

/// Spell a word letter by letter. A beginning is provably wrong where it is no beginning of the word, if the word has at
/// least `strict` letters right before it goes wrong; else only the whole tells.
pub struct Spell {
    pub word: &'static str,
    /// What the data file claims the answer to be; `None`: nothing.
    pub column: Option<&'static str>,
}

impl Spell {
    pub fn new(word: &'static str) -> Arc<Self> {
        Arc::new(Self { word, column: Some(word) })
    }
}

impl Puzzle for Spell {
    fn task(&self) -> &str {
        "spell"
    }

    fn id(&self) -> &str {
        "spell-1"
    }

    fn title(&self) -> String {
        format!("spell {}", self.word)
    }

    fn inputs(&self) -> Value {
        let examples: Vec<Value> =
            (0..8).map(|i| json!({"input": format!("w{i}"), "output": format!("w{i}")})).collect();
        json!({"puzzle": {"word": self.word, "len": self.word.len(), "examples": examples}})
    }

    fn len(&self) -> usize {
        self.word.len()
    }

    fn check(&self, answer: &str) -> Verdict {
        let answer: String = answer.chars().filter(|c| c.is_alphabetic()).collect();
        let wrong = answer.chars().zip(self.word.chars()).filter(|(a, b)| a != b).count();
        let error_score = (wrong + answer.len().abs_diff(self.word.len())) as u64;
        let why = if error_score == 0 { "right".to_string() } else { format!("{error_score} letters wrong") };
        Verdict { error_score, answer: Some(json!(answer)), why }
    }

    fn check_partial(&self, prefix: &str) -> Partial {
        let prefix: String = prefix.chars().filter(|c| c.is_alphabetic()).collect();
        if self.word.starts_with(&prefix) {
            return Partial::Possible { score: 1.0, complete: prefix.len() == self.word.len() };
        }
        let wrong = prefix.chars().zip(self.word.chars()).filter(|(a, b)| a != b).count();
        Partial::Wrong { score: 1.0 / (1.0 + wrong as f64), why: format!("{wrong} letters wrong") }
    }

    fn solved(&self, answer: &str) -> bool {
        let answer: String = answer.chars().filter(|c| c.is_alphabetic()).collect();
        self.column == Some(&answer)
    }

    fn next_steps(&self, prefix: &str) -> Vec<String> {
        let used = prefix.chars().filter(|c| c.is_alphabetic()).count();
        if used >= self.word.len() {
            return Vec::new();
        }
        let mut letters: Vec<String> = self.word.chars().map(String::from).collect();
        letters.sort();
        letters.dedup();
        letters
    }

    fn answer_constraint(&self, _: &str) -> Arc<dyn Constraint> {
        Arc::new(Choices::new([self.word.to_string(), self.word.chars().rev().collect()]))
    }

    fn state_key(&self, prefix: &str) -> String {
        prefix.chars().filter(|c| c.is_alphabetic()).collect()
    }

    fn refute(&self, text: &str) -> Option<String> {
        match self.check_partial(text) {
            Partial::Wrong { why, .. } => Some(why),
            Partial::Possible { .. } => None,
        }
    }
}

/// A strategy of samples of one step each, checked by nobody.
pub fn strategy(policy: Policy) -> Strategy {
    Strategy {
        name: "test".into(),
        about: "for tests".into(),
        task: None,
        own: None,
        search: Search {
            policy,
            depth: Count::Template("{{ puzzle.len }}".into()),
            keep: Count::Number(2),
            prune_below: 0.0,
            children: None,
            prune: None,
            accept: None,
            stop: None,
        },
        generate: Generate {
            kind: GenerateKind::Sample,
            n: Count::Number(2),
            prompt: source("Spell {{ puzzle.word }}: "),
            format: Some(Format::Completion),
            constrain: Constrain::None,
            sampling: Sampling::default(),
            max_tokens: Count::Number(20),
            stop: Vec::new(),
            thought: Thought::Step,
        },
        evaluate: Vec::new(),
        score: None,
        levels: Vec::new(),
        stages: Vec::new(),
        vars: BTreeMap::new(),
        budget: Budget::default(),
        offload: None,
        text: "name: test\n".into(),
        parts: Vec::new(),
        origin: "built-in test".into(),
    }
}

pub fn source(text: &str) -> PromptSource {
    PromptSource { origin: "prompts/test.txt".into(), text: text.into() }
}

/// A judge that gives a label, or without labels a number from 0 to 1.
pub fn value(labels: &[(&str, f64)]) -> Evaluator {
    Evaluator::Value {
        prompt: source("How good is {{ thought }}?"),
        format: None,
        n: 1,
        scale: labels.is_empty().then_some((0.0, 1.0)),
        labels: labels.iter().map(|(name, weight)| (name.to_string(), *weight)).collect::<BTreeMap<_, _>>(),
        max_tokens: 20,
        temperature: 0.0,
    }
}

pub fn script(replies: &[&str]) -> Arc<dyn Lm> {
    Arc::new(Scripted::new("script", replies.iter().map(|r| r.to_string())))
}

pub fn spec(puzzle: Arc<dyn Puzzle>, strategy: Strategy, lm: Arc<dyn Lm>) -> RunSpec {
    let limits = Limits::default();
    RunSpec { puzzle, strategy: Arc::new(strategy), lm, seed: 7, paused: false, limits, record: None, before: None }
}

/// What a run left behind.
pub struct Ran {
    pub outcome: Outcome,
    pub tree: ThoughtTree,
    pub events: Vec<Event>,
}

impl Ran {
    pub fn notes(&self) -> Vec<&str> {
        let mut notes = Vec::new();
        for event in &self.events {
            if let Event::Note { text } = event {
                notes.push(text.as_str());
            }
        }
        notes
    }

    /// The tree in short: each thought's text and status.
    pub fn thoughts(&self) -> Vec<String> {
        let thoughts = self.tree.iter().skip(1);
        thoughts.map(|(_, n)| format!("{} {}", n.text.trim(), super::trace::status(n.status))).collect()
    }
}

/// Runs to the end; `steer` sees every event and may answer with commands.
pub fn run_steered(spec: RunSpec, mut steer: impl FnMut(&Event) -> Vec<Command> + Send) -> Ran {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (event_sender, mut events) = mpsc::unbounded_channel();
        let (commands, command_receiver) = mpsc::unbounded_channel();
        let controller = Controller::new(spec, event_sender, command_receiver).unwrap();
        let running = tokio::spawn(controller.run());
        let mut seen = Vec::new();
        while let Some(event) = events.recv().await {
            for command in steer(&event) {
                // The run may have ended already.
                let _ = commands.send(command);
            }
            seen.push(event);
        }
        let (outcome, tree) = running.await.unwrap();
        Ran { outcome, tree, events: seen }
    })
}

pub fn run(spec: RunSpec) -> Ran {
    run_steered(spec, |_| Vec::new())
}

pub fn recorder(folder: &std::path::Path, spec: &RunSpec) -> Recorder {
    let header = super::record::Header::new(spec.puzzle.as_ref(), &spec.strategy, spec.lm.as_ref(), spec.seed, &[]);
    Recorder::create_in(folder, header).unwrap()
}
