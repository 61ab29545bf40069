//! Which tokens of its path a row attends to, by K/V head, and who decides that.
//!
//! A bit a token: word `w` of a (row, K/V head) stands for positions `64·w ..`, as attention's windows do. What a row
//! picks is a function of its own path, so that its result is that of its path alone, whatever other rows of the step
//! had brought.

use super::attend::WINDOW;

/// Bits of all rows of a step for one layer.
#[derive(Debug, Clone, Default)]
pub struct Picks {
    kv_heads: usize,
    /// First word of each work row, and their number at the end.
    first: Vec<usize>,
    /// `[row][window][kv_head]`.
    words: Vec<u64>,
}

impl Picks {
    /// Rows at these positions, nothing picked.
    pub fn shape(&mut self, positions: &[u32], kv_heads: usize) {
        self.kv_heads = kv_heads;
        self.first.clear();
        self.first.push(0);
        let mut words = 0;
        self.first.extend(positions.iter().map(|&p| {
            words += windows(p) * kv_heads;
            words
        }));
        self.words.clear();
        self.words.resize(words, 0);
    }

    pub fn rows(&self) -> usize {
        self.first.len().saturating_sub(1)
    }

    /// Words of one row, `[window][kv_head]`.
    pub fn row(&self, row: usize) -> &[u64] {
        &self.words[self.first[row]..self.first[row + 1]]
    }

    /// All words, and where each row's begin: for tasks that each fill rows of their own.
    pub fn parts(&mut self) -> (&[usize], &mut [u64]) {
        (&self.first, &mut self.words)
    }

    /// The picks of a row and head in one window; none past the row's end.
    pub fn word(&self, row: usize, window: usize, kv_head: usize) -> u64 {
        self.row(row).get(window * self.kv_heads + kv_head).copied().unwrap_or(0)
    }

    /// Tokens that a row picks of one head, its own included.
    pub fn count(&self, row: usize, kv_head: usize) -> u32 {
        self.row(row).iter().skip(kv_head).step_by(self.kv_heads).map(|w| w.count_ones()).sum()
    }
}

/// Windows that positions `0..=position` touch.
pub fn windows(position: u32) -> usize {
    position as usize / WINDOW + 1
}

/// Sets the bit of `token` for one head in a row's words.
pub fn pick(words: &mut [u64], kv_heads: usize, kv_head: usize, token: usize) {
    words[token / WINDOW * kv_heads + kv_head] |= 1 << (token % WINDOW);
}

/// Sets the bits of tokens `0..=position` for all heads.
pub fn pick_all(words: &mut [u64], kv_heads: usize, position: u32) {
    let last = windows(position) - 1;
    for (i, word) in words.iter_mut().enumerate() {
        let full = i / kv_heads < last;
        *word = if full { u64::MAX } else { u64::MAX >> (WINDOW - 1 - position as usize % WINDOW) };
    }
}

/// What a row's choice is made from.
pub struct Asked<'a> {
    pub layer: usize,
    /// The row's own position; it always attends to itself, and chooses among the `position` tokens before it.
    pub position: u32,
    pub kv_heads: usize,
    /// Query heads of one K/V head.
    pub group: usize,
    /// `[heads][position]`: expected attention scores, natural logarithms up to a constant a head.
    pub scores: &'a [f32],
}

/// What a choice works in; one a thread.
#[derive(Debug, Default)]
pub struct Room {
    pub keys: Vec<(f32, u32)>,
}

/// What a choice goes by, for a device that chooses itself: of the tokens within `alpha` of each head's largest score as many
/// as the mean of the heads, at most `max_fetch` of the path; the best of each K/V head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    /// Infinite: as many as `max_fetch` says.
    pub alpha: f32,
    pub max_fetch: f32,
}

/// Chooses the tokens that a row attends to. Called from several threads, each with rows of its own.
pub trait Choose: Send + Sync {
    /// The rule that `choose` follows; `None` where it follows another.
    fn rule(&self) -> Option<Rule> {
        None
    }

    /// Sets bits in `words` (`[window][kv_head]`, all zero before).
    fn choose(&self, asked: &Asked<'_>, room: &mut Room, words: &mut [u64]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_hold_the_tokens_that_were_picked_and_no_others() {
        let mut picks = Picks::default();
        picks.shape(&[0, 63, 64, 200], 2);
        for (row, position) in [0u32, 63, 64, 200].into_iter().enumerate() {
            let (first, words) = picks.parts();
            let own = first[row]..first[row + 1];
            assert_eq!(own.len(), 2 * (position as usize / 64 + 1));
            pick_all(&mut words[own], 2, position);
            assert_eq!((picks.count(row, 0), picks.count(row, 1)), (position + 1, position + 1));
        }
        picks.shape(&[130], 2);
        for token in [0, 64, 129] {
            pick(picks.parts().1, 2, 1, token);
        }
        let words: Vec<u64> = (0..4).map(|w| picks.word(0, w, 1)).collect();
        assert_eq!((words, picks.count(0, 0), picks.count(0, 1)), (vec![1, 1, 2, 0], 0, 3));
    }
}
