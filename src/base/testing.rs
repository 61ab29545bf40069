//! What unit tests share: where the shared cases and the real model lie, or a printed reason for skipping.

use std::path::{Path, PathBuf};

/// The folder of shared cases and data beside the project.
pub fn shared(test: &str) -> Option<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let named = std::env::var_os("TOTARA_SHARED").map(PathBuf::from);
    let found = named.or_else(|| Some(manifest.join("../shared"))).filter(|p| p.join("cases").is_dir());
    if found.is_none() {
        println!("skipped {test}: no folder ../shared with cases and data beside the project");
    }
    found
}

/// The default model's file: `TOTARA_MODEL`, or where `totara model pull` puts it.
pub fn real_model(test: &str) -> Option<PathBuf> {
    let named = std::env::var_os("TOTARA_MODEL").map(PathBuf::from);
    let cache = std::env::var_os("TOTARA_CACHE")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("XDG_CACHE_HOME").map(|d| PathBuf::from(d).join("totara")))
        .or_else(|| std::env::var_os("HOME").map(|d| PathBuf::from(d).join(".cache/totara")));
    let pulled = cache.map(|d| d.join("models/SmolLM2-135M-Instruct.Q4_1.gguf"));
    let found = named.or(pulled).filter(|p| p.is_file());
    if found.is_none() {
        assert!(
            std::env::var_os("TOTARA_REQUIRE_MODEL").is_none(),
            "{test} needs the default model: run `totara model pull`, or set TOTARA_MODEL"
        );
        println!("skipped {test}: the default model is not here (`totara model pull` gets it)");
    }
    found
}
