//! The user's own keys: `keys.yaml` in the configuration folder, a map from the names of the command palette to keys.
//!
//! ```yaml
//! prune: d delete
//! half-down: ctrl-d pagedown
//! ```
//!
//! What cannot be meant is refused before the screen opens: a name or key that is not known, a key that would mean two
//! things in one place, a name given twice.

use crate::base::text::sanitize_line;
use crate::base::{Error, Result};
use crate::tui;
use etcetera::BaseStrategy;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Bytes that the file may have.
const LIMIT: u64 = 64 << 10;

/// Names with their keys, as the user's file says; none where there is no such file.
///
/// # Errors
/// The file cannot be read or understood; the message names it.
pub fn read() -> Result<Vec<(String, String)>> {
    let Some(path) = file() else { return Ok(Vec::new()) };
    match path.symlink_metadata() {
        Err(_) => Ok(Vec::new()),
        Ok(_) => read_file(&path).map_err(|e| e.context(sanitize_line(&path.display().to_string()))),
    }
}

/// Where the file is looked for: `TOTARA_CONFIG`, or the platform's own folder.
pub fn file() -> Option<PathBuf> {
    let folder = match std::env::var_os("TOTARA_CONFIG").filter(|folder| !folder.is_empty()) {
        Some(folder) => folder.into(),
        None => etcetera::choose_base_strategy().ok()?.config_dir().join("totara"),
    };
    Some(folder.join("keys.yaml"))
}

fn read_file(path: &Path) -> Result<Vec<(String, String)>> {
    let meta = path.metadata().map_err(|e| Error::input(e.to_string()))?;
    if !meta.is_file() || meta.len() > LIMIT {
        return Err(Error::input(format!("this is no file of at most {} KiB", LIMIT >> 10)));
    }
    let text = std::fs::read_to_string(path).map_err(|e| Error::input(e.to_string()))?;
    parse(&text)
}

fn parse(text: &str) -> Result<Vec<(String, String)>> {
    // A file that is empty, or all comments, changes nothing.
    if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
        return Ok(Vec::new());
    }
    let keys: BTreeMap<String, String> = serde_yaml::from_str(text).map_err(|e| {
        Error::input(format!("{e}; write a name of the command palette and its keys, such as `prune: d delete`"))
    })?;
    let keys: Vec<_> = keys.into_iter().collect();
    tui::check_keys(&keys)?;
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_and_what_cannot_be_meant_is_refused() {
        let read = |text: &str| parse(text).map_err(|e| e.message().to_string());
        let pair = |name: &str, keys: &str| (name.to_string(), keys.to_string());
        assert_eq!(
            read("# mine\nprune: d delete\ncopy: y\nzoom: 'Z'\n"),
            Ok(vec![pair("copy", "y"), pair("prune", "d delete"), pair("zoom", "Z")])
        );
        assert_eq!(read("# nothing yet\n"), Ok(Vec::new()));
        let refused = |text: &str, part: &str| {
            let message = read(text).unwrap_err();
            assert!(message.contains(part), "{text}: {message}");
        };
        refused("prnue: x", "nearest: `prune`");
        refused("prune: hyper-x", "is not a key");
        refused("prune: j", "both");
        refused("prune: d\nprune: x", "line 2");
        refused("prune: [d", "such as `prune: d delete`");
        refused("- prune", "such as `prune: d delete`");
    }
}
