//! The JSON Schemas against what the reader takes, with a validator of our own.

use super::*;
use serde_json::Value as Json;

#[test]
fn shipped_strategies_validate_against_the_schema_and_broken_ones_do_not() {
    let schema = schema::schema();
    let starter = include_str!("../../../strategies/starter.yaml");
    for text in library::list().iter().map(|entry| entry.text).chain([starter, GOOD]) {
        let faults = validate(&schema, &schema, &json_of(text), "");
        assert_eq!(faults, [] as [String; 0], "{text}");
    }
    for (from, to) in [
        ("keep: 2", "kep: 2"),
        ("n: 3", "n: 0"),
        ("prune_below: 0.1", "prune_below: 2"),
        ("bfs", "mtcs"),
        ("policy: bfs", "policy: {mcts: {c: -1}}"),
        ("policy: bfs", "policy: {dfs: {c: 1}}"),
        ("name: mine\n", ""),
    ] {
        assert!(!validate(&schema, &schema, &json_of(&with(from, to)), "").is_empty(), "{to}");
    }
}

#[test]
fn task_files_validate_against_their_schema_and_broken_ones_do_not() {
    let schema = schema::task_schema();
    let starter = include_str!("../../../strategies/task.yaml");
    assert_eq!(validate(&schema, &schema, &json_of(starter), ""), [] as [String; 0]);
    for (from, to) in [
        ("name: sums", "nmae: sums"),
        ("scorer: {errors:", "scorer: {error:"),
        ("examples:", "examples: []\nexample:"),
        ("version: 1", "version: 2"),
        ("strategy: io", "state: other"),
    ] {
        let broken = starter.replacen(&format!("\n{from}"), &format!("\n{to}"), 1);
        assert_ne!(broken, starter, "{from}");
        assert!(!validate(&schema, &schema, &json_of(&broken), "").is_empty(), "{to}");
    }
}

/// A file as an editor's YAML 1.2 reader sees it.
pub fn json_of(text: &str) -> Json {
    yaml::load(text).0.unwrap().to_json()
}

/// A validator for the part of JSON Schema that `schema.rs` uses; an unknown keyword fails the test.
pub fn validate(root: &Json, schema: &Json, value: &Json, at: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (keyword, rule) in schema.as_object().unwrap() {
        let ok = match keyword.as_str() {
            "$schema" | "title" | "description" | "$defs" => true,
            "$ref" => {
                let name = rule.as_str().unwrap().strip_prefix("#/$defs/").unwrap();
                faults.extend(validate(root, &root["$defs"][name], value, at));
                true
            }
            "type" => {
                let types: Vec<&str> = rule
                    .as_array()
                    .map_or_else(|| vec![rule.as_str().unwrap()], |a| a.iter().map(|t| t.as_str().unwrap()).collect());
                types.iter().any(|name| match *name {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "boolean" => value.is_boolean(),
                    "null" => value.is_null(),
                    "integer" => value.is_i64(),
                    "number" => value.is_number(),
                    other => panic!("type {other}"),
                })
            }
            "const" => value == rule,
            "enum" => rule.as_array().unwrap().contains(value),
            "minimum" => value.as_f64().is_none_or(|v| v >= rule.as_f64().unwrap()),
            "maximum" => value.as_f64().is_none_or(|v| v <= rule.as_f64().unwrap()),
            "minItems" => value.as_array().is_none_or(|v| v.len() as u64 >= rule.as_u64().unwrap()),
            "maxItems" => value.as_array().is_none_or(|v| v.len() as u64 <= rule.as_u64().unwrap()),
            "minProperties" => value.as_object().is_none_or(|v| v.len() as u64 >= rule.as_u64().unwrap()),
            "maxProperties" => value.as_object().is_none_or(|v| v.len() as u64 <= rule.as_u64().unwrap()),
            "pattern" => value.as_str().is_none_or(|v| regex::Regex::new(rule.as_str().unwrap()).unwrap().is_match(v)),
            "oneOf" => {
                let fits = |option: &&Json| validate(root, option, value, at).is_empty();
                rule.as_array().unwrap().iter().filter(fits).count() == 1
            }
            "anyOf" => rule.as_array().unwrap().iter().any(|option| validate(root, option, value, at).is_empty()),
            "required" => rule.as_array().unwrap().iter().all(|name| value.get(name.as_str().unwrap()).is_some()),
            "items" => {
                for item in value.as_array().into_iter().flatten() {
                    faults.extend(validate(root, rule, item, at));
                }
                true
            }
            "properties" => {
                for (name, rule) in rule.as_object().unwrap() {
                    if let Some(value) = value.get(name) {
                        faults.extend(validate(root, rule, value, &format!("{at}.{name}")));
                    }
                }
                true
            }
            "additionalProperties" => value.as_object().into_iter().flatten().all(|(name, value)| {
                let known = schema["properties"].get(name).is_some();
                known || (rule.is_object() && validate(root, rule, value, at).is_empty())
            }),
            other => panic!("keyword {other}"),
        };
        if !ok {
            faults.push(format!("{at}: {keyword} {rule} refuses {value}"));
        }
    }
    faults
}
