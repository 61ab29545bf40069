//! `totara model`: what is there, getting one, what it is made of, its tokens.

use super::args::{Common, ModelCommand};
use super::{lm, out};
use crate::base::size::Human;
use crate::base::text::sanitize_line;
use crate::base::{Error, Result};
use crate::model::list::{self, State};
use crate::model::tokenizer::Special;
use crate::model::{self, OpenOptions, random, store};
use serde_json::json;

pub fn run(common: &Common, command: &ModelCommand) -> Result<u8> {
    let told = lm::Told::new(common);
    lm::check_model_dir(common)?;
    match command {
        ModelCommand::List => {
            for entry in list::list(common.model_dir.as_deref()) {
                if common.json {
                    out::json(&json!(entry))?;
                    continue;
                }
                let name = sanitize_line(&entry.name);
                out::line(&match &entry.state {
                    State::Info(info) => {
                        let path = entry.path.as_deref().map(|p| p.display().to_string()).unwrap_or_default();
                        format!(
                            "{name:<32} {:>9}  {}  {}",
                            Human(info.file_bytes).to_string(),
                            info.architecture,
                            sanitize_line(&path)
                        )
                    }
                    State::NotFetched(bytes) => {
                        format!("{name:<32} {:>9}  not here yet: `totara model pull {name}`", Human(*bytes).to_string())
                    }
                    State::Bad(why) => format!("{name:<32} {:>9}  bad: {}", "-", sanitize_line(why)),
                })?;
            }
        }
        ModelCommand::Pull { name } => {
            let name = name.as_deref().unwrap_or(store::DEFAULT);
            let path = match name.strip_prefix("hf:") {
                Some(address) => store::hub::fetch(address, &told)?,
                None => undamaged(name, &told)?,
            };
            out::line(&path.display().to_string())?;
        }
        ModelCommand::Info => {
            let spec = common.model.clone().unwrap_or_else(store::default_spec);
            lm::check_weights(&spec)?;
            let info = match spec.strip_prefix("random:") {
                Some(shape) => random::open(shape, common.seed)?.info,
                None => {
                    lm::fetch_named(&spec, &told)?;
                    let options = OpenOptions {
                        model_dir: common.model_dir.as_deref(),
                        progress: &told,
                        ..OpenOptions::default()
                    };
                    model::info(&model::resolve(&spec, &options)?)?
                }
            };
            if common.json {
                out::json(&serde_json::to_value(&info).map_err(|e| Error::fault(e.to_string()))?)?;
            } else {
                out::line(info.to_string().trim_end())?;
            }
        }
        ModelCommand::Tokenize { text } => {
            let model = lm::model(common, &told)?;
            let text = super::puzzle::text(text, "--text")?;
            let ids = model.tokenizer.encode(&text, Special::Parse);
            if common.json {
                out::json(&json!({ "ids": ids }))?;
            } else {
                for id in &ids {
                    let piece = String::from_utf8_lossy(model.tokenizer.token_bytes(*id)).into_owned();
                    out::line(&format!("{id:>7} {}", piece.escape_debug()))?;
                }
            }
        }
    }
    Ok(0)
}

/// The file of a known model, fetched again where the one in the cache is not what it should be.
fn undamaged(name: &str, told: &lm::Told) -> Result<std::path::PathBuf> {
    let path = lm::fetch(name, told)?;
    let Some(known) = store::known(name) else { return Ok(path) };
    if store::checksum::of_files(std::slice::from_ref(&path))? == known.sha256 {
        return Ok(path);
    }
    out::tell(&format!("{} is damaged: fetching it again", path.display()));
    std::fs::remove_file(&path).map_err(|e| Error::fault(format!("{}: {e}", path.display())))?;
    lm::fetch(name, told)
}
