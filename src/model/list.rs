//! Which models are there: in the cache, in a folder of the user's, in the Hugging Face cache.
//!
//! Only headers are read. A bad file is a row that says why; it never keeps the others from being shown.

use super::info::ModelInfo;
use super::store;
use serde::Serialize;
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders inside each other that are looked into.
const MAX_DEPTH: usize = 4;
/// Entries that are looked at in all, so that a home folder given by mistake ends.
const MAX_ENTRIES: usize = 50_000;

/// A row of the list.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entry {
    /// What `--model` takes.
    pub name: String,
    pub path: Option<PathBuf>,
    #[serde(flatten)]
    pub state: State,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Info(Box<ModelInfo>),
    /// Why it cannot be used.
    Bad(String),
    /// Can be fetched; bytes.
    NotFetched(u64),
}

/// Everything found, the fetchable models first.
pub fn list(model_dir: Option<&Path>) -> Vec<Entry> {
    let cache = store::models_dir().ok();
    list_in(cache.as_deref(), model_dir, hugging_face_cache().as_deref())
}

fn list_in(cache: Option<&Path>, model_dir: Option<&Path>, hub: Option<&Path>) -> Vec<Entry> {
    let mut entries = Vec::new();
    for model in &store::KNOWN {
        let there = cache.and_then(|dir| store::fetched(model, dir));
        entries.push(match there {
            Some(path) => entry(model.name.to_string(), path),
            None => Entry { name: model.name.to_string(), path: None, state: State::NotFetched(model.bytes) },
        });
    }
    let mut seen: HashSet<PathBuf> = entries.iter().filter_map(|e| e.path.clone()).collect();
    for (root, is_hub) in [(cache, false), (model_dir, false), (hub, true)] {
        let Some(root) = root else { continue };
        let mut found = Vec::new();
        find(root, MAX_DEPTH, &mut MAX_ENTRIES.clone(), &mut found);
        found.sort();
        for path in found {
            if seen.insert(path.clone()) {
                let name = if is_hub { hub_name(root, &path) } else { plain_name(root, &path) };
                entries.push(entry(name, path));
            }
        }
    }
    entries
}

fn entry(name: String, path: PathBuf) -> Entry {
    let state = match super::info(&path) {
        Ok(info) => State::Info(Box::new(ModelInfo { name: name.clone(), ..info })),
        Err(e) => State::Bad(e.message().to_string()),
    };
    Entry { name, path: Some(path), state }
}

/// Whether a folder is a model as Transformers saves it.
pub fn is_model_folder(path: &Path) -> bool {
    path.join("config.json").is_file()
        && (path.join(super::safetensors::SINGLE).exists() || path.join(super::safetensors::INDEX).exists())
}

/// GGUF files and model folders below `dir`.
fn find(dir: &Path, depth: usize, left: &mut usize, found: &mut Vec<PathBuf>) {
    if is_model_folder(dir) {
        found.push(dir.to_path_buf());
    }
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if *left == 0 {
            return;
        }
        *left -= 1;
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        // Follows links: the Hugging Face cache is made of them. Depth bounds loops.
        match fs::metadata(&path) {
            Ok(meta) if meta.is_dir() && depth > 0 => find(&path, depth - 1, left, found),
            Ok(meta) if meta.is_file() && path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")) => {
                found.push(path);
            }
            _ => {}
        }
    }
}

fn plain_name(root: &Path, path: &Path) -> String {
    let below = path.strip_prefix(root).unwrap_or(path);
    let below = if below.as_os_str().is_empty() { path.file_name().map(Path::new).unwrap_or(path) } else { below };
    let name = below.to_string_lossy().into_owned();
    name.strip_suffix(".gguf").map_or(name.clone(), str::to_string)
}

/// `owner/repo/file` of `models--owner--repo/snapshots/REVISION/file`.
fn hub_name(root: &Path, path: &Path) -> String {
    let below = path.strip_prefix(root).unwrap_or(path);
    let mut parts = below.components().map(|c| c.as_os_str().to_string_lossy().into_owned());
    let repo = parts.next().unwrap_or_default();
    let repo = repo.strip_prefix("models--").unwrap_or(&repo).replacen("--", "/", 1);
    let rest: Vec<String> = parts.skip(2).collect();
    if rest.is_empty() { repo } else { format!("{repo}/{}", rest.join("/")) }
}

fn hugging_face_cache() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    variable("HF_HUB_CACHE")
        .or_else(|| variable("HF_HOME").map(|h| h.join("hub")))
        .or_else(|| etcetera::home_dir().ok().map(|h| h.join(".cache/huggingface/hub")))
}

/// The path of a listed model by its name, file name or stem, in any case.
pub fn by_name(name: &str, model_dir: Option<&Path>) -> Result<PathBuf, Vec<String>> {
    let wanted = name.to_ascii_lowercase();
    let entries = list(model_dir);
    let matches = |entry: &&Entry| {
        let file = entry.path.as_deref().and_then(Path::file_name).map(|f| f.to_string_lossy().to_ascii_lowercase());
        let file = file.unwrap_or_default();
        entry.name.to_ascii_lowercase() == wanted || file == wanted || file.strip_suffix(".gguf") == Some(&wanted)
    };
    let found = entries.iter().find(matches).and_then(|e| e.path.clone());
    found.ok_or_else(|| entries.into_iter().map(|e| e.name).collect())
}

#[cfg(test)]
mod tests;
