//! A judge that compares thoughts: each reply votes for one of the candidates, numbered from 1 in order of growth; a
//! thought's value is its share of the votes.
//!
//! Source: Yao et al., Tree of Thoughts (arXiv 2305.10601), section 3, "vote across states". Only a reply that names one
//! existing candidate is a vote; the others are counted and shown. Equal shares stay equal: the search then prefers the
//! higher log-probability and, where that is equal too, the lowest candidate number.

use super::Part;
use super::reply::vote;

pub const NAME: &str = "vote";

/// Counts the votes and gives each candidate its part.
pub fn judge(replies: &[Result<String, String>], candidates: usize) -> Vec<Part> {
    let mut votes = vec![0usize; candidates];
    let mut invalid = Vec::new();
    for reply in replies {
        match reply.as_ref().map_err(Clone::clone).and_then(|text| vote(text, candidates)) {
            Ok(candidate) => votes[candidate - 1] += 1,
            Err(why) => invalid.push(why),
        }
    }
    let valid: usize = votes.iter().sum();
    let told = match invalid.first() {
        Some(why) => format!(", {} invalid ({why})", invalid.len()),
        None => String::new(),
    };
    let part = |(i, &count): (usize, &usize)| {
        if valid == 0 {
            return Part::missing(NAME, format!("no valid vote{told}"), invalid.len());
        }
        let detail = format!("candidate {}: {count} of {valid} votes{told}", i + 1);
        let mut part = Part::of(NAME, count as f64 / valid as f64, detail);
        part.invalid = invalid.len();
        part
    };
    votes.iter().enumerate().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_valid_votes() {
        let reply = |text: &str| Ok(text.to_string());
        let parts = judge(&[reply("2"), reply("Neither."), reply("2"), reply("best: 1")], 3);
        let values: Vec<Option<f64>> = parts.iter().map(|p| p.value).collect();
        assert_eq!(values, [Some(1.0 / 3.0), Some(2.0 / 3.0), Some(0.0)]);
        assert!(parts.iter().all(|p| p.invalid == 1));
        assert!(parts[1].detail.starts_with("candidate 2: 2 of 3 votes, 1 invalid"), "{}", parts[1].detail);
    }

    #[test]
    fn without_a_valid_vote_no_candidate_has_a_value() {
        let parts = judge(&[Ok("Neither.".into())], 2);
        assert_eq!(parts.len(), 2);
        assert!(parts.iter().all(|p| p.value.is_none()));
    }
}
