//! The engine's steps: what a planner remembers of the ones before shows in no plan, and its quick ways give what slow
//! and simple ones give.

use super::super::even::EvenCuts;
use super::super::flat::Stretch;
use super::super::tiles::Tiles;
use super::*;
use crate::attention::{Parallel, Planner, QueryRow};
use crate::base::rng;
use crate::device::cuda::work::Tile;
use crate::kv::tree::{BranchId, TokenTree};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use std::ops::Range;

/// A tree that is searched: branches fork inside pages, some end in one segment, some are pruned, and the others grow.
struct Search {
    tree: TokenTree,
    branches: Vec<BranchId>,
    next: u32,
    random: ChaCha8Rng,
}

impl Search {
    fn new(case: u64, label: &str) -> Self {
        let mut tree = TokenTree::new(1000);
        let branches = vec![tree.open()];
        let mut search = Self { tree, branches, next: 0, random: rng::stream(case, label, &[]) };
        let len = search.random.random_range(1..700);
        search.append(search.branches[0], len);
        for _ in 0..search.random.random_range(0..14) {
            search.fork();
        }
        search
    }

    fn append(&mut self, b: BranchId, n: u32) {
        let ids: Vec<u32> = (self.next..self.next + n).collect();
        self.next += n;
        self.tree.append(b, &ids, &mut Vec::new()).unwrap();
    }

    fn fork(&mut self) {
        let from = self.branches[self.random.random_range(0..self.branches.len())];
        let branch = if self.random.random_range(0..6) == 0 { self.tree.open() } else { self.tree.fork(from) };
        let len = self.random.random_range(0..60) + u32::from(self.tree.is_empty(branch));
        self.append(branch, len);
        self.branches.push(branch);
    }

    fn prune(&mut self) {
        if self.branches.len() > 1 {
            let at = self.random.random_range(0..self.branches.len());
            self.tree.drop_branch(self.branches.swap_remove(at), 0);
        }
    }

    /// Every branch grows by `many` tokens, which are the step's queries.
    fn grow(&mut self, many: u32) -> Vec<QueryRow> {
        let mut rows = Vec::new();
        for branch in self.branches.clone() {
            self.append(branch, many);
            let len = self.tree.len(branch) as u32;
            rows.extend((len - many..len).map(|position| QueryRow { branch, position }));
        }
        rows
    }
}

/// The engine's own work.
#[test]
fn plans_of_the_engine_s_steps_cover_each_visible_pair_once() {
    for case in 0..12u64 {
        let mut search = Search::new(case, "cuda step");
        let machines = machines();
        let machine = &machines[case as usize % machines.len()];
        for method in Method::LIVE {
            let mut planner = Planner::new(method);
            let mut following = StepPlanner::new(Cutting::of(method));
            // Decoding steps, then one in which every branch brings several rows.
            for many in [1, 1, 1, 9, 1] {
                let rows = search.grow(many);
                let mut expected = HashMap::new();
                for (r, row) in rows.iter().enumerate() {
                    for slot in &search.tree.slots(row.branch)[..=row.position as usize] {
                        *expected.entry((r as u32, slot.page.0 * 16 + u32::from(slot.offset))).or_insert(0) += 1;
                    }
                }
                let work = planner.plan(&search.tree, &rows);
                for plan in [step(work, machine, Cutting::of(method)), following.plan(work, machine)] {
                    check(&plan, &expected, rows.len(), machine, Cutting::of(method));
                }
            }
        }
    }
}

/// What a planner's buffers held before shows nowhere, whatever happened to the tree and whoever still holds a plan.
#[test]
fn a_step_s_plan_is_what_a_planner_with_no_memory_makes() {
    for case in 0..24u64 {
        let mut search = Search::new(case, "cuda steps");
        let machines = machines();
        let machine = &machines[case as usize % machines.len()];
        let method = Method::LIVE[case as usize % 2 * (case as usize % Method::LIVE.len())];
        let (mut planner, mut following) = (Planner::new(method), StepPlanner::new(Cutting::of(method)));
        let mut held = Vec::new();
        for _ in 0..60 {
            match search.random.random_range(0..8) {
                0 => search.fork(),
                1 => search.prune(),
                _ => {}
            }
            let many = if search.random.random_range(0..12) == 0 { 5 } else { 1 };
            let rows = search.grow(many);
            let work = planner.plan(&search.tree, &rows);
            let plan = following.plan(work, machine);
            let mut fresh = StepPlanner { won: following.won, ..StepPlanner::new(following.cutting) };
            let expected = fresh.plan(work, machine);
            assert!(plan == expected, "case {case}: the plan depends on the steps before");
            if search.random.random_range(0..5) == 0 {
                held.push((plan, CudaPlan::clone(&expected)));
            }
        }
        assert!(held.iter().all(|(plan, then)| **plan == *then), "case {case}: a plan changed under whoever held it");
    }
}

/// A card's plan is made of a step's pieces: how the CPU's threads would share them changes nothing but what is counted.
#[test]
fn a_card_s_plan_is_the_same_for_any_threads_but_one_reads_nothing_twice() {
    let mut split = 0;
    for case in 0..24u64 {
        let mut search = Search::new(case, "cuda threads");
        let machine = &machines()[0];
        let parallel = |threads| Parallel { threads, kv_heads: 2, group: 4 };
        let mut planners = [1, 64].map(|threads| Planner::with_parallel(Method::Auto, parallel(threads)));
        for many in [1, 1, 40] {
            let rows = search.grow(many);
            let [one, many] = planners.each_mut().map(|planner| planner.plan(&search.tree, &rows));
            assert!(step(one, machine, Cutting::Auto) == step(many, machine, Cutting::Auto), "case {case}");
            assert_eq!(one.io.kv_tokens, one.io.unique_tokens, "case {case}");
            split += u32::from(many.io.kv_tokens > many.io.unique_tokens);
        }
    }
    assert!(split > 0, "64 threads split nothing");
}

/// The tiles of a flattened tree, token by token.
fn tiles_one_by_one(flat: &Flat) -> Vec<Tile> {
    let mut groups: Vec<Vec<(u32, u32)>> = Vec::new();
    for &Stretch { slot, len, sees } in &flat.stretches {
        for slot in slot..slot + len {
            match groups.last_mut().filter(|g| g.len() < GROUP) {
                Some(group) if group[group.len() - 1].0 + 1 == slot && !(flat.paged && slot % 16 == 0) => {
                    group.push((slot, sees));
                }
                _ => groups.push(vec![(slot, sees)]),
            }
        }
    }
    let tile = |groups: &[Vec<(u32, u32)>]| {
        let all: Vec<(u32, u32)> = groups.iter().flatten().map(|&(_, sees)| (sees & 0xffff, sees >> 16)).collect();
        let mut tile =
            Tile { group: [groups[0][0].0; 4], rows: [0; TILE], some: [0; 2], all: [u16::MAX, 0], whole: 0, unused: 0 };
        for (g, group) in groups.iter().enumerate() {
            tile.group[g] = group[0].0;
            for (lane, &(_, sees)) in group.iter().enumerate() {
                tile.rows[g * GROUP + lane] = sees;
            }
        }
        let first = |rows: &[(u32, u32)]| {
            (rows.iter().map(|r| r.0).min().unwrap() as u16, rows.iter().map(|r| r.0).max().unwrap() as u16)
        };
        let end = |rows: &[(u32, u32)]| {
            (rows.iter().map(|r| r.1).max().unwrap() as u16, rows.iter().map(|r| r.1).min().unwrap() as u16)
        };
        tile.some = [first(&all).0, end(&all).0];
        if all.len() == TILE {
            tile.all = [first(&all).1, end(&all).1];
            tile.whole = u32::from((0..4).all(|g| tile.group[g] == tile.group[0] + 16 * g as u32));
        }
        tile
    };
    groups.chunks(TILE / GROUP).map(tile).collect()
}

#[test]
fn tiles_are_what_packing_token_by_token_gives() {
    let mut tiles = Tiles::default();
    for case in 0..40u64 {
        let mut search = Search::new(case, "cuda tiles");
        let mut flat = Flat::default();
        let mut planner = Planner::new(Method::Auto);
        for many in [1, 1, 7, 1] {
            let rows = search.grow(many);
            flat.read(planner.plan(&search.tree, &rows));
            // Slots of pages; then the same as if they lay anywhere, where groups need not end with a page.
            for paged in [true, false] {
                flat.paged = paged;
                tiles.clear();
                tiles.push(&flat, std::iter::once(0..flat.stretches.len()));
                tiles.end();
                assert!(tiles.tiles == tiles_one_by_one(&flat), "case {case}, paged {paged}");
                assert_eq!(tiles.tokens(0, tiles.len() as u32), flat.tokens());
            }
        }
    }
}

#[test]
fn even_cuts_are_the_cheapest_there_are_whatever_was_cut_before() {
    let mut random = rng::stream(0, "even cuts", &[]);
    let mut even = EvenCuts::default();
    for _ in 0..300 {
        let blocks: Vec<usize> = (0..random.random_range(1..6))
            .scan(0, |end, _| {
                *end += random.random_range(0..9);
                Some(*end)
            })
            .collect();
        let costs: Vec<u64> = (0..blocks[blocks.len() - 1]).map(|_| random.random_range(1..40)).collect();
        let (parts, item) = (random.random_range(1..7), random.random_range(0..30));
        let price = |run: Range<usize>| {
            // Blocks without a tile are entered by nobody.
            let borders = blocks.chunk_by(|a, b| a == b).map(|same| same[0]);
            let entries = borders.filter(|&end| run.contains(&end) && end > run.start).count() as u64 + 1;
            costs[run].iter().sum::<u64>() + entries * item
        };
        // The cheapest dearest run of `parts` up to each tile.
        let mut least = vec![0; costs.len() + 1];
        least[1..].fill(u64::MAX);
        for _ in 0..parts {
            let before = least.clone();
            for t in 1..=costs.len() {
                least[t] = (0..t).map(|from| before[from].max(price(from..t))).min().unwrap().min(before[t]);
            }
        }
        let dearest = even.cut(&costs, &blocks, parts, item);
        assert!(even.runs().count() <= parts);
        assert_eq!(even.runs().flatten().collect::<Vec<_>>(), (0..costs.len()).collect::<Vec<_>>());
        let found = even.runs().map(price).max().unwrap_or(0);
        assert!(
            found <= dearest && (costs.is_empty() || found == least[costs.len()]),
            "{costs:?} {blocks:?} {parts} {item}"
        );
    }
}
