//! Reads GGUF files (versions 2 and 3, little-endian) over a memory map, and trusts nothing they say.
//!
//! Every count and length is compared with the bytes that are left before anything is allocated or looped over, so a
//! hostile header of 64 bytes costs nothing; every tensor's extent lies inside the file before anyone reads weights.
//! Metadata values stay in the map: strings and arrays are ranges of it. Refuses version 1, big-endian files, duplicate
//! keys and tensors, overlapping tensors.
//!
//! ```text
//! "GGUF" u32 version, u64 tensors, u64 keys
//! keys × { string key, u32 type, value }                       string = u64 length, bytes
//! tensors × { string name, u32 dims, u64 × dims, u32 type, u64 offset }
//! padding to general.alignment, then tensor data (offsets count from here)
//! ```
//! Source: the GGUF specification in ggml's `docs/gguf.md`.

mod cursor;
pub mod types;
mod value;
#[cfg(test)]
pub mod write;

use super::mapped;
use super::weights::{Stored, Tensors};
use crate::base::text::sanitize_line;
use crate::base::{Error, Result};
use cursor::Cursor;
use memmap2::Mmap;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use types::BlockType;
pub use value::Value;

/// Alignment of tensor data where the file does not say (the specification's default).
const DEFAULT_ALIGNMENT: u64 = 32;
/// Dimensions a tensor may have (GGML_MAX_DIMS).
const MAX_DIMS: u32 = 4;

/// A parsed GGUF file. Cheap: only the header was touched.
pub struct Gguf {
    path: PathBuf,
    file: Arc<Mmap>,
    version: u32,
    values: HashMap<String, Value>,
    tensors: Vec<Tensor>,
    by_name: HashMap<String, usize>,
}

/// Where a tensor lies, and what it is.
pub struct Tensor {
    pub name: String,
    /// Outermost first (the reverse of the file's order): a matrix is `[rows, cols]`.
    pub dims: Vec<usize>,
    pub block: &'static BlockType,
    /// Bytes of the file.
    pub range: Range<usize>,
}

impl Gguf {
    /// Whether the file begins like a GGUF file.
    pub fn has_magic(bytes: &[u8]) -> bool {
        bytes.starts_with(b"GGUF")
    }

    pub fn open(path: &Path) -> Result<Self> {
        let file = mapped::map(path)?;
        Self::parse(path, file).map_err(|e| e.context(path.display()))
    }

    fn parse(path: &Path, file: Arc<Mmap>) -> Result<Self> {
        let bytes: &[u8] = &file;
        if !Self::has_magic(bytes) {
            let why = mapped::mistaken_for(bytes)
                .map_or_else(|| "it does not begin with the letters GGUF".to_string(), str::to_string);
            return Err(Error::input(format!("is not a GGUF file: {why}")));
        }
        let mut at = Cursor::new(bytes, 4);
        let version = at.u32("version")?;
        match version {
            2 | 3 => {}
            1 => return Err(Error::input("is GGUF version 1, which no tool writes any more: convert the model again")),
            v if v.swap_bytes() <= 3 => {
                return Err(Error::input("is a big-endian GGUF file: convert it for this machine"));
            }
            v => return Err(Error::input(format!("is GGUF version {v}; versions 2 and 3 are known"))),
        }
        let tensor_count = at.u64("tensor count")?;
        let key_count = at.u64("key count")?;
        // The least a key or a tensor takes: an empty name and a one-byte value; an empty name, no dimensions.
        at.check_fits(tensor_count, 24, "tensor count", "tensors")?;
        at.check_fits(key_count, 13, "key count", "keys")?;
        let values = read_values(&mut at, key_count)?;
        let alignment = alignment(&values)?;
        let (tensors, by_name) = read_tensors(&mut at, tensor_count, alignment)?;
        Ok(Self { path: path.to_path_buf(), file, version, values, tensors, by_name })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn version(&self) -> u32 {
        self.version
    }

    pub fn file_bytes(&self) -> u64 {
        self.file.len() as u64
    }

    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    pub fn value(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// A text value. An error where the key holds something else.
    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Text(range)) => std::str::from_utf8(&self.file[range.clone()])
                .map(Some)
                .map_err(|_| self.wrong(key, "is not UTF-8 text")),
            Some(other) => Err(self.wrong(key, &format!("is {}, not text", other.kind()))),
        }
    }

    /// A whole number of at least 0.
    pub fn count(&self, key: &str) -> Result<Option<u64>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Unsigned(v)) => Ok(Some(*v)),
            Some(Value::Signed(v)) if *v >= 0 => Ok(Some(v.unsigned_abs())),
            Some(other) => Err(self.wrong(key, &format!("is {}, not a count", other.kind()))),
        }
    }

    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Float(v)) => Ok(Some(*v)),
            Some(Value::Unsigned(v)) => Ok(Some(*v as f64)),
            Some(Value::Signed(v)) => Ok(Some(*v as f64)),
            Some(other) => Err(self.wrong(key, &format!("is {}, not a number", other.kind()))),
        }
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Bool(v)) => Ok(Some(*v)),
            Some(other) => Err(self.wrong(key, &format!("is {}, not true or false", other.kind()))),
        }
    }

    /// An array of texts, each borrowed from the map.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) => {
                let texts = array.texts(&self.file).map_err(|why| self.wrong(key, &why))?;
                Ok(Some(texts))
            }
            Some(other) => Err(self.wrong(key, &format!("is {}, not an array of texts", other.kind()))),
        }
    }

    /// An array of numbers of any type.
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) => {
                let numbers = array.numbers(&self.file).map_err(|why| self.wrong(key, &why))?;
                Ok(Some(numbers))
            }
            Some(other) => Err(self.wrong(key, &format!("is {}, not an array of numbers", other.kind()))),
        }
    }

    /// An error about one key of this file.
    pub fn wrong(&self, key: &str, why: &str) -> Error {
        Error::input(format!("{}: key `{}` {why}", self.path.display(), sanitize_line(key)))
    }
}

impl Tensors for Gguf {
    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn names(&self) -> Vec<&str> {
        self.tensors.iter().map(|t| t.name.as_str()).collect()
    }

    fn tensor(&self, name: &str) -> Option<Stored<'_>> {
        let tensor = &self.tensors[*self.by_name.get(name)?];
        Some(Stored {
            kind: tensor.block.kind,
            kind_name: tensor.block.name.to_string(),
            dims: &tensor.dims,
            file: &self.file,
            range: tensor.range.clone(),
        })
    }
}

fn read_values(at: &mut Cursor<'_>, count: u64) -> Result<HashMap<String, Value>> {
    let mut values = HashMap::new();
    for index in 0..count {
        let place = format!("key {} of {count}", index + 1);
        let name = at.name(&place)?;
        let place = format!("key `{}`", sanitize_line(&name));
        let value = Value::read(at, &place)?;
        if values.insert(name, value).is_some() {
            return Err(Error::input(format!("{place} is there twice")));
        }
    }
    Ok(values)
}

fn alignment(values: &HashMap<String, Value>) -> Result<u64> {
    match values.get("general.alignment") {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(Value::Unsigned(v)) if v.is_power_of_two() && (8..=1 << 20).contains(v) => Ok(*v),
        Some(_) => Err(Error::input("key `general.alignment` is not a power of two between 8 and 1048576")),
    }
}

/// A tensor's entry before the start of the data is known.
struct Entry {
    name: String,
    dims: Vec<usize>,
    block: &'static BlockType,
    offset: u64,
    bytes: u64,
}

fn read_tensors(at: &mut Cursor<'_>, count: u64, alignment: u64) -> Result<(Vec<Tensor>, HashMap<String, usize>)> {
    let mut entries = Vec::new();
    let mut by_name = HashMap::new();
    for index in 0..count {
        let entry = read_entry(at, &format!("tensor {} of {count}", index + 1), alignment)?;
        if by_name.insert(entry.name.clone(), entries.len()).is_some() {
            return Err(Error::input(format!("tensor `{}` is there twice", sanitize_line(&entry.name))));
        }
        entries.push(entry);
    }
    let start = (at.position() as u64).next_multiple_of(alignment);
    let tensors = place_tensors(entries, start, at.len() as u64)?;
    Ok((tensors, by_name))
}

fn read_entry(at: &mut Cursor<'_>, place: &str, alignment: u64) -> Result<Entry> {
    let name = at.name(place)?;
    let place = format!("tensor `{}`", sanitize_line(&name));
    let dim_count = at.u32(&place)?;
    if dim_count == 0 || dim_count > MAX_DIMS {
        return Err(Error::input(format!("{place} has {dim_count} dimensions; 1 to {MAX_DIMS} are possible")));
    }
    let mut dims = Vec::new();
    let mut numbers = 1u64;
    for _ in 0..dim_count {
        let dim = at.u64(&place)?;
        numbers = match numbers.checked_mul(dim) {
            Some(n) if dim > 0 && n <= i64::MAX as u64 => n,
            _ => return Err(Error::input(format!("{place} has an impossible dimension ({dim})"))),
        };
        dims.push(dim as usize);
    }
    let id = at.u32(&place)?;
    let block = types::by_id(id).ok_or_else(|| Error::input(format!("{place} is of an unknown type (number {id})")))?;
    if !(dims[0] as u64).is_multiple_of(block.numbers) {
        return Err(Error::input(format!(
            "{place} has rows of {} numbers, which is no multiple of {}'s block of {}",
            dims[0], block.name, block.numbers
        )));
    }
    let bytes = (numbers / block.numbers)
        .checked_mul(block.bytes)
        .ok_or_else(|| Error::input(format!("{place} has more bytes than a file can have")))?;
    let offset = at.u64(&place)?;
    if !offset.is_multiple_of(alignment) {
        return Err(Error::input(format!(
            "{place} begins at {offset}, which is no multiple of the alignment {alignment}"
        )));
    }
    dims.reverse();
    Ok(Entry { name, dims, block, offset, bytes })
}

/// Turns offsets into ranges of the file; refuses what lies outside it or on top of another tensor.
fn place_tensors(entries: Vec<Entry>, start: u64, file_bytes: u64) -> Result<Vec<Tensor>> {
    let end_of = |e: &Entry| start.checked_add(e.offset)?.checked_add(e.bytes);
    let mut expected = 0;
    let mut outside: Option<&Entry> = None;
    for entry in &entries {
        let end = end_of(entry).ok_or_else(|| {
            Error::input(format!("tensor `{}` lies beyond what a file can hold", sanitize_line(&entry.name)))
        })?;
        expected = expected.max(end);
        if end > file_bytes && outside.is_none() {
            outside = Some(entry);
        }
    }
    if let Some(entry) = outside {
        return Err(Error::input(format!(
            "the file has {file_bytes} bytes but its tensors need {expected} (tensor `{}` does not fit): the download is \
             incomplete, fetch it again",
            sanitize_line(&entry.name)
        )));
    }
    let mut order: Vec<&Entry> = entries.iter().collect();
    order.sort_by_key(|e| e.offset);
    if let Some(pair) = order.windows(2).find(|pair| pair[0].offset + pair[0].bytes > pair[1].offset) {
        return Err(Error::input(format!(
            "tensors `{}` and `{}` lie on top of each other: the file is damaged",
            sanitize_line(&pair[0].name),
            sanitize_line(&pair[1].name)
        )));
    }
    let tensors = entries.into_iter().map(|e| {
        let first = (start + e.offset) as usize;
        Tensor { name: e.name, dims: e.dims, block: e.block, range: first..first + e.bytes as usize }
    });
    Ok(tensors.collect())
}

#[cfg(test)]
mod tests;
