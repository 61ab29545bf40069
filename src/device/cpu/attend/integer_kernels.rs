//! Loops by which values are added as integers: a table beside that of float32, where an instruction set has them.

use super::kernels::{SoftmaxTile, States};
use crate::device::attend::WINDOW;
use crate::kv::PAGE_TOKENS;
use half::f16;
use std::ops::Range;

/// | entry | does |
/// |---|---|
/// | `look_at_values` | V of one page and head `[16][d]`: scales of the tokens, 0 outside the lanes, and their inverses |
/// | `turn_values` | the same to integers, two tokens a word: `[8][d]`; zeros beside the lanes in words that hold some |
/// | `weights` | `softmax`, and the weights times the tokens' scales to integers, two a word, in their places |
/// | `values` | `sums [rows][d] += weights · V`; at last `out += sums`, as float32 |
pub struct Integers {
    pub(super) look_at_values: unsafe fn(*const f16, usize, Lanes, *mut f32, *mut f32),
    pub(super) turn_values: unsafe fn(*const f16, usize, Lanes, *const f32, *mut f32),
    pub(super) weights: unsafe fn(&WeightTile),
    pub(super) values: unsafe fn(&IntegerTile),
}

impl Integers {
    pub(super) fn look_at_values(
        &self,
        values: &[f16],
        d: usize,
        lanes: Lanes,
        scales: &mut [f32],
        inverses: &mut [f32],
    ) {
        assert!(values.len() == PAGE_TOKENS * d && lanes.start < lanes.end && lanes.end <= PAGE_TOKENS);
        assert!(d.is_multiple_of(8) && scales.len() == PAGE_TOKENS && inverses.len() == PAGE_TOKENS);
        // SAFETY: the lengths are those the loop reads and writes; the table was made for this machine's features.
        unsafe { (self.look_at_values)(values.as_ptr(), d, lanes, scales.as_mut_ptr(), inverses.as_mut_ptr()) }
    }

    pub(super) fn turn_values(&self, values: &[f16], d: usize, lanes: Lanes, inverses: &[f32], out: &mut [f32]) {
        assert!(values.len() == PAGE_TOKENS * d && lanes.start < lanes.end && lanes.end <= PAGE_TOKENS);
        assert!(d.is_multiple_of(8) && inverses.len() == PAGE_TOKENS && out.len() == PAGE_TOKENS / 2 * d);
        // SAFETY: as above.
        unsafe { (self.turn_values)(values.as_ptr(), d, lanes, inverses.as_ptr(), out.as_mut_ptr()) }
    }

    /// As `Kernels::softmax`. Every `group` rows have a window of `scales`.
    pub(super) fn weights(
        &self,
        scores: &mut [f32],
        seen: usize,
        d: usize,
        states: States<'_>,
        (scales, group): (&[f32], usize),
    ) {
        let softmax = SoftmaxTile::new(scores, seen, d, states);
        assert!(group > 0 && scales.len() == softmax.rows.div_ceil(group) * WINDOW);
        // SAFETY: as above.
        unsafe { (self.weights)(&WeightTile { softmax, scales: scales.as_ptr(), group }) }
    }

    /// The products of the words `pairs` of `values`, the first of which belongs to the tokens `column` and `column + 1` of the
    /// rows' weights, and `sums`: added to `out` where there is one, else kept in `sums`.
    #[expect(clippy::too_many_arguments, reason = "one tile")]
    pub(super) fn values(
        &self,
        weights: &[f32],
        column: usize,
        pairs: Range<usize>,
        values: &[f32],
        d: usize,
        sums: Option<&mut [i32]>,
        out: Option<&mut [f32]>,
    ) {
        let rows = weights.len() / WINDOW;
        assert!(weights.len() == rows * WINDOW && d.is_multiple_of(8) && column.is_multiple_of(2));
        assert!(pairs.end * d <= values.len() && column + 2 * pairs.end <= WINDOW);
        assert!(sums.as_ref().is_none_or(|s| s.len() == rows * d) && out.as_ref().is_none_or(|o| o.len() == rows * d));
        // SAFETY: as above.
        unsafe {
            (self.values)(&IntegerTile {
                weights: weights.as_ptr(),
                column,
                rows,
                values: values.as_ptr(),
                pairs,
                d,
                sums: sums.map(<[i32]>::as_mut_ptr),
                out: out.map(<[f32]>::as_mut_ptr),
            });
        }
    }
}

/// Lanes of a page.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lanes {
    pub start: usize,
    pub end: usize,
}

/// A softmax, and the scales of the tokens' values: 64 for every `group` rows.
pub(super) struct WeightTile {
    pub softmax: SoftmaxTile,
    pub scales: *const f32,
    pub group: usize,
}

/// Tile of values in integers: weights (row stride [`WINDOW`], two tokens a word), the column of the tile's first token, which
/// words of V `[pairs][d]`, the sums so far `[rows][d]`, which go on there where there is no `out [rows][d]` to add them to.
pub(super) struct IntegerTile {
    pub weights: *const f32,
    pub column: usize,
    pub rows: usize,
    pub values: *const f32,
    pub pairs: Range<usize>,
    pub d: usize,
    pub sums: Option<*mut i32>,
    pub out: Option<*mut f32>,
}
