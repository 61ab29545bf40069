//! From flags to a puzzle.

use super::args::PuzzleArgs;
use crate::base::{Error, Result};
use crate::search::record::PuzzleOrigin;
use crate::strategy::AnyTask;
use crate::task::Puzzle;
use std::io::Read;
use std::sync::Arc;

/// Longest text that `--input` and `--prompt` take, in bytes.
const TEXT_LIMIT: u64 = 16 << 20;

/// The puzzle of a task that the flags ask for, and where it comes from.
pub fn puzzle(args: &PuzzleArgs, task: &AnyTask, seed: u64) -> Result<(Arc<dyn Puzzle>, PuzzleOrigin)> {
    let origin = match (&args.input, &args.data, &args.id) {
        (Some(input), ..) => PuzzleOrigin::Typed(text(input, "--input")?),
        (None, Some(path), id) => PuzzleOrigin::File { path: path.clone(), id: id.clone() },
        (None, None, _) => PuzzleOrigin::Generated { size: args.size.unwrap_or_else(|| task.default_size()), seed },
    };
    Ok((of(task, &origin)?, origin))
}

/// A task's puzzle from where it comes from.
pub fn of(task: &AnyTask, origin: &PuzzleOrigin) -> Result<Arc<dyn Puzzle>> {
    match origin {
        PuzzleOrigin::Generated { size, seed } => task.generate(*size, *seed),
        PuzzleOrigin::Typed(text) => task.parse(text),
        PuzzleOrigin::File { path, id } => {
            let puzzles = task.read_data(path)?;
            let (count, file) = (puzzles.len(), path.display());
            let Some(id) = id else {
                return puzzles
                    .into_iter()
                    .next()
                    .ok_or_else(|| Error::input(format!("{file}: there is no puzzle in it")));
            };
            let found = puzzles.into_iter().find(|p| p.id() == id);
            found.ok_or_else(|| Error::input(format!("{file}: no puzzle with id `{id}` among its {count}")))
        }
    }
}

/// A text given on the command line: itself, `@FILE`, or `-` for standard input.
pub fn text(given: &str, flag: &str) -> Result<String> {
    let (name, read) = match given.strip_prefix('@') {
        Some("") => return Err(Error::input(format!("{flag} @: name the file, as in @puzzle.txt"))),
        Some(path) => (
            path.to_string(),
            std::fs::File::open(path)
                .map_err(|e| Error::input(format!("{flag}: {path}: {e}")))
                .map(|f| Box::new(f) as Box<dyn Read>)?,
        ),
        None if given == "-" => ("standard input".to_string(), Box::new(std::io::stdin()) as Box<dyn Read>),
        None => return Ok(given.to_string()),
    };
    let mut bytes = Vec::new();
    read.take(TEXT_LIMIT + 1).read_to_end(&mut bytes).map_err(|e| Error::input(format!("{flag}: {name}: {e}")))?;
    if bytes.len() as u64 > TEXT_LIMIT {
        return Err(Error::input(format!("{flag}: {name} is longer than {} MiB", TEXT_LIMIT >> 20)));
    }
    let text = String::from_utf8(bytes).map_err(|e| {
        Error::input(format!("{flag}: {name} is not UTF-8 text (byte {})", e.utf8_error().valid_up_to()))
    })?;
    // Some editors begin a text with a mark of its byte order; it is no part of it.
    let text = text.strip_prefix('\u{feff}').map(str::to_string).unwrap_or(text);
    Ok(text.strip_suffix('\n').map(|t| t.strip_suffix('\r').unwrap_or(t).to_string()).unwrap_or(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_what_stands_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.txt");
        let check = |bytes: &[u8], expected: &str| {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(text(&format!("@{}", path.display()), "--input").unwrap(), expected);
        };
        check(b"3 1\n", "3 1");
        check(b"3 1\r\n", "3 1");
        check(b"\xef\xbb\xbf3 1", "3 1");
        check(b"", "");
        let refused = |given: &str| text(given, "--input").unwrap_err().message().to_string();
        assert!(refused("@").contains("name the file"), "{}", refused("@"));
    }
}
