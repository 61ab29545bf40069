//! Llama models: where they come from, their weights, tokenizer and chat template, and the forward pass.
//!
//! [`open`] takes what `--model` takes and gives a checked [`Model`]; whatever is wrong with a file is an error that
//! names the file, the place and the remedy, never a panic. Weights stay in the mapped file. [`info`] reads headers only.
//!
//! | file | what it knows |
//! |---|---|
//! | `mapped`, `gguf`, `safetensors` | file formats, trusting nothing |
//! | `config` | what a model's description says; which models are refused |
//! | `weights` | tensor names and shapes |
//! | `tokenizer`, `template`, `prompt` | from text to ids and back; one BOS |
//! | `store`, `list` | the cache, the default model, what is there |
//! | `llama` | the order of the device's operations |
//! | `random` | made-up weights of real shapes, for benchmarks |

pub mod config;
pub mod gguf;
pub mod info;
pub mod list;
pub mod llama;
mod mapped;
pub mod prompt;
pub mod random;
#[cfg(test)]
pub mod reference;
mod rope;
pub mod safetensors;
pub mod store;
pub mod template;
pub mod tokenizer;
pub mod weights;

use crate::base::text::sanitize_line;
use crate::base::{Error, Result};
use crate::device::weight::Weights;
use config::hf::HfConfig;
use gguf::Gguf;
use info::{Facts, ModelInfo};
use prompt::{Form, Tail};
use safetensors::Folder;
use std::path::{Path, PathBuf};
use store::{Progress, Silent};
use template::ChatTemplate;
use tokenizer::Tokenizer;
use weights::Naming;

/// Bytes a `config.json` may have.
const MAX_CONFIG: u64 = 4 << 20;

/// A model, ready for a device.
pub struct Model {
    pub info: ModelInfo,
    pub weights: Weights,
    pub tokenizer: Tokenizer,
    pub template: Option<ChatTemplate>,
    /// The weights files; none for a made-up model.
    pub files: Vec<PathBuf>,
}

/// What goes with a model's name.
pub struct OpenOptions<'a> {
    /// A folder with models that can be named.
    pub model_dir: Option<&'a Path>,
    /// A template to use in place of the model's own.
    pub chat_template: Option<&'a Path>,
    /// Seed of `random:` weights.
    pub seed: u64,
    pub progress: &'a dyn Progress,
}

impl Default for OpenOptions<'_> {
    fn default() -> Self {
        Self { model_dir: None, chat_template: None, seed: 0, progress: &Silent }
    }
}

/// Opens a model: a name, a GGUF file, a safetensors folder, `hf:owner/repo/file`, or `random:SHAPE[@TYPE]`. Fetches the
/// default model where it is not there yet.
pub fn open(spec: &str, options: &OpenOptions<'_>) -> Result<Model> {
    let mut model = match spec.strip_prefix("random:") {
        Some(shape) => random::open(shape, options.seed)?,
        None => {
            let path = resolve(spec, options)?;
            let mut model = open_path(&path, options.chat_template.is_none())?;
            if store::known(spec).is_some() {
                model.info.name = spec.to_string();
            }
            model
        }
    };
    if let Some(path) = options.chat_template {
        let (bos, eos) = (model.tokenizer.bos_text(), model.tokenizer.eos_text());
        model.template = Some(ChatTemplate::from_file(path, bos, eos)?);
    }
    Ok(model)
}

/// The file or folder that `spec` names; fetches it where that is needed.
pub fn resolve(spec: &str, options: &OpenOptions<'_>) -> Result<PathBuf> {
    if let Some(address) = spec.strip_prefix("hf:") {
        return store::hub::fetch(address, options.progress);
    }
    let path = Path::new(spec);
    if path.exists() {
        return Ok(path.to_path_buf());
    }
    if store::known(spec).is_some() {
        return store::ensure(spec, options.progress);
    }
    list::by_name(spec, options.model_dir).map_err(|names| {
        let shown = sanitize_line(spec);
        let near = names
            .iter()
            .map(|n| (strsim::jaro_winkler(n, spec), n))
            .filter(|(likeness, _)| *likeness > 0.7)
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, n)| format!("; did you mean `{}`", sanitize_line(n)))
            .unwrap_or_default();
        Error::input(format!(
            "there is no model `{shown}`{near}; give a GGUF file, a folder with safetensors weights, \
             hf:owner/repo/file.gguf, or a name that `totara model list` shows (the default is {})",
            store::DEFAULT
        ))
    })
}

/// What is known of a model without reading its weights.
pub fn info(path: &Path) -> Result<ModelInfo> {
    if is_folder(path) {
        let (folder, described) = open_folder(path)?;
        folder_info(&folder_of(path), &folder, &described)
    } else {
        let file = Gguf::open(path)?;
        let config = config::gguf::read(&file)?;
        gguf_info(&file, &config)
    }
}

impl Model {
    /// Ids of a prompt with exactly one BOS; see [`prompt::ids`].
    pub fn prompt_ids(&self, form: Form, text: &str, tail: &[Tail<'_>]) -> Result<Vec<u32>> {
        prompt::ids(&self.tokenizer, self.template.as_ref(), form, text, tail)
    }

    /// SHA-256 of the weights; `None` for a made-up model. Reads the files the first time.
    pub fn checksum(&self) -> Result<Option<String>> {
        if self.files.is_empty() { Ok(None) } else { store::checksum::of_files(&self.files).map(Some) }
    }
}

/// A folder, or a weights file inside one.
fn is_folder(path: &Path) -> bool {
    path.is_dir() || path.extension().is_some_and(|e| e == "safetensors")
}

/// The folder itself.
fn folder_of(path: &Path) -> PathBuf {
    if path.is_dir() { path.to_path_buf() } else { path.parent().map(Path::to_path_buf).unwrap_or_default() }
}

/// `own_template`: whether the model's own template is wanted; a broken one is refused only then.
fn open_path(path: &Path, own_template: bool) -> Result<Model> {
    let model = if is_folder(path) { open_hf(path, own_template) } else { open_gguf(path, own_template) }?;
    let (tokens, rows) = (model.tokenizer.vocab_len(), model.weights.shape.vocab);
    if tokens > rows {
        return Err(Error::input(format!(
            "{}: the tokenizer has {tokens} tokens, but the model embeds {rows}: they do not belong together",
            path.display()
        )));
    }
    Ok(model)
}

fn open_gguf(path: &Path, own_template: bool) -> Result<Model> {
    let file = Gguf::open(path)?;
    let config = config::gguf::read(&file)?;
    let weights = weights::load(&file, Naming::Gguf, &config)?;
    let tokenizer = Tokenizer::from_gguf(&file)?;
    let template = match file.text("tokenizer.chat_template")? {
        Some(source) if own_template => {
            let origin = path.display().to_string();
            Some(ChatTemplate::new(source, tokenizer.bos_text(), tokenizer.eos_text(), &origin)?)
        }
        _ => None,
    };
    let info = gguf_info(&file, &config)?;
    Ok(Model { info, weights, tokenizer, template, files: vec![path.to_path_buf()] })
}

fn gguf_info(file: &Gguf, config: &config::Config) -> Result<ModelInfo> {
    let facts = Facts {
        name: stem(file.path()),
        path: Some(file.path().to_path_buf()),
        format: "gguf",
        file_bytes: file.file_bytes(),
        tokenizer: tokenizer::describe_gguf(file)?,
        chat_template: file.value("tokenizer.chat_template").is_some(),
    };
    let sizes = file.tensors().iter().map(|t| {
        let numbers = t.dims.iter().map(|&d| d as u64).product();
        (t.block.name.to_string(), numbers)
    });
    Ok(ModelInfo::new(config, facts, &sizes.collect::<Vec<_>>()))
}

fn open_folder(path: &Path) -> Result<(Folder, HfConfig)> {
    let path = folder_of(path);
    let config = path.join("config.json");
    if !config.exists() {
        return Err(Error::input(format!(
            "{}: holds no config.json: give a GGUF file or a folder as Transformers saves it",
            path.display()
        )));
    }
    let text = mapped::read_text(&config, MAX_CONFIG)?;
    let described = config::hf::read(&text).map_err(|e| e.context(config.display()))?;
    Ok((Folder::open(&path)?, described))
}

fn open_hf(path: &Path, own_template: bool) -> Result<Model> {
    let (folder, described) = open_folder(path)?;
    let path = folder_of(path);
    let weights = weights::load(&folder, Naming::Hf, &described.config)?;
    let tokenizer = Tokenizer::from_folder(&path, described.bos, &described.ends)?;
    let template = match template::of_folder(&path)? {
        Some((source, origin)) if own_template => {
            Some(ChatTemplate::new(&source, tokenizer.bos_text(), tokenizer.eos_text(), &origin)?)
        }
        _ => None,
    };
    let mut info = folder_info(&path, &folder, &described)?;
    info.tokenizer = tokenizer.kind().to_string();
    let files = folder.files().map(Path::to_path_buf).collect();
    Ok(Model { info, weights, tokenizer, template, files })
}

fn folder_info(path: &Path, folder: &Folder, described: &HfConfig) -> Result<ModelInfo> {
    let facts = Facts {
        name: stem(path),
        path: Some(path.to_path_buf()),
        format: "safetensors",
        file_bytes: folder.file_bytes(),
        tokenizer: if path.join("tokenizer.json").exists() { "tokenizer.json" } else { "none" }.to_string(),
        chat_template: template::of_folder(path)?.is_some(),
    };
    Ok(ModelInfo::new(&described.config, facts, &folder.sizes().collect::<Vec<_>>()))
}

fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    sanitize_line(name.strip_suffix(".gguf").unwrap_or(&name))
}

#[cfg(test)]
pub mod testing;
#[cfg(test)]
mod tests;
