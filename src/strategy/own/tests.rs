//! Tasks of the user's own: what a file may say, and what its puzzles make of it.

use super::*;
use crate::lm::Judgement;
use crate::strategy::check;
use crate::strategy::fault::Fault;
use crate::strategy::library::{self, LoadOptions};
use crate::strategy::source::Home;
use crate::strategy::tests::{mutated, sound};
use crate::task::Partial;
use proptest::prelude::*;

const GOOD: &str = r#"version: 1
name: capitals
about: name the capital of a country
fields:
  country: the country
  hint: {about: its first letter, column: [Hint, Letter]}
question: "Which city is the capital of {{ puzzle.country }}? It begins with {{ puzzle.hint }}."
title: "capital of {{ puzzle.country }}"
answer: {column: Capital}
scorer: text
examples:
  - {country: France, hint: P, answer: Paris}
  - {country: Peru, hint: L, answer: Lima}
"#;

fn read(text: &str) -> Parsed {
    parse(text, "t.yaml", &Home::Folder(".".into()))
}

fn good(text: &str) -> OwnTask {
    let parsed = read(text);
    let shown: Vec<String> = parsed.faults.iter().map(Fault::to_string).collect();
    parsed.task.unwrap_or_else(|| panic!("{}", shown.join("\n")))
}

/// The first fault as `line:column: message`.
fn refused(text: &str) -> String {
    let parsed = read(text);
    assert!(parsed.task.is_none(), "{text} was taken");
    let fault = &parsed.faults[0];
    format!("{}:{}: {}", fault.span.line, fault.span.column, fault.message)
}

fn with(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from}");
    GOOD.replacen(from, to, 1)
}

#[test]
fn a_task_reads_typed_puzzles_and_data_files() {
    let task = good(GOOD);
    assert_eq!((task.name(), task.default_strategy(), task.example()), ("capitals", "io", "France; P"));
    let puzzle = task.parse("Japan; T").unwrap();
    assert_eq!(puzzle.title(), "capital of Japan");
    let inputs = puzzle.inputs();
    assert_eq!(inputs["puzzle"]["question"], "Which city is the capital of Japan? It begins with T.");
    assert_eq!(inputs["puzzle"]["examples"][1]["answer"], "Lima");
    assert_eq!(inputs["puzzle"]["input"], "Japan; T");
    assert!(puzzle.check("Tokyo").why.contains("no expected answer"));
    let judged = task.parse(r#"{"country": "Japan", "letter": "T", "capital": "Tokyo"}"#).unwrap();
    assert!(judged.solved("I think.\nAnswer: **tokyo**.") && !judged.solved("Kyoto"));
    for (input, part) in
        [("Japan", "1 of 2 fields"), ("", "is empty"), ("{\"country\": 1}", "no field `hint`"), ("{", "no JSON")]
    {
        let error = task.parse(input).err().unwrap();
        assert!(error.message().contains(part) && error.exit_code() == 2, "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("d.csv");
    std::fs::write(&path, "Country,letter,capital\n\"Bonaire, Sint Eustatius\",K,Kralendijk\nChad,N,\n").unwrap();
    let puzzles = task.read_data(&path).unwrap();
    assert_eq!(puzzles.iter().map(|p| p.id().to_string()).collect::<Vec<_>>(), ["0", "1"]);
    assert!(puzzles[0].solved("kralendijk") && !puzzles[1].solved("N'Djamena"));
    std::fs::write(&path, "Country,capital\nChad,x\n").unwrap();
    assert!(task.read_data(&path).err().unwrap().message().contains("no column `Hint`"));
    assert!(task.generate(1, 0).err().unwrap().message().contains("makes no puzzles"));
}

#[test]
fn scorers_compare_with_what_is_expected() {
    let check = |scorer: &str, expected: &str, answer: &str, errors: u64| {
        let text = with("scorer: text", &format!("scorer: {scorer}"));
        // The examples need not fit every scorer here.
        let text = text.replace("answer: Paris", "answer: 1").replace("answer: Lima", "answer: 2");
        let task = good(&text);
        let json = serde_json::json!({"country": "c", "hint": "h", "capital": expected}).to_string();
        let verdict = task.parse(&json).unwrap().check(answer);
        assert_eq!(verdict.error_score, errors, "{scorer}: {answer} for {expected}: {}", verdict.why);
    };
    check("exact", "Paris", " Paris\n", 0);
    check("exact", "Paris", "paris", 1);
    check("text", "New York", "  new   YORK. ", 0);
    check("number", "1,234.50", "$1234.5", 0);
    check("number", "12", "about 12", 1000);
    check("list", "a, b, c", "[a, c, c]", 1);
    check("list", "a, b", "a", 1);
    check("set", "a, b, c", "c; \"A\"\nd", 2);
    check("set", "a, a", "a", 1);
    check("{errors: \"answer == expected\"}", "x", "x", 0);
    check("{errors: \"(answer | number - expected | number) | abs\"}", "3", "5.5", 3);
    check("{errors: \"answer | numbers | length - 1\"}", "3", "5 6 7", 2);
    check("{errors: \"answer | number - expected | number\"}", "3", "five", 1000);
    check("{errors: \"0 if answer in ['1', '2'] else 0 - 1\"}", "3", "five", 1000);
}

#[test]
fn an_answer_is_the_last_match_of_the_pattern() {
    let text = with("answer: {column: Capital}", "answer: {column: Capital, pattern: 'City: (\\w+)'}")
        .replace("answer: Paris", "answer: 'City: Paris'")
        .replace("answer: Lima", "answer: 'City: Lima'")
        .replace("scorer: text", "scorer: {errors: \"answer == 'Lima' or puzzle.country == 'France'\"}");
    let puzzle = good(&text).parse("Peru; L").unwrap();
    assert_eq!(puzzle.check("City: Rome? No.\nCity: Lima.").answer, Some("Lima".into()));
    let verdict = puzzle.check("Lima");
    assert_eq!((verdict.error_score, verdict.answer), (1000, None));
    assert!(verdict.why.contains("City: "), "{}", verdict.why);
    assert!(matches!(puzzle.check_partial("City: Rome"), Partial::Possible { complete: true, .. }));
    assert!(matches!(puzzle.check_partial("Hm"), Partial::Possible { complete: false, .. }));
}

/// Words are put in order, one a step: steps, states, partial checks and the length come from the file.
#[test]
fn steps_lead_through_a_task_one_by_one() {
    let text = "version: 1\nname: order\nabout: words in alphabetical order\nfields: {words: words with spaces}\n\
        question: Put in order {{ puzzle.words }}\nlen: \"{{ puzzle.words | split(' ') | length }}\"\n\
        steps: |\n  {% for w in puzzle.words | split(' ') %}\n  {% if w not in path %}\n  {{ w }}\n  {% endif %}\n  {% endfor %}\n\
        partial: \"(steps | sort) == steps\"\n\
        scorer: {errors: \"(answer | words | sort | join(' ')) == (puzzle.words | words | sort | join(' ')) and (answer | words | sort | list) == (answer | words)\"}\n\
        examples: [{words: b a, answer: a b}]\nstate: lines\n";
    let text = text.replace("split(' ')", "split");
    let puzzle = good(&text).parse("c a b").unwrap();
    assert_eq!((puzzle.len(), puzzle.next_steps("")), (3, vec!["c\n".to_string(), "a\n".into(), "b\n".into()]));
    assert_eq!(puzzle.next_steps("a\n"), ["c\n", "b\n"]);
    assert_eq!(puzzle.next_steps("a\nb\nc\n"), [] as [&str; 0]);
    assert!(matches!(puzzle.check_partial("a\nc\n"), Partial::Possible { complete: false, .. }));
    assert!(matches!(puzzle.check_partial("c\na\n"), Partial::Wrong { why, .. } if why.contains("sort")));
    assert!(puzzle.solved("a\nb\nc\n") && !puzzle.solved("a\nc\nb\n"));
    assert_eq!(puzzle.state_key("a\nb\n"), puzzle.state_key("b\n a"));
    let mask = puzzle.answer_constraint("a\n");
    assert_eq!(mask.judge("b\nc\n"), Judgement::Closed);
    assert!(matches!(mask.judge("a"), Judgement::Dead(_)));
}

#[cfg(unix)]
#[test]
fn a_program_scores_where_it_is_allowed_and_is_asked_once_of_an_answer() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let script = format!(
        "cat >> {0}; echo >> {0}; if grep -q Rome {0}; then echo '{{\"errors\": 2, \"detail\": \"far\"}}'; else echo true; fi",
        log.display()
    );
    let scorer = |script: &str, seconds: f64| {
        let run = serde_json::to_string(&["sh", "-c", script]).unwrap();
        with("scorer: text", &format!("scorer: {{command: {{run: {run}, seconds: {seconds}}}}}"))
    };
    let task = good(&scorer(&script, 5.0));
    assert!(!log.exists(), "reading a task runs nothing");
    let puzzle = task.parse("Italy; R").unwrap();
    assert!(puzzle.solved("Lazio") && puzzle.solved("Lazio"));
    let verdict = puzzle.check("Rome");
    assert_eq!((verdict.error_score, verdict.why.as_str()), (2, "far"));
    assert_eq!(std::fs::read_to_string(&log).unwrap().matches("\"id\":\"input\"").count(), 2);
    for (script, part) in [("exit 3", "failed"), ("echo -1", "neither"), ("echo", "no JSON"), ("sleep 5", "within")] {
        let verdict = good(&scorer(script, 0.2)).parse("Italy; R").unwrap().check("x");
        assert!(verdict.error_score == 1000 && verdict.why.contains(part), "{}", verdict.why);
    }
    let path = folder.path().join("own.yaml");
    std::fs::write(&path, scorer("echo true", 1.0)).unwrap();
    let spec = path.to_str().unwrap();
    assert!(find(spec, false).err().unwrap().message().contains("--allow-commands"));
    assert!(find(spec, true).is_ok());
}

#[test]
fn mistakes_are_told_with_their_place_and_the_nearest_name() {
    let check = |from: &str, to: &str, expected: &str| {
        let found = refused(&with(from, to));
        assert!(found.contains(expected), "{found}\nlacks {expected}");
    };
    check("about:", "abuot:", "3:1: unknown key `abuot` at the top level; did you mean `about`?");
    check("column: [Hint, Letter]", "colunm: Hint", "unknown key `colunm` under `field`; did you mean `column`?");
    check("  country: the country", "  len: the country", "5:3: every puzzle has `len` already");
    check("  country: the country", "  my-field: x", "5:3: a field's name");
    check("puzzle.country }}? It", "puzzle.contry }}? It", "did you mean `puzzle.country`?");
    check("scorer: text", "scorer: txet", "did you mean `text`?");
    check("scorer: text", "scorer: {errors: \"anser == 1\"}", "did you mean `answer`?");
    check("scorer: text", "scorer: {errors: \"answer ==\"}", "syntax error");
    check("scorer: text", "scorer: {command: ls}", "is a list");
    check("answer: {column: Capital}", "answer: '('", "no regular expression");
    check("answer: {column: Capital}", "answer: '(a)(b)'", "one group at most");
    check("country: France", "contry: France", "there is no field `contry`; did you mean `country`?");
    check("answer: Paris", "anwser: Paris", "did you mean `answer`?");
    check("name: capitals", "name: sorting", "2:7: `sorting` is a built-in task");
    check("name: capitals", "name: ../x", "letters, digits");
    check("examples:", "len: 0\nexamples:", "len");
    check("scorer: text", "scorer: number", "12:5: this example's own answer does not score as right");
    check("version: 1", "version: 2", "reads version 1");
    assert!(refused("fields: {}\n").contains("key `version` is missing"));
    assert!(
        read(&with(" It begins with {{ puzzle.hint }}.", "")).faults[0]
            .message
            .contains("never shows the field `hint`")
    );
    let strategy = refused(&with("scorer: text", "scorer: text\nstrategy: nothing.yaml"));
    assert!(strategy.contains("no file `nothing.yaml`"), "{strategy}");
}

#[test]
fn strategies_for_it_know_its_fields_and_built_in_ones_run_on_it() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let path = write("capitals.yaml", GOOD);
    let task = find(path.to_str().unwrap(), false).unwrap();
    let options = LoadOptions::default();
    for entry in library::list_for(task.name()) {
        let strategy = library::load_for(entry.name, &task, &options).unwrap();
        let inputs = strategy.inputs(task.parse(task.example()).unwrap().inputs());
        let text = crate::strategy::prompt::render(&strategy.generate.prompt, &inputs, 16).unwrap();
        assert!(text.contains("capital of France"), "{text}");
    }
    let own = "version: 1\nname: mine\nabout: one answer\nsearch: {policy: bfs}\n\
        generate: {prompt: \"Capital of {{ puzzle.country }}?\", thought: answer}\nbudget: {tokens: 9}\n";
    let strategy = write("mine.yaml", own);
    assert!(library::load_for(strategy.to_str().unwrap(), &task, &options).is_ok());
    let slip = write("slip.yaml", &own.replace("puzzle.country", "puzzle.contry"));
    let error = library::load_for(slip.to_str().unwrap(), &task, &options).unwrap_err();
    assert!(error.message().contains("did you mean `puzzle.country`?"), "{error}");
    let named = write("named.yaml", &own.replace("name: mine", "name: named\ntask: capitals.yaml"));
    let report = check::check(&[&path, &named]);
    assert_eq!((report.errors(), report.warnings()), (0, 0), "{report}");
    assert!(report.to_string().contains("ok (task capitals)") && report.to_string().contains("thoughts"), "{report}");
    assert!(library::load(named.to_str().unwrap(), "sorting").unwrap_err().message().contains("for the task capitals"));
    let steps =
        own.replace("thought: answer", "constrain: puzzle").replace("name: mine", "name: steps\ntask: capitals.yaml");
    let report = check::check(&[&write("steps.yaml", &steps)]);
    assert!(report.to_string().contains("lists no `steps`"), "{report}");
    let broken = write("broken.yaml", &own.replace("name: mine", "name: b\ntask: nowhere.yaml"));
    assert!(check::check(&[&broken]).to_string().contains("no task file `nowhere.yaml`"));
}

#[test]
fn the_starter_is_clean_and_solves_its_examples() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sums.yaml");
    library::new_task_file(&path).unwrap();
    let report = check::check(&[&path]);
    assert_eq!((report.errors(), report.warnings()), (0, 0), "{report}");
    let task = find(path.to_str().unwrap(), false).unwrap();
    assert!(task.parse("17; 25").unwrap().solved(" 17 + 25 = 42"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_files_never_panic_and_faults_stay_inside_the_file(text in mutated(GOOD)) {
        let parsed = read(&text);
        sound(&text, parsed.task.is_some(), &parsed.faults)?;
        if let Some(task) = parsed.task {
            let typed = task.example().to_string();
            prop_assert!(task.parse(&typed).is_ok(), "{}", typed);
        }
    }

    /// What a puzzle shows as its input is read back as the same puzzle.
    #[test]
    fn typed_forms_are_read_back(country in "\\PC{0,12}", hint in "[a-z;{} \"]{0,5}") {
        let task = good(GOOD);
        let puzzle = task.puzzle("x".into(), vec![country, hint], None).unwrap();
        let typed = puzzle.inputs()["puzzle"]["input"].as_str().unwrap().to_string();
        let again = task.parse(&typed).unwrap();
        prop_assert_eq!(again.inputs(), puzzle.inputs());
        for text in ["", "Answer:", &typed] {
            puzzle.check(text);
            puzzle.check_partial(text);
            puzzle.next_steps(text);
        }
    }

    #[test]
    fn any_expression_and_text_are_judged_without_panic(text in "[a-z0-9 .|()\\[\\]'+*/=<>-]{0,30}", answer in "\\PC{0,30}") {
        if let Ok(formula) = formula::Formula::new(&text, &["answer"]) {
            let _ = formula.errors(&json!({"answer": answer.clone()}));
        }
        for (_, scorer) in scorer::NAMES {
            let inputs = json!({});
            let subject = scorer::Subject { answer: &answer, expected: Some(&answer), task: "t", id: "i", inputs: &inputs };
            prop_assert!(scorer.judge(&subject).0 == 0 || *scorer == Scorer::Number || answer.trim().is_empty());
        }
    }
}
