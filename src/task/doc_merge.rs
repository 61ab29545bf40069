//! Merging documents: one document that keeps what all of them say and says nothing twice.
//!
//! Graph of Thoughts has a model score a merged document on two scales of 0 to 10, how little of it is redundant and how
//! much of the documents it retains, and takes their harmonic mean. (Besta et al., AAAI 2024;
//! github.com/spcl/graph-of-thoughts, examples/doc_merge.) There is no answer to compare with, so the check here counts
//! the same two things instead of asking a model: a document is a list of *clauses* (lines, and sentences of lines);
//! clauses that share most of their words are one *fact*; retained is the share of facts most of whose words stand in some
//! clause of the answer, and not redundant is the share of the answer's clauses that are no fact said before. The error score
//! is how far the harmonic mean is from 1, in hundredths. What a paraphrase keeps in other words is not seen.
//!
//! A step is the next clause of the documents, in their order; which one repeats a fact only the checker knows.

mod clauses;

use super::constrain::Steps;
use super::data::{self, Columns, Holds};
use super::{Partial, Puzzle, Task, Verdict, cut};
use crate::base::{Error, Result, rng};
use crate::lm::Constraint;
use clauses::{BETWEEN, clauses, merged, same, split_documents, write};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// Error score of an empty reply.
pub const UNREADABLE: u64 = 1000;

/// Clauses that may come next, at most: a longer list costs more to rank than it is worth.
const AHEAD: usize = 8;

/// Share of a fact's words that keep it.
const KEPT: f64 = 0.75;

/// Documents of one puzzle.
const MAX_DOCUMENTS: usize = 32;

const COLUMNS: Columns<'_> = Columns {
    id: &["id"],
    inputs: &[&["document1"], &["document2"], &["document3"], &["document4"]],
    answer: &["answer", "merged"],
    holds: Holds::Texts,
};

/// The task.
pub struct DocMerge;

impl Task for DocMerge {
    fn name(&self) -> &str {
        "doc-merge"
    }

    fn about(&self) -> &str {
        "merge documents into one that keeps everything and repeats nothing"
    }

    fn default_strategy(&self) -> &str {
        "tot-bfs"
    }

    fn input_forms(&self) -> &str {
        "documents separated by lines of `---`, at least two; each a list of clauses, one a line or a sentence"
    }

    fn example(&self) -> &str {
        "The parties are Alder Works and Elm Robotics.\nA breach costs 500 dollars for each case.\n---\nThe parties are Alder Works and Elm \
         Robotics.\nThe duty of secrecy lasts 2 years after the last disclosure."
    }

    fn inputs(&self) -> Vec<(&str, &str)> {
        vec![
            ("puzzle.len", "how many facts the documents hold, and so how many steps an answer takes"),
            ("puzzle.input", "the documents, with lines of `---` between them"),
            ("puzzle.documents", "the documents as a list of texts"),
            ("puzzle.examples", "one solved example of two short documents: a list of {input, documents, output}"),
        ]
    }

    fn default_size(&self) -> usize {
        4
    }

    fn generate(&self, size: usize, seed: u64) -> Result<Arc<dyn Puzzle>> {
        if !(2..=MAX_DOCUMENTS).contains(&size) {
            return Err(Error::input(format!(
                "a doc-merge puzzle of {size} documents cannot be made; give 2 to {MAX_DOCUMENTS}"
            )));
        }
        let mut rng = rng::stream(seed, "puzzle", &[rng::part(self.name()), size as u64]);
        Ok(Arc::new(Documents::new(format!("{seed}-{size}"), write(size, 6, &mut rng))))
    }

    fn parse(&self, input: &str) -> Result<Arc<dyn Puzzle>> {
        let refuse = |what: String| Error::input(format!("input for doc-merge: {what}; write {}", self.input_forms()));
        let documents = split_documents(input);
        if !(2..=MAX_DOCUMENTS).contains(&documents.len()) {
            return Err(refuse(format!("holds {} documents", documents.len())));
        }
        let puzzle = Documents::new("input".into(), documents);
        if puzzle.clauses.is_empty() {
            return Err(refuse("holds no clause of two words or more".into()));
        }
        Ok(Arc::new(puzzle))
    }

    fn read_data(&self, path: &Path) -> Result<Vec<Arc<dyn Puzzle>>> {
        data::read(path, &COLUMNS)?
            .into_iter()
            .map(|row| {
                let documents: Vec<String> =
                    row.inputs.iter().map(|text| text.trim().to_string()).filter(|text| !text.is_empty()).collect();
                if documents.len() < 2 {
                    return Err(row.refuse(&COLUMNS, 0, "fewer than two of the four documents hold text"));
                }
                let puzzle = Documents::new(row.id.clone(), documents);
                if puzzle.clauses.is_empty() {
                    return Err(row.refuse(&COLUMNS, 0, "no document holds a clause of two words or more"));
                }
                Ok(Arc::new(puzzle) as Arc<dyn Puzzle>)
            })
            .collect()
    }
}

/// A clause of the documents, and the fact that it says.
#[derive(Debug, Clone)]
struct Clause {
    text: String,
    fact: usize,
}

#[derive(Clone)]
struct Documents {
    id: String,
    documents: Vec<String>,
    /// In the order of the documents; each text once.
    clauses: Vec<Clause>,
    /// The words of each fact, as its first clause has them.
    facts: Vec<BTreeSet<String>>,
}

/// What the check counts.
struct Measured {
    /// Share of facts that are there.
    retained: f64,
    /// Share of clauses that are no repetition.
    fresh: f64,
}

impl Measured {
    fn harmonic_mean(&self) -> f64 {
        match self.retained + self.fresh {
            0.0 => 0.0,
            sum => 2.0 * self.retained * self.fresh / sum,
        }
    }
}

impl Documents {
    fn new(id: String, documents: Vec<String>) -> Self {
        let mut facts: Vec<BTreeSet<String>> = Vec::new();
        let mut all: Vec<Clause> = Vec::new();
        for (text, words) in documents.iter().flat_map(|document| clauses(document)) {
            if all.iter().any(|clause| clause.text == text) {
                continue;
            }
            let known = facts.iter().position(|fact| same(fact, &words));
            let fact = known.unwrap_or_else(|| {
                facts.push(words);
                facts.len() - 1
            });
            all.push(Clause { text, fact });
        }
        Self { id, documents, clauses: all, facts }
    }

    fn measure(&self, answer: &str) -> Measured {
        let said = clauses(answer);
        let kept = |fact: &&BTreeSet<String>| {
            said.iter().any(|(_, words)| fact.intersection(words).count() as f64 >= KEPT * fact.len() as f64)
        };
        let retained = self.facts.iter().filter(kept).count() as f64 / self.facts.len().max(1) as f64;
        let repeats = |at: usize| said[..at].iter().any(|(_, before)| same(before, &said[at].1));
        let fresh = (0..said.len()).filter(|&at| !repeats(at)).count() as f64 / said.len().max(1) as f64;
        Measured { retained, fresh: if said.is_empty() { 0.0 } else { fresh } }
    }

    /// The clauses of a beginning by their places; `None` for a line that is none of them.
    fn places(&self, prefix: &str) -> Vec<Option<usize>> {
        let lines = prefix.lines().map(str::trim).filter(|line| !line.is_empty());
        lines.map(|line| self.clauses.iter().position(|clause| clause.text == line)).collect()
    }
}

impl Puzzle for Documents {
    fn task(&self) -> &str {
        "doc-merge"
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn title(&self) -> String {
        format!("merge {} documents of {} facts", self.documents.len(), self.facts.len())
    }

    fn inputs(&self) -> Value {
        json!({"puzzle": {
            "len": self.len(),
            "input": self.documents.join(&format!("\n{BETWEEN}\n")),
            "documents": self.documents,
            "examples": [example()],
        }})
    }

    fn len(&self) -> usize {
        self.facts.len().max(1)
    }

    fn size(&self) -> usize {
        self.documents.len()
    }

    fn check(&self, answer: &str) -> Verdict {
        let text = merged(answer);
        if text.is_empty() {
            let why = format!("unreadable: the reply holds no document; counted as {UNREADABLE} errors");
            return Verdict { error_score: UNREADABLE, answer: None, why };
        }
        let measured = self.measure(&text);
        let mean = measured.harmonic_mean();
        // Any fault is at least one hundredth.
        let error_score = if mean >= 1.0 { 0 } else { (((1.0 - mean) * 100.0).round() as u64).max(1) };
        let (retained, fresh) = (100.0 * measured.retained, 100.0 * measured.fresh);
        let what = format!("{retained:.0} % of the facts kept, {fresh:.0} % of the clauses said once");
        let why = if error_score == 0 { format!("right: {what}") } else { format!("wrong: {what}") };
        Verdict { error_score, answer: Some(Value::from(text)), why }
    }

    fn check_partial(&self, prefix: &str) -> Partial {
        let places = self.places(prefix);
        let foreign = places.iter().filter(|place| place.is_none()).count();
        let said: Vec<usize> = places.into_iter().flatten().collect();
        let mut facts = BTreeSet::new();
        let repeated = said.iter().filter(|&&at| !facts.insert(self.clauses[at].fact)).count();
        let last = said.iter().max().copied().unwrap_or(0);
        let passed: BTreeSet<usize> = self.clauses[..last].iter().map(|clause| clause.fact).collect();
        // A fact that was passed over may still be said in another document's words.
        let to_come: BTreeSet<usize> = self.clauses[last..].iter().map(|clause| clause.fact).collect();
        let lost = passed.iter().filter(|fact| !facts.contains(fact) && !to_come.contains(fact)).count();
        let parts = [(foreign, "not in the documents"), (repeated, "said twice"), (lost, "left out")];
        match foreign + repeated + lost {
            0 => Partial::Possible { score: 1.0, complete: facts.len() == self.facts.len() },
            errors => {
                let why: Vec<String> =
                    parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
                Partial::Wrong { score: 1.0 / (1.0 + errors as f64), why: why.join(", ") }
            }
        }
    }

    fn solved(&self, answer: &str) -> bool {
        self.check(answer).error_score == 0
    }

    fn next_steps(&self, prefix: &str) -> Vec<String> {
        let said: Vec<usize> = self.places(prefix).into_iter().flatten().collect();
        let from = said.iter().max().map_or(0, |last| last + 1);
        self.clauses[from..].iter().take(AHEAD).map(|clause| format!("{}\n", clause.text)).collect()
    }

    fn answer_constraint(&self, prefix: &str) -> Arc<dyn Constraint> {
        Arc::new(Steps::new(Arc::new(self.clone()), prefix))
    }

    /// Runs of at least two documents: one alone is nothing to merge.
    fn split(&self, parts: usize) -> Option<Vec<String>> {
        let runs = cut(&self.documents, parts).filter(|_| self.documents.len() >= 2 * parts)?;
        Some(runs.into_iter().map(|run| run.join(&format!("\n{BETWEEN}\n"))).collect())
    }

    fn join(&self, parts: &[String]) -> Option<String> {
        Some(parts.join(&format!("\n{BETWEEN}\n")))
    }

    fn state_key(&self, prefix: &str) -> String {
        prefix.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn refute(&self, _: &str) -> Option<String> {
        None
    }
}

/// One solved example, the same for every puzzle.
fn example() -> Value {
    let mut rng = rng::stream(0, "examples", &[rng::part("doc-merge")]);
    let puzzle = Documents::new(String::new(), write(2, 3, &mut rng));
    let mut facts = BTreeSet::new();
    let output: Vec<&str> =
        puzzle.clauses.iter().filter(|clause| facts.insert(clause.fact)).map(|clause| clause.text.as_str()).collect();
    json!({
        "input": puzzle.documents.join(&format!("\n{BETWEEN}\n")),
        "documents": puzzle.documents,
        "output": output.join("\n"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::testing::shared;
    use crate::lm::Judgement;
    use proptest::prelude::*;

    const TWO: &str = "1. A breach costs 500 dollars.\n2. The term is two years. Notices are in writing.\n---\n- Notices are in \
                       writing.\n- A breach costs 500 dollars for each case.";

    fn puzzle(text: &str) -> Arc<dyn Puzzle> {
        DocMerge.parse(text).unwrap()
    }

    #[test]
    fn facts_are_kept_and_said_once() {
        let puzzle = puzzle(TWO);
        assert_eq!(puzzle.len(), 3, "the two clauses about a breach are one fact");
        let check = |answer: &str, errors: u64, part: &str| {
            let verdict = puzzle.check(answer);
            assert_eq!(verdict.error_score, errors, "{answer}: {}", verdict.why);
            assert!(verdict.why.contains(part), "{}", verdict.why);
        };
        check("Notices are in writing. A breach costs 500 dollars. The term is two years.", 0, "right");
        check(
            "Here it is:\n<Merged>\n- A breach costs 500 dollars for each case.\n- The term is two years.\n- Notices are in writing.\n</Merged>",
            0,
            "right",
        );
        // All facts, one of four clauses twice: 2 * 1 * 0.75 / 1.75.
        check(
            "A breach costs 500 dollars. The term is two years. Notices are in writing. Notices are in writing.",
            14,
            "75 %",
        );
        check("The term is two years.", 50, "33 % of the facts");
        check("Nothing of that kind at all.", 100, "0 % of the facts");
        check("<Merged></Merged>", UNREADABLE, "unreadable");
    }

    #[test]
    fn steps_are_clauses_in_order_and_the_checker_knows_repetitions() {
        let puzzle = puzzle(TWO);
        let steps = puzzle.next_steps("");
        assert_eq!(steps[0], "A breach costs 500 dollars.\n");
        assert_eq!(steps.len(), 4, "equal clauses stand once");
        let (breach, term, notices, again) = (&steps[0], &steps[1], &steps[2], &steps[3]);
        let right = format!("{breach}{term}{notices}");
        assert_eq!(puzzle.check_partial(&right), Partial::Possible { score: 1.0, complete: true });
        assert!(puzzle.solved(&right));
        assert!(
            matches!(puzzle.check_partial(&format!("{breach}{again}")), Partial::Wrong { why, .. } if why == "1 said twice, 2 left out")
        );
        assert!(
            matches!(puzzle.check_partial(&format!("{term}{notices}")), Partial::Possible { complete: false, .. }),
            "the breach may come last"
        );
        assert!(matches!(puzzle.check_partial("Something else.\n"), Partial::Wrong { .. }));
        assert_eq!(puzzle.answer_constraint(&right).judge(again), Judgement::Closed);
    }

    #[test]
    fn generated_puzzles_can_be_solved_and_split() {
        for (size, seed) in [(4, 0), (5, 1), (8, 2)] {
            let puzzle = DocMerge.generate(size, seed).unwrap();
            let mut path = String::new();
            while let Some(step) = puzzle
                .next_steps(&path)
                .into_iter()
                .find(|step| matches!(puzzle.check_partial(&format!("{path}{step}")), Partial::Possible { .. }))
            {
                path.push_str(&step);
            }
            assert!(puzzle.solved(&path), "{}", puzzle.check(&path).why);
            let parts = puzzle.split(2).unwrap();
            assert_eq!(DocMerge.parse(&puzzle.join(&parts).unwrap()).unwrap().inputs(), puzzle.inputs());
        }
        assert!(DocMerge.generate(1, 0).is_err() && DocMerge.parse("one document alone").is_err());
        let example = example();
        let solved = puzzle(example["input"].as_str().unwrap()).check(example["output"].as_str().unwrap());
        assert_eq!(solved.error_score, 0, "{}", solved.why);
    }

    #[test]
    fn the_projects_own_documents_are_read() {
        let Some(folder) = shared("document merging") else { return };
        let puzzles = DocMerge.read_data(&folder.join("data/got/doc_merge.csv")).unwrap();
        assert!(puzzles.len() >= 10);
        for puzzle in puzzles {
            let all = puzzle.inputs()["puzzle"]["input"].as_str().unwrap().replace(BETWEEN, "");
            let verdict = puzzle.check(&all);
            assert!(verdict.why.contains("100 % of the facts"), "everything is kept: {}", verdict.why);
            assert!(puzzle.len() > 5 && !puzzle.next_steps("").is_empty());
        }
    }

    proptest! {
        #[test]
        fn any_documents_and_replies_are_judged_without_panic(input in "[a-d. \n-]{0,60}", reply in "\\PC{0,60}") {
            if let Ok(puzzle) = DocMerge.parse(&format!("two words\n---\n{input}")) {
                for text in [&input, &reply] {
                    puzzle.check(text);
                    puzzle.check_partial(text);
                    puzzle.next_steps(text);
                }
            }
        }
    }
}
