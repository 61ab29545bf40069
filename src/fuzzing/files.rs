//! Files: models, records, results. Those that are mapped are written into a folder of the thread's own first.

use crate::batch::results::{self, Line};
use crate::model::gguf::Gguf;
use crate::model::safetensors::{Folder, INDEX, SINGLE};
use crate::model::tokenizer::{Special, Tokenizer};
use crate::model::weights::Tensors;
use crate::search::record;
use crate::search::trace;
use std::fs;
use std::path::PathBuf;

/// A folder for this thread's files; removed with the thread.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let name = format!("totara-fuzz-{}-{:?}", std::process::id(), std::thread::current().id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a scratch folder");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

thread_local! {
    static SCRATCH: Scratch = Scratch::new();
}

/// Writes a file of that name and gives its path.
pub(super) fn written(name: &str, bytes: &[u8]) -> PathBuf {
    SCRATCH.with(|scratch| {
        let path = scratch.0.join(name);
        fs::write(&path, bytes).expect("a scratch file");
        path
    })
}

/// A GGUF file, all the way up: header, description, weights, tokenizer, template.
pub fn gguf(bytes: &[u8]) {
    let path = written("model.gguf", bytes);
    let Ok(file) = Gguf::open(&path) else { return };
    for tensor in file.tensors() {
        assert!(tensor.range.end <= bytes.len(), "a tensor lies inside the file");
    }
    let _ = crate::model::info(&path);
    let Ok(model) = crate::model::open(&path.display().to_string(), &Default::default()) else { return };
    let ids = model.tokenizer.encode("a b\u{e9}12 <s>", Special::Text);
    assert!(ids.iter().all(|&id| (id as usize) < model.tokenizer.vocab_len()), "ids of the vocabulary");
    let _ = model.tokenizer.decode(&ids);
}

/// The file of a safetensors folder, then its index: the first byte says which.
pub fn safetensors(bytes: &[u8]) {
    let (index, bytes) = bytes.split_first().map_or((false, bytes), |(first, rest)| (first % 4 == 3, rest));
    let path = written(if index { INDEX } else { SINGLE }, bytes);
    let folder = path.parent().expect("a folder").to_path_buf();
    if let Ok(read) = Folder::open(&folder) {
        for name in read.names() {
            let tensor = read.tensor(name).expect("a tensor that the folder names");
            assert!(index || tensor.range.end <= bytes.len(), "a tensor lies inside the file");
        }
    }
    if index {
        fs::remove_file(path).expect("a scratch file");
    }
}

/// A vocabulary as Transformers saves it, used if it is accepted.
pub fn tokenizer_json(bytes: &[u8]) {
    let path = written("tokenizer.json", bytes);
    let Ok(tokenizer) = Tokenizer::from_folder(path.parent().expect("a folder"), Some(0), &[0]) else { return };
    for text in ["a b 12 \u{1f600} <s>", "", "\u{2581}ab<0x41>\n\n"] {
        for special in [Special::Text, Special::Parse] {
            let ids = tokenizer.encode(text, special);
            let _ = tokenizer.decode(&ids);
        }
    }
}

/// A record of a run: what is read can be replayed, shown and taken up.
pub fn record(bytes: &[u8]) {
    let Ok(read) = record::parse("r.jsonl".into(), bytes) else { return };
    let whole = record::whole_steps(&read.events);
    assert!(whole <= read.events.len());
    let _ = read.outcome();
    let Ok(tree) = read.tree() else { return };
    let shown = trace::render(&tree, false);
    assert!(!shown.chars().any(|c| c.is_control() && c != '\n'), "a tree is shown without control characters");
    for event in &read.events {
        let line = serde_json::to_string(event).expect("an event is written");
        let again: crate::search::event::Event = serde_json::from_str(&line).expect("a written event is read");
        assert_eq!(serde_json::to_string(&again).expect("an event is written"), line);
    }
}

/// A file of results: whole rows, each key once, and a torn end that is the rest.
pub fn results(bytes: &[u8]) {
    let lines = results::scan(bytes);
    let Ok(contents) = results::parse("results.jsonl".as_ref(), bytes) else {
        assert!(lines.iter().any(|line| matches!(line, Line::Bad { .. })), "a refused file has a bad line");
        return;
    };
    assert_eq!(contents.len as usize + contents.torn, bytes.len());
    let keys: std::collections::BTreeSet<_> = contents.rows.iter().map(|row| row.key()).collect();
    assert_eq!(keys.len(), contents.rows.len(), "each key once");
    let again = results::parse("results.jsonl".as_ref(), &bytes[..contents.len as usize]).expect("whole rows");
    assert_eq!((again.rows.len(), again.torn), (contents.rows.len(), 0), "a mended file is whole");
}
