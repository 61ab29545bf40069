//! What tests share, those of the library and those of the built program: where the shared cases and the default model
//! lie, or a printed reason for skipping. Uses nothing of the library, so that both can include it.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// The folder of shared cases and data: `TOTARA_SHARED`, or the one beside the project.
pub fn shared(test: &str) -> Option<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let named = std::env::var_os("TOTARA_SHARED").map(PathBuf::from);
    let places = named.into_iter().chain([manifest.join("../shared"), manifest.join("../../shared")]);
    let found = places.into_iter().find(|p| p.join("cases").is_dir());
    if found.is_none() {
        println!("skipped {test}: no folder ../shared with cases and data beside the project");
    }
    found
}

/// The default model's file: `TOTARA_MODEL`, or where `totara model pull` puts it.
pub fn model() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = folder("TOTARA_CACHE")
        .or_else(|| folder("XDG_CACHE_HOME").map(|d| d.join("totara")))
        .or_else(|| folder("HOME").map(|d| d.join(".cache/totara")));
    let pulled = cache.map(|d| d.join("models/SmolLM2-135M-Instruct.Q4_1.gguf"));
    folder("TOTARA_MODEL").or(pulled).filter(|p| p.is_file())
}

/// The default model's file, or a printed reason for skipping; under TOTARA_REQUIRE_MODEL its absence is a failure.
pub fn real_model(test: &str) -> Option<PathBuf> {
    let found = model();
    if found.is_none() {
        assert!(
            std::env::var_os("TOTARA_REQUIRE_MODEL").is_none(),
            "{test} needs the default model: run `totara model pull`, or set TOTARA_MODEL"
        );
        println!("skipped {test}: the default model is not here (`totara model pull` gets it)");
    }
    found
}

/// Processor time of this thread: what a test bounds where it says that something is quick. Other work on the machine, of which
/// there may be any amount, is not counted.
pub fn thread_time() -> Duration {
    let mut time = std::mem::MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: the structure is ours, and zero is a time.
    let time = unsafe {
        assert_eq!(libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, time.as_mut_ptr()), 0);
        time.assume_init()
    };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
