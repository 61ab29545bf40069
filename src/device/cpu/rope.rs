//! Rotary position embedding: angles in f64, cosines and sines kept as f32 by position.

use crate::device::{Rope, RopeLayout};

/// Cosines and sines of every position seen so far.
pub struct RopeTable {
    layout: RopeLayout,
    /// Radians a position, one for each pair of a head.
    frequencies: Vec<f64>,
    /// `[position][pair]` of (cosine, sine).
    turns: Vec<(f32, f32)>,
}

impl RopeTable {
    pub fn new(rope: &Rope, head_size: usize) -> Self {
        let frequencies = (0..head_size / 2)
            .map(|i| {
                let factor = rope.factors.as_ref().map_or(1.0, |f| f[i] as f64);
                (rope.theta as f64).powf(-2.0 * i as f64 / head_size as f64) / factor
            })
            .collect();
        Self { layout: rope.layout, frequencies, turns: Vec::new() }
    }

    /// Makes the table reach `position`.
    pub fn reach(&mut self, position: u32) {
        let have = self.turns.len() / self.frequencies.len().max(1);
        for p in have..=position as usize {
            self.turns.extend(self.frequencies.iter().map(|f| {
                let angle = p as f64 * f;
                (angle.cos() as f32, angle.sin() as f32)
            }));
        }
    }

    /// Turns every head of a row `[heads × head size]`; the table must reach `position`.
    pub fn turn(&self, row: &mut [f32], position: u32) {
        let pairs = self.frequencies.len();
        let turns = &self.turns[position as usize * pairs..][..pairs];
        for head in row.chunks_exact_mut(2 * pairs) {
            match self.layout {
                RopeLayout::Interleaved => {
                    for (pair, &(cos, sin)) in head.chunks_exact_mut(2).zip(turns) {
                        (pair[0], pair[1]) = (pair[0] * cos - pair[1] * sin, pair[0] * sin + pair[1] * cos);
                    }
                }
                RopeLayout::Halves => {
                    let (first, second) = head.split_at_mut(pairs);
                    for ((a, b), &(cos, sin)) in first.iter_mut().zip(second).zip(turns) {
                        (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_turn_by_their_angle_in_both_layouts() {
        for layout in [RopeLayout::Interleaved, RopeLayout::Halves] {
            let rope = Rope { theta: 100.0, factors: Some(vec![1.0, 2.0]), layout };
            let mut table = RopeTable::new(&rope, 4);
            table.reach(7);
            table.reach(3);
            let at = |pair: usize, second: usize| match layout {
                RopeLayout::Interleaved => 2 * pair + second,
                RopeLayout::Halves => pair + 2 * second,
            };
            let mut row = [1.0f32, 2.0, 3.0, 4.0, -1.0, 0.5, 0.25, 8.0];
            let before = row;
            table.turn(&mut row, 7);
            for head in 0..2 {
                for (pair, angle) in [7.0f64, 7.0 / 10.0 / 2.0].into_iter().enumerate() {
                    let (a, b) = (before[4 * head + at(pair, 0)] as f64, before[4 * head + at(pair, 1)] as f64);
                    let expected = [a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()];
                    for (second, expected) in expected.into_iter().enumerate() {
                        let found = row[4 * head + at(pair, second)] as f64;
                        assert!(
                            (found - expected).abs() < 1e-6,
                            "{layout:?} head {head} pair {pair}: {found} {expected}"
                        );
                    }
                }
            }
        }
    }
}
