//! Events go up, commands come down. The screen, the record, the progress line and the replay are readers of the same
//! events; the thought tree rebuilt from them equals the controller's.

use super::tree::{NodeId, Status};
use crate::base::text::counted;
use crate::lm::{Counters, HeldKv, LinkCounters, Usage};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What happened, in order. `Token`, `Counters` and `Held` are for the screen alone: a record holds none of the first and,
/// in a long run, only some of the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// First event of a run; the root (node 0) exists from here on.
    Started {
        task: String,
        puzzle: String,
        title: String,
        strategy: String,
        model: String,
        seed: u64,
        budget: Limits,
        /// Whether the log-probabilities of thoughts' tokens are of the tokens that were allowed; else of all.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        among_allowed: bool,
    },
    /// A prompt goes to the model on behalf of `node`.
    Asked {
        request: u64,
        node: NodeId,
        purpose: Purpose,
        samples: usize,
        prompt: String,
    },
    /// Text of a running sample, shown live under `node`.
    Token {
        request: u64,
        node: NodeId,
        sample: usize,
        text: String,
        logprob: f32,
    },
    /// One sample came back, with its cost, whatever becomes of it.
    Replied {
        request: u64,
        node: NodeId,
        sample: usize,
        text: String,
        finish: String,
        logprob: Option<f64>,
        usage: Usage,
        /// Bytes of each piece that the text came in; empty where it did not come in pieces.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pieces: Vec<u32>,
        /// Natural-log probability of each piece, where the pieces are not the tokens one by one (a character may take
        /// several): otherwise they are the `token_logprobs` of the thought.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        piece_logprobs: Vec<f32>,
    },
    /// A proposal that received no node, and why (duplicate, empty, refused).
    Dropped {
        parent: NodeId,
        text: String,
        why: String,
        /// The thought whose state it repeats.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        same_as: Option<NodeId>,
    },
    /// A thought receives a node.
    Grown {
        node: NodeId,
        parent: NodeId,
        text: String,
        by: Author,
        logprob: Option<f64>,
        token_logprobs: Vec<f32>,
        usage: Usage,
    },
    /// A thought was asked for proposals and all of them came back; `proposals` counts what was proposed, dropped ones
    /// included.
    Expanded {
        node: NodeId,
        proposals: u64,
    },
    /// A thought is scored; `score` is what counts, `parts` how it came about.
    Scored {
        node: NodeId,
        score: f64,
        parts: Vec<ScorePart>,
    },
    /// A thought was made from several others, its parent among them.
    Merged {
        node: NodeId,
        sources: Vec<NodeId>,
    },
    /// A simulation ended at a thought with this value, which is backed up to all thoughts above it.
    Visited {
        node: NodeId,
        value: f64,
    },
    Status {
        node: NodeId,
        status: Status,
        why: Option<String>,
    },
    /// The text of a thought was changed by the user.
    Edited {
        node: NodeId,
        text: String,
    },
    /// How far the search is: the level for breadth-first, the depth for depth-first; open thoughts; best so far.
    Progress {
        depth: usize,
        frontier: usize,
        best: Option<NodeId>,
        best_score: f64,
        thoughts: u64,
        usage: Usage,
        seconds: f64,
    },
    Counters {
        counters: Counters,
    },
    /// What each thought's claim on K/V keeps now; thoughts that are not named keep none. Told when it has changed.
    Held {
        thoughts: Vec<(NodeId, HeldKv)>,
    },
    /// The user steered. An act that is refused is answered by a note at once.
    Act {
        command: Command,
    },
    /// What the user ordered before (expand, rescore) is being done now.
    Begun {
        command: Command,
    },
    /// What is set by hand from here on, told after every act that sets something or takes that back. `None`: as the
    /// strategy says.
    Settings {
        breadth: Option<usize>,
        temperature: Option<f32>,
        limits: Limits,
    },
    Paused,
    Resumed,
    /// What comes before was taken from another run's record, and this run goes on from there.
    Continued {
        /// The other run's id.
        from: String,
        /// How many of its events.
        events: usize,
    },
    /// Something worth telling that is no failure of the run (few-shot examples shrunk, a reply that could not be read).
    Note {
        text: String,
    },
    /// Last event of a run.
    Ended {
        outcome: Outcome,
    },
}

impl Event {
    /// Whether it only shows how things are, and a run taken up from its record has nothing to learn from it.
    pub fn is_for_screen(&self) -> bool {
        matches!(self, Self::Token { .. } | Self::Counters { .. } | Self::Held { .. })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    Generate,
    Value,
    Vote,
    Logprob,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Author {
    Model,
    User,
}

/// One evaluator's share of a score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScorePart {
    pub evaluator: String,
    /// `None`: the evaluator gave no usable reply; counted and shown, never defaulted silently.
    pub value: Option<f64>,
    pub detail: String,
}

/// What bounds a run; `None` is no bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    pub tokens: Option<u64>,
    pub thoughts: Option<u64>,
    pub seconds: Option<f64>,
}

/// Why a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Reason {
    Solved,
    /// Nothing left to expand.
    Exhausted,
    /// Every thought at this depth was pruned.
    AllPruned {
        depth: usize,
    },
    /// The deepest level was reached without a right answer.
    Depth {
        depth: usize,
    },
    /// The strategy's own end: a rule held, its simulations are done, or its choice is not right.
    Stopped {
        why: String,
    },
    Tokens {
        limit: u64,
    },
    Thoughts {
        limit: u64,
    },
    Seconds {
        limit: f64,
    },
    Memory {
        detail: String,
    },
    /// The strategy asks for what cannot be: a prompt that does not render or is longer than the model's context, a rule
    /// that cannot be worked out.
    Refused {
        message: String,
    },
    /// The user left.
    Quit,
    Failed {
        message: String,
    },
}

impl Reason {
    /// The contract's exit code for an interactive or headless `solve`.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Solved => 0,
            Self::Exhausted | Self::AllPruned { .. } | Self::Depth { .. } | Self::Stopped { .. } => 1,
            Self::Tokens { .. } | Self::Thoughts { .. } | Self::Seconds { .. } | Self::Memory { .. } => 3,
            Self::Refused { .. } => 2,
            Self::Failed { .. } => 4,
            Self::Quit => 130,
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Solved => f.write_str("solved"),
            Self::Exhausted => f.write_str("exhausted: nothing left to expand"),
            Self::AllPruned { depth } => write!(f, "all thoughts pruned at depth {depth}"),
            Self::Depth { depth } => write!(f, "depth {depth} reached without a right answer"),
            Self::Stopped { why } => write!(f, "stopped: {why}"),
            Self::Tokens { limit } => write!(f, "limit of {} reached", counted(*limit, "token", "tokens")),
            Self::Thoughts { limit } => write!(f, "limit of {} reached", counted(*limit, "thought", "thoughts")),
            Self::Seconds { limit } => {
                write!(f, "limit of {limit} second{} reached", if *limit == 1.0 { "" } else { "s" })
            }
            Self::Refused { message } => f.write_str(message),
            Self::Memory { detail } => {
                // The engine's message says what it is about itself.
                write!(f, "out of K/V memory: {}", detail.strip_prefix("no K/V memory: ").unwrap_or(detail))
            }
            Self::Quit => f.write_str("left by the user"),
            Self::Failed { message } => write!(f, "failed: {message}"),
        }
    }
}

/// How a run ended: what `solve --json` and an eval row print.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub solved: bool,
    pub reason: Reason,
    /// The node of the answer, or of the best thought so far.
    pub node: Option<NodeId>,
    /// As read by the puzzle (a JSON array for list tasks).
    pub answer: Option<Value>,
    /// The answer's text as the model wrote it.
    pub answer_text: Option<String>,
    pub error_score: Option<u64>,
    /// Right or wrong, and why.
    pub why: String,
    pub thoughts: u64,
    pub proposals: u64,
    pub usage: Usage,
    pub seconds: f64,
    /// What crossed the link between the tiers of K/V since the model was loaded, where there are two (`--offload`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkCounters>,
}

impl Outcome {
    /// The contract's exit code. A right answer that the data's own column contradicts is not solved: 1.
    pub fn exit_code(&self) -> u8 {
        match self.reason.exit_code() {
            0 if !self.solved => 1,
            code => code,
        }
    }
}

/// What the user may ask of a running search. Every one is recorded as an `Act`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Command {
    Pause,
    Resume,
    /// Do one policy step, then pause again.
    Step,
    /// Expand this thought now, whatever the policy thinks.
    Expand {
        node: NodeId,
    },
    /// Prune this thought and all below it.
    Prune {
        node: NodeId,
    },
    /// Never prune this thought; keep it in the frontier.
    Pin {
        node: NodeId,
    },
    Unpin {
        node: NodeId,
    },
    /// Replace a thought's text; what is below it is pruned.
    Edit {
        node: NodeId,
        text: String,
    },
    /// Add a thought of the user's own.
    Add {
        parent: NodeId,
        text: String,
    },
    Rescore {
        node: NodeId,
    },
    SetBreadth {
        n: usize,
    },
    SetTemperature {
        temperature: f32,
    },
    SetBudget {
        limits: Limits,
    },
    /// Undo the last steering act.
    Undo,
    Quit,
}

impl Command {
    /// The thought that it is about.
    pub fn node(&self) -> Option<NodeId> {
        match self {
            Self::Expand { node }
            | Self::Prune { node }
            | Self::Pin { node }
            | Self::Unpin { node }
            | Self::Edit { node, .. }
            | Self::Rescore { node }
            | Self::Add { parent: node, .. } => Some(*node),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_solved_decides_the_exit_code_and_not_the_reason_alone() {
        let code = |solved: bool, reason: Reason| {
            let outcome = Outcome {
                solved,
                reason,
                node: None,
                answer: None,
                answer_text: None,
                error_score: Some(0),
                why: String::new(),
                thoughts: 0,
                proposals: 0,
                usage: Usage::default(),
                seconds: 0.0,
                link: None,
            };
            outcome.exit_code()
        };
        assert_eq!(code(true, Reason::Solved), 0);
        assert_eq!(code(false, Reason::Solved), 1, "right by the check, and the data says otherwise");
        assert_eq!(code(false, Reason::Exhausted), 1);
        assert_eq!(code(false, Reason::Tokens { limit: 1 }), 3);
        assert_eq!(code(false, Reason::Memory { detail: String::new() }), 3);
        assert_eq!(code(false, Reason::Failed { message: String::new() }), 4);
        assert_eq!(code(false, Reason::Refused { message: String::new() }), 2);
        assert_eq!(code(false, Reason::Quit), 130);
    }
}
