//! A sequence of costs cut into runs of which the dearest is as cheap as can be.

use std::ops::Range;

/// Keeps its buffers, and what the dearest run cost last: the next step's costs about the same.
#[derive(Debug, Clone, Default)]
pub struct EvenCuts {
    /// What the tiles up to each cost, and the blocks entered on the way.
    sums: Vec<u64>,
    ends: Vec<usize>,
    dearest: u64,
}

impl EvenCuts {
    /// Cuts `costs` into at most `parts` runs; a run costs an item for each block that it has a part of, and blocks end at
    /// `blocks`. What the dearest run costs. Binary search on the capacity, beginning with what was right last time, and for
    /// each on the end of each run: `O(n + parts log(dearest) log(n))`.
    pub fn cut(&mut self, costs: &[u64], blocks: &[usize], parts: usize, item: u64) -> u64 {
        let Self { sums, ends, dearest: last } = self;
        // A run from `start` to `t` takes an item and `costs[start] + sums[t] - sums[start]`.
        sums.clear();
        let (mut sum, mut first, mut entries) = (0, 0, 0);
        let (mut total, mut dearest) = (0, 0);
        for &end in blocks {
            for (i, &cost) in costs[first..end].iter().enumerate() {
                sum += cost + if i == 0 && first > 0 { item } else { 0 };
                sums.push(sum);
                total += cost;
                dearest = dearest.max(cost);
            }
            entries += u64::from(end > first);
            first = end;
        }
        // The runs that a capacity gives; false where they are too many.
        let mut fill = |capacity: u64| {
            ends.clear();
            let mut start = 0;
            while start < costs.len() {
                if ends.len() == parts {
                    return false;
                }
                let most = (capacity + sums[start]).saturating_sub(item + costs[start]);
                start += 1 + sums[start + 1..].partition_point(|&sum| sum <= most);
                ends.push(start);
            }
            true
        };
        let mut low = (dearest + item).max(total / parts as u64);
        // A run ends where the next tile does not fit, so all but the last take more than the capacity less a tile and an item.
        let high = (total + item * (entries + parts as u64)) / parts as u64 + dearest + 2 * item;
        let mut high = high.max(low);
        if (low..high).contains(last) {
            if fill(*last) {
                high = *last;
                if *last > low && !fill(*last - 1) {
                    low = *last;
                }
            } else {
                low = *last + 1;
            }
        }
        while low < high {
            let middle = low + (high - low) / 2;
            if fill(middle) { high = middle } else { low = middle + 1 }
        }
        fill(low);
        *last = low;
        low
    }

    /// Where the runs of the last cut lie.
    pub fn runs(&self) -> impl Iterator<Item = Range<usize>> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| start..end)
    }
}
