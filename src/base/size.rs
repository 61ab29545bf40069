//! Sizes as people write them (`512MiB`, `1.5 GiB`, `40%`), and how much memory this process may still take.

use super::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// A memory size given on the command line: bytes, or a share of what is free.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Size {
    Bytes(u64),
    /// Percent of what is free, above 0 and at most 100.
    Percent(f64),
}

impl Size {
    /// Bytes, given how many are free.
    pub fn of(self, free: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => (free as f64 * percent / 100.0) as u64,
        }
    }
}

impl FromStr for Size {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        let refuse = || {
            Error::input(format!(
                "size `{text}` is not a number of bytes, KiB, MiB, GiB or a percentage (such as 512MiB or 40%)"
            ))
        };
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let number: f64 = number.parse().map_err(|_| refuse())?;
        let factor = match unit.trim().to_ascii_lowercase().as_str() {
            "%" if number > 0.0 && number <= 100.0 => return Ok(Self::Percent(number)),
            "%" => {
                return Err(Error::input(format!(
                    "`{text}` of what is free: give more than 0% and at most 100%, or a size such as 512MiB"
                )));
            }
            "" | "b" => 1u64,
            "k" | "kib" | "kb" => 1 << 10,
            "m" | "mib" | "mb" => 1 << 20,
            "g" | "gib" | "gb" => 1 << 30,
            "t" | "tib" | "tb" => 1 << 40,
            _ => return Err(refuse()),
        };
        let bytes = number * factor as f64;
        if !bytes.is_finite() || bytes > u64::MAX as f64 {
            return Err(refuse());
        }
        Ok(Self::Bytes(bytes as u64))
    }
}

/// Bytes for people: `1.5 MiB`.
pub struct Human(pub u64);

impl fmt::Display for Human {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0 as f64;
        let mut unit = "B";
        for next in ["KiB", "MiB", "GiB", "TiB"] {
            if value < 1024.0 {
                break;
            }
            value /= 1024.0;
            unit = next;
        }
        let text = match unit {
            "B" => format!("{value:.0} B"),
            _ if value < 10.0 => format!("{value:.2} {unit}"),
            _ if value < 100.0 => format!("{value:.1} {unit}"),
            _ => format!("{value:.0} {unit}"),
        };
        f.pad(&text)
    }
}

/// Bytes of RAM this process may still take: the smaller of `MemAvailable` and what its control group leaves.
/// `None` where neither can be read.
pub fn free_ram() -> Option<u64> {
    let available = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|l| l.starts_with("MemAvailable:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
    });
    let read = |path: String| std::fs::read_to_string(path).ok().and_then(|t| t.trim().parse::<u64>().ok());
    let group = std::fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| {
        let path = text.lines().find_map(|l| l.strip_prefix("0::"))?.to_string();
        let root = format!("/sys/fs/cgroup{path}");
        let limit = read(format!("{root}/memory.max"))?;
        Some(limit.saturating_sub(read(format!("{root}/memory.current")).unwrap_or(0)))
    });
    match (available, group) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// The most memory this process ever held (`VmHWM`); `None` where the system does not tell.
pub fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_written() {
        let check = |text: &str, expected: Option<Size>| assert_eq!(text.parse::<Size>().ok(), expected, "{text}");
        check("512MiB", Some(Size::Bytes(512 << 20)));
        check("1.5 GiB", Some(Size::Bytes(3 << 29)));
        check("4096", Some(Size::Bytes(4096)));
        check("40%", Some(Size::Percent(40.0)));
        for bad in ["", "%", "0%", "101%", "-1", "12XB", "1e400", "GiB"] {
            check(bad, None);
        }
        let told = "101%".parse::<Size>().unwrap_err().to_string();
        assert!(told.contains("at most 100%"), "{told}");
    }

    #[test]
    fn bytes_are_shown_with_three_digits() {
        assert_eq!(Human(0).to_string(), "0 B");
        assert_eq!(Human(1536).to_string(), "1.50 KiB");
        assert_eq!(Human(98_362_432).to_string(), "93.8 MiB");
    }
}
