//! The model's own confidence: exp of the mean natural-log probability of the thought's tokens, from 0 to 1. The mean
//! and not the sum, so that a longer thought is not punished for its length.

use super::Part;

pub const NAME: &str = "logprob";

/// Scores a thought by its tokens' natural-log probabilities.
pub fn score(logprobs: &[f32]) -> Part {
    if logprobs.is_empty() {
        return Part::missing(NAME, "no log-probabilities".into(), 1);
    }
    let mean = logprobs.iter().map(|&l| f64::from(l)).sum::<f64>() / logprobs.len() as f64;
    if mean.is_nan() {
        return Part::missing(NAME, "a log-probability is not a number".into(), 1);
    }
    Part::of(NAME, mean.exp().min(1.0), format!("mean {mean:.3} over {} tokens", logprobs.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_taken_and_odd_values_are_no_values() {
        let value = |logprobs: &[f32]| score(logprobs).value;
        assert!((value(&[-1.0, -3.0]).unwrap() - (-2.0f64).exp()).abs() < 1e-12);
        assert_eq!(value(&[0.0]), Some(1.0));
        assert_eq!(value(&[f32::NEG_INFINITY]), Some(0.0));
        assert_eq!(value(&[]), None);
        assert_eq!(value(&[f32::NAN]), None);
    }
}
