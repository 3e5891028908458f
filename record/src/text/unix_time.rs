//! Times in the files of a run.

use std::time::{SystemTime, UNIX_EPOCH};

use chrono::DateTime;

/// Current Unix time in milliseconds.
pub fn unix_ms() -> u64 {
    unix_ms_at(SystemTime::now())
}

/// Converts a time to Unix time in milliseconds.
pub fn unix_ms_at(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// Formats Unix time in milliseconds as UTC, as in "2026-11-24 08:30"; `null` if it is outside the
/// calendar.
pub fn minute(unix_ms: u64) -> String {
    let time = DateTime::from_timestamp_millis(unix_ms.cast_signed());
    time.map_or_else(|| "null".to_owned(), |time| time.format("%F %H:%M").to_string())
}
