//! Attention in float64 without plan, pages or tricks: what every kernel is compared with.

/// Attention of one query over its path.
pub struct Query<'a> {
    /// `[heads][d]`.
    pub q: &'a [f32],
    /// K and V of the tokens it sees, in path order, each `[kv_heads][d]`.
    pub keys: Vec<&'a [f32]>,
    pub values: Vec<&'a [f32]>,
}

/// `[heads][d]`, and the natural logarithm of the sum of exponentials of each head. With nothing to see: zeros and -inf.
pub fn attend(query: &Query<'_>, heads: usize, kv_heads: usize, d: usize) -> (Vec<f64>, Vec<f64>) {
    let mut out = vec![0.0; heads * d];
    let mut lse = vec![f64::NEG_INFINITY; heads];
    for head in 0..heads {
        let from = head / (heads / kv_heads) * d;
        let q = &query.q[head * d..(head + 1) * d];
        let dot =
            |k: &&[f32]| q.iter().zip(&k[from..from + d]).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let scores: Vec<f64> = query.keys.iter().map(|k| dot(k) / (d as f64).sqrt()).collect();
        let max = scores.iter().fold(f64::NEG_INFINITY, |a, &b| if a >= b { a } else { b });
        if max == f64::NEG_INFINITY {
            continue;
        }
        let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        lse[head] = max + sum.ln();
        for (score, value) in scores.iter().zip(&query.values) {
            let weight = (score - max).exp() / sum;
            for (o, v) in out[head * d..(head + 1) * d].iter_mut().zip(&value[from..from + d]) {
                *o += weight * f64::from(*v);
            }
        }
    }
    (out, lse)
}
