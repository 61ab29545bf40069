use super::*;
use crate::lm::Usage;
use crate::search::event::Reason;
use crate::search::testing::{Spell, recorder, run, script, spec, strategy};
use crate::search::tree::ThoughtTree;
use crate::strategy::Policy;

#[test]
fn a_record_gives_back_header_events_and_tree() {
    let folder = tempfile::tempdir().unwrap();
    let mut spec = spec(Spell::new("ab"), strategy(Policy::Bfs), script(&["a", "b", "x", "b", "a", "b"]));
    let recorder = recorder(folder.path(), &spec);
    let path = recorder.path().to_path_buf();
    spec.record = Some(recorder);
    let ran = run(spec);
    let recorded = read(&path.display().to_string()).unwrap();
    assert!(!recorded.torn);
    assert_eq!(recorded.tree().unwrap(), ran.tree);
    assert_eq!(recorded.outcome(), Some(&ran.outcome));
    assert_eq!(recorded.header.puzzle, "spell-1");
    assert_eq!(recorded.header.prompts, [("prompts/test.txt".to_string(), "Spell {{ puzzle.word }}: ".to_string())]);
    let told = |events: &[Event]| events.iter().filter(|e| !e.is_for_screen()).cloned().collect::<Vec<_>>();
    assert_eq!(told(&recorded.events), told(&ran.events));
    assert!(!recorded.events.iter().any(|e| matches!(e, Event::Token { .. })));
    let last = |events: &[Event]| events.iter().rev().find(|e| matches!(e, Event::Counters { .. })).cloned();
    assert_eq!(last(&recorded.events), last(&ran.events), "the last counters are kept");
}

#[test]
fn the_tokens_are_recounted_from_the_replies() {
    let ran = run(spec(Spell::new("ab"), strategy(Policy::Bfs), script(&["a", "b", "x", "b", "a", "b"])));
    let mut counted = Usage::default();
    for event in &ran.events {
        if let Event::Replied { usage, .. } = event {
            counted += *usage;
        }
    }
    assert_eq!(counted, ran.outcome.usage);
    assert!(counted.tokens() > 0 && counted.logical >= counted.tokens());
}

#[test]
fn a_torn_last_line_is_left_out_and_other_faults_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut spec = spec(Spell::new("ab"), strategy(Policy::Bfs), script(&["a", "b", "x", "b"]));
    let recorder = recorder(folder.path(), &spec);
    let path = recorder.path().to_path_buf();
    spec.record = Some(recorder);
    run(spec);
    let bytes = std::fs::read(&path).unwrap();
    let whole = read::parse(path.clone(), &bytes).unwrap();
    for cut in [1, 2, 30, bytes.len() / 2] {
        let torn = read::parse(path.clone(), &bytes[..bytes.len() - cut]).unwrap();
        assert!(torn.torn, "cut {cut}");
        assert_eq!(torn.events, whole.events[..torn.events.len()]);
    }
    let mut text = String::from_utf8(bytes.clone()).unwrap();
    text.push_str("{\"event\":\"note\",\"text\":\"é");
    let cut_character = &text.as_bytes()[..text.len() - 1];
    assert!(read::parse(path.clone(), cut_character).unwrap().torn);

    let mut lines: Vec<&str> = text.lines().collect();
    lines[2] = "{\"event\":\"grown\"}";
    let error = read::parse(path.clone(), lines.join("\n").as_bytes()).unwrap_err();
    assert!(error.message().contains("line 3"), "{error}");
    assert!(read::parse(path.clone(), b"<html>\n").is_err_and(|e| e.message().contains("no record")));
    assert!(read::parse(path, b"").is_err());
}

#[test]
fn events_out_of_place_are_refused_with_their_line() {
    let recorded = Recorded {
        path: "r".into(),
        header: Header::default(),
        events: vec![Event::Status {
            node: crate::search::tree::NodeId(9),
            status: crate::search::tree::Status::Open,
            why: None,
        }],
        torn: false,
    };
    assert!(recorded.tree().is_err_and(|e| e.message().contains("line 2")));
}

#[test]
fn a_full_disk_is_told_once_and_ends_nothing() {
    if !Path::new("/dev/full").exists() {
        eprintln!("skipped: /dev/full is not there");
        return;
    }
    let mut spec = spec(Spell::new("ab"), strategy(Policy::Bfs), script(&["a", "b", "x", "b"]));
    let header = Header::new(spec.puzzle.as_ref(), &spec.strategy, spec.lm.as_ref(), spec.seed, &[]);
    assert!(Recorder::create_at(Path::new("/dev/full"), header.clone()).is_err());
    let file = OpenOptions::new().write(true).open("/dev/full").unwrap();
    spec.record = Some(Recorder {
        path: "/dev/full".into(),
        id: "x".into(),
        out: BufWriter::new(file),
        thinned: Thinned::default(),
    });
    let ran = run(spec);
    assert_eq!(ran.outcome.reason, Reason::Solved);
    let told = ran.notes().into_iter().filter(|note| note.contains("not recorded from here on")).count();
    assert_eq!(told, 1);
}

#[test]
fn infinite_and_tiny_numbers_survive_the_record() {
    use crate::search::event::{Author, ScorePart};
    use crate::search::tree::NodeId;
    let events = vec![
        Event::Grown {
            node: NodeId(1),
            parent: NodeId(0),
            text: "x\u{0}\u{1f}\u{2028}é".into(),
            by: Author::Model,
            logprob: Some(-1.234_567_890_12e-7),
            token_logprobs: vec![f32::MIN, -0.1, -1e-30, 0.0],
            usage: Usage::default(),
        },
        Event::Scored {
            node: NodeId(1),
            score: 0.333_333_333_333,
            parts: vec![ScorePart { evaluator: "checker".into(), value: Some(1e-12), detail: String::new() }],
        },
    ];
    let mut direct = ThoughtTree::default();
    let mut read = ThoughtTree::default();
    for event in &events {
        direct.apply(event).unwrap();
        read.apply(&serde_json::from_str(&serde_json::to_string(event).unwrap()).unwrap()).unwrap();
    }
    assert_eq!(direct, read);
}
