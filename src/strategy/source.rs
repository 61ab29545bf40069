//! Where a strategy's prompts come from: the text in the file itself, a file beside it, or a built-in one.
//!
//! A prompt path may not leave the strategy's folder, by `..`, by an absolute path or through a link: a strategy from
//! elsewhere must not be able to send other files of the user to a model.

use super::{PromptSource, library};
use crate::base::nearest::hint;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

const MAX_BYTES: u64 = 1 << 20;

/// Where a strategy was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Home {
    /// Embedded in the binary: only built-in prompts.
    BuiltIn,
    /// A file in this folder.
    Folder(PathBuf),
}

/// The folder that a file's own paths are taken from.
pub fn home_of(path: &Path) -> Home {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Home::Folder(folder.to_path_buf())
}

/// Reads a prompt by its path in the strategy.
pub fn prompt(path: &str, home: &Home) -> Result<PromptSource, String> {
    if let Some((origin, text)) = file(path, home).map_err(|what| format!("prompt {what}"))? {
        return Ok(PromptSource { origin, text });
    }
    let name = path.trim_start_matches("./");
    match library::prompt(name) {
        Some(text) => Ok(PromptSource { origin: format!("built-in {name}"), text: text.to_string() }),
        None => Err(format!(
            "there is no prompt file `{path}`{}, and no built-in one of that name{}; a text of your own stands after `prompt: |`",
            match home {
                Home::Folder(folder) => format!(" in {}", folder.display()),
                Home::BuiltIn => String::new(),
            },
            hint(name, library::prompt_names())
        )),
    }
}

/// Reads a file by its path in the strategy's folder: its name for messages, and its text. `None` where there is none.
///
/// # Errors
/// The path leaves the folder, or the file cannot be read.
pub fn file(path: &str, home: &Home) -> Result<Option<(String, String)>, String> {
    let relative = Path::new(path);
    let inside = relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if !inside || path.contains('\\') {
        return Err(format!("path `{path}` leaves the strategy's folder; give a path inside it"));
    }
    let Home::Folder(folder) = home else { return Ok(None) };
    let file = folder.join(relative);
    if file.symlink_metadata().is_err() {
        return Ok(None);
    }
    let read = read_inside(&file, folder).map_err(|what| format!("file {}: {what}", file.display()))?;
    Ok(Some((read.origin, read.text)))
}

fn read_inside(file: &Path, folder: &Path) -> Result<PromptSource, String> {
    let real = file.canonicalize().map_err(|e| e.to_string())?;
    let root = folder.canonicalize().map_err(|e| e.to_string())?;
    if !real.starts_with(&root) {
        return Err("is a link that leaves the strategy's folder; copy the file there".into());
    }
    let text = read_text(&real)?;
    Ok(PromptSource { origin: file.display().to_string(), text })
}

/// A regular UTF-8 file of at most 1 MiB, without a byte-order mark and with plain line ends.
pub fn read_text(path: &Path) -> Result<String, String> {
    let meta = path.metadata().map_err(|e| e.to_string())?;
    if !meta.is_file() {
        return Err("is no regular file".into());
    }
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(|e| e.to_string())?;
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err("is larger than 1 MiB".into());
    }
    let text = String::from_utf8(bytes).map_err(|e| {
        let line = 1 + e.as_bytes()[..e.utf8_error().valid_up_to()].iter().filter(|&&b| b == b'\n').count();
        format!("line {line} is not UTF-8 text; save the file as UTF-8")
    })?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(&text).replace("\r\n", "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_stay_inside_the_strategy_folder() {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("mine");
        std::fs::create_dir_all(folder.join("prompts")).unwrap();
        std::fs::write(outer.path().join("secret.txt"), "secret").unwrap();
        std::fs::write(folder.join("prompts/p.txt"), "\u{feff}hello\r\nyou").unwrap();
        std::fs::write(folder.join("bad.txt"), b"ok\n\xff").unwrap();
        let home = Home::Folder(folder.clone());
        assert_eq!(prompt("prompts/p.txt", &home).unwrap().text, "hello\nyou");
        assert_eq!(prompt("./prompts/p.txt", &home).unwrap().text, "hello\nyou");
        let refused = |path: &str, part: &str| {
            let message = prompt(path, &home).unwrap_err();
            assert!(message.contains(part), "{message}");
        };
        refused("../secret.txt", "leaves the strategy's folder");
        refused(&outer.path().join("secret.txt").display().to_string(), "leaves the strategy's folder");
        refused("prompts/../../secret.txt", "leaves the strategy's folder");
        refused("bad.txt", "line 2 is not UTF-8");
        refused("prompts", "no regular file");
        refused("nothing.txt", "no prompt file `nothing.txt`");
        refused("prompts/sorting/stp.txt", "did you mean `prompts/sorting/step.txt`?");
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(outer.path().join("secret.txt"), folder.join("link.txt")).unwrap();
            refused("link.txt", "a link that leaves");
            std::os::unix::fs::symlink("nowhere", folder.join("dangling.txt")).unwrap();
            refused("dangling.txt", "prompt file");
        }
    }

    #[test]
    fn built_in_prompts_work_from_anywhere() {
        let folder = tempfile::tempdir().unwrap();
        for home in [Home::BuiltIn, Home::Folder(folder.path().into())] {
            let source = prompt("prompts/sorting/step.txt", &home).unwrap();
            assert_eq!(source.origin, "built-in prompts/sorting/step.txt");
        }
    }
}
