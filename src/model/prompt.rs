//! From a prompt to token ids, with exactly one BOS.
//!
//! Control tokens come only from the chat template and the tokenizer: what stands in a puzzle, a prompt or a reply is
//! text, whatever it looks like. [`Form::Raw`] is the one exception, for a text that the user typed as a whole prompt. Tail parts go on after the prompt: token ids as they are, text without a space put
//! before it.

use super::template::{ChatTemplate, Message};
use super::tokenizer::{Piece, Special, Tokenizer};
use crate::base::{Error, Result};

/// How a prompt's text is presented.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// As it stands.
    Completion,
    /// As it stands, with the names of control tokens read as those tokens: the user's own text on the command line.
    Raw,
    /// One user turn through the chat template; the assistant's turn is open.
    Chat,
}

/// What follows a prompt.
#[derive(Debug, Clone, Copy)]
pub enum Tail<'a> {
    Text(&'a str),
    /// Ids that the same model produced.
    Tokens(&'a [u32]),
}

/// The ids of `text` in `form`, then of `tail`.
pub fn ids(
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    form: Form,
    text: &str,
    tail: &[Tail<'_>],
) -> Result<Vec<u32>> {
    let mut ids = head(tokenizer, template, form, text)?;
    go_on(tokenizer, &mut ids, tail);
    Ok(ids)
}

/// The ids of `text` in `form`.
pub fn head(tokenizer: &Tokenizer, template: Option<&ChatTemplate>, form: Form, text: &str) -> Result<Vec<u32>> {
    let mut ids = match form {
        Form::Completion => tokenizer.encode(text, Special::Text),
        Form::Raw => tokenizer.encode(text, Special::Parse),
        Form::Chat => {
            let template = template.ok_or_else(|| {
                Error::input(
                    "this model has no chat template: use `format: completion`, or give one with --chat-template FILE",
                )
            })?;
            chat(tokenizer, template, &[Message::user(text)])?
        }
    };
    if let Some(bos) = tokenizer.bos()
        && ids.first() != Some(&bos)
    {
        ids.insert(0, bos);
    }
    Ok(ids)
}

/// Adds the ids of `tail` to those of a prompt.
pub fn go_on(tokenizer: &Tokenizer, ids: &mut Vec<u32>, tail: &[Tail<'_>]) {
    let mut text = String::new();
    for part in tail {
        match part {
            Tail::Text(more) => text.push_str(more),
            Tail::Tokens(more) => {
                flush(tokenizer, &mut text, ids);
                ids.extend_from_slice(more);
            }
        }
    }
    flush(tokenizer, &mut text, ids);
}

/// Texts that follow each other are encoded together.
fn flush(tokenizer: &Tokenizer, text: &mut String, ids: &mut Vec<u32>) {
    if !text.is_empty() {
        ids.extend(tokenizer.encode_continued(text));
        text.clear();
    }
}

/// The ids of a conversation whose assistant turn is open, without a BOS that the template does not write.
pub fn chat(tokenizer: &Tokenizer, template: &ChatTemplate, messages: &[Message]) -> Result<Vec<u32>> {
    let named = |m: &Message| tokenizer.control_names().any(|name| m.content.contains(name));
    if !messages.iter().any(named) {
        return Ok(tokenizer.encode(&template.render(messages, true)?, Special::Parse));
    }
    // A noncharacter inside every control name of the contents keeps it from being found; it is taken out again after
    // the split. The template may trim and cut the contents as it likes meanwhile.
    let marker = ('\u{fdd0}'..='\u{fdef}')
        .find(|c| !messages.iter().any(|m| m.content.contains(*c)))
        .ok_or_else(|| Error::input("the prompt holds every noncharacter of Unicode: it is no text"))?;
    let marked: Vec<Message> = messages
        .iter()
        .map(|m| Message { role: m.role.clone(), content: mark(tokenizer, &m.content, marker) })
        .collect();
    let rendered = template.render(&marked, true)?;
    let mut ids = Vec::new();
    for piece in tokenizer.split(&rendered, Special::Parse) {
        match piece {
            Piece::Token(id) => ids.push(id),
            Piece::Text(text) => ids.extend(tokenizer.encode(&text.replace(marker, ""), Special::Text)),
        }
    }
    Ok(ids)
}

/// Puts `marker` after the first character of every control name, wherever names overlap.
fn mark(tokenizer: &Tokenizer, content: &str, marker: char) -> String {
    let mut out = String::with_capacity(content.len() + 8);
    for (at, c) in content.char_indices() {
        out.push(c);
        if tokenizer.control_names().any(|name| content[at..].starts_with(name)) {
            out.push(marker);
        }
    }
    out
}

#[cfg(test)]
mod tests;
