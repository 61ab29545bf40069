//! What a run may cost, worked out before anything runs: thoughts, tokens and K/V of a full search on the task's own example.
//!
//! It is an upper bound by the strategy's numbers (every level full, every reply as long as it may be), with texts taken
//! at four characters a token. What it is for is to see a mistyped number before an hour is spent on it; a run with a
//! checker that prunes costs a fraction. A depth-first, best-first or Monte-Carlo search is bounded by its budget or its
//! simulations, so that for these the bound is what the budget allows.

use super::{Constrain, Count, Evaluator, Generate, GenerateKind, Policy, Strategy, Thought, prompt};
use crate::task::{self, Puzzle};
use serde_json::{Value, json};
use std::fmt;

/// Characters of text that a token holds, on average, for vocabularies of this size and English with numbers.
const CHARACTERS: usize = 4;

/// Bytes of K/V a token takes in the default model: 30 layers, K and V, 3 heads of 64 half-precision numbers.
const DEFAULT_MODEL_BYTES: u64 = 30 * 2 * 3 * 64 * 2;

/// Levels looked at; deeper searches are told by their budget.
const MAX_LEVELS: u64 = 10_000;

/// An upper bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    pub thoughts: u64,
    /// Computed, with every common beginning computed once.
    pub tokens: u64,
    /// As a service without sharing would count them.
    pub logical: u64,
    /// Tokens of K/V that live at the same time: the longest prompt, and the paths of one level.
    pub kv_tokens: u64,
    /// Whether the strategy's budget ends the run before that.
    pub budget_binds: bool,
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = self.kv_tokens as f64 * DEFAULT_MODEL_BYTES as f64 / f64::from(1 << 20);
        write!(
            f,
            "at most about {} thoughts, {} tokens ({} without sharing), K/V of {} tokens ({mib:.0} MiB with the default model)",
            self.thoughts, self.tokens, self.logical, self.kv_tokens
        )?;
        if self.budget_binds { f.write_str("; the budget ends it before") } else { Ok(()) }
    }
}

/// The bound for the example of the strategy's task; `None` without a task, or where something cannot be worked out (which
/// is reported elsewhere).
pub fn estimate(strategy: &Strategy) -> Option<Estimate> {
    let task = task::by_name(strategy.task.as_deref()?).ok()?;
    let puzzle = task.parse(task.example()).ok()?;
    Run { strategy, inputs: strategy.inputs(puzzle.inputs()), puzzle: &*puzzle }.bound()
}

struct Run<'a> {
    strategy: &'a Strategy,
    inputs: Value,
    puzzle: &'a dyn Puzzle,
}

impl Run<'_> {
    fn count(&self, count: &Count) -> Option<u64> {
        prompt::count(count, &self.inputs).ok().map(|n| n as u64)
    }

    fn bound(&self) -> Option<Estimate> {
        let search = &self.strategy.search;
        let depth = self.count(&search.depth)?;
        let keep = self.count(&search.keep)?;
        let mut total = Estimate { thoughts: 0, tokens: 0, logical: 0, kv_tokens: 0, budget_binds: false };
        let mut waiting = 1u64;
        // A level of a search that goes back is full where all that was grown above it is expanded.
        let all = |grown: u64| match &search.policy {
            Policy::Mcts(settings) => grown.min(settings.simulations as u64),
            _ => grown,
        };
        for level in 1..=depth.min(MAX_LEVELS) {
            let generate = self.strategy.generate_at(level as usize);
            let n = self.count(&generate.n)?;
            let (prompt, reply) = (self.prompt_tokens(generate)?, self.reply_tokens(generate)?);
            let path = (level - 1).saturating_mul(reply);
            let grown = waiting.saturating_mul(n);
            let judged = self.judge_tokens(level as usize, path.saturating_add(reply));
            let (once, alone) = (reply.saturating_add(judged.0), reply.saturating_add(judged.1));
            // The prompt's common part is computed once, each thought's own text once.
            total.tokens = total.tokens.saturating_add(prompt).saturating_add(grown.saturating_mul(once));
            let asked = prompt.saturating_add(path).saturating_mul(waiting);
            total.logical = total.logical.saturating_add(asked).saturating_add(grown.saturating_mul(alone));
            total.thoughts = total.thoughts.saturating_add(grown);
            total.kv_tokens =
                total.kv_tokens.max(prompt.saturating_add(grown.saturating_mul(path.saturating_add(reply))));
            let kept = self.strategy.levels.get(level as usize - 1).and_then(|own| own.keep.as_ref());
            let kept = kept.map_or(Some(keep), |own| self.count(own))?;
            waiting = if search.policy.keeps() { grown.min(kept) } else { all(grown) };
            if self.beyond_budget(&total) {
                break;
            }
        }
        total.budget_binds = self.beyond_budget(&total);
        let budget = self.strategy.budget;
        if let Some(most) = budget.thoughts {
            total.thoughts = total.thoughts.min(most);
        }
        if let Some(most) = budget.tokens {
            total.tokens = total.tokens.min(most);
            total.kv_tokens = total.kv_tokens.min(most);
        }
        Some(total)
    }

    fn beyond_budget(&self, so_far: &Estimate) -> bool {
        let budget = self.strategy.budget;
        budget.tokens.is_some_and(|most| so_far.tokens > most)
            || budget.thoughts.is_some_and(|most| so_far.thoughts > most)
            || so_far.thoughts > 1 << 40
    }

    fn prompt_tokens(&self, generate: &Generate) -> Option<u64> {
        if generate.kind == GenerateKind::Random {
            return Some(0);
        }
        let text = prompt::render(
            &generate.prompt,
            &self.with(&[("path", json!("")), ("thought", json!("")), ("thoughts", json!(["", ""]))]),
            usize::MAX,
        )
        .ok()?;
        Some(text.len().div_ceil(CHARACTERS) as u64)
    }

    fn reply_tokens(&self, generate: &Generate) -> Option<u64> {
        let most = self.count(&generate.max_tokens)?;
        let longest = |texts: Vec<String>| texts.iter().map(String::len).max().unwrap_or(0).div_ceil(2).max(1) as u64;
        Some(match (&generate.constrain, generate.thought) {
            _ if generate.kind == GenerateKind::Random => 0,
            (Constrain::Choice(choices), _) => most.min(longest(choices.clone())),
            (Constrain::Puzzle, Thought::Step) => most.min(longest(self.puzzle.next_steps(""))),
            _ => most,
        })
    }

    /// What judging one thought costs: computed, and without sharing. A judge's fixed text is shared by all thoughts.
    fn judge_tokens(&self, level: usize, path: u64) -> (u64, u64) {
        let mut sum = (0u64, 0u64);
        for evaluator in self.strategy.evaluate_at(level) {
            let (prompt, n, max_tokens, of) = match evaluator {
                Evaluator::Value { prompt, n, max_tokens, .. } => (prompt, *n, *max_tokens, 1),
                Evaluator::Vote { prompt, n, max_tokens, .. } => (prompt, *n, *max_tokens, 2),
                // Every spelling is forwarded but for its last token.
                Evaluator::YesNo { prompt, yes, no, .. } => (prompt, 1, yes.len() + no.len(), 1),
                Evaluator::Checker { .. } | Evaluator::Logprob | Evaluator::Command { .. } => continue,
            };
            let replies = (n as u64).saturating_mul(max_tokens as u64) / of;
            let fixed = (prompt.text.len() / CHARACTERS) as u64;
            sum.0 = sum.0.saturating_add(path.saturating_add(replies));
            let asked = fixed.saturating_add(path).saturating_mul(n as u64) / of;
            sum.1 = sum.1.saturating_add(asked.saturating_add(replies));
        }
        sum
    }

    fn with(&self, more: &[(&str, Value)]) -> Value {
        let mut inputs = self.inputs.clone();
        for (name, value) in more {
            inputs[*name] = value.clone();
        }
        inputs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::library;

    #[test]
    fn a_full_search_is_counted_level_by_level() {
        let strategy = library::load("sorting/tot-bfs", "sorting").unwrap();
        let puzzle = task::by_name("sorting").unwrap().parse(task::by_name("sorting").unwrap().example()).unwrap();
        let (len, found) = (puzzle.len() as u64, estimate(&strategy).unwrap());
        let n = if len <= 8 { 3 } else { 4 };
        assert_eq!(found.thoughts, len * n, "one thought of a level lives on");
        assert!(found.tokens < found.logical && found.tokens > 0, "{found}");
        assert!(!found.budget_binds);
    }

    #[test]
    fn every_shipped_strategy_has_one_and_numbers_cannot_overflow() {
        for entry in library::list() {
            let mut strategy = library::read(entry).unwrap();
            let found = estimate(&strategy).unwrap_or_else(|| panic!("{}/{}", entry.task, entry.name));
            assert!(found.thoughts > 0, "{}/{}: {found}", entry.task, entry.name);
            strategy.search.keep = Count::Number(1_000_000_000_000);
            strategy.search.depth = Count::Number(1_000_000_000_000);
            strategy.generate.n = Count::Number(1_000_000_000_000);
            assert!(estimate(&strategy).unwrap().budget_binds);
        }
    }
}
