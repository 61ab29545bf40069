//! K/V offload as its record tells it: a recorded search on random weights whose thoughts own pages, with a device tier that
//! holds less than the tree.

use super::common::Place;
use serde_json::Value;
use std::collections::HashMap;

/// A level of twelve long thoughts of which one lives on.
const LONG: &str = "\
version: 1
name: long
about: long thoughts, one of a level lives on
task: sorting
search: {policy: bfs, depth: 3, keep: 1}
generate: {n: 12, temperature: 1, max_tokens: 120, prompt: \"Sort {{ puzzle.input }}:\", format: completion}
evaluate: [logprob]
budget: {tokens: 100000}
";

/// Bytes of the device tier, `--kv-budget`: the least there is for these weights and a little more.
const DEVICE: u64 = 2700 << 10;

/// Counts that only grow while a run lasts.
const GROWING: &[&str] = &[
    "to_device_bytes",
    "to_host_bytes",
    "hits",
    "fetches",
    "evictions",
    "moved_out",
    "moved_back",
    "attended",
    "past",
    "samples",
];

fn number(counters: &Value, part: &str, name: &str) -> u64 {
    counters[part][name].as_u64().unwrap_or_else(|| panic!("{part}.{name} is no count: {counters}"))
}

/// What must hold of one reading, and of one after another.
fn check(counters: &Value, before: Option<&Value>) {
    let link = |name: &str| number(counters, "link", name);
    let kv = |name: &str| number(counters, "kv", name);
    assert!(kv("pages_live") + kv("pages_cached") <= kv("pages_total"), "{counters}");
    assert!(link("device_peak_bytes") <= link("device_budget_bytes"), "{counters}");
    assert!(link("device_budget_bytes") <= DEVICE, "{counters}");
    assert!(link("attended") <= link("past"), "{counters}");
    let missed = counters["link"]["missed_mass"].as_f64().expect("a weight");
    assert!((0.0..=link("samples") as f64 + 1e-6).contains(&missed), "{counters}");
    for name in GROWING {
        let earlier = before.map_or(0, |before| number(before, "link", name));
        assert!(link(name) >= earlier, "{name} went from {earlier} to {}", link(name));
    }
}

/// Pages of pruned thoughts are no branch's any more at the first reading after the step that follows the pruning, and the
/// counters add up throughout.
#[test]
fn pruned_pages_are_free_by_the_next_step() {
    let place = Place::new();
    place.write("long.yaml", LONG);
    let run = place.run(&[
        "solve",
        "--no-tui",
        "--json",
        "--model",
        "random:tiny",
        "--device",
        "cpu",
        "--strategy",
        "long.yaml",
        "--input",
        "3 1 2",
        "--offload",
        "infinigen-tree",
        "--kv-budget",
        "2700KiB",
        "--ram-budget",
        "8MiB",
        "--record",
        "run.jsonl",
    ]);
    assert!(matches!(run.code, Some(0 | 1)), "{:?} {}", run.code, run.err);
    let record = std::fs::read_to_string(place.path("run.jsonl")).expect("a record");
    let (mut last, mut largest, mut prunings): (Option<Value>, u64, usize) = (None, 0, 0);
    // Pages that thoughts have for themselves, at least: whole ones between their first token and the last but one.
    let mut own: HashMap<u64, u64> = HashMap::new();
    let (mut freed, mut before): (u64, Option<Value>) = (0, None);
    for event in record.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")) {
        let node = event["node"].as_u64().unwrap_or(0);
        if event["event"] == "grown" {
            own.insert(node, number(&event, "usage", "sampled").saturating_sub(16) / 16);
        }
        if event["event"] == "status" && event["status"] == "pruned" {
            freed += own.remove(&node).unwrap_or(0);
            before = before.or_else(|| last.clone());
        }
        let counters = &event["counters"];
        if event["event"] != "counters" || counters["kv"].is_null() {
            continue;
        }
        check(counters, last.as_ref());
        let (live, cached) = (number(counters, "kv", "pages_live"), number(counters, "kv", "pages_cached"));
        // What no branch has is free or cached, and nothing is evicted here: the host tier is large.
        let steps = |counters: &Value| number(counters, "speed", "steps");
        if let Some(earlier) = before.take_if(|earlier| steps(counters) > steps(earlier)) {
            let was = number(&earlier, "kv", "pages_cached");
            assert!(cached >= was + freed, "{freed} pages pruned, {was} cached before and {cached} after a step");
            prunings += usize::from(freed > 0);
            freed = 0;
        }
        largest = largest.max((live + cached) * number(counters, "kv", "page_bytes"));
        last = Some(counters.clone());
    }
    assert!(prunings >= 2, "{prunings} prunings with readings before and after");
    assert!(largest > DEVICE, "the tree's K/V ({largest} bytes) fits the device tier");
    let end = last.expect("counters");
    assert_eq!(number(&end, "kv", "pages_live"), 0, "{end}");
}
