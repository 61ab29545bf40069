//! Plans and CPU kernels together: every tree against the float64 reference, and every row against itself in other
//! company, bit for bit.

use super::*;
use crate::base::rng;
use crate::device::attend::{AttendWork, BLOCK};
use crate::device::cpu::attend::{Attention, Heads, kernels, serial};
use crate::kv::{TokenTree, pages_of};
use proptest::prelude::*;
use rand::Rng;
use rayon::prelude::*;
use sample::{Number, Sample};
use std::collections::HashSet;

fn rayon_for(n: usize, f: &(dyn Fn(usize) + Sync)) {
    (0..n).into_par_iter().for_each(f);
}

/// The output of one method, its plan checked.
fn run(s: &Sample, method: Method, rows: &[QueryRow]) -> Vec<f32> {
    // Two threads: heads that are whole, and tasks that hand over.
    let mut planner = Planner::with_parallel(method, parallel(s, 2));
    let work = planner.plan(&s.tree, rows);
    check_work(work, rows, &s.tree, method, s.heads.kv_heads);
    s.run(&mut Attention::with_kernels(s.heads, kernels::best()).unwrap(), work, &s.queries(rows), &serial)
}

fn parallel(s: &Sample, threads: usize) -> Parallel {
    Parallel { threads, kv_heads: s.heads.kv_heads, group: s.heads.group() }
}

/// Every output number within `tol` of the reference, NaN failing.
fn compare(s: &Sample, rows: &[QueryRow], out: &[f32], tol: f64) {
    (0..rows.len()).into_par_iter().for_each(|i| {
        let diff = s.error(rows, out, std::iter::once(i));
        assert!(!(diff.is_nan() || diff > tol), "row {i} {:?} is off by {diff}", rows[i]);
    });
}

/// What any plan must fulfil: every row sees every position of its path once, through the page that holds it.
pub(super) fn check_work(work: &AttendWork, rows: &[QueryRow], tree: &TokenTree, method: Method, kv_heads: usize) {
    let mut order = work.order.clone();
    order.sort_unstable();
    assert_eq!(order, (0..rows.len() as u32).collect::<Vec<_>>(), "the order is a permutation");
    let mut seen: Vec<Vec<u32>> = rows.iter().map(|r| vec![u32::MAX; r.position as usize + 1]).collect();
    let mut kv_tokens = 0;
    let mut partials = HashSet::new();
    for unit in &work.units {
        for r in unit.rows.clone() {
            assert!(partials.insert(work.partial_first[r as usize] + unit.block), "a partial is written once");
            assert!(work.partial_first[r as usize] + unit.block < work.partial_first[r as usize + 1]);
        }
        for piece in &work.pieces[unit.pieces.start as usize..unit.pieces.end as usize] {
            assert!(piece.len > 0 && piece.start / BLOCK as u32 == unit.block);
            assert_eq!((piece.start + piece.len - 1) / BLOCK as u32, unit.block);
            let mut read = false;
            for r in piece.rows.start.max(unit.rows.start)..piece.rows.end.min(unit.rows.end) {
                read = true;
                let row = work.order[r as usize] as usize;
                assert_eq!(work.positions[r as usize], rows[row].position);
                assert!(piece.start <= rows[row].position, "a row of a piece sees its first token");
                for p in piece.start..(piece.start + piece.len).min(rows[row].position + 1) {
                    let page = work.pages[(piece.first_page + p / 16 - piece.start / 16) as usize];
                    assert_eq!(std::mem::replace(&mut seen[row][p as usize], page), u32::MAX, "seen twice");
                }
            }
            kv_tokens += if read { u64::from(piece.len) } else { 0 };
        }
    }
    assert_eq!(partials.len(), work.partials());
    let cut = kv_heads as u64 - u64::from(work.whole_heads);
    assert_eq!(work.io.partial_rows, cut * handed_over(work));
    assert_eq!(work.io.kv_tokens, kv_tokens);
    for (row, seen) in rows.iter().zip(&seen) {
        let slots = tree.slots(row.branch);
        let expected: Vec<u32> = slots[..=row.position as usize].iter().map(|s| s.page.0).collect();
        assert_eq!(seen, &expected, "{method}: the pages of {row:?}");
    }
    let mut units = 0;
    let mut tasks = work.tasks.clone();
    tasks.sort_by_key(|task| task.start);
    for task in &tasks {
        assert_eq!(task.start, units, "every unit is in one task");
        units = task.end;
    }
    assert_eq!(units as usize, work.units.len());
    assert_eq!(work.io.radix_tokens, rows.iter().map(|r| u64::from(r.position) + 1).sum::<u64>());
    let union: HashSet<(u32, u32)> = rows
        .iter()
        .flat_map(|r| {
            tree.slots(r.branch)[..=r.position as usize]
                .iter()
                .map(|s| (s.page.0, u32::from(s.offset)))
                .collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(work.io.unique_tokens, union.len() as u64);
    match method {
        Method::Flatten | Method::Node | Method::NodeChunk => assert_eq!(work.io.kv_tokens, union.len() as u64),
        Method::Auto => assert!(work.io.kv_tokens >= union.len() as u64),
        _ => {}
    }
}

/// What tasks hand over of a K/V head, row by row: the nodes of a binary tree over all blocks whose blocks are all in one task while
/// those of their parent are not; nothing of a row that is in one task.
fn handed_over(work: &AttendWork) -> u64 {
    let mut count = 0;
    for r in 0..work.rows() as u32 {
        let blocks = work.positions[r as usize] / BLOCK as u32 + 1;
        let mut task_of = vec![usize::MAX; blocks as usize];
        for (t, task) in work.tasks.iter().enumerate() {
            for unit in &work.units[task.start as usize..task.end as usize] {
                if unit.rows.contains(&r) {
                    task_of[unit.block as usize] = t;
                }
            }
        }
        let whole = |size: u32, first: u32| {
            let end = first + size;
            end <= blocks && task_of[first as usize..end as usize].iter().all(|&t| t == task_of[first as usize])
        };
        if task_of.iter().all(|&t| t == task_of[0]) {
            continue;
        }
        for level in 0..8 {
            let size = 1 << level;
            for first in (0..blocks).step_by(size as usize) {
                count += u64::from(whole(size, first) && !whole(2 * size, first / (2 * size) * 2 * size));
            }
        }
    }
    count
}

/// How a random tree grows.
#[derive(Debug, Clone)]
struct Spec {
    heads: Heads,
    number: Number,
    seed: u64,
    leaves: usize,
    longest_run: usize,
    first_run: usize,
    shape: u8,
}

fn heads(group: usize, kv_heads: usize, head_size: usize) -> Heads {
    Heads { heads: group * kv_heads, kv_heads, head_size }
}

fn spec() -> impl Strategy<Value = Spec> {
    let sizes = (prop::sample::select(vec![1, 3, 4, 8]), 1..3usize, prop::sample::select(vec![8, 24, 64, 80, 96, 128]));
    let leaves = prop_oneof![3 => 1..8usize, 2 => 8..40usize, 1 => 40..300usize];
    (sizes, prop::sample::select(vec![Number::F16, Number::F32]), any::<u64>(), leaves, 1..90usize, 1..600usize, 0..5u8)
        .prop_map(|((g, h, d), number, seed, leaves, longest_run, first_run, shape)| Spec {
            heads: heads(g, h, d),
            number,
            seed,
            leaves,
            longest_run,
            first_run,
            shape,
        })
}

/// Grows the tree and chooses rows: mostly one a branch at its end, sometimes many, sometimes none.
fn grow(spec: &Spec) -> (Sample, Vec<QueryRow>) {
    let mut r = rng::stream(spec.seed, "tree", &[]);
    let pages = pages_of(0, spec.first_run as u32) + spec.leaves * (spec.longest_run / 8 + 4) + 8;
    let mut w = Sample::new(pages, spec.heads, spec.number);
    let first = w.tree.open();
    let run = |r: &mut rand_chacha::ChaCha8Rng, longest: usize| {
        (0..r.random_range(1..=longest)).map(|_| r.random_range(0..50)).collect::<Vec<u32>>()
    };
    let ids = run(&mut r, spec.first_run);
    w.append(first, &ids).unwrap();
    let mut branches = vec![first];
    while branches.len() < spec.leaves {
        let from = match spec.shape {
            // Star, comb (always the newest), wide (the first few), otherwise anywhere; a second root now and then.
            0 => branches[0],
            1 => branches[branches.len() - 1],
            2 => branches[r.random_range(0..branches.len().min(3))],
            _ => branches[r.random_range(0..branches.len())],
        };
        let b = if spec.shape == 4 && r.random_range(0..6) == 0 { w.tree.open() } else { w.tree.fork(from) };
        // An empty node: a branch with nothing of its own.
        if w.tree.is_empty(b) || r.random_range(0..8) > 0 {
            let ids = run(&mut r, spec.longest_run);
            w.append(b, &ids).unwrap();
        }
        if spec.shape != 0 && r.random_range(0..2) == 0 {
            let ids = run(&mut r, spec.longest_run.min(5));
            w.append(from, &ids).unwrap();
        }
        branches.push(b);
    }
    w.tree.check();
    let mut rows = Vec::new();
    for &branch in &branches {
        let len = w.tree.len(branch) as u32;
        let many = match r.random_range(0..10) {
            0 => 0,
            1 => r.random_range(1..=len.min(70)),
            _ => 1,
        };
        rows.extend((len - many..len).map(|position| QueryRow { branch, position }));
    }
    if rows.is_empty() {
        rows.push(QueryRow { branch: first, position: 0 });
    }
    (w, rows)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any tree, heads, head size and storage: within rounding of the float64 reference.
    #[test]
    fn random_trees_agree_with_the_reference(spec in spec()) {
        let (w, rows) = grow(&spec);
        let out = run(&w, Method::Flatten, &rows);
        compare(&w, &rows, &out, selftest::tolerance(kernels::best(), spec.number));
    }

    /// All methods, threads and row subsets give the same bits, and the same as each row's path alone in a tree of its own.
    #[test]
    fn a_row_depends_on_its_own_path_alone(spec in spec()) {
        let (mut w, rows) = grow(&spec);
        let out = run(&w, Method::Flatten, &rows);
        for method in [Method::Auto, Method::Node, Method::NodeChunk, Method::Radix] {
            assert_eq!(bits(&run(&w, method, &rows)), bits(&out), "{method}");
        }
        let mut planner = Planner::with_parallel(Method::Auto, Parallel { threads: 64, kv_heads: 1, group: 4 });
        let work = planner.plan(&w.tree, &rows);
        check_work(work, &rows, &w.tree, Method::Auto, 1);
        let split = w.run(&mut Attention::with_kernels(w.heads, kernels::best()).unwrap(), work, &w.queries(&rows), &rayon_for);
        assert_eq!(bits(&split), bits(&out), "split by rows, on threads");
        // Alone, in a tree of its own.
        let width = w.heads.heads * w.heads.head_size;
        for i in (0..rows.len()).step_by(rows.len().div_ceil(5)) {
            let path = w.tree.tokens(rows[i].branch)[..=rows[i].position as usize].to_vec();
            let mut chain = Sample::new(pages_of(0, path.len() as u32), w.heads, w.number);
            let branch = chain.tree.open();
            chain.append(branch, &path).unwrap();
            let alone = run(&chain, Method::Flatten, &[QueryRow { branch, position: rows[i].position }]);
            assert_eq!(bits(&alone), bits(&out[i * width..(i + 1) * width]), "row {i} alone");
        }
        // Segments split by newcomers at every place they can be.
        let mut r = rng::stream(spec.seed, "split", &[]);
        for _ in 0..4 {
            let path = w.tree.tokens(rows[r.random_range(0..rows.len())].branch);
            let cut = r.random_range(0..=path.len());
            let b = w.tree.open();
            w.tree.advance(b, &path[..cut]);
            if w.tree.append(b, &[77], &mut Vec::new()).is_err() {
                break;
            }
        }
        w.tree.check();
        assert_eq!(bits(&run(&w, Method::Flatten, &rows)), bits(&out), "after splits");
        // Every third row alone with its like.
        let some: Vec<usize> = (0..rows.len()).step_by(3).collect();
        let part = run(&w, Method::Flatten, &some.iter().map(|&i| rows[i]).collect::<Vec<_>>());
        for (j, &i) in some.iter().enumerate() {
            assert_eq!(bits(&part[j * width..(j + 1) * width]), bits(&out[i * width..(i + 1) * width]));
        }
    }

    /// Every table of kernels that this machine runs.
    #[test]
    fn all_kernels_agree_with_the_reference(spec in spec()) {
        let (w, rows) = grow(&Spec { leaves: spec.leaves.min(6), ..spec });
        let mut planner = Planner::new(Method::Flatten);
        let work = planner.plan(&w.tree, &rows);
        for table in kernels::available() {
            let mut attention = Attention::with_kernels(w.heads, table).unwrap();
            let out = w.run(&mut attention, work, &w.queries(&rows), &serial);
            compare(&w, &rows, &out, selftest::tolerance(table, spec.number));
        }
    }
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

/// Regular trees of the measured tables: bytes by the formulas of the method table.
#[test]
fn io_follows_the_formulas() {
    let (p, b, own) = (1000u32, 20u32, 100u32);
    let mut tree = TokenTree::new(1000);
    let root = tree.open();
    let mut slots = Vec::new();
    tree.append(root, &vec![1; p as usize], &mut slots).unwrap();
    let rows: Vec<QueryRow> = (0..b)
        .map(|i| {
            let branch = tree.fork(root);
            tree.append(branch, &vec![i; own as usize], &mut slots).unwrap();
            QueryRow { branch, position: p + own - 1 }
        })
        .collect();
    tree.release(root);
    let io = |method| Planner::new(method).plan(&tree, &rows).io;
    let unique = u64::from(p + b * own);
    for method in [Method::Flatten, Method::Node, Method::NodeChunk] {
        let io = io(method);
        assert_eq!((io.kv_tokens, io.unique_tokens, io.radix_tokens), (unique, unique, u64::from(b * (p + own))));
    }
    assert_eq!(io(Method::Radix).kv_tokens, u64::from(b * (p + own)));
    // Five blocks a path of 1100, each handed over where a block is a task, fewer where tasks have several.
    assert_eq!(io(Method::NodeChunk).partial_rows, u64::from(b * 5));
    // Of three heads two threads take one each, and share the third.
    let how = Parallel { threads: 2, kv_heads: 3, group: 1 };
    let mut planner = Planner::with_parallel(Method::Flatten, how);
    let work = planner.plan(&tree, &rows);
    assert_eq!(work.whole_heads, 2);
    assert!((1..=u64::from(b * 5)).contains(&work.io.partial_rows), "{}", work.io.partial_rows);
    for alone in [Parallel { kv_heads: 8, ..how }, Parallel { threads: 1, ..how }] {
        let mut planner = Planner::with_parallel(Method::Flatten, alone);
        let work = planner.plan(&tree, &rows);
        assert_eq!((work.whole_heads as usize, work.io.partial_rows), (alone.kv_heads, 0));
    }
}

/// A NaN in the K/V that a row sees comes out; one that it does not see stays out.
#[test]
fn nan_reaches_exactly_the_rows_that_see_it() {
    for number in [Number::F16, Number::F32] {
        let mut w = Sample::new(64, heads(3, 1, 64), number);
        let a = w.tree.open();
        w.append(a, &[1; 70]).unwrap();
        let b = w.tree.fork(a);
        w.append(a, &[2; 10]).unwrap();
        w.append(b, &[3; 10]).unwrap();
        let at = w.index(w.tree.slots(b)[75], 0);
        w.arena.set(at, f32::NAN);
        let rows = [(a, 79), (b, 74), (b, 75), (b, 79)].map(|(branch, position)| QueryRow { branch, position });
        for table in kernels::available() {
            let mut planner = Planner::new(Method::Flatten);
            let work = planner.plan(&w.tree, &rows);
            let out = w.run(&mut Attention::with_kernels(w.heads, table).unwrap(), work, &w.queries(&rows), &serial);
            let nan: Vec<bool> = out.chunks(3 * 64).map(|row| row.iter().all(|x| x.is_nan())).collect();
            assert_eq!(nan, [false, false, true, true], "{}", table.name);
            assert!(out[..2 * 3 * 64].iter().all(|x| x.is_finite()));
        }
    }
}

#[test]
fn names_are_read_back_and_unknown_ones_list_the_known() {
    for method in Method::ALL {
        assert_eq!(method.name().parse::<Method>().unwrap(), method);
        assert_eq!(Method::live(method.name()).is_ok(), method.is_live());
    }
    assert!(Method::live("medusa").unwrap_err().message().contains("bench"));
    assert!("flat".parse::<Method>().unwrap_err().message().contains("deft-flatten"));
}
