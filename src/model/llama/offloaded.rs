//! A model whose K/V lies in two tiers gives what one with everything on the device gives. Only tests.

use crate::attention::Method;
use crate::base::rng::stream;
use crate::device::cpu::arena::KvNumber;
use crate::device::cpu::hot::least_bytes;
use crate::device::cpu::simd::Simd;
use crate::device::cpu::{Activations, CpuOptions};
use crate::device::speculation::{Basis, Fetch, Look, Selection, Source, Speculation};
use crate::device::weight::Weights;
use crate::device::{RopeLayout, Shape};
use crate::kv::BranchId;
use crate::kv::residency::Eviction;
use crate::model::reference::{Session, random_weights, small_shape};
use crate::offload::select::Select;
use candle_core::quantized::GgmlDType;
use rand::Rng;

const PAGES: usize = 256;

fn options(kv: KvNumber, threads: usize) -> CpuOptions {
    CpuOptions { threads, activations: Activations::Int8, pages: PAGES, kv, simd: Simd::best() }
}

/// A tree that grows, forks and loses branches, one row a branch in its later steps; the logits of every step.
fn grow(session: &mut Session, shape: &Shape) -> Vec<Vec<f32>> {
    let mut random = stream(4, "offloaded tree", &[]);
    let mut token = || random.random_range(0..shape.vocab as u32);
    let prompt: Vec<u32> = (0..300).map(|_| token()).collect();
    let root = session.tree.open();
    let mut logits = session.step(&[(root, &prompt)]);
    let mut branches: Vec<BranchId> = vec![root];
    for round in 0..24 {
        if round % 4 == 0 {
            branches.push(session.tree.fork(branches[round % branches.len()]));
        }
        if round == 13 {
            session.tree.drop_branch(branches.remove(1), 0);
        }
        let tokens: Vec<u32> = branches.iter().map(|_| token()).collect();
        let parts: Vec<(BranchId, &[u32])> =
            branches.iter().zip(&tokens).map(|(&branch, token)| (branch, std::slice::from_ref(token))).collect();
        logits.extend(session.step(&parts));
    }
    logits
}

/// Random columns, as good as any where everything is chosen.
fn speculation(shape: &Shape, whole_layers: usize) -> Speculation {
    let mut random = stream(8, "basis", &[]);
    let columns = 3;
    let mut numbers = |count: usize| (0..count).map(|_| random.random_range(-1.0..1.0)).collect::<Vec<f32>>();
    let kv_heads = shape.kv_heads;
    let mut basis = || Basis {
        columns,
        numbers: numbers(kv_heads * columns * shape.head_size),
        centre: numbers(kv_heads * columns),
    };
    let layers = (0..shape.layers).map(|_| basis()).collect();
    let shifts = (0..shape.layers).map(|_| numbers(shape.hidden)).collect();
    Speculation { whole_layers, columns, layers, shifts }
}

fn selected(shape: &Shape, whole_layers: usize, look: Look, share: bool, eviction: Eviction, select: Select) -> Fetch {
    let source = Source::Partial(speculation(shape, whole_layers), look);
    Fetch::Selected(Selection { source, choose: Box::new(select), whole_layers, share, eviction, capacity: None })
}

const ALL: Select = Select { alpha: f32::INFINITY, max_fetch: 1.0, random: false };

fn model() -> (Shape, Weights) {
    let shape = small_shape(RopeLayout::Interleaved);
    let weights = random_weights(&shape, &[GgmlDType::Q8_0], true, 3);
    (shape, weights)
}

#[test]
fn everything_fetched_in_any_way_through_the_least_device_tier_is_the_same_bits() {
    let (shape, weights) = model();
    assert!(shape.layers >= 2);
    for kv in [KvNumber::F16, KvNumber::F32] {
        let expected = grow(&mut Session::new(&weights, options(kv, 1), Method::Auto), &shape);
        let last = shape.layers - 1;
        let ways: Vec<(&str, Fetch)> = vec![
            ("full", Fetch::Full),
            ("ahead", selected(&shape, 1, Look::Ahead, true, Eviction::Counter, ALL)),
            ("half", selected(&shape, last, Look::Half, true, Eviction::Fifo, ALL)),
            ("same", selected(&shape, 0, Look::Same, true, Eviction::Lru, ALL)),
            ("alone", selected(&shape, 1, Look::Ahead, false, Eviction::Lru, ALL)),
        ];
        let mut evictions = 0;
        for (name, fetch) in ways {
            let mut session = Session::new(&weights, options(kv, 2), Method::Node);
            let least = least_bytes(&fetch, PAGES, &shape, kv.bytes());
            session.llama.refetch(Some((least, fetch)), &[]).unwrap();
            session.selecting = true;
            let found = grow(&mut session, &shape);
            assert_eq!(found.len(), expected.len());
            for (i, (a, b)) in found.iter().zip(&expected).enumerate() {
                assert!(a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits()), "{name}, row {i}");
            }
            let link = session.llama.device().link().unwrap();
            let token = shape.kv_numbers_per_token() * kv.bytes();
            assert_eq!(link.to_host_bytes, (found.len() * token) as u64, "{name}");
            assert!(link.peak_bytes <= least && link.fetches > 0, "{name}: {link:?}");
            evictions += link.evictions;
        }
        // Pages of this small tree all fit the least tier; rows do not, at least where no layer is whole.
        assert!(evictions > 0);
    }
}

#[test]
fn long_paths_whose_heads_are_partly_a_threads_own_are_the_same_bits() {
    // Of three K/V heads two threads take one each, and cut the third into tasks, the dearest first: not in a row's order.
    let shape = Shape { heads: 6, kv_heads: 3, context: 8192, ..small_shape(RopeLayout::Interleaved) };
    let weights = random_weights(&shape, &[GgmlDType::Q8_0], true, 5);
    let prompt: Vec<u32> = (0..7_000).map(|i| (i * 7 + i / 70) % shape.vocab as u32).collect();
    let run = |threads, fetch: Option<Fetch>| {
        let options = CpuOptions { pages: 500, ..options(KvNumber::F16, threads) };
        let mut session = Session::new(&weights, options, Method::Auto);
        if let Some(fetch) = fetch {
            session.llama.refetch(Some((64 << 20, fetch)), &[]).unwrap();
        }
        session.selecting = true;
        let root = session.tree.open();
        let mut logits = Vec::new();
        for part in prompt.chunks(250) {
            logits.push(session.step_last(&[(root, part)]));
            logits.extend(session.step(&[(root, &part[..1])]));
        }
        let other = session.tree.fork(root);
        logits.extend(session.step(&[(root, &[1]), (other, &[2])]));
        logits
    };
    let expected = run(1, None);
    for look in [None, Some(Look::Ahead), Some(Look::Same)] {
        let fetch = look.map_or(Fetch::Full, |look| selected(&shape, 1, look, true, Eviction::Counter, ALL));
        assert!(run(2, Some(fetch)) == expected, "{look:?}");
    }
    assert!(run(2, None) == expected);
}

#[test]
fn what_moves_is_what_crosses_the_link_and_what_leaves_with_a_paused_branch() {
    let (_, weights) = model();
    let mut session = Session::new(&weights, options(KvNumber::F16, 1), Method::Auto);
    assert!(session.llama.device().moving().is_none(), "there is one tier");
    session.llama.refetch(Some((64 << 20, Fetch::Full)), &[]).unwrap();
    let page_bytes = session.llama.device().page_bytes() as f64;
    let step = |session: &mut Session, branch: BranchId, tokens: &[u32]| {
        let before = session.llama.device().link().unwrap();
        session.step(&[(branch, tokens)]);
        let (link, moving) = (session.llama.device().link().unwrap(), session.llama.device().moving().unwrap());
        assert_eq!(link.waited_seconds, link.fetch_seconds);
        let seconds = link.fetch_seconds - before.fetch_seconds;
        assert_eq!(seconds > 0.0, link.fetches > before.fetches);
        let brought = (link.to_device_bytes - before.to_device_bytes) as f64;
        (moving.iter().map(|&share| f64::from(share)).sum::<f64>() * page_bytes, brought, link.moved_out)
    };
    let (one, other) = (session.tree.open(), session.tree.open());
    let prompt = |from: u32| (from..from + 40).collect::<Vec<u32>>();
    assert_eq!(step(&mut session, one, &prompt(3)), (0.0, 0.0, 0), "K/V that is made there does not move");
    for round in 0..4 {
        let moved = step(&mut session, other, if round == 0 { &[5; 40][..] } else { &[9] });
        // The three pages of the first one go with the fourth step that does not see them.
        assert_eq!(moved, if round < 3 { (0.0, 0.0, 0) } else { (3.0 * page_bytes, 0.0, 3) }, "round {round}");
    }
    assert_eq!(step(&mut session, other, &[9]), (0.0, 0.0, 3));
    assert_eq!(step(&mut session, one, &[9]), (3.0 * page_bytes, 3.0 * page_bytes, 3));
}

#[test]
fn what_is_shared_and_how_frames_go_changes_bytes_and_no_number() {
    let (shape, weights) = model();
    let some = Select { alpha: f32::INFINITY, max_fetch: 0.2, random: false };
    let run = |share, eviction, more: u64| {
        let fetch = selected(&shape, 1, Look::Ahead, share, eviction, some);
        let bytes = least_bytes(&fetch, PAGES, &shape, 2) + more;
        let mut session = Session::new(&weights, options(KvNumber::F16, 2), Method::Auto);
        assert!(
            session.llama.refetch(Some((least_bytes(&Fetch::Full, PAGES, &shape, 2) - 1, Fetch::Full)), &[]).is_err()
        );
        session.llama.refetch(Some((bytes, fetch)), &[]).unwrap();
        session.selecting = true;
        let logits = grow(&mut session, &shape);
        (logits, session.llama.device().link().unwrap())
    };
    let (expected, alone) = run(false, Eviction::Counter, 0);
    for (eviction, more) in [(Eviction::Counter, 0), (Eviction::Lru, 0), (Eviction::Fifo, 1 << 20)] {
        let (found, link) = run(true, eviction, more);
        assert!(found == expected, "{eviction:?}");
        assert!(link.to_device_bytes < alone.to_device_bytes, "{eviction:?}: {link:?} against {alone:?}");
        assert_eq!((link.attended, link.past), (alone.attended, alone.past));
        let share = link.attended as f64 / link.past as f64;
        assert!((0.2..0.21).contains(&share), "{share}");
        let missed = link.missed / link.samples as f64;
        assert!(link.samples > 0 && missed > 0.05 && missed < 0.95, "{missed}");
    }
}

#[test]
fn a_larger_host_tier_takes_no_room_of_rows_before_it_has_tokens() {
    let (shape, weights) = model();
    let some = Select { alpha: f32::INFINITY, max_fetch: 0.2, random: false };
    let run = |pages: usize| {
        let fetch = selected(&shape, 1, Look::Half, true, Eviction::Counter, some);
        let bytes = least_bytes(&fetch, PAGES, &shape, 2);
        let options = CpuOptions { pages, ..options(KvNumber::F16, 1) };
        let mut session = Session::new(&weights, options, Method::Auto);
        session.llama.refetch(Some((bytes, fetch)), &[]).unwrap();
        session.selecting = true;
        let logits = grow(&mut session, &shape);
        let link = session.llama.device().link().unwrap();
        assert!(link.peak_bytes <= bytes && link.fetches > 0, "{link:?}");
        (logits, link.to_device_bytes, link.hits, link.evictions)
    };
    assert!(run(PAGES) == run(PAGES / 4));
}

#[test]
fn exact_scores_miss_less_than_chance_and_int4_is_near() {
    let (shape, weights) = model();
    let expected = grow(&mut Session::new(&weights, options(KvNumber::F16, 1), Method::Auto), &shape);
    let run = |fetch: Fetch| {
        let mut session = Session::new(&weights, options(KvNumber::F16, 1), Method::Auto);
        session.llama.refetch(Some((64 << 20, fetch)), &[]).unwrap();
        session.selecting = true;
        let logits = grow(&mut session, &shape);
        let error =
            |(a, b): (&Vec<f32>, &Vec<f32>)| a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs())).sum::<f64>();
        let error = logits.iter().zip(&expected).skip(300).map(error).sum::<f64>();
        (error, session.llama.device().link().unwrap())
    };
    let by = |source, random| {
        let choose = Box::new(Select { alpha: f32::INFINITY, max_fetch: 0.2, random });
        let eviction = Eviction::Counter;
        Fetch::Selected(Selection { source, choose, whole_layers: 0, share: true, eviction, capacity: None })
    };
    let missed = |fetch| {
        let (_, link) = run(fetch);
        link.missed / link.samples as f64
    };
    let (oracle, chance) = (missed(by(Source::Exact, false)), missed(by(Source::Exact, true)));
    let heavy = missed(by(Source::Heavy { keep: 0.2 }, false));
    assert!(oracle < 0.9 * heavy && heavy < chance + 0.05 && oracle < 0.8 * chance, "{oracle} {heavy} {chance}");
    let ((full, _), (int4, link)) = (run(Fetch::Full), run(Fetch::Int4));
    assert!(full == 0.0 && int4 > 0.0, "{full} {int4}");
    let numbers: f64 = expected.iter().skip(300).map(|row| row.iter().map(|x| f64::from(x.abs())).sum::<f64>()).sum();
    assert!(int4 / numbers < 0.3, "int4 moves logits by {} of their size", int4 / numbers);
    assert!(link.to_host_bytes < (expected.len() * shape.kv_numbers_per_token()) as u64);
}
