//! Reads little-endian numbers and strings from a map, comparing every length with the bytes that are left.

use crate::base::{Error, Result};

/// Bytes a key's or tensor's name may have (the specification allows 65,535 for keys).
const MAX_NAME: u64 = 65_535;

pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    pub fn position(&self) -> usize {
        self.at
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// Refuses `count` things of at least `least` bytes each where they cannot fit in what is left.
    pub fn check_fits(&self, count: u64, least: u64, place: &str, things: &str) -> Result<()> {
        if count.checked_mul(least).is_some_and(|need| need <= self.left()) {
            return Ok(());
        }
        Err(Error::input(format!(
            "{place} says {count} {things}, which need at least {} bytes, but {} of the file's {} bytes are left: the \
             file is damaged or the download incomplete",
            count as u128 * u128::from(least),
            self.left(),
            self.len()
        )))
    }

    /// The next `count` bytes.
    pub fn take(&mut self, count: u64, place: &str) -> Result<&'a [u8]> {
        self.check_fits(count, 1, place, "bytes")?;
        let start = self.at;
        self.at += count as usize;
        Ok(&self.bytes[start..self.at])
    }

    fn array<const N: usize>(&mut self, place: &str) -> Result<[u8; N]> {
        match self.bytes[self.at..].first_chunk::<N>() {
            Some(bytes) => {
                self.at += N;
                Ok(*bytes)
            }
            None => Err(Error::input(format!(
                "the file ends in the middle of its header ({place}; {} bytes in all): the download is incomplete, fetch \
                 it again",
                self.len()
            ))),
        }
    }

    pub fn u32(&mut self, place: &str) -> Result<u32> {
        self.array(place).map(u32::from_le_bytes)
    }

    pub fn u64(&mut self, place: &str) -> Result<u64> {
        self.array(place).map(u64::from_le_bytes)
    }

    /// The range of a length-prefixed string.
    pub fn string(&mut self, place: &str) -> Result<std::ops::Range<usize>> {
        let bytes = self.u64(place)?;
        if bytes > self.left() {
            return Err(Error::input(format!(
                "{place}: a text says it has {bytes} bytes, but {} of the file's {} bytes are left: the file is damaged \
                 or the download incomplete",
                self.left(),
                self.len()
            )));
        }
        let start = self.at;
        self.at += bytes as usize;
        Ok(start..self.at)
    }

    /// A key's or a tensor's name.
    pub fn name(&mut self, place: &str) -> Result<String> {
        let range = self.string(&format!("{place}: name"))?;
        if range.len() as u64 > MAX_NAME {
            return Err(Error::input(format!("{place} has a name of {} bytes; {MAX_NAME} are possible", range.len())));
        }
        std::str::from_utf8(&self.bytes[range])
            .map(str::to_string)
            .map_err(|_| Error::input(format!("{place} has a name that is not UTF-8: the file is damaged")))
    }
}
