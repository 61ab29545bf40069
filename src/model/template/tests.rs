//! Templates of real models render as Transformers renders them; bad ones are refused with their line.

use super::*;
use crate::base::testing::thread_time;
use crate::model::testing::cases;
use proptest::prelude::*;
use std::time::Duration;

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, "<s>", "</s>", "test.jinja").unwrap()
}

fn turn(role: &str, content: &str) -> Message {
    Message { role: role.to_string(), content: content.to_string() }
}

fn refused(source: &str) -> String {
    let made = ChatTemplate::new(source, "", "", "test.jinja").and_then(|t| t.render(&[Message::user("x")], true));
    made.unwrap_err().message().to_string()
}

/// Case 12: a `generation` block and Python's string methods.
#[test]
fn generation_blocks_are_transparent() {
    let Some(cases) = cases() else { return };
    let template = ChatTemplate::from_file(&cases.join("A/12_template.jinja"), "", "").unwrap();
    let turns = [turn("user", "a###  b"), turn("assistant", "\n\nc\n"), turn("user", " d")];
    // As Jinja2 with Transformers' options renders it.
    let expected = "[user] b<|eot_id|>c<|eot_id|>[user] d<|eot_id|>[assistant] ";
    assert_eq!(template.render(&turns, true).unwrap(), expected);
    assert_eq!(template.render(&turns, false).unwrap(), expected.strip_suffix("[assistant] ").unwrap());
}

#[test]
fn real_templates_render() {
    let chatml = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + \
                  '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
    assert_eq!(
        template(chatml).render(&[Message::user("hi")], true).unwrap(),
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    );
    // Mistral 7B Instruct v0.2's, shortened: checks, exceptions, tokens.
    let mistral = "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
                   {{ raise_exception('roles must alternate') }}{% endif %}{% if message['role'] == 'user' %}\
                   {{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}\
                   {{ message['content'] + eos_token}}{% else %}{{ raise_exception('unknown role') }}{% endif %}{% endfor %}";
    let turns = [turn("user", "a"), turn("assistant", "b"), turn("user", "c")];
    assert_eq!(template(mistral).render(&turns, true).unwrap(), "<s>[INST] a [/INST]b</s>[INST] c [/INST]");
    let error = template(mistral).render(&[turn("assistant", "b")], true).unwrap_err();
    assert!(error.message().contains("roles must alternate") && error.message().contains("--chat-template"), "{error}");
    // Llama 3.1's way with dates, namespaces and set blocks.
    let llama = "{%- if not date_string is defined %}\n    {%- if strftime_now is defined %}\n        \
                 {%- set date_string = strftime_now('%Y') %}\n    {%- endif %}\n{%- endif %}\n\
                 {%- set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}\
                 {{- date_string|length }} {{ ns.n }}{% if tools %}tools{% endif %}";
    assert_eq!(template(llama).render(&turns, true).unwrap(), "4 3");
}

#[test]
fn whitespace_controls_and_json_are_pythons() {
    let check = |source: &str, expected: &str| {
        assert_eq!(template(source).render(&[Message::user("a\"<\u{e9}")], true).unwrap(), expected);
    };
    // trim_blocks and lstrip_blocks are on.
    check("{% if true %}\nx\n  {% endif %}\ny", "x\ny");
    check("{{ messages | tojson }}", "[{\"role\": \"user\", \"content\": \"a\\\"<\u{e9}\"}]");
    check("{{ {'a': [1, 2.5, none, true], 'b': {}} | tojson }}", r#"{"a": [1, 2.5, null, true], "b": {}}"#);
    check("{{ [1, []] | tojson(indent=2) }}", "[\n  1,\n  []\n]");
    check("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01");
    check("{{ messages[0].content.upper() }}{{ 'a b'.split()[1] }}{{ messages[-1]['role'] }}", "A\"<\u{c9}buser");
    check("{{ messages[0].get('name', 'none') }}", "none");
}

#[test]
fn bad_templates_are_refused_with_line_and_remedy() {
    let check = |source: &str, parts: &[&str]| {
        let message = refused(source);
        for part in parts.iter().chain(&["test.jinja", "--chat-template FILE"]) {
            assert!(message.contains(part), "{source:?}: {message}");
        }
    };
    check("a\nb\n{% nonsense %}", &["line 3"]);
    check("a\n{{ messages[0].content | nofilter }}", &["line 2", "nofilter"]);
    check("{% for m in messages %}{{ m.nothing.more }}{% endfor %}", &["line 1"]);
    check("{{ raise_exception('no \u{1b}[31msystem') }}", &["no system"]);
    check("{% if false %}x{% endif %}", &["empty prompt"]);
    check("{% include 'other' %}", &["line 1"]);
    check("{% generation %}", &["line"]);
}

#[test]
fn endless_and_endlessly_writing_templates_stop() {
    let start = thread_time();
    let endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}";
    assert!(refused(endless).contains("without end"));
    let writing = "{% set x = 'y' * 9000000 %}{{ x }}{{ x }}";
    assert!(refused(writing).contains("without end"), "{}", refused(writing));
    let deep = "{% set ns = namespace(x=[]) %}{% for a in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}";
    assert!(!refused(deep).is_empty());
    let growing = "{% set ns = namespace(x='y') %}{% for a in range(99999) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}z";
    assert!(!refused(growing).is_empty());
    let took = thread_time() - start;
    assert!(took < Duration::from_secs(20), "{took:?}");
    // A prompt as long as any context is no such thing.
    let long = "x ".repeat(500_000);
    let through = template("{% for m in messages %}{{ '[' + m.content.strip() | trim + ']' }}{% endfor %}");
    assert_eq!(through.render(&[Message::user(long)], true).unwrap().len(), 1_000_001);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn mutated_templates_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), "[{}%#a-z'| \\-\n\u{e9}]"), 1..6)) {
        let good = "{%- for m in messages -%}\n{% generation %}{{ m['content'].strip() | tojson }}{% endgeneration %}{# c #}\n{%- endfor %}";
        let mut chars: Vec<char> = good.chars().collect();
        for (at, with) in changes {
            let at = at.index(chars.len());
            chars[at] = with.chars().next().unwrap();
        }
        let source: String = chars.into_iter().collect();
        if let Ok(template) = ChatTemplate::new(&source, "", "", "t") {
            let _ = template.render(&[Message::user("x")], true);
        }
    }
}
