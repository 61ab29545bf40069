//! Text from models, files and users is data: nothing of it may steer the terminal.

use std::borrow::Cow;

/// Removes what a terminal would obey: C0 and C1 controls, DEL, and the bidirectional and invisible format characters
/// that reorder or hide text. A newline stays, a tab becomes a space, an escape sequence loses its ESC and with it its power.
pub fn sanitize(text: &str) -> Cow<'_, str> {
    if text.chars().all(|c| !is_unsafe(c)) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\t' => safe.push(' '),
            '\u{1b}' | '\u{9b}' | '\u{9d}' | '\u{90}' => skip_sequence(c, &mut chars),
            c if is_unsafe(c) => {}
            c => safe.push(c),
        }
    }
    Cow::Owned(safe)
}

/// One line of safe text: newlines become `⏎`-free spaces.
pub fn sanitize_line(text: &str) -> String {
    sanitize(text).replace('\n', " ")
}

/// JSON in which what [`sanitize`] takes away is written as escapes: the same value, and safe on a terminal. Outside of its
/// strings JSON has no such characters but white space.
pub fn escape_json(json: &str) -> Cow<'_, str> {
    if json.chars().all(|c| !is_unsafe(c)) {
        return Cow::Borrowed(json);
    }
    let escape = |c: char| match c {
        '\t' | '\r' => c.to_string(),
        c if is_unsafe(c) => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    };
    Cow::Owned(json.chars().map(escape).collect())
}

/// `1 thought`, `2 thoughts`.
pub fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

fn is_unsafe(c: char) -> bool {
    (c.is_control() && c != '\n')
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}' | '\u{2028}' | '\u{2029}')
}

/// Swallows the rest of a CSI, OSC, DCS or two-character sequence, so that its parameters do not stay behind as text.
fn skip_sequence(first: char, chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    let kind = match first {
        '\u{9b}' => '[',
        '\u{9d}' => ']',
        '\u{90}' => 'P',
        _ => match chars.next() {
            Some(c) => c,
            None => return,
        },
    };
    match kind {
        '[' => {
            while let Some(&c) = chars.peek() {
                if c == '\n' {
                    return;
                }
                chars.next();
                if ('\u{40}'..='\u{7e}').contains(&c) {
                    return;
                }
            }
        }
        ']' | 'P' | '_' | '^' | 'X' => {
            // A string sequence ends with BEL or ST; a cut one ends with its line, so that it cannot swallow the rest.
            while let Some(&c) = chars.peek() {
                if c == '\n' {
                    return;
                }
                chars.next();
                if c == '\u{7}' || c == '\u{9c}' {
                    return;
                }
                if c == '\u{1b}' {
                    chars.next_if_eq(&'\\');
                    return;
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn nothing_that_steers_is_left(text in "(\\PC|[\u{0}-\u{1f}\u{7f}-\u{9f}\u{202a}-\u{202e}]|\u{1b}[\\[\\]PX_^c7]?[0-9;]{0,4}|\u{1b}\\\\|m|\u{7})*") {
            let safe = sanitize(&text);
            proptest::prop_assert!(!safe.chars().any(is_unsafe), "{:?}", safe);
            proptest::prop_assert_eq!(sanitize(&safe), safe.as_ref());
            let json = serde_json::Value::from(text.as_str()).to_string();
            let escaped = escape_json(&json);
            proptest::prop_assert!(!escaped.chars().any(is_unsafe));
            proptest::prop_assert_eq!(serde_json::from_str::<String>(&escaped).unwrap(), text);
        }
    }

    #[test]
    fn controls_and_sequences_go_and_text_stays() {
        let check = |input: &str, expected: &str| assert_eq!(sanitize(input), expected, "{input:?}");
        check("plain ♻️ 中文 é́", "plain ♻️ 中文 é́");
        check("a\x1b[31mred\x1b[0m b", "ared b");
        check("a\x1b]0;title\x07b", "ab");
        check("a\x1b]52;c;AAAA\x1b\\b", "ab");
        check("a\u{9b}2Jb", "ab");
        check("cut\x1b]0;no end\nnext", "cut\nnext");
        check("bell\x07 back\x08 tab\tcr\r\nx", "bell back tab cr\nx");
        check("rtl \u{202e}evil", "rtl evil");
        check("\x1b", "");
    }
}
