//! A run's beginning: the strategy's counts worked out for the puzzle, its rules compiled, its limits.

use super::budget::Ledger;
use super::finish::Standing;
use super::grow::Fate;
use super::{COUNTERS_EVERY, Controller, prompt, take_up};
use crate::base::{Error, Result, rng};
use crate::search::event::{Command, Event, Limits};
use crate::search::policy::Plan;
use crate::search::policy::memory::Memory;
use crate::search::run::RunSpec;
use crate::search::tree::ThoughtTree;
use crate::strategy::{Count, MOST_AT_ONCE, Search};
use std::collections::{BTreeMap, HashMap, VecDeque};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

impl Controller {
    pub fn new(
        spec: RunSpec,
        events: mpsc::UnboundedSender<Event>,
        commands: mpsc::UnboundedReceiver<Command>,
    ) -> Result<Self> {
        let RunSpec { puzzle, strategy, lm, seed, paused, limits, record, before } = spec;
        if let Some(task) = strategy.task.as_deref().filter(|task| *task != puzzle.task()) {
            let (name, other) = (&strategy.name, puzzle.task());
            return Err(Error::input(format!(
                "strategy `{name}` is for the task {task}, and this puzzle is a {other}"
            )));
        }
        let inputs = strategy.inputs(puzzle.inputs());
        let count = |count: &Count, what: &str| prompt::count(count, &inputs, &strategy.origin, what);
        let keep_by_level: Vec<Option<usize>> = strategy
            .levels
            .iter()
            .map(|level| level.keep.as_ref().map(|c| count(c, "levels.keep")).transpose())
            .collect::<Result<_>>()?;
        let plan = |search: &Search, from: usize| -> Result<Plan> {
            Ok(Plan {
                policy: search.policy.clone(),
                from,
                depth: count(&search.depth, "search.depth")?.saturating_add(from),
                keep: count(&search.keep, "search.keep")?,
                prune_below: search.prune_below,
                children: search.children.as_ref().map(|c| count(c, "search.children")).transpose()?,
                keep_by_level: keep_by_level.clone(),
                prune: search.prune.clone(),
                accept: search.accept.clone(),
                stop: search.stop.clone(),
            })
        };
        let mut stages = Vec::new();
        let mut from = 0;
        for stage in &strategy.stages {
            stages.push(plan(&stage.search, from)?);
            from += stage.depth;
        }
        let plan = plan(&strategy.search, from)?;
        let mut rules = Vec::new();
        for generate in strategy.generators() {
            let n = count(&generate.n, "generate.n")?;
            if n > MOST_AT_ONCE {
                let origin = &strategy.origin;
                return Err(Error::input(format!("{origin}: generate.n is at most {MOST_AT_ONCE}, not {n}")));
            }
            count(&generate.max_tokens, "generate.max_tokens")?;
            let rule = generate.constrain.rule().map_err(|e| Error::input(format!("{}: {e}", strategy.origin)))?;
            rules.extend(rule.map(|rule| (generate.constrain.clone(), rule)));
        }
        if let Some(before) = &before {
            take_up::check(before)?;
        }
        let own = match before.as_ref().and_then(|before| take_up::limits(&before.events)) {
            Some(limits) => limits,
            None => Limits {
                tokens: strategy.budget.tokens,
                thoughts: strategy.budget.thoughts,
                seconds: strategy.budget.seconds,
            },
        };
        let limits = Limits {
            tokens: limits.tokens.or(own.tokens),
            thoughts: limits.thoughts.or(own.thoughts),
            seconds: limits.seconds.or(own.seconds),
        };
        let kv = strategy.budget.kv;
        let mut ticker = interval(COUNTERS_EVERY);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self {
            puzzle_part: rng::part(puzzle.id()),
            puzzle,
            strategy,
            lm,
            seed,
            plan,
            stages,
            memory: Memory::default(),
            stage: 0,
            rules,
            inputs,
            tree: ThoughtTree::default(),
            standing: Standing::default(),
            ledger: Ledger { kv, ..Ledger::new(limits, paused) },
            states: HashMap::new(),
            holds: HashMap::new(),
            held_told: Vec::new(),
            device_note: None,
            ids: HashMap::new(),
            checked: BTreeMap::new(),
            breadth: None,
            temperature: None,
            orders: VecDeque::new(),
            undo: Vec::new(),
            paused,
            steps: 0,
            merging: HashMap::new(),
            chosen: None,
            ending: None,
            hurry: false,
            requests: 0,
            unreadable: 0,
            starved: None,
            fate: Fate::default(),
            examples_told: None,
            record,
            before,
            events,
            commands,
            ticker,
            pruned: false,
        })
    }
}
