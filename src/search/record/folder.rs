//! Where records lie, what they are called, and how many are kept.

use crate::base::{Error, Result, rng};
use etcetera::BaseStrategy;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of records that are kept; the oldest above are removed.
pub const LIMIT_BYTES: u64 = 200 << 20;

/// The folder for what outlives a run: `TOTARA_STATE`, or the platform's own.
pub fn state_folder() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("TOTARA_STATE").filter(|folder| !folder.is_empty()) {
        return Ok(folder.into());
    }
    let base = etcetera::choose_base_strategy().map_err(|_| {
        Error::fault("no home folder is known to keep records in; set TOTARA_STATE, or use --no-record")
    })?;
    // Windows has no state folder of its own.
    Ok(base.state_dir().unwrap_or_else(|| base.data_dir()).join("totara"))
}

pub fn runs_folder() -> Result<PathBuf> {
    Ok(state_folder()?.join("runs"))
}

/// A name that sorts by time: `20261130T004119Z-3fa2c1`.
pub fn new_id(attempt: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let parts = [now.as_nanos() as u64, u64::from(std::process::id()), attempt];
    let short = rng::part(&format!("{parts:?}")) & 0xff_ffff;
    let utc = utc(now.as_secs()).replace(['-', ':'], "");
    format!("{utc}-{short:06x}")
}

pub fn utc_now() -> String {
    utc(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
}

/// Seconds since 1970 as `2026-11-30T00:41:19Z`.
fn utc(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Civil date from days, by Howard Hinnant's algorithm: years that start in March, in eras of 400 years.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// All records of a folder with their sizes, oldest first.
pub fn records(folder: &Path) -> Vec<(PathBuf, u64)> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<(SystemTime, PathBuf, u64)> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let path = entry.path();
            let meta = entry.metadata().ok()?;
            let record = meta.is_file() && path.extension().is_some_and(|e| e == "jsonl");
            record.then(|| (meta.modified().unwrap_or(UNIX_EPOCH), path, meta.len()))
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, path, bytes)| (path, bytes)).collect()
}

/// Removes the oldest records until the rest fits. One that cannot be removed stays.
pub fn remove_oldest(folder: &Path, limit: u64) {
    let records = records(folder);
    let mut total: u64 = records.iter().map(|(_, bytes)| bytes).sum();
    for (path, bytes) in records {
        if total <= limit {
            return;
        }
        if std::fs::remove_file(&path).is_ok() {
            total -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_civil() {
        let check = |seconds: u64, expected: &str| assert_eq!(utc(seconds), expected);
        check(0, "1970-01-01T00:00:00Z");
        check(951_782_400, "2000-02-29T00:00:00Z");
        check(1_796_000_000, "2026-11-30T00:53:20Z");
        check(4_107_542_399, "2100-02-28T23:59:59Z");
        check(4_107_542_400, "2100-03-01T00:00:00Z");
    }

    #[test]
    fn the_oldest_go_first() {
        let folder = tempfile::tempdir().unwrap();
        for (i, name) in ["c.jsonl", "a.jsonl", "b.jsonl"].iter().enumerate() {
            let path = folder.path().join(name);
            std::fs::write(&path, [0; 100]).unwrap();
            let time = UNIX_EPOCH + std::time::Duration::from_secs(i as u64);
            std::fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        }
        std::fs::write(folder.path().join("other.txt"), [0; 1000]).unwrap();
        remove_oldest(folder.path(), 250);
        let left: Vec<_> = records(folder.path()).into_iter().map(|(p, _)| p.file_name().unwrap().to_owned()).collect();
        assert_eq!(left, ["a.jsonl", "b.jsonl"]);
        assert!(folder.path().join("other.txt").exists());
    }
}
