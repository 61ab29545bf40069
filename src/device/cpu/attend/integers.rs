//! Values of a window by integers, where the machine's table has such loops: the weights become integers once all tokens'
//! scales are known, and the parts of the window are added up as integers.

use super::unit::{Job, Part};
use super::{Kv, KvLayer, Lazy, PAGE_TOKENS, Scratch, WINDOW};
use crate::device::attend::Unit;
use crate::device::cpu::attend::ahead::STEP;
use crate::device::cpu::attend::integer_kernels::{Integers, Lanes};
use half::f16;
use std::ops::Range;

/// What integers need beside the scores.
#[derive(Debug, Default)]
pub(super) struct Counted {
    /// Of the present window.
    parts: Vec<Part>,
    /// Scales and inverses of each part's tokens, `[parts][2][WINDOW]`.
    looked: Lazy<f32>,
    /// The scales of what each row sees, `[rows][WINDOW]`, and the sums `[rows · G][d]`: where a window has several parts.
    scales: Lazy<f32>,
    sums: Lazy<i32>,
}

/// Where a part lies in its window: pages from `column` on, and lanes of these.
struct Place {
    column: usize,
    lanes: Range<usize>,
}

impl Part {
    fn place(&self, first: u32) -> Place {
        let lo = self.start as usize % PAGE_TOKENS;
        let column = (self.start - first) as usize - lo;
        Place { column, lanes: lo..lo + (self.end - self.start) as usize }
    }
}

impl Place {
    fn pages(&self) -> Range<usize> {
        0..self.lanes.end.div_ceil(PAGE_TOKENS)
    }

    /// Of page `page` of the part, and its column.
    fn page(&self, page: usize) -> (Lanes, usize) {
        let first = page * PAGE_TOKENS;
        let lanes =
            Lanes { start: self.lanes.start.saturating_sub(first), end: (self.lanes.end - first).min(PAGE_TOKENS) };
        (lanes, self.column + first)
    }
}

impl Job<'_> {
    /// The window that begins at `first`: its scores become weights, and its values are added.
    pub(super) fn count(
        &self,
        table: &Integers,
        unit: &Unit,
        kv_head: usize,
        first: u32,
        rows: &Range<usize>,
        scratch: &mut Scratch,
    ) {
        let (g, d) = (self.heads.group(), self.heads.head_size);
        let Scratch { scores, own, tile, gathered, ahead, counted, .. } = scratch;
        let Counted { parts, looked, scales, sums } = counted;
        parts.clear();
        parts.extend(self.parts(unit, first, rows));
        looked.grow(parts.len() * 2 * WINDOW);
        for (part, looked) in parts.iter().zip(looked.chunks_exact_mut(2 * WINDOW)) {
            let (scales, inverses) = looked.split_at_mut(WINDOW);
            let place = part.place(first);
            for page in place.pages() {
                let (lanes, at) = place.page(page);
                let values = self.value_page(part.first_page + page, kv_head, &mut gathered.0);
                let at = at..at + PAGE_TOKENS;
                table.look_at_values(values, d, lanes, &mut scales[at.clone()], &mut inverses[at]);
            }
        }
        // Alone, a part is all that its rows see.
        let alone = parts.len() == 1;
        if !alone {
            scales.grow(rows.len() * WINDOW);
            for (part, looked) in parts.iter().zip(looked.chunks_exact(2 * WINDOW)) {
                let at = (part.start - first) as usize..(part.end - first) as usize;
                let of = part.rows.start - rows.start..part.rows.end - rows.start;
                for row in scales[of.start * WINDOW..of.end * WINDOW].chunks_exact_mut(WINDOW) {
                    row[at.clone()].copy_from_slice(&looked[at.clone()]);
                }
            }
            sums.grow(rows.len() * g * d);
            sums[..rows.len() * g * d].fill(0);
        }
        self.alike(first, rows, |rows, seen| {
            let scales = if alone {
                (&looked[..WINDOW], rows.len())
            } else {
                (&scales[rows.start / g * WINDOW..rows.end / g * WINDOW], g)
            };
            table.weights(&mut scores[rows.start * WINDOW..rows.end * WINDOW], seen, d, own.rows(rows, d), scales);
        });
        for (part, looked) in parts.iter().zip(looked.chunks_exact(2 * WINDOW)) {
            let inverses = &looked[WINDOW..];
            let place = part.place(first);
            for page in place.pages() {
                let (lanes, at) = place.page(page);
                ahead.ask();
                let values = self.value_page(part.first_page + page, kv_head, &mut gathered.0);
                let tile = &mut tile[page * PAGE_TOKENS / 2 * d..][..PAGE_TOKENS / 2 * d];
                table.turn_values(values, d, lanes, &inverses[at..at + PAGE_TOKENS], tile);
            }
            let pairs = place.lanes.start / 2..place.lanes.end.div_ceil(2);
            let (mut row, end) = ((part.rows.start - rows.start) * g, (part.rows.end - rows.start) * g);
            while row < end {
                ahead.ask();
                let to = (row + STEP).min(end);
                let weights = &scores[row * WINDOW..to * WINDOW];
                let tile = &tile[..pairs.end * d];
                if alone {
                    table.values(weights, place.column, pairs.clone(), tile, d, None, Some(own.rows(row..to, d).out));
                } else {
                    let sums = &mut sums[row * d..to * d];
                    table.values(weights, place.column, pairs.clone(), tile, d, Some(sums), None);
                }
                row = to;
            }
        }
        if !alone {
            // Rows that see nothing of the window have no weights.
            self.alike(first, rows, |rows, _| {
                let (weights, sums) =
                    (&scores[rows.start * WINDOW..rows.end * WINDOW], &mut sums[rows.start * d..rows.end * d]);
                table.values(weights, 0, 0..0, &[], d, Some(sums), Some(own.rows(rows, d).out));
            });
        }
    }

    /// V of one page and head, `[16][d]`; gathered where its tokens lie apart.
    fn value_page<'s>(&'s self, index: usize, kv_head: usize, gathered: &'s mut Lazy<f16>) -> &'s [f16] {
        let n = PAGE_TOKENS * self.heads.head_size;
        match self.wave.kv {
            Kv::Pages { kv: KvLayer::F16(numbers), pages } => {
                let at = (2 * (pages[index] as usize * self.heads.kv_heads + kv_head) + 1) * n;
                &numbers[at..at + n]
            }
            Kv::Rows { rows: KvLayer::F16(numbers), places, pages, .. } => {
                let first = (pages[index] as usize * self.heads.kv_heads + kv_head) * PAGE_TOKENS;
                gathered.grow(n);
                super::unit::gather(
                    numbers,
                    &places[first..first + PAGE_TOKENS],
                    1,
                    self.heads.head_size,
                    &mut gathered[..n],
                );
                &gathered[..n]
            }
            Kv::Pages { kv: KvLayer::F32(_), .. } | Kv::Rows { rows: KvLayer::F32(_), .. } => {
                unreachable!("`Kernels::of` gives K/V of float32 to a table without integers")
            }
        }
    }
}
