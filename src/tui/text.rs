//! Text as cells: how wide a text is, where it may be cut, and how it wraps.
//!
//! Everything goes by grapheme, with the widths that the screen buffer itself uses, so that borders stay straight. Text
//! on which terminals disagree (emoji with a variation selector or joiners, decomposed Korean, invisible format
//! characters) is shown in a form on which they agree; copying and editing use the original.

use crate::base::text::{sanitize, sanitize_line};
use ratatui::buffer::CellWidth;
use std::borrow::Cow;
use unicode_segmentation::UnicodeSegmentation;

/// More marks than this on one base are dropped: terminals disagree about taller stacks.
const CLUSTER_CHARS: usize = 8;

/// A text on several lines, safe and of certain width.
pub fn display(text: &str) -> String {
    settle(&sanitize(text)).into_owned()
}

/// A text on one line, safe and of certain width.
pub fn display_line(text: &str) -> String {
    settle(&sanitize_line(text)).into_owned()
}

/// Replaces graphemes whose width depends on the terminal. ASCII passes untouched.
fn settle(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for grapheme in text.graphemes(true) {
        let mut written = 0;
        let mut last = None;
        for c in grapheme.chars() {
            if is_joiner(c) && written > 0 {
                // A joined emoji is several pictures to many terminals: its first picture stands for it.
                break;
            }
            if is_invisible(c) || (written > 0 && is_modifier(c)) {
                continue;
            }
            if let Some(syllable) = last.and_then(|before| compose_hangul(before, c)) {
                out.pop();
                out.push(syllable);
                last = Some(syllable);
                continue;
            }
            if written < CLUSTER_CHARS {
                out.push(c);
                written += 1;
            }
            last = Some(c);
        }
    }
    Cow::Owned(out)
}

fn is_joiner(c: char) -> bool {
    c == '\u{200d}'
}

/// Characters that show nothing by themselves, and that terminals give zero, one or two cells.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2064}'
        | '\u{206a}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// Skin tones and the enclosing keycap: they change a picture, and in some terminals its width.
fn is_modifier(c: char) -> bool {
    matches!(c, '\u{1f3fb}'..='\u{1f3ff}' | '\u{20e3}')
}

/// Joins conjoining jamo: L+V, and LV+T (Unicode Standard, section 3.12).
fn compose_hangul(before: char, c: char) -> Option<char> {
    const L: u32 = 0x1100;
    const V: u32 = 0x1161;
    const T: u32 = 0x11a7;
    const S: u32 = 0xac00;
    let (before, c) = (before as u32, c as u32);
    if (L..L + 19).contains(&before) && (V..V + 21).contains(&c) {
        return char::from_u32(S + ((before - L) * 21 + (c - V)) * 28);
    }
    if (S..S + 11172).contains(&before) && (before - S).is_multiple_of(28) && (T + 1..T + 28).contains(&c) {
        return char::from_u32(before + (c - T));
    }
    None
}

/// Width in cells.
pub fn width(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { text.graphemes(true).map(|g| usize::from(g.cell_width())).sum() }
}

/// The longest beginning that fits into `cells`, cut between graphemes.
pub fn fit(text: &str, cells: usize) -> &str {
    let mut used = 0;
    for (at, grapheme) in text.grapheme_indices(true) {
        used += usize::from(grapheme.cell_width());
        if used > cells {
            return &text[..at];
        }
    }
    text
}

/// The text if it fits, else a beginning of it that ends with `mark`.
pub fn shorten<'a>(text: &'a str, cells: usize, mark: &str) -> Cow<'a, str> {
    // A text of more bytes than 16 a cell cannot fit; measuring all of it would cost its length at every frame.
    let probe = if text.len() > cells * 16 + 64 { fit(text, cells + 1) } else { text };
    if probe.len() == text.len() && width(text) <= cells {
        return Cow::Borrowed(text);
    }
    let mark_cells = width(mark);
    if cells <= mark_cells {
        return Cow::Borrowed(fit(text, cells));
    }
    Cow::Owned(format!("{}{mark}", fit(text, cells - mark_cells)))
}

/// The end of a text that fits, after `mark` where something was cut off.
pub fn shorten_left<'a>(text: &'a str, cells: usize, mark: &str) -> Cow<'a, str> {
    if width(text) <= cells {
        return Cow::Borrowed(text);
    }
    let room = cells.saturating_sub(width(mark));
    let mut used = 0;
    let mut from = text.len();
    for (at, grapheme) in text.grapheme_indices(true).rev() {
        used += usize::from(grapheme.cell_width());
        if used > room {
            break;
        }
        from = at;
    }
    if cells < width(mark) {
        return Cow::Borrowed("");
    }
    Cow::Owned(format!("{mark}{}", &text[from..]))
}

/// Wraps at spaces where a line has one, else between graphemes. An empty text is one empty line. Leading spaces of a
/// line of the text stay; the space at which a line was broken goes.
pub fn wrap(text: &str, cells: usize) -> Vec<&str> {
    let cells = cells.max(1);
    let mut lines = Vec::new();
    for line in text.split('\n') {
        let mut start = 0;
        let mut used = 0;
        let mut last_space = None;
        for (at, grapheme) in line.grapheme_indices(true) {
            let w = usize::from(grapheme.cell_width());
            if used + w > cells && at > start {
                let (end, next) = match last_space {
                    _ if grapheme == " " => (at, at + 1),
                    Some(space) if space > start => (space, space + 1),
                    _ => (at, at),
                };
                lines.push(&line[start..end]);
                start = next;
                used = if next <= at { width(&line[next..at]) } else { 0 };
                last_space = None;
                if next > at {
                    continue;
                }
            }
            // A line is broken between words, not between its indent and its first word.
            if grapheme == " " && !line[start..at].trim_start().is_empty() {
                last_space = Some(at);
            }
            used += w;
        }
        lines.push(&line[start.min(line.len())..]);
    }
    lines
}

/// A number with thousands separated: `12,345`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// A number in at most five cells: `12345`, `12.3k`, `4.56M`.
pub fn short_number(n: f64) -> String {
    if !n.is_finite() {
        return "?".into();
    }
    for (unit, scale) in [("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)] {
        if n >= scale * if unit == "k" { 10.0 } else { 1.0 } {
            let v = n / scale;
            return if v < 9.995 {
                format!("{v:.2}{unit}")
            } else if v < 99.95 {
                format!("{v:.1}{unit}")
            } else {
                format!("{v:.0}{unit}")
            };
        }
    }
    if n.fract() == 0.0 || n >= 100.0 { format!("{n:.0}") } else { format!("{n:.1}") }
}

/// `1 thought`, `2,000 thoughts`.
pub fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(n), if n == 1 { one } else { many })
}

/// Seconds for people: `0.42 s`, `12.3 s`, `4:05 min`.
pub fn seconds(s: f64) -> String {
    if s < 10.0 {
        format!("{s:.2} s")
    } else if s < 100.0 {
        format!("{s:.1} s")
    } else {
        let whole = s as u64;
        format!("{}:{:02} min", whole / 60, whole % 60)
    }
}

/// Base64 (RFC 4648, with padding), for OSC 52.
pub fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().enumerate().fold(0u32, |n, (i, &b)| n | u32::from(b) << (16 - 8 * i));
        for i in 0..4 {
            if i <= chunk.len() {
                out.push(char::from(ALPHABET[(bits >> (18 - 6 * i)) as usize & 63]));
            } else {
                out.push('=');
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_uncertain_width_is_shown_in_a_certain_form() {
        let check = |input: &str, expected: &str| assert_eq!(display(input), expected, "{input:?}");
        check("♻️x", "♻x");
        check("👨‍👩‍👧!", "👨!");
        check("\u{1100}\u{1161}\u{1102}\u{1161}\u{11ab}", "가난");
        check("1\u{fe0f}\u{20e3}", "1");
        check("👍🏽", "👍");
        check("a\u{200b}b\u{ad}c", "abc");
        check("e\u{301}\u{301}", "e\u{301}\u{301}");
        check(&format!("a{}", "\u{301}".repeat(50)), &format!("a{}", "\u{301}".repeat(7)));
    }

    #[test]
    fn cutting_respects_graphemes_and_widths() {
        let check = |text: &str, cells, expected: &str| {
            let cut = shorten(text, cells, "…");
            assert_eq!(cut, expected, "{text:?} in {cells}");
            assert!(width(&cut) <= cells);
        };
        check("hello", 5, "hello");
        check("hello", 4, "hel…");
        check("中文数学", 8, "中文数学");
        check("中文数学", 7, "中文数…");
        check("中文数学", 6, "中文…");
        check("e\u{301}e\u{301}e\u{301}", 2, "e\u{301}…");
        check("hello", 1, "h");
        check("hello", 0, "");
        check("中", 1, "");
        assert_eq!(shorten_left("abcdef", 4, "…"), "…def");
        assert_eq!(shorten_left("中文", 3, "…"), "…文");
        assert_eq!(shorten_left("中文", 0, "…"), "");
    }

    #[test]
    fn lines_wrap_at_spaces_and_never_exceed_the_width() {
        let check = |text: &str, cells, expected: &[&str]| {
            assert_eq!(wrap(text, cells), expected, "{text:?} in {cells}");
        };
        check("", 5, &[""]);
        check("one two three", 7, &["one two", "three"]);
        check("one two three", 5, &["one", "two", "three"]);
        check("abcdefgh", 3, &["abc", "def", "gh"]);
        check("a\n\nb", 5, &["a", "", "b"]);
        check("中文数学", 3, &["中", "文", "数", "学"]);
        check("  indent", 4, &["  in", "dent"]);
        check("中", 1, &["中"]);
    }

    #[test]
    fn base64_follows_the_rfc() {
        for (text, expected) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(text.as_bytes()), expected);
        }
    }

    #[test]
    fn numbers_are_short_and_grouped() {
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(999), "999");
        for (n, expected) in [(0.0, "0"), (12.34, "12.3"), (9_999.0, "9999"), (12_345.0, "12.3k"), (4.56e6, "4.56M")] {
            assert_eq!(short_number(n), expected);
        }
    }
}
