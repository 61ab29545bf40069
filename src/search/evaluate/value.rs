//! A judge that values one thought at a time: with a label, or with a number on a scale.
//!
//! Source: Yao et al., Tree of Thoughts (arXiv 2305.10601), section 3, "value each state independently". The value is the
//! mean over the readable replies, as a share of the largest weight, or its place on the scale; unreadable replies are counted
//! and shown, and where none can be read there is no value.

use super::Part;
use super::reply::{Scale, label, score};
use std::collections::BTreeMap;

pub const NAME: &str = "value";

/// What a judge is asked for.
pub enum Ask<'a> {
    /// One of these, with their weights.
    Label(&'a BTreeMap<String, f64>),
    /// A number on this scale.
    Number(Scale),
}

/// Judges the replies for one thought; a reply that did not come is an `Err` with the reason.
pub fn judge(replies: &[Result<String, String>], ask: &Ask<'_>) -> Part {
    let mut sum = 0.0;
    let mut read = 0usize;
    let mut told = Vec::new();
    for reply in replies {
        let one = reply.as_ref().map_err(Clone::clone).and_then(|text| match ask {
            Ask::Label(labels) => {
                let largest = labels.values().copied().fold(f64::MIN_POSITIVE, f64::max);
                label(text, labels).map(|(name, weight)| (weight / largest, name.to_string()))
            }
            Ask::Number(scale) => {
                let read = score(text, *scale)?;
                let told = match read.clamped_from {
                    Some(from) => format!("{from} clamped to {}", read.value),
                    None => format!("{}", read.value),
                };
                Ok(((read.value - scale.low) / (scale.high - scale.low), told))
            }
        });
        match one {
            Ok((value, what)) => {
                sum += value;
                read += 1;
                told.push(what);
            }
            Err(why) => told.push(format!("invalid ({why})")),
        }
    }
    let detail = told.join(", ");
    if read == 0 {
        Part::missing(NAME, detail, replies.len())
    } else {
        let mut part = Part::of(NAME, sum / read as f64, detail);
        part.invalid = replies.len() - read;
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Scale = Scale { low: 0.0, high: 1.0 };

    fn labels() -> BTreeMap<String, f64> {
        [("sure".to_string(), 20.0), ("likely".to_string(), 1.0)].into()
    }

    #[test]
    fn labels_are_a_share_of_the_largest_weight_and_invalid_ones_do_not_pull_it_down() {
        let part = judge(&[Ok("sure".into()), Ok("likely".into()), Ok("hm".into())], &Ask::Label(&labels()));
        assert_eq!(part.value, Some(21.0 / 40.0));
        assert_eq!(part.invalid, 1);
        assert!(part.detail.contains("invalid (none of the labels in the reply)"), "{}", part.detail);
    }

    #[test]
    fn without_a_readable_reply_there_is_no_value() {
        let part =
            judge(&[Ok("(no score given)".into()), Err("the script has no more replies".into())], &Ask::Number(ONE));
        assert_eq!((part.value, part.invalid), (None, 2));
    }

    #[test]
    fn a_number_is_its_place_on_the_scale() {
        let ten = Ask::Number(Scale { low: 0.0, high: 10.0 });
        assert_eq!(judge(&[Ok("8/10".into()), Ok("Score: 2".into())], &ten).value, Some(0.5));
        assert_eq!(judge(&[Ok("2".into())], &Ask::Number(Scale { low: 1.0, high: 5.0 })).value, Some(0.25));
    }

    #[test]
    fn a_clamp_is_told() {
        let part = judge(&[Ok("Score: -1".into())], &Ask::Number(ONE));
        assert_eq!(part.value, Some(0.0));
        assert!(part.detail.contains("-1 clamped to 0"), "{}", part.detail);
    }
}
