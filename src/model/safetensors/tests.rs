//! Folders in all forms, and everything that can be wrong with shards.

use super::*;
use crate::model::testing::cases;
use proptest::prelude::*;
use std::fs;

fn file_of(tensors: &[(&str, &[usize])]) -> Vec<u8> {
    let views: Vec<(String, Vec<u8>, Vec<usize>)> = tensors
        .iter()
        .map(|(name, dims)| ((*name).to_string(), vec![0u8; 4 * dims.iter().product::<usize>()], dims.to_vec()))
        .collect();
    let views = views.iter().map(|(name, data, dims)| {
        (name.as_str(), ::safetensors::tensor::TensorView::new(Dtype::F32, dims.clone(), data).unwrap())
    });
    ::safetensors::serialize(views.collect::<Vec<_>>(), None).unwrap()
}

fn refused(dir: &Path) -> String {
    Folder::open(dir).map(|_| ()).unwrap_err().message().to_string()
}

#[test]
fn single_files_and_shards_give_the_same_tensors() {
    let Some(cases) = cases() else { return };
    let single = Folder::open(&cases.join("tiny/hf")).unwrap();
    let sharded = Folder::open(&cases.join("tiny/hf_sharded")).unwrap();
    let mut names = single.names();
    names.sort_unstable();
    assert_eq!((names.len(), sharded.names().len()), (20, 20));
    assert_eq!((single.files().count(), sharded.files().count()), (1, 2));
    for name in names {
        let (a, b) = (single.tensor(name).unwrap(), sharded.tensor(name).unwrap());
        assert_eq!(a.dims, b.dims, "{name}");
        assert_eq!(&a.file[a.range.clone()], &b.file[b.range.clone()], "{name}");
    }
    let error = refused(&cases.join("A/03_truncated_hf"));
    for part in ["model.safetensors", "106928 bytes", "115928", "incomplete"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn shards_and_index_must_agree() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let write = |name: &str, bytes: &[u8]| fs::write(root.join(name), bytes).unwrap();
    let index = |map: &str| write(INDEX, format!(r#"{{"metadata": {{}}, "weight_map": {{{map}}}}}"#).as_bytes());
    assert!(refused(root).contains("holds neither"));
    write("pytorch_model.bin", b"");
    assert!(refused(root).contains("pytorch_model.bin is not read"));
    write("a.safetensors", &file_of(&[("x", &[2]), ("y", &[3])]));
    write("b.safetensors", &file_of(&[("z", &[2, 2])]));
    index(r#""x": "a.safetensors", "z": "b.safetensors""#);
    assert_eq!(Folder::open(root).unwrap().names().len(), 3);
    index(r#""x": "a.safetensors", "z": "c.safetensors""#);
    assert!(refused(root).contains("shard `c.safetensors` is missing"), "{}", refused(root));
    index(r#""x": "b.safetensors", "z": "b.safetensors", "y": "a.safetensors""#);
    assert!(refused(root).contains("tensor `x` is not in `b.safetensors`"), "{}", refused(root));
    index(r#""w": "a.safetensors""#);
    assert!(refused(root).contains("tensor `w` is not in"), "{}", refused(root));
    for escape in ["../a.safetensors", "/etc/passwd", "sub/a.safetensors", "..", "", "..\\\\a"] {
        index(&format!(r#""x": "{escape}""#));
        assert!(refused(root).contains("leaves the folder"), "{escape}: {}", refused(root));
    }
    index("");
    assert!(refused(root).contains("names no tensors"));
    write(INDEX, b"{");
    assert!(refused(root).contains("cannot be read"));
    write("b.safetensors", &file_of(&[("x", &[2])]));
    index(r#""x": "a.safetensors", "z": "b.safetensors""#);
    assert!(refused(root).contains("tensor `x` is in two shards"), "{}", refused(root));
}

#[test]
fn damaged_headers_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let check = |bytes: &[u8], part: &str| {
        fs::write(dir.path().join(SINGLE), bytes).unwrap();
        let error = refused(dir.path());
        assert!(error.contains(part) && error.contains(SINGLE), "{error}");
    };
    check(b"", "0 bytes");
    check(b"1234", "4 bytes");
    check(b"<!DOCTYPE html><html></html>", "web page");
    check(&u64::MAX.to_le_bytes(), "header says it has");
    check(b"\x10\0\0\0\0\0\0\0{}", "header says it has 16 bytes, but 2");
    check(b"\x02\0\0\0\0\0\0\0{]", "header is wrong");
    let good = file_of(&[("x", &[4])]);
    check(&good[..good.len() - 1], "incomplete");
    check(&[&good[..], b"more"].concat(), "header is wrong");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn mutations_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = file_of(&[("x", &[2]), ("y", &[3, 1])]);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(SINGLE), &bytes).unwrap();
        if let Ok(folder) = Folder::open(dir.path()) {
            for name in folder.names() {
                let tensor = folder.tensor(name).unwrap();
                prop_assert!(tensor.range.end <= bytes.len());
            }
        }
    }
}
