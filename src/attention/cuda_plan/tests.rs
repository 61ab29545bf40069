//! Every plan covers each visible (row, token) pair exactly once and no other, whatever the method, on random trees.

use super::*;
use crate::base::rng;
use crate::device::cuda::work::{GROUP, Kernel, TILE};
use rand::Rng;
use std::collections::HashMap;

mod steps;

const CUTTINGS: [Cutting; 7] = [
    Cutting::Auto,
    Cutting::Flatten,
    Cutting::Node,
    Cutting::NodeChunk,
    Cutting::Radix,
    Cutting::SpecInfer,
    Cutting::Vanilla,
];

/// Parents, lengths and queries `(node, offset)`; slots are dealt in node order.
struct Case {
    nodes: Vec<Node>,
    slots: Vec<u32>,
    rows: Vec<Row>,
    paged: bool,
}

impl Case {
    fn new(shape: &[(Option<u32>, u32)], rows: &[(u32, u32)], paged: bool) -> Self {
        let (mut nodes, mut slots, mut at) = (Vec::new(), Vec::new(), 0);
        for &(parent, len) in shape {
            nodes.push(Node { parent, first: slots.len() as u32, len });
            slots.extend(at..at + len);
            at += len;
            if paged {
                at = at.next_multiple_of(GROUP as u32);
            }
        }
        let rows = rows.iter().map(|&(node, offset)| Row { node, offset }).collect();
        Self { nodes, slots, rows, paged }
    }

    fn tree(&self) -> Tree<'_> {
        Tree { nodes: &self.nodes, slots: &self.slots, paged: self.paged }
    }

    /// How often a (batch row, slot) pair must be covered: once for each token that the row sees.
    fn visible(&self) -> HashMap<(u32, u32), u32> {
        let mut pairs = HashMap::new();
        for (r, row) in self.rows.iter().enumerate() {
            let mut at = Some(row.node);
            while let Some(i) = at {
                let node = &self.nodes[i as usize];
                let len = if i == row.node { node.len.min(row.offset + 1) } else { node.len };
                for slot in &self.slots[node.first as usize..(node.first + len) as usize] {
                    *pairs.entry((r as u32, *slot)).or_insert(0) += 1;
                }
                at = node.parent;
            }
        }
        pairs
    }

    fn check(&self, machine: &Machine, cutting: Cutting) {
        let plan = plan(self.tree(), &self.rows, machine, cutting);
        check(&plan, &self.visible(), self.rows.len(), machine, cutting);
        match cutting {
            Cutting::Radix => assert_eq!(plan.moves.tokens, plan.moves.paths, "radix reads every path"),
            Cutting::SpecInfer => assert_eq!(plan.moves.tokens, plan.moves.unique * self.rows.len() as u64),
            _ => assert!(plan.moves.tokens >= plan.moves.unique),
        }
    }
}

/// A plan covers exactly the expected (batch row, slot) pairs, and every partial has its place.
fn check(plan: &CudaPlan, expected: &HashMap<(u32, u32), u32>, rows: usize, machine: &Machine, cutting: Cutting) {
    let mut covered = HashMap::new();
    let mut shares = vec![0; rows];
    let mut written = vec![0; plan.moves.partials as usize];
    for item in &plan.items {
        assert!(item.rows > 0 && item.tiles > 0 && item.rows * machine.group <= ITEM_ROWS, "{cutting:?} {item:?}");
        assert!(item.rows * machine.group <= [16, 32, 64, 128][item.kind as usize]);
        for r in item.row..item.row + item.rows {
            shares[r as usize] += 1;
            if item.partial != u32::MAX {
                written[(item.partial + r - item.row) as usize] += 1;
            }
        }
        for tile in &plan.tiles[item.tile as usize..(item.tile + item.tiles) as usize] {
            for key in 0..TILE {
                let slot = tile.group[key / GROUP] + (key % GROUP) as u32;
                let (first, end) = (tile.rows[key] & 0xffff, tile.rows[key] >> 16);
                assert!(first >= end || (u32::from(tile.some[0]) <= first && u32::from(tile.some[1]) >= end));
                for r in item.row..item.row + item.rows {
                    let seen = (first..end).contains(&r);
                    let all = (u32::from(tile.all[0])..u32::from(tile.all[1])).contains(&r);
                    assert!(seen || !all, "{cutting:?}: a tile says that row {r} sees all of it");
                    if seen {
                        *covered.entry((plan.batch_row[r as usize], slot)).or_insert(0) += 1;
                    }
                }
            }
            let whole = (0..4).all(|g| tile.group[g] == tile.group[0] + (g * GROUP) as u32);
            assert!(tile.whole == 0 || whole);
        }
    }
    assert!(covered == *expected, "{cutting:?} covers other pairs than the rows see");
    assert!(written.iter().all(|&w| w == 1), "{cutting:?}: each partial is written once");
    // A row in one finished item, or in a list of partials, never both.
    let mut merged = vec![0; rows];
    for (i, &r) in plan.merge_row.iter().enumerate() {
        merged[r as usize] = plan.merge_first[i + 1] - plan.merge_first[i];
    }
    for r in 0..rows {
        assert!(shares[r] > 0, "{cutting:?}: row {r} has an item");
        assert!(merged[r] == 0 && shares[r] == 1 || merged[r] == shares[r], "{cutting:?}: row {r}");
    }
    let items: u32 = plan.cta_items.windows(2).map(|w| w[1] - w[0]).sum();
    assert_eq!(items as usize, plan.items.len());
    assert!(plan.ctas() as u32 <= machine.ctas());
    assert_eq!(plan.moves.paths, expected.len() as u64);
    let unique: std::collections::HashSet<u32> = expected.keys().map(|k| k.1).collect();
    // The engine's work for `radix` names a shared token once a query.
    assert!(
        plan.moves.unique == unique.len() as u64 || cutting == Cutting::Radix && plan.moves.unique <= plan.moves.paths
    );
}

fn machines() -> Vec<Machine> {
    let machine = |kernel, resident, kv_heads, group| Machine { kernel, resident, kv_heads, group, head_size: 128 };
    vec![
        machine(Kernel::Hopper, 132, 8, 4),
        machine(Kernel::Ampere, 216, 3, 3),
        machine(Kernel::Hopper, 132, 32, 1),
        machine(Kernel::Ampere, 264, 1, 16),
    ]
}

/// A chain, star, comb, forest or any tree, with queries in an order that is not depth-first.
fn random(case: u64) -> Case {
    let mut random = rng::stream(case, "cuda plan", &[]);
    let nodes = random.random_range(1..60u32);
    let style = case % 5;
    let mut shape: Vec<(Option<u32>, u32)> = Vec::new();
    for i in 0..nodes {
        let parent = match style {
            _ if i == 0 => None,
            0 => Some(i - 1),                                  // chain
            1 => Some(0),                                      // star
            2 => Some(if i % 2 == 0 { i - 2 } else { i - 1 }), // comb
            _ if random.random_range(0..12) == 0 => None,      // forest
            _ => Some(random.random_range(0..i)),
        };
        let len = match random.random_range(0..5) {
            0 => 0,
            1 => 1,
            2 => random.random_range(1..20),
            _ => random.random_range(1..150),
        };
        shape.push((parent, if parent.is_none() { len.max(1) } else { len }));
    }
    let mut rows: Vec<(u32, u32)> = Vec::new();
    for (i, node) in shape.iter().enumerate().filter(|(_, n)| n.1 > 0) {
        match random.random_range(0..4) {
            0 => {}
            1 => rows.extend((node.1.saturating_sub(6)..node.1).map(|o| (i as u32, o))), // a suffix of queries
            _ => rows.push((i as u32, random.random_range(0..node.1))),
        }
    }
    if rows.is_empty() {
        rows.push((0, shape[0].1 - 1));
    }
    // Batch order is not depth-first order.
    for i in (1..rows.len()).rev() {
        rows.swap(i, random.random_range(0..=i));
    }
    Case::new(&shape, &rows, case.is_multiple_of(2))
}

#[test]
fn plans_of_random_trees_cover_each_visible_pair_once() {
    for n in 0..60u64 {
        let (machines, case) = (machines(), random(n));
        let machine = &machines[n as usize % machines.len()];
        for cutting in CUTTINGS {
            case.check(machine, cutting);
        }
    }
}

/// What is passed over by its bound would not have been the quickest.
#[test]
fn a_bound_is_never_above_what_a_cut_takes() {
    let (mut draft, mut borders) = (Draft::default(), Vec::new());
    for n in 0..60u64 {
        let case = random(n);
        let mut flat = Flat::new(case.tree(), &case.rows);
        for machine in machines().into_iter().flat_map(|m| [64, 128].map(|head_size| Machine { head_size, ..m })) {
            for height in [1, 2, 5, 8, 20, 64] {
                flat.borders(height, &mut borders);
                let bound = draft.bound(&flat, &machine, &borders);
                draft.block(&flat, &machine, &borders);
                for halved in [true, false] {
                    draft.cut_evenly(&machine, ctas(&machine, halved));
                    assert!(bound <= draft.nanoseconds(), "{machine:?}, blocks of {height}");
                }
                draft.whole(&flat, &machine, &borders);
                assert!(bound <= draft.nanoseconds(), "{machine:?}, whole blocks of {height}");
            }
        }
    }
}

#[test]
fn wide_trees_are_planned_too() {
    for (leaves, prompt, own) in [(300, 700, 5), (50, 1000, 100), (1, 1, 1), (256, 8, 32)] {
        let mut shape = vec![(None, prompt)];
        shape.extend((0..leaves).map(|_| (Some(0), own)));
        let rows: Vec<_> = (1..=leaves).map(|i| (i, own - 1)).collect();
        for paged in [false, true] {
            for cutting in [Cutting::Auto, Cutting::Flatten, Cutting::Node, Cutting::Radix] {
                Case::new(&shape, &rows, paged).check(&machines()[0], cutting);
            }
        }
    }
}

#[test]
fn a_star_s_prompt_is_read_once_a_block_and_auto_takes_the_quickest_cut() {
    let mut shape = vec![(None, 4000)];
    shape.extend((0..20).map(|_| (Some(0), 100)));
    let rows: Vec<_> = (1..=20).map(|i| (i, 99)).collect();
    let case = Case::new(&shape, &rows, false);
    let machine = &machines()[0];
    let read = |cutting| plan(case.tree(), &case.rows, machine, cutting).moves;
    // A node's rows are one block: everything is read once.
    assert_eq!(read(Cutting::Node).tokens, 6000);
    // Grouped by query, nothing is shared.
    assert_eq!(read(Cutting::Radix).tokens, 82_000);
    let auto = read(Cutting::Auto);
    assert_eq!((auto.unique, auto.paths), (6000, 82_000));
    // 80 packed rows are two passes over a tile in one block or in two, and one reads less.
    assert_eq!(auto.tokens, 6000);
}
