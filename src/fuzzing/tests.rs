//! Every target for a moment, on samples that are cut, doubled and overwritten, in a process of its own whose memory is
//! bounded: a panic, a hang, an overflowing stack and an allocation without bound all fail the test, with the input.

use super::{TARGETS, run};
use crate::base::testing::shared;
use crate::model::gguf::write::Writer;
use crate::model::testing::{small_keys, small_model};
use crate::search;
use crate::search::testing::{Spell, recorder, script, spec, strategy};
use crate::strategy::{Policy, library};
use candle_core::quantized::GgmlDType;
use proptest::prelude::*;
use proptest::test_runner::{TestError, TestRunner};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Says which target the child process runs, and how many inputs.
const PLAY: &str = "TOTARA_FUZZ";
/// Bytes of address space that the child may use: its own code and threads take a few hundred MiB of it.
const ROOM: u64 = 2 << 30;
/// Processor time that one input may take, in a build without optimisation.
const PATIENCE: Duration = Duration::from_secs(4);

/// Pieces that readers stumble over.
const WORDS: &[&[u8]] = &[
    b"0",
    b"-1",
    b"18446744073709551616",
    b"1e999",
    b"NaN",
    b"null",
    b"true",
    b"\"",
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b"[[[[[[[[",
    b"{\"a\":",
    b"\n",
    b"\r\n",
    b"\t",
    b": ",
    b"- ",
    b"&a",
    b"*a",
    b"<<: ",
    b"{{",
    b"}}",
    b"{%",
    b"%}",
    b"|",
    b"~",
    b"\xff",
    b"\xe4\xb8",
    b"\xed\xa0\x80",
    "\u{e9}".as_bytes(),
    "\u{202e}".as_bytes(),
    "\u{1f468}\u{200d}\u{1f469}".as_bytes(),
    b"\x1b[31m",
    b"\0",
    &[0xff; 8],
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
    &[0, 0, 0, 0, 0, 0, 0, 0x80],
];

#[derive(Debug, Clone)]
enum Edit {
    Byte(prop::sample::Index, u8),
    Cut(prop::sample::Index, usize),
    Word(prop::sample::Index, usize),
    /// A part of it again, several times.
    Repeat(prop::sample::Index, usize, usize),
    Random(prop::sample::Index, Vec<u8>),
    End(prop::sample::Index),
}

fn edit() -> impl Strategy<Value = Edit> {
    let place = any::<prop::sample::Index>;
    prop_oneof![
        4 => (place(), any::<u8>()).prop_map(|(at, byte)| Edit::Byte(at, byte)),
        2 => (place(), 1..40usize).prop_map(|(at, len)| Edit::Cut(at, len)),
        4 => (place(), 0..WORDS.len()).prop_map(|(at, word)| Edit::Word(at, word)),
        1 => (place(), 1..60usize, 1..40usize).prop_map(|(at, len, times)| Edit::Repeat(at, len, times)),
        1 => (place(), prop::collection::vec(any::<u8>(), 1..20)).prop_map(|(at, bytes)| Edit::Random(at, bytes)),
        1 => place().prop_map(Edit::End),
    ]
}

fn edited(sample: &[u8], edits: &[Edit]) -> Vec<u8> {
    let mut bytes = sample.to_vec();
    for edit in edits {
        let len = bytes.len();
        let at = |index: &prop::sample::Index| index.index(len + 1);
        match edit {
            Edit::Byte(index, byte) if at(index) < len => bytes[at(index)] = *byte,
            Edit::Byte(_, byte) => bytes.push(*byte),
            Edit::Cut(index, cut) => drop(bytes.drain(at(index)..(at(index) + cut).min(len))),
            Edit::Word(index, word) => drop(bytes.splice(at(index)..at(index), WORDS[*word].iter().copied())),
            Edit::Repeat(index, part, times) => {
                let part = bytes[at(index)..(at(index) + part).min(len)].repeat(*times);
                bytes.splice(at(index)..at(index), part);
            }
            Edit::Random(index, other) => drop(bytes.splice(at(index)..at(index), other.iter().copied())),
            Edit::End(index) => bytes.truncate(at(index)),
        }
    }
    bytes
}

/// Good and bad inputs to begin from.
fn samples(target: &str) -> Vec<Vec<u8>> {
    let cases = |names: &[&str]| -> Vec<Vec<u8>> {
        let Some(shared) = shared("cases among the samples") else { return Vec::new() };
        let files = names.iter().map(|name| shared.join("cases").join(name));
        files
            .filter(|path| path.metadata().is_ok_and(|m| m.len() < 1 << 16))
            .map(|p| std::fs::read(p).unwrap())
            .collect()
    };
    let texts = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>();
    match target {
        "gguf" => {
            let mut all = vec![small_model(GgmlDType::Q4_0).bytes(), small_keys().bytes(), Writer::default().bytes()];
            all.extend(cases(&["A/01_huge_string.gguf", "A/01_huge_array.gguf", "A/01_huge_tensor_count.gguf"]));
            all
        }
        "safetensors" => {
            let header = r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"a":"b"}}"#;
            let file = [&[0][..], &(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0; 8]].concat();
            vec![file, b"\x03{\"metadata\":{},\"weight_map\":{\"x\":\"model.safetensors\"}}".to_vec()]
        }
        "tokenizer_json" => {
            let mut all = texts(&[r#"{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]},
                "decoder":{"type":"ByteLevel"},"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},
                "added_tokens":[{"id":3,"content":"<s>","special":true}]}"#]);
            all.extend(cases(&["tiny/hf/tokenizer.json"]));
            all
        }
        "chat_template" => {
            let mut all = texts(&[
                "{%- for m in messages -%}\n{% generation %}{{ m['content'].strip() | tojson }}{% endgeneration %}{# c #}\n{%- endfor %}",
                "{% macro f(x) %}{{ x ~ x }}{% endmacro %}{% set ns = namespace(a=1) %}{% if add_generation_prompt %}{{ f(bos_token) }}{% endif %}{{ strftime_now('%Y') }}",
                "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            ]);
            all.extend(cases(&["A/12_template.jinja"]));
            all
        }
        "strategy" => {
            let mut all: Vec<Vec<u8>> = library::list().iter().map(|entry| entry.text.as_bytes().to_vec()).collect();
            all.extend(cases(&["A/62_duplicate.yaml", "A/64_typo.yaml", "A/66_booleans.yaml", "A/41_braces.yaml"]));
            all
        }
        "record" => vec![record()],
        "results" => {
            let row = r#"{"task":"sorting","id":"1","strategy":"io","solved":true,"error_score":0,"answer":[1,2],"thoughts":1,"tokens":3,"logical_tokens":3,"seconds":0.1,"reason":"solved"}"#;
            let mut all = vec![format!("{row}\n{}\n", row.replace("\"1\"", "\"2\"")).into_bytes()];
            all.extend(cases(&["A/56_torn.jsonl", "A/56_torn_utf8.jsonl"]));
            all
        }
        "csv" => texts(&[
            "ID,Unsorted,Sorted\n0,\"[3, 1, 2]\",\"[1, 2, 3]\"\n",
            "ID,SET1,SET2,INTERSECTION\n0,\"[1, 4]\",\"[4, 5]\",\"[4]\"\n",
            "{\"id\": \"a\", \"input\": \"3 1 2\"}\n",
            "3, -1 99999999999999999999 2",
            "1 4 9; 9 2",
            "4 9 10 13",
        ]),
        "replies" => {
            let mut all = texts(&[
                "\x03\0Score: 7/10",
                "\x03\x01the best choice is 2.",
                "\x05\0sure\nlikely",
                "\x03\x021. 2 + 3 = 5\n- b\n(4) d",
            ]);
            all.extend(cases(&["A/39_votes.reply.txt", "A/43_scores.reply.txt"]));
            all
        }
        "constraint" => vec![
            b"\x0a[0-9]{1,3}x\x04\x01a\x0212\x02\xc3\xa9\x011\x0112".to_vec(),
            b"\x06(ab|c)*\x05\x02ab\x01a\x01b\x02bc\x03abc\x02ab".to_vec(),
        ],
        "endpoint" => {
            let chat = r#"{"choices":[{"index":1,"message":{"content":"12a\n3"},"finish_reason":"stop","logprobs":{"content":[{"token":"12","logprob":-0.5,"top_logprobs":[{"token":"9","logprob":-2}]}]}}],"usage":{"prompt_tokens":3,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}}"#;
            let plain = r#"{"choices":[{"text":"abé","finish_reason":"length","logprobs":{"tokens":["a","b"],"token_logprobs":[null,-1.5],"top_logprobs":[null,{"b":-1.5}]}}]}"#;
            let listed = r#"{"data":[{"id":"m","owned_by":"vllm","max_model_len":4096}]}"#;
            let error = r#"{"error":{"message":"\u001b[31mno"}}"#;
            texts(&[&format!("\x01\x01\x01{chat}"), &format!("\x02\x02\0{plain}"), &format!("\0\0\0{listed}"), error])
        }
        "screen" | "token_tree" => {
            (1..6u8).map(|seed| (0..200u8).map(|i| i.wrapping_mul(37 ^ seed)).collect()).collect()
        }
        other => panic!("no samples for {other}"),
    }
}

/// A short record, as a run writes it.
fn record() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let mut spec = spec(Spell::new("ab"), strategy(Policy::Bfs), script(&["a", "b", "x", "b", "a", "b"]));
    let recorder = recorder(folder.path(), &spec);
    let path = recorder.path().to_path_buf();
    spec.record = Some(recorder);
    search::testing::run(spec);
    std::fs::read(path).unwrap()
}

/// Runs a target in a child process on that many inputs.
fn check(target: &str, inputs: u32) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["fuzzing::tests::child", "--exact", "--nocapture", "--test-threads=1"]);
    command.env(PLAY, format!("{target} {inputs}"));
    // SAFETY: setrlimit reads one structure of ours and may be called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            let room = libc::rlimit { rlim_cur: ROOM, rlim_max: ROOM };
            match libc::setrlimit(libc::RLIMIT_AS, &room) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    let output = command.output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains(&format!("{target}: ")), "{target}: {}\n{said}", output.status);
}

/// Not a test: the child's part, when it is asked for.
#[test]
fn child() {
    let Ok(play) = std::env::var(PLAY) else { return };
    let (target, inputs) = play.split_once(' ').unwrap();
    let samples = samples(target);
    let slowest = std::cell::RefCell::new((Duration::ZERO, Vec::new()));
    let one = |bytes: &[u8]| {
        // What an abort would leave unsaid: the input that was being read.
        std::fs::write(trail(target), bytes).unwrap();
        let start = processor_time();
        run(target, bytes);
        let took = processor_time() - start;
        if took > slowest.borrow().0 {
            *slowest.borrow_mut() = (took, bytes.to_vec());
        }
        assert!(took < PATIENCE, "{target} took {took:?}");
    };
    samples.iter().for_each(|sample| one(sample));
    let count = samples.len();
    let edits = (0..count + 1, prop::collection::vec(edit(), 1..5), prop::collection::vec(any::<u8>(), 0..80));
    let config =
        ProptestConfig { cases: inputs.parse().unwrap(), failure_persistence: None, ..ProptestConfig::default() };
    let outcome = TestRunner::new(config).run(&edits, |(sample, edits, random)| {
        one(&samples.get(sample).map_or(random, |sample| edited(sample, &edits)));
        Ok(())
    });
    if let Err(TestError::Fail(why, (sample, edits, random))) = outcome {
        let bytes = samples.get(sample).map_or(random, |sample| edited(sample, &edits));
        panic!("{target}: {why}: {:?}", String::from_utf8_lossy(&bytes));
    }
    std::fs::remove_file(trail(target)).unwrap();
    let (took, bytes) = slowest.into_inner();
    println!("{target}: {inputs} inputs beside {count} samples, the slowest {took:?}");
    if took > PATIENCE / 20 {
        println!("{:?}", String::from_utf8_lossy(&bytes));
    }
}

/// What this process has computed so far: other work on the machine is not counted.
fn processor_time() -> Duration {
    let mut time = std::mem::MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: the structure is ours, and zero is a time.
    let time = unsafe {
        assert_eq!(libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, time.as_mut_ptr()), 0);
        time.assume_init()
    };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn trail(target: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("totara-fuzz-{target}-{}", std::process::id()))
}

/// Writes the samples where `cargo fuzz` looks for them: `cargo test --lib fuzzing::tests::corpus -- --ignored`.
#[test]
#[ignore = "writes into fuzz/corpus"]
fn corpus() {
    for target in TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target.name);
        std::fs::create_dir_all(&folder).unwrap();
        for (i, sample) in samples(target.name).iter().enumerate() {
            std::fs::write(folder.join(format!("sample-{i}")), sample).unwrap();
        }
    }
}

/// `fuzz/` has a program for each target, which does nothing but hand the bytes on.
#[test]
fn every_target_has_its_program() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let manifest = std::fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
    for target in TARGETS {
        let program = std::fs::read_to_string(fuzz.join(format!("targets/{}.rs", target.name))).unwrap();
        assert!(program.contains(&format!("run(\"{}\", ", target.name)), "{program}");
        assert!(manifest.contains(&format!("path = \"targets/{}.rs\"", target.name)), "{}", target.name);
    }
}

macro_rules! short_runs {
    ($($target:ident: $inputs:literal,)*) => {
        /// One test a target.
        mod short {
            $(#[test] fn $target() { super::check(stringify!($target), $inputs); })*
        }

        #[test]
        fn every_target_is_run() {
            let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($target)),*]);
        }
    };
}

short_runs! {
    gguf: 300,
    safetensors: 300,
    tokenizer_json: 300,
    chat_template: 300,
    strategy: 300,
    record: 300,
    results: 300,
    csv: 300,
    replies: 300,
    constraint: 300,
    screen: 40,
    token_tree: 100,
    endpoint: 300,
}
