//! What a record gives back, whatever ran.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever the strategy and the script: the run ends, and the record gives back the tree.
    #[test]
    fn the_tree_from_the_record_is_the_tree_that_ran(
        replies in proptest::collection::vec("[abc]{0,2}|(good|bad|0\\.7|)", 0..40),
        dfs in any::<bool>(),
        kind in 0..3usize,
        keep in 1..4usize,
        n in 1..4usize,
        prune in prop_oneof![Just(0.0), Just(0.6)],
        judges in 0..4usize,
        thoughts in prop_oneof![Just(None), proptest::strategy::Strategy::prop_map(1..12u64, Some)],
    ) {
        let mut strategy = strategy(if dfs { Policy::Dfs } else { Policy::Bfs });
        strategy.search.keep = Count::Number(keep);
        strategy.search.prune_below = prune;
        strategy.generate.n = Count::Number(n);
        strategy.generate.kind = [GenerateKind::Sample, GenerateKind::Propose, GenerateKind::Random][kind];
        strategy.evaluate = match judges {
            0 => vec![],
            1 => vec![Evaluator::Checker { partial: true }],
            2 => vec![value(&[("good", 3.0), ("bad", 1.0)]), Evaluator::Logprob],
            _ => vec![value(&[]), Evaluator::Checker { partial: false }],
        };
        let replies: Vec<&str> = replies.iter().map(String::as_str).collect();
        let folder = tempfile::tempdir().unwrap();
        let mut spec = spec(Spell::new("abca"), strategy, script(&replies));
        spec.limits.thoughts = thoughts;
        let recorder = recorder(folder.path(), &spec);
        let path = recorder.path().display().to_string();
        spec.record = Some(recorder);
        let ran = run(spec);
        let recorded = crate::search::record::read(&path).unwrap();
        prop_assert_eq!(recorded.tree().unwrap(), ran.tree);
        prop_assert_eq!(recorded.outcome(), Some(&ran.outcome));
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for event in &recorded.events {
            match event {
                Event::Grown { .. } => *counts.entry("thoughts").or_default() += 1,
                Event::Replied { usage, .. } => *counts.entry("tokens").or_default() += usage.tokens(),
                _ => {}
            }
        }
        prop_assert_eq!(counts.get("thoughts").copied().unwrap_or(0), ran.outcome.thoughts);
        prop_assert_eq!(counts.get("tokens").copied().unwrap_or(0), ran.outcome.usage.tokens());
    }
}
