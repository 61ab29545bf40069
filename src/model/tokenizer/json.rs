//! A tokenizer from a folder: `tokenizer.json` for the tokens, `tokenizer_config.json` and `generation_config.json` for
//! BOS and the end tokens.
//!
//! The library trusts a `tokenizer.json` more than it should, so what could make it panic or draw random numbers is
//! checked or removed here first. Only BPE is taken: no model of the Llama family has anything else.

use super::gguf::byte_of;
use super::library::Library;
use super::spm::SPACE;
use super::{Encoder, Inner, Name, Tokenizer, Vocabulary, bpe, with_named_ends};
use crate::base::text::sanitize_line;
use crate::base::{Error, Result};
use crate::model::config::hf::token_ids;
use crate::model::mapped::{read_text, read_text_if_there};
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

const MAX_TOKENIZER: u64 = 256 << 20;
pub(super) const MAX_SETTINGS: u64 = 32 << 20;
/// Ids that may be missing between the tokens.
const MAX_GAPS: usize = 1 << 16;

/// How tokens are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spelling {
    /// A character a byte (GPT-2).
    Bytes,
    /// U+2581 for a space, `<0x0A>` for bytes (SentencePiece).
    Sentence,
}

pub fn read(folder: &Path, bos: Option<u32>, ends: &[u32]) -> Result<Tokenizer> {
    let path = folder.join("tokenizer.json");
    if !path.exists() {
        return Err(Error::input(format!(
            "{}: has no tokenizer.json (a tokenizer.model alone is not read; Transformers can convert it)",
            folder.display()
        )));
    }
    let text = read_text(&path, MAX_TOKENIZER)?;
    let settings = Settings::read(folder)?;
    let tokenizer = build(&text, &settings, bos, ends).map_err(|e| e.context(path.display()))?;
    let len = tokenizer.vocab_len();
    for (file, key, ids) in [
        ("config.json", "bos_token_id", bos.as_slice()),
        ("config.json", "eos_token_id", ends),
        ("generation_config.json", "eos_token_id", &settings.ends),
    ] {
        if let Some(id) = ids.iter().find(|&&id| id as usize >= len) {
            return Err(Error::input(format!(
                "{}: `{key}` names token {id}, but the tokenizer has {len}: correct it, or remove the key",
                folder.join(file).display()
            )));
        }
    }
    Ok(tokenizer)
}

/// What the small files say.
#[derive(Default)]
struct Settings {
    add_bos: Option<bool>,
    bos: Option<String>,
    eos: Option<String>,
    ends: Vec<u32>,
}

impl Settings {
    fn read(folder: &Path) -> Result<Self> {
        let mut settings = Self::default();
        let mut read = |name: &str, take: fn(&mut Self, &Value) -> Result<()>| -> Result<()> {
            let path = folder.join(name);
            let Some(text) = read_text_if_there(&path, MAX_SETTINGS)? else { return Ok(()) };
            serde_json::from_str(&text)
                .map_err(|e| Error::input(format!("cannot be read: {e}")))
                .and_then(|json| take(&mut settings, &json))
                .map_err(|e| e.context(path.display()))
        };
        read("tokenizer_config.json", |settings, json| {
            settings.add_bos = match json.get("add_bos_token") {
                None | Some(Value::Null) => None,
                Some(Value::Bool(add)) => Some(*add),
                Some(_) => return Err(Error::input("`add_bos_token` is neither true nor false")),
            };
            settings.bos = token_name(json, "bos_token")?;
            settings.eos = token_name(json, "eos_token")?;
            Ok(())
        })?;
        read("generation_config.json", |settings, json| {
            settings.ends = token_ids("eos_token_id", json.get("eos_token_id"), true)?;
            Ok(())
        })?;
        Ok(settings)
    }
}

/// A token's text under `key`, by itself or with what else is said of it.
fn token_name(json: &Value, key: &str) -> Result<Option<String>> {
    match json.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(other) => match other.get("content") {
            Some(Value::String(text)) => Ok(Some(text.clone())),
            _ => Err(Error::input(format!("`{key}` is neither a text nor an object with its `content`"))),
        },
    }
}

fn build(text: &str, settings: &Settings, bos: Option<u32>, ends: &[u32]) -> Result<Tokenizer> {
    let mut json: Value = serde_json::from_str(text).map_err(|e| Error::input(format!("cannot be read: {e}")))?;
    settle(&mut json)?;
    let spelling = spelling(&json)?;
    let (tokens, added) = tokens(&json)?;
    check_merges(&json)?;
    check_templates(json.get("post_processor").unwrap_or(&Value::Null))?;
    let start = library(&json)?;
    for token in &added {
        if start.token_to_id(&token.text) != Some(token.id) {
            return Err(Error::input(format!(
                "added token `{}` says it is {}, which does not fit its place",
                sanitize_line(&token.text),
                token.id
            )));
        }
    }
    let mut continued = json.clone();
    let space_prefix = drop_prefixes(&mut continued);
    let continued = if space_prefix { Some(library(&continued)?) } else { None };
    let vocabulary = vocabulary(&tokens, &added, spelling);
    let bytes = (0..=u8::MAX).map(|byte| single_byte(&start, byte, spelling)).collect();
    let adds_bos = first_added(&start);
    let library = Library::new(start, continued, bytes);
    library.check()?;
    let by_name = |key: &str, name: &Option<String>| match name.as_ref().map(|name| (name, tokens.get(name))) {
        None => Ok(None),
        Some((_, Some(&id))) => Ok(Some(id)),
        Some((name, None)) => Err(Error::input(format!(
            "has no token `{}`, which tokenizer_config.json names as `{key}`: correct the name, or remove the key",
            sanitize_line(name)
        ))),
    };
    let bos = by_name("bos_token", &settings.bos)?.or(bos).or(adds_bos);
    let add_bos = settings.add_bos.unwrap_or(adds_bos.is_some());
    let all_ends = ends.iter().chain(&settings.ends).copied().chain(by_name("eos_token", &settings.eos)?).collect();
    let name_of = |id: u32| added.iter().find(|t| t.id == id).map(|t| t.text.clone()).unwrap_or_default();
    let eos_text = settings.eos.clone().or_else(|| ends.first().map(|&id| name_of(id))).unwrap_or_default();
    Ok(Tokenizer(Arc::new(Inner {
        encoder: Encoder::Library(Box::new(library)),
        ends: with_named_ends(all_ends, &vocabulary),
        vocabulary,
        bos: bos.filter(|_| add_bos),
        bos_text: settings.bos.clone().or_else(|| bos.map(name_of)).unwrap_or_default(),
        eos_text,
        kind: match spelling {
            Spelling::Bytes => "tokenizer.json, byte-level BPE".to_string(),
            Spelling::Sentence => "tokenizer.json, SentencePiece BPE".to_string(),
        },
        space_prefix,
    })))
}

/// Removes what must not act here (truncation, padding, random drop-out) and refuses what is not BPE.
fn settle(json: &mut Value) -> Result<()> {
    let Some(object) = json.as_object_mut() else {
        return Err(Error::input("is not a tokenizer: a JSON object is needed"));
    };
    object.insert("truncation".to_string(), Value::Null);
    object.insert("padding".to_string(), Value::Null);
    let Some(model) = object.get_mut("model").and_then(Value::as_object_mut) else {
        return Err(Error::input("has no `model`"));
    };
    let kind = model.get("type").and_then(Value::as_str);
    if kind != Some("BPE") && !(kind.is_none() && model.contains_key("merges")) {
        return Err(Error::input(format!(
            "its model is `{}`; the Llama family uses BPE, and only that is supported",
            sanitize_line(kind.unwrap_or("unnamed"))
        )));
    }
    model.insert("dropout".to_string(), Value::Null);
    for field in ["continuing_subword_prefix", "end_of_word_suffix"] {
        if model.get(field).and_then(Value::as_str).is_some_and(|s| !s.is_empty()) {
            return Err(Error::input(format!("its model uses `{field}`, which is not supported")));
        }
        model.insert(field.to_string(), Value::Null);
    }
    Ok(())
}

/// Whether an object with this type is anywhere inside.
fn mentions(json: &Value, kind: &str) -> bool {
    match json {
        Value::Object(map) => {
            map.get("type").and_then(Value::as_str) == Some(kind) || map.values().any(|v| mentions(v, kind))
        }
        Value::Array(list) => list.iter().any(|v| mentions(v, kind)),
        _ => false,
    }
}

/// What a template puts around texts must be declared, and a template for one text must not name a second: the library looks
/// both up without asking whether they are there.
fn check_templates(json: &Value) -> Result<()> {
    if let Value::Array(list) = json {
        return list.iter().try_for_each(check_templates);
    }
    let Value::Object(map) = json else { return Ok(()) };
    let single = map.get("single").and_then(Value::as_array).into_iter().flatten();
    let mut sequences = single.filter_map(|piece| piece["Sequence"]["id"].as_str());
    if let Some(name) = sequences.find(|&name| name != "A") {
        let name = sanitize_line(name);
        return Err(Error::input(format!(
            "its post-processor puts a text `{name}` where there is one text alone, `A`"
        )));
    }
    for pieces in [map.get("single"), map.get("pair")].into_iter().flatten().filter_map(Value::as_array) {
        for name in pieces.iter().filter_map(|piece| piece["SpecialToken"]["id"].as_str()) {
            let declared = &json["special_tokens"][name];
            let len = |list: &str| declared[list].as_array().map(Vec::len);
            if len("ids").is_none() || len("ids") != len("tokens") {
                return Err(Error::input(format!(
                    "its post-processor puts `{}` around texts and does not say which token that is",
                    sanitize_line(name)
                )));
            }
        }
    }
    map.values().try_for_each(check_templates)
}

fn spelling(json: &Value) -> Result<Spelling> {
    let part = |name: &str| json.get(name).unwrap_or(&Value::Null);
    if ["decoder", "pre_tokenizer", "normalizer"].iter().any(|p| mentions(part(p), "ByteLevel")) {
        Ok(Spelling::Bytes)
    } else if mentions(part("decoder"), "ByteFallback")
        || mentions(part("decoder"), "Metaspace")
        || part("model").get("byte_fallback").and_then(Value::as_bool) == Some(true)
    {
        Ok(Spelling::Sentence)
    } else {
        Err(Error::input("its decoder is neither byte-level nor SentencePiece's: how tokens spell text is not known"))
    }
}

/// Ids of all tokens by text, and the added ones.
fn tokens(json: &Value) -> Result<(HashMap<String, u32>, Vec<Name>)> {
    let vocab = json["model"].get("vocab").and_then(Value::as_object);
    let vocab = vocab.filter(|v| !v.is_empty()).ok_or_else(|| Error::input("its model has no vocabulary"))?;
    let no_added = Vec::new();
    let list = json.get("added_tokens").and_then(Value::as_array).unwrap_or(&no_added);
    let limit = vocab.len() + list.len() + MAX_GAPS;
    let id_of = |text: &str, id: Option<&Value>| match id.and_then(Value::as_u64) {
        Some(id) if (id as usize) < limit => Ok(id as u32),
        _ => Err(Error::input(format!("token `{}` has no possible id", sanitize_line(text)))),
    };
    let mut tokens = HashMap::new();
    for (text, id) in vocab {
        tokens.insert(text.clone(), id_of(text, Some(id))?);
    }
    let mut added = Vec::new();
    for token in list {
        let text = token.get("content").and_then(Value::as_str).unwrap_or_default().to_string();
        let id = id_of(&text, token.get("id"))?;
        let control = token.get("special").and_then(Value::as_bool).unwrap_or(false);
        tokens.insert(text.clone(), id);
        added.push(Name { text, id, control });
    }
    Ok((tokens, added))
}

/// Every merge must join two tokens into a third: the library computes lengths from that.
fn check_merges(json: &Value) -> Result<()> {
    let model = &json["model"];
    let (Some(vocab), Some(merges)) = (model["vocab"].as_object(), model.get("merges").and_then(Value::as_array))
    else {
        return Err(Error::input("its model has no list of merges"));
    };
    for (index, merge) in merges.iter().enumerate() {
        let pair = match merge {
            Value::String(text) => text.split_once(' '),
            Value::Array(pair) => match &pair[..] {
                [Value::String(left), Value::String(right)] => Some((left.as_str(), right.as_str())),
                _ => None,
            },
            _ => None,
        };
        let joins = pair.is_some_and(|(left, right)| {
            vocab.contains_key(left) && vocab.contains_key(right) && vocab.contains_key(&format!("{left}{right}"))
        });
        if !joins {
            return Err(Error::input(format!("merge {index} does not join two tokens of the vocabulary into a third")));
        }
    }
    Ok(())
}

fn library(json: &Value) -> Result<tokenizers::Tokenizer> {
    let bytes = serde_json::to_vec(json).map_err(|e| Error::fault(e.to_string()))?;
    tokenizers::Tokenizer::from_bytes(bytes)
        .map_err(|e| Error::input(format!("cannot be used: {}", sanitize_line(&e.to_string()))))
}

/// Removes what puts a space before a text; says whether there was anything.
fn drop_prefixes(json: &mut Value) -> bool {
    match json {
        Value::Object(map) => {
            let mut found = false;
            match map.get("type").and_then(Value::as_str) {
                Some("Metaspace") => {
                    found = map.get("prepend_scheme").and_then(Value::as_str) != Some("never")
                        && map.get("add_prefix_space").and_then(Value::as_bool) != Some(false);
                    map.insert("prepend_scheme".to_string(), Value::from("never"));
                    map.remove("add_prefix_space");
                }
                Some("ByteLevel") => {
                    // Decoders and post-processors carry the field too, where it does nothing to a text.
                    map.insert("add_prefix_space".to_string(), Value::from(false));
                }
                _ => {}
            }
            if map.get("pre_tokenizer").is_some_and(adds_byte_space) {
                found = true;
            }
            if map.get("normalizer").is_some_and(is_prepend) {
                map.insert("normalizer".to_string(), Value::Null);
                found = true;
            }
            for name in ["normalizer", "pre_tokenizer", "normalizers", "pretokenizers"] {
                if let Some(inner) = map.get_mut(name) {
                    found |= drop_prefixes(inner);
                }
            }
            found
        }
        Value::Array(list) => {
            let before = list.len();
            list.retain(|v| !is_prepend(v));
            let mut found = list.len() != before;
            for inner in list {
                found |= drop_prefixes(inner);
            }
            found
        }
        _ => false,
    }
}

fn is_prepend(json: &Value) -> bool {
    json.get("type").and_then(Value::as_str) == Some("Prepend")
}

fn adds_byte_space(json: &Value) -> bool {
    match json {
        Value::Object(map) => {
            (map.get("type").and_then(Value::as_str) == Some("ByteLevel")
                && map.get("add_prefix_space").and_then(Value::as_bool) == Some(true))
                || map.values().any(adds_byte_space)
        }
        Value::Array(list) => list.iter().any(adds_byte_space),
        _ => false,
    }
}

fn vocabulary(tokens: &HashMap<String, u32>, added: &[Name], spelling: Spelling) -> Vocabulary {
    let len = tokens.values().map(|&id| id as usize + 1).max().unwrap_or(0);
    let mut table: Vec<(Vec<u8>, bool)> = vec![(Vec::new(), false); len];
    for (text, &id) in tokens {
        let bytes = match spelling {
            Spelling::Bytes => bpe::token_bytes(text),
            Spelling::Sentence => match byte_of(text) {
                Some(byte) => vec![byte],
                None => text.replace(SPACE, " ").into_bytes(),
            },
        };
        table[id as usize] = (bytes, false);
    }
    for token in added {
        table[token.id as usize] = (token.text.clone().into_bytes(), token.control);
    }
    let mut vocabulary = Vocabulary::default();
    for (bytes, control) in &table {
        vocabulary.push(bytes, *control);
    }
    // The library finds the other added tokens by itself.
    vocabulary.set_names(added.iter().filter(|t| t.control).cloned().collect());
    vocabulary
}

fn single_byte(library: &tokenizers::Tokenizer, byte: u8, spelling: Spelling) -> Option<u32> {
    match spelling {
        Spelling::Bytes => library.token_to_id(&bpe::char_of(byte).to_string()),
        Spelling::Sentence => library.token_to_id(&format!("<0x{byte:02X}>")),
    }
}

/// The token that the post-processor puts before a text, which is BOS.
fn first_added(library: &tokenizers::Tokenizer) -> Option<u32> {
    let with = library.encode_fast("0", true).ok()?;
    let without = library.encode_fast("0", false).ok()?;
    let first = *with.get_ids().first()?;
    (without.get_ids().first() != Some(&first)).then_some(first)
}
