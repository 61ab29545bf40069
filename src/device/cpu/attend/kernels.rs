//! The inner loops of attention as a table, chosen once for the machine. Every entry computes each result by the same
//! order of operations whatever the number of rows, pages or tokens of the call.
//!
//! | entry | does |
//! |---|---|
//! | `queries` | scaled queries `[rows][d]` to the form in which `scores` takes them, in place |
//! | `look_at_keys` | what `keys_f16` must know of a page before it turns it, to the same place |
//! | `keys` | K of one page and head `[16][d]` to the form in which `scores` takes it: float32 `[d][16]`, but in `vnni` |
//! | `widen` | float16 to float32 |
//! | `scores` | `q [rows][d]` times K `[pages][d][16]`, chosen lanes into `scores [rows][64]`; one chain over `d` each |
//! | `softmax` | windows of rows: new maximum, weights, sum; scales what was summed before |
//! | `values` | `out [rows][d] += weights · V [tokens][d]`, in token order |
//! | `merge` | two partial results of each row to one |

use super::integer_kernels::Integers;
use super::{KvLayer, portable};
use crate::device::attend::WINDOW;
use crate::kv::PAGE_TOKENS;
use half::f16;
use std::ops::Range;

/// Tile of scores: rows, `d`, K, its pages, lanes `lo..hi`, out (row stride [`WINDOW`], at the lane 0 of the first page).
pub(super) struct ScoreTile {
    pub q: *const f32,
    pub rows: usize,
    pub d: usize,
    pub keys: *const f32,
    pub pages: usize,
    pub lo: usize,
    pub hi: usize,
    pub out: *mut f32,
}

/// Tile of values: weights (row stride [`WINDOW`]), V `[tokens][d]`, out `[rows][d]`.
pub(super) struct ValueTile {
    pub weights: *const f32,
    pub rows: usize,
    pub values: *const f32,
    pub tokens: usize,
    pub d: usize,
    pub out: *mut f32,
}

/// A window of rows: scores (row stride [`WINDOW`]), how many of them the rows see, and the rows' states.
pub(super) struct SoftmaxTile {
    pub scores: *mut f32,
    pub rows: usize,
    pub seen: usize,
    pub max: *mut f32,
    pub sum: *mut f32,
    pub out: *mut f32,
    pub d: usize,
}

impl SoftmaxTile {
    /// Asserts that a window of scores, a state and `d` numbers are there for each row.
    pub fn new(scores: &mut [f32], seen: usize, d: usize, states: States<'_>) -> Self {
        let rows = scores.len() / WINDOW;
        assert!(scores.len() == rows * WINDOW && seen <= WINDOW && d.is_multiple_of(8));
        assert!(states.out.len() == rows * d && states.max.len() == rows && states.sum.len() == rows);
        Self {
            scores: scores.as_mut_ptr(),
            rows,
            seen,
            max: states.max.as_mut_ptr(),
            sum: states.sum.as_mut_ptr(),
            out: states.out.as_mut_ptr(),
            d,
        }
    }
}

/// Two partial results a row: numbers `[rows][d]`, maxima (base 2) and sums; the second becomes both together.
pub(super) struct MergeTile {
    pub rows: usize,
    pub d: usize,
    pub left: *const f32,
    pub left_max: *const f32,
    pub left_sum: *const f32,
    pub out: *mut f32,
    pub max: *mut f32,
    pub sum: *mut f32,
}

/// The loops of one instruction set. The function pointers trust the lengths that the methods below check.
pub struct Kernels {
    pub name: &'static str,
    /// What a number of a result may be off by, where K/V and queries lie in -1..1 and paths have a few hundred tokens.
    pub tolerance: f64,
    /// The table in which all is float32, where it is another one.
    pub(super) of_f32: Option<&'static Kernels>,
    pub(super) integers: Option<&'static Integers>,
    pub(super) queries: unsafe fn(*mut f32, usize, usize),
    pub(super) look_at_keys: unsafe fn(*const f16, usize, *mut f32),
    pub(super) keys_f16: unsafe fn(*const f16, usize, *mut f32),
    pub(super) keys_f32: unsafe fn(*const f32, usize, *mut f32),
    pub(super) widen: unsafe fn(*const f16, usize, *mut f32),
    pub(super) scores: unsafe fn(&ScoreTile),
    pub(super) softmax: unsafe fn(&SoftmaxTile),
    pub(super) values: unsafe fn(&ValueTile),
    pub(super) merge: unsafe fn(&MergeTile),
}

/// Partial results of rows as slices: numbers `[rows][d]`, maxima and sums.
pub(super) struct States<'a> {
    pub out: &'a mut [f32],
    pub max: &'a mut [f32],
    pub sum: &'a mut [f32],
}

/// All tables that this machine can run, the fastest first.
pub fn available() -> Vec<&'static Kernels> {
    let mut tables = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
        {
            if is_x86_feature_detected!("avx512vnni") {
                tables.push(&super::vnni::KERNELS);
            }
            tables.push(&super::avx512::KERNELS);
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
            tables.push(&super::avx2::KERNELS);
        }
    }
    #[cfg(target_arch = "aarch64")]
    tables.push(&super::neon::KERNELS);
    tables.push(&portable::KERNELS);
    tables
}

/// As [`available`], but the values' loop of the last table leaves a token out.
pub fn one_faulty() -> Vec<&'static Kernels> {
    let mut tables = available();
    tables.pop();
    tables.push(&portable::FAULTY);
    tables
}

/// The fastest table of this machine.
pub fn best() -> &'static Kernels {
    available()[0]
}

/// What float32 sums of a few hundred terms may be off by.
pub(super) const FLOAT32: f64 = 5e-6;

/// Float32 needs to know nothing.
pub(super) unsafe fn nothing(_keys: *const f16, _d: usize, _out: *mut f32) {}

/// Leaves float32 queries as they are.
pub(super) unsafe fn as_they_are(_q: *mut f32, _rows: usize, _d: usize) {}

impl Kernels {
    /// The table in which all is float32.
    pub fn of_f32(&'static self) -> &'static Self {
        self.of_f32.unwrap_or(self)
    }

    /// The table for this K/V.
    pub(super) fn of(&'static self, kv: KvLayer<'_>) -> &'static Self {
        match kv {
            KvLayer::F16(_) => self,
            KvLayer::F32(_) => self.of_f32(),
        }
    }

    pub(super) fn queries(&self, q: &mut [f32], d: usize) {
        assert!(d.is_multiple_of(8) && q.len().is_multiple_of(d));
        // SAFETY: the lengths are those the loop reads and writes; the table was made for this machine's features.
        unsafe { (self.queries)(q.as_mut_ptr(), q.len() / d, d) }
    }

    /// Before [`Self::keys_f16`], with the same numbers and place.
    pub(super) fn look_at_keys(&self, keys: &[f16], d: usize, out: &mut [f32]) {
        assert!(d.is_multiple_of(8) && keys.len() == PAGE_TOKENS * d && out.len() == PAGE_TOKENS * d);
        // SAFETY: as above.
        unsafe { (self.look_at_keys)(keys.as_ptr(), d, out.as_mut_ptr()) }
    }

    pub(super) fn keys_f16(&self, keys: &[f16], d: usize, out: &mut [f32]) {
        assert!(d.is_multiple_of(8) && keys.len() == PAGE_TOKENS * d && out.len() == PAGE_TOKENS * d);
        // SAFETY: as above.
        unsafe { (self.keys_f16)(keys.as_ptr(), d, out.as_mut_ptr()) }
    }

    pub(super) fn keys_f32(&self, keys: &[f32], d: usize, out: &mut [f32]) {
        assert!(d.is_multiple_of(8) && keys.len() == PAGE_TOKENS * d && out.len() == PAGE_TOKENS * d);
        // SAFETY: as above.
        unsafe { (self.keys_f32)(keys.as_ptr(), d, out.as_mut_ptr()) }
    }

    pub(super) fn widen(&self, numbers: &[f16], out: &mut [f32]) {
        assert!(numbers.len().is_multiple_of(8) && numbers.len() == out.len());
        // SAFETY: as above.
        unsafe { (self.widen)(numbers.as_ptr(), numbers.len(), out.as_mut_ptr()) }
    }

    /// `scores[row][column + lane] = q[row] · K[lane]` for the lanes of the pages in `keys`; other places stay.
    pub(super) fn scores(
        &self,
        q: &[f32],
        d: usize,
        keys: &[f32],
        lanes: Range<usize>,
        scores: &mut [f32],
        column: usize,
    ) {
        let rows = scores.len() / WINDOW;
        let pages = keys.len() / (PAGE_TOKENS * d);
        assert!(scores.len() == rows * WINDOW && q.len() == rows * d && d.is_multiple_of(8));
        assert!(keys.len() == pages * PAGE_TOKENS * d && lanes.start < lanes.end && lanes.end <= pages * PAGE_TOKENS);
        assert!(column + pages * PAGE_TOKENS <= WINDOW);
        if rows == 0 {
            return;
        }
        // SAFETY: as above; `column` leaves room for all pages in every row.
        unsafe {
            (self.scores)(&ScoreTile {
                q: q.as_ptr(),
                rows,
                d,
                keys: keys.as_ptr(),
                pages,
                lo: lanes.start,
                hi: lanes.end,
                out: scores.as_mut_ptr().add(column),
            });
        }
    }

    /// One online-softmax step for each row over the first `seen` scores (base 2) of its window: they become weights
    /// against the new maximum, the others zero; maximum, sum and numbers go on.
    pub(super) fn softmax(&self, scores: &mut [f32], seen: usize, d: usize, states: States<'_>) {
        let tile = SoftmaxTile::new(scores, seen, d, states);
        // SAFETY: as above.
        unsafe { (self.softmax)(&tile) }
    }

    /// `right` = `left` and `right` merged, row by row: with M the larger maximum, `o = Σ 2^(m_i - M) o_i` and
    /// `l = Σ 2^(m_i - M) l_i`. A part in which everything was masked has m = -inf, l = 0, o = 0 and adds exactly nothing.
    pub(super) fn merge(&self, left: States<'_>, right: States<'_>, d: usize) {
        let rows = right.max.len();
        for s in [&left, &right] {
            assert!(s.out.len() == rows * d && s.max.len() == rows && s.sum.len() == rows && d.is_multiple_of(8));
        }
        // SAFETY: as above.
        unsafe {
            (self.merge)(&MergeTile {
                rows,
                d,
                left: left.out.as_ptr(),
                left_max: left.max.as_ptr(),
                left_sum: left.sum.as_ptr(),
                out: right.out.as_mut_ptr(),
                max: right.max.as_mut_ptr(),
                sum: right.sum.as_mut_ptr(),
            });
        }
    }

    /// `out[row] += Σ weights[row][column + t] · values[t]`, in order of t.
    pub(super) fn values(&self, weights: &[f32], column: usize, values: &[f32], d: usize, out: &mut [f32]) {
        let rows = weights.len() / WINDOW;
        let tokens = values.len() / d;
        assert!(
            weights.len() == rows * WINDOW
                && out.len() == rows * d
                && values.len() == tokens * d
                && d.is_multiple_of(8)
        );
        assert!(column + tokens <= WINDOW);
        if rows == 0 {
            return;
        }
        // SAFETY: as above; `column` leaves room for all tokens in every row.
        unsafe {
            (self.values)(&ValueTile {
                weights: weights.as_ptr().add(column),
                rows,
                values: values.as_ptr(),
                tokens,
                d,
                out: out.as_mut_ptr(),
            });
        }
    }
}

/// Below this a power of two counts as zero (the smallest normal float32).
pub(super) const EXP2_LOWEST: f32 = -126.0;

/// 2^f on [-0.5, 0.5] as 1 + f·P(f): the coefficients of Cephes' `exp2f` (S. Moshier), highest power first. With the
/// rounding of float32 the whole is within 2e-7 relative (tested against float64).
pub(super) const EXP2: [f32; 6] =
    [1.535_336_2e-4, 1.339_887_4e-3, 9.618_437e-3, 5.550_332_5e-2, 2.402_264_8e-1, 6.931_472e-1];

/// 2^x for x at most 0: exactly 0 below [`EXP2_LOWEST`], exactly 1 at 0, NaN for NaN.
#[inline]
pub(super) fn exp2(x: f32) -> f32 {
    if x < EXP2_LOWEST {
        return 0.0;
    }
    let whole = x.round_ties_even();
    let f = x - whole;
    let p = EXP2[1..].iter().fold(EXP2[0], |p, c| p * f + c);
    // A NaN converts to 0 here and stays a NaN in `f`.
    (p * f + 1.0) * f32::from_bits(((whole as i32 + 127) as u32) << 23)
}

/// The weights of two maxima against the larger, and that one; `None` where both parts are wholly masked. A NaN reaches
/// the sums through its weight.
#[inline]
pub(super) fn weights(left: f32, right: f32) -> Option<(f32, f32, f32)> {
    let max = if left >= right { left } else { right };
    (max != f32::NEG_INFINITY).then(|| (exp2(left - max), exp2(right - max), max))
}
