//! A judge that is asked a yes/no question and never answers: how likely each answer would be is read from the logits.
//!
//! The value is P(yes) / (P(yes) + P(no)), each the sum over its spellings, so that probability which goes to other texts
//! ("The", a line break) does not count against a thought. Nothing is sampled, so nothing can be unreadable and equal
//! thoughts get equal values. Source: the self-evaluation of Kadavath et al., Language Models (Mostly) Know What They Know
//! (arXiv 2207.05221), P(True), which LLM Reasoners uses for its rewards.

use super::Part;

pub const NAME: &str = "yes_no";

/// Judges by the natural-log probability of each spelling of yes and of no.
pub fn judge(yes: &[f64], no: &[f64]) -> Part {
    let (yes, no) = (sum(yes), sum(no));
    let both = sum(&[yes, no]);
    if !both.is_finite() {
        return Part::missing(NAME, "neither yes nor no has any probability".into(), 0);
    }
    let detail =
        format!("ln P(yes) {yes:.2}, ln P(no) {no:.2}; other answers {:.0} %", 100.0 * (1.0 - both.exp()).max(0.0));
    Part::of(NAME, (yes - both).exp().min(1.0), detail)
}

/// ln Σ exp(l); minus infinity of nothing, NaN where one is none.
fn sum(logs: &[f64]) -> f64 {
    let best = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if best == f64::NEG_INFINITY || logs.iter().any(|l| l.is_nan()) {
        return if logs.iter().any(|l| l.is_nan()) { f64::NAN } else { best };
    }
    best + logs.iter().map(|l| (l - best).exp()).sum::<f64>().ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_is_the_share_of_yes_whatever_else_is_likely() {
        let of = |yes: &[f64], no: &[f64]| {
            judge(&yes.iter().map(|p| p.ln()).collect::<Vec<_>>(), &no.iter().map(|p| p.ln()).collect::<Vec<_>>())
        };
        let part = of(&[0.1, 0.2], &[0.1]);
        assert!((part.value.unwrap() - 0.75).abs() < 1e-12, "{part:?}");
        assert!(part.detail.ends_with("other answers 60 %"), "{}", part.detail);
        assert_eq!(of(&[0.0], &[0.5]).value, Some(0.0));
        assert_eq!(of(&[1e-300], &[0.0]).value, Some(1.0));
        let tiny = judge(&[-2000.0], &[-2000.0]);
        assert!((tiny.value.unwrap() - 0.5).abs() < 1e-12, "probabilities below the smallest number still compare");
        assert_eq!(of(&[0.0], &[0.0]).value, None);
        assert_eq!(judge(&[f64::NAN], &[-1.0]).value, None);
    }
}
