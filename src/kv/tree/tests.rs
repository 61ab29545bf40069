//! The token tree against the naive model of `model.rs`, and what it does in particular cases.

use super::model::{Op, run};
use super::*;
use proptest::prelude::*;

fn op() -> impl Strategy<Value = Op> {
    let ids = || prop::collection::vec(0..3u32, 1..40);
    prop_oneof![
        1 => Just(Op::Open),
        3 => any::<usize>().prop_map(Op::Fork),
        6 => (any::<usize>(), ids()).prop_map(|(b, t)| Op::Append(b, t)),
        3 => (any::<usize>(), any::<usize>(), ids()).prop_map(|(b, h, t)| Op::Advance(b, h, t)),
        2 => any::<usize>().prop_map(Op::Release),
        2 => (any::<usize>(), any::<usize>()).prop_map(|(b, n)| Op::Truncate(b, n)),
        1 => (any::<usize>(), any::<usize>()).prop_map(|(b, n)| Op::Drop(b, n)),
        2 => any::<usize>().prop_map(Op::Join),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    /// Room for everything: advance finds exactly the longest path ever written.
    #[test]
    fn a_large_tree_agrees_with_the_naive_model(ops in prop::collection::vec(op(), 1..60)) {
        run(4096, &ops);
    }

    /// Room for little: appends fail whole or evict, and what a branch sees is never lost.
    #[test]
    fn a_small_tree_agrees_with_the_naive_model(pages in 1..14usize, ops in prop::collection::vec(op(), 1..80)) {
        run(pages, &ops);
    }
}

fn appended(tree: &mut TokenTree, b: BranchId, ids: &[u32]) -> Vec<Slot> {
    let mut slots = Vec::new();
    tree.append(b, ids, &mut slots).unwrap();
    tree.check();
    slots
}

/// Two branches that go on differently from one point: the prompt is stored once, the second tail owns a page of its own
/// that begins in its middle, and both continuations are found again.
#[test]
fn a_fork_shares_its_prompt() {
    let mut tree = TokenTree::new(8);
    let a = tree.open();
    let prompt: Vec<u32> = (0..36).collect();
    appended(&mut tree, a, &prompt);
    let b = tree.fork(a);
    let a_slots = appended(&mut tree, a, &[100, 101]);
    let b_slots = appended(&mut tree, b, &[200]);
    assert_eq!((a_slots[0].offset, b_slots[0].offset), (4, 4));
    assert_eq!(a_slots[0].page, tree.slots(a)[35].page, "the first goes on in the prompt's last page");
    assert_ne!(a_slots[0].page, b_slots[0].page);
    let stats = tree.stats();
    assert_eq!((stats.live_tokens, stats.path_tokens, stats.live_pages), (39, 75, 4));
    let c = tree.open();
    assert_eq!(tree.advance(c, &[prompt.clone(), vec![100, 7]].concat()), 37);
    let d = tree.open();
    assert_eq!(tree.advance(d, &[prompt, vec![200, 7]].concat()), 37);
    tree.check();
    assert_eq!((tree.stats().hit_tokens, tree.stats().lookup_tokens), (74, 76));
}

/// A draft with two guesses splits a run; once they are gone the run is whole again.
#[test]
fn a_run_that_was_split_for_a_while_is_joined() {
    let mut tree = TokenTree::new(16);
    let a = tree.open();
    appended(&mut tree, a, &(0..21).collect::<Vec<u32>>());
    for round in 0..40 {
        let (one, two) = (tree.fork(a), tree.fork(a));
        appended(&mut tree, one, &[round, 1]);
        appended(&mut tree, two, &[round, 2]);
        tree.drop_branch(two, tree.len(a));
        let longer = tree.fork(one);
        tree.truncate(longer, tree.len(a) + 1);
        tree.drop_branch(one, tree.len(a));
        tree.truncate(a, tree.len(a));
        assert_eq!(tree.advance(a, &[round]), 1);
        tree.release(longer);
        tree.join(a);
        tree.check();
        assert_eq!(tree.stats().segments, 1, "round {round}");
    }
    assert_eq!((tree.len(a), tree.stats().live_pages), (61, 4));
}

/// Case 24 of the public reports: with room for the prefix and one branch only, the node that is read is never evicted.
#[test]
fn the_node_in_use_is_never_evicted() {
    let mut tree = TokenTree::new(4);
    let prompt: Vec<u32> = (0..32).collect();
    let a = tree.open();
    appended(&mut tree, a, &prompt);
    appended(&mut tree, a, &[50; 16]);
    tree.release(a);
    for round in 0..5 {
        let b = tree.open();
        assert_eq!(tree.advance(b, &prompt), 32, "round {round}");
        appended(&mut tree, b, &[60 + round; 32]);
        let other = tree.open();
        let refused = tree.append(other, &[1], &mut Vec::new());
        assert_eq!(refused, Err(NoPages { needed: 1, free: 0 }));
        tree.release(other);
        tree.release(b);
        tree.check();
    }
    assert_eq!(tree.stats().live_pages, 0);
}

/// Released runs go least recently used first, leaves before what they hang on, and always in the same order.
#[test]
fn eviction_is_by_age_from_the_leaves() {
    let mut tree = TokenTree::new(6);
    let mut prompts = Vec::new();
    for i in 0..3u32 {
        let b = tree.open();
        prompts.push(vec![i + 1; 32]);
        appended(&mut tree, b, &prompts[i as usize]);
        tree.release(b);
    }
    let again = tree.open();
    assert_eq!(tree.advance(again, &prompts[0]), 32);
    tree.release(again);
    let b = tree.open();
    appended(&mut tree, b, &[9; 16]);
    let found = |ids: &[u32]| {
        let mut copy = tree.clone();
        let c = copy.open();
        copy.advance(c, ids)
    };
    assert_eq!(found(&prompts[0]), 32, "used last");
    assert_eq!(found(&prompts[1]), 16, "the oldest lost its last page");
    assert_eq!(found(&prompts[2]), 32);
}

/// A pruned branch's pages are free at once; what its siblings share stays.
#[test]
fn dropping_a_branch_frees_what_only_it_used() {
    let mut tree = TokenTree::new(16);
    let a = tree.open();
    appended(&mut tree, a, &(0..40).collect::<Vec<_>>());
    let b = tree.fork(a);
    appended(&mut tree, a, &[1; 30]);
    appended(&mut tree, b, &[2; 30]);
    let c = tree.fork(b);
    appended(&mut tree, b, &[3; 30]);
    appended(&mut tree, c, &[4; 30]);
    let free = tree.stats().free_pages;
    tree.drop_branch(c, 0);
    tree.check();
    assert_eq!(tree.stats().free_pages, free + 3, "positions 70..100 in pages 4, 5 and 6");
    tree.drop_branch(b, 40);
    tree.check();
    assert_eq!((tree.stats().cached_tokens, tree.stats().live_tokens), (0, 70));
    tree.drop_branch(a, 0);
    tree.check();
    assert_eq!(tree.stats().free_pages, 16);
}

/// Rejected speculation: the tokens go, and the place is written again.
#[test]
fn truncation_gives_back_the_newest_tokens() {
    let mut tree = TokenTree::new(4);
    let b = tree.open();
    appended(&mut tree, b, &(0..50).collect::<Vec<_>>());
    tree.truncate(b, 20);
    tree.check();
    assert_eq!((tree.len(b), tree.stats().free_pages, tree.stats().cached_tokens), (20, 2, 0));
    let slots = appended(&mut tree, b, &[7]);
    assert_eq!(slots[0].offset, 4);
    assert_eq!(tree.tokens(b), (0..20).chain([7]).collect::<Vec<_>>());
}
