//! The JSON Schema of strategy files (`totara schema`), for completion and checks in editors. Made from the key table, so
//! that it cannot know other keys than the parser does.

use super::MOST_AT_ONCE;
use super::keys;
use super::parse::POLICIES;
use serde_json::{Map, Value, json};

/// The schema (draft 2020-12).
pub fn schema() -> Value {
    let mut root = section("");
    let object = root.as_object_mut().expect("a section is an object");
    object.insert("$schema".into(), json!("https://json-schema.org/draft/2020-12/schema"));
    object.insert("title".into(), json!("Totara strategy"));
    object.insert("$defs".into(), json!({
        "count": {
            "description": "a whole number of at least 1, or a template over the puzzle's numbers such as \"{{ puzzle.len }}\"",
            "anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": "\\{\\{"}]
        },
        "text": {
            "description": "text as typed: also unquoted no, yes, null, 1e3",
            "type": ["string", "number", "boolean", "null"]
        },
        "texts": {"type": "array", "items": {"$ref": "#/$defs/text"}}
    }));
    root
}

/// The schema of task files (draft 2020-12).
pub fn task_schema() -> Value {
    let mut root = section("task");
    root["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    root["title"] = json!("Totara task");
    root["$defs"] = schema()["$defs"].clone();
    root["$defs"]["names"] = json!({"anyOf": [{"$ref": "#/$defs/text"}, {"$ref": "#/$defs/texts"}]});
    root
}

/// The object schema of a level of the key table.
fn section(level: &str) -> Value {
    let mut properties = Map::new();
    for key in keys::at(level) {
        let mut value = value(level, key.name);
        value.as_object_mut().expect("a schema is an object").insert("description".into(), json!(key.about));
        properties.insert(key.name.into(), value);
    }
    let required: &[&str] = match level {
        // What a strategy extends or includes may hold the rest.
        "" => &[],
        "task" => &["version", "name", "fields", "question", "scorer", "examples"],
        "task.command" => &["run"],
        "search" => &["policy"],
        "evaluate.value" => &["prompt"],
        "evaluate.vote" | "evaluate.yes_no" => &["prompt"],
        "evaluate.command" => &["run"],
        "search.policy.graph" => &["operations"],
        "search.policy.graph.operations" => &["split"],
        _ => &[],
    };
    let mut schema = json!({"type": "object", "properties": properties, "additionalProperties": false});
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    if level.is_empty() {
        schema["anyOf"] = json!([
            {"required": ["version", "name", "search", "generate"]},
            {"required": ["version", "name", "stages"]},
            {"required": ["extends"]},
            {"required": ["include"]}
        ]);
    }
    if level == "evaluate.value" {
        schema["oneOf"] = json!([{"required": ["labels"]}, {"required": ["scale"]}]);
    }
    if matches!(level, "evaluate" | "generate.constrain" | "task.scorer") {
        schema["minProperties"] = json!(1);
        schema["maxProperties"] = json!(1);
    }
    schema
}

/// The settings of a policy.
fn section_of(policy: &str) -> Value {
    match POLICY_LEVELS.iter().find(|level| level.strip_prefix("search.policy.") == Some(policy)) {
        Some(level) => section(level),
        None => json!({"type": "object", "maxProperties": 0}),
    }
}

const POLICY_LEVELS: &[&str] =
    &["search.policy.beam", "search.policy.best-first", "search.policy.mcts", "search.policy.graph"];

fn value(level: &str, name: &str) -> Value {
    let count = json!({"$ref": "#/$defs/count"});
    let whole = |least: u64| json!({"type": "integer", "minimum": least});
    let share = json!({"type": "number", "minimum": 0, "maximum": 1});
    match (level, name) {
        ("" | "task", "version") => json!({"const": 1}),
        ("", "task") => {
            let names: Vec<&str> = crate::task::all().iter().map(|task| task.name()).collect();
            json!({"anyOf": [{"enum": names}, {"type": "string"}]})
        }
        ("task", "fields") => {
            let field = json!({"anyOf": [{"$ref": "#/$defs/text"}, section("task.field")]});
            json!({"type": "object", "minProperties": 1, "additionalProperties": field})
        }
        ("task", "answer") => json!({"anyOf": [{"$ref": "#/$defs/text"}, section("task.answer")]}),
        ("task", "scorer") => {
            json!({"anyOf": [{"enum": ["exact", "text", "number", "list", "set"]}, section("task.scorer")]})
        }
        ("task", "examples") => {
            let example = json!({"type": "object", "additionalProperties": {"$ref": "#/$defs/text"}});
            json!({"type": "array", "minItems": 1, "items": example})
        }
        ("task", "len") => count,
        ("task", "state") => json!({"enum": ["text", "folded", "lines", "last"]}),
        ("task", "id") | ("task.field" | "task.answer", "column") => json!({"$ref": "#/$defs/names"}),
        ("task.scorer", "command") => {
            json!({"anyOf": [{"$ref": "#/$defs/texts", "minItems": 1}, section("task.command")]})
        }
        ("task.command", "run") => json!({"$ref": "#/$defs/texts", "minItems": 1}),
        ("task.command", "seconds") => json!({"type": "number", "minimum": 0.001}),
        ("", "search" | "generate" | "budget" | "offload") => section(name),
        ("", "vars") => json!({"type": "object", "additionalProperties": {"$ref": "#/$defs/text"}}),
        ("", "include") => json!({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/texts"}]}),
        ("", "levels") => json!({"type": "array", "items": section("levels")}),
        ("", "stages") => json!({"type": "array", "minItems": 2, "items": section("stages")}),
        ("stages", "search") => {
            // The policy may stand above.
            let mut search = section("search");
            search.as_object_mut().expect("a section is an object").remove("required");
            search
        }
        ("stages", "evaluate") => value("", "evaluate"),
        ("levels" | "stages", "generate") => section("generate"),
        ("levels", "keep") => count,
        ("search.policy.beam", "likelihood") => share,
        ("search.policy.best-first", "width") | ("search.policy.mcts", "simulations") => whole(1),
        ("search.policy.graph", "operations") => {
            let plain = json!({"enum": ["generate", "aggregate", "improve"]});
            json!({"type": "array", "minItems": 1, "items": {"anyOf": [plain, section("search.policy.graph.operations")]}})
        }
        ("search.policy.graph.operations", "split") => whole(2),
        ("search.policy.mcts", "c") => json!({"type": "number", "minimum": 0}),
        ("search.policy.mcts", "rollout") => json!({"type": "boolean"}),
        ("evaluate", "command") => {
            json!({"anyOf": [{"$ref": "#/$defs/texts", "minItems": 1}, section("evaluate.command")]})
        }
        ("evaluate.command", "run") => json!({"$ref": "#/$defs/texts", "minItems": 1}),
        ("evaluate.command", "seconds") => json!({"type": "number", "minimum": 0.001}),
        ("" | "levels", "evaluate") => {
            json!({"type": "array", "items": {"anyOf": [{"const": "logprob"}, section("evaluate")]}})
        }
        ("search", "policy") => {
            let names = || POLICIES.iter().map(|(name, _)| *name);
            let long = names().map(|name| {
                let settings = json!({"anyOf": [{"type": "null"}, section_of(name)]});
                json!({"type": "object", "properties": {name: settings}, "required": [name], "additionalProperties": false})
            });
            let plain = json!({"enum": names().collect::<Vec<_>>()});
            json!({"anyOf": std::iter::once(plain).chain(long).collect::<Vec<_>>()})
        }
        ("search", "depth" | "keep" | "children") | ("generate", "n" | "max_tokens") => count,
        ("search", "prune_below") | ("generate", "top_p" | "min_p") => share,
        ("generate", "kind") => json!({"enum": ["sample", "likeliest", "propose", "random"]}),
        ("generate", "thought") => json!({"enum": ["step", "answer"]}),
        (_, "format") => json!({"enum": ["completion", "chat"]}),
        ("generate", "constrain") => json!({"anyOf": [{"enum": ["none", "puzzle"]}, section("generate.constrain")]}),
        ("generate.constrain", "choice") => json!({"$ref": "#/$defs/texts", "minItems": 1}),
        ("generate.constrain", "json_schema") => json!({"type": ["object", "string"]}),
        (_, "temperature") => json!({"type": "number", "minimum": 0}),
        ("generate", "repetition_penalty") => json!({"type": "number", "minimum": 0.01, "maximum": 100}),
        ("generate", "top_k") => whole(0),
        ("generate", "stop") => json!({"$ref": "#/$defs/texts"}),
        ("evaluate", "checker") => json!({"enum": ["partial", "whole"]}),
        ("evaluate", "logprob") => json!({"type": "boolean"}),
        ("evaluate", "value") => section("evaluate.value"),
        ("evaluate", "vote") => section("evaluate.vote"),
        ("evaluate", "yes_no") => section("evaluate.yes_no"),
        ("evaluate.yes_no", "yes" | "no") => json!({"$ref": "#/$defs/texts", "minItems": 1}),
        ("evaluate.value", "labels") => {
            json!({"type": "object", "minProperties": 1, "additionalProperties": {"type": "number", "minimum": 0}})
        }
        ("evaluate.value", "scale") => {
            json!({"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2})
        }
        ("evaluate.value" | "evaluate.vote", "n") => {
            json!({"type": "integer", "minimum": 1, "maximum": MOST_AT_ONCE})
        }
        ("evaluate.value" | "evaluate.vote", "max_tokens") => whole(1),
        ("budget", "kv") => json!({"type": ["string", "integer"]}),
        ("budget", "seconds") => json!({"type": "number", "minimum": 0.001}),
        ("budget", _) => whole(1),
        ("offload", "method") => json!({"enum": crate::offload::Method::LIVE.map(|method| method.name())}),
        ("offload", "eviction") => json!({"enum": ["counter", "fifo", "lru"]}),
        ("offload", "look") => json!({"enum": ["ahead", "half", "same"]}),
        ("offload", "ratio" | "max_fetch") => share,
        ("offload", "alpha") => {
            json!({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"enum": ["inf", ".inf"]}]})
        }
        ("offload", "whole_layers") => whole(0),
        _ => json!({"$ref": "#/$defs/text"}),
    }
}
