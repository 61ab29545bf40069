//! A tokenizer from the `tokenizer.ggml.*` keys of a GGUF file.

use super::bpe::{self, PreTokenizer};
use super::library::Library;
use super::spm::{SPACE, Spm};
use super::{Encoder, Inner, Name, Tokenizer, Vocabulary, with_named_ends};
use crate::base::text::sanitize_line;
use crate::base::{Error, Result};
use crate::model::gguf::Gguf;
use std::sync::Arc;
use tokenizers::AddedToken;

/// What a token is, as `tokenizer.ggml.token_type` numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Normal,
    /// Unknown and control tokens.
    Control,
    /// Ordinary text that is always one token.
    User,
    Unused,
    Byte,
}

struct Keys<'a> {
    tokens: Vec<&'a str>,
    kinds: Vec<Kind>,
    bos: Option<u32>,
    ends: Vec<u32>,
    eos: Option<u32>,
    unknown: Option<u32>,
    add_bos: Option<bool>,
    space_prefix: Option<bool>,
}

/// One line about the tokenizer, without building it.
pub fn describe(file: &Gguf) -> Result<String> {
    Ok(match file.text("tokenizer.ggml.model")? {
        Some("gpt2") => {
            format!("byte-level BPE ({})", sanitize_line(file.text("tokenizer.ggml.pre")?.unwrap_or("default")))
        }
        Some("llama") => "SentencePiece".to_string(),
        Some(other) => format!("unknown ({})", sanitize_line(other)),
        None => "none".to_string(),
    })
}

pub fn read(file: &Gguf) -> Result<Tokenizer> {
    let model = file
        .text("tokenizer.ggml.model")?
        .ok_or_else(|| Error::input("key `tokenizer.ggml.model` is missing: the file has no tokenizer"))?;
    let keys = keys(file)?;
    match model {
        "gpt2" => byte_level(file, &keys),
        "llama" => sentence_piece(file, &keys),
        other => Err(Error::input(format!(
            "tokenizer `{}` is not supported; `gpt2` (byte-level BPE) and `llama` (SentencePiece) are",
            sanitize_line(other)
        ))),
    }
}

fn keys(file: &Gguf) -> Result<Keys<'_>> {
    let tokens = file
        .texts("tokenizer.ggml.tokens")?
        .filter(|t| !t.is_empty())
        .ok_or_else(|| Error::input("key `tokenizer.ggml.tokens` is missing or empty: the file has no vocabulary"))?;
    let kinds = match file.numbers("tokenizer.ggml.token_type")? {
        None => vec![Kind::Normal; tokens.len()],
        Some(numbers) => {
            same_length(file, "tokenizer.ggml.token_type", numbers.len(), tokens.len())?;
            numbers.into_iter().map(kind_of).collect()
        }
    };
    let id = |name: &str| -> Result<Option<u32>> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        match file.count(&key)? {
            // Some converters write 2^32 - 1 for "none".
            Some(id) if id == u64::from(u32::MAX) => Ok(None),
            Some(id) if id >= tokens.len() as u64 => {
                Err(file.wrong(&key, &format!("names token {id} of {}", tokens.len())))
            }
            Some(id) => Ok(Some(id as u32)),
            None => Ok(None),
        }
    };
    let eos = id("eos")?;
    let ends = [eos, id("eot")?, id("eom")?].into_iter().flatten().collect();
    Ok(Keys {
        bos: id("bos")?,
        ends,
        eos,
        unknown: id("unknown")?,
        add_bos: file.flag("tokenizer.ggml.add_bos_token")?,
        space_prefix: file.flag("tokenizer.ggml.add_space_prefix")?,
        tokens,
        kinds,
    })
}

fn same_length(file: &Gguf, key: &str, found: usize, expected: usize) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(file.wrong(key, &format!("has {found} elements for {expected} tokens")))
}

fn kind_of(number: f64) -> Kind {
    match number as i64 {
        2 | 3 => Kind::Control,
        4 => Kind::User,
        5 => Kind::Unused,
        6 => Kind::Byte,
        _ => Kind::Normal,
    }
}

fn byte_level(file: &Gguf, keys: &Keys<'_>) -> Result<Tokenizer> {
    let name = file.text("tokenizer.ggml.pre")?.unwrap_or("default");
    let pre = PreTokenizer::named(name)?;
    let merges = file
        .texts("tokenizer.ggml.merges")?
        .ok_or_else(|| Error::input("key `tokenizer.ggml.merges` is missing: byte-level BPE needs it"))?;
    let model = bpe::model(&keys.tokens, &merges, pre.ignore_merges)?;
    // Some vocabularies lack bytes that no text of their training had (the default model's lacks 4 and others); such a
    // byte is left out of a prompt, as every other engine does.
    let mut bytes = vec![None; 256];
    for (id, token) in keys.tokens.iter().enumerate() {
        if let [byte] = bpe::token_bytes(token)[..]
            && token.chars().count() == 1
            && keys.kinds[id] == Kind::Normal
        {
            bytes[byte as usize] = Some(id as u32);
        }
    }
    let mut library = tokenizers::Tokenizer::new(model);
    library.with_pre_tokenizer(Some(pre.build()?));
    let added = keys.tokens.iter().zip(&keys.kinds).filter_map(|(token, kind)| match kind {
        Kind::Control if !token.is_empty() => Some(AddedToken::from(*token, true).normalized(false)),
        Kind::User if !token.is_empty() => Some(AddedToken::from(*token, false).normalized(false)),
        _ => None,
    });
    library.add_tokens(added).map_err(|e| Error::input(format!("its control tokens cannot be used: {e}")))?;
    let library = Library::new(library, None, bytes);
    library.check()?;
    // The library finds user tokens by itself.
    let vocabulary = vocabulary(keys, false, |token, kind| match kind {
        Kind::User => token.as_bytes().to_vec(),
        _ => bpe::token_bytes(token),
    });
    let kind = format!("byte-level BPE ({})", sanitize_line(name));
    let add_bos = keys.add_bos.unwrap_or(pre.add_bos);
    Ok(finish(keys, Encoder::Library(Box::new(library)), vocabulary, kind, add_bos, false))
}

fn sentence_piece(file: &Gguf, keys: &Keys<'_>) -> Result<Tokenizer> {
    let scores = file
        .numbers("tokenizer.ggml.scores")?
        .ok_or_else(|| Error::input("key `tokenizer.ggml.scores` is missing: SentencePiece needs it"))?;
    same_length(file, "tokenizer.ggml.scores", scores.len(), keys.tokens.len())?;
    let space_prefix = keys.space_prefix.unwrap_or(true);
    let mut spm = Spm::new(space_prefix, keys.unknown);
    for (id, (token, kind)) in keys.tokens.iter().zip(&keys.kinds).enumerate() {
        match kind {
            Kind::Byte => match byte_of(token) {
                Some(byte) => spm.add_byte(byte, id as u32),
                None => return Err(Error::input(format!("byte token `{}` names no byte", sanitize_line(token)))),
            },
            Kind::Control => {}
            Kind::Normal | Kind::User | Kind::Unused => {
                spm.add_piece(token, id as u32, scores[id] as f32, *kind == Kind::Unused);
            }
        }
    }
    if !spm.covers_everything() {
        return Err(Error::input("the vocabulary has neither a token for every byte nor an unknown token"));
    }
    let vocabulary = vocabulary(keys, true, |token, kind| match (kind, byte_of(token)) {
        (Kind::Byte, Some(byte)) => vec![byte],
        _ => token.replace(SPACE, " ").into_bytes(),
    });
    let add_bos = keys.add_bos.unwrap_or(true);
    Ok(finish(keys, Encoder::Spm(Box::new(spm)), vocabulary, "SentencePiece".to_string(), add_bos, space_prefix))
}

/// The byte of a token such as `<0x0A>`.
pub fn byte_of(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// `find_user`: whether user tokens are to be found before a text is encoded.
fn vocabulary(keys: &Keys<'_>, find_user: bool, bytes: impl Fn(&str, Kind) -> Vec<u8>) -> Vocabulary {
    let mut vocabulary = Vocabulary::default();
    let mut names = Vec::new();
    for (id, (token, kind)) in keys.tokens.iter().zip(&keys.kinds).enumerate() {
        let control = *kind == Kind::Control;
        vocabulary.push(&bytes(token, *kind), control);
        if control || (find_user && *kind == Kind::User) {
            names.push(Name { text: (*token).to_string(), id: id as u32, control });
        }
    }
    vocabulary.set_names(names);
    vocabulary
}

fn finish(
    keys: &Keys<'_>,
    encoder: Encoder,
    vocabulary: Vocabulary,
    kind: String,
    add_bos: bool,
    space_prefix: bool,
) -> Tokenizer {
    let text = |id: Option<u32>| id.map(|id| keys.tokens[id as usize].to_string()).unwrap_or_default();
    let ends = with_named_ends(keys.ends.clone(), &vocabulary);
    Tokenizer(Arc::new(Inner {
        encoder,
        vocabulary,
        bos: keys.bos.filter(|_| add_bos),
        bos_text: text(keys.bos),
        eos_text: text(keys.eos),
        ends,
        kind,
        space_prefix,
    }))
}
