//! Where tests find what is not part of the project. A test whose files are missing says so and passes.

use std::path::{Path, PathBuf};

/// The folder of shared cases and data: `TOTARA_SHARED`, else `shared` beside the project or one level further up.
pub fn shared() -> Option<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = std::env::var_os("TOTARA_SHARED")
        .map(PathBuf::from)
        .into_iter()
        .chain([manifest.join("../shared"), manifest.join("../../shared")])
        .find(|p| p.join("cases").is_dir());
    if found.is_none() {
        eprintln!("skipped: no shared folder (set TOTARA_SHARED)");
    }
    found
}

/// The default model's file: `TOTARA_MODEL`, else the cache. Missing, the test is skipped, or fails under
/// `TOTARA_REQUIRE_MODEL=1`.
pub fn model() -> Option<PathBuf> {
    const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
    let home = std::env::var_os("TOTARA_CACHE").map(PathBuf::from).or_else(|| {
        let home = std::env::var_os("HOME")?;
        Some(Path::new(&home).join(".cache/totara"))
    });
    let found = std::env::var_os("TOTARA_MODEL")
        .map(PathBuf::from)
        .into_iter()
        .chain(home.map(|h| h.join("models").join(FILE)))
        .find(|p| p.is_file());
    if found.is_none() {
        assert!(std::env::var_os("TOTARA_REQUIRE_MODEL").is_none(), "no default model (set TOTARA_MODEL)");
        eprintln!("skipped: no default model (set TOTARA_MODEL)");
    }
    found
}
