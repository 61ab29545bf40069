//! `hf:owner/repo/file`: fetches a file from the Hugging Face Hub into that library's own cache, or finds it there.

use super::Progress;
use crate::base::{Error, Result};
use hf_hub::HFClientSync;
use std::path::PathBuf;

/// `spec` is what follows `hf:`.
pub fn fetch(spec: &str, progress: &dyn Progress) -> Result<PathBuf> {
    let mut parts = spec.splitn(3, '/');
    let (owner, repo, file) = match (parts.next(), parts.next(), parts.next()) {
        (Some(owner), Some(repo), Some(file)) if !owner.is_empty() && !repo.is_empty() && !file.is_empty() => {
            (owner, repo, file)
        }
        _ => return Err(Error::input(format!("`hf:{spec}` is not of the form hf:owner/repo/file.gguf"))),
    };
    progress.say(&format!("fetching {file} of {owner}/{repo}, unless it is there already"));
    let wrong = |e: hf_hub::HFError| Error::fault(format!("hf:{spec}: {e}"));
    let client = HFClientSync::new().map_err(wrong)?;
    client.model(owner, repo).download_file().filename(file).send().map_err(wrong)
}
