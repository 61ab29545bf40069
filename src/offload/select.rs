//! Which tokens a row attends to, from the scores that its heads are expected to give them (InfiniGen, OSDI 2024).
//!
//! A head wants the tokens that score above its maximum less `alpha`; the counts are averaged over the heads of the layer,
//! capped at `max_fetch` of the path, and every K/V head takes so many tokens. With GQA a token counts for a K/V head
//! what it counts for the query head that wants it most, each measured from that head's own maximum.

use crate::device::picks::{Asked, Choose, Room, Rule, pick};

/// How many tokens, and by which scores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Select {
    /// Infinite: as many as `max_fetch` says.
    pub alpha: f32,
    /// Share of the path's tokens, 0 to 1.
    pub max_fetch: f32,
    /// The control: the same number of tokens, drawn by chance.
    pub random: bool,
}

impl Select {
    /// Tokens of `past` that every K/V head takes, given how many each query head wants.
    fn count(&self, wanted: impl Iterator<Item = usize>, past: usize) -> usize {
        let cap = (past as f64 * f64::from(self.max_fetch)).ceil() as usize;
        if self.alpha.is_infinite() {
            return cap.min(past);
        }
        let (heads, total) = wanted.fold((0, 0), |(heads, total), n| (heads + 1, total + n));
        total.div_ceil(heads.max(1)).min(cap).min(past)
    }
}

/// The largest score of a head; a NaN where one is, so that nothing is above it.
fn top(scores: &[f32]) -> f32 {
    scores.iter().copied().fold(f32::NEG_INFINITY, |a, b| if b.is_nan() || b > a { b } else { a })
}

impl Choose for Select {
    fn rule(&self) -> Option<Rule> {
        (!self.random).then_some(Rule { alpha: self.alpha, max_fetch: self.max_fetch })
    }

    fn choose(&self, asked: &Asked<'_>, room: &mut Room, words: &mut [u64]) {
        let Asked { layer, position, kv_heads, group, scores } = *asked;
        let past = position as usize;
        for kv_head in 0..kv_heads {
            pick(words, kv_heads, kv_head, past);
        }
        if past == 0 {
            return;
        }
        let wanted = scores.chunks_exact(past).map(|head| {
            let bound = top(head) - self.alpha;
            head.iter().filter(|&&s| s > bound).count()
        });
        let n = self.count(wanted, past);
        for kv_head in 0..kv_heads {
            let heads = &scores[kv_head * group * past..(kv_head + 1) * group * past];
            room.keys.clear();
            room.keys.extend((0..past as u32).map(|t| (f32::NEG_INFINITY, t)));
            if self.random {
                let seed = (layer * kv_heads + kv_head) as u64;
                room.keys.iter_mut().for_each(|(key, t)| *key = chance(seed, position, *t));
            } else {
                for head in heads.chunks_exact(past) {
                    let top = top(head);
                    for ((key, _), &s) in room.keys.iter_mut().zip(head) {
                        *key = key.max(s - top);
                    }
                }
            }
            // The best first; of equals the newer.
            let better = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1));
            if 0 < n && n < past {
                room.keys.select_nth_unstable_by(n - 1, better);
            }
            for &(_, token) in &room.keys[..n] {
                pick(words, kv_heads, kv_head, token as usize);
            }
        }
    }
}

/// A number in 0..1 that these three decide (SplitMix64's finaliser).
fn chance(seed: u64, position: u32, token: u32) -> f32 {
    let mut z = seed << 48 ^ u64::from(position) << 24 ^ u64::from(token);
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ z >> 31) >> 40) as f32 / (1 << 24) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::stream;
    use rand::Rng;

    /// The tokens each K/V head takes.
    fn chosen(select: &Select, kv_heads: usize, group: usize, scores: &[f32]) -> Vec<Vec<usize>> {
        let position = (scores.len() / (kv_heads * group)) as u32;
        let mut words = vec![0; crate::device::picks::windows(position) * kv_heads];
        let asked = Asked { layer: 1, position, kv_heads, group, scores };
        select.choose(&asked, &mut Room::default(), &mut words);
        let has = |head: usize, t: &usize| words[t / 64 * kv_heads + head] >> (t % 64) & 1 == 1;
        (0..kv_heads).map(|head| (0..=position as usize).filter(|t| has(head, t)).collect()).collect()
    }

    const ALPHA: Select = Select { alpha: 4.0, max_fetch: 1.0, random: false };

    #[test]
    fn heads_want_what_is_near_their_own_maximum_and_all_take_the_mean_count() {
        // Head 0 wants tokens 1 and 2, head 1 (of another K/V head, at another level) only token 0: (2 + 1) / 2, up: 2.
        let scores = [0.0, 9.0, 8.0, 1.0, 100.0, 90.0, 80.0, 95.0];
        assert_eq!(chosen(&ALPHA, 2, 1, &scores), [vec![1, 2, 4], vec![0, 3, 4]]);
        // In one group both maxima count alike; ties go to the newer.
        assert_eq!(chosen(&ALPHA, 1, 2, &scores), [vec![0, 1, 4]]);
        let capped = Select { max_fetch: 0.25, ..ALPHA };
        assert_eq!(chosen(&capped, 2, 1, &scores), [vec![1, 4], vec![0, 4]]);
    }

    #[test]
    fn a_count_is_that_of_the_plain_definition_and_takes_the_best() {
        let mut random = stream(3, "select", &[]);
        for case in 0..200 {
            let (kv_heads, group) = (random.random_range(1..4), random.random_range(1..4));
            let past = random.random_range(1..200usize);
            let scores: Vec<f32> = (0..kv_heads * group * past).map(|_| random.random_range(-9.0..9.0)).collect();
            let alpha = if case % 5 == 0 { f32::INFINITY } else { random.random_range(0.5..9.0) };
            let select = Select { alpha, max_fetch: random.random_range(0.05..1.0), random: case % 7 == 0 };
            let most = |head: &[f32]| head.iter().copied().fold(f32::MIN, f32::max);
            let wanted: f64 = scores
                .chunks(past)
                .map(|head| head.iter().filter(|&&s| s > most(head) - alpha).count() as f64)
                .sum::<f64>()
                / (kv_heads * group) as f64;
            let cap = (past as f64 * f64::from(select.max_fetch)).ceil();
            let n = wanted.ceil().min(cap) as usize;
            for (kv_head, chosen) in chosen(&select, kv_heads, group, &scores).into_iter().enumerate() {
                assert_eq!(chosen.len(), n + 1, "case {case}");
                if select.random {
                    continue;
                }
                let value = |t: usize| {
                    let heads = scores[kv_head * group * past..][..group * past].chunks(past);
                    heads.map(|head| head[t] - most(head)).fold(f32::MIN, f32::max)
                };
                let taken = chosen.iter().filter(|&&t| t < past);
                let least = taken.map(|&t| value(t)).fold(f32::MAX, f32::min);
                let left = (0..past).filter(|t| !chosen.contains(t)).map(value).fold(f32::MIN, f32::max);
                assert!(left <= least, "case {case}: {left} was left, {least} taken");
            }
        }
    }

    #[test]
    fn everything_is_taken_without_bounds_and_chance_is_even() {
        let all = Select { alpha: f32::INFINITY, max_fetch: 1.0, random: false };
        let scores: Vec<f32> = (0..130).map(|i| if i == 7 { f32::NAN } else { i as f32 }).collect();
        assert_eq!(chosen(&all, 1, 1, &scores), [(0..=130).collect::<Vec<_>>()]);
        let drawn = chosen(&Select { max_fetch: 0.5, random: true, ..all }, 1, 1, &scores).remove(0);
        let early = drawn.iter().filter(|&&t| t < 65).count();
        assert!(drawn.len() == 66 && (20..45).contains(&early), "{early} of {}", drawn.len());
    }
}
