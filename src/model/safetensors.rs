//! A folder as Transformers saves it: `config.json` and `model.safetensors`, or shards with an index.
//!
//! Memory-mapped. The header is read by the `safetensors` crate, which checks that tensors cover the file exactly; the
//! messages, the sizes they name and everything about shards are ours. Refuses shard names that leave the folder, an
//! index that disagrees with its shards, and files that are cut.

use super::mapped;
use super::weights::{Stored, Tensors};
use crate::base::text::sanitize_line;
use crate::base::{Error, Result};
use ::safetensors::SafeTensors;
use ::safetensors::tensor::{Dtype, Metadata};
use candle_core::quantized::GgmlDType;
use memmap2::Mmap;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

pub const SINGLE: &str = "model.safetensors";
pub const INDEX: &str = "model.safetensors.index.json";
/// Bytes an index may have; the largest known ones have a few megabytes.
const MAX_INDEX: u64 = 64 << 20;

/// The tensors of all files of a folder.
pub struct Folder {
    path: PathBuf,
    files: Vec<(PathBuf, Arc<Mmap>)>,
    tensors: HashMap<String, Entry>,
}

struct Entry {
    dtype: Dtype,
    dims: Vec<usize>,
    file: usize,
    range: Range<usize>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Folder {
    pub fn open(path: &Path) -> Result<Self> {
        let index = path.join(INDEX);
        let mut folder = Self { path: path.to_path_buf(), files: Vec::new(), tensors: HashMap::new() };
        if index.exists() {
            folder.read_shards(&index)?;
        } else {
            let single = path.join(SINGLE);
            if !single.exists() {
                let pickled =
                    path.join("pytorch_model.bin").exists() || path.join("pytorch_model.bin.index.json").exists();
                return Err(Error::input(format!(
                    "{}: holds neither {SINGLE} nor {INDEX}{}: give a GGUF file or a folder with safetensors weights",
                    path.display(),
                    if pickled { " (pytorch_model.bin is not read)" } else { "" }
                )));
            }
            folder.read_file(&single)?;
        }
        Ok(folder)
    }

    /// The weights files, in order.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|(path, _)| path.as_path())
    }

    pub fn file_bytes(&self) -> u64 {
        self.files.iter().map(|(_, map)| map.len() as u64).sum()
    }

    /// Type name and numbers of every tensor.
    pub fn sizes(&self) -> impl Iterator<Item = (String, u64)> {
        self.tensors.values().map(|t| (t.dtype.to_string(), t.dims.iter().map(|&d| d as u64).product()))
    }

    fn read_shards(&mut self, index: &Path) -> Result<()> {
        let shown = index.display();
        let text = mapped::read_text(index, MAX_INDEX)?;
        let Index { weight_map } =
            serde_json::from_str(&text).map_err(|e| Error::input(format!("{shown}: cannot be read: {e}")))?;
        if weight_map.is_empty() {
            return Err(Error::input(format!("{shown}: names no tensors")));
        }
        let shards: BTreeSet<&String> = weight_map.values().collect();
        for shard in shards {
            let mut parts = Path::new(shard).components();
            let plain = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
            if !plain || shard.contains('\\') {
                return Err(Error::input(format!("{shown}: shard name `{}` leaves the folder", sanitize_line(shard))));
            }
            let file = self.path.join(shard);
            if !file.exists() {
                return Err(Error::input(format!(
                    "{shown}: shard `{}` is missing: the download is incomplete",
                    sanitize_line(shard)
                )));
            }
            self.read_file(&file)?;
        }
        for (name, shard) in &weight_map {
            let found = self.tensors.get(name).map(|t| &self.files[t.file].0);
            if found.and_then(|p| p.file_name()).is_none_or(|f| f != shard.as_str()) {
                return Err(Error::input(format!(
                    "{shown}: tensor `{}` is not in `{}`, where the index says it is",
                    sanitize_line(name),
                    sanitize_line(shard)
                )));
            }
        }
        Ok(())
    }

    fn read_file(&mut self, path: &Path) -> Result<()> {
        let map = mapped::map(path)?;
        let (data_start, metadata) = header(&map).map_err(|e| e.context(path.display()))?;
        let file = self.files.len();
        for name in metadata.offset_keys() {
            let Some(info) = metadata.info(&name) else { continue };
            let range = data_start + info.data_offsets.0..data_start + info.data_offsets.1;
            let entry = Entry { dtype: info.dtype, dims: info.shape.clone(), file, range };
            if self.tensors.insert(name.clone(), entry).is_some() {
                return Err(Error::input(format!(
                    "{}: tensor `{}` is in two shards",
                    path.display(),
                    sanitize_line(&name)
                )));
            }
        }
        self.files.push((path.to_path_buf(), map));
        Ok(())
    }
}

impl Tensors for Folder {
    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn names(&self) -> Vec<&str> {
        self.tensors.keys().map(String::as_str).collect()
    }

    fn tensor(&self, name: &str) -> Option<Stored<'_>> {
        let entry = self.tensors.get(name)?;
        let kind = match entry.dtype {
            Dtype::F32 => Some(GgmlDType::F32),
            Dtype::F16 => Some(GgmlDType::F16),
            Dtype::BF16 => Some(GgmlDType::BF16),
            _ => None,
        };
        Some(Stored {
            kind,
            kind_name: entry.dtype.to_string(),
            dims: &entry.dims,
            file: &self.files[entry.file].1,
            range: entry.range.clone(),
        })
    }
}

/// The start of the data, and the header. The file's length is compared first, so that a cut file is called that.
fn header(bytes: &[u8]) -> Result<(usize, Metadata)> {
    if let Some(what) = mapped::mistaken_for(bytes) {
        return Err(Error::input(what));
    }
    let Some(length) = bytes.first_chunk::<8>().map(|b| u64::from_le_bytes(*b)) else {
        return Err(Error::input(format!(
            "has {} bytes, too few for a safetensors file: the download is incomplete",
            bytes.len()
        )));
    };
    let left = bytes.len() as u64 - 8;
    if length > left {
        return Err(Error::input(format!(
            "its header says it has {length} bytes, but {left} of the file's {} are left: not a safetensors file, or an \
             incomplete download",
            bytes.len()
        )));
    }
    let data_start = 8 + length as usize;
    let text = &bytes[8..data_start];
    if let Some(expected) = data_end(text).and_then(|end| end.checked_add(data_start as u64))
        && expected > bytes.len() as u64
    {
        return Err(Error::input(format!(
            "the file has {} bytes but its tensors need {expected}: the download is incomplete, fetch it again",
            bytes.len()
        )));
    }
    let (_, metadata) = SafeTensors::read_metadata(bytes)
        .map_err(|e| Error::input(format!("its header is wrong: {}", sanitize_line(&e.to_string()))))?;
    Ok((data_start, metadata))
}

/// The last byte any tensor of the header needs; `None` where the header cannot be read so far.
fn data_end(header: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    struct Offsets {
        data_offsets: Option<(u64, u64)>,
    }
    let tensors: HashMap<String, Offsets> = serde_json::from_slice(header).ok()?;
    tensors.values().filter_map(|t| t.data_offsets).map(|(_, end)| end).max()
}

#[cfg(test)]
mod tests;
