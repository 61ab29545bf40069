//! What the keys do: one table, from which the key lookup, the help screen, the hints in the last line and the names in
//! the command palette are all made.
//!
//! Keys can be given anew (`ScreenOptions::keys`); a key that would then mean two things in one place is refused.

use crate::base::{Error, Result};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::collections::HashMap;

/// Everything a key, a click or a palette command can ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    Down,
    Up,
    Left,
    Right,
    Top,
    Bottom,
    HalfDown,
    HalfUp,
    PageDown,
    PageUp,
    ToggleFold,
    FoldBelow,
    UnfoldAll,
    TogglePruned,
    Follow,
    Best,
    Mark,
    Find,
    FindNext,
    FindPrevious,
    Copy,
    CopyPath,
    Export,
    NextPane,
    PreviousPane,
    Pane(u8),
    Zoom,
    HidePane,
    ShowPanes,
    Wider,
    Narrower,
    Pause,
    Step,
    Expand,
    Prune,
    Pin,
    Undo,
    Edit,
    Add,
    Rescore,
    Play,
    Forward,
    Back,
    LeapForward,
    LeapBack,
    Faster,
    Slower,
    Fork,
    Again,
    NextPuzzle,
    OtherStrategy,
    Look,
    Banner,
    Palette,
    Help,
    Theme,
    Redraw,
    Suspend,
    Quit,
}

/// Where a key holds. A pop-up's own group is asked first, then the screen's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Group {
    Move,
    Look,
    Panes,
    Steer,
    Replay,
    End,
    Program,
}

impl Group {
    pub const ALL: [Self; 7] =
        [Self::Move, Self::Look, Self::Panes, Self::Steer, Self::Replay, Self::End, Self::Program];

    pub fn title(self) -> &'static str {
        match self {
            Self::Move => "Move",
            Self::Look => "Look",
            Self::Panes => "Panes",
            Self::Steer => "Steer the search",
            Self::Replay => "Replay",
            Self::End => "After the end",
            Self::Program => "Program",
        }
    }
}

/// One line of the table.
pub struct Entry {
    pub action: Action,
    /// What the palette and a key file call it.
    pub name: &'static str,
    /// Keys, separated by spaces.
    pub keys: &'static str,
    pub group: Group,
    pub about: &'static str,
    /// A word for the last line; empty where it is not shown there.
    pub hint: &'static str,
}

const fn e(
    action: Action,
    name: &'static str,
    keys: &'static str,
    group: Group,
    about: &'static str,
    hint: &'static str,
) -> Entry {
    Entry { action, name, keys, group, about, hint }
}

/// The table. Order is the order of the help screen.
pub const TABLE: &[Entry] = &[
    e(Action::Down, "down", "j down", Group::Move, "next thought", ""),
    e(Action::Up, "up", "k up", Group::Move, "thought above", ""),
    e(Action::Left, "left", "h left", Group::Move, "fold, or go to the parent", ""),
    e(Action::Right, "right", "l right", Group::Move, "unfold, or go to the first child", ""),
    e(Action::Top, "top", "g home", Group::Move, "first", ""),
    e(Action::Bottom, "bottom", "G end", Group::Move, "last", ""),
    e(Action::HalfDown, "half-down", "ctrl-d", Group::Move, "half a page down", ""),
    e(Action::HalfUp, "half-up", "ctrl-u", Group::Move, "half a page up", ""),
    e(Action::PageDown, "page-down", "pagedown ctrl-f", Group::Move, "a page down", ""),
    e(Action::PageUp, "page-up", "pageup ctrl-b", Group::Move, "a page up", ""),
    e(Action::ToggleFold, "fold", "o", Group::Move, "fold or unfold", ""),
    e(Action::FoldBelow, "fold-below", "C", Group::Move, "fold the children, to see one level", ""),
    e(Action::UnfoldAll, "unfold-all", "O", Group::Move, "unfold everything", ""),
    e(Action::Follow, "follow", "f", Group::Look, "go with the search, with the best, or stay", "follow"),
    e(Action::Best, "best", "b", Group::Look, "go to the best thought", "best"),
    e(Action::Mark, "mark", "m", Group::Look, "mark; on a second thought: compare the two", ""),
    e(Action::Find, "find", "/", Group::Look, "search in the thoughts (#12 goes to thought 12)", "find"),
    e(Action::FindNext, "find-next", "n", Group::Look, "next match", ""),
    e(Action::FindPrevious, "find-previous", "N", Group::Look, "match before", ""),
    e(Action::TogglePruned, "pruned", "H", Group::Look, "hide or show pruned thoughts", ""),
    e(Action::Copy, "copy", "y", Group::Look, "copy the thought's text", ""),
    e(Action::CopyPath, "copy-path", "Y", Group::Look, "copy the text from the root to the thought", ""),
    e(Action::Export, "save-tree", "E", Group::Look, "write the tree into a file (svg, html, txt)", ""),
    e(Action::NextPane, "next-pane", "tab", Group::Panes, "next pane", ""),
    e(Action::PreviousPane, "previous-pane", "backtab", Group::Panes, "pane before", ""),
    e(Action::Pane(1), "pane-1", "1", Group::Panes, "Tree", ""),
    e(Action::Pane(2), "pane-2", "2", Group::Panes, "Thought", ""),
    e(Action::Pane(3), "pane-3", "3", Group::Panes, "Memory", ""),
    e(Action::Pane(4), "pane-4", "4", Group::Panes, "Speed", ""),
    e(Action::Pane(5), "pane-5", "5", Group::Panes, "Link", ""),
    e(Action::Pane(6), "pane-6", "6", Group::Panes, "Search", ""),
    e(Action::Pane(7), "pane-7", "7", Group::Panes, "Log", ""),
    e(Action::Zoom, "zoom", "z", Group::Panes, "one pane on the whole screen, and back", "zoom"),
    e(Action::HidePane, "hide", "-", Group::Panes, "hide this pane", ""),
    e(Action::ShowPanes, "show-all", "=", Group::Panes, "show all panes", ""),
    e(Action::Wider, "wider", "W", Group::Panes, "tree wider", ""),
    e(Action::Narrower, "narrower", "w", Group::Panes, "tree narrower", ""),
    e(Action::Pause, "pause", "space p", Group::Steer, "pause after this step, or go on", "pause"),
    e(Action::Step, "step", "s", Group::Steer, "one step, then pause", "step"),
    e(Action::Expand, "expand", "+ enter", Group::Steer, "expand this thought now", "expand"),
    e(Action::Prune, "prune", "x", Group::Steer, "prune this thought and all below it", "prune"),
    e(Action::Pin, "pin", "P", Group::Steer, "never prune this thought, or let it go", ""),
    e(Action::Undo, "undo", "u", Group::Steer, "undo the last steering act", "undo"),
    e(Action::Edit, "edit", "e", Group::Steer, "edit the thought's text", ""),
    e(Action::Add, "add", "a", Group::Steer, "add a thought of your own below this one", ""),
    e(Action::Rescore, "rescore", "r", Group::Steer, "score this thought again", ""),
    e(Action::Play, "play", "space p", Group::Replay, "play, or stop", "play"),
    e(Action::Forward, "forward", "] s", Group::Replay, "one event on", "step"),
    e(Action::Back, "back", "[", Group::Replay, "one event back", "back"),
    e(Action::LeapForward, "leap", "}", Group::Replay, "a tenth on", ""),
    e(Action::LeapBack, "leap-back", "{", Group::Replay, "a tenth back", ""),
    e(Action::Faster, "faster", ">", Group::Replay, "twice as fast", "faster"),
    e(Action::Slower, "slower", "<", Group::Replay, "half as fast", "slower"),
    e(Action::Fork, "fork", "F", Group::Replay, "go on from here as a live run, paused", "fork"),
    e(Action::Again, "again", "a enter", Group::End, "the same again", "again"),
    e(Action::NextPuzzle, "next", "n", Group::End, "next puzzle", "next puzzle"),
    e(Action::OtherStrategy, "other", "o", Group::End, "other strategy, puzzle or model", "other strategy"),
    e(Action::Look, "look", "esc l", Group::End, "close the banner and look at the tree", "look at the tree"),
    e(Action::Banner, "result", "B", Group::Program, "show the result again", ""),
    e(Action::Palette, "commands", ":", Group::Program, "type a command", "commands"),
    e(Action::Help, "help", "? f1", Group::Program, "this help", "help"),
    e(Action::Theme, "theme", "t", Group::Program, "dark, light or no colours", ""),
    e(Action::Redraw, "redraw", "ctrl-l", Group::Program, "draw everything anew", ""),
    e(Action::Suspend, "suspend", "ctrl-z", Group::Program, "to the shell; `fg` comes back", ""),
    e(Action::Quit, "quit", "q ctrl-c", Group::Program, "leave (asks while a search runs)", "quit"),
];

/// A key as the table writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    pub code: KeyCode,
    pub ctrl: bool,
}

impl Key {
    /// Shift is part of the character, so it is left out.
    pub fn of(event: &KeyEvent) -> Self {
        let code = match event.code {
            KeyCode::Tab if event.modifiers.contains(KeyModifiers::SHIFT) => KeyCode::BackTab,
            code => code,
        };
        Self { code, ctrl: event.modifiers.contains(KeyModifiers::CONTROL) }
    }

    fn parse(text: &str) -> Option<Self> {
        let (ctrl, name) = match text.strip_prefix("ctrl-") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let mut chars = name.chars();
        let code = match (chars.next(), chars.next()) {
            (Some(c), None) => KeyCode::Char(c),
            _ => match name {
                "space" => KeyCode::Char(' '),
                "enter" => KeyCode::Enter,
                "esc" => KeyCode::Esc,
                "tab" => KeyCode::Tab,
                "backtab" => KeyCode::BackTab,
                "up" => KeyCode::Up,
                "down" => KeyCode::Down,
                "left" => KeyCode::Left,
                "right" => KeyCode::Right,
                "home" => KeyCode::Home,
                "end" => KeyCode::End,
                "pageup" => KeyCode::PageUp,
                "pagedown" => KeyCode::PageDown,
                "delete" => KeyCode::Delete,
                "insert" => KeyCode::Insert,
                _ => KeyCode::F(name.strip_prefix('f')?.parse().ok().filter(|n| (1..=24).contains(n))?),
            },
        };
        Some(Self { code, ctrl })
    }
}

/// Whether these keys may be had instead of the table's.
///
/// # Errors
/// As [`KeyMap::new`].
pub fn check(changes: &[(String, String)]) -> Result<()> {
    KeyMap::new(changes).map(drop)
}

/// Which key does what, after the user's own choice.
#[derive(Debug, Clone)]
pub struct KeyMap {
    by_key: HashMap<(Group, Key), Action>,
    /// Keys of each line of the table, as text.
    texts: Vec<String>,
}

impl KeyMap {
    /// `changes`: names of the table with the keys they shall have instead, separated by spaces.
    ///
    /// # Errors
    /// A name or key that is not known, and a key that would mean two things in one place.
    pub fn new(changes: &[(String, String)]) -> Result<Self> {
        for (name, _) in changes {
            if !TABLE.iter().any(|entry| entry.name == name) {
                let near = TABLE
                    .iter()
                    .max_by(|a, b| strsim::jaro_winkler(a.name, name).total_cmp(&strsim::jaro_winkler(b.name, name)));
                let near = near.map_or("", |entry| entry.name);
                return Err(Error::input(format!("there is no action `{name}` (nearest: `{near}`)")));
            }
        }
        let mut by_key = HashMap::new();
        let mut texts = Vec::with_capacity(TABLE.len());
        for entry in TABLE {
            let text = changes.iter().rev().find(|(name, _)| name == entry.name).map_or(entry.keys, |(_, keys)| keys);
            texts.push(text.to_string());
            for word in text.split_whitespace() {
                let key = Key::parse(word).ok_or_else(|| {
                    Error::input(format!("`{word}` for `{}` is not a key (such as x, ctrl-x, f5, enter)", entry.name))
                })?;
                by_key.insert((entry.group, key), entry.action);
            }
        }
        let map = Self { by_key, texts };
        map.check()?;
        Ok(map)
    }

    /// The action of a key where these groups hold, the first group first.
    pub fn action(&self, key: Key, groups: &[Group]) -> Option<Action> {
        groups.iter().find_map(|group| self.by_key.get(&(*group, key)).copied())
    }

    /// Keys of an action as text, separated by spaces.
    pub fn keys(&self, action: Action) -> &str {
        TABLE.iter().position(|entry| entry.action == action).map_or("", |i| &self.texts[i])
    }

    /// The first key of an action, as a hint shows it.
    pub fn key(&self, action: Action) -> &str {
        self.keys(action).split_whitespace().next().unwrap_or("")
    }

    fn check(&self) -> Result<()> {
        let clash = |groups: &[Group]| {
            let mut seen: HashMap<Key, &str> = HashMap::new();
            for (entry, text) in TABLE.iter().zip(&self.texts).filter(|(entry, _)| groups.contains(&entry.group)) {
                for key in text.split_whitespace().filter_map(Key::parse) {
                    if let Some(other) = seen.insert(key, entry.name) {
                        return Some((text.clone(), other, entry.name));
                    }
                }
            }
            None
        };
        for groups in [RUN_GROUPS, REPLAY_GROUPS, &[Group::End]] {
            if let Some((key, a, b)) = clash(groups) {
                return Err(Error::input(format!("key `{key}` would mean both `{a}` and `{b}`")));
            }
        }
        Ok(())
    }
}

/// What holds on the screen of a live run.
pub const RUN_GROUPS: &[Group] = &[Group::Move, Group::Look, Group::Panes, Group::Steer, Group::Program];
/// What holds in a replay.
pub const REPLAY_GROUPS: &[Group] = &[Group::Replay, Group::Move, Group::Look, Group::Panes, Group::Program];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_no_key_twice_and_no_name_twice() {
        KeyMap::new(&[]).unwrap();
        let mut names: Vec<_> = TABLE.iter().map(|e| e.name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|w| w[0] != w[1]), "{names:?}");
    }

    #[test]
    fn keys_can_be_given_anew_and_clashes_are_refused() {
        let change = |name: &str, keys: &str| KeyMap::new(&[(name.to_string(), keys.to_string())]);
        let map = change("prune", "ctrl-k delete").unwrap();
        let key = Key { code: KeyCode::Char('k'), ctrl: true };
        assert_eq!(map.action(key, RUN_GROUPS), Some(Action::Prune));
        assert_eq!(map.action(Key { code: KeyCode::Char('x'), ctrl: false }, RUN_GROUPS), None);
        let check = |name, keys, part: &str| {
            let message = change(name, keys).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        };
        check("prnue", "x", "nearest: `prune`");
        check("prune", "hyper-x", "`hyper-x` for `prune` is not a key");
        check("prune", "j", "both `down` and `prune`");
    }

    #[test]
    fn help_lines_are_short_enough_for_eighty_columns() {
        for entry in TABLE {
            assert!(entry.about.len() <= 50, "{}", entry.name);
        }
    }
}
