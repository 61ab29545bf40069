//! Constraints as the grammars that servers take: a list of texts, a pattern or a JSON schema, as GBNF and
//! `json_schema` for llama.cpp, as `regex` and `json_schema` for SGLang, as `structured_outputs` for vLLM.

use super::Kind;
use regex_syntax::hir::{Class, Hir, HirKind};
use serde_json::{Value, json};
use std::fmt::Write;

/// What texts are held to.
#[derive(Debug, Clone, PartialEq)]
pub enum Guide {
    /// One of these texts.
    Choices(Vec<String>),
    /// A whole match of this pattern.
    Pattern(String),
    /// JSON that fits this schema.
    Schema(Value),
}

impl Guide {
    /// Adds it to a request. A server of no known kind gets nothing; strategies that need a guide are refused for it.
    pub fn write(&self, kind: Kind, set: &mut impl FnMut(&str, Value)) {
        match (kind, self) {
            (Kind::LlamaCpp, Self::Schema(schema)) => set("json_schema", schema.clone()),
            (Kind::Vllm, Self::Schema(schema)) => set("structured_outputs", json!({"json": schema})),
            (Kind::SgLang, Self::Schema(schema)) => set("json_schema", json!(schema.to_string())),
            (Kind::LlamaCpp, Self::Choices(texts)) => set("grammar", json!(of_choices(texts))),
            (Kind::LlamaCpp, Self::Pattern(pattern)) => set("grammar", json!(of_pattern(pattern))),
            (Kind::Vllm, Self::Choices(texts)) => set("structured_outputs", json!({"choice": texts})),
            (Kind::Vllm, Self::Pattern(pattern)) => set("structured_outputs", json!({"regex": pattern})),
            (Kind::SgLang, Self::Choices(texts)) => {
                let all: Vec<String> = texts.iter().map(|text| regex_syntax::escape(text)).collect();
                set("regex", json!(format!("({})", all.join("|"))));
            }
            (Kind::SgLang, Self::Pattern(pattern)) => set("regex", json!(pattern)),
            (Kind::Other, _) => {}
        }
    }
}

/// A list of texts in llama.cpp's grammar form.
fn of_choices(texts: &[String]) -> String {
    let all: Vec<String> = texts.iter().map(|text| literal(text)).collect();
    format!("root ::= {}", all.join(" | "))
}

/// A pattern in llama.cpp's grammar form. It was compiled before it came here; one that this parser does not take allows
/// nothing, which the server says.
fn of_pattern(pattern: &str) -> String {
    match regex_syntax::parse(pattern) {
        Ok(hir) => format!("root ::= {}", rule(&hir)),
        Err(_) => "root ::= ".to_string(),
    }
}

fn literal(text: &str) -> String {
    let body: String = text.chars().map(|c| if c == '"' { "\\\"".into() } else { character(c) }).collect();
    format!("\"{body}\"")
}

/// A character of a class: what means something there is written as its number.
fn member(c: char) -> String {
    if "]^-[".contains(c) { format!("\\x{:02X}", u32::from(c)) } else { character(c) }
}

fn character(c: char) -> String {
    match c {
        '\n' => "\\n".into(),
        '\r' => "\\r".into(),
        '\t' => "\\t".into(),
        '\\' => "\\\\".into(),
        c if c.is_ascii() && !c.is_ascii_control() => c.to_string(),
        c if u32::from(c) <= 0xffff => format!("\\u{:04X}", u32::from(c)),
        c => format!("\\U{:08X}", u32::from(c)),
    }
}

fn rule(hir: &Hir) -> String {
    match hir.kind() {
        HirKind::Empty => "\"\"".into(),
        // Both ends are the text's own.
        HirKind::Look(_) => "\"\"".into(),
        HirKind::Literal(bytes) => literal(&String::from_utf8_lossy(&bytes.0)),
        HirKind::Class(Class::Unicode(class)) => ranges(class.iter().map(|range| (range.start(), range.end()))),
        HirKind::Class(Class::Bytes(class)) => {
            ranges(class.iter().map(|range| (char::from(range.start()), char::from(range.end()))))
        }
        HirKind::Capture(capture) => format!("({})", rule(&capture.sub)),
        HirKind::Concat(parts) => parts.iter().map(group).collect::<Vec<_>>().join(" "),
        HirKind::Alternation(parts) => format!("({})", parts.iter().map(rule).collect::<Vec<_>>().join(" | ")),
        HirKind::Repetition(repetition) => {
            let sub = group(&repetition.sub);
            match (repetition.min, repetition.max) {
                (0, Some(1)) => format!("{sub}?"),
                (0, None) => format!("{sub}*"),
                (1, None) => format!("{sub}+"),
                (least, None) => format!("{sub}{{{least},}}"),
                (least, Some(most)) => format!("{sub}{{{least},{most}}}"),
            }
        }
    }
}

/// What a repetition may follow as it stands, else in brackets.
fn group(hir: &Hir) -> String {
    match hir.kind() {
        HirKind::Concat(_) | HirKind::Repetition(_) => format!("({})", rule(hir)),
        HirKind::Literal(bytes) if bytes.0.len() > 1 => format!("({})", rule(hir)),
        _ => rule(hir),
    }
}

fn ranges(all: impl Iterator<Item = (char, char)>) -> String {
    let mut out = String::from("[");
    for (first, last) in all {
        out.push_str(&member(first));
        if last > first {
            // Writing to a String cannot fail.
            let _ = write!(out, "-{}", member(last));
        }
    }
    out.push(']');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_and_choices_become_grammars() {
        let pattern = |text: &str, expected: &str| {
            assert_eq!(of_pattern(text), format!("root ::= {expected}"), "{text}");
        };
        pattern("[0-9]+", "[0-9]+");
        pattern("yes|no", "(\"yes\" | \"no\")");
        pattern(" ?-?[0-9]+(, ?-?[0-9]+)*", "(\" \"?) (\"-\"?) ([0-9]+) ((\",\" (\" \"?) (\"-\"?) ([0-9]+))*)");
        pattern("a{2,3}", "\"a\"{2,3}");
        pattern("[^\\n\\]]", "[\\u0000-\\t\\u000B-\\\\\\x5E-\\U0010FFFF]");
        let choices = [" 3,", "a\"b\n", "é"].map(String::from);
        assert_eq!(of_choices(&choices), "root ::= \" 3,\" | \"a\\\"b\\n\" | \"\\u00E9\"");
    }

    #[test]
    fn each_server_has_its_own_word() {
        let words = |kind: Kind, guide: Guide| {
            let mut said = Vec::new();
            guide.write(kind, &mut |name: &str, value: Value| said.push(format!("{name}={value}")));
            said.join(" ")
        };
        let choices = || Guide::Choices(vec!["1".into(), "a+".into()]);
        assert_eq!(words(Kind::Vllm, choices()), r#"structured_outputs={"choice":["1","a+"]}"#);
        assert_eq!(words(Kind::SgLang, choices()), r#"regex="(1|a\\+)""#);
        assert_eq!(words(Kind::SgLang, Guide::Pattern("x*".into())), r#"regex="x*""#);
        assert_eq!(words(Kind::Vllm, Guide::Pattern("x*".into())), r#"structured_outputs={"regex":"x*"}"#);
        assert_eq!(words(Kind::Other, choices()), "");
        let schema = || Guide::Schema(json!({"type": "integer"}));
        assert_eq!(words(Kind::LlamaCpp, schema()), r#"json_schema={"type":"integer"}"#);
        assert_eq!(words(Kind::Vllm, schema()), r#"structured_outputs={"json":{"type":"integer"}}"#);
        assert_eq!(words(Kind::SgLang, schema()), r#"json_schema="{\"type\":\"integer\"}""#);
    }
}
