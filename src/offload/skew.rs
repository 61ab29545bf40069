//! Skewing: for every layer and K/V head an orthogonal basis in which a few columns of queries and keys carry most of
//! their product (InfiniGen, OSDI 2024), found once per model from one sample text.
//!
//! The queries of a K/V head's group after RoPE are stacked as rows: `Q = U Σ Vᵀ`, and `A = V`. Since `A Aᵀ = I`,
//! `(qA)·(kA) = q·k`. RoPE does not commute with `A`, so `A` stays out of the weights and serves guesses alone. Columns are
//! ordered by the sum of `|QA| + |KA|`: the first `ratio` of them are the partial ones.
//!
//! Keys are told by how they differ from the sample's mean key, since what all keys share moves all scores alike. Queries that
//! are guessed from the input of the layer before lack what that layer adds to it: what it adds in the mean is added.
//!
//! How well a layer can be guessed is measured on the same text: the attention weight on the tokens that the guess takes,
//! as a share of that on the best tokens, as many.

use super::select::Select;
use crate::base::{Error, Result};
use crate::device::picks::{Asked, Choose, Room, windows};
use crate::device::speculation::{Basis, Speculation};
use linfa_linalg::svd::{SVD, SvdSort};
use ndarray::ArrayView2;

pub mod file;

/// Share of the path that the measure of a guess takes, and of the columns that it guesses with.
const MEASURED: (f32, f64) = (0.1, 0.3);

/// Every so many of the sample's later rows are measured.
const MEASURE_EVERY: usize = 8;

/// A guess that keeps less of the best tokens' weight than this is not worth it in one of the first layers.
const GOOD_GUESS: f64 = 0.75;

/// Layers that are whole at least. The first has none before it; the second attends so widely that a few tokens do not stand
/// for it, however well they are guessed: of 100 sorting puzzles of 16 numbers the default model solved 79 with it whole, and 68
/// without (a layer ahead, alpha 4).
const LEAST_WHOLE: usize = 2;

/// The share of the layers that may be whole at most, by choice of the measure.
const MOST_WHOLE: usize = 6;

/// What a layer saw of the sample.
pub struct Sampled<'a> {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_size: usize,
    /// `[rows][heads · d]`, as they were and as they were guessed a layer before (empty for the first layer).
    pub q: &'a [f32],
    pub guess: &'a [f32],
    /// `[rows][kv_heads · d]`.
    pub k: &'a [f32],
    /// What the layer before adds to this one's input in the mean, `[hidden]`, with which the guess was made.
    pub shift: &'a [f32],
}

/// One layer's basis and how well it guesses.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerSkew {
    /// `[kv_head][column][d]`, the columns that carry most first.
    pub columns: Vec<f32>,
    /// The mean key, `[kv_head][d]`.
    pub mean: Vec<f32>,
    /// What the layer before adds to this one's input in the mean, `[hidden]`; zeros for the first layer.
    pub shift: Vec<f32>,
    /// Attention weight kept, as a share of the best: with the queries of a layer ahead, and with the layer's own.
    pub ahead: f32,
    pub same: f32,
}

/// All layers of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Skew {
    pub hidden: usize,
    pub kv_heads: usize,
    pub head_size: usize,
    pub layers: Vec<LayerSkew>,
}

impl LayerSkew {
    pub fn of(sampled: &Sampled<'_>) -> Result<Self> {
        let Sampled { heads, kv_heads, head_size: d, q, k, .. } = *sampled;
        let group = heads / kv_heads;
        let mut columns = Vec::with_capacity(kv_heads * d * d);
        for kv_head in 0..kv_heads {
            let queries: Vec<f32> = q
                .chunks_exact(heads * d)
                .flat_map(|row| &row[kv_head * group * d..(kv_head + 1) * group * d])
                .copied()
                .collect();
            let keys: Vec<&[f32]> = k.chunks_exact(kv_heads * d).map(|row| &row[kv_head * d..][..d]).collect();
            let basis = right_vectors(&queries, d)?;
            let weight = |column: &[f32]| -> f64 {
                let along = |row: &[f32]| f64::from(row.iter().zip(column).map(|(a, b)| a * b).sum::<f32>().abs());
                queries.chunks_exact(d).map(along).sum::<f64>() + keys.iter().map(|key| along(key)).sum::<f64>()
            };
            let mut weighed: Vec<(f64, &[f32])> =
                basis.chunks_exact(d).map(|column| (weight(column), column)).collect();
            weighed.sort_by(|a, b| b.0.total_cmp(&a.0));
            columns.extend(weighed.iter().flat_map(|(_, column)| *column));
        }
        let shift = sampled.shift.to_vec();
        let mut skew = Self { columns, mean: mean(k, kv_heads * d), shift, ahead: 0.0, same: 0.0 };
        let basis = skew.basis(kv_heads, d, columns_of(MEASURED.1, d));
        skew.same = kept(sampled, &basis, sampled.q);
        skew.ahead = if sampled.guess.is_empty() { 0.0 } else { kept(sampled, &basis, sampled.guess) };
        Ok(skew)
    }

    fn basis(&self, kv_heads: usize, d: usize, columns: usize) -> Basis {
        let head = |kv_head: usize| &self.columns[kv_head * d * d..][..columns * d];
        let mut basis = Basis { columns, numbers: (0..kv_heads).flat_map(head).copied().collect(), centre: Vec::new() };
        let mut centre = vec![0f32; kv_heads * columns];
        for (kv_head, (mean, to)) in self.mean.chunks_exact(d).zip(centre.chunks_exact_mut(columns)).enumerate() {
            basis.project(kv_head, mean, to);
        }
        basis.centre = centre;
        basis
    }
}

impl Skew {
    /// The bases with `ratio` of the columns; `whole_layers` as given or measured.
    pub fn speculation(&self, ratio: f64, whole_layers: Option<usize>) -> Speculation {
        let columns = columns_of(ratio, self.head_size);
        Speculation {
            whole_layers: whole_layers.unwrap_or_else(|| self.whole_layers()),
            columns,
            layers: self.layers.iter().map(|l| l.basis(self.kv_heads, self.head_size, columns)).collect(),
            shifts: self.layers.iter().map(|l| l.shift.clone()).collect(),
        }
    }

    /// The first layers up to the last of a beginning that is guessed badly a layer ahead; at least [`LEAST_WHOLE`], where one
    /// more is left to select.
    pub fn whole_layers(&self) -> usize {
        let most = (self.layers.len() / MOST_WHOLE).max(1).min(self.layers.len() - 1);
        let bad = |l: &LayerSkew| f64::from(l.ahead) < GOOD_GUESS;
        let measured = self.layers[..most].iter().rposition(bad).map_or(0, |last| last + 1);
        measured.max(LEAST_WHOLE.min(self.layers.len() - 1))
    }
}

/// The mean of rows of `width` numbers.
fn mean(rows: &[f32], width: usize) -> Vec<f32> {
    let mut sums = vec![0f64; width];
    for row in rows.chunks_exact(width) {
        sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
    }
    let count = (rows.len() / width).max(1) as f64;
    sums.iter().map(|sum| (sum / count) as f32).collect()
}

/// Columns that a ratio takes; at least one.
pub fn columns_of(ratio: f64, head_size: usize) -> usize {
    ((head_size as f64 * ratio).round() as usize).clamp(1, head_size)
}

/// V of `Q = U Σ Vᵀ` for `Q [rows][d]`, a column after the other, by falling singular value. Fewer rows than columns, or a
/// `Q` of lower rank, leave columns over which any orthogonal ones complete.
fn right_vectors(q: &[f32], d: usize) -> Result<Vec<f32>> {
    let refuse = |e: String| Error::fault(format!("the queries of the sample text have no singular vectors: {e}"));
    if q.iter().any(|x| !x.is_finite()) {
        return Err(refuse("some are not finite; the weights are damaged".into()));
    }
    // `QᵀQ` has the same V, and d rows whatever the sample's length.
    let mut gram = vec![0f64; d * d];
    for row in q.chunks_exact(d) {
        for (i, &a) in row.iter().enumerate() {
            for (g, &b) in gram[i * d..(i + 1) * d].iter_mut().zip(row) {
                *g += f64::from(a) * f64::from(b);
            }
        }
    }
    let gram = ArrayView2::from_shape((d, d), &gram).map_err(|e| refuse(e.to_string()))?;
    let (_, _, vt) = gram.svd(false, true).map_err(|e| refuse(e.to_string()))?.sort_svd_desc();
    let vt = vt.ok_or_else(|| refuse("none came back".into()))?;
    Ok(vt.iter().map(|&x| x as f32).collect())
}

/// The attention weight on the tokens that `from` guesses, as a share of that on the best; mean over rows and heads.
fn kept(sampled: &Sampled<'_>, basis: &Basis, from: &[f32]) -> f32 {
    let Sampled { heads, kv_heads, head_size: d, q, k, .. } = *sampled;
    let (group, rows) = (heads / kv_heads, k.len() / (kv_heads * d));
    let select = Select { alpha: f32::INFINITY, max_fetch: MEASURED.0, random: false };
    let scale = 1.0 / (d as f32).sqrt();
    let key = |token: usize, kv_head: usize| &k[(token * kv_heads + kv_head) * d..][..d];
    let mut projected = vec![0f32; rows * kv_heads * basis.columns];
    for (at, out) in projected.chunks_exact_mut(basis.columns).enumerate() {
        basis.project_key(at % kv_heads, key(at / kv_heads, at % kv_heads), out);
    }
    let (mut ours, mut best) = (0f64, 0f64);
    for row in (rows / 2..rows).step_by(MEASURE_EVERY).filter(|&row| row > 0) {
        let mut exact = vec![0f32; heads * row];
        let mut guess = vec![0f32; heads * row];
        let mut columns = vec![0f32; basis.columns];
        for head in 0..heads {
            let own = (row * heads + head) * d..(row * heads + head + 1) * d;
            basis.project(head / group, &from[own.clone()], &mut columns);
            for token in 0..row {
                let at = (token * kv_heads + head / group) * basis.columns;
                let near: f32 = projected[at..at + basis.columns].iter().zip(&columns).map(|(a, b)| a * b).sum();
                let far: f32 = key(token, head / group).iter().zip(&q[own.clone()]).map(|(a, b)| a * b).sum();
                (guess[head * row + token], exact[head * row + token]) = (near * scale, far * scale);
            }
        }
        let choose = |scores: &[f32]| {
            let mut words = vec![0; windows(row as u32) * kv_heads];
            let asked = Asked { layer: 0, position: row as u32, kv_heads, group, scores };
            select.choose(&asked, &mut Room::default(), &mut words);
            words
        };
        let (guessed, wanted) = (choose(&guess), choose(&exact));
        for (head, scores) in exact.chunks_exact(row).enumerate() {
            let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let total: f64 = scores.iter().map(|s| f64::from((s - top).exp())).sum();
            let weight = |words: &[u64]| -> f64 {
                let has = |t: usize| words[t / 64 * kv_heads + head / group] >> (t % 64) & 1 == 1;
                (0..row).filter(|&t| has(t)).map(|t| f64::from((scores[t] - top).exp())).sum::<f64>() / total
            };
            ours += weight(&guessed);
            best += weight(&wanted);
        }
    }
    if best > 0.0 { (ours / best) as f32 } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::stream;
    use rand::Rng;

    /// Queries and keys that lie near a plane: 60 rows, two query heads a K/V head.
    fn sample(d: usize) -> (Vec<f32>, Vec<f32>) {
        let mut random = stream(5, "skew", &[]);
        let plane: Vec<Vec<f32>> = (0..2).map(|_| (0..d).map(|_| random.random_range(-1.0..1.0)).collect()).collect();
        let mut row = || -> Vec<f32> {
            let (a, b) = (random.random_range(-9.0..9.0), random.random_range(-9.0..9.0));
            (0..d).map(|i| a * plane[0][i] + b * plane[1][i] + random.random_range(-0.05..0.05)).collect()
        };
        let q = (0..60 * 4).flat_map(|_| row()).collect();
        let k = (0..60 * 2).flat_map(|_| row()).collect();
        (q, k)
    }

    #[test]
    fn a_basis_is_orthogonal_keeps_products_and_its_first_columns_carry_them() {
        let d = 16;
        let (q, k) = sample(d);
        let sampled = Sampled { heads: 4, kv_heads: 2, head_size: d, q: &q, guess: &[], k: &k, shift: &[] };
        let skew = LayerSkew::of(&sampled).unwrap();
        for head in skew.columns.chunks_exact(d * d) {
            for (i, a) in head.chunks_exact(d).enumerate() {
                for (j, b) in head.chunks_exact(d).enumerate() {
                    let product: f32 = a.iter().zip(b).map(|(a, b)| a * b).sum();
                    let expected = if i == j { 1.0 } else { 0.0 };
                    assert!((product - expected).abs() < 1e-4, "{i} {j}: {product}");
                }
            }
        }
        for (columns, most) in [(d, 1e-3), (2, 2.0)] {
            let basis = skew.basis(2, d, columns);
            let (mut a, mut b) = (vec![0f32; columns], vec![0f32; columns]);
            for (q, k) in q.chunks_exact(d).step_by(4).zip(k.chunks_exact(d).step_by(2)) {
                basis.project(0, q, &mut a);
                basis.project(0, k, &mut b);
                let exact: f32 = q.iter().zip(k).map(|(a, b)| a * b).sum();
                let near: f32 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
                assert!((exact - near).abs() <= most, "{columns} columns: {near}, not {exact}");
            }
        }
        assert!(skew.same > 0.99 && skew.ahead == 0.0, "{} {}", skew.same, skew.ahead);
    }

    #[test]
    fn a_guess_by_other_queries_keeps_less_and_makes_first_layers_whole() {
        let d = 16;
        let (q, k) = sample(d);
        let other: Vec<f32> = q.iter().rev().copied().collect();
        let of = |guess: &[f32]| {
            LayerSkew::of(&Sampled { heads: 4, kv_heads: 2, head_size: d, q: &q, guess, k: &k, shift: &[1.0] })
        };
        let (good, bad) = (of(&q).unwrap(), of(&other).unwrap());
        assert!(good.ahead > 0.99 && bad.ahead < 0.75, "{} {}", good.ahead, bad.ahead);
        let whole = |bad_ones: usize, good_ones: usize| {
            let layers = [vec![bad.clone(); bad_ones], vec![good.clone(); good_ones], vec![bad.clone(); 2]].concat();
            Skew { hidden: 1, kv_heads: 2, head_size: d, layers }
        };
        assert_eq!([(3, 20), (1, 20), (1, 0), (0, 0)].map(|(bad, good)| whole(bad, good).whole_layers()), [3, 2, 2, 1]);
        let skew = whole(2, 20);
        let speculation = skew.speculation(0.25, None);
        assert_eq!((speculation.columns, speculation.whole_layers, speculation.layers.len()), (4, 2, 24));
        assert_eq!(skew.speculation(0.001, Some(5)).whole_layers, 5);
    }
}
