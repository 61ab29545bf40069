//! From the words of the command line to [`Cli`], and what is said of words that do not fit.

use super::args::Cli;
use super::out;
use clap::error::{ContextKind, ErrorKind};
use clap::{Command, CommandFactory, FromArgMatches};
use std::borrow::Cow;
use std::error::Error as _;
use std::ffi::OsString;
use std::num::{IntErrorKind, ParseIntError};
use std::process::ExitCode;

/// The command line, or the exit code where there is nothing to run: 0 after help and version, 2 after a mistake, 4 where
/// help could not be written.
pub fn parse() -> Result<Cli, ExitCode> {
    let matches = signed(Cli::command()).try_get_matches();
    matches.and_then(|matches| Cli::from_arg_matches(&matches)).map_err(|error| told(&error))
}

/// Every value of a flag may begin with a minus sign before a digit: `--size -3` is about its range, not an unknown flag.
fn signed(command: Command) -> Command {
    let command = command.mut_args(|arg| {
        let takes_value = arg.get_action().takes_values() && !arg.is_positional();
        if takes_value { arg.allow_negative_numbers(true) } else { arg }
    });
    command.mut_subcommands(signed)
}

fn told(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // Help is a result: a disk that is full must not pass for success.
        return match out::piece(&error.render().to_string()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                out::tell(&format!("totara: {e}"));
                ExitCode::from(e.exit_code())
            }
        };
    }
    match number(error).or_else(|| not_unicode(error, std::env::args_os().skip(1))) {
        Some(text) => out::tell(&text),
        None => {
            // Words of the command line may hold anything; with colours only where there is nothing to take out.
            let plain = error.render().to_string();
            match crate::base::text::sanitize(&plain) {
                // Nothing can be done where even standard error is gone.
                Cow::Borrowed(_) => drop(error.print()),
                Cow::Owned(safe) => out::tell(safe.trim_end()),
            }
        }
    }
    ExitCode::from(2)
}

/// What is wrong with a number, in words that say what is taken instead.
fn number(error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::ValueValidation {
        return None;
    }
    let why = error.source()?.downcast_ref::<ParseIntError>()?;
    let (argument, value) = (error.get(ContextKind::InvalidArg)?, error.get(ContextKind::InvalidValue)?);
    let value = value.to_string();
    let digits = value.strip_prefix(['-', '+']).unwrap_or(&value);
    let whole = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let wanted = match why.kind() {
        IntErrorKind::PosOverflow => "is too large",
        _ if whole && value.starts_with('-') => "is below 0; a whole number from 0 up is wanted",
        _ => "is no whole number",
    };
    let value = crate::base::text::sanitize_line(&value);
    Some(format!("error: {argument}: {value} {wanted}\n\nFor more information, try '--help'."))
}

/// Which word is not text: clap only says that there is one.
fn not_unicode(error: &clap::Error, words: impl Iterator<Item = OsString>) -> Option<String> {
    if error.kind() != ErrorKind::InvalidUtf8 {
        return None;
    }
    let word = words.into_iter().find(|word| word.to_str().is_none())?;
    let word = crate::base::text::sanitize_line(&word.to_string_lossy());
    Some(format!(
        "error: `{word}` is not UTF-8 text: rename the file, or mend the word\n\nFor more information, try '--help'."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(args: &[&str]) -> clap::Error {
        let matches = signed(Cli::command()).try_get_matches_from(args);
        matches.and_then(|matches| Cli::from_arg_matches(&matches).map(drop)).unwrap_err()
    }

    #[test]
    fn the_flags_fit_together() {
        signed(Cli::command()).debug_assert();
    }

    #[test]
    fn every_word_and_flag_has_a_help_text() {
        fn without(command: &Command) -> Vec<String> {
            let bare = command.get_arguments().filter(|arg| arg.get_help().is_none());
            let bare = bare.map(|arg| format!("{} {}", command.get_name(), arg.get_id()));
            bare.chain(command.get_subcommands().flat_map(without)).collect()
        }
        assert_eq!(without(&signed(Cli::command())), Vec::<String>::new());
    }

    #[test]
    #[cfg(unix)]
    fn a_word_that_is_no_text_is_named() {
        use std::os::unix::ffi::OsStringExt;
        let words =
            || ["totara", "replay"].map(OsString::from).into_iter().chain([OsString::from_vec(b"a\xffb".into())]);
        let matches = signed(Cli::command()).try_get_matches_from(words());
        let told = not_unicode(&matches.unwrap_err(), words()).unwrap();
        assert!(told.contains("`a\u{fffd}b` is not UTF-8"), "{told}");
    }

    #[test]
    fn a_number_out_of_range_says_what_is_wanted() {
        let check = |args: &[&str], part: &str| {
            let told = number(&error(args)).unwrap_or_else(|| error(args).to_string());
            assert!(told.contains(part), "{args:?}: {told}");
        };
        check(&["totara", "solve", "--size", "-3"], "--size <N>: -3 is below 0");
        check(&["totara", "solve", "--seed", "-1"], "--seed <N>: -1 is below 0");
        check(&["totara", "solve", "--max-tokens", "x"], "--max-tokens <N>: x is no whole number");
        check(&["totara", "solve", "--size", "1.5"], "1.5 is no whole number");
        check(&["totara", "solve", "--size", "99999999999999999999999"], "is too large");
        check(&["totara", "solve", "--threads", "-2"], "-2 is not in 1..=1024");
        check(&["totara", "complete", "--prompt", "x", "--max-tokens", "-5"], "-5 is below 0");
        // Amounts that would be asked of the memory before anything looks at them.
        let huge = "18446744073709551615";
        check(&["totara", "complete", "--prompt", "x", "-n", huge], "is not in 1..=10000");
        let decode = ["prompt", "branches", "own", "steps"].map(|name| ("decode", name));
        let offload =
            ["prompt", "branches", "own", "steps", "windows", "window", "score"].map(|name| ("offload", name));
        let products = ["rows", "cols", "counts"].map(|name| ("products", name));
        let rest =
            [("perplexity", "windows"), ("perplexity", "window"), ("trace", "prompt"), ("attention", "graph-layers")];
        for (bench, flag) in decode.into_iter().chain(offload).chain(products).chain(rest) {
            check(&["totara", "bench", bench, &format!("--{flag}"), huge], "is not in ");
        }
    }
}
