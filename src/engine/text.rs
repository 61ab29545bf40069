//! The text of one sample while it grows: whole characters go out, what may still become a stop string is held back.
//!
//! All places are byte offsets of the sample's raw bytes (its tokens' bytes, one after the other): stop strings span
//! tokens and tokens split characters, bytes do neither.

use std::sync::Arc;

/// Stop strings as bytes; empty ones are left out.
#[derive(Debug, Clone, Default)]
pub struct Stops(Arc<[String]>);

impl Stops {
    pub fn new(stops: &[String]) -> Self {
        Self(stops.iter().filter(|s| !s.is_empty()).cloned().collect())
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    fn longest(&self) -> usize {
        self.iter().map(str::len).max().unwrap_or(0)
    }
}

/// A growing text.
#[derive(Debug, Clone)]
pub struct Text {
    bytes: Vec<u8>,
    /// End of each token in `bytes`.
    ends: Vec<usize>,
    /// Bytes handed out by [`take`](Self::take).
    sent: usize,
    /// A stop string cut the text.
    cut: bool,
    stops: Stops,
}

impl Text {
    pub fn new(stops: Stops) -> Self {
        Self { bytes: Vec::new(), ends: Vec::new(), sent: 0, cut: false, stops }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Adds a token's bytes. Where a stop string is now complete, the text is cut before the first one, which is told.
    pub fn push(&mut self, token: &[u8]) -> Option<String> {
        let from = self.bytes.len().saturating_sub(self.stops.longest().saturating_sub(1));
        self.bytes.extend_from_slice(token);
        self.ends.push(self.bytes.len());
        let found =
            self.stops.iter().filter_map(|stop| Some((from + find(&self.bytes[from..], stop.as_bytes())?, stop)));
        let (at, stop) = found.min_by_key(|&(at, _)| at)?;
        let stop = stop.to_string();
        self.bytes.truncate(at);
        self.cut = true;
        Some(stop)
    }

    /// The whole characters that no stop string can take back any more, since the last call.
    pub fn take(&mut self) -> String {
        let to = self.decided().max(self.sent);
        let text = String::from_utf8_lossy(&self.bytes[self.sent..to]).into_owned();
        self.sent = to;
        text
    }

    /// No more tokens: what was held back is text now, and half a character at the end is dropped. Returns what
    /// [`take`](Self::take) had not handed out.
    pub fn finish(&mut self) -> String {
        let end = whole_characters(&self.bytes);
        self.bytes.truncate(end);
        let text = String::from_utf8_lossy(&self.bytes[self.sent.min(end)..]).into_owned();
        self.sent = end;
        text
    }

    /// The text up to where it is decided, lossily decoded.
    pub fn decided_text(&self) -> String {
        String::from_utf8_lossy(&self.bytes[..self.decided()]).into_owned()
    }

    /// How many tokens lie wholly inside the text, and what the next one left of itself there when a stop string cut it.
    /// Half a character at the end stays with the tokens: whoever goes on from them may finish it.
    pub fn whole_tokens(&self) -> (usize, &[u8]) {
        if !self.cut {
            return (self.ends.len(), &[]);
        }
        let whole = self.ends.partition_point(|&end| end <= self.bytes.len());
        let from = if whole == 0 { 0 } else { self.ends[whole - 1] };
        (whole, &self.bytes[from..])
    }

    fn decided(&self) -> usize {
        let held = self.stops.iter().map(|stop| overlap(&self.bytes, stop.as_bytes())).max().unwrap_or(0);
        whole_characters(&self.bytes[..self.bytes.len() - held])
    }
}

/// Where the bytes end without the beginning of a character that is not whole yet.
pub fn whole_characters(bytes: &[u8]) -> usize {
    // A character has at most four bytes: look for a lead byte among the last three.
    for back in 1..=bytes.len().min(3) {
        let at = bytes.len() - back;
        let width = match bytes[at] {
            0xC2..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF4 => 4,
            0x80..=0xBF => continue,
            _ => return bytes.len(),
        };
        let cut = std::str::from_utf8(&bytes[at..]).is_err_and(|e| e.error_len().is_none());
        return if back < width && cut { at } else { bytes.len() };
    }
    bytes.len()
}

/// Length of the longest end of `bytes` that begins `stop` without being all of it.
fn overlap(bytes: &[u8], stop: &[u8]) -> usize {
    let most = bytes.len().min(stop.len().saturating_sub(1));
    (1..=most).rev().find(|&n| bytes[bytes.len() - n..] == stop[..n]).unwrap_or(0)
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds tokens; returns the pieces that came out one by one, the text, the stop, whole tokens and the remainder.
    fn check(tokens: &[&[u8]], stops: &[&str], pieces: &[&str], stop: Option<&str>, whole: usize, rest: &[u8]) {
        let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
        let mut text = Text::new(Stops::new(&stops));
        let mut got = Vec::new();
        let mut found = None;
        for token in tokens {
            found = text.push(token);
            if found.is_some() {
                break;
            }
            got.push(text.take());
        }
        got.push(text.finish());
        assert_eq!(got, pieces);
        assert_eq!(found.as_deref(), stop);
        assert_eq!(text.whole_tokens(), (whole, rest));
        assert_eq!(got.concat().as_bytes(), text.bytes());
    }

    #[test]
    fn stop_strings_span_tokens_and_none_of_them_is_shown() {
        check(&[b"a", b"b\n", b"\nc"], &["\n\n"], &["a", "b", ""], Some("\n\n"), 1, b"b");
        check(&[b"a", b"b\n", b"c"], &["\n\n"], &["a", "b", "\nc", ""], None, 3, b"");
        check(&[b"x", b"EN", b"D!"], &["END", "x E"], &["", "x", ""], Some("END"), 1, b"");
        check(&[b"7\n"], &["\n"], &["7"], Some("\n"), 0, b"7");
        check(&[b"aab", b"x"], &["ab", "aab"], &[""], Some("aab"), 0, b"");
        check(&[b"ab"], &[""], &["ab", ""], None, 1, b"");
        check(&[b"held\n"], &["\n\n"], &["held", "\n"], None, 1, b"");
    }

    #[test]
    fn characters_split_over_tokens_come_out_whole() {
        let smile = "😀".as_bytes();
        check(&[b"a", &smile[..1], &smile[1..3], &smile[3..]], &[], &["a", "", "", "😀", ""], None, 4, b"");
        check(&[b"a", &smile[..2]], &[], &["a", "", ""], None, 2, b"");
        check(&[&[b'a', smile[0]]], &[], &["a", ""], None, 1, b"");
    }

    #[test]
    fn bytes_that_are_no_text_are_replaced_and_never_held_for_ever() {
        let mut text = Text::new(Stops::default());
        text.push(&[0xFF]);
        assert_eq!(text.take(), "\u{FFFD}");
        text.push(&[0xE2, b'a']);
        assert_eq!(text.take(), "\u{FFFD}a");
        assert_eq!(text.finish(), "");
    }
}
