//! Lists show what is there; bad files are rows, not failures.

use super::*;
use crate::base::testing::thread_time;
use crate::model::testing::{cases, small_model};
use candle_core::quantized::GgmlDType;

fn find_row<'a>(entries: &'a [Entry], name: &str) -> &'a Entry {
    entries.iter().find(|e| e.name == name).unwrap_or_else(|| panic!("no row {name}: {entries:?}"))
}

#[test]
fn good_and_bad_files_are_listed_side_by_side() {
    let root = tempfile::tempdir().unwrap();
    let good = small_model(GgmlDType::Q4_0).bytes();
    std::fs::write(root.path().join("good.gguf"), &good).unwrap();
    std::fs::write(root.path().join("cut.GGUF"), &good[..good.len() - 9]).unwrap();
    std::fs::write(root.path().join("notes.txt"), b"no model").unwrap();
    let hub = root.path().join("hub");
    let snapshot = hub.join("models--owner--some--repo/snapshots/abc");
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::write(snapshot.join("m.gguf"), &good).unwrap();
    let empty = tempfile::tempdir().unwrap();
    let entries = list_in(Some(empty.path()), Some(root.path()), Some(&hub));
    assert_eq!(entries[0].state, State::NotFetched(98_362_432), "the default model comes first");
    let State::Info(info) = &find_row(&entries, "good").state else { panic!() };
    assert_eq!((info.heads, info.kv_heads, info.head_size, info.format), (4, 2, 64, "gguf"));
    assert!(matches!(&find_row(&entries, "cut.GGUF").state, State::Bad(why) if why.contains("incomplete")));
    let hub_only = list_in(None, None, Some(&hub));
    find_row(&hub_only, "owner/some--repo/m.gguf");
    let json = serde_json::to_value(find_row(&entries, "cut.GGUF")).unwrap();
    assert!(json["bad"].as_str().unwrap().contains("incomplete"), "{json}");
    assert_eq!(serde_json::to_value(find_row(&entries, "good")).unwrap()["info"]["kv_bytes_per_token"], 512);
}

#[test]
fn the_shared_cases_are_all_rows() {
    let Some(cases) = cases() else { return };
    let start = thread_time();
    let entries = list_in(None, Some(&cases), None);
    assert!((thread_time() - start).as_secs() < 5);
    let bad = |name: &str, part: &str| match &find_row(&entries, name).state {
        State::Bad(why) => assert!(why.contains(part), "{why}"),
        other => panic!("{name}: {other:?}"),
    };
    bad("A/01_nested_array", "arrays inside arrays");
    bad("A/09_unknown_arch", "zebra9");
    bad("A/03_truncated_hf", "incomplete");
    bad("A/03_html_page", "web page");
    for good in ["A/05_tied_no_output", "tiny/untied", "tiny/hf", "tiny/hf_sharded"] {
        assert!(matches!(find_row(&entries, good).state, State::Info(_)), "{good}");
    }
}

#[test]
fn a_missing_folder_and_a_loop_of_links_end() {
    let root = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(root.path(), root.path().join("again")).unwrap();
    assert_eq!(list_in(None, Some(root.path()), Some(&root.path().join("none"))).len(), 1);
}
