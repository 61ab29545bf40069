//! Chat templates: the Jinja that models carry, rendered as Transformers renders it.
//!
//! Refuses a template that does not parse or whose rendering fails, names its line and says how to give another; stops
//! one that would run or write without end. Never gives an empty prompt for a template that failed.

mod functions;
mod tags;

use super::mapped::{read_text, read_text_if_there};
use crate::base::text::sanitize_line;
use crate::base::{Error, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Value, context};
use std::path::Path;
use std::sync::Arc;

/// Work a rendering may do, in instructions or 64 bytes of text each: 12 MB of text in all. Long conversations need some
/// ten thousand instructions and a few copies of their text.
const FUEL: u64 = 200_000;
/// Stack of a rendering. Values that a template nests are freed by recursion; with this fuel it cannot nest them so
/// deep that this overflows, while a thread's usual two megabytes would.
const STACK: usize = 64 << 20;
const MAX_SOURCE: u64 = 1 << 20;
const NAME: &str = "chat template";

/// One turn.
#[derive(Debug, Clone)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    pub content: String,
}

impl Message {
    pub fn user(content: impl Into<String>) -> Self {
        Self { role: "user".to_string(), content: content.into() }
    }
}

/// A parsed template with the model's token names.
#[derive(Clone)]
pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    bos: String,
    eos: String,
    /// For messages: the file it came from.
    origin: String,
}

impl ChatTemplate {
    /// `bos` and `eos`: what the template writes for them. `origin`: for messages.
    pub fn new(source: &str, bos: &str, eos: &str, origin: &str) -> Result<Self> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|e| Error::fault(format!("template syntax: {e}")))?;
        environment.set_syntax(syntax);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        functions::add(&mut environment);
        environment.add_template_owned(NAME, tags::make_transparent(source)).map_err(|e| refused(origin, &e))?;
        Ok(Self {
            environment: Arc::new(environment),
            bos: bos.to_string(),
            eos: eos.to_string(),
            origin: origin.to_string(),
        })
    }

    /// From a file given by the user.
    pub fn from_file(path: &Path, bos: &str, eos: &str) -> Result<Self> {
        let source = read_text(path, MAX_SOURCE)?;
        Self::new(&source, bos, eos, &path.display().to_string())
    }

    /// The prompt for `messages`; `add_generation_prompt` opens the assistant's turn.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        let text = std::thread::scope(|scope| {
            let rendering = std::thread::Builder::new()
                .name("template".to_string())
                .stack_size(STACK)
                .spawn_scoped(scope, || self.render_here(messages, add_generation_prompt))
                .map_err(|e| Error::fault(format!("no thread for the chat template: {e}")))?;
            rendering.join().unwrap_or_else(|_| {
                Err(Error::input(format!("{}: the chat template could not be rendered; {REMEDY}", self.origin)))
            })
        })?;
        if text.is_empty() {
            return Err(Error::input(format!(
                "{}: the chat template made an empty prompt of {} messages; {REMEDY}",
                self.origin,
                messages.len()
            )));
        }
        Ok(text)
    }

    fn render_here(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        let turns = messages.iter().map(|m| context! { role => m.role.as_str(), content => m.content.as_str() });
        let values = context! {
            messages => turns.collect::<Vec<Value>>(),
            add_generation_prompt => add_generation_prompt,
            bos_token => self.bos.as_str(),
            eos_token => self.eos.as_str(),
            tools => Value::from(()),
            documents => Value::from(()),
        };
        let template = self.environment.get_template(NAME).map_err(|e| refused(&self.origin, &e))?;
        template.render(values).map_err(|e| refused(&self.origin, &e))
    }
}

const REMEDY: &str = "give another with --chat-template FILE, or use `format: completion`";

fn refused(origin: &str, error: &minijinja::Error) -> Error {
    let line = error.line().map(|l| format!(" line {l}")).unwrap_or_default();
    let mut what = match error.kind() {
        minijinja::ErrorKind::OutOfFuel => "it runs or writes without end".to_string(),
        kind => error.detail().map_or_else(|| kind.to_string(), str::to_string),
    };
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        what = format!("{what}: {inner}");
        cause = inner.source();
    }
    Error::input(format!("{origin}: chat template{line}: {}; {REMEDY}", sanitize_line(&what)))
}

/// The template source of a folder: `chat_template.jinja`, or the field of `tokenizer_config.json` (one text, or a list
/// of named ones, of which `default` is taken). With the file's name, for messages.
pub fn of_folder(folder: &Path) -> Result<Option<(String, String)>> {
    let file = folder.join("chat_template.jinja");
    if let Some(source) = read_text_if_there(&file, MAX_SOURCE)? {
        return Ok(Some((source, file.display().to_string())));
    }
    let path = folder.join("tokenizer_config.json");
    let Some(text) = read_text_if_there(&path, 32 << 20)? else { return Ok(None) };
    let config: serde_json::Value =
        serde_json::from_str(&text).map_err(|e| Error::input(format!("{}: cannot be read: {e}", path.display())))?;
    let source = match config.get("chat_template") {
        Some(serde_json::Value::String(source)) => Some(source.clone()),
        Some(serde_json::Value::Array(list)) => {
            let named = |name: &str| list.iter().find(|t| t.get("name").and_then(|n| n.as_str()) == Some(name));
            let chosen = named("default").or(list.first());
            chosen.and_then(|t| t.get("template")).and_then(|t| t.as_str()).map(str::to_string)
        }
        _ => None,
    };
    Ok(source.map(|s| (s, path.display().to_string())))
}

#[cfg(test)]
mod tests;
