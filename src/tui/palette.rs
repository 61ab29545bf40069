//! The command palette: names of the key table, and commands with an argument.

use super::keys::{Action, Group, TABLE};
use super::layout::Pane;
use super::theme::ThemeName;
use crate::search::export;
use crate::strategy::MOST_AT_ONCE;
use std::path::PathBuf;

/// What a line in the palette means.
#[derive(Debug, Clone, PartialEq)]
pub enum Line {
    Do(Action),
    SetBreadth(usize),
    SetTemperature(f32),
    /// `None` lifts the limit.
    SetTokens(Option<u64>),
    SetThoughts(Option<u64>),
    SetSeconds(Option<f64>),
    GoTo(u32),
    Theme(ThemeName),
    Show(Pane),
    Hide(Pane),
    /// The tree, into a file.
    Export(PathBuf),
    /// The screen, into a file.
    Picture(PathBuf),
    /// Replay: a moment in seconds, an event's number.
    Second(f64),
    Event(usize),
}

/// Commands with an argument: how they begin, what follows, what they do.
const WITH_ARGUMENT: &[(&str, &str, &str, Group)] = &[
    ("set breadth ", "N", "thoughts kept or proposed from now on", Group::Steer),
    ("set temperature ", "X", "sampling temperature from now on", Group::Steer),
    ("set tokens ", "N|none", "limit of tokens", Group::Steer),
    ("set thoughts ", "N|none", "limit of thoughts", Group::Steer),
    ("set seconds ", "X|none", "limit of seconds", Group::Steer),
    ("goto ", "N", "select thought N", Group::Move),
    ("export ", "FILE.svg|.html|.txt", "the tree as a file", Group::Look),
    ("picture ", "FILE.svg", "this screen as a file", Group::Look),
    ("theme ", "dark|light|none", "colours", Group::Program),
    ("show ", "PANE", "show a pane", Group::Panes),
    ("hide ", "PANE", "hide a pane", Group::Panes),
    ("second ", "X", "go to a moment", Group::Replay),
    ("event ", "N", "go to an event", Group::Replay),
];

/// A line the palette offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// What Tab writes.
    pub text: String,
    /// Shown after it: the argument that is to follow.
    pub argument: &'static str,
    pub about: &'static str,
    /// Whether it can be run as it stands.
    pub whole: bool,
}

/// Lines that fit what is typed: those that begin like it first, then those that contain it.
pub fn offers(typed: &str, groups: &[Group], ended: bool) -> Vec<Offer> {
    let typed = typed.trim_start().to_lowercase();
    let mut all: Vec<Offer> = TABLE
        .iter()
        .filter(|entry| groups.contains(&entry.group) || (ended && entry.group == Group::End))
        .map(|entry| Offer { text: entry.name.into(), argument: "", about: entry.about, whole: true })
        .collect();
    for (begin, argument, about, group) in WITH_ARGUMENT {
        if !groups.contains(group) {
            continue;
        }
        all.push(Offer { text: (*begin).into(), argument, about, whole: false });
        let words: Vec<&str> = match *begin {
            "theme " => vec!["dark", "light", "none"],
            "show " | "hide " => Pane::ALL.iter().map(|p| p.title()).collect(),
            _ => continue,
        };
        if typed.starts_with(begin.trim_end()) {
            all.extend(words.iter().map(|word| Offer {
                text: format!("{begin}{}", word.to_lowercase()),
                argument: "",
                about,
                whole: true,
            }));
        }
    }
    let (mut first, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|o| o.text.starts_with(&typed));
    first.sort_by_key(|o| (!o.whole, o.text.len()));
    let typed_argument = WITH_ARGUMENT.iter().find(|(begin, ..)| typed.starts_with(begin));
    if let (true, Some((begin, argument, about, _))) = (first.is_empty(), typed_argument) {
        first.push(Offer { text: (*begin).into(), argument, about, whole: false });
    }
    first.extend(rest.into_iter().filter(|o| !typed.is_empty() && o.text.contains(&typed)));
    first
}

/// Reads a line. The message says what is wrong with it.
pub fn parse(line: &str, groups: &[Group], ended: bool) -> Result<Line, String> {
    let line = line.trim();
    let words: Vec<&str> = line.split_whitespace().collect();
    let number =
        |text: &str, what: &str| text.parse::<u64>().map_err(|_| format!("{what} is a whole number, not `{text}`"));
    let real = |text: &str, what: &str| {
        let value = text.parse::<f64>().ok().filter(|v| v.is_finite() && *v >= 0.0);
        value.ok_or_else(|| format!("{what} is a number from 0 on, not `{text}`"))
    };
    let pane = |text: &str| {
        let found = Pane::ALL.into_iter().find(|p| p.title().eq_ignore_ascii_case(text));
        found.ok_or_else(|| format!("there is no pane `{text}`"))
    };
    let steer = groups.contains(&Group::Steer);
    let replay = groups.contains(&Group::Replay);
    let read = match words.as_slice() {
        ["set", "breadth", n] if steer => {
            Line::SetBreadth(number(n, "breadth")?.clamp(1, MOST_AT_ONCE as u64) as usize)
        }
        ["set", "temperature", x] if steer => Line::SetTemperature(real(x, "temperature")? as f32),
        ["set", "tokens", "none"] if steer => Line::SetTokens(None),
        ["set", "tokens", n] if steer => Line::SetTokens(Some(number(n, "tokens")?)),
        ["set", "thoughts", "none"] if steer => Line::SetThoughts(None),
        ["set", "thoughts", n] if steer => Line::SetThoughts(Some(number(n, "thoughts")?)),
        ["set", "seconds", "none"] if steer => Line::SetSeconds(None),
        ["set", "seconds", x] if steer => Line::SetSeconds(Some(real(x, "seconds")?)),
        ["goto", n] => {
            let digits = n.trim_start_matches('#');
            Line::GoTo(digits.parse().map_err(|_| format!("there is no thought `{n}`"))?)
        }
        ["export", ..] if words.len() > 1 => {
            // A file's name may hold spaces.
            let name = PathBuf::from(line["export".len()..].trim());
            export::Form::of(&name).map_err(|e| e.message().to_string())?;
            Line::Export(name)
        }
        ["picture", ..] if words.len() > 1 => {
            let name = PathBuf::from(line["picture".len()..].trim());
            match export::Form::of(&name) {
                Ok(export::Form::Svg) => Line::Picture(name),
                _ => return Err("a picture of the screen is an SVG file; let its name end in .svg".into()),
            }
        }
        ["theme", name] => Line::Theme(name.parse().map_err(|e: crate::base::Error| e.message().to_string())?),
        ["show", name] => Line::Show(pane(name)?),
        ["hide", name] => Line::Hide(pane(name)?),
        ["second", x] if replay => Line::Second(real(x, "second")?),
        ["event", n] if replay => Line::Event(number(n, "event")? as usize),
        [name] => {
            let known = |e: &&super::keys::Entry| {
                e.name == *name && (groups.contains(&e.group) || (ended && e.group == Group::End))
            };
            match TABLE.iter().find(known) {
                Some(entry) => Line::Do(entry.action),
                None => return Err(unknown(line)),
            }
        }
        _ => return Err(unknown(line)),
    };
    Ok(read)
}

fn unknown(line: &str) -> String {
    let names = TABLE.iter().map(|e| e.name).chain(WITH_ARGUMENT.iter().map(|w| w.0.trim_end()));
    let near = names.max_by(|a, b| strsim::jaro_winkler(a, line).total_cmp(&strsim::jaro_winkler(b, line)));
    format!("no command `{line}` here (nearest: `{}`)", near.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::super::keys::{REPLAY_GROUPS, RUN_GROUPS};
    use super::*;

    #[test]
    fn lines_are_read_or_refused_with_the_nearest_name() {
        let check = |line: &str, expected: Line| assert_eq!(parse(line, RUN_GROUPS, false), Ok(expected), "{line}");
        check("pause", Line::Do(Action::Pause));
        check(" set  breadth 5 ", Line::SetBreadth(5));
        check("set temperature 0.7", Line::SetTemperature(0.7));
        check("set tokens none", Line::SetTokens(None));
        check("goto #12", Line::GoTo(12));
        check("hide log", Line::Hide(Pane::Log));
        check("theme light", Line::Theme(ThemeName::Light));
        check("export my tree.svg", Line::Export("my tree.svg".into()));
        for (line, part) in [
            ("puase", "nearest: `pause`"),
            ("set breadth x", "whole number"),
            ("set temperature NaN", "from 0 on"),
            ("set temperature -1", "from 0 on"),
            ("export tree", ".svg, .html or .txt"),
            ("picture a.txt", "end in .svg"),
            ("event 3", "no command"),
            ("again", "no command"),
            ("", "no command"),
        ] {
            let message = parse(line, RUN_GROUPS, false).unwrap_err();
            assert!(message.contains(part), "{line}: {message}");
        }
        assert_eq!(parse("event 3", REPLAY_GROUPS, false), Ok(Line::Event(3)));
        assert_eq!(parse("again", RUN_GROUPS, true), Ok(Line::Do(Action::Again)));
    }

    #[test]
    fn offers_begin_like_what_is_typed_first() {
        let texts = |typed: &str| offers(typed, RUN_GROUPS, false).into_iter().map(|o| o.text).collect::<Vec<_>>();
        assert_eq!(texts("pru")[..2], ["prune", "pruned"]);
        assert!(texts("set ").contains(&"set breadth ".to_string()));
        assert_eq!(texts("set breadth 12"), ["set breadth "]);
        assert_eq!(texts("theme l"), ["theme light"]);
        assert!(texts("zzz").is_empty());
    }
}
