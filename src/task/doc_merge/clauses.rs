//! Documents as lists of clauses: written for puzzles, split, and compared by their words.

use crate::base::text::sanitize;
use rand::Rng;
use rand::seq::SliceRandom;
use std::collections::BTreeSet;

/// Between documents, as they are typed.
pub(super) const BETWEEN: &str = "---";

/// Share of words that two clauses have in common where they are one fact.
const SAME: f64 = 0.55;

/// Clauses of generated documents: what a contract may say, in places of which puzzles differ.
const CLAUSES: &[&str] = &[
    "The parties are {a} and {b}, each acting for itself.",
    "Confidential information covers designs, source code and prices that {a} shows to {b}.",
    "{b} uses the information for the joint project alone.",
    "The duty of secrecy lasts {n} years after the last disclosure.",
    "A breach costs {m} dollars for each case.",
    "{b} returns or destroys all copies within {d} days of a request.",
    "Courts of the state where {a} is registered decide disputes.",
    "Changes of this agreement need the signature of both parties.",
    "Employees of {b} may see the information only when their work requires it.",
    "What was public before its disclosure is not confidential.",
    "No licence of patents or trade marks follows from this agreement.",
    "Either party ends the agreement with {d} days of notice.",
];

const COMPANIES: &[&str] =
    &["Alder Works", "Birch Systems", "Cedar Labs", "Dogwood Partners", "Elm Robotics", "Fir Energy"];

pub(super) fn split_documents(text: &str) -> Vec<String> {
    let mut documents = vec![String::new()];
    for line in text.lines() {
        if line.trim() == BETWEEN {
            documents.push(String::new());
        } else if let Some(last) = documents.last_mut() {
            last.push_str(line);
            last.push('\n');
        }
    }
    documents.into_iter().map(|text| text.trim().to_string()).filter(|text| !text.is_empty()).collect()
}

/// Documents of so many clauses each, drawn from one set, so that most facts stand in several.
pub(super) fn write(documents: usize, clauses: usize, rng: &mut impl Rng) -> Vec<String> {
    let mut companies = COMPANIES.to_vec();
    companies.shuffle(rng);
    let values = [
        ("{a}", companies[0].to_string()),
        ("{b}", companies[1].to_string()),
        ("{n}", rng.random_range(2..9u32).to_string()),
        ("{m}", (rng.random_range(10..90u32) * 1000).to_string()),
        ("{d}", rng.random_range(5..60u32).to_string()),
    ];
    let said = |clause: &str| values.iter().fold(clause.to_string(), |text, (place, value)| text.replace(place, value));
    let clauses = clauses.min(CLAUSES.len());
    (0..documents)
        .map(|_| {
            let mut all: Vec<usize> = (0..CLAUSES.len()).collect();
            all.shuffle(rng);
            all.truncate(clauses);
            all.sort_unstable();
            all.into_iter().map(|at| said(CLAUSES[at])).collect::<Vec<_>>().join("\n")
        })
        .collect()
}

/// The words of a clause by which it is compared: lower case, without the shortest ones.
fn words(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| word.chars().count() > 2 || word.chars().any(|c| c.is_ascii_digit()))
        .map(str::to_lowercase)
        .collect()
}

/// A text's clauses: its lines, and the sentences of each line, without bullets and numbers before them.
pub(super) fn clauses(text: &str) -> Vec<(String, BTreeSet<String>)> {
    let bare = |part: &str| {
        let part = part.trim().trim_start_matches(['-', '*', '•', '#']).trim_start();
        let label = part.split_once(['.', ')']).filter(|(label, rest)| {
            rest.starts_with(' ') && (label.chars().all(|c| c.is_ascii_digit()) || label.chars().count() == 1)
        });
        label.map_or(part, |(_, rest)| rest).trim().to_string()
    };
    let sentences = |line: &str| {
        let mut parts = Vec::new();
        let mut from = 0;
        for (at, _) in line.match_indices(". ") {
            // `1. ` and `U.S. ` are no ends of sentences.
            if line[from..at].split_whitespace().count() > 2 {
                parts.push(bare(&line[from..=at]));
                from = at + 2;
            }
        }
        parts.push(bare(&line[from..]));
        parts
    };
    let parts = text.lines().flat_map(sentences);
    parts
        .map(|part| (words(&part), part))
        .filter(|(words, _)| words.len() >= 2)
        .map(|(words, part)| (part, words))
        .collect()
}

/// Whether two clauses, by their words, are one fact: words in common, as a share of all words of both.
pub(super) fn same(a: &BTreeSet<String>, b: &BTreeSet<String>) -> bool {
    let common = a.intersection(b).count();
    common as f64 / (a.len() + b.len() - common).max(1) as f64 >= SAME
}

/// Of a merged document what stands between `<Merged>` and `</Merged>`, else all of it.
pub(super) fn merged(reply: &str) -> String {
    let text = sanitize(reply).into_owned();
    let start = text.rfind("<Merged>").map_or(0, |at| at + "<Merged>".len());
    let end = text[start..].find("</Merged>").map_or(text.len(), |at| start + at);
    text[start..end].trim().to_string()
}
