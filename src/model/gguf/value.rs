//! Metadata values: small numbers are kept, texts and arrays stay ranges of the map.

use super::cursor::Cursor;
use crate::base::{Error, Result};
use std::ops::Range;

/// Arrays inside arrays that are followed; no known key needs more than one.
const MAX_DEPTH: usize = 8;

/// One metadata value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    /// Bytes of the file.
    Text(Range<usize>),
    Array(Array),
}

/// An array whose elements were checked to lie inside the file.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    element: Type,
    pub len: usize,
    range: Range<usize>,
}

/// The specification's value types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    Array,
    U64,
    I64,
    F64,
}

impl Type {
    fn read(at: &mut Cursor<'_>, place: &str) -> Result<Self> {
        Ok(match at.u32(place)? {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::Text,
            9 => Self::Array,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            other => return Err(Error::input(format!("{place} is of an unknown type (number {other})"))),
        })
    }

    /// Bytes of one value; for texts and arrays, of an empty one.
    fn least_bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::Text => 8,
            Self::Array => 12,
        }
    }
}

impl Value {
    pub(super) fn read(at: &mut Cursor<'_>, place: &str) -> Result<Self> {
        match Type::read(at, place)? {
            Type::Text => at.string(place).map(Self::Text),
            Type::Array => Array::read(at, place).map(Self::Array),
            scalar => Ok(decode(scalar, at.take(scalar.least_bytes(), place)?)),
        }
    }

    /// What it is, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unsigned(_) => "a whole number",
            Self::Signed(_) => "a signed number",
            Self::Float(_) => "a fraction",
            Self::Bool(_) => "true or false",
            Self::Text(_) => "text",
            Self::Array(_) => "an array",
        }
    }
}

impl Array {
    /// Reads the outermost array's head and walks over its elements without recursion.
    fn read(at: &mut Cursor<'_>, place: &str) -> Result<Self> {
        let (element, len) = Self::head(at, place)?;
        let start = at.position();
        // Arrays still to come at each depth, outermost first.
        let mut open: Vec<u64> = Vec::new();
        let (mut kind, mut count) = (element, len);
        loop {
            match kind {
                Type::Array if open.len() == MAX_DEPTH => {
                    return Err(Error::input(format!(
                        "{place} holds arrays inside arrays, more than {MAX_DEPTH} deep: the file is damaged"
                    )));
                }
                Type::Array => open.push(count),
                Type::Text => {
                    for _ in 0..count {
                        at.string(place)?;
                    }
                }
                fixed => {
                    at.take(count * fixed.least_bytes(), place)?;
                }
            }
            while open.last() == Some(&0) {
                open.pop();
            }
            let Some(siblings) = open.last_mut() else { break };
            *siblings -= 1;
            (kind, count) = Self::head(at, place)?;
        }
        Ok(Self { element, len: len as usize, range: start..at.position() })
    }

    fn head(at: &mut Cursor<'_>, place: &str) -> Result<(Type, u64)> {
        let element = Type::read(at, place)?;
        let len = at.u64(place)?;
        at.check_fits(len, element.least_bytes(), place, "elements")?;
        Ok((element, len))
    }

    /// Elements as texts, borrowed from the file. The error is the rest of a message about the key.
    pub(super) fn texts<'a>(&self, file: &'a [u8]) -> Result<Vec<&'a str>, String> {
        if self.element != Type::Text {
            return Err(format!("is an array of {:?}, not of texts", self.element));
        }
        let mut at = Cursor::new(&file[..self.range.end], self.range.start);
        let mut texts = Vec::with_capacity(self.len);
        for index in 0..self.len {
            let range = at.string("element").map_err(|e| e.message().to_string())?;
            let text = std::str::from_utf8(&file[range]).map_err(|_| format!("element {index} is not UTF-8 text"))?;
            texts.push(text);
        }
        Ok(texts)
    }

    /// Elements as numbers.
    pub(super) fn numbers(&self, file: &[u8]) -> Result<Vec<f64>, String> {
        if matches!(self.element, Type::Text | Type::Array | Type::Bool) {
            return Err(format!("is an array of {:?}, not of numbers", self.element));
        }
        let bytes = &file[self.range.clone()];
        let numbers = bytes.chunks_exact(self.element.least_bytes() as usize).map(|b| match decode(self.element, b) {
            Value::Unsigned(v) => v as f64,
            Value::Signed(v) => v as f64,
            Value::Float(v) => v,
            _ => f64::NAN,
        });
        Ok(numbers.collect())
    }
}

/// A scalar from exactly its bytes.
fn decode(kind: Type, bytes: &[u8]) -> Value {
    let mut wide = [0u8; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(wide);
    match kind {
        Type::U8 | Type::U16 | Type::U32 | Type::U64 => Value::Unsigned(bits),
        Type::I8 => Value::Signed(i64::from(bits as i8)),
        Type::I16 => Value::Signed(i64::from(bits as i16)),
        Type::I32 => Value::Signed(i64::from(bits as i32)),
        Type::I64 => Value::Signed(bits as i64),
        Type::F32 => Value::Float(f64::from(f32::from_bits(bits as u32))),
        Type::F64 => Value::Float(f64::from_bits(bits)),
        Type::Bool => Value::Bool(bits != 0),
        Type::Text | Type::Array => unreachable!("only scalars are decoded"),
    }
}
